"""Findings of an expert witness in every output: pages, terminal, wire, DSA draft, traces."""

import asyncio
import json
import re

import pytest

from court.events import ClaimSettled, ClaimsFound, DocumentWeighed, EvidenceSearched
from court.record import TrialRecord
from court.verdict import DISAGREEMENTS
from eval.replay.replay import replay
from memecourt.v1 import court_pb2 as wire
from serving.cli.records import render
from serving.docket.review.projection import ReviewPriority
from serving.export.dsa import draft
from serving.export.source import ExportSource, document, read_document, write_document
from serving.export.trial_file import page
from serving.judging.known import whole
from serving.rpc.convert import verdict_of
from serving.telemetry import ObservedTrial
from serving.views.messages import messages_of
from serving.views.recheck import differences
from serving.views.trial_view import view_of
from tests.support.cast import ACQUITTAL, Cast
from tests.support.evidence import (
    CLAIM,
    FINDINGS,
    REFUTED,
    REFUTING,
    WEIGHED,
    Expert,
    FakeEvidence,
    expert_settings,
    try_with_expert,
)
from tests.support.evidence import document as a_document

SCRIPT = "<script>alert(1)</script>"
QUOTE = f"blue tea does not shorten {SCRIPT} a cold"


@pytest.fixture(scope="module")
def hostile():
    """A trial whose claim, document, quotation and publisher all contain markup."""
    found = a_document(f"id{SCRIPT}", f"We found that {QUOTE}.", source=f"who{SCRIPT}.example")
    claims = {"statements": [{**FINDINGS["statements"][0], "claim": f"{CLAIM} {SCRIPT}"}]}
    expert = Expert(
        claims=claims,
        weigh={**WEIGHED, "quotes": [QUOTE]},
        classify={"quotes": [{"document": 1, "quote": QUOTE}], "label": "refuted"},
    )
    return try_with_expert(expert, FakeEvidence([found]))[0]


@pytest.fixture(scope="module")
def refuted():
    return try_with_expert()[0]


@pytest.fixture(scope="module")
def unchecked():
    from court.errors import Unavailable

    source = FakeEvidence(search_error=Unavailable("gone", reason="EVIDENCE_GONE"))
    return try_with_expert(source=source, cast=Cast(judge=ACQUITTAL))[0]


def test_pages_and_terminal_show_claim_passage_source_date_and_digest(hostile, refuted):
    html = page(ExportSource(hostile))
    assert SCRIPT not in html and "&lt;script&gt;" in html
    shown = page(ExportSource(refuted))
    passage = refuted.verdict.claims[0].evidence[0]
    for words in (CLAIM, "blue tea does not shorten a cold", "health.example", "2024-05-01", passage.sha256):
        assert words in shown
    text = render(refuted)
    for words in (CLAIM, "blue tea does not shorten a cold", "health.example", passage.sha256):
        assert words in re.sub(r"\s+", " ", text)


def test_unchecked_claim_is_reported_in_every_output(unchecked):
    assert "it is not known whether the claim is true" in page(ExportSource(unchecked))
    assert "none could be read" in render(unchecked) and "EVIDENCE_GONE" in render(unchecked)


def test_exported_trial_round_trips_with_its_documents(refuted):
    again = read_document(write_document(ExportSource(refuted), messages=True))
    assert again == refuted and again.last(DocumentWeighed).text == REFUTING
    sent = document(ExportSource(refuted), messages=True)["messages"]
    assert {message["role"] for message in sent} >= {"EXPERT"} and all(message["exact"] for message in sent)


def test_wire_message_carries_findings_with_their_passages(refuted, unchecked):
    (finding,) = verdict_of(refuted).claims
    assert (finding.claim, finding.label, finding.because) == (CLAIM, wire.CLAIM_LABEL_REFUTED, wire.CLAIM_BASIS_ENOUGH)
    assert finding.checked and finding.documents == 1 and finding.span == "Blue tea cures colds"
    (passage,) = finding.evidence
    assert (passage.source, passage.date, passage.document) == ("health.example", "2024-05-01", "one")
    assert passage.quote in REFUTING and len(passage.sha256) == 64
    (finding,) = verdict_of(unchecked).claims
    assert not finding.checked and finding.label == wire.CLAIM_LABEL_NOT_ENOUGH
    reasons = [wire.ReviewReason.Name(review.reason) for review in verdict_of(unchecked).review_reasons]
    assert "REVIEW_REASON_CLAIM_UNCHECKED" in reasons


