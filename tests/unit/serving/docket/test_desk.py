"""The review queue on a real SQLite docket: cases and their priority, locks, reviews, second opinions, search."""

import asyncio
import random
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import text
from statsmodels.stats.inter_rater import cohens_kappa, fleiss_kappa

from court.errors import BadRequest
from court.events import (
    FlipBasis,
    Flips,
    FlipsSought,
    NoteLeft,
    Piece,
    PieceKind,
    ReviewOutcome,
    TriedWithout,
    VerdictReviewed,
)
from court.verdict import Label, ReviewReason, Strength
from retrieval.text import text_key
from serving.docket.errors import NotDecided, TrialUnknown
from serving.docket.review.agreement import agreement, cohen, fleiss
from serving.docket.review.locks import LOCK_MINUTES, AnotherWanted, CaseClosed, CaseTaken, NotLocked
from serving.docket.review.projection import ReviewPriority, Rules, is_sampled, reasons_of
from serving.docket.review.queue import cursor_of
from serving.docket.review.search import CHOICES, KEYS, parse_search
from serving.docket.store import review_tables as desk_tables
from serving.docket.store.bodies import packed
from serving.docket.store.listing import BlindReviewer
from tests.support.desks import NO_SAMPLING, opened_desk, verdict
from tests.support.dockets import NOON, Intercepted
from tests.support.sizes import FULL

H, N, U = Label.HARMFUL, Label.NOT_HARMFUL, Label.UNDECIDED
ACTS = ["take", "take", "take", "renew", "review", "review", "release", "wait"]
OPERATIONS = 5000 if FULL else 150
TIE = (Strength.MODERATE, Strength.MODERATE)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "docket.sqlite"


# Reasons for review.


@pytest.mark.parametrize(
    ("rendered", "priorities"),
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
        (verdict(U, score=0.5), [ReviewPriority.UNDECIDED]),  # UNDECIDED already covers the score
        (
            verdict(H, score=0.3, strengths=TIE, reasons=[ReviewReason.CUT_SHORT, ReviewReason.SCORE_DISAGREES]),
            [ReviewPriority.DISAGREE, ReviewPriority.DISAGREE, ReviewPriority.COURT_ASKS, ReviewPriority.LOW_SCORE],
        ),
    ],
)
def test_reasons_for_review_are_listed_by_urgency(rendered, priorities):
    reasons = reasons_of(rendered, "t", NO_SAMPLING)
    assert [priority for priority, _ in reasons] == priorities
    assert all(len(detail) > 10 for _, detail in reasons)


def test_random_sample_is_deterministic_and_has_the_right_share():
    ids = [f"t{number}" for number in range(20_000)]
    few, more = {t for t in ids if is_sampled(t, 0.02)}, {t for t in ids if is_sampled(t, 0.1)}
    assert 300 < len(few) < 500 and 1800 < len(more) < 2200
    assert few < more
    assert not any(is_sampled(t, 0.0) for t in ids) and all(is_sampled(t, 1.0) for t in ids[:50])
    assert [why for why, _ in reasons_of(verdict(H), "t", Rules(sampled=1.0))] == [ReviewPriority.SAMPLED]


def test_invalid_rules_are_refused():
    for wrong in ({"sure": 0.4}, {"sure": 1.5}, {"sampled": -0.1}, {"sampled": 2}):
        with pytest.raises(ValueError, match="lies in"):
            Rules(**wrong)


# The queue.


