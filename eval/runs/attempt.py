"""Trying one meme of a run before a given court: anew, or from where its trial was cut off."""

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
"""Reasons for which a trial ended that are no outcome: it is taken up again without being asked to."""
_ANEW = frozenset({CantResume.default_reason, PICTURE_MISSING, "TRIAL_FAILED"})
"""Why a trial can't go on, but the meme be tried anew: there was nothing yet to go on from, or the fault was ours."""
LATE = frozenset({"MODEL_TOO_SLOW", "TEXT_TOO_SLOW", "SEARCH_TOO_SLOW", "OVERRUN"})
"""Reasons of trials that were out of time. That may pass, and it may be the meme's fault: each is tried once more, and
then its answer did not come."""
_LONGEST_PAUSE_S = 30.0
_OURS = "INTERNAL"
"""Reason of a trial that failed by a fault of this software, which another version may not have."""


@dataclass(slots=True)
class Patience:
    """Waiting for what is busy or away, of all memes of a run together.

    Attributes:
        seconds: Longest wait of a meme, counted from its first failure, or from when any meme last had an answer.
    """

    seconds: float
    _answered: float = -math.inf

    def answered(self) -> None:
        """Notes that a meme had an answer: what trials need is there."""
        self._answered = time.monotonic()

    def left(self, since: float) -> float:
        """Seconds left of the patience for a meme that first failed at a time of the monotonic clock."""
        # An answer to any meme shows that the server is there: it is busy, and waiting for it is worth while.
        return self.seconds - (time.monotonic() - max(since, self._answered))


