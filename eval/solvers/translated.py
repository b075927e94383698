"""Trials of translated texts: the Judge's model translates each meme's text into English before its trial.

Published work finds that translating first costs accuracy, since allusions and slang are lost; this arm measures it.
The trial itself is the usual one, with the translation as the text in its record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from pydantic import Field

from court import replies
from court.errors import CourtError
from court.record import TrialRecord
from court.replies import Reply, Words
from eval.datasets.items import JudgedMeme
from eval.datasets.language import language_of_meme
from eval.models.agent import Agent, load
from eval.session.engine import Tried
from eval.solvers.calls import PROMPTS, DecodedMeme, MemeCalls, MemeItem, failed
from eval.solvers.prediction import Cost, Prediction
from eval.solvers.trial import TrialSolver

ENGLISH = "en"
_LONGEST = 4000
"""Maximum characters of a translation."""


class _Translation(Reply):
    translation: Words = Field(min_length=1, max_length=_LONGEST)


@dataclass(frozen=True, slots=True)
class TranslatedSolver:
    """Tries the memes of one run by their texts in English.

    A meme already known to be in English is tried unchanged. The translation counts towards the meme's cost, unless the
    prediction was lost and is rebuilt from the docket: a record only holds the trial's own calls.

    Attributes:
        source_language: Original language of the texts, as :func:`eval.datasets.language.language_of_meme` takes it.
    """

    trial: TrialSolver
    source_language: str = ""

    async def solve(self, item: MemeItem, record: TrialRecord | None) -> Tried[Prediction, TrialRecord]:
        """Translates a meme's text and tries it; see :class:`eval.solvers.calls.Solver`."""
        try:
            # Also for a resumed trial: if it can't go on, the meme is tried afresh. The call cache has the reply.
            english, spent = await self._in_english(item.meme)
        except CourtError as error:
            return failed(item.meme, error)
        tried = await self.trial.solve(replace(item, meme=item.meme.model_copy(update={"text": english})), record)
        prediction = tried.result.model_copy(update={"cost": _sum(tried.result.cost, spent)})
        return replace(tried, result=prediction)

    def rebuilt(self, meme: JudgedMeme, record: TrialRecord) -> Prediction | None:
        """Builds the prediction from a record; None if its trial is to be resumed."""
        return self.trial.rebuilt(meme, record)

    async def _in_english(self, meme: JudgedMeme) -> tuple[str, Cost]:
        """The text in English, and the cost of translating it."""
        language = language_of_meme(meme, self.source_language)
        # Compares the language subtag only: en-GB is English too.
        if not meme.text.strip() or language.partition("-")[0].lower() == ENGLISH:
            return meme.text, Cost()
        calls = MemeCalls(self.trial.stored, DecodedMeme(meme), self.trial.stored.seed)
        prompt = load(PROMPTS, "translate")
        words = {"type": "string", "minLength": 1, "maxLength": _LONGEST}
        agent = Agent(
            prompt, "translate", partial(replies.parse, _Translation), replies.object_schema({"translation": words})
        )
        reply = await calls.ask(agent, [prompt.task("translate", text=calls.fence.around(meme.text))])
        calls.chain = 1
        return reply.translation, calls.cost()


def _sum(trial: Cost, before: Cost) -> Cost:
    return Cost(
        calls=trial.calls + before.calls,
        stored=trial.stored + before.stored,
        tokens_in=trial.tokens_in + before.tokens_in,
        tokens_out=trial.tokens_out + before.tokens_out,
        tokens_cached=trial.tokens_cached + before.tokens_cached,
        chain=trial.chain + before.chain,
        # The trial's own time: the translation finished before it started.
        seconds=trial.seconds,
    )
