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

from court import messages, replies
from court.deadline import Deadline, model_late, run_within
from court.errors import ReplyUnusable
from court.events import ModelCall, OddsGiven, RawReply, Role, Side, UnusableReplies
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
    CallPlace,
    ChatModel,
    ChatReply,
    ChatRequest,
    FinishReason,
    Odds,
    ReplicatedModel,
)
from court.prompts import ADDED_PROMPTS, EXPERT_PROMPTS, PromptSet, load
from court.prompts.sets import packaged
from court.question import CourtQuestion
from court.replies import (
    REPLY_LOOPS,
    Argument,
    QuestionRuling,
    Ruling,
    UnusableReply,
    find_loop,
    find_loop_in_reply,
)
from court.untrusted import Fence
from court.verdict import Label, rule

T = TypeVar("T")

# Letters, as words such as "harmful" are several tokens to some models, and only the first one is asked for.
_OPTIONS = ("A", "B")
_OVER_AND_OVER = "it said the same over and over; say each thing once"
_MOST_THOUGHT = 20_000
"""Characters of a thought that are kept."""
_JUDGMENT = 51  # beyond the last round that the settings allow
_MOST_REPLY = 60_000
"""Characters of a reply that are kept: one that is longer is not read (:mod:`court.replies`)."""
_GRACE_S = 0.1  # a model keeps to its time by itself; this much later it is ended
_LENGTHS: Mapping[Role, int] = {
    Role.PROPOSER: 1,
    Role.ACCUSER: 2,
    Role.DEFENDER: 2,
    Role.JUDGE: 4,
    Role.GUARD: 1,
    Role.EXPERT: 3,
}
"""Longest reply of a role in lengths of ``reply_chars``: a description; a summary and a justification; a rationale, and
up to twelve pieces of evidence of a quarter of that; up to six statements with the words that they come from."""


