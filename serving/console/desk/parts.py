"""What the desk's pages work with, and what they don't show before a reviewer has decided."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from starlette.requests import Request

from court.errors import NotLoaded
from court.events import VerdictReviewed
from serving.console.registry import console_of, visitor_of
from serving.console.visitors import Role
from serving.docket.desk import Case, Desk
from serving.docket.desk_index import Why
from serving.docket.rulings import Rulings
from serving.reception.near import NearMemes

DESK, RULINGS, NEAR, BLIND_FIRST, REVIEWED = "desk", "rulings", "near", "blind_first", "reviewed"
"""Names of the parts (:class:`serving.console.registry.Console`). Only the first is required."""

TOLD = {
    Why.REVIEWERS_DISAGREE: "reviewers disagree",
    Why.SECOND_OPINION: "second opinion asked",
    Why.UNDECIDED: "undecided",
    Why.VOTES_DISAGREE: "votes disagree",
    Why.SIDES_DISAGREE: "sides equally strong",
    Why.COURT_ASKS: "court asks for a person",
    Why.LOW_SCORE: "low score",
    Why.SAMPLED: "drawn by chance",
}
"""Why a person should look, in words."""


def desk_of(request: Request) -> Desk:
    """The desk. Raises NotLoaded where this console has none."""
    desk = console_of(request).parts.get(DESK)
    if not isinstance(desk, Desk):
        raise NotLoaded("This console has no desk: it was opened to read.")
    return desk


def rulings_of(request: Request) -> Rulings | None:
    """What makes precedents of overrulings; None where the library can't be changed from here."""
    rulings = console_of(request).parts.get(RULINGS)
    return rulings if isinstance(rulings, Rulings) else None


def near_of(request: Request) -> NearMemes | None:
    """What finds memes by their looks; None where nothing does here."""
    near = console_of(request).parts.get(NEAR)
    return near if isinstance(near, NearMemes) else None


def tell_reviewed(request: Request, event: VerdictReviewed) -> None:
    """Tells the server that runs in the same process of a review, where there is one."""
    told = console_of(request).parts.get(REVIEWED)
    if callable(told):
        told(event)


def blind_first(request: Request) -> bool:
    """Whether reviewers decide before the verdict is shown."""
    return bool(console_of(request).parts.get(BLIND_FIRST, True))


async def behind(request: Request) -> int:
    """How many entries of the log the desk still has to read, where it is not done yet; 0 where it is."""
    desk = desk_of(request)
    return 0 if await desk.catch_up() else await desk.behind()


async def hidden(request: Request, cases: Iterable[Case]) -> frozenset[str]:
    """Of these, those whose label this visitor is not shown yet: they wait for a reviewer, and the visitor is one."""
    visitor = visitor_of(request)
    if not blind_first(request) or visitor.role < Role.REVIEWER:
        return frozenset()
    waiting = [case.trial_id for case in cases if case.waiting]
    return frozenset(waiting) - await desk_of(request).seen_of(waiting, visitor.name)


async def hidden_ids(request: Request, trial_ids: Iterable[str]) -> frozenset[str]:
    """As :func:`hidden`, by ids; none where this console has no desk."""
    if not isinstance(console_of(request).parts.get(DESK), Desk):
        return frozenset()
    return await hidden(request, (await desk_of(request).cases(list(trial_ids))).values())


async def note_shown(request: Request, trial_id: str) -> None:
    """Notes that the verdict of a trial is shown to the visitor, where there is a desk and the visitor may review."""
    visitor = visitor_of(request)
    if isinstance(console_of(request).parts.get(DESK), Desk) and visitor.role >= Role.REVIEWER:
        await desk_of(request).saw(trial_id, visitor.name)


def case_path(trial_id: str) -> str:
    """The page of a case."""
    return f"/desk/cases/{quote(trial_id, safe='')}"
