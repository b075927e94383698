"""Proposer, Advocate and Judge: each is a prompt, a reply type and one call.

Types enforce what each role sees. A Proposer is constructed from frames and has no text; an Advocate's brief contains
texts and no frames, and only its own side's exchanges. Only the Judge's brief contains everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from court import checks, messages, replies
from court.deadline import Deadline, model_late, run_within
from court.errors import ModelRefused, ReplyUnusable, Unavailable
from court.events import CheckFailed, ModelCall, OddsGiven, RawReply, Role, Side, UnusableReplies
from court.meme import Frame
from court.messages import (
    AdvocateBrief,
    Exchange,
    JudgeBrief,
    Messages,
    file_sha256,
    messages_digest,
    quotable,
    writable,
)
from court.ports import (
    BATCH_PRIORITY,
    CallId,
    ChatModel,
    ChatReply,
    ChatRequest,
    FinishReason,
    Odds,
    ReplicatedModel,
    Speed,
)
from court.prompts import ADDED_PROMPTS, EXPERT_PROMPTS, Fence, PromptSet, load
from court.prompts.sets import packaged
from court.question import CourtQuestion
from court.replies import (
    REPLY_LOOPS,
    QuestionRuling,
    RulingReply,
    StatedArgument,
    UnusableReply,
    find_loop,
    find_loop_in_reply,
)
from court.settings import TrialSettings
from court.verdict import Label, rule

T = TypeVar("T")

# Letters, because words such as "harmful" are several tokens for some models, and only the first token is requested.
_OPTIONS = ("A", "B")
_CUT = "a text in it was cut off at its limit; be shorter, and end every sentence"
PROBE_STEPS: Mapping[Side | None, int] = {None: 1, Side.ACCUSER: 2, Side.DEFENDER: 3}
"""Steps by which requests for odds are told apart from those of the ruling, which are step 0."""
# At temperature 0 a model that is told its fault often writes the same reply again.
_REPAIR_TEMPERATURE = 0.5
_ASKED_AGAIN = len(PROBE_STEPS) + 1
_REPEATS = "it said the same over and over; say each thing once"
_MOST_THOUGHT = 20_000
_JUDGMENT_PROGRESS = 51  # beyond the last round that the settings allow
_MOST_REPLY = 60_000
"""Characters of a reply that are recorded; longer replies are rejected anyway (:mod:`court.replies`)."""
_LONG_PROMPT = 4000  # tokens of the Judge's prompt with texts, without a prefix in the cache
_TRIAL = (2500, 600)
"""Tokens read and written in sequence in a typical full trial of a text, with a prefix cache."""
_GRACE_S = 0.1  # a model keeps to its time by itself; this much later it is ended
_LENGTHS: Mapping[Role, int] = {
    Role.PROPOSER: 1,
    Role.ACCUSER: 2,
    Role.DEFENDER: 2,
    Role.JUDGE: 4,
    Role.GUARD: 1,
    Role.EXPERT: 3,
}
"""Longest reply of a role, in multiples of ``reply_chars``: a description; a summary and a justification; a rationale
and up to twelve pieces of evidence of a quarter of that; up to six statements with the words that they come from."""


def most_tokens(role: Role, chars: int) -> int:
    """Returns the token limit of a role's reply, an upper bound; in some scripts a character is a token or more."""
    longest = _LENGTHS[role] * chars
    # A quarter and 200 more: escapes, names of fields and brackets of the JSON around the texts.
    return longest + longest // 4 + 200


def fewest_tokens(role: Role, chars: int) -> int:
    """Returns the tokens of a role's longest reply in English, at four characters each; most scripts need more."""
    return _LENGTHS[role] * chars // 4


@dataclass(frozen=True, slots=True)
class RoleModel:
    """A role's model with its call settings.

    Attributes:
        servers: The model at all its servers, if each trial is pinned to one of them; None to call ``model`` directly.
        thinking: Switch that turns off thinking before the reply, as found by probing; ``ALWAYS`` if it can't be turned
            off, empty if the model does not think.
        thoughts_by: Switch that turns on thinking, and the field that limits the thought; empty if it is not to think.
    """

    model: ChatModel
    temperature: float = 0.0
    max_tokens: int | None = None
    servers: ReplicatedModel | None = None
    thinking: str = ""
    thought_tokens: int = 0
    thoughts_by: tuple[str, ...] = ()
    prefix_cache: bool | None = None
    speed: Speed | None = None
    weights: str = ""


