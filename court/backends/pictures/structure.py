"""Parses the structure of a picture file before any decoder sees it, in bounded linear time.

It determines the claimed format and the work for a decoder, and rejects files that are too large or truncated. It does
not prove a file valid; that is left to the decoder.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass

from court.backends.pictures.colours import profile_of_png, unpack_profile
from court.backends.pictures.refusals import Refused
from court.meme import Limits, PictureFormat

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
# Chunks passed to the PNG decoder. Text chunks are not: they don't affect pixels, but can be decompression bombs.
_PNG_COPIED = frozenset({b"IHDR", b"PLTE", b"tRNS", b"acTL", b"fcTL", b"fdAT", b"IDAT", b"IEND"})
_PNG_COLOURS = {b"cICP": 4, b"sRGB": 1, b"gAMA": 4, b"cHRM": 32}
"""Chunks about colours by their length in bytes; browsers ignore those of another length."""
_WEBP_HAS_PROFILE = 0x20

_JPEG_MARKER = re.compile(rb"\xff[^\x00\xff]")
# Within scan data, stuffed zeros and restart markers (D0 to D7) do not end the scan.
_JPEG_AFTER_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_JPEG_EXIF, _JPEG_ICC = (0xE1, b"Exif\0"), (0xE2, b"ICC_PROFILE\0")
# All markers with a size. C4, C8 and CC are not frame headers despite their range; DE has the same layout.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | {0xDE}
_GIF_BLOCK = re.compile(rb"[!,;]")

_JUNK_MOST = 4096
"""Maximum junk bytes skipped between two parts, as decoders do; more is suspicious, and slow in Pillow."""
_GIF_BLOCKS_MOST = 1 << 18
"""Maximum number of GIF blocks; a file of 32 MiB with full blocks has half of that."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Claims of a file about its content, read without decoding.

    Attributes:
        streams: True if it can be scaled while decoding: a single picture, stored from top to bottom. Excludes
            progressive JPEG, interlaced PNG, lossless or transparent WebP, and GIF.
    """

    format: PictureFormat
    width: int
    height: int
    frames: int
    data: bytes
    bits: int = 8
    profile: bytes | None = None
    unsure: bool = False
    orientation: int = 1
    cut: bool = False
    streams: bool = False


def parse_structure(data: bytes, limits: Limits) -> Structure:
    """Parses the structure of a file. Raises Refused."""
    try:
        # Detected by the first bytes alone, as name and media type are untrusted.
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
    """Returns the maximum pixels of a frame that is decoded at full size."""
    # Decoders of animations, including WebP's, keep up to five canvases, which fit into memory with half the pixels.
    return limits.max_pixels // 2 if frames > 1 or kind is PictureFormat.WEBP else limits.max_pixels


def check(kind: PictureFormat, size: tuple[int, int], frames: int, limits: Limits, *, streams: bool) -> None:
    """Raises Refused if a canvas or an animation exceeds the limits."""
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
        # Decides which remedy is suggested: storing the picture in another way, or making it smaller.
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
    bits, interlaced, default_still, ended, tail = 8, 0, False, False, None
    display = _PngDisplay()
    while not ended:
        # Truncated between two chunks. A still is shown as far as available; a truncated animation is rejected below.
        if not declared and default_still and at + 8 > len(data):
            tail = b""
            break
        length, kind = struct.unpack_from(">I4s", data, at)
        body, end = at + 8, at + 12 + length
        chunks += 1
        if chunks > limits.max_png_chunks:
            raise Refused("PICTURE_TOO_MANY_CHUNKS", parts=chunks, limit=limits.max_png_chunks)
        if not declared and end > len(data) and (kind == b"IDAT" or default_still):
            tail = data[body:] if kind == b"IDAT" else b""
            break
        # Exactly one header, at the beginning: a second one could change the size after the check.
        if end > len(data) or (size is None) != (kind == b"IHDR"):
            raise Refused("PICTURE_DAMAGED")
        # A view instead of a copy, as a chunk can be nearly as large as the file.
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
        # As in the PNG standard, a wrong checksum invalidates a chunk, and the file only if the chunk is critical.
        sound = zlib.crc32(whole[4:-4]) == struct.unpack_from(">I", data, end - 4)[0]
        # This bit, a lower-case first letter, marks ancillary chunks.
        if not sound and not kind[0] & 0x20:
            raise Refused("PICTURE_DAMAGED")
        if sound and display.takes(kind, whole[8:-4]) and kind in _PNG_COPIED:
            parts.append(bytes(whole))
        ended = kind == b"IEND"
        at = end
    if size is None:
        raise Refused("PICTURE_DAMAGED")
    if tail is not None:
        # Completed for the decoder: the last chunk closed, and the end marker appended.
        parts += [
            struct.pack(">I", len(last)) + kind + last + struct.pack(">I", zlib.crc32(kind + last))
            for kind, last in ((b"IDAT", tail), (b"IEND", b""))
        ]
    # The larger of claim and count, as decoders may follow either. Pixels before the first frame's header are a
    # separate picture.
    frames = max(declared, drawn) + (1 if declared and default_still else 0) if declared else 1
    width, height = size
    profile, unsure = profile_of_png(display.colours)
    return Structure(
        format=PictureFormat.PNG,
        width=width,
        height=height,
        frames=frames,
        data=b"".join(parts),
        bits=bits,
        profile=profile,
        unsure=unsure,
        orientation=display.orientation,
        cut=tail is not None,
        streams=frames == 1 and not interlaced,
    )


class _PngDisplay:
    """Chunks that change how a PNG is shown, selected as browsers do: by position, the first valid one of a kind."""

    def __init__(self) -> None:
        self.colours: dict[bytes, bytes] = {}
        self.orientation = 1
        self._indexed = False
        self._seen: set[bytes] = set()

    def takes(self, kind: bytes, body: memoryview) -> bool:
        """Notes a chunk; False if browsers ignore it because of its position."""
        pixels, palette, repeated = b"IDAT" in self._seen, b"PLTE" in self._seen, kind in self._seen
        if kind == b"IHDR":
            self._indexed = body[9] == 3
        elif kind in (b"PLTE", b"tRNS", b"eXIf") and pixels:
            return False
        elif kind == b"PLTE" and repeated:
            raise Refused("PICTURE_DAMAGED")  # browsers don't show it
        elif kind == b"tRNS" and (repeated or (self._indexed and not palette)):
            return False
        elif kind == b"eXIf" and not repeated:
            self.orientation = _orientation(bytes(body))
        elif not pixels and kind not in self.colours:
            about = unpack_profile(bytes(body)) if kind == b"iCCP" else bytes(body)
            if about is not None and self._is_about_colours(kind, about):
                self.colours[kind] = about
        self._seen.add(kind)
        return True

    def _is_about_colours(self, kind: bytes, body: bytes) -> bool:
        if kind == b"iCCP":
            return True
        if len(body) != _PNG_COLOURS.get(kind):
            return False
        match kind:
            case b"cICP":
                return b"PLTE" not in self._seen
            case b"sRGB":
                return body[0] <= 3
            case b"gAMA":
                return any(body)
            case _:
                return True


def _jpeg(data: bytes, limits: Limits) -> Structure:
    parts = [data[:2]]
    at, scans, segments = 2, 0, 0
    size: tuple[int, int] | None = None
    first_scan = end = len(data)
    cut, exif = True, None
    profiles: list[bytes] = []
    while (found := _JPEG_MARKER.search(data, at)) is not None:
        if found.end() - at > _JUNK_MOST:
            raise Refused("PICTURE_DAMAGED")
        marker, at = data[found.end() - 1], found.end()
        if marker == 0xD9:  # end of the first picture; in an MPO, others follow
            end, cut = at, False
            break
        segments += 1
        # Despite its name, this limit applies to the parts of every format.
        if segments > limits.max_png_chunks:
            raise Refused("PICTURE_TOO_MANY_CHUNKS", parts=segments, limit=limits.max_png_chunks)
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # these stand alone
            continue
        (length,) = struct.unpack_from(">H", data, at)
        if length < 2:
            raise Refused("PICTURE_DAMAGED")
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 3)
            # Multiple frame headers are invalid, but Pillow uses the last, so all are checked.
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
        if scans == 0:
            segment = memoryview(data)[at + 2 : at + length]
            if exif is None and _is(_JPEG_EXIF, marker, segment):
                exif = bytes(segment)
            elif _is(_JPEG_ICC, marker, segment):
                profiles.append(bytes(segment[12:]))
            # APP0 is JFIF's. 0xEE is Adobe's segment with the colour transform, without which some files have wrong
            # colours. The others of 0xE1 to 0xEF and comments don't affect pixels, such as the index of an MPO.
            elif marker != 0xFE and not (0xE1 <= marker <= 0xEF and marker != 0xEE):
                parts.append(data[found.end() - 2 : at + length])
        at += length
    if size is None or scans == 0:
        raise Refused("PICTURE_DAMAGED")
    width, height = size
    whole = b"".join([*parts, data[first_scan:end]])
    profile, unsure = _joined(profiles)
    return Structure(
        format=PictureFormat.JPEG,
        width=width,
        height=height,
        frames=1,
        data=whole,
        profile=profile,
        unsure=unsure,
        orientation=1 if exif is None else _orientation(exif[6:]),
        cut=cut,
        streams=scans == 1,
    )


def _is(kind: tuple[int, bytes], marker: int, segment: memoryview) -> bool:
    return marker == kind[0] and segment[: len(kind[1])] == kind[1]


def _joined(segments: list[bytes]) -> tuple[bytes | None, bool]:
    """Joins a JPEG's colour profile from numbered parts, and tells whether viewers may join them differently."""
    parts: dict[int, bytes] = {}
    expected = None
    for at, (number, count, content) in enumerate(((each[0], each[1], each[2:]) for each in segments if each[2:]), 1):
        expected = expected or count
        # As Chromium: nothing from the first wrong number on, and nothing more once all parts are there.
        if not 1 <= number <= count or count != expected:
            return None, True
        parts.setdefault(number, content)
        if len(parts) == count:
            return b"".join(parts[number] for number in sorted(parts)), at < len(segments)
    return None, bool(segments)


