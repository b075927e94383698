"""Comparators: cheaper or as costly ways of asking the same model, to say what a whole trial is worth beside them.

They hold no trial and leave no record; what they say is a prediction like any other. The model is the Judge's, the
policy the run's, and calls come out of the same store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Any, Literal, TypeVar

from pydantic import Field, JsonValue

from court import replies
from court.deadline import Deadline, gather_or_cancel
from court.errors import BadInput, BadRequest, CourtError, ReplyUnusable, Unavailable
from court.events import Role
from court.meme import Frame
from court.messages import JudgeBrief, Messages, apart
from court.prompts import Prompt
from court.record import TrialRecord
from court.replies import Reply, Words
from court.roles import Speaker
from court.trial import Court
from court.untrusted import Fence
from court.verdict import Label, rule
from eval.datasets.items import JudgedMeme
from eval.models.call_cache import HitCounter, stored_chairs
from eval.models.prompts import gave_away, load
from eval.runs.attempt import PICTURE_MISSING, Attempt, Tried, ends_the_run
from eval.runs.prediction import Cost, Outcome, Prediction

_R = TypeVar("_R", bound=Reply)

TEMPERATURE = 0.7
"""Temperature of the samples of :attr:`Comparator.SAMPLES`: at 0 they would all be one."""
_DRAWS = 1_000_003
"""Distance between the seeds of runs, so that samples of one run are none of the next."""
_PROMPTS = "eval.runs.prompts"
_LABELS = ["harmful", "not harmful"]


class Comparator(StrEnum):
    """Way of asking that a trial is compared with."""

    PLAIN = "plain judge"
    """One call with picture and text, which is to give a label and nothing else."""
    SAMPLES = "equal compute"
    """The Judge's own question about picture and text alone, as often as the tokens of the meme's full trial allow, at
    a temperature; the majority's label, and harmful where the votes are even."""
    MARS = "mars"
    """Four calls: a description, evidence for harm, evidence against it, a conclusion."""


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
    prompt = load(_PROMPTS, comparator.replace(" ", "_"))
    return {"name": str(comparator), "prompt": prompt.id, "prompt_digest": prompt.digest}


@dataclass(frozen=True, slots=True)
class ComparatorAttempt(Attempt):
    """Asks a comparator about the memes of one run.

    Attributes:
        comparator: Way of asking.
        budgets: Tokens, read and written, that may be spent on each meme, by its id; for :attr:`Comparator.SAMPLES`.
    """

    comparator: Comparator = Comparator.PLAIN
    budgets: Mapping[str, int] = field(default_factory=dict)

    async def _try_once(
        self, meme: JudgedMeme, known: TrialRecord | None, picture: Callable[[], Awaitable[bytes | None]]
    ) -> Tried:
        try:
            return Tried(await self._predict(meme, picture), False)
        except CourtError as error:
            # What was asked for can't be done: that is no outcome of this meme, and the next ones would end alike.
            if ends_the_run(error) or isinstance(error, BadRequest):
                raise
            failed = Prediction(meme=meme.id, outcome=Outcome.FAILED, reason=error.reason)
            after = error.retry_after if isinstance(error, Unavailable) else None
            return Tried(failed, isinstance(error, Unavailable), retry_after=after or 0.0)

    async def _predict(self, meme: JudgedMeme, picture: Callable[[], Awaitable[bytes | None]]) -> Prediction:
        image = await picture()
        if image is None:
            raise BadInput("The picture is not in the data set's folder.", reason=PICTURE_MISSING)
        decoded = await self.house.pictures.read(image)
        assert self.calls is not None, "comparators ask models"
        asking = _MemeCalls(
            attempt=self,
            meme=meme,
            frames=decoded.frames,
            pixels_sha256=decoded.pixels_sha256,
            # The same mark each time: a resumed run sends the same requests, and finds the replies stored.
            fence=Fence(self.calls.fence_mark(meme.id, hashlib.sha256(image).hexdigest())),
        )
        match self.comparator:
            case Comparator.PLAIN:
                harmful, score = await asking.plain(), None
            case Comparator.MARS:
                harmful, score = await asking.mars(), None
            case Comparator.SAMPLES:
                # A guess would make the comparison with the full trial unfair without a word.
                if meme.id not in self.budgets:
                    raise BadRequest(f"It is not known what the full trial of {meme.id} spent.")
                harmful, score = await asking.samples(self.budgets[meme.id])
        outcome = Outcome.HARMFUL if harmful else Outcome.NOT_HARMFUL
        return Prediction(meme=meme.id, outcome=outcome, score=score, cost=asking.cost())


