"""Tests of the stand-in model server that load tests rely on: speed, capacity, faults, schemas, prefix cache."""

import asyncio
import json
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.standin.faults import Faults, InjectedFault, Kind
from eval.standin.replies import BLOCK, PrefixCache, ReplyMaker, loop_end, token_id, tokens_of
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings
from tests.support.playing import until

HELLO = {
    "model": "stand-in",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there, you."}],
    "max_tokens": 64,
}


@asynccontextmanager
async def stand_in(settings=None):
    """A listening stand-in, a function that asks it, and the session of that."""
    server = FakeModelServer(settings)
    async with (
        asyncio.timeout(120),
        serving(server) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def ask(body=HELLO, path="/v1/chat/completions", headers=None):
            async with session.post(path, json=body, headers=headers) as response:
                return response.status, await response.json(content_type=None)

        yield server, ask, session


async def test_same_prompt_gets_the_same_reply_regardless_of_other_prompts():
    other = {**HELLO, "messages": [{"role": "user", "content": "Something else"}]}
    async with stand_in() as (_, ask, _):
        first, second = (await ask())[1]["choices"], (await ask(other))[1]["choices"]
    async with stand_in() as (_, ask, _):
        assert ((await ask(other))[1]["choices"], (await ask())[1]["choices"]) == (second, first)
    async with stand_in(Settings(seed=1)) as (_, ask, _):
        assert (await ask())[1]["choices"] != first
    assert first[0]["finish_reason"] == "stop"


async def test_reply_is_cut_at_max_tokens():
    async with stand_in() as (_, ask, _):
        body = (await ask({**HELLO, "max_tokens": 5}))[1]
    assert body["choices"][0]["finish_reason"] == "length"
    assert len(tokens_of(body["choices"][0]["message"]["content"])) == 5 == body["usage"]["completion_tokens"]


def test_prefix_cache_matches_beginnings_in_whole_blocks():
    cache = PrefixCache(blocks=4)
    prompt = [f"w{i}" for i in range(3 * BLOCK)]
    assert cache.cached(prompt) == 0
    cache.keep(prompt)
    assert cache.cached(prompt) == 2 * BLOCK  # the last token is always computed, and so is its block
    assert cache.cached([*prompt, "more"]) == 3 * BLOCK
    assert cache.cached([*prompt[:20], "other", *prompt[20:]]) == BLOCK
    assert cache.cached(["other", *prompt]) == 0
    cache.keep([f"x{i}" for i in range(3 * BLOCK)])
    assert cache.cached([*prompt, "more"]) == BLOCK  # room for one block of the prompt: the most recently used


async def test_cached_tokens_are_reported_and_counted():
    long = {**HELLO, "messages": [{"role": "user", "content": " ".join(f"w{i}" for i in range(400))}]}
    async with stand_in(Settings(prompt_token_s=1e-4)) as (server, ask, _):
        first, second = [(await ask(long))[1]["usage"] for _ in range(2)]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == 400 == server.stats.cached_tokens
    assert server.stats.prompt_tokens == 2 * 401


async def test_replies_take_the_configured_time():
    async with stand_in(Settings(call_s=0.1, prompt_token_s=0.01, output_token_s=0.01, words=10)) as (_, ask, _):
        began = time.monotonic()
        await ask()
        assert time.monotonic() - began >= 0.1 + 0.1 + 0.1 - 0.005  # 11 tokens in, 10 out


async def test_requests_beyond_capacity_and_queue_are_refused():
    # Long enough that all requests arrive before the first is answered.
    async with stand_in(Settings(capacity=2, queue=3, call_s=1.0)) as (server, ask, _):
        answers = await asyncio.gather(*(ask() for _ in range(10)))
    assert sorted(status for status, _ in answers) == [200] * 5 + [503] * 5
    assert server.stats.max_running == 2 and server.stats.running == server.stats.waiting == 0


async def test_disconnected_client_frees_its_place():
    async with stand_in(Settings(call_s=20)) as (server, ask, _):
        request = asyncio.create_task(ask())
        await until(lambda: server.stats.running)
        request.cancel()
        await until(lambda: server.stats.disconnects)
    assert (server.stats.disconnects, server.stats.running) == (1, 0)


SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "enum": ["HARMFUL", "NOT_HARMFUL"]},
        "reason": {"type": "string", "maxLength": 30},
        "points": {"type": "array", "items": {"type": "string", "minLength": 5}, "minItems": 2, "maxItems": 4},
        "count": {"type": "integer", "minimum": 3},
    },
    "required": ["label", "reason", "points", "count"],
    "additionalProperties": False,
}


