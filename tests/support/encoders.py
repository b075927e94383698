"""A cheap deterministic encoder without a model: similar words and colours get similar vectors."""

import hashlib
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from court.errors import BadPicture
from court.meme import Frame, Picture, PictureFormat
from court.precedents import MinSimilarity
from retrieval.embed.encoder import EncoderIdentity, Halves, TextEmbeddings, mean_direction, unit_rows


class WordEncoder(Halves):
    """Encodes a text as the sum of one random vector per word, and a picture as a 2 x 2 thumbnail; cuts long texts."""

    def __init__(self, name: str = "words", *, text_dim: int = 16, text_tokens: int = 50) -> None:
        self.identity = EncoderIdentity(
            name=name,
            digest="sha256:" + hashlib.sha256(name.encode()).hexdigest(),
            text_dim=text_dim,
            picture_dim=12,
            text_tokens=text_tokens,
        )
        self.floors = MinSimilarity(text=0.3, picture=0.5)
        self.broken: Exception | None = None
        """Error raised by every call to ``embed_texts``, if set."""

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        if self.broken:
            raise self.broken
        rows, cut = np.zeros((len(texts), self.identity.text_dim)), []
        for row, text in zip(rows, texts, strict=True):
            words = text.casefold().split()
            cut.append(len(words) > self.identity.text_tokens)
            for word in words[: self.identity.text_tokens]:
                seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
                row += np.random.default_rng(seed).normal(size=row.size)
        return TextEmbeddings(unit_rows(rows), tuple(cut))

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> NDArray[np.float32]:
        return np.stack([mean_direction(np.stack([self._describe(png) for png in frames])) for frames in pictures])

    def _describe(self, png: bytes) -> NDArray[np.float32]:
        with Image.open(io.BytesIO(png)) as picture:
            small = np.asarray(picture.convert("RGB").resize((2, 2), Image.Resampling.BOX), dtype=np.float64)
        return unit_rows(small.reshape(1, -1) - 127.4)[0]


def png_of(*colours: tuple[int, int, int]) -> bytes:
    """Returns a PNG of vertical stripes in these colours."""
    picture = Image.new("RGB", (8 * len(colours), 8))
    for number, colour in enumerate(colours):
        picture.paste(colour, (8 * number, 0, 8 * number + 8, 8))
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def picture_of(data: bytes) -> Picture:
    """Returns a PNG as a picture reader does."""
    with Image.open(io.BytesIO(data)) as opened:
        pixels = opened.convert("RGB")
    digest = hashlib.sha256(pixels.tobytes()).hexdigest()
    frame = Frame(data, pixels.width, pixels.height)
    return Picture(
        PictureFormat.PNG, hashlib.sha256(data).hexdigest(), digest, pixels.width, pixels.height, 1, (frame,)
    )


class PlainPictureReader:
    """Reads PNG in this process and refuses everything else."""

    async def read(self, data: bytes) -> Picture:
        if not data.startswith(b"\x89PNG"):
            raise BadPicture("That is no picture.", reason="NOT_A_PICTURE")
        return picture_of(data)
