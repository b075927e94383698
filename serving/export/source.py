"""Input of an export: a record, and the pictures that belong to it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from court.meme import Frame
from court.record import TrialRecord
from serving.docket.ports import TrialReader
from serving.docket.store.log_queries import Receipt, TransparencyLog


class Pictures(StrEnum):
    """Form of a trial's pictures in an export."""

    NONE = "none"
    VEILED = "veiled"
    """Small, grey and without any detail: what can't be made out there is not in the file either."""
    SHARP = "sharp"
    """As they were judged, behind a click; veiled until then."""


class PictureSource(Protocol):
    """The part of a library that has pictures of precedents."""

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """See :class:`court.ports.PrecedentFinder`."""


@dataclass(frozen=True, slots=True)
class ExportSource:
    """One trial, to be exported.

    Attributes:
        frames: Frames of the meme as PNG files, in the order of ``record.opened.meme.frames_used``; empty if they are
            not wanted, or not stored.
        precedents: Pictures of precedents by their ids; of those that are wanted and still there.
        receipt: Shows that the verdict is in the docket's log; None where there is no verdict.
    """

    record: TrialRecord
    frames: tuple[bytes, ...] = ()
    precedents: Mapping[str, bytes] = field(default_factory=dict)
    receipt: Receipt | None = None

    def changed(self, precedent: str) -> bool:
        """True if a precedent's picture differs now from the one that the Judge was shown."""
        verdict = self.record.verdict_event
        readings = verdict.ruling.precedents if verdict and verdict.ruling else ()
        shown = {reading.id: reading.picture for reading in readings}
        png = self.precedents.get(precedent)
        then = shown.get(precedent, "")
        return bool(png is not None and then and hashlib.sha256(png).hexdigest() != then)


async def gather(
    trial_id: str,
    *,
    trials: TrialReader,
    log: TransparencyLog,
    pictures: Pictures,
    library: PictureSource | None = None,
) -> ExportSource:
    """A trial with its pictures.

    Args:
        pictures: True to read the pictures; veiling them is up to the writer of the export.

    Raises:
        TrialUnknown: There is none of that id, or it was erased.
        Unavailable: The pictures can't be read now.
    """
    record = await trials.record(trial_id)
    # A receipt is of a verdict: without one there is none to be had.
    receipt = None if record.verdict is None else await log.receipt(trial_id)
    if pictures is Pictures.NONE:
        return ExportSource(record, receipt=receipt)
    frames = tuple(await trials.frames(record.opened.meme.pixels_sha256))
    cited = record.precedents
    ids = [exhibit.id for exhibit in cited.findings.exhibits] if cited else []
    # Without a library none is found, which the zip below allows.
    found = await library.pictures(ids) if library is not None and ids else ()
    shown = {id_: frame.png for id_, frame in zip(ids, found, strict=False) if frame is not None}
    return ExportSource(record, frames, shown, receipt)


def data_uri(picture: bytes) -> str:
    """A picture's file as an address that holds it."""
    kind = "jpeg" if picture.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}"
