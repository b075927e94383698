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
from court.meme import Picture
from court.ports import PictureReader
from serving.judging.admission import Admission
from serving.judging.quarantine import Quarantine
from serving.judging.request import PictureMemory, UncountedPictures, size_of
from serving.judging.single_flight import SingleFlight
from serving.telemetry import SILENT, Telemetry


@dataclass(frozen=True, slots=True)
class Decoded:
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
            quarantine: Records the files that crashed the reader.
            most: Maximum number of files that are decoded concurrently.
            telemetry: Records decoding times.
            memory: Accounts for the bytes of the pictures that :meth:`picture` lends; None if they are not limited.
        """
        self._pictures = pictures
        self._quarantine = quarantine
        # No queue for impatient callers: every caller here is patient (see _decode).
        self._turns = Admission(most, 0)
        self._telemetry = telemetry
        self._memory = memory or UncountedPictures()
        self._decoding: dict[bytes, SingleFlight[Decoded]] = {}

    def at(self, file: bytes) -> bool:
        """True if a file with this digest is being decoded or is queued."""
        return file in self._decoding

    async def read(self, data: bytes, file: bytes, namespace: str) -> Decoded:
        """Returns the picture in a file.

        Args:
            file: SHA-256 of it.
            namespace: Namespace of the caller.

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
                return decoded if own else Decoded(decoded.picture, 0.0)
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

    async def _decode(self, data: bytes, file: bytes, namespace: str) -> Decoded:
        began = time.perf_counter()
        try:
            async with self._turns.acquire(namespace, patient=True):
                picture = await self._pictures.read(data)
        except (BadPicture, Unavailable) as error:
            self._quarantine.refused(file, error.reason)
            raise
        self._quarantine.read(file)
        seconds = time.perf_counter() - began
        self._telemetry.decoded(seconds)
        return Decoded(picture, seconds)
