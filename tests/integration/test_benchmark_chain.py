"""The whole benchmark, checked to the last digit: synthetic memes, a model of known ability, the real commands.

Expected predictions follow from the key of the synthetic memes and from :func:`expected`. Expected figures are computed
from them here, without scikit-learn and without ``eval.scores.metrics``.
"""

import asyncio
import csv
import itertools
import json
import math
import os
import subprocess
import sys
import urllib.request
from collections import Counter
from statistics import mean

import pytest
from click.testing import CliRunner

from eval.cli import cli
from eval.datasets.items import Level, Outcome
from eval.runs.results import RunFolder
from eval.standin.server import FakeModelServer
from eval.standin.settings import FEATURES, Settings
from eval.synthetic.make import read_key
from eval.synthetic.oracle import Ability, expected, rounds_of
from serving.docket.open import Docket
from tests.support.stand_ins import listening

TRAIN, VAL, TEST = 24, 8, 12
LEAKED = ("same id", "same file", "same picture", "same text", "near-duplicate")
UNREADABLE = ("damaged picture", "missing picture")
"""Planted defects of precedents whose picture can't be read."""
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
"""Arguments of :func:`expected` for each arm of an ablation."""
REPLIES = ("description", "question", "answer", "summary", "harmful_strength")
"""A JSON property of each kind of reply that a trial asks for."""
EXAMINED = {"full", "no-precedents", "post-stance", "random-precedents", "shuffled-labels", "swapped-sides"}
"""Arms whose sides ask questions."""


class Bench:
    """A synthetic benchmark in a directory, and the commands, invoked as by a user."""

    def __init__(self, folder, layout):
        self.folder, self.layout, self.dataset = folder, layout, f"synthetic-{layout}"
        self.data = folder / "data"
        self.test = "test" if layout == "harmeme" else "test_seen"
        self.call(
            "synthetic", self.data, "--layout", layout, "--train", TRAIN, "--val", VAL, "--test", TEST,
            "--seed", 1, "--plant", "leakage,defects",
        )  # fmt: skip
        self.key = {}
        for meme in read_key(self.data):
            if meme.planted not in ("duplicate id", "empty label", "foreign label", "no JSON"):
                self.key[meme.split, meme.id] = meme

    def call(self, *arguments, code=0):
        environment = {"MEMECOURT_HOME": str(self.folder / "home"), "MEMECOURT_PICTURE_WORKERS": "1"}
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], env=environment)
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        return result.stdout if code == 0 or arguments[-1] == "--json" else result.output

    def json(self, *arguments, code=0):
        return json.loads(self.call(*arguments, "--json", code=code))

    def judging(self, command, out, url, *more):
        """Returns the command line of a judging command, with the options that all of them share."""
        options = (command, "--dataset", self.dataset, "--data", self.data, "--out", out)
        return (*options, "--llm-url", url, "--model", "stand-in", "--set", "overlap=false", *more)

    def memes(self, split):
        """Returns the memes of a split that can be judged or fail on their own, in order."""
        return [meme for (meme_split, _), meme in self.key.items() if meme_split == split]

    def due(self, run, split, **changed):
        """Returns the expected opinion by meme, None for a damaged picture; precedents are those on record."""
        shown = asyncio.run(exhibits(run))
        opinions = {}
        for meme in self.memes(split):
            precedents = []
            for precedent in shown.get(meme.id, ()):
                original = self.key["train", precedent.id]
                assert precedent.text == original.text
                assert split != self.test or original.planted not in LEAKED
                harmful = precedent.label == "HARMFUL"
                assert harmful == original.harmful or run.name == "shuffled-labels"
                precedents.append((original.text, None if original.planted in UNREADABLE else original.badge, harmful))
            damaged = meme.planted == "damaged picture"
            opinions[meme.id] = (
                None if damaged else expected(meme.text, meme.badge, Ability(), precedents=precedents, **changed)
            )
        return opinions


