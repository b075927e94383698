"""Answers a data set's question by a trial: after the Judge has ruled on harm, it rules on the question as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from court.errors import CantResume, Unavailable
from court.record import TrialRecord, TrialState
from court.second_question import QuestionBrief
from eval.datasets.items import JudgedMeme
from eval.models.cached_model import HitCounter
from eval.models.call_cache import CallsError
from eval.session.engine import LATE, Tried
from eval.solvers.calls import DecodedMeme, MemeItem, failed
from eval.solvers.from_record import prediction_of
from eval.solvers.prediction import Outcome, Prediction, TaskAnswer
from eval.solvers.question import Question, gold_of
from eval.solvers.trial import TrialSolver


class LabelClassifier(Protocol):
    """Assigns each label of a question a probability, from labelled memes."""

    async def probabilities(self, shown: DecodedMeme) -> Mapping[str, float] | None:
        """Independent probability of each label; None if nothing of the meme can be compared."""
        ...

    def answer(self, probabilities: Mapping[str, float]) -> TaskAnswer:
        """Returns the labels that follow from the probabilities."""
        ...


@dataclass(frozen=True, slots=True)
class RulingSolver:
    """Tries the memes of one run, and asks the Judge of each trial with a verdict a question.

    Attributes:
        classifier: Embedded classifier whose votes the Judge is shown; None to show none.
    """

    trial: TrialSolver
    question: Question
    examples: Mapping[str, JudgedMeme] = field(default_factory=dict)
    classifier: LabelClassifier | None = None

    async def solve(self, item: MemeItem, record: TrialRecord | None) -> Tried[Prediction, TrialRecord]:
        """Tries a meme and asks the question; see :class:`eval.solvers.calls.Solver`."""
        stored = 0
        if record is None or record.state is not TrialState.DECIDED:
            tried = await self.trial.solve(item, record)
            record, stored = tried.state, tried.result.cost.stored
            # Without a verdict there is no Judge to ask: the trial's failure is the outcome.
            if record is None or record.state is not TrialState.DECIDED:
                return tried
        hits = HitCounter()
        try:
            record = await self._ruled(item.meme, record, hits)
        except (CantResume, Unavailable) as error:
            return failed(item.meme, error, record)
        ruled = record.ruling_on(self.question.task)
        # Recorded like any failed call, but not the meme's fault: it would fail every other meme too.
        if ruled is not None and ruled.failure == CallsError.default_reason:
            raise CallsError("The store of calls can't be used any more: a question found it damaged or locked.")
        # Cached calls of both the trial and the question.
        prediction = self._prediction(item.meme, record, stored=stored + hits.count)
        return Tried(prediction, ruled is not None and ruled.retryable, prediction.reason, record)

    async def _ruled(self, meme: JudgedMeme, record: TrialRecord, hits: HitCounter) -> TrialRecord:
        """The record with the Judge's ruling on the question, or the reason why there is none."""
        opened = record.opened.meme
        executor = self.trial.stored.of(meme, opened.bytes_sha256, hits)
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

    def _prediction(self, meme: JudgedMeme, record: TrialRecord, *, stored: int) -> Prediction:
        """Builds the prediction for a meme: the answer or the reason for its absence, without the verdict on harm."""
        of_trial = prediction_of(meme, record, stored=stored)
        ruled = record.ruling_on(self.question.task)
        cost = of_trial.cost
        if ruled is not None:
            # The question waits for the whole trial: one more call in the chain, or two if it was repaired.
            more = sum(each.requests for each in ruled.reported_calls)
            cost = cost.model_copy(update={"chain": cost.chain + more})
        # The trial's score and vote are left out, as they are on harm.
        base = {"meme": meme.id, "trial": record.trial_id, "cost": cost, "sides": of_trial.sides}
        if ruled is None or ruled.chosen is None:
            return Prediction(**base, outcome=Outcome.FAILED, reason=ruled.failure if ruled else of_trial.reason)
        answers = {self.question.task: TaskAnswer(labels=ruled.chosen)}
        return Prediction(**base, outcome=Outcome.ANSWERED, said=answers)

    def rebuilt(self, meme: JudgedMeme, record: TrialRecord) -> Prediction | None:
        """Builds the prediction from a record; None if trial or question has no answer yet for a temporary reason."""
        if record.state is not TrialState.DECIDED:
            resumed = self.trial.to_be_resumed(record)
        else:
            ruled = record.ruling_on(self.question.task)
            # Timeouts were already retried, as with trials: only --retry-failed retries them resumed.
            resumed = ruled is None or (ruled.retryable and (ruled.failure not in LATE or self.trial.retry_failed))
        return None if resumed else self._prediction(meme, record, stored=0)
