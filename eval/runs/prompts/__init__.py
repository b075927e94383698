"""Prompts of the comparators, one file each and version."""
