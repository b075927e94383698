"""Arenas held again with other seeds, and arenas about memes of several data sets."""

import asyncio
import itertools
import json

import numpy as np
import pytest
from click.testing import CliRunner

from court.backends.chat.scripted import ScriptedModel
from court.errors import BadRequest
from eval.arena.folder import ArenaFolder
from eval.arena.leaderboard import leaderboard
from eval.arena.repeats import repeat_section, repeated_board, repeats_of
from eval.arena.run import Ask, run
from eval.arena.settings import ArenaSettings
from eval.cli import cli
from eval.datasets.known import DATASETS
from eval.models.call_cache import SqliteCallCache
from eval.models.metered import MeteredModel
from eval.models.open import ModelSpec
from eval.models.samples import Sample, Samples
from tests.support.arena_world import Arena, Voice
from tests.support.probing import TEXTS, a_data_set
from tests.unit.test_arena import numbered

THREE = {"ash": 1.0, "beech": 0.0, "cedar": -1.0}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three repeats of one arena, in the folders that the command gives them."""
    root = tmp_path_factory.mktemp("repeats")
    for number in range(3):
        place = root / f"repeat-{number + 1}"
        place.mkdir()
        Arena(place, memes=6, strengths=THREE, judges=["ash", "beech"], seed=number).hold()
    return root


def boards_of(root):
    return [leaderboard(folder) for folder in sorted(root.glob("repeat-*"))]


def test_means_spreads_and_places_over_repeats_are_those_by_hand(three):
    boards = boards_of(three)
    together = repeated_board(boards)
    assert together.seeds == (0, 1, 2) and together.by_rating and not together.finished
    by_model = {one.model: one for one in together.models}
    for name in THREE:
        own = [next(r.rating.value for r in b.board("overall").rows if r.model == name) for b in boards]
        assert by_model[name].rating.values == tuple(own)
        assert by_model[name].rating.mean == pytest.approx(np.mean(own))
        assert by_model[name].rating.sd == pytest.approx(np.std(own, ddof=1)) and len(set(own)) > 1
    order = [one.model for one in together.models]
    assert order == sorted(THREE, key=lambda name: -by_model[name].rating.mean)
    for place, (one, other) in zip(together.places, itertools.pairwise(order), strict=True):
        held = sum(a > b for a, b in zip(by_model[one].rating.values, by_model[other].rating.values, strict=True))
        assert (place.ahead, place.behind, place.held, place.repeats) == (one, other, held, 3)


def test_where_a_repeat_has_no_ratings_on_one_scale_win_rates_order(tmp_path, three):
    far = {"ash": 90.0, "beech": 0.0, "cedar": 0.0}
    for number in range(2):
        (tmp_path / f"repeat-{number + 1}").mkdir()
        arena = Arena(tmp_path / f"repeat-{number + 1}", memes=4, strengths=far, seed=number, own_case=True)
        arena.hold()
    together = repeated_board(boards_of(tmp_path))
    assert not together.by_rating and together.models[0].model == "ash" and together.models[0].win_rate.mean == 1
    section = repeat_section(together)
    assert "order of the battles won" in section.notes[-1] and section.rows[1][1] == "–"
    with pytest.raises(BadRequest, match="differ in settings"):
        repeated_board([*boards_of(tmp_path)[:1], *boards_of(three)[:1]])
    with pytest.raises(BadRequest, match="at least two"):
        repeated_board(boards_of(three)[:1])


def test_the_command_reports_on_all_repeats(three):
    ran = CliRunner().invoke(cli, ["arena", "--report", "--out", str(three)])
    assert ran.exit_code == 0, ran.output
    assert "3 repeats about the same memes, seeds 0, 1, 2" in ran.output and "ahead of the next" in ran.output
    page = (three / "leaderboard.html").read_text()
    assert "Over all repeats" in page and "quality=" not in page and "style=" not in page
    assert (three / "repeat-2" / "leaderboard.html").exists()
    ran = CliRunner().invoke(cli, ["arena", "--report", "--out", str(three), "--by", "gold"])
    assert ran.exit_code == 2 and "folder of a repeat" in ran.output
    ran = CliRunner().invoke(cli, ["arena", "--out", str(three / "new"), "--repeats", "2", "--by", "gold"])
    assert ran.exit_code == 2 and "--by is for one arena" in ran.output and not (three / "new").exists()
    told = json.loads(CliRunner().invoke(cli, ["arena", "--report", "--out", str(three), "--json"]).output)
    assert len(told["repeats"]) == 3 and told["models"][0]["rating"]["mean"] > told["models"][2]["rating"]["mean"]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    a_data_set(root / "fhm", TEXTS[:3])
    a_data_set(root / "more", TEXTS[3:8])
    return root


def held(ask):
    async def go():
        store = SqliteCallCache.open(ask.calls)
        scripted = {name: ScriptedModel(numbered(Voice(name, THREE)), name=name) for name in THREE}
        chairs = {name: MeteredModel(name, model, store=store, run_seed=ask.seed) for name, model in scripted.items()}
        told = []
        try:
            await run(ask, told.append, chairs=chairs)
        finally:
            await store.close()
        return sum(len(model.asked) for model in scripted.values()), told

    return asyncio.run(go())


def an_ask(out, samples):
    settings = ArenaSettings(targets=tuple(THREE), judges=("ash", "beech"), controller="ash", resamples=100)
    specs = {name: ModelSpec(url=("http://127.0.0.1:9/v1",), model=name) for name in THREE}
    return Ask(out=out, name="two sets", settings=settings, specs=specs, samples=samples)


def test_repeats_of_an_arena_on_two_data_sets_share_what_is_asked_alike(tmp_path, places):
    fhm = Sample(DATASETS["fhm"], places / "fhm", "dev_seen", limit=2)
    # The same files under another name: no second data set has to be made up for it.
    more = Sample(DATASETS["synthetic-fhm"], places / "more", "dev_seen", limit=2)
    asks = repeats_of(an_ask(tmp_path / "arena", Samples((fhm, more), "harmful", mixed=True)), 2)
    assert [(ask.seed, ask.sample_seed, ask.out.name) for ask in asks] == [(0, None, "repeat-1"), (1, 0, "repeat-2")]
    assert asks[0].calls == asks[1].calls == tmp_path / "arena" / "calls.sqlite"
    first, _ = held(asks[0])
    second, _ = held(asks[1])
    manifests = [ArenaFolder(ask.out).manifest() for ask in asks]
    assert manifests[0].memes == manifests[1].memes and len(manifests[0].memes) == 4
    assert {meme.dataset for meme in manifests[0].memes} == {"fhm", "synthetic-fhm"}
    assert all(meme.id.startswith(f"{meme.dataset}/") and meme.harmful for meme in manifests[0].memes)
    assert [(one.dataset, one.memes, one.only) for one in manifests[0].samples] == [
        ("fhm", 2, "harmful"),
        ("synthetic-fhm", 2, "harmful"),
    ]
    assert (manifests[0].dataset, manifests[0].limit) == ("fhm + synthetic-fhm", None)
    # Profiles and questions are draws, so that what hangs on them is asked anew; but no more than that.
    assert 0 < second <= first
    assert held(asks[0])[0] == 0
    assert repeats_of(an_ask(tmp_path / "arena", asks[0].samples), 3)[2].seed == 2


def test_the_command_takes_memes_from_the_file_or_from_options_and_not_both(tmp_path, places):
    models = tmp_path / "arena.toml"
    table = "".join(f'[models.{name}]\nurl = "http://127.0.0.1:9/v1"\nmodel = "m"\n' for name in "abc")
    arena = '[arena]\njudges = ["a", "b"]\ncontroller = "a"\n'
    models.write_text(table + arena + f'only = "harmful"\nsample = [{{dataset = "fhm", data = "{places / "fhm"}"}}]\n')

    def said(*options):
        ran = CliRunner().invoke(cli, ["arena", "--models", str(models), "--out", str(tmp_path / "out"), *options])
        assert ran.exit_code != 0
        return " ".join(ran.output.split())

    assert "names the memes with sample: leave --data, --limit out" in said("--data", str(places), "--limit", "3")
    models.write_text(table + arena + 'sample = [{dataset = "nothing", data = "."}]\n')
    assert "There is no data set 'nothing'" in said()
    models.write_text(table + arena)
    assert "Missing option --data" in said()
