"""Texts and pictures as vectors."""