def _orientation(exif: bytes) -> int:
    """Returns the orientation in a TIFF header of EXIF, 1 to 8; 1 if it is missing or invalid."""
    # Browsers ignore orientation in other metadata, and in WebP. Parsed by hand, as Pillow would unpack all other tags.
    # Untrusted bytes: anything but a valid tag at a valid offset is ignored.
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, start)
        for entry in range(start + 2, start + 2 + 12 * entries, 12):
            tag, kind, count, value = struct.unpack_from(order + "HHIH", exif, entry)
            # Orientation tag; type 3 is a 16-bit number stored in the entry itself.
            if tag == 0x0112:
                return value if kind == 3 and count == 1 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


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
            # A frame may exceed the canvas, which the decoder then enlarges.
            width, height = max(width, left + wide), max(height, top + high)
            at += 9 + _palette(flags) + 1
        # Raises IndexError beyond the end, which parse_structure turns into a rejection.
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
    # Three bytes per colour; the lowest bits give the number of colours as a power of two.
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _webp(data: bytes, limits: Limits) -> Structure:
    end = 8 + struct.unpack_from("<I", data, 4)[0]
    if end > len(data):
        raise Refused("PICTURE_DAMAGED")
    at, chunks, frames = 12, 0, 0
    size: tuple[int, int] | None = None
    profile: bytes | None = None
    streams, flags = True, 0
    while at + 8 <= end:
        kind, length = struct.unpack_from("<4sI", data, at)
        body = at + 8
        chunks += 1
        if chunks > limits.max_png_chunks:
            raise Refused("PICTURE_TOO_MANY_CHUNKS", parts=chunks, limit=limits.max_png_chunks)
        streams = streams and kind not in (b"VP8L", b"ALPH", b"ANMF")  # these are decoded whole
        if kind == b"ANMF":
            frames += 1
        # If present it comes first, and its canvas counts.
        elif kind == b"VP8X" and size is None:
            flags = data[body]
            wide, high = data[body + 4 : body + 7], data[body + 7 : body + 10]
            size = 1 + int.from_bytes(wide, "little"), 1 + int.from_bytes(high, "little")
        elif kind == b"VP8 " and size is None:
            # The upper two bits of each are scaling hints and not part of the size.
            width, height = struct.unpack_from("<HH", data, body + 6)
            size = width & 0x3FFF, height & 0x3FFF
        elif kind == b"VP8L" and size is None:
            # Two numbers of 14 bits, each one less than the side.
            (packed,) = struct.unpack_from("<I", data, body + 1)
            size = 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF)
        elif kind == b"ICCP" and profile is None:
            profile = data[body : body + length]
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
        profile=profile if flags & _WEBP_HAS_PROFILE else None,
        streams=streams,
    )
