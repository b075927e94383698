"""Finding the precedents of a meme."""
