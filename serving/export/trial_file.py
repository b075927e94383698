"""One trial as a file, in any of the forms that there are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from serving.export.source import ExportSource, Pictures


class TrialForm(StrEnum):
    """File format of a trial."""

    HTML = "html"
    JSON = "json"
    DSA = "dsa"
    """Draft of a statement of reasons, without pictures."""


def write_trial(
    source: ExportSource,
    form: TrialForm,
    *,
    pictures: Pictures,
    messages: bool | None = None,
    filled: Mapping[str, Any] | None = None,
) -> bytes:
    """Returns the content of a file; ``filled`` are fields of a statement of reasons.

    Messages sent to models are in HTML only, unless it is said.
    """
    # Imported where it is used: jinja2 is an extra.
    messages = form is TrialForm.HTML if messages is None else messages
    match form:
        case TrialForm.HTML:
            from serving.export.page import page

            return page(source, pictures=pictures, messages=messages).encode()
        case TrialForm.JSON:
            from serving.export.document import write_document

            return write_document(source, pictures=pictures, messages=messages).encode()
        case TrialForm.DSA:
            from serving.export.dsa import draft

            return (json.dumps(draft(source.record, filled or {}), indent=1, ensure_ascii=False) + "\n").encode()


def file_name(trial_id: str, form: TrialForm) -> str:
    """A file's name for a trial: whatever its id holds, it stays in its folder."""
    # No separator and no dot; cut, for a file's name may have some 255 bytes.
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in trial_id)[:100] or "trial"
    return f"{plain}.{'dsa.json' if form is TrialForm.DSA else form}"
