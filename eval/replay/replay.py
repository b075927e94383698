"""Replay: runs a recorded trial with the current code and the recorded replies of the models.

Evidence and replies come from the record; messages, parsers, the examination's stop, the vote, the rule and the reasons
for review are today's. What then comes out otherwise is a change of ours, for nothing else has changed. A trial that
would be asked in other words than then can't be replayed: nobody knows what the models would have said.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from court.display import word
from court.errors import CourtError
from court.events import (
    AnswerGiven,
    AnyEvent,
    ClaimSettled,
    ClaimsFound,
    Described,
    DocumentWeighed,
    Event,
    EvidenceSearched,
    GuardHeard,
    JudgeRuled,
    NearDuplicate,
    PrecedentsCited,
    QuestionAsked,
    QuestioningEnd,
    QuestionRuled,
    Role,
    RoundEvent,
    SideRested,
    Summarised,
    TextRead,
    TrialFailed,
    VerdictGiven,
)
from court.meme import Frame, Meme, Picture
from court.policy import DEFAULT_POLICY, Policy
from court.ports import Reading
from court.precedents import Findings, LibraryIdentity, VerifiedCopy
from court.prompts.sets import with_digest
from court.record import TrialAborted, TrialRecord, TrialState
from court.recorded_case import NotOnRecord, RecordedCase
from court.replies import UnusableReply, parse_question_ruling
from court.roles import GuardModel, RoleModel, RoleModels
from court.trial import Court, TrialCase, calibration_of
from eval.models.metered import CallBudget
from eval.replay.model import FallbackModel, NotRecorded, PromptChanged, RecordedModel
from serving.docket.store.bodies import GONE
from serving.docket.store.pictures import picture_of
from serving.judging.executor import TrialExecutor
from serving.judging.follow import RecordedEvidence
from serving.version import SOFTWARE
from serving.views.messages import messages_of
from serving.views.recheck import Difference

_Pictures = Callable[[Sequence[str]], Awaitable[Sequence[Frame | None]]]

_COMPARED: Mapping[type[Event], Mapping[str, Callable[[Any], object]]] = {
    VerdictGiven: {
        "label": lambda it: it.verdict.label,
        "strengths": lambda it: it.verdict.strengths and it.verdict.strengths.in_words,
        "score": lambda it: it.verdict.harm_score,
        "meaning of the score": lambda it: it.verdict.harm_score_meaning,
        "risk": lambda it: it.verdict.risk,
        "review reasons": lambda it: [one.reason for one in it.verdict.review],
        "signals": lambda it: [one.reason for one in it.verdict.signals],
        "rule": lambda it: it.verdict.rule,
        # Kinds alone: where a sign stands moves with every word around it.
        "signs of steering": lambda it: sorted(sign.kind for sign in it.steering),
        "finding": lambda it: it.verdict.finding and it.verdict.finding.in_words,
        "the Judge's own label": lambda it: it.ruling and it.ruling.label,
        "harmful evidence": lambda it: it.ruling and it.ruling.harmful_evidence,
        "harmless evidence": lambda it: it.ruling and it.ruling.harmless_evidence,
        "readings of precedents": lambda it: it.ruling and [f"{e.id}: {e.supports}" for e in it.ruling.precedents],
        "rationale": lambda it: it.verdict.rationale,
    },
    TrialFailed: {"end": lambda it: f"failed at step {it.step}: {it.message}"},
    TextRead: {"text": lambda it: it.text},
    Described: {"description": lambda it: it.description},
    PrecedentsCited: {
        "precedents' vote": lambda it: it.vote and [f"{it.vote.harmful} of {it.vote.voters}", it.vote.probability]
    },
    GuardHeard: {
        "guard's opinion": lambda it: it.failure if it.harmful is None else "harmful" if it.harmful else "not harmful",
        "guard's categories": lambda it: it.categories,
    },
    ClaimsFound: {"claims of fact": lambda it: it.failure or [claim.text for claim in it.claims]},
    ClaimSettled: {
        "claim {claim}'s finding": lambda it: [it.label, it.because],
        "claim {claim}'s evidence": lambda it: [f"{passage.document}: {passage.quote}" for passage in it.evidence],
    },
    JudgeRuled: {
        "judge {judge}'s strengths": lambda it: it.strengths.in_words,
        "judge {judge}'s own label": lambda it: it.ruling.label,
        "judge {judge}'s rationale": lambda it: it.rationale,
    },
    SideRested: {"{side}'s rounds": lambda it: [it.rounds, word(it.reason)]},
    QuestionAsked: {"{side}'s question, round {round}": lambda it: it.question},
    AnswerGiven: {"{side}'s answer, round {round}": lambda it: it.answer},
    Summarised: {
        "{side}'s summary, round {round}": lambda it: it.summary,
        "{side}'s justification, round {round}": lambda it: it.justification,
        "{side}'s entropy, round {round}": lambda it: it.entropy,
        "{side}'s precedents cited, round {round}": lambda it: it.cites,
    },
    QuestionRuled: {
        "{id}'s answer": lambda it: it.failure if it.chosen is None else it.chosen,
        "{id}'s rationale": lambda it: it.rationale,
    },
}
"""Fields whose value a replay could change, by kind of event; costs, times and the texts of precedents are none."""


def outcome(record: TrialRecord) -> dict[str, tuple[int, str]]:
    """Returns number of the event and value, by the name of each field that a replay could change."""
    found: dict[str, tuple[int, str]] = {}
    for kind, fields in _COMPARED.items():
        for event in record.all(kind):
            side, number = getattr(event, "side", ""), getattr(event, "round", 0)
            rested = record.rested.get(event.side) if isinstance(event, RoundEvent) else None
            # Rounds run ahead beyond the stop depend on timing, and the verdict does not rest on them. A failure that a
            # resumed trial has left behind is no end.
            ahead = isinstance(event, RoundEvent) and number > (rested.rounds if rested else 0)
            if ahead or (kind is TrialFailed and record.verdict_event is not None):
                continue
            parts = {
                "side": side.capitalize(),
                "round": number,
                "claim": getattr(event, "claim", 0),
                "judge": getattr(event, "judge", 0),
                "id": event.question.id if isinstance(event, QuestionRuled) else "",
            }
            for name, value in fields.items():
                # A summary trial has no rounds.
                found[name.format(**parts).removesuffix(", round 0")] = (event.seq, _in_words(value(event)))
    return found


def _in_words(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6f}"  # the last digits of a sum may differ between machines
    if isinstance(value, list | tuple):
        value = ", ".join(map(_in_words, value))
    return "none" if value in (None, "") else str(value)


def changes(recorded: TrialRecord, replayed: TrialRecord) -> tuple[Difference, ...]:
    """The fields in which the outcome of a trial differs from the recorded one."""
    before, after = outcome(recorded), outcome(replayed)
    # A field that only the replay has stands in no recorded event; the end is where it is missing.
    last = (recorded.events[-1].seq, "none")
    # Each once: recorded fields first, then those that are new.
    found = [(*before.get(name, last), name, after.get(name, last)[1]) for name in dict.fromkeys((*before, *after))]
    return tuple(Difference(seq, name, was, now) for seq, was, name, now in found if was != now)


@dataclass(frozen=True, slots=True)
class ReplayedTrial:
    """Result of a replay."""

    trial_id: str
    software: str
    differences: tuple[Difference, ...] = ()
    """Fields that come out otherwise; empty where nothing does, or where it can't be replayed."""
    obstacle: str = ""
    without_outcome: bool = False
    """True if the record holds no outcome to compare with: it has not ended, or failed for something that no answer of
    a model brings back."""


