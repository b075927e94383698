"""Studies: arms that differ in one setting, calls they share, and the effect of controls."""

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from court.errors import BadRequest
from court.events import Procedure
from court.prompts.sets import packaged, source
from court.settings import TrialSettings
from court.trial import Court
from eval.cli import cli
from eval.runs.controls import Control, RandomFinder, with_control
from eval.runs.plan import parse_setting
from eval.runs.results import read_results
from eval.runs.run import run
from eval.session.directory import CALLS
from eval.session.engine import Progress
from eval.studies.arms import ARMS, FROM_THE_FIELD, UNCHANGING, Arm, ModelOf, arms_named, run_study, settings_of
from eval.synthetic.make import Layout, Plant, make
from retrieval.build import build_library
from retrieval.library.sources import Source
from retrieval.precedents.finder import LibraryFinder
from serving.settings import ModelSettings, RoleSettings, Settings
from tests.support.arms import DATASET, settings, study
from tests.support.arms import data as data
from tests.support.arms import model as model
from tests.support.cast import MARK, Cast, full_court, prompt_text, try_meme
from tests.support.encoders import PlainPictureReader, WordEncoder
from tests.support.fakes import FakeFinder, FakeReader, H, N, findings
from tests.support.golden import check_figures

PAPER = ("full", "no-precedents", "no-advocates", "no-captioner", "dull-judge", "post-stance")


def run_folder(out, planned, **changes):
    """The manifest of a separate run with the inputs of a study."""
    plan = replace(planned.plan, out=out, name=out.name, **changes)
    return asyncio.run(run(plan, Progress())).manifest()


@pytest.mark.slow
def test_manifests_record_the_changes_of_each_arm(tmp_path, data, model):
    arms = ("full", "no-captioner", "swapped-sides", "random-precedents", "shuffled-labels")
    folders = asyncio.run(run_study(study(tmp_path, data, *arms, limit=2), Progress()))
    full, captioner, swapped, random, shuffled = (folder.manifest() for folder in folders)
    assert (full.control, captioner.control) == ("", "")
    assert captioner.settings == {**full.settings, "captioner": False}
    assert swapped.control == "swapped sides" and swapped.settings == {**full.settings, "swap_sides": True}
    assert random.control == "random precedents" and random.settings == full.settings
    assert random.library == full.library != shuffled.library
    assert shuffled.control == "shuffled labels"
    assert full.checked["text"] == 0.8
    assert not [folder.root for folder in folders if (folder.root / CALLS).exists()], "all arms share one store"


@pytest.mark.slow
def test_arm_with_leaks_keeps_leaking_precedents(tmp_path, model):
    planted = {"train": 24, "val": 8, "test": 8, "seed": 1, "plant": [Plant.LEAKAGE]}
    data = make(tmp_path / "planted", Layout.HARMEME, **planted).root
    changes = {"procedure": Procedure.SUMMARY, "arms": arms_named(("with-leaks",), (), Procedure.SUMMARY)}
    messages: list[str] = []

    class RecordingProgress(Progress):
        def tell(self, sentence):
            messages.append(sentence)

    full, leaking = (
        folder.manifest() for folder in asyncio.run(run_study(study(tmp_path, data, **changes), RecordingProgress()))
    )
    assert full.excluded and not leaking.excluded and leaking.control == "with leaks"
    assert leaking.library_size == full.library_size + sum(full.excluded.values())
    notice = f"{sum(full.excluded.values())} precedents too near to a judged meme were kept"
    assert sum(sentence.startswith(notice) for sentence in messages) == 1
    # A separate run has as many precedents.
    alone = run_folder(tmp_path / "alone", study(tmp_path, data, **changes), control=leaking.control)
    assert (alone.library_size, alone.excluded) == (leaking.library_size, {})


