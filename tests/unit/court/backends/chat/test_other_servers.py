"""Capabilities detected on stand-ins for SGLang, llama.cpp and OpenAI's API, and full trials on them, over sockets."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from court.backends.chat.capabilities import probe
from court.backends.chat.client import ChatCompletions, http_client
from court.backends.chat.wire import Capabilities, LogProbs, Thinking
from court.errors import ModelRefused
from court.events import Procedure, VerdictGiven
from court.meme import Meme
from court.ports import ChatRequest
from court.record import TrialState
from court.roles import RoleModel, RoleModels
from court.trial import Court, TrialCase
from eval.standin.replies import meme_text, token_id
from eval.standin.server import FakeModelServer, RefusedCall, serving
from eval.standin.settings import FEATURES, Settings
from tests.support.cast import PictureFinder
from tests.support.fakes import FakeReader, H, RecordingSink, a_picture, findings
from tests.support.playing import run_within

_LACKS = {"picture_ids", "chosen_log_probs", "priorities", "repetition_detection"}


def _of(settings):
    return Settings(**{"play": "rounds", "owned_by": "another", **settings, "features": FEATURES - _LACKS})


def _reshape_thought(choice):
    message = choice["message"]
    message["reasoning_content"] = message.pop("reasoning", None)
    message.pop("refusal")


class FakeSglang(FakeModelServer):
    """SGLang: reports cached tokens only if enabled and not zero; has ``/tokenize`` like vLLM."""

    def __init__(self, *, cache_report=True, **settings):
        super().__init__(_of(settings), keep=True)
        self._cache_report = cache_report

    def application(self):
        app = super().application()
        app.router.add_post("/tokenize", self._tokens)
        return app

    async def _tokens(self, request):
        prompt = (await request.json())["prompt"]
        return web.json_response({"tokens": [token_id(prompt)], "count": 1, "max_model_len": 32_768})

    async def _work(self, payload, fault):
        body = await super()._work(payload, fault)
        (choice,) = body["choices"]
        _reshape_thought(choice)
        choice |= {"matched_stop": None}
        details = body["usage"]["prompt_tokens_details"]
        if not self._cache_report or not details["cached_tokens"]:
            body["usage"]["prompt_tokens_details"] = None
        return {**body, "metadata": {"weight_version": "default"}}


class FakeLlamaCpp(FakeModelServer):
    """llama.cpp: other field in ``/tokenize``, token ids in log-probabilities, and timings.

    It ignores the requested model's name, and has its own message for a request that is too long for its slot.
    """

    def __init__(self, **settings):
        super().__init__(_of(settings), keep=True)

    def application(self):
        app = super().application()
        app.router.add_post("/tokenize", self._tokens)
        return app

    async def _tokens(self, request):
        text = (await request.json()).get("content")
        return web.json_response({"tokens": [] if text is None else [token_id(text)]})

    async def _work(self, payload, fault):
        try:
            body = await super()._work({**payload, "model": self.settings.model}, fault)
        except RefusedCall as refused:
            if "more than" not in str(refused):
                raise
            raise RefusedCall(
                400, "request (40000 tokens) exceeds the available context size (16384 tokens), try increasing it"
            ) from None
        (choice,) = body["choices"]
        _reshape_thought(choice)
        for position in (choice["logprobs"] or {}).get("content", ()):
            position["top_logprobs"] = [
                {"id": number, "bytes": list(one["token"].encode()), **one}
                for number, one in enumerate(position["top_logprobs"])
            ]
        cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        timings = {"cache_n": cached, "prompt_n": body["usage"]["prompt_tokens"] - cached, "predicted_ms": 1.5}
        return {**body, "system_fingerprint": "b1", "timings": timings}


class FakeOpenAI(FakeModelServer):
    """OpenAI with a reasoning model: refuses unknown fields and hides thoughts."""

    def __init__(self, *, any_temperature=False, **settings):
        super().__init__(_of({"owned_by": "openai", **settings}), keep=True)
        self._any_temperature = any_temperature

    async def _work(self, payload, fault):
        for name in ("max_tokens", "chat_template_kwargs", "repetition_detection", "priority", "thinking_token_budget"):
            if name in payload:
                raise RefusedCall(400, f"Unsupported parameter: '{name}' is not supported with this model.")
        if payload.get("temperature", 1) != 1 and not self._any_temperature:
            raise RefusedCall(400, "Unsupported value: 'temperature' does not support 0 with this model.")
        body = await super()._work(payload, fault)
        (choice,) = body["choices"]
        thought = choice["message"].pop("reasoning", None) or ""
        body["usage"]["completion_tokens_details"] = {"reasoning_tokens": len(thought.split()), "audio_tokens": 0}
        return body


SERVERS = {"sglang": FakeSglang, "llama.cpp": FakeLlamaCpp}
PIXELS = "ab" * 32


@asynccontextmanager
async def model_on(server):
    """Yields a model on this server."""
    async with asyncio.timeout(200), serving(server) as port, http_client() as http:
        yield ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", model="stand-in", http=http, pause_s=0.01)


@pytest.mark.parametrize("name", SERVERS)
async def test_capabilities_are_detected(name):
    async with model_on(SERVERS[name]()) as model:
        found = await probe(model, pictures=7)
    assert found.capabilities == Capabilities(
        json_schema=True,
        pictures=7,
        log_probs=LogProbs.TOP,
        picture_ids=False,
        cached_tokens=True,
        prefix_cache=True,
        penalties=True,
    )
    (only,) = found.sentences
    assert "log-probabilities of the most likely tokens only" in only


async def test_sglang_without_a_cache_report_is_reported_but_its_cache_not_called_dead():
    async with model_on(FakeSglang(cache_report=False)) as model:
        found = await probe(model, pictures=7)
    assert not found.capabilities.cached_tokens and found.capabilities.prefix_cache is None
    assert any("--enable-cache-report" in sentence for sentence in found.sentences)
    assert not any("found nothing" in sentence for sentence in found.sentences)


@pytest.mark.parametrize("name", SERVERS)
def test_thinking_mode_is_detected(name):
    async def steps(model):
        found = await probe(model, pictures=1)
        return found.capabilities.thinking

    assert run_within(model_on(SERVERS[name](thinks="template")), steps) is Thinking.TEMPLATE
    assert run_within(model_on(SERVERS[name](thinks="effort")), steps) is Thinking.EFFORT
    assert run_within(model_on(SERVERS[name](thinks="always")), steps) is Thinking.ALWAYS


@pytest.mark.parametrize("name", SERVERS)
async def test_full_trial_runs_on_each_server(name):
    server = SERVERS[name]()
    async with model_on(server) as model:
        await probe(model, pictures=7)
        role = RoleModel(model, servers=model)
        court = Court(
            finder=PictureFinder(findings([H] * 5)),
            text_reader=FakeReader(),
            software="test",
            role_models=RoleModels(role, role, role, role),
        )
        meme = Meme(a_picture(PIXELS), meme_text("tea", 2))
        record = await court.run(TrialCase("t", meme, Procedure.FULL), RecordingSink())
    assert record.state is TrialState.DECIDED
    verdict_event = record.last(VerdictGiven)
    assert verdict_event.odds is not None and verdict_event.odds.harmful == pytest.approx((0.6, 0.3))
    assert verdict_event.odds.call.tokens_cached > 0
    calls = [request for request in server.requests if request.get("response_format")]
    assert calls and all("logprob_token_ids" not in request for request in calls)


async def test_llama_cpp_s_error_about_a_long_prompt_is_recognised():
    async with model_on(FakeLlamaCpp(context=16_384)) as model:
        with pytest.raises(ModelRefused) as caught:
            await model.reply(ChatRequest("s", ("word " * 17_000,), None, 64), within_s=60)
        error = caught.value
    assert error.reason == "MODEL_CONTEXT_TOO_SHORT"


@pytest.mark.parametrize("any_temperature", [True, False])
@pytest.mark.parametrize("thinks", ["", "effort", "always"])
async def test_openai_s_token_limit_and_temperature_rules_are_detected(thinks, any_temperature):
    server = FakeOpenAI(thinks=thinks, any_temperature=any_temperature)
    async with model_on(server) as model:
        found = await probe(model, pictures=7)
        await model.reply(ChatRequest(system="", parts=("Hello.",), reply_schema=None, max_tokens=40), within_s=30)
    assert found.capabilities.completion_limit and found.capabilities.temperatures is any_temperature
    # Hidden thoughts are recognised by their token count.
    wanted = {"": Thinking.NONE, "effort": Thinking.EFFORT, "always": Thinking.ALWAYS}
    assert found.capabilities.thinking is wanted[thinks]
    assert any("no temperature but 1" in sentence for sentence in found.sentences) is not any_temperature
    last = server.requests[-1]
    assert "max_tokens" not in last and last["temperature"] == (0 if any_temperature else 1)
    assert last["max_completion_tokens"] == 40 + (4096 if thinks == "always" else 0)
    assert last.get("reasoning_effort") == ("none" if thinks == "effort" else None)


async def test_probe_refused_in_every_form_raises_the_first_refusal():
    class RefusingServer(FakeOpenAI):
        async def _work(self, payload, fault):
            raise RefusedCall(400, "no")

    server = RefusingServer()
    async with model_on(server) as model:
        with pytest.raises(ModelRefused) as refused:
            await probe(model, pictures=7)
        assert refused.value.status == 400
    assert [sorted(request.keys() & {"max_tokens", "max_completion_tokens"}) for request in server.requests] == [
        ["max_tokens"],
        ["max_completion_tokens"],
        ["max_completion_tokens"],
    ]
