"""Controller, target, fuser and judge: each is an agent of one call.

Arguments determine which model sees what. No model is told who wrote a text, and every written text is fenced.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, create_model

from court.meme import Frame
from court.prompts import Fence, Prompt
from court.replies import Reply, TextBounds, UnusableReply, Words, object_schema, parse, schema_of
from eval.arena.events import Answered, Event, FusionBegun, FusionRound, ReplyCost, Style, TaskFormulated, cost_of
from eval.arena.settings import ArenaSettings
from eval.arena.words import LossError, Relevance, Verdict, Verdicts, words_of
from eval.models.metered import Agent, MeteredModel, load
from eval.models.samples import ShownMeme

_PART, _WHY = 6000, 2000
"""Maximum length of a part of an answer, and of reasons, in characters."""


class Profiles(Reply):
    """Three people, by the relevance of their background to the meme."""

    high: Annotated[Words, TextBounds()] = Field(max_length=1200)
    moderate: Annotated[Words, TextBounds()] = Field(max_length=1200)
    unrelated: Annotated[Words, TextBounds()] = Field(max_length=1200)

    def of(self, relevance: Relevance) -> str:
        """Returns the person of one relevance."""
        profile: str = getattr(self, relevance)
        return profile


class TaskQuestion(Reply):
    """Question written by a model."""

    question: Annotated[Words, TextBounds(least=10)] = Field(min_length=10, max_length=800)


class TargetAnswer(Reply):
    """Answer of a target, or several merged answers."""

    background_knowledge: Annotated[Words, TextBounds()] = Field(max_length=_PART)
    reasoning: Annotated[Words, TextBounds()] = Field(max_length=_PART)


class FreeAnswer(Reply):
    """Answer of a target to a supplied question."""

    answer: Annotated[Words, TextBounds()] = Field(max_length=2 * _PART)


R = TypeVar("R", bound=Reply)
_Why = Annotated[Words, TextBounds(), Field(max_length=_WHY)]
_Word = Annotated[str, TextBounds()]
"""One of the words that :func:`parse_words` is given, which vary from call to call."""
_RATED = {"type": "integer", "minimum": 0, "maximum": 10}
"""Schema of every number in these replies."""


def form_of(kind: type[Reply], chars: int, words: Mapping[str, Collection[str]] = {}) -> dict[str, Any]:
    """Returns the JSON schema of a reply, with at most ``chars`` characters of each text, and no more than is read.

    Args:
        words: Words that some fields are chosen from; a field with a default is asked for only if it has some.
    """
    fields = kind.model_fields
    numbers = {name: _RATED for name, info in fields.items() if info.annotation is int}
    choices = {name: {"type": "string", "enum": list(those)} for name, those in words.items()}
    properties = {}
    for name, info in fields.items():
        if info.is_required() or name in words:
            most = min([chars, *(mark.max_length for mark in info.metadata if hasattr(mark, "max_length"))])
            properties[info.alias or name] = schema_of(kind, most, **numbers, **choices)["properties"][name]
    return object_schema(properties)


def parse_words(kind: type[R], text: str, words: Mapping[str, Collection[str]]) -> R:
    """Parses a reply of which some fields are chosen from words. Raises UnusableReply."""
    reply = parse(kind, text)
    for name, allowed in words.items():
        if getattr(reply, name) not in allowed:
            named = kind.model_fields[name].alias or name
            raise UnusableReply("REPLY_MALFORMED", f"{named} must be one of {', '.join(allowed)}")
    return reply


class _Reasons(Reply):
    why: _Why


class _AnsweredReasons(_Reasons, FreeAnswer):
    """Reasons after the judge's own answer: fields stand in the order of the last base first."""


# Cached per set of keys: creating the class takes longer than parsing a reply with it.
@cache
def _comparison(keys: tuple[str, ...], own: bool) -> type[_Reasons]:
    """Returns the form of a comparison, with reasons before the verdicts, as a model writes in order."""
    # Aliases, because a custom key may be a reserved word of pydantic or Python.
    fields: dict[str, Any] = {f"criterion_{place}": (_Word, Field(alias=key)) for place, key in enumerate(keys)}
    return create_model("Comparison", __base__=_AnsweredReasons if own else _Reasons, **fields)


def _words_by(keys: tuple[str, ...], levels: int) -> dict[str, Mapping[str, Verdict]]:
    return {f"criterion_{place}": words_of(levels) for place in range(len(keys))}


