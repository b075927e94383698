"""The whole benchmark, checked to the last digit: memes by a hidden rule, a model of known ability, the real commands.

What every prediction has to be follows from the key of the synthetic memes and from :func:`expected`; what every figure
has to be is computed here from those, without scikit-learn and without anything of ``eval.scores.metrics``.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import math
import os
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from statistics import mean

import pytest
from click.testing import CliRunner

from eval.cli import cli
from eval.datasets.protocol import Level
from eval.perf.model_server.server import FakeModelServer, serving
from eval.perf.model_server.settings import FEATURES, Settings
from eval.runs.folder import RunFolder
from eval.runs.prediction import Outcome
from eval.synthetic.make import read_key
from eval.synthetic.oracle import Ability, expected, rounds_of
from serving.docket.open import Docket

pytestmark = pytest.mark.integration

TRAIN, VAL, TEST = 24, 8, 12
LEAKED = ("same id", "same file", "same picture", "same text", "near-duplicate")
BLIND = ("damaged picture", "missing picture")
"""Precedents whose picture nobody can see."""
ARMS = {
    "full": {},
    "no-precedents": {},
    "no-advocates": {"advocates": False},
    "no-captioner": {"captioner": False},
    "dull-judge": {"dull": True},
    "post-stance": {"stance_from_start": False},
    "random-precedents": {},
    "shuffled-labels": {},
    "swapped-sides": {"advocates": False},  # arguments on the wrong sides help as much as none
}
"""What is told to the oracle's expectation, for each arm of an ablation."""
REPLIES = ("description", "question", "answer", "summary", "harmful_strength")
"""A property of each kind of reply that a trial asks for."""
EXAMINED = {"full", "no-precedents", "post-stance", "random-precedents", "shuffled-labels", "swapped-sides"}
"""Arms whose sides ask questions."""


class Bench:
    """A synthetic benchmark in a directory, and the commands, called as a user calls them."""

    def __init__(self, place, layout):
        self.place, self.layout, self.dataset = place, layout, f"synthetic-{layout}"
        self.data = place / "data"
        self.test = "test" if layout == "harmeme" else "test_seen"
        self.call(
            "synthetic", self.data, "--layout", layout, "--train", TRAIN, "--val", VAL, "--test", TEST,
            "--seed", 1, "--plant", "leakage,defects",
        )  # fmt: skip
        self.key = {}
        for meme in read_key(self.data):
            if meme.planted not in ("duplicate id", "empty label", "foreign label", "no JSON"):
                self.key[meme.split, meme.id] = meme

    def call(self, *words, code=0):
        environment = {"MEMECOURT_HOME": str(self.place / "home"), "MEMECOURT_PICTURE_WORKERS": "1"}
        done = CliRunner().invoke(cli, [str(word) for word in words], env=environment)
        assert done.exit_code == code, f"{done.output}\n{done.exception!r}"
        return done.stdout if code == 0 or words[-1] == "--json" else done.output

    def json(self, *words, code=0):
        return json.loads(self.call(*words, "--json", code=code))

    def judging(self, command, out, url, *words):
        """Options that all commands have which judge."""
        given = (command, "--dataset", self.dataset, "--data", self.data, "--out", out)
        return (*given, "--llm-url", url, "--model", "stand-in", "--set", "overlap=false", *words)

    def memes(self, split):
        """Those that can be judged or fail alone, in order."""
        return [meme for (where, _), meme in self.key.items() if where == split]

    def due(self, run, split, **changed):
        """What has to be said of every meme; None where its picture is damaged. Precedents are those of the record."""
        shown = asyncio.run(exhibits(run))
        opinions = {}
        for meme in self.memes(split):
            precedents = []
            for precedent in shown.get(meme.id, ()):
                known = self.key["train", precedent.id]
                assert precedent.text == known.text
                assert split != self.test or known.planted not in LEAKED
                harmful = precedent.label == "HARMFUL"
                assert harmful == known.harmful or run.name == "shuffled-labels"
                precedents.append((known.text, None if known.planted in BLIND else known.badge, harmful))
            damaged = meme.planted == "damaged picture"
            opinions[meme.id] = (
                None if damaged else expected(meme.text, meme.badge, Ability(), precedents=precedents, **changed)
            )
        return opinions


