"""Tries three drawn memes by the full procedure with a real model; the debate unfolds in the terminal.

MODEL is a name on the Hugging Face hub, a preset, a folder, or the address of a running server (``http…/v1``; a key in
MEMECOURT_LLM__API_KEY). Small models need prompt set 2, which is taken unless MEMECOURT_TRIAL__PROMPTS names another.
Without an address it sets up vLLM in an environment of its own, for a GPU if there is one, and stops it at the end. In
a terminal the console stays until Ctrl-C.

Run: ``python -m scripts.demo_full [MODEL]``, or ``make demo-full MODEL=…``.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from court.errors import NotLoaded
from scripts import vllm_cpu as environments
from serving.models.presets import PRESETS, list_gpus

KEY, PROMPTS = "MEMECOURT_LLM__API_KEY", "MEMECOURT_TRIAL__PROMPTS"
DEFAULT = next(iter(PRESETS))
"""The smallest preset."""
_ANSWERS, _CONSOLE = "vLLM answers at ", "console on "
# Without compilation: for three memes it costs more than it saves.
_CPU_OPTIONS = ("--context", "16384", "--max-pixels", "200704")
_CPU_FLAGS = ("--dtype", "bfloat16", "--block-size", "32", "--max-logprobs", "20", "--max-num-seqs", "4")
_CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "2"}


def main() -> None:
    """Tries the memes and prints where to read on."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", nargs="?", default=DEFAULT, help=f"[default: {DEFAULT}, the smallest preset]")
    model: str = options.parse_args().model or DEFAULT
    with served(model) as (url, name, key):
        # By set 1, the small models that a demonstration uses argue about the prompt and repeat themselves.
        environment = {PROMPTS: "2", **os.environ, KEY: key}
        tried = subprocess.run([*memecourt("demo"), "--llm-url", url, "--model", name], env=environment, check=False)
    if tried.returncode:
        raise SystemExit(tried.returncode)
    show_console()


def memecourt(*arguments: str) -> list[str]:
    """Returns a command of ``memecourt`` in this environment."""
    return [sys.executable, "-m", "serving.cli", *arguments]


@contextmanager
def served(model: str) -> Iterator[tuple[str, str, str]]:
    """Yields address, name and key of the model's server; one that is started here is stopped at the end."""
    if model.startswith(("http://", "https://")):
        key = os.environ.get(KEY, "")
        yield model, name_at(model, key), key
        return
    gpu = has_gpu()
    tell_beforehand(model, gpu=gpu)
    python = environments.prepared(gpu=gpu)
    key = secrets.token_hex(16)
    command = memecourt("vllm", "--preset" if model in PRESETS else "--model", model, "--port", "0")
    command += ["--python", str(python), *(() if gpu else (*_CPU_OPTIONS, "--", "--enforce-eager", *_CPU_FLAGS))]
    environment = {**os.environ, **({} if gpu else _CPU_ENVIRONMENT), KEY: key}
    with running(command, environment) as process:
        url, _, name = first_line(process, _ANSWERS).partition(" as ")
        yield url, name, key


def has_gpu() -> bool:
    """True if a GPU can be seen here."""
    try:
        return bool(list_gpus())
    except NotLoaded:
        return False


def tell_beforehand(model: str, *, gpu: bool) -> None:
    """Says what is downloaded and how long it takes."""
    where, size, start, trial = (
        ("GPUs", "10 GB", "two to five minutes", "a minute or less")
        if gpu
        else ("CPUs", "3.5 GB", "two to five minutes", "several minutes, as models write a few tokens a second")
    )
    weights = "is a folder here" if Path(model).is_dir() else "is fetched from the Hugging Face hub, once"
    needs = f" (about {PRESETS[model].memory_gib():.0f} GiB of memory)" if model in PRESETS else ""
    print(
        f"vLLM {environments.VERSION} for {where}: about {size} of packages, fetched once into .cache, which takes "
        "five to fifteen minutes.\n"
        f"The model {model}{needs} {weights}.\n"
        f"Starting it takes {start}, and each of three trials {trial}.",
        flush=True,
    )


def name_at(url: str, key: str) -> str:
    """Returns the first model that a server lists."""
    request = urllib.request.Request(f"{url.rstrip('/')}/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError):
        raise SystemExit(
            f"No list of models at {url}. Name an address that ends in /v1, and put its key into {KEY}."
        ) from None


@contextmanager
def running(command: list[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Runs a process until the block ends."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def first_line(process: subprocess.Popen[str], beginning: str) -> str:
    """Returns what follows the beginning of a process's first line that has it."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return line.removeprefix(beginning).strip()
    raise SystemExit("It ended before it was ready; what it said stands above.")


def show_console() -> None:
    """Prints the address of the console that shows the trials; in a terminal it stays until Ctrl-C."""
    with running(memecourt("console", "--address", "127.0.0.1:0"), os.environ) as console:
        print(f"The trials, step by step: {first_line(console, _CONSOLE)}", flush=True)
        if sys.stdin.isatty():
            print("Ctrl-C ends the console; `memecourt console` opens it again.", flush=True)
            try:
                console.wait()
            except KeyboardInterrupt:
                return


if __name__ == "__main__":
    main()
