"""RE-1: whatever goes wrong at whichever call, a trial ends, in time, with a whole record and never with a wrong label.

Thousands of trials, each with faults drawn by chance: at one call site or at several, once or for good, the docket that
keeps the events failing too. They are held under a clock that jumps (``tests/support/virtual_time.py``), so that a
model that hangs costs no time and how late a trial ends is exact.
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
from tests.support.fakes import FakeReader, H, N, Notes, a_meme, findings, ticking
from tests.support.virtual_time import run, set_deadlines_by_it
from tests.unit.test_replies import acquits_validly

SITES = ("describe", "answer", "ask", "summarise", "judge", "odds", "text", "search", "pictures")
FAULTS = (
    *("gone", "overrun", "refused by the server", "hangs", "empty", "garbage", "cut in two", "cut by length"),
    *("declined", "other form", "doubled name", "slow", "breaks"),
)
CALL_S = 3.0  # what the court allows a call
USUAL_S = 0.05  # what one takes
LATE_S = 0.25  # by how much a trial may overrun its deadline

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
class Plan:
    """What goes wrong in one trial."""

    seed: int
    within_s: float | None
    acquits: bool
    broken: dict[tuple[str, int], str]  # by site and how often it was called before; -1: always
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
        """Fails as planned, or returns what is said instead, or None where all is well."""
        fault = self.fault(site)
        # One that is slow keeps to the time it is given; one that hangs does not know of it.
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


class Faulty:
    """A model with faults."""

    def __init__(self, role, plan, cast, replies):
        self.name, self.plan, self.cast, self.replies = role, plan, cast, replies

    async def reply(self, request, *, within_s):
        task = task_of(request)
        fault = await self.plan.goes_wrong(task, within_s)
        says = SAYS.get(fault)
        if says is None:
            says = self.cast._usual(self.name, task, request)
            if task == "judge" and self.plan.acquits:
                says = ACQUITTAL
        if not isinstance(says, ChatReply):
            text = says if isinstance(says, str) else json.dumps(says)
            says = ChatReply(text, FinishReason.STOP, "m", 1, 1, 0, USUAL_S)
        if task == "judge":
            self.replies.append(says)
        return says

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


class FaultyDocket(Notes):
    """Keeps events, or says that it could not; both may take a while. What it kept is what counts."""

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
        assert events[0].seq == len(self.events), "an event took the number of another"
        self.events.extend(events)


async def held(plan):
    """Holds a trial as planned; what came of it."""
    cast, replies, docket, clock = Cast(rounds=3), [], FaultyDocket(plan), ticking()
    chairs = RoleModels(**{role: RoleModel(Faulty(role, plan, cast, replies)) for role in cast.models})
    court = Court(
        finder=FaultyFinder(plan),
        text_reader=FaultyReader(plan),
        software="test",
        settings=plan.settings,
        chairs=chairs,
        fence_mark=MARK,
        now=lambda: next(clock),
    )
    loop = asyncio.get_running_loop()
    case = TrialCase("t", a_meme(None), Procedure.FULL, within_s=plan.within_s)
    began, error, record = loop.time(), None, None
    try:
        # Far beyond all that it may take: who runs into this has hung.
        async with asyncio.timeout(4000):
            record = await court.hear(case, docket)
    except CourtError as caught:
        error = caught
        record = caught.record if isinstance(caught, TrialAborted) else None
    return SimpleNamespace(
        plan=plan, error=error, record=record, kept=docket.events, seconds=loop.time() - began, replies=replies
    )


def check(it):
    """All that RE-1 promises, of one trial."""
    kept = it.kept
    if it.record is None:
        assert not kept, "nothing was told of what was kept"
        return
    # The record is whole, and what was kept is what was told.
    assert list(it.record.events) == kept
    assert TrialRecord.of(kept).events == it.record.events
    given = [event for event in kept if isinstance(event, VerdictGiven)]
    failed = [event for event in kept if isinstance(event, TrialFailed)]
    assert len(given) + len(failed) <= 1
    if it.error is None:
        assert given and it.record.state is TrialState.DECIDED
    else:
        assert not given, "a trial that failed has no verdict"
        assert failed or it.plan.docket, "its end was not recorded"
        assert not failed or (failed[0].reason == it.error.reason and "/some/path" not in failed[0].message)
    if (
        it.error is not None and it.error.reason == "INTERNAL"
    ):  # a mistake of the court's own only where one was planned
        assert "breaks" in it.plan.broken.values() or "fails" in it.plan.docket.values()
    # Never a wrong label: it is what the Judge's last reply, complete and valid, says by the rule.
    if given:
        used = it.replies[-1]
        assert used.finish is FinishReason.STOP
        label = given[0].verdict.label
        assert (label is Label.NOT_HARMFUL) == acquits_validly(used.text)
        assert label is (Label.NOT_HARMFUL if it.plan.acquits else Label.HARMFUL)
    # In time.
    if it.plan.within_s is not None:
        slow = 0.1 * sum(what == "slow" for what in it.plan.docket.values())  # what keeps records is never cut short
        assert it.seconds <= it.plan.within_s + LATE_S + slow
    assert it.seconds < 1000


@pytest.fixture
def clock(monkeypatch):
    """The budget goes by the loop's time."""
    set_deadlines_by_it(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(4))
