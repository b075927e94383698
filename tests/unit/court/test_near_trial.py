"""Near-duplicates in a trial: memes tried before are evidence, are cited, and never make a verdict more lenient."""

import asyncio
from dataclasses import replace

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from court.errors import Unavailable
from court.events import NearDuplicate, NearDuplicatesFound, Procedure, TrialResumed
from court.record import TrialAborted, TrialRecord
from court.settings import TrialSettings
from court.transcript import transcript
from court.trial import TrialCase
from court.verdict import Label, ReviewReason
from serving.cli.records import render
from tests.support.cast import ACQUITTAL, RULING, Cast, full_court
from tests.support.fakes import FakeDuplicates, FakeReader, H, N, RecordingSink, a_meme, a_picture, findings

HARMFUL_NEAR = NearDuplicate(trial_id="before", label=H, distance=12, same_text=True, same_picture=False)
ACQUITTED_NEAR = NearDuplicate(trial_id="other", label=N, distance=0, same_text=False, same_picture=False)


def run_trial(procedure, duplicates=None, *, labels=(N,) * 5, meme=None, lines=None, **options):
    cast = Cast(rounds=2, **(lines or {}))
    court = full_court(cast, found=findings(labels), duplicates=duplicates, **options)
    case = TrialCase("t", meme or a_meme("the meme's own words"), procedure, namespace="blog")
    return asyncio.run(court.run(case, RecordingSink()))


@pytest.mark.parametrize("procedure", Procedure)
def test_near_duplicates_are_cited_once_after_the_text_and_before_the_verdict(procedure):
    index = FakeDuplicates(HARMFUL_NEAR, ACQUITTED_NEAR)
    record = run_trial(procedure, index)
    kinds = [event.kind for event in record.events]
    assert kinds.count("NearDuplicatesFound") == 1
    assert kinds.index("TextRead") < kinds.index("NearDuplicatesFound") < kinds.index("VerdictGiven")
    assert record.last(NearDuplicatesFound).duplicates == (HARMFUL_NEAR, ACQUITTED_NEAR)
    assert index.requests == [("f" * 64, "the meme's own words", False, "blog")]


def test_summary_stores_near_duplicates_together_with_the_verdict():
    """No model is called in between, and storing them alone would cost another disk flush per trial."""
    batches = []

    class Counted(RecordingSink):
        async def __call__(self, *events):
            batches.append([event.kind for event in events])
            await super().__call__(*events)

    court = full_court(Cast(), found=findings([N] * 5), duplicates=FakeDuplicates(HARMFUL_NEAR))
    record = asyncio.run(court.run(TrialCase("t", a_meme("words"), Procedure.SUMMARY), Counted()))
    assert [kinds[-1] for kinds in batches] == ["TextRead", "VerdictGiven"]
    assert batches[1][:2] == ["NearDuplicatesFound", "PrecedentsCited"]
    assert ReviewReason.NEAR_DUPLICATE_HARMFUL in [review.reason for review in record.verdict.review]


@pytest.mark.parametrize("procedure", Procedure)
def test_no_event_is_recorded_without_near_duplicates(procedure):
    index = FakeDuplicates()
    without = run_trial(procedure)
    assert [e.kind for e in run_trial(procedure, index).events] == [e.kind for e in without.events]
    assert len(index.requests) == 1


@pytest.mark.parametrize("text", ["read", ""])
def test_text_read_from_the_picture_is_marked_as_uncertain_even_if_empty(text):
    index = FakeDuplicates()
    run_trial(Procedure.SUMMARY, index, meme=a_meme(None), reader=FakeReader(text))
    assert index.requests == [("f" * 64, text, True, "blog")]


