"""What the console needs from outside: little of a docket, and pictures of precedents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol

from court.events import AnyEvent, ReviewOutcome, VerdictReviewed
from court.meme import Frame
from court.record import TrialRecord
from court.verdict import Label
from serving.docket.ports import DocketLine, Receipt, TrialFilter

_ALL = TrialFilter()


class ConsoleDocket(Protocol):
    """The part of a :class:`~serving.docket.ports.Docket` that the console uses: it reads, and writes reviews."""

    async def record(self, trial_id: str) -> TrialRecord:
        """See the docket."""
        ...

    async def events(self, trial_id: str, from_seq: int = 0) -> Sequence[AnyEvent]:
        """See the docket."""
        ...

    async def frames(self, pixels_sha256: str) -> Sequence[bytes]:
        """See the docket."""
        ...

    async def receipt(self, trial_id: str) -> Receipt:
        """See the docket."""
        ...

    async def list(
        self,
        *,
        limit: int,
        after: tuple[datetime, str] | None = None,
        which: TrialFilter = _ALL,
        oldest_first: bool = False,
    ) -> Sequence[DocketLine]:
        """See the docket."""
        ...

    async def labels(self, trial_ids: Sequence[str]) -> Mapping[str, Label]:
        """See the docket."""
        ...

    async def review(
        self,
        trial_id: str,
        *,
        outcome: ReviewOutcome,
        label: Label,
        reason: str,
        clause: str,
        reviewer: str,
        at: datetime,
    ) -> VerdictReviewed:
        """See the docket."""
        ...

    async def note_access(
        self, trial_id: str, *, who: str, what: str, at: datetime, kind: Literal["PictureShown"] = "PictureShown"
    ) -> None:
        """See the docket."""
        ...


class PrecedentPictures(Protocol):
    """Pictures of precedents; a part of :class:`~court.ports.PrecedentFinder`."""

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Pictures of these precedents; None where the library has none (any more)."""
        ...