def test_re_1_faults_in_every_combination(clock, batch):
    plans = [Plan.drawn(seed) for seed in range(batch * 700, (batch + 1) * 700)]

    async def all_of_them():
        return [await held(plan) for plan in plans]

    outcomes = run(all_of_them())
    for it in outcomes:
        try:
            check(it)
        except AssertionError as error:
            raise AssertionError(f"{error}: {it.plan}, {it.error!r}, {[e.kind for e in it.kept]}") from error
    ends = Counter("verdict" if it.error is None else it.error.reason for it in outcomes)
    assert len(outcomes) >= 600 and ends["verdict"] > 50 and len(ends) > 6, ends


@pytest.mark.slow
def test_re_1_each_fault_at_each_site_alone(clock):
    """Once and for good, with an acquittal at hand and without, with a deadline and without."""
    plans = [
        Plan(0, within_s, acquits, {(site, number): fault}, {}, TrialSettings(rounds_max=3, call_s=CALL_S))
        for site in SITES
        for fault in FAULTS
        for number in (0, -1)
        for acquits in (False, True)
        for within_s in (2.5, None)
    ]

    async def all_of_them():
        return [await held(plan) for plan in plans]

    outcomes = run(all_of_them())
    for it in outcomes:
        check(it)
        ((site, number), fault), *_ = it.plan.broken.items()
        if fault in ("gone", "overrun", "refused by the server", "breaks", "hangs"):
            assert it.error is not None, (site, fault)
        elif number == 0 and fault not in ("declined", "slow"):
            assert it.error is None, (site, fault, it.error)  # one repair
    assert len(outcomes) > 800


def test_re_1_by_the_wall_clock():
    """A hundred trials at once that hang: each ends with its deadline. The bound is loose, the machine may be busy."""
    patient = TrialSettings(call_s=300, find_s=300, read_s=300)
    plans = [Plan(0, 0.4, True, {(site, -1): "hangs"}, {}, patient) for site in SITES for _ in range(11)]
    plans = [plan for plan in plans if plan.broken]

    async def at_once():
        began = time.monotonic()
        outcomes = await asyncio.gather(*map(held, plans))
        return outcomes, time.monotonic() - began

    outcomes, seconds = asyncio.run(at_once())
    for it in outcomes:
        assert it.record.verdict is None and isinstance(it.kept[-1], TrialFailed)
        assert list(it.record.events) == it.kept
    assert seconds < 150


# The clerk


def said(text):
    return {"text": text, "source": TextSource.CALLER}


TEXTS = [EventDraft(TextRead, said("x")), EventDraft(TextRead, said("y"))]


def test_an_event_that_is_kept_is_counted_however_often_the_trial_is_cancelled():
    """Cancelled by the other side's failure and then by the caller, while the docket still writes."""
    kept = []

    async def slowly(*events):
        await asyncio.sleep(0.02)
        kept.extend(events)

    async def scene():
        clock = ticking()
        clerk = Recorder("t", slowly, lambda: next(clock))
        writing = asyncio.create_task(clerk.note_all(*TEXTS))
        for _ in range(3):
            await asyncio.sleep(0.004)
            writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await clerk.note(TextRead, text="y", source=TextSource.CALLER)
        return clerk

    clerk = asyncio.run(scene())
    assert [event.seq for event in kept] == [0, 1, 2]
    assert list(clerk._events) == kept


def test_events_noted_together_come_one_after_the_other_whoever_else_speaks():
    notes = Notes()

    async def keep(*events):
        await asyncio.sleep(0.001)
        await notes(*events)

    async def scene():
        clock = ticking()
        clerk = Recorder("t", keep, lambda: next(clock))
        told = await asyncio.gather(
            clerk.note_all(*TEXTS),
            clerk.note(TextRead, text="z", source=TextSource.CALLER),
            clerk.note_all(lambda before: EventDraft(TextRead, said(str(len(before)))), *TEXTS),
        )
        return clerk, told

    clerk, ((first, second), third, last) = asyncio.run(scene())
    assert notes.events == [first, second, third, *last] == clerk._events
    assert [event.seq for event in notes.events] == list(range(6))
    assert [event.text for event in notes.events] == ["x", "y", "z", "3", "x", "y"]


def test_of_events_noted_together_that_were_not_kept_none_takes_a_number():
    notes = Notes(fail_at=2, error=Unavailable("locked"))

    async def scene():
        clock = ticking()
        clerk = Recorder("t", notes, lambda: next(clock))
        await clerk.note(TextRead, **said("w"))
        with pytest.raises(Unavailable, match="locked"):
            await clerk.note_all(*TEXTS)
        notes.fail_at = None
        await clerk.note_all()  # says nothing, and nobody is told
        await clerk.note(TextRead, **said("z"))
        return clerk

    clerk = asyncio.run(scene())
    assert [(event.seq, event.text) for event in notes.events] == [(0, "w"), (1, "z")]
    assert list(clerk._events) == notes.events
