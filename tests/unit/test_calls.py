import asyncio
import dataclasses
import sqlite3

import pytest

from court.deadline import completed
from court.errors import Overrun, Unavailable
from court.meme import Frame
from court.ports import ChatReply, ChatRequest, FinishReason, Odds
from court.roles import GuardModel, RoleModel, RoleModels
from eval.models.cached_model import CachedModel, HitCounter, key_of, stored_chairs
from eval.models.call_cache import CallsError, SqliteCallCache
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
    """Counts what it is asked, and answers when it is let."""

    name = "m"

    def __init__(self, answer=a_reply):
        self.asked = []
        self.cancelled = 0
        self.let = asyncio.Event()
        self.let.set()
        self.begun = asyncio.Event()
        self._answer = answer

    async def reply(self, request, *, within_s):
        self.asked.append(request)
        self.begun.set()
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        said = self._answer()
        if isinstance(said, Exception):
            raise said
        return said

    async def odds(self, request, options, *, within_s):
        self.asked.append((request, options))
        said = self._answer()
        return None if said is None else Odds((0.7, 0.2), said)


def with_store(path, scene):
    async def hold():
        store = SqliteCallCache.open(path)
        try:
            return await scene(store)
        finally:
            await store.close()

    return asyncio.run(hold())


def stored(model, store, **given):
    return CachedModel(model, store, SERVER, **given)


def test_what_was_answered_is_not_asked_again_not_even_by_another_process(tmp_path):
    path = tmp_path / "calls.sqlite"

    async def twice(store):
        model, hits = Model(), HitCounter()
        asked = stored(model, store, hits=hits)
        replies = [await asked.reply(REQUEST, within_s=60) for _ in range(2)]
        odds = [await asked.odds(REQUEST, ("A", "B"), within_s=60) for _ in range(2)]
        return replies, odds, len(model.asked), hits.count

    replies, odds, asked, hits = with_store(path, twice)
    assert (replies, asked, hits) == ([a_reply()] * 2, 2, 2)
    assert odds == [Odds((0.7, 0.2), a_reply())] * 2
    # A store that was opened anew has them too: nobody is asked.
    replies, odds, asked, hits = with_store(path, twice)
    assert (replies, odds[0].masses, asked, hits) == ([a_reply()] * 2, (0.7, 0.2), 0, 4)


