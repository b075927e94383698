"""The docket's log, over SQLite and PostgreSQL: appended entries can be proven, erased ones are gone."""

import asyncio
import random
from datetime import timedelta

import pytest
from sqlalchemy import select

from court.events import PrecedentReading, PrecedentsCited, ReviewOutcome, Ruling, VerdictGiven
from court.verdict import Label
from memecourt.verify import verify_bundle
from serving.docket.errors import DocketError, NotDecided, TrialErased, TrialUnknown
from serving.docket.log.merkle import consistency_proof, leaf_hash, verify_inclusion
from serving.docket.log.notes import VerifierKey, open_checkpoint
from serving.docket.open import Docket
from serving.docket.store import review_tables as desk_tables
from serving.docket.store import tables as t
from serving.docket.store.bodies import GONE, PART, unpacked
from serving.docket.store.log_append import KeyFile
from serving.docket.store.log_queries import nodes
from serving.docket.store.requests import RequestName
from tests.support.dockets import (
    NOON,
    append_all,
    audited,
    entries_of,
    events_of,
    open_trials,
    opened_docket,
    parse_place,
    review_trial,
    with_docket,
)
from tests.support.erasing import Marked
from tests.support.fakes import a_picture
from tests.support.logs import checked_log, verify_consistency


def test_all_appends_form_one_log_with_a_signed_root(using):
    async def scene(docket):
        before = await docket.log.checkpoint()
        trials = [events_of(f"t{number}") for number in range(40)]
        await asyncio.gather(*(append_all(docket, events) for events in trials))
        await review_trial(docket, "t3")
        await docket.reviews.record_access("t3", who="Ruth", what="frame 0", at=NOON)
        return before, await checked_log(docket), await docket.trials.record("t3"), await entries_of(docket, "t3")

    before, (entries, _, key), record, own = using(scene)
    assert open_checkpoint(before, [key]).size == 0
    assert len(entries) > 256, "the log spans more than one tile"
    seqs = [entry.seq for entry in entries if entry.trial_id == "t3" and entry.seq >= 0]
    assert seqs == list(range(len(events_of()) + 1))
    assert [entry.kind for entry in own if entry.seq >= 0] == [event.kind for event in record.events]
    assert own[-1].kind == "PictureShown" and '"who":"Ruth"' in own[-1].body
    assert {entry.kind for entry in own} >= {"PictureShown", PART}
    again, *_ = using(checked_log)
    assert again == entries


async def test_entries_can_be_read_by_kind_and_number(opening):
    async with opening() as docket:
        for number in range(3):
            await append_all(docket, events_of(f"t{number}"))
        every = await docket.log.entries(0, 999)
        some = await docket.log.entries(every[5].number, 2, {"VerdictGiven", "TrialOpened"})
    assert some == [e for e in every if e.number >= 5 and e.kind in ("VerdictGiven", "TrialOpened")][:2]


async def test_a_receipt_proves_inclusion_and_stays_the_same(opening):
    async with opening() as docket:
        await append_all(docket, events_of("a"))
        first = await docket.log.receipt("a")
        for number in range(30):
            await append_all(docket, events_of(f"t{number}"))
        await append_all(docket, events_of("open")[:3])
        for trial_id, error in (("open", NotDecided), ("none", TrialUnknown)):
            with pytest.raises(error):
                await docket.log.receipt(trial_id)
        key = VerifierKey.parse(await docket.log.vkey())
        old, new = (open_checkpoint(note, [key]) for note in (first.checkpoint, await docket.log.checkpoint()))
        proof = await docket.auditor.read(lambda connection: consistency_proof(old.size, new.size, nodes(connection)))
        verify_consistency(old.size, new.size, old.root, new.root, proof)
        again = await docket.log.receipt("a")
        last = await docket.log.receipt("t29")
        _ = await docket.auditor.read(lambda connection: nodes(connection)(3, 1))
    assert first == again
    for receipt in (first, last):
        signed = open_checkpoint(receipt.checkpoint, [key])
        verify_inclusion(receipt.number, signed.size, leaf_hash(receipt.header), receipt.proof, signed.root)
        assert b'"kind":"VerdictGiven"' in receipt.header
    assert last.number > first.number


def append_some(place, owner, trials):
    async def main():
        docket = Docket.open(parse_place(place))
        try:
            await asyncio.gather(*(append_all(docket, events_of(f"{owner}{number}")) for number in range(trials)))
        finally:
            await docket.close()

    asyncio.run(main())


