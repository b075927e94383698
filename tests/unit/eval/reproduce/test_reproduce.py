"""Tests of reproducing the court's paper: reachable figures, claims on debates, the preset, balanced draws."""

import json
from itertools import product

import numpy as np
import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from court.policy import DEFAULT_POLICY, Policy
from court.settings import TrialSettings
from eval.commands.options import CourtOptions
from eval.datasets.items import SideCourse
from eval.datasets.known import find_card, published_file
from eval.reports.sections import Section, as_markdown, as_page
from eval.reproduce.court import balanced_sections
from eval.reproduce.outcome import ClaimVerdict, Reproduced, has_share, is_reachable
from eval.reproduce.paper import read_paper
from eval.studies.arms import ARMS
from serving.presets import load_preset, policy_named, preset_names
from serving.settings import Settings
from tests.support.judged import H, N, results

PAPER = read_paper("memecourt")
ROWS = {row["id"]: row for row in published_file(PAPER.source)["rows"]}
ABLATIONS = ("dull-judge", "no-advocates", "no-captioner", "no-precedents")
HARM_C = (230, 21), (230, 124), (116, 61), (116, 10)
"""Sizes of the classes of Harm-C's test and validation splits, extreme and merged."""


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
        assert is_reachable(accuracy, macro_f1, benign=benign, harmful=harmful)
        if macro_f1 < 99 and (accuracy, round(macro_f1 + 0.02, 2)) not in pairs:
            assert not is_reachable(accuracy, macro_f1 + 0.02, benign=benign, harmful=harmful)
    assert not is_reachable(50, 50, benign=0, harmful=0) and not has_share(0.5, 0, 0.00005)


def test_published_figures_of_harm_c_are_unreachable_on_its_public_splits():
    for id_, row in ROWS.items():
        if id_ not in ("T1.hp", "T1.fhm"):
            assert not any(
                is_reachable(row["accuracy"], row["macro_f1"], benign=benign, harmful=harmful)
                for benign, harmful in HARM_C
            )
    # The accuracies of two rows are reachable on merged Harm-C, but not with their macro-F1.
    assert {id_ for id_, row in ROWS.items() if has_share(row["accuracy"] / 100, 354, 0.00005)} == {"T2.rag", "T2.cc"}
    assert is_reachable(88.76, 88.75, benign=38, harmful=51)


def test_cell_of_a_macro_f1_says_whether_it_can_occur_with_its_accuracy():
    def cells(benign, harmful):
        card = {"n": benign + harmful, "gold": {"not harmful": benign, "harmful": harmful}}
        card["figures"] = {name: {"value": 0.9, "low": 0.8, "high": 0.95} for name in ("accuracy", "macro-f1")}
        found = Reproduced(PAPER, {"main-harm-c": {"extreme": [{"arm": "full", "card": card}]}}, {}).tables()
        return {cell.figure: cell for cell in found["Table 1"] if cell.row == "MemeCourt, Harm-C"}

    for classes, occurs, reached in (((38, 51), True, "within interval"), ((230, 21), False, "unreachable")):
        for name, cell in cells(*classes).items():
            assert cell.published == ROWS["T1.hc"][name.lower().replace("-", "_")]
            assert (cell.n, cell.occurs) == (sum(classes), occurs) and reached in cell.reached
            assert (round(cell.ours.value, 9), round(cell.ours.low, 9)) == (90, 80)


def test_published_figures_of_the_paper_are_separate_from_the_rows_of_reports():
    assert len(ROWS) == 11 and len(published_file(PAPER.source)["baselines"]) == 10
    arms = {arm for spec in PAPER.claims for part in spec.parts for arm in part.arms}
    assert arms <= ARMS.keys() and PAPER.preset in preset_names()
    rows = [row for name in ("harm-c", "harm-p", "fhm", "mami") for row in find_card(name).published]
    assert rows and not [row for row in rows if "memecourt" in f"{row.system} {row.source}".lower()]


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


def claim(id_, arms):
    """A claim tested on arms alone."""

    def arm(stage, name):
        assert stage == "main-harm-c"
        return arms.get(name)

    return next(tested for tested in Reproduced(PAPER, {}, {}, arm=arm).claims() if tested.id == id_)


