"""A review that is withdrawn within its minute, over SQLite and PostgreSQL: what held before it holds again."""

from datetime import timedelta

import pytest

from court.events import Look, VerdictReviewed
from court.verdict import Decision, Label
from serving.docket.review.locks import AlreadyReviewed, UndoOver
from serving.docket.review.projection import ReviewPriority
from serving.docket.store.reviews import UNDO, settled_at
from tests.support.desks import opened_desk, verdict
from tests.support.dockets import NOON, audited_without_pictures, parse_place, review_trial

H, N = Label.HARMFUL, Label.NOT_HARMFUL
DOUBTFUL = verdict(H, score=0.55)


async def decide(it, trial_id, who, label, **more):
    await it.desk.take(trial_id, who, reopen=True)
    fields = {"label": label, "clause": "4", "reason": "I looked.", "look": Look.SHOWN, "follow": True, **more}
    return (await it.desk.review(trial_id, who, **fields))[0]


async def state(it, *trial_ids):
    """Everything that a review changes, by all the ways in which it is read."""
    found = []
    for trial_id in trial_ids:
        record, case = await it.docket.trials.record(trial_id), await it.desk.case(trial_id)
        in_force = record.in_force
        found += [
            in_force and in_force.facts(),
            await it.docket.findings.get(record.content),
            (case.holds, case.outcome, case.waiting, case.urgency, case.asked_by, case.reasons),
        ]
    found.append([(each.trial_id, each.decision, each.review) for each in await it.docket.index.list(limit=10)])
    found.append(await it.desk.agreement())
    return found


@pytest.mark.parametrize("before", ["nothing", "a review", "an appeal", "a review of another trial", "an opinion"])
async def test_undoing_a_review_restores_the_state_before_it(docket_place, before):
    async with opened_desk(parse_place(docket_place)) as it:
        await it.tried("a", DOUBTFUL)
        await it.tried("b", verdict(H))
        if before == "a review":
            await decide(it, "a", "bea", H, look=Look.UNKNOWN)
        if before == "an appeal":
            await it.docket.reviews.open_appeal("a", by="forum", statement="No.", reference="", at=NOON)
        if before == "a review of another trial":
            await review_trial(it.docket, "b")
        if before == "an opinion":
            await it.desk.take("a", "bea")
            await it.desk.leave_note("a", "bea", "I can't tell.", second_opinion=True)
        first = await state(it, "a", "b")
        review = await decide(it, "a", "ada", N)
        during = await state(it, "a", "b")
        await it.desk.withdraw("a", "ada", review.seq)
        after = await state(it, "a", "b")
        wrong = (await audited_without_pictures(it.docket)).findings
        record = await it.docket.trials.record("a")
    assert first != during and after == first and not wrong
    assert (record.last(VerdictReviewed).reviewer == "ada" and record.review is None) or before == "a review"


async def test_later_reviews_stand_when_an_earlier_one_is_undone(docket_place):
    async with opened_desk(parse_place(docket_place)) as it:
        await it.tried("a", DOUBTFUL)
        ada = await decide(it, "a", "ada", N)
        await decide(it, "a", "bea", H)
        contested = (await it.docket.trials.record("a")).in_force
        await it.desk.withdraw("a", "ada", ada.seq)
        case = await it.desk.case("a")
        now, wrong = (await it.docket.trials.record("a")).in_force, (await audited_without_pictures(it.docket)).findings
    assert contested.contested and not now.contested and now.decision is Decision.BLOCK
    assert (case.holds, case.waiting) == (H, False) and not wrong
    assert ReviewPriority.REVIEWERS_DISAGREE not in dict(case.reasons)