async def test_replies_follow_a_json_schema():
    with_schema = {**HELLO, "response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA}}}

    async def reply_of(server_settings=None):
        async with stand_in(server_settings) as (_, ask, _):
            return json.loads((await ask({**with_schema, "max_tokens": 999}))[1]["choices"][0]["message"]["content"])

    reply = await reply_of()
    assert (reply["label"], reply["count"]) == ("HARMFUL", 3)
    assert list(reply) == list(SCHEMA["properties"])
    assert len(reply["reason"]) <= 30 and len(reply["points"]) == 2
    assert (await reply_of(Settings(values={"label": "NOT_HARMFUL"})))["label"] == "NOT_HARMFUL"
    assert (await reply_of(Settings(values={"label": "NONSENSE"})))["label"] == "HARMFUL"


@settings(max_examples=50)
@given(low=st.integers(0, 80), room=st.integers(0, 80), words=st.integers(0, 30))
def test_strings_respect_their_length_limits(low, room, words):
    schema = {"type": "string", "minLength": low, "maxLength": low + room}
    assert low <= len(json.loads(ReplyMaker(words=words).instance(["p"], schema))) <= low + room


async def test_one_token_calls_return_log_probabilities():
    one = {**HELLO, "max_tokens": 1, "logprobs": True, "top_logprobs": 2}
    ids = [token_id("B"), token_id("A")]
    async with stand_in() as (_, ask, _):
        tokenized = (await ask(path="/tokenize", body={"model": "stand-in", "prompt": "A"}))[1]
        chosen = {**one, "logprob_token_ids": ids, "return_tokens_as_token_ids": True}
        top, chosen = (await ask(one))[1]["choices"][0], (await ask(chosen))[1]["choices"][0]
    assert tokenized["tokens"] == [token_id("A")]
    assert [entry["token"] for entry in top["logprobs"]["content"][0]["top_logprobs"]] == ["A", "B"]
    assert [entry["token"] for entry in chosen["logprobs"]["content"][0]["top_logprobs"]] == [
        f"token_id:{number}" for number in ids
    ]


@pytest.mark.parametrize(
    ("fault", "finish", "content"),
    [
        ("truncated", "length", None),
        ("empty", "stop", ""),
        ("filter", "content_filter", None),
        ("abort", "abort", None),
        ("wrong_schema", "stop", '{"unexpected":[1,2,3]}'),
    ],
)
async def test_scripted_fault_spoils_one_reply(fault, finish, content):
    async with stand_in() as (server, ask, _):
        server.faults.script([fault])
        spoiled, next_one = (await ask())[1]["choices"][0], (await ask())[1]["choices"][0]
    assert spoiled["finish_reason"] == finish
    assert content is None or spoiled["message"]["content"] == content
    assert next_one["finish_reason"] == "stop"


@pytest.mark.parametrize("fault", ["reset", "cut"])
async def test_scripted_broken_connection_affects_one_call(fault):
    async with stand_in() as (server, ask, _):
        server.faults.script([fault])
        with pytest.raises(aiohttp.ClientError):
            await ask()
        assert (await ask())[0] == 200


def test_faults_by_rate_are_reproducible():
    faults = [Faults(["503@0.2", "hang@0.1"], seed=3) for _ in range(2)]
    drawn = [[schedule.next().kind for _ in range(2000)] for schedule in faults]
    assert drawn[0] == drawn[1]
    assert 300 < drawn[0].count(Kind.STATUS) < 500 and 120 < drawn[0].count(Kind.HANG) < 280


@pytest.mark.parametrize("text", ["status", "nonsense", "503@2", "slow:-1", "@", ""])
def test_invalid_fault_specifications_are_refused(text):
    with pytest.raises(ValueError):
        InjectedFault.parse(text)


def test_fault_rates_adding_up_to_more_than_one_are_refused():
    with pytest.raises(ValueError):
        Faults(["503@0.6", "hang@0.6"])


@pytest.mark.parametrize(
    ("tokens", "end"),
    [
        ("abcdefgh", None),
        ("xab" + "ab" * 3, 9),  # a pattern of two, four times: the minimum is eight tokens
        ("x" + "abc" * 4 + "abc", 13),
        ("abababab" * 1, 8),
        ("aabbaabb", None),
        ("abcd" * 3, None),
    ],
)
def test_loop_ends_once_its_pattern_has_repeated_often_enough(tokens, end):
    assert loop_end(list(tokens), range(2, 5), 4) == end


async def test_restricted_server_refuses_unsupported_requests():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    by_name = {"type": "image_url", "image_url": None, "uuid": "a"}
    elsewhere = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}
    response_format = {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA}}

    def shown(*parts):
        return {**HELLO, "messages": [{"role": "user", "content": list(parts)}]}

    key = {"Authorization": "Bearer secret"}
    async with stand_in(Settings(features=frozenset(), pictures=1, api_key="secret")) as (_, ask, _):
        bodies = [
            HELLO,
            {**HELLO, "model": "other"},
            {**HELLO, "stream": True},
            {**HELLO, "response_format": response_format},
            {**HELLO, "max_tokens": 100_000},
            shown(picture),
            shown(picture, picture),
            shown(by_name),
            shown(elsewhere),
            {"model": "stand-in"},
        ]
        statuses = [(await ask(body, headers=key))[0] for body in bodies] + [(await ask())[0]]
    assert statuses == [200, 404, 400, 400, 400, 200, 400, 400, 400, 400, 401]


def test_stand_in_runs_as_a_process():
    command = [sys.executable, "-m", "eval.standin.server", "--fault", "503@0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = json.loads(process.stdout.readline())["port"]

            async def steps():
                async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                    async with session.get("/health") as healthy:
                        assert healthy.status == 200
                    async with session.get("/v1/models") as models:
                        assert (await models.json())["data"][0]["id"] == "stand-in"
                    async with session.post("/v1/chat/completions", json=HELLO) as fine:
                        assert fine.status == 200
                    async with session.post("/script", json=["429:2", "500"]) as scripted:
                        assert scripted.status == 200
                    async with session.post("/script", json=["what"]) as scripted:
                        assert scripted.status == 400
                    async with session.post("/v1/chat/completions", json=HELLO) as busy:
                        assert (busy.status, busy.headers["Retry-After"]) == (429, "2")
                    async with session.post("/v1/chat/completions", json=HELLO) as broken:
                        assert broken.status == 500
                    async with session.get("/stats") as stats:
                        counts = await stats.json()
                        assert (counts["calls"], counts["answered"], counts["refused"]) == (3, 1, 2)

            asyncio.run(steps())
        finally:
            process.terminate()