duplicates = st.lists(
    st.builds(
        NearDuplicate,
        trial_id=st.sampled_from(["one", "two", "three"]),
        label=st.sampled_from(Label),
        distance=st.integers(0, 80),
        same_text=st.booleans(),
        same_picture=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40)
@given(
    found=duplicates,
    procedure=st.sampled_from(Procedure),
    labels=st.lists(st.sampled_from([H, N]), min_size=5, max_size=5),
    benign=st.booleans(),
)
def test_near_duplicates_never_make_a_verdict_more_lenient(found, procedure, labels, benign):
    """The same trial with and without near-duplicates: the same verdict, and at most one more review reason."""
    lines = {"judge": ACQUITTAL} if benign else {}
    without = run_trial(procedure, labels=labels, lines=lines).verdict
    verdict = run_trial(procedure, FakeDuplicates(*found), labels=labels, lines=lines).verdict
    assert verdict.model_copy(update={"review": ()}) == without.model_copy(update={"review": ()})
    assert verdict.review[: len(without.review)] == without.review
    more = [review.reason for review in verdict.review[len(without.review) :]]
    expected = without.label is not Label.HARMFUL and any(each.label is Label.HARMFUL for each in found)
    assert more == [ReviewReason.NEAR_DUPLICATE_HARMFUL] * expected
    assert verdict.needs_human_review >= without.needs_human_review


def test_lenient_and_harmful_verdicts_both_occur():
    assert run_trial(Procedure.FULL, lines={"judge": ACQUITTAL}).verdict.label is Label.NOT_HARMFUL
    assert run_trial(Procedure.FULL).verdict.label is Label.HARMFUL
    assert run_trial(Procedure.SUMMARY).verdict.label is Label.NOT_HARMFUL


def test_models_are_not_shown_near_duplicates():
    requests = []
    for index in (None, FakeDuplicates(HARMFUL_NEAR)):
        cast = Cast(rounds=2)
        court = full_court(cast, duplicates=index, settings=TrialSettings(overlap=False))
        asyncio.run(court.run(TrialCase("t", a_meme("words"), Procedure.FULL), RecordingSink()))
        requests.append({role: [call.request for call in model.asked] for role, model in cast.models.items()})
    assert requests[0] == requests[1]


def test_review_reason_names_the_nearest_harmful_trial_and_its_distance():
    far = NearDuplicate(trial_id="far", label=H, distance=3, same_text=False, same_picture=False)
    verdict = run_trial(Procedure.SUMMARY, FakeDuplicates(ACQUITTED_NEAR, far, HARMFUL_NEAR)).verdict
    review = next(r for r in verdict.review if r.reason is ReviewReason.NEAR_DUPLICATE_HARMFUL)
    assert review.detail == (
        "A meme that is nearly this one was found harmful in trial before: the same text, its picture 12 of 256 bits "
        "away; so was 1 more."
    )


def test_undecided_verdict_keeps_its_reasons_and_gets_this_one_too():
    court = full_court(Cast(), found=findings([]), duplicates=FakeDuplicates(HARMFUL_NEAR))
    verdict = asyncio.run(court.run(TrialCase("t", a_meme(), Procedure.SUMMARY), RecordingSink())).verdict
    assert verdict.label is Label.UNDECIDED
    assert [review.reason for review in verdict.review] == [
        ReviewReason.NO_SIMILAR_PRECEDENT,
        ReviewReason.NEAR_DUPLICATE_HARMFUL,
    ]


# Resumed trials


@pytest.mark.parametrize("procedure", Procedure)
def test_resumed_trial_reuses_recorded_near_duplicates(procedure):
    options = {"settings": TrialSettings(overlap=False)}
    whole = run_trial(procedure, FakeDuplicates(HARMFUL_NEAR), **options)
    place = next(event.seq for event in whole.events if event.kind == "NearDuplicatesFound")
    for cut in range(2, len(whole.events)):
        index = FakeDuplicates(HARMFUL_NEAR)
        court = full_court(Cast(rounds=2), found=findings([N] * 5), duplicates=index, **options)
        record = asyncio.run(court.resume(TrialRecord.of(whole.events[:cut]), a_picture(), RecordingSink()))
        assert record.verdict == whole.verdict
        assert len(record.all(NearDuplicatesFound)) == len(record.all(TrialResumed)) == 1
        searched_again = cut <= place
        assert index.requests == [("f" * 64, "the meme's own words", False, "blog")] * searched_again


# Display


def test_near_duplicates_are_shown_in_the_record_and_the_transcript():
    record = run_trial(Procedure.SUMMARY, FakeDuplicates(ACQUITTED_NEAR, HARMFUL_NEAR))
    shown = click.unstyle(render(record))
    assert "NearDuplicatesFound" in shown and "memes tried before that are nearly this one" in shown
    assert "     other  not harmful  0 of 256 bits, other text\n" in shown
    assert "     before  harmful      12 of 256 bits, same text\n" in shown
    assert "a person should look: A meme that is nearly this one was found harmful" in " ".join(shown.split())
    assert transcript(record).duplicates == (ACQUITTED_NEAR, HARMFUL_NEAR)
    assert transcript(run_trial(Procedure.SUMMARY)).duplicates == ()


# Failures


@pytest.mark.parametrize("procedure", Procedure)
def test_failed_search_yields_no_verdict(procedure):
    with pytest.raises(TrialAborted) as caught:
        run_trial(procedure, FakeDuplicates(error=Unavailable("gone", reason="DOCKET_UNAVAILABLE")))
    assert (caught.value.reason, caught.value.record.verdict) == ("DOCKET_UNAVAILABLE", None)
    assert caught.value.record.events[-1].retryable


def test_hanging_search_times_out():
    with pytest.raises(TrialAborted) as caught:
        run_trial(Procedure.SUMMARY, FakeDuplicates(wait=asyncio.Event()), settings=TrialSettings(find_s=0.05))
    assert caught.value.reason == "SEARCH_TOO_SLOW"
    assert caught.value.record.events[-1].step == "duplicates"


@pytest.mark.parametrize("procedure", Procedure)
def test_acquittal_of_a_partly_judged_animation_requests_review(procedure):
    meme = a_meme("words")
    picture = replace(meme.picture, frame_count=60, frames_unlike=12, incomplete=True, shown_otherwise=True)
    for labels, acquitted in (((N,) * 5, True), ((H,) * 5, False)):
        lines = {"judge": ACQUITTAL if acquitted else RULING}
        verdict = run_trial(procedure, labels=labels, meme=replace(meme, picture=picture), lines=lines).verdict
        assert verdict.label is (N if acquitted else H)
        reasons = [review for review in verdict.review if review.reason is ReviewReason.FRAMES_NOT_JUDGED]
        assert len(reasons) == acquitted
        for other in (ReviewReason.PICTURE_INCOMPLETE, ReviewReason.PICTURE_SHOWN_OTHERWISE):
            assert (other in {review.reason for review in verdict.review}) == acquitted
        assert not reasons or "1 of 60 frames were judged; 12 others look unlike all of them" in reasons[0].detail
