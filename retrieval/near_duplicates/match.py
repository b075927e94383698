"""Matching: tells whether a meme is already known, so that it need not be tried again.

A hash of the picture (PDQ) finds what may be the same; it hardly moves when one word of a caption is another. So a meme
counts as the same only where the texts agree and no tile of the picture differs as well. Whatever is near and not that
is told as near, with its distance: evidence, and no more.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rapidfuzz.distance import Levenshtein

from retrieval.borders import Box, peeled
from retrieval.near_duplicates.pdq import QUALITY_FLOOR, Hash, Position, distance, hashes_of, turned
from retrieval.near_duplicates.tiles import Comparison, TileOutcome, Tolerance, compare
from retrieval.text import letters_of, text_key

Pixels = NDArray[np.uint8]
"""Upright RGB, of shape (height, width, 3)."""

_BORDERS: Final = 2
"""Borders, one within the other, that are taken off."""
_LEFT: Final = 0.3
"""Share of height and width that must be left."""
_PLAIN: Final = 48
"""Levels by which a pixel of a border may be off the border's colour; a letter is further off."""
_SEAM: Final = 4
"""Lines beside the picture in which a border may be anything: compression smears the picture into them."""
MISREAD_MOST: Final = 400
"""Letters up to which a text may be misread; longer ones agree to the letter. Counted once characters were taken apart,
which makes up to eighteen of one: what it takes to compare them grows by the square."""
_POSITIONS: Final = 2
"""Ways of turning or mirroring a picture that are tried, nearest first."""
_TRIES: Final = 2
"""Ways of laying it over the other that are tried for each: with its borders, or without."""


@dataclass(frozen=True, slots=True)
class MatchThresholds:
    """Thresholds below which two memes count as the same; chosen on development pictures (docs/libraries.md).

    Attributes:
        radius: Bits of 256 in which the hashes of two pictures may differ. PDQ's makers say 31 where the hash is all
            there is to go by; here text and tiles decide, and a crop by 2 % is further off than that.
        misread: Share of its letters and digits that a text read off a picture may differ in.
        tiles: Tolerated differences of two pictures.
        tiles_if_misread: The same where the texts agree only because letters may have been misread: then the picture
            alone must show that no letter is another.
    """

    radius: int = 80
    misread: float = 0.05
    tiles: Tolerance = field(default_factory=Tolerance)
    tiles_if_misread: Tolerance = field(default_factory=lambda: Tolerance(tile=20.0))

    def __post_init__(self) -> None:
        if not 0 <= self.radius <= 256:
            raise ValueError(f"a radius is 0 to 256 bits, not {self.radius}")
        if not 0 <= self.misread < 1:
            raise ValueError(f"the share that may be misread is at least 0 and less than 1, not {self.misread}")


@dataclass(frozen=True, slots=True)
class MemeText:
    """The text of a meme.

    Attributes:
        text: Empty where there is none.
        read: True if it was read off the picture, and so may be misread.
    """

    text: str
    read: bool


