import pytest
from hypothesis import given
from hypothesis import strategies as st

from court.events import Described, Procedure, QuestioningEnd, Side, SideRested, TextSource
from court.policy import DEFAULT_POLICY
from court.precedents import MinSimilarity, Search, SureRange, VoteSettings
from court.summary import argue, vote_if_close, weigh
from court.verdict import Label, ReviewReason, ScoreMeaning, Strength
from tests.support.cast import Cast, try_meme
from tests.support.fakes import VOTE, H, N, findings
from tests.support.trial import SETTINGS, judged, text_read


def reasons(verdict):
    return {review.reason for review in verdict.review}


def signals(verdict):
    return {signal.reason for signal in verdict.signals}


def test_harmful_precedents_lead_to_a_harmful_label():
    verdict = judged(findings([H, H, H, H, H]))
    assert verdict.label is H
    assert verdict.strengths.harmful is Strength.STRONG
    assert verdict.harm_score > 0.8
    assert "p0" in verdict.rationale and "precedents alone" in verdict.rationale and "0.80" in verdict.rationale


def test_benign_precedents_lead_to_a_not_harmful_label():
    verdict = judged(findings([N, N, N, N, N]))
    assert verdict.label is N
    assert verdict.strengths.benign is Strength.STRONG
    assert not verdict.needs_human_review


@pytest.mark.parametrize("label", [H, N])
def test_meme_with_distant_precedents_is_undecided_without_a_score(label):
    verdict = judged(findings([label] * 5, text=0.29, picture=0.49))
    assert verdict.label is Label.UNDECIDED and verdict.harm_score is None and verdict.risk is None
    assert reasons(verdict) == {ReviewReason.NO_SIMILAR_PRECEDENT} and verdict.decision == "review"
    assert "0.29" in verdict.rationale and "0.49" in verdict.rationale


def test_textless_picture_without_a_similar_precedent_is_undecided():
    search = Search(alpha_asked=0.5, alpha=0.0, has_text=False, has_picture=True, exhibits=3, tally=25)
    far = judged(findings([N] * 5, text=None, picture=0.2, search=search))
    assert far.label is Label.UNDECIDED and reasons(far) == {ReviewReason.NO_SIMILAR_PRECEDENT}
    assert judged(findings([N] * 5, text=None, picture=0.8, search=search)).label is N


def test_close_call_is_named_in_the_rationale_instead_of_strengths():
    verdict = judged(findings([H, N, H, N, H]))
    assert verdict.close_call and f"A close call: the label is wrong with a probability of {verdict.risk:.2f}." in (
        verdict.rationale
    )
    assert "Evidence of harm" not in verdict.rationale
    assert "close call" not in judged(findings([H] * 5)).rationale


def test_harmful_precedents_with_categories_suggest_a_clause_of_the_policy():
    def found(label, *categories):
        made = findings([label] * len(categories))
        exhibits = [
            one.model_copy(update={"categories": (name,)}) for one, name in zip(made.exhibits, categories, strict=False)
        ]
        nearest = {"nearest_harmful" if label is H else "nearest_benign": exhibits[0]}
        return made.model_copy(update={"exhibits": tuple(exhibits), **nearest})

    verdict = judged(found(H, "community", "nationality", "nationality", "race", "race"))
    assert (verdict.finding.category, verdict.finding.clause, verdict.finding.target) == ("nationality", "4", "")
    assert "suggest clause 4 (nationality)" in verdict.rationale
    assert judged(found(H, *["community"] * 5)).finding is None
    assert judged(found(N, *["nationality"] * 5)).finding is None


def test_meme_without_any_precedent_is_undecided():
    verdict = judged(findings([]))
    assert verdict.label is Label.UNDECIDED and verdict.harm_score is None and verdict.risk is None
    assert reasons(verdict) == {ReviewReason.NO_SIMILAR_PRECEDENT}


@pytest.mark.parametrize(
    ("alpha", "text", "picture", "close"),
    [
        (1.0, 0.1, 0.9, False),  # the similar half has no weight
        (0.9, 0.1, 0.9, False),  # the dissimilar half decides the ranking
        (0.9, 0.9, 0.1, True),
        (0.5, 0.9, 0.1, True),
        (0.5, 0.1, 0.9, True),
        (0.1, 0.9, 0.1, False),
        (0.0, 0.1, 0.9, True),
    ],
)
def test_similar_halves_must_carry_half_of_the_weight(alpha, text, picture, close):
    search = Search(alpha_asked=alpha, alpha=alpha, has_text=True, has_picture=True, exhibits=3, tally=25)
    found = findings([N] * 5, text=text, picture=picture, search=search)
    assert (vote_if_close(found) is not None) == close
    assert (judged(found).label is Label.UNDECIDED) == (not close)


def test_verdict_on_half_a_meme_is_signalled():
    verdict = judged(findings([N] * 5, picture=0.2))
    assert verdict.label is N and not verdict.review
    assert signals(verdict) == {ReviewReason.PICTURE_NOT_WEIGHED}
    assert "Only the text was weighed" in verdict.rationale
    assert signals(judged(findings([N] * 5, text=0.1))) == {ReviewReason.TEXT_NOT_WEIGHED}


