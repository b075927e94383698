"""Webhooks: messages about the docket's log, sent to receivers over real sockets, for SQLite and PostgreSQL."""

import asyncio
import itertools
import json
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version

import pytest
from standardwebhooks import Webhook

from court.events import Look
from court.verdict import Label
from retrieval.library.writer import LibraryWriter
from retrieval.precedents.finder import LibraryFinder
from serving.docket.log.entries import PrecedentChanged
from serving.docket.open import Docket
from serving.docket.store.log_append import KeyFile, make_key, next_key, read_key, settle_keys
from serving.docket.store.reviews import UNDO
from serving.judging.heartbeat import Heartbeat
from serving.telemetry import SILENT
from serving.webhooks import attempts, sender
from serving.webhooks.attempts import AFTER_S, ATTEMPTS, Receiver
from serving.webhooks.messages import messages_of
from serving.webhooks.sender import HookSender, note_precedent_changes, send_webhooks
from tests.support.desks import Clock, opened_desk
from tests.support.dockets import NOON, append_all, audited, parse_place, review_trial
from tests.support.libraries import ENCODER, drawn_library
from tests.support.logs import checked_log
from tests.support.playing import until
from tests.support.receivers import HEADERS, backlog_of, decided, failed, hook_settings, hooks_of, sending, until_idle
from tests.support.receivers import receiver as receiver


async def test_senders_of_a_server_share_their_queries(opening, receiver, tmp_path):
    hooks = [hook_settings(receiver.url, tmp_path, name=f"hook-{number}") for number in range(5)]

    # Shared: one query each 0.45 s, 2.2 a second. Each of the five by itself would query each 0.5 s: 10 a second.
    async with opening() as docket:
        queries = []
        states = docket.deliveries.states

        async def counted():
            queries.append(1)
            return await states()

        docket.deliveries.states = counted
        sending_task = asyncio.create_task(
            send_webhooks(docket, [Receiver(hook) for hook in hooks], metrics=SILENT.metrics)
        )
        try:

            async def all_owned():
                return [hook for hook in await hooks_of(docket) if hook.owner][4:]

            await until(all_owned)
            await asyncio.sleep(1)
            queries.clear()
            begun = asyncio.get_running_loop().time()
            await asyncio.sleep(4 * sender.POLL_S)
            while not queries:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            idle = len(queries) / (asyncio.get_running_loop().time() - begun)
            await append_all(docket, decided("a"))
            await asyncio.to_thread(receiver.wait_for, 5)
        finally:
            sending_task.cancel()
            await asyncio.gather(sending_task, return_exceptions=True)
        assert idle < 5
    assert {delivery.message["data"]["verdict_id"] for delivery in receiver.requests} == {"a"}


async def test_an_appeal_is_sent_and_a_key_rotation_changes_no_message_id(docket_place, receiver, tmp_path):
    hook, key = hook_settings(receiver.url, tmp_path), tmp_path / "docket.key"

    docket = Docket.open(parse_place(docket_place), key=key)
    try:
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
    # Several messages are sent at once, in no guaranteed order.
    (appeal,) = [each.message for each in receiver.requests if each.message["data"].get("appeal")]
    assert appeal["type"] == "memecourt.review.wanted" and "Blueland" not in str(appeal)
    expected = {"decision": "block", "needs_human_review": True, "second_opinion": False, "appeal": {"reference": "7"}}
    assert {name: appeal["data"][name] for name in expected} == expected and appeal["data"]["in_force"]["contested"]
    ids = {}
    for delivery in receiver.requests:
        if delivery.message["type"] == "memecourt.verdict.given":
            ids.setdefault(delivery.message["data"]["verdict_id"], []).append(delivery.id)
    assert ids.keys() == {"a", "b"} and len(ids["a"]) == 2 and len(set(ids["a"])) == 1


