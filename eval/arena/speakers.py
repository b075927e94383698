"""Controller, target, fuser and judge: each is a prompt, a reply type and one call.

Arguments determine which model sees what. No model is told who wrote a text, and every written text is fenced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from court.meme import Frame
from court.prompts import Prompt
from court.untrusted import Fence
from eval.arena import replies
from eval.arena.criteria import Criterion, keys_of
from eval.arena.events import ReplyCost, Style, call_of
from eval.arena.replies import Difficulty, Explanation, Profiles, TargetAnswer
from eval.arena.words import Verdicts
from eval.models import prompts
from eval.models.memes import ShownMeme
from eval.models.metered import MeteredModel

T = TypeVar("T")
_PACKAGE = "eval.arena.prompts"
ROLES = ("controller", "target", "fuser", "judge")
"""Roles of every arena; their prompts are part of its manifest."""
EXPLAINER, DETECTOR, ANNOTATOR = "explainer", "detector", "annotator"
"""Roles that may come after an arena: who says why battles were lost, labels memes, rates how hard tasks are."""


_VERSIONS = {"judge": 2}
"""Versions of prompts, where it is another than the first."""


def prompt_of(role: str) -> Prompt:
    """Returns the prompt of one of :data:`ROLES`, or of a later role."""
    return prompts.load(_PACKAGE, role, _VERSIONS.get(role, 1))


@dataclass(frozen=True, slots=True)
class Agent(Generic[T]):
    """One task of a role, with the form of its reply.

    Attributes:
        schema: JSON schema of its reply, for a maximum length of a part in characters.
    """

    role: str
    task: str
    parse: Callable[[str], T]
    schema: Callable[[int], Mapping[str, Any]]


_PROFILES = Agent("controller", "profiles", replies.parse_profiles, replies.profiles_schema)
_QUESTION = Agent("controller", "question", replies.parse_question, replies.question_schema)
_ANSWER = Agent("target", "answer", replies.parse_answer, replies.answer_schema)
_FUSION = Agent("fuser", "fuse", replies.parse_answer, replies.answer_schema)
_DETECTION = Agent(DETECTOR, "detect", replies.parse_detection, lambda _: replies.DETECTION_SCHEMA)


@dataclass(frozen=True, slots=True)
class FixedQuestion:
    """An answer to be merged or compared.

    Attributes:
        background: Background knowledge; empty if the question was supplied.
        rounds: Text of each round, at least one.
    """

    background: str
    rounds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Speaker:
    """One model with one meme.

    Attributes:
        chars: Maximum length of a part of a reply, in characters.
    """

    model: MeteredModel
    meme: ShownMeme
    chars: int
    fence: Fence = field(init=False)

    def __post_init__(self) -> None:
        # Derived from the meme, not random: prompts must be identical when a run is resumed, or no reply is found in
        # the call cache.
        object.__setattr__(self, "fence", self.model.fence(self.meme.id, self.meme.pixels_sha256))

    async def profiles(self, temperature: float) -> tuple[Profiles, ReplyCost]:
        """Describes three people who come across the meme. Raises as :meth:`eval.models.metered.MeteredModel.say`."""
        return await self._ask(_PROFILES, temperature=temperature)

    async def question(self, profile: str, temperature: float) -> tuple[str, ReplyCost]:
        """Asks a model for a question about the meme."""
        # Fenced although a model wrote it: that model read the meme, and may pass on an instruction from it.
        return await self._ask(_QUESTION, profile=self.fence.around(profile), temperature=temperature)

    async def answer(self, question: str) -> tuple[TargetAnswer, ReplyCost]:
        """Answers a question in two parts."""
        return await self._ask(_ANSWER, question=self.fence.around(question))

    async def converse(
        self, rounds: Sequence[str], language: str, history_chars: int | None = None
    ) -> tuple[tuple[str, ...], tuple[ReplyCost, ...], int]:
        """Asks questions that build on each other.

        Args:
            rounds: Questions, in order.
            language: Language that answers should be in; empty for none.
            history_chars: Maximum length of the history sent with a question, in characters; the oldest rounds are
                dropped so that a model with a small context can answer at all. None for the whole history.

        Returns:
            The answers, their costs, and the number of rounds dropped from the last question's history.
        """
        prompt = prompt_of("target")
        in_language = f", in the language {language}" if language else ""
        shown = self._shown(prompt)
        history: list[str] = []
        answers, calls, forgotten = [], [], 0
        for question in rounds:
            # Drops whole rounds, the oldest first, so that no question loses its answer.
            while history_chars is not None and history and sum(map(len, history)) > history_chars:
                del history[0]
            fenced = self.fence.around(question)
            parts = [*shown, *history, prompt.task("free", question=fenced, language=in_language)]
            # One text instead of two parts, so it may be as long as both together.
            schema = replies.free_schema(2 * self.chars)
            answer, call = await self._say(prompt, "free", parts, parse=replies.parse_free, schema=schema)
            answers.append(answer)
            calls.append(call)
            forgotten = len(answers) - 1 - len(history)
            history.append(prompt.task("round", question=fenced, answer=self.fence.around(answer)))
        return tuple(answers), tuple(calls), forgotten

    async def fuse(self, question: str, first: FixedQuestion, second: FixedQuestion) -> tuple[TargetAnswer, ReplyCost]:
        """Merges two texts into one."""
        values = {
            f"{name}_{number}": self.fence.around(text)
            for number, answer in ((1, first), (2, second))
            for name, text in (("background", answer.background), ("reasoning", _joined(answer)))
        }
        return await self._ask(_FUSION, temperature=0.0, question=self.fence.around(question), **values)

    async def compare(
        self,
        rounds: Sequence[str],
        reference: FixedQuestion | None,
        a: FixedQuestion,
        b: FixedQuestion,
        *,
        criteria: Sequence[Criterion],
        levels: int,
    ) -> tuple[Verdicts, ReplyCost]:
        """Asks which of two answers is better, by each criterion.

        Args:
            reference: Reference to judge by; None for none.
            a: Answer shown first.
            b: Answer shown second.
            criteria: Criteria, with the overall verdict last.
            levels: Number of levels, 3 or 5.
        """
        prompt, keys = prompt_of("judge"), keys_of(criteria)
        parts = comparison(
            prompt,
            self.meme,
            self.fence,
            rounds=rounds,
            reference=reference,
            answers=(a, b),
            criteria=criteria,
            levels=levels,
        )
        return await self._say(
            prompt,
            "verdicts",
            parts,
            parse=partial(replies.parse_verdicts, keys=keys, levels=levels),
            schema=replies.verdicts_schema(keys, levels=levels, chars=self.chars),
        )

    async def explain(
        self, rounds: Sequence[str], better: FixedQuestion, worse: FixedQuestion, *, why: str, aspects: Sequence[str]
    ) -> tuple[Explanation, ReplyCost]:
        """Explains why an answer lost.

        Args:
            rounds: One question, or several.
            why: Reasons of the judges that agree.
            aspects: Dimensions in which it may have lost most; with fewer than two, the model is not asked for one.
        """
        prompt = prompt_of(EXPLAINER)
        parts: list[str | Frame] = self._shown(prompt)
        parts.append(prompt.task("question", question=self.fence.around("\n\n".join(rounds))))
        texts = {"better": self._laid_out(prompt, better), "worse": self._laid_out(prompt, worse)}
        parts.append(prompt.task("answers", **texts, why=self.fence.around(why)))
        parts.append(prompt.task("error"))
        if len(aspects) > 1:
            parts.append(prompt.task("aspect", aspects=", ".join(f'"{one}"' for one in aspects)))
        fields = '"aspect": "...", "error": "..."' if len(aspects) > 1 else '"error": "..."'
        parts.append(prompt.task("explain", asked=fields))
        return await self._say(
            prompt,
            "explain",
            parts,
            parse=partial(replies.parse_explanation, aspects=aspects),
            schema=replies.explanation_schema(aspects, 400),
        )

    async def detect(self) -> tuple[bool, ReplyCost]:
        """Labels the meme as harmful or not."""
        return await self._ask(_DETECTION)

    async def rate_difficulty(
        self, rounds: Sequence[str], reference: FixedQuestion | None
    ) -> tuple[Difficulty, ReplyCost]:
        """Rates the difficulty of a task.

        Args:
            rounds: One question, or several.
            reference: A good answer, if there is one; otherwise None.
        """
        prompt = prompt_of(ANNOTATOR)
        parts: list[str | Frame] = self._shown(prompt)
        parts.append(prompt.task("question", question=self.fence.around("\n\n".join(rounds))))
        if reference is not None:
            words = "\n\n".join(filter(None, (reference.background, _joined(reference))))
            parts.append(prompt.task("reference", reference=self.fence.around(words)))
        parts.append(prompt.task("rate"))
        return await self._say(
            prompt, "rate", parts, parse=replies.parse_difficulty, schema=replies.difficulty_schema(400)
        )

    async def _ask(self, agent: Agent[T], *, temperature: float = 0.0, **texts: str) -> tuple[T, ReplyCost]:
        """Asks an agent about the meme, with the texts that the words of its task have gaps for."""
        prompt, schema = prompt_of(agent.role), agent.schema(self.chars)
        parts = [*self._shown(prompt), prompt.task(agent.task, **texts)]
        return await self._say(prompt, agent.task, parts, parse=agent.parse, schema=schema, temperature=temperature)

    async def _say(
        self,
        prompt: Prompt,
        task: str,
        parts: Sequence[str | Frame],
        *,
        parse: Callable[[str], T],
        schema: Mapping[str, Any],
        temperature: float = 0.0,
    ) -> tuple[T, ReplyCost]:
        reply = await self.model.say(
            prompt, task, parts, parse, fence=self.fence, schema=schema, temperature=temperature
        )
        return reply.value, call_of(self.model, prompt, task, reply)

    def _shown(self, prompt: Prompt) -> list[str | Frame]:
        return _meme_parts(prompt, self.meme, self.fence)

    def _laid_out(self, prompt: Prompt, answer: FixedQuestion) -> str:
        return _laid_out(prompt, self.fence, answer)


def comparison(
    prompt: Prompt,
    meme: ShownMeme,
    fence: Fence,
    *,
    rounds: Sequence[str],
    reference: FixedQuestion | None,
    answers: tuple[FixedQuestion, FixedQuestion],
    criteria: Sequence[Criterion],
    levels: int,
) -> list[str | Frame]:
    """Returns the parts of the message that asks a judge to compare two answers; see :meth:`Speaker.compare`."""
    parts = _meme_parts(prompt, meme, fence)
    parts.append(prompt.task("question", question=fence.around("\n\n".join(rounds))))
    if reference is not None:
        parts.append(prompt.task("reference", reference=_laid_out(prompt, fence, reference)))
    a, b = (_laid_out(prompt, fence, one) for one in answers)
    parts.append(prompt.task("answers", a=a, b=b))
    parts.append(
        prompt.task(
            "verdicts",
            words=prompt.task("three" if levels == 3 else "five"),
            criteria="\n".join(prompt.task("criterion", key=one.key, meaning=one.words) for one in criteria),
            keys=", ".join(f'"{key}": ...' for key in keys_of(criteria)),
        )
    )
    return parts


def _meme_parts(prompt: Prompt, meme: ShownMeme, fence: Fence) -> list[str | Frame]:
    """Returns the parts that show a meme: the picture first, as it is the same in every call."""
    return [*meme.frames, prompt.task("meme", text=fence.around(meme.text))]


def _laid_out(prompt: Prompt, fence: Fence, answer: FixedQuestion) -> str:
    if answer.background:
        return prompt.task("parts", background=fence.around(answer.background), reasoning=fence.around(_joined(answer)))
    return prompt.task("plain", answer=fence.around(_joined(answer)))


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
