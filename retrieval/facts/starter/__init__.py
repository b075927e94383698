"""The starter corpus: short statements on public health, written by us after public pages, for demonstrations.

The statements are in our words. Each names the page on which what it says can be read, and the month in which we wrote
it. Nobody of these publishers has seen them: they show what a corpus does, and no real decision may rest on them.
"""

from pathlib import Path

STARTER_FACTS = Path(__file__).parent / "facts.jsonl"
