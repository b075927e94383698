"""The contract of every docket: the same tests over SQLite and over PostgreSQL."""

import asyncio
import random
from datetime import timedelta

import pytest

from court.errors import CantResume
from court.events import ModelCall, Procedure, ReviewOutcome, Role, TrialFailed, TrialResumed, VerdictReviewed
from court.question import CourtQuestion
from court.record import TrialRecord, TrialState
from court.second_question import QuestionBrief
from court.verdict import Label
from serving.docket.errors import DocketError, NotDecided, RequestConflict, TrialUnknown
from serving.docket.open import Docket
from serving.docket.store.listing import TrialFilter
from serving.docket.store.requests import Lease, RequestName
from serving.judging.executor import TrialExecutor
from serving.judging.request import TrialRequest
from tests.support.dockets import (
    NOON,
    append_all,
    events_of,
    listing_fields,
    open_trials,
    opened_docket,
    parse_place,
    random_records,
    review_trial,
)
from tests.support.fakes import a_picture
from tests.support.scenes import IMAGE, FakePictures
from tests.support.trial import SUMMARY, a_court

NAME = RequestName("north", "r1")


async def test_a_record_is_restored_as_stored(opening):
    events, picture = events_of(), a_picture()
    async with opening() as docket:
        await docket.writer.keep_picture(picture)
        await docket.writer.keep_picture(picture)
        await append_all(docket, events)
    async with opening(create=False) as docket:
        later = await docket.trials.events("t", 3), await docket.trials.events("t", 99)
        record = await docket.trials.record("t")
        stored = await docket.trials.frames(picture.pixels_sha256)
        none = await docket.trials.frames("0")
    assert list(record.events) == events
    assert later == (events[3:], [])
    assert (stored, none) == ([b"png"], [])


async def test_missing_objects_are_reported_as_unknown(opening):
    async with opening() as docket:
        for ask in (
            docket.trials.record("t"),
            docket.trials.events("t"),
            docket.trials.events("t", 5),
            review_trial(docket, "t"),
        ):
            with pytest.raises(TrialUnknown, match="no trial t "):
                await ask
        for ask in (
            docket.leases.claim_of(NAME),
            docket.verdict_keys.get("k"),
            docket.fingerprints.fingerprints(0),
            docket.leases.open_claims(),
            docket.index.list(limit=9),
            docket.heartbeats.heartbeats(),
            docket.index.labels(["t"]),
            docket.index.failures("p"),
        ):
            assert not await ask


def test_a_missing_docket_is_created_only_on_request(docket_place):
    with pytest.raises(DocketError) as refused:
        Docket.open(parse_place(docket_place), create=False)
    assert refused.value.reason == "DOCKET_MISSING"
    with pytest.raises(DocketError):  # the first attempt did not create it
        Docket.open(parse_place(docket_place), create=False)


async def test_concurrent_writes_all_succeed_but_the_conflicting_one(opening):
    events = events_of()
    async with opening() as docket:
        trials = [[e.model_copy(update={"trial_id": f"t{i}"}) for e in events] for i in range(40)]
        twice = docket.writer.append(trials[0][0])
        results = await asyncio.gather(*(append_all(docket, trial) for trial in trials), twice, return_exceptions=True)
        records = [await docket.trials.record(f"t{i}") for i in range(40) if results[i] is None]
        lines = await docket.index.list(limit=99)
    refused = [r for r in results if r is not None]
    assert len(refused) == 1 and isinstance(refused[0], DocketError) and refused[0].reason == "EVENT_EXISTS"
    # The duplicate either came second, or it came first and trial 0 was refused.
    assert len(records) == 40 - (results[0] is not None)
    assert all(record.state is TrialState.DECIDED for record in records)
    assert len(lines) == 40 and [line.state for line in lines].count(TrialState.DECIDED) == len(records)


async def test_events_appended_together_are_stored_all_or_none(opening):
    async with opening() as docket:
        mine, theirs, others = events_of("a"), events_of("a"), events_of("b")
        await docket.writer.append(*mine[:2])
        await docket.writer.append(theirs[4])  # by a server that continues the trial elsewhere
        results = await asyncio.gather(
            docket.writer.append(*mine[2:]), docket.writer.append(*others), return_exceptions=True
        )
        stored_a, b = await docket.trials.events("a"), await docket.trials.record("b")
    assert isinstance(results[0], DocketError) and results[0].reason == "EVENT_EXISTS"
    assert results[1] is None and list(b.events) == others, "other writes of the same commit are not affected"
    assert stored_a == [*mine[:2], mine[4]]