async def exhibits(run):
    """The precedents that each meme's Judge was shown."""
    docket = Docket.open(run / "docket.sqlite", create=False)
    try:
        shown = {}
        for prediction in RunFolder(run).predictions():
            if prediction.trial:
                record = await docket.trials.record(prediction.trial)
                shown[prediction.meme] = record.precedents.findings.exhibits if record.precedents else ()
        return shown
    finally:
        await docket.close()


def check_predictions(bench, run, split, *, examined, **changed):
    """Every prediction is the one that was due; gives those that were."""
    due = bench.due(run, split, **changed)
    said = {prediction.meme: prediction for prediction in RunFolder(run).predictions()}
    assert said.keys() == due.keys()
    for meme in bench.memes(split):
        opinion, prediction = due[meme.id], said[meme.id]
        if opinion is None:
            assert (prediction.outcome, prediction.reason) == (Outcome.FAILED, "PICTURE_DAMAGED")
            continue
        assert prediction.outcome is (Outcome.HARMFUL if opinion.harmful else Outcome.NOT_HARMFUL)
        assert prediction.score == pytest.approx(opinion.probability, abs=1e-12)
        assert prediction.level == (opinion.level if bench.layout == "harmeme" else None)
        rounds = {side: course.rounds for side, course in prediction.sides.items()}
        if examined:
            assert rounds == {"ACCUSER": rounds_of(meme.text), "DEFENDER": rounds_of(meme.text)}
        else:
            assert not any(rounds.values())
    return due


def figures(bench, split, due, protocol):
    """The figures of a card, from gold and what was due, by their definitions."""
    rows = []
    for meme in bench.memes(split):
        if protocol == "extreme" and meme.level is Level.SOMEWHAT_HARMFUL:
            continue
        rows.append((meme, due[meme.id]))
    said = [(meme.harmful, opinion.harmful if opinion else None) for meme, opinion in rows]
    decided = [(gold, label) for gold, label in said if label is not None]
    scored = [(meme.harmful, opinion.probability) for meme, opinion in rows if opinion]
    above = [
        (high > low) + (high == low) / 2
        for gold, high in scored if gold
        for other, low in scored if not other
    ]  # fmt: skip
    errors = [
        mean(abs(opinion.level - meme.level) for meme, opinion in rows if opinion and meme.level is level)
        for level in Level
        if any(opinion and meme.level is level for meme, opinion in rows)
    ]
    columns = (False, True, "undecided", None)
    return {
        "n": len(rows),
        "harmful": sum(gold for gold, _ in said),
        "dropped": len(bench.memes(split)) - len(rows),
        "failed": len(said) - len(decided),
        "undecided": 0,
        "coverage": len(decided) / len(said),
        "confusion": [[said.count((gold, label)) for label in columns] for gold in (False, True)],
        "strict": rates(said),
        "decided": rates(decided),
        "auroc": mean(above),
        "brier": mean((score - gold) ** 2 for gold, score in scored),
        "mmae": mean(errors) if bench.layout == "harmeme" else None,
    }


def rates(said):
    classes = []
    for which in (False, True):
        hits = said.count((which, which))
        claimed, there = sum(label is which for _, label in said), sum(gold is which for gold, _ in said)
        classes.append((hits / claimed if claimed else None, hits / there, 2 * hits / (claimed + there)))
    return {
        "accuracy": sum(gold is label for gold, label in said) / len(said),
        "macro_f1": mean(f1 for *_, f1 in classes),
        "classes": classes,
    }


def check_card(card, due):
    """Every figure of a card as JSON is the one that was due, and lies within its interval."""
    for name in ("n", "harmful", "dropped", "failed", "undecided", "confusion"):
        assert card[name] == due[name], name
    assert card["benign"] == due["n"] - due["harmful"]
    assert card["majority"] == pytest.approx(max(due["harmful"], card["benign"]) / due["n"])
    for name in ("coverage", "auroc", "brier", "mmae"):
        check_figure(card[name], due[name])
    for which in ("strict", "decided"):
        check_figure(card[which]["accuracy"], due[which]["accuracy"])
        check_figure(card[which]["macro_f1"], due[which]["macro_f1"])
        for told, wanted in zip(card[which]["classes"], due[which]["classes"], strict=True):
            for name, value in zip(("precision", "recall", "f1"), wanted, strict=True):
                check_figure(told[name], value)
    assert sum(one["n"] for one in card["calibration"]) == card["scored"] == due["n"] - due["failed"]


def check_figure(told, due):
    if due is None:
        assert told is None
        return
    assert told["value"] == pytest.approx(due, abs=1e-12)
    assert told["low"] - 1e-9 <= due <= told["high"] + 1e-9


