"""Tests of reproducing the paper: reachable figures, planned runs, the paper's claims, and mistakes reported in
advance.
"""

import asyncio
import json
import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from court.errors import BadRequest, Unavailable
from court.events import Procedure
from court.policy import DEFAULT_POLICY, Policy
from court.settings import TrialSettings
from eval.cli import cli
from eval.datasets.items import Level, Outcome, Protocol, SideCourse
from eval.datasets.known import find_card, shipped_ids
from eval.models.vllm_session import ServedModel, VllmSessions
from eval.reports.sections import Section, as_markdown, as_page
from eval.reproduce.paper import ClaimVerdict, JudgedArms, Target, claims_of, has_accuracy, is_reachable, read_paper
from eval.reproduce.study import Benchmark, Reproduction, Stage, run_reproduction, stages_of
from eval.runs.plan import Plan
from eval.session.engine import UNFINISHED, Progress
from eval.studies.arms import ARMS, StudyFolder, calls_of_arm
from eval.synthetic.make import Layout, make
from serving.presets import load_preset, policy_named, preset_names
from serving.settings import Settings
from tests.support.judged import H, N, results, write_run

PAPER = read_paper()
ABLATIONS = ("no-precedents", "no-advocates", "no-captioner", "dull-judge")
CONTROLS = ("random-precedents", "shuffled-labels", "swapped-sides", "plain-judge", "equal-compute", "mars")
DATA = {each.name: each.data for each in PAPER.benchmarks}
BOTH, NONE_ = frozenset({1, 2, 3}), frozenset()
HARM_C = (230, 21), (230, 124), (116, 61), (116, 10)
"""Sizes of the classes of Harm-C's test and validation splits, extreme and merged."""


def target(accuracy, macro_f1):
    return Target(id="x", table=1, row="x", data="harm-c", arm="full", size="3b", accuracy=accuracy, macro_f1=macro_f1)


# Reachable figures


def plain_rates(benign, harmful, right_benign, right_harmful):
    """Accuracy and macro-F1 in percent, by their definitions."""
    missed, alarms = harmful - right_harmful, benign - right_benign
    f1_benign = 2 * right_benign / max(1, 2 * right_benign + missed + alarms)
    f1_harmful = 2 * right_harmful / max(1, 2 * right_harmful + missed + alarms)
    return 100 * (right_benign + right_harmful) / (benign + harmful), 50 * (f1_benign + f1_harmful)


def test_exactly_the_rounded_figures_of_some_confusion_matrix_are_reachable():
    benign, harmful = 7, 5
    pairs = {
        tuple(round(value, 2) for value in plain_rates(benign, harmful, *right))
        for right in product(range(benign + 1), range(harmful + 1))
    }
    for accuracy, macro_f1 in pairs:
        assert is_reachable(target(accuracy, macro_f1), benign=benign, harmful=harmful)
        if macro_f1 < 99 and (accuracy, round(macro_f1 + 0.02, 2)) not in pairs:
            assert not is_reachable(target(accuracy, macro_f1 + 0.02), benign=benign, harmful=harmful)
    assert not is_reachable(target(50, 50), benign=0, harmful=0) and not has_accuracy(50, 0)


def test_published_figures_of_harm_c_are_unreachable_on_its_public_splits():
    for row in PAPER.targets:
        if row.data == "harm-c":
            assert not any(is_reachable(row, benign=benign, harmful=harmful) for benign, harmful in HARM_C)
    by_id = {row.id: row for row in PAPER.targets}
    # The accuracies of two rows are reachable on merged Harm-C, but not with their macro-F1.
    assert {id_ for id_, row in by_id.items() if has_accuracy(row.accuracy, 354)} == {"T2.rag", "T2.cc"}
    assert is_reachable(by_id["T1.hc"], benign=38, harmful=51)