@pytest.mark.parametrize(("text", "expected"), [("given", 2), (None, 3)])
async def test_a_summary_trial_makes_only_the_commits_that_it_must_wait_for(opening, monkeypatch, text, expected):
    """Events without a model call between them share a commit; each is published in order, after all are stored."""
    async with opening() as docket:
        commits, published = [], []
        begin = docket.transactions._logged._transaction
        monkeypatch.setattr(docket.transactions._logged, "_transaction", lambda: commits.append(1) or begin())

        async def watch(event):
            published.append(event)
            assert event in await docket.trials.events(event.trial_id)

        executor = TrialExecutor(a_court(), FakePictures(), docket)
        picture = await executor.pictures.read(IMAGE)
        await docket.writer.keep_picture(picture)
        commits.clear()
        executor.feed.subscribe(watch)
        hearing = await executor.run(TrialRequest(IMAGE, text=text), picture=picture)
        assert len(commits) == expected
        stored = await docket.trials.record(hearing.record.trial_id)
    assert [event.kind for event in published] == SUMMARY
    assert list(stored.events) == published == list(hearing.record.events)


@pytest.mark.parametrize("stored", range(2, len(SUMMARY)))
async def test_an_interrupted_summary_trial_resumes_from_any_event(opening, stored):
    """Trials of earlier versions may have been interrupted between any two events."""
    async with opening() as docket:
        executor = TrialExecutor(a_court(), FakePictures(), docket)
        whole = (await executor.run(TrialRequest(IMAGE, text="given"))).record
        await append_all(docket, [event.model_copy(update={"trial_id": "cut"}) for event in whole.events[:stored]])
        await executor.resume("cut")
        resumed = await docket.trials.record("cut")
    assert resumed.state is TrialState.DECIDED and resumed.verdict == whole.verdict
    kinds = [event.kind for event in resumed.events]
    assert kinds == [*SUMMARY[:stored], "TrialResumed", *SUMMARY[stored:]]
    assert [event.seq for event in resumed.events] == list(range(len(kinds)))


async def test_a_trial_that_quotes_an_erased_text_is_neither_resumed_nor_questioned(opening):
    """The placeholder of an erased text is not the precedent's, and no model may read it as such."""
    async with opening() as docket:
        executor = TrialExecutor(a_court(), FakePictures(), docket)
        whole = (await executor.run(TrialRequest(IMAGE, text="given"))).record
        upto = 1 + next(event.seq for event in whole.events if event.kind == "PrecedentsCited")
        await append_all(docket, [event.model_copy(update={"trial_id": "cut"}) for event in whole.events[:upto]])
        cited = whole.precedents.findings.exhibits[0].id
        await docket.eraser.erase_precedent(cited, who="Ruth", why="asked for", at=NOON)
        before = await docket.trials.record("cut")
        with pytest.raises(CantResume) as resumed:
            await executor.resume("cut")
        record = await docket.trials.record(whole.trial_id)
        brief = QuestionBrief(CourtQuestion(id="side", text="whom is it aimed at?", options=("blueland", "nobody")))
        with pytest.raises(CantResume) as questioned:
            await executor.rule_on(record, await executor.picture_of_trial(record), brief)
        with pytest.raises(CantResume, match="has its verdict"):
            await executor.resume(whole.trial_id)
        assert list((await docket.trials.record("cut")).events) == list(before.events)
        assert (resumed.value.reason, questioned.value.reason) == ("QUOTED_ERASED", "QUOTED_ERASED")


def matches(line, trial_filter):
    return (
        (not trial_filter.labels or line["label"] in trial_filter.labels)
        and (not trial_filter.states or line["state"] in trial_filter.states)
        and (trial_filter.opened_from is None or line["opened_at"] >= trial_filter.opened_from)
        and (trial_filter.opened_until is None or line["opened_at"] < trial_filter.opened_until)
        and (trial_filter.reviewed is None or (line["review"] is not None) is trial_filter.reviewed)
        and (trial_filter.needs_review is None or line["needs_human_review"] is trial_filter.needs_review)
        and (trial_filter.namespace is None or line["namespace"] == trial_filter.namespace)
        and (trial_filter.namespaces is None or line["namespace"] in trial_filter.namespaces)
        and line["namespace"] not in trial_filter.other_than
        and not trial_filter.erased
    )


