"""Adds one meme to a library in use: from the command line, or when a person overrules a verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np

from court.errors import BadLibrary, BadRequest, Unavailable
from court.meme import Picture, check_text
from court.ports import PictureReader
from court.precedents import PrecedentLabel
from retrieval.embed.encoder import Encoder
from retrieval.library.changes import Change
from retrieval.library.manifest import LabelledMeme
from retrieval.library.ports import Writer
from retrieval.library.sources import Provenance
from retrieval.library.thumbnails import shrink


def add_precedent(
    writer: Writer,
    encoder: Encoder,
    *,
    id_: str,
    label: PrecedentLabel,
    text: str,
    picture: Picture | None,
    who: str,
    why: str,
    source: str = "",
    categories: tuple[str, ...] = (),
    provenance: Provenance | None = None,
    verified: bool = True,
    binding: bool = True,
) -> tuple[Change, bool]:
    """Embeds a meme and adds it; returns the change, and True if the encoder reads only a part of the text.

    Raises:
        As :meth:`retrieval.library.ports.Writer.add`; BadText if the text is invalid.
    """
    check_text(text)
    # Vectors of another encoder may have the right length but are meaningless here.
    if (made_with := writer.encoder) != encoder.identity:
        raise BadLibrary(
            f"The precedent library was made with the encoder {made_with}, but {encoder.identity} is loaded.",
            reason="LIBRARY_FOREIGN",
        )
    if not 0 < len(id_) <= 200 or not id_.strip():
        raise BadRequest("A precedent needs an id of 1 to 200 characters.", field="id")
    # Before the library is touched, as this takes longest.
    texts = encoder.embed_texts([text])
    picture_vector = np.zeros(encoder.identity.picture_dim, dtype=np.float32)
    if picture is not None:
        picture_vector = encoder.embed_pictures([[frame.png for frame in picture.frames]])[0]
    # By the vectors and not by the input: zeros mean that the encoder could not read it, so it can't be compared.
    has_text, has_picture = bool(texts.vectors[0].any()), bool(picture_vector.any())
    if not has_text and not has_picture:
        raise BadRequest(
            "A precedent needs a picture, or a text whose script and signs the encoder can read.",
            reason="NOTHING_TO_COMPARE",
        )
    known = provenance or Provenance()
    meme = LabelledMeme(
        id=id_,
        label=label,
        text=text,
        categories=categories,
        source=source or who,
        source_label=str(label).lower(),
        bytes_sha256=picture.bytes_sha256 if picture else "",
        pixels_sha256=picture.pixels_sha256 if picture else "",
        has_text=has_text,
        has_picture=has_picture,
        split=known.split,
        namespace=known.namespace,
        language=known.language,
        policy=known.policy,
        added=datetime.now(UTC),
        verified=verified,
        binding=verified and binding,
        who=who,
    )
    vector = np.concatenate([texts.vectors[0], picture_vector])
    thumbnail = shrink(picture.frames[0]) if picture else None
    return writer.add(meme, vector, thumbnail, who=who, why=why), texts.cut[0]


T = TypeVar("T")

Opened = Callable[[], AbstractContextManager[Writer]]
"""Function that opens a writer of the library."""


async def changed(opened: Opened, work: Callable[[Writer], T]) -> T:
    """Changes a library or reads its history in a thread; once begun, it is completed even if the caller is cancelled.

    Raises:
        BadLibrary: The library is missing or damaged.
        BadRequest: The change is invalid; see the methods of :class:`retrieval.library.ports.Writer`.
        Unavailable: The library can't be changed now.
    """

    def done() -> T:
        with opened() as writer:
            return work(writer)

    try:
        # A thread can't be cancelled, which ensures completion.
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
    """Decodes a meme's picture in a sandbox and adds the meme, as :func:`add_precedent`.

    Raises:
        BadPicture: The picture can't be read or exceeds the limits. As :func:`changed` and
            :func:`retrieval.library.edit.add_precedent`.
    """
    # Decoded before the library is opened, which an unreadable file makes unnecessary.
    picture = None if image is None else await pictures.read(image)
    return await changed(
        opened, lambda writer: add_precedent(writer, encoder, id_=id_, label=label, text=text, picture=picture, **known)
    )
