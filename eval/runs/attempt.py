"""Tries one meme of a run before a given court: from the beginning, or resuming an interrupted trial."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from court.backends.pictures.refusals import bad_picture
from court.errors import BadInput, CantResume, CourtError, Unavailable
from court.events import Procedure, TrialFailed
from court.record import TrialAborted, TrialRecord, TrialState
from eval.datasets.items import JudgedMeme
from eval.datasets.language import language_of_meme
from eval.models.cached_model import HitCounter, stored_chairs
from eval.models.call_cache import CallCache, CallsError
from eval.runs.from_record import prediction_of
from eval.runs.prediction import Outcome, Prediction
from serving.docket.ports import DocketError
from serving.runner.executor import TrialExecutor
from serving.runner.request import TrialRequest

PICTURE_MISSING = "PICTURE_MISSING"
"""Reason of a failure: the picture is not in the data set's folder."""

_NOT_THE_TRIALS = frozenset({"CANCELLED", CallsError.default_reason})
"""Reasons for which a trial stopped that are not outcomes: it is always resumed."""
_ANEW = frozenset({CantResume.default_reason, PICTURE_MISSING, "TRIAL_FAILED"})
"""Reasons for which a trial can't be resumed, but the meme can be tried afresh: no progress yet, or our own fault."""
LATE = frozenset({"MODEL_TOO_SLOW", "TEXT_TOO_SLOW", "SEARCH_TOO_SLOW", "OVERRUN"})
"""Reasons of trials that timed out. The cause may be temporary or the meme itself, so each is retried once before it
counts as a failure."""
_LONGEST_PAUSE_S = 30.0
_OURS = "INTERNAL"
"""Reason of a trial that failed by a bug of this software, which another version may have fixed."""


@dataclass(slots=True)
class Patience:
    """Retry budget for busy or unreachable servers, shared by all memes of a run.

    Attributes:
        seconds: Longest wait for a meme, counted from its first failure or from the last answer to any meme.
    """

    seconds: float
    _answered: float = -math.inf

    def answered(self) -> None:
        """Notes that a meme was answered, so the servers that trials need are up."""
        self._answered = time.monotonic()

    def left(self, since: float) -> float:
        """Seconds left for a meme that first failed at a time of the monotonic clock."""
        # An answer to any meme shows that the server is up but busy, so waiting is worthwhile.
        return self.seconds - (time.monotonic() - max(since, self._answered))


