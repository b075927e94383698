"""Input of an export, a record with its pictures, and its form as JSON.

``events`` is the record, each event in its stored form; whoever reads the file back (:func:`read_document`) gets the
same record. What stands beside it follows from the events.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from pydantic import ValidationError

from court.errors import BadRequest
from court.events import parse_event
from court.meme import Frame
from court.record import TrialRecord
from serving.docket.ports import TrialReader
from serving.docket.store.log_queries import Receipt, TransparencyLog
from serving.views.blur import blurred
from serving.views.messages import PictureShown, messages_of


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
        png, read = self.precedents.get(precedent), self.record.readings.get(precedent)
        return bool(png and read and read.picture and hashlib.sha256(png).hexdigest() != read.picture)


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


FORMAT = "memecourt-trial/1"


def document(source: ExportSource, *, pictures: Pictures = Pictures.NONE, messages: bool = False) -> dict[str, Any]:
    """A trial, fit to be written as JSON."""
    record = source.record
    verdict, review = record.verdict, record.review
    content: dict[str, Any] = {
        "format": FORMAT,
        "trial_id": record.trial_id,
        "state": str(record.state),
        "label": None if verdict is None else str(record.label_in_force),
        "decision": record.decision,
        "in_force": record.in_force and record.in_force.facts(),
        "court_label": None if verdict is None else str(verdict.label),
        "reviewed": None if review is None else str(review.outcome),
        "events": [event.model_dump(mode="json") for event in record.events],
    }
    if source.receipt is not None:
        # As a JudgeResponse carries it: `python -m memecourt.verify` checks this file.
        content["verdict_id"] = record.trial_id
        content["receipt"] = {
            "checkpoint": source.receipt.checkpoint,
            "entry": source.receipt.number,
            "header": _base64(source.receipt.header),
            "proof": [_base64(step) for step in source.receipt.proof],
        }
    if messages:
        content["messages"] = [
            {
                "event": event.seq,
                "role": str(made.call.role),
                "prompt": made.call.prompt_id,
                "exact": made.exact,
                "why": made.why,
                "requests": [
                    {"system": request.system, "parts": [_part(part) for part in request.parts]}
                    for request in made.requests
                ],
            }
            for event in record.events
            for made in messages_of(record, event)
        ]
    if pictures is not Pictures.NONE:
        content["pictures"] = [
            _picture(png, index, pictures)
            # Not strict: there are no frames where the picture is not stored.
            for png, index in zip(source.frames, record.opened.meme.frames_used, strict=False)
        ]
    return content


def write_document(source: ExportSource, *, pictures: Pictures = Pictures.NONE, messages: bool = False) -> str:
    """Writes the document as indented text with a line break at its end."""
    return json.dumps(document(source, pictures=pictures, messages=messages), indent=1, ensure_ascii=False) + "\n"


def read_document(text: str | bytes) -> TrialRecord:
    """The record in a document, or in a line of a JSONL export.

    Raises:
        BadRequest: The text is no document of a trial.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("no document")
        return TrialRecord.of(parse_event(json.dumps(event)) for event in content["events"])
    # The file may be anybody's: whatever is wrong with it is one and the same refusal.
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError):
        raise BadRequest(f"This is no trial in the form {FORMAT}.", reason="NOT_A_TRIAL") from None


def _part(part: str | PictureShown) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    return {"picture": part.sha256, "of": part.owner, "frame": part.frame}


def _picture(png: bytes, index: int, pictures: Pictures) -> dict[str, Any]:
    shown = png if pictures is Pictures.SHARP else blurred(png)
    return {
        "frame": index,
        # Of the frame as it was judged, also where it is shown blurred: the record names it so.
        "sha256": hashlib.sha256(png).hexdigest(),
        "veiled": pictures is not Pictures.SHARP,
        "png_base64": _base64(shown),
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
