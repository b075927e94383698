"""Cohen's and Fleiss' kappa, checked against published examples and statsmodels."""

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


def test_fleiss_kappa_matches_the_published_example():
    kappa = fleiss([labels_of(counts) for counts in FOURTEEN])
    assert kappa.n == 10
    assert kappa.observed == pytest.approx(0.378, abs=5e-4)
    assert kappa.expected == pytest.approx(0.213, abs=5e-4)
    assert kappa.value == pytest.approx(0.210, abs=5e-4)


def test_cohen_kappa_matches_a_worked_example():
    """Both yes 20 times, both no 15, differing 5 and 10 times: observed 0.7, expected 0.5, kappa 0.4."""
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    kappa = cohen(pairs)
    assert (kappa.n, kappa.observed, kappa.expected) == (50, pytest.approx(0.7), pytest.approx(0.5))
    assert kappa.value == pytest.approx(0.4)


def test_kappas_match_statsmodels():
    rng = random.Random(7)
    compared = 0
    for _ in range(60):
        kinds, n = rng.choice([2, 3]), rng.randrange(5, 60)
        labels = [str(kind) for kind in range(kinds)]
        lean = rng.random()
        pairs = []
        for _ in range(n):
            one = rng.choice(labels)
            pairs.append((one, one if rng.random() < lean else rng.choice(labels)))
        if len({a for a, _ in pairs}) < kinds or len({b for _, b in pairs}) < kinds:
            continue
        table = [[sum((a, b) == (x, y) for a, b in pairs) for y in labels] for x in labels]
        reference, own = cohens_kappa(table), cohen(pairs)
        assert own.value == pytest.approx(reference.kappa)
        assert own.low == pytest.approx(max(reference.kappa_low, -1))
        assert own.high == pytest.approx(min(reference.kappa_upp, 1))
        raters = rng.randrange(2, 6)
        memes = [[rng.choice(labels) for _ in range(raters)] for _ in range(n)]
        counted = [[meme.count(label) for label in labels] for meme in memes]
        assert fleiss(memes).value == pytest.approx(fleiss_kappa(counted))
        compared += 1
    assert compared > 30


def test_undefined_kappas_are_none():
    assert cohen([]).value is None and fleiss([]).value is None and fleiss([["y"]]).n == 0
    always = cohen([("y", "y")] * 9)
    assert (always.n, always.observed, always.value) == (9, 1.0, None)
    assert fleiss([["y", "y"], ["y", "y", "y"]]).value is None


def test_agreement_of_reviewers_and_court_matches_hand_counts():
    labels = {
        1: {"ada": "H", "bea": "H"},
        2: {"ada": "N", "bea": "H", "cy": "N"},
        3: {"ada": "N", "bea": "N"},
        4: {"cy": "H"},
        5: {"ada": "H"},
    }
    verdicts = {1: "H", 2: "H", 3: "N", 4: "H", 5: "U"}
    court = {meme: dict.fromkeys(by_reviewer, verdicts[meme]) for meme, by_reviewer in labels.items()}
    found = agreement(labels, court, undecided="U")
    assert (found.reviewed, found.judgements, found.undecided) == (5, 9, 1)
    assert set(found.pairs) == {("ada", "bea"), ("ada", "cy"), ("bea", "cy")}
    assert found.pairs["ada", "bea"] == cohen([("H", "H"), ("N", "H"), ("N", "N")])
    assert found.court["ada"] == cohen([("H", "H"), ("N", "H"), ("N", "N")])
    assert found.court["cy"].n == 2 and found.court_all.n == 8
    assert found.all == fleiss([["H", "H"], ["N", "H", "N"], ["N", "N"]])
