"""Proposer, Advocate and Judge: each is a prompt, a reply type and one call.

Who sees what is a matter of types. A Proposer is made of frames and has no text to show; an Advocate's brief is made
of texts and has no frames; each knows its own side's exchanges and no other's. Only the Judge's brief holds everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from court import messages, prompts, replies
from court.deadline import Deadline, run_within
from court.errors import Overrun, ReplyUnusable
from court.events import ModelCall, OddsGiven, Role, Side
from court.meme import Frame
from court.messages import AdvocateBrief, Exchange, JudgeBrief, Messages, file_sha256, messages_digest, quotable
from court.ports import ChatModel, ChatReply, ChatRequest, FinishReason, Odds, ReplicatedModel
from court.replies import Argument, Ruling, UnusableReply
from court.untrusted import Fence
from court.verdict import Label, rule

T = TypeVar("T")

_OPTIONS = ("A", "B")
_MOST_THOUGHT = 20_000
"""Characters of a thought that are kept."""
_GRACE_S = 0.1  # a model keeps to its time by itself; this much later it is ended
_LENGTHS: Mapping[Role, int] = {Role.PROPOSER: 1, Role.ACCUSER: 2, Role.DEFENDER: 2, Role.JUDGE: 4, Role.GUARD: 1}
"""Longest reply of a role in lengths of ``reply_chars``: a description; a summary and a justification; a rationale, and
up to twelve pieces of evidence of a quarter of that."""


def most_tokens(role: Role, chars: int) -> int:
    """Tokens that a role's reply may take: there are scripts in which each character is one or more.

    It is a bound and not a wish: how long a reply is, is said by its schema.

    Args:
        role: Role that replies.
        chars: Longest text that is asked for; see :mod:`court.replies`.
    """
    longest = _LENGTHS[role] * chars
    return longest + longest // 4 + 200


def fewest_tokens(role: Role, chars: int) -> int:
    """Tokens that a role's longest reply takes in English, four characters each; most scripts take more."""
    return _LENGTHS[role] * chars // 4


@dataclass(frozen=True, slots=True)
class RoleModel:
    """Connection of an agent to its model.

    Attributes:
        model: The model.
        temperature: 0 for the most likely reply.
        max_tokens: Largest number of tokens of a reply; None for as many as the longest may take in any script.
        servers: The same model at all servers that have it, where each trial is to keep to one; None where ``model`` is
            asked as it is.
        thinking: Switch that turns the model's thoughts before its reply off, as its servers were found to understand
            it; ``ALWAYS`` where none does, empty where the model has no thoughts.
    """

    model: ChatModel
    temperature: float = 0.0
    max_tokens: int | None = None
    servers: ReplicatedModel | None = None
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class GuardModel:
    """Guard model of a court, which is heard as a further witness (:mod:`court.guard`).

    Attributes:
        model: The model.
        adapter: Family of the guard: how it is asked, and how its answer is read.
    """

    model: RoleModel
    adapter: str


@dataclass(frozen=True, slots=True)
class RoleModels:
    """Chat models of a full trial; each role may have a model of its own, and a guard may be heard."""

    proposer: RoleModel
    accuser: RoleModel
    defender: RoleModel
    judge: RoleModel
    guard: GuardModel | None = None

    @property
    def by_role(self) -> dict[Role, RoleModel]:
        """Models by role."""
        named = {
            Role.PROPOSER: self.proposer,
            Role.ACCUSER: self.accuser,
            Role.DEFENDER: self.defender,
            Role.JUDGE: self.judge,
        }
        return named if self.guard is None else {**named, Role.GUARD: self.guard.model}

    @property
    def models(self) -> dict[str, str]:
        """The model per role, for the record."""
        return {str(role): chair.model.name for role, chair in self.by_role.items()}

    @property
    def servers(self) -> dict[str, tuple[str, ...]]:
        """Addresses of the servers per role, for the record; of those that are known."""
        return {str(role): chair.servers.urls for role, chair in self.by_role.items() if chair.servers}

    def settings(self, chars: int) -> dict[str, Any]:
        """Returns the settings per role for the record.

        Args:
            chars: Longest text that is asked for; token limits that nobody set follow from it.
        """
        guard_prompt = prompts.load("guard").digest
        thinking = {str(role): chair.thinking for role, chair in self.by_role.items() if chair.thinking}
        return {
            "temperature": {str(role): chair.temperature for role, chair in self.by_role.items()},
            "max_tokens": {
                str(role): chair.max_tokens or most_tokens(role, chars) for role, chair in self.by_role.items()
            },
            **({"thinking": thinking} if thinking else {}),
            **({"guard": {"adapter": self.guard.adapter, "prompt": guard_prompt}} if self.guard else {}),
        }

    def pinned(self, key: str) -> RoleModels:
        """Returns the models for the trial of one picture, each keeping to one of its servers.

        Roles that share servers share one.

        Args:
            key: Key that decides between servers that are equally busy: a digest of the picture, so that a picture
                comes to a server that knows it.
        """
        pinned: dict[int, ReplicatedModel] = {}

        def of(chair: RoleModel) -> RoleModel:
            if chair.servers is None:
                return chair
            # One object for all: when one of the roles finds its server gone, they all move on.
            model = pinned.setdefault(id(chair.servers), chair.servers.pinned(key))
            return dataclasses.replace(chair, model=model, servers=model)

        guard = None if self.guard is None else dataclasses.replace(self.guard, model=of(self.guard.model))
        return RoleModels(of(self.proposer), of(self.accuser), of(self.defender), of(self.judge), guard=guard)

    def room(self) -> bool:
        """True if each server that is asked now would work on one more call at once."""
        return all(chair.servers.room() for chair in self.by_role.values() if chair.servers)


