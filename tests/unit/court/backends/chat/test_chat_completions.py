"""The chat client against a fake server over a real socket: every failure mode, with calls counted at the server."""

import asyncio
import base64
import copy
import hashlib
import json
import logging
import time
import traceback

import httpx2
import openai
import pytest

from court.backends.chat import wire
from court.backends.chat.capabilities import probe
from court.backends.chat.client import ChatCompletions, http_client
from court.backends.chat.failures import MAPPED, Failure, Retries, of_sdk, of_status, quotable, retry_after
from court.errors import CourtError, ModelRefused, Overrun, Unavailable
from court.meme import Frame
from court.ports import ChatRequest, FinishReason
from eval.standin.replies import BLOCK
from eval.standin.settings import FEATURES, Settings
from tests.support.chat_completions import HELLO, KEY, MARKER, court_and_server, failing, wait_for_stats, with_server
from tests.support.leftovers import soon, without_garbage_collector

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
FRAME = Frame(png=PNG, width=4, height=3)
SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["HARMFUL", "NOT_HARMFUL"]}},
    "required": ["label"],
    "additionalProperties": False,
}


async def test_reply_carries_the_server_s_usage_figures():
    async with court_and_server(Settings(call_s=0.05, api_key=KEY)) as (chat, server):
        long = ChatRequest(system="You are brief.", parts=("a word " * 40,), reply_schema=None, max_tokens=64)
        (first, second), server = [await chat.reply(long, within_s=60) for _ in range(2)], server
    assert (first.finish, first.model, first.tokens_out) == (FinishReason.STOP, "stand-in", 20)
    assert first.tokens_in == server.stats.prompt_tokens // 2 == 2 + 4 + 80
    assert (first.tokens_cached, second.tokens_cached) == (0, 5 * BLOCK)
    assert 0.05 <= first.latency_s < 50  # in seconds
    sent = server.requests[0]
    assert sent["messages"][0] == {"role": "system", "content": "You are brief."}
    assert sent["messages"][1] == {"role": "user", "content": "a word " * 40}
    assert (sent["max_tokens"], sent["temperature"]) == (64, 0.0)
    assert set(sent) == {"model", "messages", "max_tokens", "temperature"}


async def test_pictures_arrive_byte_for_byte_in_order():
    async with court_and_server() as (chat, server):
        await chat.reply(
            ChatRequest(system="s", parts=("before", FRAME, "after"), reply_schema=None, max_tokens=9), within_s=60
        )
        before, picture, after = server.requests[0]["messages"][1]["content"]
    assert (before, after) == ({"type": "text", "text": "before"}, {"type": "text", "text": "after"})
    head, data = picture["image_url"]["url"].split(",")
    assert head == "data:image/png;base64" and base64.b64decode(data) == PNG
    assert set(picture) == {"type", "image_url"}


async def test_schema_is_sent_as_response_format():
    async with court_and_server() as (chat, server):
        request = ChatRequest(system="s", parts=("p",), reply_schema=SCHEMA, max_tokens=64)
        reply, sent = await chat.reply(request, within_s=60), server.requests[0]
    assert reply.text == '{"label":"HARMFUL"}' and not reply.schema_in_words
    assert sent["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "reply", "schema": SCHEMA, "strict": True},
    }


async def test_schema_is_appended_in_words_for_servers_without_schemas():
    async with court_and_server(capabilities=wire.Capabilities(json_schema=False)) as (chat, server):
        reply = await chat.reply(ChatRequest("s", ("p", FRAME), SCHEMA, 64), within_s=60)
        free = await chat.reply(ChatRequest("s", ("p", FRAME), None, 64), within_s=60)
        # Needed to rebuild the messages later.
        assert reply.schema_in_words and not free.schema_in_words
        sent = server.requests[0]
    assert "response_format" not in sent
    assert sent["messages"][0]["content"] == "s"
    assert sent["messages"][1]["content"][-1] == {"type": "text", "text": wire.in_words(SCHEMA)}
    assert '"enum":["HARMFUL","NOT_HARMFUL"]' in wire.in_words(SCHEMA)


