"""What a docket's log tells receivers, over real sockets, in SQLite and in PostgreSQL."""

import asyncio
import itertools
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from standardwebhooks import Webhook

from court.events import TrialFailed
from court.verdict import Label, Review, ReviewReason, decision
from retrieval.library.writer import LibraryWriter
from retrieval.precedents.finder import LibraryFinder
from serving.docket.log.entries import PrecedentChanged
from serving.docket.log.notes import VerifierKey
from serving.docket.open import Docket
from serving.docket.store.keys import KeyFile, make_key, next_key, read_key, settle_keys
from serving.runner.heartbeat import Heartbeat
from serving.telemetry import SILENT
from serving.webhooks import attempts, sender
from serving.webhooks.attempts import AFTER_S, ATTEMPTS, Receiver
from serving.webhooks.messages import messages_of
from serving.webhooks.precedents import note_precedent_changes
from serving.webhooks.sender import HookSender, send_webhooks
from tests.contract.test_docket_log import checked_log
from tests.support.dockets import NOON, append_all, events_of, place_of, reviewing
from tests.support.libraries import ENCODER, drawn_library
from tests.support.playing import until
from tests.support.receivers import HEADERS, a_receiver, hook_to


@pytest.fixture
def receiver():
    with a_receiver() as server:
        yield server


class Clock:
    """The time, which moves when it is told to."""

    def __init__(self):
        self.now = NOON

    def __call__(self):
        return self.now

    def on(self, seconds):
        self.now += timedelta(seconds=seconds)


def decided(trial_id, *, label=None, review=False, namespace="forum"):
    """Events of a trial with a verdict, that asks for a person or not."""
    opened, *others, given = events_of(trial_id, NOON)
    meme = opened.meme.model_copy(update={"namespace": namespace, "content_id": f"content-{trial_id}"})
    opened = opened.model_copy(update={"meme": meme, "request_id": f"request-{trial_id}"})
    reasons = (Review(reason=ReviewReason.TEXT_UNSURE, detail="a detail of Blueland"),) if review else ()
    verdict = given.verdict.model_copy(update={"review": reasons})
    return [opened, *others, given.model_copy(update={"verdict": verdict})]


def failed(trial_id):
    opened = decided(trial_id)[0]
    return [
        opened,
        TrialFailed(trial_id=trial_id, seq=1, at=NOON, step="text", reason="GONE", message="Blueland", retryable=True),
    ]


@asynccontextmanager
async def sending(docket, hook, *, clock=None, name="s1", telemetry=SILENT):
    """A sender that is asked for each of its rounds."""
    receiver = Receiver(hook, **({"clock": clock} if clock else {}))
    pulse = Heartbeat(docket.heartbeats, name)
    given = {"clock": clock} if clock else {}
    try:
        yield HookSender(receiver, docket, pulse, telemetry=telemetry, **given)
    finally:
        await receiver.aclose()


def test_senders_of_a_server_share_one_look_at_the_docket(using, receiver, tmp_path):
    hooks = [hook_to(receiver.url, tmp_path, name=f"hook-{number}") for number in range(5)]

    async def scene(docket):
        looks = []
        states = docket.deliveries.states

        async def counted():
            looks.append(1)
            return await states()

        docket.deliveries.states = counted
        telling = asyncio.create_task(send_webhooks(docket, [Receiver(hook) for hook in hooks], telemetry=SILENT))
        try:

            async def all_owned():
                return [hook for hook in await docket.hooks.hooks() if hook.owner][4:]

            await until(all_owned)
            await asyncio.sleep(1)
            looks.clear()
            begun = asyncio.get_running_loop().time()
            await asyncio.sleep(4 * sender.POLL_S)
            while not looks:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            idle = len(looks) / (asyncio.get_running_loop().time() - begun)
            await append_all(docket, decided("a"))
            await asyncio.to_thread(receiver.wait_for, 5)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
        return idle

    # One each 0.45 s, 2.2 a second, where each of the five by itself would make one each 0.5 s: 10 a second.
    assert using(scene) < 5
    assert {taken.message["data"]["verdict_id"] for taken in receiver.requests} == {"a"}


