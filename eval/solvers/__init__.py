"""Solvers: each answers for one meme, by a trial, a question to a model, a vote or another way."""
