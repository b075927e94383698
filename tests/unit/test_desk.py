"""The desk over a real docket in SQLite: what is on it and why, locks, reviews, second opinions."""

import asyncio
import random
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import text

from court.errors import BadRequest
from court.events import ReviewOutcome, SecondOpinionAsked, VerdictReviewed
from court.verdict import Label, ReviewReason, Strength
from serving.docket.ports import NotDecided, TrialUnknown
from serving.docket.review.locks import LOCK_MINUTES, AnotherWanted, CaseClosed, CaseTaken, NotLocked
from serving.docket.review.projection import ReviewPriority, Rules, folded, is_sampled, reasons_of
from serving.docket.review.queue import Search, place_of
from serving.docket.store import review_tables as desk_tables
from serving.docket.store.bodies import packed
from tests.support.desks import NOBODY, play, verdict
from tests.support.dockets import NOON, Intercepted
from tests.support.sizes import FULL

H, N, U = Label.HARMFUL, Label.NOT_HARMFUL, Label.UNDECIDED
ACTS = ["take", "take", "take", "renew", "review", "review", "release", "wait"]
OPERATIONS = 5000 if FULL else 150
TIE = (Strength.MODERATE, Strength.MODERATE)


@pytest.fixture
def at(tmp_path):
    return tmp_path / "docket.sqlite"


# Why a person should look


@pytest.mark.parametrize(
    ("given", "whys"),
    [
        (verdict(H), []),
        (verdict(N, score=0.1), []),
        (verdict(U), [ReviewPriority.UNDECIDED]),
        (verdict(H, strengths=TIE), [ReviewPriority.DISAGREE]),
        (verdict(H, reasons=[ReviewReason.VOTE_DISAGREES]), [ReviewPriority.DISAGREE]),
        (verdict(H, reasons=[ReviewReason.PRECEDENTS_DISAGREE]), [ReviewPriority.DISAGREE]),
        (verdict(N, reasons=[ReviewReason.NEAR_DUPLICATE_HARMFUL]), [ReviewPriority.DISAGREE]),
        (verdict(H, reasons=[ReviewReason.TEXT_UNSURE]), [ReviewPriority.COURT_ASKS]),
        (verdict(H, score=0.59), [ReviewPriority.LOW_SCORE]),
        (verdict(H, score=0.61), []),
        (verdict(N, score=0.41), [ReviewPriority.LOW_SCORE]),
        (verdict(N, score=0.39), []),
        (verdict(U, score=0.5), [ReviewPriority.UNDECIDED]),  # that says it already
        (
            verdict(H, score=0.3, strengths=TIE, reasons=[ReviewReason.CUT_SHORT, ReviewReason.SCORE_DISAGREES]),
            [ReviewPriority.DISAGREE, ReviewPriority.DISAGREE, ReviewPriority.COURT_ASKS, ReviewPriority.LOW_SCORE],
        ),
    ],
)
def test_each_case_says_why_the_most_urgent_first(given, whys):
    reasons = reasons_of(given, "t", NOBODY)
    assert [why for why, _ in reasons] == whys
    assert all(len(said) > 10 for _, said in reasons)


def test_chance_picks_its_share_and_says_the_same_to_everybody():
    ids = [f"t{number}" for number in range(20_000)]
    few, more = {t for t in ids if is_sampled(t, 0.02)}, {t for t in ids if is_sampled(t, 0.1)}
    assert 300 < len(few) < 500 and 1800 < len(more) < 2200
    assert few < more
    assert not any(is_sampled(t, 0.0) for t in ids) and all(is_sampled(t, 1.0) for t in ids[:50])
    assert [why for why, _ in reasons_of(verdict(H), "t", Rules(sampled=1.0))] == [ReviewPriority.SAMPLED]


def test_rules_that_mean_nothing_are_refused():
    for wrong in ({"sure": 0.4}, {"sure": 1.5}, {"sampled": -0.1}, {"sampled": 2}):
        with pytest.raises(ValueError, match="lies in"):
            Rules(**wrong)


