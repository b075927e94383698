"""The report on runs: gathered once, told in a terminal, in Markdown and as one HTML page."""
