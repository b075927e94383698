"""Erases the text on a picture, so that a model that is given another text does not see the old one.

The court's text reader locates the text, and OpenCV's inpainting after Bertalmío, Bertozzi & Sapiro (2001) fills the
area from its surroundings. No generative model is involved.
"""

import asyncio
import dataclasses
import hashlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image

from court.events import TextLine
from court.meme import Frame, Picture, PictureFormat
from court.ports import Reading, TextReader


@dataclass(frozen=True, slots=True)
class Erased:
    """A picture without its text."""

    frames: tuple[Frame, ...]
    text: str
    """Text read off the picture before; empty if there was none."""
    lines: int
    left: int
    """Number of lines still legible: of small or ornate ones something may be left."""


async def erase(frames: Sequence[Frame], reader: TextReader) -> Erased:
    """A picture without its text.

    Raises:
        Overrun: The text reader ran out of time.
        Unavailable: The text can't be read now, so its position is unknown.
    """
    now = tuple(frames)
    found = await _read(now, reader)
    text, lines = Reading(found).text, 0
    # Twice at most: text that was hidden by other text may be found in the second pass.
    for _ in range(2):
        if not found:
            break
        lines += len(found)
        # In a thread, as inpainting is CPU-bound.
        now = tuple(
            [
                await asyncio.to_thread(painted_over, frame, [line for line in found if line.frame == frame.index])
                for frame in now
            ]
        )
        found = await _read(now, reader)
    return Erased(now, text, lines, len(found))


async def _read(frames: tuple[Frame, ...], reader: TextReader) -> tuple[TextLine, ...]:
    """The lines that are text with sufficient confidence."""
    digest = hashlib.sha256(b"".join(frame.png for frame in frames)).hexdigest()
    picture = Picture(
        format=PictureFormat.PNG,
        bytes_sha256=digest,
        pixels_sha256=digest,
        width=frames[0].width,
        height=frames[0].height,
        frame_count=len(frames),
        frames=frames,
    )
    reading = await reader.read(picture)
    # The reader takes a cup's handle for a letter, with low confidence. Without a letter or a digit it is a line or an
    # ornament of the picture, which is to stay.
    return tuple(line for line in reading.lines if line.confidence >= 0.6 and any(map(str.isalnum, line.text)))


def painted_over(frame: Frame, lines: Sequence[TextLine]) -> Frame:
    """The frame with what is in the boxes painted over; itself where there is none."""
    if not lines:
        return frame
    # Frames are PNG files of our own, so none of Pillow's other decoders is to be reached from here.
    with Image.open(io.BytesIO(frame.png), formats=["PNG"]) as opened:
        pixels = np.ascontiguousarray(np.asarray(opened.convert("RGB")))
    mask = np.zeros(pixels.shape[:2], dtype=np.uint8)
    for line in lines:
        box = np.zeros_like(mask)
        cv2.fillPoly(box, [np.rint(np.array(line.box)).astype(np.int32)], 255)
        upper_left, _, _, lower_left = line.box
        # By a share of its height, in pixels: letters have outlines and shadows that a reader cuts off.
        by = max(2, round(0.18 * math.dist(upper_left, lower_left)))
        grown = cv2.dilate(box, cv2.getStructuringElement(cv2.MORPH_RECT, (2 * by + 1, 2 * by + 1)))
        mask = np.maximum(mask, grown.astype(np.uint8))
    # INPAINT_NS is the method of the paper above; the other one that OpenCV has is Telea's.
    repaired = cv2.inpaint(pixels, mask, inpaintRadius=5, flags=cv2.INPAINT_NS)
    out = io.BytesIO()
    Image.fromarray(repaired).save(out, "PNG")
    return dataclasses.replace(frame, png=out.getvalue())
