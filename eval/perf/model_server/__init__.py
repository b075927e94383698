"""A model server that answers without a model, for tests and benchmarks."""