@dataclass(slots=True)
class _MemeCalls:
    """The calls about one meme."""

    attempt: ComparatorAttempt
    meme: JudgedMeme
    frames: tuple[Frame, ...]
    pixels_sha256: str
    fence: Fence
    _deadline: Deadline = field(init=False)
    _hits: HitCounter = field(default_factory=HitCounter)
    _chain: int = 0

    def __post_init__(self) -> None:
        # No deadline for the whole, as for a trial of a run; each call has its limit, so that nothing can hang.
        self._deadline = Deadline(None, self._court.settings.call_s)

    @property
    def _court(self) -> Court:
        return self.attempt.house.court

    def cost(self) -> Cost:
        # No event is recorded here, so the tally counts every call as unused.
        made = self._deadline.tally.unused()
        if made is None:
            return Cost()
        return Cost(
            calls=made.calls,
            stored=min(self._hits.count, made.calls),
            tokens_in=made.tokens_in,
            tokens_out=made.tokens_out,
            tokens_cached=made.tokens_cached,
            chain=self._chain,
        )

    async def plain(self) -> bool:
        """True if harmful, by one call for the label alone."""
        prompt = load(_PROMPTS, "plain_judge")
        wanted = {"label": {"type": "string", "enum": _LABELS}}
        reply = await self._say(prompt, "label", wanted=wanted, kind=_LabelReply)
        self._chain = 1
        return reply.label == "harmful"

    async def mars(self) -> bool:
        """True if harmful, by description, evidence for, evidence against, conclusion."""
        prompt, around = load(_PROMPTS, "mars"), self.fence.around
        chars = self._court.settings.reply_chars
        words = {"type": "string", "minLength": 1, "maxLength": chars}
        told = await self._say(prompt, "describe", wanted={"description": words}, kind=replies.Description)
        described = prompt.task("description", description=around(told.description))
        harmful, harmless = await gather_or_cancel(
            *(
                self._say(prompt, task, described, wanted={"evidence": words}, kind=_EvidenceReply)
                for task in ("for", "against")
            )
        )
        both = prompt.task("both", harmful=around(harmful.evidence), harmless=around(harmless.evidence))
        wanted = {"rationale": words, "label": {"type": "string", "enum": _LABELS}}
        concluded = await self._say(prompt, "conclude", described, both, wanted=wanted, kind=_Conclusion)
        self._chain = 3  # the two pieces of evidence are asked for at once
        return concluded.label == "harmful"

    async def samples(self, budget: int) -> tuple[bool, float]:
        """True if most samples are harmful, and their share; at least one sample is drawn."""
        brief: JudgeBrief[Frame] = JudgeBrief(
            pictures=self.frames,
            policy=self._court.policy,
            fence=self.fence,
            text=self.meme.text,
            meme_only=True,
            prompts=self._court.prompts,
        )
        asked = brief.rule(self._court.settings.reply_chars)
        votes: list[bool] = []
        # One after the other: what a sample cost is known once it is there.
        for draw in count():
            speaker = self._speaker(seed=self.attempt.seed * _DRAWS + draw, temperature=TEMPERATURE)
            ruling = (await speaker.say(Role.JUDGE, asked, partial(_ruling, brief))).value
            votes.append(rule(ruling.harmful_strength, ruling.harmless_strength) is Label.HARMFUL)
            spent = self.cost()
            tokens = spent.tokens_in + spent.tokens_out
            # The next sample is taken to cost as much as those before on average: so that a budget is not passed.
            if tokens + tokens / len(votes) > budget:
                break
        # Samples are independent: only the budget makes them run in turn. A tie is harmful, as in the court.
        self._chain = 1
        return 2 * sum(votes) >= len(votes), sum(votes) / len(votes)

    async def _say(self, prompt: Prompt, task: str, *material: str, wanted: dict[str, Any], kind: type[_R]) -> _R:
        meme = prompt.task("meme", text=self.fence.around(self.meme.text))
        parts: list[str | Frame] = [*self.frames, meme, *material, prompt.task(task)]
        asked: Messages[Frame] = Messages(
            prompt=prompt,
            task=task,
            system=prompt.system(policy=self._court.policy.text),
            parts=apart(parts),
            schema=replies.object_schema(wanted),
        )

        def read(text: str, _: bool) -> _R:
            # The speaker looks for the secrets of a trial's prompts, of which this is none.
            if gave_away(prompt, text):
                raise ReplyUnusable(Role.JUDGE, task, "SYSTEM_LEAKED", "it gave its instructions away")
            return replies.parse(kind, text)

        return (await self._speaker(seed=self.attempt.seed).say(Role.JUDGE, asked, read)).value

    def _speaker(self, *, seed: int, temperature: float | None = None) -> Speaker:
        assert self._court.chairs is not None and self.attempt.calls is not None, "comparators ask models"
        stored = stored_chairs(
            self._court.chairs, self.attempt.calls, server=self.attempt.server, seed=seed, hits=self._hits
        )
        # As in a trial: all calls about a picture go to the server that has it in its cache.
        judge = stored.pinned(self.pixels_sha256).judge
        return Speaker(
            model=judge if temperature is None else replace(judge, temperature=temperature),
            fence=self.fence,
            deadline=self._deadline,
            reply_chars=self._court.settings.reply_chars,
            batch=True,
        )


def _ruling(brief: JudgeBrief[Frame], text: str, _: bool) -> replies.Ruling:
    return replies.parse_ruling(text, brief.policy, 0)
