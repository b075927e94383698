"""Labelled memes from the files they are published in: HarMeme, Hateful Memes (FHM), a plain CSV and our own jsonl.

A bad row is told by line, id and reason, and never stops the others. No message quotes a meme: what people publish as
examples of harm has no place in logs.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from court.errors import BadRequest, BadText
from court.meme import check_text
from court.precedents import PrecedentLabel
from court.verdict import Label
from retrieval.sources import Problem, Row, Rows, Source, SourceFormat

__all__ = ["Problem", "Row", "Rows", "Source", "SourceFormat", "read_source"]

_LOOKED_AT = 20
"""Rows looked at to tell the format."""

_HARMEME: dict[str, PrecedentLabel] = {
    "not harmful": Label.NOT_HARMFUL,
    "somewhat harmful": Label.HARMFUL,
    "very harmful": Label.HARMFUL,
}
_WORDS: dict[str, PrecedentLabel] = {
    "harmful": Label.HARMFUL,
    "1": Label.HARMFUL,
    "not_harmful": Label.NOT_HARMFUL,
    "0": Label.NOT_HARMFUL,
}


class _BadRow(Exception):
    """A row that can't be used; its message is the reason."""


def read_source(source: Source) -> Rows:
    """All rows of a source.

    Raises:
        BadRequest: The file can't be read, or its format is none that is known.
    """
    try:
        # Bytes that are no UTF-8 become lone surrogates here, and the rows that have them are told below.
        content = source.path.read_bytes().decode("utf-8-sig", errors="surrogateescape")
    except OSError:
        raise BadRequest(
            f"The file of labelled memes, {source.path.name}, can't be read.", reason="SOURCE_UNREADABLE"
        ) from None
    layout = source.format or _detect(content)
    if layout is None:
        raise BadRequest(
            f"{source.path.name} has no layout that is known ({', '.join(SourceFormat)}). Name the one it has.",
            reason="SOURCE_FORMAT_UNKNOWN",
        )
    rows, name = Rows(layout), source.label
    records = _csv_records(content) if layout is SourceFormat.CSV else _json_records(content)
    for line, record in records:
        id_ = ""
        try:
            if isinstance(record, str):
                raise _BadRow(record)
            id_ = _id(record)
            rows.good.append(_row(_PARSERS[layout], record, line, id_, name))
        except _BadRow as bad:
            rows.problems.append(Problem(name, line, id_, str(bad)))
    return rows


def _detect(content: str) -> SourceFormat | None:
    lines = [line for line in content.split("\n", _LOOKED_AT)[:_LOOKED_AT] if line.strip()]
    for line in lines:
        record = _parse_json(line)
        if isinstance(record, dict) and "id" in record:
            if "labels" in record:
                return SourceFormat.HARMEME
            return SourceFormat.FHM if "img" in record else SourceFormat.MEMECOURT
    header = {name.strip().lower() for name in next(csv.reader(lines[:1]), [])}
    return SourceFormat.CSV if {"id", "label"} <= header else None


def _parse_json(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _json_records(content: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Line number and record, or what is wrong with the line."""
    # Not splitlines(): that also cuts at characters that may stand within a JSON string.
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            record = _parse_json(line)
            yield number, record if isinstance(record, dict) else "the line is no JSON object"


def _csv_records(content: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Line number on which a record ends and the record, or what is wrong with it."""
    reader = csv.reader(io.StringIO(content, newline=""))
    header: list[str] | None = None
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield reader.line_num, "the line is no CSV"
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if header is None:
            header = [cell.strip().lower() for cell in cells]
        elif len(cells) != len(header):
            yield reader.line_num, f"the line has {len(cells)} cells under a header of {len(header)}"
        else:
            yield reader.line_num, dict(zip(header, cells, strict=True))


def _row(
    parse: Callable[[Mapping[str, Any]], dict[str, Any]], record: Mapping[str, Any], line: int, id_: str, name: str
) -> Row:
    text = record.get("text")
    if not isinstance(text, str | None):
        raise _BadRow("the text is no text")
    row = Row(line=line, id=id_, text=text or "", source=name, **parse(record))
    for part in (row.id, row.text, row.image, row.source_label, *row.categories):
        try:
            check_text(part)
        except BadText as error:
            raise _BadRow(
                "it holds bytes that are not UTF-8" if error.reason == "TEXT_NOT_UNICODE" else "its text is too long"
            ) from None
    return row


def _id(record: Mapping[str, Any]) -> str:
    id_ = record.get("id")
    if isinstance(id_, bool) or not isinstance(id_, str | int) or not str(id_).strip():
        raise _BadRow("it has no id")
    if len(str(id_)) > 200:
        raise _BadRow("its id is longer than 200 characters")
    return str(id_).strip()


def _parse_harmeme(record: Mapping[str, Any]) -> dict[str, Any]:
    labels = record.get("labels")
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        raise _BadRow("the label is empty")
    label = labels[0].strip().lower()
    if label not in _HARMEME:
        raise _BadRow("the label is none of HarMeme's" if label else "the label is empty")
    return {
        "label": _HARMEME[label],
        "source_label": label,
        "categories": tuple(labels[1:]),
        "image": _name(record.get("image")),
    }


def _parse_fhm(record: Mapping[str, Any]) -> dict[str, Any]:
    label = record.get("label")
    if label is None:
        raise _BadRow("it has no label, as in a test split")
    word = str(label).strip()
    if isinstance(label, bool) or word not in ("0", "1"):
        raise _BadRow("the label is neither 0 nor 1")
    return {"label": _WORDS[word], "source_label": word, "image": _name(record.get("img"))}


def _parse_plain(record: Mapping[str, Any]) -> dict[str, Any]:
    label, categories = record.get("label"), record.get("categories") or ()
    word = "" if label is None or isinstance(label, bool) else str(label).strip().lower().replace(" ", "_")
    if word not in _WORDS:
        raise _BadRow("the label is none of harmful, not_harmful, 1, 0" if word else "the label is empty")
    if isinstance(categories, str):
        categories = categories.split(";")
    if not isinstance(categories, list | tuple) or not all(isinstance(category, str) for category in categories):
        raise _BadRow("the categories are no texts")
    return {
        "label": _WORDS[word],
        "source_label": str(label).strip(),
        "categories": tuple(category.strip() for category in categories if category.strip()),
        "image": _name(record.get("image")),
        "scene": _name(record.get("scene")),
    }


def _name(value: Any) -> str:
    if not isinstance(value, str | None):
        raise _BadRow("the name of its picture is no text")
    return (value or "").strip()


_PARSERS: dict[SourceFormat, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    SourceFormat.HARMEME: _parse_harmeme,
    SourceFormat.FHM: _parse_fhm,
    SourceFormat.CSV: _parse_plain,
    SourceFormat.MEMECOURT: _parse_plain,
}
