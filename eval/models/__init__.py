"""Shared parts of arena and probe: models called through a store of calls, with a budget and an account."""