def test_target_figures_are_separate_from_the_published_rows_of_reports():
    assert len(PAPER.targets) == 11 and len({row.id for row in PAPER.targets}) == 11
    assert {row.arm for row in PAPER.targets} <= ARMS.keys()
    assert all(len(pairs) == 3 for pairs in PAPER.baselines.values())
    rows = [row for name in ("harm-c", "harm-p", "fhm", "mami") for row in find_card(name).published]
    assert rows and not [row for row in rows if "memecourt" in f"{row.system} {row.source}".lower()]


# The plan


def test_full_plan_has_three_stages_largest_model_first():
    stages = stages_of(PAPER, ["3b", "32b", "7b"], DATA, tables=BOTH, figures=NONE_, models={})
    assert [(stage.size, stage.model) for stage in stages] == [
        (size, PAPER.models[size]) for size in ("32b", "7b", "3b")
    ]
    first, *others = stages
    assert first.runs == {
        "harm-c": ("full", "post-stance", *ABLATIONS, *CONTROLS),
        "harm-p": ("full",),
        "fhm-test-seen": ("full",),
        "fhm-dev-seen": ("full",),
    }
    assert all(stage.runs == {"harm-c": ("full",)} for stage in others)
    assert "equal-compute" in first.runs["harm-c"]
    planned = {(stage.size, bench, arm) for stage in stages for bench, arms in stage.runs.items() for arm in arms}
    for row in PAPER.targets:
        assert any((row.size, name, row.arm) in planned for name, data in DATA.items() if data == row.data)


@pytest.mark.parametrize(
    ("tables", "figures", "runs"),
    [
        ({1}, (), {"harm-c": ("full",), "harm-p": ("full",), "fhm-test-seen": ("full",), "fhm-dev-seen": ("full",)}),
        ({2}, (), {"harm-c": ("full", *ABLATIONS, *CONTROLS)}),
        ({3}, (), {"harm-c": ("full", "post-stance")}),
        ((), {3}, {"harm-c": ("full", "post-stance")}),
        ((), {4}, {"harm-p": ("full",)}),
        ((), {5}, {"harm-c": ("full",)}),
    ],
)
def test_single_table_or_figure_needs_only_its_runs(tables, figures, runs):
    (stage,) = stages_of(
        PAPER, ["7b"], DATA, tables=frozenset(tables), figures=frozenset(figures), models={"7b": "ours"}
    )
    assert stage == Stage("7b", "ours", runs)


def test_leaks_option_adds_an_arm_for_the_largest_model():
    large, small = stages_of(PAPER, ["7b", "3b"], DATA, tables=frozenset({3}), figures=NONE_, models={}, leaks=True)
    assert large.runs == {"harm-c": ("full", "post-stance", "with-leaks")} and small.runs == {"harm-c": ("full",)}
    # Its precedents differ, and so does the Judge's brief; all calls before that are shared with full.
    settings = TrialSettings(score=False)
    assert calls_of_arm("with-leaks", settings) == calls_of_arm("random-precedents", settings) == (1, 1)


def test_calls_are_estimated_from_the_shortest_and_longest_examination():
    settings = TrialSettings(rounds_min=2, rounds_max=10, score=False)
    assert calls_of_arm("full", settings) == (1 + 2 * 2 * 3 + 1, 1 + 2 * 10 * 3 + 1)
    assert calls_of_arm("full", TrialSettings()) == (16, 64)
    assert calls_of_arm("no-precedents", settings) == calls_of_arm("dull-judge", settings) == (1, 1)
    assert calls_of_arm("mars", settings) == (4, 4) and calls_of_arm("paraphrase", settings) == (3, 3)
    assert calls_of_arm("self-correct", settings) == calls_of_arm("full", settings)
    switched = calls_of_arm("role-switch", settings)
    assert switched == calls_of_arm("progressive-retrieval", settings) == calls_of_arm("post-stance", settings)


