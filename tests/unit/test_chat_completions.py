"""The model client against the stand-in, over a real socket: every way a call can go wrong, counted at the server."""

import asyncio
import base64
import copy
import hashlib
import json
import logging
import socket
import time
import traceback
from contextlib import asynccontextmanager

import httpx2
import openai
import pytest

from court.backends.chat.capabilities import probe
from court.backends.chat.client import ChatCompletions, http_client
from court.backends.chat.failures import (
    MAPPED,
    Again,
    Failure,
    context_lengths,
    of_sdk,
    of_status,
    quotable,
    retry_after,
)
from court.backends.chat.features import Capabilities, LogProbs, Thinking, weakest
from court.backends.chat.wire import digest, in_words, masses_of_words, read, read_models, read_tokens
from court.errors import CourtError, ModelRefused, Overrun, Unavailable
from court.meme import Frame
from court.ports import ChatRequest, FinishReason
from eval.perf.model_server.replies import BLOCK
from eval.perf.model_server.server import FakeModelServer, serving
from eval.perf.model_server.settings import FEATURES, Settings
from tests.support.leftovers import soon, uncollected

MARKER = "marker-of-a-meme"
KEY = "sk-very-secret"
HELLO = ChatRequest(system="You are brief.", parts=(f"Say {MARKER}.",), reply_schema=None, max_tokens=64)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
FRAME = Frame(png=PNG, width=4, height=3)
SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["HARMFUL", "NOT_HARMFUL"]}},
    "required": ["label"],
    "additionalProperties": False,
}


@asynccontextmanager
async def court_and_server(settings=None, **model):
    server = FakeModelServer(settings or Settings(api_key=KEY), keep=True)
    given = {"model": "stand-in", "api_key": KEY, "pause_s": 0.01, "pause_max_s": 0.02, **model}
    async with serving(server) as port:
        chat = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", **given)
        try:
            yield chat, server
        finally:
            await chat.aclose()


def talking(steps, settings=None, **model):
    """Runs ``steps(chat, server)``."""

    async def run():
        async with court_and_server(settings, **model) as (chat, server):
            return await steps(chat, server)

    return asyncio.run(asyncio.wait_for(run(), 200))


