"""Runs: one pass over a data set, stored as plain files that can be resumed, reported and compared."""
