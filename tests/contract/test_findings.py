"""Findings of people by content, over SQLite and PostgreSQL: folded from the log, and gone with what they rest on."""

import asyncio
import itertools
import random
import time
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace

import httpx2
import pytest
from sqlalchemy import delete, update

from court.errors import Unavailable
from court.events import ReviewOutcome, TextRead
from court.in_force import FindingRules, content_key, finding_of
from court.verdict import Label
from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from retrieval.library.writer import LibraryWriter
from serving.access.callers import Scope
from serving.access.tokens import add
from serving.docket.audit.verify import Fault
from serving.docket.open import Docket, open_docket
from serving.docket.review.corrections import Corrections, Overrulings
from serving.docket.store import tables as t
from serving.settings import Settings
from serving.webhooks.messages import messages_of
from tests.support.docket_service import AT, HARMFUL, TIMEOUT, a_scene, a_trial
from tests.support.dockets import NOON, append_all, audited_without_pictures, parse_place, review_trial
from tests.support.libraries import ENCODER, drawn_library
from tests.support.playing import until
from tests.support.real_court import IMAGE, real_court
from tests.support.receivers import hook_settings
from tests.support.service_calls import caller_metadata, refusal_of
from tests.support.sizes import FULL

KEY = content_key("", "p", "b" * 64, "a tame text")
LONG = 36_500


async def overrule(docket, trial_id, reviewer="Ruth"):
    return await review_trial(docket, trial_id, reviewer=reviewer)


async def uphold(docket, trial_id, reviewer="Ruth"):
    return await review_trial(docket, trial_id, ReviewOutcome.UPHELD, Label.HARMFUL, reviewer)


async def decisions(docket):
    return {line.trial_id: str(line.decision) for line in await docket.index.list(limit=10)}


async def label_of(docket, key=KEY):
    found = await docket.findings.get(key)
    return found and found.label


async def test_a_finding_decides_every_trial_of_the_same_content_and_no_other(opening):
    allowed = dict.fromkeys("ab", "allow")
    async with opening() as docket:
        read = [event.model_copy(update={"reader": "eyes"}) if isinstance(event, TextRead) else event
                for event in a_trial("read")]  # fmt: skip
        others = [a_trial("text", text="another"), a_trial("space", namespace="north"), read]
        for events in (a_trial("a"), a_trial("b"), *others):
            await append_all(docket, events)
        await overrule(docket, "a")
        record = await docket.trials.record("b")
        assert record.decision == "allow" and record.verdict == HARMFUL
        assert (record.in_force.by, record.in_force.id, record.in_force.at) == ("PERSON", "a", NOON)
        assert await decisions(docket) == allowed | dict.fromkeys(["text", "space", "read"], "block")


async def test_the_last_of_several_reviews_rules_and_a_disagreement_goes_to_a_third_person(opening):
    async with opening() as docket:
        for trial_id in "ab":
            await append_all(docket, a_trial(trial_id))
        seen = []
        for change in (uphold(docket, "a"), overrule(docket, "b", "Tom"), overrule(docket, "a", "Una")):
            await change
            found = await docket.findings.get(KEY)
            seen.append((found.label, found.trial_id, found.contested, set((await decisions(docket)).values())))
        assert seen == [
            (Label.HARMFUL, "a", False, {"block"}),
            (Label.NOT_HARMFUL, "b", True, {"review"}),
            (Label.NOT_HARMFUL, "a", False, {"allow"}),
        ]


async def test_two_reviews_at_once_leave_exactly_one_finding(opening):
    async with opening() as docket:
        await append_all(docket, a_trial("a"))
        await asyncio.gather(
            *(each(docket, "a", who) for who, each in zip("RSTUVW", [uphold, overrule] * 3, strict=True))
        )
        last = (await docket.trials.record("a")).review
        assert await label_of(docket) is last.label
        assert (await docket.findings.changes(0)).contents == {KEY}


async def test_an_appeal_holds_an_allow_and_leaves_a_block(opening):
    async with opening() as docket:
        await append_all(docket, a_trial("a"))
        appeal = {"by": "platform", "statement": "It is satire.", "reference": "", "at": NOON}
        await docket.reviews.open_appeal("a", **appeal)
        before = await docket.findings.get(KEY)
        assert (before.label, before.contested, await decisions(docket)) == (None, True, {"a": "block"})
        await overrule(docket, "a")
        assert await decisions(docket) == {"a": "allow"}
        await docket.reviews.open_appeal("a", **(appeal | {"statement": "It is not."}))
        assert await decisions(docket) == {"a": "review"}
        # Whoever decided the case does not decide the appeal against that.
        await overrule(docket, "a")
        assert await decisions(docket) == {"a": "review"}
        await overrule(docket, "a", "Tom")
        assert await decisions(docket) == {"a": "allow"}


