"""Helpers of tests of outgoing."""

import gzip

BOMB = gzip.compress(b"\0" * 64 * 2**20)