@dataclass(frozen=True, slots=True)
class GuardModel:
    """Guard model of a court, consulted as an additional witness (:mod:`court.guard`)."""

    model: RoleModel
    adapter: str


@dataclass(frozen=True, slots=True)
class RoleModels:
    """Chat models of a full trial; each role may have its own model, and there may be a guard."""

    proposer: RoleModel
    accuser: RoleModel
    defender: RoleModel
    judge: RoleModel
    judges: tuple[RoleModel, ...] = ()
    guard: GuardModel | None = None
    expert: RoleModel | None = None

    def panel(self, samples: int) -> tuple[RoleModel, ...]:
        """Returns the model of each judge, in order."""
        # In a fixed order: records and replays identify judges by number.
        return tuple(model for model in (self.judge, *self.judges) for _ in range(samples))

    @property
    def _named(self) -> dict[str, RoleModel]:
        """Models by their names in records: the roles, and ``JUDGE_2`` and so on."""
        further = {f"{Role.JUDGE}_{number}": model for number, model in enumerate(self.judges, 2)}
        return {**{str(role): model for role, model in self.by_role.items()}, **further}

    @property
    def by_role(self) -> dict[Role, RoleModel]:
        """Models by role."""
        named = {
            Role.PROPOSER: self.proposer,
            Role.ACCUSER: self.accuser,
            Role.DEFENDER: self.defender,
            Role.JUDGE: self.judge,
        }
        if self.guard is not None:
            named[Role.GUARD] = self.guard.model
        if self.expert is not None:
            named[Role.EXPERT] = self.expert
        return named

    @property
    def models(self) -> dict[str, str]:
        """The model per role, for the record."""
        return {name: role_model.model.name for name, role_model in self._named.items()}

    @property
    def weights(self) -> dict[str, str]:
        """Digest of the weights per role, for the record; roles whose servers list nothing are absent."""
        return {name: role_model.weights for name, role_model in self._named.items() if role_model.weights}

    @property
    def servers(self) -> dict[str, tuple[str, ...]]:
        """Addresses of the servers per role, for the record; roles without pinned servers are absent."""
        return {name: role_model.servers.urls for name, role_model in self._named.items() if role_model.servers}

    @property
    def prefix_cache(self) -> dict[str, bool]:
        """True per role if prefix caching works at its servers; roles where it is unknown are absent."""
        found = {str(role): role_model.prefix_cache for role, role_model in self.by_role.items()}
        return {role: works for role, works in found.items() if works is not None}

    def settings(self, chars: int) -> dict[str, Any]:
        """Returns the settings per role for the record."""
        guard = {"adapter": self.guard.adapter, "prompt": load("guard").digest} if self.guard else None
        thinking = {name: role_model.thinking for name, role_model in self._named.items() if role_model.thinking}
        thoughts = {
            name: {"tokens": role_model.thought_tokens, "by": list(role_model.thoughts_by)}
            for name, role_model in self._named.items()
            if role_model.thought_tokens
        }
        return {
            "temperature": {name: role_model.temperature for name, role_model in self._named.items()},
            # Effective values, including defaults: a record must not depend on the defaults of a later version.
            "max_tokens": {
                # Further judges are named JUDGE_2 and so on; the role is what stands before the number.
                name: role_model.max_tokens or most_tokens(Role(name.partition("_")[0]), chars)
                for name, role_model in self._named.items()
            },
            # The digest of the set does not cover these prompts: without their own digests, a cached verdict could rest
            # on outdated messages.
            "added_prompts": {name: load(name).digest for name in ADDED_PROMPTS},
            **({"thinking": thinking} if thinking else {}),
            **({"thoughts": thoughts} if thoughts else {}),
            **({"guard": guard} if guard else {}),
            **({"expert_prompts": {name: load(name).digest for name in EXPERT_PROMPTS}} if self.expert else {}),
        }

    @property
    def speed(self) -> Speed | None:
        """Speed of the slowest measured model; None if none was measured."""
        speeds = [role_model.speed for role_model in self._named.values() if role_model.speed]
        return min(speeds, key=lambda speed: speed.write, default=None)

    def longest_call_s(self, chars: int) -> float:
        """Returns the time that the longest reply may take; 0 if no speed is known."""
        # Twice its time alone, since the two sides share a server.
        longest = fewest_tokens(Role.JUDGE, chars)
        return 2 * self.speed.seconds(_LONG_PROMPT, longest) if self.speed else 0.0

    @property
    def trial_s(self) -> float:
        """Estimated duration of a full trial in seconds; 0 if no speed is known."""
        return self.speed.seconds(*_TRIAL) if self.speed else 0.0

    def pinned(self, key: str) -> RoleModels:
        """Returns the models for the trial of one picture, each pinned to one of its servers."""
        # Roles that share servers are pinned to the same one.
        # By identity: roles with the same servers share the object. No id is reused while `self` refers to all of them.
        pinned: dict[int, ReplicatedModel] = {}

        def of(role_model: RoleModel) -> RoleModel:
            if role_model.servers is None:
                return role_model
            # One shared object: when one of the roles finds its server gone, they all fail over.
            model = pinned.setdefault(id(role_model.servers), role_model.servers.pinned(key))
            return dataclasses.replace(role_model, model=model, servers=model)

        return self.each(of)

    def each(self, of: Callable[[RoleModel], RoleModel]) -> RoleModels:
        """Returns the models with a function applied to each."""
        return RoleModels(
            proposer=of(self.proposer),
            accuser=of(self.accuser),
            defender=of(self.defender),
            judge=of(self.judge),
            judges=tuple(map(of, self.judges)),
            guard=None if self.guard is None else dataclasses.replace(self.guard, model=of(self.guard.model)),
            expert=None if self.expert is None else of(self.expert),
        )

    def room(self) -> bool:
        """True if each server used during the examinations could start one more call immediately."""
        # Judges and guard are called after the examinations, so the load of their servers is irrelevant to a
        # speculative round.
        role_models = (self.proposer, self.accuser, self.defender, *([self.expert] if self.expert else []))
        return all(role_model.servers.room() for role_model in role_models if role_model.servers)


