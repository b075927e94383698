"""Trains a judge of one's own from an arena's judgements: LoRA on the language part, on one GPU (extra ``train``).

Run: ``python -m eval.arena.train_judge sft/ judge-lora/ --base Qwen/Qwen2.5-VL-7B-Instruct``, where ``sft/`` comes from
``memecourt-eval arena export-judge``. vLLM serves what it writes: ``vllm serve BASE --enable-lora --lora-modules
judge=judge-lora/``; ``memecourt-eval arena distil-check`` says what it is worth.

Only the reply is learned (the reasons, then the verdicts); the picture's encoder stays as it is.
"""

import json
from pathlib import Path
from typing import Any

import click
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


def train(
    examples: Path, out: Path, *, base: str, epochs: float, steps: int, at_once: int, rate: float, seed: int
) -> Any:
    """Trains, writes the adapter, and returns the trainer."""
    gpu = torch.cuda.is_available()
    processor: Any = AutoProcessor.from_pretrained(base)  # type: ignore[no-untyped-call]
    # In some checkpoints, only the tokenizer has the template.
    processor.chat_template = processor.chat_template or processor.tokenizer.chat_template
    model: Any = AutoModelForImageTextToText.from_pretrained(
        base, dtype=torch.bfloat16 if gpu else torch.float32, device_map="auto" if gpu else None
    )
    # Batches of 16, however many examples fit on the GPU, so that a learning rate means the same everywhere.
    steps_of_16 = max(1, 16 // at_once)
    trainer: Any = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=str(out / "checkpoints"),
            num_train_epochs=epochs,
            max_steps=steps or -1,
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=1 if steps else steps_of_16,
            activation_checkpointing=gpu,
            learning_rate=rate,
            lr_scheduler_type="cosine",
            # A value below 1 is a share of all steps.
            warmup_steps=0.03,
            bf16=gpu,
            use_cpu=not gpu,
            seed=seed,
            logging_steps=1,
            # The adapter is saved once, at the end.
            save_strategy="no",
            # Reports to no service, whichever is installed.
            report_to=[],
            # An example that was cut off would lose its reply.
            max_length=None,
            completion_only_loss=True,
        ),
        train_dataset=read_dataset(examples),
        processing_class=processor,
        peft_config=LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=LANGUAGE, task_type="CAUSAL_LM"),
    )
    trainer.train()
    trainer.model.save_pretrained(out)
    return trainer


def losses_of(trainer: Any) -> list[float]:
    """Returns the loss of each step, in nats per token."""
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("examples", type=Path)
@click.argument("out", type=Path)
@click.option("--base", default="Qwen/Qwen2.5-VL-7B-Instruct", show_default=True, help="Model, by name or folder.")
@click.option("--epochs", default=2.0, show_default=True, help="Times that each example is seen.")
@click.option("--steps", default=0, help="So many steps instead of epochs, without accumulation.")
@click.option("--at-once", default=1, show_default=True, help="Examples on the GPU at once.")
@click.option("--rate", default=1e-4, show_default=True, help="Learning rate.")
@click.option("--seed", default=0, show_default=True)
def main(out: Path, **options: Any) -> None:
    """Trains according to the command line."""
    losses = losses_of(train(out=out, **options))
    click.echo(f"Loss {losses[0]:.3f} at first, {losses[-1]:.3f} at the end. The adapter is in {out}.")


if __name__ == "__main__":
    main()