@dataclass(frozen=True, slots=True)
class Attempt:
    """Tries the memes of one run.

    Attributes:
        house: The court, with the docket that records are kept in.
        calls: The store of calls; None where no model is asked.
        dataset: Id of the data set.
        procedure: Procedure of the trials.
        seed: Seed of the run.
        server: Name of the model servers in the store of calls; their addresses if empty.
        retry_failed: True to retry trials that failed for a reason of ours, or were late, in an earlier run.
        text_only: True to judge each text without its picture.
        language: Language that each text is told to be in, as :func:`eval.datasets.language.language_of_meme` takes it.
        patience: Patience with what is busy or away; None to try each meme once.
    """

    house: TrialExecutor
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
        """Tries a meme; again where what it failed for may pass, as long as there is patience.

        Returns:
            Its prediction; and True where that is none, because the meme failed for want of something that may come
            back: it is to be tried again another time.

        Args:
            meme: Meme to try.
            known: The record of its last trial in this run; None where there was none.
            picture: Reads its picture's file, if it is needed; None where there is no such file.

        Raises:
            CourtError: The run's own files are at fault, and not the trial (:func:`ends_the_run`).
        """
        # Its line was lost in a crash, and the docket has the outcome: no call is made again.
        if known is not None and not self.to_be_resumed(known):
            return self.prediction(meme, known), False
        first, pause, late = time.monotonic(), 1.0, 0
        while True:
            tried = await self._try_once(meme, known, picture)
            late += tried.prediction.reason in LATE
            # Late twice is an outcome: it may be the meme itself that takes so long.
            if not tried.passing or late > 1:
                if self.patience is not None and not tried.passing:
                    self.patience.answered()
                return tried.prediction, False
            # A server that says when to come again is not called before.
            wait = max(pause, tried.retry_after)
            if self.patience is None or self.patience.left(first) < wait:
                return tried.prediction, tried.prediction.reason not in LATE
            await asyncio.sleep(wait)
            # What the failed trial has on record is resumed: a new trial would make all its calls again.
            known, pause = tried.record or known, min(2 * pause, _LONGEST_PAUSE_S)

    async def _try_once(
        self, meme: JudgedMeme, known: TrialRecord | None, picture: Callable[[], Awaitable[bytes | None]]
    ) -> Tried:
        hits, retry_after = HitCounter(), 0.0
        try:
            record = await self._tried(meme, known, picture, hits)
        except TrialAborted as error:
            if ends_the_run(error.cause):
                # Left to go on, a run with a broken docket or store would fail each meme for the same reason.
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
        """Builds the prediction of a meme. Arguments as of :func:`eval.runs.from_record.prediction_of`."""
        return prediction_of(meme, record, stored=stored)

    def to_be_resumed(self, record: TrialRecord) -> bool:
        """True if a trial is not over, or ended in a failure to be retried."""
        if record.state is not TrialState.FAILED:
            return record.state is TrialState.OPEN
        failed = record.last(TrialFailed)
        assert failed is not None
        # Late ones had their tries (see LATE): only --retry-failed has them tried again.
        passing = failed.reason in _NOT_THE_TRIALS or (failed.retryable and failed.reason not in LATE)
        return passing or (self.retry_failed and may_pass(failed))

    def request(self, meme: JudgedMeme) -> str:
        """Names a meme's request in the docket, which is the run's own."""
        # With data set and split: ids are unique within one split only.
        return f"{self.dataset}/{meme.split}/{meme.id}"

    async def _tried(
        self,
        meme: JudgedMeme,
        known: TrialRecord | None,
        picture: Callable[[], Awaitable[bytes | None]],
        hits: HitCounter,
    ) -> TrialRecord:
        """The record of a meme's trial, which is taken up where it was cut off, or held anew."""
        if known is not None:
            try:
                house = self._court_for(meme, known.opened.meme.bytes_sha256, hits)
                return await house.resume(known.trial_id, batch=True)
            except CantResume as error:
                if error.reason not in _ANEW:
                    raise
        # An empty file stands for a meme without a picture.
        image = b"" if self.text_only else await picture()
        # A failure of this meme alone; --allow-missing lets a run start with such memes.
        if image is None:
            raise BadInput("The picture is not in the data set's folder.", reason=PICTURE_MISSING)
        if not image and not self.text_only:
            raise bad_picture("PICTURE_EMPTY", {})  # else the text would be judged alone
        ask = TrialRequest(
            image=image,
            text=meme.text,
            language=language_of_meme(meme, self.language),
            procedure=self.procedure,
            request_id=self.request(meme),
            namespace=f"{self.dataset}/{meme.split}",
            content_id=meme.id,
        )
        digest = hashlib.sha256(image).hexdigest() if image else ""  # as a record has it
        return (await self._court_for(meme, digest, hits).hear(ask, batch=True)).record

    def _court_for(self, meme: JudgedMeme, bytes_sha256: str, hits: HitCounter) -> TrialExecutor:
        """The court for one meme: its models are asked through the store, and its fences have the mark that the meme
        has wherever the store is used, so that what is asked again is word for word what was asked before."""  # noqa: D205, D209
        court = self.house.court
        # Without models there are no requests that would have to be the same again.
        if self.calls is None or court.chairs is None:
            return self.house
        chairs = stored_chairs(court.chairs, self.calls, server=self.server, seed=self.seed, hits=hits)
        # By the file and not by its pixels: that is known before the picture is decoded, and as lasting.
        mark = self.calls.fence_mark(meme.id, bytes_sha256)
        return replace(self.house, court=replace(court, chairs=chairs, fence_mark=mark))


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt: its prediction, whether its failure may pass, its record, and when to come again, in seconds."""

    prediction: Prediction
    passing: bool
    record: TrialRecord | None = None
    retry_after: float = 0.0


def may_pass(failed: TrialFailed) -> bool:
    """True if the reason of a failure may be gone another time."""
    return failed.retryable or failed.reason == _OURS


def ends_the_run(cause: CourtError) -> bool:
    """True if the run's own files are at fault, and not the trial."""
    return isinstance(cause, CallsError | DocketError) or cause.reason.startswith("DOCKET_")