class Served:
    """The stand-in, playing the oracle, behind a real socket in a thread of its own; it keeps what it is asked."""

    def __init__(self):
        # Without ids of pictures: with them the same request looks different once the server has the picture.
        self.server = FakeModelServer(Settings(play="synthetic", features=FEATURES - {"picture_ids"}), keep=True)

    @contextlib.contextmanager
    def listening(self):
        listening, ends = threading.Event(), []

        async def serve():
            end = asyncio.Event()
            async with serving(self.server) as port:
                ends.append((asyncio.get_running_loop(), end, port))
                listening.set()
                await end.wait()

        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        assert listening.wait(120)
        loop, end, port = ends[0]
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            loop.call_soon_threadsafe(end.set)
            thread.join()

    def asked(self):
        """Calls of trials, each as often as it was made; none that only ask what the server can do."""
        trials = []
        for body in self.server.requests:
            wanted = json.dumps(body.get("response_format") or {})
            if any(f'"{name}"' in wanted for name in REPLIES) or "with the letter alone" in json.dumps(
                body["messages"]
            ):
                trials.append(json.dumps(body, sort_keys=True))
        return Counter(trials)


@pytest.fixture(scope="module")
def harmeme(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("harmeme"), "harmeme")


@pytest.fixture(scope="module")
def study(harmeme):
    """All arms, judged once: their folder, what the command told, and the server."""
    out, served = harmeme.place / "study", Served()
    with served.listening() as url:
        told = harmeme.json(*harmeme.judging("ablate", out, url, "--arms", ",".join(ARMS)))
    return out, told, served


@pytest.fixture(scope="module")
def due(harmeme, study):
    """What was due of each meme in each arm; that it was said is checked on the way."""
    out, _, _ = study
    return {
        arm: check_predictions(harmeme, out / arm, "test", examined=arm in EXAMINED, **changed)
        for arm, changed in ARMS.items()
    }


def test_what_is_planted_is_told(harmeme):
    (told,) = harmeme.json("datasets", "check", harmeme.data, "--pictures", code=1)["datasets"]
    assert told["dataset"] == "synthetic-harmeme"
    found = {(one["split"], one["kind"]): one["count"] for one in told["findings"]}
    assert found["train", "row damaged"] == 1 and found["train", "pictures missing"] == 1
    assert sum(one["kind"] == "row damaged" for one in told["findings"]) == 3  # labels, and what is no JSON
    assert {split for split, kind in found if kind == "picture unreadable"} == {"train", "test"}
    for kind in ("id twice", "text twice", "picture twice"):
        assert ("train+test", kind) in found


def check_excluded(bench, run):
    """Each leak under its reason, and nothing else. Of several memes with the same text, the first found is named."""
    planted = {m.id: m for m in bench.memes("train") if m.planted in LEAKED}
    assert {meme.planted for meme in planted.values()} == set(LEAKED)
    excluded = RunFolder(run).excluded()
    assert {one.precedent: one.why for one in excluded} == {meme.id: meme.planted for meme in planted.values()}
    for one in excluded:
        near, named = bench.key[bench.test, planted[one.precedent].of], bench.key[bench.test, one.meme]
        assert near == named or (one.why == "same text" and near.text == named.text)


def test_mistakes_are_told_before_anything_is_done(harmeme):
    place, data = harmeme.place, ("--data", harmeme.data)
    told = harmeme.call("run", "--dataset", "harm-c", *data, "--out", place / "wrong", code=1)
    assert "--dataset synthetic-harmeme" in told  # its figures would stand beside published ones
    for command in ("run", "ablate"):
        full = (command, "--dataset", harmeme.dataset, *data, "--out", place / "none", "--procedure", "full")
        assert "--llm-url URL and --model NAME" in harmeme.call(*full, code=1)
    assert not (place / "none" / "library").exists() and not (place / "wrong" / "library").exists()


def test_each_leak_is_left_out_under_its_reason_and_nothing_else(harmeme, study):
    out, _, _ = study
    for arm in ARMS:
        check_excluded(harmeme, out / arm)
        folder = RunFolder(out / arm)
        assert folder.manifest().excluded == dict.fromkeys(LEAKED, 1)
        # What was asked for, and of what was planted the two whose rows are sound but for the picture.
        assert folder.manifest().library_size == TRAIN + len(BLIND)


