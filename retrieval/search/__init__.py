"""Searching a library: exact fused similarity, a fast first stage, filters, the court's finder."""
