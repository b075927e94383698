"""What comes of memes tried before that are nearly the one on trial: where one was found harmful and this one is not, a
person is called. The verdict stays as it is: what is nearly the same may well mean something else."""  # noqa: D205, D209

from __future__ import annotations

from court.events import NearDuplicatesFound
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