async def test_each_kind_of_event_is_sent_once_without_content_of_the_meme(opening, receiver, tmp_path):
    hook = hook_settings(receiver.url, tmp_path)
    async with opening() as docket:
        await append_all(docket, decided("before"))
        async with sending(docket, hook) as hook_sender:
            await append_all(docket, decided("a"))
            await append_all(docket, decided("b", review=True))
            await append_all(docket, failed("c"))
            await review_trial(docket, "b")
            await docket.eraser.erase("a", who="Ruth", why="a word of Blueland", at=NOON)
            await until_idle(hook_sender)
            await until_idle(hook_sender)
    messages = receiver.messages()
    # "a" was erased before any message about it was sent, so only the erasure is reported.
    assert sorted((each["type"], each["data"]["verdict_id"]) for each in messages) == [
        ("memecourt.record.erased", "a"),
        ("memecourt.review.decided", "b"),
        ("memecourt.review.wanted", "b"),
        ("memecourt.trial.failed", "c"),
        ("memecourt.verdict.given", "b"),
    ]
    by_type = {each["type"].removeprefix("memecourt."): each["data"] for each in messages}
    identity = {"verdict_id": "b", "content": {"namespace": "forum", "id": "content-b"}, "request_id": "request-b"}
    wanted = by_type["review.wanted"]
    assert {name: wanted[name] for name in identity} == identity
    # As it stands when the message is sent: somebody has reviewed the verdict by then.
    assert (wanted["decision"], wanted["needs_human_review"]) == ("allow", True)
    assert wanted["review_reasons"] == ["REVIEW_REASON_TEXT_UNSURE"]
    decided_by = by_type["review.decided"]
    assert decided_by["review"] == {"outcome": "REVIEW_OUTCOME_OVERRULED", "blind": False}
    assert (decided_by["label"], decided_by["decision"]) == ("LABEL_NOT_HARMFUL", "allow")
    assert decided_by["changes"] == f"/v1/reviews/{decided_by['entry']}/changes"
    assert by_type["trial.failed"]["failure"] == {"step": "text", "reason": "GONE", "retryable": True}
    assert by_type["trial.failed"]["decision"] == "review"  # a failure is never "not harmful"
    erased = by_type["record.erased"]
    assert erased == {"entry": erased["entry"], "verdict_id": "a", "content": {"namespace": "forum"}}
    bodies = b"".join(delivery.body for delivery in receiver.requests).decode()
    for events in (decided("a"), decided("b", review=True)):
        verdict, opened = events[-1].verdict, events[0]
        secrets = [verdict.rationale, opened.meme.pixels_sha256, opened.meme.bytes_sha256, "Blueland", "Ruth", "satire"]
        secrets += [event.text for event in events if event.kind == "TextRead"]
        assert not [secret for secret in secrets if secret and secret in bodies]
    assert all(len(delivery.body) < 20_000 for delivery in receiver.requests)
    assert len({delivery.id for delivery in receiver.requests}) == len(messages)


async def test_a_receiver_can_verify_its_messages(opening, receiver, tmp_path):
    hook = hook_settings(receiver.url, tmp_path)
    verifier = Webhook(hook.secret_file.read_text().strip())
    async with opening() as docket, sending(docket, hook) as hook_sender:
        await append_all(docket, decided("a"))
        await until_idle(hook_sender)
    (delivery,) = receiver.requests
    headers = {name: delivery.headers[name] for name in HEADERS}
    assert delivery.headers["user-agent"] == f"memecourt/{version('memecourt')}"
    assert verifier.verify(delivery.body, headers)["data"]["verdict_id"] == "a"
    with pytest.raises(Exception, match="No matching signature"):
        verifier.verify(delivery.body + b" ", headers)
    assert "." not in delivery.id


async def test_receivers_get_only_their_types_and_namespaces(opening, receiver, tmp_path):
    hook = hook_settings(receiver.url, tmp_path, events=["memecourt.verdict.given"], namespaces=["forum"])
    async with opening() as docket, sending(docket, hook) as hook_sender:
        await append_all(docket, decided("a", review=True))
        await append_all(docket, decided("b", namespace="shop"))
        await append_all(docket, failed("c"))
        await until_idle(hook_sender)
    assert [(each["type"], each["data"]["verdict_id"]) for each in receiver.messages()] == [
        ("memecourt.verdict.given", "a")
    ]


