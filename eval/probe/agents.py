"""Agents of a probe: each is a prompt, a reply type and one call.

Only the answerer uses the target model. All other agents use the controllers: the first one is the senior, and tasks
that three agents do are distributed among all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from court.errors import CourtError, ModelRefused, Overrun, ReplyUnusable
from court.meme import Frame
from court.ports import ChatReply, FinishReason
from court.prompts import Prompt
from court.replies import Reply, parse, schema_of
from court.untrusted import Fence
from eval.models.agent import Agent, load
from eval.models.metered import MeteredModel
from eval.probe import replies
from eval.probe.taxonomy import Category, Taxonomy

T = TypeVar("T")
R = TypeVar("R", bound=Reply)

VOICES = 3
"""Number of Miners, and of drafts of a reference."""
PROMPTS = ("answerer", "examiner", "judge", "miner", "narrator", "refiner", "scorer", "senior")
_PACKAGE = "eval.probe.prompts"


def prompt_of(role: str) -> Prompt:
    """The prompt of a role."""
    return load(_PACKAGE, role)


def prompt_digests() -> dict[str, str]:
    """Returns the digests of the probe's prompts, by id."""
    return {prompt.id: prompt.digest for prompt in map(prompt_of, PROMPTS)}


@dataclass(frozen=True, slots=True)
class Subject:
    """A meme that is probed.

    Attributes:
        text: Text of the meme, from the data set or read off the picture.
    """

    id: str
    text: str
    frames: tuple[Frame, ...]
    erased: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """A meme with a scored explanation, as shown to the Refiner."""

    erased: tuple[Frame, ...]
    text: str
    score: int


class NoReply(Exception):
    """An agent gave no usable reply. Unlike an unreachable server, this ends one step, not the run.

    Attributes:
        server: Message of the server, if it refused the request.
    """

    def __init__(self, reason: str, what: str, server: ModelRefused | None = None) -> None:
        super().__init__(what)
        self.reason = reason
        self.what = what
        self.server = server

    @property
    def refused(self) -> bool:
        """True if the model declined."""
        return self.reason == "REPLY_REFUSED"

    @classmethod
    def because(cls, error: CourtError) -> NoReply:
        """Builds the missing reply from an error."""
        return cls(error.reason, error.message, error if isinstance(error, ModelRefused) else None)


@dataclass(frozen=True, slots=True)
class ProbeModels:
    """The models of a probe.

    Attributes:
        controllers: Models that probe; the first is the senior one.
    """

    target: MeteredModel
    controllers: tuple[MeteredModel, ...]

    @property
    def senior(self) -> MeteredModel:
        """Model for tasks that one agent does alone."""
        return self.controllers[0]

    def voice(self, number: int) -> MeteredModel:
        """Returns the model of one of the three agents that share a task."""
        # With fewer controllers than voices, a model is called again with another seed.
        return self.controllers[number % len(self.controllers)]

    def fence(self, subject: Subject | None) -> Fence:
        """Delimiters of untrusted text in calls about a meme, or about none; the same when a run is resumed."""
        # Whichever model is named: all share one store of calls, and so its marks.
        return self.senior.fence("probe", subject.id if subject else "")


async def sort(models: ProbeModels, subject: Subject, taxonomy: Taxonomy, number: int) -> replies.Sorting:
    """Asks one of three Miners for its vote. Raises NoReply."""
    prompt, fence = prompt_of("miner"), models.fence(subject)
    parts: tuple[str | Frame, ...] = (
        *subject.frames,
        prompt.task("material", text=fence.around(subject.text)),
        prompt.task("taxonomy", taxonomy=fence.around(taxonomy.text)),
        prompt.task("sort"),
    )
    read = partial(replies.parse_sorting, taxonomy=taxonomy)
    agent = Agent(prompt, "sort", read, replies.sorting_schema(taxonomy))
    # One model may be all three Miners: the number makes three draws of it, and three entries in the store of calls.
    return await _call(models.voice(number), agent, parts, fence, chars=1200, temperature=1.0, seed=number)


async def examine(models: ProbeModels, subject: Subject, category: Category) -> replies.Presence:
    """Asks whether a proposed category is present in a meme. Raises NoReply."""
    prompt, fence = prompt_of("examiner"), models.fence(subject)
    shown: tuple[str | Frame, ...] = (*subject.frames, prompt.task("material", text=fence.around(subject.text)))
    return await _ask_senior(
        models, prompt, "present", replies.Presence, subject=subject, shown=shown, category=category.line
    )


async def keeps(models: ProbeModels, subject: Subject, text: str, misbelief: str) -> replies.Keeping:
    """Asks whether a meme with another text spreads the same misbelief. Raises NoReply."""
    prompt, fence = prompt_of("examiner"), models.fence(subject)
    # Without the text on it: a model that reads the old text would answer for both texts.
    shown: tuple[str | Frame, ...] = (*subject.erased, prompt.task("rewritten", text=fence.around(text)))
    return await _ask_senior(
        models, prompt, "keeps", replies.Keeping, subject=subject, shown=shown, misbelief=misbelief
    )


async def admit(models: ProbeModels, category: Category, taxonomy: Taxonomy) -> replies.Admission:
    """Asks whether a proposed category is distinct and neither too broad nor too narrow. Raises NoReply."""
    prompt = prompt_of("judge")
    return await _ask_senior(models, prompt, "admit", replies.Admission, taxonomy=taxonomy.text, category=category.line)