async def replay(record: TrialRecord) -> ReplayedTrial:
    """Reruns a recorded trial and compares its outcome with the recorded one.

    Returns the differences, or why it can't be replayed.
    """
    software = record.opened.versions.software
    if reason := _no_outcome(record):
        return ReplayedTrial(record.trial_id, software, obstacle=reason, without_outcome=True)
    try:
        # Nothing is written: the court gets a sink that discards events, and stand-ins for all its services.
        rerun = _with_answers(await _rerun(record), record)
    except (_Obstacle, NotOnRecord) as obstacle:
        return ReplayedTrial(record.trial_id, software, obstacle=str(obstacle))
    return ReplayedTrial(record.trial_id, software, differences=changes(record, rerun))


class _Obstacle(Exception):
    """A trial can't be replayed; says why.

    Attributes:
        asks: True if only the reply of a model is missing.
    """

    def __init__(self, message: str, *, asks: bool = False) -> None:
        super().__init__(message)
        self.asks = asks


@dataclass(frozen=True, slots=True)
class UnderPolicy:
    """Verdict that a recorded trial comes to under another policy."""

    trial_id: str
    before: tuple[str, str]
    """Label on record and the clause that it names; empty strings where there is none."""
    after: tuple[str, str] | None = None
    """None if it is not known."""
    obstacle: str = ""
    needs_models: bool = False
    """True if only replies of models are missing."""