def random_filter(chance):
    def maybe(value):
        return value if chance.random() < 0.35 else None

    def some(values):
        return frozenset(chance.sample(values, chance.randrange(len(values) + 1)))

    names = ["", "north", "so\\uth", "ea\0st", "nobody"]
    times = sorted(NOON + timedelta(minutes=chance.randrange(-100, 25 * 60)) for _ in range(2))
    return TrialFilter(
        labels=maybe(some(list(Label))) or frozenset(),
        states=maybe(some(list(TrialState))) or frozenset(),
        opened_from=maybe(times[0]),
        opened_until=maybe(times[1]),
        reviewed=maybe(chance.random() < 0.5),
        needs_review=maybe(chance.random() < 0.5),
        namespace=maybe(chance.choice(names)),
        namespaces=maybe(some(names)),
        erased=maybe(chance.random() < 0.2),
        other_than=maybe(some(names)) or frozenset(),
    )


async def test_listings_equal_a_count_over_all_records(opening):
    chance = random.Random(6)
    trials = random_records(chance, 150, NOON)
    lines = sorted(
        (listing_fields(TrialRecord.of(events)) for events in trials), key=lambda x: (x["opened_at"], x["trial_id"])
    )
    queries = [(random_filter(chance), chance.random() < 0.5, chance.choice([5, 40, 1000])) for _ in range(60)]

    async def pages(docket, trial_filter, oldest_first, limit):
        found, after = [], None
        while page := await docket.index.list(limit=limit, after=after, which=trial_filter, oldest_first=oldest_first):
            assert len(page) <= limit
            found += page
            after = page[-1].opened_at, page[-1].trial_id
        return found

    async with opening() as docket:
        await asyncio.gather(*(append_all(docket, events) for events in trials))
        requests = await docket.index.requests()
        still_open = await open_trials(docket)
        listings = [await pages(docket, *ask) for ask in queries]
    sizes = set()
    for (trial_filter, oldest_first, _), listing in zip(queries, listings, strict=True):
        expected = [line for line in (lines if oldest_first else reversed(lines)) if matches(line, trial_filter)]
        assert (
            [{name: getattr(line, name) for name in expected[0]} for line in listing] == expected
            if expected
            else (not listing)
        )
        sizes.add(len(expected))
    assert len(sizes) > 10, "the filters don't differ enough to show anything"
    assert requests == {line["request_id"]: [line["trial_id"]] for line in lines}
    assert still_open == [line["trial_id"] for line in lines if line["state"] is TrialState.OPEN]


async def test_labels_in_force_consider_reviews(opening):
    async with opening() as docket:
        for trial_id in ("stands", "overruled", "upheld", "restored"):
            await append_all(docket, events_of(trial_id))
        await append_all(docket, events_of("open")[:3])
        await review_trial(docket, "overruled")
        await review_trial(docket, "upheld", ReviewOutcome.UPHELD, Label.HARMFUL)
        await review_trial(docket, "restored")
        await review_trial(docket, "restored", ReviewOutcome.UPHELD, Label.HARMFUL)
        assert await docket.index.labels(
            [*(f"no{i}" for i in range(2500)), *("stands", "overruled", "upheld"), "restored"]
        ) == {
            "stands": Label.HARMFUL,
            "overruled": Label.NOT_HARMFUL,
            "upheld": Label.HARMFUL,
            "restored": Label.HARMFUL,
        }


def trial_of_request(trial_id, pixels="p"):
    """Returns the events of a trial opened for the request of the same name."""
    opened, *more = events_of(trial_id)
    meme = opened.meme.model_copy(update={"pixels_sha256": pixels})
    return [opened.model_copy(update={"meme": meme, "request_id": trial_id}), *more]


