"""Features of model servers beyond answering, over real sockets: thoughts, ranks, loops that end, penalties."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from court.backends.chat.capabilities import probe
from court.backends.chat.client import ChatCompletions
from court.backends.chat.features import THOUGHT_TOKENS, Capabilities, Thinking, weakest
from court.errors import ModelRefused
from court.ports import ChatRequest, FinishReason
from eval.perf.model_server.server import FakeModelServer, serving
from eval.perf.model_server.settings import FEATURES, Settings
from serving.models.connect import connect_models
from serving.settings import Settings as CourtSettings

SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "minLength": 1, "maxLength": 200}},
    "required": ["word"],
    "additionalProperties": False,
}
HELLO = ChatRequest(system="You are brief.", parts=("Say a word.",), reply_schema=SCHEMA, max_tokens=100)
LOOP = "Say it again, " * 200


def asking(steps, settings=None, *, answer=None, thoughts=True):
    """Runs ``steps(model, server, sentences)`` once the server has been probed; requests of the probe are forgotten."""

    async def run():
        server = FakeModelServer(settings or Settings(), keep=True, answer=answer)
        async with serving(server) as port:
            model = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", model="stand-in", pause_s=0.01)
            try:
                sentences = (await probe(model, within_s=60, thoughts=thoughts)).sentences
                server.requests.clear()
                return await steps(model, server, "\n".join(sentences))
            finally:
                await model.aclose()

    return asyncio.run(run())


def with_thought(request, tokens):
    return ChatRequest(request.system, request.parts, request.reply_schema, request.max_tokens, thought_tokens=tokens)


# Thoughts


@pytest.mark.parametrize(
    ("thinks", "sent"),
    [
        ("template", {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}),
        ("asked", {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}),
        ("effort", {"reasoning_effort": "medium"}),
        ("always", {}),
    ],
)
def test_a_model_thinks_in_as_many_tokens_as_it_is_given_beside_those_of_its_reply(thinks, sent):
    async def steps(model, server, _):
        long = await model.reply(with_thought(HELLO, 1000), within_s=60)
        short = await model.reply(with_thought(HELLO, 16), within_s=60)
        return long, short, server.requests

    long, short, (first, second) = asking(steps, Settings(thinks=thinks))
    assert first.items() >= {**sent, "thinking_token_budget": 1000, "max_tokens": 1100}.items()
    assert second.items() >= {**sent, "thinking_token_budget": 16, "max_tokens": 116}.items()
    assert len(long.thought.split()) == 45 and len(short.thought.split()) == 16
    for reply in (long, short):
        assert reply.finish is FinishReason.STOP and json.loads(reply.text)["word"]


def test_without_a_limit_for_thoughts_thought_and_reply_share_one():
    async def steps(model, server, _):
        return await model.reply(with_thought(HELLO, 50), within_s=60), server.requests[-1]

    reply, sent = asking(steps, Settings(thinks="template", features=FEATURES - {"thought_limit"}))
    assert sent["max_tokens"] == 150 and "thinking_token_budget" not in sent
    assert len(reply.thought.split()) == 45 and reply.finish is FinishReason.STOP


def test_a_long_thought_that_is_cut_at_the_end_of_all_tokens_is_not_taken_for_a_limited_one(monkeypatch):
    monkeypatch.setattr("eval.perf.model_server.server._THOUGHT", " ".join(map(str, range(2000))))

    async def steps(model, _, __):
        return model.capabilities

    found = asking(steps, Settings(thinks="template", features=FEATURES - {"thought_limit"}))
    assert (found.thinks_by, found.thought_limit) == (Thinking.TEMPLATE, "")
    assert asking(steps, Settings(thinks="template")).thought_limit == "thinking_token_budget"


def test_without_a_reasoning_parser_a_schema_keeps_thoughts_out_and_words_do_not():
    async def steps(model, server, _):
        return model.capabilities.thinks_by, await model.reply(with_thought(HELLO, 50), within_s=60)

    parted = Settings(thinks="template", reasoning_parser=False)
    assert asking(steps, parted)[0] is Thinking.NONE
    words = Settings(thinks="template", reasoning_parser=False, features=FEATURES - {"json_schema"})
    by, reply = asking(steps, words)
    assert by is Thinking.TEMPLATE and reply.thought.startswith("Let me see") and "think>" not in reply.text


def test_a_model_without_thoughts_can_t_be_made_to_think():
    async def steps(model, _, __):
        return model.capabilities

    found = asking(steps)
    assert (found.thinks_by, found.thought_limit) == (Thinking.NONE, "")


def test_no_odds_are_asked_with_a_thought_before_them():
    """The first token would be that of the thought: they are asked without one, or not at all."""

    async def steps(model, server, _):
        odds = await model.odds(with_thought(HELLO, 50), ("A", "B"), within_s=60)
        return odds, server.requests

    for thinks in ("template", "asked", "effort"):
        odds, (sent,) = asking(steps, Settings(thinks=thinks, odds={"A": 0.6, "B": 0.3}))
        assert sum(odds.masses) == pytest.approx(0.9) and sent["max_tokens"] == 1
        assert "thinking_token_budget" not in sent
    assert asking(steps, Settings(thinks="always", odds={"A": 0.6, "B": 0.3})) == (None, [])


def test_a_model_at_several_servers_thinks_as_all_of_them_can_be_made_to():
    able = [Capabilities(thinks_by=each, thought_limit="thinking_token_budget") for each in Thinking]
    none, template, effort, always = able
    assert weakest([template, always]).thinks_by is Thinking.TEMPLATE
    assert weakest([always, always]) == always
    assert weakest([template, effort]).thinks_by is weakest([template, none]).thinks_by is Thinking.NONE
    assert weakest([template, Capabilities(thinks_by=Thinking.TEMPLATE)]).thought_limit == ""


async def connected(behaviour, **llm):
    """The models of a court before a stand-in, and the sentences that were told."""
    told = []
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(FakeModelServer(behaviour)))
        settings = CourtSettings(llm={"url": f"http://127.0.0.1:{port}/v1", "model": "stand-in", **llm})
        return await connect_models(settings, stack, told.append), "\n".join(told)


def test_each_role_thinks_as_its_settings_have_it_and_the_record_says_how():
    roles = {"judge": {"thinking": 2048}, "proposer": {"thinking": "off"}}
    chairs, told = asyncio.run(connected(Settings(thinks="template"), thinking="on", roles=roles))
    by = ["TEMPLATE", "thinking_token_budget"]
    assert chairs.settings(1200)["thoughts"] == {
        "ACCUSER": {"tokens": THOUGHT_TOKENS, "by": by},
        "DEFENDER": {"tokens": THOUGHT_TOKENS, "by": by},
        "JUDGE": {"tokens": 2048, "by": by},
    }
    assert chairs.settings(1200)["thinking"] == dict.fromkeys(chairs.models, "TEMPLATE")  # for the odds
    assert "no limit for thoughts" not in told


def test_a_server_without_a_limit_for_thoughts_is_told_of():
    behaviour = Settings(thinks="always", features=FEATURES - {"thought_limit"})
    chairs, told = asyncio.run(connected(behaviour, roles={"judge": {"thinking": 500}}))
    assert chairs.settings(1200)["thoughts"] == {"JUDGE": {"tokens": 500, "by": ["ALWAYS", "max_tokens"]}}
    assert "no limit for thoughts: the judge" in told


@pytest.mark.parametrize("behaviour", [Settings(), Settings(thinks="template", reasoning_parser=False)])
def test_a_role_that_is_to_think_and_can_t_is_an_error_with_a_remedy(behaviour):
    with pytest.raises(ModelRefused, match=r"The judge is to think.*--reasoning-parser.*off") as caught:
        asyncio.run(connected(behaviour, roles={"judge": {"thinking": "on"}}))
    assert caught.value.reason == "THINKING_UNAVAILABLE"


def test_where_nobody_is_to_think_nobody_is_asked_to():
    async def steps(model, _, __):
        return model.capabilities

    found = asking(steps, Settings(thinks="template"), thoughts=False)
    assert (found.thinks_by, found.thought_limit) == (Thinking.NONE, "")


# Ranks


def ranked(priority):
    return ChatRequest(HELLO.system, HELLO.parts, None, 8, priority=priority)


def test_a_vllm_without_its_priority_policy_is_told_of_and_gets_no_ranks():
    async def steps(model, server, sentences):
        await model.reply(ranked(-3), within_s=60)
        return model.capabilities.priorities, sentences, server.requests[-1]

    can, sentences, sent = asking(steps, Settings(features=FEATURES - {"priorities"}))
    assert not can and "--scheduling-policy priority" in sentences and "priority" not in sent


def test_a_server_of_another_kind_gets_no_ranks_for_there_the_highest_may_be_first():
    async def steps(model, server, sentences):
        await model.reply(ranked(-3), within_s=60)
        return model.capabilities.priorities, sentences, server.requests[-1]

    can, sentences, sent = asking(steps, Settings(owned_by="sglang"))
    assert not can and not sentences and "priority" not in sent


def test_of_requests_that_wait_the_lowest_rank_is_worked_on_first():
    """One place at the server; all come while it is taken."""

    async def steps(model, server, _):
        done = []

        async def ask(priority):
            await model.reply(ranked(priority), within_s=60)
            done.append(priority)

        await server._room.acquire(0)
        tasks = [asyncio.create_task(ask(priority)) for priority in (100, 99, 100, -2, 0)]
        while server.stats.waiting < len(tasks):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        server._room.release()
        await asyncio.gather(*tasks)
        return done, [request.get("priority") for request in server.requests]

    done, sent = asking(steps, Settings(capacity=1, call_s=0.05))
    assert sorted(sent, key=str) == [-2, 100, 100, 99, None]
    assert done == [-2, 0, 99, 100, 100]


# Loops


def test_a_server_that_can_ends_a_loop_and_says_so():
    async def steps(model, server, _):
        return await model.reply(ChatRequest("s", ("Go.",), None, 5000), within_s=60), server.requests[-1]

    loop = lambda payload: LOOP if payload["max_tokens"] == 5000 else None  # noqa: E731
    reply, sent = asking(steps, answer=loop)
    assert sent["repetition_detection"] == {"min_pattern_size": 16, "max_pattern_size": 64, "min_count": 4}
    assert reply.finish is FinishReason.REPETITION and reply.is_cut and reply.tokens_out == 64
    reply, sent = asking(steps, Settings(features=FEATURES - {"repetition_detection"}), answer=loop)
    assert "repetition_detection" not in sent
    assert reply.finish is FinishReason.STOP and reply.tokens_out == 800


def test_a_reply_that_says_each_thing_once_is_not_ended():
    async def steps(model, _, __):
        return await model.reply(ChatRequest("s", ("Go.",), None, 5000), within_s=60)

    said = " ".join(f"word {number}, " for number in range(300))
    reply = asking(steps, answer=lambda payload: said if payload["max_tokens"] == 5000 else None)
    assert (reply.finish, reply.text) == (FinishReason.STOP, said)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_asked_against_repetition_has_a_penalty_or_a_higher_temperature(temperature):
    async def steps(model, server, _):
        for avoid in (False, True):
            request = ChatRequest("s", ("Go.",), None, 8, temperature=temperature, avoid_repetition=avoid)
            await model.reply(request, within_s=60)
        return [(sent["temperature"], sent.get("presence_penalty")) for sent in server.requests]

    assert asking(steps) == [(temperature, None), (temperature, 1.5)]
    bare = Settings(features=FEATURES - {"penalties"})
    assert asking(steps, bare) == [(temperature, None), (max(temperature, 0.7), None)]