async def exhibits(run):
    """Returns the precedents that the Judge was shown, by meme."""
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
    """Checks every prediction of a run against the expected opinions, and returns these."""
    due = bench.due(run, split, **changed)
    predictions = {prediction.meme: prediction for prediction in RunFolder(run).predictions()}
    assert predictions.keys() == due.keys()
    for meme in bench.memes(split):
        opinion, prediction = due[meme.id], predictions[meme.id]
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
    """Computes the figures of a card from gold labels and expected opinions, by definition."""
    rows = []
    for meme in bench.memes(split):
        if protocol == "extreme" and meme.level is Level.SOMEWHAT_HARMFUL:
            continue
        rows.append((meme, due[meme.id]))
    pairs = [(meme.harmful, opinion.harmful if opinion else None) for meme, opinion in rows]
    decided = [(gold, label) for gold, label in pairs if label is not None]
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
        "harmful": sum(gold for gold, _ in pairs),
        "dropped": len(bench.memes(split)) - len(rows),
        "failed": len(pairs) - len(decided),
        "undecided": 0,
        "coverage": len(decided) / len(pairs),
        "confusion": [[pairs.count((gold, label)) for label in columns] for gold in (False, True)],
        "strict": rates(pairs),
        "decided": rates(decided),
        "auroc": mean(above),
        "brier": mean((score - gold) ** 2 for gold, score in scored),
        "mmae": mean(errors) if bench.layout == "harmeme" else None,
    }


def rates(pairs):
    classes = []
    for label in (False, True):
        hits = pairs.count((label, label))
        claimed = sum(predicted is label for _, predicted in pairs)
        actual = sum(gold is label for gold, _ in pairs)
        classes.append((hits / claimed if claimed else None, hits / actual, 2 * hits / (claimed + actual)))
    return {
        "accuracy": sum(gold is predicted for gold, predicted in pairs) / len(pairs),
        "macro_f1": mean(f1 for *_, f1 in classes),
        "classes": classes,
    }


def check_card(card, due):
    """Checks that every figure of a card (as JSON) is the expected one and lies within its interval."""
    for name in ("n", "dropped", "failed", "confusion"):
        assert card[name] == due[name], name
    assert card["unanswered"] == due["failed"] + due["undecided"]
    assert card["gold"] == {"not harmful": due["n"] - due["harmful"], "harmful": due["harmful"]}
    assert card["baseline"]["accuracy"] == pytest.approx(max(card["gold"].values()) / due["n"])
    figures = card["figures"]
    for name in ("coverage", "auroc", "brier", "mmae"):
        check_figure(figures.get(name), due[name])
    for found, which in ((figures, due["strict"]), (card["decided"], due["decided"])):
        check_figure(found["accuracy"], which["accuracy"])
        check_figure(found["macro-f1"], which["macro_f1"])
    for label, wanted in zip(card["gold"], due["strict"]["classes"], strict=True):
        for name, value in zip(("precision", "recall", "f1"), wanted, strict=True):
            check_figure(figures[f"{name}:{label}"], value)
    assert sum(bin_["n"] for bin_ in card["calibration"]) == card["over"]["auroc"] == due["n"] - due["failed"]


def check_figure(figure, due):
    if due is None:
        assert figure is None
        return
    assert figure["value"] == pytest.approx(due, abs=1e-12)
    assert figure["low"] - 1e-9 <= due <= figure["high"] + 1e-9


class OracleServer:
    """A fake model server that plays the oracle, on a real socket in its own thread; it records its requests."""

    def __init__(self):
        # Without picture ids: with them, the same request looks different once the server has the picture.
        self.server = FakeModelServer(Settings(play="synthetic", features=FEATURES - {"picture_ids"}), keep=True)

    def listening(self):
        return listening(self.server)

    def trial_calls(self):
        """Counts the calls of trials by their body, without those that probe the server's capabilities."""
        bodies = []
        for body in self.server.requests:
            schema = json.dumps(body.get("response_format") or {})
            if any(f'"{name}"' in schema for name in REPLIES) or "with the letter alone" in json.dumps(
                body["messages"]
            ):
                bodies.append(json.dumps(body, sort_keys=True))
        return Counter(bodies)


@pytest.fixture(scope="module")
def harmeme(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("harmeme"), "harmeme")


@pytest.fixture(scope="module")
def study(harmeme):
    """All arms, judged once: their folder, the command's JSON output, and the server."""
    out, served = harmeme.folder / "study", OracleServer()
    with served.listening() as url:
        output = harmeme.json(*harmeme.judging("ablate", out, url, "--arms", ",".join(ARMS)))
    return out, output, served


