"""The cache of model calls: keys, shared calls in flight, cancellation, and damaged stores."""

import asyncio
import dataclasses
import sqlite3
from contextlib import closing

import pytest

from court.deadline import completed
from court.errors import Overrun, Unavailable
from court.meme import Frame
from court.ports import ChatReply, ChatRequest, FinishReason, Odds
from court.roles import GuardModel, RoleModel, RoleModels
from eval.models.call_cache import CachedModel, CallsError, HitCounter, SqliteCallCache, key_of, stored_models
from serving.docket.open import Docket
from tests.support.run import opened_calls, stored_calls

FRAME = Frame(b"a picture", 4, 3)
REQUEST = ChatRequest(
    system="You look.", parts=(FRAME, "What is there?"), reply_schema={"type": "object"}, max_tokens=9
)
SERVER = {"name": ["http://here"]}


def a_reply(text="a lighthouse", finish=FinishReason.STOP):
    return ChatReply(
        text, finish, "m", tokens_in=5, tokens_out=2, tokens_cached=1, latency_s=0.25, server="http://here"
    )


class Model:
    """Records its calls, and answers once ``released`` is set."""

    name = "m"

    def __init__(self, answer=a_reply):
        self.asked = []
        self.cancelled = 0
        self.released = asyncio.Event()
        self.released.set()
        self.begun = asyncio.Event()
        self._answer = answer

    async def reply(self, request, *, within_s):
        self.asked.append(request)
        self.begun.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        answer = self._answer()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def odds(self, request, options, *, within_s):
        self.asked.append((request, options))
        answer = self._answer()
        return None if answer is None else Odds((0.7, 0.2), answer)


@pytest.fixture
def calls(tmp_path):
    """Path of a store of calls that is not there yet."""
    return tmp_path / "c.sqlite"


def cached(model, store, **options):
    return CachedModel(model, store, SERVER, **options)


async def test_stored_replies_are_reused_even_after_reopening(calls):
    model, hits = Model(), HitCounter()
    for _ in range(2):
        async with opened_calls(calls) as store:
            cached_model = cached(model, store, hits=hits)
            for _ in range(2):
                assert await cached_model.reply(REQUEST, within_s=60) == a_reply()
                assert await cached_model.odds(REQUEST, ("A", "B"), within_s=60) == Odds((0.7, 0.2), a_reply())
    # After reopening, the store still has them, so no call is made.
    assert (len(model.asked), hits.count) == (2, 6)


CHANGED_REQUESTS = {
    "system": {"system": "You look away."},
    "text": {"parts": (FRAME, "What is not there?")},
    "picture": {"parts": (Frame(b"another", 4, 3), "What is there?")},
    "order": {"parts": ("What is there?", FRAME)},
    "schema": {"reply_schema": None},
    "tokens": {"max_tokens": 10},
    "temperature": {"temperature": 0.5},
    "thought": {"thought_tokens": 10},
    "loop": {"avoid_repetition": True},
}


@pytest.mark.parametrize("change", CHANGED_REQUESTS.values(), ids=CHANGED_REQUESTS)
def test_any_change_of_a_request_changes_its_key(change):
    assert key_of("m", SERVER, dataclasses.replace(REQUEST, **change)) != key_of("m", SERVER, REQUEST)


def test_key_depends_on_model_server_options_and_seed_of_random_replies():
    drawn = dataclasses.replace(REQUEST, temperature=0.5)
    keys = {
        key_of("m", SERVER, REQUEST),
        key_of("n", SERVER, REQUEST),
        key_of("m", {"name": ["http://there"]}, REQUEST),
        key_of("m", SERVER, REQUEST, options=("A", "B")),
        key_of("m", SERVER, REQUEST, options=("B", "A")),
        key_of("m", SERVER, drawn, seed=0),
        key_of("m", SERVER, drawn, seed=1),
    }
    assert len(keys) == 7
    assert key_of("m", SERVER, REQUEST, seed=1) == key_of("m", SERVER, REQUEST, seed=0)
    # The priority does not matter.
    assert key_of("m", SERVER, dataclasses.replace(REQUEST, priority=-3)) == key_of("m", SERVER, REQUEST)
    same = dataclasses.replace(REQUEST, parts=(dataclasses.replace(FRAME, index=7), "What is there?"))
    assert key_of("m", SERVER, same) == key_of("m", SERVER, REQUEST)


