"""RE-1: whatever fails at whichever call, a trial ends in time with a complete record and never with a wrong label.

Thousands of trials run with randomly drawn faults: at one call site or several, once or permanently, with a failing
docket too. They run on virtual time (``tests/support/virtual_time.py``), so a hanging model costs no real time, and how
late a trial ends is exact.
"""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from court.errors import CourtError, ModelRefused, Overrun, Unavailable
from court.events import Procedure, TextRead, TextSource, TrialFailed, VerdictGiven
from court.ports import ChatReply, FinishReason, Odds
from court.record import TrialAborted, TrialRecord, TrialState
from court.recorder import EventDraft, Recorder
from court.roles import RoleModel, RoleModels
from court.settings import TrialSettings
from court.trial import Court, TrialCase
from court.verdict import Label
from tests.support.cast import ACQUITTAL, MARK, Cast, PictureFinder, task_of
from tests.support.fakes import FakeReader, H, N, RecordingSink, a_meme, findings, ticking_clock
from tests.support.replies import acquits_validly
from tests.support.sizes import FULL
from tests.support.virtual_time import use_virtual_deadlines

SITES = ("describe", "answer", "ask", "summarise", "judge", "odds", "text", "search", "pictures")
FAULTS = (
    *("gone", "overrun", "refused by the server", "hangs", "empty", "garbage", "cut in two", "cut by length"),
    *("declined", "other form", "doubled name", "slow", "breaks"),
)
CALL_S = 3.0  # the court's time limit for a call
USUAL_S = 0.05  # the duration of a healthy call
LATE_S = 0.25  # the most by which a trial may exceed its deadline

TRUNCATED = json.dumps(ACQUITTAL)[:-40]
SAYS = {
    "empty": "",
    "garbage": "\x00\ufffd}{ not harmful not harmful",
    "cut in two": TRUNCATED,
    "cut by length": ChatReply(json.dumps({**ACQUITTAL, "precedents": []}), FinishReason.LENGTH, "m", 1, 1, 0, 0.0),
    "declined": ChatReply("I can't help with that: not harmful.", FinishReason.REFUSAL, "m", 1, 1, 0, 0.0),
    "other form": '{"label": "not harmful", "verdict": "NOT_HARMFUL"}',
    "doubled name": '{"label": "harmful", "label": "not harmful"}',
}


@dataclass
class FaultPlan:
    """The faults of one trial."""

    seed: int
    within_s: float | None
    acquits: bool
    broken: dict[tuple[str, int], str]  # by site and number of the call, from 0; -1: every call
    docket: dict[int, str]  # by the number of the event
    settings: TrialSettings
    calls: Counter = field(default_factory=Counter)

    @classmethod
    def drawn(cls, seed):
        chance = random.Random(seed)
        count = chance.choice((1, 1, 1, 2, 3, 5))
        broken = {
            (chance.choice(SITES), chance.choice((-1, 0, 0, 1, 2, 3))): chance.choice(FAULTS) for _ in range(count)
        }
        docket = {}
        if chance.random() < 0.3:
            docket = {chance.randrange(24): chance.choice(("fails", "slow")) for _ in range(chance.choice((1, 1, 3)))}
        rounds = chance.choice((1, 2, 4))
        return cls(
            seed=seed,
            within_s=chance.choice((None, 0.4, 1.0, 2.5, 6.0)),
            acquits=chance.random() < 0.5,
            broken=broken,
            docket=docket,
            settings=TrialSettings(
                rounds_min=min(2, rounds),
                rounds_max=rounds,
                overlap=chance.random() < 0.5,
                score=chance.random() < 0.7,
                call_s=CALL_S,
                query=chance.choice(("text", "text", "text and summaries")),
            ),
        )

    def fault(self, site):
        number = self.calls[site]
        self.calls[site] += 1
        return self.broken.get((site, number)) or self.broken.get((site, -1))

    async def goes_wrong(self, site, within_s=None):
        """Raises the planned fault, or returns the name of one that alters the reply, or None if all is well."""
        fault = self.fault(site)
        # A slow call respects its time limit; a hanging one ignores it.
        takes = 1.0 if fault == "slow" else USUAL_S
        if within_s is not None and takes > within_s:
            await asyncio.sleep(max(within_s, 0))
            raise Overrun("too slow", reason="MODEL_TOO_SLOW")
        await asyncio.sleep(takes)
        match fault:
            case "gone":
                raise Unavailable("gone")
            case "overrun":
                raise Overrun("slow")
            case "refused by the server":
                raise ModelRefused("too long")
            case "breaks":
                raise RuntimeError("a fault of ours, at /some/path")
            case "hangs":
                await asyncio.sleep(10**6)
        return fault


