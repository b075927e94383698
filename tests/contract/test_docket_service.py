"""The contract of memecourt.v1.Docket over a real channel, with dockets in SQLite and in PostgreSQL."""

import asyncio
import base64
import random
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2

from court.errors import Unavailable
from court.events import Procedure, ReviewOutcome, VerdictReviewed, parse_event
from court.record import TrialState
from court.verdict import Label, Review, ReviewReason, Strength, Strengths, Verdict
from memecourt.v1 import court_pb2 as wire
from serving.docket.open import Docket
from serving.docket.store.reviews import ReviewStore
from serving.docket.store.trials import SqlTrialReader
from serving.rpc.listings import cursor_of, token_of, which_of
from tests.support.docket_service import AT, HARMFUL, TIMEOUT, Scene, a_scene, a_trial
from tests.support.docket_service import place as place
from tests.support.docket_service import sqlite as sqlite
from tests.support.dockets import Intercepted, review_trial
from tests.support.playing import run_within
from tests.support.service_calls import caller_metadata, refusal_of

T = TypeVar("T")

NOT_HARMFUL = Verdict(
    label=Label.NOT_HARMFUL, strengths=Strengths(harmful=Strength.WEAK, benign=Strength.STRONG), rationale="It is tame."
)
UNDECIDED = Verdict(
    label=Label.UNDECIDED,
    rationale="Nothing is like it.",
    review=(Review(reason=ReviewReason.NO_SIMILAR_PRECEDENT, detail="nothing"),),
)


def play(place, work, **options):
    return run_within(a_scene(place, **options), work)


def stamp(at, nanos=0):
    stamped = Timestamp()
    stamped.FromDatetime(at)
    stamped.nanos += nanos
    return stamped


async def test_a_trial_is_returned_with_all_its_events(place):
    async with a_scene(place) as it:
        await it.tried("t-1", namespace="forum", procedure=Procedure.FULL, text="Mondays – à la carte \N{CAT FACE}")
        trial = (await it.stub.GetTrial(wire.GetTrialRequest(trial_id="t-1"), timeout=TIMEOUT)).trial
    stored = a_trial("t-1", namespace="forum", procedure=Procedure.FULL, text="Mondays – à la carte \N{CAT FACE}")
    assert [parse_event(event.json) for event in trial.events] == stored
    assert [(e.trial_id, e.seq, e.kind) for e in trial.events] == [(e.trial_id, e.seq, e.kind) for e in stored]
    assert all(event.at.ToDatetime(UTC) == AT for event in trial.events)
    summary = trial.summary
    assert summary.opened_at.ToDatetime(UTC) == AT
    assert (summary.trial_id, summary.request_id) == ("t-1", "request of t-1")
    assert (summary.content.namespace, summary.content.id) == ("forum", "content of t-1")
    assert summary.procedure == wire.PROCEDURE_FULL
    assert (summary.state, summary.label) == (wire.TRIAL_STATE_DECIDED, wire.LABEL_HARMFUL)
    assert not summary.needs_human_review and not summary.HasField("review") and not summary.failure_reason


async def test_a_trial_without_a_verdict_has_no_label(place):
    async with a_scene(place) as it:
        for trial_id, end in (("open", None), ("failed", "MODEL_GONE"), ("undecided", UNDECIDED)):
            await it.tried(trial_id, end=end)  # type: ignore[arg-type]
        got = [
            (await it.stub.GetTrial(wire.GetTrialRequest(trial_id=id_), timeout=TIMEOUT)).trial.summary
            for id_ in ("undecided", "open", "failed")
        ]
        got, listed = [sorted(found, key=lambda one: one.trial_id) for found in (got, await it.listed())]
    assert got == listed  # the record agrees with the listing
    failed, opened, undecided = got
    assert (opened.state, opened.label) == (wire.TRIAL_STATE_OPEN, wire.LABEL_UNSPECIFIED)
    assert (failed.state, failed.label) == (wire.TRIAL_STATE_FAILED, wire.LABEL_UNSPECIFIED)
    assert failed.failure_reason == "MODEL_GONE" and not opened.failure_reason
    assert (undecided.state, undecided.label) == (wire.TRIAL_STATE_DECIDED, wire.LABEL_UNDECIDED)
    assert undecided.needs_human_review and not failed.needs_human_review


