"""Proposer, Advocate and Judge: each is a prompt, a reply type and one call.

Who sees what is a matter of types. A Proposer is made of frames and has no text to show; an Advocate is made of texts
and has no frames; each knows its own side's exchanges and no other's. Only the Judge is made of everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from court import prompts, replies
from court.budget import Budget, in_time
from court.errors import Overrun, ReplyUnusable
from court.events import ModelCall, OddsGiven, Role, Side
from court.meme import Frame
from court.policy import Policy
from court.ports import ChatModel, ChatReply, ChatRequest, FinishReason, ReplicatedModel
from court.precedents import Precedent, Vote
from court.prompts import Prompt
from court.replies import Argument, Fault, Ruling
from court.untrusted import Fence
from court.verdict import Label, rule

T = TypeVar("T")

_QUOTED = 2000  # characters of a reply that are shown when it is asked for again
_OPTIONS = ("A", "B")
_GRACE_S = 0.1  # a model keeps to its time by itself; this much later it is ended
_LENGTHS: Mapping[Role, int] = {Role.PROPOSER: 1, Role.ACCUSER: 2, Role.DEFENDER: 2, Role.JUDGE: 4}
"""Longest reply of a role in lengths of ``reply_chars``: a description; a summary and a justification; a rationale, and
up to twelve pieces of evidence of a quarter of that."""


def most_tokens(role: Role, chars: int) -> int:
    """Tokens that a role's reply may take: there are scripts in which each character is one or more.

    It is a bound and not a wish: how long a reply is, is said by its schema.

    Args:
        role: Whose.
        chars: Longest text that is asked for; see :mod:`court.replies`.
    """
    longest = _LENGTHS[role] * chars
    return longest + longest // 4 + 200


def fewest_tokens(role: Role, chars: int) -> int:
    """Tokens that a role's longest reply takes in English, four characters each; most scripts take more."""
    return _LENGTHS[role] * chars // 4


@dataclass(frozen=True, slots=True)
class Chair:
    """What an agent speaks through.

    Attributes:
        model: The model.
        temperature: 0 for the most likely reply.
        max_tokens: Of a reply, at most; None for as many as the longest may take in any script.
        servers: The same model at all servers that have it, where each trial is to keep to one; None where ``model`` is
            asked as it is.
    """

    model: ChatModel
    temperature: float = 0.0
    max_tokens: int | None = None
    servers: ReplicatedModel | None = None


@dataclass(frozen=True, slots=True)
class Chairs:
    """Who speaks in a full trial; each role may have a model of its own."""

    proposer: Chair
    accuser: Chair
    defender: Chair
    judge: Chair

    @property
    def by_role(self) -> dict[Role, Chair]:
        """Each role's."""
        return dict(zip(Role, (self.proposer, self.accuser, self.defender, self.judge), strict=True))

    @property
    def models(self) -> dict[str, str]:
        """The model per role, for the record."""
        return {str(role): chair.model.name for role, chair in self.by_role.items()}

    @property
    def servers(self) -> dict[str, tuple[str, ...]]:
        """Addresses of the servers per role, for the record; of those that are known."""
        return {str(role): chair.servers.urls for role, chair in self.by_role.items() if chair.servers}

    def settings(self, chars: int) -> dict[str, Any]:
        """What else is set per role, for the record.

        Args:
            chars: Longest text that is asked for; token limits that nobody set follow from it.
        """
        return {
            "temperature": {str(role): chair.temperature for role, chair in self.by_role.items()},
            "max_tokens": {
                str(role): chair.max_tokens or most_tokens(role, chars) for role, chair in self.by_role.items()
            },
        }

    def pinned(self, key: str) -> Chairs:
        """Who speaks in the trial of one picture, each through one of its servers; roles that share them, through one.

        Args:
            key: What decides which server: a digest of the picture, so that a picture comes to where it is known.
        """
        pinned: dict[int, ReplicatedModel] = {}

        def of(chair: Chair) -> Chair:
            if chair.servers is None:
                return chair
            # One object for all: when one of the roles finds its server gone, they all move on.
            model = pinned.setdefault(id(chair.servers), chair.servers.pinned(key))
            return dataclasses.replace(chair, model=model, servers=model)

        return Chairs(of(self.proposer), of(self.accuser), of(self.defender), of(self.judge))

    def room(self) -> bool:
        """Whether each server that is asked now would work on one more call at once."""
        return all(chair.servers.room() for chair in self.by_role.values() if chair.servers)


