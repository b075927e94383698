"""Texts to measure the detector of prompt injections with, all older than its patterns, and tame.

``STEERING`` are injections that were not seen while the patterns were written, unlike ``tests/support/injections.py``:
twelve in each of eight languages. ``SEEN`` and ``HELD_OUT`` are harmless and resemble injections: orders among people,
judges, rules, systems, recipes, JSON; only the former were seen.
"""

from tests.support.paths import read_texts

STEERING: dict[str, list[str]] = read_texts("held_out")["STEERING"]


TEXTS = read_texts("lookalikes")
SEEN: dict[str, list[str]] = TEXTS["SEEN"]

HELD_OUT: dict[str, list[str]] = TEXTS["HELD_OUT"]
