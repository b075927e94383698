"""What every docket keeps to: the same tests over SQLite and over PostgreSQL."""

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
from serving.docket.open import Docket
from serving.docket.ports import (
    DocketError,
    Lease,
    NotDecided,
    RequestConflict,
    RequestName,
    TrialFilter,
    TrialUnknown,
)
from serving.runner.executor import TrialExecutor
from serving.runner.request import TrialRequest
from tests.contract.scenes import IMAGE, FakePictures
from tests.support.dockets import (
    NOON,
    append_all,
    events_of,
    open_trials,
    place_of,
    random_records,
    reviewing,
    shown,
    with_docket,
)
from tests.support.fakes import a_picture
from tests.unit.test_trial import SUMMARY, a_court

NAME = RequestName("north", "r1")


def test_a_record_comes_back_as_it_was(using):
    events, picture = events_of(), a_picture()

    async def keep(docket):
        await docket.writer.keep_picture(picture)
        await docket.writer.keep_picture(picture)
        await append_all(docket, events)

    async def look(docket):
        later = await docket.trials.events("t", 3), await docket.trials.events("t", 99)
        return (
            await docket.trials.record("t"),
            later,
            await docket.trials.frames(picture.pixels_sha256),
            await docket.trials.frames("0"),
        )

    using(keep)
    record, later, kept, none = using(look, create=False)
    assert list(record.events) == events
    assert later == (events[3:], [])
    assert (kept, none) == ([b"png"], [])


def test_what_is_not_there_is_said_to_be_unknown(using):
    async def scene(docket):
        for ask in (
            docket.trials.record("t"),
            docket.trials.events("t"),
            docket.trials.events("t", 5),
            reviewing(docket, "t"),
        ):
            with pytest.raises(TrialUnknown, match="no trial t "):
                await ask
        return (
            await docket.leases.claim_of(NAME),
            await docket.verdict_keys.get("k"),
            await docket.fingerprints.fingerprints(0),
            await docket.leases.open_claims(),
            await docket.index.list(limit=9),
            await docket.heartbeats.heartbeats(),
            await docket.index.labels(["t"]),
            await docket.index.failures("p"),
        )

    assert [len(found or ()) for found in using(scene)] == [0] * 8


def test_a_docket_that_is_not_there_is_only_made_when_asked(docket_place):
    with pytest.raises(DocketError) as refused:
        Docket.open(place_of(docket_place), create=False)
    assert refused.value.reason == "DOCKET_MISSING"
    with pytest.raises(DocketError):  # and that has not made it
        Docket.open(place_of(docket_place), create=False)


def test_many_writers_at_once_lose_nothing_and_only_the_faulty_one_hears_of_it(using):
    events = events_of()

    async def crowd(docket):
        trials = [[e.model_copy(update={"trial_id": f"t{i}"}) for e in events] for i in range(40)]
        twice = docket.writer.append(trials[0][0])
        results = await asyncio.gather(*(append_all(docket, trial) for trial in trials), twice, return_exceptions=True)
        records = [await docket.trials.record(f"t{i}") for i in range(40) if results[i] is None]
        return results, records, await docket.index.list(limit=99)

    results, records, lines = using(crowd)
    refused = [r for r in results if r is not None]
    assert len(refused) == 1 and isinstance(refused[0], DocketError) and refused[0].reason == "EVENT_EXISTS"
    # Either the stray one came second, or it came first and trial 0 was refused.
    assert len(records) == 40 - (results[0] is not None)
    assert all(record.state is TrialState.DECIDED for record in records)
    assert len(lines) == 40 and [line.state for line in lines].count(TrialState.DECIDED) == len(records)


def test_events_that_are_appended_together_are_kept_all_or_none(using):
    async def scene(docket):
        mine, theirs, others = events_of("a"), events_of("a"), events_of("b")
        await docket.writer.append(*mine[:2])
        await docket.writer.append(theirs[4])  # by a server that goes on elsewhere
        results = await asyncio.gather(
            docket.writer.append(*mine[2:]), docket.writer.append(*others), return_exceptions=True
        )
        return results, await docket.trials.events("a"), await docket.trials.record("b"), mine, others

    results, of_a, b, mine, others = using(scene)
    assert isinstance(results[0], DocketError) and results[0].reason == "EVENT_EXISTS"
    assert results[1] is None and list(b.events) == others, "whoever else is in the same commit hears nothing of it"
    assert of_a == [*mine[:2], mine[4]]