async def test_a_rejected_message_is_retried_for_three_days_and_delays_no_other(opening, receiver, tmp_path):
    hook, clock = hook_settings(receiver.url, tmp_path, events=["memecourt.verdict.given"]), Clock()
    receiver.answer = lambda delivery: (500 if delivery.message["data"]["verdict_id"] == "bad" else 200, {})
    async with opening() as docket, sending(docket, hook, clock=clock) as hook_sender:
        await append_all(docket, decided("bad"))
        await append_all(docket, decided("good"))
        await until_idle(hook_sender)
        assert len(receiver.requests) == 2
        waits = []
        for after in AFTER_S:
            clock.turn(seconds=after * 0.99)
            await until_idle(hook_sender)
            before = len(receiver.requests)
            clock.turn(seconds=after * 0.22)
            await until_idle(hook_sender)
            waits.append(len(receiver.requests) - before)
        assert waits == [1] * len(AFTER_S)
        clock.turn(seconds=10 * 24 * 3600)
        await until_idle(hook_sender)
        backlog = await backlog_of(docket, hook.name)
        (row,) = await hooks_of(docket)
    tries = [delivery for delivery in receiver.requests if delivery.message["data"]["verdict_id"] == "bad"]
    assert len(tries) == ATTEMPTS == 10
    assert len({delivery.id for delivery in tries}) == 1, "all attempts have the message's id"
    assert len({delivery.headers["webhook-timestamp"] for delivery in tries}) == 10
    assert 3 * 24 * 3600 < sum(AFTER_S) < 3.5 * 24 * 3600
    assert (backlog.waiting, backlog.given_up) == (0, 1)
    # It accepted one message at the start and none for three days, so it is disabled.
    assert row.disabled_at is not None and "three days" in row.why and "status 500" in row.why


async def test_a_receiver_is_not_disabled_for_a_single_rejected_message(opening, receiver, tmp_path):
    hook, clock = hook_settings(receiver.url, tmp_path, events=["memecourt.verdict.given"]), Clock()
    receiver.answer = lambda delivery: (500 if delivery.message["data"]["verdict_id"] == "bad" else 200, {})
    async with opening() as docket, sending(docket, hook, clock=clock) as hook_sender:
        await append_all(docket, decided("bad"))
        for number, after in enumerate((0, *AFTER_S)):
            clock.turn(seconds=1.21 * after)
            await append_all(docket, decided(f"good-{number}"))
            await until_idle(hook_sender)
        backlog, row = await backlog_of(docket, hook.name), (await hooks_of(docket))[0]
    assert (backlog.waiting, backlog.given_up) == (0, 1) and row.disabled_at is None


async def test_status_410_disables_a_receiver_until_it_is_enabled_again(opening, receiver, tmp_path):
    hook, clock = hook_settings(receiver.url, tmp_path, events=["memecourt.verdict.given"]), Clock()
    receiver.answer = lambda _: (410, {})
    async with opening() as docket, sending(docket, hook, clock=clock) as hook_sender:
        await append_all(docket, decided("a"))
        await until_idle(hook_sender)
        (row,) = await hooks_of(docket)
        assert row.disabled_at == NOON and "410" in row.why
        await append_all(docket, decided("b"))
        clock.turn(seconds=9 * 3600)
        await until_idle(hook_sender)
        assert len(receiver.requests) == 1
        receiver.answer = lambda _: (200, {})
        assert await docket.hooks.enable(hook.name)
        await until_idle(hook_sender)
    # Both are sent at once, in no guaranteed order.
    assert sorted(each["data"]["verdict_id"] for each in receiver.messages()[1:]) == ["a", "b"]


@pytest.mark.parametrize(
    ("status", "headers", "pause"),
    [(429, {"Retry-After": "120"}, 120), (502, {}, 30), (504, {}, 30), (503, {"Retry-After": "50"}, 50), (503, {}, 0)],
)
async def test_an_overloaded_receiver_gets_a_pause(tmp_path, receiver, status, headers, pause):
    hook, clock = hook_settings(receiver.url, tmp_path, events=["memecourt.verdict.given"]), Clock()
    receiver.answer = lambda _: (status, headers)

    docket = Docket.open(tmp_path / "docket.sqlite")
    async with sending(docket, hook, clock=clock) as hook_sender:
        await append_all(docket, decided("a"))
        await until_idle(hook_sender)
        await append_all(docket, decided("b"))
        clock.turn(seconds=max(pause - 1, 7))
        await until_idle(hook_sender)
        before = len(receiver.requests)
        receiver.answer = lambda _: (200, {})
        clock.turn(seconds=2)
        await until_idle(hook_sender)
    await docket.close()
    assert before == (1 if pause else 3)
    assert {each["data"]["verdict_id"] for each in receiver.messages()} == {"a", "b"}


