"""Pictures by any CLIP model of open_clip; texts by the built-in sentence encoder, or by the same model.

The score never compares text with pictures, so the text half may come from another model. CLIP models truncate texts at
64 or 77 tokens, which 2.5 to 4.2 % of HarMeme's texts exceed, and their text half is trained to match pictures and not
texts: if a model reads fewer than 256 tokens, texts go to the sentence encoder unless CLIP's own half is requested.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from court.digests import digest
from court.errors import BadRequest, NotLoaded
from retrieval import text
from retrieval.embed.clip_names import ClipSource
from retrieval.embed.clip_weights import LoadedClip, load_clip, not_fetched, weights_digest
from retrieval.embed.encoder import (
    EncoderIdentity,
    Halves,
    PartialMinSimilarity,
    Preprocessing,
    TextEmbeddings,
    mean_direction,
    unit_rows,
)

if TYPE_CHECKING:
    import torch

TextChoice = Literal["auto", "builtin", "clip"]
"""Who embeds texts: the sentence encoder, the CLIP model, or the former where the latter reads too little."""

VERSION = "open_clip-1"
"""Part of the encoder's identity: change it with every change of what is done before and after the model."""
_FEWEST_TOKENS = 256
"""A CLIP model that reads fewer leaves texts to the sentence encoder, which reads as many."""
BATCH = 32
_LONGEST = 32
"""Of a picture that is more times as long as it is wide, the middle is taken: scaling the shorter side of a strip of
1280 x 1 pixels to 224 would make 287,000 columns, of which all but 224 are then cut away."""


@dataclass(frozen=True, slots=True)
class TextHalf:
    """Encoder of texts beside a CLIP model."""

    name: str
    digest: str
    dim: int
    tokens: int
    floor: float | None
    embed: Callable[[Sequence[str]], TextEmbeddings]