def test_an_appeal_is_told_and_another_key_of_the_docket_changes_no_id(docket_place, receiver, tmp_path):
    hook, key = hook_to(receiver.url, tmp_path), tmp_path / "docket.key"

    async def scene():
        docket = Docket.open(place_of(docket_place), key=key)
        try:
            await docket.hooks.register([hook.name])
            async with sending(docket, hook) as before:
                await append_all(docket, decided("a"))
                await until_idle(before)
            old = KeyFile(key)(await docket.log.vkey())
            make_key(next_key(key), old.name)
            await docket.log_keys.rotate(old, read_key(next_key(key)), who="ada", why="w", compromised=False, at=NOON)
            settle_keys(key)
            await append_all(docket, decided("b"))
            await docket.reviews.open_appeal("b", by="forum", statement="of Blueland", reference="7", at=NOON)
            await docket.hooks.replay("queue", 0)
            async with sending(docket, hook) as after:
                await until_idle(after)
        finally:
            await docket.close()

    asyncio.run(scene())
    # Several messages are on their way at once: their order is not promised.
    (appeal,) = [each.message for each in receiver.requests if each.message["data"].get("appeal")]
    assert appeal["type"] == "memecourt.review.wanted" and "Blueland" not in str(appeal)
    told = {"decision": "review", "needs_human_review": True, "second_opinion": False, "appeal": {"reference": "7"}}
    assert told.items() <= appeal["data"].items()
    ids = {}
    for taken in receiver.requests:
        if taken.message["type"] == "memecourt.verdict.given":
            ids.setdefault(taken.message["data"]["verdict_id"], []).append(taken.id)
    assert ids.keys() == {"a", "b"} and len(ids["a"]) == 2 and len(set(ids["a"])) == 1


async def until_idle(hook_sender):
    while await hook_sender.work():
        pass


def test_each_thing_that_happens_is_told_once_and_says_nothing_of_the_meme(using, receiver, tmp_path):
    hook = hook_to(receiver.url, tmp_path)

    async def scene(docket):
        await append_all(docket, decided("before"))
        await docket.hooks.register([hook.name])
        async with sending(docket, hook) as told:
            await append_all(docket, decided("a"))
            await append_all(docket, decided("b", review=True))
            await append_all(docket, failed("c"))
            await reviewing(docket, "b")
            await docket.eraser.erase("a", who="Ruth", why="a word of Blueland", at=NOON)
            await until_idle(told)
            await until_idle(told)

    using(scene)
    messages = receiver.told()
    # "a" was erased before anything could be sent of it, but for that it was erased.
    assert sorted((each["type"], each["data"]["verdict_id"]) for each in messages) == [
        ("memecourt.record.erased", "a"),
        ("memecourt.review.decided", "b"),
        ("memecourt.review.wanted", "b"),
        ("memecourt.trial.failed", "c"),
        ("memecourt.verdict.given", "b"),
    ]
    by_type = {each["type"].removeprefix("memecourt."): each["data"] for each in messages}
    about = {"verdict_id": "b", "content": {"namespace": "forum", "id": "content-b"}, "request_id": "request-b"}
    wanted = by_type["review.wanted"]
    assert {name: wanted[name] for name in about} == about
    assert (wanted["decision"], wanted["needs_human_review"]) == ("review", True)
    assert wanted["review_reasons"] == ["REVIEW_REASON_TEXT_UNSURE"]
    decided_by = by_type["review.decided"]
    assert decided_by["review"] == {"outcome": "REVIEW_OUTCOME_OVERRULED", "blind": False}
    assert (decided_by["label"], decided_by["decision"]) == ("LABEL_NOT_HARMFUL", "allow")
    assert by_type["trial.failed"]["failure"] == {"step": "text", "reason": "GONE", "retryable": True}
    assert by_type["trial.failed"]["decision"] == "review"  # a failure is never "not harmful"
    erased = by_type["record.erased"]
    assert erased == {"entry": erased["entry"], "verdict_id": "a", "content": {"namespace": "forum"}}
    said = b"".join(taken.body for taken in receiver.requests).decode()
    for events in (decided("a"), decided("b", review=True)):
        verdict, opened = events[-1].verdict, events[0]
        secrets = [verdict.rationale, opened.meme.pixels_sha256, opened.meme.bytes_sha256, "Blueland", "Ruth", "satire"]
        secrets += [event.text for event in events if event.kind == "TextRead"]
        assert not [secret for secret in secrets if secret and secret in said]
    assert all(len(taken.body) < 20_000 for taken in receiver.requests)
    assert len({taken.id for taken in receiver.requests}) == len(messages)


