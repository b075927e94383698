"""Sizes of tests: small ones before each commit, those of the promises in ``make test-full``."""

import os

FULL = os.environ.get("MEMECOURT_FULL") == "1"
"""True if tests run at the sizes that docs/security.md promises."""
