"""Controls: a court changed in one respect, to measure what that respect contributes.

The paper only removes the precedents. Replacing one property and keeping the rest shows whether their similarity helps,
their labels, or having examples at all. Likewise for the sides: a Judge that rules the same with swapped justifications
was not swayed by who argued what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from court.errors import BadRequest
from court.meme import Frame
from court.ports import PrecedentFinder
from court.precedents import Findings, LibraryIdentity
from court.trial import Court
from eval.runs import precedents
from eval.solvers.altered import alteration_of
from retrieval.precedents.finder import LibraryFinder


class Control(StrEnum):
    """Control condition: the part of the court that is changed."""

    RANDOM = "random precedents"
    """Precedents are drawn at random from the library and shown with their true similarities."""
    SHUFFLED = precedents.SHUFFLED
    """The library's labels were permuted during preparation."""
    SWAPPED = "swapped sides"
    """The Judge sees each side's justification under the other side's name."""
    LEAKS = precedents.LEAKS
    """Precedents too similar to a judged meme were kept during preparation."""
    REVERSED = "reversed precedents"
    """The precedents are shown in the opposite order."""
    RESEEDED = "another seed"
    """Models that draw their replies do so with another seed."""
    TRANSLATED = "translated text"
    """The meme's text is translated into English before its trial (:mod:`eval.solvers.trial`)."""


@dataclass(frozen=True, slots=True)
class ReversedFinder:
    """Returns precedents in the opposite order."""

    finder: PrecedentFinder

    @property
    def library(self) -> LibraryIdentity:
        """Identity of the searched library."""
        return self.finder.library

    async def find(self, **query: Any) -> Findings:
        """Finds precedents like :class:`court.ports.PrecedentFinder`."""
        found = await self.finder.find(**query)
        return found.model_copy(update={"exhibits": found.exhibits[::-1]})

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Reads pictures like :class:`court.ports.PrecedentFinder`."""
        return await self.finder.pictures(ids)


@dataclass(frozen=True, slots=True)
class RandomFinder:
    """Returns random precedents, the same ones for the same meme, with their true similarities."""

    finder: LibraryFinder
    seed: int

    @property
    def library(self) -> LibraryIdentity:
        """Identity of the sampled library; its name says that precedents are random."""
        identity = self.finder.library
        return identity.model_copy(update={"name": f"{identity.name}, drawn at random (seed {self.seed})"})

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
        """Finds precedents like :class:`court.ports.PrecedentFinder`, but draws the exhibits and the tally at random.

        The tally contains the exhibits.
        """
        ids = self.finder.ids
        # Keyed by the picture, which is the same for every query; the summaries may be part of a query.
        of_meme = hashlib.sha256((pixels_sha256 or text).encode()).digest()
        rng = np.random.default_rng([self.seed, int.from_bytes(of_meme[:8], "little")])
        drawn = [ids[int(place)] for place in rng.permutation(len(ids))]

        async def among(those: Sequence[str]) -> Findings:
            # Uses the real finder with all other memes excluded, so that the similarities shown are true.
            wanted = set(those)
            return await self.finder.find(
                text=text,
                frames=frames,
                pixels_sha256=pixels_sha256,
                exhibits=exhibits,
                tally=tally,
                alpha=alpha,
                exclude=[id_ for id_ in ids if id_ not in wanted],
            )

        # Drawing more and showing the nearest would bring similarity back, so only as many as are shown are drawn.
        shown = await among(drawn[:exhibits])
        counted = await among(drawn[: max(tally, shown.vote_settings.k, exhibits)])
        return counted.model_copy(
            update={
                "library": self.library,
                "exhibits": shown.exhibits,
                # These ranges were chosen for the nearest precedents and say nothing about random ones.
                "settles": None,
                "notes": (*counted.notes, "The precedents were drawn at random (a control)."),
            }
        )

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Reads pictures like :class:`court.ports.PrecedentFinder`."""
        return await self.finder.pictures(ids)


_SPOILT = (
    (
        Control.SHUFFLED,
        "The library's labels were shuffled",
        "The labels of this library were not shuffled. Prepare one that has them so",
    ),
    (
        Control.LEAKS,
        "The library has precedents that are too near to judged memes",
        "From this library, what is too near to a judged meme was left out. Prepare one that has it",
    ),
)
"""Controls that need a special library, whose name says so, with the errors for using or missing it by mistake."""


def with_control(court: Court, control: str, seed: int) -> Court:
    """The court with this control; unchanged if ``control`` is empty.

    Raises BadRequest: There is no such control, or the library does not suit it.
    """
    altered = alteration_of(control) is not None
    if control and not altered and control not in list(Control):
        raise BadRequest(f"There is no control {control!r}. There are: {', '.join(Control)}.")
    for spoilt, why, missing in _SPOILT:
        marked = spoilt in court.finder.library.name
        # Such a library has false labels or leaks answers: used by mistake, it would spoil figures unnoticed.
        if marked and control != spoilt:
            raise BadRequest(f"{why}: it is good for that control and nothing else.")
        if control == spoilt and not marked:
            raise BadRequest(f"{missing} for this control.")
    # Memes are changed before the trial, and a library was changed during preparation.
    elsewhere = (Control.TRANSLATED, Control.SHUFFLED, Control.LEAKS, Control.RESEEDED)
    if not control or altered or control in elsewhere:
        return court
    if control == Control.REVERSED:
        return replace(court, finder=ReversedFinder(court.finder))
    if control == Control.RANDOM:
        finder = court.finder
        if not isinstance(finder, LibraryFinder):
            raise BadRequest("Precedents can only be drawn at random from a library.")
        return replace(court, finder=RandomFinder(finder, seed))
    return replace(court, settings=court.settings.model_copy(update={"swap_sides": True}))