@dataclass(frozen=True, slots=True)
class RoleReply(Generic[T]):
    """Reply of an agent, and the call that it took."""

    value: T
    call: ModelCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """One role's model within one trial.

    Attributes:
        model: The role's model and its call settings.
        fence: Around what strangers wrote.
        deadline: Time that is left of the trial; it learns what calls cost.
        reply_chars: Longest text that is asked for, in characters: description, summary, justification, rationale; see
            :mod:`court.replies`.
    """

    model: RoleModel
    fence: Fence
    deadline: Deadline
    reply_chars: int

    async def say(self, role: Role, asked: Messages[Frame], parse: Callable[[str, bool], T]) -> RoleReply[T]:
        """One call, and one more that names the fault where the first reply can't be used.

        Raises:
            ReplyUnusable: Neither reply could be used, or one gave its instructions away.
            Overrun: There is no time.
            Unavailable, ModelRefused: The server gave none.
        """
        first = await self._call(asked, role)
        try:
            return RoleReply(_read(first, parse, last=False), _figures(role, [asked], [first]))
        except UnusableReply as fault:
            if fault.reason == "REPLY_REFUSED":
                raise ReplyUnusable(role, asked.task, fault.reason, fault.what) from None
            why = fault.what
        quoted = quotable(first.text)
        again = asked.again(self.fence, quoted, why)
        second = await self._call(again, role)
        try:
            value = _read(second, parse, last=True)
        except UnusableReply as fault:
            raise ReplyUnusable(role, asked.task, fault.reason, fault.what) from None
        return RoleReply(value, _figures(role, [asked, again], [first, second], fault=why, quoted=quoted))

    async def say_once(
        self, role: Role, asked: Messages[Frame], parse: Callable[[str], T], *, share: float
    ) -> RoleReply[T]:
        """One call, and no other where the reply can't be used, within a share of the time that is left.

        Raises as :meth:`say`.
        """
        reply = await self._call(asked, role, share=share)
        try:
            value = _read(reply, lambda text, _: parse(text), last=True)
        except UnusableReply as fault:
            raise ReplyUnusable(role, asked.task, fault.reason, fault.what) from None
        return RoleReply(value, _figures(role, [asked], [reply]))

    async def _call(self, asked: Messages[Frame], role: Role, *, share: float = 1.0) -> ChatReply:
        request = ChatRequest(
            system=asked.system,
            parts=asked.parts,
            reply_schema=asked.schema,
            max_tokens=self.model.max_tokens or most_tokens(role, self.reply_chars),
            temperature=self.model.temperature,
        )
        reply = await self._within_deadline(partial(self.model.model.reply, request), share=share)
        self.deadline.tally.answered(reply)
        self.deadline.took(reply.latency_s)
        if prompts.contains_secret(reply.text):
            # Whoever made it do that had it in hand: it is not asked again, and none of it is kept.
            raise ReplyUnusable(role, asked.task, "SYSTEM_LEAKED", "it gave its instructions away")
        return reply

    async def odds(self, asked: Messages[Frame]) -> Odds | None:
        """Asks for the probability of either option; None where the server can't tell. Raises as :meth:`say`."""
        request = ChatRequest(system=asked.system, parts=asked.parts, reply_schema=None, max_tokens=1)
        odds = await self._within_deadline(partial(self.model.model.odds, request, _OPTIONS))
        if odds is not None:
            self.deadline.tally.answered(odds.reply)
        return odds

    async def _within_deadline(self, ask: Callable[..., Awaitable[T]], *, share: float = 1.0) -> T:
        """Runs a model call within a share of the seconds that are left. Raises Overrun where it takes longer."""
        within_s = min(self.deadline.for_call(), share * self.deadline.left)
        late = Overrun("The model did not answer in the time it was given.", reason="MODEL_TOO_SLOW")
        try:
            return await run_within(ask(within_s=within_s), within_s + _GRACE_S, late)
        except BaseException:
            self.deadline.tally.unanswered()
            raise


@dataclass(frozen=True, slots=True)
class Proposer:
    """Sees the picture, and nothing else but the questions it is asked."""

    speaker: Speaker
    frames: tuple[Frame, ...]

    async def describe(self) -> RoleReply[str]:
        """``D = Proposer(G)``. Raises as all agents do."""
        asked = messages.describe(self.frames, self.speaker.reply_chars)
        return await self.speaker.say(Role.PROPOSER, asked, lambda text, _: replies.parse_description(text))

    async def answer(self, question: str) -> RoleReply[str]:
        """``a = Proposer.answer(q, G)``. Raises as all agents do."""
        asked = messages.answer(self.frames, self.speaker.fence, question, self.speaker.reply_chars)
        return await self.speaker.say(Role.PROPOSER, asked, lambda text, _: replies.parse_answer(text))


