"""Picture decoding, shared by all callers.

Each file is decoded once for all callers that wait for it, and a bounded number of files concurrently, with fair
queueing between namespaces. A file that crashed its process, or exceeded the limits, is not decoded again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from court.digests import digest_of_file
from court.errors import BadPicture, Unavailable
from court.meme import Meme, Picture, text_digest
from court.ports import PictureReader
from serving.judging.admission import Admission
from serving.judging.quarantine import Quarantine
from serving.judging.request import AdmissionSlot, Caller, PictureMemory, TrialRequest, UncountedPictures, size_of
from serving.judging.single_flight import LRUCache, SingleFlight
from serving.telemetry import SILENT, Telemetry

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
        memory: PictureMemory | None = None,
    ) -> None:
        """Starts idle.

        Args:
            memory: Accounts for the bytes of the pictures that :meth:`picture` lends; None if they are not limited.
        """
        self._pictures = pictures
        self._quarantine = quarantine
        # No queue for impatient callers: every caller here is patient (see _decode).
        self._turns = Admission(most, 0)
        self._telemetry = telemetry
        self._memory = memory or UncountedPictures()
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
        self._memory.change_pictures(size_of(picture))
        try:
            yield picture
        except Unavailable as error:
            self._quarantine.failed(file, error.reason)
            raise
        finally:
            self._memory.change_pictures(-size_of(picture))

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
        self._telemetry.metrics.decoded(seconds)
        return DecodedPicture(picture, seconds)