async def test_failures_of_a_picture_are_listed_until_a_model_that_saw_it_decides(opening):
    call = ModelCall(
        role=Role.JUDGE, model="m", prompt_id="p", prompt_digest="d", tokens_in=1, tokens_out=1, latency_s=1
    )

    def failing(trial_id, pixels, hours):
        opened = trial_of_request(trial_id, pixels)[0].model_copy(update={"procedure": Procedure.FULL})
        events = [opened]
        for hour in hours:
            at = NOON + timedelta(hours=hour)
            failed = {"step": "s", "reason": f"AT_{hour}", "message": "m", "retryable": True}
            events.append(TrialFailed(trial_id=trial_id, seq=len(events), at=at, **failed))
            events.append(TrialResumed(trial_id=trial_id, seq=len(events), at=at, software="test"))
        return events

    async with opening() as docket:
        for events in (failing("b", "p", [1, 4]), failing("a", "p", [3, 5]), failing("c", "q", [2])):
            await append_all(docket, events)
        failures = [await docket.index.failures("p")]
        # The last verdict carries a clock far behind: the order of storing counts.
        for hour, procedure, model_call in (
            (6, Procedure.SUMMARY, None),
            (7, Procedure.CASCADE, None),
            (8, Procedure.CASCADE, call),
            (-9, Procedure.FULL, call),
        ):
            trial = trial_of_request(f"well {hour}")
            trial[0] = trial[0].model_copy(update={"procedure": procedure})
            trial[-1] = trial[-1].model_copy(update={"at": NOON + timedelta(hours=hour), "call": model_call})
            await append_all(docket, trial)
            failures.append(await docket.index.failures("p"))
            if model_call:
                await append_all(docket, failing(f"after {hour}", "p", [hour]))
                failures.append(await docket.index.failures("p"))
        other = await docket.index.failures("q")
    before = ["AT_1", "AT_4", "AT_3", "AT_5"]
    assert [[failure.failed.reason for failure in some] for some in failures] == [
        *[before] * 3,
        *([], ["AT_8"]),
        *([], ["AT_-9"]),
    ]
    assert [failure.failed.reason for failure in other] == ["AT_2"]
    first, second, third, fourth = failures[0]
    assert first.begun < first.ended < second.begun < second.ended < third.begun < third.ended < fourth.begun


async def test_a_request_is_claimed_once_and_another_under_its_name_is_refused(opening):
    strange = RequestName("a\0b\\", "\\0\\\\x")
    async with opening() as docket:
        first_claim = await docket.leases.claim(NAME, payload="p", trial_id="t1", owner="A")
        again = await docket.leases.claim(NAME, payload="p", trial_id="t2", owner="B")
        with pytest.raises(RequestConflict) as refused:
            await docket.leases.claim(NAME, payload="q", trial_id="t3", owner="B")
        elsewhere = await docket.leases.claim(RequestName("south", "r1"), payload="q", trial_id="t4", owner="B")
        for name in (strange, RequestName("a\0b\\", "\\0\\\\")):
            await docket.leases.claim(name, payload="s", trial_id=name.request_id[-1], owner="A")
        twice = await docket.leases.claim(strange, payload="s", trial_id="t5", owner="B")
        refused = refused.value
        stored = await docket.leases.claim_of(NAME)
        odd = await docket.leases.claim_of(strange)
    assert first_claim == again == stored == Lease(NAME, "p", "t1", "A")
    assert (refused.reason, refused.field) == ("REQUEST_ID_TAKEN", "request_id")
    assert elsewhere.trial_id == "t4"
    assert twice == odd == Lease(strange, "s", "x", "A")


async def test_a_claim_is_taken_over_by_exactly_one_of_many(opening):
    async with opening() as docket:
        original = await docket.leases.claim(NAME, payload="p", trial_id="t1", owner="A")
        others = [docket.leases.take_over(original, owner=f"B{i}") for i in range(20)]
        won = [claim for claim in await asyncio.gather(*others) if claim is not None]
        stale = await docket.leases.take_over(original, owner="C")
        anew = await docket.leases.take_over(won[0], owner="C", trial_id="t2")
        stored, late = await docket.leases.claim_of(NAME), await docket.leases.take_over(won[0], owner="D")
    assert len(won) == 1 and won[0].trial_id == "t1"
    assert stale is None and late is None
    assert anew == stored == Lease(NAME, "p", "t2", "C")


def claim_many(place, owner, names, start, results):
    async def main():
        docket = Docket.open(parse_place(place))
        start.wait()
        claims = await asyncio.gather(
            *(
                docket.leases.claim(RequestName("n", name), payload="p", trial_id=f"{owner}-{name}", owner=owner)
                for name in names
            )
        )
        await docket.close()
        results.put((owner, [claim.owner for claim in claims]))

    asyncio.run(main())


