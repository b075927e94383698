"""The command classify with trials: the Judge's rulings on a card's question match the oracle at one call a meme."""

import asyncio
import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn import metrics as sk

from court.errors import Unavailable
from court.events import QuestionRuled, Role
from court.meme import Frame
from court.record import TrialState
from eval.cli import cli
from eval.datasets.card import read_card
from eval.datasets.items import Outcome
from eval.models.call_cache import CallsError
from eval.runs.results import DOCKET, MEMES, PREDICTIONS, RunFolder, read_results
from eval.synthetic.make import CARD, read_key
from eval.synthetic.oracle import Ability, JudgeInput, answer_signs, answer_target
from eval.synthetic.world import SIGNS, TARGETS, signs_of, target_of
from serving.cli.main import cli as memecourt_cli
from serving.docket.open import Docket
from serving.views.messages import messages_of
from tests.support.classify import MODEL_OPTIONS, classify, data, figures, home, model, words  # noqa: F401

pytestmark = pytest.mark.slow

TRIAL_OPTIONS = ("--trial", *MODEL_OPTIONS)


def is_question(call):
    return "A further question about this meme" in words(call.request)


def records(folder):
    async def read():
        docket = Docket.open(folder / DOCKET, create=False)
        try:
            found = await docket.index.requests()
            return {name: await docket.trials.record(trials[-1]) for name, trials in found.items()}
        finally:
            await docket.close()

    return asyncio.run(read())


def oracle_answer(meme, answer):
    # The Judge sees the picture, a description that names the badge, and precedents labelled by the rule.
    return answer(JudgeInput(meme.text, meme.badge, meme.badge, frozenset({"precedents"})), Ability())


def test_single_label_metrics_match_the_oracle(data, tmp_path, model):  # noqa: F811
    ran = classify(data, tmp_path / "run", "--task", "target", *TRIAL_OPTIONS, "--limit", "12", "--json")
    key = {meme.id: meme for meme in read_key(data)}
    results = read_results(tmp_path / "run")
    records_by_meme = {record.opened.meme.content_id: record for record in records(tmp_path / "run").values()}
    gold, answers = [], []
    for one in results.judged:
        meme, record = key[one.meme.id], records_by_meme[one.meme.id]
        answer = one.prediction.said["target"]
        assert (one.prediction.outcome, answer.labels) == (Outcome.ANSWERED, (oracle_answer(meme, answer_target),))
        gold.append(target_of(meme.text, meme.badge))
        answers.append(answer.labels[0])
        # A whole trial with a verdict on harm, followed by one ruling.
        ruled = record.ruling_on("target")
        assert record.events[-1] == ruled and ruled.chosen == answer.labels and record.verdict is not None
        assert one.prediction.trial == record.trial_id and one.prediction.score is None
        assert messages_of(record, ruled)[0].exact
        # The ruling stores labels of the precedents shown to the Judge, and the vote of labelled memes.
        assert ruled.precedent_labels == {
            precedent.id: (target_of(key[precedent.id].text, key[precedent.id].badge),)
            for precedent in record.precedents.findings.exhibits
        }
        assert sum(ruled.vote.values()) == pytest.approx(1) and set(ruled.vote) == set(TARGETS)
    assert len(gold) == 12 and 0 < sum(a == b for a, b in zip(gold, answers, strict=True)) < 12
    (card,) = figures(ran).values()
    assert card["figures"]["accuracy"]["value"] == pytest.approx(sk.accuracy_score(gold, answers))
    expected = sk.f1_score(gold, answers, labels=TARGETS, average="macro", zero_division=0)
    assert card["figures"]["macro-f1"]["value"] == pytest.approx(expected)
    # One call more than the trial for each meme, and only the Judge gets the question.
    questions = [call for call in model.asked if is_question(call)]
    assert len(questions) == 12 and {call.request.call_id.role for call in questions} == {Role.JUDGE}
    title = read_card(data / CARD).task("target").title
    for call in model.asked:
        if call.request.call_id.role is not Role.JUDGE:
            assert title not in words(call.request)
        if call.request.call_id.role is Role.PROPOSER:
            assert not any(meme.text in words(call.request) for meme in key.values())
        if call.request.call_id.role in (Role.ACCUSER, Role.DEFENDER):
            assert not any(isinstance(part, Frame) for part in call.request.parts)


