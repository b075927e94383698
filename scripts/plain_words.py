"""Checks that docstrings open plainly: with a verb or a noun phrase, and no description of an argument with a fragment.

A first line such as "What came of it." tells nothing, and "Of the meme." only beside the name that it explains.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("court", "retrieval", "serving", "eval", "proto/memecourt", "scripts")
OPENING = re.compile(
    r"(?:what|whether|whose|whom|who|how|where|when|those|these|of|it|nobody|nothing|none|each|as|by|for|with|so|such)\b",
    re.IGNORECASE,
)
"""Words that no docstring begins with."""
ENTRY = re.compile(r"^\s+(?P<name>\w+(?: \([^)]*\))?): (?P<text>\S.*)$")
"""A line of a section such as Args, Attributes or Raises."""
FRAGMENT = re.compile(r"(?:Of|That|What|Whether|Who|Whose|How|Where|When|Those|As|By|It|For|With|So)\b")
"""Words that no description of an argument, attribute or error begins with."""


def faults(path: Path) -> Iterator[str]:
    """Yields a line for each docstring and each description in a file that opens so."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (ast.get_docstring(node) or "").splitlines()
        place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
        if lines and OPENING.match(lines[0].lstrip("`*")):
            yield f"{place}: {lines[0]}"
        for line in lines:
            entry = ENTRY.match(line)
            if entry and FRAGMENT.match(entry["text"]):
                yield f"{place}: {line.strip()}"


def main() -> None:
    """Ends with 1 and the lines where there are any."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name]
    found = [fault for path in paths for fault in faults(path)]
    if found:
        sys.exit("\n".join([*found, "Open with a verb or a noun phrase: CONTRIBUTING.md, section Habits."]))


if __name__ == "__main__":
    main()