async def test_a_replay_sends_messages_again_under_the_same_ids(opening, receiver, tmp_path):
    hook = hook_settings(receiver.url, tmp_path, events=["memecourt.verdict.given"])
    async with opening() as docket:
        await append_all(docket, decided("old"))
        async with sending(docket, hook) as hook_sender:
            await append_all(docket, decided("a"))
            await until_idle(hook_sender)
            assert await docket.hooks.replay(hook.name, 0)
            assert not await docket.hooks.replay("nobody", 0)
            await until_idle(hook_sender)
    first, *again = receiver.requests
    # Replayed messages are sent at once, in no guaranteed order.
    identities = {delivery.message["data"]["verdict_id"]: delivery.id for delivery in again}
    assert len(again) == 2 and set(identities) == {"a", "old"} and identities["a"] == first.id


async def test_messages_about_a_trial_erased_meanwhile_are_not_sent(opening, receiver, tmp_path):
    hook, clock = hook_settings(receiver.url, tmp_path), Clock()
    receiver.answer = lambda _: (500, {})
    async with opening() as docket, sending(docket, hook, clock=clock) as hook_sender:
        await append_all(docket, decided("a"))
        await until_idle(hook_sender)
        await docket.eraser.erase("a", who="Ruth", why="asked", at=NOON)
        receiver.answer = lambda _: (200, {})
        clock.turn(seconds=3600)
        await until_idle(hook_sender)
        assert (await backlog_of(docket, hook.name)).waiting == 0
    assert [each["type"] for each in receiver.messages()] == ["memecourt.verdict.given", "memecourt.record.erased"]


async def test_a_review_from_the_console_is_sent_after_its_minute_and_never_if_undone(docket_place, receiver, tmp_path):
    hook, clock = hook_settings(receiver.url, tmp_path), Clock()
    async with opened_desk(parse_place(docket_place)) as it:
        async with sending(it.docket, hook, clock=clock) as hook_sender:
            reviews = {}
            for trial_id in ("undone", "stands", "elsewhere"):
                await append_all(it.docket, decided(trial_id))
                await it.desk.take(trial_id, "ada", reopen=True)
                look = Look.UNKNOWN if trial_id == "elsewhere" else Look.SHOWN
                fields = {"label": Label.HARMFUL, "clause": "1", "reason": "I looked.", "look": look}
                (reviews[trial_id],) = await it.desk.review(trial_id, "ada", **fields)
            await until_idle(hook_sender)
            first = reviews_sent(receiver)
            await append_all(it.docket, decided("later"))
            await it.desk.withdraw("undone", "ada", reviews["undone"].seq)
            clock.turn(seconds=UNDO.total_seconds())
            await until_idle(hook_sender)
            second, waiting = reviews_sent(receiver), await backlog_of(it.docket, hook.name)
            clock.turn(seconds=6)
            # By another server, since the one that put them aside may have died.
        async with sending(it.docket, hook, clock=clock, name="s1") as other:
            await until_idle(other)
            waiting = waiting.waiting
            third = reviews_sent(receiver)
            backlog = await backlog_of(it.docket, hook.name)
    assert first == ["elsewhere"] and second == first and waiting == 2
    assert third == ["elsewhere", "stands"] and (backlog.waiting, backlog.given_up) == (0, 0)
    # Nothing else waits for them.
    assert [one["data"]["verdict_id"] for one in receiver.messages()][-2:] == ["later", "stands"]


def reviews_sent(receiver):
    return [one["data"]["verdict_id"] for one in receiver.messages() if one["type"] == "memecourt.review.decided"]