def test_multi_label_metrics_match_the_oracle(data, tmp_path, model):  # noqa: F811
    # Overlap is off, because it makes speculative calls, whose replies may be missing in the store.
    ran = classify(data, tmp_path / "run", "--task", "signs", *TRIAL_OPTIONS, "--set", "overlap=false", "--json")
    key = {meme.id: meme for meme in read_key(data)}
    gold, answers = [], []
    for one in read_results(tmp_path / "run").judged:
        meme = key[one.meme.id]
        assert one.prediction.said["signs"].labels == oracle_answer(meme, answer_signs)
        gold.append([sign in signs_of(meme.text, meme.badge) for sign in SIGNS])
        answers.append([sign in oracle_answer(meme, answer_signs) for sign in SIGNS])
    gold, answers = np.array(gold), np.array(answers)
    (card,) = figures(ran).values()
    assert card["figures"]["mean-binary-accuracy"]["value"] == pytest.approx((gold == answers).mean())
    ruled = [record.ruling_on("signs") for record in records(tmp_path / "run").values()]
    assert all(set(one.strengths) == set(SIGNS) == set(one.vote) for one in ruled)
    # A run for verdicts of the same trials makes no calls: the store has them all.
    before = len(model.asked)
    run = ["run", "--dataset", str(data / CARD), "--data", str(data), "--out", str(tmp_path / "harm"), *MODEL_OPTIONS]
    store = ["--procedure", "full", "--set", "overlap=false", "--calls", str(tmp_path / "run" / "calls.sqlite")]
    harm = CliRunner().invoke(cli, [*run, *store])
    assert harm.exit_code == 0, harm.output
    assert len(model.asked) == before
    verdicts = {record.opened.meme.content_id: record.verdict for record in records(tmp_path / "run").values()}
    for one in read_results(tmp_path / "harm").judged:
        assert str(verdicts[one.meme.id].label) == str(one.prediction.outcome)
    # A run with trials is compared, reported and exported like any other run of its task.
    classify(data, tmp_path / "plain", "--task", "signs", *MODEL_OPTIONS)
    ran = CliRunner().invoke(cli, ["compare", str(tmp_path / "run"), str(tmp_path / "plain")])
    assert ran.exit_code == 0 and "of run" in ran.output
    ran = CliRunner().invoke(cli, ["report", str(tmp_path / "run"), str(tmp_path / "plain")])
    assert ran.exit_code == 0 and "trial on harm" in ran.output, ran.output
    for form, name in (("--inspect", "log.json"), ("--parquet", "rows.parquet")):
        ran = CliRunner().invoke(cli, ["export", str(tmp_path / "run"), form, str(tmp_path / name)])
        assert ran.exit_code == 0, ran.output
    log = json.loads((tmp_path / "log.json").read_text())
    # A sample has its trial's transcript, the ruling on the question included.
    assert all(any(event.get("role") == "judge" for event in sample["events"]) for sample in log["samples"])
    # Without a gold label a meme is neither right nor wrong.
    folder = RunFolder(tmp_path / "run")
    first, *others = folder.memes()
    folder.write(MEMES, [first.model_copy(update={"tasks": {}}), *others])
    ran = CliRunner().invoke(cli, ["export", str(tmp_path / "run"), "--inspect", str(tmp_path / "open.json")])
    assert ran.exit_code == 0, ran.output
    scored = [sorted(one["scores"]) for one in json.loads((tmp_path / "open.json").read_text())["samples"]]
    assert scored == [[], *([["signs"]] * len(others))]


