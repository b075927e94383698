"""The share of a trial's prompt tokens that a real vLLM serves from its prefix cache, of those that it could serve.

It could serve the whole blocks of the longest common prefix of a prompt with any prompt sent before it, pictures
included. Prompts are tokenized by vLLM, each answer reports its cached tokens, and both are checked against vLLM's own
counters.
"""

import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from court.backends.chat import wire
from court.backends.chat.capabilities import probe
from court.backends.chat.client import ChatCompletions
from court.backends.chat.wire import Capabilities, ServerAnswer
from court.backends.http import Load, http_client
from court.backends.pictures.reader import GuardedPictureReader
from court.errors import NotLoaded
from court.events import Procedure
from court.meme import Frame, Meme
from court.ports import ChatReply, ChatRequest
from court.settings import TrialSettings
from court.trial import Court, TrialCase
from eval.perf.bench import Result
from eval.perf.trials import KnownFinder, court_of, unwatched
from eval.perf.vllm.tiny_model import NAME, make_tiny_model
from eval.standin.replies import PrefixCache
from eval.synthetic.scenes import SCENES, draw_meme
from eval.synthetic.world import png_of
from serving.models.vllm import VllmServer, VllmSettings

PICTURES = 7
"""In one prompt at most: four frames of a meme, and three precedents'."""
_CONCURRENCY = 64
# Multiples of 28 pixels, the size of a merged patch of the model, so that the server resizes nothing.
_SIZE = (252, 168)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A recorded call."""

    request: ChatRequest
    is_odds: bool
    reply: ChatReply
    """Reply as the court gets it."""
    sent: float


class Recorded(ChatCompletions):
    """The real client, which also records its calls."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.begun: list[ChatRequest] = []
        self.asked: list[RecordedCall] = []

    async def answer(
        self, request: ChatRequest, *, within_s: float, extra: dict[str, Any] | None = None
    ) -> ServerAnswer:
        """Answers like the base class, and records the call."""
        sent = time.monotonic()
        self.begun.append(request)
        answer = await super().answer(request, within_s=within_s, extra=extra)
        self.asked.append(RecordedCall(request, bool(extra), answer.reply(time.monotonic() - sent), sent))
        return answer

    def forget(self) -> None:
        """Clears the recorded calls."""
        self.begun.clear()
        self.asked.clear()


@asynccontextmanager
async def court_before(server: VllmServer, settings: TrialSettings) -> AsyncIterator[tuple[Court, Recorded]]:
    """Yields a court and its client, which has probed the capabilities of the vLLM."""
    load = Load(_CONCURRENCY)
    async with http_client() as http:
        model = Recorded(base_url=server.base_url, model=server.model, api_key=server.api_key, http=http, load=load)
        await probe(model, pictures=PICTURES)
        # The probe's calls are not part of a trial.
        model.forget()
        finder = KnownFinder(frames=tuple(_precedent(number) for number in range(3)))
        yield court_of(model, settings, finder=finder, temperature=1.0), model


async def drawn_case(reader: GuardedPictureReader, number: int) -> TrialCase:
    """Returns a new meme: another number gives another picture and another text."""
    text = f"the people from Blueland\nmeet for tea number {number}"
    picture = await reader.read(png_of(draw_meme(SCENES[number % len(SCENES)], text, size=_SIZE, seed=number)))
    return TrialCase(f"drawn {number}", Meme(picture, text.replace("\n", " ")), Procedure.FULL, within_s=600.0)


def _precedent(number: int) -> Frame:
    drawn = draw_meme(SCENES[number], f"tea in Redland {number}", size=(140 + 28 * number, 112))
    return Frame(png_of(drawn), *drawn.size)


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

    Raises NotLoaded: The variable is not set, and the script is missing or failed; its output is on standard error.
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
        model=str(model), python=python, context=CONTEXT, flags=FLAGS, environment=ENVIRONMENT, start_seconds=600
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


PICTURE_TOKEN = "<|image_pad|>"

_ROUNDS = 4
_SETTINGS = TrialSettings(rounds_min=_ROUNDS, rounds_max=_ROUNDS, reply_chars=300)


def prefix_cache(*, trials: int = 4) -> Result:
    """Runs the benchmark."""
    return asyncio.run(_trials(trials))