def test_label_above_the_risk_cutoff_needs_review():
    found = findings([H, N, H, N, H])
    verdict = judged(found)
    p = verdict.harm_score
    assert verdict.risk == pytest.approx(min(p, 1 - p)) and verdict.risk > 0.4
    assert ReviewReason.RISK_ABOVE_CUTOFF in reasons(verdict)
    assert ReviewReason.RISK_ABOVE_CUTOFF not in reasons(judged(found, SETTINGS.model_copy(update={"review_rate": 0})))
    assert ReviewReason.RISK_ABOVE_CUTOFF not in reasons(
        judged(found, SETTINGS.model_copy(update={"review_risk": 0.3}))
    )


def test_unknown_risk_needs_review_unless_reviews_are_turned_off():
    found = findings([N] * 5, risk=None)
    assert reasons(judged(found)) == {ReviewReason.RISK_ABOVE_CUTOFF}
    assert "not measured" in judged(found).review[0].detail
    assert not judged(found, SETTINGS.model_copy(update={"review_rate": 0})).review


def test_acquittal_by_one_precedent_has_the_risk_of_chance():
    found = findings([N, H], vote_settings=VOTE.model_copy(update={"prior": 0.4, "tau": 0.005, "intercept": -0.5}))
    verdict = judged(found)
    assert verdict.label is N and verdict.harm_score < 0.5
    assert signals(verdict) == {ReviewReason.RESTS_ON_ONE_PRECEDENT} and "p0" in verdict.signals[0].detail
    assert verdict.risk == 0.5 and reasons(verdict) == {ReviewReason.RISK_ABOVE_CUTOFF}
    assert not signals(judged(findings([N] * 5)))


def test_regression_is_averaged_with_the_vote_and_both_are_reported():
    alone = judged(findings([N, N, N, H, N]))
    joined = judged(findings([N, N, N, H, N], regression=0.0))
    assert alone.harm_score < joined.harm_score < 0.5
    assert "regression over all precedents puts it at 0.50" in joined.rationale
    against = judged(findings([N, N, N, H, N], regression=9.0))
    assert against.label is H and ReviewReason.PRECEDENTS_DISAGREE in reasons(against)


def test_higher_cost_of_a_miss_lowers_the_threshold():
    found = findings([N, N, H, N, N])
    assert judged(found).label is N
    dear = judged(found, SETTINGS.model_copy(update={"harm_cost": 20}))
    assert dear.label is H and "threshold 0.05" in dear.rationale
    cheap = SETTINGS.model_copy(update={"harm_cost": 0.05})
    assert judged(findings([H, H, N, H, H]), cheap).label is N


def test_truncated_text_needs_review():
    assert reasons(judged(findings([N] * 5, text_cut=True))) == {ReviewReason.TEXT_CUT}


def test_text_unreadable_for_the_encoder_needs_review():
    assert reasons(judged(findings([N] * 5, text_not_understood=True))) == {ReviewReason.TEXT_NOT_UNDERSTOOD}
    far = judged(findings([], text_not_understood=True))
    assert far.label is Label.UNDECIDED
    assert reasons(far) == {ReviewReason.NO_SIMILAR_PRECEDENT, ReviewReason.TEXT_NOT_UNDERSTOOD}


def test_uncertain_text_reading_raises_the_risk():
    sure, unsure = text_read(TextSource.OCR, [0.9, 0.8]), text_read(TextSource.OCR, [0.4, 0.2])
    found = findings([N] * 5)
    doubtful = judged(found, text=unsure)
    assert not judged(found, text=sure).signals
    assert signals(doubtful) == {ReviewReason.TEXT_UNSURE}
    # As sure as the reading; otherwise as likely as in the library.
    assert doubtful.risk == pytest.approx(0.3 * doubtful.harm_score + 0.7 * VOTE.prior)
    assert doubtful.label is N and doubtful.risk > judged(found, text=sure).risk


@given(
    st.lists(st.sampled_from([H, N]), min_size=1, max_size=25),
    st.floats(0.31, 1),
    st.builds(
        VoteSettings,
        k=st.integers(1, 25),
        tau=st.floats(0.01, 1),
        prior=st.floats(0.05, 0.95),
        intercept=st.floats(-2, 2),
        slope=st.floats(0.1, 3),
        threshold=st.floats(0.05, 0.95),
    ),
)
def test_label_follows_from_the_vote_and_the_strengths(labels, similarity, chosen):
    found = findings(labels, text=similarity, vote_settings=chosen, floors=MinSimilarity(text=0.0, picture=0.0))
    vote = vote_if_close(found)
    verdict = weigh(found, vote, text_read(), SETTINGS, policy=DEFAULT_POLICY)
    # Verdict itself refuses a label that the rule does not give; this checks the side of the threshold.
    assert (verdict.label is N) == (vote.probability < chosen.threshold)


def test_each_side_cites_only_its_own_precedents():
    found = findings([H, N, H, N, N])
    vote = vote_if_close(found)
    accuser, defender = argue(Side.ACCUSER, found, vote), argue(Side.DEFENDER, found, vote)
    assert accuser["cites"] == ("p0", "p2")
    assert defender["cites"] == ("p1",)
    assert "2 of the 5" in accuser["summary"] and "3 of the 5" in defender["summary"]


def test_side_without_precedents_says_only_that():
    found = findings([N] * 5)
    statement = argue(Side.ACCUSER, found, vote_if_close(found))
    assert statement["cites"] == () and statement["justification"] == "" and "No precedent" in statement["summary"]


def test_vote_settings_reject_invalid_values():
    for change in ({"k": 0}, {"tau": 0.0}, {"prior": 1.0}, {"slope": -1.0}, {"threshold": 0.0}):
        with pytest.raises(ValueError):
            VoteSettings(**{**VOTE.model_dump(), **change})


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
