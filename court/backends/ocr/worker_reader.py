"""Reads text off a picture in sandboxed workers, with RapidOCR.

Engines are native code that can crash or hang, and a serving process needs neither numpy nor onnxruntime. They only see
our own PNGs, never untrusted files.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from court.backends.onnx import NO_REPORTS
from court.backends.sandbox.process import Death, Guard, GuardedWorkers, JobFailed, WorkerDied
from court.errors import Unavailable
from court.events import TextLine
from court.meme import Frame, Picture
from court.ports import Reading

_Point = tuple[float, float]
_Corners = Sequence[_Point]
_Span = tuple[float, float]
"""Top and bottom of a line, in pixels."""


def in_reading_order(lines: Iterable[TextLine]) -> list[TextLine]:
    """The lines in rows from top to bottom, each row left to right, in the orientation of most of the text."""
    # A line belongs to a row if they overlap by at least half the height of the less tall one. It is compared with the
    # mean of the row and not with the last line; otherwise a staircase of lines would form a single row.
    found = list(lines)
    quarters = _quarters(found)
    upright = [(line, _upright(line, quarters)) for line in found]
    rows: list[list[tuple[TextLine, _Corners]]] = []
    # By vertical centre: the sum of top and bottom gives the same order as their mean.
    for line, corners in sorted(upright, key=lambda one: (sum(_span(one[1])), _left(one[1]))):
        if rows and _shares(_mean_span([other for _, other in rows[-1]]), _span(corners)):
            rows[-1].append((line, corners))
        else:
            rows.append([(line, corners)])
    return [line for row in rows for line, _ in sorted(row, key=lambda one: _left(one[1]))]


def _quarters(lines: Iterable[TextLine]) -> int:
    """Returns the number of clockwise quarter turns of most of the text, 0 to 3; longer lines count for more."""
    lengths = [0.0] * 4
    for line in lines:
        (x0, y0), (x1, y1) = line.box[:2]
        lengths[_quarters_of(line)] += math.hypot(x1 - x0, y1 - y0)
    return lengths.index(max(lengths))


def _quarters_of(line: TextLine) -> int:
    (x0, y0), (x1, y1) = line.box[:2]
    return round(math.atan2(y1 - y0, x1 - x0) / (math.pi / 2)) % 4


def _upright(line: TextLine, quarters: int) -> _Corners:
    """The corners of a line after rotating the picture back by quarter turns, beginning with the upper left one."""
    # In a line turned differently from most, another corner is the upper left one.
    first = (quarters - _quarters_of(line)) % 4
    corners = [*line.box[first:], *line.box[:first]]
    for _ in range(quarters):
        # A quarter turn counter-clockwise as seen, because y grows downwards.
        corners = [(y, -x) for x, y in corners]
    return corners


def _shares(row: _Span, line: _Span) -> bool:
    shared = min(row[1], line[1]) - max(row[0], line[0])
    # shared > 0, as two lines of zero height would otherwise pass.
    return shared > 0 and shared >= 0.5 * min(row[1] - row[0], line[1] - line[0])


def _mean_span(row: list[_Corners]) -> _Span:
    spans = [_span(corners) for corners in row]
    return sum(top for top, _ in spans) / len(spans), sum(bottom for _, bottom in spans) / len(spans)


def _span(corners: _Corners) -> _Span:
    """Vertical extent by the midpoints of the long edges, so that a slanted line is no taller than its text."""
    upper_left, upper_right, lower_right, lower_left = corners
    return (upper_left[1] + upper_right[1]) / 2, (lower_left[1] + lower_right[1]) / 2


def _left(corners: _Corners) -> float:
    return min(x for x, _ in corners)


logger = logging.getLogger(__name__)

MEMORY_BYTES = 4 * 1024**3
"""Address space of a worker. Far above its actual use, as onnxruntime reserves unused addresses, also per thread. It
guards against pictures that make the engine allocate all memory of the machine."""

_FRAME_S = 60.0
"""Wall-clock and CPU time of one frame, all threads together, in seconds."""
SAMPLE = base64.b64decode(
    # A PNG of 160 x 160 pixels that shows COURT.
    "iVBORw0KGgoAAAANSUhEUgAAAKAAAACgAQAAAACjtFqAAAAA90lEQVR42u3VsW3DMBCF4f9oAWFleQJJI7hM54wSb+ANwi5lMkQGoZFF"
    "BMcDkK4UgOCliCErlot0SUGWH+7xeNdQlPkxFCxYsGDB/4R7x959coryJNIBqGbaTDtoDDTQqqqB3ITcBEByzJseqCBtbdpaAHHnS1WD"
    "vgf9GDRGfc4b/Y4LXSQD8DB2P4FhNXvnEvQKe5Y9FgA/YgXVucTeGFNf56im++WWJPU3KheXygRpFu84dgwA7H7G5aoyQybgwhRrjjWm"
    "mvQ0YJ237g3fT8bQ1NSpqXN9F/VlXLI5rM1hJdHC/RgX58U/4teX0coHXbBgwYJ/gV908V9Lw6ts5AAAAABJRU5ErkJggg=="
)
SAMPLE_WORD = "court"
SAMPLE_SIDE = 160


class FoundLine(BaseModel):
    """A line found by an engine, in pixels of its input."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    text: str = Field(max_length=10_000)
    confidence: float
    box: tuple[_Point, _Point, _Point, _Point]