@dataclass(frozen=True, slots=True)
class Attempt:
    """Tries the memes of one run.

    Attributes:
        executor: The court, with the docket that stores the records.
        calls: Call cache; None if no model is asked.
        dataset: Id of the data set.
        server: Name of the model servers in the call cache; their addresses if empty.
        retry_failed: True to retry trials that failed for an infrastructure reason, or timed out, in an earlier run.
        text_only: True to judge each text without its picture.
        language: Language stated for each text, as :func:`eval.datasets.language.language_of_meme` takes it.
        patience: Retry budget for busy or unreachable servers; None to try each meme once.
    """

    executor: TrialExecutor
    calls: CallCache | None
    dataset: str
    procedure: Procedure
    seed: int = 0
    server: str = ""
    retry_failed: bool = False
    text_only: bool = False
    language: str = ""
    patience: Patience | None = None

    async def try_meme(
        self, meme: JudgedMeme, known: TrialRecord | None, picture: Callable[[], Awaitable[bytes | None]]
    ) -> tuple[Prediction, bool]:
        """Tries a meme; retries failures that may be temporary until patience runs out.

        Returns:
            Its prediction; and True if that is not final, because a failure may be temporary: the meme is to be retried
            later.

        Args:
            known: The record of its last trial in this run; None if there was none.
            picture: Reads its picture's file on demand; returns None if there is no such file.

        Raises:
            CourtError: The run's own files are at fault, not the trial (:func:`ends_the_run`).
        """
        # The line was lost in a crash, but the docket has the outcome: no call is repeated.
        if known is not None and not self.to_be_resumed(known):
            return self.prediction(meme, known), False
        first, pause, late = time.monotonic(), 1.0, 0
        while True:
            tried = await self._try_once(meme, known, picture)
            late += tried.prediction.reason in LATE
            # Timing out twice is an outcome: the meme itself may take that long.
            if not tried.passing or late > 1:
                if self.patience is not None and not tried.passing:
                    self.patience.answered()
                return tried.prediction, False
            # A server's Retry-After is respected.
            wait = max(pause, tried.retry_after)
            if self.patience is None or self.patience.left(first) < wait:
                return tried.prediction, tried.prediction.reason not in LATE
            await asyncio.sleep(wait)
            # The failed trial is resumed from its record: a new trial would repeat all its calls.
            known, pause = tried.record or known, min(2 * pause, _LONGEST_PAUSE_S)

    async def _try_once(
        self, meme: JudgedMeme, known: TrialRecord | None, picture: Callable[[], Awaitable[bytes | None]]
    ) -> Tried:
        hits, retry_after = HitCounter(), 0.0
        try:
            record = await self._tried(meme, known, picture, hits)
        except TrialAborted as error:
            if ends_the_run(error.cause):
                # With a broken docket or call cache, the run would fail every meme for the same reason.
                raise error.cause from None
            record, retry_after = error.record, getattr(error.cause, "retry_after", None) or 0.0
        except (BadInput, Unavailable) as error:
            if ends_the_run(error):
                raise
            failed = Prediction(meme=meme.id, outcome=Outcome.FAILED, reason=error.reason)
            after = error.retry_after if isinstance(error, Unavailable) else None
            return Tried(failed, isinstance(error, Unavailable), retry_after=after or 0.0)
        failure = record.last(TrialFailed) if record.state is TrialState.FAILED else None
        prediction = self.prediction(meme, record, stored=hits.count)
        return Tried(prediction, failure is not None and failure.retryable, record, retry_after)

    def prediction(self, meme: JudgedMeme, record: TrialRecord, *, stored: int = 0) -> Prediction:
        """Builds the prediction for a meme. Arguments as in :func:`eval.runs.from_record.prediction_of`."""
        return prediction_of(meme, record, stored=stored)

    def to_be_resumed(self, record: TrialRecord) -> bool:
        """True if a trial is unfinished, or ended in a failure that is to be retried."""
        if record.state is not TrialState.FAILED:
            return record.state is TrialState.OPEN
        failed = record.last(TrialFailed)
        assert failed is not None
        # Timed-out trials had their retries (see LATE): only --retry-failed retries them again.
        passing = failed.reason in _NOT_THE_TRIALS or (failed.retryable and failed.reason not in LATE)
        return passing or (self.retry_failed and may_pass(failed))

    def request(self, meme: JudgedMeme) -> str:
        """Returns the idempotency key of a meme's trial in the docket, which belongs to the run."""
        # Includes data set and split: ids are unique within one split only.
        return f"{self.dataset}/{meme.split}/{meme.id}"

    async def _tried(
        self,
        meme: JudgedMeme,
        known: TrialRecord | None,
        picture: Callable[[], Awaitable[bytes | None]],
        hits: HitCounter,
    ) -> TrialRecord:
        """Resumes the trial of a meme if it was interrupted, else runs a new one; returns its record."""
        if known is not None:
            try:
                executor = self._court_for(meme, known.opened.meme.bytes_sha256, hits)
                return await executor.resume(known.trial_id, batch=True)
            except CantResume as error:
                if error.reason not in _ANEW:
                    raise
        # Empty bytes stand for a meme without a picture.
        image = b"" if self.text_only else await picture()
        # Only this meme fails; --allow-missing lets a run start with such memes.
        if image is None:
            raise BadInput("The picture is not in the data set's folder.", reason=PICTURE_MISSING)
        if not image and not self.text_only:
            raise bad_picture("PICTURE_EMPTY", {})  # otherwise the text would be judged alone
        ask = TrialRequest(
            image=image,
            text=meme.text,
            language=language_of_meme(meme, self.language),
            procedure=self.procedure,
            request_id=self.request(meme),
            namespace=f"{self.dataset}/{meme.split}",
            content_id=meme.id,
        )
        digest = hashlib.sha256(image).hexdigest() if image else ""  # as in a record
        return (await self._court_for(meme, digest, hits).hear(ask, batch=True)).record

    def _court_for(self, meme: JudgedMeme, bytes_sha256: str, hits: HitCounter) -> TrialExecutor:
        """The court for one meme: models are called through the call cache, and fences carry a mark that is fixed for
        the meme, so that repeated requests are identical word for word."""  # noqa: D205, D209
        court = self.executor.court
        # Without models there are no requests to repeat.
        if self.calls is None or court.role_models is None:
            return self.executor
        role_models = stored_chairs(court.role_models, self.calls, server=self.server, seed=self.seed, hits=hits)
        # Keyed by the file rather than its pixels: as stable, and known before decoding.
        mark = self.calls.fence_mark(meme.id, bytes_sha256)
        return replace(self.executor, court=replace(court, role_models=role_models, fence_mark=mark))


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt: its prediction, whether its failure may be temporary, its record, and the Retry-After in seconds."""

    prediction: Prediction
    passing: bool
    record: TrialRecord | None = None
    retry_after: float = 0.0


def may_pass(failed: TrialFailed) -> bool:
    """True if the cause of a failure may have gone away later."""
    return failed.retryable or failed.reason == _OURS


def ends_the_run(cause: CourtError) -> bool:
    """True if the run's own files are at fault, not the trial."""
    return isinstance(cause, CallsError | DocketError) or cause.reason.startswith("DOCKET_")