def test_stages_run_one_server_at_a_time_and_finished_stages_none(tmp_path, monkeypatch):
    log = []

    class Sessions(VllmSessions):
        async def serve(self, model):
            log.append(f"serve {model}")
            return ServedModel("http://a/v1", model, SecretStr("k"))

    async def run(study, progress):
        llm, plan = study.plan.settings.llm, study.plan
        log.append(f"{llm.model} {plan.out.name} {' '.join(arm.name for arm in study.arms)}")
        assert llm.url == ("http://a/v1",) and plan.server == llm.model
        assert llm.judges == () and llm.guard is None and plan.settings.trial.expert == "off"

    monkeypatch.setattr("eval.reproduce.study.run_study", run)
    monkeypatch.setattr("eval.reproduce.study.VllmSessions", Sessions)
    monkeypatch.setattr(Benchmark, "judged", lambda *_: [None] * 5)
    guard = {"url": "http://g/v1", "model": "g", "adapter": "llama-guard-4"}
    others = {"judges": [{"model": "other"}], "guard": guard}
    settings = Settings(**load_preset("as-published").settings(home=tmp_path, llm=others, trial={"expert": "always"}))
    benchmarks = tuple(
        Benchmark(
            each.name,
            each.data,
            Plan(
                out=tmp_path / "study",
                data=tmp_path,
                dataset=find_card(each.dataset),
                split=each.split,
                procedure=Procedure.FULL,
                protocols=(each.protocol,),
                settings=settings,
            ),
        )
        for each in PAPER.benchmarks[:2]
    )
    models = {"3b": "s", "7b": "m"}
    data = {each.name: each.data for each in benchmarks}
    stages = stages_of(PAPER, ["3b", "7b"], data, tables=frozenset({1, 3}), figures=NONE_, models=models)
    plan = Reproduction(
        tmp_path / "study", PAPER, "as-published", "d", benchmarks=benchmarks, stages=stages, vllm_flags=()
    )
    asyncio.run(run_reproduction(plan, Progress()))
    first = ["serve m", "m harm-c full post-stance", "m harm-p full"]
    last = ["serve s", "s harm-c full"]
    assert log == first + last
    for bench, arm in (("harm-c", "full"), ("harm-c", "post-stance"), ("harm-p", "full")):
        write_run(tmp_path / "study" / "7b" / bench / arm, results([True, False], [H, N]))
    log.clear()
    asyncio.run(run_reproduction(plan, Progress()))
    assert log == last
    log.clear()
    asyncio.run(run_reproduction(replace(plan, vllm_flags=None, urls={"3b": ("http://a/v1",)}), Progress()))
    assert log == last[1:]
    with pytest.raises(BadRequest, match="--llm-url 3b=URL"):
        asyncio.run(run_reproduction(replace(plan, vllm_flags=None, urls={"7b": ("http://a/v1",)}), Progress()))

    study = plan.study(stages[0], benchmarks[0])
    StudyFolder(study.plan.out).start(study.manifest())
    log.clear()

    def run_changed(**changes):
        asyncio.run(run_reproduction(replace(plan, **changes), Progress()))

    with pytest.raises(BadRequest, match=r"server \(was m, is other\)") as refused:
        run_changed(stages=(replace(stages[0], model="other"),))
    assert refused.value.reason == "RUN_DIFFERS"
    later = replace(benchmarks[0], plan=replace(benchmarks[0].plan, seed=3))
    with pytest.raises(BadRequest, match=r"seed \(was 0, is 3\)"):
        run_changed(benchmarks=(later, benchmarks[1]))
    served = replace(benchmarks[0], plan=replace(benchmarks[0].plan, settings=Settings(home=tmp_path)))
    with pytest.raises(BadRequest, match="settings"):
        run_changed(benchmarks=(served, benchmarks[1]))
    assert not log
    run_changed(stages=(Stage("32b", "l", {"harm-c": ("full",)}),))
    assert log == ["serve l", "l harm-c full"]