@dataclass(frozen=True, slots=True)
class RoleReply(Generic[T]):
    """Parsed reply of a role, and its model call."""

    value: T
    call: ModelCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """One role's model within one trial; ``repairs`` to ask once more for a reply that fails a check."""

    model: RoleModel
    fence: Fence
    deadline: Deadline
    reply_chars: int
    prompts: PromptSet = dataclasses.field(default_factory=packaged)
    batch: bool = False
    repairs: bool = False

    async def say(
        self,
        role: Role,
        conversation: Messages[Frame],
        parse: Callable[[str, bool], T],
        *,
        side: Side | None = None,
        number: int = 0,
        judge: int = 1,
        claim: int = 0,
        step: int = 0,
        progress: int = 0,
        missing: T | None = None,
    ) -> RoleReply[T]:
        """Makes a call, and a repair call that names the fault if the first reply is unusable.

        Args:
            progress: Number of rounds reached; of two waiting requests, that of the more advanced trial goes first.

        Raises:
            ReplyUnusable: Neither reply could be used, or one leaked its instructions.
            Overrun: The call timed out.
            Unavailable, ModelRefused: The server gave no reply.
        """
        call_id = CallId(
            role,
            conversation.task,
            conversation.prompt.digest,
            side=side,
            round=number,
            judge=judge,
            claim=claim,
            step=step,
        )
        priority = self._priority(progress)
        first = await self._call(conversation, call_id, priority)
        try:
            value = _read(first, parse, last=False)
            if self.repairs and conversation.schema and replies.has_cut_text(first.text, conversation.schema):
                raise UnusableReply("REPLY_CUT", _CUT)
            return RoleReply(value, _figures(role, [conversation], [first]))
        except UnusableReply as fault:
            # A refusal is not a formal fault that a repair request could name.
            if fault.reason == "REPLY_REFUSED" and missing is None:
                raise _unusable(fault, call_id, [first]) from None
            why, repeats = fault.what, fault.reason == REPLY_LOOPS
        # A loop is quoted only up to the end of its first occurrence: a model that reads the repetition continues it.
        quoted = quotable(first.text[: find_loop_in_reply(first.text)] if repeats else first.text)
        # Fenced, as the reply may repeat the meme's content and is untrusted too.
        repair = conversation.repair(self.fence, quoted, why)
        second = await self._call(
            repair,
            dataclasses.replace(call_id, attempt=2),
            priority,
            avoid_repetition=repeats,
            least_temperature=_REPAIR_TEMPERATURE if self.repairs else 0.0,
        )
        try:
            value = _read(second, parse, last=True)
        except UnusableReply as fault:
            if missing is None or fault.reason not in ("REPLY_EMPTY", "REPLY_REFUSED"):
                raise _unusable(fault, call_id, [first, second]) from None
            value = missing
        return RoleReply(value, _figures(role, [conversation, repair], [first, second], fault=why, quoted=quoted))

    async def say_once(
        self, role: Role, conversation: Messages[Frame], parse: Callable[[str], T], *, share: float = 1.0
    ) -> RoleReply[T]:
        """Makes a single call without repair, within a share of the time left. Raises as :meth:`say`."""
        call_id = CallId(role, conversation.task, conversation.prompt.digest)
        # Same priority as the Judge, whose ruling waits for this opinion.
        reply = await self._call(conversation, call_id, self._priority(_JUDGMENT_PROGRESS), share=share)
        try:
            value = _read(reply, lambda text, _: parse(text), last=True)
        except UnusableReply as fault:
            raise _unusable(fault, call_id, [reply]) from None
        return RoleReply(value, _figures(role, [conversation], [reply]))

    def _priority(self, progress: int) -> int:
        # More advanced trials go first, as they free their slot sooner.
        return (BATCH_PRIORITY if self.batch else 0) - progress

    async def _call(
        self,
        conversation: Messages[Frame],
        call_id: CallId,
        priority: int,
        *,
        avoid_repetition: bool = False,
        least_temperature: float = 0.0,
        share: float = 1.0,
    ) -> ChatReply:
        request = ChatRequest(
            system=conversation.system,
            parts=conversation.parts,
            reply_schema=conversation.schema,
            max_tokens=self.model.max_tokens or most_tokens(call_id.role, self.reply_chars),
            temperature=max(self.model.temperature, least_temperature),
            thought_tokens=self.model.thought_tokens,
            priority=priority,
            avoid_repetition=avoid_repetition,
            call_id=call_id,
        )
        reply = await self._within_deadline(partial(self.model.model.reply, request), share=share)
        # Before any check: discarded replies cost tokens too, and the record accounts for them (`Unused`).
        self.deadline.usage.answered(reply)
        self.deadline.took(reply.latency_s)
        if conversation.prompts.contains_secret(reply.text, conversation.prompt):
            # Somebody controls this model: it is not asked again, and nothing of the reply is stored.
            raise ReplyUnusable(call_id.role, conversation.task, "SYSTEM_LEAKED", "it gave its instructions away")
        if reply.finish is FinishReason.LENGTH and not reply.text.strip() and find_loop(reply.thought) is not None:
            # The record only says that an unusable reply had a thought, so the finish reason has to convey the loop.
            return dataclasses.replace(reply, finish=FinishReason.REPETITION)
        return reply

    async def odds(
        self,
        role: Role,
        conversation: Messages[Frame],
        *,
        judge: int = 1,
        step: int = 0,
        progress: int = 0,
        options: Sequence[str] = _OPTIONS,
    ) -> Odds | None:
        """Requests the probability of each option; None if the server can't give them. Arguments as :meth:`say`."""
        request = ChatRequest(
            system=conversation.system,
            parts=conversation.parts,
            reply_schema=None,
            # Only the probabilities of the first token are needed.
            max_tokens=1,
            priority=self._priority(progress),
            call_id=CallId(role, conversation.task, conversation.prompt.digest, judge=judge, step=step),
        )
        odds = await self._within_deadline(partial(self.model.model.odds, request, options))
        if odds is not None:
            self.deadline.usage.answered(odds.reply)
        return odds

    async def _within_deadline(self, ask: Callable[..., Awaitable[T]], *, share: float = 1.0) -> T:
        """Runs a model call within a share of the time left. Raises Overrun if it takes longer."""
        # Two limits: the timeout of one call, and a share of the time left for all calls.
        within_s = min(self.deadline.for_call(), share * self.deadline.left)
        try:
            return await run_within(ask(within_s=within_s), within_s + _GRACE_S, model_late)
        except BaseException:
            # Including cancellation: the server may have worked on the call at an unknown cost.
            self.deadline.usage.unanswered()
            raise


