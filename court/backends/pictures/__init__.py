"""Decoding pictures of strangers in a child process with limits."""