async def narrate(models: ProbeModels, subject: Subject, category: Category) -> str:
    """The misbelief behind a meme. Raises NoReply."""
    prompt, fence = prompt_of("narrator"), models.fence(subject)
    shown: tuple[str | Frame, ...] = (*subject.frames, prompt.task("material", text=fence.around(subject.text)))
    reply = await _ask_senior(
        models, prompt, "misbelief", replies.Misbelief, subject=subject, shown=shown, category=category.line
    )
    return reply.misbelief


async def refer(models: ProbeModels, subject: Subject, text: str, category: Category, number: int) -> ChatReply:
    """One of three drafts of a reference: the question that the target is asked, at temperature 1. Raises NoReply."""
    return await _explain(
        models, models.voice(number), subject=subject, text=text, category=category, temperature=1.0, seed=number
    )


async def merge(models: ProbeModels, subject: Subject, text: str, category: Category, drafts: Sequence[str]) -> str:
    """The senior's reference out of the drafts. Raises NoReply."""
    prompt, fence = prompt_of("senior"), models.fence(subject)
    shown: tuple[str | Frame, ...] = (
        *subject.erased,
        prompt.task("material", text=fence.around(text)),
        *(prompt.task("draft", number=str(n), draft=fence.around(draft)) for n, draft in enumerate(drafts, 1)),
    )
    reply = await _ask_senior(
        models, prompt, "merge", replies.Reference, subject=subject, shown=shown, category=category.line
    )
    return reply.answer


async def answer(models: ProbeModels, subject: Subject, text: str, category: Category) -> ChatReply:
    """Returns the target's answer; it may be cut off. Raises NoReply."""
    return await _explain(models, models.target, subject=subject, text=text, category=category)


async def score(
    models: ProbeModels, subject: Subject, text: str, category: Category, reference: str, answered: str
) -> tuple[int | None, str]:
    """The score of an answer and the Scorer's comment; no score if the answer declined.

    Raises:
        NoReply: There is no readable rating.
    """
    prompt, fence = prompt_of("scorer"), models.fence(subject)
    texts = {"category": category.line, "reference": reference, "answer": answered}
    parts: tuple[str | Frame, ...] = (
        *subject.erased,
        prompt.task("material", text=fence.around(text)),
        prompt.task("score", **{name: fence.around(words) for name, words in texts.items()}),
    )

    def read(text: str) -> tuple[int | None, str]:
        try:
            return replies.parse_rating(text), text
        except replies.Refused:
            return None, text

    return await _call(models.senior, Agent(prompt, "score", read), parts, fence)


async def rewrite(
    models: ProbeModels, subject: Subject, misbelief: str, scored: int, examples: Sequence[Example]
) -> replies.Rewriting:
    """Another text for a meme. Examples come sorted by score. Raises NoReply."""
    prompt, fence = prompt_of("refiner"), models.fence(subject)
    parts: list[str | Frame] = []
    for number, one in enumerate(examples, 1):
        shown = prompt.task("example", number=str(number), text=fence.around(one.text), score=str(one.score))
        parts += [one.erased[0], shown]  # one still of each: servers take few pictures in one prompt
    meme = prompt.task(
        "material", text=fence.around(subject.text), score=str(scored), misbelief=fence.around(misbelief)
    )
    parts += [*subject.frames, meme, prompt.task("rewrite")]
    read = partial(replies.parse_rewriting, before=subject.text)
    agent = Agent(prompt, "rewrite", read, schema_of(replies.Rewriting, 0))
    return await _call(models.senior, agent, parts, fence, chars=replies.REASON + replies.TEXT, temperature=1.0)


async def _explain(
    models: ProbeModels,
    model: MeteredModel,
    subject: Subject,
    text: str,
    category: Category,
    *,
    temperature: float = 0.0,
    seed: int = 0,
) -> ChatReply:
    prompt, fence = prompt_of("answerer"), models.fence(subject)
    parts: tuple[str | Frame, ...] = (
        *subject.erased,
        prompt.task("material", text=fence.around(text)),
        prompt.task("explain", category=fence.around(category.line)),
    )
    try:
        # Free text is always well-formed, so it is never requested again.
        reply = await model.ask(prompt.system(), parts, temperature=temperature, seed=seed)
    except (ModelRefused, Overrun) as error:
        raise NoReply.because(error) from None
    if reply.finish is FinishReason.REFUSAL:
        raise NoReply("REPLY_REFUSED", "the model declined to answer")
    if not reply.text.strip():
        raise NoReply("REPLY_EMPTY", "it said nothing")
    return reply


async def _ask_senior(
    models: ProbeModels,
    prompt: Prompt,
    task: str,
    kind: type[R],
    *,
    subject: Subject | None = None,
    shown: Sequence[str | Frame] = (),
    **texts: str,
) -> R:
    """Asks the senior model for one of the plain reply types, with texts that the words of the task have gaps for."""
    fence = models.fence(subject)
    parts = (*shown, prompt.task(task, **{name: fence.around(text) for name, text in texts.items()}))
    # At temperature 0 and without a number: what is asked alike is asked once, also by a probe of another target.
    agent = Agent(prompt, task, partial(parse, kind), schema_of(kind, 0))
    return await _call(models.senior, agent, parts, fence, chars=replies.longest(kind))


async def _call(
    model: MeteredModel,
    agent: Agent[T],
    parts: Sequence[str | Frame],
    fence: Fence,
    *,
    chars: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
) -> T:
    """Calls a model. An unreachable server ends the run; a fault of this call only ends this step."""
    # There are scripts in which each character is a token or more; how long a reply may be is said by its schema.
    most = chars + chars // 4 + 200 if chars else None
    try:
        reply = await model.say(agent, parts, fence=fence, temperature=temperature, max_tokens=most, seed=seed)
    except (ReplyUnusable, ModelRefused, Overrun) as error:
        raise NoReply.because(error) from None
    return reply.value
