"""Rejudging: tries the memes of stored trials again with the current versions, in new trials that refer to the old.

The new trial's id is derived from the old id and everything that may differ (versions, policy, procedure), so that the
same command, repeated or interrupted, runs no trial twice. The old trial is not changed.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum

from court.deadline import cancel_all
from court.digests import digest
from court.errors import CantResume, CourtError
from court.meme import Picture
from court.record import TrialRecord, TrialState
from serving.docket.errors import TrialErased, TrialUnknown
from serving.docket.open import Docket
from serving.export.tables import Selection
from serving.judging.executor import TrialExecutor
from serving.judging.known import VerdictCache
from serving.judging.request import TrialRequest

# Never change this: with another value, the same command would try everything again.
_NAMES = uuid.UUID("b5e3c9a4-52f1-4a43-8a0e-9d1f2f0f7c11")


class RejudgeOutcome(StrEnum):
    """Outcome of trying the meme of a stored trial again."""

    SAME = "SAME"
    """The new trial gave the same label."""
    DIFFERENT = "DIFFERENT"
    """The new trial gave another label."""
    UNCHANGED = "UNCHANGED"
    """No version has changed, so there is no reason for another trial."""
    ERASED = "ERASED"
    """One of the two trials was erased, so that the meme is not tried."""
    FAILED = "FAILED"
    """There is no new verdict."""


@dataclass(frozen=True, slots=True)
class Rejudged:
    """A decided trial and the result of trying its meme again.

    Attributes:
        old: Its record; None if it was erased.
        reason: Why there is no new verdict, for machines; empty where there is one.
        is_new: True if it was held by this call, and not by an earlier one.
    """

    trial_id: str
    outcome: RejudgeOutcome
    old: TrialRecord | None = None
    new: TrialRecord | None = None
    reason: str = ""
    message: str = ""
    is_new: bool = False

    @classmethod
    def failed(cls, old: TrialRecord, error: CourtError) -> Rejudged:
        """Returns the result where there is no new verdict; the record of a failed trial says so, too."""
        outcome = RejudgeOutcome.ERASED if isinstance(error, TrialErased) else RejudgeOutcome.FAILED
        return cls(old.trial_id, outcome, old, reason=error.reason, message=error.message)

    @classmethod
    def compared(cls, old: TrialRecord, new: TrialRecord, *, is_new: bool = True) -> Rejudged:
        """Compares two trials of a meme."""
        assert old.verdict is not None and new.verdict is not None, "both have ended in one"
        same = old.verdict.label is new.verdict.label
        return cls(old.trial_id, RejudgeOutcome.SAME if same else RejudgeOutcome.DIFFERENT, old, new, is_new=is_new)


async def find_record(docket: Docket, trial_id: str) -> TrialRecord | None:
    """Returns the record of a trial; None if there never was one. Raises TrialErased if it was erased."""
    try:
        return await docket.trials.record(trial_id)
    # A subclass of the next exception: the trial existed, and must not be repeated under another number.
    except TrialErased:
        raise
    except TrialUnknown:
        return None


def request_again(old: TrialRecord, picture: Picture | None, text: str | None, request_id: str) -> TrialRequest:
    """Returns the request for another trial of a trial's meme; ``text`` is None to have it read again."""
    meme = old.opened.meme
    return TrialRequest(
        image=b"",
        picture=picture,
        text=text,
        language=old.text.language if old.text is not None else "",
        procedure=old.opened.procedure,
        request_id=request_id,
        namespace=meme.namespace,
        content_id=meme.content_id,
        of_trial=old.trial_id,
    )


class Rejudging:
    """Tries memes of stored trials again with an open court."""

    def __init__(self, executor: TrialExecutor, known: VerdictCache, *, within_s: float) -> None:
        """Prepares for rejudging.

        Args:
            known: Cache that learns the new verdicts, so that later requests for these memes get them.
        """
        self._executor = executor
        self._known = known
        self._within_s = within_s

    def is_unchanged(self, old: TrialRecord) -> bool:
        """True if a new trial of the meme would use the same versions as the old one."""
        court = self._executor.court_of(old.opened.meme.namespace)
        now = court.versions(old.opened.procedure)
        return (now, court.policy.digest) == (old.opened.versions, old.opened.policy.digest)

    async def rejudge(self, old: TrialRecord) -> Rejudged:
        """Tries the meme of a decided trial again, unless that was done already or no version has changed."""
        if self.is_unchanged(old):
            return Rejudged(old.trial_id, RejudgeOutcome.UNCHANGED, old)
        try:
            record, is_new = await self._try_once_more(old)
            if is_new:
                await self._known.learn(record)
        except CourtError as error:
            return Rejudged.failed(old, error)
        return Rejudged.compared(old, record, is_new=is_new)

    async def _try_once_more(self, old: TrialRecord) -> tuple[TrialRecord, bool]:
        """Returns the record of the new trial, and True if it was run or resumed just now."""
        for attempt in itertools.count():
            trial_id = self._id_of(old, attempt)
            record = await find_record(self._executor.docket, trial_id)
            if record is None:
                return await self._judge(old, trial_id), True
            if record.state is TrialState.DECIDED:
                return record, False
            try:
                return await self._executor.resume(trial_id, within_s=self._within_s, batch=True), True
            except CantResume as error:
                if error.reason != "TRIAL_FAILED":
                    raise
                # It failed for good: repeating the command makes another attempt in a separate trial.
        raise AssertionError("unreachable")

    def _id_of(self, old: TrialRecord, attempt: int) -> str:
        court = self._executor.court_of(old.opened.meme.namespace)
        now = court.versions(old.opened.procedure).model_dump(mode="json")
        return str(uuid.uuid5(_NAMES, digest([old.trial_id, now, court.policy.digest, old.opened.procedure, attempt])))

    async def _judge(self, old: TrialRecord, trial_id: str) -> TrialRecord:
        picture, text = await self._executor.picture_of_trial(old), old.text
        # As in the original request: a text read off the picture is read again.
        own = text.text if text is not None and old.opened.meme.text_given else None
        request = request_again(old, picture, own, f"rejudge {old.trial_id}")
        result = await self._executor.run(request, within_s=self._within_s, trial_id=trial_id, batch=True)
        return result.record


async def rejudge_all(rejudging: Rejudging, selection: Selection, *, at_once: int) -> AsyncIterator[Rejudged]:
    """Yields the result for each decided trial of a selection, in order; skips trials that rejudged others."""
    running: list[asyncio.Task[Rejudged]] = []
    try:
        async for record in selection.records():
            if record.state is not TrialState.DECIDED or record.opened.of_trial:
                continue
            running.append(asyncio.create_task(rejudging.rejudge(record)))
            if len(running) >= at_once:
                yield await running.pop(0)
        while running:
            yield await running.pop(0)
    finally:
        # A caller that stops early must leave no trial running.
        await cancel_all(*running)
