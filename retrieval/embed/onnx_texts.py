"""A user's sentence encoder as ONNX in a folder (``onnx:FOLDER``).

The folder is as written by sentence-transformers or Optimum: ``model.onnx`` (there or in ``onnx/``),
``tokenizer.json``, and, if the model has no output ``sentence_embedding``, ``1_Pooling/config.json``, which chooses
mean or first-token pooling. Pictures are described as by the built-in encoder.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from court.backends.onnx import import_onnxruntime
from court.digests import digest, sha256_of
from court.errors import BadRequest, NotLoaded
from retrieval.embed import descriptor
from retrieval.embed.descriptor import DescribedPictures
from retrieval.embed.encoder import EncoderIdentity, PartialMinSimilarity, TextEmbeddings, unit_rows
from retrieval.text import VERSION as TEXT_VERSION
from retrieval.text import normalise_text

Weights: TypeAlias = Mapping[str, NDArray[np.float32]]
PREFIX = "onnx:"
NAME = "onnx (local)"
"""Name of every such encoder: a path has no place in a manifest, and the digest tells them apart."""
_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
_SENTENCE, _TOKENS = "sentence_embedding", ("token_embeddings", "last_hidden_state")
_USUAL_TOKENS, _MOST_TOKENS = 512, 8192
_LEAST_KNOWN = 0.5
"""Share of a text's tokens that the vocabulary must know: of unknown ones all are alike."""


class PassPerText(DescribedPictures, ABC):
    """Base of sentence encoders in onnxruntime, with the descriptor for pictures.

    Each text is a separate pass on one thread, without padding, so that its vector depends on nothing else: equal
    texts get bit-identical vectors. Passes of several texts and callers run in parallel on a fixed number of threads;
    batching would save a quarter of the time for texts of 16 tokens, a tenth for 32 and nothing for longer ones.
    """

    identity: EncoderIdentity

    def __init__(self, threads: int | None) -> None:
        self._passes = ThreadPoolExecutor(threads or min(4, os.cpu_count() or 1), thread_name_prefix="encoder")

    def embed_texts(self, texts: Sequence[str]) -> TextEmbeddings:
        """One vector per text: float32 of shape (n, text_dim), zeros for empty texts and those that it can't read."""
        words = [normalise_text(one) for one in texts]
        unique = sorted({one for one in words if one})
        found = dict(zip(unique, self._passes.map(self._embed, unique), strict=True))
        vectors = np.zeros((len(words), self.identity.text_dim), dtype=np.float32)
        for number, one in enumerate(words):
            if one:
                vectors[number] = found[one][0]
        return TextEmbeddings(unit_rows(vectors), tuple(bool(one) and found[one][1] for one in words))

    @abstractmethod
    def _embed(self, text: str) -> tuple[NDArray[np.float32], bool]:
        """Vector of a text, shape (text_dim,), not normalised, and whether the text was truncated."""


