"""Benchmarks that this program draws and writes: tame, of invented groups, with known gold and a known judge."""