@dataclass(frozen=True, slots=True)
class Proposer:
    """Sees only the picture and the questions that it is asked."""

    speaker: Speaker
    frames: tuple[Frame, ...]

    async def describe(self) -> RoleReply[str]:
        """``D = Proposer(G)``; empty if there is none, also when asked again. Raises as :meth:`Speaker.say`."""
        conversation = messages.describe(self.frames, self.speaker.reply_chars, self.speaker.prompts)
        return await self.speaker.say(
            Role.PROPOSER,
            conversation,
            lambda text, _: replies.parse_description(text),
            missing="" if self.speaker.repairs else None,
        )

    async def answer(
        self, question: str, *, side: Side | None = None, number: int = 0, progress: int = 0
    ) -> RoleReply[str]:
        """``a = Proposer.answer(q, G)``; the prompt names neither side nor round. Raises as :meth:`Speaker.say`."""
        conversation = messages.answer(
            self.frames, self.speaker.fence, question, self.speaker.reply_chars, prompts=self.speaker.prompts
        )
        return await self.speaker.say(
            Role.PROPOSER,
            conversation,
            lambda text, _: replies.parse(replies.Answer, text).answer,
            side=side,
            number=number,
            progress=progress,
        )


@dataclass(frozen=True, slots=True)
class Advocate:
    """Argues one side from texts; never sees the picture."""

    speaker: Speaker
    side: Side
    brief: AdvocateBrief
    settings: TrialSettings = dataclasses.field(default_factory=TrialSettings)

    async def ask(self, history: Sequence[Exchange], *, progress: int = 0) -> RoleReply[str]:
        """``q = A.ask(H, D, T)``. Raises as :meth:`Speaker.say`."""
        stance = messages.stance_of(self.side, len(history), self.settings)
        conversation = self.brief.ask(stance, history, self.speaker.reply_chars)
        return await self._speak(
            conversation,
            lambda text, _: replies.parse(replies.Question, text).question,
            number=len(history) + 1,
            progress=progress,
        )

    async def summarise(self, history: Sequence[Exchange], *, progress: int = 0) -> RoleReply[StatedArgument]:
        """``S = A.summarise(H)``. Raises as :meth:`Speaker.say`."""
        conversation = self.brief.summarise(self.side.lower(), history, self.speaker.reply_chars)

        def checked(text: str, last: bool) -> StatedArgument:
            argument = self._parse(text, history, quotes_needed=self.speaker.repairs and not last)
            if self.speaker.repairs and not last:
                _repair(self.check(argument, history))
            return argument

        return await self._speak(conversation, checked, number=len(history), progress=progress)

    def _parse(self, text: str, history: Sequence[Exchange], *, quotes_needed: bool) -> StatedArgument:
        brief, opening = self.brief, self._opening
        if opening:
            return replies.parse_quoting_argument(
                text,
                opening,
                brief.shown(history),
                self.speaker.reply_chars,
                on_claim=brief.on_claim,
                quotes_needed=quotes_needed,
            )
        argument = replies.parse(replies.ArgumentOnClaim if brief.on_claim else replies.Argument, text)
        return StatedArgument(**argument.model_dump())

    @property
    def _opening(self) -> str:
        return self.brief.prompts.advocate.opening(self.side.lower())

    def check(self, argument: StatedArgument, history: Sequence[Exchange]) -> tuple[CheckFailed, ...]:
        """Checks what the side says, by itself."""
        brief = self.brief
        return checks.of_argument(
            self.side,
            argument.justification,
            summary=argument.summary,
            material=[*brief.shown(history), *(precedent.text for precedent in brief.precedents)],
            policy=brief.policy.text,
            chars=self.speaker.reply_chars,
            instructions=brief.prompts.advocate.content["system"],
            opening=self._opening,
        )

    async def _speak(
        self, conversation: Messages[Frame], parse: Callable[[str, bool], T], *, number: int, progress: int
    ) -> RoleReply[T]:
        return await self.speaker.say(
            Role(self.side), conversation, parse, side=self.side, number=number, progress=progress
        )