class OpenClipEncoder(Halves):
    """A CLIP model for pictures, on a GPU if available; in float32, so that the device hardly affects results."""

    def __init__(
        self, clip: LoadedClip, *, texts: TextChoice = "auto", device: str = "auto", threads: int | None = None
    ) -> None:
        """Moves the model to its device and computes the digest of its weights.

        Raises:
            BadRequest: A weight is not finite, or CLIP's own text half is used and its tokenizer is of no known kind.
            NotLoaded: The sentence encoder is used for texts and is not installed.
            Unavailable: CLIP's own text half is used and its tokenizer can't be fetched.
        """
        import torch

        self._lock = threading.Lock()
        self._device = torch.device(_device() if device == "auto" else device)
        own = texts == "clip" or (texts == "auto" and clip.context >= _FEWEST_TOKENS)
        self._texts = self._own_texts(clip) if own else _builtin_texts(threads)
        torch.set_num_threads(threads or _cores())
        # Everything that pictures need; if the model embeds no texts, the rest can leave memory.
        self._visual: torch.nn.Module = clip.model.visual  # type: ignore[assignment]
        self._visual.to(self._device)
        self._scale, self._normalise = _transform(clip.preprocessing)
        self._workers = ThreadPoolExecutor(_cores(), thread_name_prefix="clip-pictures")
        height, width = clip.preprocessing.size
        # The length of the vectors is measured by a pass, as the config may be wrong.
        blank = self.forward(torch.zeros(1, 3, height, width))
        self.identity = EncoderIdentity(
            name=clip.name,
            digest=digest(
                {
                    "version": VERSION,
                    "weights": weights_digest({"visual": self._visual}),
                    # Activation and number of heads can't be seen from the shapes of tensors.
                    "model": {key: clip.config.get(key) for key in ("vision_cfg", "quick_gelu")},
                    "preprocessing": clip.preprocessing.model_dump(mode="json"),
                    "text": self._texts.digest,
                }
            ),
            text_dim=self._texts.dim,
            picture_dim=blank.shape[1],
            text_tokens=self._texts.tokens,
            texts_by=self._texts.name,
            preprocessing=clip.preprocessing,
        )

    @classmethod
    def load(
        cls, source: ClipSource, *, texts: TextChoice = "auto", device: str = "auto", threads: int | None = None
    ) -> Self:
        """Loads an encoder, which takes seconds, or minutes if weights are fetched first.

        Raises:
            BadRequest, NotLoaded, Unavailable: As :func:`retrieval.embed.clip_weights.load_clip`, and as the
            constructor.
        """
        return cls(load_clip(source), texts=texts, device=device, threads=threads)

    @property
    def floors(self) -> PartialMinSimilarity:
        """Minimum similarities: those of the sentence encoder for texts; CLIP's own are measured on the library."""
        return PartialMinSimilarity(text=self._texts.floor)

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        """One vector per text: float32 of shape (n, text_dim), zeros for empty texts."""
        return self._texts.embed(texts)

    def embed_pictures(self, pictures: Sequence[Sequence[bytes]]) -> NDArray[np.float32]:
        """One vector per picture, the mean direction of its frames: float32 of shape (n, picture_dim)."""
        for number, frames in enumerate(pictures):
            if not frames:
                raise ValueError(f"picture {number} has no frame")
        # Each frame once: batching changes the last bits, and equal pictures must get equal vectors.
        unique = list(dict.fromkeys(frame for frames in pictures for frame in frames))
        vectors = self._embed(unique)
        index = {frame: number for number, frame in enumerate(unique)}
        rows = np.zeros((len(pictures), self.identity.picture_dim), dtype=np.float32)
        for number, frames in enumerate(pictures):
            rows[number] = mean_direction(vectors[[index[frame] for frame in frames]])
        return rows

    def prepare(self, pngs: Sequence[bytes]) -> torch.Tensor:
        """Pictures as input for the model, float32 of shape (n, 3, height, width)."""
        return self._normalised([self._scaled(png) for png in pngs])

    def _scaled(self, png: bytes) -> NDArray[np.uint8]:
        """Scales a picture to the model's size, shape (height, width, 3)."""
        # Uses only Pillow: PyTorch would start further threads in each worker thread, for one picture at a time.
        return np.array(self._scale(_opened(png)), dtype=np.uint8)

    def _normalised(self, scaled: Sequence[NDArray[np.uint8]]) -> torch.Tensor:
        import torch

        # Transferred to the device as bytes, a quarter of the size of float32.
        batch = torch.from_numpy(np.stack(scaled)).to(self._device)
        return self._normalise(batch.permute(0, 3, 1, 2).contiguous().float().div_(255))

    def forward(self, batch: torch.Tensor) -> NDArray[np.float32]:
        """Runs the model on pictures, shape (n, 3, height, width): float32 of shape (n, d), not normalised."""
        return self._pass(self._visual, batch)

    def _embed(self, pngs: Sequence[bytes]) -> NDArray[np.float32]:
        """Unit vectors, shape (n, picture_dim); decodes and scales the next batch while the model runs this one."""
        batches = [pngs[start : start + BATCH] for start in range(0, len(pngs), BATCH)]
        rows = np.zeros((len(pngs), self.identity.picture_dim), dtype=np.float32)
        ahead = self._begin(batches[0]) if batches else []
        for number in range(len(batches)):
            batch = self._normalised([scaled.result() for scaled in ahead])
            ahead = self._begin(batches[number + 1]) if number + 1 < len(batches) else []
            found = self.forward(batch)
            rows[number * BATCH : number * BATCH + len(found)] = unit_rows(found)
        return rows

    def _begin(self, pngs: Sequence[bytes]) -> list[Future[NDArray[np.uint8]]]:
        return [self._workers.submit(self._scaled, png) for png in pngs]

    def _own_texts(self, clip: LoadedClip) -> TextHalf:
        model: Any = clip.model.to(self._device)
        tokenizer, length_of = _tokenizer(clip)
        dim = self._pass(model.encode_text, tokenizer(["word"])).shape[1]

        def embed(texts: Sequence[str]) -> TextEmbeddings:
            words = [text.normalise_text(one) for one in texts]
            # Sorted: the order of a set of strings differs by process, and batching changes the last bits.
            unique = sorted({one for one in words if one})
            # Starts with an empty array, so that concatenating works if no text is left.
            rows, long = [np.zeros((0, dim), dtype=np.float32)], []
            for start in range(0, len(unique), BATCH):
                some = unique[start : start + BATCH]
                with self._lock:  # the tokenizer is not safe to share
                    tokens = tokenizer(some)
                    long += [length_of(one) > clip.context for one in some]
                rows.append(unit_rows(self._pass(model.encode_text, tokens)))
            found = np.concatenate(rows)
            index = {one: number for number, one in enumerate(unique)}
            vectors = np.zeros((len(words), dim), dtype=np.float32)
            for number, one in enumerate(words):
                if one:
                    vectors[number] = found[index[one]]
            return TextEmbeddings(vectors, tuple(bool(one) and long[index[one]] for one in words))

        return TextHalf(
            name="",
            digest=digest(
                {
                    "weights": weights_digest({"model": model}),
                    "model": {key: clip.config.get(key) for key in ("text_cfg", "multimodal_cfg", "quick_gelu")},
                    "text": text.VERSION,
                }
            ),
            dim=dim,
            tokens=clip.context,
            floor=None,
            embed=embed,
        )

    def _pass(
        self, half: Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]], batch: torch.Tensor
    ) -> NDArray[np.float32]:
        """Runs a half of the model on a batch: float32 of shape (n, d)."""
        import torch

        with self._lock, torch.inference_mode(), _exactly(self._device):
            found = half(batch.to(self._device))
            # Captioning models return the tokens beside the vector.
            vectors = found[0] if isinstance(found, tuple) else found
            return np.asarray(vectors.float().cpu().numpy(), dtype=np.float32)


