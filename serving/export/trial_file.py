"""One trial as a file, in any of the forms that there are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from serving.export.source import ExportSource, Pictures


class TrialForm(StrEnum):
    """File format of a trial."""

    HTML = "html"
    JSON = "json"
    PDF = "pdf"
    DSA = "dsa"
    """Draft of a statement of reasons, without pictures."""


def write_trial(
    source: ExportSource,
    form: TrialForm,
    *,
    pictures: Pictures,
    messages: bool | None = None,
    fonts: Sequence[Path] = (),
    filled: Mapping[str, Any] | None = None,
) -> bytes:
    """The content of the file; ``filled`` are fields of a statement of reasons, ``fonts`` further ones of a PDF.

    Messages sent to models are in HTML only, unless it is said.
    """
    # Imported where they are used: jinja2 and fpdf2 are extras.
    messages = form is TrialForm.HTML if messages is None else messages
    match form:
        case TrialForm.HTML:
            from serving.export.page import page

            return page(source, pictures=pictures, messages=messages).encode()
        case TrialForm.JSON:
            from serving.export.document import write_document

            return write_document(source, pictures=pictures, messages=messages).encode()
        case TrialForm.PDF:
            from serving.export.pdf import pdf

            return pdf(source, pictures=pictures, messages=messages, fonts=fonts)
        case TrialForm.DSA:
            from serving.export.dsa import draft

            return (json.dumps(draft(source.record, filled or {}), indent=1, ensure_ascii=False) + "\n").encode()


def file_name(trial_id: str, form: TrialForm) -> str:
    """A file's name for a trial: whatever its id holds, it stays in its folder."""
    # No separator and no dot; cut, for a file's name may have some 255 bytes.
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in trial_id)[:100] or "trial"
    return f"{plain}.{'dsa.json' if form is TrialForm.DSA else form}"