def test_rules_ask_for_a_second_acquittal_and_may_keep_what_is_contested(using):
    async def write(docket):
        await append_all(docket, a_trial("a"))
        await overrule(docket, "a")

    async def contest(docket):
        assert await decisions(docket) == {"a": "review"}
        await overrule(docket, "a")
        assert await decisions(docket) == {"a": "review"}  # the same person again
        await overrule(docket, "a", "Tom")
        assert (await docket.trials.record("a")).decision == "allow"
        await docket.reviews.open_appeal("a", by="platform", statement="No.", reference="", at=NOON)

    using(write)
    using(contest, rules=FindingRules(acquit_by=2))
    assert using(decisions) == {"a": "review"}
    assert using(decisions, rules=FindingRules(contested="keep")) == {"a": "allow"}


def test_a_finding_under_an_older_policy_says_so_or_asks_again_and_another_policy_never_inherits_it(using):
    def under(trial_id, **policy):
        opened, *rest = a_trial(trial_id)
        return [opened.model_copy(update={"policy": opened.policy.model_copy(update=policy)}), *rest]

    async def write(docket):
        for events in (a_trial("old"), under("new", version="2", digest="sha256:1"), under("other", id="q")):
            await append_all(docket, events)
        await overrule(docket, "old")

    async def read(docket):
        record = await docket.trials.record("new")
        assert record.in_force.older_policy and "older version" in record.in_force.in_words
        return await decisions(docket)

    using(write)
    assert using(read) == {"old": "allow", "new": "allow", "other": "block"}
    assert using(read, rules=FindingRules(older_policy="review")) == {"old": "allow", "new": "review", "other": "block"}


def test_without_known_callers_findings_say_local_and_rule_on_this_machine_alone(tmp_path):
    async def scene(**settings):
        docket = open_docket(Settings(home=tmp_path, **settings))
        try:
            if not await docket.index.list(limit=1):
                await append_all(docket, a_trial("a"))
                await overrule(docket, "a")
            found = (await docket.trials.record("a")).in_force
            return found.by, found.decision, found.local
        finally:
            await docket.close()

    assert asyncio.run(scene()) == ("PERSON", "allow", True)
    assert asyncio.run(scene(tokens=tmp_path / "tokens.toml")) == ("PERSON", "allow", False)
    assert asyncio.run(scene(insecure=["auth"])) == ("COURT", "block", False)


async def test_erasure_takes_the_finding_with_it_and_leaves_an_earlier_one_of_another_trial(opening):
    async with opening() as docket:
        for trial_id in "abc":
            await append_all(docket, a_trial(trial_id))
        await overrule(docket, "a")
        await uphold(docket, "b", "Tom")
        labels = [await label_of(docket)]
        for trial_id in "ba":
            await docket.eraser.erase(trial_id, who="owner", why="asked", at=AT)
            labels.append(await label_of(docket))
        assert (labels, (await decisions(docket))["c"]) == ([Label.HARMFUL, Label.NOT_HARMFUL, None], "block")


async def test_an_expired_trial_may_leave_its_finding_until_a_later_one_or_an_erasure(opening):
    async with opening() as docket:
        for trial_id in "abc":
            await append_all(docket, a_trial(trial_id))
        await uphold(docket, "b")
        await overrule(docket, "a", "Tom")
        expiry = {"who": "retention", "why": "old", "at": AT}
        await docket.eraser.erase_all({"a": ()}, keep_findings_days=LONG, **expiry)
        assert (await docket.trials.record("c")).in_force.label is Label.NOT_HARMFUL
        await docket.eraser.erase("b", who="owner", why="asked", at=AT)
        assert await label_of(docket) is Label.NOT_HARMFUL
        await docket.eraser.erase("a", who="owner", why="asked", at=AT)
        assert await docket.findings.get(KEY) is None
        await uphold(docket, "c")
        await docket.eraser.erase_all({"c": ()}, keep_findings_days=1, **expiry)
        assert await label_of(docket) is None


