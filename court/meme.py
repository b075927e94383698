"""A meme ``M = {T, G}``: text and picture, or text alone, within limits, normalised and digested.

Nothing here decodes pictures: :mod:`court.backends.pictures.reader` turns bytes into a :class:`Picture`, in a sandboxed
process.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum

from court.errors import BadPicture, BadRequest, BadText


class PictureFormat(StrEnum):
    """Supported file formats; all others are rejected."""

    JPEG = "JPEG"
    PNG = "PNG"
    WEBP = "WEBP"
    GIF = "GIF"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a meme.

    Pixel limits are what protects the decoder: the size in bytes says little about the work.

    Attributes:
        max_jpeg_pixels: The same for a JPEG in one scan, as cameras write them, which is scaled down while decoding.
        max_scaled_pixels: The same for a PNG that is not interlaced and an opaque lossy WebP, which are scaled down
            too.
        long_ratio: Ratio of longer to shorter side from which a scaled-down picture gets a second, larger copy for
            reading its text.
    """

    max_bytes: int = 32 * 1024 * 1024
    max_pixels: int = 16_777_216
    max_jpeg_pixels: int = 100_000_000
    # A little above 64 megapixels, the largest photographs that BO-9 promises to judge.
    max_scaled_pixels: int = 68_000_000
    max_side: int = 16_384
    max_frames: int = 64
    max_total_pixels: int = 36_000_000
    max_png_chunks: int = 4096
    max_jpeg_scans: int = 64
    outgoing_side: int = 1280
    long_ratio: float = 2.5
    representative_frames: int = 4
    max_text: int = 10_000


LIMITS = Limits()
_SURROGATE = re.compile("[\ud800-\udfff]")
_LANGUAGE_TAG = re.compile(r"(?:[A-Za-z]{2,3}|[Xx](?=-))(?:-[A-Za-z0-9]{1,8})*")
# The minimum length limit that RFC 5646 (4.4.1) recommends.
_MOST_LANGUAGE_TAG = 35
_TEXT_DIGEST = "text:"
"""Prefix of text digests, so that they can't be confused with digests of pixels."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One normalised still of a picture: opaque upright RGB, no metadata, at most ``outgoing_side`` pixels long.

    Attributes:
        legible_png: Larger copy for reading text, with at most ``outgoing_side`` squared pixels; only for a picture so
            long that letters would be lost at ``outgoing_side``. It is not stored with the trial.
    """

    png: bytes
    width: int
    height: int
    index: int = 0
    legible_png: bytes | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded picture.

    Attributes:
        pixels_sha256: SHA-256 of the normalised pixels of all representative frames, in hex; equal for copies that were
            losslessly re-encoded or re-tagged.
        frames: Representative frames, at least one, in file order; for an animated file the first, and then those that
            differ most from the ones already chosen.
        shown_otherwise: True if the file's colour instructions are so unusual that only some viewers show the picture
            as it is here, as browsers show it.
    """

    format: PictureFormat
    bytes_sha256: str
    pixels_sha256: str
    width: int
    height: int
    frame_count: int
    frames: tuple[Frame, ...]
    frames_unlike: int = 0
    incomplete: bool = False
    shown_otherwise: bool = False

    def __post_init__(self) -> None:
        if not self.frames:
            raise ValueError("a picture has at least one frame")


@dataclass(frozen=True, slots=True)
class Meme:
    """The meme on trial.

    Attributes:
        text: ``T`` as given by the caller; ``None`` to read it off the picture; ``""`` if the caller says that there is
            none.

    Raises:
        BadPicture: There is neither a picture nor a non-blank text.
        BadText: The text exceeds the limits.
    """

    picture: Picture | None
    text: str | None = None
    language: str | None = None

    def __post_init__(self) -> None:
        if self.text is not None:
            check_text(self.text)
        check_present(self.text, picture=self.picture is not None)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Representative frames of the picture; empty without a picture."""
        return () if self.picture is None else self.picture.frames

    @property
    def digest(self) -> str:
        """Digest that identifies the meme: of the pixels, or of the text if there is no picture."""
        return text_digest(self.text or "") if self.picture is None else self.picture.pixels_sha256


def text_digest(text: str) -> str:
    """Digest of a meme without a picture, ``text:`` and SHA-256 in hex; used in place of the pixels' digest.

    Raises UnicodeEncodeError: The text holds a lone surrogate (:func:`check_text`).
    """
    return _TEXT_DIGEST + hashlib.sha256(text.encode()).hexdigest()


def is_text_digest(digest: str) -> bool:
    """True if a digest is that of a meme without a picture, for which no picture can be stored."""
    return digest.startswith(_TEXT_DIGEST)


def is_language_tag(tag: str) -> bool:
    """True if a text has the form of a BCP 47 tag."""
    # Language subtags with more than three letters are reserved by RFC 5646 (2.2.1), and none is registered.
    return len(tag) <= _MOST_LANGUAGE_TAG and _LANGUAGE_TAG.fullmatch(tag) is not None


def checked_language(tag: str, field: str = "language") -> str:
    """Returns a BCP 47 tag, which may be empty. Raises BadRequest if it is none."""
    if tag and not is_language_tag(tag):
        why = f'{field} is no BCP 47 tag. Send one such as "en" or "pt-BR", or leave it out.'
        raise BadRequest(why, reason="BAD_LANGUAGE", field=field)
    return tag


def check_present(text: str | None, *, picture: bool) -> None:
    """Raises BadPicture if there is nothing to try: neither a picture nor a non-blank text."""
    if not picture and not (text and text.strip()):
        raise BadPicture(
            "Neither a picture nor a text was sent. Send the picture's file, its text with it where you have it, or a "
            "text alone.",
            reason="PICTURE_EMPTY",
        )


def check_text(text: str) -> None:
    """Raises BadText if the text of a meme exceeds the limits or can't be encoded as UTF-8."""
    # The length is checked first, as it is cheap and bounds the search below.
    if len(text) > LIMITS.max_text:
        raise BadText(
            f"The text has {len(text):,} characters; at most {LIMITS.max_text:,} are tried. "
            "Send the words that stand on the meme, not the discussion around it.",
            reason="TEXT_TOO_LONG",
        )
    # Records and digests use UTF-8, which can't encode lone surrogates.
    if _SURROGATE.search(text):
        raise BadText(
            "The text holds a lone surrogate, which is no character. Send well-formed Unicode.",
            reason="TEXT_NOT_UNICODE",
        )
