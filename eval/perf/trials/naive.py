"""How much faster a trial is than Algorithm 1 as it is printed: one call after the other, one side after the other.

The same agents, prompts, client and server, in a plain loop. Beside what was measured stands what the lengths of the
replies alone would make of it: ``D + 2 R (q + a + s) + J`` over ``D + R (q + a) + s + J``.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from court.deadline import Deadline
from court.events import Side
from court.examination import entropy
from court.messages import AdvocateBrief, Exchange, Exhibit, JudgeBrief
from court.roles import Advocate, Judge, Proposer, RoleModel, Speaker
from court.summary import vote_if_close
from court.trial import Court, TrialCase
from court.untrusted import Fence
from eval.perf.bench import Result
from eval.perf.model_server.replies import TOKENS
from eval.perf.trials.trials import Speed, bar, case, of_tokens, server, unwatched

SPEED = Speed(call_s=0.03, prompt_token_s=0.00002, output_token_s=0.003)
_ROUNDS = (6, 10)
_PAIRS = 2


def measure() -> Result:
    """Runs the benchmark."""
    with server("--play", *SPEED.flags) as address:
        pairs = asyncio.run(_pairs(address))
    figures, goals = {}, {}
    for rounds, walls in pairs.items():
        name = f"naive_over_ours_{rounds}"
        figures[name] = round(statistics.median(naive / ours for naive, ours in walls), 3)
        alone = of_tokens(SPEED, TOKENS, rounds)
        figures[f"by_lengths_{rounds}"] = round(alone.naive / alone.floor, 3)
        figures[f"naive_s_{rounds}"] = round(statistics.median(naive for naive, _ in walls), 3)
        figures[f"ours_s_{rounds}"] = round(statistics.median(ours for _, ours in walls), 3)
        goals[name] = ">= 2.5"
    return Result(name="trial-naive", figures=figures, goals=goals)


async def _pairs(address: str) -> dict[int, list[tuple[float, float]]]:
    """Seconds of the naive order and of ours, side by side in time, for each number of rounds."""
    walls: dict[int, list[tuple[float, float]]] = {rounds: [] for rounds in _ROUNDS}
    async with bar(address) as it:
        await it.court.hear(case("warming up", 2), unwatched)
        for pair in range(_PAIRS):
            for rounds in _ROUNDS:
                # Two memes: neither finds in the server's cache what the other left there.
                began = time.perf_counter()
                held = await naive(it.court, case(f"naive {pair} {rounds}", rounds))
                between = time.perf_counter()
                record = await it.court.hear(case(f"ours {pair} {rounds}", rounds), unwatched)
                assert len(record.events) > 6 * rounds and held == (rounds, rounds), "not of the rounds that were meant"
                walls[rounds].append((between - began, time.perf_counter() - between))
    return walls


async def naive(court: Court, case: TrialCase) -> tuple[int, ...]:
    """Algorithm 1 as it is printed; the rounds of each side. The score, which it does not know, is left out."""
    chairs, settings, policy = court.chairs, court.settings, court.policy
    assert chairs is not None and case.meme.text is not None
    frames, text = case.meme.picture.frames, case.meme.text
    fence, deadline = Fence(), Deadline(case.within_s, settings.call_s)

    def speaker(model: RoleModel) -> Speaker:
        return Speaker(model=model, fence=fence, deadline=deadline, reply_chars=settings.reply_chars)

    proposer = Proposer(speaker(chairs.proposer), frames)
    description = (await proposer.describe()).value
    justifications, rounds = [], []
    for side, chair in ((Side.ACCUSER, chairs.accuser), (Side.DEFENDER, chairs.defender)):
        brief = AdvocateBrief(policy=policy, fence=fence, text=text, description=description)
        advocate = Advocate(speaker(chair), side, brief)
        history: list[Exchange] = []
        previous: float | None = None
        for number in range(1, settings.rounds_max + 1):
            question = (await advocate.ask(history)).value
            history.append(Exchange(question, (await proposer.answer(question)).value))
            argument = (await advocate.summarise(history)).value
            bits = entropy(argument.summary)
            if number >= settings.rounds_min and previous is not None and abs(bits - previous) < settings.epsilon:
                break
            previous = bits
        justifications.append(argument.justification)
        rounds.append(len(history))
    findings = await court.finder.find(
        text=text,
        frames=frames,
        pixels_sha256=case.meme.picture.pixels_sha256,
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
    await Judge(speaker(chairs.judge)).rule(brief_of_judge)
    return tuple(rounds)
