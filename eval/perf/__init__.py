"""Benchmarks. Each prints its figures, the bounds that they must meet, and whether they meet them."""
