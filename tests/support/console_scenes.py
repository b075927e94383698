"""A review queue of drawn, tame memes in every state that a row of the console can show."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import TypeAdapter

from court.events import AnyEvent, VerdictGiven
from court.verdict import Finding, Label, Review, ReviewReason, ScoreMeaning, Strength, Strengths, Verdict
from serving.docket.open import Docket
from tests.support.consoles import create_docket
from tests.support.paths import TESTS
from tests.support.shown_trials import drawn_picture, full_trial

H, N, U = Label.HARMFUL, Label.NOT_HARMFUL, Label.UNDECIDED
DOCUMENTED_CASE = "0f6c3f0e-2a51-4c0a-9d7e-5b8a3d1f7c20"
"""Trial id of the case in the documentation's screenshots."""


@dataclass(frozen=True, slots=True)
class SceneTrial:
    """A trial of a scene.

    Attributes:
        scene: Drawing of the meme.
        text: Text of the meme.
        label: The court's label.
        score: Probability of harm; None if the verdict has none.
        strengths: Strength of the evidence of harm and of the benign evidence; None if undecided.
        reason: Reason for a human review; None if none is needed.
        detail: The reason in words.
        minutes: Age of the trial in minutes.
        rationale: Rationale of the Judge.
    """

    scene: str
    text: str
    label: Label
    score: float | None
    strengths: tuple[Strength, Strength] | None
    reason: ReviewReason | None
    detail: str
    minutes: int
    rationale: str


QUEUE = TypeAdapter(tuple[SceneTrial, ...]).validate_json((TESTS / "fixtures" / "review_queue.json").read_bytes())
"""Trials in the order of the queue; the last two need no review."""


def scene_trial(trial_id: str, one: SceneTrial, *, now: datetime, namespace: str = "forum") -> Sequence[AnyEvent]:
    """Returns the events of a full trial with the verdict of a scene."""
    picture = drawn_picture(one.scene, one.text)
    *before, verdict_event = full_trial(
        trial_id,
        picture=picture,
        at=now - timedelta(minutes=one.minutes),
        text=one.text,
        namespace=namespace,
        content_id=f"post-{4700 + one.minutes}",
        label=H if one.label is H else N,
    )
    assert isinstance(verdict_event, VerdictGiven) and verdict_event.ruling is not None
    verdict = Verdict(
        label=one.label,
        strengths=None if one.strengths is None else Strengths(harmful=one.strengths[0], benign=one.strengths[1]),
        harm_score=one.score,
        harm_score_meaning=None if one.score is None else ScoreMeaning.LABEL_PROBABILITY,
        rationale=one.rationale,
        finding=Finding(category="nationality", clause="4", target="community") if one.label is H else None,
        review=() if one.reason is None else (Review(reason=one.reason, detail=one.detail),),
    )
    ruling = None if one.label is U else verdict_event.ruling.model_copy(update={"label": one.label})
    return [*before, verdict_event.model_copy(update={"verdict": verdict, "ruling": ruling})]


def fill_queue(folder: Path, *, now: datetime | None = None, holder: str = "bea") -> Path:
    """Creates a docket with the trials of QUEUE, the third of which is locked by a reviewer."""
    now = now or datetime.now(UTC)
    ids = [f"{number:08x}-2a51-4c0a-9d7e-5b8a3d1f7c20" for number in range(1, len(QUEUE) + 1)]
    ids[4] = DOCUMENTED_CASE
    place = create_docket(
        folder / "docket.sqlite",
        [scene_trial(id_, one, now=now) for id_, one in zip(ids, QUEUE, strict=True)],
        [drawn_picture(one.scene, one.text) for one in QUEUE],
    )

    async def hold() -> None:
        docket = Docket.open(place)
        try:
            queue = docket.review_queue()
            while not await queue.catch_up():  # on a busy machine this takes several calls
                pass
            await queue.take(ids[2], holder)
        finally:
            await docket.close()

    # In another thread, as a browser's driver may run an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, hold()).result()
    return place
