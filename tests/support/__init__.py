"""Helpers of the tests: invented worlds, scripted models, clients and what checks them."""