# The queue


def test_the_queue_has_what_needs_a_person_in_the_order_of_urgency(at):
    async def work(it):
        await it.tried("low", verdict(H, score=0.55), at=NOON)
        await it.tried("open")
        await it.tried("failed", "GONE")
        await it.tried("fine", verdict(H))
        await it.tried("undecided late", verdict(U), at=NOON + timedelta(hours=2))
        await it.tried("undecided", verdict(U), at=NOON + timedelta(hours=1))
        await it.tried("tie", verdict(H, strengths=TIE), namespace="forum")
        pages, after = [], None
        while page := await it.desk.queue("ada", limit=2, after=after):
            pages.append([case.trial_id for case in page])
            after = place_of(page[-1])
        return (
            pages,
            await it.waiting(why=ReviewPriority.LOW_SCORE),
            await it.waiting(namespaces=frozenset({"forum"})),
            await it.waiting(namespaces=frozenset()),
            await it.desk.counts(),
            await it.desk.case("tie"),
        )

    pages, low, forum, nothing, counts, tie = play(at, work)
    assert pages == [["undecided", "undecided late"], ["tie", "low"]]
    assert (low, forum, nothing) == (["low"], ["tie"], [])
    assert counts == {ReviewPriority.UNDECIDED: 2, ReviewPriority.DISAGREE: 1, ReviewPriority.LOW_SCORE: 1}
    assert tie.reasons[0][0] is ReviewPriority.DISAGREE and "both moderate" in tie.reasons[0][1]
    assert (tie.label, tie.holds, tie.outcome, tie.namespace) == (H, H, None, "forum")


def test_what_happens_later_is_on_the_desk_at_once(at):
    async def work(it):
        before = await it.waiting()
        await it.tried("a", verdict(U))
        return before, await it.waiting()

    assert play(at, work) == ([], ["a"])


def test_two_desks_of_one_docket_draw_each_entry_once(at):
    async def work(it):
        other = it.another_desk()
        for number in range(30):
            await it.tried(f"t{number:02}", verdict(U))
        await asyncio.gather(*(desk.catch_up() for desk in (it.desk, other, it.desk, other)))
        await it.reviewed("t03", "ada", H)
        return await it.waiting(), [case.trial_id for case in await other.queue("bea", limit=100)]

    own, others = play(at, work)
    assert own == others == [f"t{number:02}" for number in range(30) if number != 3]


def test_what_is_drawn_anew_is_the_same(at):
    async def work(it):
        await it.tried("a", verdict(U))
        await it.tried("b", verdict(H, strengths=TIE))
        await it.reviewed("a", "ada", H)
        await it.desk.take("b", "ada")
        await it.desk.ask_opinion("b", "ada", "I can't tell.")
        seen = await it.desk.cases(["a", "b"]), await it.waiting("bea")
        with it.docket.transactions.database.writing() as connection:
            # Locks and saved searches stay; what was erased the log says again.
            for table in (desk_tables.cases, desk_tables.reviews, desk_tables.progress):
                connection.execute(table.delete())
        await it.desk.catch_up()  # finds that it was begun anew
        return seen, (await it.desk.cases(["a", "b"]), await it.waiting("bea"))

    before, after = play(at, work)
    assert before == after and before[1] == ["b"]


def test_nobody_waits_long_for_a_large_docket_to_be_drawn(at):
    class Slow(Intercepted):
        """A docket that takes its time."""

        def __init__(self, docket):
            super().__init__(docket)
            self.gate = asyncio.Event()

        async def entries(self, first, most, kinds=None):
            if first:
                await self.gate.wait()
            return await self._docket.log.entries(first, 3, kinds)

    async def work(it):
        for name in ("a", "b", "c"):
            await it.tried(name, verdict(U))
        slow = Slow(it.docket)
        desk = it.another_desk(docket=slow, patience_s=0.3)
        drawn_ = await desk.catch_up()
        meanwhile, behind = [case.trial_id for case in await desk.queue("ada", limit=9)], await desk.behind()
        slow.gate.set()
        while not await desk.catch_up():
            pass
        return (
            drawn_,
            meanwhile,
            behind,
            [case.trial_id for case in await desk.queue("ada", limit=9)],
            await desk.behind(),
        )

    assert play(at, work) == (False, ["a"], 6, ["a", "b", "c"], 0)