def test_claims_raced_for_by_processes_have_one_winner_each(docket_place, using, forks):
    using(lambda docket: docket.heartbeats.beat("A"))
    names = [f"r{i}" for i in range(200)]
    results, start = forks.Queue(), forks.Barrier(3)
    racers = []
    for owner in "ABC":
        shuffled = random.Random(owner).sample(names, len(names))
        racers.append(forks.Process(target=claim_many, args=(docket_place, owner, shuffled, start, results)))
    for racer in racers:
        racer.start()
    results_of = dict(results.get(timeout=120) for _ in racers)
    for racer in racers:
        racer.join()
    winners = {}
    for owner, owners in results_of.items():
        for name, winner in zip(random.Random(owner).sample(names, len(names)), owners, strict=True):
            assert winners.setdefault(name, winner) == winner

    async def read(docket):
        return {name: await docket.leases.claim_of(RequestName("n", name)) for name in names}

    for name, claim in using(read).items():
        assert (claim.owner, claim.trial_id) == (winners[name], f"{winners[name]}-{name}")


async def test_claims_stay_open_until_their_trial_has_ended(opening):
    async with opening() as docket:
        for name in ("begun", "failed", "decided", "never", "resumed"):
            await docket.leases.claim(RequestName("", name), payload="p", trial_id=name, owner="A")
        await append_all(docket, trial_of_request("decided"))
        await append_all(docket, trial_of_request("begun")[:2])
        for name in ("failed", "resumed"):
            opened = trial_of_request(name)[0]
            fault = {"step": "s", "reason": "GONE", "message": "m", "retryable": True}
            await append_all(docket, [opened, TrialFailed(trial_id=name, seq=1, at=NOON, **fault)])
        await docket.writer.append(TrialResumed(trial_id="resumed", seq=2, at=NOON, software="test"))
        await review_trial(docket, "decided")
        assert [claim.name.request_id for claim in await docket.leases.open_claims()] == ["begun", "resumed"]


def test_heartbeats_count_up_and_can_be_retired(using):
    async def scene(docket):
        await asyncio.gather(*(docket.heartbeats.beat("A") for _ in range(5)))
        await docket.heartbeats.beat("B")
        return await docket.heartbeats.heartbeats()

    assert using(scene)["B"] == 1
    first = using(lambda docket: docket.heartbeats.heartbeats())["A"]
    using(lambda docket: docket.heartbeats.beat("A"))
    assert using(lambda docket: docket.heartbeats.heartbeats())["A"] == first + 1
    using(lambda docket: docket.heartbeats.retire("A"))
    using(lambda docket: docket.heartbeats.retire("B", 7))  # seen at another count, so it is alive
    assert using(lambda docket: docket.heartbeats.heartbeats()) == {"B": 1}
    using(lambda docket: docket.heartbeats.retire("B", 1))
    assert using(lambda docket: docket.heartbeats.heartbeats()) == {}


async def test_a_verdict_key_keeps_its_first_trial_until_it_is_overruled(opening):
    async with opening() as docket:
        await append_all(docket, events_of("t1"))
        await append_all(docket, events_of("t2"))
        await asyncio.gather(
            docket.verdict_keys.put("k", "t1"),
            docket.verdict_keys.put("k2", "t1"),
            docket.verdict_keys.put("other", "t2"),
        )
        await docket.verdict_keys.put("k", "t2")
        before = [await docket.verdict_keys.get(key) for key in ("k", "k2", "other")]
        await review_trial(docket, "t1", ReviewOutcome.UPHELD, Label.HARMFUL)
        upheld = await docket.verdict_keys.get("k")
        review = await review_trial(docket, "t1")
        await docket.verdict_keys.put("k", "t1")  # by a server that does not know of the review
        after = [await docket.verdict_keys.get(key) for key in ("k", "k2", "other")]
        await docket.verdict_keys.put("k", "t2")
        again, record = await docket.verdict_keys.get("k"), await docket.trials.record("t1")
    assert before == ["t1", "t1", "t2"] and upheld == "t1"
    assert after == [None, None, "t2"] and again == "t2"
    events_before = len(events_of("t1"))
    assert review.seq == events_before + 1 and record.events[-1] == review and record.events[-2].seq == events_before
    assert (review.outcome, review.label, review.reviewer, review.at) == ("OVERRULED", "NOT_HARMFUL", "Ruth", NOON)


