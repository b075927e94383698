"""Meme data sets: their known facts, recognising them on disk, reading them, and the meaning of their labels."""
