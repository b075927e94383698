"""The built-in encoder, without PyTorch: MiniLM in onnxruntime for texts, a descriptor without weights for pictures."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from court.backends.onnx import import_onnxruntime
from court.digests import digest, sha256_of
from court.errors import BadRequest, NotLoaded
from court.precedents import MinSimilarity
from retrieval.embed import descriptor
from retrieval.embed.descriptor import DescribedPictures
from retrieval.embed.encoder import EncoderIdentity, TextEmbeddings, unit_rows
from retrieval.embed.weights import FILES, find_weights
from retrieval.text import VERSION as TEXT_VERSION
from retrieval.text import normalise_text

GRAPH = Path(__file__).parent / "minilm.onnx"
"""The model without its weights; scripts/encoder_graph.py writes it."""
WORDS, POSITIONS, HIDDEN, INNER, LAYERS, HEADS = 30_522, 512, 384, 1536, 6, 12
"""Rows of the two tables, width of a layer and of what is inside it, layers, and heads of each."""
_CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": POSITIONS,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": WORDS,
}
"""Values of config.json for which the graph was written."""
_LEAST_READ = 0.5
"""Share of a text's characters that the vocabulary must cover. Below it the model knows next to nothing of the text: of
Thai, Amharic or emoji every word is one and the same unknown token, so that any two such texts get one vector (cosine
0.98 to 1.00); Cyrillic, Arabic or Greek are spelled letter by letter, and unrelated sentences come out at 0.5 to 0.9,
where English ones lie at 0.1."""


class BuiltinEncoder(DescribedPictures):
    """MiniLM-L6 (384 values, 256 tokens) and the descriptor of :mod:`retrieval.embed.descriptor`.

    Needs neither network nor GPU. Each text is a separate pass on one thread, without padding, so that its vector
    depends on nothing else: equal texts get bit-identical vectors. Passes of several texts and callers run in parallel
    on a fixed number of threads; batching would save a quarter of the time for texts of 16 tokens, a tenth for 32 and
    nothing for longer ones. Pictures are described in the caller's thread.
    """

    def __init__(self, *, threads: int | None = None) -> None:
        """Loads the model.

        Raises:
            NotLoaded: The weights, or the packages that run them, are not installed.
            BadRequest: The weights are damaged or belong to another model.
        """
        folder = find_weights()
        self._tokenizer, self._session = _load(folder)
        self._unknown = int(self._tokenizer.token_to_id("[UNK]"))
        self._passes = ThreadPoolExecutor(threads or min(4, os.cpu_count() or 1), thread_name_prefix="encoder")
        files = {name: sha256_of(folder / name) for name in FILES}
        self.identity = EncoderIdentity(
            name="builtin/all-MiniLM-L6-v2",
            digest=digest({"files": files, "text": TEXT_VERSION, "picture": descriptor.VERSION}),
            text_dim=HIDDEN,
            picture_dim=descriptor.DIM,
            text_tokens=int(json.loads((folder / "sentence_bert_config.json").read_text("utf-8"))["max_seq_length"]),
        )
        self.text_digest = digest({"files": files, "text": TEXT_VERSION})

    @property
    def floors(self) -> MinSimilarity:
        """Similarities below which a meme is no evidence about another."""
        # Text: on the HarMeme train splits 5 % of the memes have no neighbour nearer than this, and votes on those
        # gained 4 points on the prior (Harm-C, 180 memes) or nothing (Harm-P). Picture: see the descriptor.
        return MinSimilarity(text=0.385, picture=descriptor.MIN_SIMILARITY)

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        """One vector per text: float32 of shape (n, 384), zeros for empty texts and those that the model can't read."""
        words = [normalise_text(one) for one in texts]
        unique = sorted({one for one in words if one})
        found = dict(zip(unique, self._passes.map(self._embed, unique), strict=True))
        vectors = np.zeros((len(words), HIDDEN), dtype=np.float32)
        for number, one in enumerate(words):
            if one:
                vectors[number] = found[one][0]
        return TextEmbeddings(unit_rows(vectors), tuple(bool(one) and found[one][1] for one in words))

    def _embed(self, text: str) -> tuple[NDArray[np.float32], bool]:
        """Mean of the model's token vectors, shape (384,), and whether the text was truncated."""
        encoded = self._tokenizer.encode(text)
        ids, most = encoded.ids, self.identity.text_tokens
        if _share_read(text, ids, encoded.offsets, self._unknown) < _LEAST_READ:
            return np.zeros(HIDDEN, dtype=np.float32), len(ids) > most
        # Truncated before the end token, which is kept.
        read = ids if len(ids) <= most else [*ids[: most - 1], ids[-1]]
        (mean,) = self._session.run(None, {"ids": np.array([read], dtype=np.int32)})
        return mean[0], len(ids) > most