ALWAYS = 9  # more than the client ever tries
OUTCOMES = {
    (ModelRefused, "MODEL_REFUSED", 1): ("400", "404", "413", "422", "301"),
    (ModelRefused, "MODEL_UNAUTHORISED", 1): ("401", "403"),
    # Refused unread: all attempts are used.
    (Unavailable, "MODEL_BUSY", 4): ("408", "409", "429", "503"),
    # May have been processed: one retry.
    (Unavailable, "MODEL_GONE", 2): ("500", "502", "504", "reset"),
    # Has been processed: no retry.
    (Unavailable, "MODEL_GONE", 1): ("501", "cut"),
    (Unavailable, "MODEL_GARBLED", 1): ("garbage", "204", "wrong_shape", "no_choices", "duplicate", "abort"),
}
"""Faults of a server by the error that they become, and by the number of calls."""


@pytest.mark.parametrize(
    ("script", "kind", "reason", "calls"),
    [
        *(([fault] * ALWAYS, *outcome) for outcome, faults in OUTCOMES.items() for fault in faults),
        # Different failures in a row.
        (["503", "429", "500"], Unavailable, "MODEL_GONE", 3),
        (["503", "400"], ModelRefused, "MODEL_REFUSED", 2),
    ],
)
def test_each_failure_has_its_error_and_number_of_attempts(script, kind, reason, calls):
    error, calls_made = failing(script)
    assert type(error) is kind
    assert (error.reason, calls_made) == (reason, calls)
    if kind is ModelRefused:
        assert str(error.status) == script[calls_made - 1]


@pytest.mark.parametrize(
    ("fault", "finish", "text"),
    [
        ("truncated", FinishReason.LENGTH, None),
        ("refusal", FinishReason.REFUSAL, ""),
        ("filter", FinishReason.REFUSAL, ""),
        ("empty", FinishReason.STOP, ""),
    ],
)
async def test_finish_reasons_are_distinguished(fault, finish, text):
    async with court_and_server() as (chat, server):
        server.faults.script([fault])
        reply = await chat.reply(HELLO, within_s=60)
    assert reply.finish is finish
    assert text is None or reply.text == text


@pytest.mark.parametrize("script", [["503"], ["429", "503", "408"], ["reset"], ["500"]])
async def test_temporary_failures_are_retried(script):
    async with court_and_server() as (chat, server):
        server.faults.script(script)
        reply = await chat.reply(HELLO, within_s=60)
        calls = server.stats.calls
    assert reply.finish is FinishReason.STOP and calls == len(script) + 1


async def test_retry_after_is_respected():
    async with court_and_server() as (chat, server):
        server.faults.script(["503:0.3"])
        reply = await chat.reply(HELLO, within_s=60)
        assert reply.latency_s >= 0.3


def test_retry_delay_beyond_the_deadline_fails_at_once():
    began = time.monotonic()
    error, calls = failing(["429:300", "ok"])
    assert time.monotonic() - began < 60
    assert (error.reason, error.retry_after, calls) == ("MODEL_BUSY", 300.0, 1)


@pytest.mark.parametrize("fault", ["hang", "slow:100", "drip:100"])
async def test_slow_call_times_out_without_retry(fault):
    async with court_and_server() as (chat, server):
        server.faults.script([fault] * ALWAYS)
        began = time.monotonic()
        with pytest.raises(Overrun) as caught:
            await chat.reply(HELLO, within_s=1.0)
        took = time.monotonic() - began
        await wait_for_stats(server, disconnects=1)
        error, calls = caught.value, server.stats.calls
    assert (error.reason, calls) == ("MODEL_TOO_SLOW", 1)
    assert 1.0 <= took < 60  # these faults last longer than that


async def test_deadline_covers_all_attempts():
    async with court_and_server() as (chat, server):
        server.faults.script(["503", "503", "hang"])
        began = time.monotonic()
        with pytest.raises(Overrun):
            await chat.reply(HELLO, within_s=3)
        took, calls = time.monotonic() - began, server.stats.calls
    assert took < 60 and calls == 3


@pytest.mark.parametrize("within_s", [0, -1.0])
def test_expired_deadline_makes_no_call(within_s):
    error, calls = failing([], within_s=within_s)
    assert error.reason == "MODEL_TOO_SLOW" and calls == 0


async def test_cancelling_reaches_the_server():
    async with court_and_server(Settings(call_s=60, api_key=KEY)) as (chat, server):
        calls = [asyncio.create_task(chat.reply(HELLO, within_s=60)) for _ in range(200)]
        await wait_for_stats(server, running=200)
        for task in calls:
            task.cancel()
        await wait_for_stats(server, disconnects=200)
        assert server.stats.running == 0
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)


