"""Disguised text: each disguise is named, and none is found in ordinary scripts."""

import unicodedata

import pytest

from court.summary import disguises_in
from court.verdict import ReviewReason
from tests.support.fakes import N, findings
from tests.support.paths import read_texts
from tests.support.trial import judged, text_read

LOOKALIKES, INVISIBLE, SPACED_OUT = (
    "letters of another alphabet that look like Latin ones",
    "characters that are not seen",
    "letters set apart from each other",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("реорlе frоm Bluеlаnd", [LOOKALIKES]),
        ("pe\u3164ople", [INVISIBLE]),
        ("peo\u200bple from Blue\u00adland", [INVISIBLE]),
        ("p e o p l e from Blueland", [SPACED_OUT]),
        ("p.e.o.p.l.e and рeople", [LOOKALIKES, SPACED_OUT]),
        ("people from Blueland", []),
        ("люди из Синей страны и the USA", []),
        ("a b c of tea", []),
        ("👩\u200d👩\u200d👧 family", []),
        ("کتاب\u200cها", []),
        ("", []),
    ],
)
def test_disguises_are_named_and_ordinary_scripts_have_none(text, expected):
    assert list(disguises_in(text)) == expected


SENTENCES: dict[str, str] = read_texts("disguise")["SENTENCES"]


@pytest.mark.parametrize("script", SENTENCES)
def test_a_sentence_of_any_script_is_no_disguise(script):
    """Composed as usual, and with marks apart from their letters."""
    sentence = SENTENCES[script]
    assert not disguises_in(sentence)
    assert not disguises_in(unicodedata.normalize("NFD", sentence))


@pytest.mark.parametrize("text", ["k\u0336 i\u0336 l\u0336 l\u0336 a\u0336", "d\u0307.i\u0307.r\u0307.t\u0307.y\u0307"])
def test_letters_set_apart_are_found_under_decoration(text):
    assert disguises_in(text) == (SPACED_OUT,)


def test_review_of_an_unreadable_text_mentions_its_disguise():
    found = findings([N] * 5).model_copy(update={"text_not_understood": True})
    (reason,) = (
        one
        for one in judged(found, text=text_read().model_copy(update={"text": "реорlе frоm Bluеlаnd"})).review
        if one.reason is ReviewReason.TEXT_NOT_UNDERSTOOD
    )
    assert reason.detail.endswith(f"The text looks disguised: {LOOKALIKES}.")