def test_an_entry_that_was_altered_keeps_nothing_else_from_the_desk(at, caplog):
    async def work(it):
        await it.tried("a", verdict(U))
        await it.tried("b", verdict(U))
        with it.docket.transactions.database.writing() as connection:
            connection.execute(text("DROP TRIGGER entries_update"))
            altered = {"body": packed('{"kind":"VerdictGiven"}')}
            connection.execute(text("UPDATE entries SET body = :body WHERE number = 2"), altered)
        return await it.waiting()

    assert play(at, work) == ["b"]
    assert "entry 2 can't be read" in caplog.text


# Locks


def test_a_case_is_one_reviewer_s_at_a_time(at):
    async def work(it):
        await it.tried("a", verdict(U))
        lock = await it.desk.take("a", "ada")
        with pytest.raises(CaseTaken, match="ada is looking"):
            await it.desk.take("a", "bea")
        seen = (await it.desk.case("a")).lock
        again = await it.desk.take("a", "ada")  # renews
        await it.desk.release("a", "bea")  # that is not bea's to give back
        await it.desk.renew("a", "ada")
        with pytest.raises(NotLocked):
            await it.desk.renew("a", "bea")
        with pytest.raises(CaseTaken):
            await it.desk.take("a", "bea")
        await it.desk.release("a", "ada")
        return lock, seen, again, await it.desk.take("a", "bea")

    lock, seen, again, other = play(at, work)
    assert lock == seen == again and lock.until == NOON + timedelta(minutes=LOCK_MINUTES)
    assert (lock.holder, other.holder) == ("ada", "bea")


def test_a_lock_ends_by_itself_and_what_was_written_meanwhile_is_not_kept(at):
    async def work(it):
        await it.tried("a", verdict(U))
        await it.desk.take("a", "ada")
        it.clock.turn(minutes=LOCK_MINUTES + 1)
        free = (await it.desk.case("a")).lock
        await it.desk.take("a", "bea")
        with pytest.raises(NotLocked):
            await it.desk.review("a", "ada", label=H, clause="4", reason="late")
        with pytest.raises(NotLocked):
            await it.desk.review("a", "cy", label=H, clause="4", reason="never took it")
        await it.desk.review("a", "bea", label=N, clause="none", reason="I looked.")
        return free, (await it.docket.trials.record("a")).all(VerdictReviewed)

    free, reviews = play(at, work)
    assert free is None
    assert [review.reviewer for review in reviews] == ["bea"]


def test_of_many_who_want_the_next_case_no_two_get_the_same(at):
    people = [f"reviewer {number}" for number in range(12)]

    async def work(it):
        for number in range(8):
            await it.tried(f"t{number}", verdict(U))
        taken = await asyncio.gather(*(it.desk.take_next(who) for who in people))
        return [case.trial_id for case in taken if case is not None]

    taken = play(at, work)
    assert sorted(taken) == [f"t{number}" for number in range(8)]


def test_what_nobody_may_take(at):
    async def work(it):
        await it.tried("open")
        await it.tried("fine", verdict(H))
        with pytest.raises(TrialUnknown):
            await it.desk.take("none", "ada")
        with pytest.raises(NotDecided):
            await it.desk.take("open", "ada")
        with pytest.raises(CaseClosed):
            await it.desk.take("fine", "ada")
        return await it.desk.take("fine", "ada", again=True)

    assert play(at, work).holder == "ada"