def test_paper_names_arms_and_data_sets_that_there_are():
    paper = read_paper()
    arms = {arm for each in (*paper.runs, *paper.claims) for arm in each.arms}
    assert arms | {row.arm for row in paper.targets} <= ARMS.keys()
    sets = {id_ for each in paper.benchmarks for id_ in (each.dataset, each.drawn) if id_}
    assert sets <= shipped_ids() and paper.preset in preset_names()
    data = {each.data for each in paper.benchmarks}
    assert {row.data for row in paper.targets} | {paper.chain.data} <= data
    assert {row.size for row in paper.targets} <= set(paper.sizes)
    assert {row.table for row in paper.targets} == set(paper.tables) == paper.numbers("tables")
    judged = JudgedArms({}, {}, protocol=Protocol.PLAIN)
    assert all(claim.verdict is ClaimVerdict.UNTESTED and claim.why for claim in claims_of(judged, paper.claims))


# Claims


def court(outcomes, *, rounds=None, gold=None, name="full"):
    """Results for these outcomes, half of the memes being harmful; ``rounds`` are pairs of Accuser and Defender."""
    gold = gold or [number % 2 == 0 for number in range(len(outcomes))]
    sides = [
        {"ACCUSER": SideCourse(rounds=one), "DEFENDER": SideCourse(rounds=other)}
        for one, other in rounds or [(3, 3)] * len(outcomes)
    ]
    return results(gold, outcomes, name=name, sides=sides)


def right_on(share, n=200):
    """Outcomes of which this share is right, spread over both classes."""
    gold = [number % 2 == 0 for number in range(n)]
    return [(H if truth else N) if number < share * n else (N if truth else H) for number, truth in enumerate(gold)]


def claim(id_, arms, sizes=None):
    runs = {name: arm_results for name, arm_results in arms.items()}
    judged = JudgedArms(runs, sizes or {}, protocol=Protocol.PLAIN, resamples=400)
    return next(tested for tested in claims_of(judged, PAPER.claims) if tested.id == id_)


def test_c1_holds_if_the_court_beats_every_ablation_and_fails_if_one_beats_it():
    worse = {arm: court(right_on(0.7), name=arm) for arm in ABLATIONS}
    arms = {"full": court(right_on(0.95)), **worse}
    assert claim("C1", arms).verdict is ClaimVerdict.HOLDS
    assert claim("C1", {**arms, "dull-judge": court(right_on(0.95))}).verdict is ClaimVerdict.OPEN
    better = {**worse, "full": court(right_on(0.5)), "dull-judge": court(right_on(0.9))}
    assert claim("C1", better).verdict is ClaimVerdict.FAILS
    untested = claim("C1", {"full": arms["full"]})
    assert untested.verdict is ClaimVerdict.UNTESTED and "dull-judge" in untested.why


def test_c2_tests_the_order_of_the_losses():
    order = ("dull-judge", "no-advocates", "no-captioner", "no-precedents")
    apart = {arm: court(right_on(0.4 + place / 6), name=arm) for place, arm in enumerate(order)}
    assert claim("C2", apart).verdict is ClaimVerdict.HOLDS
    assert claim("C2", dict(zip(order, reversed(apart.values()), strict=True))).verdict is ClaimVerdict.FAILS
    close = {arm: court(right_on(0.6 + place / 200), name=arm) for place, arm in enumerate(order)}
    assert claim("C2", close).parts[0].figure.value > 0.05


def test_c3_needs_three_sizes_in_order():
    sizes = {size: court(right_on(share), name=size) for size, share in (("3b", 0.6), ("7b", 0.75), ("32b", 0.95))}
    assert claim("C3", {}, sizes).verdict is ClaimVerdict.HOLDS
    assert claim("C3", {}, {**sizes, "32b": sizes["7b"]}).verdict is ClaimVerdict.OPEN
    del sizes["7b"]
    assert claim("C3", {}, sizes).verdict is ClaimVerdict.UNTESTED


