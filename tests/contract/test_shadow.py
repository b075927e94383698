"""A shadow court: it tries after the live court, and only comparisons see its verdicts."""

import asyncio
import json
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
from serving.docket.log.notes import VerifierKey
from serving.docket.open import Docket
from serving.docket.ports import TrialErased
from serving.docket.retention import erase_expired, retention_periods
from serving.docket.store.bodies import GONE, document_owner
from serving.docket.store.erasure import UNFINISHED
from serving.runner.shadow import Shadow, ShadowCourt, shadow_id
from serving.settings import Settings
from tests.support.cast import Cast
from tests.support.dockets import NOON
from tests.support.evidence import REFUTING, TEXT, USELESS, Expert, FakeEvidence, document, expert_settings, with_expert
from tests.support.fakes import FakeFinder, H, N, findings
from tests.support.playing import until
from tests.support.scenes import IMAGE, a_court, a_scene

OTHER = DEFAULT_POLICY.model_copy(update={"version": "candidate"})


class CourtWithShadow:
    """A court over a socket, with a shadow beside it."""

    def __init__(self, it, docket, finder, *, changes, **options):
        self.it, self.docket, self.outcomes = it, docket, []
        court = replace(it.reception._executor.court, policy=OTHER, finder=finder, **changes)
        candidate = ShadowCourt(docket=docket, court_of=lambda _: court, **options)
        self.shadow = Shadow(it.reception._executor, it.reception.admission, candidate, self.outcomes.append)
        it.reception._executor.feed.subscribe(self.shadow.note)
        self.task = asyncio.create_task(self.shadow.run())

    async def judged(self, *texts):
        ids = []
        for text in texts:
            ids.append((await self.it.stub.Judge(JudgeRequest(image=IMAGE, text=text), timeout=120)).verdict_id)
        return ids


def run_with_shadow(tmp_path, work, *, finder=None, court=None, changes=None, **options):
    async def scene():
        docket = Docket.open(tmp_path / "shadow.sqlite")
        try:
            async with a_scene(tmp_path, found=findings([H] * 5), court=court) as it:
                both = CourtWithShadow(
                    it, docket, finder or FakeFinder(findings([N] * 5)), changes=dict(changes or {}), **options
                )
                try:
                    return await work(both)
                finally:
                    both.task.cancel()
                    await asyncio.gather(both.task, return_exceptions=True)
        finally:
            await docket.close()

    return asyncio.run(scene())


def test_a_shadow_tries_the_same_meme_and_leaves_the_court_unchanged(tmp_path):
    async def work(both):
        (trial_id,) = await both.judged("people from Blueland")
        await until(lambda: both.outcomes)
        live, shadow = both.it.docket, await both.docket.trials.record(shadow_id(trial_id))
        record = await live.trials.record(trial_id)
        queue = live.review_queue()
        return record, shadow, await live.index.list(limit=9), await queue.queue("ada", limit=9), both.outcomes

    record, shadow, lines, queue, outcomes = run_with_shadow(tmp_path, work)
    assert outcomes == ["decided"] and shadow.opened.of_trial == record.trial_id == shadow.opened.request_id
    assert (record.verdict.label, shadow.verdict.label) == (Label.HARMFUL, Label.NOT_HARMFUL)
    assert shadow.opened.policy.version == "candidate" and record.opened.policy.version != "candidate"
    assert shadow.text.text == record.text.text and shadow.opened.meme.pixels_sha256 == record.opened.meme.pixels_sha256
    assert [line.trial_id for line in lines] == [record.trial_id]
    assert shadow.trial_id not in {case.trial_id for case in queue}


def test_a_failing_or_hanging_shadow_delays_no_caller(tmp_path):
    class Hanging(FakeFinder):
        async def find(self, **query):
            await asyncio.Event().wait()

    async def work(both):
        first = await both.judged("one")
        await until(lambda: not both.shadow._waiting)
        others = await both.judged("two", "three", "four", "five")
        return first + others, both.outcomes, len(both.shadow._waiting)

    ids, outcomes, waiting = run_with_shadow(tmp_path, work, finder=Hanging(findings([])), waiting=2)
    assert len(set(ids)) == 5 and outcomes == ["dropped", "dropped"] and waiting == 2

    async def failing(both):
        await both.judged("one", "two")
        await until(lambda: len(both.outcomes) == 2)
        lines = await both.docket.index.list(limit=9)
        return both.outcomes, [line.state for line in lines]

    (tmp_path / "other").mkdir()
    outcomes, states = run_with_shadow(tmp_path / "other", failing, finder=FakeFinder(ValueError("broken")))
    assert outcomes == ["failed", "failed"] and set(states) == {TrialState.FAILED}


