"""Sandboxed child processes that can be killed."""