@pytest.mark.parametrize("end", ["answered", "refused", "gone", "late", "cancelled"])
async def test_finished_call_frees_its_request_at_once(end):
    """Memory must be freed at once, without the garbage collector: requests hold pictures."""
    script = {"answered": [], "refused": ["503", "400"], "gone": ["reset"] * ALWAYS}.get(end, ["hang"])

    async def outcome_of_call(chat):
        request = ChatRequest(system="s", parts=(FRAME, "what is this?"), reply_schema=None, max_tokens=9)
        call = asyncio.ensure_future(chat.reply(request, within_s=0.5 if end == "late" else 60))
        if end == "cancelled":
            await asyncio.wait([call], timeout=0.5)
            call.cancel()
        try:
            await call
        except Overrun:
            return "late"
        except Unavailable:
            return "gone"
        except ModelRefused:
            return "refused"
        except asyncio.CancelledError:
            return "cancelled"
        finally:
            del call  # its exception refers to this frame
        return "answered"

    async with court_and_server() as (chat, server):
        server.faults.script(script)
        with without_garbage_collector(ChatRequest, Failure, httpx2.Request) as left:
            assert await outcome_of_call(chat) == end
            assert await soon(left) == []


async def test_cancelled_calls_leave_connections_usable():
    async with http_client(connections=50) as http, court_and_server(http=http) as (chat, server):
        server.faults.script(["hang"] * 50)
        hanging = [asyncio.create_task(chat.reply(HELLO, within_s=60)) for _ in range(50)]
        await wait_for_stats(server, calls=50)
        for task in hanging:
            task.cancel()
        replies = await asyncio.gather(*(chat.reply(HELLO, within_s=60) for _ in range(50)))
        await chat.aclose()
        assert not http.is_closed  # it is shared
        assert len(replies) == 50


async def test_client_makes_200_calls_concurrently():
    async with court_and_server() as (chat, server):
        requests = [ChatRequest("s", (f"number {i}", FRAME), None, 64) for i in range(200)]
        all_there, work = asyncio.Event(), server._work

        async def together(payload, fault):
            if server.stats.running == 200:
                all_there.set()
            await all_there.wait()  # no answer before the last request has arrived
            return await work(payload, fault)

        server._work = together
        replies = await asyncio.gather(*(chat.reply(request, within_s=100) for request in requests))
        assert (len(replies), server.stats.max_running) == (200, 200)


def collect(scenario, caplog, settings=None, **model):
    """All text that a failed call exposes: its error with the causes, and every line logged."""
    caplog.set_level(logging.DEBUG)
    error = with_server(scenario, settings, **model)
    text = "".join(traceback.format_exception(error)) + error.message + repr(error)
    return text + "".join(f"{record.getMessage()}{record.exc_text}" for record in caplog.records)


SENT = ["The meme says:\nNo more boats for\npeople from Blueland!", KEY]


@pytest.mark.parametrize(
    ("server_message", "shown"),
    [
        ("At most 4 image(s) may be provided in one prompt.", "At most 4 image(s) may be provided in one prompt."),
        ("The model `qwen` can't take\n a reply  schema", "The model … can't take a reply schema"),
        ("x" * 20 + " can't be " + "had, " * 100, "x" * 20 + " can't be " + "had, " * 42 + "…"),
        ("Bad input 'No more boats for people from Blueland!'", "Bad input …"),
        ("1 error: {'role': 'user', 'content': 'No more boats'} is no message", "1 error: … is no message"),
        # Echoes outside quotation marks: in other case or spacing, escaped, cut, encoded.
        ("Bad input: No more boats for people from Blueland!", ""),
        ("Bad input: NO MORE BOATS FOR people", ""),
        ("Bad input: ats for\tpeople fr", ""),
        (r"Bad input: No\u0020more\u0020boats", ""),
        ("Bad input 'No more boats for peo", ""),
        ("Bad input 'No more", ""),
        ("Bad input {'content': No more", ""),
        ("Bad input: " + "QkFE" * 12, ""),
        (f"The key {KEY} is for another", ""),
        ("Ask at http://10.0.0.7:8000/v1", ""),
        ("No\x1b[31mcolours", ""),
        ("…", ""),
        ("", ""),
    ],
)
def test_refusal_quotes_the_server_only_without_echoes_of_the_request(server_message, shown):
    assert quotable(server_message, SENT) == shown
    assert quotable(server_message, []) == "", "without the request an echo can't be recognised"
    message = of_status(400, {}, server_message, sent=SENT).error.message
    assert f"“{shown}”" in message if shown else "It says" not in message


