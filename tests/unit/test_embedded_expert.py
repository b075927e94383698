"""The expert witness without a generating model: sentences, nearest passages, and optional entailment."""

import asyncio

import pytest

from court.errors import NotLoaded, Unavailable
from court.events import ClaimSettled, ClaimsFound, DocumentWeighed, EvidenceSearched, Procedure
from court.expert.embedded import sentences
from court.ports import Entailed
from court.record import TrialRecord
from court.settings import TrialSettings
from court.trial import Court, TrialCase
from court.verdict import ClaimBasis, ClaimLabel, Label, ReviewReason
from serving.export.page import page
from serving.export.source import ExportSource
from serving.views.recheck import differences
from serving.views.replay import replay
from tests.support import virtual_time
from tests.support.cast import Cast, full_court
from tests.support.evidence import REFUTING, SUPPORTING, TEXT, Expert, FakeEvidence, document, with_expert
from tests.support.fakes import FakeFinder, FakeReader, H, N, RecordingSink, a_meme, findings, ticking_clock

ALWAYS = TrialSettings(expert="always")


class FakeEntailment:
    """Fake entailment model: a premise with "not" contradicts, one with "did" entails."""

    identity = "words"

    def __init__(self, sure=0.9):
        self.sure = sure
        self.pairs = []

    async def infer(self, premise, hypothesis):
        self.pairs.append((premise, hypothesis))
        remainder = 1 - self.sure
        if " not " in premise:
            return Entailed(0.0, remainder, self.sure)
        return Entailed(self.sure, remainder, 0.0) if " did " in premise else Entailed(0.05, 0.9, 0.05)


def a_court(source, *, labels=(N,) * 5, entailment=None, settings=ALWAYS, **changes):
    clock = ticking_clock()
    return Court(
        finder=FakeFinder(findings(labels)),
        text_reader=FakeReader("read"),
        software="test",
        settings=settings,
        evidence_source=source,
        entailment=entailment,
        now=lambda: next(clock),
        **changes,
    )


def run_trial(source, *, text=TEXT, procedure=Procedure.SUMMARY, **options):
    return asyncio.run(a_court(source, **options).hear(TrialCase("t", a_meme(text), procedure), RecordingSink()))


def assert_reproducible(record):
    again = asyncio.run(replay(record))
    assert (again.differences, again.obstacle) == ((), "") and differences(record) == ()


def test_sentences_are_split_at_punctuation_but_not_at_single_line_breaks():
    assert sentences("Blue tea\ncures colds! Ask\nanybody.\n\nA new part") == (
        "Blue tea cures colds!",
        "Ask anybody.",
        "A new part",
    )
    assert sentences("一。二？") == ("一。", "二？")
    assert sentences("") == () and len(sentences("word " * 1000)[0]) <= 300


def test_nearest_passages_are_shown_without_an_entailment_model():
    found = [document("one", f"It is old. {REFUTING}"), document("two"), document("three", "Nothing here.")]
    source = FakeEvidence(found)
    record = run_trial(source, text="Blue tea cures colds! Is it so? Yes. Green tea cures colds, too.")
    assert source.queries == ["Blue tea cures colds!", "Green tea cures colds, too."]
    assert [claim.text for claim in record.last(ClaimsFound).claims] == source.queries
    for finding in record.verdict.claims:
        assert finding.label is ClaimLabel.NOT_ENOUGH and finding.checked and finding.documents == 2
        assert finding.because is ClaimBasis.QUERIES_USED
        assert {passage.quote for passage in finding.evidence} == {REFUTING}
    assert not any(event.calls or event.inference for event in record.all(DocumentWeighed))
    assert "entailment" not in record.opened.settings and record.opened.versions.models == {}
    assert_reproducible(record)


@pytest.mark.parametrize(
    ("texts", "label"),
    [
        ([REFUTING], ClaimLabel.REFUTED),
        ([SUPPORTING], ClaimLabel.SUPPORTED),
        ([REFUTING, SUPPORTING], ClaimLabel.NOT_ENOUGH),
        (["Tea is old."], ClaimLabel.NOT_ENOUGH),
        (["Tea is old.", f"Tea is older. {REFUTING}"], ClaimLabel.REFUTED),
    ],
)
def test_entailment_model_settles_a_claim_by_its_clearest_sentence(texts, label):
    found = [document(str(number), text) for number, text in enumerate(texts)]
    record = run_trial(FakeEvidence(found), entailment=FakeEntailment())
    (finding,) = record.verdict.claims
    assert finding.label is label
    if label is not ClaimLabel.NOT_ENOUGH:
        assert len(finding.evidence) == 1  # the passages that support the label
    inference = record.all(DocumentWeighed)[-1].inference
    assert (
        inference.model == "words"
        and inference.entailment + inference.neutral + inference.contradiction == pytest.approx(1)
    )
    assert record.opened.settings["entailment"] == "words"
    assert_reproducible(record)


def test_inference_below_the_threshold_settles_no_claim():
    record = run_trial(FakeEvidence(), entailment=FakeEntailment(sure=0.79))
    assert record.verdict.claims[0].label is ClaimLabel.NOT_ENOUGH
    record = run_trial(
        FakeEvidence(), entailment=FakeEntailment(sure=0.79), settings=TrialSettings(expert="always", expert_sure=0.7)
    )
    assert record.verdict.claims[0].label is ClaimLabel.REFUTED