async def test_undo_is_for_the_reviewer_alone_for_one_minute_and_once(docket_place):
    async with opened_desk(parse_place(docket_place)) as it:
        await it.tried("a", DOUBTFUL)
        review = await decide(it, "a", "ada", N)
        for who, seq in (("bea", review.seq), ("ada", review.seq - 1)):
            with pytest.raises(UndoOver):
                await it.desk.withdraw("a", who, seq)
        it.clock.now += UNDO
        await it.desk.withdraw("a", "ada", review.seq)
        with pytest.raises(AlreadyReviewed):
            await it.desk.withdraw("a", "ada", review.seq)
        again = await decide(it, "a", "ada", N)
        it.clock.now += UNDO + timedelta(seconds=0.1)
        with pytest.raises(UndoOver):
            await it.desk.withdraw("a", "ada", again.seq)
        elsewhere = await decide(it, "a", "ada", N, look=Look.UNKNOWN)
        with pytest.raises(UndoOver):
            await it.desk.withdraw("a", "ada", elsewhere.seq)
    # The verdict was shown once the first was stored.
    assert not again.blind and settled_at(again) > again.at + UNDO


async def test_an_overruled_verdict_answers_requests_once_that_is_undone(docket_place):
    async with opened_desk(parse_place(docket_place)) as it:
        await it.tried("a", DOUBTFUL)
        await it.docket.verdict_keys.put("k", "a")
        review = await decide(it, "a", "ada", N)
        during = await it.docket.verdict_keys.get("k")
        await it.desk.withdraw("a", "ada", review.seq)
        assert (during, await it.docket.verdict_keys.get("k")) == (None, "a")


async def test_the_library_follows_a_review_once_its_minute_is_over(docket_place):
    async with opened_desk(parse_place(docket_place)) as it:
        await it.tried("a", DOUBTFUL)
        await it.tried("b", DOUBTFUL)
        review = await decide(it, "a", "ada", N)
        undone = await decide(it, "b", "ada", N)
        await it.desk.withdraw("b", "ada", undone.seq)
        early = await it.desk.due(), await it.desk.to_follow("a"), await it.desk.to_follow("b")
        it.clock.now += UNDO + timedelta(seconds=6)
        due = await it.desk.due()
        await it.desk.followed("a", review.seq, "LIBRARY_LOCKED")
        failed = await it.desk.due(), await it.desk.to_follow("a")
        it.clock.now += timedelta(minutes=1)
        again = await it.desk.due()
        await it.desk.followed("a", review.seq)
        end = await it.desk.due()
    assert early == ([], "", None) and due == again and len(due) == 1
    assert failed == ([], "LIBRARY_LOCKED") and end == []


async def test_review_time_is_stored_and_searchable(docket_place):
    async with opened_desk(parse_place(docket_place)) as it:
        for name, seconds in (("a", 1.5), ("b", 30.0), ("c", None)):
            await it.tried(name, DOUBTFUL, pixels=name * 64)
            look_at = None if seconds is None else it.clock.now - timedelta(seconds=seconds)
            await decide(it, name, "ada", N, look_at=look_at)
        assert (
            await it.found("under:2s"),
            [(await it.docket.trials.record(name)).review.look_s for name in "abc"],
        ) == (["a"], [1.5, 30.0, None])


async def test_undoing_a_review_restores_the_finding_of_an_expired_trial(docket_place):
    async with opened_desk(parse_place(docket_place)) as it:
        for name in "ab":
            await it.tried(name, DOUBTFUL)
        await decide(it, "a", "bea", N, look=Look.UNKNOWN)
        await it.docket.eraser.erase_all({"a": ()}, who="r", why="old", at=NOON, keep_findings_days=36_500)
        key = (await it.docket.trials.record("b")).content
        found = [await it.docket.findings.get(key)]
        it.clock.turn(minutes=1)
        review = await decide(it, "b", "ada", H)
        found.append(await it.docket.findings.get(key))
        await it.desk.withdraw("b", "ada", review.seq)
        (before, during, after), wrong = (
            [*found, await it.docket.findings.get(key)],
            (await audited_without_pictures(it.docket)).findings,
        )
    assert before.until is not None and (before.label, during.label) == (N, H)
    assert after == before and not wrong
