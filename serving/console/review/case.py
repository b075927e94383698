"""Page of a case: one reviewer takes it, decides before the verdict is shown, then compares."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from court.errors import BadRequest, CourtError, Unavailable
from court.events import AppealOpened, Look, NoteLeft, ReviewOutcome, VerdictReviewed
from court.policy import Clause
from court.record import TrialRecord
from court.verdict import Label
from serving.console.pictures import MEME, TEXT, keys_in, view, views_of
from serving.console.registry import Page, console_of, form_of, redirect, trial_of, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import case_path, mark_shown, reviewing_of
from serving.console.review.queue import list_query, listing, why_in
from serving.console.review.similar import waiting_like
from serving.console.visitors import Role
from serving.docket.review.corrections import Overrulings, policy_of
from serving.docket.review.locks import LOCK_MINUTES, AlreadyReviewed, CaseError
from serving.docket.review.queue import cursor_of
from serving.views.trial_view import view_of

_log = logging.getLogger("memecourt.console")

NO_CLAUSE = "none"
"""Value of a review's clause if no clause applies."""
_BESIDE = ("look", "label", "clause", "reason", "note")
"""Fields that have a place for their error beside them."""
_WRITTEN = ("label", "clause", "other_clause", "reason", "chosen", "precedent", "note")
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
    return await _page(request, record, written=form) if written else _back(request, record.trial_id)


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
    return _back(request, record.trial_id)


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
        together = {each: await _looked(request, record, each) for each in form.getlist("alike")}
        if views.missing:
            # First whether the case is still theirs: a look would not help somebody who has lost it.
            await reviewing_of(request).queue.renew(record.trial_id, visitor.name)
            raise BadRequest(f"First look at the {' and the '.join(views.missing)}.", field="look")
        events = await reviewing_of(request).queue.review(
            record.trial_id,
            visitor.name,
            label=Label(label),
            clause=clause,
            reason=_reason(form, record, clause),
            look=views.for_record,
            look_at=views.since,
            precedent=bool(rulings and rulings.wanted(chosen=form.get("precedent") == "yes")),
            follow=rulings is not None,
            alike=together,
        )
    # The form was sent twice, and the review is stored: nothing to complain of.
    except AlreadyReviewed:
        return _back(request, record.trial_id, done=[record.trial_id])
    except (BadRequest, CaseError, Unavailable) as error:
        return await _page(request, record, fault=error, written=form)
    # Only once it is stored: metrics count what is in the records.
    for event in events:
        reviewing_of(request).on_reviewed(event)
    return await _next(request, [event.trial_id for event in events])


async def _looked(request: Request, record: TrialRecord, trial_id: str) -> tuple[Look, datetime | None]:
    """Returns the look at a case like this one. Raises BadRequest if the same decision can't be for it."""
    other = await trial_of(request, trial_id)
    views = await views_of(request, other)
    if views.missing or other.opened.policy.digest != record.opened.policy.digest:
        raise BadRequest("First look at the cases side by side.", field="look")
    return views.for_record, views.since


async def show_side_by_side(request: Request) -> Response:
    """Logs a view of each case like this one, and shows them side by side."""
    record, keys = await trial_of(request), dict[str, Mapping[str, str]]()
    for _, other in await waiting_like(request, record):
        pictured = other.opened.meme.picture_given and not (await views_of(request, other)).gone
        _, keys[other.trial_id] = await view(request, other, MEME if pictured else TEXT)
    if request.headers.get("hx-request") == "true":
        return render(request, "review/alike.html", record=record, alike=await _side_by_side(request, record, keys))
    shown = {"shown": ".".join(key for each in keys.values() for key in each.values())}
    return redirect(request, f"{case_path(record.trial_id)}?{urlencode({**request.query_params, **shown})}#alike")


async def _side_by_side(
    request: Request, record: TrialRecord, keys: Mapping[str, Mapping[str, str]]
) -> Sequence[Mapping[str, Any]]:
    """Returns the cases like this one, with the keys that show each now."""
    return [
        {
            "similar": one,
            "record": other,
            "views": await views_of(request, other),
            "granted": keys.get(other.trial_id) or keys_in(request, other),
        }
        for one, other in await waiting_like(request, record)
    ]


def _reason(form: Mapping[str, str], record: TrialRecord, number: str) -> str:
    """Returns the written reason, or else the one that was chosen of the clause's own."""
    own = [reason for clause in clauses_of(record) if clause.number == number for reason in clause.reasons]
    chosen = form.get("chosen", "")
    return form.get("reason", "").strip() or (chosen if chosen in own else "")


async def undo(request: Request) -> Response:
    """Withdraws the visitor's last review of a case and of those decided with it, and gives them the case again."""
    record, visitor, queue = await trial_of(request), visitor_of(request), reviewing_of(request).queue
    form = form_of(request)
    try:
        # The others were decided together with it.
        for review in (f"{record.trial_id}:{form.get('of', '')}", *form.getlist("alike")):
            trial_id, _, number = review.rpartition(":")
            if not number.isascii() or not number.isdecimal() or len(number) > 9:
                raise BadRequest("There is no such review.", field="of")
            with suppress(AlreadyReviewed):
                await queue.withdraw((await trial_of(request, trial_id)).trial_id, visitor.name, int(number))
        reviewing_of(request).on_withdrawn()
        await queue.take(record.trial_id, visitor.name, reopen=True)
    except (BadRequest, CaseError, Unavailable) as error:
        return await _page(request, await trial_of(request), fault=error)
    return _back(request, record.trial_id)


