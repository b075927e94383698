"""Tests of runs within this process; tests/integration/test_run_killed.py kills them."""

import asyncio
import dataclasses
import io
import json
import shutil
from collections import Counter
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from importlib.resources import files
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console

from court import events as happened
from court.errors import BadRequest, Unavailable
from court.precedents import VoteSettings
from court.record import TrialRecord
from court.settings import TrialSettings
from court.trial import TrialCase
from court.verdict import Label, Strength, Strengths, Verdict
from eval.arena.folder import FixedTask, read_lines
from eval.arena.task_set import tasks_of_run
from eval.cli import cli
from eval.datasets.items import JudgedMeme, Level, Outcome, Prediction, Protocol
from eval.datasets.known import find_card
from eval.datasets.read import read_split, sample, source_of
from eval.models.call_cache import HitCounter
from eval.runs.judge import PICTURE_MISSING, RunningScore
from eval.runs.plan import Plan
from eval.runs.results import DOCKET, PREDICTIONS, RunFolder, read_results
from eval.runs.run import run
from eval.session.directory import RUN_DIFFERS
from eval.session.engine import UNFINISHED, Progress, ProgressBar
from eval.solvers.calls import MemeItem, StoredCourt
from eval.solvers.trial import TrialSolver, cost_of, level_of, prediction_of
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings as StandInSettings
from eval.synthetic.make import Layout, make
from serving.judging.executor import TrialExecutor
from serving.settings import ModelSettings, Settings
from tests.support.dockets import opened_docket
from tests.support.encoders import png_of
from tests.support.fakes import RecordingSink, a_meme, findings
from tests.support.run import docket_of
from tests.support.trial import a_court

HARMEME = find_card("synthetic-harmeme")


# -- A sample ----------------------------------------------------------------------------------------------------------


def memes(*levels):
    return tuple(
        JudgedMeme(
            id=f"m{number}",
            split="test",
            line=number,
            image=f"{number}.png",
            text="words",
            harmful=level > 0,
            level=Level(level),
            source_label="",
        )
        for number, level in enumerate(levels, 1)
    )


SPLIT = memes(*[0] * 60, *[1] * 30, *[2] * 10)


def test_sample_keeps_label_proportions_and_the_order_of_the_split():
    taken = sample(SPLIT, 20, 0)
    assert Counter(int(meme.level) for meme in taken) == {0: 12, 1: 6, 2: 2}
    assert [meme.line for meme in taken] == sorted(meme.line for meme in taken)


@pytest.mark.parametrize("limit", range(1, 100, 7))
def test_sample_has_the_requested_size(limit):
    assert len(sample(SPLIT, limit, 0)) == limit


def test_sample_depends_only_on_the_seed_and_a_larger_one_extends_it():
    first = {meme.id for meme in sample(SPLIT, 20, 0)}
    assert {meme.id for meme in sample(SPLIT[::-1], 20, 0)} == first
    assert {meme.id for meme in sample(SPLIT, 20, 1)} != first
    assert {meme.id for meme in sample(SPLIT, 40, 0)} > first
    assert sample(SPLIT, None, 0) == sample(SPLIT, 1000, 5) == SPLIT


# -- From a record to a prediction -------------------------------------------------------------------------------------


def trial_opened(**settings):
    record = asyncio.run(a_court().run(TrialCase("t", a_meme()), RecordingSink()))
    return record.opened.model_copy(update={"settings": {"overlap": True, **settings}})


def a_call(fault="", tokens=10):
    return happened.ModelCall(
        role=happened.Role.JUDGE,
        model="m",
        prompt_id="p",
        prompt_digest="d",
        tokens_in=tokens,
        tokens_out=1,
        tokens_cached=2,
        latency_s=0.1,
        fault=fault,
    )


def verdict(harmful=Strength.STRONG, benign=Strength.WEAK, label=Label.HARMFUL):
    return Verdict(label=label, strengths=Strengths(harmful=harmful, benign=benign), rationale="Because.")