@pytest.fixture(scope="module")
def due(harmeme, study):
    """Expected opinions by arm and meme; the predictions are checked against them here."""
    out, _, _ = study
    return {
        arm: check_predictions(harmeme, out / arm, "test", examined=arm in EXAMINED, **changed)
        for arm, changed in ARMS.items()
    }


def test_dataset_check_reports_planted_defects(harmeme):
    (report,) = harmeme.json("datasets", "check", harmeme.data, "--decode", code=1)["datasets"]
    assert report["dataset"] == "synthetic-harmeme"
    counts = {(finding["split"], finding["kind"]): finding["count"] for finding in report["findings"]}
    assert counts["train", "row damaged"] == 1 and counts["train", "pictures missing"] == 1
    # Two rows with bad labels, and one that is not JSON.
    assert sum(finding["kind"] == "row damaged" for finding in report["findings"]) == 3
    assert {split for split, kind in counts if kind == "picture unreadable"} == {"train", "test"}
    for kind in ("id twice", "text twice", "picture twice"):
        assert ("train+test", kind) in counts


def check_excluded(bench, run):
    """Checks that exactly the leaks are excluded, each with its reason; of memes with one text, the first is named."""
    planted = {m.id: m for m in bench.memes("train") if m.planted in LEAKED}
    assert {meme.planted for meme in planted.values()} == set(LEAKED)
    excluded = RunFolder(run).excluded()
    assert {exclusion.precedent: exclusion.why for exclusion in excluded} == {
        meme.id: meme.planted for meme in planted.values()
    }
    for exclusion in excluded:
        source = bench.key[bench.test, planted[exclusion.precedent].of]
        named = bench.key[bench.test, exclusion.meme]
        assert source == named or (exclusion.why == "same text" and source.text == named.text)


def test_wrong_options_are_refused_before_a_library_is_built(harmeme):
    folder, data = harmeme.folder, ("--data", harmeme.data)
    output = harmeme.call("run", "--dataset", "harm-c", *data, "--out", folder / "wrong", code=1)
    assert "--dataset synthetic-harmeme" in output  # else its figures would appear beside published ones
    for command in ("run", "ablate"):
        full = (command, "--dataset", harmeme.dataset, *data, "--out", folder / "none", "--procedure", "full")
        assert "--llm-url URL and --model NAME" in harmeme.call(*full, code=1)
    assert not (folder / "none" / "library").exists() and not (folder / "wrong" / "library").exists()


def test_each_leak_and_nothing_else_is_excluded_with_its_reason(harmeme, study):
    out, _, _ = study
    for arm in ARMS:
        check_excluded(harmeme, out / arm)
        folder = RunFolder(out / arm)
        assert folder.manifest().excluded == dict.fromkeys(LEAKED, 1)
        # The requested number, plus the two planted rows that are valid except for their picture.
        assert folder.manifest().library_size == TRAIN + len(UNREADABLE)


def test_predictions_of_every_arm_match_the_oracle(harmeme, due):
    assert set(due) == set(ARMS)
    # If all arms gave the same predictions, the benchmark would show nothing.
    assert len({tuple(sorted((k, v) for k, v in one.items() if v)) for one in due.values()}) >= 3
    right = {
        arm: sum(o.harmful == harmeme.key["test", m].harmful for m, o in each.items() if o) for arm, each in due.items()
    }
    assert TEST / 2 <= min(right.values()) < max(right.values()) <= TEST


def test_calls_shared_by_arms_are_made_once(study):
    out, output, served = study
    calls = served.trial_calls()
    assert set(calls.values()) == {1}
    made = {row["arm"]: row["made"] for row in output["merged"]}
    assert sum(made.values()) == calls.total()
    for arm in ("no-precedents", "no-advocates", "dull-judge", "random-precedents", "shuffled-labels", "swapped-sides"):
        assert made[arm] <= 3 * TEST  # the Judge's ruling, and its odds in both orders
    assert made["dull-judge"] == 3 * TEST
    assert [row["arm"] for row in output["merged"]] == list(ARMS)
    for row in output["merged"]:
        predictions = RunFolder(out / row["arm"]).predictions()
        assert row["calls"] == sum(p.cost.calls for p in predictions)
        assert row["stored"] == sum(p.cost.stored for p in predictions) == row["calls"] - row["made"]