async def under_policy(
    record: TrialRecord, policy: Policy, executor: TrialExecutor | None = None, budget: CallBudget | None = None
) -> UnderPolicy:
    """Runs a recorded trial under another policy, with the recorded reply to each request that stays the same.

    Args:
        executor: Court whose models give the replies that the record lacks, and that reads the picture; None to ask
            nobody.
        budget: Bound of these calls, and their count.
    """
    before = _decided(record)
    picture: Picture | None = None
    live: RoleModels | None = None
    try:
        if reason := _no_outcome(record):
            raise _Obstacle(reason)
        pictures: _Pictures | None = None
        if executor is not None:
            live = executor.court.role_models
            if live is None:
                raise _Obstacle("No model is configured to be asked.")
            picture, pictures = await executor.picture_of_trial(record), executor.court.finder.pictures
        models = _models_with_fallback(record, live, budget or CallBudget())
        rerun = await _rerun(record, policy=policy, models=models, picture=picture, pictures=pictures)
        # A server that is gone, or a spent budget, says nothing of the policy.
        if rerun.failure is not None:
            raise _Obstacle(rerun.failure.message)
    except (_Obstacle, CourtError, NotOnRecord) as obstacle:
        needs_models = isinstance(obstacle, _Obstacle) and obstacle.asks
        return UnderPolicy(record.trial_id, before, obstacle=str(obstacle), needs_models=needs_models)
    return UnderPolicy(record.trial_id, before, _decided(rerun))


def _decided(record: TrialRecord) -> tuple[str, str]:
    verdict = record.verdict
    finding = verdict.finding if verdict else None
    return str(verdict.label) if verdict else "FAILED", finding.clause if finding else ""


def _models_with_fallback(record: TrialRecord, live: RoleModels | None, budget: CallBudget) -> RoleModels:
    """Models of the roles that answer from the record, and are asked where it has no reply to the same request."""
    sent = {
        (
            one.system,
            tuple(part for part in one.parts[: -1 if made.call.schema_in_words else None] if isinstance(part, str)),
        )
        for event in record.events
        for made in messages_of(record, event)
        for one in made.requests
    }
    recorded = _models(record)

    def of(role: Role) -> RoleModel:
        own = (live or recorded).by_role[role]
        fallback = FallbackModel(recorded.by_role[role].model, own.model if live else None, sent, budget)
        return replace(own, model=fallback, servers=None)

    proposer, accuser, defender, judge = map(of, (Role.PROPOSER, Role.ACCUSER, Role.DEFENDER, Role.JUDGE))
    return replace(recorded, proposer=proposer, accuser=accuser, defender=defender, judge=judge)