def test_paging_neither_skips_nor_repeats_trials_while_new_ones_arrive(place):
    """Five hundred trials of one moment, while trials of the same, later and earlier moments are added."""

    async def work(it):
        ids = [str(uuid.uuid4()) for _ in range(500)]
        await asyncio.gather(*(it.docket.writer.append(a_trial(id_)[0]) for id_ in ids))
        seen, sizes, token = [], [], ""
        for page in range(1000):
            request = wire.ListTrialsRequest(page_size=7, page_token=token)
            answer = await it.stub.ListTrials(request, timeout=TIMEOUT)
            seen += [trial.trial_id for trial in answer.trials]
            sizes.append(len(answer.trials))
            token = answer.next_page_token
            if not token:
                return ids, seen, sizes
            if page < 40:
                for at in (AT, AT + timedelta(seconds=page), AT + timedelta(microseconds=1)):
                    await it.docket.writer.append(a_trial(str(uuid.uuid4()), at=at)[0])
        raise AssertionError("paging never ended")

    ids, seen, sizes = play(place, work)
    assert len(seen) == len(set(seen))
    assert set(ids) <= set(seen)
    assert set(sizes[:-1]) == {7} and 1 <= sizes[-1] <= 7


async def test_the_last_page_has_no_next_token(sqlite):
    async with a_scene(sqlite) as it:
        pages = []
        for count in range(4):
            page = await it.stub.ListTrials(wire.ListTrialsRequest(page_size=2), timeout=TIMEOUT)
            pages.append((len(page.trials), bool(page.next_page_token)))
            await it.tried(at=AT + timedelta(seconds=count))
        assert pages == [(0, False), (1, False), (2, False), (2, True)]


async def test_page_size_is_fifty_by_default_and_at_most_a_thousand(sqlite):
    async with a_scene(sqlite) as it:
        await asyncio.gather(*(it.docket.writer.append(a_trial(str(n))[0]) for n in range(60)))
        sizes = [
            len((await it.stub.ListTrials(wire.ListTrialsRequest(page_size=size), timeout=TIMEOUT)).trials)
            for size in (0, 1, 60, 1000)
        ]
        refusals = [
            await refusal_of(it.stub.ListTrials(wire.ListTrialsRequest(page_size=size), timeout=TIMEOUT))
            for size in (-1, 1001)
        ]
    assert sizes == [50, 1, 60, 60]
    assert [one.summary for one in refusals] == [("INVALID_ARGUMENT", "OUT_OF_RANGE", "page_size")] * 2


def forged_token(filter_digest, content):
    """Returns a token sealed like the server's: the seal needs no key."""
    from serving.rpc.listings import _list_of, _seal

    return base64.urlsafe_b64encode(_seal(content, _list_of(filter_digest)) + content).decode().rstrip("=")


