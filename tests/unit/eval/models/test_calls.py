"""The cache of model calls: keys, shared calls in flight, cancellation, and damaged stores."""

import asyncio
import dataclasses
import sqlite3

import pytest

from court.deadline import completed
from court.errors import Overrun, Unavailable
from court.meme import Frame
from court.ports import ChatReply, ChatRequest, FinishReason, Odds
from court.roles import GuardModel, RoleModel, RoleModels
from eval.models.call_cache import CachedModel, CallsError, HitCounter, SqliteCallCache, key_of, stored_models
from serving.docket.open import Docket

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


def with_store(path, scenario):
    async def run():
        store = SqliteCallCache.open(path)
        try:
            return await scenario(store)
        finally:
            await store.close()

    return asyncio.run(run())


def cached(model, store, **options):
    return CachedModel(model, store, SERVER, **options)


def test_stored_replies_are_reused_even_after_reopening(tmp_path):
    path = tmp_path / "calls.sqlite"

    async def twice(store):
        model, hits = Model(), HitCounter()
        cached_model = cached(model, store, hits=hits)
        replies = [await cached_model.reply(REQUEST, within_s=60) for _ in range(2)]
        odds = [await cached_model.odds(REQUEST, ("A", "B"), within_s=60) for _ in range(2)]
        return replies, odds, len(model.asked), hits.count

    replies, odds, model_calls, hits = with_store(path, twice)
    assert (replies, model_calls, hits) == ([a_reply()] * 2, 2, 2)
    assert odds == [Odds((0.7, 0.2), a_reply())] * 2
    # After reopening, the store still has them, so no call is made.
    replies, odds, model_calls, hits = with_store(path, twice)
    assert (replies, odds[0].masses, model_calls, hits) == ([a_reply()] * 2, (0.7, 0.2), 0, 4)


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


def test_errors_are_not_stored_but_truncated_replies_are(tmp_path):
    answers = iter([Unavailable("gone"), a_reply("half a", FinishReason.LENGTH)])

    async def scenario(store):
        model = Model(lambda: next(answers))
        with pytest.raises(Unavailable, match="gone"):
            await cached(model, store).reply(REQUEST, within_s=60)
        assert await store.count() == 0
        cut = [await cached(model, store).reply(REQUEST, within_s=60) for _ in range(2)]
        assert await store.count() == 1
        return cut, len(model.asked)

    cut, model_calls = with_store(tmp_path / "c.sqlite", scenario)
    assert [reply.finish for reply in cut] == [FinishReason.LENGTH] * 2
    assert model_calls == 2


def test_missing_odds_are_not_stored(tmp_path):
    async def scenario(store):
        model = Model(lambda: None)
        assert await cached(model, store).odds(REQUEST, ("A", "B"), within_s=60) is None
        # An answer without probabilities only reports its cost.
        silent = Odds((), a_reply())
        model.odds = lambda request, options, *, within_s: completed(silent)
        assert await cached(model, store).odds(REQUEST, ("A", "B"), within_s=60) == silent
        return await store.count()

    assert with_store(tmp_path / "c.sqlite", scenario) == 0


def test_equal_concurrent_calls_share_one_model_call(tmp_path):
    async def scenario(store):
        model, hits = Model(), HitCounter()
        model.released.clear()
        cached_model = cached(model, store, hits=hits)
        waiting = [asyncio.create_task(cached_model.reply(REQUEST, within_s=60)) for _ in range(5)]
        await model.begun.wait()
        model.released.set()
        return await asyncio.gather(*waiting), len(model.asked), hits.count

    replies, model_calls, hits = with_store(tmp_path / "c.sqlite", scenario)
    assert (replies, model_calls, hits) == ([a_reply()] * 5, 1, 4)


def test_cancelling_the_first_caller_does_not_cancel_the_others(tmp_path):
    async def scenario(store):
        model = Model()
        model.released.clear()
        first = asyncio.create_task(cached(model, store).reply(REQUEST, within_s=60))
        await model.begun.wait()
        second = asyncio.create_task(cached(model, store).reply(REQUEST, within_s=60))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        model.released.set()
        return first.cancelled(), await second, len(model.asked), model.cancelled

    assert with_store(tmp_path / "c.sqlite", scenario) == (True, a_reply(), 1, 0)


def test_call_without_callers_is_cancelled_and_can_be_repeated(tmp_path):
    async def scenario(store):
        model = Model()
        model.released.clear()
        waiting = [asyncio.create_task(cached(model, store).reply(REQUEST, within_s=60)) for _ in range(2)]
        await model.begun.wait()
        for task in waiting:
            task.cancel()
        # At once, while the earlier call is still being cancelled.
        again = asyncio.create_task(cached(model, store).reply(REQUEST, within_s=60))
        await asyncio.wait(waiting)
        ended = model.cancelled
        model.released.set()
        reply = await again
        assert len(model.asked) == 1 + ended
        return ended, reply, await store.count()

    ended, reply, count = with_store(tmp_path / "c.sqlite", scenario)
    assert (reply, count) == (a_reply(), 1)
    # The earlier call was cancelled or joined by the new one, never left running.
    assert ended in (0, 1)


