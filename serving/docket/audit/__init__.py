"""Recomputing everything that the docket claims, and witnessing its checkpoints elsewhere."""