def test_a_shadow_waits_while_the_court_is_busy(tmp_path, monkeypatch):
    async def work(both):
        admission = both.it.reception.admission
        monkeypatch.setattr(type(admission), "has_room", property(lambda self: False))
        await both.judged("one")
        await asyncio.sleep(0.6)
        assert not both.outcomes and len(both.shadow._waiting) == 1
        monkeypatch.undo()
        await until(lambda: both.outcomes)
        return both.outcomes

    assert run_with_shadow(tmp_path, work) == ["decided"]


def test_a_shadow_reuses_the_evidence_of_the_court_s_witness(tmp_path):
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
        await until(lambda: both.outcomes)
        record = await both.it.docket.trials.record(trial_id)
        return record, await both.docket.trials.record(shadow_id(trial_id))

    record, shadow = run_with_shadow(tmp_path, work, court=court)
    assert len(source.queries) == len(source.reads) == 1
    assert shadow.verdict.claims == record.verdict.claims and record.verdict.claims[0].evidence
    assert shadow.last(EvidenceSearched).source_identity == source.identity

    (tmp_path / "other").mkdir()
    another = FakeEvidence()
    another.identity = "another"  # evidence of another source is not reused
    run_with_shadow(tmp_path / "other", work, court=court, changes={"evidence_source": another})
    assert len(another.queries) == len(another.reads) == 1


def test_a_document_erased_before_the_shadow_s_turn_is_not_used_as_evidence(tmp_path, monkeypatch):
    source = FakeEvidence([document("one"), document("two", f"Two. {REFUTING}")])
    expert = Expert(rank={"order": [1, 2]}, weigh=USELESS)
    cast = Cast(rounds=1)
    court = replace(
        a_court(findings([H] * 5)),
        settings=expert_settings(),
        role_models=with_expert(cast, expert),
        evidence_source=source,
    )

    async def work(both):
        admission = both.it.reception.admission
        # The court uses another way to get a slot: only the shadow checks this property.
        monkeypatch.setattr(type(admission), "has_room", property(lambda self: False))
        request = JudgeRequest(image=IMAGE, text=TEXT, procedure="PROCEDURE_FULL")
        trial_id = (await both.it.stub.Judge(request, timeout=120)).verdict_id
        eraser = both.it.docket.eraser
        await eraser.erase_precedent(document_owner("one"), who="ada", why="asked for", at=NOON)
        earlier, read = len(expert.requests), list(source.reads)
        monkeypatch.undo()
        await until(lambda: both.outcomes)
        return await both.docket.trials.record(shadow_id(trial_id)), expert.requests[earlier:], (read, source.reads)

    shadow, requests, (read, reads) = run_with_shadow(tmp_path, work, court=court)
    assert shadow.state is TrialState.DECIDED
    hits = {hit.id: hit.snippet for hit in shadow.last(EvidenceSearched).hits}
    assert not hits["one"] and hits["two"]
    weighed = {each.document: each for each in shadow.all(DocumentWeighed)}
    assert (weighed["one"].failure, weighed["one"].text) == ("DOCUMENT_ERASED", "")
    assert not weighed["two"].failure and weighed["two"].text == f"Two. {REFUTING}"
    assert read == reads == ["one", "two"], "the source is not asked for it again"
    words = [part for request in requests for part in request.parts if isinstance(part, str)]
    assert words and not any(GONE in part for part in words)


def test_trials_are_sampled_by_id_and_a_larger_share_adds_to_a_smaller(tmp_path):
    def sampled_numbers(share):
        candidate = ShadowCourt(docket=None, court_of=None, share=share)
        shadow = Shadow(None, None, candidate, lambda _: None)
        return {number for number in range(2000) if shadow._is_chosen(f"t{number}")}

    few, more, every = sampled_numbers(0.1), sampled_numbers(0.3), sampled_numbers(1.0)
    assert few < more < every and 150 < len(few) < 250 and len(every) == 2000


