"""Page of a case: one reviewer takes it, decides before the verdict is shown, then compares."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from court.errors import BadRequest, CourtError, Unavailable
from court.events import AppealOpened, ReviewOutcome, SecondOpinionAsked
from court.policy import Clause
from court.record import TrialRecord
from court.verdict import Label
from serving.console.pictures import keys_in, views_of
from serving.console.registry import Page, console_of, form_of, redirect, trial_of, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import (
    case_path,
    mark_shown,
    reviewing_of,
)
from serving.console.review.queue import list_query, listing, why_in
from serving.console.visitors import Role
from serving.docket.review.corrections import Overrulings, policy_of
from serving.docket.review.locks import LOCK_MINUTES, AlreadyReviewed, CaseError
from serving.docket.review.queue import cursor_of
from serving.views.trial_view import view_of

_log = logging.getLogger("memecourt.console")

NO_CLAUSE = "none"
"""Value of a review's clause if no clause applies."""
_BESIDE = ("look", "label", "clause", "reason", "why")
"""Fields that have a place for their error beside them."""
_WRITTEN = ("label", "clause", "other_clause", "reason", "chosen", "precedent", "why")
"""Fields of the forms that a reviewer fills in."""


async def case(request: Request) -> Response:
    """Shows a case, with or without its verdict."""
    return await _page(request, await trial_of(request))


async def take(request: Request) -> Response:
    """Takes a case, also one that nobody has to look at where that is asked for. What was written before stays."""
    record, visitor, form = await trial_of(request), visitor_of(request), form_of(request)
    written = any(form.get(name) for name in _WRITTEN)
    try:
        await reviewing_of(request).queue.take(record.trial_id, visitor.name, reopen=form.get("again") == "yes")
    except (CaseError, Unavailable) as error:
        if not written:
            # Nothing would be lost: the usual page of the error will do.
            raise
        # What the reviewer has written comes back with the page: a refusal must not lose it.
        return await _page(request, record, fault=error, written=form)
    return await _page(request, record, written=form) if written else _back(request, record)


async def renew(request: Request) -> Response:
    """Renews the lease of a case, or reports that it is lost; an open page requests this periodically."""
    record, visitor = await trial_of(request), visitor_of(request)
    lost = ""
    try:
        await reviewing_of(request).queue.renew(record.trial_id, visitor.name)
    except CaseError as error:
        # Shown on the page, not as an error: what the reviewer is writing stays on the screen.
        lost = error.message
    return render(request, "review/renewed.html", lost=lost)


async def release(request: Request) -> Response:
    """Releases a case."""
    record = await trial_of(request)
    await reviewing_of(request).queue.release(record.trial_id, visitor_of(request).name)
    return redirect(request, f"/desk{list_query(request)}")


async def skip(request: Request) -> Response:
    """Releases a case and takes the next one in the queue's order; after the last, the first."""
    record, visitor, queue = await trial_of(request), visitor_of(request), reviewing_of(request).queue
    why = why_in(request, request.query_params.get("why", ""))
    await queue.release(record.trial_id, visitor.name)
    at = cursor_of(await queue.case(record.trial_id))
    found = await queue.take_next(visitor.name, why=why, namespaces=visitor.namespaces, after=at)
    found = found or await queue.take_next(visitor.name, why=why, namespaces=visitor.namespaces)
    if found is None:
        return redirect(request, f"/desk{list_query(request) or '?none='}")
    return redirect(request, f"{case_path(found.trial_id)}{list_query(request)}")


async def see(request: Request) -> Response:
    """Shows the verdict to a visitor who has not decided, and logs that."""
    record = await trial_of(request)
    if record.verdict is not None:
        await mark_shown(request, [record.trial_id])
    return _back(request, record)


