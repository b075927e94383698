"""The digest of a picture from its kept frames: whoever checks a docket computes it again.

Frames are PNG files of our own making. What stands in their place may be anything, so that nothing is decoded before
its header was looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from io import BytesIO

from PIL import Image

from court.backends.picture_normal import PIXELS_VERSION, digest_of
from court.backends.picture_refusals import Refused
from court.backends.picture_structure import look
from court.meme import LIMITS, PictureFormat


def pixels_sha256(frames: Sequence[bytes]) -> str:
    """The digest of the pixels of all frames, in hex, as :class:`court.meme.Picture` has it.

    Args:
        frames: PNG files, in order.

    Raises:
        ValueError: These are no frames of a picture.
    """
    pixels = hashlib.sha256(PIXELS_VERSION)
    for frame in frames:
        try:
            if look(frame, LIMITS).format is not PictureFormat.PNG or not _bare(frame):
                raise ValueError("a frame is no PNG file of ours")
            with Image.open(BytesIO(frame), formats=["PNG"]) as still:
                if still.mode != "RGB" or max(still.size) > LIMITS.outgoing_side:
                    raise ValueError("a frame is none of ours")
                pixels.update(digest_of(still))
        except Refused as refused:
            raise ValueError("a frame is no picture") from refused
        except Exception as error:  # decoders throw whatever they stumble over
            raise ValueError("a frame can't be read") from error
    return pixels.hexdigest()


def _bare(png: bytes) -> bool:
    """Whether a PNG file holds pixels and nothing else, as those do that we write."""
    place, kinds = len(b"\x89PNG\r\n\x1a\n"), []
    while place + 12 <= len(png):
        length = int.from_bytes(png[place : place + 4], "big")
        kinds.append(png[place + 4 : place + 8])
        place += 12 + length
    pixels = kinds[1:-1]
    return place == len(png) and kinds == [b"IHDR", *[b"IDAT"] * len(pixels), b"IEND"] and bool(pixels)
