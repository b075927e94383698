"""Tests of the precedents of a run: every leak is found under its right reason, and no other precedent is excluded."""

import asyncio
import json
from collections import Counter
from types import SimpleNamespace

import pytest
from PIL import Image

from court.backends.pictures.reader import GuardedPictureReader
from court.errors import BadRequest
from court.events import Procedure
from eval.datasets.items import JudgedMeme
from eval.datasets.known import find_card
from eval.datasets.read import read_split, source_of
from eval.runs.judge import material_of
from eval.runs.plan import Plan
from eval.runs.precedents import prepare_precedents, read_prepared, shuffle_labels
from eval.solvers.question import question_about
from eval.synthetic.make import Layout, Plant, make
from retrieval.audit.leakage import TEMPLATE, LeakThresholds
from retrieval.embed.builtin import BuiltinEncoder
from retrieval.library.library import Library
from retrieval.library.manifest import USUAL
from retrieval.library.sources import Source
from serving.settings import Settings
from tests.support.cards import own_card
from tests.support.encoders import PlainPictureReader, WordEncoder, png_of
from tests.support.paths import ROOT
from tests.support.pictures import BLUE, GREEN, RED, WHITE, encode

HARMEME = ROOT.parent / "shared" / "data" / "harmeme"
ENCODER = WordEncoder()
LONG = "one two three four five six seven eight nine ten"


def rows(*memes, label="1"):
    """Lines of a file from triples of id, picture and text."""
    return "".join(
        json.dumps({"id": id_, "image": image, "text": text, "label": label}) + "\n" for id_, image, text in memes
    )


def judged_memes(*memes):
    return [
        JudgedMeme(id=id_, split="test", line=line, image=image, text=text, harmful=False, source_label="0")
        for line, (id_, image, text) in enumerate(memes, 1)
    ]


def prepare(root, train, memes, *, place="library", **options):
    (root / "train.jsonl").write_text(train)
    pictures = root / "img"
    return asyncio.run(
        prepare_precedents(
            root / place,
            train=[Source(root / "train.jsonl", pictures=pictures if pictures.is_dir() else None)],
            judged=memes,
            pictures=pictures if pictures.is_dir() else None,
            encoder=ENCODER,
            reader=PlainPictureReader(),
            **options,
        )
    )


def picture(root, name, data):
    (root / "img").mkdir(exist_ok=True)
    (root / "img" / name).write_bytes(data)
    return name


def pictures(root):
    """A picture, another one, and the first with one pixel of another colour."""
    touched = Image.new("RGB", (16, 8), RED)
    touched.paste(BLUE, (8, 0, 16, 8))
    touched.putpixel((0, 0), WHITE)
    drawn = {"a.png": png_of(RED, BLUE), "b.png": png_of(GREEN, WHITE), "c.png": encode(touched, "PNG")}
    first, other, retouched = (picture(root, name, data) for name, data in drawn.items())
    return first, other, retouched


def reasons(prepared):
    return {excluded.precedent: (excluded.meme, excluded.why) for excluded in prepared.check.excluded}


@pytest.mark.slow
@pytest.mark.parametrize("layout", Layout)
def test_exactly_the_planted_leaks_are_found(tmp_path, layout):
    data = make(tmp_path / "data", layout, train=60, val=0, test=12, seed=3, plant=[Plant.LEAKAGE])
    dataset = find_card(data.dataset)
    test = next(split.name for split in dataset.all_splits() if split.role == "test")
    read = read_split(dataset, data.root, test)

    async def prepared():
        reader = GuardedPictureReader(workers=1)
        try:
            return await prepare_precedents(
                tmp_path / "library",
                train=[source_of(dataset, data.root, "train")],
                judged=read.memes,
                pictures=read.pictures,
                encoder=BuiltinEncoder(),
                reader=reader,
            )
        finally:
            await reader.aclose()

    found = asyncio.run(prepared())
    # The measured library votes with the same safeguards as a served one.
    safeguards = found.library.manifest.tuning.safeguards
    assert safeguards == USUAL.model_copy(update={"sources": safeguards.sources})
    planted = {meme.id: (meme.of, meme.planted) for meme in data.memes if meme.planted}
    assert reasons(found) == planted
    assert Counter(kind for _, kind in planted.values()) == Counter(one.why for one in found.check.excluded)
    assert {meme.id for meme in found.library.memes}.isdisjoint(planted)
    assert len(found.library.memes) == 60
    assert not found.check.notes


def test_first_reason_is_recorded_with_the_similarities(tmp_path):
    same, other = picture(tmp_path, "a.png", png_of(RED, BLUE)), picture(tmp_path, "b.png", png_of(GREEN, WHITE))
    train = rows(("j1", same, "one two"), ("t2", same, "three four"), ("t3", other, "one two"), ("t4", other, "x y z"))
    found = prepare(tmp_path, train, judged_memes(("j0", "", "other words"), ("j1", same, "One  two")))
    assert reasons(found) == {"j1": ("j1", "same id"), "t2": ("j1", "same file"), "t3": ("j1", "same text")}
    first, second, third = found.check.excluded
    assert (first.text_similarity, first.picture_similarity) == (1, 1)
    assert second.picture_similarity == 1 and second.text_similarity < 0.8
    assert third.text_similarity == 1 and third.picture_similarity < 0.7


