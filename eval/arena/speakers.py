"""Controller, target, fuser and judge: each is a prompt, a reply type and one call.

Arguments determine which model sees what. No model is told who wrote a text, and every written text is fenced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

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
from eval.models.metered import MeteredModel, ParsedReply

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

    role_model: MeteredModel
    meme: ShownMeme
    chars: int
    fence: Fence = field(init=False)

    def __post_init__(self) -> None:
        # Derived from the meme, not random: prompts must be identical when a run is resumed, or no reply is found in
        # the call cache.
        object.__setattr__(self, "fence", self.role_model.fence(self.meme.id, self.meme.pixels_sha256))

    async def profiles(self, temperature: float) -> tuple[Profiles, ReplyCost]:
        """Describes three people who come across the meme. Raises as :meth:`eval.models.metered.MeteredModel.say`."""
        prompt = prompt_of("controller")
        reply = await self.role_model.say(
            prompt,
            "profiles",
            [*self._shown(prompt), prompt.task("profiles")],
            replies.parse_profiles,
            fence=self.fence,
            schema=replies.profiles_schema(self.chars),
            temperature=temperature,
        )
        return reply.value, call_of(self.role_model, prompt, "profiles", reply)

    async def question(self, profile: str, temperature: float) -> tuple[str, ReplyCost]:
        """Asks a model for a question about the meme."""
        prompt = prompt_of("controller")
        reply = await self.role_model.say(
            prompt,
            "question",
            # Fenced although a model wrote it: that model read the meme, and may pass on an instruction from it.
            [*self._shown(prompt), prompt.task("question", profile=self.fence.around(profile))],
            replies.parse_question,
            fence=self.fence,
            schema=replies.question_schema(self.chars),
            temperature=temperature,
        )
        return reply.value, call_of(self.role_model, prompt, "question", reply)

    async def answer(self, question: str) -> tuple[TargetAnswer, ReplyCost]:
        """Answers a question in two parts."""
        prompt = prompt_of("target")
        reply = await self.role_model.say(
            prompt,
            "answer",
            [*self._shown(prompt), prompt.task("answer", question=self.fence.around(question))],
            replies.parse_answer,
            fence=self.fence,
            schema=replies.answer_schema(self.chars),
        )
        return reply.value, call_of(self.role_model, prompt, "answer", reply)

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
            reply = await self.role_model.say(
                prompt,
                "free",
                [*shown, *history, prompt.task("free", question=fenced, language=in_language)],
                replies.parse_free,
                fence=self.fence,
                # One text instead of two parts, so it may be as long as both together.
                schema=replies.free_schema(2 * self.chars),
            )
            answers.append(reply.value)
            calls.append(call_of(self.role_model, prompt, "free", reply))
            forgotten = len(answers) - 1 - len(history)
            history.append(prompt.task("round", question=fenced, answer=self.fence.around(reply.value)))
        return tuple(answers), tuple(calls), forgotten

    async def fuse(self, question: str, first: FixedQuestion, second: FixedQuestion) -> tuple[TargetAnswer, ReplyCost]:
        """Merges two texts into one."""
        prompt = prompt_of("fuser")
        values = {
            f"{name}_{number}": self.fence.around(text)
            for number, answer in ((1, first), (2, second))
            for name, text in (("background", answer.background), ("reasoning", _joined(answer)))
        }
        reply = await self.role_model.say(
            prompt,
            "fuse",
            [*self._shown(prompt), prompt.task("fuse", question=self.fence.around(question), **values)],
            replies.parse_answer,
            fence=self.fence,
            schema=replies.answer_schema(self.chars),
        )
        return reply.value, call_of(self.role_model, prompt, "fuse", reply)

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
        reply: ParsedReply[Verdicts] = await self.role_model.say(
            prompt,
            "verdicts",
            parts,
            partial(replies.parse_verdicts, keys=keys, levels=levels),
            fence=self.fence,
            schema=replies.verdicts_schema(keys, levels=levels, chars=self.chars),
        )
        return reply.value, call_of(self.role_model, prompt, "verdicts", reply)

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
        reply = await self.role_model.say(
            prompt,
            "explain",
            parts,
            partial(replies.parse_explanation, aspects=aspects),
            fence=self.fence,
            schema=replies.explanation_schema(aspects, 400),
        )
        return reply.value, call_of(self.role_model, prompt, "explain", reply)

    async def detect(self) -> tuple[bool, ReplyCost]:
        """Labels the meme as harmful or not."""
        prompt = prompt_of(DETECTOR)
        reply = await self.role_model.say(
            prompt,
            "detect",
            [*self._shown(prompt), prompt.task("detect")],
            replies.parse_detection,
            fence=self.fence,
            schema=replies.DETECTION_SCHEMA,
        )
        return reply.value, call_of(self.role_model, prompt, "detect", reply)

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
        reply = await self.role_model.say(
            prompt,
            "rate",
            parts,
            replies.parse_difficulty,
            fence=self.fence,
            schema=replies.difficulty_schema(400),
        )
        return reply.value, call_of(self.role_model, prompt, "rate", reply)

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
