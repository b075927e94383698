import itertools

import pytest
from pydantic import ValidationError

from court.verdict import Label, Review, ReviewReason, ScoreMeaning, Strength, Strengths, Verdict, rule

# The rule written out: (harmful, benign) -> label.
TABLE = {
    ("WEAK", "WEAK"): "HARMFUL",
    ("WEAK", "MODERATE"): "HARMFUL",  # benign is above, but not strong
    ("WEAK", "STRONG"): "NOT_HARMFUL",
    ("MODERATE", "WEAK"): "HARMFUL",
    ("MODERATE", "MODERATE"): "HARMFUL",
    ("MODERATE", "STRONG"): "NOT_HARMFUL",
    ("STRONG", "WEAK"): "HARMFUL",
    ("STRONG", "MODERATE"): "HARMFUL",
    ("STRONG", "STRONG"): "HARMFUL",  # a tie
}

REVIEW = (Review(reason=ReviewReason.NO_SIMILAR_PRECEDENT, detail="too far"),)


def test_the_rule_is_this_table():
    assert {(str(h), str(b)): str(rule(h, b)) for h, b in itertools.product(Strength, Strength)} == TABLE


@pytest.mark.parametrize(("harmful", "benign"), list(TABLE))
@pytest.mark.parametrize("label", list(Label))
def test_a_verdict_can_not_contradict_the_rule(harmful, benign, label):
    strengths = Strengths(harmful=harmful, benign=benign)
    if label == TABLE[harmful, benign]:
        assert Verdict(label=label, strengths=strengths, rationale="r").label is label
    else:
        with pytest.raises(ValidationError):
            Verdict(label=label, strengths=strengths, rationale="r", review=REVIEW)


def test_a_label_without_strengths_is_only_undecided():
    for label in (Label.HARMFUL, Label.NOT_HARMFUL):
        with pytest.raises(ValidationError, match="needs the strengths"):
            Verdict(label=label, rationale="r")
    assert Verdict(label=Label.UNDECIDED, rationale="r", review=REVIEW).needs_human_review


def test_undecided_always_asks_for_a_person():
    with pytest.raises(ValidationError, match="why a person must look"):
        Verdict(label=Label.UNDECIDED, rationale="r")


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -0.1, 1.1])
def test_a_score_is_a_probability(score):
    with pytest.raises(ValidationError):
        Verdict(
            label=Label.UNDECIDED,
            rationale="r",
            review=REVIEW,
            harm_score=score,
            harm_score_meaning=ScoreMeaning.PRECEDENT_VOTE,
        )


def test_a_score_says_what_it_means():
    with pytest.raises(ValidationError, match="come together"):
        Verdict(label=Label.UNDECIDED, rationale="r", review=REVIEW, harm_score=0.5)