def _builtin_texts(threads: int | None) -> TextHalf:
    from retrieval.embed.builtin import BuiltinEncoder

    encoder = BuiltinEncoder(threads=threads)
    identity = encoder.identity
    return TextHalf(
        name=identity.name,
        digest=encoder.text_digest,
        dim=identity.text_dim,
        tokens=identity.text_tokens,
        floor=encoder.floors.text,
        embed=encoder.embed_texts,
    )


def _tokenizer(clip: LoadedClip) -> tuple[Any, Callable[[str], int]]:
    """Returns a function that tokenises and truncates texts, and one that counts all tokens, end tokens included."""
    open_clip = import_module("open_clip")
    kinds = import_module("open_clip.tokenizer")
    try:
        tokenizer = open_clip.get_tokenizer(clip.known_as)
    except Exception as error:  # of the hub, transformers and tokenizers
        raise not_fetched(clip.name, error) from error
    if isinstance(tokenizer, kinds.SimpleTokenizer):
        # Some models were trained on a random part of a long text. Here the beginning is used.
        tokenizer.reduction_fn = None
        return tokenizer, lambda one: len(tokenizer.encode(one)) + 2
    if isinstance(tokenizer, kinds.HFTokenizer):
        inner, marks = tokenizer.tokenizer, 3 if tokenizer.tokenizer_mode == "clips" else 0

        def length(one: str) -> int:
            ids = inner(tokenizer.clean_fn(one), truncation=False, verbose=False, add_special_tokens=not marks)
            return len(ids["input_ids"]) + marks

        return tokenizer, length
    raise BadRequest(
        f"The tokenizer of {clip.name} is of a kind that does not tell what it cuts. Leave texts to the sentence "
        "encoder (--text-encoder builtin).",
        reason="TOKENIZER_UNKNOWN",
        field="encoder",
    )


def _transform(
    preprocessing: Preprocessing,
) -> tuple[Callable[[Image.Image], Image.Image], Callable[[torch.Tensor], torch.Tensor]]:
    """Returns open_clip's preprocessing in two steps: on a Pillow picture, and on a tensor."""
    transform = import_module("open_clip.transform")
    config = transform.PreprocessCfg(**preprocessing.model_dump())
    *pillows, to_tensor, normalise = transform.image_transform_v2(config, is_train=False).transforms
    # _normalised applies these two steps to a whole batch, so they must be exactly these.
    if not isinstance(to_tensor, transform.MaybeToTensor) or not isinstance(normalise, transform.Normalize):
        raise NotLoaded(
            "This version of open_clip prepares pictures in a way that is not known here. Install 3.3.",
            reason="CLIP_UNKNOWN_VERSION",
        )
    return transform.Compose(pillows), normalise


def _opened(png: bytes) -> Image.Image:
    # Safe to open: these bytes are our own encoding of what the sandboxed reader decoded.
    with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
        whole = picture.convert("RGB")
    width, height = whole.size
    across, down = max(0, width - _LONGEST * height) // 2, max(0, height - _LONGEST * width) // 2
    return whole.crop((across, down, width - across, height - down)) if across or down else whole


@contextmanager
def _exactly(device: torch.device) -> Iterator[None]:
    """On a GPU, runs convolutions in full float32 and with a deterministic algorithm."""
    import torch

    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
