"""Messages sent to models, rebuilt from a record.

A record keeps what was said, and not the messages: these hold nothing but the court's own words and what stands in the
record anyway, and where a part of it is erased it must not live on in them. They are made by the code that sent them
(:mod:`court.messages`); each call's digest says whether they came out the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from court import messages as asking
from court.events import (
    PROBES,
    AnswerGiven,
    AnyEvent,
    ClaimEvent,
    ClaimsFound,
    Described,
    DocumentWeighed,
    EvidenceSearched,
    FlipsSought,
    GuardHeard,
    JudgeRuled,
    ModelCall,
    QueriesPlanned,
    QuestionAsked,
    QuestionRuled,
    ReportedCall,
    Side,
    Summarised,
    SummarisedAhead,
    TrialChecked,
    TrialOpened,
    TrialResumed,
    VerdictGiven,
)
from court.expert.findings import ClaimRecord, document_of
from court.expert.messages import ClaimBrief, find_claims
from court.expert.replies import MOST_NEXT, MOST_QUERIES
from court.expert.witness import asks_for_claims
from court.flips import request_without
from court.guard import GuardAdapter, guard_messages
from court.messages import AdvocateBrief, Exchange, JudgeBrief, Messages, messages_digest, stance_of
from court.precedents import Precedent
from court.prompts import Fence
from court.prompts.sets import with_digest
from court.record import TrialRecord
from court.recorded_case import NotOnRecord, RecordedCase
from court.settings import TrialSettings
from court.summary import precedents_for

_LOST_MARK = "not-kept"
"""Placeholder for the fence mark in old records that lack it."""


@dataclass(frozen=True, slots=True)
class PictureShown:
    """A picture in a message.

    Attributes:
        sha256: SHA-256 of the PNG file as it was sent, in hex; empty if the record does not say.
        owner: ``meme``, or the id of a precedent.
        frame: Index of the frame in the meme's file; 0 for a precedent.
    """

    sha256: str
    owner: str = "meme"
    frame: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One system message and one user message."""

    system: str
    parts: tuple[str | PictureShown, ...]


@dataclass(frozen=True, slots=True)
class CallMessages:
    """Messages of one recorded call.

    Attributes:
        requests: One; two where a reply was asked for again, or where odds were asked for. None where they can't be
            made again.
        exact: True if their digest equals the one stored when they were sent.
        why: Why they are not exact, in a sentence; empty where they are.
    """

    call: ModelCall
    requests: tuple[Request, ...]
    exact: bool
    why: str = ""


def messages_of(record: TrialRecord, event: AnyEvent) -> tuple[CallMessages, ...]:
    """The messages of the calls that an event tells of: two calls for a verdict with odds, none where none was made."""
    recorded = _RecordedSoFar(record, event)
    # Functions, so that a gap in the record only affects the call that needs it.
    return tuple(
        _made_again(recorded, each.call, partial(recorded.requests_of, event, each)) for each in event.reported_calls
    )


def _made_again(
    recorded: _RecordedSoFar, call: ModelCall, made: Callable[[], Sequence[Messages[PictureShown]]]
) -> CallMessages:
    try:
        sent = list(made())
    except NotOnRecord as missing:
        return CallMessages(call, (), False, str(missing))
    if call.fault:
        # The digest is over both requests: the second quotes the beginning of the reply that was refused.
        sent.append(sent[0].repair(recorded.fence, call.quoted, call.fault))
    digest = messages_digest(sent, lambda picture: picture.sha256, schema_in_words=call.schema_in_words)
    requests = tuple(Request(each.system, _parts(each, call)) for each in sent)
    return CallMessages(call, requests, digest == call.messages_digest, _why_not(digest, call, sent[0]))


def _parts(request: Messages[PictureShown], call: ModelCall) -> tuple[str | PictureShown, ...]:
    if call.schema_in_words and request.schema is not None:
        return (*request.parts, asking.in_words(request.schema))
    return request.parts


