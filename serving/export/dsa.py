"""A draft of the statement of reasons that a platform in the EU owes for a restricted meme (DSA, Article 17).

It is made of what the court knows, in the field names, words and lengths of the EU's database
(:mod:`serving.export.dsa_schema`). What only the platform can know, above all what it did and where, is listed and not
guessed. The database is public and must hold no personal data (Article 24(5)): so nothing that a stranger or a model
wrote goes into a draft, neither the meme's text nor the rationale, for either may name somebody.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from court.display import word
from court.events import Procedure, TextSource
from court.policy import DEFAULT_POLICY, Clause
from court.record import TrialRecord
from court.verdict import ClaimFinding, ClaimLabel, Finding, Label, ScoreMeaning
from serving.docket.errors import NotDecided
from serving.export import dsa_schema as schema

FORMAT = "memecourt-dsa-draft/1"

CATEGORIES: Mapping[str, tuple[str, str]] = {
    "race": ("ILLEGAL_OR_HARMFUL_SPEECH", "DISCRIMINATION"),
    "gender": ("ILLEGAL_OR_HARMFUL_SPEECH", "DISCRIMINATION"),
    "religion": ("ILLEGAL_OR_HARMFUL_SPEECH", "DISCRIMINATION"),
    "nationality": ("ILLEGAL_OR_HARMFUL_SPEECH", "DISCRIMINATION"),
    "disability": ("ILLEGAL_OR_HARMFUL_SPEECH", "DISCRIMINATION"),
    "animal": ("ANIMAL_WELFARE", "ANIMAL_HARM"),
    "politics": ("NEGATIVE_EFFECTS_ON_CIVIC_DISCOURSE_OR_ELECTIONS", ""),
    "child exploitation": ("PROTECTION_OF_MINORS", ""),
    "health misinformation": ("RISK_FOR_PUBLIC_SECURITY", "RISK_PUBLIC_HEALTH"),
    "other harm": ("OTHER_VIOLATION_TC", ""),
}
"""The database's category and keyword for each category of our own policy. A platform's policy may have others."""

_WHY: Mapping[str, str] = {
    "decision_visibility": "What was done: at least one of "
    "decision_visibility, decision_monetary, decision_provision and decision_account.",
    "territorial_scope": "Where the restriction holds.",
    "content_date": "When the content was uploaded or posted.",
    "application_date": "From when on the restriction holds.",
    "source_type": "What led to the decision: a notice, a trusted flagger, or the platform's own doing.",
    "category": "The trial found no category, or one that has no counterpart here.",
    "incompatible_content_ground": "Which clause of the terms: the trial did not find one.",
    "incompatible_content_explanation": "Why it goes against that clause.",
}
_CONFIRM: Mapping[str, str] = {
    "automated_detection": "Yes, because the court looked; No where a notice led to it.",
    "automated_decision": "By what is on record here. If anybody else had a say in it, it was not fully automated.",
    "category": "Chosen by the category of the policy.",
    "category_specification": "Chosen by the category of the policy.",
    "content_type": "The court tries pictures with the words on them, and texts; a post may hold more.",
    "puid": "The id of the trial; a platform may have its own, which it must never use twice.",
    "decision_ground": "Under the policy. Whether the content is illegal is nothing that the court finds.",
}
_LEFT_OUT = (
    "the picture and its digests",
    "the text of the meme",
    "what models said: description, questions, answers, arguments, rationale",
    "the precedents",
    "whose content it is: namespace, content id, request id",
    "the words of refuted claims of fact: they stand under refuted_claims, for whoever completes the draft",
    "who reviewed it, and the reviewer's words",
)
# Of a tag such as en-GB the database takes the language alone.
_LANGUAGE = re.compile(r"([A-Za-z]{2})(?:-|\Z)")


def draft(record: TrialRecord) -> dict[str, Any]:
    """A draft for one trial.

    Args:
        record: Record of a trial that found harm, or that a person found to be harm.

    Returns:
        ``decision`` in force; ``statement``, fit for the database once ``left_to_platform`` is filled in;
        ``to_confirm``; ``refuted_claims``, with the passages that refute them; and ``left_out``.

    Raises:
        NotDecided: The trial has no verdict, or found no harm: there is nothing to give reasons for.
    """
    verdict, review = record.verdict_event, record.review
    if verdict is None or record.label_in_force is not Label.HARMFUL:
        raise NotDecided(
            "A statement of reasons is owed for content that is restricted; this trial did not end in harmful.",
            reason="NOT_HARMFUL",
        )
    clause, finding = clause_of(record), _finding(record)
    statement: dict[str, Any] = {
        "decision_ground": "DECISION_GROUND_INCOMPATIBLE_CONTENT",
        "content_type": ["CONTENT_TYPE_IMAGE" if record.opened.meme.picture_given else "CONTENT_TYPE_TEXT"],
        "decision_facts": _facts(record),
        "automated_detection": "Yes",
        # Whoever reviewed it had a say in it, even by upholding it; so had who labelled the precedent that it follows.
        "automated_decision": "AUTOMATED_DECISION_PARTIALLY"
        if review or verdict.binding
        else "AUTOMATED_DECISION_FULLY",
        "puid": _puid(record.trial_id),
    }
    # The clause first: a reviewer may have found another one than the court.
    named = clause.category if clause else finding.category if finding else ""
    # A category of the platform's own policy has no counterpart that we could know: it is left to the platform.
    if named in CATEGORIES:
        category, keyword = CATEGORIES[named]
        statement["category"] = f"STATEMENT_CATEGORY_{category}"
        if keyword:
            statement["category_specification"] = [f"KEYWORD_{keyword}"]
    if clause is not None:
        statement["incompatible_content_ground"] = _cut(_ground(record, clause), "incompatible_content_ground")
        statement["incompatible_content_explanation"] = _cut(
            _explanation(record, clause, finding), "incompatible_content_explanation"
        )
    if language := _language(record):
        statement["content_language"] = language
    return {
        "format": FORMAT,
        "schema": {"source": schema.SOURCE, "as_of": schema.AS_OF},
        "trial_id": record.trial_id,
        "decision": record.decision,
        "in_force": record.in_force and record.in_force.facts(),
        "statement": statement,
        "left_to_platform": [
            {"field": name, "why": _WHY[name], "words": sorted(schema.WORDS.get(name, ()))}
            for name in schema.REQUIRED
            if name not in statement
        ],
        "to_confirm": [{"field": name, "why": why} for name, why in _CONFIRM.items() if name in statement],
        "refuted_claims": [
            {"claim": finding.claim, "evidence": [passage.model_dump(mode="json") for passage in finding.evidence]}
            for finding in refuted_claims(record)
        ],
        "left_out": list(_LEFT_OUT),
    }


def _finding(record: TrialRecord) -> Finding | None:
    return record.verdict.finding if record.verdict else None


def refuted_claims(record: TrialRecord) -> list[ClaimFinding]:
    """Returns the claims of the meme that evidence refutes."""
    claims = record.verdict.claims if record.verdict else ()
    return [finding for finding in claims if finding.label is ClaimLabel.REFUTED]


def clause_of(record: TrialRecord) -> Clause | None:
    """The clause that holds: the reviewer's where one is named, else the court's; None where no policy here has it."""
    review, finding, policy = record.review, _finding(record), record.opened.policy.content
    # By digest and not by name: another wording under the same name must not be quoted.
    if policy is None and record.opened.policy.digest == DEFAULT_POLICY.digest:
        policy = DEFAULT_POLICY  # a trial that asked no model keeps no more than its name
    number = (review.clause if review else "") or (finding.clause if finding else "")
    return next((one for one in policy.clauses if one.number == number), None) if policy else None


def _ground(record: TrialRecord, clause: Clause) -> str:
    policy = record.opened.policy
    return f"Policy {policy.id}, version {policy.version}, clause {clause.number} ({clause.category}): {clause.text}"


def _explanation(record: TrialRecord, clause: Clause, finding: Finding | None) -> str:
    review, verdict = record.review, record.verdict
    # A reviewer may have named another clause: the court's target belongs to its own clause only.
    aimed = f", aimed at: {finding.target}" if finding and finding.target and finding.clause == clause.number else ""
    sentences = [
        f"Picture and words of the meme, read together, were found to be what clause {clause.number} of the policy "
        f"rules out ({clause.category}{aimed}).",
        f"That clause says: {clause.text}",
    ]
    if verdict and verdict.strengths:
        sentences.append(
            f"The evidence of harm was judged {verdict.strengths.harmful.lower()}, the evidence of none "
            f"{verdict.strengths.benign.lower()}; content is taken for harmless only where the latter is strong and "
            "outweighs the former."
        )
    if review is not None:
        sentences.append("A person reviewed the decision and came to it by that person's own reasons.")
    return " ".join(sentences)


def _facts(record: TrialRecord) -> str:
    """Describes how the decision was made, in words of ours alone."""
    opened, verdict, cited, text = record.opened, record.verdict, record.precedents, record.text
    assert verdict is not None and record.verdict_event is not None
    pictured = opened.meme.picture_given
    how = {
        Procedure.SUMMARY: "by comparison with labelled precedents; no generative model was asked",
        Procedure.FULL: "by a full trial: a model described the picture, two opposing sides examined that description "
        "and argued, and a model weighed both arguments, the picture, the text and precedents"
        if pictured
        else "by a full trial: two opposing sides argued from the text, and a model weighed both arguments, the text "
        "and precedents",
        Procedure.CASCADE: "first by comparison with labelled precedents, and where these did not settle it by a full "
        "trial with opposing sides",
    }[opened.procedure]
    if bound := record.verdict_event.binding:
        how = (
            f"and found to be the same as content that a person had labelled {word(bound.label)} on "
            f"{bound.at:%Y-%m-%d}; it was given that label, and no model was asked"
        )
    sentences = [
        f"The content is {'an image' if pictured else 'a text without an image'}. It was examined on "
        f"{opened.at:%Y-%m-%d} {how}."
    ]
    if text is not None and pictured:
        facts = {
            TextSource.CALLER: "The words were given by the platform.",
            TextSource.OCR: "The words were read off the image by optical character recognition.",
            TextSource.NONE: "No words were found on it.",
        }
        sentences.append(facts[text.source])
    if verdict.strengths:
        strengths = verdict.strengths
        sentences.append(
            f"The evidence of harm was judged {strengths.harmful.lower()} and the evidence of none "
            f"{strengths.benign.lower()}. By a fixed rule ({verdict.rule}), that makes it "
            f"{str(verdict.label).replace('_', ' ').lower()}."
        )
    if cited is not None and cited.vote is not None:
        sentences.append(
            f"Of the {cited.vote.voters} most similar labelled examples it was compared with, {cited.vote.harmful} "
            "were labelled harmful."
        )
    if refuted := refuted_claims(record):
        # Their number alone: the words are a model's, made of the meme's, and may name somebody.
        read = sum(finding.documents for finding in refuted)
        claims = "One claim of fact" if len(refuted) == 1 else f"{len(refuted)} claims of fact"
        sentences.append(
            f"{claims} that it puts forward {'was' if len(refuted) == 1 else 'were'} compared with {read} "
            f"document{'' if read == 1 else 's'} and found refuted."
        )
    if verdict.harm_score is not None:
        meaning = {
            ScoreMeaning.PRECEDENT_VOTE: "by the precedents",
            ScoreMeaning.LABEL_PROBABILITY: "by the judging model",
            ScoreMeaning.JUDGE_AND_VOTE: "by the judging model and the precedents together",
        }[verdict.harm_score_meaning or ScoreMeaning.PRECEDENT_VOTE]
        sentences.append(f"The probability of harm was put at {verdict.harm_score:.2f} {meaning}.")
    models = sorted(set(opened.versions.models.values()))
    used = f"MemeCourt {opened.versions.software}" + (f" with {', '.join(models)}" if models else "")
    sentences.append(f"Automated means used: {used}.")
    reviews = record.reviews
    if reviews:
        last = reviews[-1]
        sentences.append(f"A person reviewed the decision on {last.at:%Y-%m-%d} and {str(last.outcome).lower()} it.")
    else:
        sentences.append("No person has reviewed the decision so far.")
    return _cut(" ".join(sentences), "decision_facts")


def _puid(trial_id: str) -> str:
    # The database takes these characters alone; the digest keeps such an id unique.
    fits = re.fullmatch(r"[A-Za-z0-9_-]{1,500}", trial_id)
    return trial_id if fits else f"trial-{hashlib.sha256(trial_id.encode()).hexdigest()}"


def _language(record: TrialRecord) -> str:
    language = record.text.language if record.text else ""
    found = _LANGUAGE.match(language)
    return found[1].upper() if found else ""


def _cut(text: str, name: str) -> str:
    most = schema.LENGTHS[name]
    # A statement that is too long is refused as a whole.
    return text if len(text) <= most else text[: most - 1] + "…"