@pytest.mark.slow
def test_arms_can_be_added_but_other_settings_are_refused(tmp_path, data, model):
    asyncio.run(run_study(study(tmp_path, data, "full", limit=2), Progress()))
    before = len(model.asked)
    asyncio.run(run_study(study(tmp_path, data, "dull-judge", limit=2), Progress()))
    assert len(model.asked) == before + 2 * 3
    manifest = json.loads((tmp_path / "study" / "study.json").read_text())
    assert [arm["name"] for arm in manifest["arms"]] == ["full", "dull-judge"]
    with pytest.raises(BadRequest, match=r"limit .*; seed ") as refused:
        asyncio.run(run_study(study(tmp_path, data, "full", limit=3, seed=4), Progress()))
    assert refused.value.reason == "RUN_DIFFERS"
    # A finished arm would stand beside arms of another model.
    theirs = settings(tmp_path / "home")
    theirs = theirs.model_copy(update={"llm": theirs.llm.model_copy(update={"model": "theirs"}), "encoder": "clip"})
    with pytest.raises(BadRequest, match=r"models JUDGE \(was oracle, is theirs\).*encoder \(was nothing, is clip\)"):
        asyncio.run(run_study(study(tmp_path, data, "full", limit=2, settings=theirs), Progress()))
    other = Arm(name="dull-judge", overlay={"rounds_max": 3})
    with pytest.raises(BadRequest, match="the arm dull-judge"):
        asyncio.run(run_study(study(tmp_path, data, limit=2, arms=(ARMS["full"], other)), Progress()))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "something").touch()
    with pytest.raises(BadRequest, match="holds no study"):
        asyncio.run(run_study(study(tmp_path, data, out=tmp_path / "other"), Progress()))


@pytest.mark.slow
def test_studies_may_share_a_store_of_calls(tmp_path, data, model):
    changes = {"limit": 2, "calls": tmp_path / "calls.sqlite", "settings": settings(tmp_path / "home", overlap=False)}
    asyncio.run(run_study(study(tmp_path, data, "full", out=tmp_path / "one", **changes), Progress()))
    before = len(model.asked)
    asyncio.run(run_study(study(tmp_path, data, "full", out=tmp_path / "two", **changes), Progress()))
    assert 0 < before == len(model.asked) and not (tmp_path / "two" / CALLS).exists()


@pytest.mark.slow
def test_interrupted_study_resumes(tmp_path, data, model):
    class Stop(Progress):
        def step(self, name, done, total, words=""):
            if name.endswith("judged") and done == 2 and len(model.asked) > 60:
                raise KeyboardInterrupt

    arms = ("full", "no-precedents", "dull-judge")
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run_study(study(tmp_path, data, *arms, concurrency=1), Stop()))
    folders = asyncio.run(run_study(study(tmp_path, data, *arms, concurrency=1), Progress()))
    assert [len(read_results(folder.root).judged) for folder in folders] == [8, 8, 8]
    assert all(one.prediction.trial for folder in folders for one in read_results(folder.root).judged)
    requests = Counter(
        json.dumps([a.request.system, [str(p) for p in a.request.parts], a.options]) for a in model.asked
    )
    # Only calls in flight at the interruption may be repeated.
    assert sum(counts - 1 for counts in requests.values()) <= 4


@pytest.mark.slow
def test_command_prints_the_table(tmp_path, data, model, request):
    options = [
        "--dataset", DATASET.id, "--data", str(data), "--out", str(tmp_path / "study"), "--procedure", "full",
        "--arms", "dull-judge,swapped-sides", "--protocol", "merged", "--llm-url", "http://nowhere/v1", "--model", "m",
        "--set", "overlap=false",
    ]  # fmt: skip
    environment = {"MEMECOURT_HOME": str(tmp_path / "home"), "MEMECOURT_PICTURE_WORKERS": "1"}
    first = CliRunner().invoke(cli, ["ablate", *options], env=environment)
    assert first.exit_code == 0, first.output
    lines = first.stdout.splitlines()
    assert lines[0] == "synthetic-harmeme, split test, protocol merged: 8 memes"
    assert [line.split()[0] for line in lines[1:5]] == ["arm", "full", "dull-judge", "swapped-sides"]
    ran = CliRunner().invoke(cli, ["ablate", *options, "--json"], env=environment)
    check_figures(request, "ablate", json.loads(ran.stdout))
    full, dull, swapped = json.loads(ran.stdout)["merged"]
    assert (dull["made"], dull["stored"]) == (3 * 8, 0)
    assert swapped["made"] == 3 * 8 and swapped["calls"] == full["calls"]
    assert full["made"] + dull["made"] + swapped["made"] == len(model.asked)
    assert dull["differences"]["accuracy"]["value"] == pytest.approx(dull["a"]["accuracy"] - full["a"]["accuracy"])


