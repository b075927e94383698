"""Checks of a library: conflicting labels, and precedents too near to judged memes."""
