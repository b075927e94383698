"""A real vLLM that needs no GPU, with a tiny model: for benchmarks and for ``tests/live``."""
