"""Arithmetic and scripted replies of the benchmarks of trials; their results are not tested here."""

import asyncio
import itertools
import re
from functools import partial

import pytest

from court.backends.chat.client import ChatCompletions
from court.backends.http import Load, Spread, http_client
from court.errors import Unavailable
from court.events import ModelCall, QuestionAsked, Role, Side, SideRested
from court.examination import entropy
from court.policy import DEFAULT_POLICY
from court.ports import ChatRequest
from court.replies import (
    Answer,
    Argument,
    Description,
    Question,
    parse_answer,
    parse_argument,
    parse_description,
    parse_question,
    parse_ruling,
    ruling_schema,
    text_schema,
)
from court.roles import RoleModel, RoleModels
from court.settings import TrialSettings
from eval.perf.trials.overhead import naive, share
from eval.perf.trials.trials import Examined, Speed, Times, bar, case, of_tokens, times, unwatched
from eval.standin.replies import TOKENS, meme_text, scripted_reply, tokens_of
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings, parsed
from tests.support import cast as casts
from tests.support import virtual_time
from tests.support.cast import Cast, task_of

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


# Arithmetic


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


@pytest.mark.parametrize("rounds", [1, 4, 10])
def test_reply_lengths_alone_give_the_published_formulas(rounds):
    d, q, a, s, j = (TOKENS[task] for task in ("describe", "ask", "answer", "summarise", "judge"))
    alone = of_tokens(Speed(output_token_s=1.0), TOKENS, rounds)
    assert alone.floor == d + rounds * (q + a) + s + j
    assert alone.naive == d + 2 * rounds * (q + a + s) + j


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


# Replies of the fake model server


CHARS = TrialSettings().reply_chars


def scripted(words, schema):
    payload = {"messages": [{"role": "user", "content": words}]}
    payload["response_format"] = {"json_schema": {"schema": schema}}
    return scripted_reply(payload)


def text_reply(kind, words="x"):
    return scripted(words, text_schema(kind, CHARS))


def test_scripted_replies_have_the_stated_length_and_can_be_parsed():
    ruling = scripted("x", ruling_schema(DEFAULT_POLICY, 3, CHARS))
    replies = {
        "describe": text_reply(Description, [{"type": "image_url"}, {"type": "text", "text": "Describe"}]),
        "ask": text_reply(Question),
        "answer": text_reply(Answer),
        "summarise": text_reply(Argument, meme_text("m", 4)),
        "judge": ruling,
    }
    assert {task: len(tokens_of(reply)) for task, reply in replies.items()} == dict(TOKENS)
    assert parse_description(replies["describe"]) and parse_answer(replies["answer"])
    assert parse_question(replies["ask"]) and parse_argument(replies["summarise"]).summary
    assert len(parse_ruling(ruling, DEFAULT_POLICY, 3).precedents) == 3
    alone = scripted("x", ruling_schema(DEFAULT_POLICY, 0, CHARS))
    assert not parse_ruling(alone, DEFAULT_POLICY, 0).precedents


def test_other_schemas_are_left_to_the_model_server():
    assert scripted("x", {"type": "object", "properties": {"word": {"type": "string"}}}) is None


@pytest.mark.parametrize("rounds", [2, 3, 6, 10])
def test_summaries_change_until_the_round_named_in_the_meme(rounds):
    histories = [meme_text("m", rounds) + text_reply(Answer) * count for count in range(1, rounds + 2)]
    bits = [entropy(parse_argument(text_reply(Argument, words)).summary) for words in histories]
    changes = [abs(one - other) for one, other in itertools.pairwise(bits)]
    epsilon = TrialSettings().epsilon
    assert all(change > epsilon for change in changes[: rounds - 2])
    assert all(change < epsilon for change in changes[rounds - 2 :])


def test_model_server_plays_a_trial_if_configured_to():
    assert parsed(["--play"])[0].play and not parsed([])[0].play

    async def run():
        async with serving(FakeModelServer(Settings(play=True))) as port, bar(f"http://127.0.0.1:{port}") as bench:
            record = await bench.court.hear(case("m", 3), unwatched)
            return record, await naive(bench.court, case("n", 3))

    record, rounds = asyncio.run(run())
    assert rounds == (3, 3)
    assert [event.rounds for event in record.all(SideRested)] == [3, 3]
    needed = times(record, Speed(output_token_s=1.0))
    alone = of_tokens(Speed(output_token_s=1.0), TOKENS, 3)
    assert (needed.floor, needed.naive, needed.score) == (alone.floor, alone.naive, 2)


# Load: spare capacity


def test_capacity_is_free_below_the_limit():
    load = Load(2)
    with load.call():
        assert load.room() and load.in_flight == 1
        with load.call():
            assert not load.room()
        assert load.room()
    assert load.in_flight == 0
    with pytest.raises(ValueError, match="at least one"):
        Load(0)


HELLO = ChatRequest("s", ("hello",), None, 8)


