"""Views of a record, shared by pages, exports and the terminal."""
