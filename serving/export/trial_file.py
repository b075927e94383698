"""One trial as a file, in any of the forms that there are."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from court.record import TrialRecord
from serving.export.dsa import draft
from serving.export.source import ExportSource, Pictures, data_uri, write_document
from serving.views.blur import blurred
from serving.views.messages import PictureShown, messages_of
from serving.views.text import environment
from serving.views.trial_view import view_of


def course_of(record: TrialRecord, figures: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Returns the course of a trial as HTML without links and ids, so that a page may hold several.

    Args:
        figures: Pictures of precedents by id: data URI of the ``veiled`` and of the ``sharp`` one (or empty), and
            ``another``, True if it is not the picture that the Judge was shown.
    """
    values = {"record": record, "view": view_of(record), "figures": figures, "static": True}
    return Markup(environment(__package__).get_template("trial/static.html").render(values))


def style_sheet() -> str:
    """Returns the style sheet of all pages with that of a trial's parts."""
    static = files("serving.console") / "static"
    return "".join((static / name).read_text("utf-8") for name in ("base.css", "trial.css"))


def page(
    source: ExportSource, *, pictures: Pictures = Pictures.VEILED, messages: bool = True, now: datetime | None = None
) -> str:
    """The file's text, to be written as UTF-8.

    Args:
        pictures: Form of its pictures. Only with SHARP does the file contain anything by which they can be made out.
    """
    style = style_sheet() + (files(__package__) / "templates" / "page.css").read_text("utf-8")
    record = source.record
    figures = {
        id_: {**_shown(png, pictures), "another": source.changed(id_)}
        for id_, png in source.precedents.items()
        if pictures is not Pictures.NONE
    }
    sent = [(event, call) for event in record.events for call in messages_of(record, event)] if messages else []
    return (
        environment(__package__)
        .get_template("page.html")
        .render(
            style=Markup(style),
            # The file's own policy allows this one style, by its digest, and no script at all.
            style_digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii"),
            view=view_of(record),
            record=record,
            receipt=source.receipt,
            static=True,
            frames=[] if pictures is Pictures.NONE else [_shown(frame, pictures) for frame in source.frames],
            course=course_of(record, figures),
            asked=pictures is not Pictures.NONE,
            sent=sent,
            is_picture=lambda part: isinstance(part, PictureShown),
            made=now or datetime.now(UTC),
        )
    )


def _shown(png: bytes, pictures: Pictures) -> dict[str, str | bool]:
    # Without SHARP the bytes are not in the file, not even hidden.
    sharp = data_uri(png) if pictures is Pictures.SHARP else ""
    return {"veiled": data_uri(blurred(png)), "sharp": sharp, "another": False}


class TrialForm(StrEnum):
    """File format of a trial."""

    HTML = "html"
    JSON = "json"
    DSA = "dsa"
    """Draft of a statement of reasons, without pictures."""


def write_trial(source: ExportSource, form: TrialForm, *, pictures: Pictures, messages: bool | None = None) -> bytes:
    """Returns the content of a file.

    Messages sent to models are in HTML only, unless it is said.
    """
    messages = form is TrialForm.HTML if messages is None else messages
    match form:
        case TrialForm.HTML:
            return page(source, pictures=pictures, messages=messages).encode()
        case TrialForm.JSON:
            return write_document(source, pictures=pictures, messages=messages).encode()
        case TrialForm.DSA:
            return (json.dumps(draft(source.record), indent=1, ensure_ascii=False) + "\n").encode()


def file_name(trial_id: str, form: TrialForm) -> str:
    """A file's name for a trial: whatever its id holds, it stays in its folder."""
    # No separator and no dot; cut, for a file's name may have some 255 bytes.
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in trial_id)[:100] or "trial"
    return f"{plain}.{'dsa.json' if form is TrialForm.DSA else form}"
