"""Tests of models that share one GPU and take turns, on a stand-in for vLLM; an arena and a probe of such models."""

import asyncio
import json
import sys

import pytest
from click.testing import CliRunner

from court.backends.chat.client import ChatCompletions
from court.ports import ChatRequest
from eval.cli import cli
from eval.models.vllm_session import VllmTurns
from eval.synthetic.make import Layout, make
from serving.models.vllm import VllmFailed
from tests.support.vllm_stand_in import FakeVllmPackage

HELLO = ChatRequest("s", ("hello",), None, 8)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    made = FakeVllmPackage(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(made.site))
    monkeypatch.setenv("MEMECOURT_VLLM_PYTHON", sys.executable)
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    return made


def with_turns(work, **options):
    """Runs ``work(turns, say)``, where ``say(model)`` gets a reply of a model in its turn."""

    async def run():
        async with asyncio.timeout(120), VllmTurns(lambda _: None, pictures=4, **options) as turns:

            async def say(name):
                async with turns.turn(name) as served:
                    key = served.api_key.get_secret_value()
                    model = ChatCompletions(base_url=served.url, model=served.name, api_key=key, attempts=1)
                    try:
                        # A server with another model answers 404.
                        return await model.reply(HELLO, within_s=30)
                    finally:
                        await model.aclose()

            return await work(turns, say)

    return asyncio.run(run())


def one_at_a_time(journal):
    """True if each server had ended before the next one started."""
    pairs = zip(journal[::2], journal[1::2], strict=True)
    return all(first == ("start", model) and second == ("end", model) for first, second in pairs for model in first[1:])


@pytest.mark.slow
def test_server_runs_until_no_call_waits_for_it(stand_in):
    async def work(turns, say):
        async def chain(models):
            return [await say(model) for model in models]

        # Eight interleaved chains: strictly in order of the calls, they would need 40 starts.
        chains = [("a", "b", "b", "a", "c") if n % 2 else ("b", "a", "c", "c", "b") for n in range(8)]
        return await asyncio.gather(*map(chain, chains))

    replies = with_turns(work, quiet_s=0.5)
    assert [len(chain_replies) for chain_replies in replies] == [5] * 8
    journal = stand_in.journal()
    assert one_at_a_time(journal) and len(journal) // 2 <= 8, journal


def test_waiting_for_a_turn_can_be_cancelled(stand_in):
    async def work(turns, say):
        async with turns.turn("a"):
            waiting = asyncio.create_task(say("b"))
            await asyncio.sleep(0.2)
            waiting.cancel()
            await asyncio.wait((waiting,))
            assert waiting.cancelled()
        await say("a")

    with_turns(work, quiet_s=0.1)
    assert stand_in.journal() == [("start", "a"), ("end", "a")]


def test_failed_start_reaches_all_waiting_calls(stand_in):
    async def work(turns, say):
        outcomes = await asyncio.gather(say("missing/model"), say("missing/model"), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [VllmFailed, VllmFailed]
        with pytest.raises(VllmFailed):
            await say("a")

    with_turns(work)
    assert stand_in.journal() == []


# Commands


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make(tmp_path_factory.mktemp("synthetic") / "data", Layout.HARMEME, train=4, val=4, test=2, seed=1).root


def evaluate(*words):
    return CliRunner().invoke(cli, list(map(str, words)))


MODELS = """
[models.ash]
model = "ash-vl"
[models.beech]
model = "beech-vl"
[models.cedar]
model = "cedar-vl"
"""
ARENA = """
[arena]
judges = ["ash", "beech"]
controller = "ash"
own_case = true
resamples = 100
"""
VLLM = ("--vllm", "ash-vl", "--vllm", "beech-vl", "--vllm", "cedar-vl")


@pytest.mark.slow
def test_arena_starts_its_models_in_turns(stand_in, data, tmp_path):
    (tmp_path / "arena.toml").write_text(MODELS + ARENA)
    options = ("--models", tmp_path / "arena.toml", "--data", data, "--out", tmp_path / "arena", "--limit", 1, "--yes")
    outcome = evaluate("arena", *options, *VLLM, "--json")
    assert outcome.exit_code == 0, outcome.output
    results = json.loads(outcome.stdout)
    assert results["manifest"]["finished"] and {row["model"] for row in results["boards"][0]["rows"]} == {
        "ash",
        "beech",
        "cedar",
    }
    journal = stand_in.journal()
    assert one_at_a_time(journal) and {name for _, name in journal} == {"ash-vl", "beech-vl", "cedar-vl"}
    # No call is repeated, so only probing each model takes a start.
    second = evaluate("arena", *options, *VLLM, "--json")
    assert second.exit_code == 0, second.output
    assert json.loads(second.stdout)["spent"] == results["spent"]


@pytest.mark.slow
def test_probe_starts_its_models_in_turns(stand_in, data, tmp_path):
    (tmp_path / "models.toml").write_text(MODELS)
    options = ("--models", tmp_path / "models.toml", "--data", data, "--out", tmp_path / "probe", "--limit", 1)
    outcome = evaluate("probe", *options, "--target", "ash", "--controller", "beech", *VLLM[:4])
    assert outcome.exit_code == 0, outcome.output
    journal = stand_in.journal()
    assert one_at_a_time(journal) and {name for _, name in journal} == {"ash-vl", "beech-vl"}


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((), "[models.ash] has no url. Name its server, or have one started: --vllm ash-vl"),
        ((*VLLM, "--vllm", "oak-vl"), "--vllm oak-vl is for nobody"),
    ],
)
def test_models_without_a_server_and_servers_without_a_model_are_refused(stand_in, data, tmp_path, words, fault):
    (tmp_path / "arena.toml").write_text(MODELS + ARENA)
    options = ("--models", tmp_path / "arena.toml", "--data", data, "--out", tmp_path / "out")
    outcome = evaluate("arena", *options, *words)
    assert outcome.exit_code == 1 and fault in outcome.output, outcome.output
    (tmp_path / "models.toml").write_text(MODELS)
    options = ("--models", tmp_path / "models.toml", "--data", data, "--out", tmp_path / "out")
    outcome = evaluate("probe", *options, "--target", "ash", "--controller", "beech", "--controller", "cedar", *words)
    assert outcome.exit_code == 1 and fault in outcome.output, outcome.output
    assert stand_in.journal() == [] and not (tmp_path / "out").exists()