def test_every_prediction_of_every_arm_is_the_one_that_was_due(harmeme, due):
    assert set(due) == set(ARMS)
    # A benchmark on which everything comes out alike would show nothing.
    assert len({tuple(sorted((k, v) for k, v in one.items() if v)) for one in due.values()}) >= 3
    right = {
        arm: sum(o.harmful == harmeme.key["test", m].harmful for m, o in each.items() if o) for arm, each in due.items()
    }
    assert TEST / 2 <= min(right.values()) < max(right.values()) <= TEST


def test_what_arms_have_in_common_is_asked_once(study):
    out, told, served = study
    asked = served.asked()
    assert set(asked.values()) == {1}
    made = {row["arm"]: row["made"] for row in told["merged"]}
    assert sum(made.values()) == asked.total()
    for arm in ("no-precedents", "no-advocates", "dull-judge", "random-precedents", "shuffled-labels", "swapped-sides"):
        assert made[arm] <= 3 * TEST  # the Judge's ruling and its two orders of the odds
    assert made["dull-judge"] == 3 * TEST
    assert [row["arm"] for row in told["merged"]] == list(ARMS)
    for row in told["merged"]:
        predictions = RunFolder(out / row["arm"]).predictions()
        assert row["calls"] == sum(p.cost.calls for p in predictions)
        assert row["stored"] == sum(p.cost.stored for p in predictions) == row["calls"] - row["made"]


@pytest.fixture(scope="module")
def report(harmeme, study):
    """What the report's JSON says, its Markdown and its page."""
    page, text = harmeme.place / "report.html", harmeme.place / "report.md"
    told = harmeme.json("report", study[0], "--html", page, "--markdown", text, "--no-pictures")
    return told, text.read_text(), page.read_text()


@pytest.mark.parametrize("protocol", ["merged", "extreme"])
def test_every_figure_of_the_report_is_the_one_that_was_due(harmeme, study, due, report, protocol):
    _, told, _ = study
    report, text, page = report
    (table,) = [one for one in report["tables"] if one["protocol"] == protocol]
    assert {row["run"] for row in table["rows"]} == set(ARMS)
    heading = text.split(f"### Protocol {protocol}")[1].split("\n### ")[0]
    for row in table["rows"]:
        wanted = figures(harmeme, "test", due[row["run"]], protocol)
        check_card(row["card"], wanted)
        (line,) = [line for line in heading.splitlines() if line.startswith(f"| {row['run']} | {wanted['n']} |")]
        for share in (wanted["strict"]["accuracy"], wanted["strict"]["macro_f1"], wanted["decided"]["accuracy"]):
            assert f"{100 * share:.1f}" in line
    full = figures(harmeme, "test", due["full"], protocol)
    for row in told[protocol]:
        wanted = figures(harmeme, "test", due[row["arm"]], protocol)
        assert row["accuracy_a"] == pytest.approx(wanted["strict"]["accuracy"])
        assert row["macro_f1_a"] == pytest.approx(wanted["strict"]["macro_f1"])
        difference = wanted["strict"]["accuracy"] - full["strict"]["accuracy"]
        assert row["difference_accuracy"]["value"] == pytest.approx(difference)
    # Every wrong verdict is on the page.
    wrong = {
        m for each in due.values() for m, o in each.items() if not o or o.harmful != harmeme.key["test", m].harmful
    }
    assert wrong and all(meme in page for meme in wrong)


def test_two_arms_are_compared_meme_by_meme(harmeme, study, due):
    out, _, _ = study
    told = harmeme.json("compare", out / "full", out / "dull-judge", "--protocol", "merged")["comparisons"][0]

    def right(arm):
        return {m for m, opinion in due[arm].items() if opinion and opinion.harmful == harmeme.key["test", m].harmful}

    a, b = right("full"), right("dull-judge")
    only_a, only_b = len(a - b), len(b - a)
    assert (told["only_a_right"], told["only_b_right"], told["both_right"]) == (only_a, only_b, len(a & b))
    assert told["both_wrong"] == TEST + 1 - len(a | b)
    assert {one["meme"] for one in told["flipped"]} == a ^ b
    tail = sum(math.comb(only_a + only_b, k) for k in range(min(only_a, only_b) + 1)) / 2 ** (only_a + only_b)
    assert told["mcnemar_p"] == pytest.approx(min(1, 2 * tail))
    assert told["difference_accuracy"]["value"] == pytest.approx((only_a - only_b) / (TEST + 1))


