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
from eval.arena.events import Answered, Event, FusionBegun, FusionRound, ReplyCost, Style, cost_of
from eval.arena.settings import ArenaSettings
from eval.arena.words import LOSS_ERRORS, LossError, Relevance, Verdict, Verdicts, words_of
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


_Why = Annotated[Words, TextBounds(), Field(max_length=_WHY)]


def form_of(kind: type[Reply], chars: int, **overrides: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON schema of a reply, with at most ``chars`` characters of each text, and no more than is read."""
    marks = (mark for info in kind.model_fields.values() for mark in info.metadata)
    return schema_of(
        kind, min([chars, *(mark.max_length for mark in marks if hasattr(mark, "max_length"))]), **overrides
    )


def verdicts_form(keys: tuple[str, ...], *, levels: int, chars: int, own: bool) -> dict[str, Any]:
    """Returns the JSON schema of a comparison of this many levels: reasons first, as a model writes in order."""
    word = {"type": "string", "enum": list(words_of(levels))}
    answer = form_of(FreeAnswer, chars)["properties"] if own else {}
    reasons = form_of(_Reasons, chars)["properties"]
    return object_schema({**answer, **reasons, **dict.fromkeys(keys, word)})


class _Reasons(Reply):
    why: _Why


class _AnsweredReasons(FreeAnswer, _Reasons):
    """Reasons after the judge's own answer."""


# Cached per set of keys: creating the class takes longer than parsing a reply with it.
@cache
def _comparison(keys: tuple[str, ...], own: bool) -> type[_Reasons]:
    # Plain strings: the allowed words depend on the levels, so parse_verdicts checks them. Aliases, because a custom
    # key may be a reserved word of pydantic or Python.
    fields: dict[str, Any] = {f"criterion_{place}": (str, Field(alias=key)) for place, key in enumerate(keys)}
    return create_model("Comparison", __base__=_AnsweredReasons if own else _Reasons, **fields)


def _require_one_of(allowed: Collection[str], chosen: Mapping[str, str]) -> None:
    """Raises UnusableReply if a field of a reply holds something else than the allowed words."""
    if wrong := [field for field, word in chosen.items() if word not in allowed]:
        raise UnusableReply("REPLY_MALFORMED", f"{', '.join(wrong)} must be one of {', '.join(allowed)}")


def parse_verdicts(text: str, *, keys: tuple[str, ...], levels: int, own: bool = False) -> Verdicts:
    """Parses one verdict per criterion, each one of the allowed words. Raises UnusableReply."""
    parsed = parse(_comparison(keys, own), text)
    words: dict[str, str] = {key: getattr(parsed, f"criterion_{place}") for place, key in enumerate(keys)}
    offered: Mapping[str, Verdict] = words_of(levels)
    _require_one_of(offered, words)
    verdicts = {key: offered[word] for key, word in words.items()}
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


RATED = {key: {"type": "integer", "minimum": 0, "maximum": 10} for key in ("text", "image", "reasoning")}
"""Schemas of the numbers of :class:`Difficulty`."""


class TaskPlace(Reply):
    """Subject of a question that came with a set."""

    why: _Why
    picture: Literal["needed", "not needed"]
    field: str
    sub_field: Annotated[Words, TextBounds()] = Field(max_length=60)
    depends: int = Field(ge=0, le=10)
    """How much later rounds depend on earlier ones."""


def parse_place(text: str, *, fields: Sequence[str]) -> TaskPlace:
    """Parses the subject of a question, whose field is one of these. Raises UnusableReply."""
    place = parse(TaskPlace, text)
    _require_one_of(fields, {"field": place.field})
    return place


class Explanation(Reply):
    """Reason why an answer lost."""

    why: _Why
    aspect: str = ""
    error: LossError


def explanation_form(aspects: Sequence[str], chars: int) -> dict[str, Any]:
    """Returns the JSON schema of :class:`Explanation`; with fewer than two aspects, the model is not asked for one."""
    properties = {"aspect": {"type": "string", "enum": list(aspects)}} if len(aspects) > 1 else {}
    error = {"type": "string", "enum": list(LOSS_ERRORS)}
    return object_schema({**form_of(_Reasons, chars)["properties"], **properties, "error": error})


def parse_explanation(text: str, *, aspects: Sequence[str]) -> Explanation:
    """Parses a reason; it must name one of the aspects if there was a choice. Raises UnusableReply."""
    explanation = parse(Explanation, text)
    # Without a choice, the model was not asked for an aspect, and any that it names is ignored.
    if len(aspects) > 1:
        _require_one_of(aspects, {"aspect": explanation.aspect})
    return explanation


T = TypeVar("T")
R = TypeVar("R", bound=Reply)
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
    chars: int
    """Maximum length of a part of a reply, in characters."""
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
        shown = self.scene.parts(prompt)
        history: list[str] = []
        answers, calls, forgotten = [], [], 0
        for question in rounds:
            # Drops whole rounds, the oldest first, so that no question loses its answer.
            while history_chars is not None and history and sum(map(len, history)) > history_chars:
                del history[0]
            fenced = self.scene.fence.around(question)
            parts = [*shown, *history, prompt.task("free", question=fenced, language=in_language)]
            # One text instead of two parts, so it may be as long as both together.
            schema = form_of(FreeAnswer, 2 * self.chars)
            reply, call = await self._say(Agent(prompt, "free", partial(parse, FreeAnswer), schema), parts)
            answer = reply.answer
            answers.append(answer)
            calls.append(call)
            forgotten = len(answers) - 1 - len(history)
            history.append(prompt.task("round", question=fenced, answer=self.scene.fence.around(answer)))
        return FixedQuestion("", tuple(answers)), tuple(calls), forgotten

    async def fuse(self, question: str, first: FixedQuestion, second: FixedQuestion) -> tuple[FixedQuestion, ReplyCost]:
        """Merges two texts into one."""
        values = {
            f"{name}_{number}": self.scene.fence.around(text)
            for number, answer in ((1, first), (2, second))
            for name, text in (("background", answer.background), ("reasoning", _joined(answer)))
        }
        question = self.scene.fence.around(question)
        reply, cost = await self._ask("fuser", "fuse", TargetAnswer, temperature=0.0, question=question, **values)
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
        prompt = prompt_of(EXPLAINER)
        parts = self.scene.question(prompt, rounds)
        texts = {"better": self.scene.answer(prompt, better), "worse": self.scene.answer(prompt, worse)}
        parts.append(prompt.task("answers", **texts, why=self.scene.fence.around(why)))
        parts.append(prompt.task("error"))
        if len(aspects) > 1:
            parts.append(prompt.task("aspect", aspects=", ".join(f'"{one}"' for one in aspects)))
        fields = '"aspect": "...", "error": "..."' if len(aspects) > 1 else '"error": "..."'
        parts.append(prompt.task("explain", asked=fields))
        read = partial(parse_explanation, aspects=aspects)
        return await self._say(Agent(prompt, "explain", read, explanation_form(aspects, 400)), parts)

    async def detect(self) -> tuple[bool, ReplyCost]:
        """Labels the meme as harmful or not."""
        reply, cost = await self._ask(DETECTOR, "detect", Detection)
        return reply.label == "harmful", cost

    async def rate_difficulty(
        self, rounds: Sequence[str], reference: FixedQuestion | None
    ) -> tuple[Difficulty, ReplyCost]:
        """Rates the difficulty of a task."""
        prompt = prompt_of(ANNOTATOR)
        parts = self.scene.question(prompt, rounds)
        if reference is not None:
            words = "\n\n".join(filter(None, (reference.background, _joined(reference))))
            parts.append(prompt.task("reference", reference=self.scene.fence.around(words)))
        parts.append(prompt.task("rate"))
        schema = form_of(Difficulty, 400, **RATED)
        return await self._say(Agent(prompt, "rate", partial(parse, Difficulty), schema), parts)

    async def place(self, rounds: Sequence[str], fields: Sequence[str]) -> tuple[TaskPlace, ReplyCost]:
        """Names the field of a question, and tells if it needs the picture."""
        prompt = prompt_of(ANNOTATOR)
        parts = [*self.scene.question(prompt, rounds), prompt.task("place", fields=", ".join(fields))]
        allowed = {"type": "string", "enum": list(fields)}
        schema = form_of(TaskPlace, 400, field=allowed, depends=RATED["reasoning"])
        return await self._say(Agent(prompt, "place", partial(parse_place, fields=fields), schema), parts)

    async def _ask(
        self, role: str, task: str, kind: type[R], *, temperature: float = 0.0, **texts: str
    ) -> tuple[R, ReplyCost]:
        """Asks a role about the meme, with the texts that the words of its task have gaps for."""
        prompt = prompt_of(role)
        agent = Agent(prompt, task, partial(parse, kind), form_of(kind, self.chars))
        return await self._say(agent, [*self.scene.parts(prompt), prompt.task(task, **texts)], temperature)

    async def _say(
        self, agent: Agent[T], parts: Sequence[str | Frame], temperature: float = 0.0
    ) -> tuple[T, ReplyCost]:
        reply = await self.model.say(agent, parts, fence=self.scene.fence, temperature=temperature)
        return reply.value, cost_of(self.model.name, reply.call)


def judging(prompt: Prompt, keys: tuple[str, ...], levels: int, chars: int, *, own: bool = False) -> Agent[Verdicts]:
    """Returns the agent that compares two answers by the criteria with these keys."""
    read = partial(parse_verdicts, keys=keys, levels=levels, own=own)
    return Agent(prompt, "verdicts", read, verdicts_form(keys, levels=levels, chars=chars, own=own))


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