@pytest.mark.parametrize(
    "script", [["400"], ["401"], ["404"], ["500"] * 2, ["503"] * 4, ["garbage"], ["cut"], ["reset"] * 2, ["hang"]]
)
def test_errors_and_logs_have_no_prompt_key_or_address(script, caplog):
    async def scenario(chat, server):
        server.faults.script(script)
        try:
            await chat.reply(HELLO, within_s=0.5)
        except CourtError as error:
            return error.with_traceback(None)

    text = collect(scenario, caplog)
    assert "127.0.0.1" not in text and MARKER not in text and KEY not in text
    # Only a refusal quotes the server.
    assert ("as told" in text) == (script == ["400"]) and ("model stand-in" in text) == (script == ["404"])


async def test_client_ignores_openai_and_proxy_environment_variables(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "from-the-environment")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    heads = []

    async def take(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        chat = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", model="m")
        with pytest.raises(ModelRefused):
            await chat.reply(HELLO, within_s=60)
        await chat.aclose()
    assert len(heads) == 1 and b"from-the-environment" not in heads[0]


def test_too_many_pictures_are_refused_before_sending():
    error, calls = failing(
        [], request=ChatRequest("s", (FRAME, FRAME), None, 9), capabilities=wire.Capabilities(pictures=1)
    )
    assert isinstance(error, ModelRefused) and error.reason == "MODEL_TOO_MANY_PICTURES" and calls == 0


async def test_picture_is_sent_once_and_then_named_by_its_digest():
    async with court_and_server(capabilities=wire.Capabilities(picture_ids=True)) as (chat, server):
        request = ChatRequest("s", ("p", FRAME), None, 9)
        for _ in range(2):
            await chat.reply(request, within_s=60)
        server._pictures.clear()  # as if vLLM evicted it from its cache
        await chat.reply(request, within_s=60)
        first, second, dropped, again = [sent["messages"][1]["content"][1] for sent in server.requests]
    assert {part["uuid"] for part in (first, second, again)} == {hashlib.sha256(PNG).hexdigest()}
    assert first["image_url"]["url"].startswith("data:image/png;base64,") and again == first
    assert second["image_url"] is None and dropped == second


async def test_odds_of_chosen_tokens_are_not_normalised():
    async with court_and_server(capabilities=wire.Capabilities(log_probs=wire.LogProbs.CHOSEN)) as (chat, server):
        odds = [await chat.odds(HELLO, ("B", "A"), within_s=60) for _ in range(2)]
    assert odds[0].masses == pytest.approx((0.3, 0.6)) and odds[0].reply.tokens_out == 1
    sent = server.requests[0]
    assert sent["max_tokens"] == 1 and len(sent["logprob_token_ids"]) == 2 and sent["logprobs"] is True
    assert "response_format" not in sent and "allowed_token_ids" not in sent


async def test_odds_are_taken_from_the_most_likely_tokens():
    async with court_and_server(capabilities=wire.Capabilities(log_probs=wire.LogProbs.TOP)) as (chat, server):
        odds, sent = await chat.odds(HELLO, ("A", "C"), within_s=60), server.requests[0]
    assert odds.masses == pytest.approx((0.6, 0.0)) and sent["top_logprobs"] == 20


async def test_odds_are_none_for_a_server_without_log_probabilities():
    async with court_and_server() as (chat, server):
        assert (await chat.odds(HELLO, ("A", "B"), within_s=60), server.stats.calls) == (None, 0)


async def test_odds_of_a_multi_token_option_are_refused():
    async with court_and_server(capabilities=wire.Capabilities(log_probs=wire.LogProbs.CHOSEN)) as (chat, _server):
        with pytest.raises(ModelRefused) as caught:
            await chat.odds(HELLO, ("two words", "B"), within_s=60)
        assert caught.value.reason == "MODEL_OPTION"


def test_odds_are_empty_when_the_server_omits_them():
    async def scenario(chat, server):
        return await chat.odds(HELLO, ("A", "B"), within_s=60)

    lesser = Settings(api_key=KEY, features=FEATURES - {"log_probs"})
    for support in (wire.LogProbs.TOP, wire.LogProbs.CHOSEN):
        # The server claimed to support them: the trial goes on without a harm score, and records the call's cost.
        odds = with_server(scenario, lesser, capabilities=wire.Capabilities(log_probs=support))
        assert odds.masses == () and odds.reply.tokens_in > 0


GOOD = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "system_fingerprint": "f",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "the reply", "refusal": None, "reasoning": "r"},
            "finish_reason": "stop",
            "logprobs": {"content": [{"token": "A", "logprob": -0.1, "top_logprobs": [{"token": "A", "logprob": -1}]}]},
        }
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
}
METADATA = {
    **{name: (name,) for name in ("id", "object", "created", "model", "system_fingerprint", "usage")},
    **{name: ("choices", 0, name) for name in ("index", "finish_reason", "logprobs")},
    **{name: ("choices", 0, "message", name) for name in ("refusal", "reasoning")},
    "logprobs content": ("choices", 0, "logprobs", "content"),
    **{name: ("choices", 0, "logprobs", "content", 0, name) for name in ("logprob", "top_logprobs")},
    **{name: ("usage", name) for name in ("prompt_tokens", "completion_tokens", "prompt_tokens_details")},
    "cached_tokens": ("usage", "prompt_tokens_details", "cached_tokens"),
}
ABSENT = object()
UNUSABLE = {"absent": ABSENT, "null": None, "empty": {}, "NaN": float("nan"), "infinite": float("inf"), "bool": True}


