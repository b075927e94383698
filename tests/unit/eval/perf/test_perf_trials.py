"""Arithmetic of the benchmarks of trials, and a trial against the stand-in model server."""

import asyncio
from functools import partial

import pytest

from court.events import ModelCall, QuestionAsked, Role, Side, SideRested
from eval.perf.overhead import naive, share
from eval.perf.trials import Examined, Speed, Times, bar, case, times, unwatched
from eval.standin.replies import TOKENS
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings, parsed
from tests.support import cast as casts
from tests.support import virtual_time
from tests.support.cast import Cast

try_meme = partial(casts.try_meme, run=virtual_time.run)


def call(*, tokens_in=100, cached=0, out=10, fault=""):
    return ModelCall(
        role=Role.ACCUSER,
        model="m",
        prompt_id="p",
        prompt_digest="d",
        tokens_in=tokens_in,
        tokens_out=out,
        tokens_cached=cached,
        latency_s=0.0,
        fault=fault,
    )


def test_duration_of_a_call_follows_from_the_server_s_settings_and_token_counts():
    speed = Speed(call_s=1.0, prompt_token_s=0.01, output_token_s=0.1)
    assert speed.of(call()) == pytest.approx(1 + 1 + 1)
    assert speed.of(call(cached=60)) == pytest.approx(1 + 0.4 + 1)
    assert speed.of(call(), calls=2) == pytest.approx(2 + 1 + 1)
    with pytest.raises(ValueError, match="twice"):
        speed.of(call(fault="it was empty"))


def test_floor_is_the_slower_side_s_chain_and_naive_is_the_sum():
    slow = Examined(questions=(2.0, 3.0), answers=(1.0, 1.0), summaries=(5.0, 7.0))
    quick = Examined(questions=(1.0,), answers=(1.0,), summaries=(4.0,))
    trial = Times(describe=10.0, sides=(slow, quick), judge=20.0, score=0.5)
    assert trial.floor == 10 + (2 + 1 + 3 + 1 + 7) + 20
    assert trial.naive == 10 + (2 + 1 + 5 + 3 + 1 + 7) + (1 + 1 + 4) + 20
    assert trial.needed == trial.naive + 0.5
    assert (slow.rounds, quick.rounds) == (2, 1)


def test_share_of_capacity_is_needed_over_available_time():
    assert share(needed=160.0, wall=10.0, capacity=16) == 1.0
    assert share(needed=152.0, wall=10.0, capacity=16) == 0.95


def test_superfluous_calls_are_excluded_from_what_a_trial_needs():
    record = try_meme(Cast(rounds=2))
    rounds = {event.side: event.rounds for event in record.all(SideRested)}
    assert max(event.round for event in record.all(QuestionAsked)) > rounds[Side.ACCUSER]
    needed = times(record, Speed(call_s=1.0))
    assert [side.rounds for side in needed.sides] == [2, 2]
    assert needed.needed == 2 + 3 * 4 + 2  # with the two calls for the score
    assert needed.floor == 1 + 2 * 2 + 1 + 1


def test_model_server_plays_a_trial_if_configured_to():
    assert parsed(["--play"])[0].play and not parsed([])[0].play

    async def run():
        async with serving(FakeModelServer(Settings(play=True))) as port, bar(f"http://127.0.0.1:{port}") as court:
            record = await court.run(case("m", 3), unwatched)
            return record, await naive(court, case("n", 3))

    record, rounds = asyncio.run(run())
    assert rounds == (3, 3)
    assert [event.rounds for event in record.all(SideRested)] == [3, 3]
    needed = times(record, Speed(output_token_s=1.0))
    # Reply lengths alone give the published formulas.
    d, q, a, s, j = (TOKENS[task] for task in ("describe", "ask", "answer", "summarise", "judge"))
    assert needed.floor == d + 3 * (q + a) + s + j
    assert needed.naive == d + 2 * 3 * (q + a + s) + j and needed.score == 2