@pytest.fixture(scope="module")
def report(harmeme, study):
    """The report as JSON, Markdown and HTML."""
    page, text = harmeme.folder / "report.html", harmeme.folder / "report.md"
    as_json = harmeme.json("report", study[0], "--html", page, "--markdown", text, "--no-pictures")
    return as_json, text.read_text(), page.read_text()


def columns(text, protocol):
    """Returns the cells of each run's column in the tables of a protocol, by the first cell of their row."""
    found = {}
    for section in text.split(f"### Protocol {protocol}")[1:]:
        table = itertools.takewhile(lambda line: line[:1] == "|", section[section.index("|") :].splitlines())
        head, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
        found |= {run: {row[0]: row[at] for row in rows} for at, run in enumerate(head) if run}
    return found


@pytest.mark.parametrize("protocol", ["merged", "extreme"])
def test_report_figures_match_the_oracle(harmeme, study, due, report, protocol):
    _, ablation, _ = study
    report, text, page = report
    (table,) = [one for one in report["tables"] if one["protocol"] == protocol]
    assert {row["run"] for row in table["rows"]} == set(ARMS)
    shown_of = columns(text, protocol)
    for row in table["rows"]:
        wanted = figures(harmeme, "test", due[row["run"]], protocol)
        check_card(row["card"], wanted)
        shown = shown_of[row["run"]]
        assert shown["memes"] == str(wanted["n"])
        for figure, value in (
            ("accuracy", wanted["strict"]["accuracy"]),
            ("macro-F1", wanted["strict"]["macro_f1"]),
            ("accuracy, decided", wanted["decided"]["accuracy"]),
        ):
            assert shown[figure].split(" ")[0] == f"{value:.3f}"
    full = figures(harmeme, "test", due["full"], protocol)
    for row in ablation[protocol]:
        wanted = figures(harmeme, "test", due[row["arm"]], protocol)
        assert row["a"]["accuracy"] == pytest.approx(wanted["strict"]["accuracy"])
        assert row["a"]["macro-f1"] == pytest.approx(wanted["strict"]["macro_f1"])
        difference = wanted["strict"]["accuracy"] - full["strict"]["accuracy"]
        assert row["differences"]["accuracy"]["value"] == pytest.approx(difference)
    # The page shows every wrong verdict.
    wrong = {
        m for each in due.values() for m, o in each.items() if not o or o.harmful != harmeme.key["test", m].harmful
    }
    assert wrong and all(meme in page for meme in wrong)


def test_comparison_of_two_arms_counts_memes_and_flips(harmeme, study, due):
    out, _, _ = study
    comparison = harmeme.json("compare", out / "full", out / "dull-judge", "--protocol", "merged")["comparisons"][0]

    def right(arm):
        return {m for m, opinion in due[arm].items() if opinion and opinion.harmful == harmeme.key["test", m].harmful}

    a, b = right("full"), right("dull-judge")
    only_a, only_b = len(a - b), len(b - a)
    assert (comparison["only_a_right"], comparison["only_b_right"]) == (only_a, only_b)
    assert comparison["both_right"] == len(a & b)
    assert comparison["both_wrong"] == TEST + 1 - len(a | b)
    assert {flip["meme"] for flip in comparison["changed"]} == a ^ b
    tail = sum(math.comb(only_a + only_b, k) for k in range(min(only_a, only_b) + 1)) / 2 ** (only_a + only_b)
    assert comparison["mcnemar_p"] == pytest.approx(min(1, 2 * tail))
    assert comparison["differences"]["accuracy"]["value"] == pytest.approx((only_a - only_b) / (TEST + 1))


def test_predictions_read_from_a_file_score_the_same(harmeme, due):
    file = harmeme.folder / "predictions.csv"
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["id", "label", "score"])
        for meme, opinion in due["full"].items():
            if opinion:
                writer.writerow([meme, opinion.level.name.lower(), repr(opinion.probability)])
    scores = harmeme.json("score", file, "--dataset", harmeme.dataset, "--data", harmeme.data, "--split", "test")
    assert scores["missing"] == [meme for meme, opinion in due["full"].items() if opinion is None]
    for table in scores["tables"]:
        check_card(table["rows"][0]["card"], figures(harmeme, "test", due["full"], table["protocol"]))