@pytest.mark.parametrize("unusable", UNUSABLE)
@pytest.mark.parametrize("field", METADATA)
def test_unusable_metadata_does_not_fail_the_reply(field, unusable):
    body, *way, last = copy.deepcopy(GOOD), *METADATA[field]
    place = body
    for step in way:
        place = place[step]
    if UNUSABLE[unusable] is ABSENT:
        del place[last]
    else:
        place[last] = UNUSABLE[unusable]
    answer = wire.read(json.dumps(body).encode(), "http://model/v1")
    reply = answer.reply(0.1)
    assert reply.text == "the reply" and reply.finish is FinishReason.STOP
    lost = {"usage": {"prompt_tokens", "completion_tokens"}}.get(field, {field})
    assert set(reply.unknown) == lost & {"model", "finish_reason", "prompt_tokens", "completion_tokens"}
    assert answer.first_token() is None or "logprob" not in field


def test_bad_content_or_finish_reason_fails_the_reply():
    for content in (7, ["a"], {}, True):
        body = copy.deepcopy(GOOD)
        body["choices"][0]["message"]["content"] = content
        with pytest.raises(Failure):
            wire.read(json.dumps(body).encode())
    body = copy.deepcopy(GOOD)
    body["choices"][0]["finish_reason"] = "abort"
    with pytest.raises(Failure):
        wire.read(json.dumps(body).encode()).reply(0.1)
    body["choices"][0] |= {"finish_reason": "length"}
    assert wire.read(json.dumps(body).encode()).reply(0.1).finish is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("server_message", "is_told"),
    [
        ("This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.", True),
        ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", True),
        ("request (9012 tokens) exceeds the available context size (8192 tokens), try increasing it", True),
        ("the context length was exceeded", True),
        ("context too long: 9000 > 4096", True),
        ("prompt is too long: 9000 tokens > 4096 maximum", True),
        ("this is no picture of 4096 x 5000", False),
        ("", False),
    ],
)
def test_context_overflow_quotes_the_server(server_message, is_told):
    failure = of_status(400, {}, server_message, sent=["a meme about cats"])
    assert failure.error.reason == ("MODEL_CONTEXT_TOO_SHORT" if is_told else "MODEL_REFUSED")
    assert not is_told or ("--max-model-len" in failure.error.message and server_message in failure.error.message)


def test_tokens_with_and_without_a_space_count_as_one_option():
    body = (
        b'{"model":"m","choices":[{"message":{"content":"A"},"finish_reason":"length","logprobs":{"content":[{"token":'
        b'"A","logprob":-0.7,"top_logprobs":[{"token":"A","logprob":-1.0},{"token":" A","logprob":-2.0},{"token":"AB",'
        b'"logprob":-3.0}]}]}}]}'
    )
    answer = wire.read(body)
    assert wire.masses_of_words(answer.first_token(), ["A", "B"]) == pytest.approx((0.36788 + 0.13534, 0.0), abs=1e-4)
    assert answer.reply(0.1).tokens_in == 0  # the reply has no usage


