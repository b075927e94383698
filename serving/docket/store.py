"""The port of the docket: where records are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from court.errors import CourtError
from court.events import AnyEvent, Procedure
from court.meme import Picture
from court.record import TrialRecord, TrialState
from court.verdict import Label


class DocketError(CourtError):
    """The docket is missing, damaged, or of another format: what is wrong, and what to do."""

    default_reason = "BAD_DOCKET"


class TrialUnknown(CourtError):
    """There is no trial of that id in this docket."""

    default_reason = "TRIAL_UNKNOWN"


@dataclass(frozen=True, slots=True)
class DocketLine:
    """One trial in a listing.

    Attributes:
        trial_id: Opens the record.
        opened_at: UTC.
        procedure: How it is or was tried.
        namespace: Whose content it is.
        content_id: What the caller calls it.
        state: Where it stands; OPEN also where it was cut off.
        label: Of the verdict, or None where there is none.
        needs_human_review: Whether the verdict asks for a person.
    """

    trial_id: str
    opened_at: datetime
    procedure: Procedure
    namespace: str
    content_id: str
    state: TrialState
    label: Label | None
    needs_human_review: bool


class Docket(Protocol):
    """Keeps records. An event for which :meth:`append` has returned outlives the process, and the machine's power."""

    async def append(self, event: AnyEvent) -> None:
        """Keeps an event.

        Raises:
            Unavailable: It could not be kept now.
            DocketError: The trial already has an event of that number.
        """
        ...

    async def keep_picture(self, picture: Picture) -> None:
        """Keeps the representative frames of a picture under the digest of its pixels; again is no harm.

        Raises:
            Unavailable: They could not be kept now.
        """
        ...

    async def record(self, trial_id: str) -> TrialRecord:
        """The record of a trial.

        Raises:
            TrialUnknown: There is none of that id.
            DocketError: What is kept is no record.
        """
        ...

    async def frames(self, pixels_sha256: str) -> Sequence[bytes]:
        """The kept frames of a picture as PNG files; none if it is unknown."""
        ...

    async def list(self, *, limit: int, before: datetime | None = None) -> Sequence[DocketLine]:
        """Trials, the last opened first, those opened before a time only."""
        ...

    async def requests(self) -> Mapping[str, Sequence[str]]:
        """Ids of all trials by the request that they were opened for, the first opened first."""
        ...

    async def open_trials(self) -> Sequence[str]:
        """Ids of the trials that are open, the first opened first: they run in some process, or were cut off."""
        ...

    async def close(self) -> None:
        """Waits until everything handed in is kept, and lets go."""
        ...
