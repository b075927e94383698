"""Decoding pictures that are too large to be decoded whole: they are scaled down on the way.

JPEG leaves that to Pillow. Its decoders of PNG and WebP decode whole pictures: libvips reads a PNG line by line and has
WebP's own decoder scale. Smaller pictures are decoded by Pillow, as they always were: their pixels stay the same.

Runs in a guarded worker only.
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
_INFO = {"icc_profile": "icc-profile-data", "exif": "exif-data"}
"""Metadata that the picture goes on with, by Pillow's name: libvips' name."""


def open_picture(structure: Structure, limits: Limits, *, incomplete: bool) -> Image.Image:
    """Opens a file with the one decoder that fits its first bytes.

    Args:
        structure: The file.
        limits: Limits that its size is held against once more, as the decoder has it.
        incomplete: True to take what there is of a file that was cut short.

    Raises:
        Refused: The picture is larger than its head said.
        MemoryError: Decoding takes more memory than there is.
        Exception: Any other error of a decoder.
    """
    kind, size = structure.format, (structure.width, structure.height)
    large = size[0] * size[1] > decoded_whole(kind, structure.frames, limits)
    if large and kind is not PictureFormat.JPEG:
        return _by_libvips(structure, limits, incomplete=incomplete)
    # The file shown to Pillow is the only copy of it from here on.
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
    # Only now: few pictures need it.
    import pyvips

    # The cache would take one picture's memory into the job of the next.
    pyvips.cache_set_max(0)
    claimed = structure.width, structure.height
    width, height = decoding_size(claimed, limits)
    # A PNG is read from top to bottom then, and never in memory as a whole.
    how = {"access": "sequential", "fail_on": "none" if incomplete else "error"}
    try:
        if structure.format is PictureFormat.PNG:
            whole = pyvips.Image.pngload_buffer(structure.data, **how)
            check(PictureFormat.PNG, (whole.width, whole.height), 1, limits, streams=structure.streams)
            # Not rotated here: pictures of all decoders are put upright in one place, by the EXIF block that goes on
            # with them.
            return _to_pillow(whole.thumbnail_image(width, height=height, size="down", no_rotate=True))
        # Opened once, scaled: the whole would take memory as soon as its head is read.
        scale = max(width / claimed[0], height / claimed[1])
        small = pyvips.Image.webpload_buffer(structure.data, scale=scale, **how)
        if max(abs(small.width - width), abs(small.height - height)) > 2:
            raise Refused("PICTURE_DAMAGED")  # its picture is not as large as its head says
        return _to_pillow(small)
    except pyvips.Error as error:
        if "out of memory" in str(error):
            raise MemoryError from None
        raise


def _to_pillow(small: pyvips.Image) -> Image.Image:
    if small.format != "uchar":
        raise ValueError(small.format)
    picture = Image.frombuffer(_MODES[small.bands], (small.width, small.height), small.write_to_memory())
    fields = small.get_fields()
    picture.info |= {name: small.get(field) for name, field in _INFO.items() if field in fields}
    return picture