def test_a_receiver_verifies_what_it_is_sent(using, receiver, tmp_path):
    hook = hook_to(receiver.url, tmp_path)
    verifier = Webhook(hook.secret_file.read_text().strip())

    async def scene(docket):
        await docket.hooks.register([hook.name])
        async with sending(docket, hook) as told:
            await append_all(docket, decided("a"))
            await until_idle(told)

    using(scene)
    (taken,) = receiver.requests
    headers = {name: taken.headers[name] for name in HEADERS}
    assert verifier.verify(taken.body, headers)["data"]["verdict_id"] == "a"
    with pytest.raises(Exception, match="No matching signature"):
        verifier.verify(taken.body + b" ", headers)
    assert "." not in taken.id


def test_who_is_told_of_some_types_and_namespaces_is_told_of_no_others(using, receiver, tmp_path):
    hook = hook_to(receiver.url, tmp_path, events=["memecourt.verdict.given"], namespaces=["forum"])

    async def scene(docket):
        await docket.hooks.register([hook.name])
        async with sending(docket, hook) as told:
            await append_all(docket, decided("a", review=True))
            await append_all(docket, decided("b", namespace="shop"))
            await append_all(docket, failed("c"))
            await until_idle(told)

    using(scene)
    assert [(each["type"], each["data"]["verdict_id"]) for each in receiver.told()] == [
        ("memecourt.verdict.given", "a")
    ]


def test_a_message_that_is_not_taken_is_sent_ten_times_over_three_days_and_holds_up_no_other(using, receiver, tmp_path):
    hook, clock = hook_to(receiver.url, tmp_path, events=["memecourt.verdict.given"]), Clock()
    receiver.answer = lambda taken: (500 if taken.message["data"]["verdict_id"] == "bad" else 200, {})

    async def scene(docket):
        await docket.hooks.register([hook.name])
        async with sending(docket, hook, clock=clock) as told:
            await append_all(docket, decided("bad"))
            await append_all(docket, decided("good"))
            await until_idle(told)
            assert len(receiver.requests) == 2
            waits = []
            for after in AFTER_S:
                clock.on(after * 0.99)
                await until_idle(told)
                before = len(receiver.requests)
                clock.on(after * 0.22)
                await until_idle(told)
                waits.append(len(receiver.requests) - before)
            assert waits == [1] * len(AFTER_S)
            clock.on(10 * 24 * 3600)
            await until_idle(told)
            backlog = await docket.deliveries.backlog(hook.name)
            (row,) = await docket.hooks.hooks()
            return backlog, row

    backlog, row = using(scene)
    tries = [taken for taken in receiver.requests if taken.message["data"]["verdict_id"] == "bad"]
    assert len(tries) == ATTEMPTS == 10
    assert len({taken.id for taken in tries}) == 1, "an id is of a message, at each attempt"
    assert len({taken.headers["webhook-timestamp"] for taken in tries}) == 10
    assert 3 * 24 * 3600 < sum(AFTER_S) < 3.5 * 24 * 3600
    assert (backlog.waiting, backlog.given_up) == (0, 1)
    # It took another one, so that it is alive; had it taken nothing for three days, it would be disabled.
    assert row.disabled_at is not None and "three days" in row.why and "status 500" in row.why


def test_a_receiver_that_takes_others_is_not_disabled_by_one_that_it_never_takes(using, receiver, tmp_path):
    hook, clock = hook_to(receiver.url, tmp_path, events=["memecourt.verdict.given"]), Clock()
    receiver.answer = lambda taken: (500 if taken.message["data"]["verdict_id"] == "bad" else 200, {})

    async def scene(docket):
        await docket.hooks.register([hook.name])
        async with sending(docket, hook, clock=clock) as told:
            await append_all(docket, decided("bad"))
            for number, after in enumerate((0, *AFTER_S)):
                clock.on(1.21 * after)
                await append_all(docket, decided(f"good-{number}"))
                await until_idle(told)
            return await docket.deliveries.backlog(hook.name), (await docket.hooks.hooks())[0]

    backlog, row = using(scene)
    assert (backlog.waiting, backlog.given_up) == (0, 1) and row.disabled_at is None