async def test_errors_are_not_stored_but_truncated_replies_are(calls):
    answers = iter([Unavailable("gone"), a_reply("half a", FinishReason.LENGTH)])
    model = Model(lambda: next(answers))
    async with opened_calls(calls) as store:
        with pytest.raises(Unavailable, match="gone"):
            await cached(model, store).reply(REQUEST, within_s=60)
        assert stored_calls(calls) == 0
        cut = [await cached(model, store).reply(REQUEST, within_s=60) for _ in range(2)]
        assert stored_calls(calls) == 1
    assert [reply.finish for reply in cut] == [FinishReason.LENGTH] * 2 and len(model.asked) == 2


async def test_missing_odds_are_not_stored(calls):
    async with opened_calls(calls) as store:
        model = Model(lambda: None)
        assert await cached(model, store).odds(REQUEST, ("A", "B"), within_s=60) is None
        # An answer without probabilities only reports its cost.
        silent = Odds((), a_reply())
        model.odds = lambda request, options, *, within_s: completed(silent)
        assert await cached(model, store).odds(REQUEST, ("A", "B"), within_s=60) == silent
    assert stored_calls(calls) == 0


@pytest.fixture
def busy():
    """A model that answers once it is released."""
    model = Model()
    model.released.clear()
    return model


async def test_equal_concurrent_calls_share_one_model_call(calls, busy):
    hits = HitCounter()
    async with opened_calls(calls) as store:
        cached_model = cached(busy, store, hits=hits)
        waiting = [asyncio.create_task(cached_model.reply(REQUEST, within_s=60)) for _ in range(5)]
        await busy.begun.wait()
        busy.released.set()
        assert await asyncio.gather(*waiting) == [a_reply()] * 5
    assert (len(busy.asked), hits.count) == (1, 4)


async def test_cancelling_the_first_caller_does_not_cancel_the_others(calls, busy):
    async with opened_calls(calls) as store:
        first = asyncio.create_task(cached(busy, store).reply(REQUEST, within_s=60))
        await busy.begun.wait()
        second = asyncio.create_task(cached(busy, store).reply(REQUEST, within_s=60))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        busy.released.set()
        assert first.cancelled() and await second == a_reply()
    assert (len(busy.asked), busy.cancelled) == (1, 0)


async def test_call_without_callers_is_cancelled_and_can_be_repeated(calls, busy):
    async with opened_calls(calls) as store:
        waiting = [asyncio.create_task(cached(busy, store).reply(REQUEST, within_s=60)) for _ in range(2)]
        await busy.begun.wait()
        for task in waiting:
            task.cancel()
        # At once, while the earlier call is still being cancelled.
        again = asyncio.create_task(cached(busy, store).reply(REQUEST, within_s=60))
        await asyncio.wait(waiting)
        ended = busy.cancelled
        busy.released.set()
        assert await again == a_reply()
    # The earlier call was cancelled or joined by the new one, never left running.
    assert ended in (0, 1) and len(busy.asked) == 1 + ended and stored_calls(calls) == 1


async def test_cancelling_a_lone_call_cancels_it_at_the_model(calls, busy):
    async with opened_calls(calls) as store:
        task = asyncio.create_task(cached(busy, store).reply(REQUEST, within_s=60))
        await busy.begun.wait()
        task.cancel()
        await asyncio.wait([task])
    assert (busy.cancelled, stored_calls(calls)) == (1, 0)


async def test_caller_with_a_shorter_deadline_times_out_alone(calls, busy):
    async with opened_calls(calls) as store:
        patient = asyncio.create_task(cached(busy, store).reply(REQUEST, within_s=60))
        await busy.begun.wait()
        with pytest.raises(Overrun):
            await cached(busy, store).reply(REQUEST, within_s=0.01)
        busy.released.set()
        assert await patient == a_reply() and len(busy.asked) == 1