VLLM = {"priorities": True, "ends_loops": True, "penalties": True}
VLLM_FEATURES = {"priorities", "repetition_detection", "penalties"}


@pytest.mark.parametrize(
    ("lacking", "more", "capabilities", "expected"),
    [
        (set(), {}, wire.Capabilities(True, 4, wire.LogProbs.CHOSEN, True, True, prefix_cache=True, **VLLM), []),
        (
            {"prefix_cache"},
            {},
            wire.Capabilities(True, 4, wire.LogProbs.CHOSEN, True, True, prefix_cache=False, **VLLM),
            ["--mamba-cache-mode align"],
        ),
        (
            {"json_schema", "log_probs", "picture_ids", "cached_tokens", *VLLM_FEATURES},
            {"pictures": 1, "owned_by": "another"},
            wire.Capabilities(False, 1, wire.LogProbs.NONE, False, False),
            ["told in words", "takes 1 of up to 4 pictures", "no log-probabilities", "0 is recorded"],
        ),
        (
            {"json_schema", "chosen_log_probs"},
            {"pictures": 0, "ignores_schemas": True},
            wire.Capabilities(False, 0, wire.LogProbs.TOP, False, True, prefix_cache=True, **VLLM),
            ["told in words", "takes no pictures", "most likely tokens only"],
        ),
    ],
)
async def test_probe_detects_capabilities(lacking, more, capabilities, expected):
    async with court_and_server(Settings(features=FEATURES - lacking, api_key=KEY, **more)) as (chat, _server):
        found = await probe(chat, within_s=60)
        assert chat.capabilities == found.capabilities
    assert found.capabilities == capabilities
    assert len(found.sentences) == len(expected)
    for sentence, part in zip(found.sentences, expected, strict=True):
        assert part in sentence


@pytest.mark.parametrize("parser", [True, False])
@pytest.mark.parametrize(
    ("thinks", "found", "expected"),
    [
        ("", wire.Thinking.NONE, ""),
        ("template", wire.Thinking.TEMPLATE, "it is told not to"),
        ("effort", wire.Thinking.EFFORT, "it is told not to"),
        ("always", wire.Thinking.ALWAYS, "can't be told not to"),
    ],
)
async def test_thinking_is_switched_off_where_possible(thinks, found, expected, parser):
    settings = Settings(api_key=KEY, thinks=thinks, reasoning_parser=parser, odds={"A": 0.6, "B": 0.3})
    async with court_and_server(settings, capabilities=wire.Capabilities()) as (chat, _server):
        sentences = (await probe(chat, within_s=60)).sentences
        odds = await chat.odds(HELLO, ("A", "B"), within_s=60)
        reply = await chat.reply(HELLO, within_s=60)
    assert [expected in sentence for sentence in sentences] == ([True] if expected else [])
    if found is wire.Thinking.ALWAYS:
        # Its first token belongs to a thought, so the probabilities of the letters mean nothing.
        assert odds is None
        # Thoughts have their own token budget, so they don't truncate the reply.
        assert reply.finish is FinishReason.STOP
        assert reply.thought.startswith("Let me see") and "think>" not in reply.text
    else:
        assert sum(odds.masses) == pytest.approx(0.9) and not reply.thought and "<think>" not in reply.text


@pytest.mark.parametrize("thoughts", [True, False])
async def test_probe_message_depends_on_roles_that_think(thoughts):
    settings = Settings(api_key=KEY, thinks="template")
    async with court_and_server(settings, capabilities=wire.Capabilities()) as (chat, _server):
        (sentence,) = (await probe(chat, within_s=10, thoughts=thoughts)).sentences
    assert ("in roles that are not to think" in sentence) is thoughts