def side_rounds(side, rounds, *, faults=(), ahead=()):
    """Events of a side's rounds; rounds in ``ahead`` are summarised early, and those beyond ``rounds`` do not count."""
    for number in range(1, rounds + 1 + sum(r > rounds for r in ahead)):
        yield happened.QuestionAsked, {"side": side, "round": number, "question": "?", "call": a_call()}
        fault = "malformed" if (side, number) in faults else ""
        yield happened.AnswerGiven, {"side": side, "round": number, "answer": "!", "call": a_call(fault)}
        values = {"side": side, "round": number, "summary": "ab", "justification": "", "call": a_call()}
        if number in ahead:
            yield happened.SummarisedAhead, values
        if number <= rounds:
            yield happened.Summarised, {**values, "entropy": float(number)}
    yield happened.SideRested, {"side": side, "rounds": rounds, "reason": happened.QuestioningEnd.CONVERGED}


def a_record(*steps, first=None):
    first = first or trial_opened()
    events = [first]
    for seq, (kind, values) in enumerate(steps, 1):
        events.append(kind(trial_id="t", seq=seq, at=first.at + timedelta(seconds=seq), **values))
    return TrialRecord.of(events)


ODDS = happened.OddsGiven(harmful=(0.5, 0.4), not_harmful=(0.1, 0.2), call=a_call())


def test_every_call_is_counted_once_including_unused_ones():
    steps = [
        *side_rounds(happened.Side.ACCUSER, 2, faults={(happened.Side.ACCUSER, 1)}, ahead=(2, 3)),
        *side_rounds(happened.Side.DEFENDER, 1),
        (
            happened.VerdictGiven,
            {"verdict": verdict(), "call": a_call(), "odds": ODDS, "unused": happened.Unused(calls=4, tokens_in=7)},
        ),
    ]
    cost = cost_of(a_record(*steps), stored=5)
    # Accuser: 2 rounds of 3 calls, one of them repeated, and a third round ahead; Defender: 3; Judge: 1 + 2.
    assert cost.calls == (2 * 3 + 1) + 3 + 3 + 3 + 4
    assert cost.tokens_in == 10 * (6 + 3 + 3 + 1 + 1) + 7
    assert cost.stored == 5
    assert cost_of(a_record(*steps), stored=500).stored == cost.calls


def test_time_between_failure_and_resumption_does_not_count():
    failed = (happened.TrialFailed, {"step": "s", "reason": "CANCELLED", "message": "m", "retryable": False})
    resumed = (happened.TrialResumed, {"software": "1"})
    end = (happened.VerdictGiven, {"verdict": verdict()})
    record = a_record(failed, resumed, end)
    delayed = [e.model_copy(update={"at": e.at + timedelta(days=1)}) if e.seq > 1 else e for e in record.events]
    assert cost_of(TrialRecord.of(delayed)).seconds == 2.0  # one second before, one after


def test_rounds_ahead_of_the_last_one_are_not_in_the_entropies():
    record = a_record(
        *side_rounds(happened.Side.ACCUSER, 2, ahead=(3,)), (happened.VerdictGiven, {"verdict": verdict()})
    )
    side = prediction_of(SPLIT[0], record).sides["ACCUSER"]
    assert (side.rounds, side.rested, side.entropies) == (2, "CONVERGED", (1.0, 2.0))


@pytest.mark.parametrize(
    "judged,level",
    [
        (verdict(Strength.STRONG, Strength.WEAK), Level.VERY_HARMFUL),
        (verdict(Strength.MODERATE, Strength.MODERATE), Level.SOMEWHAT_HARMFUL),
        (verdict(Strength.MODERATE, Strength.STRONG, Label.NOT_HARMFUL), Level.NOT_HARMFUL),
    ],
)
def test_three_levels_follow_from_the_strengths(judged, level):
    assert level_of(judged) is level
    record = a_record((happened.VerdictGiven, {"verdict": judged}))
    assert prediction_of(SPLIT[0], record).level is level
    assert prediction_of(SPLIT[0].model_copy(update={"level": None}), record).level is None


