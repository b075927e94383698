"""The grammar of a search: what it accepts, what it refuses and with which words."""

import pytest

from court.errors import BadRequest
from court.verdict import Label
from serving.docket.review.search import CHOICES, KEYS, parse_search


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ()),
        ("  label:harmful   Monday ", ("label:harmful", "Monday")),
        ('content:"post 7" "go home"', ('content:"post 7"', '"go home"')),
        ("LABEL:NOT_HARMFUL", ("label:NOT_HARMFUL",)),
        (r'content:"a \" \\ b"', (r'content:"a \" \\ b"',)),
        ('namespace:""', ('namespace:""',)),
        ('"https://example.org/x"', ('"https://example.org/x"',)),
        ("12:30 :x a:", None),
        ('"an open quotation', (r'"\"an"', "open", "quotation")),
    ],
)
def test_written_terms_are_parsed_to_the_same_search(text, terms):
    if terms is None:
        with pytest.raises(BadRequest):
            parse_search(text)
        return
    found = parse_search(text)
    assert found.terms == terms
    again = parse_search(" ".join(found.terms))
    assert (again.terms, again.which) == (found.terms, found.which)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lable:harmful", f"unknown filter `lable:`; known: {', '.join(KEYS)}."),
        ("https://example.org", "Put words with a colon between quotation marks."),
        ("label:bad", "unknown value `label:bad`; known: harmful, not-harmful, undecided."),
        ("is:", f"known: {', '.join(CHOICES['is'])}."),
        ("content:", "`content:` needs a value"),
        ("content:a content:b", "`content:` stands twice"),
        ("since:yesterday", "`since:` takes a day such as"),
        ("until:2026-02-30", "`until:` takes a day such as"),
        ("since:\u0667d", "`since:` takes a day such as"),
        ("under:2", "`under:` takes the seconds"),
        ("x " * 51, "at most 50"),
        ("x" * 1001, "at most 1,000"),
        ("a\0b", "NUL"),
        ("a\ud800", "UTF-8"),
    ],
)
def test_refusals_say_what_is_wrong_and_what_is_known(text, message):
    with pytest.raises(BadRequest) as refusal:
        parse_search(text)
    assert message in refusal.value.message and refusal.value.field == "q"


def test_values_of_one_filter_are_alternatives_and_filters_add_up():
    which = parse_search("label:harmful label:undecided is:overruled since:7d until:9999-12-31 a b a").which
    assert which.holds == {Label.HARMFUL, Label.UNDECIDED} and {str(each) for each in which.outcomes} == {"OVERRULED"}
    assert which.words == ("a", "b") and which.opened_from is not None and which.opened_until is None
    for key, values in CHOICES.items():
        for value in values:
            assert parse_search(f"{key}:{value}").which != parse_search("").which
