"""A shadow tries after the court, and is seen by nobody but whoever compares."""

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
from court.settings import TrialSettings
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
from tests.contract.scenes import IMAGE, a_court, a_scene
from tests.support.cast import Cast
from tests.support.dockets import NOON
from tests.support.evidence import REFUTING, TEXT, USELESS, Expert, FakeEvidence, always, document, with_expert
from tests.support.fakes import FakeFinder, H, N, findings
from tests.support.playing import until

OTHER = DEFAULT_POLICY.model_copy(update={"version": "candidate"})


class Beside:
    """A court over a socket with a shadow beside it."""

    def __init__(self, it, docket, finder, *, changes, **given):
        self.it, self.docket, self.told = it, docket, []
        court = replace(it.reception._house.court, policy=OTHER, finder=finder, **changes)
        candidate = ShadowCourt(docket=docket, court_of=lambda _: court, **given)
        self.shadow = Shadow(it.reception._house, it.reception.admission, candidate, self.told.append)
        it.reception._house.feed.subscribe(self.shadow.note)
        self.task = asyncio.create_task(self.shadow.run())

    async def judged(self, *texts):
        ids = []
        for text in texts:
            ids.append((await self.it.stub.Judge(JudgeRequest(image=IMAGE, text=text), timeout=120)).verdict_id)
        return ids


def beside(tmp_path, work, *, finder=None, court=None, changes=None, **given):
    async def scene():
        docket = Docket.open(tmp_path / "shadow.sqlite")
        try:
            async with a_scene(tmp_path, found=findings([H] * 5), court=court) as it:
                there = Beside(
                    it, docket, finder or FakeFinder(findings([N] * 5)), changes=dict(changes or {}), **given
                )
                try:
                    return await work(there)
                finally:
                    there.task.cancel()
                    await asyncio.gather(there.task, return_exceptions=True)
        finally:
            await docket.close()

    return asyncio.run(scene())


def test_it_tries_the_same_meme_and_the_court_s_answer_record_and_queue_are_as_without_it(tmp_path):
    async def work(there):
        (trial_id,) = await there.judged("people from Blueland")
        await until(lambda: there.told)
        live, shadow = there.it.docket, await there.docket.trials.record(shadow_id(trial_id))
        record = await live.trials.record(trial_id)
        queue = live.review_queue()
        return record, shadow, await live.index.list(limit=9), await queue.queue("ada", limit=9), there.told

    record, shadow, lines, queue, told = beside(tmp_path, work)
    assert told == ["decided"] and shadow.opened.of_trial == record.trial_id == shadow.opened.request_id
    assert (record.verdict.label, shadow.verdict.label) == (Label.HARMFUL, Label.NOT_HARMFUL)
    assert shadow.opened.policy.version == "candidate" and record.opened.policy.version != "candidate"
    assert shadow.text.text == record.text.text and shadow.opened.meme.pixels_sha256 == record.opened.meme.pixels_sha256
    assert [line.trial_id for line in lines] == [record.trial_id]
    assert shadow.trial_id not in {case.trial_id for case in queue}


def test_a_shadow_that_fails_or_hangs_holds_nobody_up(tmp_path):
    class Hanging(FakeFinder):
        async def find(self, **query):
            await asyncio.Event().wait()

    async def work(there):
        first = await there.judged("one")
        await until(lambda: not there.shadow._waiting)
        rest = await there.judged("two", "three", "four", "five")
        return first + rest, there.told, len(there.shadow._waiting)

    ids, told, waiting = beside(tmp_path, work, finder=Hanging(findings([])), waiting=2)
    assert len(set(ids)) == 5 and told == ["dropped", "dropped"] and waiting == 2

    async def failing(there):
        await there.judged("one", "two")
        await until(lambda: len(there.told) == 2)
        lines = await there.docket.index.list(limit=9)
        return there.told, [line.state for line in lines]

    (tmp_path / "other").mkdir()
    told, states = beside(tmp_path / "other", failing, finder=FakeFinder(ValueError("broken")))
    assert told == ["failed", "failed"] and set(states) == {TrialState.FAILED}


