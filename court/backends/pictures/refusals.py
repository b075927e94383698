"""Reasons for rejecting a picture, and their messages.

Messages are built here and not in the worker, which only sends a reason and integers, so that nothing from a decoder
(heap addresses, paths) or from an untrusted file can get into a message.
"""

from __future__ import annotations

from collections.abc import Mapping

from court.errors import BadPicture

_WORDS = {
    "PICTURE_EMPTY": "The picture has no bytes. Send the file itself.",
    "PICTURE_TOO_LARGE_BYTES": (
        "The file has {bytes:,} bytes; at most {limit:,} are read. Send a smaller or more compressed copy."
    ),
    "PICTURE_FORMAT_NOT_READ": "The file is no JPEG, PNG, WebP or GIF, by its first bytes. Convert it to one of these.",
    "PICTURE_TOO_MANY_PIXELS": (
        "The picture has {width:,} x {height:,} = {pixels:,} pixels; "
        "at most {limit:,} are decoded in a file of its kind. Scale it down."
    ),
    "PICTURE_PROGRESSIVE_TOO_LARGE": (
        "The picture has {width:,} x {height:,} = {pixels:,} pixels and is stored so that it has to be decoded whole; "
        "at most {limit:,} are decoded of that kind. Save it as cameras do, as a JPEG that is not progressive, a PNG "
        "that is not interlaced or a lossy WebP that can't be seen through, or scale it down."
    ),
    "PICTURE_SIDE_TOO_LONG": (
        "The picture is {width:,} pixels wide and {height:,} high; neither may be more than {limit:,}. Scale it down."
    ),
    "PICTURE_NO_PIXELS": "The picture is {width} pixels wide and {height} high. Send one that shows something.",
    "PICTURE_TOO_MANY_FRAMES": (
        "The animation has {frames:,} frames; at most {limit:,} are decoded. Shorten it, or send a still of it."
    ),
    "PICTURE_ANIMATION_TOO_LARGE": (
        "The animation has {frames:,} frames of {width:,} x {height:,} pixels, {pixels:,} together; "
        "at most {limit:,} are decoded. Scale it down or shorten it."
    ),
    "PICTURE_TOO_MANY_CHUNKS": (
        "The file is cut into at least {parts:,} chunks; at most {limit:,} are read. Save it anew with an image editor."
    ),
    "PICTURE_TOO_MANY_SCANS": (
        "The JPEG has at least {parts:,} scans; at most {limit:,} are decoded. Save it anew with an image editor."
    ),
    "PICTURE_DAMAGED": (
        "The file is damaged or cut short: it can't be decoded to its end. Send it again, or save it anew."
    ),
    "PICTURE_TOO_COSTLY": (
        "Decoding the picture takes more memory or computing time than one picture is given. "
        "Scale it down, or save it anew with an image editor."
    ),
    "PICTURE_KILLS_READER": (
        "Decoding the picture ended the process that tried. Save it anew with an image editor; "
        "if it was made to do this, it will not be read."
    ),
}

REASONS = frozenset(_WORDS)
"""All reasons for rejecting a picture; stable across versions."""


class Refused(Exception):
    """Raised in a worker to reject a picture."""

    def __init__(self, reason: str, **figures: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.figures = figures


def bad_picture(reason: str, figures: Mapping[str, int]) -> BadPicture:
    """Builds the error for callers from a rejection.

    Raises:
        KeyError: There is no such reason, or a figure is missing.
    """
    return BadPicture(_WORDS[reason].format_map(figures), reason=reason)
