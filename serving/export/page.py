"""One trial as one HTML file that needs nothing else: no script, no other file, no request to anywhere.

It is laid out by what the console lays its page out with (:mod:`serving.views.trial_view`): the same curves, the same
sums, the same differences where something comes out otherwise than it stands in the record.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from importlib.resources import files

from markupsafe import Markup

from court.events import Side
from serving.export.source import ExportSource, Pictures, data_uri
from serving.views.blur import blurred
from serving.views.messages import PictureShown, messages_of
from serving.views.text import environment
from serving.views.trial_view import view_of


def page(
    source: ExportSource, *, pictures: Pictures = Pictures.VEILED, messages: bool = True, now: datetime | None = None
) -> str:
    """The file's text, to be written as UTF-8.

    Args:
        pictures: Form of its pictures. Only with SHARP does the file contain anything by which they can be made out.
    """
    style = (files(__package__) / "templates" / "page.css").read_text("utf-8")
    record = source.record
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
            sides=tuple(Side),
            frames=[] if pictures is Pictures.NONE else [_shown(frame, pictures) for frame in source.frames],
            precedent_pictures={}
            if pictures is Pictures.NONE
            else {id_: _shown(png, pictures) for id_, png in source.precedents.items()},
            changed=source.changed,
            sharp=pictures is Pictures.SHARP,
            asked=pictures is not Pictures.NONE,
            sent=sent,
            is_picture=lambda part: isinstance(part, PictureShown),
            made=now or datetime.now(UTC),
        )
    )


def _shown(png: bytes, pictures: Pictures) -> dict[str, str]:
    # Without SHARP the bytes are not in the file, not even hidden.
    return {"veiled": data_uri(blurred(png)), "sharp": data_uri(png) if pictures is Pictures.SHARP else ""}