def answered(status, body, steps):
    """What comes of steps with a model whose server answers everything so."""

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.split("content-length:")[1].split()[0]))
        writer.write(f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\n".encode())
        writer.write(f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async def run():
        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        model = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", model="m", attempts=1)
        try:
            return await steps(model, port)
        finally:
            await model.aclose()
            listening.close()

    return asyncio.run(run())


def failing(script, *, within_s=60.0, settings=None, request=HELLO, **model):
    """The error that a call ends with when the server does these things, and how often the server was asked."""

    async def steps(chat, server):
        server.faults.script(script)
        with pytest.raises(CourtError) as caught:
            await chat.reply(request, within_s=within_s)
        return caught.value, server.stats.calls

    return talking(steps, settings, **model)


def test_a_reply_in_the_server_s_own_figures():
    async def steps(chat, server):
        long = ChatRequest(system="You are brief.", parts=("a word " * 40,), reply_schema=None, max_tokens=64)
        return [await chat.reply(long, within_s=60) for _ in range(2)], server

    (first, second), server = talking(steps, Settings(call_s=0.05, api_key=KEY))
    assert (first.finish, first.model, first.tokens_out) == (FinishReason.STOP, "stand-in", 20)
    assert first.tokens_in == server.stats.prompt_tokens // 2 == 2 + 4 + 80
    assert (first.tokens_cached, second.tokens_cached) == (0, 5 * BLOCK)
    assert 0.05 <= first.latency_s < 50  # in seconds
    sent = server.requests[0]
    assert sent["messages"][0] == {"role": "system", "content": "You are brief."}
    assert sent["messages"][1] == {"role": "user", "content": "a word " * 40}
    assert (sent["max_tokens"], sent["temperature"]) == (64, 0.0)
    assert set(sent) == {"model", "messages", "max_tokens", "temperature"}


def test_pictures_arrive_byte_for_byte_in_their_place():
    async def steps(chat, server):
        await chat.reply(
            ChatRequest(system="s", parts=("before", FRAME, "after"), reply_schema=None, max_tokens=9), within_s=60
        )
        return server.requests[0]["messages"][1]["content"]

    before, picture, after = talking(steps)
    assert (before, after) == ({"type": "text", "text": "before"}, {"type": "text", "text": "after"})
    head, data = picture["image_url"]["url"].split(",")
    assert head == "data:image/png;base64" and base64.b64decode(data) == PNG
    assert set(picture) == {"type", "image_url"}


def test_a_schema_passes_through():
    async def steps(chat, server):
        request = ChatRequest(system="s", parts=("p",), reply_schema=SCHEMA, max_tokens=64)
        return await chat.reply(request, within_s=60), server.requests[0]

    reply, sent = talking(steps)
    assert reply.text == '{"label":"HARMFUL"}' and not reply.schema_in_words
    assert sent["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "reply", "schema": SCHEMA, "strict": True},
    }


def test_a_schema_is_told_in_words_after_all_else_where_the_server_knows_none():
    async def steps(chat, server):
        reply = await chat.reply(ChatRequest("s", ("p", FRAME), SCHEMA, 64), within_s=60)
        free = await chat.reply(ChatRequest("s", ("p", FRAME), None, 64), within_s=60)
        # Whoever makes the messages again has to know.
        assert reply.schema_in_words and not free.schema_in_words
        return server.requests[0]

    sent = talking(steps, capabilities=Capabilities(json_schema=False))
    assert "response_format" not in sent
    assert sent["messages"][0]["content"] == "s"
    assert sent["messages"][1]["content"][-1] == {"type": "text", "text": in_words(SCHEMA)}
    assert '"enum":["HARMFUL","NOT_HARMFUL"]' in in_words(SCHEMA)


ALWAYS = 9  # more than are ever asked for


@pytest.mark.parametrize(
    ("script", "kind", "reason", "calls"),
    [
        (["400"] * ALWAYS, ModelRefused, "MODEL_REFUSED", 1),
        (["404"] * ALWAYS, ModelRefused, "MODEL_REFUSED", 1),
        (["413"] * ALWAYS, ModelRefused, "MODEL_REFUSED", 1),
        (["422"] * ALWAYS, ModelRefused, "MODEL_REFUSED", 1),
        (["301"] * ALWAYS, ModelRefused, "MODEL_REFUSED", 1),
        (["401"] * ALWAYS, ModelRefused, "MODEL_UNAUTHORISED", 1),
        (["403"] * ALWAYS, ModelRefused, "MODEL_UNAUTHORISED", 1),
        # Turned away unread: asked as often as it is allowed to.
        (["408"] * ALWAYS, Unavailable, "MODEL_BUSY", 4),
        (["409"] * ALWAYS, Unavailable, "MODEL_BUSY", 4),
        (["429"] * ALWAYS, Unavailable, "MODEL_BUSY", 4),
        (["503"] * ALWAYS, Unavailable, "MODEL_BUSY", 4),
        # May have been worked on: once more.
        (["500"] * ALWAYS, Unavailable, "MODEL_GONE", 2),
        (["502"] * ALWAYS, Unavailable, "MODEL_GONE", 2),
        (["504"] * ALWAYS, Unavailable, "MODEL_GONE", 2),
        (["reset"] * ALWAYS, Unavailable, "MODEL_GONE", 2),
        # Has been worked on: never again.
        (["501"] * ALWAYS, Unavailable, "MODEL_GONE", 1),
        (["cut"] * ALWAYS, Unavailable, "MODEL_GONE", 1),
        (["garbage"] * ALWAYS, Unavailable, "MODEL_GARBLED", 1),
        (["204"] * ALWAYS, Unavailable, "MODEL_GARBLED", 1),
        (["wrong_shape"] * ALWAYS, Unavailable, "MODEL_GARBLED", 1),
        (["no_choices"] * ALWAYS, Unavailable, "MODEL_GARBLED", 1),
        (["duplicate"] * ALWAYS, Unavailable, "MODEL_GARBLED", 1),
        (["abort"] * ALWAYS, Unavailable, "MODEL_GARBLED", 1),
        # One kind of failure after another.
        (["503", "429", "500"], Unavailable, "MODEL_GONE", 3),
        (["503", "400"], ModelRefused, "MODEL_REFUSED", 2),
    ],
)
def test_every_failure_has_its_error_and_its_number_of_tries(script, kind, reason, calls):
    error, asked = failing(script)
    assert type(error) is kind
    assert (error.reason, asked) == (reason, calls)
    if kind is ModelRefused:
        assert str(error.status) == script[asked - 1]


@pytest.mark.parametrize(
    ("fault", "finish", "text"),
    [
        ("truncated", FinishReason.LENGTH, None),
        ("refusal", FinishReason.REFUSAL, ""),
        ("filter", FinishReason.REFUSAL, ""),
        ("empty", FinishReason.STOP, ""),
    ],
)
def test_how_a_reply_ended_is_told_apart(fault, finish, text):
    async def steps(chat, server):
        server.faults.script([fault])
        return await chat.reply(HELLO, within_s=60)

    reply = talking(steps)
    assert reply.finish is finish
    assert text is None or reply.text == text


@pytest.mark.parametrize("script", [["503"], ["429", "503", "408"], ["reset"], ["500"]])
def test_what_passes_is_waited_out(script):
    async def steps(chat, server):
        server.faults.script(script)
        reply = await chat.reply(HELLO, within_s=60)
        return reply, server.stats.calls

    reply, calls = talking(steps)
    assert reply.finish is FinishReason.STOP and calls == len(script) + 1


def test_nobody_there():
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))

        async def run():
            chat = ChatCompletions(base_url=f"http://127.0.0.1:{taken.getsockname()[1]}/v1", model="m", pause_s=0.01)
            with pytest.raises(Unavailable) as caught:
                await chat.reply(HELLO, within_s=60)
            await chat.aclose()
            return caught.value

        assert asyncio.run(run()).reason == "MODEL_GONE"