def test_failed_and_undecided_predictions_have_a_reason_and_no_class():
    failed = a_record((happened.TrialFailed, {"step": "s", "reason": "MODEL_GONE", "message": "m", "retryable": True}))
    prediction = prediction_of(SPLIT[0], failed)
    assert (prediction.outcome, prediction.reason, prediction.score) == (Outcome.FAILED, "MODEL_GONE", None)
    undecided = asyncio.run(a_court(findings([])).run(TrialCase("t", a_meme()), RecordingSink()))
    prediction = prediction_of(SPLIT[0], undecided)
    assert (prediction.outcome, prediction.reason) == (Outcome.UNDECIDED, "NO_SIMILAR_PRECEDENT")
    assert prediction.needs_review and prediction.level is None and prediction.vote is None


def test_vote_is_computed_however_far_the_precedents_are():
    close = asyncio.run(a_court().run(TrialCase("t", a_meme()), RecordingSink()))
    cited = close.precedents
    distant = cited.model_copy(
        update={
            "vote": None,
            "findings": cited.findings.model_copy(update={"vote_settings": VoteSettings(k=5, tau=0.1, prior=0.5)}),
        }
    )
    record = TrialRecord.of(distant if event is cited else event for event in close.events)
    prediction = prediction_of(SPLIT[0], record)
    assert prediction.vote is not None
    assert prediction.vote_harmful is (prediction.vote >= 0.5)


def test_open_trial_gives_no_prediction():
    with pytest.raises(ValueError, match="not over"):
        prediction_of(SPLIT[0], TrialRecord.of([trial_opened()]))


# -- Progress ----------------------------------------------------------------------------------------------------------


def prediction_for(meme, outcome, **cost):
    return Prediction(meme=meme.id, outcome=outcome, cost=cost)


def test_running_score_counts_only_memes_of_the_protocol():
    tally = RunningScore(Protocol.EXTREME)
    benign, somewhat, very = SPLIT[0], SPLIT[60], SPLIT[90]
    tally.add(benign, prediction_for(benign, Outcome.NOT_HARMFUL, calls=3, stored=1, tokens_in=100, tokens_out=20))
    tally.add(somewhat, prediction_for(somewhat, Outcome.NOT_HARMFUL))  # dropped by the protocol
    tally.add(very, prediction_for(very, Outcome.FAILED))
    assert [tally.counts[name] for name in ("done", "labelled", "decided", "right", "failed")] == [3, 2, 1, 1, 1]
    assert tally.words == "3 calls (1 stored), 120 tokens, extreme: accuracy 1.000, coverage 0.500, 1 failed"


def test_progress_bar_shows_the_figures_of_a_progress_line():
    out = io.StringIO()
    tally = RunningScore(Protocol.MERGED)
    with closing(ProgressBar(Console(file=out, force_terminal=True, width=160))) as bar:
        bar.tell("Preparing [the] precedents …")
        bar.step("pictures", 3, 7)
        tally.add(SPLIT[0], prediction_for(SPLIT[0], Outcome.NOT_HARMFUL))
        bar.step("memes", tally.counts["done"], 2, tally.words)
    assert "Preparing [the] precedents" in out.getvalue()
    assert "3/7" in out.getvalue() and "1/2" in out.getvalue() and "merged: accuracy 1.000" in out.getvalue()


# -- Whole runs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    place = tmp_path_factory.mktemp("data") / "synthetic"
    make(place, Layout.HARMEME, train=24, val=4, test=8)
    return place


def a_plan(home, data, out, **changes):
    plan = Plan(
        out=out,
        name="a run",
        dataset=HARMEME,
        data=data,
        split="test",
        procedure=happened.Procedure.SUMMARY,
        protocols=HARMEME.protocols,
        settings=Settings(home=home, picture_workers=1),
        concurrency=2,
    )
    return dataclasses.replace(plan, **changes)


def run_plan(plan, progress=None):
    return asyncio.run(run(plan, progress or Progress()))


@pytest.fixture(scope="module")
def finished(home, data, tmp_path_factory):
    """A finished summary run."""
    return run_plan(a_plan(home, data, tmp_path_factory.mktemp("runs") / "summary"))