class FaultyModel:
    """A model with faults."""

    def __init__(self, role, plan, cast, replies):
        self.name, self.plan, self.cast, self.replies = role, plan, cast, replies

    async def reply(self, request, *, within_s):
        task = task_of(request)
        fault = await self.plan.goes_wrong(task, within_s)
        reply = SAYS.get(fault)
        if reply is None:
            reply = self.cast._usual(self.name, task, request)
            if task == "judge" and self.plan.acquits:
                reply = ACQUITTAL
        if not isinstance(reply, ChatReply):
            text = reply if isinstance(reply, str) else json.dumps(reply)
            reply = ChatReply(text, FinishReason.STOP, "m", 1, 1, 0, USUAL_S)
        if task == "judge":
            self.replies.append(reply)
        return reply

    async def odds(self, request, options, *, within_s):
        fault = await self.plan.goes_wrong("odds", within_s)
        masses = (float("nan"), 2.0) if fault in SAYS else (0.4, 0.4)
        return None if fault == "empty" else Odds(masses, ChatReply("A", FinishReason.STOP, "m", 1, 1, 0, USUAL_S))


class FaultyFinder(PictureFinder):
    def __init__(self, plan):
        super().__init__(findings([N, N, N, N, N] if plan.acquits else [H] * 5))
        self.plan = plan

    async def find(self, **query):
        await self.plan.goes_wrong("search")
        return await super().find(**query)

    async def pictures(self, ids):
        await self.plan.goes_wrong("pictures")
        return await super().pictures(ids)


class FaultyReader(FakeReader):
    def __init__(self, plan):
        super().__init__("read off the picture")
        self.plan = plan

    async def read(self, picture):
        await self.plan.goes_wrong("text")
        return await super().read(picture)


class FaultyDocket(RecordingSink):
    """Stores events or fails to, possibly slowly. The events stored are the ones that count."""

    def __init__(self, plan):
        super().__init__()
        self.plan = plan
        self.tried = 0

    async def __call__(self, *events):
        what = self.plan.docket.get(self.tried)
        self.tried += 1
        await asyncio.sleep(0.1 if what == "slow" else 0.001)
        if what == "fails":
            raise OSError("no room")
        assert events[0].seq == len(self.events), "two events have the same number"
        self.events.extend(events)


async def run_trial(plan):
    """Runs a trial as planned and returns its outcome."""
    cast, replies, docket, clock = Cast(rounds=3), [], FaultyDocket(plan), ticking_clock()
    role_models = RoleModels(**{role: RoleModel(FaultyModel(role, plan, cast, replies)) for role in cast.models})
    court = Court(
        finder=FaultyFinder(plan),
        text_reader=FaultyReader(plan),
        software="test",
        settings=plan.settings,
        role_models=role_models,
        fence_mark=MARK,
        now=lambda: next(clock),
    )
    loop = asyncio.get_running_loop()
    case = TrialCase("t", a_meme(None), Procedure.FULL, within_s=plan.within_s)
    began, error, record = loop.time(), None, None
    try:
        # Far beyond any legitimate duration: a trial that exceeds this has hung.
        async with asyncio.timeout(4000):
            record = await court.run(case, docket)
    except CourtError as caught:
        error = caught
        record = caught.record if isinstance(caught, TrialAborted) else None
    return SimpleNamespace(
        plan=plan, error=error, record=record, stored=docket.events, seconds=loop.time() - began, replies=replies
    )


def check(outcome):
    """Checks all that RE-1 promises of one trial."""
    stored = outcome.stored
    if outcome.record is None:
        assert not stored, "the error carries no record of the stored events"
        return
    # The record is complete and equals the stored events.
    assert list(outcome.record.events) == stored
    assert TrialRecord.of(stored).events == outcome.record.events
    verdicts = [event for event in stored if isinstance(event, VerdictGiven)]
    failed = [event for event in stored if isinstance(event, TrialFailed)]
    assert len(verdicts) + len(failed) <= 1
    if outcome.error is None:
        assert verdicts and outcome.record.state is TrialState.DECIDED
    else:
        assert not verdicts, "a trial that failed has no verdict"
        assert failed or outcome.plan.docket, "its end was not recorded"
        assert not failed or (failed[0].reason == outcome.error.reason and "/some/path" not in failed[0].message)
    # An internal error is acceptable only if one was planned.
    if outcome.error is not None and outcome.error.reason == "INTERNAL":
        assert "breaks" in outcome.plan.broken.values() or "fails" in outcome.plan.docket.values()
    # Never a wrong label: it follows by the rule from the Judge's last reply, which is complete and valid.
    if verdicts:
        used = outcome.replies[-1]
        assert used.finish is FinishReason.STOP
        label = verdicts[0].verdict.label
        assert (label is Label.NOT_HARMFUL) == acquits_validly(used.text)
        assert label is (Label.NOT_HARMFUL if outcome.plan.acquits else Label.HARMFUL)
    # In time.
    if outcome.plan.within_s is not None:
        slow = 0.1 * sum(what == "slow" for what in outcome.plan.docket.values())  # storing events is never cut short
        assert outcome.seconds <= outcome.plan.within_s + LATE_S + slow
    assert outcome.seconds < 1000


