"""Solves a meme by a trial before the court as it is served: from the beginning, or resuming an interrupted trial.

In one arm, the Judge's model translates each meme's text into English before its trial. Published
work finds that translating first costs accuracy, since allusions and slang are lost; this arm measures it. The trial
itself is the usual one, with the translation as the text in its record.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from pydantic import Field

from court import replies
from court.errors import BadInput, CantResume, CourtError, Unavailable
from court.events import ModelCall, Procedure, Summarised, TrialResumed, Unused
from court.flips import determined_by_reasons
from court.precedents import vote
from court.record import TrialAborted, TrialRecord, TrialState
from court.replies import Reply, Words
from court.verdict import Label, Strength, Verdict
from eval.datasets.items import Cost, JudgedMeme, Level, Outcome, Prediction, SideCourse
from eval.datasets.read import language_of_meme
from eval.models.call_cache import CallsError, HitCounter
from eval.models.metered import Agent, load
from eval.session.engine import LATE, Tried
from eval.solvers.calls import (
    PICTURE_MISSING,
    PROMPTS,
    DecodedMeme,
    MemeCalls,
    MemeItem,
    StoredCourt,
    ends_the_run,
    failed,
)
from serving.judging.request import TrialRequest


def prediction_of(meme: JudgedMeme, record: TrialRecord, *, stored: int = 0) -> Prediction:
    """Builds the prediction for a meme from its finished trial. Raises ValueError: The trial is not finished."""
    verdict, failure, checked = record.verdict, record.failure, record.checked
    if verdict is None and failure is None:
        raise ValueError(f"trial {record.trial_id} is not over")
    reason = failure.reason if failure and not verdict else ""
    if verdict is not None and verdict.label is Label.UNDECIDED:
        reason = str(verdict.review[0].reason)
    found = record.precedents.findings if record.precedents else None
    voted = vote(found.tally, found.vote_settings) if found and found.tally else None
    return Prediction(
        meme=meme.id,
        outcome=Outcome(str(verdict.label)) if verdict else Outcome.FAILED,
        score=verdict.harm_score if verdict else None,
        # Only if the data set has levels to compare it with.
        level=level_of(verdict) if verdict and meme.level is not None else None,
        vote=voted.probability if voted else None,
        vote_harmful=voted.probability >= voted.settings.threshold if voted else None,
        needs_review=verdict.needs_human_review if verdict else False,
        reason=reason,
        trial=record.trial_id,
        cost=cost_of(record, stored),
        sides=_sides(record),
        checks=tuple(dict.fromkeys(str(failed.check) for failed in checked.failed)) if checked else (),
        mistrial=checked is not None and checked.mistrial,
        determined=determined_by_reasons(record),
    )


def level_of(verdict: Verdict) -> Level | None:
    """The level that corresponds to a verdict; None if it is undecided."""
    if verdict.strengths is None:
        return None
    if verdict.label is Label.NOT_HARMFUL:
        return Level.NOT_HARMFUL
    return Level.VERY_HARMFUL if verdict.strengths.harmful is Strength.STRONG else Level.SOMEWHAT_HARMFUL


def cost_of(record: TrialRecord, stored: int = 0) -> Cost:
    """Computes the cost of a trial from its record, including calls that no verdict rests on."""
    # A trial that failed and was resumed ended several times, each time with unused calls.
    unused: list[Unused] = [end for event in record.events if (end := getattr(event, "unused", None))]
    made = sum(each.requests for each in record.calls) + sum(each.calls for each in unused)
    figures: list[ModelCall | Unused] = [*(each.call for each in record.calls), *unused]
    tokens = {
        name: sum(getattr(each, name) for each in figures) for name in ("tokens_in", "tokens_out", "tokens_cached")
    }
    return Cost(calls=made, stored=min(stored, made), seconds=_seconds(record), **tokens)


def _seconds(record: TrialRecord) -> float:
    """Returns the trial's duration, without the time between an interruption and its resumption."""
    total, before = 0.0, record.opened.at
    for event in record.events:
        if event.after_end:
            # Events after the end do not count towards the trial's duration.
            break
        if not isinstance(event, TrialResumed):
            total += (event.at - before).total_seconds()
        before = event.at
    return max(total, 0.0)  # the clock may have been set back


def _sides(record: TrialRecord) -> dict[str, SideCourse]:
    courses = {}
    for rested in record.rested.values():
        entropies = {e.round: e.entropy for e in record.all(Summarised) if e.side is rested.side}
        courses[str(rested.side)] = SideCourse(
            rounds=rested.rounds,
            rested=str(rested.reason),
            # Without summaries of later rounds, which were computed in vain.
            entropies=tuple(entropies[number] for number in sorted(entropies) if number <= rested.rounds),
        )
    return courses


ENGLISH = "en"
_LONGEST = 4000
"""Maximum characters of a translation."""


class _Translation(Reply):
    translation: Words = Field(min_length=1, max_length=_LONGEST)


_NOT_THE_TRIALS = frozenset({"CANCELLED", CallsError.default_reason})
"""Reasons for which a trial stopped that are not outcomes: it is always resumed."""
_ANEW = frozenset({CantResume.default_reason, PICTURE_MISSING, "TRIAL_FAILED"})
"""Reasons for which a trial can't be resumed, but the meme can be tried afresh: no progress yet, or our own fault."""


