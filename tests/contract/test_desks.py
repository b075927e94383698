"""The review queue over SQLite and over PostgreSQL, each used by two servers at once."""

import asyncio
from datetime import timedelta
from itertools import product

import pytest

from court.errors import BadRequest
from court.verdict import Label, Strength
from serving.docket.open import Docket
from serving.docket.review.locks import CaseTaken
from serving.docket.store import review_tables as desk_tables
from serving.docket.store.listing import SORTS, BlindReviewer, TrialFilter
from tests.support.desks import opened_desk, verdict
from tests.support.dockets import NOON, parse_place

H, N, U = Label.HARMFUL, Label.NOT_HARMFUL, Label.UNDECIDED


@pytest.fixture
def place(docket_place):
    return parse_place(docket_place)


async def test_two_servers_share_queue_locks_and_index(place):
    async with opened_desk(place) as it:
        other = Docket.open(place)
        theirs = it.another_desk(docket=other)
        try:
            for number in range(12):
                await it.tried(
                    f"t{number:02}", verdict(U), words=f"Go  HOME {number}", namespace="ea\0st", models=("vl",)
                )
            await asyncio.gather(*(desk.catch_up() for desk in (it.desk, theirs) * 3))
            desks = [it.desk, theirs] * 8
            taken = await asyncio.gather(*(desk.take_next(f"r{n}") for n, desk in enumerate(desks)))
            names = [case.trial_id for case in taken if case is not None]
            mine, holder = names[0], next(n for n, case in enumerate(taken) if case is not None)
            with pytest.raises(CaseTaken):
                await theirs.take(mine, "somebody else")
            await it.desk.review(mine, f"r{holder}", label=H, clause="4", reason="I looked.")
            found = await it.found('"go home" model:vl', queue=theirs, namespace="ea\0st")
            names, mine, queue, found, holds, judgements, same_meme = (
                names,
                mine,
                [case.trial_id for case in await theirs.queue("new", limit=50)],
                len(found),
                (await theirs.case(mine)).holds,
                (await theirs.agreement()).judgements,
                [case.trial_id for case, *_ in await theirs.same_memes(await theirs.case(found[0]), limit=50)],
            )
        finally:
            await other.close()
    assert sorted(names) == [f"t{number:02}" for number in range(12)]
    assert queue == [f"t{number:02}" for number in range(12) if f"t{number:02}" != mine]
    assert (found, holds, judgements, len(same_meme)) == (12, H, 1, 11)


async def test_erased_trials_vanish_from_the_review_queue(place):
    async with opened_desk(place) as it:
        await it.tried("a", verdict(U), words="a very particular text")
        await it.tried("b", verdict(H, strengths=(Strength.WEAK, Strength.WEAK)), words="another")
        await it.reviewed("a", "ada", H)
        await it.desk.take("b", "ada")
        for trial_id in ("a", "b"):
            await it.docket.eraser.erase(trial_id, who="root", why="asked", at=it.clock())
        found = await it.found("particular"), await it.waiting("bea"), await it.desk.agreement()
        with it.docket.transactions.database.reading() as connection:
            left = [connection.execute(table.select()).all() for table in
                    (desk_tables.reviews, desk_tables.locks, desk_tables.cases)]  # fmt: skip
        (found, waiting, agreement), (reviews, locks, cases) = found, left
    assert (found, waiting, agreement.judgements) == ([], [], 0)
    assert reviews == locks == [] and len(cases) == 2
    assert all("particular" not in str(case) and "another" not in str(case) for case in cases)


async def test_sorted_lists_continue_after_a_trial_and_give_away_nothing(place):
    """Lists in each order and its reverse, page by page; hidden values sort as if they were missing."""
    async with opened_desk(place) as court:
        scores = {"t0": 0.2, "t1": 0.9, "t2": 0.55, "t3": None, "t4": 0.7}
        for number, (name, score) in enumerate(scores.items()):
            end = verdict(U) if score is None else verdict(H if score > 0.5 else N, score=score)
            at = NOON + timedelta(minutes=number)
            await court.tried(name, end, namespace=f"n{number % 2}", pixels=name[1] * 64, words=name, at=at)
        await court.desk.catch_up()
        found = {}
        for sort, descending, blind in product(SORTS, (True, False), (None, BlindReviewer("ada"))):
            which, ids, after = TrialFilter(blind=blind), [], ""
            while page := await court.docket.index.search(
                which, limit=2, sort=sort, descending=descending, after=after
            ):
                ids += [line.trial_id for line in page]
                after = ids[-1]
            found[sort, descending, blind is not None] = " ".join(ids)
        for name, label in (("t1", N), ("t0", N)):
            await court.reviewed(name, "bea", label, again=True)
        found["label"] = [await court.found(each) for each in ("label:not-harmful", "label:harmful", "is:upheld")]
        with pytest.raises(BadRequest):
            await court.docket.index.search(TrialFilter(namespaces=frozenset({"n0"})), limit=2, after="t1")
    assert found["opened", True, False] == "t4 t3 t2 t1 t0"
    assert found["harm", True, False] == "t1 t4 t2 t0 t3"
    assert found["harm", True, True] == "t1 t4 t0 t3 t2", "t2 waits for the reviewer, and t3 as well"
    assert found["reason", True, False] == "t3 t2 t4 t1 t0"
    assert found["reason", True, True] == "t4 t3 t2 t1 t0"
    assert found["content", False, False] == "t0 t2 t4 t1 t3"
    assert found.pop("label") == [["t1", "t0"], ["t4", "t2"], ["t0"]]
    for (sort, descending, blind), ids in found.items():
        if descending:
            assert found[sort, False, blind].split() == ids.split()[::-1]
