import itertools

import pytest
from pydantic import ValidationError

from court.verdict import (
    Label,
    Review,
    ReviewReason,
    ScoreMeaning,
    Strength,
    Strengths,
    Verdict,
    decision,
    rule,
    shown_score,
)

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