async def test_queue_lists_cases_by_urgency(path):
    async with opened_desk(path) as court:
        await court.tried("low", verdict(H, score=0.55), at=NOON)
        await court.tried("open")
        await court.tried("failed", "GONE")
        await court.tried("fine", verdict(H))
        await court.tried("undecided late", verdict(U), at=NOON + timedelta(hours=2))
        await court.tried("undecided", verdict(U), at=NOON + timedelta(hours=1))
        await court.tried("tie", verdict(H, strengths=TIE), namespace="forum")
        pages, after = [], None
        while page := await court.desk.queue("ada", limit=2, after=after):
            pages.append([case.trial_id for case in page])
            after = cursor_of(page[-1])
        low = await court.waiting(why=ReviewPriority.LOW_SCORE)
        forum = await court.waiting(namespaces=frozenset({"forum"}))
        no_namespaces = await court.waiting(namespaces=frozenset())
        counts = await court.desk.counts()
        tie = await court.desk.case("tie")
    assert pages == [["undecided", "undecided late"], ["tie", "low"]]
    assert (low, forum, no_namespaces) == (["low"], ["tie"], [])
    assert counts == {ReviewPriority.UNDECIDED: 2, ReviewPriority.DISAGREE: 1, ReviewPriority.LOW_SCORE: 1}
    assert tie.reasons[0][0] is ReviewPriority.DISAGREE and "both moderate" in tie.reasons[0][1]
    assert (tie.label, tie.holds, tie.outcome, tie.namespace) == (H, H, None, "forum")


@pytest.mark.parametrize(
    ("label", "pieces", "without", "waits"), [(N, 1, H, True), (N, 1, N, False), (N, 2, H, False), (H, 1, N, False)]
)
async def test_acquittal_by_a_single_piece_waits_for_review(path, label, pieces, without, waits):
    async with opened_desk(path) as court:
        for trial_id in ("new", "reviewed"):
            await court.tried(trial_id, verdict(label))
        await court.reviewed("reviewed", "ada", label, again=True)
        gone = (Piece(kind=PieceKind.ACCUSER), Piece(kind=PieceKind.DEFENDER))[:pieces]
        tried = TriedWithout(without=gone, label=without, score=0.7 if without is H else 0.3)
        flips = Flips(basis=FlipBasis.ODDS, label=label, score=0.2, tried=(tried,))
        for trial_id in ("new", "reviewed"):
            await court.docket.writer.append(FlipsSought(trial_id=trial_id, seq=9, at=NOON, flips=flips))
        waiting, reasons = await court.waiting(), (await court.desk.case("new")).reasons
    assert waiting == ["new"] * waits and [why for why, _ in reasons] == [ReviewPriority.COURT_ASKS] * waits
    assert all("Without the accuser's argument" in words and "at least 0.70" in words for _, words in reasons)


async def test_rebuilt_projection_equals_the_former_one(path):
    async with opened_desk(path) as court:
        await court.tried("a", verdict(U))
        await court.tried("b", verdict(H, strengths=TIE))
        await court.reviewed("a", "ada", H)
        await court.desk.take("b", "ada")
        await court.desk.leave_note("b", "ada", "I can't tell.", second_opinion=True)
        state = await court.desk.cases(["a", "b"]), await court.waiting("bea")
        with court.docket.transactions.database.writing() as connection:
            # Locks stay; erasures are replayed from the log.
            for table in (desk_tables.cases, desk_tables.reviews, desk_tables.progress):
                connection.execute(table.delete())
        await court.desk.catch_up()  # notices the reset
        before, after = state, (await court.desk.cases(["a", "b"]), await court.waiting("bea"))
    assert before == after and before[1] == ["b"]


async def test_catching_up_with_a_large_docket_is_bounded_in_time(path):
    class Slow(Intercepted):
        """A slow docket."""

        def __init__(self, docket):
            super().__init__(docket)
            self.gate = asyncio.Event()

        async def entries(self, first, most, kinds=None):
            if first:
                await self.gate.wait()
            return await self._docket.log.entries(first, 3, kinds)

    async with opened_desk(path) as court:
        for name in ("a", "b", "c"):
            await court.tried(name, verdict(U))
        slow = Slow(court.docket)
        desk = court.another_desk(docket=slow, patience_s=0.3)
        complete = await desk.catch_up()
        meanwhile, behind = [case.trial_id for case in await desk.queue("ada", limit=9)], await desk.behind()
        slow.gate.set()
        while not await desk.catch_up():
            pass
        assert (
            complete,
            meanwhile,
            behind,
            [case.trial_id for case in await desk.queue("ada", limit=9)],
            await desk.behind(),
        ) == (False, ["a"], 6, ["a", "b", "c"], 0)


