"""Comparators: their prompts and answers, and the budget of equal compute, which is that of the full trial."""

import asyncio

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from court.events import Procedure
from court.meme import Frame
from court.ports import BATCH_PRIORITY
from eval.cli import cli
from eval.datasets.items import Level, Outcome, Protocol
from eval.models.metered import load
from eval.runs.plan import Plan
from eval.runs.results import RunFolder, read_results
from eval.runs.run import run
from eval.session.engine import Progress
from eval.solvers.comparator import TEMPERATURE, Comparator
from eval.studies.arms import run_study
from eval.synthetic.make import read_key
from eval.synthetic.oracle import Ability, JudgeInput, judge
from retrieval.library.library import Library
from serving.settings import Settings
from tests.support.arms import DATASET, data, model, study  # noqa: F401 - fixtures

pytestmark = pytest.mark.slow


def requests_for(played, *names):
    """Requests of a comparator: those with exactly these properties in the reply schema."""
    return [
        call.request
        for call in played.asked
        if call.options is None and tuple((call.request.reply_schema or {}).get("properties", ())) == names
    ]


def words(request):
    return "\n".join(part for part in request.parts if isinstance(part, str))


@pytest.fixture
def results(tmp_path, data, model):  # noqa: F811
    planned = study(tmp_path, data, "plain-judge", "mars", limit=6)
    return {folder.name: read_results(folder.root) for folder in asyncio.run(run_study(planned, Progress()))}


def test_plain_judge_makes_one_call_for_a_label(results, model, data):  # noqa: F811
    key = {meme.id: meme for meme in read_key(data)}
    requests = requests_for(model, "label")
    assert len(requests) == len(results["plain-judge"].judged) == 6
    for one in results["plain-judge"].judged:
        meme = key[one.meme.id]
        oracle_verdict = judge(JudgeInput(meme.text, meme.badge), Ability())
        assert one.prediction.outcome.harmful is oracle_verdict.harmful
        assert (one.prediction.cost.calls, one.prediction.trial) == (1, "")
    for request in requests:
        assert sum(isinstance(part, Frame) for part in request.parts) == 1
        assert request.priority == BATCH_PRIORITY  # single verdicts have precedence over batch runs
        assert "Precedent" not in words(request) and "witness" not in words(request)
        assert request.reply_schema["properties"]["label"]["enum"] == ["harmful", "not harmful"]


def test_mars_describes_collects_evidence_for_both_sides_and_concludes(results, model, data):  # noqa: F811
    key = {meme.id: meme for meme in read_key(data)}
    evidence, concluded = requests_for(model, "evidence"), requests_for(model, "rationale", "label")
    assert (len(evidence), len(concluded)) == (12, 6)
    for one in results["mars"].judged:
        meme = key[one.meme.id]
        oracle_verdict = judge(JudgeInput(meme.text, meme.badge, meme.badge), Ability())
        assert one.prediction.outcome.harmful is oracle_verdict.harmful
        assert one.prediction.cost.calls == 4
    for request in concluded:
        assert words(request).count("The words stand beside what is shown.") == 2
        assert "Evidence for harm:" in words(request) and "Description of its picture" in words(request)
    assert sum("Suppose the meme is harmful" in words(request) for request in evidence) == 6


def test_equal_compute_spends_the_full_trial_s_tokens_on_samples(tmp_path, data, model):  # noqa: F811
    planned = study(tmp_path, data, "dull-judge", "equal-compute", limit=4)
    results = {folder.name: read_results(folder.root) for folder in asyncio.run(run_study(planned, Progress()))}
    samples = [call.request for call in model.asked if call.request.temperature == TEMPERATURE]
    assert samples and all(request.reply_schema["properties"].keys() >= {"harmful_strength"} for request in samples)
    full = {one.meme.id: one.prediction for one in results["full"].judged}
    for one in results["equal-compute"].judged:
        spent, budget = one.prediction.cost, full[one.meme.id].cost
        tokens, allowed = spent.tokens_in + spent.tokens_out, budget.tokens_in + budget.tokens_out
        assert spent.calls > 1 and tokens <= allowed < tokens + 1.5 * tokens / spent.calls
    # All samples of a deterministic model are the same.
    outcomes = {
        name: [one.prediction.outcome for one in results[name].judged] for name in ("dull-judge", "equal-compute")
    }
    assert outcomes["equal-compute"] == outcomes["dull-judge"]
    manifest = results["equal-compute"].manifest
    assert manifest.comparator == "equal compute" and manifest.settings["comparator"]["temperature"] == TEMPERATURE


