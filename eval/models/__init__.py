"""Shared parts of arena and probe: models called through a call cache, with a budget and usage accounts."""