def test_c2_tests_the_order_of_the_losses():
    apart = {arm: court(right_on(0.4 + place / 6), name=arm) for place, arm in enumerate(ABLATIONS)}
    assert claim("C2", apart).verdict is ClaimVerdict.HOLDS
    assert claim("C2", dict(zip(ABLATIONS, reversed(apart.values()), strict=True))).verdict is ClaimVerdict.FAILS
    close = {arm: court(right_on(0.6 + place / 200), name=arm) for place, arm in enumerate(ABLATIONS)}
    found = claim("C2", close)
    assert found.verdict is ClaimVerdict.OPEN and 0.05 < found.parts[0].figure.value < 0.95
    del apart["dull-judge"]
    assert claim("C2", apart).verdict is ClaimVerdict.UNTESTED


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.2, 0.4, ClaimVerdict.HOLDS), (0.4, 0.6, ClaimVerdict.OPEN), (0.55, 0.7, ClaimVerdict.FAILS)],
)
def test_c4_needs_a_result_below_the_court_chance_and_the_majority(low, high, verdict):
    card = {
        "figures": {"accuracy": {"value": (low + high) / 2, "low": low, "high": high}},
        "baseline": {"accuracy": 0.5},
    }
    lost = {"value": -0.5, "low": -0.6, "high": -0.4}
    arm = {"arm": "post-stance", "card": card, "differences": {"accuracy": lost}, "mcnemar_p": 0.001}
    found = {one.id: one for one in Reproduced(PAPER, {"main-harm-c": {"extreme": [arm]}}, {}).claims()}["C4"]
    assert found.verdict is verdict
    assert [part.figure.value for part in found.parts[1:]] == pytest.approx([(low + high) / 2, (low + high) / 2 - 0.5])


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
    assert claim("C5", {"full": early, "post-stance": without_rounds}).verdict is ClaimVerdict.UNTESTED


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


def test_claim_that_can_t_be_tested_says_why():
    found = claim("C7", {"full": court(right_on(0.9))})
    assert found.verdict is ClaimVerdict.UNTESTED and "not public" in found.why


def test_balanced_draws_have_as_many_memes_of_either_class():
    # Of 200 memes 50 are harmful, and all of these and none of the others are judged wrong.
    gold = [number % 4 == 0 for number in range(200)]
    full = court([N] * 200, gold=gold)
    outcome = Reproduced(
        PAPER, {}, {}, arm=lambda stage, name: full if (stage, name) == ("main-harm-c", "full") else None
    )
    head, grid = balanced_sections(outcome)
    assert "Not a public split" in head.lead[0]
    assert [row[:4] for row in grid.rows[1:]] == [
        ("MemeCourt, Harm-C", "100", "88.76 / 88.75", "50.00 [50.00, 50.00]"),
        ("the largest (published: 32B)", "100", "88.76 / 88.75", "50.00 [50.00, 50.00]"),
    ]


# The preset


def test_preset_is_a_valid_court_and_names_the_source_of_each_value(tmp_path):
    assert preset_names() == ("as-published",)
    preset = load_preset("as-published")
    settings = Settings(**preset.settings(home=tmp_path))
    trial = settings.trial
    assert (trial.tally_shown, trial.similarity_shown, trial.score) == (False, False, False)
    assert (trial.mistrials, trial.audition, trial.expert) == (False, False, "off")
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


def test_preset_of_a_command_overrides_the_user_s_settings_and_yields_to_its_options(tmp_path, monkeypatch):
    (tmp_path / "own.toml").write_text(
        '[llm]\napi_key = "k"\n[[llm.judges]]\nmodel = "other"\n[llm.guard]\nurl = "http://g/v1"\nmodel = "g"\n'
        'adapter = "llama-guard-4"\n[llm.roles.judge]\nmodel = "j"\n[trial]\nexpert = "always"\n'
    )
    monkeypatch.setenv("MEMECOURT_CONFIG", str(tmp_path / "own.toml"))
    options = CourtOptions(preset="as-published", model="m", llm_url="http://a/v1", encoder="builtin")
    settings = options.settings_with({"rounds_max": 4})
    llm, trial = settings.llm, settings.trial
    assert (llm.judges, llm.guard, llm.roles, llm.model) == ((), None, {}, "m")
    assert llm.api_key.get_secret_value() == "k" and settings.encoder == "builtin"
    assert (trial.expert, trial.rounds_max, trial.tally_shown) == ("off", 4, False)
    with pytest.raises(BadRequest, match="no preset 'as-wished'"):
        CourtOptions(preset="as-wished").settings_with({})


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
