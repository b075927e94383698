"""Prompt injections to measure the detector with, held out: written before its patterns, and not used for them.

The strings of ``tests/support/injections.py`` were seen while the patterns were written; these were not. Twelve in each
of eight languages, tame.
"""

from __future__ import annotations

from tests.support.texts import read_texts

STEERING: dict[str, list[str]] = read_texts("held_out")["STEERING"]
