"""Tests of synthetic benchmarks: reproducible, with a rule that needs both halves, and an oracle with known errors."""

import asyncio
import io
import json
from collections import Counter, defaultdict

import pytest
from click.testing import CliRunner
from PIL import Image

from court.backends.chat.capabilities import probe
from court.backends.chat.client import ChatCompletions
from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadRequest
from court.events import Procedure, SideRested
from court.meme import Frame, Meme
from court.policy import DEFAULT_POLICY
from court.ports import ChatRequest
from court.prompts.sets import open_set
from court.replies import ruling_schema
from court.roles import RoleModel, RoleModels
from court.settings import TrialSettings
from court.trial import Court, TrialCase
from court.verdict import Label
from eval.cli import cli
from eval.datasets.items import Level
from eval.datasets.known import SYNTHETIC_KEY, find_card, recognised
from eval.datasets.read import read_split
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings, parsed
from eval.synthetic.make import Layout, Plant, make, read_key
from eval.synthetic.oracle import Ability, JudgeInput, expected, judge, rounds_of
from eval.synthetic.scenes import draw_meme
from eval.synthetic.world import (
    BAD,
    GROUPS,
    KIND,
    OPENERS,
    SAYINGS,
    TIMES,
    claim_of,
    draw,
    level_of,
    png_of,
    read_badge,
    text_of,
)
from tests.support.fakes import FakeFinder, FakeReader, RecordingSink, findings
from tests.support.oracles import oracle

ABLE = Ability(harmful=0.9, benign=0.85, seed=3)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    root = tmp_path_factory.mktemp("harmeme") / "data"
    return make(root, Layout.HARMEME, train=40, val=8, test=24, seed=1, plant=list(Plant))


@pytest.fixture(scope="module")
def memes(planted):
    return [meme for meme in planted.memes if not meme.planted]


@pytest.fixture(scope="module")
def pictures(planted):
    """The pictures of all sound memes, as the service decodes them, and that of the re-encoded one."""

    async def read():
        reader = GuardedPictureReader(workers=2)
        try:
            return {
                meme.image: await reader.read((planted.root / "images" / meme.image).read_bytes())
                for meme in planted.memes
                if meme.planted not in ("damaged picture", "missing picture")
            }
        finally:
            await reader.aclose()

    return asyncio.run(read())


