"""A record laid out for reading: both sides of each round next to each other."""

from __future__ import annotations

from dataclasses import dataclass

from court.events import AnswerGiven, JudgeRuled, NearDuplicate, OddsGiven, QuestionAsked, Ruling, Side, Summarised
from court.precedents import Precedent, Vote
from court.record import TrialRecord


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of one side; ``ahead`` after the one at which the side stopped, on which no verdict rests."""

    asked: QuestionAsked | None
    answered: AnswerGiven | None
    summed: Summarised | None
    ahead: bool


@dataclass(frozen=True, slots=True)
class Round:
    """One round, counted from 1. The turn of a side that had already stopped asking is None."""

    number: int
    turns: dict[Side, Turn | None]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A record in reading order: all that has to be put together from several events, or to be found inside of one.

    Attributes:
        arguments: Last summary of each side, which is its argument before the Judge.
    """

    description: str
    rounds: tuple[Round, ...]
    arguments: dict[Side, Summarised | None]
    searched: str
    precedents: tuple[Precedent, ...]
    vote: Vote | None
    duplicates: tuple[NearDuplicate, ...]
    panel: tuple[JudgeRuled, ...]
    ruling: Ruling | None
    odds: OddsGiven | None


def transcript(record: TrialRecord) -> Transcript:
    """Lays out a record, finished or not."""
    described, verdict, cited, duplicates = record.described, record.verdict_event, record.precedents, record.duplicates
    # By side and round: both sides are examined concurrently, so their events are interleaved.
    questions = {(event.side, event.round): event for event in record.all(QuestionAsked)}
    answered = {(event.side, event.round): event for event in record.all(AnswerGiven)}
    # Without summaries run ahead: once such a round counts, another event repeats it.
    summed = {(event.side, event.round): event for event in record.all(Summarised)}
    rested = record.rested

    def turn(side: Side, number: int) -> Turn | None:
        at = side, number
        if at not in questions and at not in answered and at not in summed:
            return None
        # As long as the side has not stopped, it is unknown which of its rounds count.
        ahead = side in rested and number > rested[side].rounds
        return Turn(questions.get(at), answered.get(at), summed.get(at), ahead)

    last = {side: max((number for of, number in summed if of is side), default=None) for side in Side}
    # Round 0 is an argument without an examination and not a round.
    numbers = sorted({number for _, number in (*questions, *answered, *summed) if number})
    library = cited.findings.library if cited else None
    return Transcript(
        description=described.description if described else "",
        rounds=tuple(Round(number, {side: turn(side, number) for side in Side}) for number in numbers),
        arguments={side: None if number is None else summed[side, number] for side, number in last.items()},
        searched=f"{library.name}, {library.size:,} memes" if library else "",
        precedents=cited.findings.exhibits if cited else (),
        vote=cited.vote if cited else None,
        duplicates=duplicates.duplicates if duplicates else (),
        panel=tuple(sorted(record.all(JudgeRuled), key=lambda ruled: ruled.judge)),
        ruling=verdict.ruling if verdict else None,
        odds=verdict.odds if verdict else None,
    )
