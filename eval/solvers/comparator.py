"""Comparators: other ways of asking the same model, cheaper or of equal cost, as baselines for a whole trial.

They run no trial and leave no record; their output is a prediction like any other. They use the Judge's model, the
run's policy and the same call cache.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Any, Literal, TypeVar

from pydantic import Field, JsonValue

from court import replies
from court.deadline import gather_or_cancel
from court.errors import BadRequest
from court.events import Role
from court.meme import Frame
from court.messages import JudgeBrief
from court.prompts import Prompt
from court.replies import Reply, Words
from court.verdict import Label, rule
from eval.datasets.items import JudgedMeme, Outcome, Prediction
from eval.models.metered import Agent, load
from eval.solvers.calls import PROMPTS, AnsweringSolver, DecodedMeme, MemeCalls, MemeItem, StoredCourt

_R = TypeVar("_R", bound=Reply)

TEMPERATURE = 0.7
"""Temperature of the samples of :attr:`Comparator.SAMPLES`: at 0 all samples would be equal."""
_DRAWS = 1_000_003
"""Distance between the seeds of consecutive runs, so that no two runs share a sample."""
_LABEL = {"type": "string", "enum": ["harmful", "not harmful"]}


class Comparator(StrEnum):
    """Method that a trial is compared with."""

    PLAIN = "plain judge"
    """One call with picture and text that returns only a label."""
    SAMPLES = "equal compute"
    """The Judge's own question about picture and text alone, sampled at a temperature as often as the tokens of the
    meme's full trial allow; majority label, harmful on a tie."""
    MARS = "mars"
    """Four calls: a description, evidence for harm, evidence against it, a conclusion."""
    CORRECTED = "self-correct"
    """One model that looks its own answer over again and again, as long as the tokens of the meme's full trial allow;
    its last answer counts."""
    PARAPHRASE = "paraphrase"
    """Three calls: a malign reading in other words, a benign one, a conclusion."""


EQUAL = frozenset({Comparator.SAMPLES, Comparator.CORRECTED})
"""Comparators that spend the tokens of the full trial."""
OF_TEXTS = frozenset({"", Comparator.SAMPLES})
"""Those that judge texts without pictures; empty is none."""


class _LabelReply(Reply):
    label: Literal["harmful", "not harmful"]


class _Conclusion(Reply):
    rationale: Words = Field(min_length=1, max_length=3000)
    label: Literal["harmful", "not harmful"]


class _EvidenceReply(Reply):
    evidence: Words = Field(min_length=1, max_length=2000)


def settings_of_comparator(comparator: Comparator) -> dict[str, JsonValue]:
    """Describes a comparator for the manifest of its run."""
    if comparator is Comparator.SAMPLES:
        return {"name": str(comparator), "prompt": "the Judge's, of the meme alone", "temperature": TEMPERATURE}
    prompt = load(PROMPTS, re.sub(r"\W", "_", comparator))
    return {"name": str(comparator), "prompt": prompt.id, "prompt_digest": prompt.digest}


