"""Optional features of model servers over real sockets: thinking, priorities, loop detection, penalties."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from court.backends.chat.capabilities import probe
from court.backends.chat.client import ChatCompletions
from court.backends.chat.wire import THOUGHT_TOKENS, Thinking
from court.errors import ModelRefused
from court.ports import ChatRequest, FinishReason, Speed
from court.roles import RoleModel, RoleModels
from court.settings import TrialSettings
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import FEATURES, Settings
from serving.models.connect import connect_models, expected_trial
from serving.settings import Settings as CourtSettings
from tests.support.cast import Cast, full_court

SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "minLength": 1, "maxLength": 200}},
    "required": ["word"],
    "additionalProperties": False,
}
HELLO = ChatRequest(system="You are brief.", parts=("Say a word.",), reply_schema=SCHEMA, max_tokens=100)
LOOP = "Say it again, " * 200


@asynccontextmanager
async def probed_model(settings=None, *, answer=None, thoughts=True):
    """Yields a model after a probe, its server, whose requests are cleared, and the sentences of the probe."""
    server = FakeModelServer(settings or Settings(), keep=True, answer=answer)
    async with serving(server) as port:
        model = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", model="stand-in", pause_s=0.01)
        try:
            sentences = (await probe(model, within_s=60, thoughts=thoughts)).sentences
            server.requests.clear()
            yield model, server, "\n".join(sentences)
        finally:
            await model.aclose()


def with_thought(request, tokens):
    return ChatRequest(request.system, request.parts, request.reply_schema, request.max_tokens, thought_tokens=tokens)


# Thinking.


@pytest.mark.parametrize(
    ("thinks", "sent"),
    [
        ("template", {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}),
        ("asked", {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}),
        ("effort", {"reasoning_effort": "medium"}),
        ("always", {}),
    ],
)
async def test_thinking_has_its_own_token_budget(thinks, sent):
    async with probed_model(Settings(thinks=thinks)) as (model, server, _):
        long = await model.reply(with_thought(HELLO, 1000), within_s=60)
        short = await model.reply(with_thought(HELLO, 16), within_s=60)
        long, short, (first, second) = long, short, server.requests
    assert first.items() >= {**sent, "thinking_token_budget": 1000, "max_tokens": 1100}.items()
    assert second.items() >= {**sent, "thinking_token_budget": 16, "max_tokens": 116}.items()
    assert len(long.thought.split()) == 45 and len(short.thought.split()) == 16
    for reply in (long, short):
        assert reply.finish is FinishReason.STOP and json.loads(reply.text)["word"]


async def test_thought_and_reply_share_a_limit_when_thoughts_have_none():
    async with probed_model(Settings(thinks="template", features=FEATURES - {"thought_limit"})) as (model, server, _):
        reply, sent = await model.reply(with_thought(HELLO, 50), within_s=60), server.requests[-1]
    assert sent["max_tokens"] == 150 and "thinking_token_budget" not in sent
    assert len(reply.thought.split()) == 45 and reply.finish is FinishReason.STOP


@pytest.mark.parametrize(
    ("settings", "thoughts", "found"),
    [
        ({}, True, (Thinking.NONE, "")),
        ({"thinks": "template"}, False, (Thinking.NONE, "")),
        ({"thinks": "template"}, True, (Thinking.TEMPLATE, "thinking_token_budget")),
        # A thought that is cut at max_tokens is not taken for a limited one.
        ({"thinks": "template", "features": FEATURES - {"thought_limit"}}, True, (Thinking.TEMPLATE, "")),
        # A schema prevents thoughts without a reasoning parser.
        ({"thinks": "template", "reasoning_parser": False}, True, (Thinking.NONE, "")),
    ],
)
async def test_thoughts_and_their_limit_are_detected(settings, thoughts, found, monkeypatch):
    monkeypatch.setattr("eval.standin.server._THOUGHT", " ".join(map(str, range(2000))))
    async with probed_model(Settings(**settings), thoughts=thoughts) as (model, _, __):
        assert (model.capabilities.thinks_by, model.capabilities.thought_limit) == found


async def test_unparsed_thought_is_separated_from_a_reply_without_a_schema():
    words = Settings(thinks="template", reasoning_parser=False, features=FEATURES - {"json_schema"})
    async with probed_model(words) as (model, _, __):
        reply = await model.reply(with_thought(HELLO, 50), within_s=60)
        assert model.capabilities.thinks_by is Thinking.TEMPLATE
    assert reply.thought.startswith("Let me see") and "think>" not in reply.text


@pytest.mark.parametrize("thinks", ["template", "asked", "effort", "always"])
async def test_odds_are_requested_without_thinking(thinks):
    """The first token would belong to the thought, so odds are requested without thinking, or not at all."""
    async with probed_model(Settings(thinks=thinks, odds={"A": 0.6, "B": 0.3})) as (model, server, _):
        odds, sent = await model.odds(with_thought(HELLO, 50), ("A", "B"), within_s=60), server.requests
    if thinks == "always":
        assert (odds, sent) == (None, [])
    else:
        assert sum(odds.masses) == pytest.approx(0.9) and sent[0]["max_tokens"] == 1
        assert "thinking_token_budget" not in sent[0]


async def connect(behaviour, **llm):
    """Models connected to a fake server, and the messages printed meanwhile."""
    messages = []
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(FakeModelServer(behaviour)))
        settings = CourtSettings(llm={"url": f"http://127.0.0.1:{port}/v1", "model": "stand-in", **llm})
        return await connect_models(settings, stack, messages.append), "\n".join(messages)


async def test_each_role_thinks_by_its_settings_and_this_is_recorded():
    roles = {"judge": {"thinking": 2048}, "proposer": {"thinking": "off"}}
    role_models, messages = await connect(Settings(thinks="template"), thinking="on", roles=roles)
    by = ["TEMPLATE", "thinking_token_budget"]
    assert role_models.settings(1200)["thoughts"] == {
        "ACCUSER": {"tokens": THOUGHT_TOKENS, "by": by},
        "DEFENDER": {"tokens": THOUGHT_TOKENS, "by": by},
        "JUDGE": {"tokens": 2048, "by": by},
    }
    assert role_models.settings(1200)["thinking"] == dict.fromkeys(role_models.models, "TEMPLATE")  # for calls for odds
    assert "no limit for thoughts" not in messages


async def test_missing_limit_for_thoughts_is_reported():
    behaviour = Settings(thinks="always", features=FEATURES - {"thought_limit"})
    role_models, messages = await connect(behaviour, roles={"judge": {"thinking": 500}})
    assert role_models.settings(1200)["thoughts"] == {"JUDGE": {"tokens": 500, "by": ["ALWAYS", "max_tokens"]}}
    assert "no limit for thoughts: the judge" in messages


@pytest.mark.parametrize("behaviour", [Settings(), Settings(thinks="template", reasoning_parser=False)])
async def test_role_that_cannot_think_is_refused_with_a_remedy(behaviour):
    with pytest.raises(ModelRefused, match=r"The judge is to think.*--reasoning-parser.*off") as caught:
        await connect(behaviour, roles={"judge": {"thinking": "on"}})
    assert caught.value.reason == "THINKING_UNAVAILABLE"


# Priorities.


def with_priority(priority):
    return ChatRequest(HELLO.system, HELLO.parts, None, 8, priority=priority)


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"features": FEATURES - {"priorities"}}, "--scheduling-policy priority"),
        ({"owned_by": "sglang"}, ""),  # their order may be reversed
    ],
)
async def test_servers_without_priority_scheduling_get_no_priorities(settings, reported):
    async with probed_model(Settings(**settings)) as (model, server, sentences):
        await model.reply(with_priority(-3), within_s=60)
        assert not model.capabilities.priorities and "priority" not in server.requests[-1]
    assert reported in sentences and bool(sentences) == bool(reported)


async def test_waiting_requests_are_served_by_lowest_priority_first():
    """The server has one slot; all requests arrive while it is taken."""
    async with probed_model(Settings(capacity=1, call_s=0.05)) as (model, server, _):
        done = []

        async def ask(priority):
            await model.reply(with_priority(priority), within_s=60)
            done.append(priority)

        async with server._slot(0):
            tasks = [asyncio.create_task(ask(priority)) for priority in (100, 99, 100, -2, 0)]
            while server.stats.waiting < len(tasks):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)
        sent = [request.get("priority") for request in server.requests]
    assert sorted(sent, key=str) == [-2, 100, 100, 99, None]
    assert done == [-2, 0, 99, 100, 100]


# Loops.


@pytest.mark.parametrize("detects", [True, False])
async def test_server_with_loop_detection_ends_loops(detects):
    settings = Settings(features=FEATURES if detects else FEATURES - {"repetition_detection"})
    loop = lambda payload: LOOP if payload["max_tokens"] == 5000 else None  # noqa: E731
    async with probed_model(settings, answer=loop) as (model, server, _):
        reply = await model.reply(ChatRequest("s", ("Go.",), None, 5000), within_s=60)
        sent = server.requests[-1].get("repetition_detection")
    assert sent == ({"min_pattern_size": 16, "max_pattern_size": 64, "min_count": 4} if detects else None)
    assert reply.is_cut is detects and reply.tokens_out == (64 if detects else 800)
    assert reply.finish is (FinishReason.REPETITION if detects else FinishReason.STOP)


async def test_reply_without_repetition_is_not_cut():
    text = " ".join(f"word {number}, " for number in range(300))
    async with probed_model(answer=lambda payload: text if payload["max_tokens"] == 5000 else None) as (model, _, __):
        reply = await model.reply(ChatRequest("s", ("Go.",), None, 5000), within_s=60)
    assert (reply.finish, reply.text) == (FinishReason.STOP, text)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_avoiding_repetition_adds_a_penalty_or_raises_the_temperature(temperature):
    for lacking, expected in ((set(), (temperature, 1.5)), ({"penalties"}, (max(temperature, 0.7), None))):
        async with probed_model(Settings(features=FEATURES - lacking)) as (model, server, _):
            for avoid in (False, True):
                request = ChatRequest("s", ("Go.",), None, 8, temperature=temperature, avoid_repetition=avoid)
                await model.reply(request, within_s=60)
            sent = [(each["temperature"], each.get("presence_penalty")) for each in server.requests]
        assert sent == [(temperature, None), expected]


@pytest.mark.parametrize(("seen", "refused"), [("memes", True), ("texts", False), ("texts of memes", False)])
async def test_model_that_takes_no_pictures_serves_courts_for_texts(seen, refused):
    async with serving(FakeModelServer(Settings(pictures=0))) as port, AsyncExitStack() as stack:
        llm = {"url": f"http://127.0.0.1:{port}/v1", "model": "stand-in"}
        connecting = connect_models(CourtSettings(llm=llm, trial={"input": seen}), stack, lambda _: None)
        if refused:
            with pytest.raises(ModelRefused, match="must see pictures") as caught:
                await connecting
            assert caught.value.reason == "MODEL_BLIND"
        else:
            assert (await connecting).speed is not None


async def test_expected_duration_is_shown_at_start_and_slow_calls_get_more_time():
    messages = []

    settings = Settings(output_token_s=0.05, features=FEATURES - {"json_schema"})
    async with serving(FakeModelServer(settings)) as port, AsyncExitStack() as stack:
        llm = {"url": f"http://127.0.0.1:{port}/v1", "model": "stand-in"}
        models = await connect_models(CourtSettings(llm=llm), stack, messages.append)
    (sentence,) = (message for message in messages if message.startswith("Expect about "))
    assert "seconds a trial" in sentence and "tokens a second" in sentence
    slow = RoleModels(
        **{role: RoleModel(object(), speed=Speed(60, 3)) for role in ("proposer", "accuser", "defender", "judge")}
    )
    assert 230 < slow.trial_s < 260 < slow.longest_call_s(1200)
    assert "reads 60 and writes 3.0 tokens" in expected_trial(slow)
    court = full_court(Cast(), role_models=slow)
    assert court.call_s == slow.longest_call_s(1200) and replace(court, settings=TrialSettings(call_s=90)).call_s == 90
    assert replace(court, role_models=None).call_s == 120 and models.longest_call_s(1200) > 0
