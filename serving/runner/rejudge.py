"""Rejudging: memes of stored trials tried once more by what is loaded now, each in a new trial that names the old one.

The new trial's id follows from the old one's and from all that may differ (versions, policy, procedure), so that the
same command, repeated or interrupted, holds no trial twice. Nothing of the old trial is changed.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum

from court.digests import digest
from court.errors import CantResume, CourtError
from court.record import TrialRecord, TrialState
from serving.docket.ports import TrialErased, TrialUnknown
from serving.export.tables import Selection
from serving.runner.executor import TrialExecutor
from serving.runner.request import TrialRequest
from serving.runner.verdict_cache import VerdictCache

# Never to be changed: with another, the same command would try everything once more.
_NAMES = uuid.UUID("b5e3c9a4-52f1-4a43-8a0e-9d1f2f0f7c11")


class RejudgeOutcome(StrEnum):
    """Outcome of trying a meme once more."""

    SAME = "SAME"
    """The new trial came to the same label."""
    DIFFERENT = "DIFFERENT"
    """It came to another one."""
    UNCHANGED = "UNCHANGED"
    """Nothing that was loaded then has changed: there is nothing to be tried anew."""
    ERASED = "ERASED"
    """The new trial was erased: what somebody had erased is not made once more."""
    FAILED = "FAILED"
    """There is no new verdict."""


@dataclass(frozen=True, slots=True)
class Rejudged:
    """An old trial and what came of its meme.

    Attributes:
        old: Record of the old trial.
        outcome: Outcome of the new one.
        new: Record of the new one; None where none was held.
        reason: Why there is no new verdict, for machines; empty where there is one.
        message: The same for people.
        is_new: True if it was held by this call, and not by an earlier one.
    """

    old: TrialRecord
    outcome: RejudgeOutcome
    new: TrialRecord | None = None
    reason: str = ""
    message: str = ""
    is_new: bool = False


class Rejudging:
    """Tries memes of stored trials once more, by a court that is open."""

    def __init__(self, house: TrialExecutor, known: VerdictCache, *, within_s: float) -> None:
        """Tries nothing yet.

        Args:
            house: The court.
            known: Learns the new verdicts, so that whoever asks of such a meme next is given them.
            within_s: Seconds that each trial has.
        """
        self._house = house
        self._known = known
        self._within_s = within_s

    def is_unchanged(self, old: TrialRecord) -> bool:
        """True if a trial of that meme would be held now with all that it was held with then."""
        court = self._house.court_of(old.opened.meme.namespace)
        now = court.versions(old.opened.procedure)
        return (now, court.policy.digest) == (old.opened.versions, old.opened.policy.digest)

    async def rejudge(self, old: TrialRecord) -> Rejudged:
        """Tries the meme of a trial that has a verdict once more, unless that was done or nothing has changed."""
        if self.is_unchanged(old):
            return Rejudged(old, RejudgeOutcome.UNCHANGED)
        try:
            record, is_new = await self._try_once_more(old)
            if is_new:
                await self._known.learn(record)
        except TrialErased as error:
            return Rejudged(old, RejudgeOutcome.ERASED, reason=error.reason, message=error.message)
        except CourtError as error:
            return Rejudged(old, RejudgeOutcome.FAILED, reason=error.reason, message=error.message)
        assert old.verdict is not None and record.verdict is not None, "both have ended in one"
        same = old.verdict.label is record.verdict.label
        return Rejudged(old, RejudgeOutcome.SAME if same else RejudgeOutcome.DIFFERENT, record, is_new=is_new)

    async def _try_once_more(self, old: TrialRecord) -> tuple[TrialRecord, bool]:
        """The record of the new trial, and whether it was held, or taken up, only now."""
        for attempt in itertools.count():
            trial_id = self._id_of(old, attempt)
            record = await self._stored(trial_id)
            if record is None:
                return await self._judge(old, trial_id), True
            if record.state is TrialState.DECIDED:
                return record, False
            try:
                return await self._house.resume(trial_id, within_s=self._within_s, batch=True), True
            except CantResume as error:
                if error.reason != "TRIAL_FAILED":
                    raise
                # For good: whoever repeats the command wants another attempt, in a trial of its own.
        raise AssertionError("unreachable")

    def _id_of(self, old: TrialRecord, attempt: int) -> str:
        court = self._house.court_of(old.opened.meme.namespace)
        now = court.versions(old.opened.procedure).model_dump(mode="json")
        return str(uuid.uuid5(_NAMES, digest([old.trial_id, now, court.policy.digest, old.opened.procedure, attempt])))

    async def _stored(self, trial_id: str) -> TrialRecord | None:
        try:
            return await self._house.docket.trials.record(trial_id)
        # A kind of the next: the trial was there, and is not to be held anew under another number.
        except TrialErased:
            raise
        except TrialUnknown:
            return None

    async def _judge(self, old: TrialRecord, trial_id: str) -> TrialRecord:
        meme, text = old.opened.meme, old.text
        picture = await self._house.picture_of_trial(old)
        ask = TrialRequest(
            # Only whether there is one counts: the picture has been decoded.
            image=b"" if picture is None else b"decoded",
            # As it was asked: a text that was read is read again.
            text=text.text if text is not None and meme.text_given else None,
            language=text.language if text is not None else "",
            procedure=old.opened.procedure,
            request_id=f"rejudge {old.trial_id}",
            namespace=meme.namespace,
            content_id=meme.content_id,
            of_trial=old.trial_id,
        )
        house = self._house
        result = await house.hear(ask, within_s=self._within_s, trial_id=trial_id, picture=picture, batch=True)
        return result.record


async def rejudge_all(rejudging: Rejudging, selection: Selection, *, at_once: int) -> AsyncIterator[Rejudged]:
    """Yields what comes of each decided trial of a selection, in its order; what was judged anew itself is left out.

    Args:
        rejudging: Tries.
        selection: Trials to go through.
        at_once: Trials held at once.
    """
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
        # A caller that stops early leaves no trial running.
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
