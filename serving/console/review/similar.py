"""Similar trials: same or near-duplicate picture, or same text."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from court.record import TrialRecord
from serving.access.callers import SANDBOX
from serving.console.registry import Page, console_of, trial_of, visitor_of
from serving.console.rendering import render
from serving.console.review.parts import blind_reviewer, hidden_and_marked, reviewing_of
from serving.console.visitors import Role
from serving.docket.review.queue import Case
from serving.docket.store.pictures import picture_of

_MOST, _MOST_ALIKE = 20, 8


@dataclass(frozen=True, slots=True)
class Similar:
    """A trial that is like another.

    Attributes:
        bits: Number of the 256 bits in which the pictures' hashes differ; None if they were not compared by these.
    """

    case: Case
    picture: str
    text: bool
    bits: int | None = None

    @property
    def in_words(self) -> str:
        """Returns in which way the two are alike."""
        apart = "" if self.bits is None else f", {self.bits} of 256 bits apart"
        return "; ".join(filter(None, (f"{self.picture}{apart}", "the same text" if self.text else "")))


async def similar(request: Request) -> Response:
    """Lists similar trials: a fragment for htmx, else a whole page."""
    record = await trial_of(request)
    found = await similar_to(request, record)
    template = "review/similar_list.html" if request.headers.get("hx-request") == "true" else "review/similar.html"
    ended = [one.case.trial_id for one in found if one.case.label is not None]
    blind = blind_reviewer(request)
    if blind and not await reviewing_of(request).queue.knows_verdict(record.trial_id, blind.name):
        # Before deciding, the outcomes of similar trials are hidden too: most are of the same picture.
        names = frozenset(ended)
    else:
        names = await hidden_and_marked(request, ended)
    return render(request, template, record=record, found=found, hidden=names)


async def similar_to(request: Request, record: TrialRecord) -> list[Similar]:
    """Returns the similar trials that the visitor may see, most similar first."""
    reviews, visitor = reviewing_of(request).queue, visitor_of(request)
    own = await reviews.case(record.trial_id)
    found = {
        case.trial_id: Similar(case, "the same picture" if same_picture else "", same_text)
        for case, same_picture, same_text in await reviews.same_memes(own, limit=_MOST, namespaces=visitor.namespaces)
        if case.namespace != SANDBOX
    }
    index, text = reviewing_of(request).duplicates, record.text
    meme = record.opened.meme
    frames = await console_of(request).docket.trials.frames(meme.pixels_sha256) if meme.picture_given else ()
    if index is not None and text is not None and (frames or not meme.picture_given):
        picture = picture_of(meme, frames) if frames else None
        others = await index.find(picture, text.text, bool(text.reader), meme.namespace)
        cases = await reviews.cases([one.trial_id for one in others])
        for one in others:
            case = cases.get(one.trial_id)
            known = found.get(one.trial_id)
            # The index knows nothing of visitors and their namespaces.
            if case is None or one.trial_id == record.trial_id or not visitor.sees(case.namespace):
                continue
            # A trial already found above is described better there.
            if one.text_alone:
                found.setdefault(one.trial_id, Similar(case, "", text=True))
            elif known is None or not known.picture:
                kind = "the same picture" if one.same_picture else "nearly the same picture"
                same_text = one.same_text or (known is not None and known.text)
                found[one.trial_id] = Similar(case, kind, same_text, one.distance)
    return sorted(found.values(), key=lambda one: (not one.picture, one.bits or 0, not one.text))


async def waiting_like(request: Request, record: TrialRecord) -> list[tuple[Similar, TrialRecord]]:
    """Returns waiting cases with nearly the same meme that the visitor may decide together with this one."""
    name, found = visitor_of(request).name, list[tuple[Similar, TrialRecord]]()
    for one in await similar_to(request, record):
        case = one.case
        free = case.waiting and case.asked_by != name and (case.lock is None or case.lock.holder == name)
        # A text alone is near where it has the same letters; a picture with the same text may be quite another.
        if free and (one.picture or case.text_alone) and len(found) < _MOST_ALIKE:
            other = await trial_of(request, case.trial_id)
            own = any(each.reviewer == name for each in other.reviews)
            if not own and other.opened.policy.digest == record.opened.policy.digest:
                found.append((one, other))
    return found


PAGES = (Page("/desk/cases/{trial_id}/similar", similar, role=Role.VIEWER, name="similar"),)
