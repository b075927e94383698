import asyncio

import pytest

from court.errors import BadLibrary, BadText, CourtError, NotLoaded, Unavailable
from court.events import Procedure, TextSource
from court.judgment import with_starter_library
from court.meme import LIMITS, Picture
from court.precedents import STARTER
from court.record import TrialAborted, TrialRecord, TrialState
from court.trial import TrialCase
from court.verdict import Label, ReviewReason
from tests.support.fakes import FakeReader, N, RecordingSink, a_meme, a_picture, findings
from tests.support.trial import SUMMARY, a_court, hear

TOGETHER = [0, 2]
"""Numbers of the events that begin a group stored together, when the caller sends the text."""


def test_summary_procedure_records_every_event_in_order():
    notes = RecordingSink()
    record = hear(a_court(), watch=notes)
    assert notes.kinds == SUMMARY
    assert record.events == tuple(notes.events)
    assert record.state is TrialState.DECIDED
    assert record.verdict.label is Label.HARMFUL
    assert record.seconds == pytest.approx(0.7)


def test_text_of_the_caller_is_not_read_from_the_picture():
    reader = FakeReader("other")
    record = hear(a_court(reader=reader), a_meme("given"))
    assert (record.text.text, record.text.source, reader.calls) == ("given", TextSource.CALLER, 0)


def test_missing_text_is_read_from_the_picture():
    court = a_court(reader=FakeReader("one\ntwo\none"))
    record = hear(court, a_meme(None))
    assert (record.text.text, record.text.source) == ("one\ntwo", TextSource.OCR)
    assert [line.text for line in record.text.lines] == ["one", "two", "one"]
    assert court.finder.asked[0]["text"] == "one\ntwo"


def test_meme_without_text_has_the_text_source_none():
    assert hear(a_court(), a_meme("  ")).text.source is TextSource.NONE
    assert hear(a_court(reader=FakeReader("")), a_meme(None)).text.source is TextSource.NONE


@pytest.mark.parametrize(
    ("court", "step"),
    [
        (a_court(reader=FakeReader(Unavailable("gone"))), "text"),
        (a_court(found=Unavailable("gone")), "precedents"),
        (a_court(found=BadLibrary("broken")), "precedents"),
        (a_court(found=ZeroDivisionError("secret/path")), "precedents"),
    ],
)
def test_failed_trial_has_no_verdict(court, step):
    notes = RecordingSink()
    with pytest.raises(TrialAborted) as caught:
        hear(court, a_meme(None), notes)
    record = caught.value.record
    assert record.state is TrialState.FAILED
    assert record.verdict is None
    assert notes.events[-1].step == step
    assert record.events == tuple(notes.events)
    assert notes.events[-1].retryable == isinstance(caught.value.cause, Unavailable)
    assert "secret" not in notes.events[-1].message


@pytest.mark.parametrize(("place", "text"), [(1, None), (2, None), (2, "given"), (4, "given"), (7, "given")])
def test_trial_stops_at_the_first_event_that_cannot_be_stored(place, text):
    notes = RecordingSink(fail_at=place)
    with pytest.raises(TrialAborted) as caught:
        hear(a_court(), a_meme(text), notes)
    # Of events stored together, none is stored if one fails; the event of the failure may still be stored.
    assert notes.kinds == SUMMARY[: min(place, 2)] + ["TrialFailed"] * (place > 2)
    # The record ends where the docket's does: no verdict is returned that was not stored.
    assert caught.value.record.events == tuple(notes.events)
    assert caught.value.record.verdict is None


def test_trial_that_cannot_be_opened_records_no_event():
    notes = RecordingSink(fail_at=0, error=Unavailable("locked"))
    with pytest.raises(Unavailable):
        hear(a_court(), watch=notes)
    assert notes.events == []
    with pytest.raises(CourtError, match="mistake"):
        hear(a_court(), watch=RecordingSink(fail_at=0))


