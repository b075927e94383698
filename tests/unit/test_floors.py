from __future__ import annotations

import numpy as np
import pytest

from court.precedents import MinSimilarity
from court.verdict import Label
from retrieval.calibration.thresholds import NO_PAIR, measure_min_similarity, measure_text_floors
from retrieval.embed.encoder import PartialMinSimilarity, unit_rows
from retrieval.library.manifest import LabelledMeme
from retrieval.text import script_of


def meme(number: int, text: str | None = None, picture: str | None = None) -> LabelledMeme:
    return LabelledMeme(
        id=f"m{number}",
        label=Label.HARMFUL,
        text=f"note {number}" if text is None else text,
        pixels_sha256=f"{number}" if picture is None else picture,
        has_text=text != "",
        has_picture=picture != "",
    )


def cone(n: int, lift: float, seed: int = 0) -> np.ndarray:
    """Rows of two halves, 32 and 48 wide; the picture half has a direction in common, as CLIP's have."""
    rng = np.random.default_rng(seed)
    text, picture = rng.normal(size=(n, 32)), rng.normal(size=(n, 48)) + lift
    return np.hstack([unit_rows(text), unit_rows(picture)])


def by_hand(half: np.ndarray) -> float:
    similar = half.astype(np.float64) @ half.T
    return float(np.quantile(similar[~np.eye(len(half), dtype=bool)], 0.95))


def test_what_the_encoder_does_not_know_is_told_from_pairs() -> None:
    rows, memes = cone(400, 0.7), [meme(n) for n in range(400)]
    told = measure_min_similarity(rows, memes, 32, PartialMinSimilarity())
    assert told.text == pytest.approx(by_hand(rows[:, :32]), abs=0.01)
    assert told.picture == pytest.approx(by_hand(rows[:, 32:]), abs=0.01)
    assert told.picture > told.text + 0.05  # the cone shows
    assert measure_min_similarity(rows, memes, 32, PartialMinSimilarity()) == told
    assert measure_min_similarity(rows, memes, 32, PartialMinSimilarity(text=0.385)) == MinSimilarity(
        text=0.385, picture=told.picture
    )
    assert measure_min_similarity(rows, memes, 32, MinSimilarity(text=0.1, picture=0.2)) == MinSimilarity(
        text=0.1, picture=0.2
    )


def test_twins_are_no_unrelated_memes() -> None:
    rows, memes = cone(60, 0.3), [meme(n) for n in range(60)]
    plain = measure_min_similarity(rows, memes, 32, PartialMinSimilarity())
    # A template that stands there ninety times more would make half of all pairs the same.
    again = np.vstack([rows, np.repeat(rows[:1], 90, axis=0)])
    copies = [meme(100 + n, text="NOTE  0", picture="0") for n in range(90)]
    assert measure_min_similarity(again, [*memes, *copies], 32, PartialMinSimilarity()) == plain
    others = [meme(100 + n) for n in range(90)]
    assert measure_min_similarity(again, [*memes, *others], 32, PartialMinSimilarity()).picture > 0.99


def test_a_half_that_is_not_there_has_no_say() -> None:
    rows, memes = cone(50, 0.3), [meme(n) for n in range(50)]
    plain = measure_min_similarity(rows, memes, 32, PartialMinSimilarity())
    blank = np.zeros((50, 80), dtype=np.float32)
    blank[:, :32] = cone(50, 0.3, seed=1)[:, :32]
    without = [meme(100 + n, picture="") for n in range(50)]
    found = measure_min_similarity(np.vstack([rows, blank]), [*memes, *without], 32, PartialMinSimilarity())
    assert found.picture == plain.picture and found.text != plain.text
    only = measure_min_similarity(blank, without, 32, PartialMinSimilarity())
    assert only.picture == NO_PAIR
    assert measure_min_similarity(rows[:1], memes[:1], 32, PartialMinSimilarity()) == MinSimilarity(
        text=NO_PAIR, picture=NO_PAIR
    )


def test_texts_of_a_script_are_held_against_others_of_it() -> None:
    rows = cone(200, 0.3)
    # Unrelated texts of the second script lie near each other, as where a model only spells it.
    rows[100:, :32] = unit_rows(rows[100:, :32] + 3 * np.eye(32)[0])
    memes = [meme(n, text=f"note {n}" if n < 100 else f"записка {n}") for n in range(200)]
    told = measure_text_floors(rows, memes, 32, PartialMinSimilarity())
    assert told["LATIN"] == pytest.approx(by_hand(rows[:100, :32]), abs=0.01)
    assert told["CYRILLIC"] == pytest.approx(by_hand(rows[100:, :32]), abs=0.01)
    assert told["CYRILLIC"] > told["LATIN"] + 0.3
    # What an encoder knows stands for Latin letters; a script of a few memes is not measured, nor are figures.
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
def test_the_script_of_a_text_is_that_of_most_of_its_letters(text: str, script: str) -> None:
    assert script_of(text) == script