def most_tokens(role: Role, chars: int) -> int:
    """Tokens that a role's reply may take: there are scripts in which each character is one or more.

    It is a bound and not a wish: how long a reply is, is said by its schema.

    Args:
        role: Role that replies.
        chars: Longest text that is asked for; see :mod:`court.replies`.
    """
    longest = _LENGTHS[role] * chars
    # A quarter and 200 more: escapes, names of fields and brackets of the JSON around the texts.
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
        thought_tokens: Largest number of tokens of a thought before a reply; 0 where it is to reply at once.
        thoughts_by: Switch by which it is made to think, and the field that limits its thought; empty where it is not.
        prefix_cache: True if its servers find the beginning of a prompt again; None where that is not known.
    """

    model: ChatModel
    temperature: float = 0.0
    max_tokens: int | None = None
    servers: ReplicatedModel | None = None
    thinking: str = ""
    thought_tokens: int = 0
    thoughts_by: tuple[str, ...] = ()
    prefix_cache: bool | None = None


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
    """Chat models of a full trial; each role may have a model of its own, and a guard may be heard.

    Attributes:
        proposer: Model of the Proposer.
        accuser: Model of the Accuser.
        defender: Model of the Defender.
        judge: Model of the Judge.
        judges: Further models that judge: with them, the Judge is a panel.
        guard: Guard model; None where none is heard.
        expert: Model of the expert witness; None where none is called.
    """

    proposer: RoleModel
    accuser: RoleModel
    defender: RoleModel
    judge: RoleModel
    judges: tuple[RoleModel, ...] = ()
    guard: GuardModel | None = None
    expert: RoleModel | None = None

    def panel(self, samples: int) -> tuple[RoleModel, ...]:
        """Returns the model of each judge, in order.

        Args:
            samples: Rulings that are drawn of each model.
        """
        # In a fixed order: records name judges by their numbers, and a replay finds their replies by them.
        return tuple(model for model in (self.judge, *self.judges) for _ in range(samples))

    @property
    def _named(self) -> dict[str, RoleModel]:
        """Models by the names that records have for them: the roles, and ``JUDGE_2`` and so on."""
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
        return {name: chair.model.name for name, chair in self._named.items()}

    @property
    def servers(self) -> dict[str, tuple[str, ...]]:
        """Addresses of the servers per role, for the record; of those that are known."""
        return {name: chair.servers.urls for name, chair in self._named.items() if chair.servers}

    @property
    def prefix_cache(self) -> dict[str, bool]:
        """True for each role whose servers find the beginning of a prompt again; of those where it is known."""
        found = {str(role): chair.prefix_cache for role, chair in self.by_role.items()}
        return {role: works for role, works in found.items() if works is not None}

    def settings(self, chars: int) -> dict[str, Any]:
        """Returns the settings per role for the record.

        Args:
            chars: Longest text that is asked for; token limits that nobody set follow from it.
        """
        guard = {"adapter": self.guard.adapter, "prompt": load("guard").digest} if self.guard else None
        thinking = {name: chair.thinking for name, chair in self._named.items() if chair.thinking}
        thoughts = {
            name: {"tokens": chair.thought_tokens, "by": list(chair.thoughts_by)}
            for name, chair in self._named.items()
            if chair.thought_tokens
        }
        return {
            "temperature": {name: chair.temperature for name, chair in self._named.items()},
            # What is in force, also where nobody set it: a record must not depend on defaults of a later version.
            "max_tokens": {
                # Further judges are named JUDGE_2 and so on; the role is what stands before the number.
                name: chair.max_tokens or most_tokens(Role(name.partition("_")[0]), chars)
                for name, chair in self._named.items()
            },
            # The digest of the set holds none of these words: without their own, a verdict would be given again that
            # rests on messages which nobody would send now.
            "added_prompts": {name: load(name).digest for name in ADDED_PROMPTS},
            **({"thinking": thinking} if thinking else {}),
            **({"thoughts": thoughts} if thoughts else {}),
            **({"guard": guard} if guard else {}),
            **({"expert_prompts": {name: load(name).digest for name in EXPERT_PROMPTS}} if self.expert else {}),
        }

    def pinned(self, key: str) -> RoleModels:
        """Returns the models for the trial of one picture, each keeping to one of its servers.

        Roles that share servers share one.

        Args:
            key: Key that decides between servers that are equally busy: a digest of the picture, so that a picture
                comes to a server that knows it.
        """
        # By identity: roles with the same servers share the object. No id is reused while `self` refers to all of them.
        pinned: dict[int, ReplicatedModel] = {}

        def of(chair: RoleModel) -> RoleModel:
            if chair.servers is None:
                return chair
            # One object for all: when one of the roles finds its server gone, they all move on.
            model = pinned.setdefault(id(chair.servers), chair.servers.pinned(key))
            return dataclasses.replace(chair, model=model, servers=model)

        return self.each(of)

    def each(self, of: Callable[[RoleModel], RoleModel]) -> RoleModels:
        """Returns the models with each replaced by what a function makes of it."""
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
        """True if each server that is asked during the examinations would work on one more call at once."""
        # Judges and guard are heard after them: how busy their servers are now says nothing about a round held ahead.
        chairs = (self.proposer, self.accuser, self.defender, *([self.expert] if self.expert else []))
        return all(chair.servers.room() for chair in chairs if chair.servers)


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
        batch: True if the trial is one of many for which nobody waits singly: requests of other trials go first.
        prompts: Words of the trial.
    """

    model: RoleModel
    fence: Fence
    deadline: Deadline
    reply_chars: int
    prompts: PromptSet = dataclasses.field(default_factory=packaged)
    batch: bool = False

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
    ) -> RoleReply[T]:
        """One call, and one more that names the fault where the first reply can't be used.

        Args:
            role: Role that speaks.
            conversation: Messages of the call.
            parse: Reads a reply; it is also given whether that is the last one there will be.
            side: Side whose examination it is; None outside of an examination.
            number: Round of the examination; 0 outside of one.
            judge: Number of the judge on a panel.
            claim: Number of the claim of fact that the expert witness checks; 0 for other roles.
            step: Number of its search or document.
            progress: Rounds that the trial has come to: of two that wait, the one that is nearer its end goes first.

        Raises:
            ReplyUnusable: Neither reply could be used, or one gave its instructions away.
            Overrun: There is no time.
            Unavailable, ModelRefused: The server gave none.
        """
        place = CallPlace(
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
        first = await self._call(conversation, place, priority)
        try:
            return RoleReply(_read(first, parse, last=False), _figures(role, [conversation], [first]))
        except UnusableReply as fault:
            # A refusal is no fault of form that a repair request could name.
            if fault.reason == "REPLY_REFUSED":
                raise _unusable(fault, place, [first]) from None
            why, repeats = fault.what, fault.reason == REPLY_LOOPS
        # Of a loop no more than its phrase once: what a model reads many times over it goes on with.
        quoted = quotable(first.text[: find_loop_in_reply(first.text)] if repeats else first.text)
        # In a fence: the reply may repeat what a meme says, and is a stranger's text like any other.
        again = conversation.again(self.fence, quoted, why)
        second = await self._call(again, dataclasses.replace(place, attempt=2), priority, avoid_repetition=repeats)
        try:
            value = _read(second, parse, last=True)
        except UnusableReply as fault:
            raise _unusable(fault, place, [first, second]) from None
        return RoleReply(value, _figures(role, [conversation, again], [first, second], fault=why, quoted=quoted))

    async def say_once(
        self, role: Role, conversation: Messages[Frame], parse: Callable[[str], T], *, share: float
    ) -> RoleReply[T]:
        """One call, and no other where the reply can't be used, within a share of the time that is left.

        Raises as :meth:`say`.
        """
        place = CallPlace(role, conversation.task, conversation.prompt.digest)
        # Ranked with the Judge, whose ruling waits for this opinion.
        reply = await self._call(conversation, place, self._priority(_JUDGMENT), share=share)
        try:
            value = _read(reply, lambda text, _: parse(text), last=True)
        except UnusableReply as fault:
            raise _unusable(fault, place, [reply]) from None
        return RoleReply(value, _figures(role, [conversation], [reply]))

    def _priority(self, progress: int) -> int:
        """The rank of a request at the server: the lower, the earlier."""
        # A trial that is further on goes first: it frees its place sooner.
        return (BATCH_PRIORITY if self.batch else 0) - progress

    async def _call(
        self,
        conversation: Messages[Frame],
        place: CallPlace,
        priority: int,
        *,
        avoid_repetition: bool = False,
        share: float = 1.0,
    ) -> ChatReply:
        request = ChatRequest(
            system=conversation.system,
            parts=conversation.parts,
            reply_schema=conversation.schema,
            max_tokens=self.model.max_tokens or most_tokens(place.role, self.reply_chars),
            temperature=self.model.temperature,
            thought_tokens=self.model.thought_tokens,
            priority=priority,
            avoid_repetition=avoid_repetition,
            place=place,
        )
        reply = await self._within_deadline(partial(self.model.model.reply, request), share=share)
        # Before any check: a reply that is thrown away has cost tokens too, and the record accounts for them
        # (`Unused`).
        self.deadline.tally.answered(reply)
        self.deadline.took(reply.latency_s)
        if conversation.prompts.contains_secret(reply.text, conversation.prompt):
            # Whoever made it do that had it in hand: it is not asked again, and none of it is kept.
            raise ReplyUnusable(place.role, conversation.task, "SYSTEM_LEAKED", "it gave its instructions away")
        if reply.finish is FinishReason.LENGTH and not reply.text.strip() and find_loop(reply.thought) is not None:
            # Of a thought before an unusable reply the record says only that there was one: how it ended has to say the
            # rest.
            return dataclasses.replace(reply, finish=FinishReason.REPETITION)
        return reply

    async def odds(
        self,
        role: Role,
        conversation: Messages[Frame],
        *,
        judge: int = 1,
        progress: int = 0,
        options: Sequence[str] = _OPTIONS,
    ) -> Odds | None:
        """Asks for the probability of each option; None where the server can't tell. Arguments as :meth:`say`."""
        request = ChatRequest(
            system=conversation.system,
            parts=conversation.parts,
            reply_schema=None,
            # The probabilities of the first token are all that is wanted.
            max_tokens=1,
            priority=self._priority(progress),
            place=CallPlace(role, conversation.task, conversation.prompt.digest, judge=judge),
        )
        odds = await self._within_deadline(partial(self.model.model.odds, request, options))
        if odds is not None:
            self.deadline.tally.answered(odds.reply)
        return odds

    async def _within_deadline(self, ask: Callable[..., Awaitable[T]], *, share: float = 1.0) -> T:
        """Runs a model call within a share of the seconds that are left. Raises Overrun where it takes longer."""
        # Two bounds: what one call may take at most, and what the caller has left for all of them.
        within_s = min(self.deadline.for_call(), share * self.deadline.left)
        try:
            return await run_within(ask(within_s=within_s), within_s + _GRACE_S, model_late)
        except BaseException:
            # Cancellation included: the server may have worked on the call, and what that costs it does not say.
            self.deadline.tally.unanswered()
            raise


@dataclass(frozen=True, slots=True)
class Proposer:
    """Sees the picture, and nothing else but the questions it is asked."""

    speaker: Speaker
    frames: tuple[Frame, ...]

    async def describe(self) -> RoleReply[str]:
        """``D = Proposer(G)``. Raises as all agents do."""
        conversation = messages.describe(self.frames, self.speaker.reply_chars, self.speaker.prompts)
        return await self.speaker.say(Role.PROPOSER, conversation, lambda text, _: replies.parse_description(text))

    async def answer(
        self, question: str, *, side: Side | None = None, number: int = 0, progress: int = 0
    ) -> RoleReply[str]:
        """``a = Proposer.answer(q, G)``: whose question it is and of which round, it is not told.

        Raises as all agents do.
        """
        conversation = messages.answer(
            self.frames, self.speaker.fence, question, self.speaker.reply_chars, prompts=self.speaker.prompts
        )
        return await self.speaker.say(
            Role.PROPOSER,
            conversation,
            lambda text, _: replies.parse_answer(text),
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
    stance_from_start: bool = True

    async def ask(self, history: Sequence[Exchange], *, progress: int = 0) -> RoleReply[str]:
        """``q = A.ask(H, D, T)``. Raises as all agents do."""
        stance = self.side.lower() if self.stance_from_start else "none"
        conversation = self.brief.ask(stance, history, self.speaker.reply_chars)
        return await self._speak(
            conversation, lambda text, _: replies.parse_question(text), number=len(history) + 1, progress=progress
        )

    async def summarise(self, history: Sequence[Exchange], *, progress: int = 0) -> RoleReply[Argument]:
        """``S = A.summarise(H)``. Raises as all agents do."""
        conversation = self.brief.summarise(self.side.lower(), history, self.speaker.reply_chars)
        parse = replies.parse_argument_on_claim if self.brief.on_claim else replies.parse_argument
        return await self._speak(conversation, lambda text, _: parse(text), number=len(history), progress=progress)

    async def _speak(
        self, conversation: Messages[Frame], parse: Callable[[str, bool], T], *, number: int, progress: int
    ) -> RoleReply[T]:
        return await self.speaker.say(
            Role(self.side), conversation, parse, side=self.side, number=number, progress=progress
        )


@dataclass(frozen=True, slots=True)
class Judge:
    """Sees picture, text, description, both justifications and the precedents: all that is in its brief.

    Attributes:
        speaker: Its model.
        number: Number on the panel; 1 for one that sits alone.
    """

    speaker: Speaker
    number: int = 1

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

        return await self.speaker.say(
            Role.JUDGE, brief.rule(self.speaker.reply_chars), parse, judge=self.number, progress=_JUDGMENT
        )

    async def answer(self, conversation: Messages[Frame], question: CourtQuestion) -> RoleReply[QuestionRuling]:
        """Ruling on a further question. Raises as all agents do.

        Args:
            conversation: Messages of :meth:`court.messages.JudgeBrief.question`.
            question: The question.
        """
        return await self.speaker.say(
            Role.JUDGE,
            conversation,
            lambda text, _: replies.parse_question_ruling(text, question),
            judge=self.number,
            progress=_JUDGMENT,
        )

    async def odds(self, brief: JudgeBrief[Frame]) -> OddsGiven | None:
        """Asks for the probability of either label, in both orders; None where the server can't tell.

        Raises:
            Overrun, Unavailable, ModelRefused: The server gave no reply.
        """
        conversations = brief.odds()
        harmful, benign, answered = [], [], []
        for each, harmful_first in zip(conversations, (True, False), strict=True):
            odds = await self.speaker.odds(Role.JUDGE, each, judge=self.number, progress=_JUDGMENT)
            # What is no probability says as little as none.
            if odds is None or not odds.masses or not all(0 <= mass <= 1 for mass in odds.masses):
                return None
            # Models prefer the option that stands first: asked in both orders, that cancels out in the mean.
            masses = odds.masses if harmful_first else odds.masses[::-1]
            harmful.append(masses[0])
            benign.append(masses[1])
            answered.append(odds.reply)
        call = _figures(Role.JUDGE, conversations, answered)
        return OddsGiven(harmful=tuple(harmful), not_harmful=tuple(benign), call=call)


def _read(reply: ChatReply, parse: Callable[[str, bool], T], *, last: bool) -> T:
    """Parses a reply. Checks its finish reason before its content: half of a JSON may parse."""
    if reply.finish is FinishReason.REFUSAL:
        raise UnusableReply("REPLY_REFUSED", "the model declined to answer")
    repeats = find_loop_in_reply(reply.text) is not None
    # The second time, what came to its own end is taken where it can be read: a meme may say the same over and over,
    # and so may who describes it.
    may_repeat = last and reply.finish is FinishReason.STOP
    if reply.finish is FinishReason.REPETITION or (repeats and not may_repeat):
        raise UnusableReply(REPLY_LOOPS, _OVER_AND_OVER)
    if reply.finish is FinishReason.LENGTH and reply.thought and not reply.text.strip():
        raise UnusableReply("THOUGHT_CUT", "it was cut off while you were still thinking; think less, then reply")
    if reply.finish is FinishReason.LENGTH:
        raise UnusableReply("REPLY_CUT", "it was too long and was cut off; be shorter")
    try:
        return parse(reply.text, last)
    except UnusableReply:
        if repeats:
            raise UnusableReply(REPLY_LOOPS, _OVER_AND_OVER) from None
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
        # Odds are numbers: of their replies nothing is read. A guard's reply has no schema either, and is read.
        replies=() if conversations[0].task == "odds" else _raw(answered),
    )


def _raw(answered: Sequence[ChatReply]) -> tuple[RawReply, ...]:
    """Replies as they are recorded."""
    return tuple(
        RawReply(text=writable(reply.text[:_MOST_REPLY]), finish=reply.finish, thought=bool(reply.thought))
        for reply in answered
    )


def _unusable(fault: UnusableReply, place: CallPlace, answered: Sequence[ChatReply]) -> ReplyUnusable:
    """The error of replies that can't be used, with them."""
    error = ReplyUnusable(place.role, place.task, fault.reason, fault.what)
    error.replies = UnusableReplies(
        role=place.role,
        task=place.task,
        side=place.side,
        round=place.round,
        judge=place.judge,
        prompt_digest=place.prompt_digest,
        replies=_raw(answered),
    )
    return error