async def test_altered_page_tokens_and_those_of_another_filter_are_refused(sqlite):
    harmful = wire.TrialFilter(labels=[wire.LABEL_HARMFUL])
    async with a_scene(sqlite) as it:
        for number in range(5):
            await it.tried(at=AT + timedelta(seconds=number))

        async def page(token, trial_filter=harmful):
            request = wire.ListTrialsRequest(page_size=2, page_token=token, filter=trial_filter)
            answer: wire.ListTrialsResponse = await it.stub.ListTrials(request, timeout=TIMEOUT)
            return answer

        token = (await page("")).next_page_token
        assert (await page(token)) == (await page(token)) != (await page(""))  # a token can be used again
        draw = random.Random(1)
        altered = []
        for index in range(len(token)):
            sign = draw.choice([c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"])
            altered.append(token[:index] + sign + token[index + 1 :])
            altered.append(token[:index])
        altered += [token + "A", token + "=", "x", "\N{CAT FACE}", " " + token, "x" * 1000]
        filter_digest = which_of(harmful)
        altered += [
            forged_token(filter_digest, raw)
            for raw in (b"", b"1", b"[1]", b"[1,2]", b'["x","y"]', b"[1e999,\"y\"]", b'[9e99,"y"]', b'[1,"\\u0000"]',
                         b'[1,"\\ud800"]', b"\xff", b"[[1],\"y\"]", b"null")
        ]  # fmt: skip
        refusals = [await refusal_of(page(one)) for one in altered if one not in ("", token)]
        others = (wire.TrialFilter(), wire.TrialFilter(labels=[wire.LABEL_HARMFUL], namespace=""))
        refusals = refusals + [await refusal_of(page(token, trial_filter)) for trial_filter in others]
    assert len(refusals) > 60
    assert {one.summary for one in refusals} == {("INVALID_ARGUMENT", "BAD_PAGE_TOKEN", "page_token")}


def test_page_tokens_round_trip():
    filter_digest = which_of(wire.TrialFilter(reviewed=False))
    for position in ((AT, "x"), (datetime(1970, 1, 1, tzinfo=UTC), "y" * 200), (datetime.max.replace(tzinfo=UTC), "z")):
        assert cursor_of(token_of(position, filter_digest), filter_digest) == position


def matches(trial_filter, summary):
    """Implements the filter's contract in the simplest way."""
    opened = summary.opened_at.ToNanoseconds()
    return (
        (not trial_filter.labels or summary.label in trial_filter.labels)
        and (not trial_filter.states or summary.state in trial_filter.states)
        and (not trial_filter.HasField("opened_from") or opened >= trial_filter.opened_from.ToNanoseconds())
        and (not trial_filter.HasField("opened_until") or opened < trial_filter.opened_until.ToNanoseconds())
        and (not trial_filter.HasField("reviewed") or summary.HasField("review") == trial_filter.reviewed)
        and (not trial_filter.HasField("needs_review") or summary.needs_human_review == trial_filter.needs_review)
        and (not trial_filter.HasField("namespace") or summary.content.namespace == trial_filter.namespace)
    )


async def test_filters_return_exactly_the_matching_trials(place):
    async with a_scene(place) as it:
        draw = random.Random(7)
        for number in range(40):
            end = draw.choice((HARMFUL, HARMFUL, NOT_HARMFUL, UNDECIDED, "MODEL_GONE", None))
            trial_id = await it.tried(
                f"t-{number:02}",
                at=AT + timedelta(microseconds=draw.randrange(8)),
                namespace=draw.choice(("", "forum", "blog")),
                end=end,
            )
            if isinstance(end, Verdict) and draw.random() < 0.5:
                await it.reviewed(trial_id)
        everything = await it.listed(size=1000)
        assert len(everything) == 40
        assert [(one.opened_at.ToNanoseconds()) for one in everything] == sorted(
            (one.opened_at.ToNanoseconds() for one in everything), reverse=True
        )
        hits = 0
        for _ in range(40):
            trial_filter = wire.TrialFilter(
                labels=draw.sample([1, 2, 3], draw.choice((0, 0, 1, 2))),  # type: ignore[arg-type]
                states=draw.sample([1, 2, 3], draw.choice((0, 0, 1, 2))),  # type: ignore[arg-type]
            )
            if draw.random() < 0.3:
                trial_filter.opened_from.CopyFrom(
                    stamp(AT + timedelta(microseconds=draw.randrange(8)), draw.choice((0, 1)))
                )
            if draw.random() < 0.3:
                trial_filter.opened_until.CopyFrom(
                    stamp(AT + timedelta(microseconds=draw.randrange(8)), draw.choice((0, 1)))
                )
            for field in ("reviewed", "needs_review"):
                if draw.random() < 0.3:
                    setattr(trial_filter, field, draw.random() < 0.5)
            if draw.random() < 0.3:
                trial_filter.namespace = draw.choice(("", "forum", "elsewhere"))
            expected = [one.trial_id for one in everything if matches(trial_filter, one)]
            request = wire.ListTrialsRequest(page_size=1000, filter=trial_filter)
            found = (await it.stub.ListTrials(request, timeout=TIMEOUT)).trials
            assert [one.trial_id for one in found] == expected, trial_filter
            call = it.stub.ExportTrials(wire.ExportTrialsRequest(filter=trial_filter), timeout=TIMEOUT)
            assert [one.trial.summary async for one in call] == list(reversed(found)), trial_filter
            hits += len(expected)
        assert hits > 100


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"labels": [0]}, ("INVALID_ARGUMENT", "UNKNOWN_VALUE", "filter.labels")),
        ({"labels": [1, 99]}, ("INVALID_ARGUMENT", "UNKNOWN_VALUE", "filter.labels")),
        ({"states": [0]}, ("INVALID_ARGUMENT", "UNKNOWN_VALUE", "filter.states")),
        ({"states": [99]}, ("INVALID_ARGUMENT", "UNKNOWN_VALUE", "filter.states")),
        ({"opened_from": Timestamp(seconds=2**62)}, ("INVALID_ARGUMENT", "BAD_TIME", "filter.opened_from")),
        ({"opened_until": Timestamp(nanos=-1)}, ("INVALID_ARGUMENT", "BAD_TIME", "filter.opened_until")),
        ({"opened_until": Timestamp(nanos=10**9)}, ("INVALID_ARGUMENT", "BAD_TIME", "filter.opened_until")),
        ({"namespace": "x" * 257}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "filter.namespace")),
        ({"namespace": "x\0"}, ("INVALID_ARGUMENT", "FIELD_HOLDS_NUL", "filter.namespace")),
    ],
)
async def test_invalid_filters_are_refused(sqlite, filters, expected):
    async with a_scene(sqlite) as it:
        for call in (it.listed, it.exported):
            assert (await refusal_of(call(**filters))).summary == expected