async def review(request: Request) -> Response:
    """Stores a review. If that fails, the page is returned with everything that was entered."""
    record, visitor, form = await trial_of(request), visitor_of(request), form_of(request)
    rulings, label = reviewing_of(request).corrections, form.get("label", "")
    clause = form.get("clause", "") or form.get("other_clause", "")
    try:
        if label not in Label.__members__:
            raise BadRequest("Say whether the meme is harmful or not harmful.", field="label")
        if label == Label.HARMFUL and clause == NO_CLAUSE:
            raise BadRequest("Name the clause of the policy that the meme breaks.", field="clause")
        views = await views_of(request, record)
        if views.missing:
            # First whether the case is still theirs: a look would not help somebody who has lost it.
            await reviewing_of(request).queue.renew(record.trial_id, visitor.name)
            raise BadRequest(f"First look at the {' and the '.join(views.missing)}.", field="look")
        event = await reviewing_of(request).queue.review(
            record.trial_id,
            visitor.name,
            label=Label(label),
            clause=clause,
            reason=_reason(form, record, clause),
            look=views.for_record,
            look_at=views.since,
            precedent=bool(rulings and rulings.wanted(chosen=form.get("precedent") == "yes")),
            follow=rulings is not None,
        )
    # The form was sent twice, and the review is stored: nothing to complain of.
    except AlreadyReviewed:
        return _back(request, record, done=True)
    except (BadRequest, CaseError, Unavailable) as error:
        return await _page(request, record, fault=error, written=form)
    # Only once it is stored: metrics count what is in the records.
    reviewing_of(request).on_reviewed(event)
    return await _next(request, record)


def _reason(form: Mapping[str, str], record: TrialRecord, number: str) -> str:
    """Returns the written reason, or else the one that was chosen of the clause's own."""
    own = [reason for clause in clauses_of(record) if clause.number == number for reason in clause.reasons]
    chosen = form.get("chosen", "")
    return form.get("reason", "").strip() or (chosen if chosen in own else "")


async def undo(request: Request) -> Response:
    """Withdraws the visitor's last review of a case, and gives them the case again."""
    record, visitor, queue = await trial_of(request), visitor_of(request), reviewing_of(request).queue
    number = form_of(request).get("of", "")
    try:
        if not number.isascii() or not number.isdecimal() or len(number) > 9:
            raise BadRequest("There is no such review.", field="of")
        with suppress(AlreadyReviewed):
            await queue.withdraw(record.trial_id, visitor.name, int(number))
        reviewing_of(request).on_withdrawn()
        await queue.take(record.trial_id, visitor.name, reopen=True)
    except (BadRequest, CaseError, Unavailable) as error:
        return await _page(request, await trial_of(request), fault=error)
    return _back(request, record)


async def _next(request: Request, record: TrialRecord) -> Response:
    """Takes and opens the next case after a review; without any, the reviewed one."""
    visitor, found = visitor_of(request), None
    try:
        why = why_in(request, request.query_params.get("why", ""))
        found = await reviewing_of(request).queue.take_next(visitor.name, why=why, namespaces=visitor.namespaces)
    except (BadRequest, Unavailable) as error:
        _log.warning("no next case after trial=%s reason=%s", record.trial_id, error.reason)
    if found is None:
        return _back(request, record, done=True)
    query = urlencode({"last": record.trial_id})
    return redirect(request, f"{case_path(found.trial_id)}{list_query(request) or '?'}&{query}".replace("?&", "?"))


async def ask_opinion(request: Request) -> Response:
    """Requests a second opinion."""
    record, form = await trial_of(request), form_of(request)
    try:
        await reviewing_of(request).queue.ask_opinion(record.trial_id, visitor_of(request).name, form.get("why", ""))
    except AlreadyReviewed:
        return _back(request, record)
    except (BadRequest, CaseError, Unavailable) as error:
        return await _page(request, record, fault=error, written=form)
    return _back(request, record)


async def take_back(request: Request) -> Response:
    """Removes from the library the precedent that an overruling added."""
    record, rulings, form = await trial_of(request), reviewing_of(request).corrections, form_of(request)
    try:
        if rulings is None:
            raise BadRequest("This console can't change the library of precedents.")
        await rulings.take_back(record.trial_id, who=visitor_of(request).name, why=form.get("back_why", ""))
    except CourtError as error:
        return await _page(request, record, fault=error, written=form)
    return _back(request, record)


