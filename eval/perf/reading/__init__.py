"""How well and how fast text is read off pictures."""
