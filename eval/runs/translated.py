"""Trials of translated texts: the Judge's model translates each meme's text into English before its trial.

Published work finds that translating first costs accuracy, since allusions and slang are lost; this arm measures it.
The trial itself is the usual one, with the translation as the text in its record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from court import replies
from court.deadline import Deadline
from court.errors import CourtError, ReplyUnusable, Unavailable
from court.events import Role
from court.meme import Frame
from court.messages import Messages, apart
from court.record import TrialRecord
from court.replies import Reply, Words
from court.roles import Speaker
from court.untrusted import Fence
from eval.datasets.items import JudgedMeme
from eval.datasets.language import language_of_meme
from eval.models.cached_model import HitCounter, stored_chairs
from eval.models.prompts import gave_away, load
from eval.runs.attempt import Attempt, Tried, ends_the_run
from eval.runs.prediction import Cost, Outcome, Prediction

ENGLISH = "en"
_LONGEST = 4000
"""Maximum characters of a translation."""


class _Translation(Reply):
    translation: Words = Field(min_length=1, max_length=_LONGEST)


@dataclass(frozen=True, slots=True)
class TranslatedAttempt(Attempt):
    """Tries the memes of one run by their texts in English.

    A meme already known to be in English is tried unchanged. The translation counts towards the meme's cost, unless the
    prediction was lost and is rebuilt from the docket: a record only holds the trial's own calls.

    Attributes:
        source_language: Original language of the texts, as :func:`eval.datasets.language.language_of_meme` takes it;
            ``language`` is that of the translation.
    """

    source_language: str = ""

    async def _try_once(
        self, meme: JudgedMeme, known: TrialRecord | None, picture: Callable[[], Awaitable[bytes | None]]
    ) -> Tried:
        try:
            # Also for a resumed trial: if it can't go on, the meme is tried afresh. The call cache has the reply.
            english, spent = await self._in_english(meme)
        except CourtError as error:
            if ends_the_run(error):
                raise
            failed = Prediction(meme=meme.id, outcome=Outcome.FAILED, reason=error.reason)
            after = error.retry_after if isinstance(error, Unavailable) else None
            return Tried(failed, isinstance(error, Unavailable), retry_after=after or 0.0)
        # Not a bare super(), which does not work in a dataclass with slots.
        tried = await Attempt._try_once(self, meme.model_copy(update={"text": english}), known, picture)
        cost = _sum(tried.prediction.cost, spent)
        prediction = tried.prediction.model_copy(update={"cost": cost})
        return Tried(prediction, tried.passing, tried.record, tried.retry_after)

    async def _in_english(self, meme: JudgedMeme) -> tuple[str, Cost]:
        """The text in English, and the cost of translating it."""
        language = language_of_meme(meme, self.source_language)
        # Compares the language subtag only: en-GB is English too.
        if not meme.text.strip() or language.partition("-")[0].lower() == ENGLISH:
            return meme.text, Cost()
        court = self.executor.court
        assert court.role_models is not None and self.calls is not None, "texts are translated by models"
        hits, deadline = HitCounter(), Deadline(None, court.settings.call_s)
        # Always the same mark, so that a resumed run sends the same request and hits the call cache.
        fence = Fence(self.calls.fence_mark(meme.id, ""))
        speaker = Speaker(
            model=stored_chairs(court.role_models, self.calls, server=self.server, seed=self.seed, hits=hits).judge,
            fence=fence,
            deadline=deadline,
            reply_chars=court.settings.reply_chars,
            batch=True,
        )
        prompt = load("eval.runs.prompts", "translate")
        words: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": _LONGEST}
        messages: Messages[Frame] = Messages(
            prompt=prompt,
            task="translate",
            system=prompt.system(),
            parts=apart([prompt.task("translate", text=fence.around(meme.text))]),
            schema=replies.object_schema({"translation": words}),
        )

        def read(text: str, _: bool) -> _Translation:
            # The speaker only looks for secrets of a trial's prompts, and this is not one of them.
            if gave_away(prompt, text):
                raise ReplyUnusable(Role.JUDGE, "translate", "SYSTEM_LEAKED", "it gave its instructions away")
            return replies.parse(_Translation, text)

        reply = (await speaker.say(Role.JUDGE, messages, read)).value
        made = deadline.tally.unused()
        spent = Cost()
        if made is not None:
            spent = Cost(
                calls=made.calls,
                stored=min(hits.count, made.calls),
                tokens_in=made.tokens_in,
                tokens_out=made.tokens_out,
                tokens_cached=made.tokens_cached,
                chain=1,
            )
        return reply.translation, spent


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
