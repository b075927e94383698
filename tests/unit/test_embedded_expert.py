"""An expert witness where no model is asked to write: sentences, nearest passages, and inference where there is any."""

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
from tests.support.fakes import FakeFinder, FakeReader, H, N, Notes, a_meme, findings, ticking

ALWAYS = TrialSettings(expert="always")


class Words:
    """Infers by words: what says "not" contradicts, what says "did" entails."""

    identity = "words"

    def __init__(self, sure=0.9):
        self.sure = sure
        self.pairs = []

    async def infer(self, premise, hypothesis):
        self.pairs.append((premise, hypothesis))
        rest = 1 - self.sure
        if " not " in premise:
            return Entailed(0.0, rest, self.sure)
        return Entailed(self.sure, rest, 0.0) if " did " in premise else Entailed(0.05, 0.9, 0.05)


def a_court(source, *, labels=(N,) * 5, entailment=None, settings=ALWAYS, **changes):
    clock = ticking()
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


def tried(source, *, text=TEXT, procedure=Procedure.SUMMARY, **options):
    return asyncio.run(a_court(source, **options).hear(TrialCase("t", a_meme(text), procedure), Notes()))


def holds(record):
    again = asyncio.run(replay(record))
    assert (again.differences, again.obstacle) == ((), "") and differences(record) == ()


def test_sentences_are_told_apart_and_a_line_break_on_a_meme_is_none():
    assert sentences("Blue tea\ncures colds! Ask\nanybody.\n\nA new part") == (
        "Blue tea cures colds!",
        "Ask anybody.",
        "A new part",
    )
    assert sentences("一。二？") == ("一。", "二？")
    assert sentences("") == () and len(sentences("word " * 1000)[0]) <= 300


def test_without_a_model_the_nearest_passages_are_shown_and_nothing_is_settled():
    found = [document("one", f"It is old. {REFUTING}"), document("two"), document("three", "Nothing here.")]
    source = FakeEvidence(found)
    record = tried(source, text="Blue tea cures colds! Is it so? Yes. Green tea cures colds, too.")
    assert source.queries == ["Blue tea cures colds!", "Green tea cures colds, too."]
    assert [claim.text for claim in record.last(ClaimsFound).claims] == source.queries
    for finding in record.verdict.claims:
        assert finding.label is ClaimLabel.NOT_ENOUGH and finding.checked and finding.documents == 2
        assert finding.because is ClaimBasis.QUERIES_USED
        assert {passage.quote for passage in finding.evidence} == {REFUTING}
    assert not any(event.calls or event.inference for event in record.all(DocumentWeighed))
    assert "entailment" not in record.opened.settings and record.opened.versions.models == {}
    holds(record)


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
def test_with_one_a_claim_is_settled_by_the_sentence_that_speaks_most_clearly(texts, label):
    found = [document(str(number), text) for number, text in enumerate(texts)]
    record = tried(FakeEvidence(found), entailment=Words())
    (finding,) = record.verdict.claims
    assert finding.label is label
    if label is not ClaimLabel.NOT_ENOUGH:
        assert len(finding.evidence) == 1  # the passages that it rests on
    given = record.all(DocumentWeighed)[-1].inference
    assert given.model == "words" and given.entailment + given.neutral + given.contradiction == pytest.approx(1)
    assert record.opened.settings["entailment"] == "words"
    holds(record)


def test_what_a_model_is_not_sure_of_settles_nothing():
    record = tried(FakeEvidence(), entailment=Words(sure=0.79))
    assert record.verdict.claims[0].label is ClaimLabel.NOT_ENOUGH
    record = tried(
        FakeEvidence(), entailment=Words(sure=0.79), settings=TrialSettings(expert="always", expert_sure=0.7)
    )
    assert record.verdict.claims[0].label is ClaimLabel.REFUTED


def test_a_refuted_claim_calls_a_person_and_changes_no_label():
    with_it = tried(FakeEvidence(), entailment=Words())
    without = asyncio.run(
        a_court(None, settings=TrialSettings()).hear(TrialCase("t", a_meme(TEXT), Procedure.SUMMARY), Notes())
    )
    assert with_it.verdict.label is without.verdict.label is Label.NOT_HARMFUL
    assert with_it.verdict.strengths == without.verdict.strengths and with_it.verdict.risk == without.verdict.risk
    assert ReviewReason.CLAIM_REFUTED in {review.reason for review in with_it.verdict.review}
    harmful = tried(FakeEvidence(), entailment=Words(), labels=(H,) * 5)
    assert ReviewReason.CLAIM_REFUTED not in {review.reason for review in harmful.verdict.review}
    assert "blue tea does not shorten a cold" in page(ExportSource(with_it))


