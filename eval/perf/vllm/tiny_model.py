"""A Qwen2.5-VL of two layers with random weights: accepts pictures, writes nonsense, runs fast on a CPU.

It is generated from scratch, the same every time: configuration, tokenizer and weights are written here under the names
that the published checkpoints use, so that it does not depend on the version of the library that loads it.

Run: ``python -m eval.perf.vllm.tiny_model FOLDER``.
"""

import json
import math
import string
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

NAME = "tiny-qwen2.5-vl"
VOCABULARY = 1_500
_FILES: dict[str, Any] = json.loads((files(__package__) / "tiny_model.json").read_text("utf-8"))
"""The model's files, with names of tokens in place of their ids.

The head of 64 is the smallest that vLLM's attention on the CPU supports. The ids are in both parts of the
configuration: vLLM reads them from that of the text, transformers from the top level. The rotary embedding is under two
names, because each version of transformers reads only one; its sections add up to half a head.
"""
SPECIAL: tuple[str, ...] = tuple(_FILES["special_tokens"])
"""Qwen's, in Qwen's order. They stand behind the learnt vocabulary."""
WORDS = """
a an and any answer are as at benign by case caption clause defender accuser describe description evidence for from
harmful harmless has have in is it judge judgment justification label level meme moderate no not of on one or
picture precedent precedents proposer question rationale rule say says see side similarity something statement
strength strong summary that the there this to trial true false unsure verdict was weak what which who why with yes
you your Harmful Harmless Yes No HARMFUL NOT_HARMFUL UNDECIDED user assistant system Picture Question Answer
"""
"""What a trial is made of, so that its words are few tokens."""

_BEGINS_REPLY = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_BEGINS_THOUGHT = (
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
    "{% endif %}"
)
THOUGHT_MARKS = ("<think>", "</think>")


def make_tiny_model(folder: Path, *, thinks: bool = False) -> Path:
    """Writes the model into a new folder; returns the folder.

    Args:
        thinks: True for a model whose template begins each reply with a thought unless told not to, as Qwen3's does.
            Its thoughts and its free-text replies end only at their limits, never by themselves.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    template = "".join(_FILES["template"])
    if thinks:
        tokenizer.add_special_tokens(list(THOUGHT_MARKS))
        template = template.replace(_BEGINS_REPLY, _BEGINS_THOUGHT)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    contents = {name: _with_ids(content, ids) for name, content in _FILES.items() if name.endswith(".json")}
    config = contents["config.json"]
    config["text_config"]["vocab_size"] = tokenizer.get_vocab_size()
    contents["tokenizer_config.json"]["chat_template"] = template
    weights = dict(_weights(config["text_config"]["vocab_size"]))
    if thinks:
        # No token that ends a thought is ever the most likely one.
        weights["lm_head.weight"][[ids["<|im_end|>"], *(ids[mark] for mark in THOUGHT_MARKS)]] = 0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    return folder


def _with_ids(content: dict[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    """Returns the content of a file with the ids of its tokens."""
    return {
        name: _with_ids(value, ids) if isinstance(value, dict) else ids[value] if name.endswith("_token_id") else value
        for name, value in content.items()
    }


def _tokenizer() -> Tokenizer:
    """Builds a byte-level BPE that splits as Qwen's does.

    Every letter and every word of our prompts is one token, alone and after a space; digits are separate, as in Qwen's.
    """
    tokenizer = Tokenizer(models.BPE())
    split = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        # Sorted, because its order is undefined.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # Letters are the most frequent, so that their merges with the space come first and none is crowded out.
    letters = "".join(f" {letter}" for letter in string.ascii_letters)
    tokenizer.train_from_iterator([letters] * 50 + [f"{word} {word}" for word in WORDS.split()] * 5, trainer)
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def _weights(vocabulary: int) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields names and arrays. The spread carries signal from pixels to words: other pictures give other answers."""
    chance = np.random.default_rng(0)
    for name, shape in _FILES["weights"].items():
        # The one size that depends on the model is written 0.
        sizes = [size or vocabulary for size in shape]
        if len(sizes) == 1:
            yield name, np.full(sizes, name.endswith(".weight"), np.float32)
        else:
            spread = chance.standard_normal(sizes)
            scale = 1 if name == "model.embed_tokens.weight" else math.sqrt(math.prod(sizes[1:]))
            yield name, (spread / scale).astype(np.float32)


if __name__ == "__main__":
    print(make_tiny_model(Path(sys.argv[1])))