@dataclass(frozen=True, slots=True)
class Judge:
    """Sees everything in its brief: picture, text, description, both justifications and the precedents."""

    speaker: Speaker
    number: int = 1

    async def rule(self, brief: JudgeBrief[Frame]) -> RoleReply[RulingReply]:
        """Evidence, precedents, strengths, label and rationale. Raises as :meth:`Speaker.say`."""
        # If the label contradicts the strengths, the Judge is asked once more; if it still does, the ruling is returned
        # as it is, with the contradiction.

        def parse(text: str, last: bool) -> RulingReply:
            ruling = replies.parse_ruling(text, brief.policy, len(brief.exhibits))
            follows = rule(ruling.harmful_strength, ruling.harmless_strength)
            if follows is not ruling.label and not last:
                word = "harmful" if follows is Label.HARMFUL else "not harmful"
                raise UnusableReply(
                    "REPLY_MALFORMED", f"its label does not follow from its strengths, which make it {word}"
                )
            if self.speaker.repairs and not last:
                _repair(check_ruling(ruling, brief, self.speaker.reply_chars))
            return ruling

        return await self.speaker.say(
            Role.JUDGE, brief.rule(self.speaker.reply_chars), parse, judge=self.number, progress=_JUDGMENT_PROGRESS
        )

    async def answer(self, conversation: Messages[Frame], question: CourtQuestion) -> RoleReply[QuestionRuling]:
        """Rules on a further question. Raises as :meth:`Speaker.say`."""
        return await self.speaker.say(
            Role.JUDGE,
            conversation,
            lambda text, _: replies.parse_question_ruling(text, question),
            judge=self.number,
            progress=_JUDGMENT_PROGRESS,
        )

    async def odds(self, brief: JudgeBrief[Frame]) -> OddsGiven | None:
        """Requests the probability of both labels, in both orders; None if the server can't give them.

        Raises:
            Overrun, Unavailable, ModelRefused: The server gave no reply.
        """
        return await self._odds(brief.odds(), 0)

    async def probe(self, brief: JudgeBrief[Frame], side: Side | None) -> OddsGiven | None:
        """Requests the odds of the unheard case, or of what a side's argument supports; None without an answer."""
        try:
            return await self._odds(brief.unheard.odds() if side is None else brief.side_odds(side), PROBE_STEPS[side])
        except (ModelRefused, Unavailable):
            # Optional: a trial does not fail for it.
            return None

    async def odds_in_one_order(self, conversation: Messages[Frame], *, harmful_first: bool) -> OddsGiven | None:
        """Requests the probability of both labels with a single call. Returns and raises as :meth:`odds`."""
        return await self._odds((conversation,), _ASKED_AGAIN, orders=(harmful_first,))

    async def rule_once(self, brief: JudgeBrief[Frame]) -> RoleReply[RulingReply]:
        """Rules with a single call: nothing is repaired. Raises as :meth:`Speaker.say`."""

        def parse(text: str) -> RulingReply:
            return replies.parse_ruling(text, brief.policy, len(brief.exhibits))

        return await self.speaker.say_once(Role.JUDGE, brief.rule(self.speaker.reply_chars), parse)

    async def _odds(
        self, conversations: Sequence[Messages[Frame]], step: int, orders: Sequence[bool] = (True, False)
    ) -> OddsGiven | None:
        harmful, benign, answered = [], [], []
        for each, harmful_first in zip(conversations, orders, strict=True):
            odds = await self.speaker.odds(Role.JUDGE, each, judge=self.number, step=step, progress=_JUDGMENT_PROGRESS)
            # Invalid probabilities count as missing.
            if odds is None or not odds.masses or not all(0 <= mass <= 1 for mass in odds.masses):
                return None
            # Models prefer the first option; averaging over both orders cancels that bias.
            masses = odds.masses if harmful_first else odds.masses[::-1]
            harmful.append(masses[0])
            benign.append(masses[1])
            answered.append(odds.reply)
        call = _figures(Role.JUDGE, conversations, answered)
        return OddsGiven(harmful=tuple(harmful), not_harmful=tuple(benign), call=call)


