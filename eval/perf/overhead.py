"""Overhead of the court over its model calls, against a fake server of known speed.

``trial-floor``: how close a trial comes to the shortest time that its calls allow: ``D + R (q + a) + s + J``, from the
time that the server, by its own settings and token counts, worked on each of these calls. Any wall-clock time beyond it
is our overhead. Searching precedents and reading their pictures take a realistic time here, and must not add to it. Its
second figure, ``naive_over_ours``, is how much faster a trial is than Algorithm 1 as printed, one call after the other,
one side after the other: the same agents, prompts, client and server, in a plain loop.

``saturation``: the share of a busy server's capacity that becomes verdicts, with 64 concurrent trials on a server that
works on 16 calls. The rest is lost to calls that turned out to be superfluous, to a server that waited for us, and to
the end, when trials run out and the server is no longer full.

``call_cpu``, a part of the benchmark of the service, is the CPU time of our process for each model call of a trial. The
baseline is a bare POST of some 8 kB through the same HTTP client: it excludes all of our code, and shows the speed of
the machine.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time

import httpx2

from court.backends.http import http_client
from court.deadline import Deadline
from court.events import Side
from court.examination import entropy
from court.messages import AdvocateBrief, Exchange, Exhibit, JudgeBrief
from court.prompts import Fence
from court.roles import Advocate, Judge, Proposer, RoleModel, Speaker
from court.summary import vote_if_close
from court.trial import Court, TrialCase
from eval.perf.bench import Result, medians
from eval.perf.trials import KnownFinder, Speed, bar, case, times, unwatched
from eval.standin.process import model_server

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
    figures = medians(taken, wall_over_floor=lambda wall, floor: wall / floor, floor_s=lambda _, floor: floor)
    return Result(figures=figures, goals={"wall_over_floor": "<= 1.05"})


async def _walls_and_floors(address: str, trials: int) -> list[tuple[float, float]]:
    taken = []
    async with bar(address, finder=KnownFinder(find_s=0.1, pictures_s=0.05)) as it:
        # Connections are opened, and the common beginning of all prompts is cached, before the clock starts.
        await it.run(case("warming up", 2), unwatched)
        for number in range(trials):
            trial = case(f"number {number}", _ROUNDS)
            began = time.perf_counter()
            record = await it.run(trial, unwatched)
            wall = time.perf_counter() - began
            needed = times(record, _FLOOR_SPEED)
            assert {side.rounds for side in needed.sides} == {_ROUNDS}, "the stand-in did not keep to its part"
            taken.append((wall, needed.floor))
    return taken


def _naive_over_ours(pairs: int) -> Result:
    with model_server("--play", *_NAIVE_SPEED.flags) as address:
        walls = asyncio.run(_pairs(address, pairs))
    figures = {
        f"naive_over_ours_{rounds}": statistics.median(naive_s / ours_s for naive_s, ours_s in taken)
        for rounds, taken in walls.items()
    }
    return Result(figures=figures, goals=dict.fromkeys(figures, ">= 2.5"))


async def _pairs(address: str, pairs: int) -> dict[int, list[tuple[float, float]]]:
    """Returns the seconds of the naive order and of ours, one right after the other, for each number of rounds."""
    walls: dict[int, list[tuple[float, float]]] = {rounds: [] for rounds in _NAIVE_ROUNDS}
    async with bar(address) as it:
        await it.run(case("warming up", 2), unwatched)
        for pair in range(pairs):
            for rounds in _NAIVE_ROUNDS:
                # Two memes, so that neither trial hits the server's prefix cache thanks to the other.
                began = time.perf_counter()
                exchanged = await naive(it, case(f"naive {pair} {rounds}", rounds))
                between = time.perf_counter()
                record = await it.run(case(f"ours {pair} {rounds}", rounds), unwatched)
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
    with model_server("--play", *_BUSY_SPEED.flags, "--capacity", str(_CAPACITY)) as address:
        needed, wall = asyncio.run(_all_at_once(address, trials))
    figures = {"of_capacity": share(needed, wall), "trials_a_minute": 60 * trials / wall}
    return Result(figures=figures, goals={"of_capacity": ">= 0.95"})


def share(needed: float, wall: float, capacity: int = _CAPACITY) -> float:
    """Returns the share of the available server time that trials needed."""
    return needed / (capacity * wall)


async def _all_at_once(address: str, trials: int) -> tuple[float, float]:
    """Returns the seconds of server time that the trials needed, and the wall-clock seconds."""
    async with bar(address, concurrency=_CAPACITY) as it:
        await it.run(case("warming up", 2), unwatched)
        cases = [case(f"number {number}", _BUSY_ROUNDS[number % len(_BUSY_ROUNDS)]) for number in range(trials)]
        began = time.perf_counter()
        records = await asyncio.gather(*(it.run(each, unwatched) for each in cases))
        wall = time.perf_counter() - began
    return sum(times(record, _BUSY_SPEED).needed for record in records), wall


def call_cpu(*, calls: int = 300, trials: int = 16) -> Result:
    """Runs the benchmark."""
    with model_server("--play") as address:
        figures = asyncio.run(_calls(address, calls, trials))
    return Result(figures, {name: "<= 3" for name in figures if name.endswith("_over_bare")})


async def _calls(address: str, calls: int, trials: int) -> dict[str, float]:
    body = {"model": "stand-in", "messages": [{"role": "user", "content": "word " * 1600}], "max_tokens": 100}
    async with bar(address) as court, http_client() as http:
        spent = []
        for _ in range(calls):
            before = time.process_time()
            response = await http.post(f"{address}/v1/chat/completions", json=body)
            assert json.loads(response.content)["choices"]
            spent.append(time.process_time() - before)
        bare = statistics.median(spent)
        one, many = [
            await _of_trials(court, http, address, trials=trials, at_once=at_once) for at_once in (1, _AT_ONCE)
        ]
        return {
            "bare_post_cpu_ms": 1000 * bare,
            "trial_call_over_bare": one / bare,
            "concurrent_trial_call_over_bare": many / bare,
        }


async def _of_trials(court: Court, http: httpx2.AsyncClient, address: str, *, trials: int, at_once: int) -> float:
    """Returns the CPU time of whole trials per call that the server saw: prompts, client, replies, events and all."""

    async def calls_served() -> int:
        return int((await http.get(f"{address}/stats")).json()["calls"])

    spent = []
    for turn in range(max(2, trials // at_once)):
        cases = [case(f"number {number} of {at_once} in turn {turn}", _ROUNDS) for number in range(at_once)]
        # In this order, and in reverse below, so that the cost of fetching the count is in neither reading.
        calls, before = await calls_served(), time.process_time()
        await asyncio.gather(*(court.run(each, unwatched) for each in cases))
        seconds = time.process_time() - before
        spent.append(seconds / (await calls_served() - calls))
    return statistics.median(spent)
