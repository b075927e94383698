"""Blurred pictures, as shown by default (small, grey, without detail), and pictures of precedents."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from PIL import Image, ImageFilter

from court.errors import Unavailable
from court.meme import Frame
from retrieval.library.library import Library
from retrieval.library.thumbnails import frame_of
from retrieval.library.verify import Check

_VEILED_SIDE = 20
"""Length of the longer side in pixels: too few to recognize a face or a letter."""
_SHOWN_SIDE = 160
_MOST_PIXELS = 4_000_000
"""Limit on the pixels of a stored frame, above any that we store: a docket may have been altered."""


def blurred(frame: bytes) -> bytes:
    """Blurs a stored frame until only light and dark areas are left; returns a PNG.

    It contains at most 400 grey values of the picture, so the original can't be restored from the file.

    Raises:
        Unavailable: The bytes can't be decoded as a picture.
    """
    try:
        with Image.open(io.BytesIO(frame), formats=("PNG", "JPEG")) as opened:
            # Taken from the file's header, before any pixel is decoded.
            if opened.width * opened.height > _MOST_PIXELS:
                raise OSError("too large")
            grey = opened.convert("L")
        scale = _VEILED_SIDE / max(grey.size)
        width, height = (max(1, round(side * scale)) for side in grey.size)
        small = grey.resize((width, height), Image.Resampling.BOX).filter(ImageFilter.GaussianBlur(1.2))
        up = _SHOWN_SIDE / _VEILED_SIDE
        shown = small.resize((round(width * up), round(height * up)), Image.Resampling.BICUBIC)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Unavailable("What is kept as this picture is none.", reason="PICTURE_DAMAGED") from error
    out = io.BytesIO()
    shown.save(out, "PNG")
    return out.getvalue()


@cache
def empty() -> bytes:
    """Returns the placeholder for a picture that is not stored: an empty PNG."""
    out = io.BytesIO()
    Image.new("LA", (4, 3), (0, 0)).save(out, "PNG")
    return out.getvalue()


def media_type(frame: bytes) -> str:
    """Returns the media type of a stored frame: PNG, but JPEG for small pictures of precedents."""
    return "image/jpeg" if frame.startswith(b"\xff\xd8") else "image/png"


class LibraryPictures:
    """Pictures of precedents in libraries on disk, without an encoder: for a console in a separate process."""

    def __init__(self, roots: Sequence[Path]) -> None:
        """Looks for pictures.

        Args:
            roots: The libraries' directories, the one that is looked at first before the others. Each is opened when a
                picture is asked for, and followed as it changes.
        """
        self._roots = tuple(roots)
        self._libraries: dict[Path, Library] = {}
        self._reading = asyncio.Lock()

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """See :class:`serving.export.source.PictureSource`.

        Raises:
            BadLibrary: A library or a picture is damaged.
            Unavailable: They could not be read now.
        """
        # One at a time: the thread modifies `_libraries`.
        async with self._reading:
            try:
                return await asyncio.to_thread(lambda: [self._picture(id_) for id_ in ids])
            except OSError as error:
                raise Unavailable("The library of precedents can't be read now.", reason="SEARCH_FAILED") from error

    def _picture(self, id_: str) -> Frame | None:
        for root in self._roots:
            library = self._now(root)
            row = library.row_of(id_)
            stored = None if row is None else library.picture_of(library.read([row])[0])
            # The same id may be in several libraries: the first that has a picture of it counts.
            if stored is not None:
                return frame_of(stored)
        return None

    def _now(self, root: Path) -> Library:
        known = self._libraries.get(root)
        found = Library.open(root, None, check=Check.LATER) if known is None else known.newer() or known
        self._libraries[root] = found
        return found
