"""Worker process that reads text off one frame per job; started by :mod:`court.backends.ocr.worker_reader`."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import rapidocr
from numpy.typing import NDArray
from rapidocr import RapidOCR
from rapidocr.ch_ppocr_rec import TextRecInput
from rapidocr.utils.process_img import get_rotate_crop_image

from court.backends.sandbox import child as worker_child

_Pixels = NDArray[np.uint8]
"""A picture, shape (height, width, 3): blue, green, red."""
_Box = NDArray[np.float32]
"""Four corners (x, y) in pixels, shape (4, 2), clockwise."""

_COARSE_PIXELS = 480 * 480
"""Size at which a whole picture is searched. With 400 * 400 letters of 10 pixels in a picture of 1280 are lost, which
480 * 480 finds; every further step costs time and finds nothing more (`memecourt-eval perf reading`)."""
_FINE_SIDE = 736
"""Length to which the shorter side of a small picture is brought, in pixels, before a part of it is searched."""
_RESPONSE = 0.1
"""Least answer of the detector, in [0, 1], that is a sign of text; a box takes 0.3."""
_STREAK = 6
"""Height, in pixels of the small picture, below which a sign of text is searched at full size."""
_SURE = 0.9
"""Confidence of recognition below which a line is searched at full size, and read the other way round."""
_LEAST = 0.5
"""Confidence below which what was read is no text. It is RapidOCR's own bound."""
_LEAST_FINE = 0.7
"""The same of what only a search at full size shows: there a pattern of roof tiles is a line of letters too."""
_MARGIN = 24
"""Pixels around what is searched at full size."""
_STRIDE = 32
"""The detector takes sides that are multiples of this, in pixels."""
_LONG = 3
"""Ratio of the sides from which a picture is not enlarged: that would make it longer still."""
_VERTICAL = 1.5
"""Height over width from which RapidOCR takes a box for a line that runs down, and turns it before it is read."""


class _Rect(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: _Rect) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def grown(self, by: float) -> _Rect:
        return _Rect(self.left - by, self.top - by, self.right + by, self.bottom + by)


class Line(NamedTuple):
    """A line of text, its box from the picture's upper left corner; ``turned`` if read turned by 180 degrees."""

    text: str
    confidence: float
    box: _Box
    turned: bool

    @property
    def corners(self) -> _Box:
        """The box, beginning with the upper left corner as the text is read."""
        return np.roll(self.box, -(int(_runs_down(self.box)) + 2 * self.turned), axis=0)

    @property
    def rect(self) -> _Rect:
        """The bounding rectangle of the line."""
        return _Rect(*self.box.min(axis=0).tolist(), *self.box.max(axis=0).tolist())