async def test_slower_process_does_not_undo_what_another_has_projected(path):
    class Slow(Intercepted):
        """A docket whose pages arrive late."""

        waiting: list[str] | None = None
        gate = asyncio.Event()

        async def entries(self, first, most, kinds=None):
            entries = await self._docket.log.entries(first, most, kinds)
            if not self.gate.is_set():
                await self.gate.wait()
            elif self.waiting is None:
                self.waiting = await court.waiting("bea")
            return entries

    async with opened_desk(path) as court:
        await court.tried("a", verdict(U))
        slow = Slow(court.docket)
        following = asyncio.create_task(court.another_desk(docket=slow).catch_up())
        await asyncio.sleep(0.05)
        await court.reviewed("a", "ada", H)
        assert await court.waiting("bea") == []
        slow.gate.set()
        assert await following and slow.waiting == []


async def test_altered_entry_does_not_block_other_entries(path, caplog):
    async with opened_desk(path) as court:
        await court.tried("a", verdict(U))
        await court.tried("b", verdict(U))
        with court.docket.transactions.database.writing() as connection:
            connection.execute(text("DROP TRIGGER entries_update"))
            altered = {"body": packed('{"kind":"VerdictGiven"}')}
            connection.execute(text("UPDATE entries SET body = :body WHERE number = 2"), altered)
        assert await court.waiting() == ["b"]
    assert "entry 2 can't be read" in caplog.text


# Locks.


async def test_unknown_open_and_closed_trials_cannot_be_taken(path):
    async with opened_desk(path) as court:
        await court.tried("open")
        await court.tried("fine", verdict(H))
        with pytest.raises(TrialUnknown):
            await court.desk.take("none", "ada")
        with pytest.raises(NotDecided):
            await court.desk.take("open", "ada")
        with pytest.raises(CaseClosed):
            await court.desk.take("fine", "ada")
        assert (await court.desk.take("fine", "ada", reopen=True)).holder == "ada"


async def test_random_operations_keep_one_holder_per_case(path):
    rng = random.Random(3)
    people, trials = ["ada", "bea", "cy"], ["t0", "t1", "t2", "t3"]
    async with opened_desk(path) as court:
        for name in trials:
            await court.tried(name, verdict(U))
        locks, minutes, counts = {}, 0, Counter()
        expected = {name: [] for name in trials}
        for _ in range(OPERATIONS):
            who, name, act = rng.choice(people), rng.choice(trials), rng.choice(ACTS)
            holder, until = locks.get(name, ("", 0))
            holds_lock = holder == who and until > minutes
            free = not holder or holder == who or until <= minutes
            if act == "wait":
                minutes += (by := rng.choice([1, 6, 16]))
                court.clock.turn(minutes=by)
                continue
            allowed = free if act == "take" else holds_lock if act in ("renew", "review") else True
            try:
                if act == "take":
                    await court.desk.take(name, who, reopen=True)
                elif act == "review":
                    await court.desk.review(
                        name, who, label=rng.choice([H, N]), clause="4", reason=f"{len(expected[name])}"
                    )
                else:
                    await getattr(court.desk, act)(name, who)
                counts[act, "done"] += 1
                assert allowed, (act, who, name)
            except (CaseTaken, NotLocked):
                counts[act, "refused"] += 1
                assert not allowed, (act, who, name)
                continue
            if act == "review":
                expected[name].append(who)
            if act in ("take", "renew"):
                locks[name] = (who, minutes + LOCK_MINUTES)
            elif act == "review" or holder == who:
                locks.pop(name, None)
        stored = {
            name: [e.reviewer for e in (await court.docket.trials.record(name)).all(VerdictReviewed)] for name in trials
        }
    assert stored == expected
    for act in ("take", "renew", "review"):  # otherwise the test would be vacuous
        assert counts[act, "done"] > 2 and counts[act, "refused"] > 2, counts


# Reviews.


