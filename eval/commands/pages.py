"""Pages that commands write, and the command line that these and manifests name."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from serving.access.private_files import hand_on

if TYPE_CHECKING:
    from eval.reports.sections import Section
    from eval.runs.results import Results


def command_line() -> str:
    """The command as it was called."""
    return shlex.join(["memecourt-eval", *sys.argv[1:]])


def write_page(path: Path, html: str) -> None:
    """Writes a page that others may read. Raises click.ClickException where the disk will not have it."""
    try:
        path.write_text(html, encoding="utf-8")
        # The process writes files for their owner alone; a page is for others too, as the umask allows.
        hand_on(path)
    except OSError as error:
        raise click.ClickException(f"The page can't be written to {path}: {error.strerror}.") from None


def unfinished_in_words(results: Iterable[Results]) -> list[str]:
    """A sentence on the runs that are not finished; none where all are."""
    unfinished = [one.name for one in results if not one.finished]
    return [f"Not finished, so that these figures will change: {', '.join(unfinished)}."] if unfinished else []


def show_sections(
    title: str,
    lead: Sequence[str],
    sections: Sequence[Section],
    *,
    page: Path | None,
    figures: Mapping[str, Any] | None,
    command: str = "",
) -> None:
    """Writes sections as a page, and shows them in the terminal, or figures as JSON in their place.

    Args:
        page: Path of the page; none is written where it is None.
        figures: Figures for other programs; the sections are shown where they are None.
        command: Command line that the page names; none is named where it is empty.

    Raises:
        NotLoaded: jinja2 or matplotlib is not installed, which a page needs.
    """
    from eval.reports.sections import as_page, as_text

    if page is not None:
        write_page(page, as_page(title, lead, sections, command=command))
    click.echo(as_text(lead, sections) if figures is None else json.dumps(figures))


def show_report(
    title: str, sections: Sequence[Section], figures: Mapping[str, Any], *, page: Path, as_json: bool
) -> None:
    """Writes sections as a page that names the command, and shows them with its path, or the report's figures as JSON.

    Args:
        figures: Figures of the report that they are of, for other programs.
        as_json: True for the figures.

    Raises:
        NotLoaded: jinja2 or matplotlib is not installed, which a page needs.
    """
    show_sections(title, [], sections, page=page, figures=figures if as_json else None, command=command_line())
    if not as_json:
        click.echo(f"{page} shows it.")