@pytest.mark.parametrize(("text", "expected"), [("given", 2), (None, 3)])
def test_a_summary_trial_takes_no_more_commits_than_it_has_to_wait_for(using, monkeypatch, text, expected):
    """Events between which nobody is asked share one; each is told of in order, and only when all of them are kept."""

    async def scene(docket):
        commits, told = [], []
        begin = docket.transactions._logged._transaction
        monkeypatch.setattr(docket.transactions._logged, "_transaction", lambda: commits.append(1) or begin())

        async def watch(event):
            told.append(event)
            assert event in await docket.trials.events(event.trial_id)

        house = TrialExecutor(a_court(), FakePictures(), docket)
        picture = await house.pictures.read(IMAGE)
        await docket.writer.keep_picture(picture)
        commits.clear()
        house.feed.subscribe(watch)
        hearing = await house.hear(TrialRequest(IMAGE, text=text), picture=picture)
        return hearing.record, await docket.trials.record(hearing.record.trial_id), told, len(commits)

    record, kept, told, commits = using(scene)
    assert [event.kind for event in told] == SUMMARY
    assert list(kept.events) == told == list(record.events)
    assert commits == expected


@pytest.mark.parametrize("kept", range(2, len(SUMMARY)))
def test_a_summary_trial_goes_on_wherever_it_was_cut_off(using, kept):
    """Those of earlier versions may have been cut off between any two events."""

    async def scene(docket):
        house = TrialExecutor(a_court(), FakePictures(), docket)
        whole = (await house.hear(TrialRequest(IMAGE, text="given"))).record
        await append_all(docket, [event.model_copy(update={"trial_id": "cut"}) for event in whole.events[:kept]])
        await house.resume("cut")
        return whole, await docket.trials.record("cut")

    whole, resumed = using(scene)
    assert resumed.state is TrialState.DECIDED and resumed.verdict == whole.verdict
    kinds = [event.kind for event in resumed.events]
    assert kinds == [*SUMMARY[:kept], "TrialResumed", *SUMMARY[kept:]]
    assert [event.seq for event in resumed.events] == list(range(len(kinds)))


def test_a_trial_that_quotes_what_was_erased_since_is_neither_resumed_nor_asked_about(using):
    """The word in the place of an erased text is no precedent's, and no model is to read it as one."""

    async def scene(docket):
        house = TrialExecutor(a_court(), FakePictures(), docket)
        whole = (await house.hear(TrialRequest(IMAGE, text="given"))).record
        upto = 1 + next(event.seq for event in whole.events if event.kind == "PrecedentsCited")
        await append_all(docket, [event.model_copy(update={"trial_id": "cut"}) for event in whole.events[:upto]])
        cited = whole.precedents.findings.exhibits[0].id
        await docket.eraser.erase_precedent(cited, who="Ruth", why="asked for", at=NOON)
        before = await docket.trials.record("cut")
        with pytest.raises(CantResume) as resumed:
            await house.resume("cut")
        record = await docket.trials.record(whole.trial_id)
        brief = QuestionBrief(CourtQuestion(id="side", text="whom is it aimed at?", options=("blueland", "nobody")))
        with pytest.raises(CantResume) as asked:
            await house.rule_on(record, await house.picture_of_trial(record), brief)
        with pytest.raises(CantResume, match="has its verdict"):
            await house.resume(whole.trial_id)
        assert list((await docket.trials.record("cut")).events) == list(before.events)
        return resumed.value.reason, asked.value.reason

    assert using(scene) == ("QUOTED_ERASED", "QUOTED_ERASED")