@pytest.mark.parametrize(
    ("content", "thought", "text", "thinks"),
    [
        ("<think>I wonder.</think>\n{}", "I wonder.", "\n{}", True),
        (" <think>I wond", "I wond", "", True),
        # Opened in the prompt; removed when the reply is parsed.
        ("I wonder.</think>{}", "", "I wonder.</think>{}", True),
        ('{"text": "a meme that says <think>"}', "", '{"text": "a meme that says <think>"}', False),
        ("", "", "", False),
    ],
)
def test_unparsed_thoughts_are_recognised_by_their_tags(content, thought, text, thinks):
    body = {"model": "m", "choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
    answer = wire.read(json.dumps(body).encode())
    reply = answer.reply(0.1)
    assert (reply.thought, reply.text, answer.thinks) == (thought, text, thinks)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("unusable", [None, 7, ["a"], ""])
def test_thought_is_read_under_both_field_names(name, unusable):
    message = {"role": "assistant", "content": "Yes.", name: " I wonder. "}
    body = {"model": "m", "choices": [{"message": message, "finish_reason": "stop"}]}
    read_body = lambda: wire.read(json.dumps(body).encode()).reply(0.1)  # noqa: E731
    assert (read_body().thought, read_body().text) == ("I wonder.", "Yes.")
    message[name] = unusable
    assert (read_body().thought, read_body().text) == ("", "Yes.")


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        ({"model": "another"}, {}, "MODEL_UNKNOWN"),
        ({"api_key": "wrong"}, {}, "MODEL_UNAUTHORISED"),
        ({}, {"script": ["500"] * 2}, "MODEL_GONE"),
        ({}, {"script": ["ok", *["reset"] * 20]}, "MODEL_GONE"),
        ({}, {"script": ["hang", "hang"]}, "MODEL_TOO_SLOW"),
    ],
)
async def test_probe_failures_have_a_reason(model, settings, reason):
    async with court_and_server(Settings(api_key=KEY, **settings), **model) as (chat, _server):
        with pytest.raises(CourtError) as caught:
            await probe(chat, within_s=0.3, budget_s=0.3) if reason == "MODEL_TOO_SLOW" else await probe(chat)
        assert caught.value.reason == reason


@pytest.mark.parametrize("script", [["ok", *["503"] * 4], ["ok", "hang"]])
def test_check_that_a_server_is_too_slow_or_busy_for_is_left_out(script):
    async def scenario(chat, server):
        return await probe(chat, within_s=5 if "hang" in script else 60)

    of_vllm = with_server(scenario, Settings(api_key=KEY, script=script))
    assert of_vllm.capabilities.json_schema and "every vLLM does" in of_vllm.sentences[0]
    found = with_server(scenario, Settings(api_key=KEY, script=script, owned_by="another"))
    assert found.sentences[0] == "It is too slow or too busy to find out about its JSON schemas: trials do without."
    # The others are checked.
    assert not found.capabilities.json_schema and found.capabilities.pictures == 4 and found.capabilities.prefix_cache


def test_slow_first_greeting_is_shortened_instead_of_ending_the_start():
    found = with_server(lambda chat, _: probe(chat, within_s=5), Settings(api_key=KEY, script=["hang"]))
    assert "if the model thinks" in found.sentences[0] and found.capabilities.json_schema
    # Every call takes longer than a check may: the short greeting is waited for, and trials do without the rest.
    found = with_server(lambda chat, _: probe(chat, within_s=0.3), Settings(api_key=KEY, call_s=0.5))
    assert "if the model thinks" in found.sentences[0] and "too slow or too busy" in found.sentences[1]


def test_checks_beyond_the_budget_are_left_out_and_progress_is_shown(monkeypatch):
    monkeypatch.setattr("court.backends.chat.capabilities._QUIET_S", 0.0)
    progress = []
    found = with_server(
        lambda chat, _: probe(chat, within_s=60, budget_s=0.0, tell=progress.append), Settings(api_key=KEY)
    )
    assert found.capabilities == wire.Capabilities(json_schema=True, pictures=0, cached_tokens=True)
    (sentence,) = (each for each in found.sentences if "too slow" in each)
    assert "pictures, log-probabilities, prefix cache" in sentence
    assert "JSON schemas (1 of 8" in progress[0] and "priorities (8 of 8" in progress[-1]


@pytest.mark.parametrize(("features", "prompts"), [(FEATURES, 1), (FEATURES - {"prefix_cache"}, 2)])
async def test_prefix_cache_is_probed_by_a_short_prompt_first_and_speeds_are_measured(features, prompts):
    settings = Settings(api_key=KEY, features=features, prompt_token_s=0.0005, output_token_s=0.01)
    async with court_and_server(settings) as (chat, server):
        await probe(chat, within_s=60)
        lengths = {len(str(request["messages"])) for request in server.requests if "Count to 50" in str(request)}
        speed, lengths = chat.speed, sorted(lengths)
    assert len(lengths) == prompts and lengths[0] < 600
    # Lower than what the server was told, by what each request costs beside its tokens.
    assert 100 < speed.read <= 2000 and 5 < speed.write <= 100