def test_who_answers_410_is_told_nothing_until_it_is_enabled_and_then_all(using, receiver, tmp_path):
    hook, clock = hook_to(receiver.url, tmp_path, events=["memecourt.verdict.given"]), Clock()
    receiver.answer = lambda _: (410, {})

    async def scene(docket):
        await docket.hooks.register([hook.name])
        async with sending(docket, hook, clock=clock) as told:
            await append_all(docket, decided("a"))
            await until_idle(told)
            (row,) = await docket.hooks.hooks()
            assert row.disabled_at == NOON and "410" in row.why
            await append_all(docket, decided("b"))
            clock.on(9 * 3600)
            await until_idle(told)
            assert len(receiver.requests) == 1
            receiver.answer = lambda _: (200, {})
            assert await docket.hooks.enable(hook.name)
            await until_idle(told)

    using(scene)
    # Both are on their way at once: their order is not promised.
    assert sorted(each["data"]["verdict_id"] for each in receiver.told()[1:]) == ["a", "b"]


@pytest.mark.parametrize(
    ("status", "headers", "pause"),
    [(429, {"Retry-After": "120"}, 120), (502, {}, 30), (504, {}, 30), (503, {"Retry-After": "50"}, 50), (503, {}, 0)],
)
def test_a_receiver_that_has_too_much_to_do_is_left_alone(tmp_path, receiver, status, headers, pause):
    hook, clock = hook_to(receiver.url, tmp_path, events=["memecourt.verdict.given"]), Clock()
    receiver.answer = lambda _: (status, headers)

    async def scene():
        docket = Docket.open(tmp_path / "docket.sqlite")
        await docket.hooks.register([hook.name])
        async with sending(docket, hook, clock=clock) as told:
            await append_all(docket, decided("a"))
            await until_idle(told)
            await append_all(docket, decided("b"))
            clock.on(max(pause - 1, 7))
            await until_idle(told)
            before = len(receiver.requests)
            receiver.answer = lambda _: (200, {})
            clock.on(2)
            await until_idle(told)
        await docket.close()
        return before

    assert asyncio.run(scene()) == (1 if pause else 3)
    assert {each["data"]["verdict_id"] for each in receiver.told()} == {"a", "b"}


def test_replay_tells_again_under_the_same_ids(using, receiver, tmp_path):
    hook = hook_to(receiver.url, tmp_path, events=["memecourt.verdict.given"])

    async def scene(docket):
        await append_all(docket, decided("old"))
        await docket.hooks.register([hook.name])
        async with sending(docket, hook) as told:
            await append_all(docket, decided("a"))
            await until_idle(told)
            assert await docket.hooks.replay(hook.name, 0)
            assert not await docket.hooks.replay("nobody", 0)
            await until_idle(told)

    using(scene)
    first, *again = receiver.requests
    # What a replay tells is on its way at once: its order is not promised.
    identities = {taken.message["data"]["verdict_id"]: taken.id for taken in again}
    assert len(again) == 2 and set(identities) == {"a", "old"} and identities["a"] == first.id


def test_what_is_erased_while_it_waits_is_not_sent_again(using, receiver, tmp_path):
    hook, clock = hook_to(receiver.url, tmp_path), Clock()
    receiver.answer = lambda _: (500, {})

    async def scene(docket):
        await docket.hooks.register([hook.name])
        async with sending(docket, hook, clock=clock) as told:
            await append_all(docket, decided("a"))
            await until_idle(told)
            await docket.eraser.erase("a", who="Ruth", why="asked", at=NOON)
            receiver.answer = lambda _: (200, {})
            clock.on(3600)
            await until_idle(told)
            return await docket.deliveries.backlog(hook.name)

    assert using(scene).waiting == 0
    assert [each["type"] for each in receiver.told()] == ["memecourt.verdict.given", "memecourt.record.erased"]


