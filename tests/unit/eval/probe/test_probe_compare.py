"""Comparison of probes: comparability, significant leads, shared seeds for all targets, and repeats."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from eval.cli import cli
from eval.datasets.known import published_file
from eval.probe.compare import CHANGE, FAILURE, FAILURE_BEFORE, MEAN, SCORE, compare_probes
from eval.probe.folder import MINED, REWRITTEN, SCORED, SEEDS, Mined, ProbeFolder, Scored, Step, read_seeds
from eval.probe.mining import capped
from eval.probe.report import read_report, repeated_probe
from eval.probe.run import probe
from eval.scores.means import ResampledMeans, difference_of, repeated
from eval.session.sampled import repeats_of
from tests.support.fakes import FakeReader
from tests.support.probing import TEXTS, ProbeWorld, a_plan, with_scripted_models, write_data_set
from tests.support.report_page import weakness_text


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data_set(tmp_path_factory.mktemp("data"))


def run_probe(place, data, world, target, **changes):
    """Runs a probe of one target, with the call cache shared by all."""
    plan = a_plan(place / target, data, **changes)

    async def scene(_, opened):
        return await probe(plan, opened, FakeReader())

    with_scripted_models(place / "calls", world, scene, target=target)
    # All plans call their model "target"; a models file would give each its own name.
    folder = ProbeFolder(plan.out)
    folder.write_manifest(folder.manifest().model_copy(update={"target": target}))
    return plan.out


@pytest.fixture(scope="module")
def three(tmp_path_factory, data):
    """Probes of a target that is weak in religion, one weak in disability, and one without a weakness."""
    place = tmp_path_factory.mktemp("three")
    weak = {"ash": "religion", "beech": "disability", "cedar": "nothing"}
    return [run_probe(place, data, ProbeWorld(weak=kind), target) for target, kind in weak.items()]


def compared(roots):
    """Returns the figures of a comparison, and its cells by target and category."""
    _, _, figures = compare_probes(roots)
    return figures, {(cell["target"], cell["category"]): cell for cell in figures["cells"]}


def test_scores_and_pooled_failure_rates_are_compared(three):
    comparison, cells = compared(three)
    assert comparison["targets"] == ["ash", "beech", "cedar"] and comparison["memes"] == 10
    assert comparison["categories"] == ["appliances", "disability", "nationality", "religion", MEAN]
    ash = cells["ash", "religion"]
    # Original scores 6, 6, 6; rewritten 3, 3, 3: half of all six failed, none of them before rewriting.
    assert (ash["scored"], ash["rewritten"]) == (3, 3)
    values = [ash["figures"][metric]["value"] for metric in (SCORE, FAILURE, FAILURE_BEFORE, CHANGE)]
    assert values == [6, 0.5, 0, 0.5]
    mean = cells["ash", MEAN]["figures"]
    assert mean[SCORE]["value"] == pytest.approx((6 + 9 + 9 + 9) / 4)
    assert mean[FAILURE]["value"] == pytest.approx(0.5 / 4)
    # Checked against the probe's own report.
    report = read_report(three[0])
    (religion,) = (row for row in report.rows if row.name == "religion")
    assert religion.pooled.failure.value == 0.5 and religion.pooled_change.value == 0.5
    assert (religion.pooled.n, religion.pooled.scored) == (6, 6)


def test_only_significant_leads_are_marked(three):
    _, cells = compared(three)
    # Cedar and beech are level and both ahead of ash on every meme: none is best, both are second.
    marks = [cells[name, "religion"]["surely"].get(SCORE, "") for name in ("ash", "beech", "cedar")]
    assert marks == ["", "second", "second"]
    assert all(SCORE not in cells[name, "nationality"]["surely"] for name in ("ash", "beech", "cedar"))
    _, two = compared(three[::2])
    assert two["cedar", "religion"]["surely"] == {SCORE: "best", FAILURE: "best"}
    assert two["ash", "religion"]["surely"] == {} and two["cedar", MEAN]["surely"].get(SCORE) == "best"


def test_differences_use_the_same_resampled_memes():
    """A difference that is equal for every meme is certain, however much the memes differ."""
    memes = [f"m{number}" for number in range(30)]
    values = [(meme, float(place)) for place, meme in enumerate(memes)]
    less = [(meme, value - 0.5) for meme, value in values]
    known = difference_of(values, less, resamples=500, seed=0)
    assert (known.value, known.low, known.high) == (pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5))
    assert difference_of(values, [], resamples=10, seed=0) is None
    # Against an independent computation: the standard error of a mean of 30 numbers.
    _, drawn = ResampledMeans(memes, 4000, 1).of(values)
    assert drawn.std() == pytest.approx(np.std(range(30)) / np.sqrt(30), rel=0.05)


def test_incomparable_probes_are_refused_with_the_difference(three, tmp_path, data):
    def changed(name, kind, change):
        place = shutil.copytree(three[1], tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}")
        folder = ProbeFolder(place)
        if kind is None:
            folder.write_manifest(folder.manifest().model_copy(update=change))
        else:
            folder.write(name, [change(one) for one in folder.read(name, kind)])
        return place

    def other_reference(one):
        return one.model_copy(update={"scoring": one.scoring.model_copy(update={"reference": "another"})})

    def other_seed(one):
        return one.model_copy(update={"seed": {"3": "4", "4": "5", "5": "3"}.get(one.seed, "9")})

    for named, other in (
        ("controllers", changed("manifest", None, {"models": {"target": "t", "c0": "another"}})),
        ("steps", changed("manifest", None, {"steps": 9})),
        ("per-category", changed("manifest", None, {"per_category": 3})),
        ("references", changed(SCORED, Scored, other_reference)),
        ("categories of the memes", changed(MINED, Mined, lambda one: one.model_copy(update={"categories": ("x",)}))),
        ("memes that searches began with", changed(REWRITTEN, Step, other_seed)),
    ):
        with pytest.raises(BadRequest, match=named) as caught:
            compare_probes([three[0], other])
        assert caught.value.reason == "PROBES_DIFFER"
    with pytest.raises(BadRequest, match="at least two"):
        compare_probes(three[:1])
    with pytest.raises(BadRequest, match="holds no probe"):
        compare_probes([three[0], tmp_path])


def test_command_shows_tables_and_a_page(three, tmp_path):
    page = tmp_path / "compared.html"
    ran = CliRunner().invoke(cli, ["probe", "compare", *map(str, three), "--html", str(page)])
    assert ran.exit_code == 0, ran.output
    assert "Failure rate, memes as they are and rewritten together" in ran.output
    assert "cedar" in page.read_text() and "style=" not in page.read_text()
    assert not any(text in ran.output + page.read_text() for text, _ in TEXTS)
    ran = CliRunner().invoke(cli, ["probe", "compare", *map(str, three), "--json"])
    output = json.loads(ran.output)
    assert len(output["cells"]) == 3 * 5 and output["cells"][3]["figures"][FAILURE]["value"] == 0.5
    ran = CliRunner().invoke(cli, ["probe", "compare", str(three[0])])
    assert ran.exit_code == 1 and "at least two" in ran.output


def test_published_figures_are_consistent_with_their_tables():
    """The paper pools 1,577 originals with 243 to 413 rewritten memes per target."""
    targets = published_file("papers/adammeme")["targets"]
    assert len(targets) == 11
    for one in targets:
        failed = one["failure_before"] * 1577
        # However many were rewritten, the number of failures among them can't exceed that.
        assert failed + 413 >= one["failure"] * (1577 + 243) >= failed * (1577 + 243) / (1577 + 413)


def test_cap_keeps_the_same_memes_of_each_category_for_all_targets():
    mined = tuple(
        Mined(
            meme=f"m{n}", outcome="harmful", categories=("race", "gender") if n % 2 else ("race",), votes={}, miners=3
        )
        for n in range(20)
    )
    few = capped(mined, 4, 0)
    for name in ("race", "gender"):
        assert sum(name in one.categories for one in few) == 4
    more = capped(mined, 9, 0)
    for one, other in zip(few, more, strict=True):
        assert set(one.categories) <= set(other.categories), "a larger cap only adds memes"
    assert capped(mined, 4, 0) == few != capped(mined, 4, 1)
    assert capped(mined, 99, 0) == mined


def test_capped_probe_scores_fewer_memes_and_stores_all_sortings(tmp_path, data):
    root = run_probe(tmp_path, data, ProbeWorld(), "ash", per_category=1)
    folder = ProbeFolder(root)
    assert "Fewer than 150 memes" in weakness_text(read_report(root))
    scored_kinds = sorted(one.category for one in folder.read(SCORED, Scored))
    assert scored_kinds == ["appliances", "disability", "nationality", "religion"]
    assert sum(len(one.categories) for one in folder.read(MINED, Mined)) == 8 and folder.manifest().per_category == 1


def test_another_target_starts_its_searches_from_the_same_memes(tmp_path, data):
    first = run_probe(tmp_path, data, ProbeWorld(), "ash")
    seeds = read_seeds(first)
    assert {name: list(memes) for name, memes in seeds.items()} == json.loads((first / SEEDS).read_text())
    assert {step.seed for step in ProbeFolder(first).read(REWRITTEN, Step)} == {m for ms in seeds.values() for m in ms}
    other = {name: (memes[0],) for name, memes in seeds.items()} | {"religion": ("5", "gone")}
    second = run_probe(tmp_path, data, ProbeWorld(), "beech", seed=7, seed_set=other, steps=1, seeds=2)
    began = {(step.category, step.seed) for step in ProbeFolder(second).read(REWRITTEN, Step)}
    assert began == {(name, memes[0]) for name, memes in other.items()}
    assert read_seeds(second)["religion"] == ("5",) and ProbeFolder(second).manifest().seed_set
    for content, message in (("[]", "no list of seeds"), ('{"race": 3}', "no list of seeds")):
        (tmp_path / SEEDS).write_text(content)
        with pytest.raises(BadRequest, match=message):
            read_seeds(tmp_path)
    (tmp_path / SEEDS).unlink()
    with pytest.raises(BadRequest, match="can't be read"):
        read_seeds(tmp_path)


@pytest.mark.slow
def test_repeats_use_the_same_memes_with_other_seeds(tmp_path, data):
    plan = a_plan(tmp_path / "probe", data, seed=3)
    plans = repeats_of(plan, 3, "a probe")
    assert [(one.seed, one.drawn_by, one.out.name) for one in plans] == [(2 + n, 3, f"repeat-{n}") for n in (1, 2, 3)]
    reports = []
    for one, weak in zip(plans, ("religion", "religion", "nothing"), strict=True):

        async def scene(_, opened, one=one):
            return await probe(one, opened, FakeReader())

        with_scripted_models(tmp_path / one.out.name, ProbeWorld(weak=weak), scene)
        reports.append(read_report(one.out))
    together, section = repeated_probe(reports)
    assert together.seeds == (3, 4, 5) and together.finished
    score = together.rows["religion"]["score"]
    assert score.values == (6, 6, 9) and score.mean == 7
    assert score.sd == pytest.approx(np.std([6, 6, 9], ddof=1)) and list(together.rows)[-1] == "all"
    rows = {row[0]: row[1:] for row in section.rows}
    assert len(rows) == 1 + 5 and rows["religion"][:5] == ("7.00", "1.73", "6.00", "6.00", "9.00")
    ran = CliRunner().invoke(cli, ["probe", "--report", "--out", str(tmp_path / "probe")])
    assert ran.exit_code == 0 and "3 repeats about the same memes, seeds 3, 4, 5" in ran.output, ran.output
    assert repeats_of(plan, 2, "a probe"), "an existing report page does not prevent resuming"
    output = CliRunner().invoke(cli, ["probe", "--report", "--out", str(tmp_path / "probe"), "--json"])
    assert len(json.loads(output.output)["repeats"]) == 3
    with pytest.raises(BadRequest, match="at least two"):
        repeated_probe(reports[:1])
    other = dataclasses.replace(reports[1], manifest=reports[1].manifest.model_copy(update={"target": "x"}))
    with pytest.raises(BadRequest, match="differ in target"):
        repeated_probe([reports[0], other])
    (tmp_path / "single").mkdir()
    (tmp_path / "single" / "manifest.json").write_text("{}")
    with pytest.raises(BadRequest, match="holds no repeats of a probe"):
        repeats_of(dataclasses.replace(plan, out=tmp_path / "single"), 2, "a probe")


def test_mean_and_spread_of_repeats_ignore_missing_figures():
    figure = repeated([1.0, None, 2.0, 4.0])
    assert figure.mean == pytest.approx(7 / 3) and figure.sd == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert (repeated([None]).mean, repeated([3.0]).sd) == (None, None)
