"""The encoder port, which turns texts and pictures into vectors, and its identity.

Text and picture vectors are never compared with each other, so an encoder may use different models for its halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from court.precedents import MinSimilarity
from court.values import Value

UNIT_TOLERANCE = 1e-3
"""Tolerance of a stored half's length around 1: float32 rounding causes about 1e-6, damage much more."""


class Preprocessing(Value):
    """Preprocessing of a picture for a model."""

    size: tuple[int, int]
    """Height and width that the model takes, in pixels."""
    mean: tuple[float, float, float]
    """Subtracted from red, green and blue, which lie in [0, 1]."""
    std: tuple[float, float, float]
    interpolation: str
    resize_mode: str
    """``shortest`` scales the shorter side and cuts the middle out, ``longest`` pads, ``squash`` distorts."""
    fill_color: int


class EncoderIdentity(Value):
    """Identity of an encoder. A library is only searched with the encoder that built it."""

    name: str = Field(min_length=1)
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """Digest of the weights and of the versions of all pre- and postprocessing."""
    text_dim: int = Field(ge=1)
    picture_dim: int = Field(ge=1)
    text_tokens: int = Field(ge=1)
    """Maximum tokens of a text that are read; longer texts are truncated, which is reported."""
    texts_by: str = ""
    """Name of the encoder that the text half comes from; empty where it is this one."""
    preprocessing: Preprocessing | None = None
    """Of pictures; None where the digest alone stands for it."""

    @property
    def dim(self) -> int:
        """Length of a stored row ``[t|g]``."""
        return self.text_dim + self.picture_dim

    def __str__(self) -> str:
        return f"{self.name}{f' + {self.texts_by}' if self.texts_by else ''} ({self.digest[:19]})"


@dataclass(frozen=True, slots=True)
class TextEmbeddings:
    """Embedded texts.

    Attributes:
        vectors: float32 of shape (n, text_dim); rows of length 1, or zeros if there is no text or the encoder
            understands too little of it.
    """

    vectors: NDArray[np.float32]
    cut: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class PartialMinSimilarity:
    """Minimum similarities known for one half, or for none; the other is measured on the library."""

    text: float | None = None
    picture: float | None = None


KnownMinSimilarity: TypeAlias = MinSimilarity | PartialMinSimilarity


class Encoder(Protocol):
    """Turns texts and pictures into vectors; safe to call from several threads."""

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the encoder."""

    @property
    def floors(self) -> KnownMinSimilarity:
        """Similarities below which a meme is no evidence about another; they depend on the encoder."""

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        """Embeds texts, in order."""

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> NDArray[np.float32]:
        """Embeds pictures, in order.

        Returns:
            float32 of shape (n, picture_dim): for each picture the direction of the mean of its frames.

        Raises:
            ValueError: A picture has no frame.
        """

    def embed_meme(self, text: str, frames: Sequence[bytes]) -> tuple[TextEmbeddings, NDArray[np.float32] | None]:
        """Embeds the text of a meme, perhaps empty, and its picture, if any."""


class Halves:
    """Base of encoders that treat the two halves of a meme separately."""

    def embed_meme(
        self: Encoder, text: str, frames: Sequence[bytes]
    ) -> tuple[TextEmbeddings, NDArray[np.float32] | None]:
        """See :meth:`Encoder.embed_meme`."""
        pictures = self.embed_pictures([frames]) if frames else None
        return self.embed_texts([text]), pictures


def unit_rows(rows: NDArray[np.floating]) -> NDArray[np.float32]:
    """Normalises rows, shape (n, d), to length 1, as contiguous float32; rows of zeros stay zero.

    Raises:
        ValueError: A value is not finite.
    """
    wide = np.asarray(rows, dtype=np.float64)
    # Checked here, as NaN compares as false in a search: such a meme would silently never be found.
    if not np.isfinite(wide).all():
        raise ValueError("an encoder gave a vector that is not finite")
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    # Shorter vectors are rounding errors without a direction.
    return np.ascontiguousarray(np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 1e-12), np.float32)


def mean_direction(frames: NDArray[np.floating]) -> NDArray[np.float32]:
    """The direction, shape (d,), of the mean of unit vectors, shape (n, d); zeros where they cancel out."""
    mean: NDArray[np.float32] = unit_rows(np.asarray(frames, dtype=np.float64).mean(axis=0, keepdims=True))[0]
    return mean
