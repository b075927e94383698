"""Reads the text off a picture with RapidOCR, whose models come in its package: nothing is ever downloaded.

The engine runs in a guarded worker, for it is native code that can crash or hang, and because neither numpy nor
onnxruntime has to be in a process that only serves. It sees no stranger's file, only PNGs of our own making.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.metadata
import logging
import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from court.backends.sandbox.pool import GuardedWorkers, JobFailed
from court.backends.sandbox.process import Death, Guard, Reply, WorkerDied
from court.errors import Unavailable
from court.events import TextLine
from court.meme import Frame, Picture
from court.ports import Reading

logger = logging.getLogger(__name__)

_Span = tuple[float, float]
"""Top and bottom of a line, in pixels."""

METHOD = "PP-OCRv6-small, coarse to fine 1"
"""Models, and the way in which :mod:`court.backends.ocr.engine` uses them: to be changed with what it reads."""
MEMORY_BYTES = 4 * 1024**3
"""Address space of a worker. Far above what it holds: onnxruntime reserves addresses that it never uses, some for each
thread. It is there for the picture that makes the engine ask for all the memory of the machine."""

_WORD = (
    # A PNG of 160 x 160 pixels that shows COURT.
    "iVBORw0KGgoAAAANSUhEUgAAAKAAAACgAQAAAACjtFqAAAAA90lEQVR42u3VsW3DMBCF4f9oAWFleQJJI7hM54wSb+ANwi5lMkQGoZFF"
    "BMcDkK4UgOCliCErlot0SUGWH+7xeNdQlPkxFCxYsGDB/4R7x959coryJNIBqGbaTDtoDDTQqqqB3ITcBEByzJseqCBtbdpaAHHnS1WD"
    "vgf9GDRGfc4b/Y4LXSQD8DB2P4FhNXvnEvQKe5Y9FgA/YgXVucTeGFNf56im++WWJPU3KheXygRpFu84dgwA7H7G5aoyQybgwhRrjjWm"
    "mvQ0YJ237g3fT8bQ1NSpqXN9F/VlXLI5rM1hJdHC/RgX58U/4teX0coHXbBgwYJ/gV908V9Lw6ts5AAAAABJRU5ErkJggg=="
)

_Point = tuple[float, float]
_Corners = Sequence[_Point]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    text: str = Field(max_length=10_000)
    confidence: float
    box: tuple[_Point, _Point, _Point, _Point]


class _Lines(BaseModel):
    model_config = ConfigDict(extra="forbid")

    lines: list[_Line] = Field(max_length=1000)


class OcrTextReader:
    """A :class:`~court.ports.TextReader`; safe to call concurrently."""

    def __init__(
        self,
        *,
        workers: int = 1,
        threads: int = 1,
        cpu_s: float = 60.0,
        wall_s: float = 60.0,
        watch: Callable[[Reply], None] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            workers: Processes at most; each holds the models.
            threads: Threads of each process.
            cpu_s: CPU time of one frame, all threads together, in seconds.
            wall_s: Time of one frame on the clock, in seconds.
            watch: Is shown what each frame cost.
        """
        guard = Guard(
            cpu_s=cpu_s,
            wall_s=wall_s,
            memory_bytes=MEMORY_BYTES,
            open_files=64,
            max_reply_bytes=0,
            settings={"threads": threads},
        )
        self._workers = GuardedWorkers(
            "court.backends.ocr.worker", guard, name="text reader", workers=workers, watch=watch
        )
        self._identity = f"rapidocr/{importlib.metadata.version('rapidocr')} {METHOD}"

    @property
    def identity(self) -> str:
        """Name and version of the engine, and its models."""
        return self._identity

    async def read(self, picture: Picture) -> Reading:
        """The text on the picture, frame by frame in reading order; no lines where there is none.

        Raises:
            Overrun: There was no time.
            Unavailable: The text can't be read now.
        """
        frames = await asyncio.gather(*(self._read(frame) for frame in picture.frames))
        return Reading(lines=tuple(line for lines in frames for line in lines))

    async def warm(self) -> None:
        """Starts a process and runs a drawn word through it, so that the first meme does not wait for the models.

        Raises:
            Unavailable: The reader does not work: it did not read the word that was drawn.
        """
        lines = await self._read(Frame(png=base64.b64decode(_WORD), width=160, height=160))
        if [line.text.lower() for line in lines] != ["court"]:
            raise Unavailable("The text reader did not read its sample.", reason="TEXT_READER_FAILED")

    async def aclose(self) -> None:
        """Ends the processes."""
        await self._workers.aclose()

    async def _read(self, frame: Frame) -> list[TextLine]:
        try:
            reply = await self._workers.run({"size": [frame.width, frame.height]}, [frame.legible_png or frame.png])
            found = _Lines.model_validate(reply.body)
        except (WorkerDied, JobFailed, ValidationError) as error:
            # A failure must never pass for a picture without text.
            logger.warning("the text reader failed by %s", type(error).__name__)
            if isinstance(error, WorkerDied) and error.death is Death.KILLED:
                raise Unavailable(
                    "The process that read the text off the picture was killed from outside before it was done. "
                    "Ask again.",
                    reason="TEXT_READER_KILLED",
                ) from None
            raise Unavailable(
                "The text could not be read off the picture. Try again later, or send the text with it.",
                reason="TEXT_READER_FAILED",
            ) from None
        lines = []
        for line in found.lines:
            text = _clean(line.text)
            if text:
                confidence = min(max(line.confidence, 0.0), 1.0)
                lines.append(TextLine(text=text, confidence=confidence, box=line.box, frame=frame.index))
        return in_reading_order(lines)


def _clean(text: str) -> str:
    """Composed, on one line, without control characters."""
    spaced = " ".join(unicodedata.normalize("NFC", text).split())
    return "".join(character for character in spaced if unicodedata.category(character) not in ("Cc", "Cs")).strip()


def in_reading_order(lines: Iterable[TextLine]) -> list[TextLine]:
    """The lines in rows from top to bottom, each row from left to right, as most of the text is turned.

    Two lines stand in one row where they share at least half the height of the lower one. Each is held against the
    mean of its row, not against the last: of a staircase of lines, the last would otherwise join the first.
    """
    found = list(lines)
    quarters = _quarters(found)
    upright = [(line, _upright(line, quarters)) for line in found]
    rows: list[list[tuple[TextLine, _Corners]]] = []
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
    """The corners of a line when all is turned back by so many quarters, beginning with the upper left one."""
    first = (quarters - _quarters_of(line)) % 4
    corners = [*line.box[first:], *line.box[:first]]
    for _ in range(quarters):
        corners = [(y, -x) for x, y in corners]
    return corners


def _shares(row: _Span, line: _Span) -> bool:
    shared = min(row[1], line[1]) - max(row[0], line[0])
    return shared > 0 and shared >= 0.5 * min(row[1] - row[0], line[1] - line[0])


def _mean_span(row: list[_Corners]) -> _Span:
    spans = [_span(corners) for corners in row]
    return sum(top for top, _ in spans) / len(spans), sum(bottom for _, bottom in spans) / len(spans)


def _span(corners: _Corners) -> _Span:
    """The middles of the two long edges, so that a slanting line is no taller than its text."""
    upper_left, upper_right, lower_right, lower_left = corners
    return (upper_left[1] + upper_right[1]) / 2, (lower_left[1] + lower_right[1]) / 2


def _left(corners: _Corners) -> float:
    return min(x for x, _ in corners)
