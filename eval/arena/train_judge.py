"""Trains a judge of one's own from an arena's judgements: LoRA on the language part, on one GPU (extra ``train``).

Run: ``python -m eval.arena.train_judge sft/ judge-lora/ --base Qwen/Qwen2.5-VL-7B-Instruct``, where ``sft/`` comes from
``memecourt-eval arena export-judge``. vLLM serves what it writes: ``vllm serve BASE --enable-lora --lora-modules
judge=judge-lora/``; ``memecourt-eval arena distil-check`` says what it is worth.

Only the reply is learned (the reasons, then the verdicts); the picture's encoder stays as it is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, Trainer, TrainingArguments

IGNORED = -100
"""Label of a token that is not learned, as PyTorch's cross entropy has it."""
LANGUAGE = r"^(?!.*visual).*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)$"
"""Attention and MLP of the language part."""


class ReplyOnly:
    """Collates chat examples into a batch in which only the last message is learned."""

    def __init__(self, processor: Any, pictures: Path, longest: int) -> None:
        """Stores what every batch needs."""
        self._processor = processor
        self._pictures = pictures
        self._longest = longest

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Returns tokens and labels, int tensors of shape (examples, tokens), and pixels of some examples."""
        whole = [self._text(one["messages"]) for one in examples]
        # Includes the tokens that open a reply, so that these are not learned either.
        prompts = [self._text(one["messages"][:-1], asks=True) for one in examples]
        pictures = [[self._picture(name) for name in one["pictures"]] for one in examples]
        # Padded on the right: the tokens of the question are counted from the left below.
        batch = self._processor(text=whole, images=pictures, padding=True, padding_side="right", return_tensors="pt")
        labels = batch["input_ids"].clone()
        labels[batch["attention_mask"] == 0] = IGNORED
        for row, (text, own) in enumerate(zip(prompts, pictures, strict=True)):
            # Tokenized with its pictures, as each of them is many tokens.
            length = self._processor(text=[text], images=[own], return_tensors="pt")["input_ids"].shape[1]
            labels[row, :length] = IGNORED
            if (labels[row] != IGNORED).sum() == 0:
                raise SystemExit(f"The example about {examples[row]['meme']} has no reply that could be learned.")
        if labels.shape[1] > self._longest:
            raise SystemExit(
                f"An example has {labels.shape[1]:,} tokens, more than --longest {self._longest:,}: cut off, its reply "
                "would be lost. Raise --longest, or hold the arena with smaller reply_chars."
            )
        return {**batch, "labels": labels}

    def _text(self, messages: Sequence[Mapping[str, Any]], *, asks: bool = False) -> str:
        # In some checkpoints, only the tokenizer has the template.
        template = self._processor.chat_template or self._processor.tokenizer.chat_template
        text: str = self._processor.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=asks
        )
        return text

    def _picture(self, name: str) -> Image.Image:
        with Image.open(self._pictures / name) as opened:
            return opened.convert("RGB")


def train(arguments: argparse.Namespace) -> dict[str, float]:
    """Trains, writes the adapter, and returns the first and the last loss, in nats per token."""
    lines = (arguments.examples / "train.jsonl").read_text("ascii").splitlines()
    examples = [json.loads(line) for line in lines]
    if not examples:
        raise SystemExit(f"{arguments.examples / 'train.jsonl'} has no example.")
    gpu = torch.cuda.is_available()
    processor: Any = AutoProcessor.from_pretrained(arguments.base)  # type: ignore[no-untyped-call]
    base: Any = AutoModelForImageTextToText.from_pretrained(
        arguments.base, dtype=torch.bfloat16 if gpu else torch.float32, device_map="auto" if gpu else None
    )
    model: Any = get_peft_model(
        base, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=LANGUAGE, task_type="CAUSAL_LM")
    )
    # Inputs require gradients: otherwise checkpointing would cut off adapters behind frozen layers.
    model.enable_input_require_grads()
    # Batches of 16, however many examples fit on the GPU, so that a learning rate means the same everywhere.
    steps_of_16 = max(1, 16 // arguments.at_once)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
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
            # Otherwise the trainer would drop every field of an example, as none is an argument of the model.
            remove_unused_columns=False,
        ),
        train_dataset=examples,
        data_collator=ReplyOnly(processor, arguments.examples / "pictures", arguments.longest),
    )
    trainer.train()
    model.save_pretrained(arguments.out)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return {"first": losses[0], "last": losses[-1]}


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
    parser.add_argument("--longest", type=int, default=16_384, help="tokens of an example at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


def main() -> None:
    """Trains according to the command line."""
    arguments = arguments_of()
    found = train(arguments)
    print(f"Loss {found['first']:.3f} at first, {found['last']:.3f} at the end. The adapter is in {arguments.out}.")


if __name__ == "__main__":
    main()