async def test_review_closes_the_case_and_records_the_outcome(path):
    async with opened_desk(path) as court:
        await court.tried("a", verdict(H, strengths=TIE))
        await court.tried("b", verdict(H, strengths=TIE))
        upheld, overruled = await court.reviewed("a", "ada", H), await court.reviewed("b", "ada", N)
        left, cases = await court.waiting("bea"), await court.desk.cases(["a", "b"])
    assert (upheld.outcome, overruled.outcome) == (ReviewOutcome.UPHELD, ReviewOutcome.OVERRULED)
    assert left == [] and all(case.lock is None and not case.waiting for case in cases.values())
    assert (cases["a"].holds, cases["b"].holds, cases["b"].label) == (H, N, H)
    assert cases["b"].reasons[0][0] is ReviewPriority.DISAGREE  # the reasons stay readable


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"clause": " "}, "clause"),
        ({"clause": "x" * 201}, "clause"),
        ({"reason": ""}, "reason"),
        ({"reason": "x" * 2001}, "reason"),
        ({"label": U}, "label"),
    ],
)
async def test_clause_reason_and_label_are_required(path, changes, field):
    async with opened_desk(path) as court:
        await court.tried("a", verdict(H, strengths=TIE))
        await court.desk.take("a", "ada")
        with pytest.raises(BadRequest) as refused:
            await court.desk.review("a", "ada", **{"label": H, "clause": "4", "reason": "I looked.", **changes})
        named, left, lock = refused.value.field, await court.waiting("bea"), (await court.desk.case("a")).lock
    assert named == field and left == ["a"] and lock.holder == "ada"


async def test_review_before_the_verdict_is_shown_is_marked_as_blind(path):
    async with opened_desk(path) as court:
        for name in ("a", "b"):
            await court.tried(name, verdict(U), pixels=name * 64)
        blind = await court.reviewed("a", "ada", H)
        await court.desk.saw("ada", ["b"])
        await court.desk.saw("ada", ["b"])  # idempotent
        seeing = await court.reviewed("b", "ada", H)
        second = await court.reviewed("a", "ada", N, again=True)  # after the first review she has seen the verdict
        other = await court.reviewed("a", "bea", N, again=True)
        assert [blind.blind, seeing.blind, second.blind, other.blind] == [True, False, False, True]


async def test_record_has_the_whole_review(path):
    async with opened_desk(path) as court:
        await court.tried("a", verdict(H))
        await court.desk.take("a", "ada", reopen=True)
        await court.desk.review("a", "ada", label=N, clause=" 4 ", reason=" Satire of a habit. ")
        review = (await court.docket.trials.record("a")).last(VerdictReviewed)
    assert (review.label, review.clause, review.reason, review.reviewer, review.at) == (
        N,
        "4",
        "Satire of a habit.",
        "ada",
        NOON,
    )


# Second opinions.


async def test_second_opinion_has_to_come_from_another_reviewer(path):
    async with opened_desk(path) as court:
        await court.tried("a", verdict(U))
        await court.desk.take("a", "ada")
        request = await court.desk.leave_note("a", "ada", "Is the costume meant?", second_opinion=True)
        lists = await court.waiting("ada"), await court.waiting("bea")
        case = await court.desk.case("a")
        with pytest.raises(AnotherWanted):
            await court.desk.take("a", "ada")
        await court.reviewed("a", "ada", H, again=True)  # allowed, but it is no second opinion
        still = await court.waiting("bea")
        await court.reviewed("a", "bea", H)
        left, events = await court.waiting("cy"), (await court.docket.trials.record("a")).events[-3:]
    assert lists == ([], ["a"]) and still == ["a"] and left == []
    assert case.asked_by == "ada" and case.lock is None
    assert [why for why, _ in case.reasons] == [ReviewPriority.SECOND_OPINION, ReviewPriority.UNDECIDED]
    assert "Is the costume meant?" in case.reasons[0][1]
    assert events[0] == request and isinstance(request, NoteLeft) and request.by == "ada"
    assert [event.reviewer for event in events[1:]] == ["ada", "bea"]