def test_it_waits_while_the_court_is_busy(tmp_path, monkeypatch):
    async def work(there):
        admission = there.it.reception.admission
        monkeypatch.setattr(type(admission), "has_room", property(lambda self: False))
        await there.judged("one")
        await asyncio.sleep(0.6)
        assert not there.told and len(there.shadow._waiting) == 1
        monkeypatch.undo()
        await until(lambda: there.told)
        return there.told

    assert beside(tmp_path, work) == ["decided"]


def test_what_the_court_s_witness_searched_and_read_is_not_searched_and_read_again(tmp_path):
    source = FakeEvidence()
    court = replace(a_court(findings([H] * 5)), settings=TrialSettings(expert="always"), evidence_source=source)

    async def work(there):
        (trial_id,) = await there.judged(TEXT)
        await until(lambda: there.told)
        record = await there.it.docket.trials.record(trial_id)
        return record, await there.docket.trials.record(shadow_id(trial_id))

    record, shadow = beside(tmp_path, work, court=court)
    assert len(source.queries) == len(source.reads) == 1
    assert shadow.verdict.claims == record.verdict.claims and record.verdict.claims[0].evidence
    assert shadow.last(EvidenceSearched).source_identity == source.identity

    (tmp_path / "other").mkdir()
    another = FakeEvidence()
    another.identity = "another"  # what another source found is not taken for what this one would
    beside(tmp_path / "other", work, court=court, changes={"evidence_source": another})
    assert len(another.queries) == len(another.reads) == 1


def test_a_document_erased_before_the_shadow_s_turn_is_no_evidence_there_and_its_record_says_so(tmp_path, monkeypatch):
    source = FakeEvidence([document("one"), document("two", f"Two. {REFUTING}")])
    expert = Expert(rank={"order": [1, 2]}, weigh=USELESS)
    cast = Cast(rounds=1)
    court = replace(
        a_court(findings([H] * 5)),
        settings=always(),
        chairs=with_expert(cast, expert),
        evidence_source=source,
    )

    async def work(there):
        admission = there.it.reception.admission
        # The court's own turn comes by another way: only the shadow looks at this.
        monkeypatch.setattr(type(admission), "has_room", property(lambda self: False))
        request = JudgeRequest(image=IMAGE, text=TEXT, procedure="PROCEDURE_FULL")
        trial_id = (await there.it.stub.Judge(request, timeout=120)).verdict_id
        eraser = there.it.docket.eraser
        await eraser.erase_precedent(document_owner("one"), who="ada", why="asked for", at=NOON)
        asked, read = len(expert.requests), list(source.reads)
        monkeypatch.undo()
        await until(lambda: there.told)
        return await there.docket.trials.record(shadow_id(trial_id)), expert.requests[asked:], (read, source.reads)

    shadow, requests, (read, reads) = beside(tmp_path, work, court=court)
    assert shadow.state is TrialState.DECIDED
    hits = {hit.id: hit.snippet for hit in shadow.last(EvidenceSearched).hits}
    assert not hits["one"] and hits["two"]
    weighed = {each.document: each for each in shadow.all(DocumentWeighed)}
    assert (weighed["one"].failure, weighed["one"].text) == ("DOCUMENT_ERASED", "")
    assert not weighed["two"].failure and weighed["two"].text == f"Two. {REFUTING}"
    assert read == reads == ["one", "two"], "nor is the source asked for it again"
    words = [part for request in requests for part in request.parts if isinstance(part, str)]
    assert words and not any(GONE in part for part in words)


def test_a_share_is_chosen_by_the_trial_s_id_and_a_larger_one_adds_to_it(tmp_path):
    def chosen(share):
        candidate = ShadowCourt(docket=None, court_of=None, share=share)
        shadow = Shadow(None, None, candidate, lambda _: None)
        return {number for number in range(2000) if shadow._is_chosen(f"t{number}")}

    few, more, every = chosen(0.1), chosen(0.3), chosen(1.0)
    assert few < more < every and 150 < len(few) < 250 and len(every) == 2000