def test_a_server_is_left_alone_for_as_long_as_it_asks():
    async def steps(chat, server):
        server.faults.script(["503:0.3"])
        reply = await chat.reply(HELLO, within_s=60)
        return reply.latency_s

    assert talking(steps) >= 0.3


def test_a_pause_beyond_the_deadline_is_not_waited_for():
    began = time.monotonic()
    error, calls = failing(["429:300", "ok"])
    assert time.monotonic() - began < 60
    assert (error.reason, error.retry_after, calls) == ("MODEL_BUSY", 300.0, 1)


@pytest.mark.parametrize("fault", ["hang", "slow:100", "drip:100"])
def test_the_deadline_is_kept_and_the_call_not_made_again(fault):
    async def steps(chat, server):
        server.faults.script([fault] * ALWAYS)
        began = time.monotonic()
        with pytest.raises(Overrun) as caught:
            await chat.reply(HELLO, within_s=1.0)
        took = time.monotonic() - began
        await seen(server, disconnects=1)
        return caught.value, took, server.stats.calls

    error, took, calls = talking(steps)
    assert (error.reason, calls) == ("MODEL_TOO_SLOW", 1)
    assert 1.0 <= took < 60  # the least that these faults last is longer


def test_the_deadline_holds_for_all_tries_together():
    async def steps(chat, server):
        server.faults.script(["503", "503", "hang"])
        began = time.monotonic()
        with pytest.raises(Overrun):
            await chat.reply(HELLO, within_s=3)
        return time.monotonic() - began, server.stats.calls

    took, calls = talking(steps)
    assert took < 60 and calls == 3


@pytest.mark.parametrize("within_s", [0, -1.0])
def test_without_time_nothing_is_asked(within_s):
    error, calls = failing([], within_s=within_s)
    assert error.reason == "MODEL_TOO_SLOW" and calls == 0


async def seen(server, *, within_s=60.0, **wanted):
    """Waits until the server has seen so much."""
    until = time.monotonic() + within_s
    while any(getattr(server.stats, name) < count for name, count in wanted.items()):
        assert time.monotonic() < until, server.stats
        await asyncio.sleep(0.005)


def test_cancelling_reaches_the_server():
    async def steps(chat, server):
        asking = [asyncio.create_task(chat.reply(HELLO, within_s=60)) for _ in range(200)]
        await seen(server, running=200)
        for task in asking:
            task.cancel()
        await seen(server, disconnects=200)
        assert server.stats.running == 0
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)

    talking(steps, Settings(call_s=60, api_key=KEY))


@pytest.mark.parametrize("end", ["answered", "refused", "gone", "late", "cancelled"])
def test_what_a_call_showed_is_gone_with_it(end):
    """At once: it shows pictures, and the collector looks for what holds itself by number alone."""
    script = {"answered": [], "refused": ["503", "400"], "gone": ["reset"] * ALWAYS}.get(end, ["hang"])

    async def ended(chat):
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
            del call  # what it raises remembers this frame
        return "answered"

    async def steps(chat, server):
        server.faults.script(script)
        with uncollected(ChatRequest, Failure, httpx2.Request) as left:
            assert await ended(chat) == end
            return await soon(left)

    assert talking(steps) == []


