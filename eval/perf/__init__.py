"""Benchmarks: each prints its figures, the bounds they are held against, and whether they hold."""
