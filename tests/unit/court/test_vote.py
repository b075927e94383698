import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from court.examination import entropy
from court.precedents import TallyEntry, VoteSettings, probability, share, vote
from court.verdict import Label

PLAIN = VoteSettings(k=3, tau=0.1, prior=0.25, prior_weight=1.0)

votes = st.lists(st.tuples(st.floats(-1, 1), st.booleans()), min_size=1, max_size=40).map(
    lambda pairs: sorted(pairs, key=lambda pair: -pair[0])
)
settings = st.builds(
    VoteSettings,
    k=st.integers(1, 30),
    tau=st.floats(0.01, 2),
    prior=st.floats(0.05, 0.95),
    prior_weight=st.floats(0.1, 5),
    intercept=st.floats(-3, 3),
    slope=st.floats(0.1, 3),
)


def test_share_matches_a_calculation_by_hand():
    # Weights 1, e^-1, e^-2; the fourth is beyond k.
    similarities, harmful = [0.9, 0.8, 0.7, 0.6], [True, False, True, True]
    by_hand = (1 + math.exp(-2) + 0.25) / (1 + math.exp(-1) + math.exp(-2) + 1)
    assert share(similarities, harmful, PLAIN) == pytest.approx(by_hand)


def test_probability_matches_a_calculation_by_hand():
    calibrated = PLAIN.model_copy(update={"intercept": -0.5, "slope": 2.0})
    assert probability(0.5, calibrated) == pytest.approx(1 / (1 + math.exp(0.5)))
    assert probability(0.3, PLAIN) == pytest.approx(0.3)


@given(votes, settings)
def test_vote_is_a_probability_that_rises_with_harmful_labels(pairs, chosen):
    similarities = [s for s, _ in pairs]
    harmful = [h for _, h in pairs]
    low = probability(share(similarities, harmful, chosen), chosen)
    assert 0 <= low <= 1
    if not all(harmful):
        harmful[harmful.index(False)] = True
        assert probability(share(similarities, harmful, chosen), chosen) >= low


@given(votes, settings, st.floats(-0.5, 0.5))
def test_share_is_unchanged_by_shifting_all_similarities(pairs, chosen, shift):
    similarities = [s for s, _ in pairs]
    harmful = [h for _, h in pairs]
    moved = share([s + shift for s in similarities], harmful, chosen)
    assert moved == pytest.approx(share(similarities, harmful, chosen), abs=1e-9)


def test_vote_needs_precedents_with_a_label_each():
    with pytest.raises(ValueError, match="at least one"):
        share([], [], PLAIN)
    with pytest.raises(ValueError, match="a label for each"):
        share([0.1], [], PLAIN)


def test_vote_counts_only_its_voters():
    tally = [TallyEntry(id=str(i), label=Label.HARMFUL, similarity=0.9 - i / 10) for i in range(5)]
    result = vote(tally, PLAIN)
    assert (result.voters, result.harmful) == (3, 3)


def test_entropy_matches_calculations_by_hand():
    assert entropy("") == 0
    assert entropy("aaaa") == 0
    assert math.copysign(1, entropy("aaaa")) == 1
    assert entropy("abab") == pytest.approx(1.0)
    assert entropy("abcd") == pytest.approx(2.0)
    assert entropy("aab") == pytest.approx(-(2 / 3) * math.log2(2 / 3) - (1 / 3) * math.log2(1 / 3))


@given(st.text(min_size=1))
def test_entropy_is_at_most_that_of_distinct_characters_and_ignores_repeats(text):
    assert 0 <= entropy(text) <= math.log2(len(set(text))) + 1e-9
    assert entropy(text + text) == pytest.approx(entropy(text))
