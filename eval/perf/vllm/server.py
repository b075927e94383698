"""Starts the real vLLM on a CPU, and reads its counters."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from court.errors import NotLoaded
from eval.perf.vllm.tiny_model import NAME, make_tiny_model
from serving.models.vllm import VllmServer, VllmSettings

BLOCK = 32
"""Tokens in a block of the prefix cache: a prompt is found again in whole blocks."""
FLAGS = ("--dtype", "float32", "--enforce-eager", "--block-size", str(BLOCK), "--max-logprobs", "20")
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # The model is made here: a server that downloads one from the hub would hide a fault.
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # even in eager mode vLLM has torch compile some functions, which needs a C++ compiler
    "PYTHONPATH": str(Path(__file__).parent / "patience"),
}
CONTEXT = 16_384
_SCRIPT = Path(__file__).parents[3] / "scripts" / "vllm_cpu.py"


def vllm_python() -> Path:
    """Returns a Python with vLLM: the one in MEMECOURT_VLLM_PYTHON, or else the one that ``scripts/vllm_cpu.py`` makes.

    Making it takes minutes and gigabytes the first time.

    Raises:
        NotLoaded: The variable is not set, and the script is missing or failed; its output is on standard error.
    """
    named = os.environ.get("MEMECOURT_VLLM_PYTHON")
    if named:
        return Path(named)
    if not _SCRIPT.exists():
        raise NotLoaded(
            "There is no vLLM, and what would install one is not here: name a Python that has vLLM for the CPU in "
            "MEMECOURT_VLLM_PYTHON, or work in a checkout of the repository.",
            reason="VLLM_MISSING",
        )
    # Its errors go to our standard error: the message below points to them.
    made = subprocess.run([sys.executable, _SCRIPT], stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        raise NotLoaded("vLLM for the CPU could not be installed; what was said stands above.", reason="VLLM_MISSING")
    return Path(made.stdout.strip())


def settings(python: Path, model: Path) -> VllmSettings:
    """Returns settings for a vLLM on the CPU."""
    return VllmSettings(
        model=str(model),
        python=python,
        context=CONTEXT,
        flags=FLAGS,
        environment=ENVIRONMENT,
        start_seconds=600,
    )


@asynccontextmanager
async def tiny_vllm(python: Path, *flags: str) -> AsyncIterator[VllmServer]:
    """Yields a running server with the tiny model; stops it with the context. Raises as :class:`VllmServer` does."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / NAME)
        own = settings(python, model)
        async with VllmServer(own.model_copy(update={"flags": (*own.flags, *flags)})) as server:
            yield server


async def metrics(server: VllmServer) -> str:
    """Returns the text of ``/metrics``."""
    # No proxy from the environment may come between two processes on one machine.
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
        answer = await client.get(f"{server.root_url}/metrics")
        answer.raise_for_status()
        return answer.text


def figure(text: str, name: str, **labels: str) -> float:
    """Returns a metric from ``/metrics``, summed over all series with these labels; 0 if there is none."""
    # A brace or a space must follow the name, because other metrics' names may begin with it.
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith((f"{name}{{", f"{name} ")) and all(part in line for part in wanted)
    )