@dataclass(frozen=True, slots=True)
class Advocate:
    """Argues one side from texts; never sees the picture."""

    speaker: Speaker
    side: Side
    brief: AdvocateBrief
    stance_from_start: bool = True

    async def ask(self, history: Sequence[Exchange]) -> RoleReply[str]:
        """``q = A.ask(H, D, T)``. Raises as all agents do."""
        stance = self.side.lower() if self.stance_from_start else "none"
        asked = self.brief.ask(stance, history, self.speaker.reply_chars)
        return await self.speaker.say(Role(self.side), asked, lambda text, _: replies.parse_question(text))

    async def summarise(self, history: Sequence[Exchange]) -> RoleReply[Argument]:
        """``S = A.summarise(H)``. Raises as all agents do."""
        asked = self.brief.summarise(self.side.lower(), history, self.speaker.reply_chars)
        return await self.speaker.say(Role(self.side), asked, lambda text, _: replies.parse_argument(text))


@dataclass(frozen=True, slots=True)
class Judge:
    """Sees picture, text, description, both justifications and the precedents: all that is in its brief."""

    speaker: Speaker

    async def rule(self, brief: JudgeBrief[Frame]) -> RoleReply[Ruling]:
        """Evidence, precedents, strengths, label and rationale. Raises as all agents do.

        Where the label does not follow from the strengths, the Judge is asked once more; if it still does not, the
        ruling is returned as it is, and the contradiction shows.
        """

        def parse(text: str, last: bool) -> Ruling:
            ruling = replies.parse_ruling(text, brief.policy, len(brief.exhibits))
            follows = rule(ruling.harmful_strength, ruling.harmless_strength)
            if follows is not ruling.label and not last:
                word = "harmful" if follows is Label.HARMFUL else "not harmful"
                raise UnusableReply(
                    "REPLY_MALFORMED", f"its label does not follow from its strengths, which make it {word}"
                )
            return ruling

        return await self.speaker.say(Role.JUDGE, brief.rule(self.speaker.reply_chars), parse)

    async def odds(self, brief: JudgeBrief[Frame]) -> OddsGiven | None:
        """Asks for the probability of either label, in both orders; None where the server can't tell.

        Raises:
            Overrun, Unavailable, ModelRefused: The server gave no reply.
        """
        asked = brief.odds()
        harmful, benign, answered = [], [], []
        for each, harmful_first in zip(asked, (True, False), strict=True):
            odds = await self.speaker.odds(each)
            # What is no probability says as little as none.
            if odds is None or not all(0 <= mass <= 1 for mass in odds.masses):
                return None
            masses = odds.masses if harmful_first else odds.masses[::-1]
            harmful.append(masses[0])
            benign.append(masses[1])
            answered.append(odds.reply)
        call = _figures(Role.JUDGE, asked, answered)
        return OddsGiven(harmful=tuple(harmful), not_harmful=tuple(benign), call=call)


def _read(reply: ChatReply, parse: Callable[[str, bool], T], *, last: bool) -> T:
    """Parses a reply. Checks its finish reason before its content: half of a JSON may parse."""
    if reply.finish is FinishReason.REFUSAL:
        raise UnusableReply("REPLY_REFUSED", "the model declined to answer")
    if reply.finish is FinishReason.LENGTH and reply.thought and not reply.text.strip():
        raise UnusableReply("THOUGHT_CUT", "it was cut off while you were still thinking; think less, then reply")
    if reply.finish is FinishReason.LENGTH:
        raise UnusableReply("REPLY_CUT", "it was too long and was cut off; be shorter")
    return parse(reply.text, last)


def _figures(
    role: Role, asked: Sequence[Messages[Frame]], answered: Sequence[ChatReply], *, fault: str = "", quoted: str = ""
) -> ModelCall:
    last, in_words = answered[-1], answered[-1].schema_in_words
    return ModelCall(
        role=role,
        model=last.model,
        prompt_id=f"{asked[0].prompt.id}/{asked[0].task}",
        prompt_digest=asked[0].prompt.digest,
        tokens_in=sum(reply.tokens_in for reply in answered),
        tokens_out=sum(reply.tokens_out for reply in answered),
        tokens_cached=sum(reply.tokens_cached for reply in answered),
        latency_s=sum(reply.latency_s for reply in answered),
        server=last.server,
        fault=fault,
        quoted=quoted,
        messages_digest=messages_digest(asked, lambda frame: file_sha256(frame.png), schema_in_words=in_words),
        schema_in_words=in_words,
        unknown=tuple(dict.fromkeys(name for reply in answered for name in reply.unknown)),
        thought="\n\n".join(reply.thought for reply in answered if reply.thought)[:_MOST_THOUGHT],
    )
