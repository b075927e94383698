"""Evaluation of the expert witness on claims of known truth."""