class _Lines(BaseModel):
    model_config = ConfigDict(extra="forbid")

    lines: list[FoundLine] = Field(max_length=1000)


class WorkerTextReader:
    """A :class:`~court.ports.TextReader` whose engine runs in worker processes; safe to call concurrently."""

    def __init__(
        self, identity: str, *, settings: Mapping[str, Any], reads_latin: bool = True, workers: int = 1
    ) -> None:
        """Starts nothing yet; ``reads_latin`` if it should be able to read an English word."""
        guard = Guard(
            cpu_s=_FRAME_S,
            wall_s=_FRAME_S,
            memory_bytes=MEMORY_BYTES,
            open_files=64,
            # Lines are in the header; replies with payloads are invalid.
            max_reply_bytes=0,
            environment=NO_REPORTS,
            settings=settings,
        )
        self._workers = GuardedWorkers("court.backends.ocr.worker", guard, name="text reader", workers=workers)
        self.identity = identity
        self._reads_latin = reads_latin

    async def read(self, picture: Picture) -> Reading:
        """Reads the text on the picture, frame by frame in reading order; no lines if there is none.

        Raises:
            Overrun: Reading timed out.
            Unavailable: The text can't be read now.
        """
        frames = await asyncio.gather(*(self._read(frame) for frame in picture.frames))
        return Reading(lines=tuple(line for lines in frames for line in lines))

    async def warm(self) -> None:
        """Starts a process and reads a sample, so that the first meme does not wait for the models.

        Raises:
            Unavailable: The reader did not read the sample.
        """
        check_sample(await self._read(sample_frame()), reads_latin=self._reads_latin)

    async def aclose(self) -> None:
        """Ends the processes."""
        await self._workers.aclose()

    async def _read(self, frame: Frame) -> list[TextLine]:
        try:
            reply = await self._workers.run({"size": [frame.width, frame.height]}, [frame.legible_png or frame.png])
            found = _Lines.model_validate(reply.body)
        except (WorkerDied, JobFailed, ValidationError) as error:
            # A failure must never be mistaken for a picture without text.
            logger.warning("the text reader failed by %s", type(error).__name__)
            if isinstance(error, WorkerDied) and error.death is Death.KILLED:
                raise Unavailable(
                    "The process that read the text off the picture was killed from outside before it was done. "
                    "Ask again.",
                    reason="TEXT_READER_KILLED",
                ) from None
            raise reader_failed() from None
        return text_lines(found.lines, frame.index)


def sample_frame() -> Frame:
    """A frame that shows :data:`SAMPLE_WORD`."""
    return Frame(png=SAMPLE, width=SAMPLE_SIDE, height=SAMPLE_SIDE)


def check_sample(lines: list[TextLine], *, reads_latin: bool) -> None:
    """Raises Unavailable if a reader that knows Latin letters did not read :data:`SAMPLE_WORD` off its sample."""
    if reads_latin and [line.text.lower() for line in lines] != [SAMPLE_WORD]:
        raise Unavailable("The text reader did not read its sample.", reason="TEXT_READER_FAILED")


def reader_failed() -> Unavailable:
    """Returns the error for a reader without a usable answer."""
    return Unavailable(
        "The text could not be read off the picture. Try again later, or send the text with it.",
        reason="TEXT_READER_FAILED",
    )


def text_lines(found: list[FoundLine], frame: int) -> list[TextLine]:
    """Returns lines for the record, in reading order: NFC, without control characters, confidence in [0, 1]."""
    lines = []
    for line in found:
        text = _clean(line.text)
        if text:
            confidence = min(max(line.confidence, 0.0), 1.0)
            lines.append(TextLine(text=text, confidence=confidence, box=line.box, frame=frame))
    return in_reading_order(lines)


def _clean(text: str) -> str:
    spaced = " ".join(unicodedata.normalize("NFC", text).split())
    return "".join(character for character in spaced if unicodedata.category(character) not in ("Cc", "Cs")).strip()