def test_the_same_predictions_from_a_file_score_the_same(harmeme, due):
    file = harmeme.place / "elsewhere.csv"
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["id", "label", "score", "level"])
        for meme, opinion in due["full"].items():
            if opinion:
                writer.writerow([meme, int(opinion.harmful), repr(opinion.probability), int(opinion.level)])
    told = harmeme.json("score", file, "--dataset", harmeme.dataset, "--data", harmeme.data, "--split", "test")
    assert told["missing"] == [meme for meme, opinion in due["full"].items() if opinion is None]
    for card in told["cards"]:
        check_card(card, figures(harmeme, "test", due["full"], card["protocol"]))


def test_a_sweep_ranks_by_what_was_due_and_never_touches_the_test_split(harmeme):
    out, served = harmeme.place / "sweep", Served()
    with served.listening() as url:
        grid = ("--grid", "captioner=true,false", "--thresholds", "0.3", "--protocol", "merged", "--procedure", "full")
        told = harmeme.json(*harmeme.judging("sweep", out, url, *grid))["merged"]
        refused = harmeme.judging("sweep", harmeme.place / "no", url, *grid, "--split", "test")
        asked = served.server.stats.calls
        harmeme.call(*refused, code=1)
        assert served.server.stats.calls == asked and not (harmeme.place / "no").exists()
    found = {(one["run"], one["threshold"]): one["macro_f1"]["value"] for one in told["candidates"]}
    assert len(found) == 4 and told["n"] == VAL
    for captioner in (True, False):
        name = f"captioner={str(captioner).lower()}"
        due = check_predictions(harmeme, out / name, "val", examined=captioner, captioner=captioner)
        wanted = figures(harmeme, "val", due, "merged")
        assert found[name, None] == pytest.approx(wanted["strict"]["macro_f1"])
        said = [(harmeme.key["val", m].harmful, opinion.probability >= 0.3) for m, opinion in due.items()]
        assert found[name, 0.3] == pytest.approx(rates(said)["macro_f1"])
    values = [one["macro_f1"]["value"] for one in told["candidates"]]
    assert values == sorted(values, reverse=True)


def test_an_exported_run_says_what_the_run_says(harmeme, study, due):
    inspect_log = pytest.importorskip("inspect_ai.log")
    out, _, _ = study
    target = harmeme.place / "full.eval"
    harmeme.call("export", out / "full", "--inspect", target)
    log = inspect_log.read_eval_log(str(target))
    assert {sample.id for sample in log.samples} == set(due["full"])
    for sample in log.samples:
        opinion, gold = due["full"][sample.id], harmeme.key["test", sample.id].harmful
        answer = "FAILED" if opinion is None else "HARMFUL" if opinion.harmful else "NOT_HARMFUL"
        right = opinion is not None and opinion.harmful == gold
        assert (sample.scores["merged"].answer, sample.scores["merged"].value) == (answer, "C" if right else "I")
    wanted = figures(harmeme, "test", due["full"], "merged")["strict"]
    told = {one.name: one.metrics for one in log.results.scores}["merged"]
    assert told["accuracy"].value == pytest.approx(wanted["accuracy"])
    assert told["macro_f1"].value == pytest.approx(wanted["macro_f1"])


def test_in_the_layout_of_fhm_before_a_server_of_its_own(tmp_path):
    bench = Bench(tmp_path, "fhm")
    command = [sys.executable, "-m", "eval.perf.model_server.server", "--play", "synthetic", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            address = f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
            told = bench.json(*bench.judging("run", tmp_path / "run", f"{address}/v1", "--procedure", "full"))
            with urllib.request.urlopen(f"{address}/stats", timeout=60) as answer:
                stats = json.load(answer)
        finally:
            process.terminate()
    due = check_predictions(bench, tmp_path / "run", "test_seen", examined=True)
    wanted = figures(bench, "test_seen", due, "plain")
    check_card(told["cards"]["plain"], wanted)
    (table,) = bench.json("report", tmp_path / "run")["tables"]
    check_card(table["rows"][0]["card"], wanted)
    assert table["protocol"] == "plain" and told["without_class"] == {"PICTURE_DAMAGED": 1}
    predictions = RunFolder(tmp_path / "run").predictions()
    made = sum(p.cost.calls - p.cost.stored for p in predictions)
    assert 0 < made <= stats["answered"] <= made + 20  # and the calls that ask what the server can do
    check_excluded(bench, tmp_path / "run")