async def test_the_earliest_and_the_latest_timestamp_are_accepted(place):
    ever = {
        "opened_from": Timestamp(seconds=-62_135_596_800),
        "opened_until": Timestamp(seconds=253_402_300_799, nanos=999_999_999),
    }
    async with a_scene(place) as it:
        await it.tried("t-1")
        none = {"opened_from": ever["opened_until"], "opened_until": ever["opened_from"]}
        assert [len(await it.listed(**filters)) for filters in (ever, none)] == [1, 0]  # type: ignore[arg-type]


class Counting(Intercepted):
    """A docket that counts the records read from it."""

    def __init__(self, docket):
        super().__init__(docket)
        self.read = 0
        self.longest = 0

    async def record(self, trial_id):
        self.read += 1
        return await self._docket.trials.record(trial_id)

    async def list(self, **options):
        lines = await self._docket.index.list(**options)
        self.longest = max(self.longest, len(lines))
        return lines


async def test_an_export_reads_only_as_fast_as_the_caller(place):
    """Reads ahead in 16 MB of records only as far as flow control allows."""
    docket = Counting(Docket.open(place))
    async with a_scene(place, docket=docket) as it:
        text = "tame " * 40_000
        for number in range(80):
            await it.tried(f"t-{number:03}", at=AT + timedelta(seconds=number), text=text)
        call = it.stub.ExportTrials(wire.ExportTrialsRequest(), timeout=TIMEOUT)
        answers = aiter(call)
        first = (await anext(answers)).trial
        before = -1
        while before < docket.read:  # until reading stops
            before = docket.read
            await asyncio.sleep(0.5)
        # A trial opened now is later than the call.
        await it.tried("late", at=AT + timedelta(days=1))
        others = [one.trial.summary.trial_id async for one in answers]
        held_up, longest, ids = before, docket.longest, [first.summary.trial_id, *others]
    assert held_up < 60
    assert longest <= 100  # trial ids per query
    assert ids == [f"t-{number:03}" for number in range(80)]


async def test_an_export_skips_trials_erased_before_or_during_it(place):
    class Erasing(Counting):
        async def record(self, trial_id):
            if trial_id == "t-2":  # already listed
                await self._docket.eraser.erase("t-2", who="ada", why="asked to", at=AT)
            return await super().record(trial_id)

    docket = Erasing(Docket.open(place))
    async with a_scene(place, docket=docket) as it:
        for number in range(4):
            await it.tried(f"t-{number}", at=AT + timedelta(seconds=number))
        await docket.eraser.erase("t-1", who="ada", why="asked to", at=AT)
        call = it.stub.ExportTrials(wire.ExportTrialsRequest(), timeout=TIMEOUT)
        assert [one.trial.summary.trial_id async for one in call] == ["t-0", "t-3"]


async def test_an_export_ends_when_its_caller_leaves(sqlite):
    docket = Counting(Docket.open(sqlite))
    async with a_scene(sqlite, docket=docket) as it:
        for number in range(60):
            await it.tried(f"t-{number}", text="tame " * 40_000)
        call = it.stub.ExportTrials(wire.ExportTrialsRequest(), timeout=TIMEOUT)
        await call.read()
        call.cancel()
        await it.service.empty(60)
        read = docket.read
        await asyncio.sleep(0.2)
        assert docket.read == read
        assert read < 60