@pytest.mark.parametrize("body", [b"<html></html>", b"[]", b'{"data":[{"id":7}]}', b"", b'{"data":"m"}', b"\xff"])
def test_malformed_bodies_are_refused(body):
    for reader in (wire.read_models, wire.read_tokens, wire.read):
        with pytest.raises(Failure) as caught:
            reader(body)
        assert caught.value.error.reason == "MODEL_GARBLED"


async def test_feature_answered_with_500_counts_as_missing():
    async with court_and_server(Settings(api_key=KEY, script=["ok", "500", "500"])) as (chat, _server):
        assert not (await probe(chat, within_s=60)).capabilities.json_schema


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("2", 2),
        ("0.5", 0.5),
        ("", 0),
        ("soon", 0),
        ("-1", 0),
        ("nan", 0),
        ("inf", 0),
        ("99999999999999", 86_400),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_retry_after_is_parsed(header, seconds):
    assert retry_after({"retry-after": header}) == seconds
    at = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 100))
    assert 90 < retry_after({"retry-after": at}) <= 100


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ({"message": "the maximum context length is 4096 tokens, got 9000"}, "MODEL_CONTEXT_TOO_SHORT"),
        ({"message": "overloaded", "code": 429}, "MODEL_BUSY"),
        ({"message": "no such model", "code": "not_found"}, "MODEL_REFUSED"),
        ("words", "MODEL_GARBLED"),
    ],
)
def test_error_in_a_200_response_is_raised(error, reason):
    with pytest.raises(Failure) as caught:
        wire.read(json.dumps({"error": error}).encode())
    assert caught.value.error.reason == reason


def test_body_may_start_with_a_byte_order_mark():
    choice = {"index": 0, "message": {"content": "yes"}}
    assert wire.read(b"\xef\xbb\xbf" + json.dumps({"choices": [choice]}).encode()).reply(0.1).text == "yes"


@pytest.mark.parametrize("status", range(300, 600))
def test_every_error_status_is_mapped(status):
    failure = of_status(status, {})
    assert isinstance(failure.error, ModelRefused if status < 500 and status not in (408, 409, 429) else Unavailable)
    retried = {408, 409, 429, 500, 502, 503, 504}
    assert (failure.retries is not Retries.NEVER) == (status in retried)


UNUSED = {
    "APIError",  # abstract: its subclasses are mapped
    "APIRemovedInV1",
    "AgentFilePreparationError",
    "AgentFileStagingError",
    "AgentOutputParseError",
    "AgentTurnResultError",
    "ContentFilterFinishReasonError",  # of parse() and streams, like the next
    "LengthFinishReasonError",
    "MissingDependencyError",
    "MutuallyExclusiveAuthError",  # of Azure
    "StreamAlreadyConsumed",
    "SubjectTokenProviderError",  # of workload identities
    "WebSocketConnectionClosedError",
    "WebSocketQueueFullError",
    "_AmbiguousModuleClientUsageError",
}
"""Errors of parts of the SDK that we don't use."""


def test_every_sdk_error_is_mapped_or_listed_as_unused():
    def with_subclasses(kind):
        return {kind}.union(*(with_subclasses(child) for child in kind.__subclasses__()))

    kinds = with_subclasses(openai.OpenAIError) - {openai.OpenAIError}
    assert openai.RateLimitError in kinds
    unmapped = {kind.__name__ for kind in kinds if not issubclass(kind, tuple(MAPPED))}
    assert unmapped <= UNUSED
    assert of_sdk(openai.OpenAIError()).error.reason == "MODEL_GARBLED"


async def test_picture_lost_by_the_server_is_resent_by_each_call():
    async with court_and_server(capabilities=wire.Capabilities(picture_ids=True)) as (chat, server):
        request = ChatRequest("s", ("p", FRAME), None, 9)
        await chat.reply(request, within_s=60)
        server._pictures.clear()
        (sent_to,) = chat._servers
        ask, both = sent_to.chat, asyncio.Barrier(2)

        async def ask_together(request, *, known, **options):
            named = wire.digest(FRAME) in known
            try:
                return await ask(request, known=known, **options)
            finally:
                if named:
                    await both.wait()  # both name the picture before either learns that it is lost

        sent_to.chat = ask_together
        await asyncio.gather(*(chat.reply(request, within_s=60) for _ in range(2)))
