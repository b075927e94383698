"""The command classify: prompts, answers, and metrics that match the oracle's on synthetic data."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn import metrics as sk

from court.errors import Unavailable
from court.meme import Frame
from court.ports import BATCH_PRIORITY
from eval.cli import cli
from eval.datasets.items import Outcome
from eval.runs.results import PREDICTIONS, RunFolder, read_results
from eval.synthetic.make import CARD, read_key
from eval.synthetic.oracle import Ability, JudgeInput, answer_signs, answer_target
from eval.synthetic.world import SIGNS, TARGETS, signs_of, target_of
from tests.support.classify import MODEL_OPTIONS, classify, figures, words
from tests.support.classify import data as data
from tests.support.classify import home as home
from tests.support.classify import model as model
from tests.support.golden import check_figures

pytestmark = pytest.mark.slow


def test_single_label_metrics_match_the_oracle(data, tmp_path, model, request):
    ran = classify(data, tmp_path / "run", "--task", "target", *MODEL_OPTIONS, "--json")
    check_figures(request, "classify", json.loads(ran.stdout))
    key = {meme.id: meme for meme in read_key(data)}
    results = read_results(tmp_path / "run")
    gold, answers = [], []
    for one in results.judged:
        meme = key[one.meme.id]
        oracle_answer = answer_target(JudgeInput(meme.text, meme.badge), Ability())
        answer = one.prediction.said["target"]
        assert (one.prediction.outcome, answer.labels) == (Outcome.ANSWERED, (oracle_answer,))
        gold.append(target_of(meme.text, meme.badge))
        answers.append(oracle_answer)
    assert len(gold) == 24 and 0 < sum(a == b for a, b in zip(gold, answers, strict=True)) < 24
    (card,) = figures(ran).values()
    assert card["figures"]["accuracy"]["value"] == pytest.approx(sk.accuracy_score(gold, answers))
    expected = sk.f1_score(gold, answers, labels=TARGETS, average="macro", zero_division=0)
    assert card["figures"]["macro-f1"]["value"] == pytest.approx(expected)
    assert card["baseline_words"] == "always nobody"
    assert card["baseline"]["accuracy"] == pytest.approx(gold.count("nobody") / 24)
    # Families of four are resampled together.
    assert card["groups"] == len({key[one.meme.id].family for one in results.judged}) == 6
    assert len(model.asked) == 24
    for call in model.asked:
        assert call.request.priority == BATCH_PRIORITY
        assert sum(isinstance(part, Frame) for part in call.request.parts) == 1
        assert call.request.reply_schema["properties"]["label"]["enum"] == list(TARGETS)


def test_multi_label_metrics_match_the_oracle(data, tmp_path, model):
    ran = classify(data, tmp_path / "run", "--task", "signs", *MODEL_OPTIONS, "--json")
    key = {meme.id: meme for meme in read_key(data)}
    gold, answers = [], []
    for one in read_results(tmp_path / "run").judged:
        meme = key[one.meme.id]
        oracle_answer = answer_signs(JudgeInput(meme.text, meme.badge), Ability())
        assert one.prediction.said["signs"].labels == oracle_answer
        gold.append([sign in signs_of(meme.text, meme.badge) for sign in SIGNS])
        answers.append([sign in oracle_answer for sign in SIGNS])
    gold, answers = np.array(gold), np.array(answers)
    (card,) = figures(ran).values()
    f1s = [
        sk.f1_score(gold[:, k], answers[:, k], labels=[False, True], average="macro", zero_division=0) for k in range(3)
    ]
    assert card["figures"]["mean-binary-macro-f1"]["value"] == pytest.approx(np.mean(f1s))
    assert card["figures"]["mean-binary-accuracy"]["value"] == pytest.approx((gold == answers).mean())
    assert card["baseline_words"] == "always none"
    assert card["baseline"]["mean-binary-accuracy"] == pytest.approx((~gold).mean())
    assert list(card["gold"].values()) == gold.sum(axis=0).tolist()


def test_prompts_show_the_named_inputs_after_the_examples(data, tmp_path, model):
    grid = ("--inputs", "text", "--inputs", "caption,picture,text,description", "--shots", "0,2")
    ran = classify(data, tmp_path / "grid", "--task", "signs", *MODEL_OPTIONS, *grid, "--json", "--limit", "8")
    names = ("text,0-shot", "text,2-shot", "picture+text+caption+description,0-shot")
    full = "picture+text+caption+description,2-shot"
    assert set(figures(ran)) == {*names, full}
    key = {meme.id: meme for meme in read_key(data)}
    for name in (*names, full):
        for one in read_results(tmp_path / "grid" / name).judged:
            meme = key[one.meme.id]
            visible = JudgeInput(
                meme.text,
                meme.badge if "picture" in name else None,
                meme.badge if "picture" in name else None,
                aids=frozenset({"precedents"} if "2-shot" in name else ()),
            )
            assert one.prediction.said["signs"].labels == answer_signs(visible, Ability())
    # Each picture is described once, whether it is a meme or an example.
    described = [call for call in model.asked if "description" in (call.request.reply_schema or {})["properties"]]
    assert len(described) == len({call.request.parts[0].png for call in described}) <= 8 + 16
    requests = [one.request for one in model.asked if "labels" in (one.request.reply_schema or {})["properties"]]
    assert len(requests) == 4 * 8
    for request in requests:
        text = words(request)
        pictures = sum(isinstance(part, Frame) for part in request.parts)
        examples = text.count("a meme that people have labelled:")
        assert pictures == (0 if "without its picture" in text else 1 + examples)
        if examples:
            assert text.index("Example 1,") < text.index("Example 2,") < text.index("Text of the meme that is judged:")
    # No example is a near-duplicate of a test meme: families are not divided between splits.
    folder = RunFolder(tmp_path / "grid" / names[1])
    train = {meme.text for meme in read_key(data) if meme.split == "train"}
    assert not train & {meme.text for meme in folder.memes()}
    # Running it again makes no calls; the grid's report has a cell for each run and marks the best.
    before = len(model.asked)
    again = classify(data, tmp_path / "grid", "--task", "signs", *MODEL_OPTIONS, *grid, "--limit", "8")
    assert len(model.asked) == before
    assert "mean-binary-macro-f1 by inputs and examples" in again.output and "Best first" in again.output
    assert "This split is for testing" in again.output


def test_prompts_state_the_language_from_the_card(data, tmp_path, model):
    task = ("--task", "target", "--inputs", "text,language")
    classify(data, tmp_path / "run", *task, *MODEL_OPTIONS, "--shots", "1", "--limit", "4")
    for call in model.asked:
        text = words(call.request)
        assert "Language of its text, as a tag of BCP 47:" in text and "Language of example 1:" in text
        assert text.count("\nen\n") == 2
    ran = classify(data, tmp_path / "vote", *task, code=1)
    assert "can't compare language" in ran.output


def test_interrupted_run_resumes_and_failures_are_reported(data, tmp_path, model):
    usual, left = model._answers, iter(range(5))

    def broken(request):
        if next(left, None) is None:
            raise Unavailable("The server is gone.", reason="MODEL_UNAVAILABLE")
        return usual(request)

    model._answers = broken
    words = ("--task", "target", *MODEL_OPTIONS, "--patience", "0", "--concurrency", "1", "--limit", "12")
    ran = classify(data, tmp_path / "run", *words, code=3)
    assert "Not finished" in ran.output and "the same command goes on" in ran.output
    assert len(RunFolder(tmp_path / "run").predictions()) == 5
    with (tmp_path / "run" / PREDICTIONS).open("a") as file:
        file.write('{"meme": "cut')  # a torn line, as after a crash
    model._answers = lambda request: {"label": "perhaps"}
    classify(data, tmp_path / "run", *words)
    judged = read_results(tmp_path / "run").judged
    failed = [one.prediction for one in judged if one.prediction.outcome is Outcome.FAILED]
    assert (len(judged), len(failed)) == (12, 7)
    assert {one.reason for one in failed} == {"REPLY_MALFORMED"}
    ran = CliRunner().invoke(cli, ["report", str(tmp_path / "run")])
    assert "7, 7" in ran.output
    ran = classify(data, tmp_path / "run", "--task", "signs", *MODEL_OPTIONS, code=1)
    assert "question (was" in ran.output


def test_rotated_options_are_decided_by_majority(data, tmp_path, model):
    model._answers = lambda request: {"label": request.reply_schema["properties"]["label"]["enum"][0]}
    ran = classify(data, tmp_path / "run", "--task", "target", *MODEL_OPTIONS, "--rotate", "--limit", "4", "--json")
    assert len(model.asked) == 4 * len(TARGETS)
    for one in read_results(tmp_path / "run").judged:
        answer = one.prediction.said["target"]
        # A model that always takes the first option gives each label once; the card's order comes first.
        assert answer.rotations == tuple((label,) for label in TARGETS) and answer.labels == (TARGETS[0],)
        assert one.prediction.cost.calls == len(TARGETS)
    (card,) = figures(ran).values()
    assert np.mean([order["accuracy"] for order in card["by_order"]]) == pytest.approx(1 / len(TARGETS))


def test_odds_become_scores_of_the_labels(data, tmp_path, model):
    ran = classify(data, tmp_path / "a", "--task", "target", *MODEL_OPTIONS, "--odds", "--limit", "6", "--json")
    for one in read_results(tmp_path / "a").judged:
        answer = one.prediction.said["target"]
        assert sum(answer.scores.values()) == pytest.approx(1)
        assert max(answer.scores, key=answer.scores.get) == answer.labels[0]
        assert answer.scores[answer.labels[0]] == pytest.approx(0.9)
    (card,) = figures(ran).values()
    assert card["over"]["brier"] == 6 and card["figures"]["brier"] is not None
    classify(data, tmp_path / "b", "--task", "signs", *MODEL_OPTIONS, "--odds", "--limit", "6")
    for one in read_results(tmp_path / "b").judged:
        answer = one.prediction.said["signs"]
        for sign in SIGNS:
            assert answer.scores[sign] == pytest.approx(0.9 if sign in answer.labels else 0.1)
    # If the server has no log-probabilities there are no scores, and nothing fails.
    model._odds = None
    classify(data, tmp_path / "c", "--task", "target", *MODEL_OPTIONS, "--odds", "--limit", "2")
    assert all(one.prediction.said["target"].scores == {} for one in read_results(tmp_path / "c").judged)


def test_votes_of_labelled_memes_need_no_model(data, tmp_path, model, monkeypatch):
    # Lowered to six, as a small train split has few memes of a label.
    monkeypatch.setattr("retrieval.calibration.calibrate.FEWEST_OF_A_LABEL", 6)
    ran = classify(data, tmp_path / "v", "--task", "signs", "--inputs", "text", "--json")
    assert model.asked == []
    (card,) = figures(ran).values()
    assert card["over"]["auroc"] == card["n"] == 24
    # Texts reveal attacks better than chance, and than denying them always.
    found, attacks = card["figures"], card["gold"]["attack"]
    assert found["auroc:attack"]["value"] > 0.65
    assert found["binary-macro-f1:attack"]["value"] > (24 - attacks) / (48 - attacks)
    manifest = read_results(tmp_path / "v").manifest
    assert manifest.models == {} and manifest.procedure == "SUMMARY"
    # When resumed, the settings of the votes are chosen alike.
    (tmp_path / "v" / PREDICTIONS).write_text("")
    again = classify(data, tmp_path / "v", "--task", "signs", "--inputs", "text", "--json")
    assert figures(again) == figures(ran)
    # Such a library can't be used for trials.
    run = ["run", "--dataset", "synthetic-harmeme", "--data", str(data), "--out", str(tmp_path / "t")]
    ran = CliRunner().invoke(cli, [*run, "--library", str(tmp_path / "v" / "library")])
    assert ran.exit_code == 1 and "holds labelled examples of a task" in ran.output


def test_runs_are_compared_reported_and_exported(data, tmp_path, model):
    for name, shown in (("picture", "picture,text"), ("words", "text")):
        classify(data, tmp_path / name, "--task", "target", *MODEL_OPTIONS, "--inputs", shown)
    compare = ["compare", str(tmp_path / "picture"), str(tmp_path / "words")]
    ran = CliRunner().invoke(cli, compare)
    assert ran.exit_code == 0 and "macro-f1 of picture" in ran.output and "different" in ran.output
    ran = CliRunner().invoke(cli, [*compare, "--protocol", "merged"])
    assert ran.exit_code == 2 and "--protocol is for verdicts" in ran.output
    pages = ["--html", str(tmp_path / "p.html"), "--markdown", str(tmp_path / "p.md")]
    ran = CliRunner().invoke(cli, ["report", str(tmp_path / "picture"), str(tmp_path / "words"), *pages])
    assert ran.exit_code == 0
    assert "macro-F1 (official)" in (tmp_path / "p.html").read_text() and "| macro-F1 (official) |" in (
        (tmp_path / "p.md").read_text()
    )
    target = tmp_path / "log.json"
    ran = CliRunner().invoke(cli, ["export", str(tmp_path / "picture"), "--inspect", str(target)])
    assert ran.exit_code == 0, ran.output
    log = json.loads(target.read_text())
    assert len(log["samples"]) == 24 and log["results"]["scores"][0]["name"] == "target"
    judged = {one.meme.id: one for one in read_results(tmp_path / "picture").judged}
    for sample in log["samples"]:
        right = tuple(sample["target"]) == judged[sample["id"]].prediction.said["target"].labels
        assert sample["scores"]["target"]["value"] == ("C" if right else "I")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--task", "mood"), "mood"),
        (("--task", "target", "--inputs", "gold:target"), "it can't be shown"),
        (("--task", "target", "--inputs", "smell"), "smell can't be shown"),
        (("--task", "target", "--inputs", "description"), "can't compare description"),
        (("--task", "target", "--rotate"), "asks no model"),
        (("--task", "target", "--inputs", "ocr", *MODEL_OPTIONS), "No meme has a field ocr"),
        (("--task", "target", *MODEL_OPTIONS, "--shots", "many"), "give numbers from 0 to 16"),
        (("--task", "target", *MODEL_OPTIONS, "--split", "dev"), "no split"),
    ],
)
def test_impossible_questions_are_refused_with_a_remedy(words, message, data, tmp_path, model):
    ran = CliRunner().invoke(
        cli, ["classify", "--dataset", str(data / CARD), "--data", str(data), "--out", str(tmp_path / "run"), *words]
    )
    assert ran.exit_code in (1, 2) and message in ran.output and "Traceback" not in ran.output
    assert model.asked == []
