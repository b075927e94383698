"""A record laid out for reading: both sides of each round next to each other, and what every call cost."""

from __future__ import annotations

from dataclasses import dataclass

from court.display import word
from court.events import (
    AnswerGiven,
    ClaimsFound,
    Described,
    GuardHeard,
    JudgeRuled,
    ModelCall,
    NearDuplicate,
    NearDuplicatesFound,
    OddsGiven,
    Procedure,
    QuestionAsked,
    Ruling,
    Side,
    SideRested,
    Summarised,
    TextSource,
    TrialFailed,
    VerdictGiven,
    calls_in,
)
from court.precedents import Precedent, Vote
from court.record import TrialRecord
from court.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of one side.

    Attributes:
        question: To the Proposer; empty where it asked none.
        answer: Empty where there is none.
        summary: Empty where there is none.
        entropy: Entropy of the summary, in bits; None likewise.
        change: To the summary before, in bits; None for the first.
        ahead: True if the question was sent before it was known that the side would stop: the verdict doesn't rest on
            it.
        calls: Model calls of the round, in order.
        asked: The event of the question; None where there is none (yet). The same for the other two.
        answered: Model call of the answer.
        summed: Model call of the summary.
    """

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
    """One round; a side that had rested before has no turn in it. Counted from 1."""

    number: int
    turns: dict[Side, Turn | None]


@dataclass(frozen=True, slots=True)
class Argument:
    """A side's argument before the Judge, and the reason why it stopped asking."""

    justification: str
    cites: tuple[str, ...]
    rested: str
    call: ModelCall | None
    """Where it was given without an examination; otherwise its call stands with the last round."""
    event: Summarised
    """Where it stands in the record."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A record, in the order in which it is read.

    Attributes:
        trial: Its id.
        procedure: Procedure of the trial.
        seconds: From the first event to the last.
        text: Text of the meme, as judged.
        source: Source of the text; None if it was never read.
        frames: Number of frames in the picture's file.
        description: The Proposer's; empty where there is none.
        rounds: In order.
        arguments: Per side; None where it made none.
        searched: Name and size of the library; empty where nothing was searched.
        precedents: Nearest first.
        vote: Vote of the precedents; None if there was none.
        notes: Notes of the search.
        duplicates: Memes tried before that are nearly this one, nearest first.
        panel: Judges of a panel as they ruled, in order of their numbers; none where one sat alone.
        guard: Opinion of a guard model, or that it gave none; None where none was to be heard.
        claims_found: Event of the meme's claims of fact; None where no expert witness was called.
        verdict: None where there is none.
        failures: In order; a trial that was taken up again may have failed before.
        models: Models of the trial, each once, in order.
    """

    trial: str
    procedure: Procedure
    seconds: float
    text: str
    source: TextSource | None
    frames: int
    description: str
    description_call: ModelCall | None
    rounds: tuple[Round, ...]
    arguments: dict[Side, Argument | None]
    searched: str
    precedents: tuple[Precedent, ...]
    vote: Vote | None
    notes: tuple[str, ...]
    duplicates: tuple[NearDuplicate, ...]
    panel: tuple[JudgeRuled, ...]
    guard: GuardHeard | None
    claims_found: ClaimsFound | None
    verdict: Verdict | None
    ruling: Ruling | None
    odds: OddsGiven | None
    verdict_call: ModelCall | None
    failures: tuple[TrialFailed, ...]
    models: tuple[str, ...]


def transcript(record: TrialRecord) -> Transcript:
    """Lays out a record, finished or not."""
    described, verdict_given, cited = record.last(Described), record.last(VerdictGiven), record.precedents
    duplicates_found = record.last(NearDuplicatesFound)
    # By side and round: both sides are examined at the same time, and their events come in any order.
    questions = {(event.side, event.round): event for event in record.all(QuestionAsked)}
    answered = {(event.side, event.round): event for event in record.all(AnswerGiven)}
    # Without SummarisedAhead: where such a round counts, a Summarised has the same words.
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
            # While the side has not rested, nobody knows yet which of its rounds count.
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
        # Without an examination there is no text beside the summary but the summary itself.
        text = event.justification or event.summary
        return Argument(
            justification=text,
            cites=event.cites,
            rested=why,
            # With an examination, this call is one of the last round's and would be counted twice.
            call=event.call if last == 0 else None,
            event=event,
        )

    # Round 0 is an argument without an examination, and no round.
    numbers = sorted({number for _, number in (*questions, *answered, *summed) if number})
    library = cited.findings.library if cited else None
    return Transcript(
        trial=record.trial_id,
        procedure=record.opened.procedure,
        seconds=record.seconds,
        text=record.text.text if record.text else "",
        source=record.text.source if record.text else None,
        frames=record.opened.meme.frame_count,
        description=described.description if described else "",
        description_call=described.call if described else None,
        rounds=tuple(Round(number, {side: turn(side, number) for side in Side}) for number in numbers),
        arguments={side: argument(side) for side in Side},
        searched=f"{library.name}, {library.size:,} memes" if library else "",
        precedents=cited.findings.exhibits if cited else (),
        vote=cited.vote if cited else None,
        notes=cited.findings.notes if cited else (),
        duplicates=duplicates_found.duplicates if duplicates_found else (),
        panel=tuple(sorted(record.all(JudgeRuled), key=lambda ruled: ruled.judge)),
        guard=record.last(GuardHeard),
        claims_found=record.last(ClaimsFound),
        verdict=verdict_given.verdict if verdict_given else None,
        ruling=verdict_given.ruling if verdict_given else None,
        odds=verdict_given.odds if verdict_given else None,
        verdict_call=verdict_given.call if verdict_given else None,
        failures=record.all(TrialFailed),
        models=_models(record),
    )


def _models(record: TrialRecord) -> tuple[str, ...]:
    return tuple(dict.fromkeys(call.model for event in record.events for call in calls_in(event)))