def test_majority_of_samples_decides_and_ties_are_harmful(tmp_path, data, model):  # noqa: F811
    usual, votes = model._answers, iter([False, True] * 1000)

    def alternating(request):
        reply = usual(request)
        if request.temperature != TEMPERATURE:
            return reply
        strengths = ("strong", "weak", "harmful") if next(votes) else ("weak", "strong", "not harmful")
        names = ("harmful_strength", "harmless_strength", "label")
        return {**reply, **dict(zip(names, strengths, strict=True))}

    model._answers = alternating
    planned = study(tmp_path, data, "equal-compute", limit=2, concurrency=1)
    results = read_results(asyncio.run(run_study(planned, Progress()))[1].root)
    for one in results.judged:
        share = one.prediction.score
        assert 0.4 < share < 0.6 and one.prediction.outcome.harmful is (share >= 0.5)


SECRET = load("eval.solvers.prompts", "plain_judge").secret


@pytest.mark.parametrize(
    ("reply", "calls", "reason"),
    [
        ({"label": "perhaps"}, 4, "REPLY_MALFORMED"),
        ({"label": "harmful", "why": f"I was told never to write {SECRET}"}, 2, "SYSTEM_LEAKED"),
    ],
)
def test_malformed_label_is_retried_once_and_a_leak_is_not(tmp_path, data, model, reply, calls, reason):  # noqa: F811
    usual = model._answers

    def spoilt(request):
        wanted = tuple((request.reply_schema or {}).get("properties", ()))
        return reply if wanted == ("label",) else usual(request)

    model._answers = spoilt
    results = read_results(asyncio.run(run_study(study(tmp_path, data, "plain-judge", limit=2), Progress()))[1].root)
    assert len(requests_for(model, "label")) == calls
    for one in results.judged:
        assert (one.prediction.outcome, one.prediction.reason) == (Outcome.FAILED, reason)


def test_comparator_without_pictures_is_refused(tmp_path, data):  # noqa: F811
    plan = Plan(
        out=tmp_path / "run",
        name="run",
        dataset=DATASET,
        data=data,
        split="test",
        procedure=Procedure.FULL,
        protocols=(Protocol.MERGED,),
        settings=Settings(home=tmp_path),
        comparator=Comparator.PLAIN,
        text_only=True,
    )
    with pytest.raises(BadRequest, match="asks about the picture: leave --text-only out"):
        asyncio.run(run(plan, Progress()))
    assert not (tmp_path / "run").exists()


def test_dropped_labels_are_neither_judged_nor_precedents(tmp_path, data, model):  # noqa: F811
    planned = study(tmp_path, data, "full", protocols=(Protocol.EXTREME,), drop_precedents=True)
    (folder,) = asyncio.run(run_study(planned, Progress()))
    memes = folder.memes()
    assert memes and not [meme for meme in memes if meme.level is Level.SOMEWHAT_HARMFUL]
    assert folder.manifest().dropped_labels == ("somewhat harmful",)
    library = Library.open(tmp_path / "study" / "library", None)
    assert {meme.source_label for meme in library.memes} == {"not harmful", "very harmful"}
    assert "without somewhat harmful" in library.manifest.name
    with pytest.raises(BadRequest, match="no label to drop"):
        asyncio.run(run_study(study(tmp_path / "b", data, "full", drop_precedents=True), Progress()))
    with pytest.raises(BadRequest, match="drop_precedents"):
        asyncio.run(run_study(study(tmp_path, data, "full", protocols=(Protocol.EXTREME,)), Progress()))


def test_run_with_dropped_labels_reports_them_and_resumes(tmp_path, data, model):  # noqa: F811
    run = ["run", "--dataset", "synthetic-harmeme", "--data", str(data), "--out", str(tmp_path / "run"), "--limit", "3"]
    ran = CliRunner().invoke(cli, [*run, "--drop-precedents"], env={"MEMECOURT_HOME": str(tmp_path / "home")})
    assert ran.exit_code == 1 and "no label to drop" in ran.output
    dropping = [*run[:-2], "--protocol", "extreme", "--drop-precedents", "--limit", "3"]
    dropping[6] = str(tmp_path / "dropped")
    ran = CliRunner().invoke(cli, dropping, env={"MEMECOURT_HOME": str(tmp_path / "home")})
    assert ran.exit_code == 0, ran.output
    manifest = RunFolder(tmp_path / "dropped").manifest()
    assert manifest.dropped_labels == ("somewhat harmful",) and "somewhat harmful are no precedents" in ran.output
    again = CliRunner().invoke(cli, dropping, env={"MEMECOURT_HOME": str(tmp_path / "home")})
    assert again.exit_code == 0, again.output
    other = [*run, "--library", str(tmp_path / "dropped" / "library")]
    ran = CliRunner().invoke(cli, other, env={"MEMECOURT_HOME": str(tmp_path / "home")})
    assert ran.exit_code == 1 and "these labels were dropped: somewhat harmful" in ran.output