def test_what_is_erased_from_the_court_s_docket_is_erased_from_the_shadow_s(tmp_path):
    async def work(there):
        first, second = await there.judged("one", "two")
        await until(lambda: len(there.told) == 2)
        await there.it.docket.eraser.erase(first, who="ada", why="asked for", at=NOON)
        following = asyncio.create_task(there.shadow.follow_erasures(every_s=0.01))
        try:
            async with asyncio.timeout(120):
                while True:
                    try:
                        await there.docket.trials.record(shadow_id(first))
                    except TrialErased:
                        break
                    await asyncio.sleep(0.01)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        # One that was erased before its turn is not tried at all.
        await there.it.docket.eraser.erase(second, who="ada", why="asked for", at=NOON)
        await there.docket.trials.record(shadow_id(second))
        return there.it.docket

    beside(tmp_path, work)


def test_precedents_and_documents_that_are_erased_are_erased_from_the_shadow_s_docket_too(tmp_path):
    async def work(there):
        (first,) = await there.judged("one")
        await until(lambda: len(there.told) == 1)
        quoted = (await there.docket.trials.record(shadow_id(first))).precedents.findings.exhibits
        texts = {each.id: each.text for each in quoted}
        gone, stays = list(texts)[:2]
        eraser = there.it.docket.eraser
        await eraser.erase_precedent(gone, who="ada", why="asked for", at=NOON)
        await eraser.erase_precedent(document_owner("report"), who="ada", why="asked for", at=NOON)
        # A trial goes with the precedent that it was made into.
        await eraser.erase(first, who="ada", why="asked for", at=NOON, precedents=("made of it",))
        erasures = await there.it.docket.log.entries(0, 1000, {"Erased"})
        assert [await there.shadow._erased_by(each) for each in erasures] == [
            {gone},
            {"document:report"},
            {"made of it"},
        ]

        async def followed():
            following = asyncio.create_task(there.shadow.follow_erasures(every_s=0.01))
            try:
                async with asyncio.timeout(120):
                    while len(await there.docket.log.entries(0, 1000, {"Erased"})) < 4:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    await asyncio.sleep(0.1)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            return await there.docket.log.size()

        assert await followed() == await followed(), "once: another start adds nothing"
        (second,) = await there.judged("two")
        await until(lambda: len(there.told) == 2)
        again = (await there.docket.trials.record(shadow_id(second))).precedents.findings.exhibits
        shown = {each.id: each.text for each in again}
        assert shown[gone] == GONE and shown[stays] == texts[stays]
        report = await there.docket.auditor.audit([VerifierKey.parse(await there.docket.log.vkey())])
        assert not report.counts.keys() - {"PICTURE_DIFFERS"}, "pictures of this scene are not decoded"

    beside(tmp_path, work)


def test_a_candidate_with_witness_guard_and_panel_tries_in_full_and_its_record_goes_by_age_too(tmp_path):
    cast = Cast()
    guard = GuardModel(RoleModel(ScriptedModel(lambda _: "safe", name="guard-model")), GuardAdapter.LLAMA_GUARD_4)
    changes = {
        "chairs": replace(with_expert(cast, Expert()), guard=guard),
        "evidence_source": FakeEvidence(),
        "settings": always(judges=3),
    }

    async def work(there):
        (trial_id,) = await there.judged("Blue tea cures colds")
        await until(lambda: there.told)
        live, record = there.it.docket, await there.docket.trials.record(shadow_id(trial_id))
        later = datetime.now(UTC) + timedelta(days=2)
        erased = await erase_expired(live, retention_periods(Settings(retention_days=1)), now=later)
        following = asyncio.create_task(there.shadow.follow_erasures(every_s=0.01))
        try:
            async with asyncio.timeout(120):
                while not (await there.docket.index.list(limit=1))[0].erased:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        keys = [VerifierKey.parse(await there.docket.log.vkey())]
        return there.told, record, erased, await there.docket.auditor.audit(keys)

    told, record, erased, report = beside(tmp_path, work, changes=changes, procedure=Procedure.FULL)
    assert told == ["decided"] and record.opened.procedure is Procedure.FULL
    assert record.last(GuardHeard).harmful is False and len(record.all(JudgeRuled)) == 3
    assert [finding.label for finding in record.verdict.claims] == [ClaimLabel.REFUTED]
    assert sum(erased.erased.values()) == 1 and not set(report.counts) - {"PICTURE_DIFFERS"}