def test_c4_needs_a_result_below_the_court_chance_and_the_majority():
    arms = {"full": court(right_on(0.9)), "post-stance": court(right_on(0.3), name="post-stance")}
    found = claim("C4", arms)
    assert found.verdict is ClaimVerdict.HOLDS and len(found.parts) == 3
    arms["post-stance"] = court(right_on(0.7), name="post-stance")
    assert claim("C4", arms).verdict is ClaimVerdict.FAILS
    silent = results([True, False] * 40, [Outcome.FAILED] * 80)
    assert claim("C4", {**arms, "full": court(right_on(0.9, 80)), "post-stance": silent}).verdict is ClaimVerdict.HOLDS


def test_c5_compares_the_rounds_of_the_same_memes():
    early = court(right_on(0.9), rounds=[(2, 3)] * 200)
    late = court(right_on(0.5), rounds=[(4, 3 + number % 2) for number in range(200)], name="post-stance")
    found = claim("C5", {"full": early, "post-stance": late})
    assert [part.figure.value for part in found.parts] == [-2, -0.5]
    assert found.verdict is ClaimVerdict.HOLDS
    assert claim("C5", {"full": late, "post-stance": early}).verdict is ClaimVerdict.FAILS
    assert claim("C5", {"full": early, "post-stance": early}).verdict is ClaimVerdict.OPEN
    # Resamples of a few memes that agree have zero width, and yet prove nothing.
    few = {
        "full": court(right_on(0.9, 5), rounds=[(2, 3)] * 5),
        "post-stance": court(right_on(0.9, 5), rounds=[(4, 5)] * 5),
    }
    assert claim("C5", few).verdict is ClaimVerdict.OPEN
    without_rounds = results([True, False], [H, N])
    assert "no meme was examined" in claim("C5", {"full": early, "post-stance": without_rounds}).why


def test_c6_compares_the_lead_on_harmful_memes_with_that_on_others():
    rng = np.random.default_rng(0)
    favoured = [(2, 5) if number % 2 == 0 else (5, 2) for number in range(200)]
    found = claim("C6", {"full": court(right_on(0.9), rounds=favoured)})
    assert [round(part.figure.value, 6) for part in found.parts] == [-3, 3, -6]
    assert found.verdict is ClaimVerdict.HOLDS
    few = claim("C6", {"full": court(right_on(0.9, 6), rounds=favoured[:6])})
    assert few.verdict is ClaimVerdict.OPEN and {part.verdict for part in few.parts} == {ClaimVerdict.OPEN}
    noise = [(int(one), int(other)) for one, other in rng.integers(2, 6, (200, 2))]
    assert claim("C6", {"full": court(right_on(0.9), rounds=noise)}).verdict is ClaimVerdict.OPEN
    backwards = [(other, one) for one, other in favoured]
    assert claim("C6", {"full": court(right_on(0.9), rounds=backwards)}).verdict is ClaimVerdict.FAILS


def test_c7_is_never_tested():
    assert claim("C7", {"full": court(right_on(0.9))}).verdict is ClaimVerdict.UNTESTED


# The preset


def test_preset_is_a_valid_court_and_names_the_source_of_each_value(tmp_path):
    assert preset_names() == ("as-published",)
    preset = load_preset("as-published")
    settings = Settings(**preset.settings(home=tmp_path))
    trial = settings.trial
    assert (trial.tally_shown, trial.similarity_shown, trial.score) == (False, False, False)
    assert (trial.mistrials, trial.audition) == (False, False)
    assert (trial.judge_order, trial.exhibit_labels, trial.alpha) == ("defender first", "original", 0.5)
    assert all(value.why and value.source in ("as published", "not said") for value in preset.values)
    assert {value.setting.partition(".")[2] for value in preset.values if value.setting.startswith("trial.")} <= set(
        TrialSettings.model_fields
    )
    policy = Policy.load(settings.policy)
    assert settings.policy == policy_named("paper") and policy.digest != DEFAULT_POLICY.digest
    assert len(policy.clauses) == 1
    merged = preset.settings(encoder="builtin", trial={"rounds_max": 4})
    assert merged["encoder"] == "builtin" and merged["trial"] == {**preset.settings()["trial"], "rounds_max": 4}
    with pytest.raises(BadRequest, match="as-published"):
        load_preset("as-wished")


