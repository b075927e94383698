"""Arenas beside each other: rank correlations of two, repeats with other seeds, and memes of several data sets."""

import asyncio
import itertools
import json

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from court.errors import BadRequest
from eval.arena.compare import arena_repeats, combine_repeats, compare_arenas
from eval.arena.folder import ArenaFolder
from eval.arena.leaderboard import leaderboard
from eval.models.samples import Sample, Samples
from tests.support.arena_world import STRENGTHS, THREE, Arena, ask_on_disk, output_of, run_on_disk
from tests.support.probing import TEXTS, write_data_set


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
    assert found["models"][0]["model"] == "ash" and (found["memes"], found["both"]) == (12, 12)
    a, b = ([row[side].value for row in found["models"]] for side in "ab")
    spearman = found["spearman"]
    assert spearman.value == pytest.approx(spearmanr(a, b).statistic)
    assert found["kendall"].value == pytest.approx(kendalltau(a, b).statistic)
    assert spearman.value > 0.8 and 0.3 < spearman.low < spearman.value and spearman.high <= 1 + 1e-9
    assert sum(a) == pytest.approx(5000) and any("anchor" in one for one in found["settings"])
    same = compare_arenas(arenas["cedar"], arenas["cedar"], resamples=200)
    # Paired: the same battles over the same drawn memes are ranked alike in every resample.
    assert same["settings"] == [] and same["spearman"].low == pytest.approx(1) == same["kendall"].low


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


@pytest.fixture(scope="module")
def repeats_root(tmp_path_factory):
    """Three repeats of one arena, in folders named as the command names them."""
    root = tmp_path_factory.mktemp("repeats")
    for number in range(3):
        Arena(root / f"repeat-{number + 1}", memes=6, strengths=THREE, judges=["ash", "beech"], seed=number).hold()
    return root


def boards_of(root):
    return [leaderboard(folder) for folder in sorted(root.glob("repeat-*"))]


def test_statistics_over_repeats_match_hand_calculation(repeats_root):
    boards = boards_of(repeats_root)
    together, ahead, section = combine_repeats(boards)
    assert together.seeds == (0, 1, 2) and not together.finished
    ratings = {model: row["rating"] for model, row in together.rows.items()}
    for name in THREE:
        own = [next(r.rating.value for r in b.overall.rows if r.model == name) for b in boards]
        assert ratings[name].values == tuple(own)
        assert ratings[name].mean == pytest.approx(np.mean(own))
        assert ratings[name].sd == pytest.approx(np.std(own, ddof=1)) and len(set(own)) > 1
    order = list(ratings)
    assert order == sorted(THREE, key=lambda name: -ratings[name].mean)
    assert ahead == {
        one: sum(a > b for a, b in zip(ratings[one].values, ratings[other].values, strict=True))
        for one, other in itertools.pairwise(order)
    }
    assert section.rows[-1][-1] == "–" and "order of the battles won" not in str(section.notes)


def test_repeats_are_ordered_by_win_rate_without_ratings(tmp_path, repeats_root):
    far = {"ash": 90.0, "beech": 0.0, "cedar": 0.0}
    for number in range(2):
        Arena(tmp_path / f"repeat-{number + 1}", memes=4, strengths=far, seed=number, own_case=True).hold()
    together, _, section = combine_repeats(boards_of(tmp_path))
    assert next(iter(together.rows)) == "ash"
    assert together.rows["ash"]["win_rate"].mean == 1
    assert "order of the battles won" in section.notes[-1] and section.rows[1][1] == "–"
    with pytest.raises(BadRequest, match="differ in settings"):
        combine_repeats([*boards_of(tmp_path)[:1], *boards_of(repeats_root)[:1]])
    with pytest.raises(BadRequest, match="at least two"):
        combine_repeats(boards_of(repeats_root)[:1])


