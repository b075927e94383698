"""Words of label columns: which of two is harmful, and which are missing values."""

import pytest

from court.errors import BadRequest
from retrieval.library.readers import classes_of, label_counts


@pytest.mark.parametrize(
    ("benign", "harmful"),
    [
        ("non-hateful", "hateful"),
        ("harmless", "harmful"),
        ("none", "hate"),
        ("ok", "toxic"),
        ("0", "1"),
        ("nonhateful", "hateful"),
        ("hate_no", "hate_yes"),
        ("Normal", "weird"),
        ("not_propaganda", "propaganda"),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_one_mark_tells_the_benign_label_in_any_order(benign, harmful, swapped):
    pair = (harmful, benign) if swapped else (benign, harmful)
    assert classes_of(dict.fromkeys(pair, 5)) == {benign: False, harmful: True}


@pytest.mark.parametrize(
    "words",
    [
        ("non-benign", "benign"),
        ("no harm", "harm"),
        ("not ok", "ok"),
        ("cats", "dogs"),
        ("notorious", "famous"),
        ("homeless", "rich"),
        ("none", "no"),
        ("funny", "hateful", "none"),
    ],
)
def test_words_that_say_nothing_leave_the_classes_open(words):
    assert classes_of(dict.fromkeys(words, 5)) is None


def test_named_labels_decide_and_unknown_ones_are_refused_with_the_known():
    counts = {"funny": 3, "toxic": 2, "Very Hateful": 1}
    assert classes_of(counts, ("TOXIC", "very_hateful")) == {"funny": False, "toxic": True, "Very Hateful": True}
    with pytest.raises(BadRequest, match=r"toxik, which is no label. The labels are: funny \(3\), toxic \(2\)"):
        classes_of(counts, ("toxik",))
    with pytest.raises(BadRequest, match="names every label"):
        classes_of(counts, tuple(counts))


def test_spellings_of_a_label_are_one_and_missing_values_none():
    counts, note = label_counts({"Harmful": 4, "harmful ": 2, "HARMFUL": 1, "ok": 3, "nan": 2, "-": 1, "": 5, "NA": 1})
    assert (counts, note) == ({"Harmful": 7, "ok": 3}, "")
    assert label_counts({"none": 2, "hate": 3})[0] == {"none": 2, "hate": 3}
    counts, note = label_counts({"none": 2, "hate": 3, "ok": 1})
    assert counts == {"hate": 3, "ok": 1} and note == "none is read as a missing value (2 rows)."