def test_a_cancelled_call_leaves_the_connections_fit_for_others():
    async def run():
        async with http_client(connections=50) as http, court_and_server(http=http) as (chat, server):
            server.faults.script(["hang"] * 50)
            hanging = [asyncio.create_task(chat.reply(HELLO, within_s=60)) for _ in range(50)]
            await seen(server, calls=50)
            for task in hanging:
                task.cancel()
            replies = await asyncio.gather(*(chat.reply(HELLO, within_s=60) for _ in range(50)))
            await chat.aclose()
            assert not http.is_closed  # it is shared
            return len(replies)

    assert asyncio.run(run()) == 50


def test_200_calls_side_by_side():
    async def steps(chat, server):
        requests = [ChatRequest("s", (f"number {i}", FRAME), None, 64) for i in range(200)]
        all_there, work = asyncio.Event(), server._work

        async def together(payload, fault):
            if server.stats.running == 200:
                all_there.set()
            await all_there.wait()  # none is answered before the last has come
            return await work(payload, fault)

        server._work = together
        replies = await asyncio.gather(*(chat.reply(request, within_s=100) for request in requests))
        return len(replies), server.stats.max_running

    assert talking(steps) == (200, 200)


def collect(steps, caplog, settings=None, **model):
    """What could be read of a call: its error, with all that it came from, and every line that was logged."""
    caplog.set_level(logging.DEBUG)
    error = talking(steps, settings, **model)
    text = "".join(traceback.format_exception(error)) + error.message + repr(error)
    return text + "".join(f"{record.getMessage()}{record.exc_text}" for record in caplog.records)


SENT = ["The meme says:\nNo more boats for\npeople from Blueland!", KEY]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("At most 4 image(s) may be provided in one prompt.", "At most 4 image(s) may be provided in one prompt."),
        ("The model `qwen` can't take\n a reply  schema", "The model … can't take a reply schema"),
        ("x" * 20 + " can't be " + "had, " * 100, "x" * 20 + " can't be " + "had, " * 42 + "…"),
        ("Bad input 'No more boats for people from Blueland!'", "Bad input …"),
        ("1 error: {'role': 'user', 'content': 'No more boats'} is no message", "1 error: … is no message"),
        # Echoes outside of quotation marks, in other letters, other spaces, escaped, cut, encoded.
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
def test_a_refusal_passes_on_words_that_hold_nothing_of_the_request(said, shown):
    assert quotable(said, SENT) == shown
    assert quotable(said, []) == "", "an echo of what is not known can't be told"
    message = of_status(400, {}, said, sent=SENT).error.message
    assert f"“{shown}”" in message if shown else "It says" not in message


def test_a_refusal_names_the_model_and_the_reason():
    async def steps(chat, server):
        messages = []
        for fault in ("400", "404"):
            server.faults.script([fault])
            with pytest.raises(ModelRefused) as caught:
                await chat.reply(HELLO, within_s=60)
            messages.append(caught.value.message)
        return messages

    refused, unknown = talking(steps)
    assert "(HTTP 400). It says: “" in refused and "does not know the model stand-in" in unknown


@pytest.mark.parametrize(
    "script", [["400"], ["401"], ["404"], ["500"] * 2, ["503"] * 4, ["garbage"], ["cut"], ["reset"] * 2, ["hang"]]
)
def test_no_prompt_key_or_address_in_any_message_or_log(script, caplog):
    async def steps(chat, server):
        server.faults.script(script)
        try:
            await chat.reply(HELLO, within_s=0.5)
        except CourtError as error:
            return error.with_traceback(None)

    text = collect(steps, caplog)
    assert "127.0.0.1" not in text and MARKER not in text and KEY not in text
    # A refusal alone is explained in the server's own words.
    assert ("as told" in text) == (script == ["400"])