def test_whatever_happens_in_whatever_order_a_case_has_one_holder_and_reviews_are_the_holder_s(at):
    chance = random.Random(3)
    people, trials = ["ada", "bea", "cy"], ["t0", "t1", "t2", "t3"]

    async def work(it):
        for name in trials:
            await it.tried(name, verdict(U))
        held, minutes, counts = {}, 0, Counter()
        said = {name: [] for name in trials}
        for _ in range(OPERATIONS):
            who, name, act = chance.choice(people), chance.choice(trials), chance.choice(ACTS)
            holder, until = held.get(name, ("", 0))
            mine = holder == who and until > minutes
            free = not holder or holder == who or until <= minutes
            if act == "wait":
                minutes += (by := chance.choice([1, 6, 16]))
                it.clock.turn(minutes=by)
                continue
            works = free if act == "take" else mine if act in ("renew", "review") else True
            try:
                if act == "take":
                    await it.desk.take(name, who, again=True)
                elif act == "review":
                    await it.desk.review(
                        name, who, label=chance.choice([H, N]), clause="4", reason=f"{len(said[name])}"
                    )
                else:
                    await getattr(it.desk, act)(name, who)
                counts[act, "done"] += 1
                assert works, (act, who, name)
            except (CaseTaken, NotLocked):
                counts[act, "refused"] += 1
                assert not works, (act, who, name)
                continue
            if act == "review":
                said[name].append(who)
            if act in ("take", "renew"):
                held[name] = (who, minutes + LOCK_MINUTES)
            elif act == "review" or holder == who:
                held.pop(name, None)
        kept = {
            name: [e.reviewer for e in (await it.docket.trials.record(name)).all(VerdictReviewed)] for name in trials
        }
        return kept, said, counts

    kept, said, counts = play(at, work)
    assert kept == said
    for act in ("take", "renew", "review"):  # else nothing was tried
        assert counts[act, "done"] > 2 and counts[act, "refused"] > 2, counts


# Reviews


def test_a_review_closes_the_case_and_says_what_came_of_it(at):
    async def work(it):
        await it.tried("a", verdict(H, strengths=TIE))
        await it.tried("b", verdict(H, strengths=TIE))
        upheld, overruled = await it.reviewed("a", "ada", H), await it.reviewed("b", "ada", N)
        return upheld, overruled, await it.waiting("bea"), await it.desk.cases(["a", "b"])

    upheld, overruled, left, cases = play(at, work)
    assert (upheld.outcome, overruled.outcome) == (ReviewOutcome.UPHELD, ReviewOutcome.OVERRULED)
    assert left == [] and all(case.lock is None and not case.waiting for case in cases.values())
    assert (cases["a"].holds, cases["b"].holds, cases["b"].label) == (H, N, H)
    assert cases["b"].reasons[0][0] is ReviewPriority.DISAGREE  # why it was here can still be read


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"clause": " "}, "clause"),
        ({"clause": "x" * 201}, "clause"),
        ({"reason": ""}, "reason"),
        ({"reason": "x" * 2001}, "reason"),
        ({"label": U}, "label"),
    ],
)
def test_clause_reason_and_label_are_required(at, given, field):
    async def work(it):
        await it.tried("a", verdict(H, strengths=TIE))
        await it.desk.take("a", "ada")
        with pytest.raises(BadRequest) as refused:
            await it.desk.review("a", "ada", **{"label": H, "clause": "4", "reason": "I looked.", **given})
        return refused.value.field, await it.waiting("bea"), (await it.desk.case("a")).lock

    named, left, lock = play(at, work)
    assert named == field and left == ["a"] and lock.holder == "ada"


def test_what_was_found_before_the_verdict_was_shown_is_marked_as_blind(at):
    async def work(it):
        for name in ("a", "b"):
            await it.tried(name, verdict(U), pixels=name * 64)
        blind = await it.reviewed("a", "ada", H)
        await it.desk.saw("ada", ["b"])
        await it.desk.saw("ada", ["b"])  # again is no harm
        seeing = await it.reviewed("b", "ada", H)
        second = await it.reviewed("a", "ada", N, again=True)  # having decided once, she has seen it
        other = await it.reviewed("a", "bea", N, again=True)
        return [blind.blind, seeing.blind, second.blind, other.blind]

    assert play(at, work) == [True, False, False, True]