def test_manifest_and_report_name_counts_that_differ_from_the_published_ones(home, data, tmp_path):
    train, val, test = HARMEME.splits
    sizes = ((train, 8), (val, 25), (test, 8))
    splits = tuple(split.model_copy(update={"rows": rows}) for split, rows in sizes)
    changed = HARMEME.model_copy(update={"id": "mine", "splits": splits})
    sentences: list[str] = []
    progress = Progress()
    progress.tell = sentences.append
    folder = asyncio.run(run(a_plan(home, data, tmp_path / "run", dataset=changed), progress))
    note = "train may be another version or split: 24 rows; 8 were published."
    assert sentences.count(note) == 1 and folder.manifest().notes == (note,)
    assert note in CliRunner().invoke(cli, ["report", str(folder.root)]).output
    assert read_split(changed, data, "train").notes == (note,)
    assert note in source_of(changed, data, "train").notes


@pytest.fixture
def run_copy(finished, tmp_path):
    """A copy of the finished run that a test may modify."""
    shutil.copytree(finished.root, tmp_path / "copy")
    return RunFolder(tmp_path / "copy")


def test_finished_run_is_fully_described_by_its_files(finished, data):
    manifest, predictions = finished.manifest(), finished.predictions()
    assert [judged.meme.id for judged in read_results(finished.root).judged] == [meme.id for meme in finished.memes()]
    assert {p.meme for p in predictions} == {meme.id for meme in finished.memes()} and len(predictions) == 8
    assert manifest.finished and manifest.interruptions == 0
    assert set(manifest.data) == {"train.jsonl", "test.jsonl"}
    assert manifest.library_size == 24 and manifest.models == {} and manifest.checked
    assert not (finished.root / "calls.sqlite").exists()
    for prediction in predictions:
        record = docket_of(finished, lambda docket, trial=prediction.trial: docket.trials.record(trial))
        assert prediction_of(next(m for m in finished.memes() if m.id == prediction.meme), record) == prediction
        assert record.opened.settings == manifest.settings
        assert record.opened.versions.settings == manifest.settings_digest
        assert record.opened.versions.library == manifest.library


def test_text_only_run_tries_each_meme_without_a_picture(home, data, tmp_path):
    folder = run_plan(a_plan(home, data, tmp_path / "run", text_only=True))
    predictions = folder.predictions()
    assert (
        folder.manifest().text_only
        and len(predictions) == 8
        and all(p.outcome is not Outcome.FAILED for p in predictions)
    )

    async def records(docket):
        return [await docket.trials.record(p.trial) for p in predictions]

    for record in docket_of(folder, records):
        assert not record.opened.meme.picture_given and record.text.text


def test_empty_picture_file_fails_and_its_text_is_not_judged_alone(home, data, tmp_path):
    shutil.copytree(data, tmp_path / "data")
    first = json.loads((tmp_path / "data" / "test.jsonl").read_text().splitlines()[0])
    (tmp_path / "data" / "images" / first["image"]).write_bytes(b"")
    folder = run_plan(a_plan(home, tmp_path / "data", tmp_path / "run"))
    failed = [p for p in folder.predictions() if p.outcome is Outcome.FAILED]
    assert [(p.meme, p.reason, p.trial) for p in failed] == [(first["id"], "PICTURE_EMPTY", "")]