class Engine:
    """Detection and recognition, with the models in RapidOCR's package unless another is given."""

    def __init__(self, *, threads: int, recognition: str | None = None) -> None:
        models = Path(rapidocr.__file__).parent / "models"
        loaded: Any = RapidOCR(
            params={
                "Global.log_level": "critical",
                # Explicit paths: RapidOCR never downloads these, and a missing file is an error.
                "Det.model_path": str(models / "PP-OCRv6_det_small.onnx"),
                "Rec.model_path": recognition or str(models / "PP-OCRv6_rec_small.onnx"),
                # No batches: lines would be padded to the longest of their batch, at a cost of a tenth of the time.
                "Rec.rec_batch_num": 1,
                "EngineConfig.onnxruntime.intra_op_num_threads": threads,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
        # The pipeline's private parts, as there is no public access to the detector's raw output.
        self._detector: Any = loaded._load_det_model()
        self._recognizer: Any = loaded._load_rec_model()

    def read(self, pixels: _Pixels) -> list[Line]:
        """The lines on a picture, in no order."""
        height, width = pixels.shape[:2]
        scale = min(1.0, math.sqrt(_COARSE_PIXELS / (width * height)))
        boxes, signs = self._detect(pixels, scale)
        lines = self._recognise_either_way(pixels, boxes)
        streaks = [sign for sign, thickness in signs if thickness < _STREAK]
        unread = [line.rect for line in lines if line.confidence < _SURE]
        if streaks or unread:
            part = _closed([*streaks, *unread], [*(sign for sign, _ in signs), *(line.rect for line in lines)])
            # The part cuts through no line, so none is read in pieces, and lines inside it are read only once.
            lines = [line for line in lines if not part.overlaps(line.rect)]
            lines += [line for line in self._read_part(pixels, part) if line.confidence >= _LEAST_FINE]
        return [line for line in lines if line.confidence >= _LEAST and line.text.strip()]

    def _read_part(self, pixels: _Pixels, part: _Rect) -> list[Line]:
        height, width = pixels.shape[:2]
        left, top = max(0, math.floor(part.left)), max(0, math.floor(part.top))
        right, bottom = min(width, math.ceil(part.right)), min(height, math.ceil(part.bottom))
        short, long = sorted((width, height))
        scale = 1.0 if long > _LONG * short else max(1.0, _FINE_SIDE / short)
        boxes, _ = self._detect(np.ascontiguousarray(pixels[top:bottom, left:right]), scale)
        return self._recognise_either_way(pixels, [box + np.array([left, top], dtype=np.float32) for box in boxes])

    def _detect(self, pixels: _Pixels, scale: float) -> tuple[list[_Box], list[tuple[_Rect, int]]]:
        """Boxes around lines, and every sign of text with its thickness in pixels of the scaled picture."""
        height, width = pixels.shape[:2]
        rows, columns = (max(_STRIDE, round(side * scale / _STRIDE) * _STRIDE) for side in (height, width))
        shrinking = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        scaled = cv2.resize(pixels, (columns, rows), interpolation=shrinking).astype(np.float32)
        response = self._detector.session((scaled / 127.5 - 1).transpose(2, 0, 1)[None])
        boxes, _ = self._detector.postprocess_op(response, (height, width))
        _, _, found, _ = cv2.connectedComponentsWithStats((response[0, 0] > _RESPONSE).astype(np.uint8))
        across, down = width / columns, height / rows
        signs = [
            (_Rect(x * across, y * down, (x + wide) * across, (y + high) * down), min(wide, high))
            for x, y, wide, high, _ in found[1:].tolist()  # the first one is the background
        ]
        return [np.asarray(box, dtype=np.float32) for box in boxes], signs

    def _recognise_either_way(self, pixels: _Pixels, boxes: Sequence[_Box]) -> list[Line]:
        """Recognises the text in each box, turned by 180 degrees if only that reading has high confidence."""
        lines = self._recognise(pixels, boxes)
        unsure = [number for number, line in enumerate(lines) if line.confidence < _SURE]
        others = self._recognise(pixels, [boxes[number] for number in unsure], turn=True)
        for number, other in zip(unsure, others, strict=True):
            # A pattern without text may yield some reading either way, but only real text gets high confidence.
            if other.confidence >= _SURE:
                lines[number] = other
        return lines

    def _recognise(self, pixels: _Pixels, boxes: Sequence[_Box], *, turn: bool = False) -> list[Line]:
        if not boxes:
            return []
        crops = [get_rotate_crop_image(pixels, box.copy()) for box in boxes]
        if turn:
            crops = [np.ascontiguousarray(crop[::-1, ::-1]) for crop in crops]
        found = self._recognizer(TextRecInput(img=crops, return_word_box=False))
        return [
            Line(text, float(confidence), box, turn)
            for text, confidence, box in zip(found.txts, found.scores, boxes, strict=True)
        ]


def _runs_down(box: _Box) -> bool:
    """True if RapidOCR rotates the content of a box before reading it, so that its right side is on top."""
    wide = max(np.linalg.norm(box[0] - box[1]), np.linalg.norm(box[2] - box[3]))
    high = max(np.linalg.norm(box[0] - box[3]), np.linalg.norm(box[1] - box[2]))
    return int(high) >= _VERTICAL * int(wide)


def _closed(wanted: Sequence[_Rect], everything: Sequence[_Rect]) -> _Rect:
    """The smallest part that contains ``wanted`` and a margin and does not cut through any rectangle."""
    part = _union(wanted).grown(_MARGIN)
    while True:
        # Terminates: the part only grows, and never beyond the union of all rectangles.
        wider = _union([part, *(one.grown(_MARGIN) for one in everything if one.overlaps(part))])
        if wider == part:
            return part
        part = wider


def _union(rects: Sequence[_Rect]) -> _Rect:
    lefts, tops, rights, bottoms = zip(*rects, strict=True)
    return _Rect(min(lefts), min(tops), max(rights), max(bottoms))


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
                {"text": line.text, "confidence": line.confidence, "box": (line.corners * scale).clip(0, most).tolist()}
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