def check_ruling(ruling: RulingReply, brief: JudgeBrief[Any], chars: int) -> tuple[CheckFailed, ...]:
    """Checks a ruling against what the Judge was shown."""
    arguments = {Side.ACCUSER: brief.accuser, Side.DEFENDER: brief.defender}
    shown = [brief.text, brief.description or "", brief.opinion, brief.claims]
    return (
        *checks.of_rationale(
            ruling.rationale,
            arguments=arguments,
            material=[*shown, *(exhibit.precedent.text for exhibit in brief.exhibits)],
            chars=chars,
            instructions=brief.prompts.judge.content["system"],
        ),
        *checks.of_readings(ruling.precedents.values()),
    )


def _repair(failed: Sequence[CheckFailed]) -> None:
    """Raises UnusableReply if a failed check can be repaired."""
    if fault := checks.repair_of(failed):
        raise UnusableReply(failed[0].check, fault)


def _read(reply: ChatReply, parse: Callable[[str, bool], T], *, last: bool) -> T:
    """Parses a reply. Checks its finish reason before its content: half of a JSON may parse."""
    if reply.finish is FinishReason.REFUSAL:
        raise UnusableReply("REPLY_REFUSED", "the model declined to answer")
    repeats = find_loop_in_reply(reply.text) is not None
    # On the last attempt, a repetitive reply that ended by itself is accepted if it parses: a meme may be repetitive,
    # and so its description.
    may_repeat = last and reply.finish is FinishReason.STOP
    if reply.finish is FinishReason.REPETITION or (repeats and not may_repeat):
        raise UnusableReply(REPLY_LOOPS, _REPEATS)
    if reply.finish is FinishReason.LENGTH and reply.thought and not reply.text.strip():
        raise UnusableReply("THOUGHT_CUT", "it was cut off while you were still thinking; think less, then reply")
    if reply.finish is FinishReason.LENGTH:
        raise UnusableReply("REPLY_CUT", "it was too long and was cut off; be shorter")
    try:
        return parse(reply.text, last)
    except UnusableReply:
        if repeats:
            raise UnusableReply(REPLY_LOOPS, _REPEATS) from None
        raise