def test_lost_prediction_lines_are_restored_from_the_docket(run_copy, home, data):
    predictions = {p.meme: p for p in run_copy.predictions()}
    lines = (run_copy.root / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    (run_copy.root / "predictions.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:20])
    run_plan(a_plan(home, data, run_copy.root))
    assert {p.meme: p for p in run_copy.predictions()} == predictions  # trial ids included: no meme was tried again
    assert len(run_copy.predictions()) == 8
    assert run_copy.manifest().interruptions == 1
    assert docket_of(run_copy, lambda docket: docket.index.requests()).keys() == {
        f"synthetic-harmeme/test/{m}" for m in predictions
    }
    assert all(len(t) == 1 for t in docket_of(run_copy, lambda docket: docket.index.requests()).values())


def test_finished_run_is_left_unchanged(run_copy, home, data):
    before = (run_copy.root / "manifest.json").read_bytes(), (run_copy.root / "predictions.jsonl").read_bytes()
    run_plan(a_plan(home, data, run_copy.root))
    assert before == (
        (run_copy.root / "manifest.json").read_bytes(),
        (run_copy.root / "predictions.jsonl").read_bytes(),
    )


def lose_lines(folder):
    folder.write(PREDICTIONS, folder.predictions()[:2])


@pytest.mark.parametrize(
    "change,differences",
    [
        ({"seed": 3, "limit": 4}, ["limit (was nothing, is 4)", "seed (was 0, is 3)"]),
        ({"procedure": happened.Procedure.FULL}, ["procedure (was SUMMARY, is FULL)"]),
        ({"control": "random precedents"}, ["control (was nothing, is random precedents)"]),
        (
            {"trial": {"alpha": 0.25, "tally": 9, "prompts": "2"}},
            ["settings alpha (was nothing, is 0.25)", "settings tally (was 25, is 9)", "settings prompts (was "],
        ),
        ({"policy": "policy.toml"}, ["policy (was "]),
    ],
    ids=["sample", "procedure", "control", "settings", "policy"],
)
@pytest.mark.parametrize("lose", [lambda _: None, lose_lines], ids=["finished", "unfinished"])
def test_run_is_not_resumed_with_changed_options(run_copy, home, data, tmp_path, lose, change, differences):
    lose(run_copy)
    predictions, change = run_copy.predictions(), dict(change)
    court = {"trial": TrialSettings(**change.pop("trial", {}))}
    if "policy" in change:
        court["policy"] = tmp_path / change.pop("policy")
        default = files("court.policies").joinpath("default.toml").read_text("utf-8")
        court["policy"].write_text(default.replace('version = "1"', 'version = "2"'))
    plan = a_plan(home, data, run_copy.root, settings=Settings(home=home, picture_workers=1, **court), **change)
    with pytest.raises(BadRequest) as caught:
        run_plan(plan)
    assert caught.value.reason == RUN_DIFFERS
    for difference in differences:
        assert difference in caught.value.message
    assert run_copy.predictions() == predictions


def test_run_is_not_resumed_with_a_changed_data_file(run_copy, home, data, tmp_path):
    lose_lines(run_copy)
    other = tmp_path / "data"
    shutil.copytree(data, other)
    with (other / "train.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(BadRequest, match=r"data train.jsonl \(was"):
        run_plan(a_plan(home, other, run_copy.root))


def test_run_is_resumed_with_the_same_data_in_another_place(run_copy, home, data, tmp_path):
    lose_lines(run_copy)
    other = tmp_path / "moved"
    shutil.copytree(data, other)
    run_plan(a_plan(home, other, run_copy.root))
    assert len(run_copy.predictions()) == 8


def test_missing_pictures_block_a_run_or_fail(home, data, tmp_path):
    place = tmp_path / "data"
    shutil.copytree(data, place)
    first = json.loads((place / "test.jsonl").read_text().splitlines()[0])
    (place / "images" / first["image"]).unlink()
    plan = a_plan(home, place, tmp_path / "run")
    with pytest.raises(BadRequest, match=r"1 of 8 pictures are missing .*--allow-missing") as caught:
        run_plan(plan)
    assert caught.value.reason == PICTURE_MISSING
    folder = run_plan(dataclasses.replace(plan, allow_missing=True))
    failed = [p for p in folder.predictions() if p.outcome is Outcome.FAILED]
    assert [(p.meme, p.reason, p.trial) for p in failed] == [(first["id"], PICTURE_MISSING, "")]
    assert len(folder.predictions()) == 8 and folder.manifest().finished


# -- Full trials, before a stand-in server -----------------------------------------------------------------------------


@asynccontextmanager
async def model_server(settings=None, **options):
    server = FakeModelServer(settings or StandInSettings(play=True), **options)
    async with serving(server) as port:
        yield server, f"http://127.0.0.1:{port}/v1"


def full(home, url, **trial):
    return {
        "procedure": happened.Procedure.FULL,
        "settings": Settings(
            home=home,
            picture_workers=1,
            llm=ModelSettings(url=url, model="stand-in"),
            trial=TrialSettings(rounds_max=3, **trial),
        ),
    }


def calls_requesting(server, name):
    """Bodies of the calls that request a property of that name."""
    found = []
    for body in server.requests:
        properties = (body.get("response_format") or {}).get("json_schema", {}).get("schema", {}).get("properties", {})
        if name in properties:
            found.append(json.dumps(body["messages"]))
    return found


@pytest.mark.slow
async def test_arms_sharing_a_call_store_make_their_shared_calls_once(home, data, tmp_path):
    async with model_server(keep=True) as (server, url):
        store = tmp_path / "calls.sqlite"
        full_plan = a_plan(home, data, tmp_path / "whole", calls=store, **full(home, url))
        await run(full_plan, Progress())
        before = {
            name: calls_requesting(server, name) for name in ("description", "question", "answer", "harmful_strength")
        }
        arm = {**full(home, url, precedents=False), "library": tmp_path / "whole" / "library"}
        await run(a_plan(home, data, tmp_path / "arm", calls=store, **arm), Progress())
        after = {name: calls_requesting(server, name) for name in before}
    # Description and examination are the same in both arms, so none of their calls was repeated …
    for name in ("description", "question", "answer"):
        assert before[name] and after[name][: len(before[name])] == before[name]
        assert len(set(after[name])) == len(after[name])
    assert after["description"] == before["description"]
    # … but the Judge was called, because it saw no precedents.
    assert len(after["harmful_strength"]) == 2 * len(before["harmful_strength"]) == 16
    costs = [p.cost for p in RunFolder(tmp_path / "arm").predictions()]
    assert all(0 < cost.stored < cost.calls for cost in costs)
    manifest = RunFolder(tmp_path / "arm").manifest()
    assert manifest.models == dict.fromkeys(("PROPOSER", "ACCUSER", "DEFENDER", "JUDGE"), "stand-in")
    # All its memes are judged, and another model is refused all the same.
    arm = full(home, "http://127.0.0.1:9/v1", precedents=False)
    theirs = arm["settings"].llm.model_copy(update={"model": "theirs"})
    arm |= {"settings": arm["settings"].model_copy(update={"llm": theirs}), "library": tmp_path / "whole" / "library"}
    with pytest.raises(BadRequest, match=r"models JUDGE \(was stand-in, is theirs\)"):
        await run(a_plan(home, data, tmp_path / "arm", calls=tmp_path / "calls.sqlite", **arm), Progress())
    async with opened_docket(tmp_path / "arm" / DOCKET, create=False) as docket:
        record = await docket.trials.record(RunFolder(tmp_path / "arm").predictions()[0].trial)
    assert record.opened.settings == manifest.settings


@pytest.mark.slow
async def test_trials_failed_for_lack_of_a_server_are_retried_on_resume(home, data, tmp_path, monkeypatch):
    async with model_server() as (server, url):
        plan = a_plan(home, data, tmp_path / "run", concurrency=1, **full(home, url, call_s=5))
        # The first call of the first trial meets an overloaded server until it gives up.
        hear = TrialExecutor.run

        async def hear_without(self, ask, *args, **kwargs):
            if not getattr(hear_without, "done", False):
                hear_without.done = True
                server.faults.script(["503"] * 4)  # as many times as a call is attempted
            return await hear(self, ask, *args, **kwargs)

        monkeypatch.setattr(TrialExecutor, "run", hear_without)
        with pytest.raises(Unavailable, match=r"1 of 8 memes have no answer yet.*MODEL_BUSY 1") as caught:
            await run(plan, Progress())
        assert caught.value.reason == UNFINISHED
        first = {p.meme: p for p in RunFolder(plan.out).predictions()}
        assert RunFolder(plan.out).manifest().finished is None
        folder = await run(plan, Progress())
    async with opened_docket(plan.out / DOCKET) as docket:
        trials = len(await docket.index.list(limit=100))
    assert len(first) == 7, "a meme that was turned away is not counted as wrong"
    now = {p.meme: p for p in folder.predictions()}
    assert [p.outcome for p in now.values()] == [Outcome.HARMFUL] * 8 and trials == 8, "the same trial, resumed"
    assert {m: p for m, p in now.items() if m in first} == first


def hear_when_busy(times, reason="MODEL_BUSY"):
    """A ``hear`` that rejects every meme ``times`` times before trying it."""
    attempts, hear = Counter(), TrialExecutor.run

    async def turned_away(self, ask, *args, **kwargs):
        attempts[ask.content_id] += 1
        if attempts[ask.content_id] <= times:
            raise Unavailable("later", reason=reason, retry_after=0.1)
        return await hear(self, ask, *args, **kwargs)

    return turned_away


def test_run_without_patience_is_unfinished_and_says_how_to_resume(home, data, tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(TrialExecutor, "run", hear_when_busy(2))
    data_set = ("--dataset", "synthetic-harmeme", "--data", data, "--out", out)
    unfinished = command(home, *data_set, "--limit", 4, "--patience", 0, "--json")
    assert unfinished.exit_code == 3, unfinished.output
    assert "Not finished. 4 of 4 memes have no answer yet" in unfinished.stderr
    assert "the same command goes on" in unfinished.stderr
    assert not unfinished.stdout
    assert command(home, *data_set, "--limit", 4, "--patience", 0).exit_code == 3
    done = command(home, *data_set, "--limit", 4, "--patience", 0, "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["cards"]["merged"]["n"] == 4


@pytest.mark.slow
async def test_damaged_call_store_ends_the_run_and_fails_no_meme(home, data, tmp_path, monkeypatch):
    from eval.models.call_cache import CallsError, SqliteCallCache

    async with model_server() as (_, url):
        plan = a_plan(home, data, tmp_path / "run", concurrency=1, **full(home, url))
        with monkeypatch.context() as broken:
            broken.setattr(SqliteCallCache, "_read", lambda self, key: (_ for _ in ()).throw(CallsError("broken")))
            with pytest.raises(CallsError, match="broken"):
                await run(plan, Progress())
        assert RunFolder(plan.out).predictions() == ()
        folder = await run(plan, Progress())
    assert [p.outcome for p in folder.predictions()] == [Outcome.HARMFUL] * 8


# -- The command -------------------------------------------------------------------------------------------------------


def command(home, *words):
    return CliRunner().invoke(cli, ["run", *map(str, words)], env={"MEMECOURT_HOME": str(home)})


def test_run_command_prints_figures_and_the_run_folder(home, data, tmp_path):
    out = tmp_path / "run"
    arguments = ("--dataset", "synthetic-harmeme", "--data", data, "--out", out, "--limit", 4, "--set", "alpha=0.5")
    first = command(home, *arguments, "--protocol", "merged,extreme")
    assert first.exit_code == 0, first.output
    assert "merged: 4 memes, 2 harmful; coverage 1.000" in first.stdout
    assert "majority" in first.stdout and f"{out} holds the run" in first.stdout
    assert RunFolder(out).manifest().settings["alpha"] == 0.5
    judged = RunFolder(out).predictions()
    resumed = command(home, *arguments, "--protocol", "merged", "--json")
    assert resumed.exit_code == 0, resumed.output
    cards = json.loads(resumed.stdout)["cards"]
    assert cards.keys() == {"merged"} and cards["merged"]["n"] == 4
    # Another run is not written over the first.
    other = command(home, *arguments, "--seed", 3)
    assert other.exit_code == 1 and "seed (was 0, is 3)" in other.output
    assert RunFolder(out).predictions() == judged


@pytest.mark.parametrize(
    "words,message",
    [
        (["--out", "x"], "Missing option '--data'"),
        (["--dataset", "harm-z", "--data", ".", "--out", "x"], "There is no data set 'harm-z'"),
        (["--dataset", "fhm", "--data", ".", "--out", "x", "--protocol", "plane"], "There are: plain"),
        (["--dataset", "fhm", "--data", ".", "--out", "x", "--set", "rounds=3"], "rounds_min, rounds_max"),
        (["--dataset", "fhm", "--data", ".", "--out", "x", "--set", "epsilon=fish"], "trial.epsilon"),
        (["--data", ".", "--out", "x"], "Missing option --dataset"),
        (["--dataset", "fhm", "--data", ".", "--out", "x", "--ray-workers", "2"], "--ray-workers goes with --ray"),
    ],
)
def test_invalid_options_are_rejected_at_once(home, words, message):
    result = command(home, *words)
    assert result.exit_code != 0 and message in result.output


@pytest.mark.parametrize(("judged", "text"), [("memes", ""), ("texts of memes", None)])
async def test_texts_that_a_data_set_lacks_are_read_off_pictures_that_no_model_sees(judged, text):
    requests = []

    async def keep(request, *, batch):
        requests.append(request)
        return SimpleNamespace(record=None)

    async def picture():
        return png_of((1, 2, 3))

    court = SimpleNamespace(settings=TrialSettings(input=judged), role_models=None)
    stored = StoredCourt(SimpleNamespace(court=court, run=keep), None)
    meme = JudgedMeme(id="a", split="test", line=1)
    solver = TrialSolver(stored, "ponds", happened.Procedure.FULL)
    await solver._tried(MemeItem(meme, picture), None, HitCounter())
    assert requests[0].text == text


def test_tables_without_splits_are_judged_whole_by_precedents_from_elsewhere(home, data, tmp_path):
    (tmp_path / "memes.csv").write_text("text,label\n" + "pond,fine\nlake,hateful\n" * 4)
    words = ("--data", tmp_path / "memes.csv", "--harmful", "hateful", "--text-only", "--out")
    assert "Where --library gives the precedents" in command(home, *words, tmp_path / "none").output
    command(home, "--dataset", "synthetic-harmeme", "--data", data, "--out", tmp_path / "first", "--limit", 2)
    judged = command(home, *words, tmp_path / "second", "--library", tmp_path / "first" / "library", "--json")
    assert judged.exit_code == 0 and json.loads(judged.stdout)["cards"]["plain"]["n"] == 8


@pytest.mark.slow
def test_questions_of_a_run_become_arena_tasks(home, data, tmp_path):
    async def work():
        async with model_server() as (_, url):
            await run(a_plan(home, data, tmp_path / "whole", **full(home, url)), Progress())
            return await tasks_of_run(tmp_path / "whole", list(happened.Side))

    made, silent, _ = asyncio.run(work())
    folder = RunFolder(tmp_path / "whole")
    assert {task.meme for task in made} == {p.meme for p in folder.predictions()} and silent == 0
    assert len(made) == 16 and {task.tags["side"] for task in made} == {"accuser", "defender"}
    by_trial = {p.meme: p.trial for p in folder.predictions()}
    task = made[0]
    record = docket_of(folder, lambda docket: docket.trials.record(by_trial[task.meme]))
    questions = [e.question for e in record.events if e.kind == "QuestionAsked" and e.side is happened.Side.ACCUSER]
    answers = [e.answer for e in record.events if e.kind == "AnswerGiven"]
    assert list(task.rounds) == questions and not set(answers) & set(task.rounds)
    # As the arena reads them, from the command, which never overwrites an existing file.
    file = tmp_path / "tasks.jsonl"
    command = ["arena", "tasks", "from-run", str(folder.root), "--side", "defender", "--mixed", "--out", str(file)]
    assert CliRunner().invoke(cli, command).exit_code == 0
    tasks = read_lines(file, FixedTask)
    assert len(tasks) == 8 and all(task.meme.startswith("synthetic-harmeme/") for task in tasks)
    second = CliRunner().invoke(cli, command)
    assert second.exit_code == 2 and "File exists" in second.output


async def test_run_without_questions_gives_no_tasks(finished):
    with pytest.raises(BadRequest) as caught:
        await tasks_of_run(finished.root, list(happened.Side))
    assert caught.value.reason == "QUESTIONS_MISSING" and "--procedure full" in caught.value.message
