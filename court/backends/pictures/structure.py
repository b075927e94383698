"""A look at the structure of a picture file before any decoder sees it: pure, in linear time, and bounded.

It answers what the file claims to be, how much work a decoder would have, and refuses what is too much or cut short. It
does not prove a file valid; that is left to the decoder, which now knows less surprises.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass

from court.backends.pictures.refusals import Refused
from court.meme import Limits, PictureFormat

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
# What a PNG decoder is shown. Text is not: it can't change a pixel, but it can be a bomb.
_PNG_COPIED = frozenset({b"IHDR", b"PLTE", b"tRNS", b"iCCP", b"eXIf", b"acTL", b"fcTL", b"fdAT", b"IDAT", b"IEND"})
_PROFILE_MOST = 1 << 20

_JPEG_MARKER = re.compile(rb"\xff[^\x00\xff]")
# Within the data of a scan, stuffed zeros and restart markers (D0 to D7) are no end of it.
_JPEG_AFTER_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_JPEG_COPIED = ((0xE1, b"Exif\0\0"), (0xE2, b"ICC_PROFILE\0"))
# Everything that claims a size. C4, C8 and CC stand among the frame headers and are none; DE is laid out like one.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | {0xDE}
_GIF_BLOCK = re.compile(rb"[!,;]")

_JUNK_MOST = 4096
"""Bytes of junk between two parts that are skipped, as decoders do; more is no accident, and Pillow is slow at it."""
_GIF_BLOCKS_MOST = 1 << 18
"""A file of 32 MiB has half of that when its blocks are full."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Claims of a file about its content, read without decoding.

    Attributes:
        format: Format, told from the first bytes.
        width: Width of the canvas, in pixels.
        height: Height of the canvas, in pixels.
        frames: At least 1.
        data: Bytes for the decoder.
        bits: Per channel, where the format is PNG.
        cut: True if the file of a still ends before its picture does, as an upload that broke off.
        streams: True if it can be scaled down while it is decoded: it is one picture, stored from top to bottom. Not so
            a progressive JPEG, an interlaced PNG, a WebP that is lossless or can be seen through, and a GIF.
    """

    format: PictureFormat
    width: int
    height: int
    frames: int
    data: bytes
    bits: int = 8
    cut: bool = False
    streams: bool = False


def parse_structure(data: bytes, limits: Limits) -> Structure:
    """The structure of a file. Raises Refused."""
    try:
        # By the first bytes alone: a name or a media type is only the sender's word.
        if data.startswith(_PNG_MAGIC):
            structure = _png(data, limits)
        elif data.startswith(b"\xff\xd8\xff"):
            structure = _jpeg(data, limits)
        elif data.startswith((b"GIF87a", b"GIF89a")):
            structure = _gif(data)
        elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            structure = _webp(data, limits)
        else:
            raise Refused("PICTURE_FORMAT_NOT_READ")
    except (struct.error, IndexError):  # read beyond the end
        raise Refused("PICTURE_DAMAGED") from None
    check(structure.format, (structure.width, structure.height), structure.frames, limits, streams=structure.streams)
    return structure


def decoded_whole(kind: PictureFormat, frames: int, limits: Limits) -> int:
    """Pixels of a frame up to which a file of this kind is decoded whole, if it is decoded at all."""
    # Decoders of animations, and WebP's is always one, keep up to five canvases at once. With half the pixels these
    # still fit in the memory of one picture.
    return limits.max_pixels // 2 if frames > 1 or kind is PictureFormat.WEBP else limits.max_pixels


def check(kind: PictureFormat, size: tuple[int, int], frames: int, limits: Limits, *, streams: bool) -> None:
    """Raises Refused if a canvas or an animation is beyond the limits.

    Args:
        kind: Format of the file.
        size: Width and height, in pixels.
        frames: Frames of the file.
        limits: The limits.
        streams: True if it can be scaled down while it is decoded, as far as is known.
    """
    width, height = size
    pixels = width * height
    if pixels == 0:
        raise Refused("PICTURE_NO_PIXELS", width=width, height=height)
    if max(width, height) > limits.max_side:
        raise Refused("PICTURE_SIDE_TOO_LONG", width=width, height=height, limit=limits.max_side)
    whole = decoded_whole(kind, frames, limits)
    streamed = limits.max_jpeg_pixels if kind is PictureFormat.JPEG else limits.max_scaled_pixels
    most = streamed if streams else whole
    if pixels > most:
        # Decides between two remedies: stored in another way this picture would be taken, or it has to be smaller.
        might_stream = frames == 1 and kind is not PictureFormat.GIF and pixels <= streamed
        reason = "PICTURE_PROGRESSIVE_TOO_LARGE" if might_stream else "PICTURE_TOO_MANY_PIXELS"
        raise Refused(reason, width=width, height=height, pixels=pixels, limit=most)
    if frames > limits.max_frames:
        raise Refused("PICTURE_TOO_MANY_FRAMES", frames=frames, limit=limits.max_frames)
    total = frames * pixels
    if frames > 1 and total > limits.max_total_pixels:
        figures = {"frames": frames, "width": width, "height": height, "pixels": total}
        raise Refused("PICTURE_ANIMATION_TOO_LARGE", **figures, limit=limits.max_total_pixels)


def _png(data: bytes, limits: Limits) -> Structure:
    parts = [_PNG_MAGIC]
    at, chunks, declared, drawn = len(_PNG_MAGIC), 0, 0, 0
    size: tuple[int, int] | None = None
    bits, interlaced, kind, default_still, ended = 8, 0, b"", False, False
    while not ended:
        # Cut between two chunks. A still shows what there is of it; an animation that breaks off is refused below.
        if not declared and default_still and at + 8 > len(data):
            return _cut_png(parts, b"", size, bits, streams=not interlaced)
        length, kind = struct.unpack_from(">I4s", data, at)
        body, end = at + 8, at + 12 + length
        chunks += 1
        if chunks > limits.max_png_chunks:
            raise Refused("PICTURE_TOO_MANY_CHUNKS", parts=chunks, limit=limits.max_png_chunks)
        if not declared and end > len(data) and (kind == b"IDAT" or default_still):
            tail = data[body:] if kind == b"IDAT" else b""
            return _cut_png(parts, tail, size, bits, streams=not interlaced)
        # The header comes first and once: a second one could change the size after it was checked.
        if end > len(data) or (size is None) != (kind == b"IHDR"):
            raise Refused("PICTURE_DAMAGED")
        # A view, because a chunk can be nearly as large as the file.
        whole = memoryview(data)[at:end]
        if kind == b"IHDR":
            width, height, bits, interlaced = struct.unpack_from(">IIB3xB", data, body)
            size = width, height
        elif kind == b"acTL":
            (declared,) = struct.unpack_from(">I", data, body)
        elif kind == b"fcTL":
            drawn += 1
        elif kind == b"IDAT" and drawn == 0:
            default_still = True
        # As the PNG standard has it: a wrong check sum spoils a chunk, and the file only where the chunk is needed.
        sound = zlib.crc32(whole[4:-4]) == struct.unpack_from(">I", data, end - 4)[0]
        # This bit, a small first letter, marks chunks that a decoder may do without.
        if not sound and not kind[0] & 0x20:
            raise Refused("PICTURE_DAMAGED")
        if kind in _PNG_COPIED and sound and (kind != b"iCCP" or _is_profile(whole[8:-4])):
            parts.append(bytes(whole))
        ended = kind == b"IEND"
        at = end
    assert size is not None
    # The claim or the count, whichever is larger, for decoders may follow either. Pixels before the first frame's
    # header are a picture of their own.
    frames = max(declared, drawn) + (1 if declared and default_still else 0) if declared else 1
    width, height = size
    return Structure(
        format=PictureFormat.PNG,
        width=width,
        height=height,
        frames=frames,
        data=b"".join(parts),
        bits=bits,
        streams=frames == 1 and not interlaced,
    )


def _cut_png(parts: list[bytes], tail: bytes, size: tuple[int, int] | None, bits: int, *, streams: bool) -> Structure:
    """A PNG that breaks off, as a decoder takes it: what there is of its last chunk is one, and the end is marked."""
    if size is None:
        raise Refused("PICTURE_DAMAGED")
    chunks = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in ((b"IDAT", tail), (b"IEND", b""))
    )
    width, height = size
    whole = b"".join([*parts, chunks])
    return Structure(
        format=PictureFormat.PNG,
        width=width,
        height=height,
        frames=1,
        data=whole,
        bits=bits,
        cut=True,
        streams=streams,
    )


def _is_profile(body: memoryview) -> bool:
    """True if a colour profile unpacks to a reasonable size."""
    name, _, packed = bytes(body).partition(b"\0")
    unpacker = zlib.decompressobj()
    try:
        # Bounded, because a few bytes may unpack to gigabytes; a profile that is not at its end by then is left out.
        unpacker.decompress(packed[1:], _PROFILE_MOST)
    except zlib.error:
        return False
    return bool(name) and packed[:1] == b"\0" and unpacker.eof


def _jpeg(data: bytes, limits: Limits) -> Structure:
    parts = [data[:2]]
    at, scans, segments = 2, 0, 0
    size: tuple[int, int] | None = None
    first_scan = end = len(data)
    cut = True
    while (found := _JPEG_MARKER.search(data, at)) is not None:
        if found.end() - at > _JUNK_MOST:
            raise Refused("PICTURE_DAMAGED")
        marker, at = data[found.end() - 1], found.end()
        if marker == 0xD9:  # the end of the first picture; of an MPO, others follow
            end, cut = at, False
            break
        segments += 1
        # One bound for the parts of every format, whatever its name says.
        if segments > limits.max_png_chunks:
            raise Refused("PICTURE_TOO_MANY_CHUNKS", parts=segments, limit=limits.max_png_chunks)
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # these stand alone
            continue
        (length,) = struct.unpack_from(">H", data, at)
        if length < 2:
            raise Refused("PICTURE_DAMAGED")
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 3)
            # A second frame header is a fault, and Pillow goes by the last: all must hold.
            size = width, height
            check(PictureFormat.JPEG, size, 1, limits, streams=True)
        if marker == 0xDA:
            first_scan = min(first_scan, found.end() - 2)
            scans += 1
            if scans > limits.max_jpeg_scans:
                raise Refused("PICTURE_TOO_MANY_SCANS", parts=scans, limit=limits.max_jpeg_scans)
            found = _JPEG_AFTER_SCAN.search(data, at + length)
            at = len(data) if found is None else found.start()
            continue
        if scans == 0 and _is_needed(marker, data[at + 2 : at + 14]):
            parts.append(data[found.end() - 2 : at + length])
        at += length
    if size is None or scans == 0:
        raise Refused("PICTURE_DAMAGED")
    width, height = size
    whole = b"".join([*parts, data[first_scan:end]])
    return Structure(
        format=PictureFormat.JPEG, width=width, height=height, frames=1, data=whole, cut=cut, streams=scans == 1
    )


def _is_needed(marker: int, begins: bytes) -> bool:
    """True if a segment is needed to decode the picture, turn it upright or show its colours; an MPO's index isn't."""
    # 0xEE is Adobe's segment, which says how colours are stored: without it some files show others.
    if marker == 0xFE or (0xE3 <= marker <= 0xEF and marker != 0xEE):
        return False
    return marker not in (0xE1, 0xE2) or any(marker == kind and begins.startswith(name) for kind, name in _JPEG_COPIED)


def _gif(data: bytes) -> Structure:
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + _palette(flags)
    frames = blocks = 0
    while (found := _GIF_BLOCK.search(data, at)) is not None:
        if found.end() - at > _JUNK_MOST:
            raise Refused("PICTURE_DAMAGED")
        introducer, at = found.group(), found.end()
        if introducer == b";":
            break
        if introducer == b"!":
            at += 1
        else:
            frames += 1
            left, top, wide, high, flags = struct.unpack_from("<HHHHB", data, at)
            # A frame may be larger than the canvas; the decoder then enlarges it.
            width, height = max(width, left + wide), max(height, top + high)
            at += 9 + _palette(flags) + 1
        # Beyond the end this raises IndexError, which parse_structure turns into a refusal.
        while (length := data[at]) > 0:
            at += 1 + length
            blocks += 1
            if blocks > _GIF_BLOCKS_MOST:
                raise Refused("PICTURE_TOO_MANY_CHUNKS", parts=blocks, limit=_GIF_BLOCKS_MOST)
        at += 1
    if frames == 0:
        raise Refused("PICTURE_DAMAGED")
    return Structure(format=PictureFormat.GIF, width=width, height=height, frames=frames, data=data)


def _palette(flags: int) -> int:
    """Size of the palette that follows, in bytes."""
    # Three bytes a colour, and the lowest bits say how many there are, as a power of two.
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _webp(data: bytes, limits: Limits) -> Structure:
    end = 8 + struct.unpack_from("<I", data, 4)[0]
    if end > len(data):
        raise Refused("PICTURE_DAMAGED")
    at, chunks, frames = 12, 0, 0
    size: tuple[int, int] | None = None
    streams = True
    while at + 8 <= end:
        kind, length = struct.unpack_from("<4sI", data, at)
        body = at + 8
        chunks += 1
        if chunks > limits.max_png_chunks:
            raise Refused("PICTURE_TOO_MANY_CHUNKS", parts=chunks, limit=limits.max_png_chunks)
        streams = streams and kind not in (b"VP8L", b"ALPH", b"ANMF")  # these are decoded whole
        if kind == b"ANMF":
            frames += 1
        # Where there is one it comes first, and its canvas is what counts.
        elif kind == b"VP8X" and size is None:
            wide, high = data[body + 4 : body + 7], data[body + 7 : body + 10]
            size = 1 + int.from_bytes(wide, "little"), 1 + int.from_bytes(high, "little")
        elif kind == b"VP8 " and size is None:
            # Of each the upper two bits ask for scaling, and are no part of the size.
            width, height = struct.unpack_from("<HH", data, body + 6)
            size = width & 0x3FFF, height & 0x3FFF
        elif kind == b"VP8L" and size is None:
            # Two numbers of 14 bits, each one less than the side.
            (packed,) = struct.unpack_from("<I", data, body + 1)
            size = 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF)
        # RIFF pads chunks to even lengths.
        at = body + length + (length & 1)
    if size is None:
        raise Refused("PICTURE_DAMAGED")
    width, height = size
    return Structure(
        format=PictureFormat.WEBP,
        width=width,
        height=height,
        frames=max(frames, 1),
        data=data[:end],
        streams=streams,
    )