async def test_two_servers_send_each_message_once_and_one_replaces_a_dead_one(opening, receiver, tmp_path):
    hook = hook_settings(receiver.url, tmp_path, events=["memecourt.verdict.given"])
    ticks = itertools.count()
    async with opening() as docket:
        await docket.hooks.register([hook.name])
        pulses = [
            Heartbeat(docket.heartbeats, name, beat_s=1, dead_s=15, clock=lambda: float(next(ticks))) for name in "xy"
        ]
        first, second = (Receiver(hook), Receiver(hook))
        senders = [
            HookSender(each, docket, heartbeat, metrics=SILENT.metrics)
            for each, heartbeat in zip((first, second), pulses, strict=True)
        ]
        for heartbeat in pulses:
            await heartbeat.beat()
        for number in range(20):
            await append_all(docket, decided(f"t{number:02d}"))
            await asyncio.gather(*(each.work() for each in senders))
        await asyncio.gather(*map(until_idle, senders))
        assert len(receiver.requests) == 20
        owner = (await hooks_of(docket))[0].owner
        alive = "xy".index(owner) ^ 1
        # The owner's heartbeat stops, and the other server notices.
        await append_all(docket, decided("late"))
        assert not await senders[alive].work()
        for _ in range(40):
            await pulses[alive].beat()
        await until_idle(senders[alive])
        assert len(receiver.requests) == 21
        # The former owner resumes, but no longer owns the hook.
        await append_all(docket, decided("later"))
        assert not await senders[alive ^ 1].work()
        for each in (first, second):
            await each.aclose()
    ids = [delivery.id for delivery in receiver.requests]
    assert len(set(ids)) == len(ids)


async def test_a_message_not_stored_as_sent_is_sent_again_by_another_server(opening, receiver, tmp_path):
    """The lease is lost between sending and storing: delivery is at least once, under the same id, without gaps."""
    hook = hook_settings(receiver.url, tmp_path, events=["memecourt.verdict.given"])
    async with opening() as docket, sending(docket, hook, name="x") as frozen, sending(docket, hook, name="y") as other:
        assert not await frozen.work()
        await append_all(docket, decided("a"))
        settle = docket.deliveries.settle

        async def late(before, after, *, gone, remaining):
            assert await docket.hooks.take(before, "y")
            return await settle(before, after, gone=gone, remaining=remaining)

        frozen._docket = replace(docket, deliveries=StoreWithSettle(docket.deliveries, late))
        await frozen.work()
        await until_idle(other)
        assert not await frozen.work()
    assert len(receiver.requests) == 2 and len({delivery.id for delivery in receiver.requests}) == 1


class StoreWithSettle:
    def __init__(self, store, settle):
        self._store, self.settle = store, settle

    def __getattr__(self, name):
        return getattr(self._store, name)


async def test_waiting_messages_are_limited_and_the_others_stay_in_the_log(tmp_path, receiver, monkeypatch):
    monkeypatch.setattr(sender, "MOST_WAITING", 5)
    hook, clock = hook_settings(receiver.url, tmp_path, events=["memecourt.verdict.given"]), Clock()
    receiver.answer = lambda _: (500, {})

    docket = Docket.open(tmp_path / "docket.sqlite")
    async with sending(docket, hook, clock=clock) as hook_sender:
        for number in range(30):
            await append_all(docket, decided(f"t{number:02d}"))
        await until_idle(hook_sender)
        waiting = (await backlog_of(docket, hook.name)).waiting
        receiver.answer = lambda _: (200, {})
        left = waiting
        # More than once, because attempts may time out on a busy machine, and are then retried later.
        for seconds in (7, 3600, 3600, 7200):
            clock.turn(seconds=seconds)
            await until_idle(hook_sender)
            if not (left := (await backlog_of(docket, hook.name)).waiting):
                break
    await docket.close()
    assert 5 <= waiting < 5 + attempts.CONNECTIONS and left == 0
    received = [each["data"]["verdict_id"] for each in receiver.messages()[waiting:]]
    assert sorted(received) == [f"t{number:02d}" for number in range(30)]