async def test_only_verdicts_are_reviewed_and_concurrent_reviews_are_all_stored(opening):
    async with opening() as docket:
        await append_all(docket, events_of("open")[:2])
        with pytest.raises(NotDecided) as refused:
            await review_trial(docket, "open")
        await append_all(docket, events_of("t"))
        reviews = await asyncio.gather(*(review_trial(docket, "t", reviewer=f"R{i}") for i in range(9)))
        reason = refused.value.reason
        record = await docket.trials.record("t")
        unreviewed = await docket.trials.record("open")
    assert reason == "TRIAL_NOT_DECIDED" and len(unreviewed.events) == 2
    assert {event.reviewer for event in record.all(VerdictReviewed)} == {event.reviewer for event in reviews}
    assert len({event.seq for event in reviews}) == 9


def overrule_or_put(place, number, start, results):
    """One process overrules trials while the other puts them into the verdict cache."""

    async def main():
        docket = Docket.open(parse_place(place))
        start.wait()
        for trial in range(30):
            if number:
                await review_trial(docket, f"t{trial}")
            else:
                await docket.verdict_keys.put(f"k{trial}", f"t{trial}")
        await docket.close()
        results.put(number)

    asyncio.run(main())


@pytest.mark.slow
async def test_an_overruled_trial_is_never_cached_despite_races(docket_place, opening, forks):
    whole = events_of("t")
    async with opening() as docket:
        trials = [[e.model_copy(update={"trial_id": f"t{i}"}) for e in whole] for i in range(30)]
        await asyncio.gather(*(append_all(docket, trial) for trial in trials))
    results, start = forks.Queue(), forks.Barrier(2)
    both = [forks.Process(target=overrule_or_put, args=(docket_place, number, start, results)) for number in (0, 1)]
    for process in both:
        process.start()
    for _ in both:
        results.get(timeout=120)
    for process in both:
        process.join()
    async with opening() as docket:
        known = [await docket.verdict_keys.get(f"k{i}") for i in range(30)]
        labels = await docket.index.labels([f"t{i}" for i in range(30)])
    assert known == [None] * 30
    assert set(labels.values()) == {Label.NOT_HARMFUL}


async def test_caching_a_verdict_waits_for_a_pending_overruling(docket_database):
    import psycopg

    async with opened_docket(parse_place(docket_database)) as docket:
        await append_all(docket, events_of("t"))
        with psycopg.connect(docket_database) as reviewer:
            changed = reviewer.execute("UPDATE memecourt_docket.trials SET outcome = 'OVERRULED'")
            assert changed.rowcount == 1
            caching = asyncio.create_task(docket.verdict_keys.put("k", "t"))
            await asyncio.wait([caching], timeout=0.3)
            reviewer.commit()
        await caching
        assert await docket.verdict_keys.get("k") is None


async def test_a_fingerprint_is_stored_once_per_trial_with_rising_numbers(opening):
    async with opening() as docket:
        await docket.fingerprints.put_fingerprint("t1", b"\x00one")
        await docket.fingerprints.put_fingerprint("t2", b"two")
        await docket.fingerprints.put_fingerprint("t1", b"another")
        every = await docket.fingerprints.fingerprints(0)
        second = await docket.fingerprints.fingerprints(every[0][0])
        none = await docket.fingerprints.fingerprints(every[1][0])
        first = await docket.fingerprints.fingerprints(0, most=1)
    assert [(trial, fingerprint) for _, trial, fingerprint in every] == [("t1", b"\x00one"), ("t2", b"two")]
    assert every[0][0] < every[1][0]
    assert (second, none, first) == (every[1:], [], every[:1])


def put_many_fingerprints(place, owner, count):
    async def main():
        docket = Docket.open(parse_place(place))
        for number in range(count):
            await docket.fingerprints.put_fingerprint(f"{owner}{number}", b"look")
        await docket.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_reader_resuming_from_a_cursor_sees_fingerprints_of_all_writers(docket_place, using, forks):
    writers = [forks.Process(target=put_many_fingerprints, args=(docket_place, owner, 100)) for owner in "ABC"]

    async def scene(docket):
        for writer in writers:
            writer.start()
        seen, cursor = [], 0
        while True:
            finished = not any(writer.is_alive() for writer in writers)
            page = await docket.fingerprints.fingerprints(cursor, most=7)
            for number, trial, _ in page:
                assert number > cursor
                cursor = number
                seen.append(trial)
            if finished and not page:
                return seen

    seen = using(scene)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(seen) == len(set(seen)) == 300