def test_dsa_draft_counts_refuted_claims_and_lists_them_beside_the_statement(hostile, refuted):
    dsa_draft = draft(refuted)
    assert (
        "One claim of fact that it puts forward was compared with 1 document"
        in dsa_draft["statement"]["decision_facts"]
    )
    (claim,) = dsa_draft["refuted_claims"]
    assert claim["claim"] == CLAIM and claim["evidence"][0]["source"] == "health.example"
    # The statement goes into a public database, so it must not quote the meme or the source.
    for record in (hostile, refuted):
        statement = json.dumps(draft(record)["statement"])
        assert "Blue tea" not in statement and "<script" not in statement and "health.example" not in statement
    none, *_ = try_with_expert(Expert(classify={**REFUTED, "label": "not enough"}))
    assert draft(none)["refuted_claims"] == [] and "claim" not in draft(none)["statement"]["decision_facts"]


def test_verdict_that_lacked_evidence_is_not_cached(refuted, unchecked):
    assert whole(refuted) and not whole(unchecked)


def test_refuted_claim_of_an_acquitted_meme_is_queued_with_the_contradictions():
    record, *_ = try_with_expert(cast=Cast(judge=ACQUITTAL))
    assert {review.reason for review in record.verdict.review} & DISAGREEMENTS
    assert "CLAIM_REFUTED" in DISAGREEMENTS and ReviewPriority.COURT_ASKS.urgency


def test_every_step_of_the_expert_appears_in_the_trial_view(refuted):
    view = view_of(refuted)
    steps = [step.name for step in view.steps if step.kind == "expert"]
    assert steps == [
        "claims of fact found",
        "queries about claim 1",
        "search about claim 1",
        "document about claim 1",
        "finding about claim 1",
    ]
    apart, *_ = try_with_expert(settings=expert_settings(expert_steps="apart"))
    assert sum(step.name == "document about claim 1" for step in view_of(apart).steps) == 3
    (claim,) = view.claims
    assert claim.settled.label == "REFUTED" and [one.document for one in claim.documents] == ["one"]


def test_metrics_count_each_expert_call_and_its_messages_are_rebuilt(refuted):
    state = ObservedTrial.opened(refuted.opened)
    tasks = [
        observed.task for event in refuted.events for observed in state.calls(event) if observed.call.role == "EXPERT"
    ]
    assert tasks == ["claims", "queries", "weigh", "classify"]
    for kind in (ClaimsFound, DocumentWeighed, ClaimSettled):
        event = refuted.last(kind)
        call = event.calls[0] if kind is DocumentWeighed else event.call
        assert [made.exact for made in messages_of(refuted, event) if made.call == call] == [True]


def altered(record, kind, **changes):
    event = record.last(kind)
    events = list(record.events)
    events[event.seq] = event.model_copy(update=changes)
    return TrialRecord.of(events)


def test_altered_document_or_passage_is_detected(refuted):
    assert differences(refuted) == ()
    (found,) = differences(altered(refuted, DocumentWeighed, text=f"{REFUTING} More."))
    assert found.what == "the digest of the document"
    settled = refuted.last(ClaimSettled)
    passage = settled.evidence[0].model_copy(update={"quote": "blue tea is a poison for all"})
    (found,) = differences(altered(refuted, ClaimSettled, evidence=(passage,)))
    assert found.what == "the passage" and found.found == "not in its document"
    # A passage must also be refused if its document is not among those read.
    (real,) = refuted.last(ClaimSettled).evidence
    (found,) = differences(altered(refuted, ClaimSettled, evidence=(real.model_copy(update={"sha256": "0" * 64}),)))
    assert found.what == "the passage" and found.found == "not in its document"


def test_finding_that_contradicts_its_replies_is_detected_in_replay(refuted):
    lied = altered(refuted, ClaimSettled, label="SUPPORTED")
    again = asyncio.run(replay(lied))
    assert "claim 1's finding" in {one.what for one in again.differences} or again.obstacle
    # The Judge's messages contain the findings, so with an altered one they are not those that were sent.
    assert "not what was sent" in again.obstacle


def test_record_with_an_erased_document_still_verifies():
    from serving.docket.store.bodies import GONE

    record, *_ = try_with_expert()
    settled, search = record.last(ClaimSettled), record.last(EvidenceSearched)
    gone = altered(record, DocumentWeighed, text=GONE, quotes=(GONE,))
    gone = altered(gone, ClaimSettled, evidence=(settled.evidence[0].model_copy(update={"quote": GONE}),))
    gone = altered(gone, EvidenceSearched, hits=(search.hits[0].model_copy(update={"snippet": GONE}),))
    assert differences(gone) == ()
    assert GONE in page(ExportSource(gone)) and REFUTING not in page(ExportSource(gone))
    assert asyncio.run(replay(gone)).obstacle == "A document that the expert witness read was erased."