def files(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_same_seed_gives_the_same_bytes_and_another_seed_other_memes(tmp_path):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        make(tmp_path / name, Layout.FHM, train=8, val=0, test=8, seed=seed, plant=list(Plant))
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert {m.text for m in read_key(tmp_path / "a")}.isdisjoint(m.text for m in read_key(tmp_path / "c"))


def test_every_saying_is_parsed_and_labelled_by_both_halves():
    for group in GROUPS:
        for saying, level in SAYINGS.items():
            text = text_of(OPENERS[0], group, saying, TIMES[0])
            claim = claim_of(text.upper().replace(" ", "\n "))
            assert (claim.group, claim.level) == (group, level)
            assert level_of(text, group) is level
            assert level_of(text, "Nowhere") is level_of(text, None) is Level.NOT_HARMFUL
    assert claim_of("people from Blueland are here") is None
    assert set(BAD).isdisjoint(KIND) and len(SAYINGS) == len(BAD) + len(KIND)


def test_confounders_change_one_half_and_flip_the_label(memes):
    families = defaultdict(list)
    for meme in memes:
        families[meme.family].append(meme)
    for family in families.values():
        assert len(family) == 4 and sum(meme.harmful for meme in family) == 2
        assert len({(meme.scene, meme.seed, meme.split) for meme in family}) == 1
        for harmful in (meme for meme in family if meme.harmful):
            benign = [meme for meme in family if not meme.harmful]
            assert any((other.text == harmful.text) != (other.badge == harmful.badge) for other in benign)
    # The badge alone predicts no better than chance; the words alone no better than calling every bad one harmful.
    by_badge = Counter((meme.family, meme.badge, meme.harmful) for meme in memes)
    assert all(by_badge[family, badge, not harmful] == count for (family, badge, harmful), count in by_badge.items())
    assert sum(claim_of(meme.text).bad == meme.harmful for meme in memes) == 0.75 * len(memes)


def test_unplanted_memes_do_not_leak_between_splits(memes):
    splits = defaultdict(set)
    for meme in memes:
        splits[meme.text].add(meme.split)
    assert all(len(splits_of_text) == 1 for splits_of_text in splits.values())
    assert len({meme.id for meme in memes}) == len(memes)


@pytest.mark.parametrize("layout", Layout)
def test_both_layouts_are_recognised_and_read(layout, tmp_path):
    data = make(tmp_path / "data", layout, train=8, val=4, test=4)
    (dataset,) = recognised(data.root)
    assert dataset is find_card(data.dataset)
    for split in (split.name for split in dataset.splits):
        read = read_split(dataset, data.root, split)
        known = [meme for meme in read_key(data.root) if meme.split == split]
        assert not read.problems
        assert [(m.id, m.text, m.harmful) for m in read.memes] == [(m.id, m.text, m.harmful) for m in known]
        if layout is Layout.HARMEME:
            assert [m.level for m in read.memes] == [m.level for m in known]
        for meme, fact in zip(read.memes, known, strict=True):
            assert read_badge((read.pictures / meme.image).read_bytes()) == fact.badge


def test_badge_is_readable_after_scaling_or_compression_and_never_invented():
    for badge in GROUPS:
        image = draw("desk", 1, badge, "cake\nfor all")
        assert read_badge(png_of(image)) == badge
        for size, quality in (((320, 240), 95), ((512, 384), 40), ((1280, 960), 60)):
            file = io.BytesIO()
            image.resize(size).save(file, "JPEG", quality=quality)
            assert read_badge(file.getvalue()) == badge
    for seed, scene in enumerate(("desk", "cat", "night", "cake")):
        assert read_badge(png_of(draw_meme(scene, "cake\nfor all", seed=seed))) is None
    assert read_badge(png_of(Image.new("RGB", (64, 48), (255, 255, 255)))) is None


def test_planted_memes_have_the_described_faults(planted, pictures):
    known = {meme.id: meme for meme in planted.memes if meme.split == "test"}
    by_kind = {(meme.planted, meme.split): meme for meme in planted.memes if meme.planted}
    images = planted.root / "images"

    def pair(kind):
        return by_kind[kind, "train"], known[by_kind[kind, "train"].of]

    leaked, original = pair("same id")
    assert leaked.id == original.id and (leaked.text, leaked.image) != (original.text, original.image)
    leaked, original = pair("same file")
    assert (images / leaked.image).read_bytes() == (
        images / original.image
    ).read_bytes() and leaked.text != original.text
    leaked, original = pair("same picture")
    assert (images / leaked.image).read_bytes() != (images / original.image).read_bytes()
    assert pictures[leaked.image].pixels_sha256 == pictures[original.image].pixels_sha256
    leaked, original = pair("same text")
    assert (
        leaked.text == original.text and pictures[leaked.image].pixels_sha256 != pictures[original.image].pixels_sha256
    )
    leaked, original = pair("near-duplicate")
    assert leaked.text == original.text + "!" and read_badge((images / leaked.image).read_bytes()) == original.badge
    assert pictures[leaked.image].pixels_sha256 != pictures[original.image].pixels_sha256
    assert not (images / by_kind["missing picture", "train"].image).exists()
    document = json.loads((planted.root / SYNTHETIC_KEY).read_text())
    assert [plant["kind"] for plant in document["planted"]] == [meme.planted for meme in planted.memes if meme.planted]
    assert Counter(meme.split for meme in planted.memes if not meme.planted) == {"train": 40, "val": 8, "test": 24}
    assert all(meme.level == level_of(meme.text, meme.badge) for meme in planted.memes)


def test_synthetic_command(tmp_path):
    run = CliRunner().invoke
    sizes = ["--train", "8", "--val", "0", "--test", "8", "--layout", "fhm"]
    created = run(cli, ["synthetic", str(tmp_path / "out"), *sizes, "--plant", "leakage"])
    assert created.exit_code == 0 and "21 memes" in created.output and "as data set synthetic-fhm" in created.output
    assert "planted in train: near-duplicate, id 21, of 13" in created.output
    second = run(cli, ["synthetic", str(tmp_path / "out")])
    assert second.exit_code == 1 and "is not empty" in second.output
    assert run(cli, ["synthetic", str(tmp_path / "new"), "--plant", "weeds"]).exit_code == 2
    for wrong in ({"train": 0, "val": 0, "test": 0}, {"train": 13_000, "val": 0, "test": 0}):
        with pytest.raises(BadRequest, match="Between 1 and"):
            make(tmp_path / "new", Layout.FHM, **wrong)
    with pytest.raises(BadRequest, match="at least 5"):
        make(tmp_path / "new", Layout.FHM, train=4, val=0, test=4, plant=[Plant.LEAKAGE])


def drawn_world(count=2000):
    """Texts and badges of many memes, a third of them about another group than the one shown."""
    groups = list(GROUPS)
    for number in range(count):
        group = groups[number % len(groups)]
        saying = (*BAD, *KIND)[number % 32]
        text = text_of(OPENERS[number % 12], group, saying, f"{TIMES[number % 16]} {number}")
        yield text, group if number % 3 else groups[(number + 1) % len(groups)]


@pytest.mark.parametrize("ability", [Ability(), Ability(harmful=0.7, benign=0.95, seed=9)])
def test_oracle_with_all_aids_has_the_configured_accuracy(ability):
    hits, counts = Counter(), Counter()
    for text, badge in drawn_world():
        gold = level_of(text, badge) is not Level.NOT_HARMFUL
        answer = expected(text, badge, ability, precedents=[(text, badge, gold)])
        assert answer.recognised
        hits[gold] += answer.harmful == gold
        counts[gold] += 1
    for gold, share in ((True, ability.harmful), (False, ability.benign)):
        # Four standard errors of the share.
        assert hits[gold] / counts[gold] == pytest.approx(share, abs=4 * (share * (1 - share) / counts[gold]) ** 0.5)


def test_each_aid_lets_the_oracle_recognise_more_and_never_less():
    least = {"dull": True}
    steps = [least, {"advocates": False}, {"captioner": False}, {"stance_from_start": False}, {}]
    recognised = []
    for settings in steps:
        recognised.append(
            {i for i, (text, badge) in enumerate(drawn_world()) if expected(text, badge, ABLE, **settings).recognised}
        )
    assert recognised[0] < recognised[1] < recognised[2] == recognised[3] < recognised[4]
    for share, found in zip((0.4, 0.6, 0.7, 0.7, 0.8), recognised, strict=True):
        assert len(found) / 2000 == pytest.approx(share, abs=4 * (share * (1 - share) / 2000) ** 0.5)
    rightly = [(text, badge, level_of(text, badge) > 0) for text, badge in drawn_world(3)]
    for text, badge in drawn_world(200):
        plain = expected(text, badge, ABLE)
        assert expected(text, badge, ABLE, precedents=rightly).recognised
        wrong = [(t, b, not h) for t, b, h in rightly]
        assert expected(text, badge, ABLE, precedents=wrong) == plain


def test_without_a_picture_the_oracle_goes_by_the_words_alone():
    for text, badge in drawn_world(200):
        answer = judge(JudgeInput(text, None, badge, frozenset({"precedents"})), ABLE)
        assert not answer.recognised and answer.harmful == claim_of(text).bad
    assert judge(JudgeInput("cake for all", "Blueland"), ABLE).harmful  # in doubt


class SyntheticFinder(FakeFinder):
    """A finder that returns memes of the train split with their pictures."""

    def __init__(self, precedents, pictures):
        labels = [Label.HARMFUL if harmful else Label.NOT_HARMFUL for _, harmful in precedents]
        found = findings(labels)
        exhibits = tuple(
            exhibit.model_copy(update={"text": meme.text})
            for exhibit, (meme, _) in zip(found.exhibits, precedents, strict=True)
        )
        super().__init__(findings(labels, exhibits=exhibits))
        self._frames = [pictures[meme.image].frames[0] for meme, _ in precedents]

    async def pictures(self, ids):
        return self._frames[: len(ids)]


SETTINGS = {
    "full": ({}, {}),
    "no precedents": ({"precedents": False}, {}),
    "no advocates": ({"advocates": False}, {"advocates": False}),
    "no captioner": ({"captioner": False}, {"captioner": False}),
    "stance at the summary": ({"stance_at": "summary"}, {"stance_from_start": False}),
    "dull": ({"dull_judge": True}, {"dull": True}),
    "replies in parts": ({"prompts": "2"}, {}),
    "replies in parts, stance at the summary": ({"prompts": "2", "stance_at": "summary"}, {"stance_from_start": False}),
}


async def tried(meme, picture, finder, settings, model):
    role_model = RoleModel(model)
    court = Court(
        finder=finder,
        text_reader=FakeReader("not asked"),
        software="test",
        role_models=RoleModels(role_model, role_model, role_model, role_model),
        settings=(chosen := TrialSettings(**settings)),
        prompts=open_set(chosen.prompts),
    )
    return await court.run(TrialCase("t", Meme(picture, meme.text), Procedure.FULL), RecordingSink())


def try_with_oracle(*arguments):
    return asyncio.run(tried(*arguments))


@pytest.mark.parametrize("truthful", [True, False], ids=["right labels", "wrong labels"])
@pytest.mark.parametrize("name", SETTINGS)
def test_full_trial_ends_exactly_as_expected(name, truthful, memes, pictures):
    settings, changed = SETTINGS[name]
    train = [meme for meme in memes if meme.split == "train"][:3]
    labelled = [(meme, meme.harmful == truthful) for meme in train]
    finder = SyntheticFinder(labelled, pictures)
    precedents = [(meme.text, meme.badge, label) for meme, label in labelled]
    precedents = precedents if settings.get("precedents", True) else []
    for meme in [meme for meme in memes if meme.split == "test"][:6]:
        model = oracle(ABLE)
        record = try_with_oracle(meme, pictures[meme.image], finder, settings, model)
        expectation = expected(meme.text, meme.badge, ABLE, precedents=precedents, **changed)
        verdict = record.verdict
        assert (verdict.label is Label.HARMFUL, verdict.harm_score) == (
            expectation.harmful,
            pytest.approx(expectation.probability),
        )
        assert (verdict.strengths.harmful.level == 3) == (expectation.level is Level.VERY_HARMFUL)
        rounds = [event.rounds for event in record.events if isinstance(event, SideRested)]
        sides = 0 if name in ("dull", "no advocates") else 2
        assert rounds == [0 if name == "no captioner" else rounds_of(meme.text)] * sides


def test_wrong_picture_misleads_the_judge_and_swapped_sides_do_not_help(memes, pictures):
    """The oracle really sees the picture: if the pictures of two memes were swapped on the way, the outcome would
    change.
    """
    harmful = [meme for meme in memes if meme.harmful]
    able = Ability(harmful=1, benign=1, eyes=1)
    for meme in harmful[:4]:
        other = next(candidate for candidate in memes if candidate.badge != meme.badge)
        finder = SyntheticFinder([(meme, True)] * 3, pictures)
        settings = {"dull_judge": True}
        assert (
            try_with_oracle(meme, pictures[meme.image], finder, settings, oracle(able)).verdict.label is Label.HARMFUL
        )
        mixed = try_with_oracle(meme, pictures[other.image], finder, settings, oracle(able))
        assert mixed.verdict.label is Label.NOT_HARMFUL

    def rationale_for(accuser, defender, meme, ability):
        frame = Frame(pictures[meme.image].frames[0].png, 640, 480)
        sides = "The side that says it is harmful:\n{}\n\nThe side that says it is not:\n{}"
        fenced = [f"[begin m]\n{text}\n[end m]" for text in (meme.text, accuser, defender)]
        parts = (
            frame,
            "Above: the meme that is judged.",
            f"Text of the meme that is judged:\n{fenced[0]}",
            sides.format(*fenced[1:]),
        )
        request = ChatRequest("", parts, ruling_schema(DEFAULT_POLICY, 0, 400), 100)
        return json.loads(asyncio.run(oracle(ability).reply(request, within_s=1)).text)["rationale"]

    blind = Ability(eyes=0, answers=1)
    meme = memes[0]
    words = f"harm: as the witness answered there is the badge of {meme.badge}."
    assert rationale_for(f"For {words}", f"Against {words}", meme, blind) == "The badge was made out."
    assert rationale_for(f"Against {words}", f"For {words}", meme, blind) != "The badge was made out."


def test_oracle_gives_the_same_answers_over_a_socket(memes, pictures):
    assert parsed(["--play", "synthetic"])[0].play == "synthetic" and parsed(["--play"])[0].play == "rounds"
    tests = [meme for meme in memes if meme.split == "test"][:3]
    finder = SyntheticFinder([(meme, meme.harmful) for meme in memes[:3]], pictures)

    async def hear():
        served = FakeModelServer(Settings(play="synthetic"))
        async with serving(served) as port:
            model = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", model="stand-in")
            try:
                await probe(model, within_s=30)
                assert model.capabilities.picture_ids and model.capabilities.json_schema
                return [await tried(meme, pictures[meme.image], finder, {}, model) for meme in tests]
            finally:
                await model.aclose()

    precedents = [(meme.text, meme.badge, meme.harmful) for meme in memes[:3]]
    for meme, record in zip(tests, asyncio.run(hear()), strict=True):
        expectation = expected(meme.text, meme.badge, Ability(), precedents=precedents)
        assert (record.verdict.label is Label.HARMFUL) == expectation.harmful
        assert record.verdict.harm_score == pytest.approx(expectation.probability)