async def test_caller_with_a_longer_deadline_retries_after_a_shared_timeout(calls, busy):
    async with opened_calls(calls) as store:
        hasty = asyncio.create_task(cached(busy, store).reply(REQUEST, within_s=0.05))
        await busy.begun.wait()
        busy._answer = lambda: Overrun("late") if len(busy.asked) == 1 else a_reply()
        patient = asyncio.create_task(cached(busy, store).reply(REQUEST, within_s=60))
        await asyncio.sleep(0)
        busy.released.set()
        with pytest.raises(Overrun):
            await hasty
        assert await patient == a_reply() and len(busy.asked) == 2


async def test_fence_marks_are_stable_in_a_store_and_differ_between_stores(tmp_path):
    marks = []
    for name in ("one", "one", "two"):
        async with opened_calls(tmp_path / name) as store:
            names = (("meme", "digest"), ("meme", "other"), ("other", "digest"))
            marks.append([store.fence_mark(*each) for each in names])
    first, again, other_store = marks
    assert first == again
    assert len({*first, *other_store}) == 6
    assert all(len(mark) == 16 and int(mark, 16) >= 0 for mark in first)


class Replicas(Model):
    urls = ("http://b", "http://a")

    def pinned(self, key):
        self.key = key
        return self

    def room(self):
        return False


async def test_roles_sharing_servers_still_share_them_through_the_cache(calls):
    shared, own, hits = Replicas(), Model(), HitCounter()
    role_model, other = RoleModel(shared, servers=shared), RoleModel(own, temperature=0.5)
    async with opened_calls(calls) as store:
        role_models = stored_models(RoleModels(role_model, role_model, other, role_model), store, seed=3, hits=hits)
        pinned = role_models.pinned("a key")
        for role in (pinned.proposer, pinned.judge, pinned.defender):
            await role.model.reply(REQUEST, within_s=60)
    assert shared.key == "a key" and not role_models.room()
    # Judges and guard are called only after the speculative rounds, so their servers don't count for room().
    later = RoleModels(
        other, other, other, role_model, judges=(role_model,), guard=GuardModel(role_model, "shieldgemma")
    )
    assert later.room()
    assert not dataclasses.replace(later, expert=role_model).room()
    assert role_models.settings(1200) == RoleModels(role_model, role_model, other, role_model).settings(1200)
    assert role_models.servers == {"PROPOSER": shared.urls, "ACCUSER": shared.urls, "JUDGE": shared.urls}
    assert pinned.proposer.model is pinned.judge.model
    assert (len(shared.asked), len(own.asked), hits.count) == (1, 1, 1)


async def test_named_server_may_change_its_address(calls):
    counts = []
    async with opened_calls(calls) as store:
        for url in ("http://a", "http://b"):
            model = Replicas()
            model.urls = (url,)
            role_model = RoleModel(model, servers=model)
            role_models = stored_models(
                RoleModels(role_model, role_model, role_model, role_model), store, server="ours", hits=HitCounter()
            )
            await role_models.judge.model.reply(REQUEST, within_s=60)
            counts.append(len(model.asked))
    assert counts == [1, 0]


async def one_reply(calls):
    async with opened_calls(calls) as store:
        await cached(Model(), store).reply(REQUEST, within_s=60)


def change(calls, statement):
    with closing(sqlite3.connect(calls)) as file, file:
        file.execute(statement)


async def test_altered_entries_are_refused(calls):
    await one_reply(calls)
    change(calls, "UPDATE calls SET body = replace(body, 'lighthouse', 'light house')")
    with pytest.raises(CallsError, match="damaged"):
        await one_reply(calls)


async def test_damaged_or_foreign_files_are_refused(calls, tmp_path):
    calls.write_bytes(b"no database at all, but long enough to be looked at " * 40)
    with pytest.raises(CallsError, match="damaged, locked, or something else"):
        SqliteCallCache(calls)
    await Docket.open(tmp_path / "docket.sqlite").close()
    with pytest.raises(CallsError, match="no store of calls"):
        SqliteCallCache(tmp_path / "docket.sqlite")


async def test_store_of_a_later_format_is_refused(calls):
    await one_reply(calls)
    change(calls, "PRAGMA user_version = 99")
    with pytest.raises(CallsError, match="has format 99"):
        await one_reply(calls)


async def test_unwritable_store_fails_the_call(calls):
    async with opened_calls(calls) as store:
        change(calls, "DROP TABLE calls")
        with pytest.raises(CallsError, match="can't be read or written"):
            await cached(Model(), store).reply(REQUEST, within_s=60)
