"""Solves a meme by a trial before the court as it is served: from the beginning, or resuming an interrupted trial."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from court.errors import BadInput, CantResume, Unavailable
from court.events import Procedure, TrialFailed
from court.record import TrialAborted, TrialRecord, TrialState
from eval.datasets.items import JudgedMeme
from eval.datasets.language import language_of_meme
from eval.models.cached_model import HitCounter
from eval.models.call_cache import CallsError
from eval.session.engine import LATE, Tried
from eval.solvers.calls import PICTURE_MISSING, MemeItem, StoredCourt, ends_the_run, failed
from eval.solvers.from_record import prediction_of
from eval.solvers.prediction import Prediction
from serving.judging.request import TrialRequest

_NOT_THE_TRIALS = frozenset({"CANCELLED", CallsError.default_reason})
"""Reasons for which a trial stopped that are not outcomes: it is always resumed."""
_ANEW = frozenset({CantResume.default_reason, PICTURE_MISSING, "TRIAL_FAILED"})
"""Reasons for which a trial can't be resumed, but the meme can be tried afresh: no progress yet, or our own fault."""
_OURS = "INTERNAL"
"""Reason of a trial that failed by a bug of this software, which another version may have fixed."""


def request_id(dataset: str, meme: JudgedMeme) -> str:
    """Returns the idempotency key of a meme's trial in the docket, which belongs to the run."""
    # Includes data set and split: ids are unique within one split only.
    return f"{dataset}/{meme.split}/{meme.id}"


@dataclass(frozen=True, slots=True)
class TrialSolver:
    """Tries the memes of one run.

    Attributes:
        retry_failed: True to retry trials that failed for an infrastructure reason, or timed out, in an earlier run.
        language: Language stated for each text, as :func:`eval.datasets.language.language_of_meme` takes it.
    """

    stored: StoredCourt
    dataset: str
    procedure: Procedure
    retry_failed: bool = False
    text_only: bool = False
    language: str = ""

    async def solve(self, item: MemeItem, record: TrialRecord | None) -> Tried[Prediction, TrialRecord]:
        """Tries a meme once; see :class:`eval.solvers.calls.Solver`."""
        hits, retry_after = HitCounter(), 0.0
        try:
            record = await self._tried(item, record, hits)
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

    def rebuilt(self, meme: JudgedMeme, record: TrialRecord) -> Prediction | None:
        """Builds the prediction from a record; None if its trial is to be resumed."""
        return None if self.to_be_resumed(record) else prediction_of(meme, record)

    def to_be_resumed(self, record: TrialRecord) -> bool:
        """True if a trial is unfinished, or ended in a failure that is to be retried."""
        if record.state is not TrialState.FAILED:
            return record.state is TrialState.OPEN
        failure = record.failure
        assert failure is not None
        # Timed-out trials had their retries (see LATE): only --retry-failed retries them again.
        passing = failure.reason in _NOT_THE_TRIALS or (failure.retryable and failure.reason not in LATE)
        return passing or (self.retry_failed and may_pass(failure))

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
        request = TrialRequest(
            image=image,
            text=meme.text,
            language=language_of_meme(meme, self.language),
            procedure=self.procedure,
            request_id=request_id(self.dataset, meme),
            namespace=f"{self.dataset}/{meme.split}",
            content_id=meme.id,
        )
        digest = hashlib.sha256(image).hexdigest() if image else ""  # as in a record
        return (await self.stored.of(meme, digest, hits).run(request, batch=True)).record


def may_pass(failure: TrialFailed) -> bool:
    """True if the cause of a failure may have gone away later."""
    return failure.retryable or failure.reason == _OURS
