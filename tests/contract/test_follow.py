"""A candidate that follows the log of a court: it tries after the court, and only comparisons see its verdicts."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from court.backends.chat.scripted import ScriptedModel
from court.errors import Unavailable
from court.events import DocumentWeighed, EvidenceSearched, GuardHeard, JudgeRuled, Procedure, ReviewOutcome
from court.guard import GuardAdapter
from court.policy import DEFAULT_POLICY
from court.record import TrialState
from court.roles import GuardModel, RoleModel
from court.verdict import ClaimLabel, Label
from eval.cli import cli
from memecourt.v1.court_pb2 import JudgeRequest
from serving.cli.main import cli as court_cli
from serving.docket.errors import TrialErased
from serving.docket.retention import erase_expired, retention_periods
from serving.docket.review.projection import is_sampled
from serving.docket.store.bodies import GONE, document_owner
from serving.docket.store.erasure import UNFINISHED
from serving.judging.executor import TrialExecutor
from serving.judging.follow import Follower, FollowRules, candidate_id
from serving.settings import Settings
from tests.support.cast import Cast
from tests.support.dockets import NOON, audited, opened_docket, with_docket
from tests.support.evidence import REFUTING, TEXT, USELESS, Expert, FakeEvidence, document, expert_settings, with_expert
from tests.support.fakes import FakeFinder, H, N, findings
from tests.support.playing import run_within
from tests.support.scenes import IMAGE, a_court, a_scene

OTHER = DEFAULT_POLICY.model_copy(update={"version": "candidate"})


class FollowedCourt:
    """A court over a socket, and a candidate that follows its docket."""

    def __init__(self, it, docket, finder, *, changes, **rules):
        self.it, self.docket, self.rules = it, docket, FollowRules(**rules)
        executor = it.reception._executor
        court = replace(executor.court, policy=OTHER, finder=finder, duplicates=None, **changes)
        self.executor = TrialExecutor(court, executor.pictures, docket)

    async def judged(self, *texts, **fields):
        ids = []
        for text in texts:
            request = JudgeRequest(image=IMAGE, text=text, **fields)
            ids.append((await self.it.stub.Judge(request, timeout=120)).verdict_id)
        return ids

    async def follow(self, executor=None, **rules):
        """Follows to the end of the log, as a new process does; returns what came out of it, by trial."""
        follower = Follower(self.it.docket, executor or self.executor, replace(self.rules, **rules))
        return {each.trial_id: each async for each in follower.follow()}

    async def tried(self, trial_id):
        return await self.docket.trials.record(candidate_id(trial_id))

    async def erase(self, trial_id, **options):
        await self.it.docket.eraser.erase(trial_id, who="ada", why="asked for", at=NOON, **options)

    async def audit(self):
        return await audited(self.docket)


@asynccontextmanager
async def followed_court(tmp_path, *, finder=None, court=None, changes=None, **rules):
    async with (
        opened_docket(tmp_path / "candidate.sqlite") as docket,
        a_scene(tmp_path, found=findings([H] * 5), court=court) as it,
    ):
        found = finder or FakeFinder(findings([N] * 5))
        yield FollowedCourt(it, docket, found, changes=dict(changes or {}), **rules)


def outcomes(followed):
    return [str(each.outcome) for each in followed.values()]


async def test_a_candidate_tries_the_same_meme_and_leaves_the_court_unchanged(tmp_path):
    async with followed_court(tmp_path) as both:
        (trial_id,) = await both.judged("people from Blueland")
        size = await both.it.docket.log.size()
        followed = await both.follow()
        assert await both.it.docket.log.size() == size, "nothing is stored for the court"
        queue = await both.it.docket.review_queue().queue("ada", limit=9)
        record, new = await both.it.docket.trials.record(trial_id), await both.tried(trial_id)
    assert outcomes(followed) == ["DIFFERENT"] and new.opened.of_trial == record.trial_id == new.opened.request_id
    assert (record.verdict.label, new.verdict.label) == (Label.HARMFUL, Label.NOT_HARMFUL)
    assert new.opened.policy.version == "candidate" and record.opened.policy.version != "candidate"
    assert new.text.text == record.text.text and new.opened.meme.pixels_sha256 == record.opened.meme.pixels_sha256
    assert new.trial_id not in {case.trial_id for case in queue}


async def test_following_goes_on_where_it_ended_and_tries_no_meme_twice(tmp_path):
    async with followed_court(tmp_path) as both:
        one, two = await both.judged("one", "two")
        first = await both.follow()
        (three,) = await both.judged("three")
        second = await both.follow()
        lines = await both.docket.index.list(limit=9)
        ids = [one, two, three]
        first = [*first]
        second = [*second]
        third = outcomes(await both.follow())
        count = len(lines)
    assert (first, second, third, count) == (ids[:2], ids[2:], [], 3)


async def test_a_trial_that_was_cut_off_is_resumed(tmp_path):
    class Hanging(FakeFinder):
        async def find(self, **query):
            searching.set()
            await asyncio.Event().wait()

    searching = asyncio.Event()
    async with followed_court(tmp_path) as both:
        ids = await both.judged("one", "two")
        court = replace(both.executor.court, finder=Hanging(findings([N] * 5)))
        cut = asyncio.create_task(both.follow(replace(both.executor, court=court)))
        await searching.wait()
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        followed = await both.follow()
        record = await both.tried(ids[0])
    assert [*followed] == ids and outcomes(followed) == ["DIFFERENT"] * 2
    assert [event.kind for event in record.events].count("TrialResumed") == 1


async def test_a_failing_candidate_goes_on_with_the_next_meme(tmp_path):
    async with followed_court(tmp_path, finder=FakeFinder(ValueError("broken"))) as both:
        await both.judged("one", "two")
        followed = await both.follow()
        states = [line.state for line in await both.docket.index.list(limit=9)]
    assert outcomes(followed) == ["FAILED", "FAILED"] and set(states) == {TrialState.FAILED}
    assert {each.reason for each in followed.values()} == {"INTERNAL"}


async def test_an_unavailable_docket_loses_no_meme(tmp_path):
    async with followed_court(tmp_path) as both:
        ids = await both.judged("one", "two")

        class Trials:
            async def record(self, trial_id):
                raise Unavailable("gone", reason="DOCKET_UNAVAILABLE")

        follower = Follower(replace(both.it.docket, trials=Trials()), both.executor, both.rules)
        with pytest.raises(Unavailable):
            [each async for each in follower.follow()]
        followed = [*await both.follow()]
    assert followed == ids


async def test_rules_select_trials(tmp_path):
    async with followed_court(tmp_path) as both:
        ids = await both.judged("one", content={"namespace": "forum"})
        ids += await both.judged("two")
        chosen = [*await both.follow(namespace="forum")]
        late = datetime.now(UTC) + timedelta(days=1)
        await both.judged("three")
        late = await both.follow(since=late)
    assert chosen == ids[:1] and late == {}


def test_a_candidate_reuses_the_evidence_of_the_court_s_witness(tmp_path):
    source = FakeEvidence()
    court = replace(
        a_court(findings([H] * 5)),
        settings=expert_settings(),
        role_models=with_expert(Cast(rounds=1), Expert()),
        evidence_source=source,
    )

    async def work(both):
        request = JudgeRequest(image=IMAGE, text=TEXT, procedure="PROCEDURE_FULL")
        trial_id = (await both.it.stub.Judge(request, timeout=120)).verdict_id
        await both.follow()
        record = await both.it.docket.trials.record(trial_id)
        return record, await both.tried(trial_id)

    record, new = run_within(followed_court(tmp_path, court=court), work)
    assert len(source.queries) == len(source.reads) == 1
    assert new.verdict.claims == record.verdict.claims and record.verdict.claims[0].evidence
    assert new.last(EvidenceSearched).source_identity == source.identity

    (tmp_path / "other").mkdir()
    another = FakeEvidence()
    another.identity = "another"  # evidence of another source is not reused
    run_within(followed_court(tmp_path / "other", court=court, changes={"evidence_source": another}), work)
    assert len(another.queries) == len(another.reads) == 1


async def test_a_document_erased_before_the_candidate_s_turn_is_not_used_as_evidence(tmp_path):
    source = FakeEvidence([document("one"), document("two", f"Two. {REFUTING}")])
    expert = Expert(rank={"order": [1, 2]}, weigh=USELESS)
    cast = Cast(rounds=1)
    court = replace(
        a_court(findings([H] * 5)),
        settings=expert_settings(),
        role_models=with_expert(cast, expert),
        evidence_source=source,
    )
    async with followed_court(tmp_path, court=court) as both:
        request = JudgeRequest(image=IMAGE, text=TEXT, procedure="PROCEDURE_FULL")
        trial_id = (await both.it.stub.Judge(request, timeout=120)).verdict_id
        eraser = both.it.docket.eraser
        await eraser.erase_precedent(document_owner("one"), who="ada", why="asked for", at=NOON)
        earlier, read = len(expert.requests), list(source.reads)
        await both.follow()
        new, requests, (read, reads) = await both.tried(trial_id), expert.requests[earlier:], (read, source.reads)
    assert new.state is TrialState.DECIDED
    hits = {hit.id: hit.snippet for hit in new.last(EvidenceSearched).hits}
    assert not hits["one"] and hits["two"]
    weighed = {each.document: each for each in new.all(DocumentWeighed)}
    assert (weighed["one"].failure, weighed["one"].text) == ("DOCUMENT_ERASED", "")
    assert not weighed["two"].failure and weighed["two"].text == f"Two. {REFUTING}"
    assert read == reads == ["one", "two"], "the source is not asked for it again"
    words = [part for request in requests for part in request.parts if isinstance(part, str)]
    assert words and not any(GONE in part for part in words)


def test_trials_are_sampled_by_id_and_a_larger_share_adds_to_a_smaller():
    def numbers(share):
        return {number for number in range(2000) if is_sampled(f"t{number}", share, "memecourt follow")}

    few, more, every = numbers(0.1), numbers(0.3), numbers(1.0)
    assert few < more < every and 150 < len(few) < 250 and len(every) == 2000
    assert few != {number for number in range(2000) if is_sampled(f"t{number}", 0.1)}, "another purpose, another sample"


async def test_trials_outside_the_share_are_skipped_for_good(tmp_path):
    async with followed_court(tmp_path) as both:
        ids = await both.judged(*(f"text {number}" for number in range(12)))
        chosen = [*await both.follow(share=0.3)]
        later = await both.follow(share=1.0)
    assert chosen == [trial_id for trial_id in ids if is_sampled(trial_id, 0.3, "memecourt follow")]
    assert later == {}, "those that were left out are not tried later"


async def test_erased_content_is_left_out_and_erased_for_the_candidate(tmp_path):
    async with followed_court(tmp_path) as both:
        first, second = await both.judged("one", "two")
        await both.erase(second)
        followed = await both.follow()
        assert outcomes(followed) == ["DIFFERENT", "ERASED"]
        await both.erase(first)
        assert await both.follow() == {}
        with pytest.raises(TrialErased):
            await both.tried(first)
        erasures = await both.docket.log.entries(0, 1000, {"Erased"})
        report = await both.audit()
        erased, expected = [each.trial_id for each in erasures], candidate_id(first)
    assert erased == [expected] and not report.counts.keys() - {"PICTURE_DIFFERS"}


async def test_erased_precedents_and_documents_are_erased_for_the_candidate_too(tmp_path):
    async with followed_court(tmp_path) as both:
        (first,) = await both.judged("one")
        await both.follow()
        texts = {each.id: each.text for each in (await both.tried(first)).precedents.findings.exhibits}
        gone, stays = list(texts)[:2]
        eraser = both.it.docket.eraser
        await eraser.erase_precedent(gone, who="ada", why="asked for", at=NOON)
        await eraser.erase_precedent(document_owner("report"), who="ada", why="asked for", at=NOON)
        # Erasing a trial also erases the precedent made from it.
        await both.erase(first, precedents=("made of it",))
        follower = Follower(both.it.docket, both.executor, both.rules)
        erasures = await both.it.docket.log.entries(0, 1000, {"Erased"})
        assert [await follower._buried_by(each) for each in erasures] == [{gone}, {"document:report"}, {"made of it"}]
        await both.follow()
        size = await both.docket.log.size()
        assert len(await both.docket.log.entries(0, 1000, {"Erased"})) == 4
        await both.follow()
        assert await both.docket.log.size() == size, "a restart adds no further erasure"
        (second,) = await both.judged("two")
        await both.follow()
        shown = {each.id: each.text for each in (await both.tried(second)).precedents.findings.exhibits}
        assert shown[gone] == GONE and shown[stays] == texts[stays]
        assert not (await both.audit()).counts.keys() - {"PICTURE_DIFFERS"}, "the pictures of this scene are fakes"


async def test_a_candidate_with_witness_guard_and_panel_runs_and_expires(tmp_path):
    guard = GuardModel(RoleModel(ScriptedModel(lambda _: "safe", name="guard-model")), GuardAdapter.LLAMA_GUARD_4)
    settings = expert_settings(judges=3)
    models = replace(with_expert(Cast(), Expert()), guard=guard)
    changes = {"role_models": models, "evidence_source": FakeEvidence(), "settings": settings}
    court = replace(a_court(findings([H] * 5)), role_models=with_expert(Cast(rounds=1), Expert()))
    async with followed_court(tmp_path, changes=changes, court=court) as both:
        (trial_id,) = await both.judged("Blue tea cures colds", procedure="PROCEDURE_FULL")
        followed, record = await both.follow(), await both.tried(trial_id)
        later = datetime.now(UTC) + timedelta(days=2)
        erased = await erase_expired(both.it.docket, retention_periods(Settings(retention_days=1)), now=later)
        await both.follow()
        (line,) = await both.docket.index.list(limit=9)
        report = await both.audit()
    assert followed and record.verdict is not None and record.opened.procedure is Procedure.FULL
    assert record.last(GuardHeard).harmful is False and len(record.all(JudgeRuled)) == 3
    assert [finding.label for finding in record.verdict.claims] == [ClaimLabel.REFUTED]
    assert sum(erased.erased.values()) == 1 and line.erased and not set(report.counts) - {"PICTURE_DIFFERS"}


async def test_a_candidate_that_fails_during_an_erasure_leaves_nothing(tmp_path):
    class Failing(FakeFinder):
        async def find(self, **query):
            (line,) = await live[0].it.docket.index.list(limit=9)
            await live[0].erase(line.trial_id)
            raise ValueError("broken")

    live = []
    async with followed_court(tmp_path, finder=Failing(findings([]))) as both:
        live.append(both)
        await both.judged("one")
        followed = await both.follow()
        (line,) = await both.docket.index.list(limit=9)
    assert outcomes(followed) == ["FAILED"] and line.erased and line.state is TrialState.FAILED


async def test_an_unfinished_erasure_is_repeated(tmp_path):
    async with followed_court(tmp_path) as both:
        (trial_id,) = await both.judged("one")
        await both.follow()
        await both.erase(trial_id)
        calls, docket = [], both.docket

        class Eraser:
            async def erase_all(self, trials, **options):
                calls.append(set(trials))
                if len(calls) == 1:
                    raise Unavailable("readers", reason=UNFINISHED)
                await docket.eraser.erase_all(trials, **options)

        hindered = replace(both.executor, docket=replace(docket, eraser=Eraser()))
        with pytest.raises(Unavailable):
            await both.follow(hindered)
        await both.follow(hindered)
        await both.follow(hindered)
    assert calls == [{candidate_id(trial_id)}] * 2, "not a third time"


def test_the_command_compares_court_and_candidate_and_writes_comparable_runs(tmp_path):
    async def work(both):
        ids = await both.judged(*(f"text {number}" for number in range(8)))
        await both.follow()
        for number, trial_id in enumerate(ids[:6]):
            label = Label.NOT_HARMFUL if number % 3 else Label.HARMFUL
            outcome = ReviewOutcome.UPHELD if label is Label.HARMFUL else ReviewOutcome.OVERRULED
            await both.it.docket.reviews.review(
                trial_id, outcome=outcome, label=label, reason="r", clause="1", reviewer="ada", at=NOON
            )

    run_within(followed_court(tmp_path), work)

    def invoke(*words):
        return CliRunner().invoke(cli, [*map(str, words)])

    command = ("shadow", tmp_path / "candidate.sqlite", "--docket", tmp_path / "docket.sqlite")
    report = json.loads(invoke(*command, "--json").stdout)
    assert report["pairs"] == 8 and report["reviewed"] == 6 and len(report["different"]) == 8
    assert report["labels"] == [["HARMFUL", "NOT_HARMFUL", 8]]
    assert (report["only_court_right"], report["only_shadow_right"], report["both_right"]) == (2, 4, 0)
    assert report["mcnemar_p"] == pytest.approx(0.6875)
    shown = invoke(*command).output
    assert "same outcome 0.000" in shown and "court 2, 2 of them alone; shadow 4, 4 of them alone" in shown
    assert json.loads(invoke(*command, "--since", "2999-01-01", "--json").stdout)["mcnemar_p"] == 1


def test_unusable_combinations_of_options_are_refused(tmp_path):
    docket = tmp_path / "docket.sqlite"
    with_docket(docket, lambda docket: docket.log.sign())
    for words, message in (
        (("--follow",), "need --into"),
        (("--share", "0.5"), "need --into"),
        (("--into", docket), "another docket"),
        (("--into", tmp_path / "c.sqlite", "label:harmful"), "no other filter"),
        (("--into", tmp_path / "c.sqlite", "--dry-run"), "leave it out"),
    ):
        done = CliRunner().invoke(court_cli, ["rejudge", *map(str, words), "--docket", str(docket)])
        assert done.exit_code in (1, 2) and message in done.output, done.output
    assert not (tmp_path / "c.sqlite").exists()


async def test_yielded_outcomes_count_as_done_when_interrupted_at_once(tmp_path):
    async with followed_court(tmp_path, at_once=2) as both:
        await both.judged("one", "two")
        seen = []

        async def interrupted():
            async for each in Follower(both.it.docket, both.executor, both.rules).follow():
                seen.append(each.trial_id)
                if len(seen) == 2:
                    asyncio.current_task().cancel()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(interrupted())
        later = await both.follow()
    assert len(set(seen)) == 2 and later == {}


@pytest.mark.slow
@pytest.mark.usefixtures("starter_home")
def test_the_command_follows_a_docket_until_ctrl_c_and_goes_on_later(tmp_path):
    court, candidate = tmp_path / "docket.sqlite", tmp_path / "candidate.sqlite"
    environment = {**os.environ, "MEMECOURT_HOME": str(tmp_path), "MEMECOURT_READER": "none"}

    def command(*words):
        return [sys.executable, "-m", "serving.cli", *map(str, words)]

    def judge(text):
        done = subprocess.run(command("judge", "--text", text), env=environment, capture_output=True, check=False)
        assert done.returncode in (0, 10, 11, 12), done.stderr

    def count():
        return with_docket(candidate, lambda docket: docket.index.list(limit=9)) if candidate.exists() else ()

    def follow_until(number):
        following = subprocess.Popen(
            command("rejudge", "--into", candidate, "--follow", "--harm-cost", "50", "--json"),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        lines = [following.stdout.readline() for _ in range(number)]
        following.send_signal(signal.SIGINT)
        rest, error = following.communicate(timeout=120)
        assert following.returncode == 130, error
        return [json.loads(line) for line in [*lines, *rest.splitlines()]]

    judge("people from Blueland are late")
    judge("a kitten sleeps")
    first = follow_until(2)
    judge("another kitten sleeps")
    second = follow_until(1)
    assert {each["outcome"] for each in first + second} <= {"SAME", "DIFFERENT"}
    assert len({each["trial_id"] for each in first + second}) == len(first + second) == 3
    assert len(count()) == 3 and len(with_docket(court, lambda docket: docket.index.list(limit=9))) == 3
