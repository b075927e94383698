"""Answers a data set's question by a trial: after the Judge has ruled on harm, it rules on the question as well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import override

from court.errors import CantResume, Unavailable
from court.record import TrialRecord, TrialState
from court.second_question import QuestionBrief
from eval.datasets.items import JudgedMeme
from eval.models.cached_model import HitCounter
from eval.models.call_cache import CallsError
from eval.runs.asking import DecodedMeme
from eval.runs.attempt import LATE, Attempt, Tried, ends_the_run
from eval.runs.from_record import calls_in_step, prediction_of
from eval.runs.prediction import Outcome, Prediction, TaskAnswer
from eval.runs.question import Question, gold_of


class LabelClassifier(Protocol):
    """Assigns each label of a question a probability, from labelled memes."""

    async def probabilities(self, shown: DecodedMeme) -> Mapping[str, float] | None:
        """Independent probability of each label; None if nothing of the meme can be compared."""
        ...

    def answer(self, probabilities: Mapping[str, float]) -> TaskAnswer:
        """Returns the labels that follow from the probabilities."""
        ...


@dataclass(frozen=True, slots=True)
class QuestionTrialAttempt(Attempt):
    """Tries the memes of one run, and asks the Judge of each trial with a verdict a question.

    Attributes:
        examples: Labelled memes of the train split, by id.
        classifier: Embedded classifier whose votes the Judge is shown; None to show none.
    """

    # Keyword-only: it has no default, but fields of the base class do.
    question: Question = field(kw_only=True)
    examples: Mapping[str, JudgedMeme] = field(default_factory=dict)
    classifier: LabelClassifier | None = None

    @override
    async def _try_once(
        self, meme: JudgedMeme, known: TrialRecord | None, picture: Callable[[], Awaitable[bytes | None]]
    ) -> Tried:
        tried = Tried(Prediction(meme=meme.id, outcome=Outcome.FAILED), False, known)
        if known is None or known.state is not TrialState.DECIDED:
            # Called by name: a dataclass with slots creates a new class, which super() would not find.
            tried = await Attempt._try_once(self, meme, known, picture)
        record = tried.record
        # Without a verdict there is no Judge to ask: the trial's failure is the outcome.
        if record is None or record.state is not TrialState.DECIDED:
            return tried
        hits = HitCounter()
        try:
            record = await self._ruled(meme, record, hits)
        except (CantResume, Unavailable) as error:
            if ends_the_run(error):
                raise
            failed = Prediction(meme=meme.id, outcome=Outcome.FAILED, reason=error.reason, trial=record.trial_id)
            after = error.retry_after if isinstance(error, Unavailable) else None
            return Tried(failed, isinstance(error, Unavailable), record, after or 0.0)
        ruled = record.ruling_on(self.question.task)
        # Recorded like any failed call, but not the meme's fault: it would fail every other meme too.
        if ruled is not None and ruled.failure == CallsError.default_reason:
            raise CallsError("The store of calls can't be used any more: a question found it damaged or locked.")
        # Cached calls of both the trial and the question.
        stored = tried.prediction.cost.stored + hits.count
        return Tried(self.prediction(meme, record, stored=stored), ruled is not None and ruled.retryable, record)

    async def _ruled(self, meme: JudgedMeme, record: TrialRecord, hits: HitCounter) -> TrialRecord:
        """The record with the Judge's ruling on the question, or the reason why there is none."""
        opened = record.opened.meme
        executor = self._court_for(meme, opened.bytes_sha256, hits)
        # Reuses the picture decoded for the trial.
        shown = await executor.picture_of_trial(record)
        frames = shown.frames if shown is not None else ()
        vote: Mapping[str, float] = {}
        if self.classifier is not None:
            decoded = DecodedMeme(meme, frames, opened.pixels_sha256, opened.bytes_sha256)
            found = await self.classifier.probabilities(decoded)
            # Shares for single-label tasks, else the probability of each label.
            vote = self.classifier.answer(found).scores if found is not None else {}
        cited = record.precedents.findings.exhibits if record.precedents else ()
        # Precedents without gold for this task are left out: they would appear to have none of the labels.
        labels = {
            precedent.id: self.question.in_order(gold)
            for precedent in cited
            if precedent.id in self.examples
            and (gold := gold_of(self.examples[precedent.id], self.question.task)) is not None
        }
        brief = QuestionBrief(self.question.for_court(), precedent_labels=labels, vote=vote)
        return await executor.rule_on(record, shown, brief, batch=True)

    @override
    def prediction(self, meme: JudgedMeme, record: TrialRecord, *, stored: int = 0) -> Prediction:
        """Builds the prediction for a meme: the answer or the reason for its absence, without the verdict on harm."""
        of_trial = prediction_of(meme, record, stored=stored)
        ruled = record.ruling_on(self.question.task)
        cost = of_trial.cost
        if ruled is not None and ruled.call is not None:
            # The question waits for the whole trial: one more call in the chain, or two if it was repaired.
            cost = cost.model_copy(update={"chain": cost.chain + calls_in_step(ruled.call)})
        # The trial's score and vote are left out, as they are on harm.
        base = {"meme": meme.id, "trial": record.trial_id, "cost": cost, "sides": of_trial.sides}
        if ruled is None or ruled.chosen is None:
            return Prediction(**base, outcome=Outcome.FAILED, reason=ruled.failure if ruled else of_trial.reason)
        answers = {self.question.task: TaskAnswer(labels=ruled.chosen)}
        return Prediction(**base, outcome=Outcome.ANSWERED, said=answers)

    @override
    def to_be_resumed(self, record: TrialRecord) -> bool:
        """True if a trial is unfinished, or its question has no answer yet for a temporary reason."""
        if record.state is not TrialState.DECIDED:
            return Attempt.to_be_resumed(self, record)
        ruled = record.ruling_on(self.question.task)
        if ruled is None:
            return True
        # Timeouts were already retried, as with trials: only --retry-failed retries them again.
        return ruled.retryable and (ruled.failure not in LATE or self.retry_failed)
