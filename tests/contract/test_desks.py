"""The review queue over SQLite and over PostgreSQL, each used by two servers at once."""

import asyncio

import pytest

from court.verdict import Label, Strength
from serving.docket.open import Docket
from serving.docket.review.locks import CaseTaken
from serving.docket.store import review_tables as desk_tables
from tests.support.desks import verdict, with_desk
from tests.support.dockets import parse_place

H, N, U = Label.HARMFUL, Label.NOT_HARMFUL, Label.UNDECIDED


@pytest.fixture
def place(docket_place):
    return parse_place(docket_place)


def test_two_servers_share_queue_locks_and_index(place):
    async def work(it):
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
            return (
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

    names, mine, queue, found, holds, judgements, same_meme = with_desk(place, work)
    assert sorted(names) == [f"t{number:02}" for number in range(12)]
    assert queue == [f"t{number:02}" for number in range(12) if f"t{number:02}" != mine]
    assert (found, holds, judgements, len(same_meme)) == (12, H, 1, 11)


def test_erased_trials_vanish_from_the_review_queue(place):
    async def work(it):
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
        return found, left

    (found, waiting, agreement), (reviews, locks, cases) = with_desk(place, work)
    assert (found, waiting, agreement.judgements) == ([], [], 0)
    assert reviews == locks == [] and len(cases) == 2
    assert all("particular" not in str(case) and "another" not in str(case) for case in cases)
