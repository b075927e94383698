"""Decoding of pictures that are too large to be decoded at full size, with scaling during decoding.

Pillow supports that for JPEG. For PNG and WebP it decodes whole pictures, so libvips is used, which reads a PNG line by
line and lets WebP's decoder scale. Smaller pictures are still decoded by Pillow, so their pixels stay the same.

Runs only in a sandboxed worker.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from PIL import Image

from court.backends.pictures.normalise import decoding_size
from court.backends.pictures.refusals import Refused
from court.backends.pictures.structure import Structure, check, decoded_whole
from court.meme import Limits, PictureFormat

if TYPE_CHECKING:
    import pyvips

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Mode of a picture by the number of its channels."""


def open_picture(structure: Structure, limits: Limits, *, incomplete: bool) -> Image.Image:
    """Opens a file with the decoder of its detected format.

    Raises:
        Refused: The picture is larger than its header claims.
        MemoryError: Decoding needs more memory than available.
        Exception: Any other error of a decoder.
    """
    kind, size = structure.format, (structure.width, structure.height)
    large = size[0] * size[1] > decoded_whole(kind, structure.frames, limits)
    if large and kind is not PictureFormat.JPEG:
        return _by_libvips(structure, limits, incomplete=incomplete)
    # This is the only copy of the file from here on.
    opened = Image.open(BytesIO(structure.data), formats=[kind.value])
    try:
        check(kind, opened.size, structure.frames, limits, streams=structure.streams)
        if large:
            opened.draft(None, decoding_size(opened.size, limits))
    except BaseException:
        opened.close()
        raise
    return opened


def _by_libvips(structure: Structure, limits: Limits, *, incomplete: bool) -> Image.Image:
    # Imported lazily, as few pictures need it.
    import pyvips

    # The cache would keep a picture's memory into the next job.
    pyvips.cache_set_max(0)
    claimed = structure.width, structure.height
    width, height = decoding_size(claimed, limits)
    # Sequential access reads a PNG from top to bottom, without the whole picture in memory.
    how = {"access": "sequential", "fail_on": "none" if incomplete else "error"}
    try:
        if structure.format is PictureFormat.PNG:
            whole = pyvips.Image.pngload_buffer(structure.data, **how)
            check(PictureFormat.PNG, (whole.width, whole.height), 1, limits, streams=structure.streams)
            # Not rotated here: pictures of all decoders are rotated in one place.
            return _to_pillow(whole.thumbnail_image(width, height=height, size="down", no_rotate=True))
        # Opened at the reduced scale directly, as opening at full size would allocate memory for all of it.
        scale = max(width / claimed[0], height / claimed[1])
        small = pyvips.Image.webpload_buffer(structure.data, scale=scale, **how)
        if max(abs(small.width - width), abs(small.height - height)) > 2:
            raise Refused("PICTURE_DAMAGED")  # its size differs from the header
        return _to_pillow(small)
    except pyvips.Error as error:
        if "out of memory" in str(error):
            raise MemoryError from None
        raise


def _to_pillow(small: pyvips.Image) -> Image.Image:
    if small.format != "uchar":
        raise ValueError(small.format)
    return Image.frombuffer(_MODES[small.bands], (small.width, small.height), small.write_to_memory())
