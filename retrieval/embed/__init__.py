"""Encoders: texts and pictures as vectors."""
