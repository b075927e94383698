"""Dependencies of the review pages, and the content that they hide before a reviewer has decided."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from urllib.parse import quote

from starlette.requests import Request

from court.errors import NotLoaded
from court.record import TrialRecord
from serving.console.registry import Reviewing, console_of, visitor_of
from serving.console.visitors import Role
from serving.docket.review.projection import ReviewPriority
from serving.docket.review.queue import Case
from serving.docket.store.listing import BlindReviewer

PRIORITY_WORDS = {
    ReviewPriority.APPEAL: "appeal",
    ReviewPriority.REVIEWERS_DISAGREE: "reviewers disagree",
    ReviewPriority.SECOND_OPINION: "second opinion asked",
    ReviewPriority.UNDECIDED: "undecided",
    ReviewPriority.DISAGREE: "sides or votes disagree",
    ReviewPriority.COURT_ASKS: "court asks for a person",
    ReviewPriority.LOW_SCORE: "low score",
    ReviewPriority.SAMPLED: "drawn by chance",
    ReviewPriority.OBJECTION: "objection by link",
}
"""Reasons for review, in words."""


def reviewing_of(request: Request) -> Reviewing:
    """Returns the dependencies of review pages. Raises NotLoaded where this console has none."""
    if (reviewing := console_of(request).reviewing) is None:
        raise NotLoaded("This console has no review queue: it was opened to read.")
    return reviewing


async def cases_of(request: Request, trial_ids: Sequence[str]) -> Mapping[str, Case]:
    """Returns what the queue knows of these trials; nothing where this console has no queue."""
    reviewing = console_of(request).reviewing
    return await reviewing.queue.cases(trial_ids) if reviewing else {}


async def behind(request: Request) -> int:
    """Returns the number of log entries that the queue still has to read; 0 if it is up to date."""
    reviews = reviewing_of(request).queue
    return 0 if await reviews.catch_up() else await reviews.behind()


def blind_reviewer(request: Request) -> BlindReviewer | None:
    """Returns the visitor, if undecided verdicts are hidden from them; administrators know why cases wait."""
    visitor = visitor_of(request)
    reviewing = console_of(request).reviewing
    # Somebody who can't review may see every verdict: there is no judgement of theirs to keep unbiased.
    if reviewing is None or not reviewing.blind_first or visitor.role < Role.REVIEWER:
        return None
    return BlindReviewer(visitor.name, told_why=visitor.role >= Role.ADMIN)


async def hidden_ids(request: Request, trial_ids: Collection[str]) -> frozenset[str]:
    """Returns those of the trials whose verdict is hidden from this visitor."""
    blind = blind_reviewer(request)
    if blind is None:
        return frozenset()
    return await reviewing_of(request).queue.hidden_from(blind.name, trial_ids, visitor_of(request).namespaces)


async def hidden_and_marked(request: Request, trial_ids: Collection[str]) -> frozenset[str]:
    """Returns the hidden trials as :func:`hidden_ids`, and notes that the other verdicts are shown."""
    hidden = await hidden_ids(request, trial_ids)
    await mark_shown(request, {*trial_ids} - hidden)
    return hidden


async def mark_shown(request: Request, trial_ids: Collection[str]) -> None:
    """Logs that these trials' verdicts are shown to the visitor, if there is a queue and the visitor may review."""
    visitor = visitor_of(request)
    reviewing = console_of(request).reviewing
    if reviewing and visitor.role >= Role.REVIEWER:
        await reviewing.queue.saw(visitor.name, trial_ids)


async def mark_verdict_shown(request: Request, record: TrialRecord) -> None:
    """Logs that the visitor is shown a record's verdict and those of other trials that it cites."""
    duplicates = record.duplicates
    own = {record.trial_id} if record.verdict is not None else set()
    # The page names near duplicates with their labels, so those verdicts are shown as well.
    await mark_shown(request, own | {one.trial_id for one in (duplicates.duplicates if duplicates else ())})


def case_path(trial_id: str) -> str:
    """Returns the path of a case's page."""
    return f"/desk/cases/{quote(trial_id, safe='')}"