@pytest.mark.parametrize("procedure", [Procedure.FULL, Procedure.CASCADE])
def test_procedure_without_models_is_refused_before_anything_is_recorded(procedure):
    notes = RecordingSink()
    with pytest.raises(NotLoaded) as caught:
        hear(a_court(), watch=notes, procedure=procedure)
    assert caught.value.field == "procedure"
    assert notes.events == []


async def test_cancelled_trial_records_its_end():
    reader = FakeReader("never", wait=asyncio.Event())
    notes = RecordingSink()
    trial = asyncio.create_task(a_court(reader=reader).run(TrialCase("t", a_meme(None)), notes))
    await reader.asked.wait()
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    assert notes.kinds == ["TrialOpened", "TrialFailed"]
    assert notes.events[-1].reason == "CANCELLED"
    assert TrialRecord.of(notes.events).state is TrialState.FAILED


def test_events_without_work_between_them_are_stored_together():
    def groups(text):
        stored_groups = []

        async def keep(*events):
            stored_groups.append([event.kind for event in events])

        hear(a_court(), a_meme(text), keep)
        return stored_groups

    assert groups("given") == [SUMMARY[:2], SUMMARY[2:]]
    assert groups(None) == [SUMMARY[:1], SUMMARY[1:2], SUMMARY[2:]]  # the text is read in between


@pytest.mark.parametrize("place", TOGETHER)
async def test_cancelling_during_a_write_neither_loses_nor_repeats_an_event(place):
    stored = []
    writing, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*events):
        if events[0].seq == place:
            writing.set()
            await go_on.wait()
        stored.extend(events)

    trial = asyncio.create_task(a_court().run(TrialCase("t", a_meme()), slow))
    await writing.wait()
    trial.cancel()
    await asyncio.sleep(0.01)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await trial
    assert [event.seq for event in stored] == list(range(len(stored)))
    # Once the verdict is being written the trial is over, and stays decided.
    assert stored[-1].kind == ("VerdictGiven" if place == TOGETHER[-1] else "TrialFailed")


def test_record_names_settings_policy_and_versions():
    court = a_court()
    opened = hear(court).opened
    assert opened.settings == court.settings.model_dump(mode="json")
    assert opened.versions.settings == court.settings.digest
    assert opened.versions.library == "sha256:0"
    assert opened.versions.text_reader == "test reader"
    assert opened.policy.digest == court.policy.digest


def test_benign_precedents_lead_to_an_acquittal():
    assert hear(a_court(found=findings([N] * 5))).verdict.label is Label.NOT_HARMFUL


def test_oversized_text_is_refused_with_its_length_and_the_limit():
    with pytest.raises(BadText) as caught:
        a_meme("x" * 1_000_000)
    assert "1,000,000" in caught.value.message and "10,000" in caught.value.message
    assert (caught.value.field, caught.value.reason) == ("text", "TEXT_TOO_LONG")
    assert a_meme("x" * LIMITS.max_text).text


def test_lone_surrogate_is_refused():
    with pytest.raises(BadText, match="surrogate"):
        a_meme("half \ud83d")


def test_picture_without_a_frame_is_refused():
    values = {name: getattr(a_picture(), name) for name in Picture.__slots__}
    with pytest.raises(ValueError, match="frame"):
        Picture(**{**values, "frames": ()})


@pytest.mark.parametrize(("name", "asks"), [(STARTER, True), ("ours", False), ("starter-2", False)])
def test_only_verdicts_of_the_starter_library_ask_for_review_because_of_it(name, asks):
    found = findings([N] * 5)
    library = found.library.model_copy(update={"name": name})
    watch = RecordingSink()
    hear(a_court(found=found.model_copy(update={"library": library})), watch=watch)
    verdict = watch.events[-1].verdict
    assert (ReviewReason.STARTER_LIBRARY in {review.reason for review in verdict.review}) is asks
    assert not asks or verdict.decision == "review"
    assert with_starter_library(verdict, None) == verdict