def test_load_counts_the_calls_of_all_models_however_they_end():
    async def run():
        load = Load(3)
        async with serving(FakeModelServer(Settings(call_s=60, faults=()))) as port:
            url = f"http://127.0.0.1:{port}/v1"
            models = [ChatCompletions(base_url=url, model=name, load=load, attempts=1) for name in ("stand-in", "none")]
            asking = [asyncio.create_task(models[0].reply(HELLO, within_s=60)) for _ in range(3)]
            for _ in range(20):  # every task reaches its call within a few turns of the event loop
                await asyncio.sleep(0)
            full = (load.in_flight, load.room())
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            with pytest.raises(Exception, match="does not know the model"):
                await models[1].reply(HELLO, within_s=60)
            for model in models:
                await model.aclose()
        return full, load.in_flight

    assert asyncio.run(run()) == ((3, False), 0)


# Speculative rounds


def tasks_of(cast, role="accuser"):
    return [task_of(request) for request in cast.requests(role)]


def slow_summaries(rounds=4, times_longer=6, **lines):
    """Returns a cast whose summaries take as long as several questions and answers."""
    cast = Cast(rounds=rounds, delay_s=0.005, **lines)
    speak = {role: cast.models[role].reply for role in ("accuser", "defender")}

    def slowly(role):
        async def reply(request, *, within_s):
            if task_of(request) == "summarise":
                await asyncio.sleep(0.005 * times_longer)
            return await speak[role](request, within_s=within_s)

        return reply

    for role in speak:
        object.__setattr__(cast.models[role], "reply", slowly(role))
    return cast


def test_at_most_three_rounds_run_ahead_of_unfinished_summaries():
    cast = slow_summaries(rounds=4, times_longer=20)
    record = try_meme(cast)
    assert {event.rounds for event in record.all(SideRested)} == {4}
    rounds = [event.round for event in record.all(QuestionAsked) if event.side is Side.ACCUSER]
    assert rounds == list(range(1, len(rounds) + 1))
    assert 4 < len(rounds) <= 4 + 3


def test_summaries_are_recorded_in_the_order_of_rounds():
    order = iter([30, 1, 1, 1, 1, 1, 1, 1])
    cast = Cast(rounds=4, delay_s=0.002)
    speak = cast.models["accuser"].reply

    async def reply(request, *, within_s):
        if task_of(request) == "summarise":
            await asyncio.sleep(0.002 * next(order))
        return await speak(request, within_s=within_s)

    object.__setattr__(cast.models["accuser"], "reply", reply)
    record = try_meme(cast)
    summaries = [event for event in record.events if event.kind == "Summarised" and event.side is Side.ACCUSER]
    assert [event.round for event in summaries] == [1, 2, 3, 4]
    plain = try_meme(Cast(rounds=4), settings=TrialSettings(overlap=False))
    expected = [event for event in plain.events if event.kind == "Summarised" and event.side is Side.ACCUSER]
    assert [(e.entropy, e.entropy_change) for e in summaries] == [(e.entropy, e.entropy_change) for e in expected]


class BusyServers:
    """A model whose server has no capacity for another call."""

    urls = ("http://busy",)

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def pinned(self, key):
        return self

    def room(self):
        return False


def test_no_rounds_run_ahead_without_spare_capacity():
    cast = slow_summaries()
    role_models = RoleModels(
        **{role: RoleModel(model, servers=BusyServers(model)) for role, model in cast.models.items()}
    )
    try_meme(cast, role_models=role_models)
    assert tasks_of(cast) == ["ask", "summarise"] * 4


def test_only_failures_in_needed_rounds_fail_the_trial():
    def fails_at(number):
        def line(request):
            previous = sum("Question " in part for part in request.parts if isinstance(part, str))
            return Unavailable("gone", reason="MODEL_GONE") if previous + 1 == number else None

        return line

    record = try_meme(slow_summaries(rounds=3, accuser_ask=fails_at(4)))
    assert {event.rounds for event in record.all(SideRested)} == {3}
    with pytest.raises(Exception, match="gone"):
        try_meme(slow_summaries(rounds=3, accuser_ask=fails_at(3)))


# Connections


def test_request_goes_to_the_pool_with_the_fewest_in_flight():
    async def run():
        async with serving(FakeModelServer(Settings())) as port, http_client(connections=64) as http:
            spread = http._transport
            assert isinstance(spread, Spread) and len(spread._pools) == 4
            url = f"http://127.0.0.1:{port}/health"
            in_flight = []
            async with http.stream("GET", url), http.stream("GET", url) as second:
                in_flight.append(list(spread._in_flight))
                await second.aread()
                await second.aclose()
                await second.aclose()  # counted once
                in_flight.append(list(spread._in_flight))
            with pytest.raises(Exception, match=re.compile("connect", re.IGNORECASE)):
                await http.get("http://127.0.0.1:1/")
            in_flight.append(list(spread._in_flight))
            return in_flight

    assert asyncio.run(run()) == [[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
