"""Controls: a court that is altered in one respect, to see what that respect is worth.

The paper only takes the precedents away. Whether it is their likeness that helps, or their labels, or that there are
examples at all, can be told by replacing one of these and keeping the rest. So with the sides: a Judge that rules the
same with the justifications exchanged was not swayed by who said what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from court.errors import BadRequest
from court.meme import Frame
from court.precedents import Findings, LibraryIdentity
from court.trial import Court
from eval.runs import precedents
from retrieval.precedents.finder import LibraryFinder


class Control(StrEnum):
    """Control condition: the altered part of the court."""

    RANDOM = "random precedents"
    """Precedents are drawn at random from the library, shown with their true similarities."""
    SHUFFLED = precedents.SHUFFLED
    """The library's labels were permuted when it was prepared."""
    SWAPPED = "swapped sides"
    """The Judge is shown each side's justification under the other side's name."""
    LEAKS = precedents.LEAKS
    """Precedents that are too near to a judged meme were kept when the library was prepared."""
    TRANSLATED = "translated text"
    """The meme's text is put into English before its trial (:mod:`eval.runs.translated`)."""


@dataclass(frozen=True, slots=True)
class RandomFinder:
    """Finds precedents at random, the same ones for the same meme, and says truly how like it they are.

    Attributes:
        finder: Finder whose library is drawn from.
        seed: Seed of the draw, together with the meme's picture.
    """

    finder: LibraryFinder
    seed: int

    @property
    def library(self) -> LibraryIdentity:
        """Identity of the library that is drawn from; its name says that it is random."""
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
        """Finds precedents as :class:`court.ports.PrecedentFinder`, but draws the exhibits and the tally.

        The tally contains the exhibits.
        """
        ids = self.finder.ids
        # By the picture, which is the same whatever is searched with: the summaries may be part of the query.
        of_meme = hashlib.sha256((pixels_sha256 or text).encode()).digest()
        rng = np.random.default_rng([self.seed, int.from_bytes(of_meme[:8], "little")])
        drawn = [ids[int(place)] for place in rng.permutation(len(ids))]

        async def among(those: Sequence[str]) -> Findings:
            # The finder itself searches, with all others excluded: so the similarities that are shown are true.
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

        # The nearest of many drawn ones would be like the meme again, so no more are drawn than are shown.
        shown = await among(drawn[:exhibits])
        counted = await among(drawn[: max(tally, shown.vote_settings.k, exhibits)])
        return counted.model_copy(
            update={
                "library": self.library,
                "exhibits": shown.exhibits,
                # Chosen with the nearest precedents: of such as these it says nothing.
                "settles": None,
                "notes": (*counted.notes, "The precedents were drawn at random (a control)."),
            }
        )

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Reads pictures as :class:`court.ports.PrecedentFinder`."""
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
"""Controls by another library, which its name says, with what is said where it is used or missed by mistake."""


def with_control(court: Court, control: str, seed: int) -> Court:
    """The court with this control; as it is where ``control`` is empty.

    Args:
        court: Over a finder of ours.
        control: Value of :class:`Control`, or empty.
        seed: Seed of the random draws.

    Raises:
        BadRequest: There is no such control, or the library is not one for it.
    """
    if control and control not in list(Control):
        raise BadRequest(f"There is no control {control!r}. There are: {', '.join(Control)}.")
    for spoilt, why, missing in _SPOILT:
        marked = spoilt in court.finder.library.name
        # Such a library says false labels, or the answers: used by mistake, it would spoil figures that look sound.
        if marked and control != spoilt:
            raise BadRequest(f"{why}: it is good for that control and nothing else.")
        if control == spoilt and not marked:
            raise BadRequest(f"{missing} for this control.")
    # What is translated, is so before the trial; a library was altered when it was prepared.
    if not control or control in (Control.TRANSLATED, Control.SHUFFLED, Control.LEAKS):
        return court
    if control == Control.RANDOM:
        finder = court.finder
        if not isinstance(finder, LibraryFinder):
            raise BadRequest("Precedents can only be drawn at random from a library.")
        return replace(court, finder=RandomFinder(finder, seed))
    return replace(court, settings=court.settings.model_copy(update={"swap_sides": True}))