@pytest.fixture
def clock(monkeypatch):
    """Makes deadlines follow the loop's time."""
    use_virtual_deadlines(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(4 if FULL else 1))
@pytest.mark.virtual_time
async def test_re_1_trials_end_correctly_under_random_combinations_of_faults(clock, batch):
    plans = [FaultPlan.drawn(seed) for seed in range(batch * 700, (batch + 1) * 700)]
    outcomes = [await run_trial(plan) for plan in plans]
    for outcome in outcomes:
        try:
            check(outcome)
        except AssertionError as error:
            raise AssertionError(
                f"{error}: {outcome.plan}, {outcome.error!r}, {[e.kind for e in outcome.stored]}"
            ) from error
    ends = Counter("verdict" if outcome.error is None else outcome.error.reason for outcome in outcomes)
    assert len(outcomes) >= 600 and ends["verdict"] > 50 and len(ends) > 6, ends


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_re_1_trials_end_correctly_under_each_fault_at_each_site(clock):
    """Once and permanently, with and without an acquitting reply, with and without a deadline."""
    plans = [
        FaultPlan(0, within_s, acquits, {(site, number): fault}, {}, TrialSettings(rounds_max=3, call_s=CALL_S))
        for site in SITES
        for fault in FAULTS
        for number in (0, -1)
        for acquits in (False, True)
        for within_s in (2.5, None)
    ]
    outcomes = [await run_trial(plan) for plan in plans]
    for outcome in outcomes:
        check(outcome)
        ((site, number), fault), *_ = outcome.plan.broken.items()
        if fault in ("gone", "overrun", "refused by the server", "breaks", "hangs"):
            assert outcome.error is not None, (site, fault)
        elif number == 0 and fault not in ("declined", "slow"):
            assert outcome.error is None, (site, fault, outcome.error)  # one repair
    assert len(outcomes) > 800


async def test_re_1_hanging_trials_end_by_the_wall_clock():
    """A hundred hanging trials at once each end with their deadline. The bound is loose: the machine may be busy."""
    patient = TrialSettings(call_s=300, find_s=300, read_s=300)
    plans = [FaultPlan(0, 0.4, True, {(site, -1): "hangs"}, {}, patient) for site in SITES for _ in range(11)]
    plans = [plan for plan in plans if plan.broken]

    began = time.monotonic()
    outcomes = await asyncio.gather(*map(run_trial, plans))
    seconds = time.monotonic() - began
    for outcome in outcomes:
        assert outcome.record.verdict is None and isinstance(outcome.stored[-1], TrialFailed)
        assert list(outcome.record.events) == outcome.stored
    assert seconds < 150


# The recorder


def text_fields(text):
    return {"text": text, "source": TextSource.CALLER}


TEXTS = [EventDraft(TextRead, text_fields("x")), EventDraft(TextRead, text_fields("y"))]


async def test_stored_events_are_counted_however_often_the_trial_is_cancelled():
    """Cancelled by the other side's failure and then by the caller, while the docket is still writing."""
    stored = []

    async def slowly(*events):
        await asyncio.sleep(0.02)
        stored.extend(events)

    clock = ticking_clock()
    recorder = Recorder("t", slowly, lambda: next(clock))
    writing = asyncio.create_task(recorder.record_all(*TEXTS))
    for _ in range(3):
        await asyncio.sleep(0.004)
        writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await recorder.record(TextRead, text="y", source=TextSource.CALLER)
    assert [event.seq for event in stored] == [0, 1, 2]
    assert list(recorder._events) == stored


async def test_events_recorded_together_are_consecutive_despite_concurrent_recording():
    notes = RecordingSink()

    async def keep(*events):
        await asyncio.sleep(0.001)
        await notes(*events)

    clock = ticking_clock()
    recorder = Recorder("t", keep, lambda: next(clock))
    recorded = await asyncio.gather(
        recorder.record_all(*TEXTS),
        recorder.record(TextRead, text="z", source=TextSource.CALLER),
        recorder.record_all(lambda before: EventDraft(TextRead, text_fields(str(len(before)))), *TEXTS),
    )
    recorder, ((first, second), third, last) = recorder, recorded
    assert notes.events == [first, second, third, *last] == recorder._events
    assert [event.seq for event in notes.events] == list(range(6))
    assert [event.text for event in notes.events] == ["x", "y", "z", "3", "x", "y"]


async def test_failed_batch_of_events_uses_up_no_sequence_number():
    notes = RecordingSink(fail_at=2, error=Unavailable("locked"))

    clock = ticking_clock()
    recorder = Recorder("t", notes, lambda: next(clock))
    await recorder.record(TextRead, **text_fields("w"))
    with pytest.raises(Unavailable, match="locked"):
        await recorder.record_all(*TEXTS)
    notes.fail_at = None
    await recorder.record_all()  # an empty batch stores nothing
    await recorder.record(TextRead, **text_fields("z"))
    assert [(event.seq, event.text) for event in notes.events] == [(0, "w"), (1, "z")]
    assert list(recorder._events) == notes.events