def test_memecourt_settings_shows_the_preset():
    from serving.cli.main import cli as memecourt

    result = CliRunner().invoke(memecourt, ["settings", "--preset", "as-published"])
    assert result.exit_code == 0, result.output
    preset = load_preset("as-published")
    assert 'judge_order = "defender first"' in result.output and preset.digest in result.output
    for value in preset.values:
        source = "as published" if value.source == "as published" else "not said; ours"
        assert f"# {value.setting} = {json.dumps(value.value)} ({source}): {value.why}" in result.output
    shown = json.loads(CliRunner().invoke(memecourt, ["settings", "--preset", "as-published", "--json"]).output)
    assert shown["preset"]["digest"] == preset.digest and shown["trial"]["tally_shown"] is False
    assert CliRunner().invoke(memecourt, ["settings", "--preset", "no"]).exit_code == 1


# The document


def test_untrusted_text_stays_text_on_the_page_and_in_markdown():
    wild = "<script>alert(1)</script> | [a](b) `x`\nnext"
    sections = [Section("s", "Section", (("who", "said"), ("accuser", wild)), lead=(wild,), words=True)]
    page, text = as_page("A title", ["lead"], sections), as_markdown("A title", ["lead"], sections)
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert "<script>" not in text and "\\|" in text and "\\[a\\](b)" in text
    assert text.count("\n| accuser |") == 1


# The command


@pytest.fixture(scope="module")
def drawn_once(tmp_path_factory):
    root = tmp_path_factory.mktemp("drawn")
    for place, (name, layout) in enumerate((("harm-c", "harmeme"), ("harm-p", "harmeme"), ("fhm", "fhm"))):
        make(root / name, Layout(layout), train=4, val=0, test=8, seed=place, size=(320, 240))
    return root


@pytest.fixture
def data(drawn_once, tmp_path):
    return shutil.copytree(drawn_once, tmp_path / "data")


def reproduce(*words, code=0):
    result = CliRunner().invoke(cli, ["reproduce", "memecourt", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


def test_dry_run_shows_the_plan_and_writes_nothing(data, tmp_path):
    drawn = ("--data", data, "--out", tmp_path / "study", "--demo", "--encoder", "builtin")
    plan = json.loads(reproduce(*drawn, "--dry-run", "--json"))["plan"]
    assert [run["size"] for run in plan] == ["32b"] * 14 + ["7b", "3b"]
    assert next(run["memes"] for run in plan if run["data"] == "fhm") == "8"
    assert 4 <= int(plan[0]["memes"]) < 8  # without the somewhat harmful memes
    text = reproduce(*drawn, "--dry-run", "--size", "7b")
    assert "oracle-7b" in text and "post-stance" in text and "Still to run" in text
    assert not (tmp_path / "study").exists()


def test_missing_data_set_is_reported_and_leaves_its_rows_empty(data, tmp_path):
    (data / "fhm" / "test_seen.jsonl").unlink()
    drawn = ("--data", data, "--out", tmp_path / "study", "--demo", "--encoder", "builtin")
    (data / "harm-p" / "train.jsonl").unlink()
    output = reproduce(*drawn, "--dry-run", "--size", "7b")
    assert "fhm is left out, its rows stay empty" in output and "harm-p is left out" in output
    assert "harm-c  test" in output and "fhm     test_seen" not in output
    (data / "harm-c" / "test.jsonl").write_text("no JSON\n")
    assert "can be used" in reproduce(*drawn, "--dry-run", code=1)
    (data / "harm-c" / "test.jsonl").unlink()
    assert "no split" in reproduce(*drawn, "--dry-run", code=1)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "No server is named"),
        (("--llm-url", "http://a/v1"), 2, "--llm-url 7b="),
        (("--llm-url", "7b=http://a/v1", "--llm-url", "7b=http://b/v1"), 2, "one for each size"),
        (("--llm-url", "7b=nonsense"), 1, "no model server"),
        (("--size", "7b", "--llm-url", "http://a/v1", "--tables", "4"), 2, "of 1, 2, 3"),
        (("--size", "7b", "--llm-url", "http://a/v1", "--figures", "x"), 2, "of 3, 4, 5"),
        (("--size", "7b", "--llm-url", "http://a/v1", "--tables", "", "--figures", ""), 2, "leave nothing to run"),
    ],
)
def test_mistakes_are_reported_before_any_work_begins(words, code, message, data, tmp_path):
    drawn = ("--data", data, "--out", tmp_path / "study", "--demo", "--encoder", "builtin")
    assert message in reproduce(*drawn, *words, code=code)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("reason", [UNFINISHED, "VLLM_ENDED"])
