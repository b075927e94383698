"""Notices in plain words: what was decided, by which clause, what counted, and how to object.

The sentences stand in ``notices.toml`` and are filled in from the record; no model writes any. A notice holds nothing
of a precedent, of a model's words or of a reviewer, and nothing that would free the content.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from court.errors import BadRequest
from court.events import Procedure
from court.in_force import Authority
from court.record import TrialRecord
from court.verdict import Decision, Label
from serving.docket.errors import NotDecided
from serving.export.dsa import clause_of, refuted_claims
from serving.export.notice_links import NoticeLink


@cache
def notice_words() -> Mapping[str, Mapping[str, Any]]:
    """Returns the sentences by language."""
    return tomllib.loads(files(__package__).joinpath("notices.toml").read_text("utf-8"))


def language_of(record: TrialRecord, wanted: str = "") -> str:
    """Returns the language of a notice: the wanted one, else that of the content, else English.

    Raises:
        BadRequest: There are no sentences in the wanted language.
    """
    if wanted and wanted not in notice_words():
        raise BadRequest(f"language is one of {', '.join(notice_words())}.", reason="OUT_OF_RANGE", field="language")
    own = record.text.language.partition("-")[0].lower() if record.text else ""
    return wanted or (own if own in notice_words() else "en")


def write_notice(record: TrialRecord, language: str, link: NoticeLink | None = None, *, with_form: bool = False) -> str:
    """Returns the notice on a decided trial, in paragraphs.

    Args:
        with_form: True if a form to object stands below it.

    Raises:
        NotDecided: There is no verdict.
    """
    finding = record.in_force
    if finding is None:
        raise NotDecided("This trial has no verdict that a notice could tell of.", field="trial_id")
    words, meme = notice_words()[language], record.opened.meme
    name = f" “{meme.content_id}”" if meme.content_id else ""
    about = words["picture" if meme.picture_given else "text"].format(name=name, day=f"{record.opened.at:%Y-%m-%d}")
    # A label that nobody may act on yet is no decision.
    doubtful = finding.label is Label.HARMFUL and finding.decision is Decision.REVIEW
    decided = words["review" if doubtful else finding.label.lower()]
    # Of content that a precedent decided it is said above: a person had decided on the same before.
    by = {Authority.PERSON: words["not_automated"], Authority.COURT: words["automated"]}.get(finding.by, "")
    objecting = words["contested" if finding.contested else "object"]
    if link is not None:
        objecting += " " + words["object_link"].format(until=f"{link.until:%Y-%m-%d}", link=link.address)
    elif not finding.contested and not with_form:
        objecting += " " + words["object_write"].format(trial=record.trial_id)
    counted = [words["counted"], *(f"- {sentence}" for sentence in _counted(record, words))]
    paragraphs = [words["title"], f"{about} {decided}", _rule(record, words), "\n".join(counted), by, objecting]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def _rule(record: TrialRecord, words: Mapping[str, Any]) -> str:
    """Names the clause that was applied, for content that goes against one."""
    finding, policy = record.in_force, record.opened.policy
    if finding is None or finding.label is not Label.HARMFUL:
        return ""
    of = {"policy": policy.id, "version": policy.version}
    if clause := clause_of(record):
        return str(words["clause"].format(number=clause.number, category=clause.category, text=clause.text, **of))
    found = record.verdict.finding if record.verdict else None
    number = (record.review.clause if record.review else "") or (found.clause if found else "")
    return str(words["clause_number" if number else "policy"].format(number=number, **of))


def _counted(record: TrialRecord, words: Mapping[str, Any]) -> Iterator[str]:
    finding, ruled, cited = record.in_force, record.verdict_event, record.precedents
    assert finding is not None and ruled is not None
    verdict = ruled.verdict
    if finding.by is Authority.PERSON:
        assert finding.at is not None
        yield words["counted_person"].format(day=f"{finding.at:%Y-%m-%d}")
        # What a person overruled did not count.
        if finding.label is not verdict.label:
            return
    if finding.by is Authority.PRECEDENT:
        yield words["counted_copy"]
        return
    yield words["counted_picture" if record.opened.meme.picture_given else "counted_text"]
    if record.opened.procedure is not Procedure.FULL and cited is not None and cited.vote is not None:
        yield words["counted_summary"].format(voters=cited.vote.voters, harmful=cited.vote.harmful)
    # A comparison with precedents has strengths too, and no sides.
    if ruled.ruling is not None and (strengths := verdict.strengths):
        levels = words["levels"]
        yield words["counted_full"].format(harm=levels[strengths.harmful], none=levels[strengths.benign])
    if refuted := refuted_claims(record):
        yield words["counted_claims"].format(count=len(refuted))