@dataclass(frozen=True, slots=True)
class ComparatorSolver(AnsweringSolver):
    """Asks a comparator about the memes of one run."""

    stored: StoredCourt
    comparator: Comparator
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Tokens that may be spent on each meme, input plus output, by its id; for those of :data:`EQUAL`."""
    text_only: bool = False

    async def predict(self, item: MemeItem) -> Prediction:
        """See the base class."""
        shown = DecodedMeme(item.meme) if self.text_only else await self.stored.decoded(item)
        calls, score = _ComparatorCalls(self.stored, shown), None
        match self.comparator:
            case Comparator.PLAIN:
                harmful = await calls.plain()
            case Comparator.MARS:
                harmful = await calls.mars()
            case Comparator.PARAPHRASE:
                harmful = await calls.weighed(load(PROMPTS, "paraphrase"))
            case Comparator.CORRECTED:
                harmful = await calls.corrected(self._budget(item.meme))
            case Comparator.SAMPLES:
                harmful, score = await calls.samples(self._budget(item.meme))
        outcome = Outcome.HARMFUL if harmful else Outcome.NOT_HARMFUL
        return Prediction(meme=item.meme.id, outcome=outcome, score=score, cost=calls.cost())

    def _budget(self, meme: JudgedMeme) -> int:
        # A guessed budget would silently make the comparison with the full trial unfair.
        if meme.id not in self.budgets:
            raise BadRequest(f"It is not known what the full trial of {meme.id} spent.")
        return self.budgets[meme.id]


@dataclass(slots=True)
class _ComparatorCalls(MemeCalls):
    """The calls about one meme."""

    async def plain(self) -> bool:
        """True if harmful, by one call for the label alone."""
        prompt = load(PROMPTS, "plain_judge")
        return (await self._call(prompt, "label", kind=_LabelReply, label=_LABEL)).label == "harmful"

    async def mars(self) -> bool:
        """True if harmful, by description, evidence for, evidence against, conclusion."""
        prompt = load(PROMPTS, "mars")
        description = await self._call(prompt, "describe", kind=replies.Description, description=self._words)
        return await self.weighed(
            prompt, prompt.task("description", description=self.fence.around(description.description))
        )

    async def weighed(self, prompt: Prompt, *shown: str) -> bool:
        """True if harmful, by what speaks for harm, what speaks against it, and a conclusion."""
        around, words = self.fence.around, self._words
        harmful, harmless = await gather_or_cancel(
            *(self._call(prompt, task, *shown, kind=_EvidenceReply, evidence=words) for task in ("for", "against"))
        )
        both = prompt.task("both", harmful=around(harmful.evidence), harmless=around(harmless.evidence))
        return (await self._conclude(prompt, *shown, both)).label == "harmful"

    async def corrected(self, budget: int) -> bool:
        """True if the last answer is harmful; it is given at least once."""
        prompt, earlier = load(PROMPTS, "self_correct"), ""
        for turn in count(1):
            reply = await self._conclude(prompt, *filter(None, [earlier]))
            if not self._has_room(turn, budget):
                return reply.label == "harmful"
            answer = self.fence.around(f"{reply.rationale} So it is {reply.label}.")
            # Numbered: an answer that stays the same would else make the same request, which the store answers.
            earlier = prompt.task("earlier", number=str(turn), answer=answer)
        raise AssertionError("unreachable: the count does not end")

    async def samples(self, budget: int) -> tuple[bool, float]:
        """True if most samples are harmful, and their share; at least one sample is drawn."""
        brief: JudgeBrief[Frame] = JudgeBrief(
            pictures=self.shown.frames,
            policy=self.court.policy,
            fence=self.fence,
            text=self.shown.meme.text,
            meme_only=True,
            prompts=self.court.prompts,
        )
        messages = brief.rule(self.court.settings.reply_chars)
        votes: list[bool] = []
        # Sequentially: the cost of a sample is known only afterwards.
        for draw in count():
            # A seed per sample: with the same one, the call cache would return the first reply again.
            speaker = self.speaker(seed=self.stored.seed * _DRAWS + draw, temperature=TEMPERATURE)
            reply = await speaker.say(Role.JUDGE, messages, lambda text, _: replies.parse_ruling(text, brief.policy, 0))
            ruling = reply.value
            votes.append(rule(ruling.harmful_strength, ruling.harmless_strength) is Label.HARMFUL)
            if not self._has_room(len(votes), budget):
                break
        # A tie counts as harmful, as in the court.
        return 2 * sum(votes) >= len(votes), sum(votes) / len(votes)

    def _has_room(self, answers: int, budget: int) -> bool:
        """True if another answer that costs as much as the mean of those so far stays within the budget."""
        spent = self.cost()
        tokens = spent.tokens_in + spent.tokens_out
        return tokens + tokens / answers <= budget

    @property
    def _words(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": self.court.settings.reply_chars}

    async def _conclude(self, prompt: Prompt, *material: str) -> _Conclusion:
        return await self._call(prompt, "conclude", *material, kind=_Conclusion, rationale=self._words, label=_LABEL)

    async def _call(self, prompt: Prompt, task: str, *material: str, kind: type[_R], **fields: dict[str, Any]) -> _R:
        system = prompt.system(policy=self.court.policy.text)
        agent = Agent(prompt, task, partial(replies.parse, kind), replies.object_schema(fields), system=system)
        meme = prompt.task("meme", text=self.fence.around(self.shown.meme.text))
        return await self.ask(agent, [*self.shown.frames, meme, *material, prompt.task(task)])