async def test_a_verdict_can_be_upheld_overruled_and_reviewed_again(place):
    async with a_scene(place) as it:
        await it.tried("t-1")
        before = datetime.now(UTC)
        summaries = [
            await it.reviewed("t-1", reason="It does mock.", clause="4.2"),
            await it.reviewed(
                "t-1", outcome=wire.REVIEW_OUTCOME_OVERRULED, label=wire.LABEL_NOT_HARMFUL, reason="Satire."
            ),
            await it.reviewed("t-1", caller="ada", label=wire.LABEL_HARMFUL, reason="No satire."),
        ]
        for one in summaries:
            assert before <= one.review.at.ToDatetime(UTC) <= datetime.now(UTC)
        assert len(it.changes) == len(summaries)
        record = await it.docket.trials.record("t-1")
        events, listed, outcomes = list(record.events[3:]), await it.listed(reviewed=True), it.counted
    reviews = [(one.review.outcome, one.review.label, one.review.reason, one.review.clause, one.review.reviewer)
            for one in summaries]  # fmt: skip
    assert reviews == [
        (wire.REVIEW_OUTCOME_UPHELD, wire.LABEL_HARMFUL, "It does mock.", "4.2", "bea"),
        (wire.REVIEW_OUTCOME_OVERRULED, wire.LABEL_NOT_HARMFUL, "Satire.", "", "bea"),
        (wire.REVIEW_OUTCOME_UPHELD, wire.LABEL_HARMFUL, "No satire.", "", "ada"),
    ]
    assert [one.label for one in summaries] == [wire.LABEL_HARMFUL] * 3  # the Judge's label stays
    assert all(isinstance(event, VerdictReviewed) for event in events) and len(events) == 3
    assert listed == [summaries[-1]]  # the last review counts
    assert outcomes == [ReviewOutcome.UPHELD, ReviewOutcome.OVERRULED, ReviewOutcome.UPHELD]


async def test_an_undecided_trial_can_be_decided_by_a_person(sqlite):
    async with a_scene(sqlite) as it:
        await it.tried("t-1", end=UNDECIDED)
        overruled = {"outcome": wire.REVIEW_OUTCOME_OVERRULED, "label": wire.LABEL_HARMFUL}
        upheld, overruled = [await it.reviewed("t-1"), await it.reviewed("t-1", **overruled)]
    assert upheld.review.label == wire.LABEL_UNDECIDED
    assert overruled.review.label == wire.LABEL_HARMFUL
    assert overruled.label == wire.LABEL_UNDECIDED


@pytest.mark.parametrize(
    ("trial", "caller", "fields", "expected"),
    [
        ("t", "", {"reason": ""}, ("INVALID_ARGUMENT", "FIELD_MISSING", "reason")),
        ("t", "", {"reason": " \n"}, ("INVALID_ARGUMENT", "FIELD_MISSING", "reason")),
        ("t", "", {"reason": "x" * 2001}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "reason")),
        ("t", "", {"outcome": 0}, ("INVALID_ARGUMENT", "FIELD_MISSING", "outcome")),
        ("t", "", {"outcome": 99}, ("INVALID_ARGUMENT", "FIELD_MISSING", "outcome")),
        ("t", "", {"outcome": 2}, ("INVALID_ARGUMENT", "UNKNOWN_LABEL", "label")),
        ("t", "", {"outcome": 2, "label": 3}, ("INVALID_ARGUMENT", "UNKNOWN_LABEL", "label")),
        ("t", "", {"outcome": 2, "label": 1}, ("INVALID_ARGUMENT", "LABEL_CONTRADICTS", "label")),
        ("t", "", {"outcome": 1, "label": 2}, ("INVALID_ARGUMENT", "LABEL_CONTRADICTS", "label")),
        ("t", "", {"clause": "x" * 201}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "clause")),
        ("t", "", {"reviewer": ""}, ("INVALID_ARGUMENT", "FIELD_MISSING", "reviewer")),
        ("t", "", {"reviewer": "x" * 201}, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "reviewer")),
        ("t", "ada", {"reviewer": "bea"}, ("INVALID_ARGUMENT", "NOT_THE_CALLER", "reviewer")),
        ("", "", {}, ("INVALID_ARGUMENT", "FIELD_MISSING", "trial_id")),
        ("nowhere", "", {}, ("NOT_FOUND", "TRIAL_UNKNOWN", "trial_id")),
        ("open", "", {}, ("FAILED_PRECONDITION", "TRIAL_NOT_DECIDED", "")),
        ("failed", "", {}, ("FAILED_PRECONDITION", "TRIAL_NOT_DECIDED", "")),
    ],
)
async def test_invalid_reviews_are_refused(sqlite, trial, caller, fields, expected):
    async with a_scene(sqlite) as it:
        for trial_id, end in (("t", HARMFUL), ("open", None), ("failed", "MODEL_GONE")):
            await it.tried(trial_id, end=end)  # type: ignore[arg-type]
        refusal = await refusal_of(it.reviewed(trial, caller, **fields))
        lengths = [len((await it.docket.trials.record(id_)).events) for id_ in ("t", "open", "failed")]
        counted = it.counted
    assert refusal.summary == expected
    assert lengths == [3, 2, 3] and not counted  # nothing was stored


