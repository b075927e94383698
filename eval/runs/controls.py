"""Controls: a court changed in one respect, to measure what that respect contributes.

The paper only removes the precedents. Replacing one property and keeping the rest shows whether their similarity helps,
their labels, or having examples at all. Likewise for the sides: a Judge that rules the same with swapped justifications
was not swayed by who argued what.
"""

import asyncio
import hashlib
import io
import random
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from court.errors import BadRequest
from court.meme import Frame
from court.ports import PrecedentFinder
from court.precedents import Findings, LibraryIdentity
from court.trial import Court
from eval.runs import precedents
from eval.solvers.calls import MemeItem
from eval.synthetic.world import GROUPS, badge_swapped
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
    FETCHING = "progressive retrieval"
    """Each question of a side fetches a precedent (:mod:`eval.solvers.progressive`)."""
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
class RandomFinder(ReversedFinder):
    """Returns random precedents, the same ones for the same meme, with their true similarities."""

    finder: LibraryFinder
    seed: int

    @property
    def library(self) -> LibraryIdentity:
        """Identity of the sampled library; its name says that precedents are random."""
        identity = self.finder.library
        return identity.model_copy(update={"name": f"{identity.name}, drawn at random (seed {self.seed})"})

    async def find(self, **query: Any) -> Findings:
        """Finds precedents like :class:`court.ports.PrecedentFinder`, but draws the exhibits and the tally at random.

        The tally contains the exhibits.
        """
        ids, exhibits = self.finder.ids, query["exhibits"]
        # Keyed by the picture, which is the same for every query; the summaries may be part of a query.
        of_meme = hashlib.sha256((query["pixels_sha256"] or query["text"]).encode()).digest()
        rng = np.random.default_rng([self.seed, int.from_bytes(of_meme[:8], "little")])
        drawn = [ids[int(place)] for place in rng.permutation(len(ids))]

        async def among(those: Sequence[str]) -> Findings:
            # Uses the real finder with all other memes excluded, so that the similarities shown are true.
            wanted = set(those)
            return await self.finder.find(**query, exclude=[id_ for id_ in ids if id_ not in wanted])

        # Drawing more and showing the nearest would bring similarity back, so only as many as are shown are drawn.
        shown = await among(drawn[:exhibits])
        counted = await among(drawn[: max(query["tally"], shown.vote_settings.k, exhibits)])
        return counted.model_copy(
            update={
                "library": self.library,
                "exhibits": shown.exhibits,
                # These ranges were chosen for the nearest precedents and say nothing about random ones.
                "settles": None,
                "notes": (*counted.notes, "The precedents were drawn at random (a control)."),
            }
        )


def with_control(court: Court, control: str, seed: int) -> Court:
    """The court with this control; unchanged if ``control`` is empty.

    Raises BadRequest: There is no such control, or the library does not suit it.
    """
    altered = alteration_of(control) is not None
    if control and not altered and control not in list(Control):
        raise BadRequest(f"There is no control {control!r}. There are: {', '.join(Control)}.")
    for spoilt in (Control.SHUFFLED, Control.LEAKS):
        marked = spoilt in court.finder.library.name
        # Such a library has false labels or leaks answers: used by mistake, it would spoil figures unnoticed.
        if marked and control != spoilt:
            raise BadRequest(f"This library was prepared for the control {spoilt}, and is good for nothing else.")
        if control == spoilt and not marked:
            raise BadRequest(f"The control {spoilt} needs a library that was prepared for it.")
    if control == Control.REVERSED:
        return replace(court, finder=ReversedFinder(court.finder))
    if control == Control.RANDOM:
        finder = court.finder
        if not isinstance(finder, LibraryFinder):
            raise BadRequest("Precedents can only be drawn at random from a library.")
        return replace(court, finder=RandomFinder(finder, seed))
    # Others change memes before their trial, the settings, or the library while it is prepared.
    return court


ALTERED = "altered: "
"""Beginning of the control of an arm whose memes are altered; a name or ``GROUP=GROUP`` follows."""
_MISREAD = {"l": "1", "o": "0", "e": "c", "i": "l", "s": "5", "a": "o", "b": "6", "n": "m"}
_MISREAD_SHARE = 0.03
_WORD = r"(?<!\w){}(?!\w)"


