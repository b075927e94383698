"""Documents read by an expert witness, in a docket: stored once, verified, and erased from every record."""

import asyncio
import json

import pytest

from court.events import ClaimSettled, DocumentWeighed, EvidenceSearched, VerdictGiven
from eval.replay.replay import replay
from memecourt.verify import verify_bundle
from serving.docket.store.bodies import GONE, PART, document_owner, part_value
from serving.views.recheck import differences
from tests.support.cast import Cast
from tests.support.dockets import NOON, append_all, audited, opened_docket, with_docket
from tests.support.evidence import CLAIM, REFUTING, Expert, FakeEvidence, document, try_with_expert

QUOTE = "blue tea does not shorten a cold"


@pytest.fixture(scope="module")
def record():
    found = [document("one"), document("two", f"Two. {REFUTING}")]
    return try_with_expert(Expert(rank={"order": [1, 2]}), FakeEvidence(found), cast=Cast(rounds=1))[0]


def events_as(record, trial_id):
    return [event.model_copy(update={"trial_id": trial_id}) for event in record.events]


def test_records_are_restored_and_each_document_is_stored_once(record, tmp_path):
    async def scene(docket):
        await append_all(docket, events_as(record, "a"))
        await append_all(docket, events_as(record, "b"))
        both = [await docket.trials.record(trial_id) for trial_id in "ab"]
        entries = await docket.log.entries(0, await docket.log.size())
        bundles = [verify_bundle(await docket.auditor.bundle(each), [await docket.log.vkey()]) for each in "ab"]
        report = await audited(docket)
        return both, entries, bundles, {fault for fault in report.counts if fault != "PICTURE_DIFFERS"}

    both, entries, bundles, faults = with_docket(tmp_path / "d.sqlite", scene)
    assert [list(each.events) for each in both] == [events_as(record, "a"), events_as(record, "b")]
    parts = [entry for entry in entries if entry.kind == PART and entry.body is not None]
    # The first document's snippet equals its text, so both are the same part.
    assert sum(part_value(entry.body) == REFUTING for entry in parts) == 1
    assert len({entry.body for entry in parts}) == len(parts)
    # The events hold digests; what a model copied into its reply is stored with its call.
    for entry in entries:
        if entry.kind in ("EvidenceSearched", "ClaimSettled", "DocumentWeighed", "VerdictGiven"):
            event = json.loads(entry.body)
            for call_field in ("call", "calls"):
                event.pop(call_field, None)
            assert QUOTE not in json.dumps(event) and '{"part": ' in json.dumps(event)
    assert not faults and all(bundle.hidden == 0 for bundle in bundles)
    assert asyncio.run(replay(both[0])).differences == () and differences(both[0]) == ()


def test_an_erased_document_is_gone_from_every_record_and_stays_gone(record, tmp_path):
    async def scene(docket):
        await append_all(docket, events_as(record, "a"))
        erased = await docket.eraser.erase_precedent(document_owner("one"), who="Ruth", why="asked for", at=NOON)
        await append_all(docket, events_as(record, "b"))
        both = [await docket.trials.record(trial_id) for trial_id in "ab"]
        entries = await docket.log.entries(0, await docket.log.size())
        report = await audited(docket)
        return erased, both, entries, {fault for fault in report.counts if fault != "PICTURE_DIFFERS"}

    erased, both, entries, faults = with_docket(tmp_path / "d.sqlite", scene)
    assert len(erased.numbers) >= 2 and not faults  # the text and its quotation
    for each in both:
        weighed = each.last(DocumentWeighed)
        assert weighed.text == GONE and weighed.quotes == (GONE,) and len(weighed.sha256) == 64
        hits = {hit.id: hit.snippet for hit in each.last(EvidenceSearched).hits}
        assert hits["one"] == GONE and hits["two"].startswith("Two.")
        (passage,) = each.last(ClaimSettled).evidence
        assert passage.quote == GONE and passage.sha256 == weighed.sha256
        (finding,) = each.last(VerdictGiven).verdict.claims
        assert finding.claim == CLAIM and finding.label == "REFUTED" and finding.evidence[0].quote == GONE
        assert differences(each) == () and "erased" in asyncio.run(replay(each)).obstacle
    gone = [entry for entry in entries if entry.kind == PART and entry.body is not None]
    assert not any('"of":"document:one"' in entry.body.replace(" ", "") and QUOTE in entry.body for entry in gone)


async def texts_left(docket):
    """Returns the documents whose texts the log still holds, after verifying the docket."""
    report = await audited(docket)
    assert not report.counts.keys() - {"PICTURE_DIFFERS"}, report.findings
    entries = await docket.log.entries(0, await docket.log.size(), {PART})
    parts = [json.loads(entry.body) for entry in entries if entry.body is not None]
    return {part["of"] for part in parts if part["of"].startswith("document:")}


def erase_trials(docket, *trial_ids):
    return docket.eraser.erase_all(dict.fromkeys(trial_ids, ()), who="Ruth", why="asked for", at=NOON)


BOTH = {"document:one", "document:two"}


@pytest.mark.slow
async def test_a_document_s_text_is_erased_with_the_last_trial_that_quotes_it(record, opening):
    async with opening() as docket:
        for trial_id in "ab":
            await append_all(docket, events_as(record, trial_id))
        # The third trial has not read the second document, and knows the first only from the search results.
        upto = next(place for place, event in enumerate(record.events) if isinstance(event, DocumentWeighed))
        await append_all(docket, events_as(record, "c")[:upto])
        assert await texts_left(docket) == BOTH
        await erase_trials(docket, "a")
        assert list((await docket.trials.record("b")).events) == events_as(record, "b"), (
            "the other trial's record is unchanged"
        )
        (erased,) = await erase_trials(docket, "b")
        assert await texts_left(docket) == BOTH, "the third trial's search results contain both"
        third = await docket.trials.record("c")
        assert list(third.events) == events_as(record, "c")[:upto]
        await erase_trials(docket, "c")
        assert await texts_left(docket) == set()
        # No tombstone: a later reader of the document has it on record like the first.
        await append_all(docket, events_as(record, "d"))
        assert list((await docket.trials.record("d")).events) == events_as(record, "d")
        await append_all(docket, events_as(record, "e"))
        await erase_trials(docket, "d", "e")
        assert await texts_left(docket) == set()
        assert erased.numbers


async def test_erasing_a_precedent_keeps_the_document_of_the_same_name(record, tmp_path):
    async with opened_docket(tmp_path / "d.sqlite") as docket:
        await append_all(docket, events_as(record, "a"))
        await docket.eraser.erase_precedent("one", who="Ruth", why="asked for", at=NOON)
        assert (await docket.trials.record("a")).last(DocumentWeighed).text == REFUTING
