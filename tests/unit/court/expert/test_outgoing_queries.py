"""Queries sent to other machines contain no contact data, and no name that only the picture gave."""

import pytest

from court.events import EvidenceSearched, QueriesPlanned
from court.expert.witness import HELD_BACK, names_of_picture, outgoing
from court.verdict import ReviewReason
from tests.support.cast import Cast
from tests.support.evidence import TEXT, Expert, FakeEvidence, assert_reproducible, reasons, try_with_expert

DESCRIPTION = "Ann Example stands beside a man with a cup. The Blueland flag hangs above Ann's head. Tea is poured."


@pytest.mark.parametrize(
    ("query", "remaining"),
    [
        ("write to ann.example+tea@mail.example.org about tea", "write to about tea"),
        ("what did @ann_example say of tea", "what did say of tea"),
        ("does (@ann.example) sell tea?", "does sell tea?"),
        ("tea shop +49 170 1234567 closed", "tea shop closed"),
        ("tea shop 0049-170-1234567", "tea shop"),
        ("tea shop 0170 1234567", "tea shop"),
        ("tea shop (030) 123 45 67 closed", "tea shop closed"),
        ("tea shop 555-123-4567", "tea shop"),
        ("＠ann_example tea", "tea"),
    ],
)
def test_contact_data_is_removed(query, remaining):
    found = outgoing(query, ())
    assert (found.text, found.held_back) == (remaining, 1)


@pytest.mark.parametrize(
    "query",
    [
        "tea sales 2019 2020 2021",
        "tea law of 2021-03-15",
        "05.03.2021 tea recall",
        "1,000,000 cups of tea, 0.5 grams, 12 000 000 people",
        "0.123456789 share of tea",
        "DOI 10.1000/182 tea",
        "tea @ home",
        "ISBN 978-3-16-148410-0",
        "grüner Tee gegen Erkältung",
    ],
)
def test_numbers_dates_and_other_text_are_unchanged(query):
    found = outgoing(query, ())
    assert (found.text, found.held_back) == (query, 0)


def test_names_known_only_from_the_picture_are_removed():
    names = names_of_picture("Blueland's tea cures colds", DESCRIPTION)
    assert names == {"ann", "example"}, "without names in the text, and words also written in lower case"
    assert outgoing("ann example tea Blueland", names).text == "tea Blueland"
    assert outgoing("Did Ann Example’s tea cure colds?", names).text == "Did tea cure colds?"
    assert outgoing("Annual examples of a man with tea", names).held_back == 0, "only whole words are removed"
    assert names_of_picture("tea", "Jürgen Beispiel pours. An ÉCOLE.") == {"jürgen", "beispiel", "école"}
    assert outgoing("JU\u0308RGEN tea", {"jürgen"}).text == "tea", "in any Unicode normalisation"
    assert names_of_picture("tea", "An empty straße. Straße in fog.") == frozenset(), "ß is folded on both sides"
    assert names_of_picture("tea", None) == frozenset()


def trial_with_remote_source(expert, **options):
    source = FakeEvidence(**options)
    source.sends_elsewhere = True
    cast = Cast(describe={"description": DESCRIPTION})
    return try_with_expert(expert, source, cast=cast)[0], source


def test_queries_are_sent_without_names_and_recorded_as_sent():
    expert = Expert(queries={"queries": ["Ann Example blue tea", "ann blue tea", "blue tea colds"]})
    record, source = trial_with_remote_source(expert)
    assert source.queries == ["blue tea"], "the second is identical, and the first document was enough"
    search = record.last(EvidenceSearched)
    assert (search.query, search.held_back) == ("blue tea", 2)
    assert record.last(QueriesPlanned).queries[0] == "Ann Example blue tea", "the original stays in the record only"
    assert_reproducible(record)


def test_query_left_empty_is_not_sent_and_its_claim_stays_unchecked():
    record, source = trial_with_remote_source(Expert(queries={"queries": ["Ann Example", "@ann"]}))
    assert source.queries == []
    assert [search.failure for search in record.all(EvidenceSearched)] == [HELD_BACK]
    assert ReviewReason.CLAIM_UNCHECKED in reasons(record)
    assert_reproducible(record)


def test_local_source_gets_the_witness_s_query_unchanged():
    queries = ["Ann Example blue tea", "ann@mail.example.org"]
    source = FakeEvidence(found=[])
    record = try_with_expert(
        Expert(queries={"queries": queries}), source, cast=Cast(describe={"description": DESCRIPTION})
    )[0]
    assert source.queries == queries and not any(search.held_back for search in record.all(EvidenceSearched))
    assert "Ann" not in TEXT
    assert_reproducible(record)