def test_the_whole_review_stands_in_the_record(at):
    async def work(it):
        await it.tried("a", verdict(H))
        await it.desk.take("a", "ada", again=True)
        await it.desk.review("a", "ada", label=N, clause=" 4 ", reason=" Satire of a habit. ")
        return (await it.docket.trials.record("a")).last(VerdictReviewed)

    kept = play(at, work)
    assert (kept.label, kept.clause, kept.reason, kept.reviewer, kept.at) == (N, "4", "Satire of a habit.", "ada", NOON)


# Second opinions


def test_a_second_opinion_is_another_person_s(at):
    async def work(it):
        await it.tried("a", verdict(U))
        await it.desk.take("a", "ada")
        asked = await it.desk.ask_opinion("a", "ada", "Is the costume meant?")
        lists = await it.waiting("ada"), await it.waiting("bea")
        case = await it.desk.case("a")
        with pytest.raises(AnotherWanted):
            await it.desk.take("a", "ada")
        await it.reviewed("a", "ada", H, again=True)  # which she may, but it answers nothing
        still = await it.waiting("bea")
        await it.reviewed("a", "bea", H)
        return asked, lists, case, still, await it.waiting("cy"), (await it.docket.trials.record("a")).events[-3:]

    asked, lists, case, still, left, events = play(at, work)
    assert lists == ([], ["a"]) and still == ["a"] and left == []
    assert case.asked_by == "ada" and case.lock is None
    assert [why for why, _ in case.reasons] == [ReviewPriority.SECOND_OPINION, ReviewPriority.UNDECIDED]
    assert "Is the costume meant?" in case.reasons[0][1]
    assert events[0] == asked and isinstance(asked, SecondOpinionAsked) and asked.by == "ada"
    assert [event.reviewer for event in events[1:]] == ["ada", "bea"]


def test_where_two_disagree_a_third_decides(at):
    async def work(it):
        await it.tried("a", verdict(U))
        await it.reviewed("a", "ada", H)
        closed = await it.waiting("bea")
        await it.reviewed("a", "bea", N, again=True)
        case = await it.desk.case("a")
        lists = await it.waiting("ada"), await it.waiting("bea"), await it.waiting("cy")
        await it.reviewed("a", "cy", N)
        return closed, case, lists, await it.waiting("dee"), (await it.desk.case("a")).holds

    closed, case, lists, left, holds = play(at, work)
    assert closed == left == [] and holds is N
    assert lists == ([], [], ["a"])
    assert case.reasons[0] == (
        ReviewPriority.REVIEWERS_DISAGREE,
        "ada says harmful, bea says not harmful: a third person decides.",
    )


def test_a_second_opinion_needs_a_reason(at):
    async def work(it):
        await it.tried("a", verdict(U))
        with pytest.raises(BadRequest, match="unsure"):
            await it.desk.ask_opinion("a", "ada", "  ")
        return (await it.docket.trials.record("a")).events[-1].kind

    assert play(at, work) == "VerdictGiven"


# Finding


