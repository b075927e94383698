"""A small arena end to end on a real vLLM: the command, its files, its page, and resuming.

The model writes nonsense: the test shows only that prompts, schemas, client and server fit together.
"""

from collections import Counter

import pytest
from click.testing import CliRunner

from eval.arena.events import Answered, FusionRound, Judged, TaskFormulated
from eval.arena.folder import ArenaFolder
from eval.cli import cli
from eval.synthetic.make import Layout, make
from tests.support.run import stored_calls

MODEL = """
[models.{name}]
url = "{url}"
model = "{model}"
family = "{name}"
server = "tiny"
api_key_env = "LIVE_ARENA_KEY"
max_tokens = {tokens}
usd_in = 1.0
usd_out = 2.0
"""
ARENA = """
[arena]
judges = ["ash", "beech"]
controller = "ash"
temperature = 0.7
reply_chars = 64
resamples = 100
own_case = true
bias = true
bias_tasks = 1
"""


@pytest.fixture
def files(tmp_path, vllm, monkeypatch):
    monkeypatch.setenv("LIVE_ARENA_KEY", vllm.api_key)
    make(tmp_path / "data", Layout.HARMEME, train=4, val=0, test=4)
    models = [
        # The same model with different limits, so that the store of calls takes them for different models.
        MODEL.format(name=name, url=vllm.base_url, model=vllm.model, tokens=tokens)
        for name, tokens in (("ash", 900), ("beech", 901), ("cedar", 902))
    ]
    (tmp_path / "arena.toml").write_text("".join(models) + ARENA)
    return tmp_path


def arena(files):
    options = ["--models", files / "arena.toml", "--data", files / "data", "--limit", 1, "--out", files / "arena"]
    return CliRunner().invoke(cli, ["arena", *map(str, options)])


def test_small_arena_runs_end_to_end_and_repeats_no_call(files, vllm):
    result = arena(files)
    assert result.exit_code == 0, result.output
    events = ArenaFolder(files / "arena").events()
    kinds = Counter(event.kind for event in events)
    assert kinds["MemeDone"] == 1 and kinds["MemeLeftOut"] == 0, kinds
    assert kinds["TaskFormulated"] == 3 and kinds["Answered"] == 9 and kinds["FusionRound"] == 6, kinds
    # Three battles a task; those of one task are judged again by two judges under three settings.
    assert kinds["Judged"] == 9 + 3 * 2 * 3, kinds
    for event in events:
        calls = event.calls if isinstance(event, Answered) else [getattr(event, "call", None)]
        for call in filter(None, calls):
            assert call.model == vllm.model and call.tokens_in > 50 and call.tokens_out > 0
        if isinstance(event, TaskFormulated | FusionRound | Judged):
            assert event.call.fault == ""  # vLLM keeps to the schemas
    assert "3 models, 3 questions about 1 meme, 9 battles" in result.output
    assert "Leaderboard: arena" in (files / "arena" / "leaderboard.html").read_text()

    before, costs = vllm.metric("vllm:request_success_total"), ArenaFolder(files / "arena").spent()
    assert sum(cost.calls for cost in costs.values()) == stored_calls(files / "arena" / "calls.sqlite")
    repeated = arena(files)
    assert repeated.exit_code == 0 and "continued" in repeated.output
    # Each server is probed for its capabilities, and no call of the arena is repeated.
    assert ArenaFolder(files / "arena").spent() == costs
    probe_calls = vllm.metric("vllm:request_success_total") - before
    (files / "arena" / "events.jsonl").write_text("")  # a lost record loses no stored call
    assert arena(files).exit_code == 0
    assert vllm.metric("vllm:request_success_total") - before == 2 * probe_calls
    assert sorted(e.kind for e in ArenaFolder(files / "arena").events()) == sorted(e.kind for e in events)