def test_command_reports_on_all_repeats(repeats_root):
    report = output_of("arena", "--report", "--out", repeats_root)
    assert "3 repeats about the same memes, seeds 0, 1, 2" in report and "ahead of the next" in report
    page = (repeats_root / "leaderboard.html").read_text()
    assert "Over all repeats" in page and "quality=" not in page and "style=" not in page
    assert (repeats_root / "repeat-2" / "leaderboard.html").exists()
    assert "folder of a repeat" in output_of("arena", "--report", "--out", repeats_root, "--by", "gold", code=2)
    new = repeats_root / "new"
    assert "--by is for one arena" in output_of("arena", "--out", new, "--repeats", 2, "--by", "gold", code=2)
    assert not new.exists()
    report = json.loads(output_of("arena", "--report", "--out", repeats_root, "--json"))
    means = [row["rating"]["mean"] for row in report["rows"].values()]
    assert len(report["repeats"]) == 3 and means == sorted(means, reverse=True) and len(report["ahead"]) == 2


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_data_set(root / "fhm", TEXTS[:3])
    write_data_set(root / "more", TEXTS[3:8])
    return root


def test_repeats_on_two_data_sets_share_memes_and_cached_calls(tmp_path, data_sets):
    fhm = Sample(dataset="fhm", data=data_sets / "fhm", split="dev_seen", memes=2)
    # The same files under another name save making a second data set.
    more = Sample(dataset="synthetic-fhm", data=data_sets / "more", split="dev_seen", memes=2)
    request = ask_on_disk(tmp_path / "arena", Samples((fhm, more), "harmful", mixed=True))
    repeats = arena_repeats(request, 2)
    assert [(one.seed, one.sample_seed, one.out.name) for one in repeats] == [(0, None, "repeat-1"), (1, 0, "repeat-2")]
    assert repeats[0].calls == repeats[1].calls == tmp_path / "arena" / "calls.sqlite"
    first, second = map(run_on_disk, repeats)
    manifests = [ArenaFolder(request.out).manifest() for request in repeats]
    assert manifests[0].memes == manifests[1].memes and len(manifests[0].memes) == 4
    assert {meme.dataset for meme in manifests[0].memes} == {"fhm", "synthetic-fhm"}
    assert all(meme.id.startswith(f"{meme.dataset}/") and meme.harmful for meme in manifests[0].memes)
    assert [(one.dataset, one.memes, one.only) for one in manifests[0].samples] == [
        ("fhm", 2, "harmful"),
        ("synthetic-fhm", 2, "harmful"),
    ]
    assert (manifests[0].dataset, manifests[0].limit) == ("fhm + synthetic-fhm", None)
    # Profiles and questions are random, so that calls that depend on them are repeated; the others are not.
    assert 0 < second <= first
    assert run_on_disk(repeats[0]) == 0 and arena_repeats(request, 3)[2].seed == 2


def test_command_takes_memes_from_file_or_options_but_not_both(tmp_path, data_sets):
    models = tmp_path / "arena.toml"
    table = "".join(f'[models.{name}]\nurl = "http://127.0.0.1:9/v1"\nmodel = "m"\n' for name in "abc")
    arena = '[arena]\njudges = ["a", "b"]\ncontroller = "a"\n'
    models.write_text(
        table + arena + f'only = "harmful"\nsample = [{{dataset = "fhm", data = "{data_sets / "fhm"}"}}]\n'
    )

    def error_of(*options, code):
        output = output_of("arena", "--models", models, "--out", tmp_path / "out", *options, code=code)
        return " ".join(output.split())

    both = error_of("--data", data_sets, "--limit", 3, code=2)
    assert "names the memes with sample: leave --data, --limit out" in both
    models.write_text(table + arena + 'sample = [{dataset = "nothing", data = "."}]\n')
    assert "There is no data set 'nothing'" in error_of(code=1)
    models.write_text(table + arena)
    assert "Missing option --data" in error_of(code=2)