def test_nothing_from_the_environment_is_sent(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "from-the-environment")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    heads = []

    async def run():
        server = await asyncio.start_server(take, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            chat = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", model="m")
            with pytest.raises(ModelRefused):
                await chat.reply(HELLO, within_s=60)
            await chat.aclose()

    async def take(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    asyncio.run(run())
    assert len(heads) == 1 and b"from-the-environment" not in heads[0]


def test_too_many_pictures_are_refused_before_anything_is_sent():
    error, calls = failing([], request=ChatRequest("s", (FRAME, FRAME), None, 9), capabilities=Capabilities(pictures=1))
    assert isinstance(error, ModelRefused) and error.reason == "MODEL_TOO_MANY_PICTURES" and calls == 0


def test_a_picture_is_sent_once_and_named_by_its_digest_from_then_on():
    async def steps(chat, server):
        request = ChatRequest("s", ("p", FRAME), None, 9)
        for _ in range(2):
            await chat.reply(request, within_s=60)
        server._pictures.clear()  # as when vLLM drops it from its cache
        await chat.reply(request, within_s=60)
        return [sent["messages"][1]["content"][1] for sent in server.requests]

    first, second, dropped, again = talking(steps, capabilities=Capabilities(picture_ids=True))
    assert {part["uuid"] for part in (first, second, again)} == {hashlib.sha256(PNG).hexdigest()}
    assert first["image_url"]["url"].startswith("data:image/png;base64,") and again == first
    assert second["image_url"] is None and dropped == second


def test_odds_of_chosen_tokens_keep_their_true_mass():
    async def steps(chat, server):
        odds = [await chat.odds(HELLO, ("B", "A"), within_s=60) for _ in range(2)]
        return odds, server

    odds, server = talking(steps, capabilities=Capabilities(log_probs=LogProbs.CHOSEN))
    assert odds[0].masses == pytest.approx((0.3, 0.6)) and odds[0].reply.tokens_out == 1
    sent = server.requests[0]
    assert sent["max_tokens"] == 1 and len(sent["logprob_token_ids"]) == 2 and sent["logprobs"] is True
    assert "response_format" not in sent and "allowed_token_ids" not in sent


def test_odds_among_the_most_likely_tokens():
    async def steps(chat, server):
        return await chat.odds(HELLO, ("A", "C"), within_s=60), server.requests[0]

    odds, sent = talking(steps, capabilities=Capabilities(log_probs=LogProbs.TOP))
    assert odds.masses == pytest.approx((0.6, 0.0)) and sent["top_logprobs"] == 20


def test_odds_where_there_are_none():
    async def steps(chat, server):
        return await chat.odds(HELLO, ("A", "B"), within_s=60), server.stats.calls

    assert talking(steps) == (None, 0)


def test_odds_of_what_is_no_single_token():
    async def steps(chat, server):
        with pytest.raises(ModelRefused) as caught:
            await chat.odds(HELLO, ("two words", "B"), within_s=60)
        return caught.value.reason

    assert talking(steps, capabilities=Capabilities(log_probs=LogProbs.CHOSEN)) == "MODEL_OPTION"


def test_odds_that_the_server_leaves_out_are_no_odds():
    async def steps(chat, server):
        return await chat.odds(HELLO, ("A", "B"), within_s=60)

    lesser = Settings(api_key=KEY, features=FEATURES - {"log_probs"})
    for how in (LogProbs.TOP, LogProbs.CHOSEN):
        # It has said before that it gives them: the trial goes on without a harm score, and knows what the call cost.
        odds = talking(steps, lesser, capabilities=Capabilities(log_probs=how))
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
FIGURES = {
    "id": ("id",),
    "object": ("object",),
    "created": ("created",),
    "model": ("model",),
    "system_fingerprint": ("system_fingerprint",),
    "index": ("choices", 0, "index"),
    "refusal": ("choices", 0, "message", "refusal"),
    "reasoning": ("choices", 0, "message", "reasoning"),
    "finish_reason": ("choices", 0, "finish_reason"),
    "logprobs": ("choices", 0, "logprobs"),
    "logprobs content": ("choices", 0, "logprobs", "content"),
    "logprob": ("choices", 0, "logprobs", "content", 0, "logprob"),
    "top_logprobs": ("choices", 0, "logprobs", "content", 0, "top_logprobs"),
    "usage": ("usage",),
    "prompt_tokens": ("usage", "prompt_tokens"),
    "completion_tokens": ("usage", "completion_tokens"),
    "details": ("usage", "prompt_tokens_details"),
    "cached_tokens": ("usage", "prompt_tokens_details", "cached_tokens"),
}
ABSENT = object()
OF_NO_USE = {"absent": ABSENT, "null": None, "empty": {}, "NaN": float("nan"), "infinite": float("inf"), "bool": True}


@pytest.mark.parametrize("useless", OF_NO_USE)
@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_that_is_of_no_use_costs_no_reply(figure, useless):
    body, *way, last = copy.deepcopy(GOOD), *FIGURES[figure]
    place = body
    for step in way:
        place = place[step]
    if OF_NO_USE[useless] is ABSENT:
        del place[last]
    else:
        place[last] = OF_NO_USE[useless]
    answer = read(json.dumps(body).encode(), "http://model/v1")
    reply = answer.reply(0.1)
    assert reply.text == "the reply" and reply.finish is FinishReason.STOP
    lost = {"usage": {"prompt_tokens", "completion_tokens"}}.get(figure, {figure})
    assert set(reply.unknown) == lost & {"model", "finish_reason", "prompt_tokens", "completion_tokens"}
    assert answer.first_token() is None or "logprob" not in figure


def test_what_is_said_and_how_it_ended_are_no_figures():
    for content in (7, ["a"], {}, True):
        body = copy.deepcopy(GOOD)
        body["choices"][0]["message"]["content"] = content
        with pytest.raises(Failure):
            read(json.dumps(body).encode())
    body = copy.deepcopy(GOOD)
    body["choices"][0]["finish_reason"] = "abort"
    with pytest.raises(Failure):
        read(json.dumps(body).encode()).reply(0.1)
    body["choices"][0] |= {"finish_reason": "length"}
    assert read(json.dumps(body).encode()).reply(0.1).finish is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("said", "lengths"),
    [
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4744 in the "
            "messages, 256 in the completion).",
            (4096, 5000),
        ),
        ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", (4096, 5000)),
        ("request (9012 tokens) exceeds the available context size (8192 tokens), try increasing it", (8192, 9012)),
        ("the request exceeds the available context size (2048 tokens)", (2048, None)),
        ("exceeds the model's maximum context length of 32768 tokens. You requested 33000 tokens", (32768, 33000)),
        ("the context length was exceeded", (None, None)),
        ("context too long: 9000 > 4096", (4096, 9000)),
        ("prompt is too long: 9000 tokens > 4096 maximum", (4096, 9000)),
        ("this is no picture of 4096 x 5000", None),
        ("", None),
    ],
)
def test_a_context_that_is_too_short_is_told_in_figures(said, lengths):
    assert context_lengths(said) == lengths
    failure = of_status(400, {}, said)
    assert failure.error.reason == ("MODEL_REFUSED" if lengths is None else "MODEL_CONTEXT_TOO_SHORT")
    for length in lengths or ():
        assert length is None or f"{length:,}" in failure.error.message
    assert "messages" not in failure.error.message, "nothing of what a server says but figures"


