"""Folders of the project, and texts that tests read from tests/fixtures/texts."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
GOLDEN = TESTS / "golden"
NODE = ROOT / ".cache" / "node"


def read_texts(name: str) -> dict[str, Any]:
    return tomllib.loads((TESTS / "fixtures" / "texts" / f"{name}.toml").read_text("utf-8"))