async def test_third_reviewer_decides_when_two_disagree(path):
    async with opened_desk(path) as court:
        await court.tried("a", verdict(U))
        await court.reviewed("a", "ada", H)
        closed = await court.waiting("bea")
        await court.reviewed("a", "bea", N, again=True)
        case = await court.desk.case("a")
        lists = await court.waiting("ada"), await court.waiting("bea"), await court.waiting("cy")
        await court.reviewed("a", "cy", N)
        left, holds = await court.waiting("dee"), (await court.desk.case("a")).holds
    assert closed == left == [] and holds is N
    assert lists == ([], [], ["a"])
    assert case.reasons[0] == (
        ReviewPriority.REVIEWERS_DISAGREE,
        "ada says harmful, bea says not harmful: a third person decides.",
    )


# Search.


async def test_search_results_meet_all_criteria(path):
    day = timedelta(days=1)
    async with opened_desk(path) as court:
        await court.tried(
            "a", verdict(H, category="nationality", rationale="It shuts them out."), at=NOON,
            words="Blueland GO  HOME", namespace="forum", models=("vl-7b",), description="A boat at sea",
        )  # fmt: skip
        await court.tried("b", verdict(N), at=NOON + day, words="Monday again 100 % _", models=("vl-7b", "vl-72b"))
        await court.tried("c", verdict(U), at=NOON + 2 * day, words="")
        await court.reviewed("b", "ada", H, again=True)

        everything = {
            "": ["c", "b", "a"],
            "home blueland": ["a"],  # words in any order
            "BOAT": ["a"],  # in the description
            "shuts them": ["a"],  # in the rationale
            '"go home"': ["a"],
            '"home go"': [],
            "100 %": ["b"],  # no wildcard
            "_": ["b"],
            "nothing of the kind": [],
            "label:harmful": ["b", "a"],  # the label in force
            "label:not-harmful label:undecided": ["c"],
            "court:not-harmful": ["b"],
            "since:2026-01-03": ["c", "b"],
            "until:2026-01-02": ["a"],
            "namespace:forum": ["a"],
            'namespace:""': ["c", "b"],
            "model:vl-7b": ["b", "a"],
            "model:vl-7": [],  # a part of a name
            "category:nationality": ["a"],
            "reviewer:ada": ["b"],
            "reason:undecided": ["c"],
            "is:waiting": ["c"],
            "is:overruled": ["b"],
            "is:upheld": [],
            "is:unreviewed": ["c", "a"],
            "is:unreviewed is:overruled": [],
            "is:running": [],
            '"content of a"': ["a"],
            'content:"content of b"': ["b"],
            '"r c"': ["c"],  # the id of its request
            "id:a": ["a"],  # the beginning of a trial's id
            "a": ["c", "b", "a"],
            "id:%": [],
            "monday model:vl-72b reviewer:ada": ["b"],
        }
        assert {query: await court.found(query) for query in everything} == everything
        visible = await court.found(namespaces=frozenset({"forum"}))
        overruled = await court.found("label:harmful", namespaces=frozenset({""}))
    assert visible == ["a"] and overruled == ["b"]


async def test_text_search_matches_a_full_scan(path):
    rng = random.Random(11)
    words = ["Blueland", "home", "Monday", "boat", "CAT", "café", "ﬁsh", "ſo"]
    texts = {f"t{i:02}": " ".join(rng.choices(words, k=rng.randrange(0, 5))) for i in range(40)}

    queries = [" ".join(rng.sample(["blue", "home", "MON", "oat", "cafÉ", "fish", "so"], k=2)) for _ in range(30)]
    async with opened_desk(path) as court:
        for name, content in texts.items():
            await court.tried(name, verdict(H, rationale="r"), words=content)
        found = {q: {*await court.found(q)} for q in queries}
    for query, ids in found.items():
        expected = {t for t, content in texts.items() if all(w in text_key(content) for w in text_key(query).split())}
        assert ids == expected, query
    assert any(found.values())


