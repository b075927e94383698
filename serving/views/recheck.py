"""Recomputed values of a record: entropies, stop reasons, the vote, the verdict's label.

They are recomputed whenever a trial is shown, and the page marks each recorded value that differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from court.checks import is_cut
from court.events import ClaimSettled, DocumentWeighed, QuestioningEnd, Side, Summarised
from court.examination import entropy
from court.expert.documents import text_sha256
from court.expert.replies import stands_in
from court.precedents import vote
from court.question import QUESTION_RULE, options_that_fit
from court.record import TrialRecord
from court.verdict import RULE, Label, rule
from serving.docket.store.bodies import GONE

_SAME = 1e-9
"""Tolerance in bits or shares: the last digits of a sum may differ between machines."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Recorded value that differs from the recomputed one."""

    seq: int
    what: str
    recorded: str
    found: str


def differences(record: TrialRecord) -> tuple[Difference, ...]:
    """Returns all recorded values that differ from the recomputed ones; empty if the record is consistent."""
    return (
        *_entropies(record),
        *_stop_reasons(record),
        *_vote(record),
        *_evidence(record),
        *_verdict(record),
        *_answers(record),
    )


def _answers(record: TrialRecord) -> Iterator[Difference]:
    for ruled in record.questions:
        # An answer without strengths can't be worked out again, and of another version's rule nothing is known here.
        if ruled.chosen is None or ruled.rule != QUESTION_RULE:
            continue
        found = options_that_fit(ruled.question, ruled.strengths)
        if found != ruled.chosen:
            yield Difference(ruled.seq, "answer", ", ".join(ruled.chosen) or "none", ", ".join(found) or "none")


def _entropies(record: TrialRecord) -> Iterator[Difference]:
    for side in Side:
        before: float | None = None
        for summary in sorted((e for e in record.all(Summarised) if e.side is side), key=lambda e: e.round):
            bits = entropy(summary.summary)
            if abs(bits - summary.entropy) > _SAME:
                yield Difference(summary.seq, "entropy of the summary", _bits(summary.entropy), _bits(bits))
            whole = _is_whole(record, summary)
            change = abs(bits - before) if before is not None and whole else None
            if (change is None) != (summary.entropy_change is None) or (
                change is not None and abs(change - (summary.entropy_change or 0.0)) > _SAME
            ):
                yield Difference(summary.seq, "change of entropy", _bits(summary.entropy_change), _bits(change))
            before = bits if whole else None


def _is_whole(record: TrialRecord, summary: Summarised) -> bool:
    """True unless a summary was cut off, and so compared with none."""
    settings = record.opened.settings
    most = settings.get("reply_chars")
    return not (settings.get("mistrials") and isinstance(most, int) and is_cut(summary.summary, most))


def _stop_reasons(record: TrialRecord) -> Iterator[Difference]:
    """Checks that each side stopped where the stop rule says (docs/explanation/full-trial.md)."""
    settings = record.opened.settings
    epsilon, least = settings.get("epsilon"), settings.get("rounds_min")
    # A record of another procedure, or of another version, may have none of these settings.
    if not isinstance(epsilon, int | float) or not isinstance(least, int):
        return
    for rested in record.rested.values():
        if rested.reason is QuestioningEnd.NO_EXAMINATION:
            continue
        entropies = {
            e.round: entropy(e.summary)
            for e in record.all(Summarised)
            if e.side is rested.side and _is_whole(record, e)
        }
        stops = [
            number
            for number in sorted(entropies)
            if number >= least and number - 1 in entropies and abs(entropies[number] - entropies[number - 1]) < epsilon
        ]
        first = next((number for number in stops if number <= rested.rounds), None)
        if rested.reason is QuestioningEnd.CONVERGED and first != rested.rounds:
            found = f"converged after round {first}" if first else "not converged"
            yield Difference(rested.seq, "why the side rested", f"converged after round {rested.rounds}", found)
        elif rested.reason is not QuestioningEnd.CONVERGED and first is not None:
            stored = f"{rested.reason.replace('_', ' ').lower()} after round {rested.rounds}"
            yield Difference(rested.seq, "why the side rested", stored, f"converged after round {first}")


def _vote(record: TrialRecord) -> Iterator[Difference]:
    cited = record.precedents
    if cited is None or cited.vote is None:
        return
    # `vote` can't vote on nothing, and a recorded vote of nothing is a fault to be shown.
    if not cited.findings.tally:
        yield Difference(cited.seq, "the precedents' vote", f"{cited.vote.probability:.3f}", "none: nothing voted")
        return
    recomputed = vote(cited.findings.tally, cited.vote.settings, cited.vote.regression)
    if not math.isclose(recomputed.probability, cited.vote.probability, abs_tol=_SAME) or (
        (recomputed.voters, recomputed.harmful) != (cited.vote.voters, cited.vote.harmful)
    ):
        stored = f"{cited.vote.harmful} of {cited.vote.voters}, {cited.vote.probability:.3f}"
        yield Difference(
            cited.seq,
            "the precedents' vote",
            stored,
            f"{recomputed.harmful} of {recomputed.voters}, {recomputed.probability:.3f}",
        )


def _evidence(record: TrialRecord) -> Iterator[Difference]:
    """Checks that each document is the one of its digest, and that each passage stands in its document."""
    texts: dict[str, str] = {}
    erased: set[str] = set()
    for read in record.all(DocumentWeighed):
        if read.text == GONE:
            erased.add(read.sha256)
            continue
        if not read.sha256:
            continue
        texts[read.sha256] = read.text
        if (digest := text_sha256(read.text)) != read.sha256:
            yield Difference(read.seq, "the digest of the document", read.sha256, digest)
    for settled in record.all(ClaimSettled):
        for passage in settled.evidence:
            # Of a document that was erased, passages are gone too.
            if passage.quote == GONE or passage.sha256 in erased:
                continue
            # One of a document that nobody read stands in none.
            if not stands_in(passage.quote, texts.get(passage.sha256, "")):
                yield Difference(settled.seq, "the passage", passage.quote, "not in its document")


def _verdict(record: TrialRecord) -> Iterator[Difference]:
    event = record.verdict_event
    if event is not None:
        verdict = event.verdict
        if verdict.rule != RULE:
            yield Difference(event.seq, "the rule", verdict.rule, f"this version knows {RULE} only")
        # The label must follow from the strengths alone: whatever else gave it would be a fault.
        label = Label.UNDECIDED if verdict.strengths is None else rule(**verdict.strengths.model_dump())
        if label is not verdict.label:
            yield Difference(event.seq, "the label by the rule", verdict.label, label)


def _bits(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f} bit"
