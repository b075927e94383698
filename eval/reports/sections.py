"""Reports of text and tables, rendered from the same sections for a terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eval.reports.page import Drawn, need_page, render
from eval.scores.tables import table


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a title and notes.

    Attributes:
        key: Id of the section within the page.
        rows: Cells, the same number in each row, the first row being the header; empty if there is only text.
        notes: Sentences below the table.
        drawn: Figures of the page, or the reasons why there are none.
    """

    key: str
    title: str
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    drawn: tuple[Drawn, ...] = ()
    caption: str = ""


def as_text(lead: Sequence[str], sections: Sequence[Section]) -> str:
    """The sections for a terminal.

    Args:
        lead: Sentences before the first one.
        sections: Sections in order; figures are only on the page.
    """
    parts = ["\n".join(lead)] if lead else []
    for section in sections:
        lines = [section.title]
        if section.rows:
            lines.append(table(section.rows))
        parts.append("\n".join([*lines, *section.notes]))
    return "\n\n".join(parts)


def as_page(title: str, lead: Sequence[str], sections: Sequence[Section], *, command: str = "") -> str:
    """The sections as a self-contained page; deterministic for given sections.

    Args:
        lead: Sentences before the first section.
        sections: Sections in order.
        command: Command line that the figures come from; empty to show none.

    Raises:
        NotLoaded: jinja2 or matplotlib is not installed.
    """
    need_page()
    return render("sections.html", title=title, lead=list(lead), sections=list(sections), command=command)