async def _rerun(
    record: TrialRecord,
    *,
    policy: Policy | None = None,
    models: RoleModels | None = None,
    picture: Picture | None = None,
    pictures: _Pictures | None = None,
) -> TrialRecord:
    """The record that today's code makes of a trial. Raises _Obstacle, NotOnRecord.

    Args:
        policy: Policy in place of the recorded one.
        models: Models in place of the recorded replies.
        picture: Decoded picture for models that look at it.
        pictures: Gives the pictures of precedents.
    """
    # Without asking ahead: it changes nothing but the time, and what was asked ahead in vain may not be on record. The
    # Judge waits for an expert witness, whose work ends where the record ends it.
    settings = RecordedCase(record).settings.model_copy(update={"overlap": False, "expert_waits": True})
    _require_replayable(record)
    opened, meme, text = record.opened, record.opened.meme, record.text
    court = Court(
        finder=_RecordedFinder(record, pictures),
        text_reader=_RecordedReader(record),
        software=SOFTWARE,
        settings=settings,
        # A trial that asks no model records no words of its policy.
        policy=policy or opened.policy.content or DEFAULT_POLICY,
        prompts=with_digest(opened.versions.prompts),
        role_models=models or _models(record),
        # The recorded mark: with another the messages, and so their digests, would differ.
        fence_mark=opened.fence_mark or None,
        duplicates=_RecordedDuplicates(record),
        evidence_source=RecordedEvidence(record),
        bindings=_RecordedBindings(record),
        audition=calibration_of(record),
    )
    case = TrialCase(
        trial_id=record.trial_id,
        meme=Meme(
            # Frames without pixels: no stand-in looks at them, and their digests are compared from the record.
            picture or (picture_of(meme, [bytes(24)] * len(meme.frames_used)) if meme.picture_given else None),
            text=text.text if text and meme.text_given else None,
            language=text.language if text else None,
        ),
        procedure=opened.procedure,
        namespace=meme.namespace,
    )
    try:
        return await court.run(case, _nowhere)
    except TrialAborted as aborted:
        if isinstance(aborted.cause, PromptChanged):
            raise _Obstacle(aborted.message, asks=True) from None
        # A crash of the current code is not an outcome: reported as a difference, it would pass for an intended change.
        if aborted.reason == "INTERNAL":
            raise _Obstacle("Today's code fails on this record by a mistake of its own; the log says where.") from None
        # A trial that fails is an outcome too, to be compared with the recorded one.
        return aborted.record
    except CourtError as error:
        raise _Obstacle(error.message) from None


def _with_answers(rerun: TrialRecord, record: TrialRecord) -> TrialRecord:
    """A replayed trial with the rulings on further questions, as today's code reads the replies of then."""
    # A replay that fails has no verdict to put a question to, which shows as a difference anyway.
    if rerun.state is not TrialState.DECIDED:
        return rerun
    # Numbered behind the replay's own events, of which there may be fewer.
    last = rerun.events[-1].seq
    answers = [
        _read_again(ruled).model_copy(update={"seq": last + number}) for number, ruled in enumerate(record.questions, 1)
    ]
    return TrialRecord.of((*rerun.events, *answers))


def _read_again(ruled: QuestionRuled) -> QuestionRuled:
    replies = ruled.call.replies if ruled.call else ruled.unusable.replies if ruled.unusable else ()
    if not replies:
        return ruled  # it failed without a reply, and no model brings that back
    fault = ""
    # As they were asked for: the second reply counts only where the first can't be used.
    for reply in replies:
        try:
            read = parse_question_ruling(reply.text, ruled.question)
        except UnusableReply as unusable:
            fault = unusable.reason
            continue
        found = {"chosen": read.chosen, "strengths": read.strengths, "rationale": read.rationale, "failure": ""}
        return ruled.model_copy(update=found)
    return ruled.model_copy(update={"chosen": None, "strengths": {}, "rationale": "", "failure": fault})


