"""Helpers of the tests: synthetic data, scripted models, fakes, clients and checks."""
