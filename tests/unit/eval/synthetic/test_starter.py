"""Tests of the starter library: the content of its memes, and that they can be drawn and read."""

import json
import re
from collections import Counter
from datetime import date
from importlib.resources import files
from itertools import pairwise

import pytest
from click.testing import CliRunner
from PIL import Image

from eval.cli import cli
from eval.synthetic.scenes import SCENES, caption_lines, draw_meme, write_starter
from retrieval.library.readers import read_source
from retrieval.library.sources import Source

MEMES = [
    json.loads(line)
    for line in files("retrieval.starter").joinpath("memes.jsonl").read_text(encoding="utf-8").splitlines()
]
CATEGORIES = {
    "race", "gender", "religion", "nationality", "disability", "animal", "politics", "health misinformation",
    "insult", "dangerous dare",
}  # fmt: skip
# Prefixes of words, so that "german" finds "Germans": peoples, countries, faiths, and a few parties and brands.
REAL_NAMES = re.findall(
    r"\w+",
    """
    afghan africa albania algeri america angol arab argentin armen asia austral austria azerbai bangla belarus
    belgi bolivia bosnia brazil britain british bulgar burm cambod canad chile chin colomb congo croat cuba cypr
    czech dane danish denmark dutch ecuador egypt england english eritre eston ethiopia europ finland finnish
    france french georgia german ghana greece greek guatemal haiti hungar iceland india indones iran iraq
    ireland irish israel ital jamaica japan jordan kazakh kenya korea kosov kurd kuwait latin latvia leban libya
    lithuan malays mali maltes mexic moldov mongol morocc myanmar nepal netherland nicarag niger norw pakist
    palestin panama paragua persia peru philippin filipin poland portug qatar roma romani russia rwanda saudi
    scot senegal serb singapor slovak sloven somal spain spanish sri sudan swed swiss switzerland syria taiwan
    tanzan thai tibet tunis turk uganda ukrain urugua uzbek venezuel vietnam wales welsh yemen zambia zimbab
    allah amish atheis baha bapti bible buddh cathol christ church easter evangel god hindu imam islam jain
    jehov jesus jew judais koran lent lutheran mecca methodis mormon mosque muslim orthodox pagan pastor pope
    priest protestant quran rabbi ramadan scientolog shia shinto sikh sunni synagog tao torah vatican democrats
    republicans tories labour facebook google instagram microsoft pfizer tiktok twitter whatsapp youtube
    """,
)


def test_there_are_120_distinct_memes_about_half_of_them_harmful():
    assert [meme["id"] for meme in MEMES] == [f"starter-{i:03d}" for i in range(1, 121)]
    labels = Counter(meme["label"] for meme in MEMES)
    assert set(labels) == {"HARMFUL", "NOT_HARMFUL"} and 55 <= labels["HARMFUL"] <= 65
    assert len({words(meme["text"]) for meme in MEMES}) == 120


def test_every_meme_is_a_plain_short_caption_with_the_same_fields():
    fields = ("id", "label", "text", "categories", "scene", "image", "verified_by", "verified_on")
    for meme in MEMES:
        assert tuple(meme) == fields and meme["verified_by"] and date.fromisoformat(meme["verified_on"])
        text = meme["text"]
        assert text.isascii() and text == text.strip() and text.count("\n") <= 1 and 4 <= len(text.split()) <= 30
        assert bool(meme["categories"]) == (meme["label"] == "HARMFUL"), meme
    assert {category for meme in MEMES for category in meme["categories"]} == CATEGORIES


def test_data_set_has_the_library_and_200_other_memes_to_judge(tmp_path):
    outcome = CliRunner().invoke(cli, ["synthetic", str(tmp_path / "data"), "--layout", "starter"])
    assert outcome.exit_code == 0 and outcome.output.splitlines()[-1].startswith("320 memes")
    train, test = (read_source(Source(tmp_path / "data" / f"{name}.jsonl")) for name in ("train", "test"))
    assert not train.problems and not test.problems
    assert len(test.good) == 200 and sum(row.label == "HARMFUL" for row in test.good) == 100
    for row in (*train.good, *test.good):
        assert (tmp_path / "data" / "images" / row.image).is_file()
    assert not {words(row.text) for row in train.good} & {words(row.text) for row in test.good}
    assert {row.text: found for row in test.good if (found := real_names_in(row.text))} == {}
    again = CliRunner().invoke(cli, ["synthetic", str(tmp_path / "data"), "--layout", "starter"])
    assert again.exit_code == 1 and "not empty" in again.output