def test_command_compares_two_sets_of_prompts_on_the_same_memes(tmp_path, data, model):
    folder = tmp_path / "terse"
    folder.mkdir()
    for name in ("proposer", "advocate", "judge"):
        (folder / f"{name}.toml").write_text(source("1", name).replace("Judge the meme.", "Judge it."))
    options = [
        "--dataset", DATASET.id, "--data", str(data), "--out", str(tmp_path / "study"), "--procedure", "full",
        "--with-prompts", str(folder), "--protocol", "merged", "--llm-url", "http://nowhere/v1", "--model", "m",
        "--set", "overlap=false", "--limit", "4", "--json",
    ]  # fmt: skip
    environment = {"MEMECOURT_HOME": str(tmp_path / "home"), "MEMECOURT_PICTURE_WORKERS": "1"}
    ran = CliRunner().invoke(cli, ["ablate", *options], env=environment)
    assert ran.exit_code == 0, ran.output
    full, terse = json.loads(ran.stdout)["merged"]
    assert (full["arm"], terse["arm"]) == ("full", "prompts-terse")
    assert full["n"] == terse["n"] == 4
    # Description and examination have the same prompts and are called once: only the Judge differs, three calls a meme.
    assert terse["made"] == 3 * 4 and terse["calls"] == full["calls"]
    manifests = [
        json.loads((tmp_path / "study" / arm / "manifest.json").read_text()) for arm in ("full", "prompts-terse")
    ]
    assert manifests[0]["prompts"] == packaged().digest != manifests[1]["prompts"]
    assert [manifest["settings"]["prompts"] for manifest in manifests] == ["1", "terse"]
    (folder / "judge.toml").write_text("system = 1")
    refused = CliRunner().invoke(cli, ["ablate", *options], env=environment)
    assert refused.exit_code == 1 and "judge.toml: Its id must be" in refused.output


def test_arms_are_selected_by_name_model_and_procedure():
    # Translation and leaks are only on request.
    usual = [name for name in ARMS if name not in ("translate", "with-leaks", *FROM_THE_FIELD, *UNCHANGING)]
    assert [arm.name for arm in arms_named((), (), Procedure.FULL)] == usual
    assert [arm.name for arm in arms_named(("with-leaks",), (), Procedure.SUMMARY)] == ["full", "with-leaks"]
    assert [a.name for a in arms_named((), (), Procedure.SUMMARY)] == ["full", "random-precedents", "shuffled-labels"]
    chosen = arms_named(("dull-judge",), (ModelOf.parse("org/big-7b"),), Procedure.FULL)
    assert [arm.name for arm in chosen] == ["full", "dull-judge", "model-org-big-7b"]
    # Equal compute spends as much as the full trials did, so these come first, whatever the order given.
    chosen = arms_named(("equal-compute", "full"), (), Procedure.FULL)
    assert [arm.name for arm in chosen] == ["full", "equal-compute"]
    with pytest.raises(BadRequest, match="no arm 'no-judge'"):
        arms_named(("no-judge",), (), Procedure.FULL)
    with pytest.raises(BadRequest, match="alters nothing"):
        arms_named(("dull-judge",), (), Procedure.SUMMARY)
    with pytest.raises(BadRequest, match="asks no model"):
        arms_named((), (ModelOf(model="m"),), Procedure.SUMMARY)
    with pytest.raises(BadRequest, match="twice: model-m"):
        arms_named((), (ModelOf(model="m"), ModelOf(model="m")), Procedure.FULL)