def test_cancelling_a_lone_call_cancels_it_at_the_model(tmp_path):
    async def scenario(store):
        model = Model()
        model.released.clear()
        task = asyncio.create_task(cached(model, store).reply(REQUEST, within_s=60))
        await model.begun.wait()
        task.cancel()
        await asyncio.wait([task])
        return model.cancelled, await store.count()

    assert with_store(tmp_path / "c.sqlite", scenario) == (1, 0)


def test_caller_with_a_shorter_deadline_times_out_alone(tmp_path):
    async def scenario(store):
        model = Model()
        model.released.clear()
        patient = asyncio.create_task(cached(model, store).reply(REQUEST, within_s=60))
        await model.begun.wait()
        with pytest.raises(Overrun):
            await cached(model, store).reply(REQUEST, within_s=0.01)
        model.released.set()
        return await patient, len(model.asked)

    assert with_store(tmp_path / "c.sqlite", scenario) == (a_reply(), 1)


def test_caller_with_a_longer_deadline_retries_after_a_shared_timeout(tmp_path):
    async def scenario(store):
        model = Model()
        model.released.clear()
        hasty = asyncio.create_task(cached(model, store).reply(REQUEST, within_s=0.05))
        await model.begun.wait()
        model._answer = lambda: Overrun("late") if len(model.asked) == 1 else a_reply()
        patient = asyncio.create_task(cached(model, store).reply(REQUEST, within_s=60))
        await asyncio.sleep(0)
        model.released.set()
        with pytest.raises(Overrun):
            await hasty
        return await patient, len(model.asked)

    assert with_store(tmp_path / "c.sqlite", scenario) == (a_reply(), 2)


def test_fence_marks_are_stable_in_a_store_and_differ_between_stores(tmp_path):
    async def marks(store):
        return [
            store.fence_mark("meme", "digest"),
            store.fence_mark("meme", "other"),
            store.fence_mark("other", "digest"),
        ]

    first, again = (with_store(tmp_path / "one.sqlite", marks) for _ in range(2))
    other_store = with_store(tmp_path / "two.sqlite", marks)
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


def test_roles_sharing_servers_still_share_them_through_the_cache(tmp_path):
    async def scenario(store):
        shared, own = Replicas(), Model()
        role_model, other = RoleModel(shared, servers=shared), RoleModel(own, temperature=0.5)
        hits = HitCounter()
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
        return pinned.proposer.model is pinned.judge.model, len(shared.asked), len(own.asked), hits.count

    assert with_store(tmp_path / "c.sqlite", scenario) == (True, 1, 1, 1)


def test_named_server_may_change_its_address(tmp_path):
    async def scenario(store):
        call_counts = []
        for url in ("http://a", "http://b"):
            model = Replicas()
            model.urls = (url,)
            role_model = RoleModel(model, servers=model)
            role_models = stored_models(
                RoleModels(role_model, role_model, role_model, role_model), store, server="ours", hits=HitCounter()
            )
            await role_models.judge.model.reply(REQUEST, within_s=60)
            call_counts.append(len(model.asked))
        return call_counts

    assert with_store(tmp_path / "c.sqlite", scenario) == [1, 0]


async def one_reply(store):
    return await cached(Model(), store).reply(REQUEST, within_s=60)


def test_altered_entries_are_refused(tmp_path):
    path = tmp_path / "calls.sqlite"
    with_store(path, one_reply)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE calls SET body = replace(body, 'lighthouse', 'light house')")
    file.close()
    with pytest.raises(CallsError, match="damaged"):
        with_store(path, one_reply)


def test_damaged_or_foreign_files_are_refused(tmp_path):
    path = tmp_path / "calls.sqlite"
    path.write_bytes(b"no database at all, but long enough to be looked at " * 40)
    with pytest.raises(CallsError, match="damaged, locked, or something else"):
        SqliteCallCache.open(path)

    async def docket():
        await Docket.open(tmp_path / "docket.sqlite").close()

    asyncio.run(docket())
    with pytest.raises(CallsError, match="no store of calls"):
        SqliteCallCache.open(tmp_path / "docket.sqlite")


def test_store_of_a_later_format_is_refused(tmp_path):
    path = tmp_path / "calls.sqlite"
    with_store(path, one_reply)
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    with pytest.raises(CallsError, match="has format 99"):
        SqliteCallCache.open(path)


def test_unwritable_store_fails_the_call(tmp_path):
    async def scenario(store):
        with sqlite3.connect(tmp_path / "c.sqlite") as file:
            file.execute("DROP TABLE calls")
        file.close()
        with pytest.raises(CallsError, match="can't be read or written"):
            await one_reply(store)

    with_store(tmp_path / "c.sqlite", scenario)
