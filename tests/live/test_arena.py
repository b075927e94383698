"""A small arena end to end on a real vLLM: the command, its files, its page, and being taken up again.

The model writes nonsense: what is shown is that prompts, schemas, client and server fit together.
"""

from collections import Counter

import pytest
from click.testing import CliRunner

from eval.arena.events import Answered, FusionRound, Judged, TaskFormulated
from eval.arena.folder import ArenaFolder
from eval.cli import cli
from eval.models.call_cache import SqliteCallCache
from eval.synthetic.make import Layout, make

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
        # The same model with other limits: another reply for all that the store of calls knows.
        MODEL.format(name=name, url=vllm.base_url, model=vllm.model, tokens=tokens)
        for name, tokens in (("ash", 900), ("beech", 901), ("cedar", 902))
    ]
    (tmp_path / "arena.toml").write_text("".join(models) + ARENA)
    return tmp_path


def arena(files):
    given = ["--models", files / "arena.toml", "--data", files / "data", "--limit", 1, "--out", files / "arena"]
    return CliRunner().invoke(cli, ["arena", *map(str, given)])


def test_a_small_arena_end_to_end_and_nothing_is_asked_twice(files, vllm):
    held = arena(files)
    assert held.exit_code == 0, held.output
    events = ArenaFolder(files / "arena").events()
    kinds = Counter(event.kind for event in events)
    assert kinds["MemeDone"] == 1 and kinds["MemeLeftOut"] == 0, kinds
    assert kinds["TaskFormulated"] == 3 and kinds["Answered"] == 9 and kinds["FusionRound"] == 6, kinds
    assert kinds["Judged"] == 9 + 3 * 2 * 3, kinds  # three battles a task; of one, two judges under three settings
    for event in events:
        calls = event.calls if isinstance(event, Answered) else [getattr(event, "call", None)]
        for call in filter(None, calls):
            assert call.model == vllm.model and call.tokens_in > 50 and call.tokens_out > 0
        if isinstance(event, TaskFormulated | FusionRound | Judged):
            assert event.call.fault == ""  # vLLM keeps to the schemas
    assert "3 models, 3 questions about 1 meme, 9 battles" in held.output
    assert "Leaderboard: arena" in (files / "arena" / "leaderboard.html").read_text()

    before, spent = vllm.metric("vllm:request_success_total"), ArenaFolder(files / "arena").spent()
    assert sum(one.calls for one in spent.values()) == _kept(files / "arena" / "calls.sqlite")
    again = arena(files)
    assert again.exit_code == 0 and "continued" in again.output
    # Each server is asked what it can do, and nothing of the arena.
    assert ArenaFolder(files / "arena").spent() == spent
    asked = vllm.metric("vllm:request_success_total") - before
    (files / "arena" / "events.jsonl").write_text("")  # a crash that lost the record loses no call
    assert arena(files).exit_code == 0
    assert vllm.metric("vllm:request_success_total") - before == 2 * asked
    assert sorted(e.kind for e in ArenaFolder(files / "arena").events()) == sorted(e.kind for e in events)


def _kept(path):
    import asyncio

    async def count():
        store = SqliteCallCache.open(path)
        try:
            return await store.count()
        finally:
            await store.close()

    return asyncio.run(count())
