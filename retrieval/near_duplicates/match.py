"""Matching: decides whether a meme is already known, so that it need not be tried again.

A perceptual hash (PDQ) finds possible matches, but it hardly changes when one word of a caption does. So a meme counts
as the same only if the texts agree and no tile of the picture differs. Other near matches are reported as
near-duplicates with their distance, which is merely evidence.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rapidfuzz.distance import Levenshtein

from retrieval.borders import Box, peeled
from retrieval.near_duplicates.pdq import QUALITY_FLOOR, Hash, Position, distance, hashes_of, turned
from retrieval.near_duplicates.tiles import Tolerance, tiles_match
from retrieval.text import letters_of, text_key

Pixels = NDArray[np.uint8]
"""Upright RGB, of shape (height, width, 3)."""

_BORDERS: Final = 2
"""Maximum number of nested borders that are removed."""
_LEFT: Final = 0.3
"""Minimum share of height and width that must remain."""
_PLAIN: Final = 48
"""Levels by which a border pixel may deviate from the border's colour; letters deviate more."""
_SEAM: Final = 4
"""Lines of a border next to the picture that are ignored, as compression smears the picture into them."""
MISREAD_MOST: Final = 400
"""Maximum letters of a text for which misreadings are tolerated; longer texts must be equal. Counted after
decomposition, which can turn one character into eighteen, as the cost of comparison is quadratic."""
_POSITIONS: Final = 2
"""Maximum number of rotations or mirrorings that are tried, nearest first."""
_TRIES: Final = 2
"""Maximum number of alignments tried for each, with or without borders."""


@dataclass(frozen=True, slots=True)
class MatchThresholds:
    """Thresholds up to which two memes count as the same; chosen on development pictures.

    Attributes:
        radius: Maximum Hamming distance of the hashes, of 256 bits. PDQ's authors recommend 31 if only the hash
            decides; here text and tiles decide, and a crop by 2 % has a larger distance.
        misread: Maximum share of differing letters and digits for a text read off a picture.
        tiles_if_misread: The same if the texts agree only under tolerance for misreading: then the picture alone must
            show that all letters are equal.
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
    """The text of a meme; ``read`` off a picture, it may contain misread letters."""

    text: str
    read: bool


class HashedPicture:
    """A picture, with or without its plain borders, its hashes by :class:`Position`, and their quality, 0 to 100."""

    __slots__ = ("hashes", "pixels", "quality")

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels
        self.hashes, self.quality = hashes_of(pixels)

    @property
    def hash(self) -> Hash:
        """Hash of the upright picture."""
        upright: Hash = self.hashes[0]
        return upright


Fingerprint: TypeAlias = tuple[tuple[HashedPicture, ...], ...]
"""Views of each frame of a meme: the whole frame and the parts within its outer and inner plain borders, if it has any.
Views with a PDQ quality below 50 are omitted, so a frame may have no view."""


class Agreement(StrEnum):
    """Agreement of two texts."""

    SAME = "SAME"
    MISREAD = "MISREAD"
    """They differ in a few letters that may have been misread."""
    OTHER = "OTHER"


def fingerprint(frames: Sequence[bytes]) -> Fingerprint:
    """Fingerprints a meme by its frames, which are our own PNG files; takes tens of milliseconds each.

    Raises:
        NotLoaded: ``pdqhash`` is not installed.
        ValueError: There is no frame.
    """
    return fingerprint_pixels([_decoded(png) for png in frames])


def _decoded(png: bytes) -> Pixels:
    with Image.open(io.BytesIO(png)) as opened:
        return np.asarray(opened.convert("RGB"))


def fingerprint_pixels(frames: Sequence[Pixels]) -> Fingerprint:
    """Fingerprints decoded frames. Raises ValueError if there is none."""
    if not frames:
        raise ValueError("a meme has at least one frame")
    return tuple(tuple(_views(frame)) for frame in frames)


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
    """True if the borders are empty, so that no word in a trimmed border is overlooked."""
    left, top, right, bottom = outer
    x0, y0, x1, y1 = inner
    above, below = levels[top : max(top, y0 - _SEAM), left:right], levels[min(bottom, y1 + _SEAM) : bottom, left:right]
    west, east = levels[y0:y1, left : max(left, x0 - _SEAM)], levels[y0:y1, min(right, x1 + _SEAM) : right]
    for strip in (above, below, west, east):
        flat = strip.reshape(-1, 3)
        if len(flat) and np.abs(flat - np.median(flat, axis=0)).max() > _PLAIN:
            return False
    return True


def pictures_match(
    known: Fingerprint,
    new: Fingerprint,
    nearness: MatchThresholds = MatchThresholds(),
    agreement: Agreement = Agreement.SAME,
) -> bool:
    """True if two memes look the same in every frame; stricter if a text may be misread."""
    # Omitted frames can't be compared, and may contain the difference.
    if len(known) != len(new):
        return False
    tiles = nearness.tiles_if_misread if agreement is Agreement.MISREAD else nearness.tiles
    # By the first frame alone, as a meme is rotated or mirrored as a whole.
    positions = dict.fromkeys(position for position, *_ in _ways(known[0], new[0], nearness.radius))
    return any(
        all(
            _frames_match(one, other, position, radius=nearness.radius, tiles=tiles)
            for one, other in zip(known, new, strict=True)
        )
        for position in list(positions)[:_POSITIONS]
    )


def _frames_match(
    known: Sequence[HashedPicture], new: Sequence[HashedPicture], position: Position, radius: int, tiles: Tolerance
) -> bool:
    # Bounded, since each try compares all pixels, and untrusted pictures determine the number of views.
    ways = [way for way in _ways(known, new, radius) if way[0] is position][:_TRIES]
    return any(tiles_match(a.pixels, turned(b.pixels, position), tiles) for _, a, b in ways)


def _ways(
    known: Sequence[HashedPicture], new: Sequence[HashedPicture], radius: int
) -> list[tuple[Position, HashedPicture, HashedPicture]]:
    """Lists ways to align the pictures: position and views, nearest first."""
    ways = []
    for i, a in enumerate(known):
        for j, b in enumerate(new):
            for k, position in enumerate(Position):
                bits = distance(a.hash, b.hashes[k])
                if bits <= radius:
                    # Ties are ordered by position and view, for deterministic results.
                    ways.append((bits, k, i, j, position))
    return [(position, known[i], new[j]) for _, _, i, j, position in sorted(ways)]


def agreement_of(one: MemeText, other: MemeText, misread: float = MatchThresholds().misread) -> Agreement:
    """Compares the texts of two memes."""
    # Given texts must be equal apart from case and spacing. If one was read off a picture, punctuation and accents are
    # ignored, letters that OCR confuses are equated, and short texts may differ in a share of their letters.
    if text_key(one.text) == text_key(other.text):
        return Agreement.SAME
    # Given texts contain no misreadings: a different letter means a different text.
    if not one.read and not other.read:
        return Agreement.OTHER
    a, b = letters_of(one.text), letters_of(other.text)
    if a == b:
        return Agreement.SAME
    if max(len(a), len(b)) > MISREAD_MOST:
        return Agreement.OTHER
    # Rounded down: at 5 %, texts of fewer than 20 letters must be equal, as one letter can change a word.
    most = int(misread * max(len(a), len(b)))
    return Agreement.MISREAD if Levenshtein.distance(a, b, score_cutoff=most) <= most else Agreement.OTHER
