"""The report on runs: gathered once, rendered in a terminal, as Markdown and as one HTML page."""