def words(text):
    return " ".join(re.findall(r"\w+", text.casefold()))


def test_shipped_pictures_are_those_that_are_drawn(tmp_path):
    write_starter(tmp_path, MEMES[::10])
    shipped = files("retrieval.starter").joinpath("pictures")
    assert {entry.name for entry in shipped.iterdir()} == {meme["image"] for meme in MEMES}
    for drawn in tmp_path.iterdir():
        # By their pixels: other versions of zlib compress to other bytes.
        with Image.open(drawn) as ours, Image.open(str(shipped / drawn.name)) as theirs:
            assert ours.tobytes() == theirs.tobytes(), drawn.name


def test_scene_does_not_reveal_the_label():
    assert {meme["scene"] for meme in MEMES} == set(SCENES)
    assert len(SCENES) >= 12
    for scene in SCENES:
        harmful = [meme["label"] == "HARMFUL" for meme in MEMES if meme["scene"] == scene]
        assert 0.4 <= sum(harmful) / len(harmful) <= 0.6, scene


@pytest.mark.parametrize("text", ["a Germanic tale", "Those BRITISH hats", "go to church"])
def test_the_word_list_finds_real_names(text):
    assert real_names_in(text)


def test_no_meme_names_a_real_people_faith_or_brand():
    assert {meme["id"]: found for meme in MEMES if (found := real_names_in(meme["text"]))} == {}


def real_names_in(text):
    return [word for word in re.findall(r"[a-z]+", text.casefold()) if word.startswith(tuple(REAL_NAMES))]


@pytest.mark.parametrize("size", [(640, 480), (320, 240), (480, 640), (1024, 400)])
def test_every_caption_is_complete_and_inside_the_picture(size):
    for meme in MEMES:
        lines = caption_lines(meme["text"], size)
        assert " ".join(line.text for line in lines).split() == meme["text"].split()
        for line in lines:
            left, top, right, bottom = line.box
            assert left >= 0 and top >= 0 and right <= size[0] and bottom <= size[1], (meme["id"], line)


def test_captions_stay_readable_at_640_pixels_and_their_lines_do_not_touch():
    for meme in MEMES:
        lines = caption_lines(meme["text"])
        assert min(line.font_size for line in lines) >= 24
        assert all(upper.box[3] <= lower.box[1] for upper, lower in pairwise(lines)), meme["id"]


def test_word_wider_than_the_picture_is_broken():
    lines = caption_lines("b" * 120)
    assert len(lines) > 1
    assert "".join(line.text for line in lines) == "b" * 120


@pytest.mark.slow
def test_text_that_cannot_fit_is_refused_and_not_cut():
    with pytest.raises(ValueError, match="does not fit"):
        caption_lines("far too many words " * 400, (320, 240))


def test_empty_text_has_no_caption_and_other_sizes_are_drawn():
    assert caption_lines("") == []
    assert draw_meme("cat", "").size == (640, 480)
    assert draw_meme("road", "four words stand here", size=(400, 500)).size == (400, 500)


@pytest.mark.parametrize("scene", SCENES)
def test_drawing_is_deterministic_and_the_seed_varies_it(scene):
    first = draw_meme(scene, "Monday: 1\nMe: 0", seed=3)
    assert first.mode == "RGB"
    assert first.tobytes() == draw_meme(scene, "Monday: 1\nMe: 0", seed=3).tobytes()
    assert len({draw_meme(scene, "", seed=seed).tobytes() for seed in range(6)}) > 1


def test_scenes_are_visually_different():
    assert len({draw_meme(scene, "").resize((8, 6)).tobytes() for scene in SCENES}) == len(SCENES)


def test_unknown_scene_is_named_in_the_error():
    with pytest.raises(ValueError, match="'moonbase'"):
        draw_meme("moonbase", "")