def request_id(dataset: str, meme: JudgedMeme) -> str:
    """Returns the idempotency key of a meme's trial in the docket, which belongs to the run."""
    # Includes data set and split: ids are unique within one split only.
    return f"{dataset}/{meme.split}/{meme.id}"


@dataclass(frozen=True, slots=True)
class TrialSolver:
    """Tries the memes of one run."""

    stored: StoredCourt
    dataset: str
    procedure: Procedure
    text_only: bool = False
    language: str = ""
    """Language stated for each text, as :func:`eval.datasets.read.language_of_meme` takes it."""
    translated_from: str | None = None
    """Original language of texts that are translated into English first, stated likewise; None to translate none."""
    altered: Callable[[MemeItem], MemeItem] = lambda item: item

    async def solve(self, item: MemeItem, record: TrialRecord | None) -> Tried[Prediction, TrialRecord]:
        """Tries a meme once; see :class:`eval.solvers.calls.Solver`."""
        try:
            # Also for a resumed trial: if it can't go on, the meme is tried afresh. The call cache has the reply.
            english, spent = await self._in_english(item.meme)
        except CourtError as error:
            return failed(item.meme, error)
        tried = await self._attempted(replace(item, meme=item.meme.model_copy(update={"text": english})), record)
        # The translation counts, unless the prediction was lost and is rebuilt: a record only holds the trial's calls.
        cost = {name: getattr(tried.result.cost, name) + getattr(spent, name) for name in Cost.model_fields}
        return replace(tried, result=tried.result.model_copy(update={"cost": Cost(**cost)}))

    async def _attempted(self, item: MemeItem, record: TrialRecord | None) -> Tried[Prediction, TrialRecord]:
        hits, retry_after = HitCounter(), 0.0
        try:
            record = await self._tried(self.altered(item), record, hits)
        except TrialAborted as error:
            if ends_the_run(error.cause):
                # With a broken docket or call cache, the run would fail every meme for the same reason.
                raise error.cause from None
            record, retry_after = error.record, getattr(error.cause, "retry_after", None) or 0.0
        except (BadInput, Unavailable) as error:
            return failed(item.meme, error)
        failure = record.failure if record.state is TrialState.FAILED else None
        prediction = prediction_of(item.meme, record, stored=hits.count)
        passing = failure is not None and failure.retryable
        return Tried(prediction, passing, prediction.reason, state=record, retry_after=retry_after)

    async def _in_english(self, meme: JudgedMeme) -> tuple[str, Cost]:
        """The text to try a meme by, and the cost of translating it; unchanged if it is known to be in English."""
        language = "" if self.translated_from is None else language_of_meme(meme, self.translated_from)
        # Compares the language subtag only: en-GB is English too.
        english = language.partition("-")[0].lower() == ENGLISH
        if self.translated_from is None or english or not meme.text.strip():
            return meme.text, Cost()
        calls = MemeCalls(self.stored, DecodedMeme(meme))
        prompt = load(PROMPTS, "translate")
        schema = replies.object_schema({"translation": {"type": "string", "minLength": 1, "maxLength": _LONGEST}})
        agent = Agent(prompt, "translate", partial(replies.parse, _Translation), schema)
        reply = await calls.ask(agent, [prompt.task("translate", text=calls.fence.around(meme.text))])
        return reply.translation, calls.cost()

    def rebuilt(self, meme: JudgedMeme, record: TrialRecord) -> Prediction | None:
        """Builds the prediction from a record; None if its trial is to be resumed."""
        return None if self.to_be_resumed(record) else prediction_of(meme, record)

    def to_be_resumed(self, record: TrialRecord) -> bool:
        """True if a trial is unfinished, or ended in a failure that is to be retried."""
        if record.state is not TrialState.FAILED:
            return record.state is TrialState.OPEN
        failure = record.failure
        assert failure is not None
        # Timed-out trials had their retries (see LATE).
        return failure.reason in _NOT_THE_TRIALS or (failure.retryable and failure.reason not in LATE)

    async def _tried(self, item: MemeItem, record: TrialRecord | None, hits: HitCounter) -> TrialRecord:
        """Resumes the trial of a meme if it was interrupted, else runs a new one; returns its record."""
        meme = item.meme
        if record is not None:
            try:
                executor = self.stored.of(meme, record.opened.meme.bytes_sha256, hits)
                return await executor.resume(record.trial_id, batch=True)
            except CantResume as error:
                if error.reason not in _ANEW:
                    raise
        # Empty bytes stand for a meme without a picture.
        image = b"" if self.text_only else await item.image()
        # Where no model sees the picture, a text that the data set lacks is read off it.
        unread = image and not meme.text and self.stored.executor.court.settings.input == "texts of memes"
        request = TrialRequest(
            image=image,
            text=None if unread else meme.text,
            language=language_of_meme(meme, self.language),
            procedure=self.procedure,
            request_id=request_id(self.dataset, meme),
            namespace=f"{self.dataset}/{meme.split}",
            content_id=meme.id,
        )
        digest = hashlib.sha256(image).hexdigest() if image else ""  # as in a record
        return (await self.stored.of(meme, digest, hits).run(request, batch=True)).record