def test_sending_stops_on_request_and_resumes_where_it_was(using, receiver, tmp_path, docket_place):
    hook = hook_settings(receiver.url, tmp_path, events=["memecourt.verdict.given"])

    async def part(docket, expected):
        task = asyncio.create_task(send_webhooks(docket, [Receiver(hook)], metrics=SILENT.metrics))
        try:
            await asyncio.to_thread(receiver.wait_for, expected)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        (row,) = await hooks_of(docket)
        assert row.owner == "" and await docket.heartbeats.heartbeats() == {}

    async def first(docket):
        await docket.hooks.register([hook.name])
        await append_all(docket, decided("a"))
        await part(docket, 1)
        await append_all(docket, decided("b"))

    using(first)
    using(lambda docket: part(docket, 2))
    assert [each["data"]["verdict_id"] for each in receiver.messages()] == ["a", "b"]


async def test_altered_log_entries_are_skipped(tmp_path, receiver, caplog):
    hook = hook_settings(receiver.url, tmp_path, events=["memecourt.verdict.given"])

    docket = Docket.open(tmp_path / "docket.sqlite")
    await append_all(docket, decided("a"))
    (entry,) = await docket.log.entries(0, 1, {"VerdictGiven"})
    subjects = await docket.deliveries.subjects(["a"])
    await docket.close()
    subject = subjects["a"]
    assert messages_of(entry, subject, hook, docket="d")
    for body in ("", "{}", json.dumps({"kind": "VerdictGiven"}), "[" * 5000):
        with pytest.raises(ValueError):
            messages_of(replace(entry, body=body), subject, hook, docket="d")
    assert not messages_of(replace(entry, body=None), subject, hook, docket="d")


def change_of(number, *, library="drawn", at=NOON):
    return PrecedentChanged(at=at, precedent_id=f"p{number}", change="add", library=library, number=number, trial_id="")


async def test_changes_of_precedents_are_recorded_once_by_several_servers(opening, receiver, tmp_path):
    """Two servers read the same history; a library that replaces another or is rebuilt has a history of its own."""
    async with opening() as docket:
        changes = [change_of(number) for number in range(1, 6)]
        note = docket.reviews.record_changes
        # Changes made before the first read are not recorded.
        assert await note(changes[:2], since=2) == 0
        assert sorted(await asyncio.gather(*(note(changes[:4], since=2) for _ in range(4)))) == [0, 0, 0, 2]
        # Another server, started when there were five changes, continues from the recorded ones.
        assert await note(changes, since=5) == 1
        assert await note([change_of(number, library="other") for number in (1, 2)], since=1) == 1
        later = NOON + timedelta(days=1)
        assert await note([change_of(1, library="other", at=later)], since=1) == 1
        found = await docket.log.entries(0, 99, {"PrecedentChanged"})
        await checked_log(docket)
        recorded = [json.loads(entry.body) for entry in found]
    assert [(each["library"], each["number"]) for each in recorded] == [
        ("drawn", 3), ("drawn", 4), ("drawn", 5), ("other", 2), ("other", 1),
    ]  # fmt: skip
    async with opening() as docket:
        assert not (await audited(docket)).findings


async def test_changes_of_precedents_are_sent_only_to_hooks_of_all_namespaces(opening, receiver, tmp_path):
    everywhere = hook_settings(receiver.url, tmp_path)
    limited = hook_settings(receiver.url, tmp_path, name="limited", namespaces=["forum"])
    async with opening() as docket:
        library = drawn_library(tmp_path / "library", 7, 12)
        finder, writer = LibraryFinder(library, ENCODER), LibraryWriter(library)
        writer.remove("drawn-1", who="Ruth", why="before anybody looked")
        finder.swap(writer.library)
        await docket.hooks.register([everywhere.name, limited.name])
        first_read = asyncio.Event()

        class Reviews:
            async def record_changes(self, changes, *, since):
                added = await docket.reviews.record_changes(changes, since=since)
                first_read.set()
                return added

        noting = asyncio.create_task(note_precedent_changes(Reviews(), finder, every_s=0.02))
        try:
            # Changes made before its first read are not sent.
            await first_read.wait()
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
            async with sending(docket, hook) as hook_sender:
                await until_idle(hook_sender)
    (message,) = receiver.messages()
    assert message["type"] == "memecourt.precedent.changed"
    data = message["data"]
    assert (data["precedent_id"], data["change"], data["library"], data["number"]) == ("drawn-3", "remove", "drawn", 2)
    assert b"Blueland" not in receiver.requests[0].body and b"Ruth" not in receiver.requests[0].body