def test_interrupted_run_resumes_and_failed_questions_fail_no_trial(data, tmp_path, model):  # noqa: F811
    usual, left = model._answers, iter(range(3))

    def unavailable(request):
        if "A further question about this meme" in words(request) and next(left, None) is None:
            raise Unavailable("The server is gone.", reason="MODEL_UNAVAILABLE")
        return usual(request)

    model._answers = unavailable
    options = ("--task", "target", *TRIAL_OPTIONS, "--patience", "0", "--concurrency", "1", "--limit", "8")
    ran = classify(data, tmp_path / "run", *options, code=3)
    assert "Not finished" in ran.output and len(RunFolder(tmp_path / "run").predictions()) == 3
    before = {name: record.verdict for name, record in records(tmp_path / "run").items()}
    assert len(before) > 3 and all(before.values())
    with (tmp_path / "run" / PREDICTIONS).open("a") as file:
        file.write('{"meme": "cut')  # a torn line, as after a crash
    # A malformed reply is a failure of that meme, never "no label".
    spoilt = iter(range(2))

    def odd(request):
        if "A further question about this meme" in words(request) and next(spoilt, None) is not None:
            return {"rationale": "x", "label": "perhaps"}
        return usual(request)

    model._answers, calls = odd, len(model.asked)
    classify(data, tmp_path / "run", *options)
    judged = read_results(tmp_path / "run").judged
    failed = [one.prediction for one in judged if one.prediction.outcome is Outcome.FAILED]
    assert [one.reason for one in failed] == ["REPLY_MALFORMED"] and failed[0].said == {} and len(judged) == 8
    after = records(tmp_path / "run")
    assert all(after[name].verdict == verdict for name, verdict in before.items())
    # Trials with a verdict were not repeated; their failed question precedes the valid ruling.
    again = [record for record in after.values() if len(record.all(QuestionRuled)) > 1]
    assert again and all(record.all(QuestionRuled)[0].failure == "MODEL_UNAVAILABLE" for record in again)
    fresh = [call for call in model.asked[calls:] if not is_question(call)]
    tried_before = {record.opened.meme.content_id for record in (after[name] for name in before)}
    key = {meme.id: meme for meme in read_key(data)}
    for meme in tried_before:
        assert not any(key[meme].text in words(one.request) for one in fresh if one.request.call_id.role is Role.JUDGE)
    # Lost predictions are restored from the records.
    (tmp_path / "run" / PREDICTIONS).write_text("")
    calls = len(model.asked)
    classify(data, tmp_path / "run", *options)
    assert len(model.asked) == calls
    read = {one.meme.id: (one.prediction.outcome, one.prediction.said, one.prediction.reason) for one in judged}
    for one in read_results(tmp_path / "run").judged:
        assert (one.prediction.outcome, one.prediction.said, one.prediction.reason) == read[one.meme.id]


def test_broken_call_store_stops_the_run_without_failing_a_meme(data, tmp_path, model):  # noqa: F811
    usual = model._answers

    def broken(request):
        if "A further question about this meme" in words(request):
            raise CallsError("The store of calls is damaged.")
        return usual(request)

    model._answers = broken
    options = ("--task", "target", *TRIAL_OPTIONS, "--limit", "1")
    ran = classify(data, tmp_path / "run", *options, code=1)
    assert "store of calls" in ran.output and not RunFolder(tmp_path / "run").predictions()
    model._answers = usual
    classify(data, tmp_path / "run", *options)
    (one,) = read_results(tmp_path / "run").judged
    assert one.prediction.outcome is Outcome.ANSWERED