def test_a_server_that_refuses_for_its_context_is_read_over_the_wire():
    async def steps(model, address):
        with pytest.raises(ModelRefused) as caught:
            await model.reply(HELLO, within_s=60)
        return caught.value

    body = json.dumps({"error": {"message": "maximum context length is 4096 tokens, you asked for 5000", "code": 400}})
    assert "4,096" in answered(400, body.encode(), steps).message


def test_a_word_with_and_without_a_space_is_one_option():
    body = (
        b'{"model":"m","choices":[{"message":{"content":"A"},"finish_reason":"length","logprobs":{"content":[{"token":'
        b'"A","logprob":-0.7,"top_logprobs":[{"token":"A","logprob":-1.0},{"token":" A","logprob":-2.0},{"token":"AB",'
        b'"logprob":-3.0}]}]}}]}'
    )
    answer = read(body)
    assert masses_of_words(answer.first_token(), ["A", "B"]) == pytest.approx((0.36788 + 0.13534, 0.0), abs=1e-4)
    assert answer.reply(0.1).tokens_in == 0  # there was no usage


VLLM = {"priorities": True, "ends_loops": True, "penalties": True}
VLLM_FEATURES = {"priorities", "repetition_detection", "penalties"}


@pytest.mark.parametrize(
    ("lacking", "more", "capabilities", "said"),
    [
        (set(), {}, Capabilities(True, 4, LogProbs.CHOSEN, True, True, prefix_cache=True, **VLLM), []),
        (
            {"prefix_cache"},
            {},
            Capabilities(True, 4, LogProbs.CHOSEN, True, True, prefix_cache=False, **VLLM),
            ["--mamba-cache-mode align"],
        ),
        (
            {"json_schema", "log_probs", "picture_ids", "cached_tokens", *VLLM_FEATURES},
            {"pictures": 1, "owned_by": "another"},
            Capabilities(False, 1, LogProbs.NONE, False, False),
            ["told in words", "takes 1 of up to 4 pictures", "no log-probabilities", "0 is recorded"],
        ),
        (
            {"json_schema", "chosen_log_probs"},
            {"pictures": 0, "ignores_schemas": True},
            Capabilities(False, 0, LogProbs.TOP, False, True, prefix_cache=True, **VLLM),
            ["told in words", "takes no pictures", "most likely tokens only"],
        ),
    ],
)
def test_what_a_server_can_do_is_found_out(lacking, more, capabilities, said):
    async def steps(chat, server):
        found = await probe(chat, within_s=60)
        assert chat.capabilities == found.capabilities
        return found

    found = talking(steps, Settings(features=FEATURES - lacking, api_key=KEY, **more))
    assert found.capabilities == capabilities
    assert len(found.sentences) == len(said)
    for sentence, part in zip(found.sentences, said, strict=True):
        assert part in sentence


