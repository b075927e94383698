"""What of a trial's prompts a real vLLM serves from its prefix cache, over what it could serve.

It could serve, of each prompt, the whole blocks of what that prompt begins with in common with one that was sent
before it (:mod:`eval.perf.vllm.prefixes`), pictures included. What the prompts are is asked of vLLM's tokenizer,
what it served is told with each answer, and that the two agree with its own counters is checked. ``of_prompts`` says
how much of all prompts that is: what is left has to be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx2

from court.backends.pictures.reader import GuardedPictureReader
from court.settings import TrialSettings
from eval.perf.bench import Result
from eval.perf.trials.trials import unwatched
from eval.perf.vllm.court import Asked, court_before, drawn_case
from eval.perf.vllm.prefixes import PICTURE_TOKEN, Prompt, Share, placed, share, tokenize_body
from eval.perf.vllm.server import BLOCK, figure, metrics, tiny_vllm, vllm_python
from serving.models.vllm import VllmServer

_ROUNDS = 4
_TRIALS = 4
_SETTINGS = TrialSettings(rounds_min=_ROUNDS, rounds_max=_ROUNDS, reply_chars=300)


def measure() -> Result:
    """Runs the benchmark."""
    found = asyncio.run(_trials())
    return Result(
        name="prefix-cache",
        figures={
            "of_possible": round(found.reached / found.possible, 4),
            "of_prompts": round(found.reached / found.prompts, 4),
            "reached_tokens": found.reached,
            "possible_tokens": found.possible,
            "prompt_tokens": found.prompts,
            "trials": _TRIALS,
            "rounds": _ROUNDS,
            "block": BLOCK,
        },
        goals={"of_possible": ">= 0.95"},
    )


async def _trials() -> Share:
    reader = GuardedPictureReader(workers=1)
    try:
        cases = [await drawn_case(reader, number) for number in range(_TRIALS + 1)]
    finally:
        await reader.aclose()
    async with tiny_vllm(vllm_python()) as server, court_before(server, _SETTINGS) as (court, model):
        # What is the same in all trials, the system messages, has been seen before those that count.
        await court.hear(cases.pop(), unwatched)
        past = len(model.asked)
        before = await _counters(server)
        for case in cases:
            await court.hear(case, unwatched)
        queries, hits = (now - then for then, now in zip(before, await _counters(server), strict=True))
        prompts = await prompts_sent(server.root_url, server.model, model.asked)
    found = share(prompts[past:], prompts[:past], BLOCK)
    assert (queries, hits) == (found.prompts, found.reached), "the server's counters are not what it said with answers"
    return found


async def _counters(server: VllmServer) -> tuple[int, int]:
    """Tokens looked for in the prefix cache, and found there."""
    told = await metrics(server)
    queries, hits = (int(figure(told, f"vllm:prefix_cache_{kind}_total")) for kind in ("queries", "hits"))
    return queries, hits


async def prompts_sent(root_url: str, model: str, asked: Sequence[Asked]) -> list[Prompt]:
    """Calls as the prefix cache saw them.

    Args:
        root_url: Of the vLLM.
        model: What it calls its model.
        asked: The calls.

    Raises:
        ValueError: A prompt is not as long as the server said with its answer.
    """

    async def tokens(body: dict[str, Any]) -> list[int]:
        answer = await client.post("/tokenize", json=body)
        answer.raise_for_status()
        return [int(token) for token in answer.json()["tokens"]]

    prompts = []
    async with httpx2.AsyncClient(base_url=root_url, trust_env=False, timeout=60) as client:
        (picture,) = await tokens({"model": model, "prompt": PICTURE_TOKEN, "add_special_tokens": False})
        for call in asked:
            shown = placed(await tokens(tokenize_body(model, call.request)), call.request, picture)
            if len(shown) != call.reply.tokens_in:
                raise ValueError("a prompt is not as long as the server said")
            prompts.append(Prompt(shown, call.reply.tokens_cached, call.sent, call.answered))
    return prompts