def test_two_servers_send_each_message_once_and_the_second_takes_over_from_a_dead_one(using, receiver, tmp_path):
    hook = hook_to(receiver.url, tmp_path, events=["memecourt.verdict.given"])
    ticks = itertools.count()

    async def scene(docket):
        await docket.hooks.register([hook.name])
        pulses = [
            Heartbeat(docket.heartbeats, name, beat_s=1, dead_s=15, clock=lambda: float(next(ticks))) for name in "xy"
        ]
        first, second = (Receiver(hook), Receiver(hook))
        senders = [
            HookSender(each, docket, pulse, telemetry=SILENT)
            for each, pulse in zip((first, second), pulses, strict=True)
        ]
        for pulse in pulses:
            await pulse.beat()
        for number in range(20):
            await append_all(docket, decided(f"t{number:02d}"))
            await asyncio.gather(*(each.work() for each in senders))
        await asyncio.gather(*map(until_idle, senders))
        assert len(receiver.requests) == 20
        owner = (await docket.hooks.hooks())[0].owner
        alive = "xy".index(owner) ^ 1
        # The owner says nothing any more, and the other one sees it.
        await append_all(docket, decided("late"))
        assert not await senders[alive].work()
        for _ in range(40):
            await pulses[alive].beat()
        await until_idle(senders[alive])
        assert len(receiver.requests) == 21
        # The first wakes, and is no longer the one that sends.
        await append_all(docket, decided("later"))
        assert not await senders[alive ^ 1].work()
        for each in (first, second):
            await each.aclose()

    using(scene)
    ids = [taken.id for taken in receiver.requests]
    assert len(set(ids)) == len(ids)


def test_what_a_server_could_not_store_as_sent_is_sent_again_by_another(using, receiver, tmp_path):
    """Its lease is lost between sending and storing: at least once, under the same id, and nothing is passed over."""
    hook = hook_to(receiver.url, tmp_path, events=["memecourt.verdict.given"])

    async def scene(docket):
        await docket.hooks.register([hook.name])
        async with sending(docket, hook, name="x") as frozen, sending(docket, hook, name="y") as other:
            assert not await frozen.work()
            await append_all(docket, decided("a"))
            settle = docket.deliveries.settle

            async def late(before, after, *, gone, remaining):
                assert await docket.hooks.take(before, "y")
                return await settle(before, after, gone=gone, remaining=remaining)

            frozen._docket = replace(docket, deliveries=Late(docket.deliveries, late))
            await frozen.work()
            await until_idle(other)
            assert not await frozen.work()

    using(scene)
    assert len(receiver.requests) == 2 and len({taken.id for taken in receiver.requests}) == 1


class Late:
    def __init__(self, store, settle):
        self._store, self.settle = store, settle

    def __getattr__(self, name):
        return getattr(self._store, name)


def test_a_receiver_that_takes_nothing_has_the_rest_waiting_in_the_log(tmp_path, receiver, monkeypatch):
    monkeypatch.setattr(sender, "MOST_WAITING", 5)
    hook, clock = hook_to(receiver.url, tmp_path, events=["memecourt.verdict.given"]), Clock()
    receiver.answer = lambda _: (500, {})

    async def scene():
        docket = Docket.open(tmp_path / "docket.sqlite")
        await docket.hooks.register([hook.name])
        async with sending(docket, hook, clock=clock) as told:
            for number in range(30):
                await append_all(docket, decided(f"t{number:02d}"))
            await until_idle(told)
            waiting = (await docket.deliveries.backlog(hook.name)).waiting
            receiver.answer = lambda _: (200, {})
            clock.on(7)
            await until_idle(told)
            left = (await docket.deliveries.backlog(hook.name)).waiting
        await docket.close()
        return waiting, left

    waiting, left = asyncio.run(scene())
    assert 5 <= waiting < 5 + attempts.CONNECTIONS and left == 0
    taken = [each["data"]["verdict_id"] for each in receiver.told()[waiting:]]
    assert sorted(taken) == [f"t{number:02d}" for number in range(30)]


def test_sending_stops_when_it_is_told_to_and_goes_on_where_it_was(using, receiver, tmp_path, docket_place):
    hook = hook_to(receiver.url, tmp_path, events=["memecourt.verdict.given"])

    async def part(docket, expected):
        task = asyncio.create_task(send_webhooks(docket, [Receiver(hook)], telemetry=SILENT))
        try:
            await asyncio.to_thread(receiver.wait_for, expected)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        (row,) = await docket.hooks.hooks()
        assert row.owner == "" and await docket.heartbeats.heartbeats() == {}

    async def first(docket):
        await docket.hooks.register([hook.name])
        await append_all(docket, decided("a"))
        await part(docket, 1)
        await append_all(docket, decided("b"))

    using(first)
    using(lambda docket: part(docket, 2))
    assert [each["data"]["verdict_id"] for each in receiver.told()] == ["a", "b"]


