"""Metrics of labels, and baselines and published figures to compare them with."""
