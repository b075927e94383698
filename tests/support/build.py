"""Helpers of tests of build."""

import json
from pathlib import Path
from typing import Any

from tests.support.encoders import WordEncoder

ENCODER = WordEncoder()


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def harmeme(id_: str, label: str | None, text: str, *targets: str, image: str = "") -> dict[str, Any]:
    return {"id": id_, "image": image or f"{id_}.png", "labels": [label, *targets] if label else [], "text": text}
