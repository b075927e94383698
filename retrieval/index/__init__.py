"""Nearest vectors: exact, and by candidates of a first stage."""