def test_sweep_ranks_by_validation_scores_and_refuses_the_test_split(harmeme):
    out, served = harmeme.folder / "sweep", OracleServer()
    with served.listening() as url:
        grid = ("--grid", "captioner=true,false", "--thresholds", "0.3", "--protocol", "merged", "--procedure", "full")
        ranking = harmeme.json(*harmeme.judging("sweep", out, url, *grid))["merged"]
        refused = harmeme.judging("sweep", harmeme.folder / "no", url, *grid, "--split", "test")
        calls = served.server.stats.calls
        harmeme.call(*refused, code=1)
        assert served.server.stats.calls == calls and not (harmeme.folder / "no").exists()
    macro_f1 = {
        (candidate["run"], candidate["threshold"]): candidate["value"]["value"] for candidate in ranking["ways"]
    }
    assert len(macro_f1) == 4 and ranking["n"] == VAL
    for captioner in (True, False):
        name = f"captioner={str(captioner).lower()}"
        due = check_predictions(harmeme, out / name, "val", examined=captioner, captioner=captioner)
        wanted = figures(harmeme, "val", due, "merged")
        assert macro_f1[name, None] == pytest.approx(wanted["strict"]["macro_f1"])
        pairs = [(harmeme.key["val", m].harmful, opinion.probability >= 0.3) for m, opinion in due.items()]
        assert macro_f1[name, 0.3] == pytest.approx(rates(pairs)["macro_f1"])
    values = [candidate["value"]["value"] for candidate in ranking["ways"]]
    assert values == sorted(values, reverse=True)


def test_exported_run_has_the_scores_of_the_run(harmeme, study, due):
    inspect_log = pytest.importorskip("inspect_ai.log")
    out, _, _ = study
    target = harmeme.folder / "full.eval"
    harmeme.call("export", out / "full", "--inspect", target)
    log = inspect_log.read_eval_log(str(target))
    assert {sample.id for sample in log.samples} == set(due["full"])
    for sample in log.samples:
        opinion, gold = due["full"][sample.id], harmeme.key["test", sample.id].harmful
        answer = "FAILED" if opinion is None else "HARMFUL" if opinion.harmful else "NOT_HARMFUL"
        right = opinion is not None and opinion.harmful == gold
        assert (sample.scores["merged"].answer, sample.scores["merged"].value) == (answer, "C" if right else "I")
    wanted = figures(harmeme, "test", due["full"], "merged")["strict"]
    metrics = {score.name: score.metrics for score in log.results.scores}["merged"]
    assert metrics["accuracy"].value == pytest.approx(wanted["accuracy"])
    assert metrics["macro-f1"].value == pytest.approx(wanted["macro_f1"])


def test_fhm_layout_is_judged_by_a_model_server_subprocess(tmp_path):
    bench = Bench(tmp_path, "fhm")
    command = [sys.executable, "-m", "eval.standin.server", "--play", "synthetic", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            address = f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
            output = bench.json(*bench.judging("run", tmp_path / "run", f"{address}/v1", "--procedure", "full"))
            with urllib.request.urlopen(f"{address}/stats", timeout=60) as answer:
                stats = json.load(answer)
        finally:
            process.terminate()
    due = check_predictions(bench, tmp_path / "run", "test_seen", examined=True)
    wanted = figures(bench, "test_seen", due, "plain")
    check_card(output["cards"]["plain"], wanted)
    (table,) = bench.json("report", tmp_path / "run")["tables"]
    check_card(table["rows"][0]["card"], wanted)
    assert table["protocol"] == "plain" and output["without_class"] == {"PICTURE_DAMAGED": 1}
    predictions = RunFolder(tmp_path / "run").predictions()
    made = sum(p.cost.calls - p.cost.stored for p in predictions)
    assert 0 < made <= stats["answered"] <= made + 20  # and the calls that probe the server's capabilities
    check_excluded(bench, tmp_path / "run")