def test_a_source_that_is_gone_calls_a_person():
    gone = Unavailable("gone", reason="EVIDENCE_GONE")
    for source in (FakeEvidence(search_error=gone), FakeEvidence(read_error=gone)):
        record = tried(source, entailment=Words())
        assert ReviewReason.CLAIM_UNCHECKED in {review.reason for review in record.verdict.review}
        assert not record.verdict.claims[0].checked
        holds(record)


def test_a_model_that_fails_leaves_its_document_unweighed():
    class Failing(Words):
        async def infer(self, premise, hypothesis):
            raise Unavailable("gone", reason="INFERENCE_GONE")

    record = tried(FakeEvidence(), entailment=Failing())
    assert record.last(DocumentWeighed).failure == "INFERENCE_GONE" and not record.verdict.claims[0].checked


def test_a_source_that_hangs_is_left_when_its_time_is_over():
    court = a_court(FakeEvidence(delay_s=10_000), settings=TrialSettings(expert="always", expert_s=5))

    async def work():
        began = asyncio.get_running_loop().time()
        record = await court.hear(TrialCase("t", a_meme(TEXT), Procedure.SUMMARY), Notes())
        return record, asyncio.get_running_loop().time() - began

    record, seconds = virtual_time.run(work())
    assert seconds == pytest.approx(5) and record.last(ClaimSettled).because is ClaimBasis.TIME
    assert ReviewReason.CLAIM_UNCHECKED in {review.reason for review in record.verdict.review}
    holds(record)


def test_a_text_without_a_statement_is_not_searched_for():
    source = FakeEvidence()
    for text in ("", "Really?", "Tea. Now."):
        record = tried(source, text=text)
        assert source.queries == [] and record.last(ClaimsFound).claims == () and record.verdict.claims == ()


def test_nobody_can_call_it_in_a_summary_so_only_always_does():
    source = FakeEvidence()
    record = tried(source, settings=TrialSettings(expert="asked"))
    assert source.queries == [] and record.last(ClaimsFound) is None
    with pytest.raises(NotLoaded, match="without a source"):
        a_court(None).require(Procedure.SUMMARY)


def test_a_trial_that_is_cut_off_anywhere_searches_and_reads_nothing_twice():
    found = [document("one"), document("two", SUPPORTING)]
    text = "Blue tea cures colds. Green tea cures colds."
    whole = tried(FakeEvidence(found), text=text, entailment=Words())
    for cut in range(2, len(whole.events) - 1):
        before = TrialRecord.of(whole.events[:cut])
        source = FakeEvidence(found)
        court = a_court(source, entailment=Words())
        record = asyncio.run(court.resume(before, a_meme().picture, Notes()))
        assert len(source.queries) == 2 - len(before.all(EvidenceSearched))
        assert len(source.reads) == 4 - len(before.all(DocumentWeighed))
        assert record.verdict == whole.verdict


def test_a_cascade_that_goes_on_has_the_witness_of_the_full_trial_and_no_other():
    cast, expert, source = Cast(), Expert(), FakeEvidence()
    unsure = findings([H, N, H, N, H])
    court = full_court(
        cast,
        found=unsure,
        chairs=with_expert(cast, expert),
        evidence_source=source,
        entailment=Words(),
        settings=TrialSettings(expert="always", expert_waits=True),
    )
    record = asyncio.run(court.hear(TrialCase("t", a_meme(TEXT), Procedure.CASCADE), Notes()))
    assert len(record.all(ClaimsFound)) == 1 and record.last(ClaimsFound).call is not None
    assert source.queries == ["blue tea colds"] and "claims" in expert.tasks
    assert record.verdict.claims[0].label is ClaimLabel.REFUTED
    holds(record)


def test_a_claim_in_a_script_without_spaces_is_one_and_a_few_characters_are_none():
    claim = "蓝茶能治好感冒。"
    found = [document("one", "茶是古老的。蓝茶不能治好感冒。")]
    source = FakeEvidence(found)
    record = tried(source, text=f"{claim}哈哈哈！真的吗？")  # noqa: RUF001: as they are written
    assert source.queries == [claim] and [one.text for one in record.last(ClaimsFound).claims] == [claim]
    (passage,) = record.verdict.claims[0].evidence
    assert passage.quote == "蓝茶不能治好感冒。"  # the nearer one in words
    holds(record)