def test_refuted_claim_requests_review_and_leaves_the_label_unchanged():
    with_expert_witness = run_trial(FakeEvidence(), entailment=FakeEntailment())
    without = asyncio.run(
        a_court(None, settings=TrialSettings()).hear(TrialCase("t", a_meme(TEXT), Procedure.SUMMARY), RecordingSink())
    )
    assert with_expert_witness.verdict.label is without.verdict.label is Label.NOT_HARMFUL
    assert (
        with_expert_witness.verdict.strengths == without.verdict.strengths
        and with_expert_witness.verdict.risk == without.verdict.risk
    )
    assert ReviewReason.CLAIM_REFUTED in {review.reason for review in with_expert_witness.verdict.review}
    harmful = run_trial(FakeEvidence(), entailment=FakeEntailment(), labels=(H,) * 5)
    assert ReviewReason.CLAIM_REFUTED not in {review.reason for review in harmful.verdict.review}
    assert "blue tea does not shorten a cold" in page(ExportSource(with_expert_witness))


def test_unavailable_evidence_source_requests_review():
    gone = Unavailable("gone", reason="EVIDENCE_GONE")
    for source in (FakeEvidence(search_error=gone), FakeEvidence(read_error=gone)):
        record = run_trial(source, entailment=FakeEntailment())
        assert ReviewReason.CLAIM_UNCHECKED in {review.reason for review in record.verdict.review}
        assert not record.verdict.claims[0].checked
        assert_reproducible(record)


def test_failing_entailment_model_leaves_the_document_unweighed():
    class Failing(FakeEntailment):
        async def infer(self, premise, hypothesis):
            raise Unavailable("gone", reason="INFERENCE_GONE")

    record = run_trial(FakeEvidence(), entailment=Failing())
    assert record.last(DocumentWeighed).failure == "INFERENCE_GONE" and not record.verdict.claims[0].checked


def test_hanging_evidence_source_is_abandoned_after_its_time_limit():
    court = a_court(FakeEvidence(delay_s=10_000), settings=TrialSettings(expert="always", expert_s=5))

    async def work():
        began = asyncio.get_running_loop().time()
        record = await court.hear(TrialCase("t", a_meme(TEXT), Procedure.SUMMARY), RecordingSink())
        return record, asyncio.get_running_loop().time() - began

    record, seconds = virtual_time.run(work())
    assert seconds == pytest.approx(5) and record.last(ClaimSettled).because is ClaimBasis.TIME
    assert ReviewReason.CLAIM_UNCHECKED in {review.reason for review in record.verdict.review}
    assert_reproducible(record)


def test_text_without_a_statement_triggers_no_search():
    source = FakeEvidence()
    for text in ("", "Really?", "Tea. Now."):
        record = run_trial(source, text=text)
        assert source.queries == [] and record.last(ClaimsFound).claims == () and record.verdict.claims == ()


def test_expert_runs_in_a_summary_procedure_only_in_always_mode():
    source = FakeEvidence()
    record = run_trial(source, settings=TrialSettings(expert="asked"))
    assert source.queries == [] and record.last(ClaimsFound) is None
    with pytest.raises(NotLoaded, match="without a source"):
        a_court(None).require(Procedure.SUMMARY)


def test_interrupted_trial_resumes_without_repeating_searches_or_reads():
    found = [document("one"), document("two", SUPPORTING)]
    text = "Blue tea cures colds. Green tea cures colds."
    whole = run_trial(FakeEvidence(found), text=text, entailment=FakeEntailment())
    for cut in range(2, len(whole.events) - 1):
        before = TrialRecord.of(whole.events[:cut])
        source = FakeEvidence(found)
        court = a_court(source, entailment=FakeEntailment())
        record = asyncio.run(court.resume(before, a_meme().picture, RecordingSink()))
        assert len(source.queries) == 2 - len(before.all(EvidenceSearched))
        assert len(source.reads) == 4 - len(before.all(DocumentWeighed))
        assert record.verdict == whole.verdict


def test_escalated_cascade_runs_only_the_expert_of_the_full_trial():
    cast, expert, source = Cast(), Expert(), FakeEvidence()
    unsure = findings([H, N, H, N, H])
    court = full_court(
        cast,
        found=unsure,
        role_models=with_expert(cast, expert),
        evidence_source=source,
        entailment=FakeEntailment(),
        settings=TrialSettings(expert="always", expert_waits=True),
    )
    record = asyncio.run(court.hear(TrialCase("t", a_meme(TEXT), Procedure.CASCADE), RecordingSink()))
    assert len(record.all(ClaimsFound)) == 1 and record.last(ClaimsFound).call is not None
    assert source.queries == ["blue tea colds"] and "claims" in expert.tasks
    assert record.verdict.claims[0].label is ClaimLabel.REFUTED
    assert_reproducible(record)


def test_claims_in_a_script_without_spaces_are_found_and_short_fragments_are_not():
    claim = "蓝茶能治好感冒。"
    found = [document("one", "茶是古老的。蓝茶不能治好感冒。")]
    source = FakeEvidence(found)
    record = run_trial(source, text=f"{claim}哈哈哈！真的吗？")  # noqa: RUF001: as they are written
    assert source.queries == [claim] and [one.text for one in record.last(ClaimsFound).claims] == [claim]
    (passage,) = record.verdict.claims[0].evidence
    assert passage.quote == "蓝茶不能治好感冒。"  # the sentence with more words in common
    assert_reproducible(record)
