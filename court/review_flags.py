"""What comes of memes tried before that are nearly the one on trial: where one was found harmful and this one is not, a
person is called. The verdict stays as it is: what is nearly the same may well mean something else."""  # noqa: D205, D209

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from court.events import (
    AnswerGiven,
    AnyEvent,
    Described,
    NearDuplicatesFound,
    PrecedentsCited,
    SteeringFound,
    TextRead,
    VerdictGiven,
)
from court.injection.detector import find_injection_signals
from court.recorder import Drafted, EventDraft, Recorder
from court.verdict import Label, Review, ReviewReason, Verdict


def with_harmful_duplicates(verdict: Verdict, found: NearDuplicatesFound | None) -> Verdict:
    """The same verdict; where it is not harmful and something near was, with a reason for a person to look."""
    if found is None or verdict.label is Label.HARMFUL:
        return verdict
    harmful = [duplicate for duplicate in found.duplicates if duplicate.label is Label.HARMFUL]
    if not harmful:
        return verdict
    nearest = min(harmful, key=lambda duplicate: (not duplicate.same_text, duplicate.distance))
    words = "the same text" if nearest.same_text else "another text"
    detail = (
        f"A meme that is nearly this one was found harmful in trial {nearest.trial_id}: {words}, its picture "
        f"{nearest.distance} of 256 bits away"
    )
    more = len(harmful) - 1
    detail += f"; so {'was' if more == 1 else 'were'} {more} more." if more else "."
    review = Review(reason=ReviewReason.NEAR_DUPLICATE_HARMFUL, detail=detail)
    return verdict.model_copy(update={"review": (*verdict.review, review)})


async def give_verdict(clerk: Recorder, *before: Drafted, verdict: Verdict, **values: Any) -> None:
    """Keeps a verdict, and with it the signs of steering in all that strangers and the picture said in the trial.

    Args:
        clerk: Of the trial.
        before: What was said last, and is kept together with the verdict.
        verdict: As the procedure gave it. It gets one more reason for a person to look where there are signs, and one
            where it is not harmful and something nearly the same was; its label, strengths and score stay.
        values: What else its event says.
    """

    def given(events: Sequence[AnyEvent]) -> EventDraft:
        found = steering_in(events)
        near = next((event for event in events if isinstance(event, NearDuplicatesFound)), None)
        seen = with_harmful_duplicates(with_review(verdict, found), near)
        return EventDraft(VerdictGiven, {"verdict": seen, "steering": found, **values})

    await clerk.note_all(*before, given)


def steering_in(events: Iterable[AnyEvent]) -> tuple[SteeringFound, ...]:
    """The signs in the meme's text, in what the Proposer said of the picture, and in the precedents that were shown."""
    return tuple(
        SteeringFound(event=event.seq, precedent=precedent, **signal.model_dump())
        for event in events
        for precedent, text in _said(event)
        for signal in find_injection_signals(text)
    )


def with_review(verdict: Verdict, found: Sequence[SteeringFound]) -> Verdict:
    """The same verdict; where there are signs, with a reason for a person to look."""
    if not found:
        return verdict
    kinds = ", ".join(sorted({sign.kind.lower().replace("_", " ") for sign in found}))
    detail = f"What was said in this trial reads in {len(found)} {'place' if len(found) == 1 else 'places'} like an "
    detail += f"attempt to steer the court ({kinds}); the record says where."
    review = Review(reason=ReviewReason.STEERING_SUSPECTED, detail=detail)
    return verdict.model_copy(update={"review": (*verdict.review, review)})


def _said(event: AnyEvent) -> Iterator[tuple[str, str]]:
    """Id of a precedent, or nothing, and a text that somebody else than the court's own sides wrote."""
    match event:
        case TextRead():
            yield "", event.text
        case Described():
            yield "", event.description
        case AnswerGiven():
            yield "", event.answer
        case PrecedentsCited():
            yield from ((precedent.id, precedent.text) for precedent in event.findings.exhibits)