async def test_a_finding_of_an_expired_trial_ends_with_the_next_one_or_with_its_time(opening):
    async def sound(docket):
        assert not (await audited_without_pictures(docket)).findings
        return await docket.findings.get(KEY)

    async with opening() as docket:
        for trial_id in "abc":
            await append_all(docket, a_trial(trial_id))
        await uphold(docket, "b")
        await overrule(docket, "a", "Tom")
        await docket.eraser.erase_all({"a": ()}, who="r", why="old", at=AT, keep_findings_days=LONG)
        left = await sound(docket)
        await docket.reviews.open_appeal("c", by="platform", statement="It is not.", reference="", at=NOON)
        appealed = await sound(docket)
        assert (appealed.label, appealed.contested, appealed.until) == (Label.NOT_HARMFUL, True, left.until)
        await docket.findings.expire(left.until)
        assert (await sound(docket)).label is Label.HARMFUL  # of b, whose trial is still there
        await overrule(docket, "c", "Una")
        last = await sound(docket)
        assert (last.label, last.trial_id, last.until) == (Label.NOT_HARMFUL, "c", None)
        await docket.eraser.erase_all({"c": ()}, who="r", why="old", at=AT, keep_findings_days=LONG)
        await docket.eraser.erase("c", who="owner", why="asked", at=AT)
        assert (await sound(docket)).label is Label.HARMFUL


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"label": "HARMFUL"}, "another label than the entries give it"),
        ({"contested": True, "notes": "{}"}, "another contested, notes than"),
        ({"content": "f" * 32}, "follows from no entry"),
        ({"until": "2999-01-01T00:00:00.000000+00:00"}, "is kept as that of an expired trial, which has not"),
        (None, "is in the log and not kept"),
    ],
)
async def test_the_check_of_a_docket_names_findings_that_the_log_does_not_give(opening, change, fault):
    async with opening() as docket:
        await append_all(docket, a_trial("a"))
        await overrule(docket, "a")
        with docket.transactions.database.writing() as connection:
            connection.execute(delete(t.findings) if change is None else update(t.findings).values(change))
        report = await audited_without_pictures(docket)
        assert set(report.counts) == {Fault.FINDING_DIFFERS}
        assert "content of trial a" in report.findings[0].text
        assert fault in " ".join(finding.text for finding in report.findings)


async def test_changes_name_what_was_reviewed_contested_or_erased_since(opening):
    async with opening() as docket:
        for trial_id in "ab":
            await append_all(docket, a_trial(trial_id))
        start = (await docket.findings.changes(0)).size
        await overrule(docket, "a")
        reviewed = await docket.findings.changes(start)
        await docket.eraser.erase("a", who="owner", why="asked", at=AT)
        erased = await docket.findings.changes(reviewed.size)
        assert [
            (each.trials, each.contents) for each in (reviewed, erased, await docket.findings.changes(erased.size))
        ] == [({"a"}, {KEY}), ({"a"}, frozenset()), (frozenset(), frozenset())]


@pytest.mark.promise(
    "FI-1", "repost, other text, namespace and server, appeal, erasure: exact content follows the finding"
)
@pytest.mark.slow
async def test_every_answer_about_the_content_follows_the_finding_until_it_is_erased(tmp_path):
    def a_request(request_id, text="my bird sings", **fields):
        return judge_request(IMAGE, text=text, request_id=request_id, **fields)

    async def answered(court, request):
        answer = await court.judge.Judge(request)
        stored = wire.GetVerdictRequest(trial_id=answer.verdict_id)
        assert (await court.judge.GetVerdict(stored)).verdict.decision == answer.decision
        return wire.Authority.Name(answer.in_force.by).removeprefix("AUTHORITY_"), answer.decision, answer

    async with real_court(tmp_path) as court:
        *_, first = await answered(court, a_request("first"))
        assert first.label == wire.LABEL_HARMFUL
        review = wire.ReviewVerdictRequest(
            trial_id=first.verdict_id,
            outcome=wire.REVIEW_OUTCOME_OVERRULED,
            label=wire.LABEL_NOT_HARMFUL,
            reason="I looked.",
            reviewer="ada",
        )
        await court.records.ReviewVerdict(review)
        by, decision, repost = await answered(court, a_request("repost"))
        assert (by, decision, repost.verdict_id, repost.label) == ("PERSON", "allow", first.verdict_id, first.label)
        for request in (a_request("read", text=None), a_request("elsewhere", namespace="north")):
            assert (await answered(court, request))[0] == "COURT"
        by, decision, anew = await answered(court, a_request("anew", try_anew=True))
        assert (by, decision) == ("PERSON", "allow") and anew.verdict_id != first.verdict_id
    async with real_court(tmp_path) as court:
        assert (await answered(court, a_request("restarted")))[:2] == ("PERSON", "allow")
        appeal = wire.OpenAppealRequest(trial_id=first.verdict_id, statement="It mocks us.", by="forum")
        await court.records.OpenAppeal(appeal)
        by, decision, contested = await answered(court, a_request("appealed"))
        assert (by, decision, contested.in_force.contested) == ("PERSON", "review", True)
        await court.docket.eraser.erase(first.verdict_id, who="ada", why="asked", at=NOON)

        async def is_free():
            return (await court.judge.Judge(a_request(""))).in_force.by == wire.AUTHORITY_COURT

        await until(is_free)


