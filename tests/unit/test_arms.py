"""Studies: arms that differ in one thing, calls that they share, and what is altered by a control."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from court.backends.chat.scripted import ScriptedModel
from court.errors import BadRequest
from court.events import Procedure
from court.prompts.sets import packaged, source
from court.roles import RoleModel, RoleModels
from court.settings import TrialSettings
from court.trial import Court
from eval.cli import cli
from eval.datasets.known import DATASETS
from eval.datasets.protocol import Protocol
from eval.runs.controls import Control, RandomFinder, with_control
from eval.runs.folder import RunManifest
from eval.runs.plan import Plan
from eval.runs.progress import Progress
from eval.runs.results import read_results
from eval.runs.run import run
from eval.studies.arms import ARMS, Arm, ModelOf, Study, arms_named, parse_setting, run_study, settings_of
from eval.synthetic.make import Layout, Plant, make
from eval.synthetic.oracle import oracle
from retrieval.build import build_library
from retrieval.library.library import Library
from retrieval.library.sources import Source
from retrieval.precedents.finder import LibraryFinder
from serving.settings import ModelSettings, RoleSettings, Settings
from tests.support.cast import MARK, Cast, full_court, shown, try_meme
from tests.support.encoders import PlainPictureReader, WordEncoder
from tests.support.fakes import FakeFinder, FakeReader, H, N, findings

DATASET = DATASETS["synthetic-harmeme"]
PAPER = ("full", "no-precedents", "no-advocates", "no-captioner", "dull-judge", "post-stance")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("synthetic") / "data", Layout.HARMEME, train=24, val=8, test=8, seed=1).root


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ScriptedModel:
    """Plays all roles in every court that is opened, with a cheap encoder."""
    played = oracle()

    async def bench(settings: Settings, stack: AsyncExitStack, tell: object, **_: object) -> RoleModels | None:
        if settings.llm.url is None:
            return None
        chair = RoleModel(played)
        return RoleModels(chair, chair, chair, chair)

    monkeypatch.setattr("serving.wiring.connect_models", bench)
    monkeypatch.setattr("retrieval.embed.builtin.BuiltinEncoder", WordEncoder)
    return played


def settings(home: Path, **trial: object) -> Settings:
    return Settings(
        home=home, llm=ModelSettings(url=("http://nowhere/v1",), model="oracle"), trial=trial, picture_workers=1
    )


def study(root: Path, data: Path, *names: str, **changes: object) -> Study:
    values = {
        "out": root / "study",
        "kind": "ablate",
        "dataset": DATASET,
        "data": data,
        "split": "test",
        "procedure": Procedure.FULL,
        "protocols": (Protocol.MERGED,),
        "settings": settings(root / "home"),
        "arms": arms_named(names, (), Procedure.FULL),
        "concurrency": 4,
        **changes,
    }
    return Study(**values)


def run_folder(out: Path, what: Study, **changes: object) -> RunManifest:
    """The manifest of a run of its own, over what a study is about."""
    plan = Plan(
        out=out,
        name=out.name,
        dataset=what.dataset,
        data=what.data,
        split=what.split,
        procedure=what.procedure,
        protocols=what.protocols,
        settings=what.settings,
        **changes,
    )
    return asyncio.run(run(plan, Progress())).manifest()


@pytest.mark.slow
def test_what_arms_have_in_common_is_asked_once(tmp_path: Path, data: Path, model: ScriptedModel) -> None:
    arms = (*PAPER, "swapped-sides", "random-precedents", "shuffled-labels")
    # Without asking ahead: what turns out to be superfluous is asked, and is in no record.
    what = study(tmp_path, data, *arms, settings=settings(tmp_path / "home", overlap=False))
    folders = asyncio.run(run_study(what, Progress()))
    results = {folder.name: read_results(folder.root) for folder in folders}
    assert list(results) == list(arms)
    asked = Counter(
        json.dumps([a.request.system, [str(part) for part in a.request.parts], a.options]) for a in model.asked
    )
    assert set(asked.values()) == {1}
    calls = {name: sum(one.prediction.cost.calls for one in arm.judged) for name, arm in results.items()}
    stored = {name: sum(one.prediction.cost.stored for one in arm.judged) for name, arm in results.items()}
    made = {name: calls[name] - stored[name] for name in arms}
    assert sum(made.values()) == len(model.asked)
    # Description and examination are the same as in full, word for word: only the Judge is asked anew, thrice a meme.
    for name in ("no-precedents", "swapped-sides", "random-precedents"):
        assert made[name] == 3 * 8 < stored[name]
    assert made["no-advocates"] == 3 * 8 and stored["no-advocates"] == 8
    assert calls["dull-judge"] == made["dull-judge"] == 3 * 8
    # The same again makes no call, and changes nothing.
    before = len(model.asked)
    told: list[str] = []

    class Told(Progress):
        def tell(self, sentence: str) -> None:
            told.append(sentence)

    again = asyncio.run(run_study(what, Told()))
    assert len(model.asked) == before
    assert [read_results(folder.root).judged for folder in again] == [results[name].judged for name in arms]
    assert sum("finished before" in sentence for sentence in told) == len(arms)


@pytest.mark.slow
def test_manifests_say_what_was_altered(tmp_path: Path, data: Path, model: ScriptedModel) -> None:
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
    assert len({manifest.calls_file for manifest in (full, swapped, shuffled)}) == 1


@pytest.mark.slow
def test_an_arm_with_leaks_has_what_the_others_lack(tmp_path: Path, model: ScriptedModel) -> None:
    planted = {"train": 24, "val": 8, "test": 8, "seed": 1, "plant": [Plant.LEAKAGE]}
    data = make(tmp_path / "planted", Layout.HARMEME, **planted).root
    changes = {"procedure": Procedure.SUMMARY, "arms": arms_named(("with-leaks",), (), Procedure.SUMMARY)}
    told: list[str] = []

    class Told(Progress):
        def tell(self, sentence: str) -> None:
            told.append(sentence)

    full, leaking = (folder.manifest() for folder in asyncio.run(run_study(study(tmp_path, data, **changes), Told())))
    assert full.excluded and not leaking.excluded and leaking.control == "with leaks"
    assert leaking.library_size == full.library_size + sum(full.excluded.values())
    kept = f"{sum(full.excluded.values())} precedents too near to a judged meme were kept"
    assert sum(sentence.startswith(kept) for sentence in told) == 1
    # A run by itself prepares as many.
    alone = run_folder(tmp_path / "alone", study(tmp_path, data, **changes), control=leaking.control)
    assert (alone.library_size, alone.excluded) == (leaking.library_size, {})


@pytest.mark.slow
def test_arms_may_be_added_and_a_study_is_no_other(tmp_path: Path, data: Path, model: ScriptedModel) -> None:
    asyncio.run(run_study(study(tmp_path, data, "full", limit=2), Progress()))
    before = len(model.asked)
    asyncio.run(run_study(study(tmp_path, data, "dull-judge", limit=2), Progress()))
    assert len(model.asked) == before + 2 * 3
    kept = json.loads((tmp_path / "study" / "study.json").read_text())
    assert [arm["name"] for arm in kept["arms"]] == ["full", "dull-judge"]
    with pytest.raises(BadRequest, match="limit, seed") as refused:
        asyncio.run(run_study(study(tmp_path, data, "full", limit=3, seed=4), Progress()))
    assert refused.value.reason == "STUDY_DIFFERS"
    other = Arm(name="dull-judge", overlay={"rounds_max": 3})
    with pytest.raises(BadRequest, match="the arm dull-judge"):
        asyncio.run(run_study(study(tmp_path, data, limit=2, arms=(ARMS["full"], other)), Progress()))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "something").touch()
    with pytest.raises(BadRequest, match="holds no study"):
        asyncio.run(run_study(study(tmp_path, data, out=tmp_path / "other"), Progress()))


@pytest.mark.slow
def test_a_study_that_was_cut_off_goes_on(tmp_path: Path, data: Path, model: ScriptedModel) -> None:
    class Stop(Progress):
        def judged(self, tally: object) -> None:
            if tally.done == 2 and len(model.asked) > 60:
                raise KeyboardInterrupt

    arms = ("full", "no-precedents", "dull-judge")
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run_study(study(tmp_path, data, *arms, concurrency=1), Stop()))
    folders = asyncio.run(run_study(study(tmp_path, data, *arms, concurrency=1), Progress()))
    assert [len(read_results(folder.root).judged) for folder in folders] == [8, 8, 8]
    assert all(one.prediction.trial for folder in folders for one in read_results(folder.root).judged)
    asked = Counter(json.dumps([a.request.system, [str(p) for p in a.request.parts], a.options]) for a in model.asked)
    # What was under way when it was cut off may be asked again; nothing that was answered is.
    assert sum(times - 1 for times in asked.values()) <= 4


@pytest.mark.slow
def test_the_command_prints_the_table(tmp_path: Path, data: Path, model: ScriptedModel) -> None:
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
    assert [line.split()[0] for line in lines[2:6]] == ["arm", "full", "dull-judge", "swapped-sides"]
    told = CliRunner().invoke(cli, ["ablate", *options, "--json"], env=environment)
    full, dull, swapped = json.loads(told.stdout)["merged"]
    assert (dull["made"], dull["stored"]) == (3 * 8, 0)
    assert swapped["made"] == 3 * 8 and swapped["calls"] == full["calls"]
    assert full["made"] + dull["made"] + swapped["made"] == len(model.asked)
    assert dull["difference_accuracy"]["value"] == pytest.approx(dull["accuracy_a"] - full["accuracy_a"])


def test_two_sets_of_prompts_are_compared_on_the_same_memes_in_one_command(
    tmp_path: Path, data: Path, model: ScriptedModel
) -> None:
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
    told = CliRunner().invoke(cli, ["ablate", *options], env=environment)
    assert told.exit_code == 0, told.output
    full, terse = json.loads(told.stdout)["merged"]
    assert (full["arm"], terse["arm"]) == ("full", "prompts-terse")
    assert full["n"] == terse["n"] == 4
    # Description and examination are in the same words, and asked once: the Judge alone is asked anew, thrice a meme.
    assert terse["made"] == 3 * 4 and terse["calls"] == full["calls"]
    manifests = [
        json.loads((tmp_path / "study" / arm / "manifest.json").read_text()) for arm in ("full", "prompts-terse")
    ]
    assert manifests[0]["prompts"] == packaged().digest != manifests[1]["prompts"]
    assert [manifest["settings"]["prompts"] for manifest in manifests] == ["1", "terse"]
    (folder / "judge.toml").write_text("system = 1")
    refused = CliRunner().invoke(cli, ["ablate", *options], env=environment)
    assert refused.exit_code == 1 and "judge.toml: Its id must be" in refused.output


def test_the_command_tells_its_arms_without_a_data_set() -> None:
    told = CliRunner().invoke(cli, ["ablate", "--arms", "list"])
    assert told.exit_code == 0
    assert [line.split()[0] for line in told.stdout.splitlines()] == list(ARMS)


def test_which_arms() -> None:
    # Texts are put into English, and leaks are kept, only where that is asked for.
    usual = [name for name in ARMS if name not in ("translate", "with-leaks")]
    assert [arm.name for arm in arms_named((), (), Procedure.FULL)] == usual
    assert [arm.name for arm in arms_named(("with-leaks",), (), Procedure.SUMMARY)] == ["full", "with-leaks"]
    assert [a.name for a in arms_named((), (), Procedure.SUMMARY)] == ["full", "random-precedents", "shuffled-labels"]
    chosen = arms_named(("dull-judge",), (ModelOf.parse("org/big-7b"),), Procedure.FULL)
    assert [arm.name for arm in chosen] == ["full", "dull-judge", "model-org-big-7b"]
    # Equal compute spends what the full trials spent: these come first, wherever they are named.
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
    ("said", "role", "model", "url"),
    [
        ("small", "all", "small", ""),
        ("org/small@http://a:1/v1", "all", "org/small", "http://a:1/v1"),
        ("judge=large", "judge", "large", ""),
    ],
)
def test_a_model_is_named(said: str, role: str, model: str, url: str) -> None:
    assert ModelOf.parse(said) == ModelOf(role=role, model=model, url=url)


@pytest.mark.parametrize("said", ["", "a@b", "@http://a/v1"])
def test_what_names_no_model(said: str) -> None:
    with pytest.raises(BadRequest, match="names no model"):
        ModelOf.parse(said)


def test_settings_of_an_arm() -> None:
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


def test_a_key_is_sent_to_no_other_server() -> None:
    base = Settings(llm=ModelSettings(url=("http://a/v1",), model="m", api_key=SecretStr("k")))
    elsewhere = settings_of(base, Arm(name="x", models=(ModelOf(model="n", url="http://b/v1"),))).llm
    assert all(elsewhere.of_role(role).api_key is None for role in ("proposer", "accuser", "defender", "judge"))
    with pytest.raises(BadRequest, match="key"):
        settings_of(base, Arm(name="x", models=(ModelOf(role="judge", model="n", url="http://b/v1"),)))


def test_settings_are_read() -> None:
    assert parse_setting("rounds_max=6") == ("rounds_max", 6)
    assert parse_setting("trial.query=text and summaries") == ("query", "text and summaries")
    assert parse_setting("alpha=null") == ("alpha", None)
    with pytest.raises(BadRequest, match="sets nothing"):
        parse_setting("rounds=6")


def test_swapped_sides_reach_the_judge_and_nobody_else() -> None:
    plain, swapped = Cast(), Cast()
    try_meme(plain)
    try_meme(swapped, settings=TrialSettings(swap_sides=True))
    before, after = (shown(cast.requests("judge")[0]) for cast in (plain, swapped))
    accuser, defender = (f"the {side}'s reasons abcdef" for side in ("accuser", "defender"))
    assert before != after and before.index(accuser) < before.index(defender)
    assert after == before.replace(accuser, "?").replace(defender, accuser).replace("?", defender)
    for role in ("proposer", "accuser", "defender"):
        assert Counter(map(shown, plain.requests(role))) == Counter(map(shown, swapped.requests(role)))


@pytest.fixture
def library(tmp_path: Path) -> Library:
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


def find(finder: object, pixels: str, **changes: object):
    query = {"text": "one word7", "frames": (), "pixels_sha256": pixels, "exhibits": 3, "tally": 25, "alpha": None}
    return asyncio.run(finder.find(**{**query, **changes}))


def test_random_precedents_are_drawn_by_meme_and_say_how_like_they_are(library: Library) -> None:
    finder = LibraryFinder(library, WordEncoder())
    try:
        drawn = RandomFinder(finder, seed=1)
        first, again, other = find(drawn, "a" * 64), find(drawn, "a" * 64), find(drawn, "b" * 64)
        reseeded = find(RandomFinder(finder, seed=2), "a" * 64)
        near = find(finder, "a" * 64, exhibits=60, tally=60)
        summaries = find(drawn, "a" * 64, text="one word7 and more")
    finally:
        finder.close()
    ids = [{exhibit.id for exhibit in found.exhibits} for found in (first, other, reseeded)]
    assert first == again and len({frozenset(each) for each in ids}) == 3
    assert {exhibit.id for exhibit in summaries.exhibits} == ids[0]
    true = {exhibit.id: exhibit.similarity for exhibit in near.exhibits}
    assert {e.id: e.similarity for e in first.exhibits} == {id_: true[id_] for id_ in ids[0]}
    counted = {entry.id for entry in first.tally}
    assert len(first.exhibits) == 3 and ids[0] <= counted and len(counted) == max(25, first.vote_settings.k)
    assert (
        first.settles is None and "drawn at random" in first.library.name and first.notes[-1].endswith("(a control).")
    )


def test_draws_cover_the_library_evenly(library: Library) -> None:
    finder = LibraryFinder(library, WordEncoder())
    try:
        drawn = RandomFinder(finder, seed=0)
        times = Counter(e.id for n in range(400) for e in find(drawn, f"{n:064}", tally=1).exhibits)
    finally:
        finder.close()
    # 1200 draws from 60: 20 each; five standard deviations.
    assert len(times) == 60 and max(times.values()) < 43 and min(times.values()) > 1


def test_controls(library: Library) -> None:
    court = full_court(Cast())
    assert with_control(court, "", 0) is court
    assert with_control(court, Control.SWAPPED, 0).settings.swap_sides
    with pytest.raises(BadRequest, match="no control 'odd'"):
        with_control(court, "odd", 0)
    with pytest.raises(BadRequest, match="not shuffled"):
        with_control(court, Control.SHUFFLED, 0)
    with pytest.raises(BadRequest, match="from a library"):
        with_control(court, Control.RANDOM, 0)
    finder = LibraryFinder(library, WordEncoder())
    finder.close()
    real = Court(finder=finder, text_reader=FakeReader(), software="test")
    assert with_control(real, Control.RANDOM, 7).finder == RandomFinder(finder, 7)

    shuffled, shuffled_is = "train, shuffled labels (seed 1)", "shuffled: it is good for that control"
    leaking, leaking_is = "train, with leaks", "too near to judged memes: it is good for that control"
    for name, reason, own, others in (
        (shuffled, shuffled_is, Control.SHUFFLED, ("", Control.LEAKS, Control.SWAPPED)),
        (leaking, leaking_is, Control.LEAKS, ("", Control.SWAPPED, Control.TRANSLATED)),
    ):
        finder = FakeFinder(findings([H, N]))
        finder.library = finder.library.model_copy(update={"name": name})
        made = Court(finder=finder, text_reader=FakeReader(), software="test", fence_mark=MARK)
        assert with_control(made, own, 1) is made
        for control in others:
            with pytest.raises(BadRequest, match=reason):
                with_control(made, control, 1)
    with pytest.raises(BadRequest, match="was left out"):
        with_control(court, Control.LEAKS, 0)
