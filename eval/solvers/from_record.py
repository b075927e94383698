"""Converts the record of a trial into a prediction."""

from __future__ import annotations

from collections import Counter

from court.events import (
    ClaimEvent,
    ClaimsFound,
    ModelCall,
    RoundEvent,
    Side,
    SideRested,
    Summarised,
    SummarisedAhead,
    TrialResumed,
    Unused,
)
from court.precedents import vote
from court.record import TrialRecord
from court.verdict import Label, Strength, Verdict
from eval.datasets.items import JudgedMeme
from eval.datasets.protocol import Level
from eval.solvers.prediction import Cost, Outcome, Prediction, SideCourse


def prediction_of(meme: JudgedMeme, record: TrialRecord, *, stored: int = 0) -> Prediction:
    """Builds the prediction for a meme from its finished trial.

    Raises ValueError: The trial is not finished.
    """
    verdict, failed = record.verdict, record.failure
    if verdict is not None:
        outcome = Outcome(str(verdict.label))
        reason = str(verdict.review[0].reason) if verdict.label is Label.UNDECIDED else ""
    elif failed is not None:
        outcome, reason = Outcome.FAILED, failed.reason
    else:
        raise ValueError(f"trial {record.trial_id} is not over")
    precedent_vote = None
    if record.precedents and record.precedents.findings.tally:
        precedent_vote = vote(record.precedents.findings.tally, record.precedents.findings.vote_settings)
    return Prediction(
        meme=meme.id,
        outcome=outcome,
        score=verdict.harm_score if verdict else None,
        # Only if the data set has levels to compare it with.
        level=level_of(verdict) if verdict and meme.level is not None else None,
        vote=precedent_vote.probability if precedent_vote else None,
        vote_harmful=precedent_vote.probability >= precedent_vote.settings.threshold if precedent_vote else None,
        needs_review=verdict.needs_human_review if verdict else False,
        reason=reason,
        trial=record.trial_id,
        cost=cost_of(record, stored),
        sides=_sides(record),
    )


def level_of(verdict: Verdict) -> Level | None:
    """The level that corresponds to a verdict; None if it is undecided."""
    if verdict.strengths is None:
        return None
    if verdict.label is Label.NOT_HARMFUL:
        return Level.NOT_HARMFUL
    return Level.VERY_HARMFUL if verdict.strengths.harmful is Strength.STRONG else Level.SOMEWHAT_HARMFUL


def cost_of(record: TrialRecord, stored: int = 0) -> Cost:
    """Computes the cost of a trial from its record, including calls that no verdict rests on.

    Args:
        stored: Calls answered from the call cache, as far as this process knows.
    """
    # A trial that failed and was resumed ended several times, each time with unused calls.
    unused: list[Unused] = [end for event in record.events if (end := getattr(event, "unused", None))]
    calls = record.calls
    made = sum(each.requests for each in calls) + sum(each.calls for each in unused)
    figures: list[ModelCall | Unused] = [*(each.call for each in calls), *unused]
    return Cost(
        calls=made,
        stored=min(stored, made),
        tokens_in=sum(each.tokens_in for each in figures),
        tokens_out=sum(each.tokens_out for each in figures),
        tokens_cached=sum(each.tokens_cached for each in figures),
        chain=chain_of(record),
        seconds=_seconds(record),
    )


def chain_of(record: TrialRecord) -> int:
    """Number of calls on the longest chain of dependent calls that the verdict rests on.

    ``D``, then the questions, answers and last summary of the longer side, then a guard's opinion, then the judgment,
    or its two calls for odds if those are more. Without overlap every summary is in the chain. A repaired reply counts
    twice. An expert witness counts only if the Judge waits for it.
    """
    exchanged: Counter[tuple[Side, int]] = Counter()  # questions and answers
    summed: Counter[tuple[Side, int]] = Counter()
    claims: Counter[int] = Counter()
    judged = found = others = 0
    for event, calls in record.first_reports:
        made = sum(each.requests for each in calls if each.task != "odds")
        if isinstance(event, Summarised | SummarisedAhead):
            summed[event.side, event.round] += made
        elif isinstance(event, RoundEvent):
            exchanged[event.side, event.round] += made
        elif isinstance(event, ClaimEvent):
            claims[event.claim] += made
        elif isinstance(event, ClaimsFound):
            found = made
        elif event.step_owner != "judge":
            others += made
        elif not event.after_end:
            # The judges of a panel, and each judge and its odds, run concurrently.
            judged = max(judged, made, sum(each.requests for each in calls) - made)
    overlap = record.opened.settings.get("overlap", True) is not False
    longest = 0
    for rested in record.all(SideRested):
        # Without questions (the arm no-captioner) the side only sums up once.
        chain = last = summed[rested.side, 0] if rested.rounds == 0 else 0
        for number in range(1, rested.rounds + 1):
            chain += exchanged[rested.side, number]
            last = chain + summed[rested.side, number]
            longest = max(longest, last)
            # Without overlap, a question waits for the summary of the previous round.
            chain = chain if overlap else last
        longest = max(longest, last)
    if record.opened.settings.get("expert_waits") is True:
        # A side calls the witness at one of its summaries, the last one at the latest.
        before = longest if record.opened.settings.get("expert") == "asked" else 0
        # Claims are checked concurrently, once they are found.
        longest = max(longest, before + found + max(claims.values(), default=0))
    return longest + others + judged


def _seconds(record: TrialRecord) -> float:
    """Returns the trial's duration, without the time between an interruption and its resumption."""
    total, before = 0.0, record.opened.at
    for event in record.events:
        if event.after_end:
            # Events after the end do not count towards the trial's duration.
            break
        if not isinstance(event, TrialResumed):
            total += (event.at - before).total_seconds()
        before = event.at
    return max(total, 0.0)  # the clock may have been set back


def _sides(record: TrialRecord) -> dict[str, SideCourse]:
    courses = {}
    for rested in record.all(SideRested):
        entropies = {e.round: e.entropy for e in record.all(Summarised) if e.side is rested.side}
        courses[str(rested.side)] = SideCourse(
            rounds=rested.rounds,
            rested=str(rested.reason),
            # Without summaries of later rounds, which were computed in vain.
            entropies=tuple(entropies[number] for number in sorted(entropies) if number <= rested.rounds),
        )
    return courses
