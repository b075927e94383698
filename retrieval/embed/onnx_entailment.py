"""A user's natural-language inference model as ONNX in a folder (``onnx:FOLDER``).

It is a sequence classifier as exported by Optimum: ``model.onnx``, ``tokenizer.json`` and ``config.json``, whose
``id2label`` maps outputs to entailment, neutral and contradiction, as their order differs between models.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from typing_extensions import override

from court.digests import digest
from court.errors import BadRequest, Unavailable
from court.ports import Entailed, Entailment
from retrieval.embed.onnx_folder import PREFIX, ModelKind, open_folder

_KIND = ModelKind(
    "ONNX model of natural-language inference",
    "entailment",
    damaged="ENTAILMENT_DAMAGED",
    not_installed="ENTAILMENT_NOT_INSTALLED",
)
_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
_RELATIONS = ("entailment", "neutral", "contradiction")
_USUAL_TOKENS, _MOST_TOKENS = 512, 8192


class OnnxEntailment(Entailment):
    """A sequence classifier in onnxruntime; each pair is a separate pass on one thread."""

    def __init__(self, folder: Path) -> None:
        """Loads the model and runs it on a pair.

        Raises:
            NotLoaded: A package that runs it is not installed.
            BadRequest: The folder lacks a file, or the model does not classify these three relations.
        """
        loaded = open_folder(folder, _KIND)
        self._tokenizer, self._session = loaded.tokenizer, loaded.session
        inputs = {one.name for one in self._session.get_inputs()}
        if "input_ids" not in inputs or not inputs <= _INPUTS:
            raise _KIND.unusable(f"it takes {', '.join(sorted(inputs))}, not the tokens of a pair of texts alone")
        self._inputs = inputs
        config = folder / "config.json"
        self._places, self._most_tokens = _labels(config)
        outputs = [one.name for one in self._session.get_outputs()]
        if "logits" not in outputs:
            raise _KIND.unusable(f"it gives {', '.join(outputs)}, and no logits")
        try:
            # Makes a broken model fail here rather than at the first claim.
            self._infer("word", "word")
        except BadRequest:
            raise
        except Exception as error:  # onnxruntime raises nothing narrower
            raise _KIND.unusable("it fails on a pair of words") from error
        made_of = digest({"files": loaded.digests(config), "tokens": self._most_tokens})
        self._identity = f"onnx (local) {made_of}"
        self._passes = ThreadPoolExecutor(1, thread_name_prefix="entailment")

    @property
    @override
    def identity(self) -> str:
        return self._identity

    @override
    async def infer(self, premise: str, hypothesis: str) -> Entailed:
        return await asyncio.get_running_loop().run_in_executor(self._passes, self._infer, premise, hypothesis)

    def close(self) -> None:
        """Waits for a running pass to finish."""
        self._passes.shutdown()

    def _infer(self, premise: str, hypothesis: str) -> Entailed:
        pair = self._tokenizer.encode(premise, hypothesis)
        if len(pair.ids) > self._most_tokens:
            # The claim is short and kept whole; a long premise is truncated.
            spare = len(pair.ids) - self._most_tokens
            premise = _without_last_tokens(self._tokenizer, premise, spare)
            pair = self._tokenizer.encode(premise, hypothesis)
        ids = pair.ids[: self._most_tokens]
        inputs = {
            "input_ids": np.array([ids], dtype=np.int64),
            "attention_mask": np.ones((1, len(ids)), dtype=np.int64),
            "token_type_ids": np.array([pair.type_ids[: len(ids)]], dtype=np.int64),
        }
        try:
            (found,) = self._session.run(["logits"], {name: inputs[name] for name in self._inputs})
        except Exception:  # onnxruntime raises nothing narrower
            # Raised as Unavailable, so that a document that can't be weighed doesn't fail the trial.
            raise Unavailable("The model fails on a pair of texts.", reason="ENTAILMENT_FAILED") from None
        logits = np.asarray(found, dtype=np.float64).reshape(-1)
        if logits.size != len(_RELATIONS):
            raise _KIND.unusable(f"it gives {logits.size} figures for a pair, and not one for each of three relations")
        if not np.isfinite(logits).all():
            # NaN or infinity could not be recorded, and the trial would fail.
            raise Unavailable("The model gives no figures for a pair of texts.", reason="ENTAILMENT_FAILED")
        masses = np.exp(logits - logits.max())
        masses /= masses.sum()
        return Entailed(*(float(masses[self._places[name]]) for name in _RELATIONS))


def open_entailment(name: str) -> OnnxEntailment:
    """Opens the model of a setting, ``onnx:FOLDER``. Raises as :class:`OnnxEntailment`, BadRequest for other names."""
    if not name.startswith(PREFIX):
        raise BadRequest(
            f"There is no model of natural-language inference {name!r}: name a folder as onnx:FOLDER.",
            reason="ENTAILMENT_UNKNOWN",
            field=_KIND.field,
        )
    return OnnxEntailment(Path(name.removeprefix(PREFIX)).expanduser())


def _labels(config: Path) -> tuple[dict[str, int], int]:
    """Index of each relation in the output, and maximum number of tokens. Raises BadRequest."""
    try:
        content = json.loads(config.read_text("utf-8"))
        named = {str(name).lower(): int(place) for place, name in content["id2label"].items()}
    # AttributeError and TypeError mean JSON of another shape.
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise _KIND.unusable(
            "its config.json, whose id2label says which output means what, is missing or damaged"
        ) from None
    places = {
        relation: place for relation in _RELATIONS for name, place in named.items() if name.startswith(relation[:7])
    }
    if len(named) != len(_RELATIONS) or sorted(places.values()) != [0, 1, 2]:
        raise _KIND.unusable(
            f"its labels are {', '.join(sorted(named))}, and not entailment, neutral and contradiction"
        )
    most = content.get("max_position_embeddings")
    # Some models reserve two positions.
    known = isinstance(most, int) and not isinstance(most, bool) and 8 <= most <= _MOST_TOKENS
    return places, (most - 2) if known else _USUAL_TOKENS - 2


def _without_last_tokens(tokenizer: object, text: str, number: int) -> str:
    """Removes the last ``number`` tokens of a text; empty if it has no more than that."""
    offsets = tokenizer.encode(text, add_special_tokens=False).offsets  # type: ignore[attr-defined]
    left = offsets[: max(len(offsets) - number, 0)]
    return text[: left[-1][1]] if left else ""
