"""The process that decodes pictures: started by :mod:`court.backends.pictures.reader`, one file a job."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageFile

from court.backends.pictures.colours import Colours
from court.backends.pictures.normalise import (
    as_png,
    decoding_size,
    digest_of_frames,
    is_flat,
    representative,
    stills,
    upright_size,
)
from court.backends.pictures.refusals import Refused
from court.backends.pictures.structure import Structure, check, decoded_whole, parse_structure
from court.backends.sandbox import child as worker_child
from court.meme import LIMITS, Limits, PictureFormat

if TYPE_CHECKING:
    import pyvips


_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


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


def answer(job: Mapping[str, Any], payloads: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Decodes the picture in the only payload; returns it, or the reason for its rejection with its figures."""
    try:
        # Removed from the list, so that the file can be freed once its structure is parsed: total memory is 256 MiB.
        return _read(payloads.pop(), Limits(**job["limits"]))
    except Refused as refused:
        return {"refused": refused.reason, "figures": refused.figures}, []


def _read(data: bytes, limits: Limits) -> tuple[dict[str, Any], list[bytes]]:
    structure = parse_structure(data, limits)
    del data
    try:
        # Strict decoding first: a file that only lacks its end marker is complete.
        return _decode(structure, limits, incomplete=False)
    except Refused as refused:
        if not structure.cut or refused.reason != "PICTURE_DAMAGED":
            raise
    # Viewers show the available part of a truncated file, so the court judges it too, and reports that.
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        return _decode(structure, limits, incomplete=True)
    finally:
        # A process-wide switch of Pillow, reset so that the next damaged picture is rejected.
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def _decode(structure: Structure, limits: Limits, *, incomplete: bool) -> tuple[dict[str, Any], list[bytes]]:
    colours = Colours(structure.profile, unsure=structure.unsure)
    digests, frames, pngs = [], [], []
    try:
        with open_picture(structure, limits, incomplete=incomplete) as opened:
            width, height = upright_size(structure)
            chosen, unlike = representative(opened, structure, colours, limits)
            for still in stills(opened, structure, colours, limits, indices=chosen):
                if incomplete and is_flat(still.image):
                    raise Refused("PICTURE_DAMAGED")  # truncated before any visible content
                digests.append(still.digest)
                width_height = {"width": still.image.width, "height": still.image.height}
                frames.append({"index": still.index, **width_height, "legible": still.legible is not None})
                pngs += [as_png(image) for image in (still.image, still.legible) if image is not None]
    except Refused:
        raise
    except MemoryError:
        raise Refused("PICTURE_TOO_COSTLY") from None
    except Exception:
        # Decoders raise many kinds of exception: OSError, ValueError, IndexError, SyntaxError, zlib.error,
        # NotImplementedError, TypeError ... Their messages may quote the file, so none is passed on.
        raise Refused("PICTURE_DAMAGED") from None
    return {
        "format": structure.format.value,
        "width": width,
        "height": height,
        "frame_count": structure.frames,
        "frames_unlike": unlike,
        "incomplete": incomplete,
        "shown_otherwise": colours.unusual,
        "pixels_sha256": digest_of_frames(digests, shown_otherwise=colours.unusual),
        "frames": frames,
    }, pngs


def main() -> None:
    """Serves jobs until the parent process exits."""
    warnings.simplefilter("ignore")
    # In addition to our own limits: pictures that Pillow considers too large are rejected.
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    # Imported now, so that the first picture is not slower.
    Image.preinit()
    Image.init()
    # Pillow would warn above its own limit, which is below ours; the structure is checked before Pillow sees a file.
    Image.MAX_IMAGE_PIXELS = LIMITS.max_jpeg_pixels
    worker_child.serve(answer)


if __name__ == "__main__":
    main()