def review_until_killed(place, name, pipe):
    """Reviews one trial after the other, by two people at once, of whom one thinks again, until it is killed."""

    async def main():
        docket = Docket.open(parse_place(place))
        for number in itertools.count():
            trial_id = f"{name}-{number}"
            await append_all(docket, a_trial(trial_id, text=trial_id))
            pipe.send(trial_id)
            await asyncio.gather(overrule(docket, trial_id), uphold(docket, trial_id, "Tom"))
            await uphold(docket, trial_id)

    asyncio.run(main())


@pytest.mark.promise("FI-2", "500 kills each in SQLite and PostgreSQL: one finding each, every change announced once")
@pytest.mark.slow
def test_kills_between_reviews_leave_one_finding_for_each_trial_and_announce_each_change_once(
    docket_place, using, forks, tmp_path
):
    chance = random.Random(time.time_ns())
    for kill in range(500 if FULL else 5):
        receiver, sender = forks.Pipe(duplex=False)
        process = forks.Process(target=review_until_killed, args=(docket_place, f"p{kill}", sender))
        process.start()
        for _ in range(chance.randrange(1, 5)):
            receiver.recv()
        time.sleep(chance.random() / 50)
        process.kill()
        process.join()
    hook = hook_settings("https://hooks.example/", tmp_path)

    async def scene(docket):
        entries = await docket.log.entries(0, 10**6)
        reviews = [entry for entry in entries if entry.kind == "VerdictReviewed"]
        subjects = await docket.deliveries.subjects({entry.trial_id for entry in entries})
        messages = [
            each for entry in entries for each in messages_of(entry, subjects[entry.trial_id], hook, docket="d")
        ]
        announced = [each.entry for each in messages if each.event == "memecourt.review.decided"]
        assert announced == [entry.number for entry in reviews]
        for trial_id in subjects:
            record = await docket.trials.record(trial_id)
            found = await docket.findings.get(record.content)
            folded = finding_of(record.events)
            assert (found and (found.label, found.contested, found.at)) == (
                folded and (folded.label, folded.contested, folded.at)
            )
            assert (folded is None) is (trial_id not in {entry.trial_id for entry in reviews})
        return len(reviews)

    assert using(scene)


OVERRULED = {"outcome": wire.REVIEW_OUTCOME_OVERRULED, "label": wire.LABEL_NOT_HARMFUL, "clause": "4"}


@asynccontextmanager
async def correcting(path, overrulings, *, gone=False):
    writer = LibraryWriter(drawn_library(path / "library", 5, 12))

    @contextmanager
    def opened():
        if gone:
            raise Unavailable("The library is away.", reason="LIBRARY_LOCKED")
        yield writer

    async with a_scene(path / "docket.sqlite") as it:
        rulings = Corrections(opened, lambda: ENCODER, it.docket.trials, overrulings)
        it.service.open(SimpleNamespace(docket=it.docket), lambda: it.changes.append(None), rulings)  # type: ignore[arg-type]
        yield it, writer


@pytest.mark.parametrize(("overrulings", "made"), [(Overrulings.ALWAYS, True), (Overrulings.CHOSEN, False)])
async def test_an_overruling_becomes_a_precedent_if_configured(tmp_path, overrulings, made):
    async with correcting(tmp_path, overrulings) as (it, writer):
        await it.tried("t-1", namespace="forum", text="cat dog")
        await it.reviewed("t-1", reason="Satire.", **OVERRULED)
        meme = writer.meme("trial:t-1")
        await it.reviewed("t-1", reason="No satire.")
        first, later = meme, writer.meme("trial:t-1")
    assert (first is not None) is made and later is None
    if made:
        assert (first.label, first.source, first.namespace, first.who) == ("NOT_HARMFUL", "trial:t-1", "forum", "bea")