async def test_a_caller_limited_to_namespaces_sees_only_their_trials(place):
    async with a_scene(place) as it:
        for number in range(30):
            namespace = ("forum", "blog", "shop", "", "forum2")[number % 5]
            await it.tried(f"{namespace or 'none'}-{number}", namespace=namespace, at=AT + timedelta(seconds=number))
        assert {one.content.namespace for one in await it.listed("forum", size=3)} == {"forum", "blog"}
        assert len(await it.listed("forum", size=3)) == 12
        assert len(await it.exported("forum")) == 12
        assert len(await it.listed("forum", namespace="blog")) == 6
        assert len(await it.listed("ada")) == 30
        assert await it.listed("nobody") == [] == await it.exported("nobody")
        for namespace in ("shop", "", "forum2", "nowhere"):
            for call in (it.listed, it.exported):
                refusal = await refusal_of(call("forum", namespace=namespace))
                assert refusal.summary == ("PERMISSION_DENIED", "NAMESPACE_NOT_ALLOWED", "filter.namespace")

        async def get_trial(id_):
            answer = await it.stub.GetTrial(
                wire.GetTrialRequest(trial_id=id_), timeout=TIMEOUT, metadata=caller_metadata("forum")
            )
            trial: wire.Trial = answer.trial
            return trial

        assert (await get_trial("forum-0")).summary.trial_id == "forum-0"
        unknown = await refusal_of(get_trial("nowhere"))
        assert unknown.summary == ("NOT_FOUND", "TRIAL_UNKNOWN", "trial_id")
        for id_ in ("shop-2", "none-3", "forum2-4"):
            refusal = await refusal_of(get_trial(id_))
            assert (refusal.summary, refusal.message) == (unknown.summary, unknown.message)
            refusal = await refusal_of(it.reviewed(id_, "forum"))
            assert (refusal.summary, refusal.message) == (unknown.summary, unknown.message)
            assert len((await it.docket.trials.record(id_)).events) == 3
        assert (await it.reviewed("forum-0", "forum")).review.reviewer == "forum"


@pytest.mark.parametrize("caller", ["forum", "ada", ""])
async def test_a_page_token_grants_no_access(sqlite, caller):
    """Even with a token of a caller who sees everything, a caller sees only its own trials."""
    async with a_scene(sqlite) as it:
        for number in range(9):
            await it.tried(namespace=("forum", "shop")[number % 2], at=AT + timedelta(seconds=number))
        page = await it.stub.ListTrials(wire.ListTrialsRequest(page_size=2), timeout=TIMEOUT)
        request = wire.ListTrialsRequest(page_size=100, page_token=page.next_page_token)
        next_page = await it.stub.ListTrials(request, timeout=TIMEOUT, metadata=caller_metadata(caller))
        assert {one.content.namespace for one in next_page.trials} == (
            {"forum"} if caller == "forum" else {"forum", "shop"}
        )


async def first_of(call):
    """Returns the first response of an endless call."""
    async for response in call:
        call.cancel()
        return response


async def listed_changes(it):
    """Asks what the first review of the only trial changes, which is stored past the service: it may be closed."""
    with suppress(Unavailable):
        await review_trial(it.docket, "t-1", ReviewOutcome.UPHELD, Label.HARMFUL)
    return await it.stub.ListChanges(wire.ListChangesRequest(entry=3), timeout=TIMEOUT)