async def test_blinded_reviewer_cannot_search_by_verdict(path):
    async with opened_desk(path) as court:
        await court.tried(
            "waits", verdict(H, score=0.55, rationale="zebra", category="c"), words="stripes", pixels="1" * 64
        )
        await court.tried("fine", verdict(H, rationale="zebra stripes", category="c"), words="spots", pixels="2" * 64)
        searches = ("zebra", "stripes", "zebra stripes", "label:harmful", "category:c", "reason:low-score",
                    "is:waiting", "is:unreviewed", "court:harmful")  # fmt: skip

        async def found(blind=None):
            return [await court.found(one, blind=blind) for one in searches]

        ada, root = BlindReviewer("ada"), BlindReviewer("ada", told_why=True)
        everything, before, admin = await found(), await found(ada), await found(root)
        hidden = await court.desk.hidden_from("ada", ["waits", "fine"])
        elsewhere = await court.desk.hidden_from("ada", ["waits"], frozenset({"forum"}))
        await court.reviewed("waits", "ada", N)
        after = await found(ada)
    both, fine, waits, none = ["waits", "fine"], ["fine"], ["waits"], []
    assert everything == [both, both, both, both, both, waits, waits, both, both]
    assert before == [fine, both, fine, fine, fine, none, waits, fine, fine]
    assert admin == [fine, both, fine, fine, fine, waits, waits, fine, fine], "administrators know why cases wait"
    assert hidden == {"waits"} and elsewhere == {"waits"}
    assert after == [both, both, both, fine, both, waits, none, fine, both], "the label in force has changed"


async def test_trials_with_the_same_picture_or_text_are_found(path):
    async with opened_desk(path) as court:
        await court.tried("a", verdict(H), words="Go home", pixels="1" * 64)
        await court.tried("picture", verdict(H), words="other", pixels="1" * 64)
        await court.tried("text", verdict(N), words="GO  HOME ", pixels="2" * 64)
        await court.tried("both", verdict(N), words="go home", pixels="1" * 64, namespace="forum")
        await court.tried("silent", verdict(N), words="", pixels="3" * 64)
        await court.tried("silent too", verdict(N), words="", pixels="4" * 64)

        async def same_memes(name, **options):
            found = await court.desk.same_memes(await court.desk.case(name), limit=9, **options)
            return {case.trial_id: marks for case, *marks in found}

        same = await same_memes("a")
        silent = await same_memes("silent")
        own = await same_memes("a", namespaces=frozenset({""}))
    assert same == {"picture": [True, False], "text": [False, True], "both": [True, True]}
    assert silent == {}
    assert set(own) == {"picture", "text"}


# Statistics and erasure.


async def test_agreement_counts_first_reviews(path):
    async with opened_desk(path) as court:
        for name in ("a", "b", "c"):
            await court.tried(name, verdict(H, strengths=TIE), pixels=name * 64)
        await court.reviewed("a", "ada", H)
        await court.desk.saw("bea", ["a"])
        await court.reviewed("a", "bea", H, again=True)
        await court.reviewed("b", "ada", N)
        await court.reviewed("b", "bea", H, again=True)
        await court.reviewed("b", "ada", H, again=True)  # changed after a discussion
        court.clock.turn(days=2)
        await court.reviewed("c", "ada", H)
        agreement = court.desk.agreement
        later = NOON + timedelta(days=1)
        both, blind, later, earlier, by_chance = (
            await agreement(),
            await agreement(blind=True),
            await agreement(since=later),
            await agreement(until=later),
            await agreement(drawn=True),
        )
    assert (both.reviewed, both.judgements) == (3, 5)
    assert both.pairs["ada", "bea"].n == 2 and both.pairs["ada", "bea"].observed == 0.5
    assert both.court["ada"].n == 3 and both.court["ada"].observed == pytest.approx(2 / 3)
    assert (blind.judgements, blind.pairs["ada", "bea"].n) == (4, 1)
    assert (later.judgements, earlier.judgements, by_chance.judgements) == (1, 4, 0)