async def _next(request: Request, reviewed: Sequence[str]) -> Response:
    """Takes and opens the next case after reviews; without any, the first of the reviewed ones."""
    visitor, found = visitor_of(request), None
    try:
        why = why_in(request, request.query_params.get("why", ""))
        found = await reviewing_of(request).queue.take_next(visitor.name, why=why, namespaces=visitor.namespaces)
    except (BadRequest, Unavailable) as error:
        _log.warning("no next case after trial=%s reason=%s", reviewed[0], error.reason)
    return _back(request, found.trial_id if found else reviewed[0], done=reviewed, here=found is None)


async def leave_note(request: Request) -> Response:
    """Stores a note to colleagues, by which another person may be asked to decide."""
    record, form, visitor = await trial_of(request), form_of(request), visitor_of(request)
    try:
        await reviewing_of(request).queue.leave_note(
            record.trial_id, visitor.name, form.get("note", ""), second_opinion=form.get("only") != "note"
        )
    except AlreadyReviewed:
        return _back(request, record.trial_id)
    except (BadRequest, CaseError, Unavailable) as error:
        return await _page(request, record, fault=error, written=form)
    return _back(request, record.trial_id)


async def take_back(request: Request) -> Response:
    """Removes from the library the precedent that an overruling added."""
    record, rulings, form = await trial_of(request), reviewing_of(request).corrections, form_of(request)
    try:
        if rulings is None:
            raise BadRequest("This console can't change the library of precedents.")
        await rulings.take_back(record.trial_id, who=visitor_of(request).name, why=form.get("back_why", ""))
    except CourtError as error:
        return await _page(request, record, fault=error, written=form)
    return _back(request, record.trial_id)


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
    # A refused note has no other field.
    fault_at = "" if fault is None or not mine else "note" if written and "note" in written else fault.field or ""
    return render(
        request,
        "review/case.html",
        **await listing(request, at_case=record.trial_id),
        status=_status(fault),
        record=record,
        view=view_of(record),
        pictures=console_of(request).pictures is not None,
        keys=keys_in(request, record) or await _still_shown(request, record),
        views=await views_of(request, record),
        last=await _last(request),
        case=found,
        mine=mine,
        decided=shown,
        own=[one for one in reviews if one.reviewer == visitor.name],
        # Other people's reviews would reveal the verdict or influence the reviewer.
        reviews=reviews if shown else (),
        notes=record.all(NoteLeft),
        alike=await _side_by_side(request, record, {}) if mine else (),
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


async def _still_shown(request: Request, record: TrialRecord) -> Mapping[str, str]:
    """Shows the meme of a case that was just decided beside what the court said, with one more view in the log."""
    last = _own_last(request, record)
    if last is None or last.look is not Look.SHOWN or not reviewing_of(request).queue.can_withdraw(last):
        return {}
    what = MEME if record.opened.meme.picture_given else TEXT
    return {**(await view(request, record, what))[1], TEXT: ""}


def _own_last(request: Request, record: TrialRecord) -> VerdictReviewed | None:
    return next((one for one in reversed(record.reviews) if one.reviewer == visitor_of(request).name), None)


@dataclass(frozen=True, slots=True)
class _Last:
    """A case that the visitor decided just before, the number of its review while it can be withdrawn, and notes."""

    trial_id: str
    found: Label
    court: Label
    undo: int | None
    notes: Sequence[NoteLeft]


async def _last(request: Request) -> list[_Last]:
    """Returns the cases that the visitor decided just before this one, of those that the address names."""
    found, visitor = list[_Last](), visitor_of(request)
    for trial_id in request.query_params.getlist("last"):
        with suppress(CourtError):
            record = await trial_of(request, trial_id)
            own = _own_last(request, record)
            if own and record.verdict is not None:
                undo = own.seq if reviewing_of(request).queue.can_withdraw(own) else None
                notes = [one for one in record.all(NoteLeft) if one.by != visitor.name]
                found.append(_Last(trial_id, own.label, record.verdict.label, undo, notes=notes))
    return found


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


def _back(request: Request, trial_id: str, *, done: Sequence[str] = (), here: bool = True) -> Response:
    """Opens a case, with the list beside it where it was, after the reviews of some."""
    query = list_query(request)
    if done:
        query += f"{'&' if query else '?'}{urlencode({'last': done}, doseq=True)}{'#done' if here else ''}"
    return redirect(request, f"{case_path(trial_id)}{query}")


PAGES = (
    Page("/desk/cases/{trial_id}", case, role=Role.REVIEWER, name="case"),
    Page("/desk/cases/{trial_id}/take", take, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/renew", renew, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/release", release, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/skip", skip, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/see", see, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/review", review, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/alike", show_side_by_side, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/undo", undo, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/note", leave_note, role=Role.REVIEWER, methods=("POST",)),
    Page("/desk/cases/{trial_id}/take-back", take_back, role=Role.ADMIN, methods=("POST",)),
)