def holds(line, which):
    return (
        (not which.labels or line["label"] in which.labels)
        and (not which.states or line["state"] in which.states)
        and (which.opened_from is None or line["opened_at"] >= which.opened_from)
        and (which.opened_until is None or line["opened_at"] < which.opened_until)
        and (which.reviewed is None or (line["review"] is not None) is which.reviewed)
        and (which.needs_review is None or line["needs_human_review"] is which.needs_review)
        and (which.namespace is None or line["namespace"] == which.namespace)
        and (which.namespaces is None or line["namespace"] in which.namespaces)
        and line["namespace"] not in which.other_than
        and not which.erased
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


def test_listings_are_what_counting_all_records_gives(using):
    chance = random.Random(6)
    trials = random_records(chance, 150, NOON)
    lines = sorted((shown(TrialRecord.of(events)) for events in trials), key=lambda x: (x["opened_at"], x["trial_id"]))
    asked = [(random_filter(chance), chance.random() < 0.5, chance.choice([5, 40, 1000])) for _ in range(60)]

    async def pages(docket, which, oldest_first, limit):
        found, after = [], None
        while page := await docket.index.list(limit=limit, after=after, which=which, oldest_first=oldest_first):
            assert len(page) <= limit
            found += page
            after = page[-1].opened_at, page[-1].trial_id
        return found

    async def scene(docket):
        await asyncio.gather(*(append_all(docket, events) for events in trials))
        requests = await docket.index.requests()
        still_open = await open_trials(docket)
        return [await pages(docket, *ask) for ask in asked], requests, still_open

    listings, requests, still_open = using(scene)
    sizes = set()
    for (which, oldest_first, _), listing in zip(asked, listings, strict=True):
        wanted = [line for line in (lines if oldest_first else reversed(lines)) if holds(line, which)]
        assert (
            [{name: getattr(line, name) for name in wanted[0]} for line in listing] == wanted
            if wanted
            else (not listing)
        )
        sizes.add(len(wanted))
    assert len(sizes) > 10, "the filters don't differ enough to show anything"
    assert requests == {line["request_id"]: [line["trial_id"]] for line in lines}
    assert still_open == [line["trial_id"] for line in lines if line["state"] is TrialState.OPEN]


def test_labels_that_hold_count_reviews(using):
    async def scene(docket):
        for trial_id in ("stands", "overruled", "upheld", "restored"):
            await append_all(docket, events_of(trial_id))
        await append_all(docket, events_of("open")[:3])
        await reviewing(docket, "overruled")
        await reviewing(docket, "upheld", ReviewOutcome.UPHELD, Label.HARMFUL)
        await reviewing(docket, "restored")
        await reviewing(docket, "restored", ReviewOutcome.UPHELD, Label.HARMFUL)
        return await docket.index.labels(
            [*(f"no{i}" for i in range(2500)), *("stands", "overruled", "upheld"), "restored"]
        )

    assert using(scene) == {
        "stands": Label.HARMFUL,
        "overruled": Label.NOT_HARMFUL,
        "upheld": Label.HARMFUL,
        "restored": Label.HARMFUL,
    }


def opening(trial_id, pixels="p"):
    """A trial that was opened for the request of that name."""
    opened, *more = events_of(trial_id)
    meme = opened.meme.model_copy(update={"pixels_sha256": pixels})
    return [opened.model_copy(update={"meme": meme, "request_id": trial_id}), *more]


def test_failures_of_a_picture_are_told_until_a_model_that_saw_it_gives_a_verdict(using):
    call = ModelCall(
        role=Role.JUDGE, model="m", prompt_id="p", prompt_digest="d", tokens_in=1, tokens_out=1, latency_s=1
    )

    def failing(trial_id, pixels, hours):
        opened = opening(trial_id, pixels)[0].model_copy(update={"procedure": Procedure.FULL})
        events = [opened]
        for hour in hours:
            at = NOON + timedelta(hours=hour)
            failed = {"step": "s", "reason": f"AT_{hour}", "message": "m", "retryable": True}
            events.append(TrialFailed(trial_id=trial_id, seq=len(events), at=at, **failed))
            events.append(TrialResumed(trial_id=trial_id, seq=len(events), at=at, software="test"))
        return events

    async def scene(docket):
        for events in (failing("b", "p", [1, 4]), failing("a", "p", [3, 5]), failing("c", "q", [2])):
            await append_all(docket, events)
        told = [await docket.index.failures("p")]
        # The last is of a clock that is far behind: what was kept last is what counts.
        for hour, procedure, seen in (
            (6, Procedure.SUMMARY, None),
            (7, Procedure.CASCADE, None),
            (8, Procedure.CASCADE, call),
            (-9, Procedure.FULL, call),
        ):
            given = opening(f"well {hour}")
            given[0] = given[0].model_copy(update={"procedure": procedure})
            given[-1] = given[-1].model_copy(update={"at": NOON + timedelta(hours=hour), "call": seen})
            await append_all(docket, given)
            told.append(await docket.index.failures("p"))
            if seen:
                await append_all(docket, failing(f"after {hour}", "p", [hour]))
                told.append(await docket.index.failures("p"))
        return told, await docket.index.failures("q")

    told, other = using(scene)
    before = ["AT_1", "AT_4", "AT_3", "AT_5"]
    assert [[failure.failed.reason for failure in some] for some in told] == [
        *[before] * 3,
        *([], ["AT_8"]),
        *([], ["AT_-9"]),
    ]
    assert [failure.failed.reason for failure in other] == ["AT_2"]
    first, second, third, fourth = told[0]
    assert first.begun < first.ended < second.begun < second.ended < third.begun < third.ended < fourth.begun


def test_a_request_is_claimed_once_and_another_under_its_name_is_refused(using):
    strange = RequestName("a\0b\\", "\\0\\\\x")

    async def scene(docket):
        stands = await docket.leases.claim(NAME, payload="p", trial_id="t1", owner="A")
        again = await docket.leases.claim(NAME, payload="p", trial_id="t2", owner="B")
        with pytest.raises(RequestConflict) as refused:
            await docket.leases.claim(NAME, payload="q", trial_id="t3", owner="B")
        elsewhere = await docket.leases.claim(RequestName("south", "r1"), payload="q", trial_id="t4", owner="B")
        for name in (strange, RequestName("a\0b\\", "\\0\\\\")):
            await docket.leases.claim(name, payload="s", trial_id=name.request_id[-1], owner="A")
        twice = await docket.leases.claim(strange, payload="s", trial_id="t5", owner="B")
        return (
            stands,
            again,
            refused.value,
            elsewhere,
            twice,
            await docket.leases.claim_of(NAME),
            await docket.leases.claim_of(strange),
        )

    stands, again, refused, elsewhere, twice, kept, odd = using(scene)
    assert stands == again == kept == Lease(NAME, "p", "t1", "A")
    assert (refused.reason, refused.field) == ("REQUEST_ID_TAKEN", "request_id")
    assert elsewhere.trial_id == "t4"
    assert twice == odd == Lease(strange, "s", "x", "A")


def test_a_claim_is_taken_over_by_one_of_many(using):
    async def scene(docket):
        seen = await docket.leases.claim(NAME, payload="p", trial_id="t1", owner="A")
        others = [docket.leases.take_over(seen, owner=f"B{i}") for i in range(20)]
        won = [claim for claim in await asyncio.gather(*others) if claim is not None]
        stale = await docket.leases.take_over(seen, owner="C")
        anew = await docket.leases.take_over(won[0], owner="C", trial_id="t2")
        return won, stale, anew, await docket.leases.claim_of(NAME), await docket.leases.take_over(won[0], owner="D")

    won, stale, anew, kept, late = using(scene)
    assert len(won) == 1 and won[0].trial_id == "t1"
    assert stale is None and late is None
    assert anew == kept == Lease(NAME, "p", "t2", "C")


def claim_many(place, owner, names, start, results):
    async def main():
        docket = Docket.open(place_of(place))
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


def test_claims_that_processes_race_for_have_one_winner_each(docket_place, using, forks):
    using(lambda docket: docket.heartbeats.beat("A"))
    names = [f"r{i}" for i in range(200)]
    results, start = forks.Queue(), forks.Barrier(3)
    racers = []
    for owner in "ABC":
        shuffled = random.Random(owner).sample(names, len(names))
        racers.append(forks.Process(target=claim_many, args=(docket_place, owner, shuffled, start, results)))
    for racer in racers:
        racer.start()
    told = dict(results.get(timeout=120) for _ in racers)
    for racer in racers:
        racer.join()
    winners = {}
    for owner, said in told.items():
        for name, winner in zip(random.Random(owner).sample(names, len(names)), said, strict=True):
            assert winners.setdefault(name, winner) == winner

    async def look(docket):
        return {name: await docket.leases.claim_of(RequestName("n", name)) for name in names}

    for name, claim in using(look).items():
        assert (claim.owner, claim.trial_id) == (winners[name], f"{winners[name]}-{name}")


def test_claims_are_open_until_their_trial_has_ended(using):
    async def scene(docket):
        for name in ("begun", "failed", "decided", "never", "resumed"):
            await docket.leases.claim(RequestName("", name), payload="p", trial_id=name, owner="A")
        await append_all(docket, opening("decided"))
        await append_all(docket, opening("begun")[:2])
        for name in ("failed", "resumed"):
            opened = opening(name)[0]
            fault = {"step": "s", "reason": "GONE", "message": "m", "retryable": True}
            await append_all(docket, [opened, TrialFailed(trial_id=name, seq=1, at=NOON, **fault)])
        await docket.writer.append(TrialResumed(trial_id="resumed", seq=2, at=NOON, software="test"))
        await reviewing(docket, "decided")
        return [claim.name.request_id for claim in await docket.leases.open_claims()]

    assert using(scene) == ["begun", "resumed"]


def test_beats_count_on(using):
    async def scene(docket):
        await asyncio.gather(*(docket.heartbeats.beat("A") for _ in range(5)))
        await docket.heartbeats.beat("B")
        return await docket.heartbeats.heartbeats()

    assert using(scene)["B"] == 1
    first = using(lambda docket: docket.heartbeats.heartbeats())["A"]
    using(lambda docket: docket.heartbeats.beat("A"))
    assert using(lambda docket: docket.heartbeats.heartbeats())["A"] == first + 1
    using(lambda docket: docket.heartbeats.retire("A"))
    using(lambda docket: docket.heartbeats.retire("B", 7))  # it was seen at another count: it lives
    assert using(lambda docket: docket.heartbeats.heartbeats()) == {"B": 1}
    using(lambda docket: docket.heartbeats.retire("B", 1))
    assert using(lambda docket: docket.heartbeats.heartbeats()) == {}


def test_the_first_trial_of_a_key_is_known_until_it_is_overruled(using):
    async def scene(docket):
        await append_all(docket, events_of("t1"))
        await append_all(docket, events_of("t2"))
        await asyncio.gather(
            docket.verdict_keys.put("k", "t1"),
            docket.verdict_keys.put("k2", "t1"),
            docket.verdict_keys.put("other", "t2"),
        )
        await docket.verdict_keys.put("k", "t2")
        before = [await docket.verdict_keys.get(key) for key in ("k", "k2", "other")]
        await reviewing(docket, "t1", ReviewOutcome.UPHELD, Label.HARMFUL)
        upheld = await docket.verdict_keys.get("k")
        review = await reviewing(docket, "t1")
        await docket.verdict_keys.put("k", "t1")  # somebody who has not heard of it
        after = [await docket.verdict_keys.get(key) for key in ("k", "k2", "other")]
        await docket.verdict_keys.put("k", "t2")
        return before, upheld, review, after, await docket.verdict_keys.get("k"), await docket.trials.record("t1")

    before, upheld, review, after, again, record = using(scene)
    assert before == ["t1", "t1", "t2"] and upheld == "t1"
    assert after == [None, None, "t2"] and again == "t2"
    given = len(events_of("t1"))
    assert review.seq == given + 1 and record.events[-1] == review and record.events[-2].seq == given
    assert (review.outcome, review.label, review.reviewer, review.at) == ("OVERRULED", "NOT_HARMFUL", "Ruth", NOON)


def test_only_verdicts_are_reviewed_and_reviewers_at_once_don_t_lose_each_other(using):
    async def scene(docket):
        await append_all(docket, events_of("open")[:2])
        with pytest.raises(NotDecided) as refused:
            await reviewing(docket, "open")
        await append_all(docket, events_of("t"))
        told = await asyncio.gather(*(reviewing(docket, "t", reviewer=f"R{i}") for i in range(9)))
        return refused.value.reason, told, await docket.trials.record("t"), await docket.trials.record("open")

    reason, told, record, still = using(scene)
    assert reason == "TRIAL_NOT_DECIDED" and len(still.events) == 2
    assert {event.reviewer for event in record.all(VerdictReviewed)} == {event.reviewer for event in told}
    assert len({event.seq for event in told}) == 9


def review_and_know(place, number, start, results):
    """One process overrules what the other makes known, again and again."""

    async def main():
        docket = Docket.open(place_of(place))
        start.wait()
        for trial in range(30):
            if number:
                await reviewing(docket, f"t{trial}")
            else:
                await docket.verdict_keys.put(f"k{trial}", f"t{trial}")
        await docket.close()
        results.put(number)

    asyncio.run(main())


@pytest.mark.slow
def test_an_overruled_trial_is_never_known_however_processes_meet(docket_place, using, forks):
    whole = events_of("t")

    async def lay(docket):
        trials = [[e.model_copy(update={"trial_id": f"t{i}"}) for e in whole] for i in range(30)]
        await asyncio.gather(*(append_all(docket, trial) for trial in trials))

    using(lay)
    results, start = forks.Queue(), forks.Barrier(2)
    both = [forks.Process(target=review_and_know, args=(docket_place, number, start, results)) for number in (0, 1)]
    for process in both:
        process.start()
    for _ in both:
        results.get(timeout=120)
    for process in both:
        process.join()

    async def look(docket):
        return [await docket.verdict_keys.get(f"k{i}") for i in range(30)], await docket.index.labels(
            [f"t{i}" for i in range(30)]
        )

    known, labels = using(look)
    assert known == [None] * 30
    assert set(labels.values()) == {Label.NOT_HARMFUL}


def test_what_becomes_known_waits_for_an_overruling_under_way(docket_database):
    import psycopg

    async def scene(docket):
        await append_all(docket, events_of("t"))
        with psycopg.connect(docket_database) as reviewer:
            changed = reviewer.execute("UPDATE memecourt_docket.trials SET outcome = 'OVERRULED'")
            assert changed.rowcount == 1
            knowing = asyncio.create_task(docket.verdict_keys.put("k", "t"))
            await asyncio.wait([knowing], timeout=0.3)
            reviewer.commit()
        await knowing
        return await docket.verdict_keys.get("k")

    assert with_docket(place_of(docket_database), scene) is None


def test_what_a_trial_looks_like_is_kept_once_and_numbers_rise(using):
    async def scene(docket):
        await docket.fingerprints.put_fingerprint("t1", b"\x00one")
        await docket.fingerprints.put_fingerprint("t2", b"two")
        await docket.fingerprints.put_fingerprint("t1", b"another")
        every = await docket.fingerprints.fingerprints(0)
        return (
            every,
            await docket.fingerprints.fingerprints(every[0][0]),
            await docket.fingerprints.fingerprints(every[1][0]),
            await docket.fingerprints.fingerprints(0, most=1),
        )

    every, second, none, first = using(scene)
    assert [(trial, look) for _, trial, look in every] == [("t1", b"\x00one"), ("t2", b"two")]
    assert every[0][0] < every[1][0]
    assert (second, none, first) == (every[1:], [], every[:1])


def look_often(place, owner, count):
    async def main():
        docket = Docket.open(place_of(place))
        for number in range(count):
            await docket.fingerprints.put_fingerprint(f"{owner}{number}", b"look")
        await docket.close()

    asyncio.run(main())


@pytest.mark.slow
def test_whoever_goes_on_from_the_last_look_misses_none_of_several_writers(docket_place, using, forks):
    writers = [forks.Process(target=look_often, args=(docket_place, owner, 100)) for owner in "ABC"]

    async def scene(docket):
        for writer in writers:
            writer.start()
        seen, last = [], 0
        while True:
            over = not any(writer.is_alive() for writer in writers)
            page = await docket.fingerprints.fingerprints(last, most=7)
            for number, trial, _ in page:
                assert number > last
                last = number
                seen.append(trial)
            if over and not page:
                return seen

    seen = using(scene)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(seen) == len(set(seen)) == 300
