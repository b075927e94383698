"""Solves memes after an alteration that should not change a verdict, or that swaps the group that they are about."""

from __future__ import annotations

import asyncio
import io
import random
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from PIL import Image

from court.errors import BadRequest
from court.record import TrialRecord
from eval.datasets.items import JudgedMeme
from eval.session.engine import Tried
from eval.solvers.calls import MemeItem
from eval.solvers.question import Prediction
from eval.solvers.trial import TrialSolver
from eval.synthetic.world import GROUPS, badge_swapped

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


@dataclass(frozen=True, slots=True)
class AlteredSolver:
    """Tries altered memes."""

    trial: TrialSolver
    alteration: Alteration
    seed: int

    async def solve(self, item: MemeItem, record: TrialRecord | None) -> Tried[Prediction, TrialRecord]:
        """Alters a meme and tries it; see :class:`eval.solvers.calls.Solver`."""
        # Seeded by the meme, so that a run that is resumed alters it in the same way.
        text = self.alteration.text(item.meme.text, random.Random(f"{self.seed} {item.meme.id}"))
        changed = MemeItem(item.meme.model_copy(update={"text": text}), partial(self._picture, item.picture))
        return await self.trial.solve(changed, record)

    async def _picture(self, picture: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        found = await picture()
        # An empty file stays one, which is refused as such.
        return await asyncio.to_thread(self.alteration.picture, found) if found else found

    def rebuilt(self, meme: JudgedMeme, record: TrialRecord) -> Prediction | None:
        """Builds the prediction from a record; None if its trial is to be resumed."""
        return self.trial.rebuilt(meme, record)