def test_another_file_of_the_same_pixels_is_a_leak(tmp_path):
    still = Image.new("RGB", (9, 9), RED)
    one = picture(tmp_path, "a.png", encode(still, "PNG", compress_level=0))
    two = picture(tmp_path, "b.png", encode(still, "PNG", compress_level=9))
    found = prepare(tmp_path, rows(("t1", one, "a b"), ("t2", "", "c d")), judged_memes(("j1", two, "e f")))
    assert reasons(found) == {"t1": ("j1", "same picture")}


def test_near_duplicate_must_match_in_picture_and_text(tmp_path):
    close, far, retouched = pictures(tmp_path)
    train = rows(
        ("both", close, f"{LONG} eleven"), ("text", far, f"{LONG} twelve"), ("look", close, "quite other words")
    )
    found = prepare(tmp_path, train, judged_memes(("j1", retouched, LONG)))
    assert reasons(found) == {"both": ("j1", "near-duplicate")}
    assert found.check.excluded[0].text_similarity > 0.8 and found.check.excluded[0].picture_similarity > 0.7
    stricter = prepare(
        tmp_path, train, judged_memes(("j1", retouched, LONG)), place="stricter", nearness=LeakThresholds(text=0.999)
    )
    assert not stricter.check.excluded and stricter.check.nearness.text == 0.999


def test_memes_on_the_same_template_are_excluded_when_requested(tmp_path):
    close, far, retouched = pictures(tmp_path)
    train = rows(
        ("copy", close, f"{LONG} eleven"), ("look", close, "quite other words"), ("far", far, "x y"), ("mute", "", "z")
    )
    memes = judged_memes(("j1", retouched, LONG))
    apart = prepare(tmp_path, train, memes, place="apart", nearness=LeakThresholds(template=TEMPLATE))
    assert reasons(apart) == {"copy": ("j1", "near-duplicate"), "look": ("j1", "same template")}
    assert {meme.id for meme in apart.library.memes} == {"far", "mute"}
    assert apart.check.counts == "1 near-duplicate, 1 same template"
    assert apart.check.nearness.template == TEMPLATE
    with pytest.raises(BadRequest, match="other thresholds"):
        prepare(tmp_path, train, memes, place="apart")


def test_pictures_without_text_are_compared_alone(tmp_path):
    close, _, retouched = pictures(tmp_path)
    train = rows(("mute", close, ""), ("speaks", close, "some words"))
    assert reasons(prepare(tmp_path, train, judged_memes(("j1", retouched, "")))) == {"mute": ("j1", "near-duplicate")}


def test_similar_texts_without_pictures_are_reported_but_not_excluded(tmp_path):
    train = rows(("near", "", f"{LONG} eleven"), ("same", "", LONG), ("blank", "", "  "), ("far", "", "quite others"))
    found = prepare(tmp_path, train, judged_memes(("j1", "", LONG), ("j2", "", "")))
    assert reasons(found) == {"same": ("j1", "same text")}
    assert {meme.id for meme in found.library.memes} == {"near", "far"}
    notes = " ".join(found.check.notes)
    assert "1 precedents are near a judged meme by their text" in notes
    assert "2 of 2 judged memes were compared with the precedents without their picture" in notes
    assert "1 of the 4 rows of the train split can't be used" in notes


def test_prepared_library_is_reused_and_refused_for_other_memes(tmp_path):
    train, memes = rows(("t1", "", "one"), ("t2", "", "two")), judged_memes(("j1", "", "one"))
    first = prepare(tmp_path, train, memes)
    second = prepare(tmp_path, train, memes)
    assert second.library.digest == first.library.digest and second.check.excluded == first.check.excluded
    assert read_prepared(tmp_path / "library", ENCODER).check.excluded == first.check.excluded
    with pytest.raises(BadRequest) as refused:
        prepare(tmp_path, train, judged_memes(("j1", "", "two")))
    assert refused.value.reason == "LIBRARY_FOR_OTHERS"
    (tmp_path / "library.json").unlink()
    with pytest.raises(BadRequest) as unknown:
        read_prepared(tmp_path / "library", ENCODER)
    assert unknown.value.reason == "LIBRARY_UNCHECKED"
    # An interrupted start, before the file that describes the library was written.
    assert prepare(tmp_path, train, memes).check.excluded == first.check.excluded


