"""Changing a library of precedents one meme at a time: what the command line and the service both do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from court.errors import Unavailable
from court.ports import PictureReader
from court.precedents import PrecedentLabel
from retrieval.encoders.embedding import Encoder
from retrieval.library.changes import Change
from retrieval.library.single import add_precedent
from retrieval.library.writers import Writer

T = TypeVar("T")

Opened = Callable[[], AbstractContextManager[Writer]]
"""Opens what changes the library."""


async def changed(opened: Opened, work: Callable[[Writer], T]) -> T:
    """Has a library changed, or its history read, in a thread; once begun, it is done, also where the caller leaves.

    Raises:
        BadLibrary: There is none, or it is damaged.
        BadRequest: As the methods of :class:`retrieval.library.writers.Writer` say.
        Unavailable: It can't be changed now.
    """

    def done() -> T:
        with opened() as writer:
            return work(writer)

    try:
        return await asyncio.to_thread(done)
    except OSError as error:
        raise Unavailable(
            "The library of precedents can't be written now: its disk is full, gone or not to be written to. It is as "
            "it was.",
            reason="LIBRARY_NOT_WRITTEN",
        ) from error


async def add_meme(
    opened: Opened,
    encoder: Encoder,
    pictures: PictureReader,
    *,
    id_: str,
    label: PrecedentLabel,
    text: str,
    image: bytes | None,
    **known: Any,
) -> tuple[Change, bool]:
    """Decodes a meme's picture under guard, embeds the meme and puts it into a library.

    Args:
        opened: Opens what changes the library.
        encoder: What the library was made with.
        pictures: Decodes.
        id_: What records will call it.
        label: What it was decided to be.
        text: Of the meme; empty where it has none.
        image: The picture file; None where it has none.
        known: The rest of what :func:`retrieval.library.single.add_precedent` takes.

    Returns:
        The change, and whether the text is longer than the encoder reads.

    Raises:
        BadPicture: The picture can't be read or is beyond the limits.
        As :func:`changed` and :func:`retrieval.library.single.add_precedent`.
    """
    picture = None if image is None else await pictures.read(image)
    return await changed(
        opened,
        lambda writer: add_precedent(writer, encoder, id_=id_, label=label, text=text, picture=picture, **known),
    )
