"""Features of a real vLLM that the court uses where it finds them: ranks, loops that end, thoughts with a limit."""

import asyncio
import json
import subprocess
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from court.backends.chat.capabilities import probe
from court.backends.chat.client import ChatCompletions
from court.backends.chat.features import Thinking
from court.events import Summarised, VerdictGiven
from court.examination import entropy
from court.ports import ChatRequest, FinishReason
from court.record import TrialState
from court.roles import RoleModel, RoleModels
from eval.perf.vllm import server as vllm_cpu
from eval.perf.vllm.court import PICTURES
from eval.perf.vllm.tiny_model import NAME, make_tiny_model
from retrieval.starter.draw import draw_meme
from serving.models.vllm import VllmServer
from tests.live.test_full_trial import a_case, court_of, read
from tests.support.fakes import Notes

WORD = {
    "type": "object",
    "properties": {"word": {"type": "string", "minLength": 1, "maxLength": 12}},
    "required": ["word"],
    "additionalProperties": False,
}


@asynccontextmanager
async def vllm_with(python: Path, model: Path, *flags: str):
    """The client of a vLLM with these flags besides, which has found out what that can do."""
    own = vllm_cpu.settings(python, model)
    async with VllmServer(own.model_copy(update={"flags": (*own.flags, *flags)})) as server:
        model = ChatCompletions(base_url=server.base_url, model=server.model, api_key=server.api_key)
        try:
            await probe(model, pictures=PICTURES, thoughts=True)
            yield model
        finally:
            await model.aclose()


def test_a_vllm_has_ranks_ends_loops_and_takes_penalties(vllm):
    async def work():
        model = ChatCompletions(base_url=vllm.base_url, model=vllm.model, api_key=vllm.api_key)
        try:
            found = (await probe(model, pictures=2, thoughts=True)).capabilities
            assert found.priorities and found.ends_loops and found.penalties
            assert (found.thinking, found.thinks_by, found.thought_limit) == (Thinking.NONE, Thinking.NONE, "")
            request = ChatRequest("s", ("Go.",), None, max_tokens=400)
            with vllm.client() as client:
                asked = {"model": vllm.model, "prompt": " the", "add_special_tokens": False}
                (token,) = client.post("/tokenize", json=asked).json()["tokens"]
            # A model that can say nothing but one word.
            answer = await model.answer(request, within_s=60, extra={"logit_bias": {str(token): 100}})
            return answer.reply(1.0)
        finally:
            await model.aclose()

    reply = asyncio.run(work())
    assert reply.finish is FinishReason.REPETITION and reply.tokens_out == 64
    assert set(reply.text.split()) == {"the"}


@pytest.mark.parametrize("policy", ["priority", "fcfs"])
def test_what_ranks_lower_is_worked_on_first_and_without_the_policy_ranks_are_passed_over(
    vllm_python, tiny_model, policy
):
    """One request at a time; while a long one is worked on, those of a batch come, and one whose caller waits last."""

    async def work():
        flags = ("--max-num-seqs", "1", "--scheduling-policy", policy)
        async with vllm_with(vllm_python, tiny_model, *flags) as model:
            assert model.capabilities.priorities  # vLLM does not tell the two apart
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
            return done

    came = ["new", "nearly over", "waited for"]
    assert asyncio.run(work()) == ["long", *(reversed(came) if policy == "priority" else came)]


@pytest.mark.parametrize("parser", [True, False])
def test_a_model_that_thinks_is_kept_from_it_or_let_as_far_as_its_limit(vllm_python, tmp_path, parser):
    tiny = make_tiny_model(tmp_path / NAME, thinks=True)
    (picture,) = read(draw_meme("coffee", "send them all home", size=(224, 168)))
    flags = ("--reasoning-parser", "qwen3") if parser else ()

    async def work():
        async with vllm_with(vllm_python, tiny, *flags) as model:
            hello = ChatRequest("s", ("Say a word.",), WORD, max_tokens=64)
            thinking = ChatRequest("s", ("Say a word.",), WORD, max_tokens=64, thought_tokens=24)
            odds = await model.odds(thinking, ("A", "B"), within_s=60)
            replies = [await model.reply(request, within_s=60) for request in (hello, thinking)]
            record = None
            if parser:
                chair = RoleModel(model, thought_tokens=24)
                court = replace(court_of(model), chairs=RoleModels(chair, chair, chair, chair))
                record = await court.hear(a_case(picture, "send them all home"), Notes())
            return model.capabilities, odds, replies, record

    found, odds, (plain, thought), record = asyncio.run(work())
    assert json.loads(plain.text)["word"] and not plain.thought
    assert odds is not None and sum(odds.masses) > 0
    if parser:
        assert record.state is TrialState.DECIDED and record.last(VerdictGiven).odds is not None
        calls = [event.call for event in record.events if getattr(event, "call", None)]
        assert calls and all(call.thought and call.tokens_out > 24 for call in calls)
        for said in record.all(Summarised):
            assert said.entropy == pytest.approx(entropy(said.summary))
        assert (found.thinking, found.thinks_by) == (Thinking.TEMPLATE, Thinking.TEMPLATE)
        assert found.thought_limit == "thinking_token_budget"
        assert thought.thought and json.loads(thought.text)["word"]
        assert 24 < thought.tokens_out < 24 + 64
    else:  # the schema holds from the first token on
        assert found.thinks_by is Thinking.NONE and not thought.thought


def test_a_qwen3_vl_is_asked_as_its_predecessor_is(vllm_python, tmp_path):
    tiny = make_tiny_model(tmp_path / "tiny-qwen3-vl")
    subprocess.run([vllm_python, Path(__file__).with_name("tiny_qwen3.py"), "vl", tiny], check=True, timeout=300)
    (picture,) = read(draw_meme("coffee", "send them all home", size=(224, 168)))

    async def work():
        async with vllm_with(vllm_python, tiny) as model:
            record = await court_of(model).hear(a_case(picture, "send them all home"), Notes())
            return model.capabilities, record

    found, record = asyncio.run(work())
    assert found.json_schema and found.picture_ids and found.prefix_cache and found.pictures == PICTURES
    assert record.state is TrialState.DECIDED and record.last(VerdictGiven).odds is not None
    calls = [event.call for event in record.events if getattr(event, "call", None)]
    assert sum(call.tokens_cached for call in calls) > 0, "what a trial has said before is found again"