def _why_not(digest: str, call: ModelCall, request: Messages[Any]) -> str:
    if not call.messages_digest:
        return "The record is of before digests of messages were kept: nobody can say whether these are the same."
    if digest == call.messages_digest:
        return ""
    # The likeliest reason first: it is harmless, and must not be reported as an alteration.
    if request.prompt.digest != call.prompt_digest:
        return f"The prompt {request.prompt.id} is worded otherwise here than it was then: these are not what was sent."
    return "These are not what was sent: the record was altered, a part of it erased, or the software is another."


class _RecordedSoFar:
    """Content of a record up to one of its events, from which messages are rebuilt."""

    def __init__(self, record: TrialRecord, event: AnyEvent) -> None:
        self._record = record
        self._case = RecordedCase(record)
        self.fence = Fence(self._mark(event) or _LOST_MARK)
        self._prompts = with_digest(record.opened.versions.prompts)

    def _mark(self, event: AnyEvent) -> str:
        """Returns the fence mark at the time of an event's call: a resumed trial has new fences."""
        made = event.seq
        # What comes after the trial has fences of its own.
        if isinstance(event, QuestionRuled | FlipsSought):
            return event.fence_mark
        if isinstance(event, Summarised):
            # The call was made when the summary was run ahead, perhaps before the trial was cut off and resumed.
            early = self._find(SummarisedAhead, event.side, event.round)
            made = made if early is None else early.seq
        opened = [each for each in self._record.events[: made + 1] if isinstance(each, TrialOpened | TrialResumed)]
        return opened[-1].fence_mark

    @property
    def settings(self) -> TrialSettings:
        return self._case.settings

    def requests_of(self, event: AnyEvent, reported: ReportedCall) -> Sequence[Messages[PictureShown]]:
        """Rebuilds the requests of a call that an event reports."""
        match event:
            case Described():
                return [asking.describe(self._frames, self.settings.reply_chars, self._prompts)]
            case QuestionAsked():
                # A question is asked with the exchanges before it in view; a summary with its own round as well.
                return [self.argue("ask", event.side, event.round - 1)]
            case AnswerGiven():
                question = self._one(QuestionAsked, event.side, event.round).question
                chars, prompts = self.settings.reply_chars, self._prompts
                return [asking.answer(self._frames, self.fence, question, chars, prompts=prompts)]
            case Summarised() | SummarisedAhead():
                return [self.argue("summarise", event.side, event.round)]
            case GuardHeard():
                return [self.ask_guard(event)]
            case ClaimsFound():
                return [
                    find_claims(
                        self.fence,
                        text=self._case.text,
                        description=self._case.description,
                        most=self.settings.expert_claims,
                        chars=self.settings.reply_chars,
                        prompts=self._prompts,
                    )
                ]
            case ClaimEvent():
                return [self.ask_expert(event, reported.task)]
            case VerdictGiven() | JudgeRuled():
                brief = self.judge_brief()
                return brief.odds() if reported.task == "odds" else [brief.rule(self.settings.reply_chars)]
            case TrialChecked():
                side = next(side for side, task in PROBES.items() if task == reported.task)
                brief = self.judge_brief()
                return brief.unheard.odds() if side is None else brief.side_odds(side)
            case QuestionRuled():
                brief, chars = self.judge_brief(), self.settings.reply_chars
                labels, vote = event.precedent_labels, event.vote
                return [brief.question(event.question, chars, precedent_labels=labels, vote=vote)]
            case FlipsSought():
                gone = next(each.without for each in event.flips.tried if each.call is reported.call)
                cited, chars = self._record.precedents, self.settings.reply_chars
                findings = cited.findings if cited else None
                return [request_without(self.judge_brief(), event.flips, gone, findings, chars=chars)]
            case _:
                raise NotOnRecord(f"Nothing is known of the messages of {event.kind}.")

    def argue(self, task: str, side: Side, rounds: int) -> Messages[PictureShown]:
        """Rebuilds the messages to a side after a number of rounds."""
        stance = str(side).lower() if task == "summarise" else stance_of(side, rounds, self.settings)
        history = [
            Exchange(self._one(QuestionAsked, side, number).question, self._one(AnswerGiven, side, number).answer)
            for number in range(1, rounds + 1)
        ]
        brief = AdvocateBrief(
            policy=self._case.policy,
            fence=self.fence,
            text=self._case.text,
            description=self._case.description,
            precedents=self._precedents_for(side),
            prompts=self._prompts,
            on_claim=asks_for_claims(self.settings, self._case.policy),
            language=self._case.language,
        )
        make = brief.ask if task == "ask" else brief.summarise
        return make(stance, history, self.settings.reply_chars)

    def _precedents_for(self, side: Side) -> tuple[Precedent, ...]:
        cited = self._record.precedents
        if cited is None or not self.settings.precedents:
            return ()
        return precedents_for(side, cited.findings, self.settings)

    def judge_brief(self) -> JudgeBrief[PictureShown]:
        """Rebuilds the brief for the Judge."""
        pictures = {each.id: PictureShown(sha256, each.id) for each, sha256 in self._case.exhibits if sha256}
        return self._case.judge_brief(self._frames, pictures, fence=self.fence, prompts=self._prompts)

    def ask_guard(self, opinion: GuardHeard) -> Messages[PictureShown]:
        """Rebuilds the question to a guard."""
        return guard_messages(
            GuardAdapter(opinion.adapter),
            self._frames,
            policy=self._case.policy,
            fence=self.fence,
            text=self._case.text,
            description=self._case.description,
        )

    def ask_expert(self, event: ClaimEvent, task: str) -> Messages[PictureShown]:
        """Rebuilds a question to the expert witness about one claim."""
        found = self._record.claims_found
        claim = next((each for each in found.claims if each.number == event.claim), None) if found else None
        if claim is None:
            raise NotOnRecord(f"The record does not hold claim {event.claim}.")
        # Events recorded after the call were not part of its question.
        before: Sequence[Any] = self._record.events[: event.seq]
        brief = ClaimBrief(
            fence=self.fence,
            claim=claim.text,
            evidence=ClaimRecord.of(before, event.claim).evidence,
            chars=self.settings.reply_chars,
            prompts=self._prompts,
        )
        match event:
            case QueriesPlanned():
                return brief.queries(min(MOST_QUERIES, self.settings.expert_queries))
            case EvidenceSearched():
                # In the source's order: that on record is the one which this call came to.
                return brief.rank(event.query, sorted(event.hits, key=lambda hit: hit.rank_given))
            case DocumentWeighed():
                document = document_of(event)
                if task not in ("sufficient", "more_queries"):
                    return brief.ask_about(task, document)
                # These two questions count the new document as evidence already.
                grown = replace(brief, evidence=(*brief.evidence, document))
                return grown.sufficient() if task == "sufficient" else grown.more_queries(MOST_NEXT)
            case _:
                return brief.classify()

    @property
    def _frames(self) -> tuple[PictureShown, ...]:
        meme = self._record.opened.meme
        if not self.settings.pictures_shown:
            return ()
        # Where a record names no digests, pictures are known by their places alone.
        digests = meme.frames or ("",) * len(meme.frames_used)
        if len(digests) != len(meme.frames_used):
            raise NotOnRecord("The record does not say which pictures were shown.")
        return tuple(PictureShown(sha256, frame=index) for sha256, index in zip(digests, meme.frames_used, strict=True))

    def _find(self, kind: type[Any], side: Side, number: int | None = None) -> Any:
        for event in self._record.all(kind):
            if event.side is side and (number is None or event.round == number):
                return event
        return None

    def _one(self, kind: type[Any], side: Side, number: int) -> Any:
        found = self._find(kind, side, number)
        if found is None:
            raise NotOnRecord(f"The record holds no {kind.__name__} of the {side.lower()}'s round {number}.")
        return found
