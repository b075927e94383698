"""A record made ready to be shown, for pages, PDF, HTML and the terminal alike."""
