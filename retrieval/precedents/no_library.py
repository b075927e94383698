"""Finder of a court without precedents, which needs neither encoder nor library."""

from __future__ import annotations

from collections.abc import Sequence

from court.errors import NotLoaded
from court.meme import Frame
from court.precedents import Findings, LibraryIdentity


class NoLibrary:
    """Finder without a library: searching it is an error, as it must not be mistaken for finding no precedents."""

    @property
    def library(self) -> LibraryIdentity:
        """Identity of no library."""
        return LibraryIdentity(name="", digest="", size=0, encoder="", with_picture=0)

    async def find(
        self,
        *,
        text: str,
        frames: Sequence[Frame],
        pixels_sha256: str,
        exhibits: int,
        tally: int,
        alpha: float | None,
    ) -> Findings:
        """Raises NotLoaded."""
        raise NotLoaded("This court was opened without a library of precedents.", reason="NO_LIBRARY")

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Raises NotLoaded."""
        raise NotLoaded("This court was opened without a library of precedents.", reason="NO_LIBRARY")

    def close(self) -> None:
        """Does nothing."""