def _figures(
    role: Role,
    conversations: Sequence[Messages[Frame]],
    answered: Sequence[ChatReply],
    *,
    fault: str = "",
    quoted: str = "",
) -> ModelCall:
    last, in_words = answered[-1], answered[-1].schema_in_words
    return ModelCall(
        role=role,
        model=last.model,
        prompt_id=f"{conversations[0].prompt.id}/{conversations[0].task}",
        prompt_digest=conversations[0].prompt.digest,
        tokens_in=sum(reply.tokens_in for reply in answered),
        tokens_out=sum(reply.tokens_out for reply in answered),
        tokens_cached=sum(reply.tokens_cached for reply in answered),
        latency_s=sum(reply.latency_s for reply in answered),
        server=last.server,
        fault=fault,
        quoted=quoted,
        messages_digest=messages_digest(conversations, lambda frame: file_sha256(frame.png), schema_in_words=in_words),
        schema_in_words=in_words,
        unknown=tuple(dict.fromkeys(name for reply in answered for name in reply.unknown)),
        thought="\n\n".join(reply.thought for reply in answered if reply.thought)[:_MOST_THOUGHT],
        # Replies to requests for odds are not parsed, so they are not recorded.
        replies=() if conversations[0].task == "odds" else _raw(answered),
    )


def _raw(answered: Sequence[ChatReply]) -> tuple[RawReply, ...]:
    return tuple(
        RawReply(text=writable(reply.text[:_MOST_REPLY]), finish=reply.finish, thought=bool(reply.thought))
        for reply in answered
    )


def _unusable(fault: UnusableReply, call_id: CallId, answered: Sequence[ChatReply]) -> ReplyUnusable:
    """Builds the error for unusable replies, with the replies attached."""
    error = ReplyUnusable(call_id.role, call_id.task, fault.reason, fault.what)
    error.replies = UnusableReplies(
        role=call_id.role,
        task=call_id.task,
        side=call_id.side,
        round=call_id.round,
        judge=call_id.judge,
        prompt_digest=call_id.prompt_digest,
        replies=_raw(answered),
    )
    return error
