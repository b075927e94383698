"""The cascade: precedents settle what they are sure of, the rest goes to trial."""

import pytest

from court.events import Described, Procedure, QuestioningEnd, SideRested
from court.precedents import SureRange
from court.verdict import ScoreMeaning
from tests.support.cast import Cast, try_meme
from tests.support.fakes import H, N, findings

SETTLES = SureRange(error=0.05, below=0.2, above=0.8, share=0.5, n=100)


def cascade(found, cast=None):
    cast = cast or Cast(rounds=2)
    return try_meme(cast, procedure=Procedure.CASCADE, found=found), cast


@pytest.mark.parametrize("labels", [[H] * 5, [N] * 5])
def test_what_the_vote_is_sure_of_costs_no_call(labels):
    record, cast = cascade(findings(labels, settles=SETTLES))
    assert cast.calls() == 0
    assert record.verdict.label is labels[0]
    assert record.verdict.harm_score_meaning is ScoreMeaning.PRECEDENT_VOTE
    assert {event.reason for event in record.all(SideRested)} == {QuestioningEnd.NO_EXAMINATION}
    assert record.opened.procedure is Procedure.CASCADE


@pytest.mark.parametrize(
    "found",
    [
        findings([H, N, H, N, H], settles=SETTLES),  # not sure
        findings([H] * 5),  # a library that has not shown what it settles
        findings([N] * 5, text=0.1, picture=0.1, settles=SETTLES),  # too far to have a vote
    ],
)
def test_the_rest_goes_to_trial_with_what_was_found_already(found):
    record, cast = cascade(found)
    assert record.last(Described) is not None
    assert record.verdict.harm_score_meaning is ScoreMeaning.LABEL_PROBABILITY
    kinds = [event.kind for event in record.events]
    assert kinds.count("TextRead") == kinds.count("PrecedentsCited") == 1
    assert cast.requests("judge")


def test_one_side_may_settle_alone():
    only_harm = SETTLES.model_copy(update={"below": -1.0})
    assert cascade(findings([H] * 5, settles=only_harm))[1].calls() == 0
    assert cascade(findings([N] * 5, settles=only_harm))[1].calls() > 0