CALLS: dict[str, Callable[[Scene], Awaitable[Any]]] = {
    "GetTrial": lambda it: it.stub.GetTrial(wire.GetTrialRequest(trial_id="t-1"), timeout=TIMEOUT),
    "ListTrials": lambda it: it.listed(),
    "ExportTrials": lambda it: it.exported(),
    "ReviewVerdict": lambda it: it.reviewed("t-1"),
    "OpenAppeal": lambda it: it.stub.OpenAppeal(
        wire.OpenAppealRequest(trial_id="t-1", statement="satire", by="forum"), timeout=TIMEOUT
    ),
    "GetNotice": lambda it: it.stub.GetNotice(wire.GetNoticeRequest(trial_id="t-1"), timeout=TIMEOUT),
    "ListChanges": listed_changes,
    "WatchReviews": lambda it: first_of(it.stub.WatchReviews(wire.WatchReviewsRequest(), timeout=TIMEOUT)),
}


def test_every_method_is_covered_here():
    assert set(CALLS) == {method.name for method in wire.DESCRIPTOR.services_by_name["Docket"].methods}


@pytest.mark.parametrize("name", CALLS)
async def test_calls_outside_a_session_are_unavailable(sqlite, name):
    async with a_scene(sqlite) as it:
        await it.tried("t-1")
        await CALLS[name](it)
        it.service.close()
        assert (await refusal_of(CALLS[name](it))).summary == ("UNAVAILABLE", "CLOSING", "")


@pytest.mark.parametrize("broken", ["review", "record"])
async def test_a_review_that_may_be_stored_is_not_offered_for_retry(sqlite, monkeypatch, broken):
    """The docket fails while or just after it stores the review: retrying could store it twice."""
    original_review = ReviewStore.review

    async def review(self, *arguments, **more):
        event = await original_review(self, *arguments, **more)
        if broken == "review":
            raise Unavailable("The docket can't be written now.", reason="DOCKET_UNAVAILABLE")
        monkeypatch.setattr(SqlTrialReader, "record", UnreachableDocket().trials.record)
        return event

    async with a_scene(sqlite) as it:
        await it.tried("t-1")
        monkeypatch.setattr(ReviewStore, "review", review)
        refusal = await refusal_of(CALLS["ReviewVerdict"](it))
        monkeypatch.undo()
        assert len(await it.docket.log.entries(0, 9, {"VerdictReviewed"})) == 1
    assert refusal.summary == ("UNAVAILABLE", "DOCKET_UNAVAILABLE", "")
    assert not refusal.of(error_details_pb2.RetryInfo) and "look before you ask again" in refusal.message


class UnreachableDocket:
    """A docket that is unreachable."""

    def __getattr__(self, name):
        return UnreachableStore()

    async def close(self):
        pass


class UnreachableStore:
    """A store that is unreachable."""

    def __getattr__(self, name):
        async def fails(*_, **__):
            raise Unavailable("The docket can't be read now.", reason="DOCKET_UNAVAILABLE")

        return fails


@pytest.mark.parametrize("name", CALLS)
def test_an_unreachable_docket_is_unavailable(sqlite, name):
    refusal = play(sqlite, lambda it: refusal_of(CALLS[name](it)), docket=UnreachableDocket())
    assert refusal.summary == ("UNAVAILABLE", "DOCKET_UNAVAILABLE", "")
    assert refusal.of(error_details_pb2.RetryInfo)  # nothing was started, so a retry is safe


@pytest.mark.parametrize(("trial_id", "expected"), [
    ("", ("INVALID_ARGUMENT", "FIELD_MISSING", "trial_id")),
    ("x" * 201, ("INVALID_ARGUMENT", "FIELD_TOO_LONG", "trial_id")),
    ("x\0", ("INVALID_ARGUMENT", "FIELD_HOLDS_NUL", "trial_id")),
    ("nowhere", ("NOT_FOUND", "TRIAL_UNKNOWN", "trial_id")),
])  # fmt: skip
async def test_unknown_trial_ids_are_refused(place, trial_id, expected):
    async with a_scene(place) as it:
        await it.tried("t-1")
        assert (
            await refusal_of(it.stub.GetTrial(wire.GetTrialRequest(trial_id=trial_id), timeout=TIMEOUT))
        ).summary == expected


def test_every_state_and_outcome_exists_on_the_wire():
    for ours, theirs, prefix in (
        (TrialState, wire.TrialState, "TRIAL_STATE_"),
        (ReviewOutcome, wire.ReviewOutcome, "REVIEW_OUTCOME_"),
    ):
        assert {f"{prefix}{word}" for word in ours} | {f"{prefix}UNSPECIFIED"} == {name for name, _ in theirs.items()}