def test_train_split_is_embedded_once_through_the_cache(tmp_path):
    train = rows(("t1", "", "one"), ("t2", "", "two"), ("t3", "", "three"))
    prepare(tmp_path, train, judged_memes(("j1", "", "one")), cache=tmp_path / "cache")
    (cached,) = (tmp_path / "cache").iterdir()
    before = Library.open(cached, ENCODER.identity).digest
    steps: list[str] = []
    prepare(
        tmp_path,
        train,
        judged_memes(("j2", "", "two")),
        place="second",
        cache=tmp_path / "cache",
        progress=lambda step, done, total: steps.append(step),
    )
    assert Library.open(cached, ENCODER.identity).digest == before
    assert "judged texts" in steps and "texts" not in steps
    prepare(
        tmp_path,
        train + rows(("t4", "", "four")),
        judged_memes(("j1", "", "one")),
        place="third",
        cache=tmp_path / "cache",
    )
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_excluding_every_precedent_is_an_error(tmp_path):
    with pytest.raises(BadRequest) as refused:
        prepare(tmp_path, rows(("t1", "", "one")), judged_memes(("j1", "", "one")))
    assert refused.value.reason == "NOTHING_TO_CITE"


def test_shuffled_labels_preserve_their_counts_and_take_categories_along(tmp_path):
    lines = [
        {"id": f"t{n}", "text": f"word{n}", "label": str(int(n % 3 == 0)), "categories": ["x"] if n % 3 == 0 else []}
        for n in range(60)
    ]
    train = "".join(json.dumps(line) + "\n" for line in lines)
    plain = prepare(tmp_path, train, judged_memes(("j1", "", "other")))
    mixed = prepare(tmp_path, train, judged_memes(("j1", "", "other")), place="mixed", shuffled_labels=5)
    labels = [[meme.label for meme in prepared.library.memes] for prepared in (plain, mixed)]
    assert labels[0] != labels[1] and Counter(labels[0]) == Counter(labels[1])
    assert [meme.text for meme in plain.library.memes] == [meme.text for meme in mixed.library.memes]
    assert all(bool(meme.categories) == meme.harmful for meme in mixed.library.memes)
    assert mixed.library.manifest.name.endswith("shuffled labels (seed 5)")
    assert [meme.label for meme in shuffle_labels(plain.library.memes, 5)] == labels[1]
    assert [meme.label for meme in shuffle_labels(plain.library.memes, 6)] != labels[1]


def test_leaks_stay_in_when_requested_and_the_library_says_so(tmp_path):
    train = rows(("t1", "", "one two"), ("t2", "", "three four"))
    memes = judged_memes(("j1", "", "One  two"))
    with_leaks = prepare(tmp_path, train, memes, keep_leaks=True)
    assert [meme.id for meme in with_leaks.library.memes] == ["t1", "t2"] and not with_leaks.check.excluded
    assert with_leaks.library.manifest.name.endswith(", with leaks")
    assert "1 precedents too near to a judged meme were kept (a control): 1 same text." in with_leaks.check.notes
    assert prepare(tmp_path, train, memes, keep_leaks=True).library.digest == with_leaks.library.digest
    # The same folder is refused to a run that must not have leaks.
    with pytest.raises(BadRequest) as refused:
        prepare(tmp_path, train, memes)
    assert refused.value.reason == "LIBRARY_FOR_OTHERS"


@pytest.mark.slow
@pytest.mark.skipif(not HARMEME.is_dir(), reason="the annotations of HarMeme are not here")
@pytest.mark.parametrize(("folder", "same_text"), [("Harm-C", 31), ("Harm-P", 11)])
def test_harmeme_validation_split_has_the_known_leaks_by_text(tmp_path, folder, same_text):
    """Counts only; they were obtained by comparing the keys of the texts pair by pair."""
    dataset = find_card(folder.lower())
    memes = read_split(dataset, HARMEME / folder, "val").memes
    found = asyncio.run(
        prepare_precedents(
            tmp_path / "library",
            train=[source_of(dataset, HARMEME / folder, "train")],
            judged=memes,
            pictures=None,
            encoder=ENCODER,
            reader=PlainPictureReader(),
        )
    )
    assert found.check.counts == f"{same_text:,} same text"
    assert len(found.library.memes) > 2500


def material(tmp_path, rows, *inputs):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {"id": "id", "text": "text", "picture": "image", "language": "lang"}
    card = own_card("jsonl", ["rows.jsonl"], fields=fields)
    plan = Plan(
        out=tmp_path / "run",
        name="run",
        dataset=card,
        data=tmp_path,
        split="all",
        procedure=Procedure.FULL,
        protocols=(),
        settings=Settings(),
        question=question_about(card.task("harm"), inputs=inputs),
    )
    return material_of(plan, SimpleNamespace(tell=print, tell_once=print))


def row(id_, **others):
    return {"id": id_, "text": "a pond", "image": f"{id_}.png", "label": 0} | others


def test_language_found_only_in_a_later_row_is_not_missing(tmp_path):
    # The first row has the text and a later one the language: both fields exist.
    found = material(tmp_path, [row("a", lang=""), row("b", lang="en")], "text", "language")
    assert [meme.language for meme in found.memes] == ["", "en"]
    with pytest.raises(BadRequest, match="No meme has a field language"):
        material(tmp_path, [row("a", lang=""), row("b", lang="")], "text", "language")
