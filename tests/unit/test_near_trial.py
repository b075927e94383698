"""What a trial makes of memes tried before that are nearly the one on trial: evidence, cited, never leniency."""

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
from tests.support.fakes import FakeReader, H, N, Notes, a_meme, a_picture, findings

HARMFUL_NEAR = NearDuplicate(trial_id="before", label=H, distance=12, same_text=True, same_picture=False)
ACQUITTED_NEAR = NearDuplicate(trial_id="other", label=N, distance=0, same_text=False, same_picture=False)


class FakeDuplicates:
    """Finds what it was told to, or raises it; remembers what it was asked."""

    def __init__(self, *found, error=None, wait=None):
        self.found = found
        self.error = error
        self.wait = wait
        self.asked = []

    async def find(self, picture, text, text_read, namespace):
        self.asked.append((picture.pixels_sha256, text, text_read, namespace))
        if self.wait is not None:
            await self.wait.wait()
        if self.error is not None:
            raise self.error
        return self.found


def hear(procedure, duplicates=None, *, labels=(N,) * 5, meme=None, lines=None, **options):
    cast = Cast(rounds=2, **(lines or {}))
    court = full_court(cast, found=findings(labels), duplicates=duplicates, **options)
    case = TrialCase("t", meme or a_meme("the meme's own words"), procedure, namespace="blog")
    return asyncio.run(court.hear(case, Notes()))


@pytest.mark.parametrize("procedure", Procedure)
def test_what_is_near_is_cited_once_after_the_text_and_before_the_verdict(procedure):
    near = FakeDuplicates(HARMFUL_NEAR, ACQUITTED_NEAR)
    record = hear(procedure, near)
    kinds = [event.kind for event in record.events]
    assert kinds.count("NearDuplicatesFound") == 1
    assert kinds.index("TextRead") < kinds.index("NearDuplicatesFound") < kinds.index("VerdictGiven")
    assert record.last(NearDuplicatesFound).duplicates == (HARMFUL_NEAR, ACQUITTED_NEAR)
    assert near.asked == [("f" * 64, "the meme's own words", False, "blog")]


def test_in_a_summary_what_is_near_is_kept_with_the_verdict_and_counts_for_it():
    """Nobody is asked in between: to keep each alone would cost the disk another flush for every trial."""
    together = []

    class Counted(Notes):
        async def __call__(self, *events):
            together.append([event.kind for event in events])
            await super().__call__(*events)

    court = full_court(Cast(), found=findings([N] * 5), duplicates=FakeDuplicates(HARMFUL_NEAR))
    record = asyncio.run(court.hear(TrialCase("t", a_meme("words"), Procedure.SUMMARY), Counted()))
    assert [kinds[-1] for kinds in together] == ["TextRead", "VerdictGiven"]
    assert together[1][:2] == ["NearDuplicatesFound", "PrecedentsCited"]
    assert ReviewReason.NEAR_DUPLICATE_HARMFUL in [review.reason for review in record.verdict.review]


@pytest.mark.parametrize("procedure", Procedure)
def test_where_nothing_is_near_nothing_is_said(procedure):
    near = FakeDuplicates()
    without = hear(procedure)
    assert [e.kind for e in hear(procedure, near).events] == [e.kind for e in without.events]
    assert len(near.asked) == 1


@pytest.mark.parametrize("text", ["read", ""])
def test_text_that_was_read_may_be_misread_also_where_none_was_found(text):
    near = FakeDuplicates()
    hear(Procedure.SUMMARY, near, meme=a_meme(None), reader=FakeReader(text))
    assert near.asked == [("f" * 64, text, True, "blog")]


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


@settings(deadline=None, max_examples=40)
@given(
    near=duplicates,
    procedure=st.sampled_from(Procedure),
    labels=st.lists(st.sampled_from([H, N]), min_size=5, max_size=5),
    benign=st.booleans(),
)
def test_what_is_near_never_makes_a_verdict_more_lenient(near, procedure, labels, benign):
    """The same trial with and without it: the same verdict, and at most one more reason for a person to look."""
    lines = {"judge": ACQUITTAL} if benign else {}
    without = hear(procedure, labels=labels, lines=lines).verdict
    verdict = hear(procedure, FakeDuplicates(*near), labels=labels, lines=lines).verdict
    assert verdict.model_copy(update={"review": ()}) == without.model_copy(update={"review": ()})
    assert verdict.review[: len(without.review)] == without.review
    more = [review.reason for review in verdict.review[len(without.review) :]]
    called = without.label is not Label.HARMFUL and any(each.label is Label.HARMFUL for each in near)
    assert more == [ReviewReason.NEAR_DUPLICATE_HARMFUL] * called
    assert verdict.needs_human_review >= without.needs_human_review


def test_both_outcomes_of_the_property_occur():
    assert hear(Procedure.FULL, lines={"judge": ACQUITTAL}).verdict.label is Label.NOT_HARMFUL
    assert hear(Procedure.FULL).verdict.label is Label.HARMFUL
    assert hear(Procedure.SUMMARY).verdict.label is Label.NOT_HARMFUL


