"""The docket's ports that have another implementation than the store: the reader and the writer of trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from court.events import AnyEvent
from court.meme import Picture
from court.record import TrialRecord


class TrialWriter(Protocol):
    """Stores the events and pictures of trials."""

    async def append(self, *events: AnyEvent) -> None:
        """Appends one or several events in order, atomically.

        Raises:
            Unavailable: They could not be kept now.
            DocketError: The trial already has an event of that number.
        """

    async def keep_picture(self, picture: Picture) -> None:
        """Stores the representative frames of a picture under the digest of its pixels; idempotent.

        Raises:
            Unavailable: They could not be kept now.
        """


class TrialReader(Protocol):
    """Reads one trial: its record, its events, the frames of its picture."""

    async def record(self, trial_id: str) -> TrialRecord:
        """Returns the record of a trial.

        Raises:
            TrialUnknown: There is none of that id.
            DocketError: The stored content is not a valid record.
        """

    async def events(self, trial_id: str, from_seq: int = 0) -> Sequence[AnyEvent]:
        """Returns the events of a trial from a sequence number on; none if it has not got that far.

        Raises:
            TrialUnknown: There is none of that id.
            DocketError: The stored content is not a valid list of events.
        """

    async def frames(self, pixels_sha256: str) -> Sequence[bytes]:
        """Returns the stored frames of a picture as PNG files; none if it is unknown."""