def test_processes_appending_at_once_write_one_log(docket_place, using, forks):
    writers = [forks.Process(target=append_some, args=(docket_place, owner, 12)) for owner in "ABC"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    entries, *_ = using(checked_log)
    assert sum(entry.kind == "VerdictGiven" for entry in entries) == 36


async def test_claims_are_not_signed_and_concurrent_appends_share_signatures(docket_place, monkeypatch):
    signed = []

    class Counting(KeyFile):
        def __call__(self, known):
            signed.append(1)
            return super().__call__(known)

    monkeypatch.setattr("serving.docket.open.KeyFile", Counting)
    async with opened_docket(parse_place(docket_place)) as docket:

        async def claim(number):
            await docket.leases.claim(RequestName("n", f"r{number}"), payload="p", trial_id="t", owner="A")

        await asyncio.gather(*(claim(number) for number in range(50)))
        by_claims = len(signed)
        opened = events_of()[0]
        await asyncio.gather(
            *(docket.writer.append(opened.model_copy(update={"trial_id": f"t{n}"})) for n in range(200))
        )
        assert by_claims == 0
    assert 0 < len(signed) <= 4, "one per commit, not per entry"


def test_another_key_is_refused(using, docket_place, tmp_path):
    using(lambda docket: append_all(docket, events_of("a")))
    other = tmp_path / "other.key"

    async def scene(docket):
        for ask in (docket.writer.append(events_of("b")[0]), docket.log.sign()):
            with pytest.raises(DocketError) as refused:
                await ask
            assert refused.value.reason == "DOCKET_KEY"
        return await docket.trials.record("a"), await docket.index.list(limit=9)

    record, lines = using(scene, key=other)
    assert record.verdict is not None and [line.trial_id for line in lines] == ["a"]
    assert not other.exists(), "a key is generated only for a docket without one"
    # An existing key, but of another docket.
    with_docket(tmp_path / "another.sqlite", lambda docket: docket.log.sign(), key=other)
    using(scene, key=other)


def quoted(event):
    """Returns the precedents' texts that an event quotes, by id."""
    findings = event.findings
    shown = [*findings.exhibits, findings.nearest_harmful, findings.nearest_benign]
    return {one.id: one.text for one in shown if one is not None}


async def test_texts_of_precedents_are_stored_once_and_restored(opening):
    events = events_of("a")
    cited = next(event for event in events if isinstance(event, PrecedentsCited))
    assert any(quoted(cited).values())
    async with opening() as docket:
        await append_all(docket, events)
        await append_all(docket, events_of("b"))
        entries = await docket.log.entries(0, 999)
        a, b = await docket.trials.record("a"), await docket.trials.record("b")
    assert list(a.events) == events and list(b.events) == events_of("b")
    texts = {text for text in quoted(cited).values() if text}
    assert sum(entry.kind == PART for entry in entries) == len(texts)
    for entry in entries:
        assert (entry.kind in (PART, "Summarised", "VerdictGiven")) or not any(text in entry.body for text in texts)


async def test_an_erased_precedent_is_gone_from_every_record_that_quotes_it(opening):
    cited = next(event for event in events_of() if isinstance(event, PrecedentsCited))
    precedent_id = next(id_ for id_, text in quoted(cited).items() if text)
    async with opening() as docket:
        await append_all(docket, events_of("a"))
        await append_all(docket, events_of("b"))
        erased = await docket.eraser.erase_precedent(precedent_id, who="Ruth", why="asked for", at=NOON)
        before = await docket.trials.record("a"), await docket.trials.record("b")
        # Appended by a server that does not know of the erasure, or after the precedent was added again.
        await append_all(docket, events_of("c"))
        again = await docket.eraser.erase_precedent(precedent_id, who="Ruth", why="once more", at=NOON)
        await append_all(docket, events_of("d"))
        report = await audited(docket)
        faults = {fault for fault in report.counts if fault != "PICTURE_DIFFERS"}
        after = await docket.trials.record("c"), await docket.trials.record("d")
        bundles = [
            verify_bundle(await docket.auditor.bundle(trial_id), [await docket.log.vkey()]) for trial_id in "abcd"
        ]
        erased, again, records, faults, bundles, (entries, *_) = (
            erased,
            again,
            (*before, *after),
            faults,
            bundles,
            await checked_log(docket),
        )
    (number,) = erased.numbers
    assert entries[number].erased and entries[number].kind == PART
    assert (erased.buried, again.buried, again.numbers) == (1, 0, ())
    for record in records:
        (event,) = record.all(PrecedentsCited)
        assert quoted(event) == {**quoted(cited), precedent_id: GONE}
    assert sum(entry.erased for entry in entries) == 1
    assert not faults and [trial.hidden for trial in bundles] == [1, 1, 0, 0]


async def test_a_precedent_erased_during_a_trial_does_not_return_with_the_verdict(opening):
    shown = "ab" * 32
    async with opening() as docket:
        *before, verdict_event = events_of("a")
        reading = PrecedentReading(id="p", supports="neither", picture=shown)
        ruling = Ruling(
            harmful_evidence=(), harmless_evidence=(), precedents=(reading,), label=verdict_event.verdict.label
        )
        verdict_event = verdict_event.model_copy(update={"ruling": ruling})
        await append_all(docket, before)
        await docket.eraser.erase_precedent(reading.id, who="Ruth", why="asked for", at=NOON)
        await docket.writer.append(verdict_event)
        record = await docket.trials.record("a")
        picture, (entries, *_) = record.last(VerdictGiven).ruling.precedents[0].picture, await checked_log(docket)
    assert picture == GONE
    assert not any(shown in (entry.body or "") for entry in entries)


async def test_an_erased_trial_is_listed_as_erased_and_reveals_nothing(opening):
    picture = a_picture("c" * 64)

    def events_with_picture(trial_id):
        opened, *more = events_of(trial_id)
        meme = opened.meme.model_copy(update={"pixels_sha256": picture.pixels_sha256, "content_id": f"post {trial_id}"})
        return [opened.model_copy(update={"meme": meme, "request_id": f"r {trial_id}"}), *more]

    async with opening() as docket:
        await docket.writer.keep_picture(picture)
        for trial_id in "ab":
            await append_all(docket, events_with_picture(trial_id))
            await docket.leases.claim(RequestName("n", trial_id), payload="p", trial_id=trial_id, owner="A")
            await docket.verdict_keys.put(f"k{trial_id}", trial_id)
            await docket.fingerprints.put_fingerprint(trial_id, b"look")
            await review_trial(docket, trial_id, ReviewOutcome.UPHELD, Label.HARMFUL)
        receipt = await docket.log.receipt("a")
        erased = await docket.eraser.erase("a", who="Ruth", why="asked for", at=NOON)
        for ask in (
            docket.trials.record("a"),
            docket.trials.events("a"),
            docket.writer.append(events_with_picture("a")[0].model_copy(update={"seq": 99})),
            docket.reviews.record_access("a", who="Ruth", what="frame 0", at=NOON),
            review_trial(docket, "a"),
        ):
            with pytest.raises(TrialErased):
                await ask
        await docket.verdict_keys.put("again", "a")
        await docket.fingerprints.put_fingerprint("a", b"look")
        shared = await docket.trials.frames(picture.pixels_sha256)
        twice = await docket.eraser.erase("a", who="Rolf", why="again", at=NOON + timedelta(days=1))
        left = {
            "lines": {line.trial_id: line for line in await docket.index.list(limit=9)},
            "known": [await docket.verdict_keys.get(key) for key in ("ka", "again", "kb")],
            "claims": [await docket.leases.claim_of(RequestName("n", trial_id)) for trial_id in "ab"],
            "looks": [trial_id for _, trial_id, _ in await docket.fingerprints.fingerprints(0)],
            "labels": await docket.index.labels(["a", "b"]),
            "other": await docket.trials.record("b"),
        }
        assert await docket.log.receipt("a") == receipt
        await docket.eraser.erase("b", who="Ruth", why="asked for", at=NOON)
        erased, twice, left, shared, unshared, (entries, *_) = (
            erased,
            twice,
            left,
            shared,
            await docket.trials.frames(picture.pixels_sha256),
            await checked_log(docket),
        )
    assert erased == twice and erased.who == "Ruth"
    gone = [entry for entry in entries if entry.trial_id == "a" and entry.seq >= 0]
    assert [entry.number for entry in gone] == list(erased.numbers) and all(entry.erased for entry in gone)
    line = left["lines"]["a"]
    assert line.erased and not left["lines"]["b"].erased
    assert (line.content_id, line.request_id, line.review, line.label) == ("", "", None, Label.HARMFUL)
    assert left["known"] == [None, None, "b"]
    assert left["claims"][0] is None and left["claims"][1].trial_id == "b"
    assert left["looks"] == ["b"] and left["labels"] == {"b": Label.HARMFUL}
    assert left["other"].verdict is not None
    assert shared and not unshared, "the picture is deleted with its last trial"


async def test_a_trial_erased_while_running_is_not_resumed(opening):
    async with opening() as docket:
        events = events_of("a")
        await append_all(docket, events[:2])
        await docket.eraser.erase("a", who="Ruth", why="asked for", at=NOON)
        with pytest.raises(TrialErased):
            await docket.writer.append(events[2])
        assert (await open_trials(docket), await docket.leases.open_claims()) == ([], [])


async def test_no_query_finds_erased_content(opening):
    """PostgreSQL's files keep old rows until rewritten (docs/docket.md); test_erasing checks those of SQLite."""
    meme = Marked(1, random.Random(14))

    def dump_tables(connection):
        values_found = []
        for table in (*t.metadata.sorted_tables, *desk_tables.metadata.sorted_tables):
            for row in connection.execute(select(table)).mappings():
                values = {**row, "body": unpacked(row["body"])} if row.get("body") else row
                values_found += [one if isinstance(one, bytes) else str(one).encode() for one in values.values()]
        return b"\n".join(values_found)

    async with opening() as docket:
        await meme.keep(docket)
        await meme.quoted(docket, "later")
        before = await docket.auditor.read(dump_tables)
        await docket.eraser.erase(meme.trial_id, who="Ruth", why="asked for", at=NOON, precedents=[meme.precedent])
        after = await docket.auditor.read(dump_tables)
    named = [trace for trace in meme.traces() if trace.isalnum()]
    assert len(named) == 10 and all(trace in before for trace in named)
    assert not [trace for trace in meme.traces() if trace in after]