def test_what_is_found_is_what_all_that_was_asked_holds_for(at):
    day = timedelta(days=1)

    async def work(it):
        await it.tried(
            "a", verdict(H, category="nationality", rationale="It shuts them out."), at=NOON,
            words="Blueland GO  HOME", namespace="forum", models=("vl-7b",), description="A boat at sea",
        )  # fmt: skip
        await it.tried("b", verdict(N), at=NOON + day, words="Monday again 100 % _", models=("vl-7b", "vl-72b"))
        await it.tried("c", verdict(U), at=NOON + 2 * day, words="")
        await it.reviewed("b", "ada", H, again=True)

        async def ids(**asked):
            found = await it.desk.find(Search(**asked), limit=10, namespaces=None)
            return [case.trial_id for case in found]

        found = {
            "all": await ids(),
            "words in any order": await ids(text="home blueland"),
            "description": await ids(text="BOAT"),
            "rationale": await ids(text="shuts them"),
            "percent is no wildcard": await ids(text="100 %"),
            "underscore is none": await ids(text="_"),
            "none": await ids(text="nothing of the kind"),
            "label that holds": await ids(label=H),
            "since": await ids(since=NOON + day),
            "until": await ids(until=NOON + day),
            "namespace": await ids(namespace="forum"),
            "no namespace": await ids(namespace=""),
            "model": await ids(model="vl-7b"),
            "no part of a model": await ids(model="vl-7"),
            "category": await ids(category="nationality"),
            "reviewer": await ids(reviewer="ada"),
            "why": await ids(why=ReviewPriority.UNDECIDED),
            "both": await ids(text="monday", model="vl-72b", reviewer="ada"),
        }
        page = await it.desk.find(Search(), limit=2)
        last = page[-1]
        rest = await it.desk.find(
            Search(), limit=2, after=(last.opened_at.isoformat(timespec="microseconds"), last.trial_id)
        )
        seen = await it.desk.find(Search(), limit=9, namespaces=frozenset({"forum"}))
        names = ("namespace", "category", "models", "reviewer")
        choices = {name: await it.desk.known(name) for name in names}
        choices["of the forum"] = [await it.desk.known(name, frozenset({"forum"})) for name in names]
        return found, [case.trial_id for case in (*page, *rest)], [case.trial_id for case in seen], choices

    found, pages, seen, choices = play(at, work)
    assert found == {
        "all": ["c", "b", "a"],
        "words in any order": ["a"],
        "description": ["a"],
        "rationale": ["a"],
        "percent is no wildcard": ["b"],
        "underscore is none": ["b"],
        "none": [],
        "label that holds": ["b", "a"],
        "since": ["c", "b"],
        "until": ["a"],
        "namespace": ["a"],
        "no namespace": ["c", "b"],
        "model": ["b", "a"],
        "no part of a model": [],
        "category": ["a"],
        "reviewer": ["b"],
        "why": ["c"],
        "both": ["b"],
    }
    assert pages == ["c", "b", "a"] and seen == ["a"]
    assert choices == {
        "namespace": ["forum"],
        "category": ["nationality"],
        "models": ["vl-72b", "vl-7b"],
        "reviewer": ["ada"],
        "of the forum": [["forum"], ["nationality"], ["vl-7b"], []],
    }


def test_search_is_what_reading_every_trial_gives(at):
    chance = random.Random(11)
    words = ["Blueland", "home", "Monday", "boat", "CAT", "café", "ﬁsh", "ſo"]
    texts = {f"t{i:02}": " ".join(chance.choices(words, k=chance.randrange(0, 5))) for i in range(40)}

    async def work(it):
        for name, said in texts.items():
            await it.tried(name, verdict(H, rationale="r"), words=said)
        return {q: {c.trial_id for c in await it.desk.find(Search(text=q), limit=99)} for q in asked}

    asked = [" ".join(chance.sample(["blue", "home", "MON", "oat", "cafÉ", "fish", "so"], k=2)) for _ in range(30)]
    found = play(at, work)
    for query, ids in found.items():
        wanted = {t for t, said in texts.items() if all(w in folded(said) for w in folded(query).split())}
        assert ids == wanted, query
    assert any(found.values())


