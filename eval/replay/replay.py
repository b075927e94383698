"""Replay: runs a recorded trial with the current code and the recorded replies of the models.

Evidence and replies come from the record; messages, parsers, the examination's stop, the vote, the rule and the reasons
for review are today's. What then comes out otherwise is a change of ours, for nothing else has changed. A trial that
would be asked in other words than then can't be replayed: nobody knows what the models would have said.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from court.display import word
from court.errors import CourtError, Unavailable
from court.events import (
    AnyEvent,
    ClaimSettled,
    DocumentWeighed,
    EvidenceSearched,
    JudgeRuled,
    NearDuplicate,
    QuestioningEnd,
    QuestionRuled,
    RawReply,
    Role,
    RoundEvent,
    Side,
    SideRested,
    TrialChecked,
    VerdictGiven,
)
from court.meme import Frame, Meme, Picture, PictureFormat
from court.policy import DEFAULT_POLICY, Policy
from court.ports import CallId, ChatReply, ChatRequest, Odds, Reading
from court.precedents import Findings, LibraryIdentity, VerifiedCopy
from court.prompts.sets import with_digest
from court.record import TrialAborted, TrialRecord, TrialState
from court.recorded_case import NotOnRecord, RecordedCase
from court.replies import UnusableReply, parse_question_ruling
from court.roles import PROBE_STEPS, GuardModel, RoleModel, RoleModels
from court.settings import TrialSettings
from court.trial import Court, TrialCase, calibration_of
from court.verdict import Review
from eval.models.metered import CallBudget
from eval.replay.model import (
    FallbackModel,
    NotRecorded,
    PromptChanged,
    RecordedExpert,
    RecordedModel,
    RecordedOdds,
    place_of,
)
from serving.docket.store.bodies import GONE
from serving.judging.executor import TrialExecutor
from serving.judging.follow import RecordedEvidence
from serving.version import SOFTWARE
from serving.views.messages import messages_of
from serving.views.recheck import Difference

_NONE = "none"

_OF_A_ROUND = {
    "question": "question",
    "answer": "answer",
    "summary": "summary",
    "justification": "justification",
    "entropy": "entropy",
    "cites": "precedents cited",
}
"""Fields of the events of a round, with their names."""

_Pictures = Callable[[Sequence[str]], Awaitable[Sequence[Frame | None]]]
_Fields = Iterator[tuple[str, int, str]]
"""Name of a field, number of the event that it stands in, and value."""


def outcome(record: TrialRecord) -> dict[str, tuple[int, str]]:
    """Returns every field of a trial whose value a replay could change, in reading order.

    Excludes statements in rounds that do not count, costs, times and the texts of precedents.

    Returns number of the event and value, by the field's name.
    """
    return {name: (seq, value) for name, seq, value in _fields(record)}


def changes(recorded: TrialRecord, replayed: TrialRecord) -> tuple[Difference, ...]:
    """The fields in which the outcome of a trial differs from the recorded one."""
    before, after = outcome(recorded), outcome(replayed)
    # A field that only the replay has stands in no recorded event; the end is where it is missing.
    last = recorded.events[-1].seq
    found = []
    # In order and each once: recorded fields first, then those that are new.
    for name in dict.fromkeys((*before, *after)):
        seq, earlier = before.get(name, (last, _NONE))
        _, now = after.get(name, (last, _NONE))
        if earlier != now:
            found.append(Difference(seq, name, earlier, now))
    return tuple(found)


def _fields(record: TrialRecord) -> _Fields:
    failed = record.failure
    verdict = record.verdict_event
    if verdict is not None:
        yield from _verdict(verdict)
    elif failed is not None:
        yield "end", failed.seq, f"failed at step {failed.step}: {failed.message}"
    if (text := record.text) is not None:
        yield "text", text.seq, text.text
    if (described := record.described) is not None:
        yield "description", described.seq, described.description
    if (cited := record.precedents) is not None:
        vote = cited.vote
        words = _NONE if vote is None else f"{vote.harmful} of {vote.voters}, {_figure(vote.probability)}"
        yield "precedents' vote", cited.seq, words
    if (opinion := record.guard) is not None:
        words = opinion.failure if opinion.harmful is None else "harmful" if opinion.harmful else "not harmful"
        yield "guard's opinion", opinion.seq, words
        yield "guard's categories", opinion.seq, ", ".join(opinion.categories) or _NONE
    if (found := record.claims_found) is not None:
        yield "claims of fact", found.seq, found.failure or _lines(claim.text for claim in found.claims)
    # Claims are settled side by side, in whatever order the calls return.
    for settled in sorted(record.all(ClaimSettled), key=lambda event: event.claim):
        yield f"claim {settled.claim}'s finding", settled.seq, f"{word(settled.label)}, {word(settled.because)}"
        quotes = (f"{passage.document}: {passage.quote}" for passage in settled.evidence)
        yield f"claim {settled.claim}'s evidence", settled.seq, _lines(quotes)
    for ruled in record.all(JudgeRuled):
        name = f"judge {ruled.judge}'s"
        yield f"{name} strengths", ruled.seq, ruled.strengths.in_words
        yield f"{name} own label", ruled.seq, str(ruled.ruling.label)
        yield f"{name} rationale", ruled.seq, ruled.rationale
    for side in Side:
        yield from _side(record, side)
    for answered in record.questions:
        name = f"{answered.question.id}'s"
        words = answered.failure if answered.chosen is None else ", ".join(answered.chosen) or _NONE
        yield f"{name} answer", answered.seq, words
        yield f"{name} rationale", answered.seq, answered.rationale


def _verdict(event: VerdictGiven) -> _Fields:
    verdict, ruling, at = event.verdict, event.ruling, event.seq
    strengths = verdict.strengths
    values: Mapping[str, str] = {
        "label": str(verdict.label),
        "strengths": strengths.in_words if strengths else _NONE,
        "score": _NONE if verdict.harm_score is None else _figure(verdict.harm_score),
        "meaning of the score": _NONE if verdict.harm_score_meaning is None else str(verdict.harm_score_meaning),
        "risk": _NONE if verdict.risk is None else _figure(verdict.risk),
        "review reasons": _reasons(verdict.review),
        "signals": _reasons(verdict.signals),
        "rule": verdict.rule,
        # Kinds alone: where a sign stands moves with every word around it.
        "signs of steering": ", ".join(sorted(str(sign.kind) for sign in event.steering)) or _NONE,
    }
    if found := verdict.finding:
        values = {**values, "finding": f"{found.category}, clause {found.clause or '–'}, {found.target or '–'}"}
    if ruling is not None:
        readings = ", ".join(f"{one.id}: {one.supports}" for one in ruling.precedents)
        values = {
            **values,
            "the Judge's own label": str(ruling.label),
            "harmful evidence": _lines(ruling.harmful_evidence),
            "harmless evidence": _lines(ruling.harmless_evidence),
            "readings of precedents": readings or _NONE,
        }
    for name, value in {**values, "rationale": verdict.rationale}.items():
        yield name, at, value


def _side(record: TrialRecord, side: Side) -> _Fields:
    who = side.capitalize()
    rested = record.rested.get(side)
    if rested is not None:
        yield f"{who}'s rounds", rested.seq, f"{rested.rounds}, {word(rested.reason)}"
    # Rounds run ahead beyond the stop depend on timing, and the verdict does not rest on them.
    counted = rested.rounds if rested else 0
    for event in record.all(RoundEvent):
        if "rounds" not in event.parts or event.side is not side or event.round > counted:
            continue
        for field, name in _OF_A_ROUND.items():
            if field in type(event).model_fields:
                place = f"{who}'s {name}, round {event.round}" if event.round else f"{who}'s {name}"
                yield place, event.seq, _value_in_words(getattr(event, field))


def _value_in_words(value: str | float | tuple[str, ...]) -> str:
    if isinstance(value, float):
        return f"{value:.4f} bit"
    return value if isinstance(value, str) else ", ".join(value) or _NONE


def _reasons(reviews: Iterable[Review]) -> str:
    return ", ".join(str(review.reason) for review in reviews) or _NONE


def _lines(evidence: Iterable[str]) -> str:
    return " / ".join(evidence) or _NONE


def _figure(value: float) -> str:
    # The last digits of a sum may differ between machines.
    return f"{value:.6f}"


_FAILED_PATIENCE_S = 0.5
"""Seconds that a call of a failed trial waits where the record has no reply: the failure ends it before."""


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
    except _Obstacle as obstacle:
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
        pictures = _stand_ins(record)
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


def _stand_ins(record: TrialRecord) -> _Pictures:
    """Gives an empty picture in place of each that the Judge was shown, as its message names them."""
    shown = {precedent.id for precedent, sha256 in RecordedCase(record).exhibits if sha256}

    async def pictures(ids: Sequence[str]) -> Sequence[Frame | None]:
        return [Frame(b"", 1, 1, 0) if id_ in shown else None for id_ in ids]

    return pictures


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
        own = live.by_role[role] if live is not None else recorded.by_role[role]
        fallback = FallbackModel(recorded.by_role[role].model, own.model if live is not None else None, sent, budget)
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
    """The record that today's code makes of a trial. Raises _Obstacle.

    Args:
        policy: Policy in place of the recorded one.
        models: Models in place of the recorded replies.
        picture: Decoded picture for models that look at it.
        pictures: Gives the pictures of precedents.
    """
    settings = _settings(record)
    _require_replayable(record)
    opened, text = record.opened, record.text
    finder = _RecordedFinder(record, pictures)
    court = Court(
        finder=finder,
        text_reader=_RecordedReader(record),
        software=SOFTWARE,
        settings=settings,
        # Records of before policies were stored with their words have the packaged one.
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
            picture or _picture(record),
            text=text.text if text and opened.meme.text_given else None,
            language=text.language if text else None,
        ),
        procedure=opened.procedure,
        namespace=opened.meme.namespace,
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
            # Without a digest nobody can say whether the words are the same; such a record is replayed all the same.
            if not made.exact and made.call.messages_digest:
                raise _Obstacle(f"Event {event.seq} ({event.kind}): {made.why}")


def _settings(record: TrialRecord) -> TrialSettings:
    """The record's settings; those that came later have their usual values.

    Without asking ahead: it changes nothing but the time, and what was asked ahead in vain may not be on record. The
    Judge waits for an expert witness, whose work ends where the record ends it.
    """
    values = {name: value for name, value in record.opened.settings.items() if name in TrialSettings.model_fields}
    try:
        # Validated by today's rules: a value that is no longer allowed must not become another without a word.
        return TrialSettings.model_validate({**values, "overlap": False, "expert_waits": True})
    except ValidationError as error:
        # A fault that several settings have together is of none by name.
        names = ", ".join(sorted({str(fault["loc"][0]) for fault in error.errors() if fault["loc"]}))
        raise _Obstacle(f"It was held with settings that there are no more: {names or 'together'}.") from None


def _picture(record: TrialRecord) -> Picture | None:
    """The picture as far as the record knows it, which nobody looks at again; None where the text was sent alone."""
    meme = record.opened.meme
    if not meme.picture_given:
        return None
    return Picture(
        format=PictureFormat(meme.format),
        bytes_sha256=meme.bytes_sha256,
        pixels_sha256=meme.pixels_sha256,
        width=meme.width,
        height=meme.height,
        frame_count=meme.frame_count,
        # Without pixels: no stand-in looks at them, and their digests are compared from the record.
        frames=tuple(Frame(b"", meme.width, meme.height, index) for index in meme.frames_used),
        frames_unlike=meme.frames_unlike,
        incomplete=meme.incomplete,
        shown_otherwise=meme.shown_otherwise,
    )


async def _nowhere(*events: AnyEvent) -> None:
    """Discards events: a replay stores nothing."""


class _RecordedReader:
    """Returns the recorded text."""

    def __init__(self, record: TrialRecord) -> None:
        self._text = record.text

    @property
    def identity(self) -> str:
        return self._text.reader if self._text else ""

    async def read(self, picture: Picture) -> Reading:
        if self._text is None:
            raise NotRecorded("Today's code reads the text off the picture, and the record has none.")
        return Reading(self._text.lines)


class _RecordedFinder:
    """Returns the recorded precedents, without their pictures unless these are given."""

    def __init__(self, record: TrialRecord, pictures: _Pictures | None = None) -> None:
        self._pictures = pictures
        cited, versions = record.precedents, record.opened.versions
        self._findings = cited.findings if cited else None
        self.library = (
            cited.findings.library
            if cited
            else LibraryIdentity(name="", digest=versions.library, size=0, encoder=versions.encoder, with_picture=0)
        )

    async def find(self, **query: object) -> Findings:
        if self._findings is None:
            raise NotRecorded("Today's code searches for precedents, and the record has none.")
        return self._findings

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        # The stand-ins for the models look at no picture.
        return [None] * len(ids) if self._pictures is None else await self._pictures(ids)


class _RecordedBindings:
    """Returns the precedents that settled the trial."""

    def __init__(self, record: TrialRecord) -> None:
        self._copies = record.verdict_event.copies if record.verdict_event else ()

    async def copies(self, *, pixels_sha256: str, text: str | None) -> Sequence[VerifiedCopy]:
        return self._copies


class _RecordedDuplicates:
    """Returns the recorded near-duplicates."""

    def __init__(self, record: TrialRecord) -> None:
        found = record.duplicates
        self._found = found.duplicates if found else ()

    async def find(
        self, picture: Picture | None, text: str, text_read: bool, namespace: str
    ) -> Sequence[NearDuplicate]:
        return self._found


def _models(record: TrialRecord) -> RoleModels:
    """Returns one model for all roles, as each call is identified by its id."""
    verdict, failed = record.verdict_event, record.failure
    replies = dict(_replies(record))
    decided = record.state is TrialState.DECIDED
    if not decided and failed is not None and (unusable := failed.unusable) is not None:
        call_id = CallId(
            unusable.role,
            unusable.task,
            unusable.prompt_digest,
            side=unusable.side,
            round=unusable.round,
            judge=unusable.judge,
        )
        # These replies are in no event of a call: only the failure has them, and today's parser has to read them again.
        replies[call_id] = unusable.replies
    # A judge who sits alone has odds with the verdict; those of a panel stand with each ruling.
    odds = {(1, 0): verdict.odds} if verdict else {}
    odds |= {(event.judge, 0): event.odds for event in record.all(JudgeRuled)}
    for checked in record.all(TrialChecked):
        odds |= {(1, PROBE_STEPS[side]): found for side, found in checked.probed.items()}
    recorded = RecordedModel(
        next(iter(record.opened.versions.models.values()), "recorded"),
        replies,
        {
            key: RecordedOdds(found.call.prompt_digest, tuple(zip(found.harmful, found.not_harmful, strict=True)))
            for key, found in odds.items()
            if found is not None
        },
        # A decided trial has every reply on record: there is nothing that could end a wait for another.
        patience_s=0.0 if decided else _FAILED_PATIENCE_S,
    )
    model = RoleModel(recorded)
    further = sum(name.startswith(f"{Role.JUDGE}_") for name in record.opened.versions.models)
    opinion, guard = record.guard, None
    if opinion is not None:
        # A guard without an opinion leaves no call that could be looked up.
        spoke = RoleModel(_SilentGuard(opinion.failure)) if opinion.call is None else model
        guard = GuardModel(spoke, opinion.adapter)
    with_expert = Role.EXPERT in record.opened.versions.models
    expert = RoleModel(RecordedExpert(recorded, record)) if with_expert else None
    return RoleModels(model, model, model, model, judges=(model,) * further, guard=guard, expert=expert)


class _SilentGuard:
    """Gives no opinion, for the reason that a guard gave none then."""

    def __init__(self, reason: str) -> None:
        self.name = "guard"
        self._reason = reason

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        raise Unavailable("The guard gave no opinion.", reason=self._reason)

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        return None


def _replies(record: TrialRecord) -> Iterator[tuple[CallId, Sequence[RawReply]]]:
    """Replies of all calls on record by their places."""
    for event in record.events:
        side: Side | None = getattr(event, "side", None)
        number: int = getattr(event, "round", 0)
        judge: int = event.judge if isinstance(event, JudgeRuled) else 1
        claim, step = place_of(event)
        for call, task, _ in event.reported_calls:
            if task.startswith("odds"):
                continue
            call_id = CallId(
                call.role, task, call.prompt_digest, side=side, round=number, judge=judge, claim=claim, step=step
            )
            yield call_id, call.replies
