"""Precedents that repeat each other: a meme that stands in a library many times has one voice and not many."""

from __future__ import annotations

from typing import TypeAlias

from retrieval.library.manifest import LabelledMeme
from retrieval.likeness.text import normalise_text, text_key

CloneKey: TypeAlias = tuple[str, str, bool]
"""Words, pixels, and whether it was found harmful."""


def clone_key(meme: LabelledMeme) -> CloneKey | None:
    """What clones have in common: the same words on the same pixels with the same label; None for a clone of nothing.

    Words are what is embedded, so that neither spacing nor a watermark makes another meme. Where there are no pictures,
    the words are all there is to tell memes apart. One meme under both labels speaks for both, once each: that people
    disagreed about it is worth knowing.
    """
    if meme.has_picture and not meme.pixels_sha256:
        return None  # of which picture it is, nobody has noted
    words = text_key(normalise_text(meme.text))
    return (words, meme.pixels_sha256, meme.harmful) if words or meme.pixels_sha256 else None
