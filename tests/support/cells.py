"""The shared table of cells: how every reader of labels, votes, predictions, groups and precedents takes a cell."""

LABELS = (
    ("harmful", True),
    ("Harmful", True),
    (" HARMFUL ", True),
    ("1", True),
    ("1.0", True),
    ("not_harmful", False),
    ("Not Harmful", False),
    ("not-harmful", False),
    ("0", False),
    ("0.0", False),
    ("", None),
    ("  ", None),
    ("nan", None),
    ("NaN", None),
    ("None", None),
    ("NA", None),
    ("null", None),
    ("-", None),
)
"""Cell, and True for harmful, False for benign, None for a missing value."""
MISSING = tuple(cell for cell, meaning in LABELS if meaning is None)
