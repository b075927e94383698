"""Tests of running a vLLM for the work that uses it, or several in turns, on a stand-in, and of commands that do so."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from court.backends.chat.client import ChatCompletions
from court.errors import BadRequest, Unavailable
from court.ports import ChatRequest
from eval.cli import cli
from eval.models.vllm_session import ServedModel, VllmSessions, VllmTurns, vllm_session
from eval.runs.results import RunFolder
from eval.synthetic.make import Layout, make
from serving.models.vllm import VllmFailed
from serving.settings import ModelSettings, RoleSettings
from tests.support.leftovers import alive
from tests.support.playing import wait_until
from tests.support.vllm_stand_in import FakeVllmPackage

HELLO = ChatRequest("s", ("hello",), None, 8)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    made = FakeVllmPackage(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(made.site))
    monkeypatch.setenv("MEMECOURT_VLLM_PYTHON", sys.executable)
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
    return made


async def test_model_is_served_while_the_work_lasts(stand_in):
    messages = []
    async with vllm_session("some/model", messages.append) as served:
        assert stand_in.journal() == [("start", "some/model")]
        key = served.api_key.get_secret_value()
        model = ChatCompletions(base_url=served.url, model=served.name, api_key=key, attempts=1)
        await model.reply(HELLO, within_s=60)
        await model.aclose()
    assert served.name == "some/model" and key not in repr(served)
    assert stand_in.journal() == [("start", "some/model"), ("end", "some/model")]
    assert not any(map(alive, stand_in.pids()))
    assert any("Starting vLLM with some/model" in message for message in messages)


async def test_preset_is_served_under_its_model_name(stand_in):
    async with vllm_session("qwen3-vl-4b", print) as served:
        assert served.name == "Qwen/Qwen3-VL-4B-Instruct"


async def test_failed_start_reports_the_end_of_its_log(stand_in):
    messages = []
    with pytest.raises(VllmFailed, match="ended with code 1 before it answered"):
        async with vllm_session("missing/model", messages.append):
            raise AssertionError("the server never answers")
    assert messages[-1] == "vllm| OSError: there is no such model"


async def test_death_of_the_server_ends_the_work_with_an_error(stand_in):
    with pytest.raises(VllmFailed, match="though nobody told it to") as caught:
        async with vllm_session("some/model", print):
            os.kill(stand_in.pids()[0], signal.SIGKILL)
            await asyncio.sleep(60)
    assert caught.value.reason == "VLLM_ENDED"


async def test_cancelled_or_failed_work_ends_the_server_without_blaming_it(stand_in):
    with pytest.raises(asyncio.CancelledError):
        async with vllm_session("some/model", print):
            asyncio.current_task().cancel()
            await asyncio.sleep(60)
    asyncio.current_task().uncancel()
    with pytest.raises(Unavailable, match="The work failed"):
        async with vllm_session("some/model", print):
            raise Unavailable("The work failed.")
    assert not any(map(alive, stand_in.pids())) and len(stand_in.pids()) == 2


async def test_sessions_run_one_model_at_a_time_and_reuse_it(stand_in):
    async with VllmSessions(print) as sessions:
        names = [(await sessions.serve(model)).name for model in ("one", "one", "other")]
        assert [alive(pid) for pid in stand_in.pids()] == [False, True]
    assert names == ["one", "one", "other"]
    assert stand_in.journal() == [("start", "one"), ("end", "one"), ("start", "other"), ("end", "other")]


def test_served_model_takes_every_role_with_its_own_key_only():
    served = ServedModel("http://127.0.0.1:1/v1", "m", SecretStr("ours"))
    judge_settings = RoleSettings(
        url=("http://elsewhere/v1",), model="other", api_key=SecretStr("theirs"), temperature=0.3
    )
    llm = served.in_all_roles(
        ModelSettings(roles={"judge": judge_settings}, api_key=SecretStr("theirs"), max_tokens=2000)
    )
    judge = llm.of_role("judge")
    assert (judge.url, judge.model, judge.temperature) == (("http://127.0.0.1:1/v1",), "m", 0.3)
    assert judge.api_key.get_secret_value() == llm.of_role("proposer").api_key.get_secret_value() == "ours"
    assert llm.max_tokens == 2000


# Commands


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make(tmp_path_factory.mktemp("synthetic") / "data", Layout.HARMEME, train=16, val=12, test=3, seed=1).root


def evaluate(*words):
    return CliRunner().invoke(cli, list(map(str, words)))


def study(command, data, out, *words):
    options = ("--data", data, "--out", out, "--procedure", "full", "--concurrency", 2)
    return evaluate(command, "--dataset", "synthetic-harmeme", *options, *words)


@pytest.mark.slow
def test_ablation_starts_each_model_once_and_one_after_the_other(stand_in, data, tmp_path):
    out = tmp_path / "study"
    words = ("--vllm", "base", "--with-model", "first", "--arms", "full,dull-judge")
    outcome = study("ablate", data, out, *words)
    assert outcome.exit_code == 0, outcome.output
    order = [(event, name) for name in ("base", "first") for event in ("start", "end")]
    assert stand_in.journal() == order
    models = {arm: set(RunFolder(out / arm).manifest().models.values()) for arm in ("full", "dull-judge")}
    assert set(models["full"]) == set(models["dull-judge"]) == {"base"}
    manifest = RunFolder(out / "model-first").manifest()
    assert set(manifest.models.values()) == {"first"} and manifest.server == "vllm"
    # Finished runs make no calls, so no server is started.
    assert study("ablate", data, out, *words).exit_code == 0
    assert stand_in.journal() == order
    # With one more arm, only its model is started.
    assert study("ablate", data, out, *words, "--with-model", "second").exit_code == 0
    assert stand_in.journal() == [*order, ("start", "second"), ("end", "second")]


@pytest.mark.slow
def test_sweep_starts_one_server_for_all_its_runs(stand_in, data, tmp_path):
    outcome = study(
        "sweep", data, tmp_path / "sweep", "--vllm", "m", "--grid", "rounds_max=2,3", "--protocol", "merged"
    )
    assert outcome.exit_code == 0, outcome.output
    assert stand_in.journal() == [("start", "m"), ("end", "m")]


@pytest.mark.slow
def test_run_reports_the_death_of_its_server_and_resumes_with_another(stand_in, data, tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setenv("DIES_AFTER", "40")
    words = ("run", data, out, "--vllm", "m", "--vllm-flag=--seed=1")
    outcome = study(*words)
    assert outcome.exit_code == 3, outcome.output
    assert "vllm| out of memory" in outcome.output
    assert "ended with code -9 though nobody told it to" in outcome.output
    assert "the same command goes on" in outcome.output
    before = len(RunFolder(out).predictions())
    assert before < 3
    monkeypatch.delenv("DIES_AFTER")
    resumed = study(*words)
    assert resumed.exit_code == 0, resumed.output
    judged = RunFolder(out).predictions()
    assert len(judged) == 3 and not any(prediction.outcome == "FAILED" for prediction in judged)
    # The new server has another port, yet earlier calls are found in the store.
    assert sum(prediction.cost.stored for prediction in judged) > 0
    assert study(*words).exit_code == 0
    assert len(stand_in.pids()) == 2  # no call was left to make


@pytest.mark.slow
def test_ctrl_c_ends_the_server_too(stand_in, data, tmp_path):
    out = tmp_path / "run"
    options = ("--dataset", "synthetic-harmeme", "--data", data, "--out", out, "--procedure", "full", "--vllm", "m")
    process = subprocess.Popen(
        [sys.executable, "-m", "eval", "run", *map(str, options)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    output = ""
    for line in process.stderr:
        output += line
        if "vLLM answers as m" in line:
            break
    process.send_signal(signal.SIGINT)
    output += process.communicate(timeout=120)[1]
    assert process.returncode == 130 and "Interrupted." in output and "Traceback" not in output, output
    wait_until(lambda: not any(map(alive, stand_in.pids())))
    assert len(stand_in.pids()) == 1


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--vllm", "m", "--llm-url", "http://127.0.0.1:1/v1"), "leave --llm-url and --model out"),
        (("--vllm", "m", "--procedure", "summary"), "the procedure summary asks none"),
        (("--vllm-flag=--seed=1",), "--vllm-flag goes with --vllm"),
        (("--vllm", "m", "--vllm-flag=--port=1"), "--port is a setting of memecourt"),
    ],
)
@pytest.mark.parametrize("command", ["run", "ablate", "sweep"])
def test_conflicting_options_are_rejected_before_any_server_starts(stand_in, data, tmp_path, command, words, fault):
    grid = ("--grid", "rounds_max=2,3") if command == "sweep" else ()
    outcome = study(command, data, tmp_path / "out", *words, *grid)
    assert outcome.exit_code in (1, 2) and fault in " ".join(outcome.output.split()), outcome.output
    assert stand_in.journal() == []


def test_setups_with_two_servers_at_once_or_remote_workers_are_refused(stand_in, data, tmp_path):
    outcome = study("ablate", data, tmp_path / "out", "--vllm", "m", "--with-model", "judge=other")
    assert outcome.exit_code == 1 and "asks two models by turns" in outcome.output
    outcome = study("run", data, tmp_path / "out", "--vllm", "m", "--ray", "127.0.0.1:1")
    assert outcome.exit_code == 2 and "other machines can't reach" in " ".join(outcome.output.split())
    assert stand_in.journal() == []


async def test_server_that_other_machines_could_reach_is_refused(stand_in):
    with pytest.raises(BadRequest):
        async with vllm_session("m", print, flags=("--host", "0.0.0.0")):
            pass
    assert stand_in.journal() == []


# Models that share one GPU and take turns


@asynccontextmanager
async def turns_of(**options):
    """Models in turns, and ``say(model)``, which gets a reply of a model in its turn."""
    async with asyncio.timeout(120), VllmTurns(print, pictures=4, **options) as turns:

        async def say(name):
            async with turns.turn(name) as served:
                key = served.api_key.get_secret_value()
                model = ChatCompletions(base_url=served.url, model=served.name, api_key=key, attempts=1)
                try:
                    # A server with another model answers 404.
                    return await model.reply(HELLO, within_s=30)
                finally:
                    await model.aclose()

        yield turns, say


def one_at_a_time(journal):
    """True if each server had ended before the next one started."""
    pairs = zip(journal[::2], journal[1::2], strict=True)
    return all(first == ("start", model) and second == ("end", model) for first, second in pairs for model in first[1:])


@pytest.mark.slow
async def test_server_runs_until_no_call_waits_for_it(stand_in):
    async with turns_of(quiet_s=0.5) as (_, say):

        async def chain(models):
            return [await say(model) for model in models]

        # Eight interleaved chains: strictly in order of the calls, they would need 40 starts.
        chains = [("a", "b", "b", "a", "c") if n % 2 else ("b", "a", "c", "c", "b") for n in range(8)]
        replies = await asyncio.gather(*map(chain, chains))
    assert [len(chain_replies) for chain_replies in replies] == [5] * 8
    journal = stand_in.journal()
    assert one_at_a_time(journal) and len(journal) // 2 <= 8, journal


async def test_waiting_for_a_turn_can_be_cancelled(stand_in):
    async with turns_of(quiet_s=0.1) as (turns, say):
        async with turns.turn("a"):
            waiting = asyncio.create_task(say("b"))
            await asyncio.sleep(0.2)
            waiting.cancel()
            await asyncio.wait((waiting,))
            assert waiting.cancelled()
        await say("a")
    assert stand_in.journal() == [("start", "a"), ("end", "a")]


async def test_call_that_is_cancelled_in_its_turn_holds_up_no_other_model(monkeypatch):
    async def serve(_, model):
        await asyncio.sleep(0.01)  # both calls wait by now
        if model == "a":
            asyncio.get_running_loop().call_soon(first.cancel)  # before it wakes up
        return ServedModel("http://127.0.0.1:1/v1", model, SecretStr("key"))

    async def call(model):
        async with turns.turn(model) as served:
            return served.name

    monkeypatch.setattr(VllmSessions, "serve", serve)
    async with asyncio.timeout(10), VllmTurns(print, pictures=4, quiet_s=0.01) as turns:
        first, second = asyncio.create_task(call("a")), asyncio.create_task(call("b"))
        assert await second == "b" and first.cancelled()


async def test_failed_start_reaches_all_waiting_calls(stand_in):
    async with turns_of() as (_, say):
        outcomes = await asyncio.gather(say("missing/model"), say("missing/model"), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [VllmFailed, VllmFailed]
        with pytest.raises(VllmFailed):
            await say("a")
    assert stand_in.journal() == []


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
    assert results["manifest"]["finished"]
    assert {row["model"] for row in results["boards"][0]["rows"]} == {"ash", "beech", "cedar"}
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
