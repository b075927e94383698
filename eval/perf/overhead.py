"""Overhead of the court over its model calls, against a fake server of known speed.

``trial-floor``: how close a trial comes to the shortest time that its calls allow. The floor is ``D + R (q + a) + s +
J``, computed from the time that the server, by its own settings and token counts, worked on each of these calls; any
wall-clock time beyond it is our overhead: building prompts, the client, the network, reading replies, storing events,
and all unnecessary waiting. Searching precedents and reading their pictures take a realistic time here, and must not
add to it.

Its second figure, ``naive_over_ours``, is how much faster a trial is than Algorithm 1 as printed, one call after the
other, one side after the other. The same agents, prompts, client and server, in a plain loop. The measured ratio is
reported next to the one that reply lengths alone predict: ``D + 2 R (q + a + s) + J`` over ``D + R (q + a) + s + J``.

``saturation``: the share of a busy server's capacity that becomes verdicts, with 64 concurrent trials on a server that
works on 16 calls. A trial needs the server time of its description, of the rounds that count, of the ruling and of the
score. The available server time is capacity times wall time. The rest is lost to calls that turned out to be
superfluous, to a server that waited for us, and to the end, when trials run out and the server is no longer full.
``always_ahead`` is the same with sides that ask ahead whether there is spare capacity or not.

``call_cpu``, a part of the benchmark of the service, is what a model call costs our process: the CPU time of all its
threads, as the operating system counts it. The server is another process and takes no time to think. The calls are
those of real trials. The baseline is a bare POST of the same bytes through the same HTTP client: it excludes all of our
code, and shows the speed of the machine.
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
from court.backends.http import http_client
from court.deadline import Deadline
from court.events import Side
from court.examination import entropy
from court.meme import Frame
from court.messages import AdvocateBrief, Exchange, Exhibit, JudgeBrief
from court.ports import ChatModel, ChatReply, ChatRequest, Odds
from court.roles import Advocate, Judge, Proposer, RoleModel, RoleModels, Speaker
from court.summary import vote_if_close
from court.trial import Court, TrialCase
from court.untrusted import Fence
from eval.perf.bench import Result, medians
from eval.perf.trials import CAN, Bar, KnownFinder, Speed, bar, case, of_tokens, times, unwatched
from eval.standin.process import model_server
from eval.standin.replies import TOKENS

_ROUNDS = 4
_FLOOR_SPEED = Speed(call_s=0.05, prompt_token_s=0.00002, output_token_s=0.006)
_NAIVE_SPEED = Speed(call_s=0.03, prompt_token_s=0.00002, output_token_s=0.003)
_NAIVE_ROUNDS = (6, 10)
_BUSY_SPEED = Speed(call_s=0.04, prompt_token_s=0.00002, output_token_s=0.004)
_BUSY_ROUNDS = (2, 3, 4, 5, 6)
_CAPACITY = 16
_AT_ONCE = 64


def trial_floor(*, trials: int = 7, pairs: int = 2) -> Result:
    """Runs the benchmark."""
    return _over_floor(trials) | _naive_over_ours(pairs)


def _over_floor(trials: int) -> Result:
    with model_server("--play", *_FLOOR_SPEED.flags) as address:
        taken = asyncio.run(_walls_and_floors(address, trials))
    ratios = [wall / floor for wall, floor in taken]
    return Result(
        figures={
            **medians(taken, wall_over_floor=lambda wall, floor: wall / floor),
            "best": min(ratios),
            "worst": max(ratios),
            **medians(taken, floor_s=lambda _, floor: floor, wall_s=lambda wall, _: wall),
            "rounds": _ROUNDS,
        },
        goals={"wall_over_floor": "<= 1.05"},
    )


async def _walls_and_floors(address: str, trials: int) -> list[tuple[float, float]]:
    taken = []
    async with bar(address, finder=KnownFinder(find_s=0.1, pictures_s=0.05)) as it:
        # Connections are opened, and the common beginning of all prompts is cached, before the clock starts.
        await it.court.run(case("warming up", 2), unwatched)
        for number in range(trials):
            trial = case(f"number {number}", _ROUNDS)
            began = time.perf_counter()
            record = await it.court.run(trial, unwatched)
            wall = time.perf_counter() - began
            needed = times(record, _FLOOR_SPEED)
            assert {side.rounds for side in needed.sides} == {_ROUNDS}, "the stand-in did not keep to its part"
            taken.append((wall, needed.floor))
    return taken


def _naive_over_ours(pairs: int) -> Result:
    with model_server("--play", *_NAIVE_SPEED.flags) as address:
        walls = asyncio.run(_pairs(address, pairs))
    figures: dict[str, float] = {}
    for rounds, taken in walls.items():
        bound = of_tokens(_NAIVE_SPEED, TOKENS, rounds)
        measured = medians(
            taken,
            naive_over_ours=lambda naive_s, ours_s: naive_s / ours_s,
            by_lengths=lambda *_, bound=bound: bound.naive / bound.floor,
            naive_s=lambda naive_s, _: naive_s,
            ours_s=lambda _, ours_s: ours_s,
        )
        figures |= {f"{name}_{rounds}": value for name, value in measured.items()}
    return Result(figures=figures, goals={f"naive_over_ours_{rounds}": ">= 2.5" for rounds in walls})


async def _pairs(address: str, pairs: int) -> dict[int, list[tuple[float, float]]]:
    """Returns the seconds of the naive order and of ours, one right after the other, for each number of rounds."""
    walls: dict[int, list[tuple[float, float]]] = {rounds: [] for rounds in _NAIVE_ROUNDS}
    async with bar(address) as it:
        await it.court.run(case("warming up", 2), unwatched)
        for pair in range(pairs):
            for rounds in _NAIVE_ROUNDS:
                # Two memes, so that neither trial hits the server's prefix cache thanks to the other.
                began = time.perf_counter()
                exchanged = await naive(it.court, case(f"naive {pair} {rounds}", rounds))
                between = time.perf_counter()
                record = await it.court.run(case(f"ours {pair} {rounds}", rounds), unwatched)
                # A round is at least three events of each of the two sides.
                assert len(record.events) > 6 * rounds and exchanged == (rounds, rounds), (
                    "not of the rounds that were meant"
                )
                walls[rounds].append((between - began, time.perf_counter() - between))
    return walls


async def naive(court: Court, case: TrialCase) -> tuple[int, ...]:
    """Runs Algorithm 1 as printed; returns the rounds of each side. The score, which it does not have, is left out."""
    role_models, settings, policy = court.role_models, court.settings, court.policy
    assert role_models is not None and case.meme.text is not None
    frames, text = case.meme.frames, case.meme.text
    fence, deadline = Fence(), Deadline(case.within_s, settings.call_s)

    def speaker(model: RoleModel) -> Speaker:
        return Speaker(model=model, fence=fence, deadline=deadline, reply_chars=settings.reply_chars)

    proposer = Proposer(speaker(role_models.proposer), frames)
    description = (await proposer.describe()).value
    justifications, rounds = [], []
    # One side after the other, and one call after the other: Algorithm 1 runs nothing concurrently.
    for side, role_model in ((Side.ACCUSER, role_models.accuser), (Side.DEFENDER, role_models.defender)):
        brief = AdvocateBrief(policy=policy, fence=fence, text=text, description=description)
        advocate = Advocate(speaker(role_model), side, brief)
        history: list[Exchange] = []
        previous: float | None = None
        for number in range(1, settings.rounds_max + 1):
            question = (await advocate.ask(history)).value
            history.append(Exchange(question, (await proposer.answer(question)).value))
            argument = (await advocate.summarise(history)).value
            bits = entropy(argument.summary)
            # The stop criterion as printed in the paper: two summaries whose entropies differ by less than epsilon.
            if number >= settings.rounds_min and previous is not None and abs(bits - previous) < settings.epsilon:
                break
            previous = bits
        justifications.append(argument.justification)
        rounds.append(len(history))
    findings = await court.finder.find(
        text=text,
        frames=frames,
        pixels_sha256=case.meme.digest,
        exhibits=settings.exhibits,
        tally=settings.tally,
        alpha=settings.alpha,
    )
    pictures = await court.finder.pictures([precedent.id for precedent in findings.exhibits])
    exhibits = tuple(Exhibit(*pair) for pair in zip(findings.exhibits, pictures, strict=True))
    accuser, defender = justifications
    brief_of_judge = JudgeBrief(
        pictures=frames,
        policy=policy,
        fence=fence,
        text=text,
        description=description,
        accuser=accuser,
        defender=defender,
        exhibits=exhibits,
        vote=vote_if_close(findings),
    )
    await Judge(speaker(role_models.judge)).rule(brief_of_judge)
    return tuple(rounds)


def saturation(*, trials: int = 64) -> Result:
    """Runs the benchmark."""
    flags = ("--play", *_BUSY_SPEED.flags, "--capacity", str(_CAPACITY))
    # A separate server for each, so that the second run hits no prefix cache of the first.
    with model_server(*flags) as address:
        needed, wall = asyncio.run(_all_at_once(address, trials, name="with room", concurrency=_CAPACITY))
    with model_server(*flags) as address:
        # A limit that is never reached, so that there always seems to be spare capacity.
        needed_blindly, wall_blindly = asyncio.run(_all_at_once(address, trials, name="always", concurrency=10**9))
    return Result(
        figures={
            "of_capacity": share(needed, wall),
            "always_ahead": share(needed_blindly, wall_blindly),
            "trials_a_minute": 60 * trials / wall,
            "capacity_a_minute": 60 * trials * _CAPACITY / needed,
            "wall_s": wall,
        },
        goals={"of_capacity": ">= 0.95"},
    )


def share(needed: float, wall: float, capacity: int = _CAPACITY) -> float:
    """Returns the share of the available server time that trials needed."""
    return needed / (capacity * wall)


async def _all_at_once(address: str, trials: int, *, name: str, concurrency: int) -> tuple[float, float]:
    """Returns the seconds of server time that the trials needed, and the wall-clock seconds."""
    async with bar(address, concurrency=concurrency) as it:
        await it.court.run(case(f"warming up {name}", 2), unwatched)
        cases = [case(f"{name} {number}", _BUSY_ROUNDS[number % len(_BUSY_ROUNDS)]) for number in range(trials)]
        began = time.perf_counter()
        records = await asyncio.gather(*(it.court.run(each, unwatched) for each in cases))
        wall = time.perf_counter() - began
    return sum(times(record, _BUSY_SPEED).needed for record in records), wall


def call_cpu(*, calls: int = 300, trials: int = 16) -> Result:
    """Runs the benchmark."""
    with model_server("--play") as address:
        figures = asyncio.run(_calls(address, calls, trials))
    return Result(
        figures=figures,
        # A trial's calls carry its prompts, events and waits too.
        goals={
            "text_call_over_bare": "<= 1.8",
            "trial_call_over_bare": "<= 3",
            "concurrent_trial_call_over_bare": "<= 3",
        },
    )


async def _calls(address: str, calls: int, trials: int) -> dict[str, float]:
    async with bar(address) as it, http_client() as http:
        requests = await _requests_of_a_trial(it)
        # From the end, because late prompts contain the whole history.
        text = next(request for request in reversed(requests) if not _frames(request))
        picture = next(request for request in reversed(requests) if len(_frames(request)) == 1)
        url, body = f"{address}/v1/chat/completions", _body(text)

        async def bare() -> None:
            await _post(http, url, body)

        # In turns, so that a slowdown of the machine affects all of them.
        bare_ms, text_ms, picture_ms = await _medians(calls, bare, _reply(it, text), _reply(it, picture))
        of_trial = {
            "trial_call": await _of_trials(it, http, address, trials=trials, at_once=1),
            "concurrent_trial_call": await _of_trials(it, http, address, trials=trials, at_once=_AT_ONCE),
        }
        figures = {**of_trial, "text_call": text_ms, "picture_call": picture_ms}
        return {
            **{f"{name}_cpu_ms": value for name, value in figures.items()},
            "bare_post_cpu_ms": bare_ms,
            # The bare POST has the body of the text call, so these ratios show what our code adds.
            **{f"{name}_over_bare": value / bare_ms for name, value in figures.items()},
        }


@dataclass(frozen=True, slots=True)
class _Remembering:
    """A model that records its requests in order."""

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
    """Returns all requests except those for the score; from now on the server knows their pictures."""
    model = _Remembering(it.model)
    role_model = RoleModel(model)
    court = replace(it.court, role_models=RoleModels(role_model, role_model, role_model, role_model))
    await court.run(case("remembered", _ROUNDS), unwatched)
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


async def _medians(times: int, *calls: Callable[[], Awaitable[object]]) -> list[float]:
    spent: list[list[float]] = [[] for _ in calls]
    for _ in range(times):
        for call, seconds in zip(calls, spent, strict=True):
            # CPU time, not wall time, because waiting for the server does not count.
            before = time.process_time()
            await call()
            seconds.append(time.process_time() - before)
    return [1000 * statistics.median(seconds) for seconds in spent]


async def _of_trials(it: Bar, http: httpx2.AsyncClient, address: str, *, trials: int, at_once: int) -> float:
    """Returns the CPU time of whole trials per call that the server saw: prompts, client, replies, events and all."""

    async def calls_served() -> int:
        return int((await http.get(f"{address}/stats")).json()["calls"])

    spent = []
    for turn in range(max(2, trials // at_once)):
        cases = [case(f"number {number} of {at_once} in turn {turn}", _ROUNDS) for number in range(at_once)]
        # In this order, and in reverse below, so that the cost of fetching the count is in neither reading.
        calls, before = await calls_served(), time.process_time()
        await asyncio.gather(*(it.court.run(each, unwatched) for each in cases))
        seconds = time.process_time() - before
        spent.append(seconds / (await calls_served() - calls))
    return 1000 * statistics.median(spent)
