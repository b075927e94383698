"""Writes a tiny Qwen3-VL, or a hybrid Qwen3.5, with random weights; needs a Python with vLLM.

Usage: ``PYTHON tiny_qwen3.py vl|hybrid FOLDER``. FOLDER holds a tiny model (:mod:`eval.perf.vllm.tiny_model`), whose
weights and configuration are replaced; tokenizer and chat template stay.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 32_768,
    "dtype": "float32",
}
VISION = {
    "depth": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_heads": 2,
    "out_hidden_size": 128,
    "patch_size": 16,
    "num_position_embeddings": 256,
}
ROPE = {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [12, 10, 10], "mrope_interleaved": True}
# Three layers of linear attention per layer of full attention, as in the real models.
HYBRID = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}


def write(kind, folder):
    """Replaces the weights and the configuration of the model in a folder."""
    original = json.loads((folder / "config.json").read_text())
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    text = {**SIZES, "vocab_size": original["text_config"]["vocab_size"], **{name: original[name] for name in names}}
    token_names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    options = {name: original[name] for name in token_names} | {"tie_word_embeddings": False}
    torch.manual_seed(0)
    if kind == "vl":
        text |= {"num_hidden_layers": 2, "rope_parameters": ROPE}
        vision = {**VISION, "deepstack_visual_indexes": [0]}
        config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **options)
        model = transformers.Qwen3VLForConditionalGeneration(config)
    else:
        text |= {**HYBRID, "rope_parameters": ROPE | {"partial_rotary_factor": 1.0}}
        config = transformers.Qwen3_5Config(text_config=text, vision_config=VISION, **options)
        model = transformers.Qwen3_5ForConditionalGeneration(config)
    model.float().save_pretrained(folder)
    processor = {"processor_class": "Qwen3VLProcessor", "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    processor |= {"size": {"shortest_edge": 4096, "longest_edge": 1_048_576}}
    processor |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    for file, cls in (
        ("preprocessor_config.json", {"image_processor_type": "Qwen2VLImageProcessorFast"}),
        ("video_preprocessor_config.json", {"video_processor_type": "Qwen3VLVideoProcessor"}),
    ):
        (folder / file).write_text(json.dumps(processor | cls))
    tokenizer = folder / "tokenizer_config.json"
    tokenizer.write_text(tokenizer.read_text().replace("Qwen2_5_VLProcessor", "Qwen3VLProcessor"))


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