OTHERS = {
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


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_another_request_has_another_key(change):
    assert key_of("m", SERVER, dataclasses.replace(REQUEST, **change)) != key_of("m", SERVER, REQUEST)


def test_the_key_tells_models_servers_and_options_apart_and_seeds_where_a_reply_is_a_draw():
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
    # When it is asked decides nothing.
    assert key_of("m", SERVER, dataclasses.replace(REQUEST, priority=-3)) == key_of("m", SERVER, REQUEST)
    same = dataclasses.replace(REQUEST, parts=(dataclasses.replace(FRAME, index=7), "What is there?"))
    assert key_of("m", SERVER, same) == key_of("m", SERVER, REQUEST)


def test_an_error_is_not_kept_and_a_reply_that_was_cut_off_is(tmp_path):
    said = iter([Unavailable("gone"), a_reply("half a", FinishReason.LENGTH)])

    async def scene(store):
        model = Model(lambda: next(said))
        with pytest.raises(Unavailable, match="gone"):
            await stored(model, store).reply(REQUEST, within_s=60)
        assert await store.count() == 0
        cut = [await stored(model, store).reply(REQUEST, within_s=60) for _ in range(2)]
        assert await store.count() == 1
        return cut, len(model.asked)

    cut, asked = with_store(tmp_path / "c.sqlite", scene)
    assert [reply.finish for reply in cut] == [FinishReason.LENGTH] * 2
    assert asked == 2


def test_that_a_server_can_not_say_is_not_kept(tmp_path):
    async def scene(store):
        model = Model(lambda: None)
        assert await stored(model, store).odds(REQUEST, ("A", "B"), within_s=60) is None
        # An answer without probabilities has its cost, and is no more than that.
        silent = Odds((), a_reply())
        model.odds = lambda request, options, *, within_s: completed(silent)
        assert await stored(model, store).odds(REQUEST, ("A", "B"), within_s=60) == silent
        return await store.count()

    assert with_store(tmp_path / "c.sqlite", scene) == 0


def test_equal_calls_in_flight_are_one_call(tmp_path):
    async def scene(store):
        model, hits = Model(), HitCounter()
        model.let.clear()
        asked = stored(model, store, hits=hits)
        waiting = [asyncio.create_task(asked.reply(REQUEST, within_s=60)) for _ in range(5)]
        await model.begun.wait()
        model.let.set()
        return await asyncio.gather(*waiting), len(model.asked), hits.count

    replies, asked, hits = with_store(tmp_path / "c.sqlite", scene)
    assert (replies, asked, hits) == ([a_reply()] * 5, 1, 4)


def test_who_asked_first_may_leave_without_the_others_losing_the_answer(tmp_path):
    async def scene(store):
        model = Model()
        model.let.clear()
        first = asyncio.create_task(stored(model, store).reply(REQUEST, within_s=60))
        await model.begun.wait()
        second = asyncio.create_task(stored(model, store).reply(REQUEST, within_s=60))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        model.let.set()
        return first.cancelled(), await second, len(model.asked), model.cancelled

    assert with_store(tmp_path / "c.sqlite", scene) == (True, a_reply(), 1, 0)


def test_a_call_that_nobody_wants_any_more_is_ended_and_can_be_made_again(tmp_path):
    async def scene(store):
        model = Model()
        model.let.clear()
        waiting = [asyncio.create_task(stored(model, store).reply(REQUEST, within_s=60)) for _ in range(2)]
        await model.begun.wait()
        for task in waiting:
            task.cancel()
        # At once, while the other is still being given up.
        again = asyncio.create_task(stored(model, store).reply(REQUEST, within_s=60))
        await asyncio.wait(waiting)
        ended = model.cancelled
        model.let.set()
        reply = await again
        assert len(model.asked) == 1 + ended
        return ended, reply, await store.count()

    ended, reply, kept = with_store(tmp_path / "c.sqlite", scene)
    assert (reply, kept) == (a_reply(), 1)
    # Given up, or taken over by the one who came in time: never left running.
    assert ended in (0, 1)


def test_a_lone_call_that_is_cancelled_is_ended_at_the_model(tmp_path):
    async def scene(store):
        model = Model()
        model.let.clear()
        task = asyncio.create_task(stored(model, store).reply(REQUEST, within_s=60))
        await model.begun.wait()
        task.cancel()
        await asyncio.wait([task])
        return model.cancelled, await store.count()

    assert with_store(tmp_path / "c.sqlite", scene) == (1, 0)


def test_who_has_less_time_gives_up_alone(tmp_path):
    async def scene(store):
        model = Model()
        model.let.clear()
        patient = asyncio.create_task(stored(model, store).reply(REQUEST, within_s=60))
        await model.begun.wait()
        with pytest.raises(Overrun):
            await stored(model, store).reply(REQUEST, within_s=0.01)
        model.let.set()
        return await patient, len(model.asked)

    assert with_store(tmp_path / "c.sqlite", scene) == (a_reply(), 1)


def test_who_has_more_time_asks_again_when_the_first_ran_out_of_it(tmp_path):
    async def scene(store):
        model = Model()
        model.let.clear()
        hasty = asyncio.create_task(stored(model, store).reply(REQUEST, within_s=0.05))
        await model.begun.wait()
        model._answer = lambda: Overrun("late") if len(model.asked) == 1 else a_reply()
        patient = asyncio.create_task(stored(model, store).reply(REQUEST, within_s=60))
        await asyncio.sleep(0)
        model.let.set()
        with pytest.raises(Overrun):
            await hasty
        return await patient, len(model.asked)

    assert with_store(tmp_path / "c.sqlite", scene) == (a_reply(), 2)


def test_the_mark_of_fences_is_the_same_in_one_store_and_another_in_each(tmp_path):
    async def marks(store):
        return [
            store.fence_mark("meme", "digest"),
            store.fence_mark("meme", "other"),
            store.fence_mark("other", "digest"),
        ]

    here, again = (with_store(tmp_path / "one.sqlite", marks) for _ in range(2))
    there = with_store(tmp_path / "two.sqlite", marks)
    assert here == again
    assert len({*here, *there}) == 6
    assert all(len(mark) == 16 and int(mark, 16) >= 0 for mark in here)


class Replicas(Model):
    urls = ("http://b", "http://a")

    def pinned(self, key):
        self.key = key
        return self

    def room(self):
        return False


def test_roles_that_share_their_servers_still_do_so_through_the_store(tmp_path):
    async def scene(store):
        shared, own = Replicas(), Model()
        chair, other = RoleModel(shared, servers=shared), RoleModel(own, temperature=0.5)
        hits = HitCounter()
        chairs = stored_chairs(RoleModels(chair, chair, other, chair), store, seed=3, hits=hits)
        pinned = chairs.pinned("a key")
        for asked in (pinned.proposer, pinned.judge, pinned.defender):
            await asked.model.reply(REQUEST, within_s=60)
        assert shared.key == "a key" and not chairs.room()
        # Judges and guard are heard only after the rounds that are held ahead where there is room.
        later = RoleModels(other, other, other, chair, judges=(chair,), guard=GuardModel(chair, "shieldgemma"))
        assert later.room()
        assert not dataclasses.replace(later, expert=chair).room()
        assert chairs.settings(1200) == RoleModels(chair, chair, other, chair).settings(1200)
        assert chairs.servers == {"PROPOSER": shared.urls, "ACCUSER": shared.urls, "JUDGE": shared.urls}
        return pinned.proposer.model is pinned.judge.model, len(shared.asked), len(own.asked), hits.count

    assert with_store(tmp_path / "c.sqlite", scene) == (True, 1, 1, 1)


def test_a_server_that_is_called_by_a_name_may_move(tmp_path):
    async def scene(store):
        asked = []
        for url in ("http://a", "http://b"):
            model = Replicas()
            model.urls = (url,)
            chair = RoleModel(model, servers=model)
            chairs = stored_chairs(RoleModels(chair, chair, chair, chair), store, server="ours", hits=HitCounter())
            await chairs.judge.model.reply(REQUEST, within_s=60)
            asked.append(len(model.asked))
        return asked

    assert with_store(tmp_path / "c.sqlite", scene) == [1, 0]


async def one_reply(store):
    return await stored(Model(), store).reply(REQUEST, within_s=60)


def test_what_was_altered_in_the_store_is_not_believed(tmp_path):
    path = tmp_path / "calls.sqlite"
    with_store(path, one_reply)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE calls SET body = replace(body, 'lighthouse', 'light house')")
    file.close()
    with pytest.raises(CallsError, match="damaged"):
        with_store(path, one_reply)


def test_a_file_that_is_damaged_or_something_else_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "calls.sqlite"
    path.write_bytes(b"no database at all, but long enough to be looked at " * 40)
    with pytest.raises(CallsError, match="damaged, locked, or something else"):
        SqliteCallCache.open(path)

    async def docket():
        await Docket.open(tmp_path / "docket.sqlite").close()

    asyncio.run(docket())
    with pytest.raises(CallsError, match="no store of calls"):
        SqliteCallCache.open(tmp_path / "docket.sqlite")


def test_a_store_of_a_later_format_is_refused(tmp_path):
    path = tmp_path / "calls.sqlite"
    with_store(path, one_reply)
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    with pytest.raises(CallsError, match="has format 99"):
        SqliteCallCache.open(path)


def test_a_store_that_can_not_be_written_ends_the_call(tmp_path):
    async def scene(store):
        with sqlite3.connect(tmp_path / "c.sqlite") as file:
            file.execute("DROP TABLE calls")
        file.close()
        with pytest.raises(CallsError, match="can't be read or written"):
            await one_reply(store)

    with_store(tmp_path / "c.sqlite", scene)