def load_session(
    name: str, model: str | bytes, tokenizer_file: Path, read_weights: Callable[[], Weights] = dict
) -> tuple[Any, Any]:
    """Loads a tokenizer, which neither truncates nor pads, and a model, from its file or with weights apart from it.

    Raises:
        NotLoaded: A package is not installed; ``name`` says what needs it.
        Exception: The files are damaged or of another kind; the packages raise nothing narrower.
    """
    try:
        # Imported by name: they have few type hints, and are only needed where such an encoder is used.
        onnxruntime, tokenizers = import_onnxruntime(), import_module("tokenizers")
        weights = read_weights()
    except ImportError as error:
        raise NotLoaded(
            f"{name} needs {error.name}. Install it with `pip install 'memecourt[server]'`.",
            reason="ENCODER_NOT_INSTALLED",
        ) from error
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    # The file may truncate and pad as in training.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # a pass runs in the caller's thread
    options.log_severity_level = 3  # errors; warnings concern the author of the graph
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in weights.values()]
        options.add_external_initializers(list(weights), values)
    return tokenizer, onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class OnnxTextEncoder(PassPerText):
    """A user's sentence encoder."""

    def __init__(self, folder: Path, *, threads: int | None = None) -> None:
        """Loads the model and embeds a word with it.

        Raises:
            NotLoaded: A package that runs it is not installed.
            BadRequest: The folder lacks a file, or the model can't be run as a sentence encoder.
        """
        super().__init__(threads)
        self._tokenizer, self._session, model = _load(folder)
        # BERT vocabularies write the unknown token in brackets, SentencePiece as a tag.
        self._unknown = {
            int(token) for name in ("[UNK]", "<unk>") if (token := self._tokenizer.token_to_id(name)) is not None
        }
        inputs = {one.name for one in self._session.get_inputs()}
        if "input_ids" not in inputs or not inputs <= _INPUTS:
            raise _unusable(f"it takes {', '.join(sorted(inputs))}, not the tokens of a text alone")
        self._inputs = inputs
        self._output, self._pooling, pooled_by = _pooling(folder, [one.name for one in self._session.get_outputs()])
        self._most_tokens = _most_tokens(folder)
        try:
            # Measures the width, and makes a broken model fail here rather than at the first meme.
            dim = self._embed("word")[0].size
        except Exception as error:  # onnxruntime raises nothing narrower
            raise _unusable("it fails on a word") from error
        self.identity = EncoderIdentity(
            name=NAME,
            digest=digest(
                {
                    # Weights may be in separate files beside the graph (model.onnx_data).
                    "files": {
                        path.relative_to(folder).as_posix(): sha256_of(path)
                        for path in (*model.parent.glob(f"{model.name}*"), folder / "tokenizer.json", *pooled_by)
                    },
                    "text": TEXT_VERSION,
                    "tokens": self._most_tokens,
                    "picture": descriptor.VERSION,
                }
            ),
            text_dim=dim,
            picture_dim=descriptor.DIM,
            text_tokens=self._most_tokens,
        )

    @property
    def floors(self) -> PartialMinSimilarity:
        """Minimum similarity of pictures, as of the built-in encoder; that of texts is measured on each library."""
        return PartialMinSimilarity(picture=descriptor.MIN_SIMILARITY)

    def _embed(self, text: str) -> tuple[NDArray[np.float32], bool]:
        ids, marks = (getattr(self._tokenizer.encode(text), name) for name in ("ids", "special_tokens_mask"))
        # Truncation keeps the end token.
        cut = len(ids) > self._most_tokens
        read = [*ids[: self._most_tokens - 1], ids[-1]] if cut else ids
        tokens = np.array([read], dtype=np.int64)
        inputs = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
        (found,) = self._session.run([self._output], {name: inputs[name] for name in self._inputs})
        if self._pooling == "given":
            vector = found[0]
        else:
            vector = found[0].mean(axis=0) if self._pooling == "mean" else found[0, 0]
        # Special tokens are always known, so with them a short text would count as understood.
        words = [token for token, mark in zip(ids, marks, strict=True) if not mark]
        known = sum(token not in self._unknown for token in words)
        # Without words, as in a text of invisible characters, the vector would be that of the special tokens alone.
        understood = bool(words) and known >= _LEAST_KNOWN * len(words)
        return np.asarray(vector if understood else np.zeros_like(vector), dtype=np.float32), cut


def _pooling(folder: Path, outputs: Sequence[str]) -> tuple[str, str, list[Path]]:
    """The output to use, its pooling (``given``, ``mean``, ``first``), and the files that determine it."""
    if _SENTENCE in outputs:
        return _SENTENCE, "given", []
    output = next((name for name in _TOKENS if name in outputs), None)
    if output is None:
        raise _unusable(f"it gives {', '.join(outputs)}, and neither {_SENTENCE} nor {' nor '.join(_TOKENS)}")
    path = folder / "1_Pooling" / "config.json"
    try:
        pooling = json.loads(path.read_text("utf-8"))
        ways = {name for name, used in pooling.items() if name.startswith("pooling_mode_") and used}
    # AttributeError means JSON that is not an object.
    except (OSError, ValueError, AttributeError):
        raise _unusable(
            f"it gives a vector for each token, and 1_Pooling/config.json, which says how a text's comes of them, is "
            f"missing or damaged. Write one with pooling_mode_mean_tokens or pooling_mode_cls_token, or export the "
            f"model with {_SENTENCE}"
        ) from None
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
    if len(ways) != 1 or not ways <= known.keys():
        raise _unusable(f"it pools by {', '.join(sorted(ways)) or 'nothing'}; known are {', '.join(known)}")
    return output, known[ways.pop()], [path]


def _most_tokens(folder: Path) -> int:
    """Maximum number of tokens read of a text, as specified in the folder; 512 by default."""
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        try:
            most = json.loads((folder / name).read_text("utf-8"))[key]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        # A tokenizer without a bound has an astronomical one in its file.
        if isinstance(most, int) and 2 <= most <= _MOST_TOKENS:
            return most
    return _USUAL_TOKENS


def _load(folder: Path) -> tuple[Any, Any, Path]:
    """Loads the tokenizer and the model; returns them and the model's file."""
    model = next((path for path in (folder / "model.onnx", folder / "onnx" / "model.onnx") if path.is_file()), None)
    if model is None or not (folder / "tokenizer.json").is_file():
        raise BadRequest(
            f"An ONNX encoder is a folder with model.onnx (or onnx/model.onnx) and tokenizer.json; {folder} "
            f"{'lacks one' if folder.is_dir() else 'is no folder'}.",
            reason="ENCODER_DAMAGED",
            field="encoder",
        )
    try:
        return *load_session("An ONNX encoder", str(model), folder / "tokenizer.json"), model
    except NotLoaded:
        raise
    except Exception as error:
        raise _unusable("its files are damaged, or of a kind that onnxruntime and tokenizers don't know") from error


def _unusable(why: str) -> BadRequest:
    return BadRequest(f"The ONNX encoder can't be used: {why}.", reason="ENCODER_DAMAGED", field="encoder")