def parse_verdicts(text: str, *, keys: tuple[str, ...], levels: int, own: bool = False) -> Verdicts:
    """Parses one verdict per criterion, each one of the allowed words. Raises UnusableReply."""
    offered = _words_by(keys, levels)
    parsed = parse_words(_comparison(keys, own), text, offered)
    verdicts = {key: words[getattr(parsed, name)] for key, (name, words) in zip(keys, offered.items(), strict=True)}
    return Verdicts(parsed.why, verdicts, parsed.answer if isinstance(parsed, FreeAnswer) else "")


class Detection(Reply):
    """Bare label of a meme."""

    label: Literal["harmful", "not harmful"]


class Difficulty(Reply):
    """Difficulty of a task in three respects, 0 to 10."""

    why: _Why
    text: int = Field(ge=0, le=10)
    image: int = Field(ge=0, le=10)
    reasoning: int = Field(ge=0, le=10)


class TaskPlace(Reply):
    """Subject of a question that came with a set."""

    why: _Why
    picture: Literal["needed", "not needed"]
    field: _Word
    sub_field: Annotated[Words, TextBounds()] = Field(max_length=60)
    depends: int = Field(ge=0, le=10)
    """How much later rounds depend on earlier ones."""


class Explanation(Reply):
    """Reason why an answer lost."""

    why: _Why
    aspect: _Word = ""
    error: LossError


T = TypeVar("T")
ROLES = ("controller", "target", "fuser", "judge")
"""Roles of every arena; their prompts are part of its manifest."""
EXPLAINER, DETECTOR, ANNOTATOR = "explainer", "detector", "annotator"
"""Roles that may come after an arena: who says why battles were lost, labels memes, rates how hard tasks are."""


_VERSIONS = {"judge": 2}
"""Versions of prompts, where it is another than the first."""


def prompt_of(role: str) -> Prompt:
    """Returns the prompt of one of :data:`ROLES`, or of a later role."""
    return load("eval.arena.prompts", role, _VERSIONS.get(role, 1))


@dataclass(frozen=True, slots=True)
class FixedQuestion:
    """An answer to be merged or compared."""

    background: str
    rounds: tuple[str, ...]


def answers_of(events: Iterable[Event]) -> dict[tuple[str, int, str], FixedQuestion]:
    """Returns the answers in a record, by meme, task and model."""
    answered = (event for event in events if isinstance(event, Answered))
    return {(e.meme, e.task, e.target): FixedQuestion(e.background, e.reasoning) for e in answered}


def rounds_of(events: Iterable[Event]) -> dict[tuple[str, int], tuple[str, ...]]:
    """Returns the rounds of each question in a record, by meme and task."""
    return {(e.meme, e.task): e.rounds for e in events if isinstance(e, TaskFormulated)}


def guidelines_of(events: Sequence[Event]) -> dict[tuple[str, int], FixedQuestion]:
    """Returns the guidelines that judges were shown, by meme and task."""
    answers = answers_of(events)
    begun = {(e.meme, e.task): answers[e.meme, e.task, e.judge] for e in events if isinstance(e, FusionBegun)}
    # Rounds are in order, so that the last one's text stays; without any the fusion's first answer does.
    merged = (event for event in events if isinstance(event, FusionRound))
    return begun | {(e.meme, e.task): FixedQuestion(e.background, (e.reasoning,)) for e in merged}


@dataclass(frozen=True, slots=True)
class Scene:
    """A meme as it is shown to models, and the texts about it, each in a fence."""

    meme: ShownMeme
    fence: Fence

    def parts(self, prompt: Prompt) -> list[str | Frame]:
        """Returns the parts that show the meme: the picture first, as it is the same in every call."""
        return [*self.meme.frames, prompt.task("meme", text=self.fence.around(self.meme.text))]

    def question(self, prompt: Prompt, rounds: Sequence[str]) -> list[str | Frame]:
        """Returns the parts that show the meme and a question about it."""
        return [*self.parts(prompt), prompt.task("question", question=self.fence.around("\n\n".join(rounds)))]

    def answer(self, prompt: Prompt, answer: FixedQuestion) -> str:
        """Lays out an answer, of two parts or plain."""
        reasoning = self.fence.around(_joined(answer))
        if answer.background:
            return prompt.task("parts", background=self.fence.around(answer.background), reasoning=reasoning)
        return prompt.task("plain", answer=reasoning)

    def comparison(
        self,
        prompt: Prompt,
        rounds: Sequence[str],
        reference: FixedQuestion | None,
        answers: tuple[FixedQuestion, FixedQuestion],
        *,
        settings: ArenaSettings,
        own: bool = False,
    ) -> list[str | Frame]:
        """Returns the parts of the message that asks a judge to compare two answers."""
        parts = self.question(prompt, rounds)
        if reference is not None:
            parts.append(prompt.task("reference", reference=self.answer(prompt, reference)))
        # Before the two answers, which it is to be written without.
        if own:
            parts.append(prompt.task("own"))
        a, b = (self.answer(prompt, one) for one in answers)
        parts.append(prompt.task("answers", a=a, b=b))
        lines = (prompt.task("criterion", key=one.key, meaning=one.words) for one in settings.criteria)
        parts.append(
            prompt.task(
                "verdicts",
                words=prompt.task("three" if settings.levels == 3 else "five"),
                criteria="\n".join(lines),
                answer='"answer": "...", ' if own else "",
                keys=", ".join(f'"{key}": ...' for key in settings.dimensions),
            )
        )
        return parts