async def test_agreement_counts_each_reviewer_once_and_no_erased_trials(path):
    async with opened_desk(path) as court:
        for name in ("a", "b"):
            await court.tried(name, verdict(H, strengths=TIE), pixels=name * 64)
        review = {"outcome": ReviewOutcome.OVERRULED, "label": N, "reason": "r", "clause": "4", "reviewer": "ada"}
        await court.docket.reviews.review("a", **review, at=NOON)  # as by a gRPC call
        again = await court.reviewed("a", "ada", H, again=True)
        for who in ("ada", "bea"):
            await court.reviewed("b", who, H, again=True)
        before = await court.desk.agreement()
        await court.docket.eraser.erase("b", who="root", why="asked for", at=NOON)
        reviewed = [await court.found(f"reviewer:{who}") for who in ("ada", "bea")]
        blind, after, reviewers = again.blind, await court.desk.agreement(), reviewed
    assert not blind, "a reviewer knows the verdict, however the review was made"
    assert (before.reviewed, before.judgements, before.court["ada"].observed) == (2, 3, 0.5)
    assert (after.reviewed, after.judgements, after.court["ada"].observed) == (1, 1, 0.0)
    assert reviewers == [["a"], []]


async def test_agreement_counts_only_the_first_review_of_a_repeated_meme(path):
    """Otherwise a meme that is posted often would dominate the statistics and their intervals."""
    async with opened_desk(path) as court:
        for name, label in (("a", H), ("b", N), ("c", H)):
            await court.tried(name, verdict(label), words="other words" if name == "c" else "the same words")
        for name, found in (("a", H), ("b", N), ("c", N)):
            await court.reviewed(name, "ada", found, again=True)
        await court.reviewed("b", "bea", N, again=True)
        found = await court.desk.agreement()
    # Ada found the first meme harmful, like the court in that trial; her later review in "b" does not count.
    assert (found.reviewed, found.judgements) == (2, 3)
    assert (found.court["ada"].n, found.court["ada"].observed) == (2, 0.5)
    # Bea reviewed it in another trial: she is compared with that trial's verdict, and still with Ada.
    assert (found.court["bea"].n, found.court["bea"].observed) == (1, 1.0)
    assert (found.pairs["ada", "bea"].n, found.pairs["ada", "bea"].observed) == (1, 0.0)


async def test_erased_trials_leave_the_queue_for_good(path):
    async with opened_desk(path) as court:
        await court.tried("a", verdict(U), words="a very particular text", namespace="forum")
        await court.reviewed("a", "ada", H)
        await court.tried("later", verdict(U), words="another particular text")  # not yet projected
        with court.docket.transactions.database.writing() as connection:
            desk_tables.forget(connection, "a")
            desk_tables.forget(connection, "later")
        found = await court.found("particular"), await court.waiting("bea")
        with pytest.raises(TrialUnknown, match="erased"):
            await court.desk.take("a", "bea", reopen=True)
        case, judgements = await court.desk.case("a"), (await court.desk.agreement()).judgements
    assert found == ([], []) and judgements == 0
    assert case.erased and case.text == "" and case.namespace == "" and case.reasons == ()


async def test_null_characters_are_stored_without_error(path):
    async with opened_desk(path) as court:
        await court.tried("a", verdict(U), words="nul\0 here", namespace="ea\0st")
        case, left = await court.desk.case("a"), await court.waiting(namespaces=frozenset({"ea\0st"}))
    assert (case.text, case.namespace, left) == ("nul  here", "ea\0st", ["a"])


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ()),
        ("  label:harmful   Monday ", ("label:harmful", "Monday")),
        ('content:"post 7" "go home"', ('content:"post 7"', '"go home"')),
        ("LABEL:NOT_HARMFUL", ("label:NOT_HARMFUL",)),
        (r'content:"a \" \\ b"', (r'content:"a \" \\ b"',)),
        ('namespace:""', ('namespace:""',)),
        ('"https://example.org/x"', ('"https://example.org/x"',)),
        ("12:30 :x a:", None),
        ('"an open quotation', (r'"\"an"', "open", "quotation")),
    ],
)
def test_written_terms_are_parsed_to_the_same_search(text, terms):
    if terms is None:
        with pytest.raises(BadRequest):
            parse_search(text)
        return
    found = parse_search(text)
    assert found.terms == terms
    again = parse_search(" ".join(found.terms))
    assert (again.terms, again.which) == (found.terms, found.which)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lable:harmful", f"unknown filter `lable:`; known: {', '.join(KEYS)}."),
        ("https://example.org", "Put words with a colon between quotation marks."),
        ("label:bad", "unknown value `label:bad`; known: harmful, not-harmful, undecided."),
        ("is:", f"known: {', '.join(CHOICES['is'])}."),
        ("content:", "`content:` needs a value"),
        ("content:a content:b", "`content:` stands twice"),
        ("since:yesterday", "`since:` takes a day such as"),
        ("until:2026-02-30", "`until:` takes a day such as"),
        ("since:\u0667d", "`since:` takes a day such as"),
        ("under:2", "`under:` takes the seconds"),
        ("x " * 51, "at most 50"),
        ("x" * 1001, "at most 1,000"),
        ("a\0b", "NUL"),
        ("a\ud800", "UTF-8"),
    ],
)
def test_refusals_say_what_is_wrong_and_what_is_known(text, message):
    with pytest.raises(BadRequest) as refusal:
        parse_search(text)
    assert message in refusal.value.message and refusal.value.field == "q"


