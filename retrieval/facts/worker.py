"""Worker process that extracts text from PDF files and HTML pages; started by :mod:`retrieval.facts.extraction`."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Mapping
from datetime import date
from html.parser import HTMLParser
from typing import Any

from court.backends.sandbox import child as worker_child

_SKIPPED = frozenset(
    {"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas"}
    | {"nav", "header", "footer", "aside", "form", "select", "button"}
)
_BLOCKS = frozenset(
    {"p", "div", "section", "article", "main", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "dl", "dt", "dd"}
    | {"table", "tr", "blockquote", "pre", "figure", "figcaption", "hr", "details", "summary", "address", "caption"}
)
_DATES = ("article:modified_time", "article:published_time", "dcterms.modified", "dc.date", "last-modified", "date")
"""Names of metadata with a page's date, most reliable first."""
# Bounded within the tag: otherwise a page of unclosed tags would take quadratic time.
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


class _TextCollector(HTMLParser):
    """Collects the text; tolerates unmatched start and end tags."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title = ""
        self.meta: dict[str, str] = {}
        self.canonical = ""
        self._skipped: list[str] = []
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if tag == "meta":
            self.meta.setdefault((named.get("property") or named.get("name") or "").lower(), named.get("content", ""))
        elif tag == "link" and named.get("rel", "").lower() == "canonical":
            self.canonical = self.canonical or named.get("href", "")
        elif tag == "title":
            # Only the first title counts, as an SVG may contain further ones.
            self._in_title = not self.title and not self._skipped
        elif tag in _SKIPPED:
            self._skipped.append(tag)
        elif tag == "br":
            self.parts.append("\n")
        elif tag in ("td", "th"):
            self.parts.append(" ")
        elif tag in _BLOCKS:
            self._close_forgotten()
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self._skipped:
            # Also closes tags that were opened inside it and never closed.
            while self._skipped.pop() != tag:
                pass
        elif tag in _BLOCKS:
            self.parts.append("\n\n")
        # Unclosed tags end here at the latest, so that they don't swallow text after the end tag of a broken page.
        elif tag in ("body", "html"):
            self._skipped.clear()

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._skipped:
            # Keeps space at the edges, as words on either side of a tag such as <b> would run together.
            self.parts.append(" ".join(data.split()).join((_edge(data[:1]), _edge(data[-1:]))) if data.strip() else " ")

    def _close_forgotten(self) -> None:
        """Closes buttons and selects left open, so that they don't swallow the paragraphs after them."""
        while self._skipped and self._skipped[-1] in ("button", "select"):
            self._skipped.pop()


def _edge(character: str) -> str:
    return " " if character.isspace() else ""


def html_text(data: bytes, charset: str = "", *, strict: bool = True) -> dict[str, str]:
    """Text, title, date and address of a page, empty if missing; ``strict`` to raise on invalid bytes.

    Raises:
        UnicodeDecodeError: Bytes are invalid in the encoding named by the page, or in UTF-8 if it names none.
        LookupError: The page names an unknown encoding.
    """
    # A byte order mark takes precedence over server and page, as in browsers.
    named = next((name for mark, name in _MARKS if data.startswith(mark)), "")
    if not named:
        # Near the beginning: HTML requires it in the first 1,024 bytes, but some pages have it later.
        declared = _CHARSET.search(data, 0, 4096)
        named = charset or (declared[1].decode("ascii") if declared else "utf-8")
    page = _TextCollector()
    page.feed(data.decode(named, "strict" if strict else "replace"))
    page.close()
    lines = (" ".join(line.split()) for line in "".join(page.parts).split("\n"))
    return {
        "text": re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip(),
        "title": " ".join(page.title.split()),
        "date": next(filter(None, (_day_in(page.meta.get(name, "")) for name in _DATES)), ""),
        "url": page.canonical if page.canonical.startswith(("https://", "http://")) else "",
    }


def _day_in(text: str) -> str:
    """The first date in a text; empty if there is none or it does not exist."""
    found = _DAY.search(text)
    try:
        return date.fromisoformat(found[0]).isoformat() if found else ""
    except ValueError:
        return ""


MAX_PAGES = 3000


def answer(job: Mapping[str, Any], payloads: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Extracts the text of the payload, with ``title``, ``date`` and ``url``; or a ``fault``, a reason code."""
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