def test_an_altered_entry_is_passed_over(tmp_path, receiver, caplog):
    hook = hook_to(receiver.url, tmp_path, events=["memecourt.verdict.given"])

    async def scene():
        docket = Docket.open(tmp_path / "docket.sqlite")
        await append_all(docket, decided("a"))
        (entry,) = await docket.log.entries(0, 1, {"VerdictGiven"})
        subjects = await docket.deliveries.subjects(["a"])
        await docket.close()
        return entry, subjects["a"]

    entry, subject = asyncio.run(scene())
    assert messages_of(entry, subject, hook, docket="d")
    for body in ("", "{}", json.dumps({"kind": "VerdictGiven"}), "[" * 5000):
        with pytest.raises(ValueError):
            messages_of(replace(entry, body=body), subject, hook, docket="d")
    assert not messages_of(replace(entry, body=None), subject, hook, docket="d")


def test_decisions_allow_nothing_that_a_person_should_look_at():
    assert decision(Label.NOT_HARMFUL, needs_review=False) == "allow"
    assert decision(Label.HARMFUL, needs_review=False) == "block"
    assert {decision(label, needs_review=True) for label in Label} == {"review"}
    assert decision(Label.UNDECIDED, needs_review=False) == "review"


def change_of(number, *, library="drawn", at=NOON):
    return PrecedentChanged(at=at, precedent_id=f"p{number}", change="add", library=library, number=number, trial_id="")


def test_changes_of_precedents_are_put_on_record_once_whoever_looks(using, receiver, tmp_path):
    """Two servers look at the same history; a library that takes another's place, or is built anew, is another one."""

    async def scene(docket):
        changes = [change_of(number) for number in range(1, 6)]
        note = docket.reviews.note_changes
        # What was there before somebody looked first is not told.
        assert await note(changes[:2], since=2) == 0
        assert sorted(await asyncio.gather(*(note(changes[:4], since=2) for _ in range(4)))) == [0, 0, 0, 2]
        # Another server, which was started when there were five, goes on from what is on record.
        assert await note(changes, since=5) == 1
        assert await note([change_of(number, library="other") for number in (1, 2)], since=1) == 1
        later = NOON + timedelta(days=1)
        assert await note([change_of(1, library="other", at=later)], since=1) == 1
        found = await docket.log.entries(0, 99, {"PrecedentChanged"})
        await checked_log(docket)
        return [json.loads(entry.body) for entry in found]

    noted = using(scene)
    assert [(each["library"], each["number"]) for each in noted] == [
        ("drawn", 3), ("drawn", 4), ("drawn", 5), ("other", 2), ("other", 1),
    ]  # fmt: skip

    async def audited(docket):
        return await docket.auditor.audit([VerifierKey.parse(await docket.log.vkey())])

    assert not using(audited).findings


def test_changes_of_precedents_are_told_to_who_is_not_limited_to_namespaces(using, receiver, tmp_path):
    everywhere = hook_to(receiver.url, tmp_path)
    limited = hook_to(receiver.url, tmp_path, name="limited", namespaces=["forum"])

    async def scene(docket):
        library = drawn_library(tmp_path / "library", 7, 12)
        finder, writer = LibraryFinder(library, ENCODER), LibraryWriter(library)
        writer.remove("drawn-1", who="Ruth", why="before anybody looked")
        finder.swap(writer.library)
        await docket.hooks.register([everywhere.name, limited.name])
        looked = asyncio.Event()

        class Reviews:
            async def note_changes(self, changes, *, since):
                added = await docket.reviews.note_changes(changes, since=since)
                looked.set()
                return added

        noting = asyncio.create_task(note_precedent_changes(Reviews(), finder, every_s=0.02))
        try:
            # What is changed before its first look is not told.
            await looked.wait()
            writer.remove("drawn-3", who="Ruth", why="a word of Blueland")
            finder.swap(writer.library)
            async with asyncio.timeout(120):
                while not await docket.log.entries(0, 1, {"PrecedentChanged"}):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)
            finder.close()
        for hook in (everywhere, limited):
            async with sending(docket, hook) as told:
                await until_idle(told)

    using(scene)
    (message,) = receiver.told()
    assert message["type"] == "memecourt.precedent.changed"
    data = message["data"]
    assert (data["precedent_id"], data["change"], data["library"], data["number"]) == ("drawn-3", "remove", "drawn", 2)
    assert b"Blueland" not in receiver.requests[0].body and b"Ruth" not in receiver.requests[0].body