def test_a_trial_that_fails_while_the_court_s_is_erased_leaves_nothing(tmp_path):
    class Failing(FakeFinder):
        async def find(self, **query):
            await erasing()
            raise ValueError("broken")

    async def erasing():
        (line,) = await live[0].index.list(limit=9)
        await live[0].eraser.erase(line.trial_id, who="ada", why="asked for", at=NOON)

    live = []

    async def work(there):
        live.append(there.it.docket)
        await there.judged("one")
        await until(lambda: there.told)
        (line,) = await there.docket.index.list(limit=9)
        return there.told, line

    told, line = beside(tmp_path, work, finder=Failing(findings([])))
    assert told == ["failed"] and line.erased and line.state is TrialState.FAILED


def test_what_files_still_hold_of_an_erased_trial_is_erased_again(tmp_path):
    async def work(there):
        (trial_id,) = await there.judged("one")
        await until(lambda: there.told)
        await there.it.docket.eraser.erase(trial_id, who="ada", why="asked for", at=NOON)
        calls, docket = [], there.docket

        class Eraser:
            async def erase_all(self, trials, **given):
                calls.append(set(trials))
                await docket.eraser.erase_all(trials, **given)
                if len(calls) == 1:
                    raise Unavailable("readers", reason=UNFINISHED)

        hindered = replace(there.shadow._shadow, docket=replace(docket, eraser=Eraser()))
        shadow = Shadow(there.shadow._live, there.shadow._admission, hindered, there.told.append)
        following = asyncio.create_task(shadow.follow_erasures(every_s=0.01))
        try:
            await until(lambda: len(calls) == 2)
            await asyncio.sleep(0.1)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        return trial_id, calls

    trial_id, calls = beside(tmp_path, work)
    assert calls == [{shadow_id(trial_id)}] * 2, "and not a third time"


def test_the_command_sets_both_side_by_side_and_makes_runs_that_can_be_compared(tmp_path):
    async def work(there):
        ids = await there.judged(*(f"text {number}" for number in range(8)))
        await until(lambda: len(there.told) == 8)
        for number, trial_id in enumerate(ids[:6]):
            label = Label.NOT_HARMFUL if number % 3 else Label.HARMFUL
            outcome = ReviewOutcome.UPHELD if label is Label.HARMFUL else ReviewOutcome.OVERRULED
            await there.it.docket.reviews.review(
                trial_id, outcome=outcome, label=label, reason="r", clause="1", reviewer="ada", at=NOON
            )

    beside(tmp_path, work)

    def invoke(*words):
        return CliRunner().invoke(cli, [*map(str, words)])

    command = ("shadow", tmp_path / "shadow.sqlite", "--docket", tmp_path / "docket.sqlite")
    told = json.loads(invoke(*command, "--json").stdout)
    assert told["pairs"] == 8 and told["reviewed"] == 6 and len(told["different"]) == 8
    assert told["labels"] == [["HARMFUL", "NOT_HARMFUL", 8]]
    made = invoke(*command, "--out", tmp_path / "runs")
    assert made.exit_code == 0, made.output
    assert "same outcome 0.000" in made.output
    compared = invoke("compare", tmp_path / "runs" / "court", tmp_path / "runs" / "shadow", "--json")
    assert compared.exit_code == 0, compared.output
    (comparison,) = json.loads(compared.stdout)["comparisons"]
    assert (comparison["n"], comparison["only_a_right"], comparison["only_b_right"]) == (6, 2, 4)
    none = invoke(*command, "--since", "2999-01-01", "--out", tmp_path / "none")
    assert none.exit_code == 1 and "nothing to compare with" in none.output


def test_its_docket_is_another_one():
    with pytest.raises(ValueError, match="recorded apart"):
        Settings(docket="one.sqlite", shadow={"docket": "one.sqlite"})
