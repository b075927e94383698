"""How much a summary says: the measure that ends an examination (docs/trials.md)."""

from __future__ import annotations

import math
from collections import Counter


def entropy(text: str) -> float:
    """Shannon entropy of the characters of ``text``, in bits: ``-sum (n_i / N) log2 (n_i / N)``; 0 for an empty text.

    The measure of the examination's stop (ChatCaptioner procedure; docs/trials.md).
    """
    total = len(text)
    # max(): a text of one repeated character gives -0.0.
    return max(0.0, -sum(n / total * math.log2(n / total) for n in Counter(text).values()))
