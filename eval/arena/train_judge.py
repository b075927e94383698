"""Trains a judge of one's own from an arena's judgements: LoRA on the language part, on one GPU (extra ``train``).

Run: ``python -m eval.arena.train_judge sft/ judge-lora/ --base Qwen/Qwen2.5-VL-7B-Instruct``, where ``sft/`` comes from
``memecourt-eval arena export-judge``. vLLM serves what it writes: ``vllm serve BASE --enable-lora --lora-modules
judge=judge-lora/``; ``memecourt-eval arena distil-check`` says what it is worth.

Only the reply is learned (the reasons, then the verdicts); the picture's encoder stays as it is.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, Image, List
from peft import LoraConfig
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

LANGUAGE = r"^(?!.*visual).*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)$"
"""Attention and MLP of the language part."""


def read_dataset(folder: Path) -> Dataset:
    """Reads the examples of a folder; their pictures are opened as they are needed."""
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text("ascii").splitlines()]
    examples = [
        {
            "prompt": row["prompt"],
            "completion": row["completion"],
            "images": [str(folder / "pictures" / name) for name in row["images"]],
        }
        for row in rows
    ]
    return Dataset.from_list(examples).cast_column("images", List(Image(mode="RGB")))


def train(arguments: argparse.Namespace) -> Any:
    """Trains, writes the adapter, and returns the trainer."""
    gpu = torch.cuda.is_available()
    processor: Any = AutoProcessor.from_pretrained(arguments.base)  # type: ignore[no-untyped-call]
    # In some checkpoints, only the tokenizer has the template.
    processor.chat_template = processor.chat_template or processor.tokenizer.chat_template
    base: Any = AutoModelForImageTextToText.from_pretrained(
        arguments.base, dtype=torch.bfloat16 if gpu else torch.float32, device_map="auto" if gpu else None
    )
    # Batches of 16, however many examples fit on the GPU, so that a learning rate means the same everywhere.
    steps_of_16 = max(1, 16 // arguments.at_once)
    trainer: Any = SFTTrainer(
        model=base,
        args=SFTConfig(
            output_dir=str(arguments.out / "checkpoints"),
            num_train_epochs=arguments.epochs,
            max_steps=arguments.steps or -1,
            per_device_train_batch_size=arguments.at_once,
            gradient_accumulation_steps=1 if arguments.steps else steps_of_16,
            activation_checkpointing=gpu,
            learning_rate=arguments.rate,
            lr_scheduler_type="cosine",
            # A value below 1 is a share of all steps.
            warmup_steps=0.03,
            bf16=gpu,
            use_cpu=not gpu,
            seed=arguments.seed,
            logging_steps=1,
            # The adapter is saved once, at the end.
            save_strategy="no",
            # Reports to no service, whichever is installed.
            report_to=[],
            # An example that was cut off would lose its reply.
            max_length=None,
            completion_only_loss=True,
        ),
        train_dataset=read_dataset(arguments.examples),
        processing_class=processor,
        peft_config=LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=LANGUAGE, task_type="CAUSAL_LM"),
    )
    trainer.train()
    trainer.model.save_pretrained(arguments.out)
    return trainer


def losses_of(trainer: Any) -> list[float]:
    """Returns the loss of each step, in nats per token."""
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def arguments_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("examples", type=Path, help="folder of memecourt-eval arena export-judge")
    parser.add_argument("out", type=Path, help="folder for the adapter")
    parser.add_argument("--base", default="Qwen/Qwen2.5-VL-7B-Instruct", help="model, by name or folder (%(default)s)")
    parser.add_argument("--epochs", type=float, default=2, help="times that each example is seen (%(default)s)")
    parser.add_argument("--steps", type=int, default=0, help="so many steps instead of epochs, without accumulation")
    parser.add_argument("--at-once", type=int, default=1, help="examples on the GPU at once (%(default)s)")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


def main() -> None:
    """Trains according to the command line."""
    arguments = arguments_of()
    losses = losses_of(train(arguments))
    print(f"Loss {losses[0]:.3f} at first, {losses[-1]:.3f} at the end. The adapter is in {arguments.out}.")


if __name__ == "__main__":
    main()