async def test_a_reviewer_with_the_right_to_change_the_library_may_ask_for_a_precedent(tmp_path):
    async with correcting(tmp_path, Overrulings.CHOSEN) as (it, writer):
        await it.tried("t-1", text="cat dog")

        async def review(caller="", **fields):
            signature = {} if caller else {"reviewer": "bea"}
            request = wire.ReviewVerdictRequest(trial_id="t-1", reason="Satire.", precedent=True, **signature, **fields)
            return await it.stub.ReviewVerdict(request, timeout=TIMEOUT, metadata=caller_metadata(caller))

        refusals = [
            await refusal_of(review("ada", **OVERRULED)),
            await refusal_of(review(outcome=wire.REVIEW_OUTCOME_UPHELD)),
        ]
        assert not await it.docket.log.entries(0, 9, {"VerdictReviewed"})
        made = await review(**OVERRULED)
        refused, meme = [each.summary for each in refusals], writer.meme("trial:t-1")
    assert refused == [
        ("PERMISSION_DENIED", "SCOPE_MISSING", "precedent"),
        ("INVALID_ARGUMENT", "NOT_OVERRULED", "precedent"),
    ]
    assert (made.precedent_id, made.precedent_failure, meme.label) == ("trial:t-1", "", "NOT_HARMFUL")


async def test_a_server_that_makes_no_precedents_refuses_the_choice(tmp_path):
    async with correcting(tmp_path, Overrulings.NEVER) as (it, writer):
        await it.tried("t-1", text="cat dog")
        refusal = await refusal_of(it.reviewed("t-1", precedent=True, **OVERRULED))
        assert (refusal.summary, writer.meme("trial:t-1")) == (("FAILED_PRECONDITION", "NOT_LOADED", "precedent"), None)


async def test_both_scopes_permit_a_precedent_over_http(tmp_path):
    tokens = tmp_path / "tokens.toml"
    secrets = {
        "reviewer": add(tokens, "reviewer", [Scope.REVIEW], None),
        "both": add(tokens, "both", [Scope.JUDGE, Scope.REVIEW, Scope.ADMIN], None),
    }
    bearers = {name: {"authorization": f"Bearer {secret}"} for name, secret in secrets.items()}
    async with (
        real_court(tmp_path, http="127.0.0.1:0", tokens=tokens) as court,
        httpx2.AsyncClient(base_url=court.http, trust_env=False, timeout=120) as web,
    ):
        form = {"files": {"image": ("meme.png", IMAGE, "image/png")}, "data": {"text": "my bird sings"}}
        verdict = (await web.post("/v1/judge", headers=bearers["both"], **form)).json()
        label = "not_harmful" if verdict["label"] == "LABEL_HARMFUL" else "harmful"
        review = {"outcome": "overruled", "label": label, "reason": "I looked.", "precedent": True}
        address = f"/v1/trials/{verdict['verdict_id']}/review"
        refused = await web.post(address, headers=bearers["reviewer"], json=review)
        made = await web.post(address, headers=bearers["both"], json=review)
        name = f"trial:{verdict['verdict_id']}"
    assert (refused.status_code, refused.json()["reason"]) == (403, "SCOPE_MISSING")
    assert made.status_code == 200, made.text
    assert (made.json()["precedent_id"], made.json()["precedent_failure"]) == (name, "")


async def test_a_review_is_stored_even_if_the_library_is_unavailable(tmp_path, caplog):
    async with correcting(tmp_path, Overrulings.ALWAYS, gone=True) as (it, _):
        await it.tried("t-1", text="cat dog")
        request = wire.ReviewVerdictRequest(
            trial_id="t-1", reviewer="bea", reason="Satire.", precedent=True, **OVERRULED
        )
        response, changes = await it.stub.ReviewVerdict(request, timeout=TIMEOUT), len(it.changes)
    assert response.summary.review.label == wire.LABEL_NOT_HARMFUL and changes == 1
    assert (response.precedent_id, response.precedent_failure) == ("", "LIBRARY_LOCKED")
    assert "precedent of trial=t-1 not changed reason=LIBRARY_LOCKED" in caplog.text