def test_who_must_not_know_a_verdict_finds_nothing_by_it(at):
    async def work(it):
        await it.tried(
            "waits", verdict(H, score=0.55, rationale="zebra", category="c"), words="stripes", pixels="1" * 64
        )
        await it.tried("fine", verdict(H, rationale="zebra stripes", category="c"), words="spots", pixels="2" * 64)
        asked = [Search(text="zebra"), Search(text="stripes"), Search(text="zebra stripes"), Search(label=H),
                 Search(category="c"), Search(why=ReviewPriority.LOW_SCORE)]  # fmt: skip

        async def found(**how):
            return [[case.trial_id for case in await it.desk.find(one, limit=9, **how)] for one in asked]

        everything, before = await found(), await found(blind="ada")
        known = await it.desk.known("category", blind="ada"), await it.desk.hidden_from("ada", ["waits", "fine"])
        elsewhere = await it.desk.hidden_from("ada", ["waits"], frozenset({"forum"}))
        await it.reviewed("waits", "ada", N)
        return everything, before, known, elsewhere, await found(blind="ada")

    everything, before, known, elsewhere, after = play(at, work)
    both, fine, waits = ["waits", "fine"], ["fine"], ["waits"]
    assert everything == [both, both, both, both, both, waits]
    assert before == [fine, both, fine, fine, fine, waits]
    assert known == (["c"], {"waits"}) and elsewhere == {"waits"}
    assert after == [both, both, both, fine, both, waits], "what holds now is another label"


def test_trials_of_the_same_picture_or_words(at):
    async def work(it):
        await it.tried("a", verdict(H), words="Go home", pixels="1" * 64)
        await it.tried("picture", verdict(H), words="other", pixels="1" * 64)
        await it.tried("text", verdict(N), words="GO  HOME ", pixels="2" * 64)
        await it.tried("both", verdict(N), words="go home", pixels="1" * 64, namespace="forum")
        await it.tried("silent", verdict(N), words="", pixels="3" * 64)
        await it.tried("silent too", verdict(N), words="", pixels="4" * 64)

        async def told(name, **given):
            found = await it.desk.same_memes(await it.desk.case(name), limit=9, **given)
            return {case.trial_id: marks for case, *marks in found}

        return await told("a"), await told("silent"), await told("a", namespaces=frozenset({""}))

    same, silent, own = play(at, work)
    assert same == {"picture": [True, False], "text": [False, True], "both": [True, True]}
    assert silent == {}
    assert set(own) == {"picture", "text"}


def test_saved_searches_are_each_person_s_own(at):
    async def work(it):
        await it.desk.save("ada", " mondays ", {"text": "monday"})
        await it.desk.save("ada", "mondays", {"text": "monday", "label": "HARMFUL"})
        await it.desk.save("bea", "mine", {"reviewer": "bea"})
        for wrong in ("", "x" * 101):
            with pytest.raises(BadRequest, match="name"):
                await it.desk.save("ada", wrong, {})
        before = await it.desk.saved("ada")
        await it.desk.drop("ada", "mondays")
        await it.desk.drop("ada", "never there")
        return before, await it.desk.saved("ada"), await it.desk.saved("bea")

    before, after, others = play(at, work)
    assert before == {"mondays": {"text": "monday", "label": "HARMFUL"}}
    assert after == {} and others == {"mine": {"reviewer": "bea"}}


# Figures, and what is gone


def test_agreement_counts_what_each_said_first(at):
    async def work(it):
        for name in ("a", "b", "c"):
            await it.tried(name, verdict(H, strengths=TIE), pixels=name * 64)
        await it.reviewed("a", "ada", H)
        await it.desk.saw("bea", ["a"])
        await it.reviewed("a", "bea", H, again=True)
        await it.reviewed("b", "ada", N)
        await it.reviewed("b", "bea", H, again=True)
        await it.reviewed("b", "ada", H, again=True)  # having talked
        it.clock.turn(days=2)
        await it.reviewed("c", "ada", H)
        ask = it.desk.agreement
        later = NOON + timedelta(days=1)
        return await ask(), await ask(blind=True), await ask(since=later), await ask(until=later), await ask(drawn=True)

    both, blind, later, earlier, by_chance = play(at, work)
    assert (both.reviewed, both.judgements) == (3, 5)
    assert both.pairs["ada", "bea"].n == 2 and both.pairs["ada", "bea"].observed == 0.5
    assert both.court["ada"].n == 3 and both.court["ada"].observed == pytest.approx(2 / 3)
    assert (blind.judgements, blind.pairs["ada", "bea"].n) == (4, 1)
    assert (later.judgements, earlier.judgements, by_chance.judgements) == (1, 4, 0)


