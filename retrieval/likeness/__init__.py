"""Whether two memes are the same or nearly so: known memes, leakage, clones."""
