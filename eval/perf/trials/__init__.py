"""Benchmarks of the court's overhead over the time of its model calls."""