def test_values_of_one_filter_are_alternatives_and_filters_add_up():
    which = parse_search("label:harmful label:undecided is:overruled since:7d until:9999-12-31 a b a").which
    assert which.holds == {Label.HARMFUL, Label.UNDECIDED} and {str(each) for each in which.outcomes} == {"OVERRULED"}
    assert which.words == ("a", "b") and which.opened_from is not None and which.opened_until is None
    for key, values in CHOICES.items():
        for value in values:
            assert parse_search(f"{key}:{value}").which != parse_search("").which


def test_kappas_match_statsmodels():
    rng = random.Random(7)
    compared = 0
    for _ in range(60):
        kinds, n = rng.choice([2, 3]), rng.randrange(5, 60)
        labels = [str(kind) for kind in range(kinds)]
        lean = rng.random()
        pairs = []
        for _ in range(n):
            one = rng.choice(labels)
            pairs.append((one, one if rng.random() < lean else rng.choice(labels)))
        if len({a for a, _ in pairs}) < kinds or len({b for _, b in pairs}) < kinds:
            continue
        table = [[sum((a, b) == (x, y) for a, b in pairs) for y in labels] for x in labels]
        reference, own = cohens_kappa(table), cohen(pairs)
        assert own.value == pytest.approx(reference.kappa)
        assert own.low == pytest.approx(max(reference.kappa_low, -1))
        assert own.high == pytest.approx(min(reference.kappa_upp, 1))
        raters = rng.randrange(2, 6)
        memes = [[rng.choice(labels) for _ in range(raters)] for _ in range(n)]
        counted = [[meme.count(label) for label in labels] for meme in memes]
        assert fleiss(memes).value == pytest.approx(fleiss_kappa(counted))
        compared += 1
    assert compared > 30


def test_undefined_kappas_are_none():
    assert cohen([]).value is None and fleiss([]).value is None and fleiss([["y"]]).n == 0
    always = cohen([("y", "y")] * 9)
    assert (always.n, always.observed, always.value) == (9, 1.0, None)
    assert fleiss([["y", "y"], ["y", "y", "y"]]).value is None


def test_agreement_of_reviewers_and_court_matches_hand_counts():
    labels = {
        1: {"ada": "H", "bea": "H"},
        2: {"ada": "N", "bea": "H", "cy": "N"},
        3: {"ada": "N", "bea": "N"},
        4: {"cy": "H"},
        5: {"ada": "H"},
    }
    verdicts = {1: "H", 2: "H", 3: "N", 4: "H", 5: "U"}
    court = {meme: dict.fromkeys(by_reviewer, verdicts[meme]) for meme, by_reviewer in labels.items()}
    found = agreement(labels, court, undecided="U")
    assert (found.reviewed, found.judgements, found.undecided) == (5, 9, 1)
    assert set(found.pairs) == {("ada", "bea"), ("ada", "cy"), ("bea", "cy")}
    assert found.pairs["ada", "bea"] == cohen([("H", "H"), ("N", "H"), ("N", "N")])
    assert found.court["ada"] == cohen([("H", "H"), ("N", "H"), ("N", "N")])
    assert found.court["cy"].n == 2 and found.court_all.n == 8
    assert found.all == fleiss([["H", "H"], ["N", "H", "N"], ["N", "N"]])
