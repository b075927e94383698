"""Controller, target, fuser and judge: each is an agent of one call.

Arguments determine which model sees what. No model is told who wrote a text, and every written text is fenced.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, create_model

from court.meme import Frame
from court.prompts import Fence, Prompt
from court.replies import Reply, TextBounds, UnusableReply, Words, object_schema, parse, schema_of
from eval.arena.events import Answered, Event, FusionBegun, FusionRound, ReplyCost, Style, TaskFormulated, cost_of
from eval.arena.settings import ArenaSettings
from eval.arena.words import LossError, Verdict, Verdicts, words_of
from eval.models.metered import Agent, MeteredModel, load
from eval.models.samples import ShownMeme

_PART, _WHY = 6000, 2000
"""Maximum length of a part of an answer, and of reasons, in characters."""


class Profiles(Reply):
    """Three people, by the relevance of their background to the meme."""

    high: Annotated[Words, TextBounds()] = Field(max_length=1200)
    moderate: Annotated[Words, TextBounds()] = Field(max_length=1200)
    unrelated: Annotated[Words, TextBounds()] = Field(max_length=1200)


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


# Cached: creating the class takes longer than parsing a reply with it.
@cache
def _comparison(
    keys: tuple[str, ...], levels: int, own: bool
) -> tuple[type[_Reasons], Mapping[str, Mapping[str, Verdict]]]:
    """Returns the form of a comparison, reasons before verdicts as a model writes in order, and the words by field."""
    # Aliases, because a custom key may be a reserved word of pydantic or Python.
    fields: dict[str, Any] = {f"criterion_{place}": (_Word, Field(alias=key)) for place, key in enumerate(keys)}
    base: type[_Reasons] = _AnsweredReasons if own else _Reasons
    kind: type[_Reasons] = create_model("Comparison", __base__=base, **fields)
    return kind, dict.fromkeys(fields, words_of(levels))


def parse_verdicts(text: str, *, keys: tuple[str, ...], levels: int, own: bool = False) -> Verdicts:
    """Parses one verdict per criterion, each one of the allowed words. Raises UnusableReply."""
    kind, offered = _comparison(keys, levels, own)
    parsed = parse_words(kind, text, offered)
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


def prompt_of(role: str) -> Prompt:
    """Returns the prompt of one of :data:`ROLES`, or of a later role."""
    return load("eval.arena.prompts", role, 2 if role == "judge" else 1)


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

    @property
    def scene(self) -> Scene:
        """The meme, with a fence."""
        # Derived from the meme, not random: prompts must be identical when a run is resumed, or no reply is found in
        # the call cache.
        return Scene(self.meme, self.model.fence(self.meme.id, self.meme.pixels_sha256))

    async def ask(
        self,
        role: str,
        task: str,
        kind: type[R],
        *more: str,
        rounds: Sequence[str] = (),
        words: Mapping[str, Collection[str]] = {},
        trusted: Mapping[str, str] = {},
        chars: int = 0,
        temperature: float = 0.0,
        **texts: str,
    ) -> tuple[R, ReplyCost]:
        """Asks a role about the meme, or a question on it. Raises as :meth:`eval.models.metered.MeteredModel.say`.

        Args:
            more: Parts before the task itself.
            words: Words that fields of the reply are chosen from.
            trusted: Our own texts for gaps in the words of the task.
            texts: Other texts for them, which are fenced although models wrote them: a model that read the meme may
                pass on an instruction from it.
        """
        prompt, scene = prompt_of(role), self.scene
        agent = Agent(prompt, task, partial(parse_words, kind, words=words), form_of(kind, chars or self.chars, words))
        parts = scene.question(prompt, rounds) if rounds else scene.parts(prompt)
        fenced = {name: scene.fence.around(text) for name, text in texts.items()}
        return await self._say(agent, [*parts, *more, prompt.task(task, **trusted, **fenced)], temperature)

    async def _say(
        self, agent: Agent[T], parts: Sequence[str | Frame], temperature: float = 0.0
    ) -> tuple[T, ReplyCost]:
        reply = await self.model.say(agent, parts, fence=self.scene.fence, temperature=temperature)
        return reply.value, cost_of(self.model.name, reply.call)

    async def answer(self, question: str) -> tuple[FixedQuestion, tuple[ReplyCost, ...], int]:
        """Answers a question in two parts; returns what :meth:`converse` does."""
        reply, cost = await self.ask("target", "answer", TargetAnswer, question=question)
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
        prompt, around = prompt_of("target"), self.scene.fence.around
        # One text instead of two parts, so it may be as long as both together.
        how: dict[str, Any] = {"chars": 2 * self.chars}
        how["trusted"] = {"language": f", in the language {language}" if language else ""}
        history: list[str] = []
        answers, calls, forgotten = [], [], 0
        for question in rounds:
            # Drops whole rounds, the oldest first, so that no question loses its answer.
            while history_chars is not None and history and sum(map(len, history)) > history_chars:
                del history[0]
            reply, call = await self.ask("target", "free", FreeAnswer, *history, **how, question=question)
            answers.append(reply.answer)
            calls.append(call)
            forgotten = len(answers) - 1 - len(history)
            history.append(prompt.task("round", question=around(question), answer=around(reply.answer)))
        return FixedQuestion("", tuple(answers)), tuple(calls), forgotten

    async def fuse(self, question: str, first: FixedQuestion, second: FixedQuestion) -> tuple[FixedQuestion, ReplyCost]:
        """Merges two texts into one."""
        texts: dict[str, Any] = {"background_1": first.background, "reasoning_1": _joined(first)}
        texts |= {"background_2": second.background, "reasoning_2": _joined(second)}
        reply, cost = await self.ask("fuser", "fuse", TargetAnswer, question=question, **texts)
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
        words, trusted = {"aspect": aspects} if several else {}, {"asked": fields}
        return await self.ask(EXPLAINER, "explain", Explanation, *more, rounds=rounds, words=words, trusted=trusted)

    async def rate_difficulty(
        self, rounds: Sequence[str], reference: FixedQuestion | None
    ) -> tuple[Difficulty, ReplyCost]:
        """Rates the difficulty of a task."""
        more = []
        if reference is not None:
            words = "\n\n".join(filter(None, (reference.background, _joined(reference))))
            more.append(prompt_of(ANNOTATOR).task("reference", reference=self.scene.fence.around(words)))
        return await self.ask(ANNOTATOR, "rate", Difficulty, *more, rounds=rounds)


def judging(prompt: Prompt, keys: tuple[str, ...], levels: int, chars: int, *, own: bool = False) -> Agent[Verdicts]:
    """Returns the agent that compares two answers by the criteria with these keys."""
    read = partial(parse_verdicts, keys=keys, levels=levels, own=own)
    kind, words = _comparison(keys, levels, own)
    return Agent(prompt, "verdicts", read, form_of(kind, chars, words))


def _joined(answer: FixedQuestion) -> str:
    if len(answer.rounds) == 1:
        return answer.rounds[0]
    return "\n\n".join(f"{number}. {text}" for number, text in enumerate(answer.rounds, 1))


def style_of(text: str) -> Style:
    """Measures the style of a text: words and Markdown markup."""
    return Style(
        words=len(text.split()),
        # Up to three spaces, as in CommonMark: four make a code block.
        headings=len(re.findall(r"^\s{0,3}#{1,6}\s", text, re.MULTILINE)),
        lists=len(re.findall(r"^\s*(?:[-*+•]|\d+[.)])\s", text, re.MULTILINE)),
        bold=len(re.findall(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1", text)),
    )
