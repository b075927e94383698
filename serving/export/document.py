"""A trial as JSON: the record as it is kept, and beside it what can be made of it.

``events`` is the record, each event in its stored form; whoever reads the file back (:func:`read_document`) gets the
same record. What stands beside it is for readers who don't want to work it out: it follows from the events.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from pydantic import ValidationError

from court.errors import BadRequest
from court.events import parse_event
from court.record import TrialRecord
from serving.export.source import ExportSource, Pictures
from serving.views.blur import blurred
from serving.views.messages import PictureShown, messages_of

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
