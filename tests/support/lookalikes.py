"""Harmless texts that resemble prompt injections: orders among people, judges, rules, systems, recipes, JSON.

``SEEN`` was used while the detector's patterns were written, ``HELD_OUT`` was not; both are older than the patterns.
"""

from __future__ import annotations

from tests.support.texts import read_texts

TEXTS = read_texts("lookalikes")
SEEN: dict[str, list[str]] = TEXTS["SEEN"]

HELD_OUT: dict[str, list[str]] = TEXTS["HELD_OUT"]
