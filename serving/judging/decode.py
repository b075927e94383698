"""Picture decoding, shared by all callers.

Each file is decoded once for all callers that wait for it, and a bounded number of files concurrently, with fair
queueing between namespaces. A file that crashed its process, or exceeded the limits, is not decoded again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from court.digests import digest_of_file
from court.errors import BadPicture, BadText, Unavailable
from court.events import Procedure
from court.meme import Meme, Picture, is_text_digest, text_digest
from court.ports import PictureReader
from serving.docket.store.listing import Failure, TrialIndex
from serving.judging.admission import Admission
from serving.judging.request import (
    AdmissionSlot,
    Caller,
    LRUCache,
    PictureMemory,
    SingleFlight,
    TrialRequest,
    size_of,
    uncounted,
)
from serving.telemetry import SILENT, Telemetry

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
        """Starts empty."""
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


_MOST_DIGESTS = 8192
"""Maximum number of files whose pixel digest is cached: about 300 bytes each."""


@dataclass(frozen=True, slots=True)
class DecodedPicture:
    """A decoded picture.

    Attributes:
        seconds: Seconds that decoding took; 0 for callers that joined a decoding in progress.
    """

    picture: Picture
    seconds: float


class DecodingPool:
    """Decodes pictures with one reader. Safe for concurrent use within one event loop."""

    def __init__(
        self,
        pictures: PictureReader,
        quarantine: Quarantine,
        most: int,
        *,
        telemetry: Telemetry = SILENT,
        memory: PictureMemory = uncounted,
    ) -> None:
        """Starts idle."""
        self._pictures = pictures
        self._quarantine = quarantine
        # No queue for impatient callers: every caller here is patient (see _decode).
        self._turns = Admission(most, 0)
        self._telemetry = telemetry
        self._memory = memory
        self._decoding: dict[bytes, SingleFlight[DecodedPicture]] = {}
        self._digests: LRUCache[bytes, str] = LRUCache(_MOST_DIGESTS)

    def digest_at_hand(self, request: TrialRequest) -> str | None:
        """Returns the digest of a request's meme (:attr:`court.meme.Meme.digest`) if nothing must be decoded for it."""
        return text_digest(request.text or "") if request.text_alone else self._digests.get(request.file)

    async def digest_of(self, request: TrialRequest, caller: Caller, slot: AdmissionSlot | None = None) -> str:
        """Returns the digest of a request's meme; decodes the picture unless that was done recently."""
        at_hand = self.digest_at_hand(request)
        return at_hand or Meme(await self.decode(request, caller, slot), request.text).digest

    async def decode(self, request: TrialRequest, caller: Caller, slot: AdmissionSlot | None = None) -> Picture | None:
        """Returns the picture of a request; None if its text was sent without one. Raises as :meth:`read`.

        Args:
            slot: Slot under which the picture is decoded and held: the caller's, or that of the trial that it started.
                Not needed if the same file is being decoded for another caller.
        """
        slot = slot or caller.slot
        if slot.picture is not None or request.text_alone:
            return slot.picture
        if request.file not in self._decoding:
            await slot.take()
        decoded = await self.read(request.image, request.file, request.namespace)
        caller.picture_seconds += decoded.seconds
        self._digests.keep(request.file, decoded.picture.pixels_sha256)
        slot.keep(decoded.picture)
        return decoded.picture

    async def read(self, data: bytes, file: bytes, namespace: str) -> DecodedPicture:
        """Returns the picture in a file.

        Raises:
            BadPicture: The picture can't be read, exceeds the limits, or is in quarantine.
            Unavailable: The picture could not be decoded now; a retry may succeed.
        """
        # text_given: a file that crashes only text readers may still be decoded.
        self._quarantine.require(file, text_given=True)
        while True:
            decoding = self._decoding.get(file)
            own = decoding is None
            if decoding is None:
                decoding = self._decoding[file] = SingleFlight(lambda: self._decoding.pop(file))
                decoding.begin(self._decode(data, file, namespace))
            # A decoding whose last caller has left is being cancelled, and so would be anybody who joined it: wait for
            # its end and start another.
            if not decoding.ending:
                with decoding:
                    decoded = await decoding.result()
                return decoded if own else DecodedPicture(decoded.picture, 0.0)
            await decoding.over()

    @asynccontextmanager
    async def picture(self, data: bytes, namespace: str) -> AsyncIterator[Picture]:
        """Yields the picture in a file, and accounts for its memory inside the block. Raises as :meth:`read`.

        If the block's work on the picture crashes a process, that counts against the file, as in a trial.
        """
        file = await digest_of_file(data)
        picture = (await self.read(data, file, namespace)).picture
        self._memory(size_of(picture))
        try:
            yield picture
        except Unavailable as error:
            self._quarantine.failed(file, error.reason)
            raise
        finally:
            self._memory(-size_of(picture))

    async def _decode(self, data: bytes, file: bytes, namespace: str) -> DecodedPicture:
        began = time.perf_counter()
        try:
            async with self._turns.acquire(namespace, patient=True):
                picture = await self._pictures.read(data)
        except (BadPicture, Unavailable) as error:
            self._quarantine.refused(file, error.reason)
            raise
        self._quarantine.read(file)
        seconds = time.perf_counter() - began
        self._telemetry.metrics.observe("picture_decode_duration_seconds", seconds)
        return DecodedPicture(picture, seconds)
