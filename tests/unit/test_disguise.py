"""Disguises of a text: named where it wears one, and none found in honest scripts."""

import pytest

from court.injection.disguise import disguises_in
from court.verdict import ReviewReason
from tests.unit.test_summary import N, findings, judged, text_read

ALIKE, UNSEEN, APART = (
    "letters of another alphabet that look like Latin ones",
    "characters that are not seen",
    "letters set apart from each other",
)


@pytest.mark.parametrize(
    ("text", "worn"),
    [
        ("реорlе frоm Bluеlаnd", [ALIKE]),
        ("pe\u3164ople", [UNSEEN]),
        ("peo\u200bple from Blue\u00adland", [UNSEEN]),
        ("p e o p l e from Blueland", [APART]),
        ("p.e.o.p.l.e and рeople", [ALIKE, APART]),
        ("people from Blueland", []),
        ("люди из Синей страны и the USA", []),
        ("a b c of tea", []),
        ("👩\u200d👩\u200d👧 family", []),
        ("کتاب\u200cها", []),
        ("", []),
    ],
)
def test_disguises_are_named_and_honest_scripts_are_none(text, worn):
    assert list(disguises_in(text)) == worn


def test_a_text_that_can_not_be_read_is_said_to_look_disguised():
    found = findings([N] * 5).model_copy(update={"text_not_understood": True})
    (reason,) = (
        one
        for one in judged(found, text=text_read().model_copy(update={"text": "реорlе frоm Bluеlаnd"})).review
        if one.reason is ReviewReason.TEXT_NOT_UNDERSTOOD
    )
    assert reason.detail.endswith(f"The text looks disguised: {ALIKE}.")
