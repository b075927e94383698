"""Reports in the forms that people read."""

from __future__ import annotations

from pathlib import Path

from eval.arena.board_sections import board_lead, board_sections, board_title
from eval.arena.leaderboard import Leaderboard
from eval.probe.report import ProbeReport
from eval.probe.weakness import weakness_lead, weakness_sections, weakness_title
from eval.reports import sections
from eval.reports.gather import Report
from eval.reports.verdicts import verdicts_lead, verdicts_sections, verdicts_title


def as_terminal(report: Report) -> str:
    """A report on runs of trials in a terminal."""
    return sections.as_text(verdicts_lead(report), verdicts_sections(report))


def as_markdown(report: Report) -> str:
    """A report on runs of trials as Markdown."""
    return sections.as_markdown(verdicts_title(report), verdicts_lead(report), verdicts_sections(report))


def as_html(report: Report) -> str:
    """A report on runs of trials as a page."""
    return sections.as_page(verdicts_title(report), verdicts_lead(report), verdicts_sections(report, page=True))


def board_text(board: Leaderboard) -> str:
    """A leaderboard in a terminal."""
    return sections.as_text(board_lead(board), board_sections(board))


def board_page(board: Leaderboard) -> str:
    """A leaderboard as a page."""
    return sections.as_page(board_title(board), board_lead(board), board_sections(board, page=True))


def weakness_text(report: ProbeReport) -> str:
    """A report on a probe in a terminal."""
    return sections.as_text(weakness_lead(report), weakness_sections(report))


def weakness_page(report: ProbeReport, root: Path) -> str:
    """A report on a probe as a page."""
    return sections.as_page(weakness_title(report), weakness_lead(report), weakness_sections(report, root))
