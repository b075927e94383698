"""Kappas, against published examples and against another implementation."""

import random

import pytest
from statsmodels.stats.inter_rater import cohens_kappa, fleiss_kappa

from serving.docket.review.agreement import agreement, cohen, fleiss

# Fleiss (1971), as printed in his example's reprints: 10 subjects, 14 raters, 5 categories; kappa 0.210.
FOURTEEN = [
    (0, 0, 0, 0, 14), (0, 2, 6, 4, 2), (0, 0, 3, 5, 6), (0, 3, 9, 2, 0), (2, 2, 8, 1, 1),
    (7, 7, 0, 0, 0), (3, 2, 6, 3, 0), (2, 5, 3, 2, 2), (6, 5, 2, 1, 0), (0, 2, 2, 3, 7),
]  # fmt: skip


def labels_of(counts):
    return [str(category) for category, count in enumerate(counts) for _ in range(count)]


def test_the_published_example_of_many_reviewers():
    kappa = fleiss([labels_of(counts) for counts in FOURTEEN])
    assert kappa.n == 10
    assert kappa.observed == pytest.approx(0.378, abs=5e-4)
    assert kappa.expected == pytest.approx(0.213, abs=5e-4)
    assert kappa.value == pytest.approx(0.210, abs=5e-4)


def test_a_worked_example_of_two_reviewers():
    """20 both yes, 5 and 10 apart, 15 both no: observed 0.7, expected 0.5, kappa 0.4."""
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    kappa = cohen(pairs)
    assert (kappa.n, kappa.observed, kappa.expected) == (50, pytest.approx(0.7), pytest.approx(0.5))
    assert kappa.value == pytest.approx(0.4)


def test_kappas_are_those_of_another_implementation():
    chance = random.Random(7)
    compared = 0
    for _ in range(60):
        kinds, n = chance.choice([2, 3]), chance.randrange(5, 60)
        labels = [str(kind) for kind in range(kinds)]
        lean = chance.random()
        pairs = []
        for _ in range(n):
            one = chance.choice(labels)
            pairs.append((one, one if chance.random() < lean else chance.choice(labels)))
        if len({a for a, _ in pairs}) < kinds or len({b for _, b in pairs}) < kinds:
            continue
        table = [[sum((a, b) == (x, y) for a, b in pairs) for y in labels] for x in labels]
        told, own = cohens_kappa(table), cohen(pairs)
        assert own.value == pytest.approx(told.kappa)
        assert own.low == pytest.approx(max(told.kappa_low, -1))
        assert own.high == pytest.approx(min(told.kappa_upp, 1))
        raters = chance.randrange(2, 6)
        memes = [[chance.choice(labels) for _ in range(raters)] for _ in range(n)]
        counted = [[meme.count(label) for label in labels] for meme in memes]
        assert fleiss(memes).value == pytest.approx(fleiss_kappa(counted))
        compared += 1
    assert compared > 30


def test_where_a_kappa_is_not_defined_there_is_none():
    assert cohen([]).value is None and fleiss([]).value is None and fleiss([["y"]]).n == 0
    always = cohen([("y", "y")] * 9)
    assert (always.n, always.observed, always.value) == (9, 1.0, None)
    assert fleiss([["y", "y"], ["y", "y", "y"]]).value is None


def test_agreement_of_reviewers_and_of_the_court():
    said = {
        1: {"ada": "H", "bea": "H"},
        2: {"ada": "N", "bea": "H", "cy": "N"},
        3: {"ada": "N", "bea": "N"},
        4: {"cy": "H"},
        5: {"ada": "H"},
    }
    verdicts = {1: "H", 2: "H", 3: "N", 4: "H", 5: "U"}
    court = {meme: dict.fromkeys(words, verdicts[meme]) for meme, words in said.items()}
    found = agreement(said, court, undecided="U")
    assert (found.reviewed, found.judgements, found.undecided) == (5, 9, 1)
    assert set(found.pairs) == {("ada", "bea"), ("ada", "cy"), ("bea", "cy")}
    assert found.pairs["ada", "bea"] == cohen([("H", "H"), ("N", "H"), ("N", "N")])
    assert found.court["ada"] == cohen([("H", "H"), ("N", "H"), ("N", "N")])
    assert found.court["cy"].n == 2 and found.court_all.n == 8
    assert found.all == fleiss([["H", "H"], ["N", "H", "N"], ["N", "N"]])
