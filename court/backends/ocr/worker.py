"""Worker process that reads text off one frame per job; started by :mod:`court.backends.ocr.worker_reader`."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np

from court.backends.ocr.engine import Engine
from court.backends.sandbox import child as worker_child


def prepare(threads: int, recognition: str | None) -> worker_child.Handler:
    """Loads the engine and returns a job handler. Raises FileNotFoundError if a model is missing."""
    logging.disable(logging.CRITICAL)
    engine = Engine(threads=threads, recognition=recognition)

    def answer(job: Mapping[str, Any], payloads: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        pixels = cv2.imdecode(np.frombuffer(payloads[0], dtype=np.uint8), cv2.IMREAD_COLOR)
        if pixels is None:
            raise ValueError("no PNG")
        lines = engine.read(pixels.astype(np.uint8, copy=False))
        # In pixels of the frame, which may be smaller than the picture that was read.
        width, height = job["size"]
        most = np.array([width, height], dtype=np.float32)
        scale = most / np.array(pixels.shape[1::-1], dtype=np.float32)
        return {
            "lines": [
                {
                    "text": line.text,
                    "confidence": line.confidence,
                    "box": (line.corners * scale).clip(0, most).tolist(),
                }
                for line in lines
            ]
        }, []

    return answer


def main() -> None:
    """Serves jobs until the parent process exits."""
    settings = json.loads(sys.argv[1])
    worker_child.serve(prepare(settings["threads"], settings["recognition"]))


if __name__ == "__main__":
    main()
