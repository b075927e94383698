"""Results as the Python client gives them."""

from importlib.metadata import version

import pytest

import memecourt
from court.verdict import Decision as CourtDecision
from court.verdict import Label as CourtLabel
from memecourt.result import Decision, Label, Reason, Result
from memecourt.v1 import court_pb2 as wire


def test_client_and_court_have_the_same_decisions_and_labels():
    assert list(Decision) == list(CourtDecision)
    assert list(Label) == list(CourtLabel)


@pytest.mark.parametrize("word", ["", "ALLOW", "free"])
def test_unknown_words_of_a_decision_mean_review(word):
    assert Result(wire.JudgeResponse(label=wire.LABEL_NOT_HARMFUL, decision=word)).decision is Decision.REVIEW


@pytest.mark.parametrize("label", [wire.LABEL_UNSPECIFIED, 99])
def test_unknown_labels_are_undecided(label):
    assert Result(wire.JudgeResponse(label=label)).label is Label.UNDECIDED


def test_result_has_what_a_caller_acts_on_and_the_message_itself():
    message = wire.JudgeResponse(
        label=wire.LABEL_HARMFUL,
        decision="block",
        risk=0.0,
        precedents=[wire.Precedent(id="p1")],
        review_reasons=[
            wire.Review(reason=wire.REVIEW_REASON_RISK_ABOVE_CUTOFF, detail="too risky"),
            wire.Review(reason=999, detail="new"),
        ],
    )
    result = Result(message)
    assert (result.decision, result.label, result.risk) == (Decision.BLOCK, Label.HARMFUL, 0.0)
    assert [precedent.id for precedent in result.precedents] == ["p1"]
    assert result.reasons == [Reason("RISK_ABOVE_CUTOFF", "too risky"), Reason("999", "new")]
    assert result.message is message
    assert Result(wire.JudgeResponse()).risk is None


def test_package_has_its_version():
    assert memecourt.__version__ == version("memecourt")
    assert not hasattr(memecourt, "version")