def test_question_is_put_to_a_stored_trial_and_shown(data, tmp_path, model, monkeypatch):  # noqa: F811
    run = ["run", "--dataset", str(data / CARD), "--data", str(data), "--out", str(tmp_path / "run"), *MODEL_OPTIONS]
    ran = CliRunner().invoke(cli, [*run, "--procedure", "full", "--limit", "2"])
    assert ran.exit_code == 0, ran.output
    trial, _ = [one.prediction.trial for one in read_results(tmp_path / "run").judged]
    verdict = records(tmp_path / "run")
    file = tmp_path / "question.toml"
    file.write_text(f'id = "aim"\ntext = "whom does it attack?"\noptions = {json.dumps(TARGETS)}\n')
    place = ("--docket", str(tmp_path / "run" / DOCKET))
    ask = ("records", "ask", trial, "--question", str(file), *place, "--library", str(tmp_path / "run" / "library"))

    def memecourt(*words, code=0):
        ran = CliRunner().invoke(memecourt_cli, words)
        assert ran.exit_code == code and "Traceback" not in ran.output, ran.output
        return ran.output

    assert "answer" in memecourt(*ask, *MODEL_OPTIONS)
    (ruled,) = [each for record in records(tmp_path / "run").values() for each in record.all(QuestionRuled)]
    assert ruled.trial_id == trial and ruled.question.text == "whom does it attack?" and len(ruled.chosen) == 1
    # The verdicts are unchanged, and the docket still verifies.
    for name, record in records(tmp_path / "run").items():
        assert record.verdict == verdict[name].verdict and record.state is TrialState.DECIDED
    key = tmp_path / "docket.vkey"
    key.write_text(memecourt("docket", "key", *place))
    memecourt("docket", "verify", *place, "--key", str(key))
    shown = memecourt("records", "show", trial, *place)
    assert "QuestionRuled" in shown and "whom does it attack?" in shown and ruled.rationale in shown
    replayed = CliRunner().invoke(cli, ["replay", trial, *place])
    assert replayed.exit_code == 0 and "0 with differences; 0 not replayable" in replayed.output
    for form in ("html", "json"):
        out = tmp_path / f"trial.{form}"
        memecourt("records", "export", trial, *place, "--as", form, "--out", str(out))
        assert "whom does it attack?" in out.read_text()
    # A missing answer, an unknown trial or other settings give another exit code.
    model._answers = lambda request: {"rationale": "x", "label": "somebody"}
    assert "no answer" in memecourt(*ask, *MODEL_OPTIONS, code=1)
    assert "none" in memecourt(*(word if word != trial else "none" for word in ask), *MODEL_OPTIONS, code=1)
    monkeypatch.setenv("MEMECOURT_TRIAL__ROUNDS_MAX", "3")
    assert "with other settings" in memecourt(*ask, *MODEL_OPTIONS, code=1)
    assert len(records(tmp_path / "run")) == 2


def test_custom_question_is_used_in_prompts(data, tmp_path, model):  # noqa: F811
    file = tmp_path / "question.toml"
    options = json.dumps(TARGETS[::-1])
    file.write_text(
        f'id = "target"\ntext = "whom would it hurt?"\noptions = {options}\ndefine = {{nobody = "no one"}}\n'
    )
    ran = classify(data, tmp_path / "run", "--question", str(file), *MODEL_OPTIONS, "--limit", "2", "--json")
    assert [card["n"] for card in figures(ran).values()] == [2]
    assert all("whom would it hurt?" in one.request.system and "no one" in one.request.system for one in model.asked)
    # Other wording makes it another question, so the run can't be resumed.
    ran = classify(data, tmp_path / "run", "--task", "target", *MODEL_OPTIONS, "--limit", "2", code=1)
    assert "question (was" in ran.output


@pytest.fixture
def sided(data, tmp_path):  # noqa: F811
    """The folder of a data set without harm labels, with a task of two sides and "neither"."""
    root = tmp_path / "sided"
    shutil.copytree(data, root)
    for file in (root / "tasks").glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row | {"side": side_of(row["target"])}) + "\n" for row in rows))
    card = (root / CARD).read_text()
    harm = card[card.index('[[tasks]]\nid = "harm"') : card.index('[[tasks]]\nid = "target"')]
    side = '[[tasks]]\nid = "side"\nkind = "single"\nof = "side"\nlabels = ["west", "east", "neither"]\n'
    side += 'metrics = ["accuracy", "macro-f1"]\nofficial = "macro-f1"\n\n'
    (root / CARD).write_text(card.replace(harm, side))
    return root


