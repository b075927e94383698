"""What the court finds out about SGLang, llama.cpp and OpenAI's own, and full trials before them, over real sockets."""

import asyncio

import pytest

from court.backends.chat.capabilities import probe
from court.backends.chat.client import ChatCompletions, http_client
from court.backends.chat.features import Capabilities, LogProbs, Thinking
from court.errors import ModelRefused
from court.events import Procedure, VerdictGiven
from court.meme import Meme
from court.ports import ChatRequest
from court.record import TrialState
from court.roles import RoleModel, RoleModels
from court.trial import Court, TrialCase
from eval.perf.model_server.replies import meme_text
from eval.perf.model_server.server import RefusedCall, serving
from tests.support.cast import PictureFinder
from tests.support.fakes import FakeReader, H, Notes, a_picture, findings
from tests.support.other_servers import LlamaCppStandIn, OpenAIStandIn, SglangStandIn

SERVERS = {"sglang": SglangStandIn, "llama.cpp": LlamaCppStandIn}
PIXELS = "ab" * 32


def before(server, steps):
    """Runs ``steps(model)`` with a model behind the server."""

    async def run():
        async with asyncio.timeout(200), serving(server) as port, http_client() as http:
            model = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", model="stand-in", http=http, pause_s=0.01)
            return await steps(model)

    return asyncio.run(run())


@pytest.mark.parametrize("name", SERVERS)
def test_what_it_can_do_is_found_out(name):
    async def steps(model):
        return await probe(model, pictures=7)

    found = before(SERVERS[name](), steps)
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


def test_sglang_without_a_cache_report_is_told_of_and_its_cache_is_not_called_dead():
    async def steps(model):
        return await probe(model, pictures=7)

    found = before(SglangStandIn(cache_report=False), steps)
    assert not found.capabilities.cached_tokens and found.capabilities.prefix_cache is None
    assert any("--enable-cache-report" in sentence for sentence in found.sentences)
    assert not any("found nothing" in sentence for sentence in found.sentences)


@pytest.mark.parametrize("name", SERVERS)
def test_a_model_that_thinks_is_told_not_to_and_its_thoughts_are_told_apart(name):
    async def steps(model):
        found = await probe(model, pictures=1)
        return found.capabilities.thinking

    assert before(SERVERS[name](thinks="template"), steps) is Thinking.TEMPLATE
    assert before(SERVERS[name](thinks="effort"), steps) is Thinking.EFFORT
    assert before(SERVERS[name](thinks="always"), steps) is Thinking.ALWAYS


@pytest.mark.parametrize("name", SERVERS)
def test_a_full_trial_is_held_before_it(name):
    server = SERVERS[name]()

    async def steps(model):
        await probe(model, pictures=7)
        role = RoleModel(model, servers=model)
        court = Court(
            finder=PictureFinder(findings([H] * 5)),
            text_reader=FakeReader(),
            software="test",
            chairs=RoleModels(role, role, role, role),
        )
        meme = Meme(a_picture(PIXELS), meme_text("tea", 2))
        return await court.hear(TrialCase("t", meme, Procedure.FULL), Notes())

    record = before(server, steps)
    assert record.state is TrialState.DECIDED
    given = record.last(VerdictGiven)
    assert given.odds is not None and given.odds.harmful == pytest.approx((0.6, 0.3))
    assert given.odds.call.tokens_cached > 0
    calls = [request for request in server.requests if request.get("response_format")]
    assert calls and all("logprob_token_ids" not in request for request in calls)


def test_llama_cpp_s_words_for_a_prompt_that_is_too_long_are_understood():
    async def steps(model):
        with pytest.raises(ModelRefused) as caught:
            await model.reply(ChatRequest("s", ("word " * 17_000,), None, 64), within_s=60)
        return caught.value

    error = before(LlamaCppStandIn(context=16_384), steps)
    assert error.reason == "MODEL_CONTEXT_TOO_SHORT" and "16,384" in error.message and "40,000" in error.message


@pytest.mark.parametrize("any_temperature", [True, False])
@pytest.mark.parametrize("thinks", ["", "effort", "always"])
def test_openai_s_own_form_of_limit_and_temperature_is_found_out(thinks, any_temperature):
    server = OpenAIStandIn(thinks=thinks, any_temperature=any_temperature)

    async def steps(model):
        found = await probe(model, pictures=7)
        await model.reply(ChatRequest(system="", parts=("Hello.",), reply_schema=None, max_tokens=40), within_s=30)
        return found

    found = before(server, steps)
    assert found.capabilities.completion_limit and found.capabilities.temperatures is any_temperature
    # Thoughts that are not told show by their tokens.
    wanted = {"": Thinking.NONE, "effort": Thinking.EFFORT, "always": Thinking.ALWAYS}
    assert found.capabilities.thinking is wanted[thinks]
    assert any("no temperature but 1" in sentence for sentence in found.sentences) is not any_temperature
    last = server.requests[-1]
    assert "max_tokens" not in last and last["temperature"] == (0 if any_temperature else 1)
    assert last["max_completion_tokens"] == 40 + (4096 if thinks == "always" else 0)
    assert last.get("reasoning_effort") == ("none" if thinks == "effort" else None)


def test_a_greeting_that_is_refused_in_every_form_is_refused_as_it_was_first():
    class Refusing(OpenAIStandIn):
        async def _work(self, payload, fault):
            raise RefusedCall(400, "no")

    async def steps(model):
        with pytest.raises(ModelRefused) as refused:
            await probe(model, pictures=7)
        return refused.value

    server = Refusing()
    assert before(server, steps).status == 400
    assert [sorted(request.keys() & {"max_tokens", "max_completion_tokens"}) for request in server.requests] == [
        ["max_tokens"],
        ["max_completion_tokens"],
        ["max_completion_tokens"],
    ]
