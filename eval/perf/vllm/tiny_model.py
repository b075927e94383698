"""A Qwen2.5-VL of two layers with random weights: accepts pictures, writes nonsense, runs fast on a CPU.

It is generated from scratch, the same every time: configuration, tokenizer and weights are written here under the names
that the published checkpoints use, so that it does not depend on the version of the library that loads it.

Run: ``python -m eval.perf.vllm.tiny_model FOLDER``.
"""

from __future__ import annotations

import json
import math
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

NAME = "tiny-qwen2.5-vl"
CONTEXT = 32_768
HIDDEN, LAYERS, HEADS, KEY_HEADS, INNER = 128, 2, 2, 1, 256
HEAD = HIDDEN // HEADS  # 64: vLLM's attention on the CPU supports no smaller size
EYE_HIDDEN, EYE_LAYERS, EYE_HEADS, EYE_INNER = 128, 2, 2, 256
PATCH, MERGE, FRAMES = 14, 2, 2
VOCABULARY = 1_500

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Qwen's, in Qwen's order. They stand behind the learnt vocabulary."""

WORDS = """
a an and any answer are as at benign by case caption clause defender accuser describe description evidence for from
harmful harmless has have in is it judge judgment justification label level meme moderate no not of on one or
picture precedent precedents proposer question rationale rule say says see side similarity something statement
strength strong summary that the there this to trial true false unsure verdict was weak what which who why with yes
you your Harmful Harmless Yes No HARMFUL NOT_HARMFUL UNDECIDED user assistant system Picture Question Answer
"""
"""What a trial is made of, so that its words are few tokens."""

TEMPLATE = (
    "{% set image = namespace(count=0) %}"
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' or 'image' in part or 'image_url' in part %}"
    "{% set image.count = image.count + 1 %}"
    "{% if add_vision_id %}Picture {{ image.count }}: {% endif %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}"
    "{% endif %}{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


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
    template = TEMPLATE
    if thinks:
        tokenizer.add_special_tokens(list(THOUGHT_MARKS))
        template = TEMPLATE.replace(_BEGINS_REPLY, _BEGINS_THOUGHT)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    ids = {name: vocabulary[name] for name in SPECIAL}
    tokenizer.save(str(folder / "tokenizer.json"))
    rows = tokenizer.get_vocab_size()
    weights = dict(_weights(rows, np.random.default_rng(0)))
    if thinks:
        # No token that ends a thought is ever the most likely one.
        weights["lm_head.weight"][[ids["<|im_end|>"], *(vocabulary[mark] for mark in THOUGHT_MARKS)]] = 0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for name, content in (
        ("config.json", _config(rows, ids)),
        ("generation_config.json", {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"]}),
        ("tokenizer_config.json", _tokenizer_config(template)),
        ("preprocessor_config.json", _pictures()),
    ):
        (folder / name).write_text(json.dumps(content, indent=1))
    return folder


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


def _config(rows: int, ids: dict[str, int]) -> dict[str, Any]:
    # The ids are in both parts: vLLM reads them from the text configuration, transformers from the top level.
    ends = {
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    # The sections of time, height and width add up to half of HEAD. They are written under both names below, because
    # each version of transformers reads only one of them.
    rope = {"rope_type": "default", "type": "mrope", "mrope_section": [8, 12, 12]}
    text = {
        "model_type": "qwen2_5_vl_text",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "vocab_size": rows,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_scaling": rope,
        "rope_parameters": {**rope, "rope_theta": 1_000_000.0},
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "dtype": "float32",
        **ends,
    }
    eye = {
        "model_type": "qwen2_5_vl",
        "depth": EYE_LAYERS,
        "hidden_size": EYE_HIDDEN,
        "intermediate_size": EYE_INNER,
        "num_heads": EYE_HEADS,
        "out_hidden_size": HIDDEN,
        "hidden_act": "silu",
        "in_channels": 3,
        "in_chans": 3,
        "patch_size": PATCH,
        "spatial_patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "tokens_per_second": 2,
        "window_size": 112,
        "fullatt_block_indexes": [EYE_LAYERS - 1],
    }
    return {
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "text_config": text,
        "vision_config": eye,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        **ends,
    }


def _tokenizer_config(template: str) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": "Qwen2_5_VLProcessor",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "extra_special_tokens": {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
        "chat_template": template,
    }


def _pictures() -> dict[str, Any]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "min_pixels": 3136,
        "max_pixels": 12_845_056,
        "patch_size": PATCH,
        "temporal_patch_size": FRAMES,
        "merge_size": MERGE,
        # CLIP's mean and standard deviation, as in Qwen's own processor.
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }


def _weights(rows: int, chance: np.random.Generator) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields names and arrays. The spread carries signal from pixels to words: other pictures give other answers."""

    def matrix(out: int, into: tuple[int, ...]) -> np.ndarray[Any, Any]:
        spread = chance.standard_normal((out, *into)) / math.sqrt(math.prod(into))
        return spread.astype(np.float32)

    def linear(name: str, out: int, into: int, *, bias: bool = True) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        yield f"{name}.weight", matrix(out, (into,))
        if bias:
            yield f"{name}.bias", np.zeros(out, np.float32)

    def norm(name: str, size: int) -> tuple[str, np.ndarray[Any, Any]]:
        return f"{name}.weight", np.ones(size, np.float32)

    yield "visual.patch_embed.proj.weight", matrix(EYE_HIDDEN, (3, FRAMES, PATCH, PATCH))
    for number in range(EYE_LAYERS):
        block = f"visual.blocks.{number}"
        yield norm(f"{block}.norm1", EYE_HIDDEN)
        yield norm(f"{block}.norm2", EYE_HIDDEN)
        yield from linear(f"{block}.attn.qkv", 3 * EYE_HIDDEN, EYE_HIDDEN)
        yield from linear(f"{block}.attn.proj", EYE_HIDDEN, EYE_HIDDEN)
        yield from linear(f"{block}.mlp.gate_proj", EYE_INNER, EYE_HIDDEN)
        yield from linear(f"{block}.mlp.up_proj", EYE_INNER, EYE_HIDDEN)
        yield from linear(f"{block}.mlp.down_proj", EYE_HIDDEN, EYE_INNER)
    merged = EYE_HIDDEN * MERGE**2
    yield norm("visual.merger.ln_q", EYE_HIDDEN)
    yield from linear("visual.merger.mlp.0", merged, merged)
    yield from linear("visual.merger.mlp.2", HIDDEN, merged)

    yield "model.embed_tokens.weight", chance.standard_normal((rows, HIDDEN)).astype(np.float32)
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        yield norm(f"{layer}.input_layernorm", HIDDEN)
        yield norm(f"{layer}.post_attention_layernorm", HIDDEN)
        yield from linear(f"{layer}.self_attn.q_proj", HEADS * HEAD, HIDDEN)
        yield from linear(f"{layer}.self_attn.k_proj", KEY_HEADS * HEAD, HIDDEN)
        yield from linear(f"{layer}.self_attn.v_proj", KEY_HEADS * HEAD, HIDDEN)
        yield from linear(f"{layer}.self_attn.o_proj", HIDDEN, HEADS * HEAD, bias=False)
        yield from linear(f"{layer}.mlp.gate_proj", INNER, HIDDEN, bias=False)
        yield from linear(f"{layer}.mlp.up_proj", INNER, HIDDEN, bias=False)
        yield from linear(f"{layer}.mlp.down_proj", HIDDEN, INNER, bias=False)
    yield norm("model.norm", HIDDEN)
    yield "lm_head.weight", matrix(rows, (HIDDEN,))


if __name__ == "__main__":
    print(make_tiny_model(Path(sys.argv[1])))
