import pytest
from hypothesis import given
from hypothesis import strategies as st

from court.events import Side, TextLine, TextRead, TextSource
from court.precedents import MinSimilarity, Search, VoteSettings
from court.settings import TrialSettings
from court.summary import argue, vote_if_close, weigh
from court.verdict import Label, ReviewReason, Strength
from tests.support.fakes import VOTE, H, N, findings

SETTINGS = TrialSettings()
BOX = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))


def text_read(source=TextSource.CALLER, confidences=()):
    return TextRead(
        trial_id="t",
        seq=1,
        at="2026-01-01T00:00:00Z",
        text="x",
        source=source,
        lines=[TextLine(text="x" * 10, confidence=c, box=BOX, frame=0) for c in confidences],
    )


def judged(found, settings=SETTINGS, text=None):
    return weigh(found, vote_if_close(found), text or text_read(), settings)


def reasons(verdict):
    return {review.reason for review in verdict.review}


def test_harmful_neighbours_make_it_harmful():
    verdict = judged(findings([H, H, H, H, H]))
    assert verdict.label is H
    assert verdict.strengths.harmful is Strength.STRONG
    assert verdict.harm_score > 0.8
    assert "p0" in verdict.rationale and "precedents alone" in verdict.rationale and "0.80" in verdict.rationale


def test_benign_neighbours_make_it_not_harmful():
    verdict = judged(findings([N, N, N, N, N]))
    assert verdict.label is N
    assert verdict.strengths.benign is Strength.STRONG
    assert not verdict.needs_human_review


@pytest.mark.parametrize("labels", [[H] * 5, [N] * 5])
def test_too_far_from_every_precedent_is_undecided_whatever_they_say(labels):
    verdict = judged(findings(labels, text=0.29, picture=0.49))
    assert verdict.label is Label.UNDECIDED
    assert verdict.harm_score is None
    assert reasons(verdict) == {ReviewReason.NO_SIMILAR_PRECEDENT}
    assert "0.29" in verdict.rationale and "0.49" in verdict.rationale


def test_no_precedent_at_all_is_undecided():
    empty = findings([])
    assert vote_if_close(empty) is None
    assert judged(empty).label is Label.UNDECIDED


@pytest.mark.parametrize(
    ("alpha", "text", "picture", "decided"),
    [
        (1.0, 0.1, 0.9, False),  # the near half has no weight
        (0.9, 0.1, 0.9, False),  # the far half decides who is near
        (0.9, 0.9, 0.1, True),
        (0.5, 0.9, 0.1, True),
        (0.5, 0.1, 0.9, True),
        (0.1, 0.9, 0.1, False),
        (0.0, 0.1, 0.9, True),
    ],
)
def test_what_is_near_enough_must_carry_half_of_the_weight(alpha, text, picture, decided):
    search = Search(alpha_asked=alpha, alpha=alpha, has_text=True, has_picture=True, exhibits=3, tally=25)
    verdict = judged(findings([N] * 5, text=text, picture=picture, search=search))
    assert (verdict.label is not Label.UNDECIDED) == decided


def test_half_a_meme_can_not_acquit_in_silence():
    verdict = judged(findings([N] * 5, picture=0.2))
    assert verdict.label is N
    assert reasons(verdict) == {ReviewReason.PICTURE_NOT_WEIGHED}
    assert "Only the text was weighed" in verdict.rationale
    assert reasons(judged(findings([N] * 5, text=0.1))) == {ReviewReason.TEXT_NOT_WEIGHED}
    assert not judged(findings([N] * 5, picture=0.2), SETTINGS.model_copy(update={"review_one_sided": False})).review
    # Half of it is enough to call it harmful.
    assert not judged(findings([H] * 5, picture=0.2)).review


def test_a_close_vote_asks_for_a_person():
    assert ReviewReason.PRECEDENTS_DISAGREE in reasons(judged(findings([H, N, H, N, N, H])))


def test_a_cut_text_asks_for_a_person():
    assert reasons(judged(findings([N] * 5, text_cut=True))) == {ReviewReason.TEXT_CUT}


def test_a_text_that_the_encoder_can_not_read_asks_for_a_person():
    assert reasons(judged(findings([N] * 5, text_not_understood=True))) == {ReviewReason.TEXT_NOT_UNDERSTOOD}
    far = judged(findings([], text_not_understood=True))
    assert far.label is Label.UNDECIDED
    assert reasons(far) == {ReviewReason.NO_SIMILAR_PRECEDENT, ReviewReason.TEXT_NOT_UNDERSTOOD}


def test_text_read_with_little_confidence_asks_for_a_person():
    unsure = text_read(TextSource.OCR, [0.9, 0.3])
    assert reasons(judged(findings([N] * 5), text=unsure)) == {ReviewReason.TEXT_UNSURE}
    assert not judged(findings([N] * 5), text=text_read(TextSource.OCR, [0.9, 0.8])).review


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
def test_the_label_is_the_vote_s_and_follows_from_the_strengths(labels, similarity, chosen):
    found = findings(labels, text=similarity, vote_settings=chosen, floors=MinSimilarity(text=0.0, picture=0.0))
    held = vote_if_close(found)
    verdict = weigh(found, held, text_read(), SETTINGS)
    # Verdict itself refuses a label that the rule does not give; this says which side of the threshold it is.
    assert (verdict.label is N) == (held.probability < chosen.threshold)


def test_each_side_cites_only_its_own():
    found = findings([H, N, H, N, N])
    held = vote_if_close(found)
    accuser, defender = argue(Side.ACCUSER, found, held), argue(Side.DEFENDER, found, held)
    assert accuser.cites == ("p0", "p2")
    assert defender.cites == ("p1",)
    assert "2 of the 5" in accuser.summary and "3 of the 5" in defender.summary


def test_a_side_without_precedents_says_so_and_adds_nothing():
    found = findings([N] * 5)
    statement = argue(Side.ACCUSER, found, vote_if_close(found))
    assert statement.cites == () and statement.justification == "" and "No precedent" in statement.summary


def test_vote_settings_refuse_nonsense():
    for change in ({"k": 0}, {"tau": 0.0}, {"prior": 1.0}, {"slope": -1.0}, {"threshold": 0.0}):
        with pytest.raises(ValueError):
            VoteSettings(**{**VOTE.model_dump(), **change})
