"""Converts the record of a trial into a prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from court.events import (
    AFTERWARDS,
    AnswerGiven,
    ClaimSettled,
    ClaimsFound,
    Described,
    DocumentWeighed,
    EvidenceSearched,
    GuardHeard,
    JudgeRuled,
    ModelCall,
    QueriesPlanned,
    QuestionAsked,
    QuestionRuled,
    Side,
    SideRested,
    Summarised,
    SummarisedAhead,
    TrialFailed,
    TrialResumed,
    Unused,
    VerdictGiven,
    calls_in,
)
from court.precedents import vote
from court.record import TrialRecord
from court.verdict import Label, Strength, Verdict
from eval.datasets.items import JudgedMeme
from eval.datasets.protocol import Level
from eval.solvers.prediction import Cost, Outcome, Prediction, SideCourse


def prediction_of(meme: JudgedMeme, record: TrialRecord, *, stored: int = 0) -> Prediction:
    """Builds the prediction for a meme from its finished trial.

    Args:
        stored: Calls answered from the call cache.

    Raises:
        ValueError: The trial is not finished.
    """
    verdict, failed = record.verdict, record.last(TrialFailed)
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
    calls = calls_of(record)
    # A trial that failed and was resumed ended several times, each time with unused calls.
    ends: list[VerdictGiven | TrialFailed | QuestionRuled] = [*record.all(VerdictGiven), *record.all(TrialFailed)]
    ends += record.all(QuestionRuled)
    unused = [end.unused for end in ends if end.unused]
    made = sum(number for _, number in calls) + sum(each.calls for each in unused)
    figures: list[ModelCall | Unused] = [*(call for call, _ in calls), *unused]
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
    described, opinion = record.last(Described), record.last(GuardHeard)
    judged = 0
    rulings: list[VerdictGiven | JudgeRuled] = [*record.all(VerdictGiven), *record.all(JudgeRuled)]
    for ruled in rulings:  # those of a panel run concurrently
        judged = max(judged, calls_in_step(ruled.call), len(ruled.odds.harmful) if ruled.odds else 0)
    overlap = record.opened.settings.get("overlap", True) is not False
    longest = max(_side_chain(record, side, overlap) for side in Side)
    if record.opened.settings.get("expert_waits") is True:
        # A side calls the witness at one of its summaries, the last one at the latest.
        before = longest if record.opened.settings.get("expert") == "asked" else 0
        longest = max(longest, before + _expert_chain(record)) if record.all(ClaimsFound) else longest
    guarded = calls_in_step(opinion.call) if opinion else 0
    return (calls_in_step(described.call) if described else 0) + longest + guarded + judged


def _side_chain(record: TrialRecord, side: Side, overlap: bool) -> int:
    rested = next((e for e in record.all(SideRested) if e.side is side), None)
    if rested is None:
        return 0
    questions, answered, summed = (_by_round(record, kind, side) for kind in (QuestionAsked, AnswerGiven, Summarised))
    if rested.rounds == 0:
        # No questions were asked (the arm no-captioner): the side only sums up once.
        return calls_in_step(summed.get(0))
    before, chains = 0, []
    for number in range(1, rested.rounds + 1):
        before += calls_in_step(questions.get(number)) + calls_in_step(answered.get(number))
        chains.append(before + calls_in_step(summed.get(number)))
        # Without overlap, a question waits for the summary of the previous round.
        if not overlap:
            before = chains[-1]
    return max(chains)


def _expert_chain(record: TrialRecord) -> int:
    """Calls for the claims, plus those for the claim with the most calls: claims are checked concurrently."""
    by_claim: Counter[int] = Counter()
    found = 0
    for event in record.events:
        number = sum(map(calls_in_step, calls_in(event)))
        if isinstance(event, ClaimsFound):
            found = number
        elif isinstance(event, QueriesPlanned | EvidenceSearched | DocumentWeighed | ClaimSettled):
            by_claim[event.claim] += number
    return found + max(by_claim.values(), default=0)


def _by_round(
    record: TrialRecord, kind: type[QuestionAsked] | type[AnswerGiven] | type[Summarised], side: Side
) -> Mapping[int, ModelCall]:
    return {event.round: event.call for event in record.all(kind) if event.side is side and event.call is not None}


def calls_in_step(call: ModelCall | None) -> int:
    """Number of calls that one step took; 0 if it made none."""
    # A call with a fault was repeated once.
    return 0 if call is None else 2 if call.fault else 1


def calls_of(record: TrialRecord) -> list[tuple[ModelCall, int]]:
    """Every model call in the record, with the number of requests it stands for."""
    summed = {(event.side, event.round) for event in record.all(Summarised)}
    calls: list[tuple[ModelCall, int]] = []
    for event in record.events:
        if isinstance(event, SummarisedAhead) and (event.side, event.round) in summed:
            continue  # reported again, but made once
        calls += [(call, calls_in_step(call)) for call in calls_in(event)]
        if isinstance(event, VerdictGiven | JudgeRuled) and event.odds is not None:
            calls.append((event.odds.call, len(event.odds.harmful)))
    return calls


def _seconds(record: TrialRecord) -> float:
    """Returns the trial's duration, without the time between an interruption and its resumption."""
    total, before = 0.0, record.opened.at
    for event in record.events:
        if isinstance(event, AFTERWARDS):
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
