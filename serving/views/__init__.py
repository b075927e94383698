"""Views of a record, shared by pages, PDF, HTML and the terminal."""