def test_erasures_in_the_court_s_docket_are_followed_in_the_shadow_s(tmp_path):
    async def work(both):
        first, second = await both.judged("one", "two")
        await until(lambda: len(both.outcomes) == 2)
        await both.it.docket.eraser.erase(first, who="ada", why="asked for", at=NOON)
        following = asyncio.create_task(both.shadow.follow_erasures(every_s=0.01))
        try:
            async with asyncio.timeout(120):
                while True:
                    try:
                        await both.docket.trials.record(shadow_id(first))
                    except TrialErased:
                        break
                    await asyncio.sleep(0.01)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        # A trial erased before its turn is not tried at all.
        await both.it.docket.eraser.erase(second, who="ada", why="asked for", at=NOON)
        await both.docket.trials.record(shadow_id(second))
        return both.it.docket

    run_with_shadow(tmp_path, work)


def test_erased_precedents_and_documents_are_erased_for_the_shadow_too(tmp_path):
    async def work(both):
        (first,) = await both.judged("one")
        await until(lambda: len(both.outcomes) == 1)
        quoted = (await both.docket.trials.record(shadow_id(first))).precedents.findings.exhibits
        texts = {each.id: each.text for each in quoted}
        gone, stays = list(texts)[:2]
        eraser = both.it.docket.eraser
        await eraser.erase_precedent(gone, who="ada", why="asked for", at=NOON)
        await eraser.erase_precedent(document_owner("report"), who="ada", why="asked for", at=NOON)
        # Erasing a trial also erases the precedent made from it.
        await eraser.erase(first, who="ada", why="asked for", at=NOON, precedents=("made of it",))
        erasures = await both.it.docket.log.entries(0, 1000, {"Erased"})
        assert [await both.shadow._erased_by(each) for each in erasures] == [
            {gone},
            {"document:report"},
            {"made of it"},
        ]

        async def follow():
            following = asyncio.create_task(both.shadow.follow_erasures(every_s=0.01))
            try:
                async with asyncio.timeout(120):
                    while len(await both.docket.log.entries(0, 1000, {"Erased"})) < 4:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    await asyncio.sleep(0.1)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            return await both.docket.log.size()

        assert await follow() == await follow(), "a restart adds no further erasure"
        (second,) = await both.judged("two")
        await until(lambda: len(both.outcomes) == 2)
        again = (await both.docket.trials.record(shadow_id(second))).precedents.findings.exhibits
        shown = {each.id: each.text for each in again}
        assert shown[gone] == GONE and shown[stays] == texts[stays]
        report = await both.docket.auditor.audit([VerifierKey.parse(await both.docket.log.vkey())])
        assert not report.counts.keys() - {"PICTURE_DIFFERS"}, "the pictures of this scene are fakes"

    run_with_shadow(tmp_path, work)


def test_a_candidate_with_witness_guard_and_panel_runs_and_expires(tmp_path):
    cast = Cast()
    guard = GuardModel(RoleModel(ScriptedModel(lambda _: "safe", name="guard-model")), GuardAdapter.LLAMA_GUARD_4)
    changes = {
        "role_models": replace(with_expert(cast, Expert()), guard=guard),
        "evidence_source": FakeEvidence(),
        "settings": expert_settings(judges=3),
    }

    async def work(both):
        (trial_id,) = await both.judged("Blue tea cures colds")
        await until(lambda: both.outcomes)
        live, record = both.it.docket, await both.docket.trials.record(shadow_id(trial_id))
        later = datetime.now(UTC) + timedelta(days=2)
        erased = await erase_expired(live, retention_periods(Settings(retention_days=1)), now=later)
        following = asyncio.create_task(both.shadow.follow_erasures(every_s=0.01))
        try:
            async with asyncio.timeout(120):
                while not (await both.docket.index.list(limit=1))[0].erased:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        keys = [VerifierKey.parse(await both.docket.log.vkey())]
        return both.outcomes, record, erased, await both.docket.auditor.audit(keys)

    outcomes, record, erased, report = run_with_shadow(tmp_path, work, changes=changes, procedure=Procedure.FULL)
    assert outcomes == ["decided"] and record.opened.procedure is Procedure.FULL
    assert record.last(GuardHeard).harmful is False and len(record.all(JudgeRuled)) == 3
    assert [finding.label for finding in record.verdict.claims] == [ClaimLabel.REFUTED]
    assert sum(erased.erased.values()) == 1 and not set(report.counts) - {"PICTURE_DIFFERS"}


