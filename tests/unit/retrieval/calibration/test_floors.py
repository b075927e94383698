import numpy as np
import pytest

from court.precedents import MinSimilarity
from court.verdict import Label
from retrieval.calibration.thresholds import NO_PAIR, measure_min_similarity, measure_text_floors
from retrieval.embed.encoder import PartialMinSimilarity, unit_rows
from retrieval.library.manifest import LabelledMeme
from retrieval.text import script_of


def meme(number, text=None, picture=None):
    return LabelledMeme(
        id=f"m{number}",
        label=Label.HARMFUL,
        text=f"note {number}" if text is None else text,
        pixels_sha256=f"{number}" if picture is None else picture,
        has_text=text != "",
        has_picture=picture != "",
    )


def random_rows(n, lift, seed=0):
    """Returns rows of two halves, 32 and 48 wide; picture halves share a direction, as CLIP's do."""
    rng = np.random.default_rng(seed)
    text, picture = rng.normal(size=(n, 32)), rng.normal(size=(n, 48)) + lift
    return np.hstack([unit_rows(text), unit_rows(picture)])


def percentile_95(half):
    similar = half.astype(np.float64) @ half.T
    return float(np.quantile(similar[~np.eye(len(half), dtype=bool)], 0.95))


def test_floors_unknown_to_the_encoder_are_measured_on_pairs():
    rows, memes = random_rows(400, 0.7), [meme(n) for n in range(400)]
    floors = measure_min_similarity(rows, memes, 32, PartialMinSimilarity())
    assert floors.text == pytest.approx(percentile_95(rows[:, :32]), abs=0.01)
    assert floors.picture == pytest.approx(percentile_95(rows[:, 32:]), abs=0.01)
    assert floors.picture > floors.text + 0.05  # the shared direction raises it
    assert measure_min_similarity(rows, memes, 32, PartialMinSimilarity()) == floors
    assert measure_min_similarity(rows, memes, 32, PartialMinSimilarity(text=0.385)) == MinSimilarity(
        text=0.385, picture=floors.picture
    )
    assert measure_min_similarity(rows, memes, 32, MinSimilarity(text=0.1, picture=0.2)) == MinSimilarity(
        text=0.1, picture=0.2
    )


def test_duplicates_do_not_count_as_unrelated_memes():
    rows, memes = random_rows(60, 0.3), [meme(n) for n in range(60)]
    plain = measure_min_similarity(rows, memes, 32, PartialMinSimilarity())
    # A template with ninety further copies would otherwise make half of all pairs identical.
    again = np.vstack([rows, np.repeat(rows[:1], 90, axis=0)])
    copies = [meme(100 + n, text="NOTE  0", picture="0") for n in range(90)]
    assert measure_min_similarity(again, [*memes, *copies], 32, PartialMinSimilarity()) == plain
    others = [meme(100 + n) for n in range(90)]
    assert measure_min_similarity(again, [*memes, *others], 32, PartialMinSimilarity()).picture > 0.99


def test_missing_halves_are_ignored():
    rows, memes = random_rows(50, 0.3), [meme(n) for n in range(50)]
    plain = measure_min_similarity(rows, memes, 32, PartialMinSimilarity())
    blank = np.zeros((50, 80), dtype=np.float32)
    blank[:, :32] = random_rows(50, 0.3, seed=1)[:, :32]
    without = [meme(100 + n, picture="") for n in range(50)]
    found = measure_min_similarity(np.vstack([rows, blank]), [*memes, *without], 32, PartialMinSimilarity())
    assert found.picture == plain.picture and found.text != plain.text
    only = measure_min_similarity(blank, without, 32, PartialMinSimilarity())
    assert only.picture == NO_PAIR
    assert measure_min_similarity(rows[:1], memes[:1], 32, PartialMinSimilarity()) == MinSimilarity(
        text=NO_PAIR, picture=NO_PAIR
    )


def test_text_floor_of_a_script_is_measured_on_texts_of_that_script():
    rows = random_rows(200, 0.3)
    # Unrelated texts of the second script are similar, as for a model that knows only its letters.
    rows[100:, :32] = unit_rows(rows[100:, :32] + 3 * np.eye(32)[0])
    memes = [meme(n, text=f"note {n}" if n < 100 else f"записка {n}") for n in range(200)]
    floors = measure_text_floors(rows, memes, 32, PartialMinSimilarity())
    assert floors["LATIN"] == pytest.approx(percentile_95(rows[:100, :32]), abs=0.01)
    assert floors["CYRILLIC"] == pytest.approx(percentile_95(rows[100:, :32]), abs=0.01)
    assert floors["CYRILLIC"] > floors["LATIN"] + 0.3
    # An encoder's own floor applies to Latin. Scripts with few memes, and digits, are not measured.
    assert set(measure_text_floors(rows, memes, 32, MinSimilarity(text=0.4, picture=0.5))) == {"CYRILLIC"}
    assert measure_text_floors(rows[100:140], memes[100:140], 32, PartialMinSimilarity()) == {}
    figures = [meme(n, text=f"{n}") for n in range(200)]
    assert measure_text_floors(rows, figures, 32, PartialMinSimilarity()) == {}


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("people from Blueland", "LATIN"),
        ("кот and спит на окне", "CYRILLIC"),
        ("蓝国的人", "CJK"),
        ("คนจากเมือง", "THAI"),
        ("50 % 😂", ""),
        ("", ""),
    ],
)
def test_script_of_a_text_is_that_of_most_of_its_letters(text, script):
    assert script_of(text) == script
