"""A review queue on a real docket, and trials to fill it with."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from court.events import (
    AnyEvent,
    Described,
    MemeIdentity,
    ModelCall,
    PolicyReference,
    Procedure,
    Role,
    TextRead,
    TextSource,
    TrialFailed,
    TrialOpened,
    VerdictGiven,
    Versions,
)
from court.verdict import Finding, Label, Review, ReviewReason, ScoreMeaning, Strength, Strengths, Verdict
from retrieval.library.postgres.address import Address
from serving.docket.open import Docket
from serving.docket.review.projection import Rules
from serving.docket.review.queue import ReviewQueue
from serving.docket.review.search import parse_search
from tests.support.dockets import NOON

T = TypeVar("T")

NO_SAMPLING = Rules(sampled=0.0)
"""Rules that sample no trial for review at random."""


def verdict(
    label: Label = Label.HARMFUL,
    *,
    score: float | None = None,
    strengths: tuple[Strength, Strength] | None = None,
    reasons: Sequence[ReviewReason] = (),
    category: str = "",
    rationale: str = "It says what it says.",
) -> Verdict:
    """A verdict that asks for no review unless reasons are given."""
    usual = {
        Label.HARMFUL: (Strength.STRONG, Strength.WEAK),
        Label.NOT_HARMFUL: (Strength.WEAK, Strength.STRONG),
        Label.UNDECIDED: None,
    }[label]
    chosen = strengths or usual
    if label is Label.UNDECIDED and not reasons:
        reasons = (ReviewReason.NO_SIMILAR_PRECEDENT,)
    return Verdict(
        label=label,
        strengths=Strengths(harmful=chosen[0], benign=chosen[1]) if chosen else None,
        harm_score=score,
        harm_score_meaning=None if score is None else ScoreMeaning.LABEL_PROBABILITY,
        rationale=rationale,
        finding=Finding(category=category, clause="4") if category else None,
        review=tuple(Review(reason=reason, detail=f"because of {reason.lower()}") for reason in reasons),
    )


def trial(
    trial_id: str,
    end: Verdict | str | None = None,
    *,
    words: str = "a tame text",
    at: datetime = NOON,
    namespace: str = "",
    pixels: str = "b" * 64,
    models: Sequence[str] = (),
    description: str = "",
) -> list[AnyEvent]:
    """Returns the events of a trial that ended in a verdict, failed with a reason, or still runs (None)."""
    meme = MemeIdentity(
        bytes_sha256="a" * 64, pixels_sha256=pixels, format="PNG", width=4, height=3, frame_count=1,
        frames_used=(0,), namespace=namespace, content_id=f"content of {trial_id}",
    )  # fmt: skip
    events: list[Any] = [
        TrialOpened(
            trial_id=trial_id, seq=0, at=at, procedure=Procedure.SUMMARY, meme=meme, request_id=f"r {trial_id}",
            policy=PolicyReference(id="p", version="1", digest="sha256:0"), settings={},
            versions=Versions(software="test", settings="sha256:0", models=dict.fromkeys(models, "")),
        ),
        TextRead(trial_id=trial_id, seq=1, at=at, text=words, source=TextSource.CALLER),
    ]  # fmt: skip
    events[0] = events[0].model_copy(
        update={"versions": Versions(software="test", settings="s", models={f"r{i}": m for i, m in enumerate(models)})}
    )
    if description:
        call = ModelCall(
            role=Role.PROPOSER, model="m", prompt_id="p", prompt_digest="d", tokens_in=1, tokens_out=1, latency_s=0.1
        )
        events.append(Described(trial_id=trial_id, seq=len(events), at=at, description=description, call=call))
    if isinstance(end, Verdict):
        events.append(VerdictGiven(trial_id=trial_id, seq=len(events), at=at, verdict=end))
    elif end is not None:
        events.append(
            TrialFailed(
                trial_id=trial_id, seq=len(events), at=at, step="text", reason=end, message="gone", retryable=True
            )
        )
    return events


class Clock:
    """A clock that stands still until it is turned."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        """Returns its time."""
        return self.now

    def turn(self, **by: float) -> None:
        """Moves the clock forward."""
        self.now += timedelta(**by)


class ReviewDesk:
    """A docket, a review queue and a clock."""

    def __init__(self, docket: Docket, rules: Rules) -> None:
        self.docket = docket
        self.clock = Clock()
        self.desk = self.another_desk(rules)

    def another_desk(self, rules: Rules = NO_SAMPLING, *, docket: Docket | None = None, **options: Any) -> ReviewQueue:
        """Returns a queue as another console has it, on this docket or on the same one opened again."""
        docket = docket or self.docket
        options = {"clock": self.clock, "patience_s": 60, **options}
        return ReviewQueue(docket.transactions, docket.trials, docket.log, rules, **options)

    async def tried(self, trial_id: str, end: Verdict | str | None = None, **options: Any) -> str:
        """Stores a trial; returns its id."""
        for event in trial(trial_id, end, **options):
            await self.docket.writer.append(event)
        return trial_id

    async def reviewed(self, trial_id: str, who: str, label: Label, *, again: bool = False) -> Any:
        """Takes a case and reviews it."""
        await self.desk.take(trial_id, who, reopen=again)
        return (await self.desk.review(trial_id, who, label=label, clause="4", reason="I looked."))[0]

    async def found(self, text: str = "", *, queue: ReviewQueue | None = None, **limits: Any) -> list[str]:
        """Returns the ids of the trials that a search finds; the other arguments are fields of the filter."""
        await (queue or self.desk).catch_up()
        which = replace(parse_search(text).which, **limits)
        lines = await self.docket.index.search(which, limit=99)
        assert await self.docket.index.count(which) == len(lines)
        return [line.trial_id for line in lines]

    async def waiting(self, who: str = "ada", **options: Any) -> list[str]:
        """Returns the ids of waiting cases."""
        return [case.trial_id for case in await self.desk.queue(who, limit=100, **options)]


@asynccontextmanager
async def opened_desk(place: Path | Address, rules: Rules = NO_SAMPLING) -> AsyncIterator[ReviewDesk]:
    """Opens a docket with a review queue."""
    docket = Docket.open(place)
    try:
        yield ReviewDesk(docket, rules)
    finally:
        await docket.close()