async def _page(
    request: Request, record: TrialRecord, *, fault: CourtError | None = None, written: Mapping[str, str] | None = None
) -> Response:
    visitor, queue = visitor_of(request), reviewing_of(request).queue
    found = await queue.case(record.trial_id)
    mine = found.lock is not None and found.lock.holder == visitor.name
    knows_verdict = await queue.knows_verdict(record.trial_id, visitor.name)
    shown = knows_verdict or not reviewing_of(request).blind_first
    # Recorded before rendering: from then on, a review by this visitor is not blind.
    if shown and not knows_verdict and record.verdict is not None:
        await mark_shown(request, [record.trial_id])
    policy = policy_of(record)
    rulings = reviewing_of(request).corrections
    precedent = None
    if rulings is not None and found.outcome is ReviewOutcome.OVERRULED:
        try:
            precedent = await rulings.of(record.trial_id)
        except CourtError as error:
            _log.warning("precedent of trial=%s not read reason=%s", record.trial_id, error.reason)
    reviews = record.reviews
    # A refused request for a second opinion has no other field.
    fault_at = "" if fault is None or not mine else "why" if written and "why" in written else fault.field or ""
    return render(
        request,
        "review/case.html",
        **await listing(request, at_case=record.trial_id),
        status=_status(fault),
        record=record,
        view=view_of(record),
        pictures=console_of(request).pictures is not None,
        keys=keys_in(request, record),
        views=await views_of(request, record),
        last=await _last(request),
        case=found,
        mine=mine,
        decided=shown,
        own=[one for one in reviews if one.reviewer == visitor.name],
        # Other people's reviews would reveal the verdict or influence the reviewer.
        reviews=reviews if shown else (),
        opinions=record.all(SecondOpinionAsked),
        appeals=record.all(AppealOpened),
        clauses=clauses_of(record),
        policy=policy,
        can_choose=rulings is not None and rulings.overrulings is Overrulings.CHOSEN,
        always=rulings is not None and rulings.overrulings is Overrulings.ALWAYS,
        precedent=precedent,
        to_follow=await queue.to_follow(record.trial_id) if rulings is not None and reviews else None,
        fault=fault,
        fault_at=fault_at if fault_at in _BESIDE else "",
        written=written or {},
        kept=[(name, written[name]) for name in _WRITTEN if written and written.get(name)],
        minutes=LOCK_MINUTES,
        labels=_choices(record, shown=shown),
        no_clause=NO_CLAUSE,
    )


@dataclass(frozen=True, slots=True)
class _Last:
    trial_id: str
    in_words: str
    undo: int | None
    """Number of the review while it can be withdrawn."""


async def _last(request: Request) -> _Last | None:
    """Returns the case that the visitor decided just before this one; None if the address names none of theirs."""
    try:
        record = await trial_of(request, request.query_params.get("last", ""))
    except CourtError:
        return None
    own = [one for one in record.reviews if one.reviewer == visitor_of(request).name]
    if not own or record.verdict is None:
        return None
    court, found = (str(label).replace("_", " ").lower() for label in (record.verdict.label, own[-1].label))
    undo = own[-1].seq if reviewing_of(request).queue.can_withdraw(own[-1]) else None
    return _Last(record.trial_id, f"you found it {found}, the court {court}", undo)


def _status(fault: CourtError | None) -> int:
    # The first match counts: the last is a base class of the others.
    codes = ((CaseError, 409), (Unavailable, 503), (CourtError, 400))
    return next((code for kind, code in codes if isinstance(fault, kind)), 200)


def clauses_of(record: TrialRecord) -> tuple[Clause, ...]:
    """Returns the clauses of a trial's policy; empty if their words are not known here."""
    policy = policy_of(record)
    return policy.clauses if policy else ()


def _choices(record: TrialRecord, *, shown: bool) -> list[tuple[Label, str, str]]:
    """Returns the possible findings: the label, the words of the choice, and its key."""
    names = {Label.HARMFUL: ("harmful", "h"), Label.NOT_HARMFUL: ("not harmful", "n")}
    verdict = record.verdict
    # Before the verdict is shown, the order and words of the choices must not give it away.
    if not shown or verdict is None:
        return [(label, word.capitalize(), key) for label, (word, key) in names.items()]
    own = (verdict.label, f"Uphold: {str(verdict.label).replace('_', ' ').lower()}", "u")
    others = [(label, f"Overrule: {word}") for label, (word, _) in names.items() if label is not verdict.label]
    keys = ["r"] if len(others) == 1 else [names[label][1] for label, _ in others]
    return [own, *((label, words, key) for (label, words), key in zip(others, keys, strict=True))]


def _back(request: Request, record: TrialRecord, *, done: bool = False) -> Response:
    """Opens the case again, with the list beside it where it was."""
    query = list_query(request)
    if done:
        query += f"{'&' if query else '?'}{urlencode({'last': record.trial_id})}#done"
    return redirect(request, f"{case_path(record.trial_id)}{query}")


PAGES = (
    Page("/desk/cases/{trial_id}", case, role=Role.REVIEWER, name="case"),
    Page("/desk/cases/{trial_id}/take", take, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/renew", renew, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/release", release, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/skip", skip, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/see", see, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/review", review, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/undo", undo, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/opinion", ask_opinion, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/take-back", take_back, role=Role.ADMIN, methods=("POST",)),
)
