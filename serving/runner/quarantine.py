"""Quarantine of pictures that killed the process decoding them, and of memes whose trials killed the model server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from court.errors import BadPicture, BadText
from court.events import Procedure
from court.meme import is_text_digest
from serving.docket.ports import Failure, TrialIndex
from serving.runner.request import AdmissionSlot
from serving.runner.single_flight import LRUCache

# RE-6 promises this number, over restarts and servers: it is counted from the docket.
MOST_KILLS = 2
"""Times that a model server may break off in trials of a picture, with no verdict of a model between, before it is
refused."""
_MOST_FILES = 65_536
_KILLS = frozenset({"PICTURE_KILLS_READER", "PICTURE_TOO_COSTLY"})
"""Reasons of a picture reader whose process died, or was ended because of what the picture cost."""
_KILLED = "PICTURE_READER_KILLED"
"""The process was killed from outside, which is hardly the file's doing. But code that a file has subverted can send
itself that signal, and a file can be what the memory of the machine was too small for: twice is once too often."""
_UNREAD = "TEXT_READER_FAILED"
_UNREAD_KILLED = "TEXT_READER_KILLED"
_COMPARED = "COMPARER_FAILED"
_COMPARED_TWICE = frozenset({"COMPARER_KILLED", "ENCODER_ENDED", "ENCODER_STUCK"})
"""Others are compared in the encoder's process at the same time, and end with it."""


class Quarantine:
    """Remembers, for as long as this process lives, which files killed a worker; the docket knows of model servers."""

    def __init__(self, trials: TrialIndex) -> None:
        """Refuses nothing yet.

        Args:
            trials: Holds the failed trials of each picture, of this process and all others.
        """
        self._trials = trials
        # Whether a file is refused; not yet where its process was killed from outside once.
        self._files: LRUCache[bytes, bool] = LRUCache(_MOST_FILES)
        self._unread: LRUCache[bytes, bool] = LRUCache(_MOST_FILES)
        self._uncompared: LRUCache[bytes, bool] = LRUCache(_MOST_FILES)
        self._suspect = asyncio.Lock()

    def require(self, file: bytes, *, text_given: bool) -> None:
        """Raises BadPicture if a file of that digest has killed a worker that it would be given to again."""
        if self._files.get(file):
            raise _quarantined("The process that decoded it was killed or worn out.")
        if self._uncompared.get(file):
            raise _quarantined("The process that compared it with others failed, or was killed over it.")
        if not text_given and self._unread.get(file):
            raise _quarantined("The process that read the text off it failed or was killed. Send the text with it.")

    def refused(self, file: bytes, reason: str) -> None:
        """Takes note of why a file could not be decoded."""
        if reason in _KILLS or reason == _KILLED:
            _blame(self._files, file, at_once=reason != _KILLED)

    def read(self, file: bytes) -> None:
        """Takes note that a file could be decoded: a process that was killed over it before was not killed by it."""
        _clear(self._files, file)

    def failed(self, file: bytes, reason: str) -> None:
        """Takes note of why the trial of a file failed."""
        if reason in (_UNREAD, _UNREAD_KILLED):
            _blame(self._unread, file, at_once=reason == _UNREAD)
        elif reason == _COMPARED or reason in _COMPARED_TWICE:
            _blame(self._uncompared, file, at_once=reason == _COMPARED)

    def compared(self, file: bytes) -> None:
        """Clears a file that was compared with precedents and memes tried before."""
        _clear(self._uncompared, file)

    def text_read(self, file: bytes) -> None:
        """Clears a file whose text was read."""
        _clear(self._unread, file)

    async def require_meme(self, digest: str, procedure: Procedure) -> None:
        """Raises BadInput if a meme has killed a model server twice, and would be shown to one again."""
        await self._kills(digest, procedure)

    @asynccontextmanager
    async def trial(self, place: AdmissionSlot, digest: str, procedure: Procedure) -> AsyncIterator[None]:
        """A trial of a meme, in its turn, for as long as the context lasts.

        Of trials that were running when a model server died, one is to blame and the others are not. They are held
        again one at a time, so that the next death has one suspect. A suspect that waits for others has no turn
        meanwhile: those that are under no suspicion do not wait for it.

        Args:
            place: Slot of the trial. That of a suspect holds no decoded picture any more.
            digest: Digest of the meme (:attr:`court.meme.Meme.digest`).
            procedure: Procedure of the trial.

        Raises:
            BadInput: The meme has killed a model server twice.
            Unavailable: The docket can't say; or there is no turn again.
        """
        await place.take()
        if not await self._kills(digest, procedure):
            yield
            return
        await place.leave()
        async with self._suspect:
            await place.take()
            await self._kills(digest, procedure)  # again: it may have been on trial meanwhile
            yield

    async def _kills(self, digest: str, procedure: Procedure) -> int:
        if procedure is Procedure.SUMMARY:
            return 0  # shown to no model
        kills = _deaths(await self._trials.failures(digest))
        if kills < MOST_KILLS:
            return kills
        if is_text_digest(digest):
            why = "The text is not tried again. The model server broke off twice while it was asked about it."
            raise BadText(why, reason="QUARANTINED")
        raise _quarantined("The model server broke off twice while it looked at it.")


def _blame(files: LRUCache[bytes, bool], file: bytes, *, at_once: bool) -> None:
    """Refuses a file from now on; if not at once, then only when there was something before."""
    if not file:
        return  # a text that was sent alone has no file: what one of them did, all others would pay for
    files.keep(file, at_once or files.get(file) is not None)


def _clear(files: LRUCache[bytes, bool], file: bytes) -> None:
    """Forgets that a process was killed over a file; what is refused stays so, others may have begun before that."""
    if files.get(file) is False:
        files.drop(file)


def _deaths(failures: Sequence[Failure]) -> int:
    """Counts the model server deaths that explain failures in this order.

    Of trials that were held at once all fail when it dies once, and a picture that many ask for is on trial often.
    """
    deaths, at_once, last = 0, 0, -1
    for failure in failures:
        if not failure.failed.broke_off:
            continue
        # It began after the first of the group had ended, so no one death explains both.
        if failure.begun > last:
            at_once, last = 0, failure.ended
        # Trials that overlap may have seen the same deaths: of a group the most that one has seen counts.
        deaths += max(0, failure.failed.broke_off - at_once)
        at_once = max(at_once, failure.failed.broke_off)
    return deaths


def _quarantined(why: str) -> BadPicture:
    return BadPicture(f"The picture is not tried again. {why}", reason="QUARANTINED")
