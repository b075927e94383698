"""Shadow mode: a candidate library, prompt set, model or policy tries the court's memes without any visible effect.

It starts after the court's verdict is stored and published, with one meme at a time, and only while no caller waits and
half of the admission slots are free. Its verdicts go into a separate docket and appear in no answer, queue, webhook or
metric of verdicts. Its trials refer to those of the court, so that the two can be compared.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from court.errors import CourtError
from court.events import AnyEvent, Procedure, VerdictGiven
from court.record import TrialRecord
from court.trial import Court
from serving.docket.log.entries import Entry, erased_of
from serving.docket.open import Docket
from serving.docket.ports import TrialUnknown
from serving.docket.store.bodies import PART, part_owner
from serving.runner.admission import Admission
from serving.runner.executor import TrialExecutor
from serving.runner.request import TrialRequest
from serving.views.recorded_evidence import EvidenceOnRecord

_WITHIN_S: Final = 600.0
"""Time limit of a shadow trial in seconds; generous, since nobody waits for it."""
_BUSY_S: Final = 0.25
"""Seconds between two checks whether the court has spare capacity."""
_ERASED_S: Final = 60.0
"""Seconds between two checks for erasures in the court's docket."""
# Entries per page: an old docket has many.
_ERASURES = 500
# Never change this: another value would change the id of every shadow trial.
_NAMES = uuid.UUID("6f0dbe09-7ee5-4f3d-9e0c-3e5a6f1c7d8b")

_log = logging.getLogger("memecourt.shadow")


def shadow_id(trial_id: str) -> str:
    """Returns the id of the shadow trial that belongs to a trial of the court."""
    return str(uuid.uuid5(_NAMES, trial_id))


@dataclass(frozen=True, slots=True)
class ShadowCourt:
    """The candidate court and its docket.

    Attributes:
        docket: Docket of the shadow trials.
        court_of: Returns the candidate court for a namespace.
        share: Share of the court's verdicts whose memes it tries as well.
        waiting: Maximum number of waiting memes.
        procedure: Procedure of its trials; None for that of the court.
    """

    docket: Docket
    court_of: Callable[[str], Court]
    share: float = 1.0
    waiting: int = 1000
    procedure: Procedure | None = None