@pytest.mark.parametrize("parser", [True, False])
@pytest.mark.parametrize(
    ("thinks", "found", "said"),
    [
        ("", Thinking.NONE, ""),
        ("template", Thinking.TEMPLATE, "it is told not to"),
        ("effort", Thinking.EFFORT, "it is told not to"),
        ("always", Thinking.ALWAYS, "can't be told not to"),
    ],
)
def test_a_model_that_thinks_first_is_told_not_to_where_it_can_be(thinks, found, said, parser):
    async def steps(chat, server):
        sentences = (await probe(chat, within_s=60)).sentences
        odds = await chat.odds(HELLO, ("A", "B"), within_s=60)
        return sentences, odds, await chat.reply(HELLO, within_s=60)

    settings = Settings(api_key=KEY, thinks=thinks, reasoning_parser=parser, odds={"A": 0.6, "B": 0.3})
    sentences, odds, reply = talking(steps, settings, capabilities=Capabilities())
    assert [said in sentence for sentence in sentences] == ([True] if said else [])
    if found is Thinking.ALWAYS:
        # Its first token is that of a thought: what is left for the letters says nothing.
        assert odds is None
        # A thought has tokens of its own, so that the reply is not cut for it.
        assert reply.finish is FinishReason.STOP
        assert reply.thought.startswith("Let me see") and "think>" not in reply.text
    else:
        assert sum(odds.masses) == pytest.approx(0.9) and not reply.thought and "<think>" not in reply.text


@pytest.mark.parametrize("thoughts", [True, False])
def test_where_some_roles_are_to_think_it_is_not_said_that_none_does(thoughts):
    async def steps(chat, server):
        return (await probe(chat, within_s=10, thoughts=thoughts)).sentences

    (said,) = talking(steps, Settings(api_key=KEY, thinks="template"), capabilities=Capabilities())
    assert ("in roles that are not to think" in said) is thoughts


@pytest.mark.parametrize(
    ("content", "thought", "text", "thinks"),
    [
        ("<think>I wonder.</think>\n{}", "I wonder.", "\n{}", True),
        (" <think>I wond", "I wond", "", True),
        ("I wonder.</think>{}", "", "I wonder.</think>{}", True),  # opened in the prompt; taken off where it is parsed
        ('{"text": "a meme that says <think>"}', "", '{"text": "a meme that says <think>"}', False),
        ("", "", "", False),
    ],
)
def test_a_thought_that_no_server_tells_apart_is_told_by_its_tags(content, thought, text, thinks):
    body = {"model": "m", "choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
    answer = read(json.dumps(body).encode())
    reply = answer.reply(0.1)
    assert (reply.thought, reply.text, answer.thinks) == (thought, text, thinks)


def test_a_model_at_several_servers_thinks_as_much_as_the_worst_of_them():
    assert weakest([Capabilities(thinking=each) for each in Thinking]).thinking is Thinking.ALWAYS
    assert weakest([Capabilities(), Capabilities(thinking=Thinking.EFFORT)]).thinking is Thinking.EFFORT


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("useless", [None, 7, ["a"], ""])
def test_a_thought_is_read_by_either_name_and_costs_no_reply(name, useless):
    message = {"role": "assistant", "content": "Yes.", name: " I wonder. "}
    body = {"model": "m", "choices": [{"message": message, "finish_reason": "stop"}]}
    read_body = lambda: read(json.dumps(body).encode()).reply(0.1)  # noqa: E731
    assert (read_body().thought, read_body().text) == ("I wonder.", "Yes.")
    message[name] = useless
    assert (read_body().thought, read_body().text) == ("", "Yes.")


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        ({"model": "another"}, {}, "MODEL_UNKNOWN"),
        ({"api_key": "wrong"}, {}, "MODEL_UNAUTHORISED"),
        ({}, {"script": ["500"] * 2}, "MODEL_GONE"),
        ({}, {"script": ["ok", *["503"] * 4]}, "MODEL_BUSY"),
        ({}, {"script": ["ok", *["reset"] * 20]}, "MODEL_GONE"),
        ({}, {"script": ["ok", "hang"]}, "MODEL_TOO_SLOW"),
    ],
)
def test_a_server_that_can_t_be_probed(model, settings, reason):
    async def steps(chat, server):
        with pytest.raises(CourtError) as caught:
            await probe(chat, within_s=1 if reason == "MODEL_TOO_SLOW" else 60)
        return caught.value.reason

    assert talking(steps, Settings(api_key=KEY, **settings), **model) == reason


