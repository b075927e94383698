"""Quarantine of pictures that crashed the process decoding them, and of memes whose trials crashed the model server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from court.errors import BadPicture, BadText
from court.events import Procedure
from court.meme import is_text_digest
from serving.docket.store.listing import Failure, TrialIndex
from serving.judging.request import AdmissionSlot
from serving.judging.single_flight import LRUCache

# RE-6 promises this number across restarts and servers: it is counted from the docket.
MOST_KILLS = 2
"""Number of model server crashes in trials of a picture, without a model's verdict in between, after which it is
refused."""
_MOST_FILES = 65_536
_KILLS = frozenset({"PICTURE_KILLS_READER", "PICTURE_TOO_COSTLY"})
"""Error reasons if a picture crashed the reader's process or exceeded its resource limits."""
_KILLED = "PICTURE_READER_KILLED"
"""Error reason if the process was killed from outside, which is rarely the file's fault. But exploited code can send
itself that signal, and the file may have exhausted the machine's memory: so the second time counts."""
_UNREAD = "TEXT_READER_FAILED"
_UNREAD_KILLED = "TEXT_READER_KILLED"
_COMPARED = "COMPARER_FAILED"
_COMPARED_TWICE = frozenset({"COMPARER_KILLED", "ENCODER_ENDED", "ENCODER_STUCK"})
"""Reasons that count only the second time: other memes share the encoder's process and fail together with it."""


class Quarantine:
    """Remembers in memory which files crashed a worker, and counts crashes of model servers from the docket."""

    def __init__(self, trials: TrialIndex) -> None:
        """Starts empty.

        Args:
            trials: Index of the failed trials of each picture, from all servers.
        """
        self._trials = trials
        # True if a file is refused; False after its process was killed from outside once.
        self._files: LRUCache[bytes, bool] = LRUCache(_MOST_FILES)
        self._unread: LRUCache[bytes, bool] = LRUCache(_MOST_FILES)
        self._uncompared: LRUCache[bytes, bool] = LRUCache(_MOST_FILES)
        self._suspect = asyncio.Lock()

    def require(self, file: bytes, *, text_given: bool) -> None:
        """Raises BadPicture if a file of that digest has crashed a worker that would process it again."""
        if self._files.get(file):
            raise _quarantined("The process that decoded it was killed or worn out.")
        if self._uncompared.get(file):
            raise _quarantined("The process that compared it with others failed, or was killed over it.")
        if not text_given and self._unread.get(file):
            raise _quarantined("The process that read the text off it failed or was killed. Send the text with it.")

    def refused(self, file: bytes, reason: str) -> None:
        """Records why a file could not be decoded."""
        if reason in _KILLS or reason == _KILLED:
            _blame(self._files, file, at_once=reason != _KILLED)

    def read(self, file: bytes) -> None:
        """Records that a file could be decoded, so that it did not cause an earlier kill."""
        _clear(self._files, file)

    def failed(self, file: bytes, reason: str) -> None:
        """Records why the trial of a file failed."""
        if reason in (_UNREAD, _UNREAD_KILLED):
            _blame(self._unread, file, at_once=reason == _UNREAD)
        elif reason == _COMPARED or reason in _COMPARED_TWICE:
            _blame(self._uncompared, file, at_once=reason == _COMPARED)

    def compared(self, file: bytes) -> None:
        """Clears a file that was successfully compared with precedents and earlier memes."""
        _clear(self._uncompared, file)

    def text_read(self, file: bytes) -> None:
        """Clears a file whose text was read successfully."""
        _clear(self._unread, file)

    @asynccontextmanager
    async def trial(self, slot: AdmissionSlot, digest: str, procedure: Procedure) -> AsyncIterator[None]:
        """Runs a trial inside the context, one at a time for suspects.

        Of the trials that were running when a model server crashed, only one is to blame. They are retried one at a
        time, so that the next crash has a single suspect. A waiting suspect gives up its slot, so that others do not
        wait for it.

        Args:
            slot: Slot of the trial. A suspect's slot no longer holds its decoded picture.

        Raises:
            BadInput: The meme has crashed a model server twice.
            Unavailable: The docket can't be read, or the slot can't be taken again.
        """
        await slot.take()
        if not await self.require_meme(digest, procedure):
            yield
            return
        await slot.leave()
        async with self._suspect:
            await slot.take()
            await self.require_meme(digest, procedure)  # checked again: it may have been tried meanwhile
            yield

    async def require_meme(self, digest: str, procedure: Procedure) -> int:
        """Returns how often a meme may have crashed a model server that it would be shown to again.

        Raises:
            BadInput: The meme has crashed a model server twice.
        """
        if procedure is Procedure.SUMMARY:
            return 0  # not shown to any model
        kills = _deaths(await self._trials.failures(digest))
        if kills < MOST_KILLS:
            return kills
        if is_text_digest(digest):
            why = "The text is not tried again. The model server broke off twice while it was asked about it."
            raise BadText(why, reason="QUARANTINED")
        raise _quarantined("The model server broke off twice while it looked at it.")


def _blame(files: LRUCache[bytes, bool], file: bytes, *, at_once: bool) -> None:
    """Refuses a file from now on: at once, or only if this is the second incident."""
    if not file:
        return  # texts without picture have no file and would all share one entry
    files.keep(file, at_once or files.get(file) is not None)


def _clear(files: LRUCache[bytes, bool], file: bytes) -> None:
    """Forgets a first incident of a file; a refused file stays refused, since other trials may have started earlier."""
    if files.get(file) is False:
        files.drop(file)


def _deaths(failures: Sequence[Failure]) -> int:
    """Counts the model server crashes that explain these failures, in order.

    One crash fails all concurrent trials, and a popular picture is often in several of them.
    """
    deaths, at_once, last = 0, 0, -1
    for failure in failures:
        if not failure.failed.broke_off:
            continue
        # It started after the first of the group had ended, so a single crash can't explain both.
        if failure.begun > last:
            at_once, last = 0, failure.ended
        # Overlapping trials may have seen the same crashes: count the maximum that one trial of the group has seen.
        deaths += max(0, failure.failed.broke_off - at_once)
        at_once = max(at_once, failure.failed.broke_off)
    return deaths


def _quarantined(why: str) -> BadPicture:
    return BadPicture(f"The picture is not tried again. {why}", reason="QUARANTINED")
