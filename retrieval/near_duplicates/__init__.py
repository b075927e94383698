"""Deciding if two memes are the same to the eye and to the letter."""
