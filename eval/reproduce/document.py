"""A document of sections, tables and figures, as Markdown and as a self-contained page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eval.reports.markdown import escaped
from eval.reports.page import Drawn, render


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of cells as text.

    Attributes:
        rows: Cells, the same number in each row.
        words: True if cells contain sentences, not figures.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A section.

    Attributes:
        tables: Tables after the paragraphs.
        drawn: Figures after the tables, only on the page.
    """

    key: str
    short: str
    title: str
    lines: Sequence[str] = ()
    tables: Sequence[Grid] = ()
    drawn: Sequence[Drawn] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A whole document.

    Attributes:
        sections: Sections, in order.
    """

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]


def as_markdown(document: Document) -> str:
    """The document as Markdown; untrusted text is escaped."""
    return "\n".join(_lines(document)).rstrip() + "\n"


def as_html(document: Document) -> str:
    """The document as a page; deterministic for a given document.

    Raises:
        NotLoaded: jinja2 or matplotlib is not installed.
    """
    return render("reproduction.html", package="eval.reproduce", document=document)


def _lines(document: Document) -> Iterator[str]:
    yield from (f"# {escaped(document.title)}", "")
    for line in document.lead:
        yield from (escaped(line), "")
    for section in document.sections:
        yield from (f"## {escaped(section.title)}", "")
        for line in section.lines:
            yield from (escaped(line), "")
        for table in section.tables:
            yield from (f"**{escaped(table.caption)}**", "")
            yield f"| {' | '.join(map(escaped, table.heads))} |"
            # Right-aligns numbers; the first column has names.
            yield f"|{'|'.join('---' if number == 0 or table.words else '--:' for number in range(len(table.heads)))}|"
            yield from (f"| {' | '.join(map(escaped, row))} |" for row in table.rows)
            yield ""