@dataclass(frozen=True, slots=True)
class Alteration:
    """A change of memes, which depends on the meme alone."""

    what: str
    text: Callable[[str, random.Random], str] = lambda text, _: text
    picture: Callable[[bytes], bytes] = lambda png: png


def _white_space(text: str, chance: random.Random) -> str:
    words = [word + chance.choice((" ", "  ", "\n", " \n")) for word in text.split()]
    return chance.choice(("", " ", "\n")) + "".join(words)


def _re_encoded(text: str, chance: random.Random) -> str:
    """Writes a text as other programs do: decomposed letters, curly quotes, unbroken spaces, other line ends."""
    curly = re.sub(r"'", "\N{RIGHT SINGLE QUOTATION MARK}", re.sub(r'"', "\N{RIGHT DOUBLE QUOTATION MARK}", text))
    spaced = re.sub(" ", lambda _: chance.choice((" ", "\N{NO-BREAK SPACE}")), curly)
    return unicodedata.normalize("NFD", spaced).replace("\n", "\r\n")


def _misread(text: str, chance: random.Random) -> str:
    return "".join(_MISREAD.get(sign, sign) if chance.random() < _MISREAD_SHARE else sign for sign in text)


def _opened(picture: bytes) -> Image.Image:
    return Image.open(io.BytesIO(picture)).convert("RGB")


def _saved(image: Image.Image, kind: str = "PNG") -> bytes:
    saved = io.BytesIO()
    image.save(saved, kind, **({"quality": 75} if kind == "JPEG" else {}))
    return saved.getvalue()


def _cropped(picture: bytes) -> bytes:
    image = _opened(picture)
    x, y = image.width // 50, image.height // 50
    return _saved(image.crop((x, y, image.width - x, image.height - y)))


def _scaled(picture: bytes) -> bytes:
    image = _opened(picture)
    return _saved(image.resize((max(1, image.width * 3 // 4), max(1, image.height * 3 // 4))))


ALTERATIONS: Mapping[str, Alteration] = {
    "white-space": Alteration("words of the text stand otherwise apart", _white_space),
    "re-encoded-text": Alteration("the text is written in other characters that look the same", _re_encoded),
    "ocr-noise": Alteration("3 % of the text's letters are misread", _misread),
    "re-encoded": Alteration(
        "the picture is saved as JPEG of quality 75", picture=lambda it: _saved(_opened(it), "JPEG")
    ),
    "cropped": Alteration("the picture loses 2 % at each edge", picture=_cropped),
    "scaled": Alteration("the picture has three quarters of its size", picture=_scaled),
}
"""Alterations that should not change a verdict, by name."""


def names(text: str, group: str) -> bool:
    """True if a text names a group."""
    return re.search(_WORD.format(re.escape(group)), text, re.IGNORECASE) is not None


def swapped_groups(control: str) -> tuple[str, str] | None:
    """Returns the group that an arm replaces, and the one that replaces it; None for any other control."""
    old, equals, new = control.removeprefix(ALTERED).partition("=")
    return (old, new) if control.startswith(ALTERED) and equals else None


def alteration_of(control: str) -> Alteration | None:
    """Returns the alteration of a control; None if it alters no meme. Raises BadRequest if there is no such one."""
    if not control.startswith(ALTERED):
        return None
    if groups := swapped_groups(control):
        old, new = groups
        word = re.compile(_WORD.format(re.escape(old)), re.IGNORECASE)
        # The invented groups have badges, which pictures show; those of others can't be drawn.
        badges = old in GROUPS and new in GROUPS
        return Alteration(
            f"{old} is replaced by {new}",
            lambda text, _: word.sub(lambda _: new, text),
            partial(badge_swapped, old=old, new=new) if badges else lambda picture: picture,
        )
    name = control.removeprefix(ALTERED)
    if name not in ALTERATIONS:
        raise BadRequest(f"There is no alteration {name!r}. There are: {', '.join(ALTERATIONS)}.")
    return ALTERATIONS[name]


def altered(item: MemeItem, alteration: Alteration, seed: int) -> MemeItem:
    """Returns a meme after an alteration, the same one each time, also when a run is resumed."""
    text = alteration.text(item.meme.text, random.Random(f"{seed} {item.meme.id}"))

    async def picture() -> bytes | None:
        found = await item.picture()
        # An empty file stays one, which is refused as such.
        return await asyncio.to_thread(alteration.picture, found) if found else found

    return MemeItem(item.meme.model_copy(update={"text": text}), picture)