@pytest.mark.parametrize(
    ("argument", "role", "model", "url"),
    [
        ("small", "all", "small", ""),
        ("org/small@http://a:1/v1", "all", "org/small", "http://a:1/v1"),
        ("judge=large", "judge", "large", ""),
    ],
)
def test_models_are_parsed(argument, role, model, url):
    assert ModelOf.parse(argument) == ModelOf(role=role, model=model, url=url)


@pytest.mark.parametrize("argument", ["", "a@b", "@http://a/v1"])
def test_malformed_models_are_refused(argument):
    with pytest.raises(BadRequest, match="names no model"):
        ModelOf.parse(argument)


def test_arm_overrides_settings_and_models():
    base = Settings(
        llm=ModelSettings(
            url=("http://a/v1",),
            model="m",
            api_key=SecretStr("k"),
            roles={"judge": RoleSettings(model="j", temperature=0.5, thinking=100)},
        )
    )
    dull = settings_of(base, ARMS["dull-judge"])
    assert dull.trial == base.trial.model_copy(update={"dull_judge": True}) and dull.llm == base.llm
    other = settings_of(base, Arm(name="x", models=(ModelOf(model="n"),))).llm
    assert {other.of_role(role).model for role in ("proposer", "judge")} == {"n"}
    assert other.of_role("judge").temperature == 0.5 and other.of_role("judge").api_key == SecretStr("k")
    assert other.of_role("judge").thinking == base.llm.of_role("judge").thinking != "off"
    judge = settings_of(base, Arm(name="x", models=(ModelOf(role="judge", model="n"),))).llm
    assert (judge.of_role("judge").model, judge.of_role("accuser").model) == ("n", "m")
    with pytest.raises(BadRequest, match="rounds_min is more"):
        settings_of(base, Arm(name="x", overlay={"rounds_min": 9, "rounds_max": 3}))


def test_api_key_is_not_sent_to_another_server():
    base = Settings(llm=ModelSettings(url=("http://a/v1",), model="m", api_key=SecretStr("k")))
    elsewhere = settings_of(base, Arm(name="x", models=(ModelOf(model="n", url="http://b/v1"),))).llm
    assert all(elsewhere.of_role(role).api_key is None for role in ("proposer", "accuser", "defender", "judge"))
    with pytest.raises(BadRequest, match="key"):
        settings_of(base, Arm(name="x", models=(ModelOf(role="judge", model="n", url="http://b/v1"),)))


def test_settings_are_parsed():
    assert parse_setting("rounds_max=6") == ("rounds_max", 6)
    assert parse_setting("trial.query=text and summaries") == ("query", "text and summaries")
    assert parse_setting("alpha=null") == ("alpha", None)
    with pytest.raises(BadRequest, match="sets nothing"):
        parse_setting("rounds=6")


def test_swapped_sides_change_only_the_judge_s_prompt():
    plain, swapped = Cast(), Cast()
    try_meme(plain)
    try_meme(swapped, settings=TrialSettings(swap_sides=True))
    before, after = (prompt_text(cast.requests("judge")[0]) for cast in (plain, swapped))
    accuser, defender = (f"the {side}'s reasons abcdef" for side in ("accuser", "defender"))
    assert before != after and before.index(accuser) < before.index(defender)
    assert after == before.replace(accuser, "?").replace(defender, accuser).replace("?", defender)
    for role in ("proposer", "accuser", "defender"):
        assert Counter(map(prompt_text, plain.requests(role))) == Counter(map(prompt_text, swapped.requests(role)))