class Shadow:
    """Runs shadow trials after those of the court. Used from one event loop."""

    def __init__(
        self, live: TrialExecutor, admission: Admission, shadow: ShadowCourt, report: Callable[[str], None]
    ) -> None:
        """Starts without waiting memes.

        Args:
            admission: Admission control of the court, which has priority.
            report: Called with the outcome of each meme: ``decided``, ``failed`` or ``dropped``.
        """
        self._live = live
        self._admission = admission
        self._shadow = shadow
        self._report = report
        self._waiting: deque[str] = deque()
        self._some = asyncio.Event()

    async def note(self, event: AnyEvent) -> None:
        """Queues the meme of a verdict; an :class:`~court.ports.EventListener`, which the court waits for."""
        if not isinstance(event, VerdictGiven) or not self._is_chosen(event.trial_id):
            return
        # Drop the oldest, so that the shadow follows the court's current traffic.
        if len(self._waiting) >= self._shadow.waiting:
            self._waiting.popleft()
            self._report("dropped")
        self._waiting.append(event.trial_id)
        self._some.set()

    async def run(self) -> None:
        """Tries waiting memes until cancelled."""
        while True:
            await self._some.wait()
            while self._waiting:
                await self._until_idle()
                if self._waiting:
                    await self._try(self._waiting.popleft())
            self._some.clear()

    async def follow_erasures(self, *, every_s: float = _ERASED_S) -> None:
        """Mirrors erasures from the court's docket to the shadow's until cancelled.

        They cover trials with their memes, and the texts of precedents and documents.
        """
        first = 0
        due: set[str] = set()
        precedents: set[str] = set()
        while True:
            try:
                while entries := await self._live.docket.log.entries(first, _ERASURES, {"Erased"}):
                    tried = (shadow_id(entry.trial_id) for entry in entries)
                    due |= {trial_id for trial_id in tried if await _has_record(self._shadow.docket, trial_id)}
                    for entry in entries:
                        precedents |= await self._erased_by(entry)
                    first = entries[-1].number + 1
                if due:
                    # Repeated if a file still contains some of it: erasing something twice is no error.
                    await self._erase(due)
                    due.clear()
                if precedents:
                    # Also those that the shadow has not quoted: its library may contain them and quote them later.
                    why = "It was erased from the court's docket."
                    at = self._live.court.now()
                    await self._shadow.docket.eraser.erase_precedents(precedents, who="shadow", why=why, at=at)
                    precedents.clear()
            # Continue: an unavailable docket is tried again.
            except CourtError as error:
                _log.error("what was erased can't be erased here now: reason=%s", error.reason)
            await asyncio.sleep(every_s)

    async def _erased_by(self, entry: Entry) -> set[str]:
        """Returns the ids of precedents and names of documents that an erasure in the court's log covers."""
        assert entry.body is not None, "that of an erasure is never erased"
        if not (count := erased_of(entry.body).buried):
            return set()
        # Their tombstones were logged right before it.
        graves = await self._live.docket.log.entries(entry.number - count, count, {PART})
        return {part_owner(grave.body) for grave in graves if grave.body is not None}

    async def _erase(self, trial_ids: Iterable[str]) -> None:
        eraser, why = self._shadow.docket.eraser, "The trial whose meme it tried was erased."
        await eraser.erase_all(dict.fromkeys(trial_ids, ()), who="shadow", why=why, at=self._live.court.now())

    async def _until_idle(self) -> None:
        # Polled rather than queued: the shadow must not take a place in the queue.
        while not self._admission.has_room:  # noqa: ASYNC110
            await asyncio.sleep(_BUSY_S)

    async def _try(self, trial_id: str) -> None:
        try:
            record = await self._live.docket.trials.record(trial_id)
            await self._try_meme(record)
        except TrialUnknown:
            return  # it was erased meanwhile
        except CourtError as error:
            # Includes failed trials: their record says so, and the shadow continues with the next.
            _log.warning("trial=%s not tried by the shadow: reason=%s", trial_id, error.reason)
            self._report("failed")
        else:
            self._report("decided")

    async def _try_meme(self, record: TrialRecord) -> None:
        shadow, opened, text = self._shadow, record.opened, record.text
        assert text is not None, "there is no verdict without"
        picture = await self._live.picture_of_trial(record)
        ask = TrialRequest(
            # Only its presence counts, since the picture is already decoded.
            image=b"" if picture is None else b"decoded",
            # The text as the court read it, so that only the candidate differs.
            text=text.text,
            language=text.language,
            procedure=shadow.procedure or opened.procedure,
            request_id=record.trial_id,
            namespace=opened.meme.namespace,
            content_id=opened.meme.content_id,
            of_trial=record.trial_id,
        )
        court = replace(shadow.court_of(ask.namespace), duplicates=None)
        source = court.evidence_source
        if source is not None and opened.settings.get("evidence_source") == source.identity:
            # A search endpoint is queried once per meme; the shadow queries it only for what the court did not.
            court = replace(court, evidence_source=EvidenceOnRecord(record, source))
        executor = TrialExecutor(court, self._live.pictures, shadow.docket)
        trial_id = shadow_id(record.trial_id)
        try:
            await executor.hear(ask, within_s=_WITHIN_S, trial_id=trial_id, picture=picture, batch=True)
        finally:
            # Also after a failure: its record contains the meme anyway.
            if not await _has_record(self._live.docket, record.trial_id):
                await self._erase([trial_id])

    def _is_chosen(self, trial_id: str) -> bool:
        """True if the shadow tries a trial's meme; decided by the id, so that a larger share is a superset."""
        digest = hashlib.sha256(b"memecourt shadow\0" + trial_id.encode()).digest()
        return int.from_bytes(digest[:8]) < self._shadow.share * 2**64


async def _has_record(docket: Docket, trial_id: str) -> bool:
    """True if a docket has a record of a trial; False if there never was one, or it was erased."""
    try:
        await docket.trials.record(trial_id)
    except TrialUnknown:
        return False
    return True
