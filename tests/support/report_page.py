"""Helpers of tests of report page."""

import io
import re

from PIL import Image

from eval.arena.leaderboard import Leaderboard, board_lead, board_sections, board_title
from eval.probe.report import ProbeReport
from eval.reports import sections, tasks
from eval.reports.details import details_sections


class Opened:
    """A page in a browser that records fetches, which it blocks, and console messages."""

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.page = self.context.new_page()
        self.fetched, self.complaints = [], []
        self.context.route("**/*", self._route)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.address = address
        self.page.goto(address)

    def _route(self, route):
        if route.request.url == self.address:
            route.continue_()
        else:
            self.fetched.append(route.request.url)
            route.abort()

    def filters(self):
        """Returns the computed CSS filter of every picture."""
        return self.page.eval_on_selector_all("img", "all => all.map(one => getComputedStyle(one).filter)")

    def reach(self):
        """Scrolls to the wrong verdicts; elements far from the window are not laid out and can't be clicked."""
        self.page.eval_on_selector(".entry", "one => one.scrollIntoView()")

    def picture(self, selector):
        """Returns a screenshot of the first element that matches."""
        return Image.open(io.BytesIO(self.page.locator(selector).first.screenshot())).convert("RGB")


def luminance(colour):
    """Returns the relative luminance of `rgb(r, g, b)` (WCAG 2.2)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def as_terminal(report: tasks.Report) -> str:
    """A report on runs in a terminal."""
    faults = [tasks.faults_section(report, group) for group in tasks.tried_groups(report)]
    return sections.as_text(tasks.lead_of(report), [*tasks.sections_of(report), *faults])


def as_markdown(report: tasks.Report) -> str:
    """A report on runs as Markdown."""
    shown = [*tasks.sections_of(report), *details_sections(report)]
    return sections.as_markdown(report.title, tasks.lead_of(report), shown)


def as_html(report: tasks.Report, *, pictures: bool = True) -> str:
    """A report on runs as a page."""
    shown = [*tasks.sections_of(report, page=True), *details_sections(report, page=True, pictures=pictures)]
    return sections.as_page(report.title, tasks.lead_of(report), shown)


def board_text(board: Leaderboard) -> str:
    """A leaderboard in a terminal."""
    return sections.as_text(board_lead(board), board_sections(board))


def board_page(board: Leaderboard) -> str:
    """A leaderboard as a page."""
    return sections.as_page(board_title(board), board_lead(board), board_sections(board))


def weakness_text(report: ProbeReport) -> str:
    """A report on a probe in a terminal."""
    return sections.as_text(report.lead, report.sections)


def weakness_page(report: ProbeReport) -> str:
    """A report on a probe as a page."""
    return sections.as_page(report.title, report.lead, report.sections)
