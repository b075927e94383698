"""The share of a trial's prompt tokens that a real vLLM serves from its prefix cache, of those that it could serve.

It could serve the whole blocks of the longest common prefix of a prompt with any prompt sent before it, pictures
included. Prompts are tokenized by vLLM, each answer reports its cached tokens, and both are checked against vLLM's own
counters. ``of_prompts`` is the share of all prompt tokens that is served from the cache: the rest has to be computed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from court.backends.chat import wire
from court.backends.chat.features import Capabilities
from court.backends.pictures.reader import GuardedPictureReader
from court.meme import Frame
from court.ports import ChatRequest
from court.settings import TrialSettings
from eval.perf.bench import Result
from eval.perf.trials import unwatched
from eval.perf.vllm.court import RecordedCall, court_before, drawn_case
from eval.perf.vllm.server import BLOCK, figure, metrics, tiny_vllm, vllm_python
from serving.models.vllm import VllmServer

PICTURE_TOKEN = "<|image_pad|>"

Placed = tuple[int, str | None]
"""A token, and where it stands for a part of a picture, that picture's SHA-256: the cache tells both apart."""

_ROUNDS = 4
_SETTINGS = TrialSettings(rounds_min=_ROUNDS, rounds_max=_ROUNDS, reply_chars=300)


def prefix_cache(*, trials: int = 4) -> Result:
    """Runs the benchmark."""
    found = asyncio.run(_trials(trials))
    return Result(
        figures={
            "of_possible": found.reached / found.possible,
            "of_prompts": found.reached / found.prompts,
            "reached_tokens": found.reached,
            "possible_tokens": found.possible,
            "prompt_tokens": found.prompts,
            "trials": trials,
            "rounds": _ROUNDS,
            "block": BLOCK,
        },
        goals={"of_possible": ">= 0.95"},
    )


async def _trials(trials: int) -> PromptTokens:
    reader = GuardedPictureReader(workers=1)
    try:
        cases = [await drawn_case(reader, number) for number in range(trials + 1)]
    finally:
        await reader.aclose()
    async with tiny_vllm(vllm_python()) as server, court_before(server, _SETTINGS) as (court, model):
        # The system messages, which are the same in all trials, are cached before the trials that count.
        await court.run(cases.pop(), unwatched)
        past = len(model.asked)
        before = await _counters(server)
        for case in cases:
            await court.run(case, unwatched)
        queries, hits = (now - then for then, now in zip(before, await _counters(server), strict=True))
        prompts = await prompts_sent(server.root_url, server.model, model.asked)
    found = share(prompts[past:], prompts[:past], BLOCK)
    # Counted in two ways: by the server's metrics, and by the figures in its answers.
    assert (queries, hits) == (found.prompts, found.reached), "the server's counters are not what it said with answers"
    return found


async def _counters(server: VllmServer) -> tuple[int, int]:
    """Returns the tokens looked up in the prefix cache, and those found."""
    counters = await metrics(server)
    queries, hits = (int(figure(counters, f"vllm:prefix_cache_{kind}_total")) for kind in ("queries", "hits"))
    return queries, hits


async def prompts_sent(root_url: str, model: str, calls: Sequence[RecordedCall]) -> list[Prompt]:
    """Returns calls as the prefix cache saw them.

    Raises:
        ValueError: The length of a prompt differs from the one in the server's answer.
    """

    async def tokens(body: dict[str, Any]) -> list[int]:
        answer = await client.post("/tokenize", json=body)
        answer.raise_for_status()
        return [int(token) for token in answer.json()["tokens"]]

    prompts = []
    # No proxy from the environment may come between two processes on one machine.
    async with httpx2.AsyncClient(base_url=root_url, trust_env=False, timeout=60) as client:
        (picture,) = await tokens({"model": model, "prompt": PICTURE_TOKEN, "add_special_tokens": False})
        for call in calls:
            shown = placed(await tokens(tokenize_body(model, call.request)), call.request, picture)
            if len(shown) != call.reply.tokens_in:
                raise ValueError("a prompt is not as long as the server said")
            prompts.append(Prompt(shown, call.reply.tokens_cached, call.sent, call.answered))
    return prompts


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the prefix cache sees it.

    Attributes:
        sent: Time of sending, in seconds of any one clock.
    """

    tokens: Sequence[Placed]
    cached: int
    sent: float
    answered: float


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Numbers of prompt tokens.

    Attributes:
        possible: Tokens that could have been cached: whole blocks of a prompt's longest common prefix with one sent
            before it.
        settled: The same, counting only prompts that had been answered by then.
    """

    prompts: int
    reached: int
    possible: int
    settled: int


def share(prompts: Sequence[Prompt], past: Sequence[Prompt], block: int) -> PromptTokens:
    """Counts the prompt tokens that the cache served, and those that it could have served.

    Args:
        past: Prompts that were answered before all of these.
    """
    possible = settled = 0
    for each in prompts:
        # Whether answered or not: a prompt can be hit in the cache as soon as it has been computed.
        others = [other for other in prompts if other.sent < each.sent]
        before = _whole_blocks(each, past, block)
        sent = max(before, _whole_blocks(each, others, block))
        answered = _whole_blocks(each, [other for other in others if other.answered < each.sent], block)
        possible, settled = possible + sent, settled + max(before, answered)
    return PromptTokens(
        prompts=sum(len(each.tokens) for each in prompts),
        reached=sum(each.cached for each in prompts),
        possible=possible,
        settled=settled,
    )


def tokenize_body(model: str, request: ChatRequest) -> dict[str, Any]:
    """Builds the ``/tokenize`` request for a prompt as vLLM's engine gets it: with template and full pictures."""
    # Without capabilities: to a server that knows pictures by id, their bytes would not be sent.
    return {"model": model, "messages": wire.messages(request, Capabilities(), {})}


def placed(tokens: Iterable[int], request: ChatRequest, picture_token: int) -> list[Placed]:
    """Pairs tokens with the pictures that they stand for. Raises ValueError if their number differs from the request.

    Args:
        picture_token: Id of :data:`PICTURE_TOKEN`.
    """
    names = [wire.digest(part) for part in request.parts if isinstance(part, Frame)]
    found: list[Placed] = []
    shown = 0
    # A run of picture tokens is one picture: end and start markers separate two of them.
    for is_picture, run in itertools.groupby(tokens, lambda token: token == picture_token):
        shown += is_picture
        if shown > len(names):
            raise ValueError("the prompt shows more pictures than the request has")
        found += [(token, names[shown - 1] if is_picture else None) for token in run]
    if shown < len(names):
        raise ValueError("the prompt shows fewer pictures than the request has")
    return found


def common(one: Sequence[Placed], other: Sequence[Placed]) -> int:
    """Returns the length of the common prefix of two sequences."""
    # The lengths may differ: the excess of the longer one is not in common.
    return sum(1 for _ in itertools.takewhile(_same, zip(one, other, strict=False)))


def _same(pair: tuple[Placed, Placed]) -> bool:
    return pair[0] == pair[1]


def _whole_blocks(prompt: Prompt, others: Iterable[Prompt], block: int) -> int:
    # The last token is always computed: the reply starts from it.
    most = len(prompt.tokens) - 1
    longest = max((common(prompt.tokens, other.tokens) for other in others), default=0)
    return min(longest, most) // block * block