@dataclass(frozen=True, slots=True)
class Speaker:
    """One model with one meme."""

    model: MeteredModel
    meme: ShownMeme
    chars: int = 400
    """Maximum length of a part of a reply, in characters; the default is for reasons."""
    scene: Scene = field(init=False)

    def __post_init__(self) -> None:
        # Derived from the meme, not random: prompts must be identical when a run is resumed, or no reply is found in
        # the call cache.
        fence = self.model.fence(self.meme.id, self.meme.pixels_sha256)
        object.__setattr__(self, "scene", Scene(self.meme, fence))

    async def profiles(self, temperature: float) -> tuple[Profiles, ReplyCost]:
        """Describes three people who come across the meme. Raises as :meth:`eval.models.metered.MeteredModel.say`."""
        return await self._ask("controller", "profiles", Profiles, temperature=temperature)

    async def question(self, profile: str, temperature: float) -> tuple[str, ReplyCost]:
        """Asks a model for a question about the meme."""
        # Fenced although a model wrote it: that model read the meme, and may pass on an instruction from it.
        profile = self.scene.fence.around(profile)
        reply, cost = await self._ask("controller", "question", TaskQuestion, temperature=temperature, profile=profile)
        return reply.question, cost

    async def answer(self, question: str) -> tuple[FixedQuestion, tuple[ReplyCost, ...], int]:
        """Answers a question in two parts; returns what :meth:`converse` does."""
        reply, cost = await self._ask("target", "answer", TargetAnswer, question=self.scene.fence.around(question))
        return FixedQuestion(reply.background_knowledge, (reply.reasoning,)), (cost,), 0

    async def converse(
        self, rounds: Sequence[str], language: str, history_chars: int | None = None
    ) -> tuple[FixedQuestion, tuple[ReplyCost, ...], int]:
        """Asks questions that build on each other.

        Args:
            history_chars: Maximum length of the history sent with a question, in characters; the oldest rounds are
                dropped so that a model with a small context can answer at all. None for the whole history.

        Returns:
            The answer, its costs, and the number of rounds dropped from the last question's history.
        """
        prompt = prompt_of("target")
        in_language = f", in the language {language}" if language else ""
        history: list[str] = []
        answers, calls, forgotten = [], [], 0
        for question in rounds:
            # Drops whole rounds, the oldest first, so that no question loses its answer.
            while history_chars is not None and history and sum(map(len, history)) > history_chars:
                del history[0]
            fenced = self.scene.fence.around(question)
            # One text instead of two parts, so it may be as long as both together.
            chars = 2 * self.chars
            reply, call = await self._ask(
                "target", "free", FreeAnswer, *history, chars=chars, question=fenced, language=in_language
            )
            answer = reply.answer
            answers.append(answer)
            calls.append(call)
            forgotten = len(answers) - 1 - len(history)
            history.append(prompt.task("round", question=fenced, answer=self.scene.fence.around(answer)))
        return FixedQuestion("", tuple(answers)), tuple(calls), forgotten

    async def fuse(self, question: str, first: FixedQuestion, second: FixedQuestion) -> tuple[FixedQuestion, ReplyCost]:
        """Merges two texts into one."""
        around = self.scene.fence.around
        reply, cost = await self._ask(
            "fuser",
            "fuse",
            TargetAnswer,
            question=around(question),
            background_1=around(first.background),
            reasoning_1=around(_joined(first)),
            background_2=around(second.background),
            reasoning_2=around(_joined(second)),
        )
        return FixedQuestion(reply.background_knowledge, (reply.reasoning,)), cost

    async def compare(
        self,
        rounds: Sequence[str],
        reference: FixedQuestion | None,
        answers: tuple[FixedQuestion, FixedQuestion],
        settings: ArenaSettings,
    ) -> tuple[Verdicts, ReplyCost]:
        """Asks which of two answers is better, by each criterion; after an answer of the judge's, by the settings."""
        prompt, own = prompt_of("judge"), settings.judge_answers
        parts = self.scene.comparison(prompt, rounds, reference, answers, settings=settings, own=own)
        return await self._say(judging(prompt, settings.dimensions, settings.levels, self.chars, own=own), parts)

    async def explain(
        self, rounds: Sequence[str], better: FixedQuestion, worse: FixedQuestion, *, why: str, aspects: Sequence[str]
    ) -> tuple[Explanation, ReplyCost]:
        """Explains why an answer lost."""
        prompt, several = prompt_of(EXPLAINER), len(aspects) > 1
        texts = {"better": self.scene.answer(prompt, better), "worse": self.scene.answer(prompt, worse)}
        more = [prompt.task("answers", **texts, why=self.scene.fence.around(why)), prompt.task("error")]
        # Without a choice, the model is not asked for an aspect, and any that it names is ignored.
        if several:
            more.append(prompt.task("aspect", aspects=", ".join(f'"{one}"' for one in aspects)))
        fields = '"aspect": "...", "error": "..."' if several else '"error": "..."'
        words = {"aspect": aspects} if several else {}
        return await self._ask(EXPLAINER, "explain", Explanation, *more, rounds=rounds, words=words, asked=fields)

    async def detect(self) -> tuple[bool, ReplyCost]:
        """Labels the meme as harmful or not."""
        reply, cost = await self._ask(DETECTOR, "detect", Detection)
        return reply.label == "harmful", cost

    async def rate_difficulty(
        self, rounds: Sequence[str], reference: FixedQuestion | None
    ) -> tuple[Difficulty, ReplyCost]:
        """Rates the difficulty of a task."""
        more = []
        if reference is not None:
            words = "\n\n".join(filter(None, (reference.background, _joined(reference))))
            more.append(prompt_of(ANNOTATOR).task("reference", reference=self.scene.fence.around(words)))
        return await self._ask(ANNOTATOR, "rate", Difficulty, *more, rounds=rounds)

    async def place(self, rounds: Sequence[str], fields: Sequence[str]) -> tuple[TaskPlace, ReplyCost]:
        """Names the field of a question, and tells if it needs the picture."""
        words, shown = {"field": fields}, ", ".join(fields)
        return await self._ask(ANNOTATOR, "place", TaskPlace, rounds=rounds, words=words, fields=shown)

    async def _ask(
        self,
        role: str,
        task: str,
        kind: type[R],
        *more: str,
        rounds: Sequence[str] = (),
        words: Mapping[str, Collection[str]] = {},
        chars: int = 0,
        temperature: float = 0.0,
        **texts: str,
    ) -> tuple[R, ReplyCost]:
        """Asks a role about the meme, or a question on it; ``texts`` fill the gaps in the words of its task."""
        prompt = prompt_of(role)
        agent = Agent(prompt, task, partial(parse_words, kind, words=words), form_of(kind, chars or self.chars, words))
        parts = self.scene.question(prompt, rounds) if rounds else self.scene.parts(prompt)
        return await self._say(agent, [*parts, *more, prompt.task(task, **texts)], temperature)

    async def _say(
        self, agent: Agent[T], parts: Sequence[str | Frame], temperature: float = 0.0
    ) -> tuple[T, ReplyCost]:
        reply = await self.model.say(agent, parts, fence=self.scene.fence, temperature=temperature)
        return reply.value, cost_of(self.model.name, reply.call)


def judging(prompt: Prompt, keys: tuple[str, ...], levels: int, chars: int, *, own: bool = False) -> Agent[Verdicts]:
    """Returns the agent that compares two answers by the criteria with these keys."""
    read = partial(parse_verdicts, keys=keys, levels=levels, own=own)
    return Agent(prompt, "verdicts", read, form_of(_comparison(keys, own), chars, _words_by(keys, levels)))


def _joined(answer: FixedQuestion) -> str:
    if len(answer.rounds) == 1:
        return answer.rounds[0]
    return "\n\n".join(f"{number}. {text}" for number, text in enumerate(answer.rounds, 1))


# Up to three spaces, as in CommonMark: four make a code block.
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s", re.MULTILINE)
_LIST = re.compile(r"^\s*(?:[-*+•]|\d+[.)])\s", re.MULTILINE)
_BOLD = re.compile(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1")


def style_of(text: str) -> Style:
    """Measures the style of a text: words and Markdown markup."""
    return Style(
        words=len(text.split()),
        headings=len(_HEADING.findall(text)),
        lists=len(_LIST.findall(text)),
        bold=len(_BOLD.findall(text)),
    )
