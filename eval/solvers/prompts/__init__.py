"""Prompts of the comparators, one file per prompt and version."""
