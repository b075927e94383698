"""What a call of a model costs our process: CPU time of all its threads, as the operating system counts it.

The server is another process and takes no time to think. Calls are those that real trials make. Beside them stands a
bare POST of the same bytes through the same HTTP client: what is left when everything of ours is taken away, and the
measure of how fast the machine is.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import httpx2

from court.backends.chat import wire
from court.backends.chat.http import http_client
from court.meme import Frame
from court.ports import ChatModel, ChatReply, ChatRequest, Odds
from court.roles import RoleModel, RoleModels
from eval.perf.bench import Result
from eval.perf.trials.trials import CAN, Bar, bar, case, server, unwatched

_CALLS = 300
_TRIALS = 16
_AT_ONCE = 64
_ROUNDS = 4


def measure() -> Result:
    """Runs the benchmark."""
    with server("--play") as address:
        figures = asyncio.run(_measured(address))
    return Result(
        name="call-cpu",
        figures={name: round(value, 3) for name, value in figures.items()},
        goals={name: "<= 3" for name in ("text_ms", "picture_ms", "cpu_ms_per_call", "at_once_ms_per_call")},
    )


async def _measured(address: str) -> dict[str, float]:
    async with bar(address) as it, http_client() as http:
        asked = await _requests_of_a_trial(it)
        text = next(request for request in reversed(asked) if not _frames(request))
        picture = next(request for request in reversed(asked) if len(_frames(request)) == 1)
        url, body = f"{address}/v1/chat/completions", _body(text)

        async def bare() -> None:
            await _post(http, url, body)

        # In turns, so that a machine that slows down slows all of them.
        bare_ms, text_ms, picture_ms = await _medians(bare, _reply(it, text), _reply(it, picture))
        return {
            "cpu_ms_per_call": await _of_trials(it, http, address, at_once=1),
            "at_once_ms_per_call": await _of_trials(it, http, address, at_once=_AT_ONCE),
            "text_ms": text_ms,
            "picture_ms": picture_ms,
            "bare_post_ms": bare_ms,
            "text_over_bare": text_ms / bare_ms,
        }


@dataclass(frozen=True, slots=True)
class _Remembering:
    """A model that remembers what it was asked, in order."""

    model: ChatModel
    asked: list[ChatRequest] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.model.name

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        self.asked.append(request)
        return await self.model.reply(request, within_s=within_s)

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        return await self.model.odds(request, options, within_s=within_s)


async def _requests_of_a_trial(it: Bar) -> list[ChatRequest]:
    """All but those for the score; the pictures that they show, the server knows from now on."""
    model = _Remembering(it.model)
    chair = RoleModel(model)
    court = replace(it.court, chairs=RoleModels(chair, chair, chair, chair))
    await court.hear(case("remembered", _ROUNDS), unwatched)
    return model.asked


def _frames(request: ChatRequest) -> list[Frame]:
    return [part for part in request.parts if isinstance(part, Frame)]


def _reply(it: Bar, request: ChatRequest) -> Callable[[], Awaitable[object]]:
    return lambda: it.model.reply(request, within_s=60)


def _body(request: ChatRequest) -> bytes:
    assert request.reply_schema is not None
    fields = {"response_format": wire.response_format(request.reply_schema), "max_tokens": request.max_tokens}
    return json.dumps({"model": "stand-in", "messages": wire.messages(request, CAN, {}), **fields}).encode()


async def _post(http: httpx2.AsyncClient, url: str, body: bytes) -> None:
    response = await http.post(url, content=body, headers={"Content-Type": "application/json"})
    assert json.loads(response.content)["choices"]


async def _medians(*calls: Callable[[], Awaitable[object]]) -> list[float]:
    spent: list[list[float]] = [[] for _ in calls]
    for _ in range(_CALLS):
        for call, seconds in zip(calls, spent, strict=True):
            before = time.process_time()
            await call()
            seconds.append(time.process_time() - before)
    return [1000 * statistics.median(seconds) for seconds in spent]


async def _of_trials(it: Bar, http: httpx2.AsyncClient, address: str, *, at_once: int) -> float:
    """CPU time of whole trials over the calls that the server saw: prompts, client, replies, events and all."""

    async def seen() -> int:
        return int((await http.get(f"{address}/stats")).json()["calls"])

    spent = []
    for turn in range(max(2, _TRIALS // at_once)):
        asked = [case(f"number {number} of {at_once} in turn {turn}", _ROUNDS) for number in range(at_once)]
        calls, before = await seen(), time.process_time()
        await asyncio.gather(*(it.court.hear(each, unwatched) for each in asked))
        seconds = time.process_time() - before
        spent.append(seconds / (await seen() - calls))
    return 1000 * statistics.median(spent)
