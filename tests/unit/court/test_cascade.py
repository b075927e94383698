"""The cascade: precedents decide the sure cases, the others go to trial."""

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
def test_sure_vote_needs_no_model_call(labels):
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
        findings([H] * 5),  # a library without a sure range
        findings([N] * 5, text=0.1, picture=0.1, settles=SETTLES),  # too dissimilar for a vote
    ],
)
def test_unsure_cases_go_to_trial_with_the_precedents_already_found(found):
    record, cast = cascade(found)
    assert record.last(Described) is not None
    assert record.verdict.harm_score_meaning is ScoreMeaning.LABEL_PROBABILITY
    kinds = [event.kind for event in record.events]
    assert kinds.count("TextRead") == kinds.count("PrecedentsCited") == 1
    assert cast.requests("judge")


def test_sure_range_can_cover_only_one_label():
    only_harm = SETTLES.model_copy(update={"below": -1.0})
    assert cascade(findings([H] * 5, settles=only_harm))[1].calls() == 0
    assert cascade(findings([N] * 5, settles=only_harm))[1].calls() > 0
