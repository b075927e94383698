"""Checks of a library: conflicting labels, and precedents too near to what is judged."""