def side_of(target):
    return "neither" if target == "nobody" else "west" if TARGETS.index(target) % 2 else "east"


def test_custom_question_weighs_two_sides_without_harm_labels(sided, tmp_path, model):  # noqa: F811
    usual = model._answers

    def weigh_sides(request):
        wanted = request.reply_schema["properties"]
        if "strengths" not in wanted:
            return usual(request)
        found = {side_of(target_of(text, group)) for text, group in known.items() if text in words(request)}
        strengths = {side: "strong" if side in found else "weak" for side in ("east", "west")}
        return {"rationale": "By the words.", "strengths": strengths}

    test = [meme for meme in read_key(sided) if meme.split == "test"]
    known = {meme.text: meme.badge for meme in test}
    model._answers = weigh_sides
    file = tmp_path / "question.toml"
    question = 'id = "side"\ntext = "is it against the west or the east?"\noptions = ["east", "neither", "west"]\n'
    file.write_text(f'{question}sides = {{accuser = "west", defender = "east"}}\n')
    ran = classify(sided, tmp_path / "run", "--question", str(file), *TRIAL_OPTIONS, "--limit", "8", "--json")
    (card,) = figures(ran).values()
    records_by_name = records(tmp_path / "run")
    assert card["n"] == len(records_by_name) == 8
    for record in records_by_name.values():
        ruled = record.ruling_on("side")
        assert (ruled.question.text, ruled.rule) == ("is it against the west or the east?", "stronger/1")
        # Labelled memes are no precedents on harm, but vote on the question.
        assert record.precedents is None and ruled.precedent_labels == {}
        assert sum(ruled.vote.values()) == pytest.approx(1)
    for one in read_results(tmp_path / "run").judged:
        # Not the exact side: the text of another meme may be a substring of the prompt.
        assert one.prediction.said["side"].labels[0] in {"west", "east", "neither"}
    assert not any("Precedent 1" in words(call.request) for call in model.asked)
    # Its options must be the task's, and only a trial weighs sides.
    for content, options, message in (
        (question.replace('"west"]', '"north"]'), TRIAL_OPTIONS, "its options must be west, east, neither"),
        (question + "several = true\n", TRIAL_OPTIONS, "several false"),
        (file.read_text(), MODEL_OPTIONS, "give --trial"),
    ):
        other = tmp_path / "other.toml"
        other.write_text(content)
        ran = classify(sided, tmp_path / "none", "--question", str(other), *options, code=1)
        assert message in ran.output
    ran = classify(
        sided, tmp_path / "none", "--question", str(file), *TRIAL_OPTIONS, "--set", "precedents=true", code=1
    )
    assert "says nothing of harm" in ran.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task", "target", "--trial"), "asks chat models"),
        (("--task", "target", *TRIAL_OPTIONS, "--inputs", "text"), "--inputs can't be given with --trial"),
        (("--task", "target", *TRIAL_OPTIONS, "--rotate", "--odds"), "--rotate, --odds can't be given"),
        (("--task", "target", *TRIAL_OPTIONS, "--shots", "2"), "--shots can't be given"),
        (TRIAL_OPTIONS, "Missing option --task"),
        (("--task", "target", *MODEL_OPTIONS, "--policy", "p.toml"), "give --trial with --policy"),
        (("--question", "none.toml", *TRIAL_OPTIONS), "can't be read"),
    ],
)
def test_options_incompatible_with_trials_are_refused(options, message, data, tmp_path, model):  # noqa: F811
    ran = CliRunner().invoke(
        cli, ["classify", "--dataset", str(data / CARD), "--data", str(data), "--out", str(tmp_path / "run"), *options]
    )
    assert ran.exit_code in (1, 2) and message in ran.output and "Traceback" not in ran.output
    assert model.asked == []