async def _trials(trials: int) -> Result:
    reader = GuardedPictureReader(workers=1)
    try:
        cases = [await drawn_case(reader, number) for number in range(trials + 1)]
    finally:
        await reader.aclose()
    async with tiny_vllm(vllm_python()) as server, court_before(server, _SETTINGS) as (court, model):
        # The system messages, which are the same in all trials, are cached before the trials that count.
        await court.run(cases.pop(), unwatched)
        past = len(model.asked)
        counters = [await metrics(server)]
        for case in cases:
            await court.run(case, unwatched)
        counters.append(await metrics(server))
        prompts = await prompts_sent(server.root_url, server.model, model.asked)
    found = share(prompts[past:], prompts[:past], BLOCK)
    # Counted in two ways: by the server's metrics, and by the figures in its answers.
    for kind, count in (("queries", found.prompts), ("hits", found.reached)):
        before, after = (figure(text, f"vllm:prefix_cache_{kind}_total") for text in counters)
        assert after - before == count, "the server's counters are not what it said with answers"
    return Result({"of_possible": found.reached / found.possible}, {"of_possible": ">= 0.95"})


async def prompts_sent(root_url: str, model: str, calls: Sequence[RecordedCall]) -> list["Prompt"]:
    """Returns calls as the prefix cache saw them, the first sent first.

    Raises ValueError: The length of a prompt differs from the one in the server's answer.
    """

    async def tokens(body: dict[str, Any]) -> list[int]:
        answer = await client.post("/tokenize", json=body)
        answer.raise_for_status()
        return [int(token) for token in answer.json()["tokens"]]

    prompts = []
    # No proxy from the environment may come between two processes on one machine.
    async with httpx2.AsyncClient(base_url=root_url, trust_env=False, timeout=60) as client:
        (picture,) = await tokens({"model": model, "prompt": PICTURE_TOKEN, "add_special_tokens": False})
        for call in sorted(calls, key=lambda call: call.sent):
            shown = placed(await tokens(tokenize_body(model, call.request)), call.request, picture)
            if len(shown) != call.reply.tokens_in:
                raise ValueError("a prompt is not as long as the server said")
            prompts.append(Prompt(shown, call.reply.tokens_cached))
    return prompts


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the prefix cache sees it."""

    tokens: Sequence[str]
    """Tokens, each with the SHA-256 of the picture of which it stands for a part: the cache tells both apart."""
    cached: int


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Numbers of prompt tokens."""

    prompts: int
    reached: int
    possible: int
    """Tokens that could have been cached: whole blocks of a prompt's longest common prefix with one sent before it."""


def share(prompts: Sequence[Prompt], past: Sequence[Prompt], block: int) -> PromptTokens:
    """Counts the prompt tokens that the cache served, and those that it could have served; in the order of sending."""
    cache, possible = PrefixCache(block=block), 0
    for each in past:
        cache.keep(each.tokens)
    for each in prompts:
        possible += cache.cached(each.tokens)
        # Whether answered or not: a prompt can be hit in the cache as soon as it has been computed.
        cache.keep(each.tokens)
    return PromptTokens(sum(len(each.tokens) for each in prompts), sum(each.cached for each in prompts), possible)


def tokenize_body(model: str, request: ChatRequest) -> dict[str, Any]:
    """Builds the ``/tokenize`` request for a prompt as vLLM's engine gets it: with template and full pictures."""
    # Without capabilities: to a server that knows pictures by id, their bytes would not be sent.
    return {"model": model, "messages": wire.messages(request, Capabilities(), {})}


def placed(tokens: Iterable[int], request: ChatRequest, picture_token: int) -> list[str]:
    """Pairs tokens with their pictures. Raises ValueError if their number differs from the request."""
    names = [wire.digest(part) for part in request.parts if isinstance(part, Frame)]
    found: list[str] = []
    shown = 0
    # A run of picture tokens is one picture: end and start markers separate two of them.
    for is_picture, run in itertools.groupby(tokens, lambda token: token == picture_token):
        shown += is_picture
        if shown > len(names):
            raise ValueError("the prompt shows more pictures than the request has")
        found += [f"{token} {names[shown - 1]}" if is_picture else str(token) for token in run]
    if shown < len(names):
        raise ValueError("the prompt shows fewer pictures than the request has")
    return found