def test_the_models_are_told_nothing_of_it():
    told = []
    for near in (None, FakeDuplicates(HARMFUL_NEAR)):
        cast = Cast(rounds=2)
        court = full_court(cast, duplicates=near, settings=TrialSettings(overlap=False))
        asyncio.run(court.hear(TrialCase("t", a_meme("words"), Procedure.FULL), Notes()))
        told.append({role: [asked.request for asked in model.asked] for role, model in cast.models.items()})
    assert told[0] == told[1]


def test_the_reason_names_the_nearest_harmful_trial_and_how_far_it_is():
    far = NearDuplicate(trial_id="far", label=H, distance=3, same_text=False, same_picture=False)
    verdict = hear(Procedure.SUMMARY, FakeDuplicates(ACQUITTED_NEAR, far, HARMFUL_NEAR)).verdict
    review = next(r for r in verdict.review if r.reason is ReviewReason.NEAR_DUPLICATE_HARMFUL)
    assert review.detail == (
        "A meme that is nearly this one was found harmful in trial before: the same text, its picture 12 of 256 bits "
        "away; so was 1 more."
    )


def test_an_undecided_verdict_keeps_its_reasons_and_gets_this_one():
    court = full_court(Cast(), found=findings([]), duplicates=FakeDuplicates(HARMFUL_NEAR))
    verdict = asyncio.run(court.hear(TrialCase("t", a_meme(), Procedure.SUMMARY), Notes())).verdict
    assert verdict.label is Label.UNDECIDED
    assert [review.reason for review in verdict.review] == [
        ReviewReason.NO_SIMILAR_PRECEDENT,
        ReviewReason.NEAR_DUPLICATE_HARMFUL,
    ]


# A trial that was cut off


@pytest.mark.parametrize("procedure", Procedure)
def test_a_trial_that_is_resumed_recalls_what_was_near(procedure):
    options = {"settings": TrialSettings(overlap=False)}
    whole = hear(procedure, FakeDuplicates(HARMFUL_NEAR), **options)
    place = next(event.seq for event in whole.events if event.kind == "NearDuplicatesFound")
    for cut in range(2, len(whole.events)):
        near = FakeDuplicates(HARMFUL_NEAR)
        court = full_court(Cast(rounds=2), found=findings([N] * 5), duplicates=near, **options)
        record = asyncio.run(court.resume(TrialRecord.of(whole.events[:cut]), a_picture(), Notes()))
        assert record.verdict == whole.verdict
        assert len(record.all(NearDuplicatesFound)) == len(record.all(TrialResumed)) == 1
        asked = cut <= place
        assert near.asked == [("f" * 64, "the meme's own words", False, "blog")] * asked


# What people see of it


def test_it_is_shown_step_by_step_and_in_a_report():
    record = hear(Procedure.SUMMARY, FakeDuplicates(ACQUITTED_NEAR, HARMFUL_NEAR))
    shown = click.unstyle(render(record))
    assert "NearDuplicatesFound" in shown and "memes tried before that are nearly this one" in shown
    assert "     other  not harmful  0 of 256 bits, other text\n" in shown
    assert "     before  harmful      12 of 256 bits, same text\n" in shown
    assert "a person should look: A meme that is nearly this one was found harmful" in " ".join(shown.split())
    assert transcript(record).duplicates == (ACQUITTED_NEAR, HARMFUL_NEAR)
    assert transcript(hear(Procedure.SUMMARY)).duplicates == ()


# What goes wrong


@pytest.mark.parametrize("procedure", Procedure)
def test_a_search_that_fails_is_never_a_verdict(procedure):
    with pytest.raises(TrialAborted) as caught:
        hear(procedure, FakeDuplicates(error=Unavailable("gone", reason="DOCKET_UNAVAILABLE")))
    assert (caught.value.reason, caught.value.record.verdict) == ("DOCKET_UNAVAILABLE", None)
    assert caught.value.record.events[-1].retryable


def test_a_search_that_hangs_ends_in_time():
    with pytest.raises(TrialAborted) as caught:
        hear(Procedure.SUMMARY, FakeDuplicates(wait=asyncio.Event()), settings=TrialSettings(find_s=0.05))
    assert caught.value.reason == "SEARCH_TOO_SLOW"
    assert caught.value.record.events[-1].step == "duplicates"


@pytest.mark.parametrize("procedure", Procedure)
def test_an_acquittal_of_an_animation_that_was_not_looked_at_whole_calls_a_person(procedure):
    meme = a_meme("words")
    picture = replace(meme.picture, frame_count=60, frames_unlike=12, incomplete=True)
    for labels, called in (((N,) * 5, True), ((H,) * 5, False)):
        lines = {"judge": ACQUITTAL if called else RULING}
        verdict = hear(procedure, labels=labels, meme=replace(meme, picture=picture), lines=lines).verdict
        assert verdict.label is (N if called else H)
        reasons = [review for review in verdict.review if review.reason is ReviewReason.FRAMES_NOT_JUDGED]
        assert len(reasons) == called
        assert (ReviewReason.PICTURE_INCOMPLETE in {review.reason for review in verdict.review}) == called
        assert not reasons or "1 of 60 frames were judged; 12 others look unlike all of them" in reasons[0].detail