@dataclass(frozen=True, slots=True)
class Said(Generic[T]):
    """What an agent said, and the call that it took."""

    value: T
    call: ModelCall


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A precedent as the Judge is shown it; without its picture where the library has none."""

    precedent: Precedent
    frame: Frame | None


@dataclass(frozen=True, slots=True)
class _Agent:
    chair: Chair
    fence: Fence
    budget: Budget
    chars: int
    """Longest text that is asked for: description, summary, justification, rationale; see :mod:`court.replies`."""

    async def _say(
        self,
        role: Role,
        prompt: Prompt,
        task: str,
        system: str,
        parts: Sequence[str | Frame],
        parse: Callable[[str, bool], T],
        schema: dict[str, Any],
    ) -> Said[T]:
        """One call, and one more that names the fault where the first reply can't be used.

        Raises:
            ReplyUnusable: Neither reply could be used, or one gave its instructions away.
            Overrun: There is no time.
            Unavailable, ModelRefused: The server gave none.
        """
        max_tokens = self.chair.max_tokens or most_tokens(role, self.chars)
        request = ChatRequest(system, _apart(parts), schema, max_tokens, self.chair.temperature)
        first = await self._call(request, role, task)
        try:
            return Said(_read(first, parse, last=False), _figures(role, prompt, task, first))
        except Fault as fault:
            if fault.reason == "REPLY_REFUSED":
                raise ReplyUnusable(role, task, fault.reason, fault.what) from None
            why = fault.what
        again = (*parts, self.fence.around(first.text[:_QUOTED]), prompts.load("repair").task("repair", fault=why))
        second = await self._call(dataclasses.replace(request, parts=_apart(again)), role, task)
        try:
            return Said(_read(second, parse, last=True), _figures(role, prompt, task, first, second, fault=why))
        except Fault as fault:
            raise ReplyUnusable(role, task, fault.reason, fault.what) from None

    async def _call(self, request: ChatRequest, role: Role, task: str) -> ChatReply:
        reply = await self._asked(partial(self.chair.model.reply, request))
        self.budget.tally.answered(reply)
        self.budget.took(reply.latency_s)
        if prompts.given_away(reply.text):
            # Whoever made it do that had it in hand: it is not asked again, and none of it is kept.
            raise ReplyUnusable(role, task, "SYSTEM_LEAKED", "it gave its instructions away")
        return reply

    async def _asked(self, ask: Callable[..., Awaitable[T]]) -> T:
        """What a model gives in the seconds that there are. Raises Overrun where it does not keep to them."""
        within_s = self.budget.for_call()
        late = Overrun("The model did not answer in the time it was given.", reason="MODEL_TOO_SLOW")
        try:
            return await in_time(ask(within_s=within_s), within_s + _GRACE_S, late)
        except BaseException:
            self.budget.tally.unanswered()
            raise


@dataclass(frozen=True, slots=True)
class Proposer(_Agent):
    """Sees the picture, and nothing else but the questions it is asked."""

    frames: tuple[Frame, ...]

    async def describe(self) -> Said[str]:
        """``D = Proposer(G)``. Raises as all agents do."""
        return await self._look("describe", replies.Description, replies.parse_description)

    async def answer(self, question: str) -> Said[str]:
        """``a = Proposer.answer(q, G)``. Raises as all agents do."""
        return await self._look("answer", replies.Answer, replies.parse_answer, question=self.fence.around(question))

    async def _look(
        self,
        task: str,
        kind: type[replies.Description] | type[replies.Answer],
        parse: Callable[[str], str],
        **values: str,
    ) -> Said[str]:
        prompt = prompts.load("proposer")
        parts: tuple[str | Frame, ...] = (*self.frames, prompt.task(task, **values))
        return await self._say(
            Role.PROPOSER,
            prompt,
            task,
            prompt.system(),
            parts,
            lambda text, _: parse(text),
            replies.text_schema(kind, self.chars),
        )


@dataclass(frozen=True, slots=True)
class Advocate(_Agent):
    """Argues one side from texts; never sees the picture."""

    side: Side
    policy: Policy
    text: str
    description: str
    stance_from_start: bool = True

    async def ask(self, history: Sequence[Exchange]) -> Said[str]:
        """``q = A.ask(H, D, T)``. Raises as all agents do."""
        stance = str(self.side).lower() if self.stance_from_start else "none"
        return await self._argue(
            "ask",
            stance,
            history,
            lambda text, _: replies.parse_question(text),
            replies.text_schema(replies.Question, self.chars),
        )

    async def summarise(self, history: Sequence[Exchange]) -> Said[Argument]:
        """``S = A.summarise(H)``. Raises as all agents do."""
        return await self._argue(
            "summarise",
            str(self.side).lower(),
            history,
            lambda text, _: replies.parse_argument(text),
            replies.text_schema(replies.Argument, self.chars),
        )

    async def _argue(
        self,
        task: str,
        stance: str,
        history: Sequence[Exchange],
        parse: Callable[[str, bool], T],
        schema: dict[str, Any],
    ) -> Said[T]:
        prompt = prompts.load("advocate")
        system = prompt.system(policy=self.policy.text, stance=prompt.stance(stance))
        material = prompt.task(
            "material", text=self.fence.around(self.text), description=self.fence.around(self.description)
        )
        # The history only grows and the task comes last: what was sent before stays a prefix of what is sent next.
        exchanges = [
            prompt.task(
                "exchange",
                number=str(number),
                question=self.fence.around(exchange.question),
                answer=self.fence.around(exchange.answer),
            )
            for number, exchange in enumerate(history, 1)
        ]
        parts = (material, *exchanges, prompt.task(task))
        return await self._say(Role(str(self.side)), prompt, task, system, parts, parse, schema)


@dataclass(frozen=True, slots=True)
class Judge(_Agent):
    """Sees picture, text, description, both justifications and the precedents.

    Attributes:
        frames: Of the meme.
        policy: What counts as harm.
        text: Of the meme.
        description: The Proposer's, or empty.
        accuser: What the Accuser says, or empty where there were no arguments.
        defender: What the Defender says, likewise.
        exhibits: The precedents that are shown.
        vote: The precedents' vote, or None.
        dull: Whether the meme alone is shown (ablation).
    """

    frames: tuple[Frame, ...]
    policy: Policy
    text: str
    description: str = ""
    accuser: str = ""
    defender: str = ""
    exhibits: tuple[Exhibit, ...] = ()
    vote: Vote | None = None
    dull: bool = False

    async def rule(self) -> Said[Ruling]:
        """Evidence, precedents, strengths, label and rationale. Raises as all agents do.

        Where the label does not follow from the strengths, the Judge is asked once more; if it still does not, the
        ruling is returned as it is, and the contradiction shows.
        """
        number = len(self.exhibits)

        def parse(text: str, last: bool) -> Ruling:
            ruling = replies.parse_ruling(text, self.policy, number)
            follows = rule(ruling.harmful_strength, ruling.harmless_strength)
            if follows is not ruling.label and not last:
                word = "harmful" if follows is Label.HARMFUL else "not harmful"
                raise Fault("REPLY_MALFORMED", f"its label does not follow from its strengths, which make it {word}")
            return ruling

        prompt = prompts.load("judge")
        parts = (*self._material(prompt), prompt.task("judge"))
        return await self._say(
            Role.JUDGE,
            prompt,
            "judge",
            self._system(prompt),
            parts,
            parse,
            replies.ruling_schema(self.policy, number, self.chars),
        )

    async def odds(self) -> OddsGiven | None:
        """How likely the model holds either label, asked in both orders; None where the server can't say.

        Raises:
            Overrun, Unavailable, ModelRefused: The server gave no reply.
        """
        prompt = prompts.load("judge")
        words = ("harmful", "not harmful")
        harmful, benign, answered = [], [], []
        for first, second in (words, words[::-1]):
            parts = (*self._material(prompt), prompt.task("odds", a=first, b=second))
            request = ChatRequest(self._system(prompt), _apart(parts), None, 1)
            odds = await self._asked(partial(self.chair.model.odds, request, _OPTIONS))
            if odds is not None:
                self.budget.tally.answered(odds.reply)
            # What is no probability says as little as none.
            if odds is None or not all(0 <= mass <= 1 for mass in odds.masses):
                return None
            masses = odds.masses if first == "harmful" else odds.masses[::-1]
            harmful.append(masses[0])
            benign.append(masses[1])
            answered.append(odds.reply)
        call = _figures(Role.JUDGE, prompt, "odds", *answered)
        return OddsGiven(harmful=tuple(harmful), not_harmful=tuple(benign), call=call)

    def _system(self, prompt: Prompt) -> str:
        return prompt.system(policy=self.policy.text)

    def _material(self, prompt: Prompt) -> list[str | Frame]:
        """Pictures first, in a fixed order, then what the sides say: the longest prefix that stays the same."""
        parts: list[str | Frame] = [*self.frames, prompt.task("case")]
        for number, exhibit in enumerate(self.exhibits, 1):
            if exhibit.frame is not None:
                parts += [exhibit.frame, prompt.task("precedent", number=str(number))]
            parts += self._precedent(prompt, number, exhibit.precedent)
        if self.vote is not None:
            tally = prompt.task(
                "tally",
                voters=str(self.vote.voters),
                harmful=str(self.vote.harmful),
                probability=f"{self.vote.probability:.2f}",
            )
            parts.append(tally)
        parts.append(prompt.task("text", text=self.fence.around(self.text)))
        if self.dull:
            return parts
        parts.append(prompt.task("description", description=self.fence.around(self.description)))
        if self.accuser or self.defender:
            accuser, defender = self.fence.around(self.accuser), self.fence.around(self.defender)
            parts.append(prompt.task("arguments", accuser=accuser, defender=defender))
        return parts

    def _precedent(self, prompt: Prompt, number: int, precedent: Precedent) -> list[str]:
        halves = [
            f"{name} {value:.2f}"
            for name, value in (("text", precedent.text_similarity), ("picture", precedent.picture_similarity))
            if value is not None
        ]
        said = prompt.task(
            "precedent_text",
            number=str(number),
            label="harmful" if precedent.label is Label.HARMFUL else "not harmful",
            similarity=", ".join(halves) or "unknown",
            text=self.fence.around(precedent.text),
        )
        if not precedent.categories:
            return [said]
        categories = self.fence.around(", ".join(precedent.categories))
        return [said, prompt.task("precedent_categories", number=str(number), categories=categories)]


def _apart(parts: Sequence[str | Frame]) -> tuple[str | Frame, ...]:
    """Parts that stand apart: a server puts nothing of its own between them."""
    return tuple(f"{part}\n\n" if isinstance(part, str) else part for part in parts)


def _read(reply: ChatReply, parse: Callable[[str, bool], T], *, last: bool) -> T:
    """What a reply says. How it ended is looked at before what it says: half of a JSON may parse."""
    if reply.finish is FinishReason.REFUSAL:
        raise Fault("REPLY_REFUSED", "the model declined to answer")
    if reply.finish is FinishReason.LENGTH:
        raise Fault("REPLY_CUT", "it was too long and was cut off; be shorter")
    return parse(reply.text, last)


def _figures(role: Role, prompt: Prompt, task: str, *answered: ChatReply, fault: str = "") -> ModelCall:
    return ModelCall(
        role=role,
        model=answered[-1].model,
        prompt_id=f"{prompt.id}/{task}",
        prompt_digest=prompt.digest,
        tokens_in=sum(reply.tokens_in for reply in answered),
        tokens_out=sum(reply.tokens_out for reply in answered),
        tokens_cached=sum(reply.tokens_cached for reply in answered),
        latency_s=sum(reply.latency_s for reply in answered),
        server=answered[-1].server,
        fault=fault,
    )
