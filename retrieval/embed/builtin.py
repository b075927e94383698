"""The built-in encoder, without PyTorch: MiniLM in onnxruntime for texts, a descriptor without weights for pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from court.digests import digest, sha256_of
from court.errors import BadRequest, NotLoaded
from court.precedents import MinSimilarity
from retrieval.embed import descriptor
from retrieval.embed.encoder import EncoderIdentity
from retrieval.embed.onnx_texts import PassPerText, Weights, load_session
from retrieval.embed.weights import FILES, find_weights
from retrieval.text import VERSION as TEXT_VERSION

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


class BuiltinEncoder(PassPerText):
    """MiniLM-L6 (384 values, 256 tokens) and the descriptor of :mod:`retrieval.embed.descriptor`.

    Needs neither network nor GPU. Pictures are described in the caller's thread.
    """

    def __init__(self, *, threads: int | None = None) -> None:
        """Loads the model.

        Raises:
            NotLoaded: The weights, or the packages that run them, are not installed.
            BadRequest: The weights are damaged or belong to another model.
        """
        super().__init__(threads)
        folder = find_weights()
        self._tokenizer, self._session = _load(folder)
        self._unknown = int(self._tokenizer.token_to_id("[UNK]"))
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

    def _embed(self, text: str) -> tuple[NDArray[np.float32], bool]:
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
        config = json.loads((folder / "config.json").read_text("utf-8"))
        pooling = json.loads((folder / "1_Pooling" / "config.json").read_text("utf-8"))
        # A config may have further entries, but these must match.
        if not config.items() >= _CONFIG.items() or not pooling["pooling_mode_mean_tokens"]:
            raise ValueError("another architecture")
        weights = partial(_read_weights, folder / "model.safetensors")
        return load_session("The built-in encoder", GRAPH.read_bytes(), folder / "tokenizer.json", weights)
    except NotLoaded:
        raise
    except Exception as error:  # tokenizers raises nothing narrower, safetensors and onnxruntime have their own
        raise BadRequest(
            "The built-in encoder's files are damaged, or not those of all-MiniLM-L6-v2 or of a model of its shape.",
            reason="ENCODER_DAMAGED",
            field="encoder",
        ) from error


def _read_weights(path: Path) -> Weights:
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