class HashedPicture:
    """A picture, or a picture without its plain borders, with its hashes.

    Attributes:
        pixels: Pixels of the picture.
        hashes: Hashes of its eight positions, uint8 of shape (8, 32), in the order of
            :class:`~retrieval.near_duplicates.pdq.Position`.
        quality: Quality of the hashes, 0 to 100.
    """

    __slots__ = ("hashes", "pixels", "quality")

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels
        self.hashes, self.quality = hashes_of(pixels)

    @property
    def hash(self) -> Hash:
        """Hash of the upright picture."""
        upright: Hash = self.hashes[0]
        return upright


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Comparable features of a meme.

    Attributes:
        frames: Hashes of each frame: the whole of it and, where it has plain borders, what is within them, and what is
            within those that are within them; what PDQ finds too little in to go by (a quality below 50) is left out,
            so that a frame may have no view at all.
        words: Its text.
    """

    frames: tuple[tuple[HashedPicture, ...], ...]
    words: MemeText


class Difference(StrEnum):
    """Why a near meme does not count as the same."""

    FRAMES_DIFFER = "FRAMES_DIFFER"
    """Of animated memes: not as many, or one has nothing to go by."""
    TOO_SMALL = "TOO_SMALL"
    CANT_BE_LAID = "CANT_BE_LAID"
    CUT_OFF = "CUT_OFF"
    TILE_DIFFERS = "TILE_DIFFERS"


class Agreement(StrEnum):
    """Agreement of two texts."""

    SAME = "SAME"
    MISREAD = "MISREAD"
    """They differ in a few letters that a reader may have misread."""
    OTHER = "OTHER"


def fingerprint(frames: Sequence[bytes], words: MemeText) -> Fingerprint:
    """Fingerprints a meme by its frames, PNG files of ours: tens of milliseconds each.

    Raises:
        NotLoaded: ``pdqhash`` is not installed.
        ValueError: There is no frame.
    """
    return fingerprint_pixels([_decoded(png) for png in frames], words)


def _decoded(png: bytes) -> Pixels:
    with Image.open(io.BytesIO(png)) as opened:
        return np.asarray(opened.convert("RGB"))


def fingerprint_pixels(frames: Sequence[Pixels], words: MemeText) -> Fingerprint:
    """Fingerprints decoded frames. Raises ValueError if there is none."""
    if not frames:
        raise ValueError("a meme has at least one frame")
    return Fingerprint(tuple(tuple(_views(frame)) for frame in frames), words)


def _views(pixels: Pixels) -> Iterator[HashedPicture]:
    # Differences of levels wrap around in a byte.
    levels = pixels.astype(np.int16)
    height, width = pixels.shape[:2]
    box, within = None, (0, 0, width, height)
    for _ in range(1 + _BORDERS):
        x0, y0, x1, y1 = within
        view = HashedPicture(np.ascontiguousarray(pixels[y0:y1, x0:x1]))
        if view.quality >= QUALITY_FLOOR:
            yield view
        box, within = within, peeled(levels, within)
        x0, y0, x1, y1 = within
        if within == box or x1 - x0 < _LEFT * width or y1 - y0 < _LEFT * height:
            return
        if not _is_plain_between(levels, box, within):
            return


def _is_plain_between(levels: NDArray[np.int16], outer: Box, inner: Box) -> bool:
    """True if the borders are empty: a word in a trimmed border would never be missed."""
    left, top, right, bottom = outer
    x0, y0, x1, y1 = inner
    above, below = levels[top : max(top, y0 - _SEAM), left:right], levels[min(bottom, y1 + _SEAM) : bottom, left:right]
    west, east = levels[y0:y1, left : max(left, x0 - _SEAM)], levels[y0:y1, min(right, x1 + _SEAM) : right]
    for strip in (above, below, west, east):
        flat = strip.reshape(-1, 3)
        if len(flat) and np.abs(flat - np.median(flat, axis=0)).max() > _PLAIN:
            return False
    return True


def pictures_differ(
    known: Fingerprint,
    new: Fingerprint,
    nearness: MatchThresholds = MatchThresholds(),
    agreement: Agreement = Agreement.SAME,
) -> Difference | None:
    """Why two memes are not the same to the eye; None where they are, in every frame and in one position.

    Args:
        known: One.
        new: The other.
        nearness: Thresholds of the comparison.
        agreement: Agreement of their texts: if they may be misread, the tiles are compared more strictly.
    """
    # Frames that were left out can't be compared, and a meme may well be in one of them.
    if len(known.frames) != len(new.frames):
        return Difference.FRAMES_DIFFER
    first: Difference | None = None
    # By the first frame alone: a meme is turned or mirrored as a whole.
    positions = dict.fromkeys(position for position, *_ in _ways(known.frames[0], new.frames[0], nearness.radius))
    for position in list(positions)[:_POSITIONS]:
        tiles = nearness.tiles_if_misread if agreement is Agreement.MISREAD else nearness.tiles
        # Frame by frame, and none behind the first that differs.
        differs = next(
            filter(None, _differing(known, new, position=position, radius=nearness.radius, tiles=tiles)), None
        )
        if differs is None:
            return None
        # The reason in the nearest position is the one that is told.
        first = first or differs
    return first or Difference.FRAMES_DIFFER


def _differing(
    known: Fingerprint, new: Fingerprint, position: Position, radius: int, tiles: Tolerance
) -> Iterator[Difference | None]:
    """Yields for each frame the reason why it differs in a position."""
    for one, other in zip(known.frames, new.frames, strict=True):
        # Bounded, since each try compares all pixels, and a stranger chooses how many views there are.
        ways = [way for way in _ways(one, other, radius) if way[0] is position][:_TRIES]
        comparisons = [compare(a.pixels, turned(b.pixels, position), tiles) for _, a, b in ways]
        yield None if any(each.outcome is TileOutcome.SAME for each in comparisons) else _why(comparisons)


def _why(comparisons: Sequence[Comparison]) -> Difference:
    return Difference(comparisons[0].outcome) if comparisons else Difference.FRAMES_DIFFER


def _ways(
    known: Sequence[HashedPicture], new: Sequence[HashedPicture], radius: int
) -> list[tuple[Position, HashedPicture, HashedPicture]]:
    """Lists the ways to lay one picture over the other: position and views, nearest first."""
    ways = []
    for i, a in enumerate(known):
        for j, b in enumerate(new):
            for k, position in enumerate(Position):
                bits = distance(a.hash, b.hashes[k])
                if bits <= radius:
                    # Equal distances go by position and view, so that equal pictures get equal answers.
                    ways.append((bits, k, i, j, position))
    return [(position, known[i], new[j]) for _, _, i, j, position in sorted(ways)]


def agreement_of(one: MemeText, other: MemeText, misread: float = MatchThresholds().misread) -> Agreement:
    """Compares the texts of two memes.

    Texts that were given must be the same but for case and spacing. Where one was read off a picture, signs and accents
    don't count, what readers mistake for each other counts as one, and short ones may differ in a share of their
    letters.
    """
    if text_key(one.text) == text_key(other.text):
        return Agreement.SAME
    # Nobody misreads what was given: there, another letter is another text.
    if not one.read and not other.read:
        return Agreement.OTHER
    a, b = letters_of(one.text), letters_of(other.text)
    if a == b:
        return Agreement.SAME
    if max(len(a), len(b)) > MISREAD_MOST:
        return Agreement.OTHER
    # Rounded down: at 5 %, a text of fewer than 20 letters has none to spare, where one letter makes another word.
    most = int(misread * max(len(a), len(b)))
    return Agreement.MISREAD if Levenshtein.distance(a, b, score_cutoff=most) <= most else Agreement.OTHER
