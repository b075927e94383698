"""A record laid out for reading: both sides of each round next to each other, with the cost of every call."""

from __future__ import annotations

from dataclasses import dataclass

from court.display import word
from court.events import (
    AnswerGiven,
    JudgeRuled,
    ModelCall,
    NearDuplicate,
    OddsGiven,
    QuestionAsked,
    Ruling,
    Side,
    SideRested,
    Summarised,
)
from court.precedents import Precedent, Vote
from court.record import TrialRecord


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of one side; ``ahead`` after the one at which the side stopped, on which no verdict rests."""

    question: str
    answer: str
    summary: str
    entropy: float | None
    change: float | None
    ahead: bool
    calls: tuple[ModelCall, ...]
    asked: QuestionAsked | None
    answered: AnswerGiven | None
    summed: Summarised | None


@dataclass(frozen=True, slots=True)
class Round:
    """One round, counted from 1. The turn of a side that had already stopped asking is None."""

    number: int
    turns: dict[Side, Turn | None]


@dataclass(frozen=True, slots=True)
class Argument:
    """A side's argument before the Judge, and the reason why it stopped asking."""

    justification: str
    cites: tuple[str, ...]
    rested: str
    call: ModelCall | None
    """Call of an argument without an examination; otherwise None, as the last round has the call."""
    event: Summarised


@dataclass(frozen=True, slots=True)
class Transcript:
    """A record in reading order: all that has to be put together from several events, or to be found inside of one."""

    description: str
    rounds: tuple[Round, ...]
    arguments: dict[Side, Argument | None]
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
    rested = {event.side: event for event in record.all(SideRested)}

    def turn(side: Side, number: int) -> Turn | None:
        question, answer, summary = (events.get((side, number)) for events in (questions, answered, summed))
        if question is None and answer is None and summary is None:
            return None
        assert isinstance(summary, Summarised | None)
        return Turn(
            question=question.question if isinstance(question, QuestionAsked) else "",
            answer=answer.answer if isinstance(answer, AnswerGiven) else "",
            summary=summary.summary if summary else "",
            entropy=summary.entropy if summary else None,
            change=summary.entropy_change if summary else None,
            # As long as the side has not stopped, it is unknown which of its rounds count.
            ahead=side in rested and number > rested[side].rounds,
            calls=tuple(event.call for event in (question, answer, summary) if event is not None and event.call),
            asked=question if isinstance(question, QuestionAsked) else None,
            answered=answer if isinstance(answer, AnswerGiven) else None,
            summed=summary,
        )

    def argument(side: Side) -> Argument | None:
        last = max((number for of, number in summed if of is side), default=None)
        if last is None:
            return None
        event = summed[side, last]
        why = word(rested[side].reason) if side in rested else ""
        # Without an examination the justification may be empty, and the summary is the argument.
        text = event.justification or event.summary
        return Argument(
            justification=text,
            cites=event.cites,
            rested=why,
            # With an examination, this call belongs to the last round and would be counted twice.
            call=event.call if last == 0 else None,
            event=event,
        )

    # Round 0 is an argument without an examination and not a round.
    numbers = sorted({number for _, number in (*questions, *answered, *summed) if number})
    library = cited.findings.library if cited else None
    return Transcript(
        description=described.description if described else "",
        rounds=tuple(Round(number, {side: turn(side, number) for side in Side}) for number in numbers),
        arguments={side: argument(side) for side in Side},
        searched=f"{library.name}, {library.size:,} memes" if library else "",
        precedents=cited.findings.exhibits if cited else (),
        vote=cited.vote if cited else None,
        duplicates=duplicates.duplicates if duplicates else (),
        panel=tuple(sorted(record.all(JudgeRuled), key=lambda ruled: ruled.judge)),
        ruling=verdict.ruling if verdict else None,
        odds=verdict.odds if verdict else None,
    )