def _share_read(text: str, ids: Sequence[int], places: Sequence[tuple[int, int]], unknown: int) -> float:
    """Share of a text's characters, in [0, 1], that its tokens represent; 0 if it has no token."""
    # A text of invisible characters has no token: all such texts would share the vector of an empty one. Characters in
    # unknown tokens don't count, nor do letters outside ASCII that are single tokens: such a script can only be spelled
    # out.
    read = total = 0
    for token, (begin, end) in zip(ids, places, strict=True):
        piece = text[begin:end]
        total += len(piece)
        if token != unknown and not (len(piece) == 1 and not piece.isascii() and piece.isalnum()):
            read += len(piece)
    return read / total if total else 0.0


def _load(folder: Path) -> tuple[Any, Any]:
    try:
        # Imported by name: they have few type hints, and are only needed where this encoder is used.
        onnxruntime, tokenizers = import_onnxruntime(), import_module("tokenizers")
        import_module("safetensors")
    except ImportError as error:
        raise NotLoaded(
            f"The built-in encoder needs {error.name}. Install it with `pip install 'memecourt[server]'`.",
            reason="ENCODER_NOT_INSTALLED",
        ) from error
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        pooling = json.loads((folder / "1_Pooling" / "config.json").read_text("utf-8"))
        # A config may have further entries, but these must match.
        if not config.items() >= _CONFIG.items() or not pooling["pooling_mode_mean_tokens"]:
            raise ValueError("another architecture")
        weights = _read_weights(folder / "model.safetensors")
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # a pass runs in the caller's thread
        options.log_severity_level = 3  # errors; warnings concern the author of the graph
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in weights.values()]
        options.add_external_initializers(list(weights), values)
        session = onnxruntime.InferenceSession(GRAPH.read_bytes(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # tokenizers raises nothing narrower, safetensors and onnxruntime have their own
        raise BadRequest(
            "The built-in encoder's files are damaged, or not those of all-MiniLM-L6-v2 or of a model of its shape.",
            reason="ENCODER_DAMAGED",
            field="encoder",
        ) from error
    # By default, the tokenizer's file truncates and pads to 128 tokens.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, session


def _read_weights(path: Path) -> Mapping[str, NDArray[np.float32]]:
    """Reads the arrays with the names and layout of the graph: matrices as right-hand operands."""
    from safetensors import safe_open

    weights: dict[str, NDArray[np.float32]] = {}
    with safe_open(path, "np") as file:

        def take(name: str) -> NDArray[np.float32]:
            array: NDArray[np.float32] = file.get_tensor(name)
            return array if array.ndim == 1 or name.startswith("embeddings.") else array.T

        for name in file.keys():  # noqa: SIM118 - it is no mapping
            # Mean pooling needs none of these except the segment embedding (token_type), which is added below.
            if name.startswith(("pooler.", "embeddings.token_type", "embeddings.position_ids")):
                continue
            if ".attention.self." not in name:
                weights[name] = take(name)
            elif ".query." in name:
                # The graph computes all three in one product.
                parts = [take(name.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
                weights[name.replace(".query.", ".")] = np.concatenate(parts, axis=-1)
        # A text is one segment, so the segment embedding is always the first row.
        segment = file.get_tensor("embeddings.token_type_embeddings.weight")[0]
        weights["embeddings.position_embeddings.weight"] += segment
    # Row-major, which onnxruntime takes without a copy.
    return {name: np.ascontiguousarray(array) for name, array in weights.items()}
