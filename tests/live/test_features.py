"""Optional features of a real vLLM that the court uses: priorities, repetition detection, limited thinking."""

import asyncio
import json
import subprocess
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from court.backends.chat.capabilities import probe
from court.backends.chat.client import ChatCompletions
from court.backends.chat.wire import Thinking
from court.events import Summarised, VerdictGiven
from court.examination import entropy
from court.ports import ChatRequest, FinishReason
from court.record import TrialState
from court.roles import RoleModel, RoleModels
from eval.perf.vllm import prefix_cache as vllm_cpu
from eval.perf.vllm.prefix_cache import PICTURES
from eval.perf.vllm.tiny_model import NAME, make_tiny_model
from eval.synthetic.scenes import draw_meme
from serving.models.vllm import VllmServer
from tests.support.fakes import RecordingSink
from tests.support.full_trial import a_case, court_of, read

WORD = {
    "type": "object",
    "properties": {"word": {"type": "string", "minLength": 1, "maxLength": 12}},
    "required": ["word"],
    "additionalProperties": False,
}


@asynccontextmanager
async def vllm_with(python, model, *flags):
    """Starts a vLLM with extra flags; yields a client that has probed its capabilities."""
    settings = vllm_cpu.settings(python, model)
    async with VllmServer(settings.model_copy(update={"flags": (*settings.flags, *flags)})) as server:
        model = ChatCompletions(base_url=server.base_url, model=server.model, api_key=server.api_key)
        try:
            await probe(model, pictures=PICTURES, thoughts=True)
            yield model
        finally:
            await model.aclose()


async def test_vllm_supports_priorities_repetition_detection_and_penalties(vllm):
    model = ChatCompletions(base_url=vllm.base_url, model=vllm.model, api_key=vllm.api_key)
    try:
        found = (await probe(model, pictures=2, thoughts=True)).capabilities
        assert found.priorities and found.ends_loops and found.penalties
        assert (found.thinking, found.thinks_by, found.thought_limit) == (Thinking.NONE, Thinking.NONE, "")
        request = ChatRequest("s", ("Go.",), None, max_tokens=400)
        with vllm.client() as client:
            body = {"model": vllm.model, "prompt": " the", "add_special_tokens": False}
            (token,) = client.post("/tokenize", json=body).json()["tokens"]
        # The bias lets the model say only one word.
        answer = await model.answer(request, within_s=60, extra={"logit_bias": {str(token): 100}})
        reply = answer.reply(1.0)
    finally:
        await model.aclose()
    assert reply.finish is FinishReason.REPETITION and reply.tokens_out == 64
    assert set(reply.text.split()) == {"the"}


@pytest.mark.parametrize("policy", ["priority", "fcfs"])
async def test_priorities_order_queued_requests_only_under_the_priority_policy(vllm_python, tiny_model, policy):
    """Handles one request at a time: three queue behind a long one, the last of which is the most urgent."""
    arrival_order = ["new", "nearly over", "waited for"]
    flags = ("--max-num-seqs", "1", "--scheduling-policy", policy)
    async with vllm_with(vllm_python, tiny_model, *flags) as model:
        assert model.capabilities.priorities  # vLLM reports no difference between the policies
        done = []

        async def ask(name, priority, tokens=8):
            request = ChatRequest("s", (f"Go, {name}.",), None, max_tokens=tokens, priority=priority)
            await model.answer(request, within_s=300, extra={"ignore_eos": True, "repetition_detection": None})
            done.append(name)

        tasks = [asyncio.create_task(ask("long", 0, 600))]
        await asyncio.sleep(0.5)
        for name, priority in (("new", 100), ("nearly over", 60), ("waited for", -2)):
            tasks.append(asyncio.create_task(ask(name, priority)))
            await asyncio.sleep(0.1)
        assert not done
        await asyncio.gather(*tasks)
        assert done == ["long", *(reversed(arrival_order) if policy == "priority" else arrival_order)]


@pytest.mark.parametrize("parser", [True, False])
async def test_thinking_is_off_by_default_and_limited_on_request(vllm_python, tmp_path, parser):
    tiny = make_tiny_model(tmp_path / NAME, thinks=True)
    (picture,) = read(draw_meme("coffee", "send them all home", size=(224, 168)))
    flags = ("--reasoning-parser", "qwen3") if parser else ()
    async with vllm_with(vllm_python, tiny, *flags) as model:
        found = model.capabilities
        plain_request = ChatRequest("s", ("Say a word.",), WORD, max_tokens=64)
        thinking_request = ChatRequest("s", ("Say a word.",), WORD, max_tokens=64, thought_tokens=24)
        odds = await model.odds(thinking_request, ("A", "B"), within_s=60)
        plain, thought = [await model.reply(request, within_s=60) for request in (plain_request, thinking_request)]
        record = None
        if parser:
            role_model = RoleModel(model, thought_tokens=24)
            court = replace(court_of(model), role_models=RoleModels(role_model, role_model, role_model, role_model))
            record = await court.run(a_case(picture, "send them all home"), RecordingSink())
    assert json.loads(plain.text)["word"] and not plain.thought
    assert odds is not None and sum(odds.masses) > 0
    if parser:
        assert record.state is TrialState.DECIDED and record.last(VerdictGiven).odds is not None
        calls = [event.call for event in record.events if getattr(event, "call", None)]
        assert calls and all(call.thought and call.tokens_out > 24 for call in calls)
        for summarised in record.all(Summarised):
            assert summarised.entropy == pytest.approx(entropy(summarised.summary))
        assert (found.thinking, found.thinks_by) == (Thinking.TEMPLATE, Thinking.TEMPLATE)
        assert found.thought_limit == "thinking_token_budget"
        assert thought.thought and json.loads(thought.text)["word"]
        assert 24 < thought.tokens_out < 24 + 64
    else:  # without a parser, the schema applies from the first token
        assert found.thinks_by is Thinking.NONE and not thought.thought


async def test_qwen3_vl_runs_a_full_trial_like_its_predecessor(vllm_python, tmp_path):
    tiny = make_tiny_model(tmp_path / "tiny-qwen3-vl")
    command = [vllm_python, Path(__file__).with_name("tiny_qwen3.py"), "vl", tiny]
    subprocess.run(command, check=True, timeout=300)  # noqa: ASYNC221 - nothing else runs in this loop
    (picture,) = read(draw_meme("coffee", "send them all home", size=(224, 168)))
    async with vllm_with(vllm_python, tiny) as model:
        record = await court_of(model).run(a_case(picture, "send them all home"), RecordingSink())
        found = model.capabilities
    assert found.json_schema and found.picture_ids and found.prefix_cache and found.pictures == PICTURES
    assert record.state is TrialState.DECIDED and record.last(VerdictGiven).odds is not None
    calls = [event.call for event in record.events if getattr(event, "call", None)]
    assert sum(call.tokens_cached for call in calls) > 0, "earlier parts of a trial are found in the prefix cache"
