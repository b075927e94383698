"""Benchmark of reading text off pictures: errors and speed."""
