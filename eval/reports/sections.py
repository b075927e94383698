"""The one model of a report: sections that are rendered to a terminal, to Markdown and to a page."""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from court.display import split_hidden
from court.record import TrialRecord
from eval.scores.measure import NOTHING
from eval.scores.measure import Figure as Estimate

BESIDE = 3
"""Largest number of runs side by side, so that a line fits a terminal."""
Rows = tuple[tuple[str, ...], ...]
"""Cells, the same number in each row; the first row is the header."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure of a page, or the reason why there is none."""

    title: str
    svg: str
    """SVG of the figure; empty if there is nothing to draw."""
    caption: str


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure at the top of a page, of one run or model or of several, with a bar for each interval."""

    title: str
    bars: tuple[tuple[str, Estimate], ...]
    """Name of each run or model, and its figure."""
    low: float = 0.0
    """Figure at the left end of the bars."""
    high: float = 1.0
    form: str = ".1f"
    """Format of the figure; a share is shown in per cent."""

    def at(self, value: float) -> float:
        """Position on the bar, in per cent."""
        return 100 * (value - self.low) / (self.high - self.low)

    def shown(self, value: float) -> str:
        """The figure in words."""
        return format(100 * value if (self.low, self.high) == (0, 1) else value, self.form)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a system on a meme, with the record of the trial."""

    facts: tuple[str, ...]
    words: str
    record: TrialRecord | None = None
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    missing: str = ""


@dataclass(frozen=True, slots=True)
class MemeEntry:
    """A meme on a page, whose pictures and texts are hidden until they are asked for."""

    key: str
    meme: str
    filters: tuple[str, ...]
    """Keys under which the section's filters show it, as ``first:second``."""
    tags: tuple[tuple[str, str], ...]
    """Kind (``bad`` or ``doubt``) and words of each tag; the first gives the entry its colour."""
    facts: tuple[str, ...]
    pictures: Sequence[bytes] = ()
    texts: tuple[tuple[str, str], ...] = ()
    """Name and content of texts, which are hidden like the pictures."""
    folded: tuple[tuple[str, str], ...] = ()
    statements: tuple[Statement, ...] = ()
    score: float | None = None
    """Score that the entries are sorted by; None for one without."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of entries: its name, and the key and words of each choice."""

    name: str
    choices: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a title, sentences, and figures."""

    key: str
    title: str
    rows: Rows = ()
    """Cells, the first row being the header; empty if there is only text."""
    notes: tuple[str, ...] = ()
    drawn: tuple[Drawn, ...] = ()
    """Figures, on the page alone."""
    caption: str = ""
    lead: tuple[str, ...] = ()
    level: int = 2
    """Level of the heading; the page's bar names sections of level 2."""
    words: bool = False
    """True if cells are words that are read, rather than numbers that are compared."""
    detail: bool = False
    """True to leave the section out of a terminal, and to fold its table on a page."""
    warning: bool = False
    entries: tuple[MemeEntry, ...] = ()
    """Memes, on the page alone."""
    filters: tuple[Filter, ...] = ()
    """One or two filters of the entries, in the order of the parts of their keys."""
    tiles: tuple[Tile, ...] = ()
    """Figures with their intervals, on the page alone."""

    @property
    def sorted(self) -> bool:
        """True if the entries can be sorted."""
        return any(entry.score is not None for entry in self.entries)


def as_text(lead: Sequence[str], sections: Sequence[Section]) -> str:
    """The sections for a terminal; untrusted text is made safe to print."""
    parts = ["\n".join(map(plain, lead))] if lead else []
    for section in sections:
        if section.detail:
            continue
        lines = [section.title, *section.lead]
        shown = [plain(line) for line in lines]
        if section.rows:
            shown.append(table([[plain(cell) for cell in row] for row in section.rows], numbers=not section.words))
        parts.append("\n".join([*shown, *map(plain, section.notes)]))
    return "\n\n".join(parts)


def as_markdown(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """The sections as Markdown; untrusted text is escaped, so that it can't break tables."""
    lines = [f"# {escaped(title)}", "", *_paragraphs(lead)]
    for section in sections:
        lines += [f"{'#' * section.level} {escaped(section.title)}", ""]
        lines += _paragraphs((*section.lead, *([section.caption] if section.caption else [])))
        if section.rows:
            head, *others = (f"| {' | '.join(map(escaped, row))} |" for row in section.rows)
            # Right-aligns numbers; the first column has names.
            marks = ("---" if place == 0 or section.words else "--:" for place in range(len(section.rows[0])))
            lines += [head, f"|{'|'.join(marks)}|", *others, ""]
        if section.notes:
            lines += [*(f"- {escaped(note)}" for note in section.notes), ""]
    return "\n".join(lines).rstrip() + "\n"


def _paragraphs(sentences: Iterable[str]) -> Iterator[str]:
    for sentence in sentences:
        yield from (escaped(sentence), "")


def escaped(text: str) -> str:
    """Untrusted text on one line, with all markup escaped."""
    # The ampersand first, or the other entities would be escaped twice.
    line = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Every character that is special to Markdown within a table cell.
    return re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", line)


def as_page(
    title: str,
    lead: Sequence[str],
    sections: Sequence[Section],
    *,
    command: str = "",
    links: Sequence[tuple[str, str]] = (),
) -> str:
    """The sections as a page that needs no network, no other file and no script; the same for the same sections.

    It looks like the console, whose style sheet it holds. Untrusted text is escaped by the template engine; in
    addition, the page's content security policy allows only the script and the style with the listed digests, and no
    requests.

    Args:
        command: Command line that the figures come from; empty to show none.
        links: Words and relative address of the pages beside it.
    """
    from markupsafe import Markup

    from serving.export.trial_file import style_sheet
    from serving.views.text import environment

    templates = files("eval.reports") / "templates"
    own = {
        "style": style_sheet() + (templates / "page.css").read_text("utf-8"),
        "script": (templates / "page.js").read_text("utf-8"),
    }
    # They are put into the page unescaped, where an end tag within them would turn the rest into markup.
    if any("</" in text for text in own.values()):
        raise ValueError("style and script of the page may not hold what ends them")
    # A browser hashes an element's exact content, so the template must not add white space around it.
    hashes = {name: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for name, text in own.items()}
    pages = environment("eval.reports")
    pages.filters.update(plain=plain, data_uri=_data_uri)
    shown = pages.get_template("page.html").render(
        title=title,
        lead=lead,
        # A page has no empty boxes: what there is none of is told in a terminal and in Markdown.
        sections=[one for one in sections if one.rows or not one.detail or one.level == 2],
        command=command,
        links=links,
        nothing=NOTHING,
        course=_course,
        **{name: Markup(text) for name, text in own.items()},
        **{f"{name}_digest": f"'sha256-{text}'" for name, text in hashes.items()},
    )
    return shown.lstrip()


def _data_uri(jpeg: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"


def _course(record: TrialRecord, pictures: Mapping[str, bytes]) -> Any:
    from serving.export.trial_file import course_of

    # The page blurs them until the meme's entry is shown.
    figures = {id_: {"veiled": _data_uri(jpeg), "sharp": "", "another": False} for id_, jpeg in pictures.items()}
    return course_of(record, figures)


def table(rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    """Rows as aligned columns, two spaces apart; the first row is the header."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            # Right-aligns numbers; the first column has names.
            cell.rjust(width) if numbers and place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def plain(text: object) -> str:
    """Untrusted text on one line, with invisible characters as code points."""
    return " ".join("".join(piece for piece, _ in split_hidden(str(text))).split())
