"""Worker process that extracts text from PDF files and HTML pages; started by :mod:`retrieval.facts.extraction`."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Mapping
from typing import Any

from court.backends.sandbox import child as worker_child
from retrieval.facts.html_text import html_text

MAX_PAGES = 3000
"""Pages of a PDF file, at most."""


def answer(job: Mapping[str, Any], payloads: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Extracts the text of the file in the payload.

    Args:
        job: ``kind``, ``pdf`` or ``html``; ``most``, the maximum length of the text in characters; for a page
            ``charset`` and ``strict``, as for :func:`retrieval.facts.html_text.html_text`.

    Returns:
        ``title``, ``date`` and ``url``, and the text as payload; or ``fault``, a reason code.
    """
    try:
        if job["kind"] == "pdf":
            found = _pdf_text(payloads[0], job["most"])
        else:
            found = html_text(payloads[0], job["charset"], strict=job["strict"])
    except _FileRefused as error:
        return {"fault": str(error)}, []
    except (UnicodeDecodeError, LookupError):
        return {"fault": "ENCODING"}, []
    text = found.pop("text")
    if len(text) > job["most"]:
        return {"fault": "TOO_LONG"}, []
    # In the payload, as the header of a reply has its own size limit.
    # Fonts of PDF files may yield lone surrogates, which UTF-8 can't encode.
    return {name: value[:2000] for name, value in found.items()}, [text.encode("utf-8", "replace")]


class _FileRefused(Exception):
    """Raised for a file that can be parsed but is rejected; the message is the reason."""


def _pdf_text(data: bytes, most: int) -> dict[str, str]:
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(data), strict=False)
    # Many PDFs are encrypted with an empty password to forbid printing, and can be read.
    if reader.is_encrypted and not reader.decrypt(""):
        raise _FileRefused("ENCRYPTED")
    if len(reader.pages) > MAX_PAGES:
        raise _FileRefused("TOO_MANY_PAGES")
    pages, length = [], 0
    for page in reader.pages:
        pages.append(page.extract_text().strip())
        length += len(pages[-1])
        if length > most:
            raise _FileRefused("TOO_LONG")
    title, date = "", ""
    # An invalid date must not make the text unreadable.
    with contextlib.suppress(Exception):
        title = str(reader.metadata.title or "") if reader.metadata else ""
    with contextlib.suppress(Exception):
        written = reader.metadata and (reader.metadata.modification_date or reader.metadata.creation_date)
        date = written.date().isoformat() if written else ""
    return {"text": "\n\n".join(page for page in pages if page), "title": title, "date": date, "url": ""}


def main() -> None:
    """Serves jobs until the parent process exits."""
    # Messages of libraries may quote the file and must not be logged (PR-1).
    logging.disable(logging.CRITICAL)
    worker_child.serve(answer)


if __name__ == "__main__":
    main()
