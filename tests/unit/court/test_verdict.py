import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from court.display import shown_score
from court.examination import entropy
from court.precedents import TallyEntry, VoteSettings, probability, share, vote
from court.verdict import Label, Review, ReviewReason, ScoreMeaning, Strength, Strengths, Verdict, decision, rule

# The rule written out: (harmful, benign) -> label.
TABLE = {
    ("WEAK", "WEAK"): "HARMFUL",
    ("WEAK", "MODERATE"): "HARMFUL",  # benign is stronger, but not strong
    ("WEAK", "STRONG"): "NOT_HARMFUL",
    ("MODERATE", "WEAK"): "HARMFUL",
    ("MODERATE", "MODERATE"): "HARMFUL",
    ("MODERATE", "STRONG"): "NOT_HARMFUL",
    ("STRONG", "WEAK"): "HARMFUL",
    ("STRONG", "MODERATE"): "HARMFUL",
    ("STRONG", "STRONG"): "HARMFUL",  # a tie
}

REVIEW = (Review(reason=ReviewReason.NO_SIMILAR_PRECEDENT, detail="too far"),)


def test_rule_matches_the_table():
    assert {(str(h), str(b)): str(rule(h, b)) for h, b in itertools.product(Strength, Strength)} == TABLE


@pytest.mark.parametrize(("harmful", "benign"), list(TABLE))
@pytest.mark.parametrize("label", list(Label))
def test_verdict_cannot_contradict_the_rule(harmful, benign, label):
    strengths = Strengths(harmful=harmful, benign=benign)
    if label == TABLE[harmful, benign]:
        assert Verdict(label=label, strengths=strengths, rationale="r").label is label
    else:
        with pytest.raises(ValidationError):
            Verdict(label=label, strengths=strengths, rationale="r", review=REVIEW)


def test_only_an_undecided_verdict_may_lack_strengths():
    for label in (Label.HARMFUL, Label.NOT_HARMFUL):
        with pytest.raises(ValidationError, match="needs the strengths"):
            Verdict(label=label, rationale="r")
    assert Verdict(label=Label.UNDECIDED, rationale="r", review=REVIEW).needs_human_review


def test_undecided_verdict_needs_a_reason_for_review():
    with pytest.raises(ValidationError, match="why a person must look"):
        Verdict(label=Label.UNDECIDED, rationale="r")


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -0.1, 1.1])
def test_score_must_be_a_probability(score):
    with pytest.raises(ValidationError):
        Verdict(
            label=Label.UNDECIDED,
            rationale="r",
            review=REVIEW,
            harm_score=score,
            harm_score_meaning=ScoreMeaning.PRECEDENT_VOTE,
        )


def test_score_needs_a_meaning():
    with pytest.raises(ValidationError, match="come together"):
        Verdict(label=Label.UNDECIDED, rationale="r", review=REVIEW, harm_score=0.5)


def test_only_harmless_verdicts_without_a_pending_review_are_allowed():
    assert decision(Label.NOT_HARMFUL, needs_review=False) == "allow"
    assert decision(Label.HARMFUL, needs_review=False) == "block"
    assert {decision(label, needs_review=True) for label in Label} == {"review"}
    assert decision(Label.UNDECIDED, needs_review=False) == decision(None, needs_review=False) == "review"


@pytest.mark.parametrize("label", [*Label, None])
def test_review_by_a_person_decides_instead_of_the_verdict(label):
    assert decision(label, needs_review=True, reviewed=Label.HARMFUL) == "block"
    assert decision(label, needs_review=True, reviewed=Label.NOT_HARMFUL) == "allow"
    assert decision(label, needs_review=False, reviewed=Label.UNDECIDED) == "review"


@pytest.mark.parametrize(
    ("score", "risk", "harmful", "shown"),
    [
        (0.88, 0.5, True, 0.5),  # far from every precedent
        (0.88, 0.12, True, 0.88),
        (0.9, 0.8, True, 0.35),
        (0.1, 0.9, False, 0.65),
        (0.1, 0.36, False, 0.36),
        (0.1, 0.2, False, 0.2),
        (0.7, None, True, 0.7),
        (None, 0.5, True, None),
    ],
)
def test_displayed_score_agrees_with_the_risk_and_is_bounded_in_close_calls(score, risk, harmful, shown):
    assert shown_score(score, risk, harmful=harmful) == pytest.approx(shown)


def test_close_calls_show_no_strengths():
    values = {"label": Label.HARMFUL, "strengths": Strengths(harmful=Strength.STRONG, benign=Strength.WEAK)}
    values |= {"harm_score": 0.88, "harm_score_meaning": ScoreMeaning.PRECEDENT_VOTE, "rationale": "."}
    close, clear = (dict(Verdict(risk=risk, **values).facts()) for risk in (0.5, 0.12))
    assert (close["strengths"], close["harm score"][:5]) == ("close call", "0.500")
    assert (clear["strengths"], clear["harm score"][:5]) == ("harmful strong, benign weak", "0.880")


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