def test_memes_without_an_answer_leave_the_report_unfinished_and_exit_with_3(reason, data, tmp_path, monkeypatch):
    async def interrupted(plan, progress):
        study = plan.study(plan.stages[0], plan.benchmarks[0])
        StudyFolder(study.plan.out).start(study.manifest())
        write_run(plan.out / "7b" / "harm-c" / "full", results([Level.NOT_HARMFUL, Level.VERY_HARMFUL], [N, H]))
        raise Unavailable("3 memes have no answer yet.", reason=reason)

    monkeypatch.setattr("eval.commands.reproduce.run_reproduction", interrupted)
    drawn = ("--data", data, "--out", tmp_path / "study", "--demo", "--encoder", "builtin")
    output = reproduce(*drawn, "--llm-url", "7b=http://127.0.0.1:9/v1", "--yes", code=3)
    assert "3 memes have no answer yet." in output and "--resume goes on" in output
    stored = json.loads((tmp_path / "study" / "reproduction.json").read_text())
    assert stored["finished"] is False
    rows = {row["id"]: row for row in stored["rows"] if row["id"]}
    assert rows["T3.7b"]["ours"]["accuracy"]["value"] == 1 and rows["T3.7b"]["ours"]["n"] == 2
    assert rows["T1.hp"]["reached"] == "not run" and rows["T1.hp"]["ours"] is None
    assert "Not finished" in (tmp_path / "study" / "reproduction.md").read_text()


def test_unsuitable_data_and_output_folders_are_refused(data, tmp_path):
    server = ("--llm-url", "7b=http://127.0.0.1:9/v1", "--demo", "--encoder", "builtin", "--yes")
    (tmp_path / "empty").mkdir()
    assert "is no directory" in reproduce("--data", tmp_path / "empty", "--out", tmp_path / "study", *server, code=1)
    (data / "harm-p" / "key.jsonl").rename(data / "harm-p" / "other.jsonl")
    assert "holds no drawn benchmarks" in reproduce("--data", data, "--out", tmp_path / "study", *server, code=1)
    (data / "harm-p" / "other.jsonl").rename(data / "harm-p" / "key.jsonl")
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    assert "is not empty" in reproduce("--data", data, "--out", other, *server, code=1)
    (other / "notes.txt").unlink()
    study = other / "7b" / "harm-c" / "study.json"
    study.parent.mkdir(parents=True)
    study.write_text("{}")
    assert "can't be read as a manifest of format 2 (study)" in reproduce(
        "--data", data, "--out", other, *server, "--resume", code=1
    )