@pytest.mark.parametrize("body", [b"<html></html>", b"[]", b'{"data":[{"id":7}]}', b"", b'{"data":"m"}', b"\xff"])
def test_side_answers_are_read_as_strictly(body):
    for reader in (read_models, read_tokens, read):
        with pytest.raises(Failure) as caught:
            reader(body)
        assert caught.value.error.reason == "MODEL_GARBLED"


def test_a_web_page_where_the_models_should_be():
    async def run():
        async def page(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
            )
            writer.close()

        async with await asyncio.start_server(page, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            chat = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", model="m")
            with pytest.raises(Unavailable) as caught:
                await probe(chat, within_s=60)
            await chat.aclose()
            return caught.value.reason

    assert asyncio.run(run()) == "MODEL_GARBLED"


def test_a_feature_answered_by_500_is_a_feature_that_it_lacks():
    async def steps(chat, server):
        return (await probe(chat, within_s=60)).capabilities

    assert not talking(steps, Settings(api_key=KEY, script=["ok", "500", "500"])).json_schema


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
def test_retry_after(header, seconds):
    assert retry_after({"retry-after": header}) == seconds


@pytest.mark.parametrize(
    ("error", "reason", "limit"),
    [
        ({"message": "the maximum context length is 4096 tokens, got 9000"}, "MODEL_CONTEXT_TOO_SHORT", "4,096"),
        ({"message": "overloaded", "code": 429}, "MODEL_BUSY", ""),
        ({"message": "no such model", "code": "not_found"}, "MODEL_REFUSED", ""),
        ("words", "MODEL_GARBLED", ""),
    ],
)
def test_an_error_with_the_status_of_a_success_is_that_error(error, reason, limit):
    with pytest.raises(Failure) as caught:
        read(json.dumps({"error": error}).encode())
    assert caught.value.error.reason == reason and limit in caught.value.error.message


def test_a_body_may_begin_with_a_mark():
    choice = {"index": 0, "message": {"content": "yes"}}
    assert read(b"\xef\xbb\xbf" + json.dumps({"choices": [choice]}).encode()).reply(0.1).text == "yes"


def test_retry_after_as_a_date():
    at = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 100))
    assert 90 < retry_after({"retry-after": at}) <= 100


@pytest.mark.parametrize("status", range(300, 600))
def test_every_status_has_an_error(status):
    failure = of_status(status, {})
    assert isinstance(failure.error, ModelRefused if status < 500 and status not in (408, 409, 429) else Unavailable)
    retried = {408, 409, 429, 500, 502, 503, 504}
    assert (failure.again is not Again.NEVER) == (status in retried)


UNUSED = {
    "APIError",  # abstract: its subclasses are mapped
    "APIRemovedInV1",
    "AgentFilePreparationError",
    "AgentFileStagingError",
    "AgentOutputParseError",
    "AgentTurnResultError",
    "ContentFilterFinishReasonError",  # of parse() and streams, as is the next
    "LengthFinishReasonError",
    "MissingDependencyError",
    "MutuallyExclusiveAuthError",  # of Azure
    "StreamAlreadyConsumed",
    "SubjectTokenProviderError",  # of workload identities
    "WebSocketConnectionClosedError",
    "WebSocketQueueFullError",
    "_AmbiguousModuleClientUsageError",
}
"""Errors of the SDK that belong to parts of it that we don't use."""


def test_the_sdk_has_no_error_that_nobody_looked_at():
    def below(kind):
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    kinds = below(openai.OpenAIError) - {openai.OpenAIError}
    assert openai.RateLimitError in kinds
    unmapped = {kind.__name__ for kind in kinds if not issubclass(kind, tuple(MAPPED))}
    assert unmapped <= UNUSED
    assert of_sdk(openai.OpenAIError()).error.reason == "MODEL_GARBLED"


def test_a_picture_that_the_server_lost_is_sent_again_by_each_call_that_named_it():
    async def steps(chat, server):
        request = ChatRequest("s", ("p", FRAME), None, 9)
        await chat.reply(request, within_s=60)
        server._pictures.clear()
        (sent_to,) = chat._servers
        ask, both = sent_to.chat, asyncio.Barrier(2)

        async def ask_together(request, *, known, **options):
            named = digest(FRAME) in known
            try:
                return await ask(request, known=known, **options)
            finally:
                if named:
                    await both.wait()  # neither learns that it is lost before the other has named it too

        sent_to.chat = ask_together
        await asyncio.gather(*(chat.reply(request, within_s=60) for _ in range(2)))

    talking(steps, capabilities=Capabilities(picture_ids=True))