@pytest.fixture
def library(tmp_path):
    lines = [{"id": f"t{n}", "text": f"one word{n}", "label": str(n % 2)} for n in range(60)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    built = build_library(
        tmp_path / "library",
        [Source(tmp_path / "train.jsonl")],
        name="train",
        encoder=WordEncoder(),
        picture_reader=PlainPictureReader(),
    )
    return asyncio.run(built)[0]


def find(finder, pixels, **changes):
    query = {"text": "one word7", "frames": (), "pixels_sha256": pixels, "exhibits": 3, "tally": 25, "alpha": None}
    return asyncio.run(finder.find(**{**query, **changes}))


def test_random_precedents_depend_on_the_meme_and_keep_true_similarities(library):
    finder = LibraryFinder(library, WordEncoder())
    try:
        drawn = RandomFinder(finder, seed=1)
        first, again, other = find(drawn, "a" * 64), find(drawn, "a" * 64), find(drawn, "b" * 64)
        reseeded = find(RandomFinder(finder, seed=2), "a" * 64)
        nearest = find(finder, "a" * 64, exhibits=60, tally=60)
        summaries = find(drawn, "a" * 64, text="one word7 and more")
    finally:
        finder.close()
    ids = [{exhibit.id for exhibit in found.exhibits} for found in (first, other, reseeded)]
    assert first == again and len({frozenset(each) for each in ids}) == 3
    assert {exhibit.id for exhibit in summaries.exhibits} == ids[0]
    similarities = {exhibit.id: exhibit.similarity for exhibit in nearest.exhibits}
    assert {e.id: e.similarity for e in first.exhibits} == {id_: similarities[id_] for id_ in ids[0]}
    counted = {entry.id for entry in first.tally}
    assert len(first.exhibits) == 3 and ids[0] <= counted and len(counted) == max(25, first.vote_settings.k)
    assert (
        first.settles is None and "drawn at random" in first.library.name and first.notes[-1].endswith("(a control).")
    )


def test_random_precedents_cover_the_library_evenly(library):
    finder = LibraryFinder(library, WordEncoder())
    try:
        drawn = RandomFinder(finder, seed=0)
        counts = Counter(e.id for n in range(400) for e in find(drawn, f"{n:064}", tally=1).exhibits)
    finally:
        finder.close()
    # 1200 draws from 60 are 20 each; the bounds are five standard deviations.
    assert len(counts) == 60 and max(counts.values()) < 43 and min(counts.values()) > 1


def test_controls_are_applied_or_refused(library):
    court = full_court(Cast())
    assert with_control(court, "", 0) is court
    with pytest.raises(BadRequest, match="no control 'odd'"):
        with_control(court, "odd", 0)
    with pytest.raises(BadRequest, match="The control shuffled labels needs"):
        with_control(court, Control.SHUFFLED, 0)
    with pytest.raises(BadRequest, match="from a library"):
        with_control(court, Control.RANDOM, 0)
    finder = LibraryFinder(library, WordEncoder())
    finder.close()
    real = Court(finder=finder, text_reader=FakeReader(), software="test")
    assert with_control(real, Control.RANDOM, 7).finder == RandomFinder(finder, 7)

    for name, own, others in (
        ("train, shuffled labels (seed 1)", Control.SHUFFLED, ("", Control.LEAKS, Control.SWAPPED)),
        ("train, with leaks", Control.LEAKS, ("", Control.SWAPPED, Control.TRANSLATED)),
    ):
        finder = FakeFinder(findings([H, N]))
        finder.library = finder.library.model_copy(update={"name": name})
        made = Court(finder=finder, text_reader=FakeReader(), software="test", fence_mark=MARK)
        assert with_control(made, own, 1) is made
        for control in others:
            with pytest.raises(BadRequest, match=f"prepared for the control {own}"):
                with_control(made, control, 1)
    with pytest.raises(BadRequest, match="The control with leaks needs"):
        with_control(court, Control.LEAKS, 0)
