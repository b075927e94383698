"""Texts that tests read from tests/fixtures/texts, one file a subject."""

from __future__ import annotations

import tomllib
from typing import Any

from tests.support.paths import TESTS


def read_texts(name: str) -> dict[str, Any]:
    return tomllib.loads((TESTS / "fixtures" / "texts" / f"{name}.toml").read_text("utf-8"))
