"""Two arenas beside each other: rank correlations, held against SciPy's and planted orders."""

import asyncio
import json

import pytest
from scipy.stats import kendalltau, spearmanr

from court.errors import BadRequest
from eval.arena.compare import compare_arenas
from tests.support.arena_world import STRENGTHS, Arena, output_of


def finished(root, **changes):
    arena = Arena(root, **{"memes": 12, "guideline": "none", **changes})
    arena.hold()
    arena.folder.finish(arena.folder.manifest())
    return root


@pytest.fixture(scope="module")
def arenas(tmp_path_factory):
    root = tmp_path_factory.mktemp("arenas")
    star = {"pairing": "baseline", "swapped": True}
    return {
        "cedar": finished(root / "cedar", **star, anchor="cedar"),
        "beech": finished(root / "beech", **star, anchor="beech", judges=["elm"]),
        "turned": finished(root / "turned", strengths={name: -one for name, one in STRENGTHS.items()}),
        "two": finished(root / "two", strengths={"ash": 1.0, "yew": 0.0, "fir": -1.0}, memes=2),
    }


def test_rank_correlation_under_another_judge_and_baseline_is_high(arenas):
    found = compare_arenas(arenas["cedar"], arenas["beech"], resamples=200)
    assert found.models[0].model == "ash" and (found.memes, found.both) == (12, 12)
    a, b = ([getattr(row, side).value for row in found.models] for side in "ab")
    assert found.spearman.value == pytest.approx(spearmanr(a, b).statistic)
    assert found.kendall.value == pytest.approx(kendalltau(a, b).statistic)
    assert found.spearman.value > 0.8 and found.spearman.low > 0.3 and found.spearman.high <= 1 + 1e-9
    assert sum(a) == pytest.approx(5000) and any("anchor" in one for one in found.settings)
    same = compare_arenas(arenas["cedar"], arenas["cedar"], resamples=200)
    # Paired: the same battles over the same drawn memes are ranked alike in every resample.
    assert same.settings == () and same.spearman.low == pytest.approx(1) == same.kendall.low


def test_command_reports_a_turned_order(arenas):
    shown = output_of("compare", arenas["cedar"], arenas["turned"], "--json")
    found = json.loads(shown)
    assert found["spearman"]["value"] < -0.8 and found["spearman"]["high"] < 0 and "why" not in shown
    text = output_of("compare", arenas["cedar"], arenas["beech"])
    assert "Rank correlation over 5 models: Spearman's ρ" in text and "They differ in:" in text


def test_arenas_that_cannot_be_compared_are_refused_with_the_reason(arenas, tmp_path):
    with pytest.raises(BadRequest, match="2 models in common"):
        compare_arenas(arenas["cedar"], arenas["two"])
    begun = Arena(tmp_path / "begun", memes=1, guideline="none")
    asyncio.run(begun.go())
    begun.folder.write_manifest(begun.manifest())
    with pytest.raises(BadRequest, match="begun is not finished"):
        compare_arenas(arenas["cedar"], tmp_path / "begun")
    for words, message in (
        ((arenas["cedar"], arenas["beech"], "--protocol", "merged"), "--protocol is for runs"),
        ((tmp_path, arenas["beech"]), "is an arena: name two arenas, or two runs"),
    ):
        assert message in output_of("compare", *words, code=2)