def test_a_shadow_that_fails_during_an_erasure_leaves_nothing(tmp_path):
    class Failing(FakeFinder):
        async def find(self, **query):
            await erase_live_trial()
            raise ValueError("broken")

    async def erase_live_trial():
        (line,) = await live[0].index.list(limit=9)
        await live[0].eraser.erase(line.trial_id, who="ada", why="asked for", at=NOON)

    live = []

    async def work(both):
        live.append(both.it.docket)
        await both.judged("one")
        await until(lambda: both.outcomes)
        (line,) = await both.docket.index.list(limit=9)
        return both.outcomes, line

    outcomes, line = run_with_shadow(tmp_path, work, finder=Failing(findings([])))
    assert outcomes == ["failed"] and line.erased and line.state is TrialState.FAILED


def test_an_unfinished_erasure_is_repeated_in_the_shadow_s_docket(tmp_path):
    async def work(both):
        (trial_id,) = await both.judged("one")
        await until(lambda: both.outcomes)
        await both.it.docket.eraser.erase(trial_id, who="ada", why="asked for", at=NOON)
        calls, docket = [], both.docket

        class Eraser:
            async def erase_all(self, trials, **options):
                calls.append(set(trials))
                await docket.eraser.erase_all(trials, **options)
                if len(calls) == 1:
                    raise Unavailable("readers", reason=UNFINISHED)

        hindered = replace(both.shadow._shadow, docket=replace(docket, eraser=Eraser()))
        shadow = Shadow(both.shadow._live, both.shadow._admission, hindered, both.outcomes.append)
        following = asyncio.create_task(shadow.follow_erasures(every_s=0.01))
        try:
            await until(lambda: len(calls) == 2)
            await asyncio.sleep(0.1)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        return trial_id, calls

    trial_id, calls = run_with_shadow(tmp_path, work)
    assert calls == [{shadow_id(trial_id)}] * 2, "not a third time"


def test_the_command_compares_court_and_shadow_and_writes_comparable_runs(tmp_path):
    async def work(both):
        ids = await both.judged(*(f"text {number}" for number in range(8)))
        await until(lambda: len(both.outcomes) == 8)
        for number, trial_id in enumerate(ids[:6]):
            label = Label.NOT_HARMFUL if number % 3 else Label.HARMFUL
            outcome = ReviewOutcome.UPHELD if label is Label.HARMFUL else ReviewOutcome.OVERRULED
            await both.it.docket.reviews.review(
                trial_id, outcome=outcome, label=label, reason="r", clause="1", reviewer="ada", at=NOON
            )

    run_with_shadow(tmp_path, work)

    def invoke(*words):
        return CliRunner().invoke(cli, [*map(str, words)])

    command = ("shadow", tmp_path / "shadow.sqlite", "--docket", tmp_path / "docket.sqlite")
    report = json.loads(invoke(*command, "--json").stdout)
    assert report["pairs"] == 8 and report["reviewed"] == 6 and len(report["different"]) == 8
    assert report["labels"] == [["HARMFUL", "NOT_HARMFUL", 8]]
    made = invoke(*command, "--out", tmp_path / "runs")
    assert made.exit_code == 0, made.output
    assert "same outcome 0.000" in made.output
    compared = invoke("compare", tmp_path / "runs" / "court", tmp_path / "runs" / "shadow", "--json")
    assert compared.exit_code == 0, compared.output
    (comparison,) = json.loads(compared.stdout)["comparisons"]
    assert (comparison["n"], comparison["only_a_right"], comparison["only_b_right"]) == (6, 2, 4)
    none = invoke(*command, "--since", "2999-01-01", "--out", tmp_path / "none")
    assert none.exit_code == 1 and "nothing to compare with" in none.output


def test_a_shadow_s_docket_must_be_another_than_the_court_s():
    with pytest.raises(ValueError, match="recorded apart"):
        Settings(docket="one.sqlite", shadow={"docket": "one.sqlite"})
