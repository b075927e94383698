"""Reproduction of a published paper with one command: its figures beside ours, and its claims as tests."""
