"""Benchmark of reading text from pictures: errors and speed."""
