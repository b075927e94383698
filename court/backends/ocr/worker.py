"""The process that reads text off frames: started by :mod:`court.backends.ocr.reader`, one frame a job."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import rapidocr
from PIL import Image
from rapidocr import RapidOCR
from rapidocr.utils.output import RapidOCROutput

from court.backends.sandbox import child as worker_child


def prepare(threads: int) -> worker_child.Handler:
    """The engine with its models, bound to a handler of jobs. Raises FileNotFoundError if a model is not there."""
    models = Path(rapidocr.__file__).parent / "models"
    logging.disable(logging.CRITICAL)
    engine = RapidOCR(
        params={
            "Global.log_level": "critical",
            # Named one by one: what is named is never downloaded, and what is missing is an error.
            "Det.model_path": str(models / "PP-OCRv6_det_small.onnx"),
            "Cls.model_path": str(models / "ch_ppocr_mobile_v2.0_cls_mobile.onnx"),
            "Rec.model_path": str(models / "PP-OCRv6_rec_small.onnx"),
            "EngineConfig.onnxruntime.intra_op_num_threads": threads,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )

    def answer(asked: Mapping[str, Any], payloads: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        with Image.open(BytesIO(payloads[0]), formats=["PNG"]) as opened:
            width, height = opened.size
            pixels = np.asarray(_squat(opened.convert("RGB")))
        # The engine expects blue, green, red.
        found = engine(np.ascontiguousarray(pixels[:, :, ::-1]))
        # Where one of its later steps fails it logs a warning and hands back what it has, which is of another type.
        if not isinstance(found, RapidOCROutput):
            raise RuntimeError("not read to its end")
        return {"lines": _lines(found, width, height)}, []

    return answer


def _squat(frame: Image.Image) -> Image.Image:
    """The frame with white to its right or below it, until no side is shorter than a third of the other.

    The engine scales up until the shorter side has 736 pixels: a frame of 1 x 1280 would grow to be 942,080 pixels
    long and take all the memory there is.
    """
    least = max(32, math.ceil(max(frame.size) / 3))
    padded = Image.new("RGB", (max(frame.width, least), max(frame.height, least)), (255, 255, 255))
    padded.paste(frame)
    return padded


def _lines(found: RapidOCROutput, width: int, height: int) -> list[dict[str, Any]]:
    if found.txts is None or found.boxes is None or found.scores is None:
        return []
    return [
        {"text": text, "confidence": float(score), "box": _within(box, width, height)}
        for text, score, box in zip(found.txts, found.scores, found.boxes, strict=True)
    ]


def _within(box: Iterable[tuple[float, float]], width: int, height: int) -> list[list[float]]:
    return [[min(max(float(x), 0.0), float(width)), min(max(float(y), 0.0), float(height))] for x, y in box]


def main() -> None:
    """Serves until the parent is gone."""
    worker_child.serve(prepare(json.loads(sys.argv[1])["threads"]))


if __name__ == "__main__":
    main()