def test_a_person_counts_once_a_trial_whichever_way_they_review_and_not_for_what_is_erased(at):
    async def work(it):
        for name in ("a", "b"):
            await it.tried(name, verdict(H, strengths=TIE), pixels=name * 64)
        said = {"outcome": ReviewOutcome.OVERRULED, "label": N, "reason": "r", "clause": "4", "reviewer": "ada"}
        await it.docket.reviews.review("a", **said, at=NOON)  # as over gRPC
        again = await it.reviewed("a", "ada", H, again=True)
        for who in ("ada", "bea"):
            await it.reviewed("b", who, H, again=True)
        before = await it.desk.agreement()
        await it.docket.eraser.erase("b", who="root", why="asked for", at=NOON)
        return again.blind, before, await it.desk.agreement(), await it.desk.known("reviewer")

    blind, before, after, reviewers = play(at, work)
    assert not blind, "who has reviewed it knows what the court said, whichever way that came"
    assert (before.reviewed, before.judgements, before.court["ada"].observed) == (2, 3, 0.5)
    assert (after.reviewed, after.judgements, after.court["ada"].observed) == (1, 1, 0.0)
    assert reviewers == ["ada"]


def test_a_meme_that_was_tried_again_is_one_meme_of_which_the_first_finding_counts(at):
    """Else a meme that is posted often would make the figures, and their intervals, by itself."""

    async def work(it):
        for name, label in (("a", H), ("b", N), ("c", H)):
            await it.tried(name, verdict(label), words="other words" if name == "c" else "the same words")
        for name, found in (("a", H), ("b", N), ("c", N)):
            await it.reviewed(name, "ada", found, again=True)
        await it.reviewed("b", "bea", N, again=True)
        return await it.desk.agreement()

    found = play(at, work)
    # Ada: harmful of the first meme, as the court in that trial; her word on it in "b" counts no more.
    assert (found.reviewed, found.judgements) == (2, 3)
    assert (found.court["ada"].n, found.court["ada"].observed) == (2, 0.5)
    # Bea saw it in another trial, and is compared with the verdict of that one, and with Ada all the same.
    assert (found.court["bea"].n, found.court["bea"].observed) == (1, 1.0)
    assert (found.pairs["ada", "bea"].n, found.pairs["ada", "bea"].observed) == (1, 0.0)


def test_what_is_erased_is_gone_from_the_desk_and_does_not_come_back(at):
    async def work(it):
        await it.tried("a", verdict(U), words="a very particular text", namespace="forum")
        await it.reviewed("a", "ada", H)
        await it.tried("later", verdict(U), words="another particular text")  # of which the desk knows nothing yet
        with it.docket.transactions.database.writing() as connection:
            desk_tables.forget(connection, "a")
            desk_tables.forget(connection, "later")
        found = await it.desk.find(Search(text="particular"), limit=9), await it.waiting("bea")
        with pytest.raises(TrialUnknown, match="erased"):
            await it.desk.take("a", "bea", again=True)
        return found, await it.desk.case("a"), (await it.desk.agreement()).judgements

    found, case, judgements = play(at, work)
    assert found == ([], []) and judgements == 0
    assert case.erased and case.text == "" and case.namespace == "" and case.reasons == ()


def test_words_that_a_database_can_t_take_are_kept_all_the_same(at):
    async def work(it):
        await it.tried("a", verdict(U), words="nul\0 here", namespace="ea\0st")
        return await it.desk.case("a"), await it.waiting(namespaces=frozenset({"ea\0st"}))

    case, left = play(at, work)
    assert (case.text, case.namespace, left) == ("nul  here", "ea\0st", ["a"])
