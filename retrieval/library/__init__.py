"""A library of precedents on disk: built, changed one meme at a time, read back and checked."""
