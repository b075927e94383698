"""Reads files into documents: text, Markdown, HTML, PDF, and JSON lines with a document each."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from court.errors import BadRequest
from retrieval.facts.documents import FactDocument, host_of, is_date, tidy
from retrieval.facts.extraction import MAX_FILE_BYTES, ExtractedText, TextExtractor
from retrieval.library.sources import Problem
from retrieval.library.tables import json_records, read_text

MOST = 100


def read_trust(path: Path) -> dict[str, int]:
    """Reads the table ``[trust]`` of a file, with an integer from 0 to 100 for each source or host.

    Raises:
        BadRequest: The file can't be read or has other content.
    """
    try:
        found = tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not in UTF-8"
        raise BadRequest(f"The file of trust {path.name} can't be read: {why}.", reason="TRUST_UNREADABLE") from None
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"The file of trust {path.name} is no TOML: {error}.", reason="TRUST_UNREADABLE") from None
    trust = found.pop("trust", None)
    if not isinstance(trust, dict) or found:
        raise BadRequest(
            f'The file of trust {path.name} is one table: [trust], with lines such as "who.int" = 3.',
            reason="TRUST_UNREADABLE",
        )
    for name, value in trust.items():
        # A bool is an int in Python.
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
            raise BadRequest(f"The trust in {name!r} is no whole number from 0 to {MOST}.", reason="TRUST_UNREADABLE")
    return dict(trust)


LINES = (".jsonl", ".ndjson")
TEXTS = (".txt", ".md", ".markdown")
PAGES = (".html", ".htm", ".xhtml")
_HEADING = re.compile(r"^#{1,2}\s+(.+?)\s*#*\s*$", re.MULTILINE)
# For JSON lines, which hold many documents; files of a single document have the limit of the extraction.
_MAX_LINES_BYTES = 1024**3
_FIELDS = tuple(FactDocument.model_fields)
_NO_DATE = "its date is no YYYY-MM-DD, YYYY-MM or YYYY of the calendar"


@dataclass(frozen=True, slots=True)
class Origin:
    """Default origin of documents whose files do not specify it."""

    source: str = ""
    date: str = ""


@dataclass(slots=True)
class ReadDocuments:
    """Documents read from files, and a problem for each file or line without one."""

    good: list[FactDocument] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


async def read_documents(
    files: Sequence[Path], extractor: TextExtractor, *, origin: Origin = Origin()
) -> ReadDocuments:
    """Reads documents from files; each gets a unique id, and unreadable files or lines become problems.

    Raises:
        NotLoaded: There is a PDF, and the library that reads them is not installed.
        Unavailable: No extraction process can be started.
    """
    found = ReadDocuments()
    taken: set[str] = set()
    for path in files:
        read = await _read_file(path, extractor, origin)
        found.problems += read.problems
        for line, document in read.good:
            # The first document keeps the id, as results and records refer to documents by id.
            if document.id in taken:
                found.problems.append(Problem(path.name, line, document.id, "its id is taken"))
                continue
            taken.add(document.id)
            found.good.append(document)
    return found


@dataclass(slots=True)
class _OfFile:
    good: list[tuple[int, FactDocument]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


async def _read_file(path: Path, extractor: TextExtractor, origin: Origin) -> _OfFile:
    suffix = path.suffix.lower()
    try:
        _check_size(path, _MAX_LINES_BYTES if suffix in LINES else MAX_FILE_BYTES)
        if suffix in LINES:
            return await asyncio.to_thread(_read_lines, path)
        if suffix in TEXTS:
            text = tidy(await asyncio.to_thread(read_text, path, "documents"))
            # In plain text, a line that begins with a number sign need not be a heading.
            heading = _HEADING.search(text) if suffix != ".txt" else None
            extracted = ExtractedText(text, heading[1] if heading else "", "", "")
        elif suffix in PAGES or suffix == ".pdf":
            kind: Literal["pdf", "html"] = "pdf" if suffix == ".pdf" else "html"
            extracted = await extractor.extract(await asyncio.to_thread(path.read_bytes), kind)
        else:
            raise BadRequest(
                f"nobody reads files that end with {path.suffix or 'nothing'}: give "
                f"{', '.join((*TEXTS, *PAGES, '.pdf', *LINES))}"
            )
        return _OfFile([(0, _document(path, extracted, origin))])
    # A bad file becomes a problem and does not affect the others; the caller decides how to proceed.
    except OSError as error:
        return _OfFile(problems=[Problem(path.name, 0, "", f"it can't be read ({error.strerror})")])
    except BadRequest as error:
        return _OfFile(problems=[Problem(path.name, 0, "", error.message.rstrip("."))])


def _check_size(path: Path, most: int) -> None:
    if path.is_dir():
        raise BadRequest("it is a folder; name the files in it")
    # A pipe or device has no meaningful size, and reading it may never end.
    if path.exists() and not path.is_file():
        raise BadRequest("it is no regular file; save it as one")
    if path.stat().st_size > most:
        raise BadRequest(f"it has more than {most // 1024**2:,} MB; part it into several files")


def _document(path: Path, extracted: ExtractedText, origin: Origin) -> FactDocument:
    try:
        return FactDocument(
            # Truncated to the limits of the fields, so that a long file name does not exclude its text.
            id=path.name[:200],
            title=(extracted.title or path.stem)[:500],
            text=extracted.text,
            url=extracted.url,
            date=extracted.date or origin.date,
            source=origin.source or host_of(extracted.url) or path.name[:200],
        )
    except ValidationError as error:
        # In our own words, as pydantic's message would quote the document.
        raise BadRequest(_fault(error)) from None


def _read_lines(path: Path) -> _OfFile:
    found = _OfFile()
    for line, record in json_records(read_text(path, "documents")):
        if isinstance(record, str):
            found.problems.append(Problem(path.name, line, "", record))
            continue
        id_ = record.get("id")
        try:
            document = _document_of(record, path.name)
            fault = "" if is_date(document.date) else _NO_DATE
        except ValidationError as error:
            fault = _fault(error)
        if fault:
            found.problems.append(Problem(path.name, line, id_ if isinstance(id_, str) else "", fault))
        else:
            found.good.append((line, document))
    return found


def _document_of(record: dict[str, Any], name: str) -> FactDocument:
    """Parses the document of a line. Raises ValidationError."""
    fields = {key: tidy(value) if isinstance(value, str) else value for key, value in record.items()}
    # An absent field may also be written as null.
    # Unknown fields keep null, so that they are still rejected by name.
    fields = {key: value for key, value in fields.items() if value is not None or key not in _FIELDS}
    document = FactDocument.model_validate(fields)
    return document if document.source else document.model_copy(update={"source": host_of(document.url) or name[:200]})


def _fault(error: ValidationError) -> str:
    # One fault per document, as the others often follow from it.
    first = error.errors(include_input=False, include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    match first["type"]:
        case "missing":
            return f"it has no {name}"
        case "extra_forbidden":
            return f"it has a field {name[:40]!r}, which nobody reads; there are {', '.join(_FIELDS)}"
        case "string_too_short":
            return f"its {name} is empty"
        case "string_too_long":
            return f"its {name} has more than {first['ctx']['max_length']:,} characters"
        case "string_pattern_mismatch":
            return _NO_DATE
        case _:
            return f"its {name} is no text"
