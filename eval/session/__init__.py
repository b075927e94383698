"""Sessions: work in a folder that is started once, stored step by step, and resumed after any interruption."""