def _no_outcome(record: TrialRecord) -> str:
    """Explains why a record has no outcome to compare a replay with; empty if it has one."""
    failed = record.failure
    if record.state is TrialState.OPEN:
        return "It has not ended: there is nothing to compare with."
    if record.state is TrialState.FAILED and failed is not None and failed.unusable is None:
        return f"It failed ({failed.reason}), and the record holds no reply that it failed for."
    return ""


def _require_replayable(record: TrialRecord) -> None:
    if any(rested.reason is QuestioningEnd.TIME for rested in record.all(SideRested)):
        raise _Obstacle("An examination was ended by its caller's deadline, which a replay does not have.")
    snippets = (hit.snippet for search in record.all(EvidenceSearched) for hit in search.hits)
    if GONE in (*snippets, *(weighed.text for weighed in record.all(DocumentWeighed))):
        # Whether a passage stands in its document could not be checked again.
        raise _Obstacle("A document that the expert witness read was erased.")
    cited = record.precedents
    if cited is not None and any(precedent.text == GONE for precedent in cited.findings.exhibits):
        return  # what was sent can't be made again, and was said all the same
    for event in record.events:
        for made in messages_of(record, event):
            if not made.exact:
                raise _Obstacle(f"Event {event.seq} ({event.kind}): {made.why}")


async def _nowhere(*events: AnyEvent) -> None:
    """Discards events: a replay stores nothing."""


@dataclass(frozen=True, slots=True)
class _RecordedReader:
    """Returns the recorded text."""

    record: TrialRecord

    @property
    def identity(self) -> str:
        return self.record.text.reader if self.record.text else ""

    async def read(self, picture: Picture) -> Reading:
        if self.record.text is None:
            raise NotRecorded("Today's code reads the text off the picture, and the record has none.")
        return Reading(self.record.text.lines)


@dataclass(frozen=True, slots=True)
class _RecordedFinder:
    """Returns the recorded precedents."""

    record: TrialRecord
    given: _Pictures | None = None
    """Gives their pictures; None for an empty one in place of each that the Judge was shown."""

    @property
    def library(self) -> LibraryIdentity:
        versions = self.record.opened.versions
        if self.record.precedents:
            return self.record.precedents.findings.library
        return LibraryIdentity(name="", digest=versions.library, size=0, encoder=versions.encoder, with_picture=0)

    async def find(self, **query: object) -> Findings:
        if self.record.precedents is None:
            raise NotRecorded("Today's code searches for precedents, and the record has none.")
        return self.record.precedents.findings

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        if self.given is not None:
            return await self.given(ids)
        # Messages name the pictures that are shown, so that their places matter to models that look at none.
        shown = {precedent.id for precedent, sha256 in RecordedCase(self.record).exhibits if sha256}
        return [Frame(b"", 1, 1, 0) if id_ in shown else None for id_ in ids]


@dataclass(frozen=True, slots=True)
class _RecordedBindings:
    """Returns the precedents that settled the trial."""

    record: TrialRecord

    async def copies(self, *, pixels_sha256: str, text: str | None) -> Sequence[VerifiedCopy]:
        return self.record.verdict_event.copies if self.record.verdict_event else ()


@dataclass(frozen=True, slots=True)
class _RecordedDuplicates:
    """Returns the recorded near-duplicates."""

    record: TrialRecord

    async def find(
        self, picture: Picture | None, text: str, text_read: bool, namespace: str
    ) -> Sequence[NearDuplicate]:
        return self.record.duplicates.duplicates if self.record.duplicates else ()


def _models(record: TrialRecord) -> RoleModels:
    """Returns one model for all roles, as each call is identified by its id."""
    model, named = RoleModel(RecordedModel(record)), record.opened.versions.models
    further = sum(name.startswith(f"{Role.JUDGE}_") for name in named)
    guard = GuardModel(model, record.guard.adapter) if record.guard else None
    expert = model if Role.EXPERT in named else None
    return RoleModels(model, model, model, model, judges=(model,) * further, guard=guard, expert=expert)
