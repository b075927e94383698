"""Drafts of statements of reasons: valid for the EU's database, and free of personal data."""

import json
import re

import pytest

from court.events import Procedure, VerdictGiven
from court.policy import DEFAULT_POLICY, Clause
from court.precedents import VerifiedCopy
from court.record import TrialRecord
from serving.docket.errors import NotDecided
from serving.export.dsa import CATEGORIES, draft
from serving.export.dsa_schema import LENGTHS, REQUIRED, WORDS
from tests.support.cast import ACQUITTAL, Cast
from tests.support.messages import AT, SECRET, a_trial, altered, reviewed, run_trial, stored
from tests.support.trial import a_court, hear

PLATFORM = {"decision_visibility", "territorial_scope", "content_date", "application_date", "source_type"}
"""Fields that only the platform can fill in."""
UNKNOWN_CLAUSE = PLATFORM | {"category", "incompatible_content_ground", "incompatible_content_explanation"}


def fitting_draft(record):
    """Returns a draft, none of whose values the database would refuse."""
    found = draft(record)
    for name, value in found["statement"].items():
        values = value if isinstance(value, list) else [value]
        assert not values or name not in WORDS or set(values) <= set(WORDS[name]), (name, value)
        assert name not in LENGTHS or len(value) <= LENGTHS[name], name
    assert re.fullmatch("[A-Za-z0-9_-]{1,500}", found["statement"]["puid"])
    assert left_in(found) | found["statement"].keys() >= set(REQUIRED)
    return found


def left_in(found):
    """Returns the names of the fields that are left to the platform."""
    return {each["field"] for each in found["left_to_platform"]}


def test_draft_fills_in_known_fields_and_lists_those_left_to_the_platform():
    statement_draft = fitting_draft(a_trial())
    statement = statement_draft["statement"]
    assert statement["decision_ground"] == "DECISION_GROUND_INCOMPATIBLE_CONTENT"
    assert "clause 4 (nationality)" in statement["incompatible_content_ground"]
    assert DEFAULT_POLICY.clauses[3].text in statement["incompatible_content_explanation"]
    assert statement["category"] == "STATEMENT_CATEGORY_ILLEGAL_OR_HARMFUL_SPEECH"
    assert statement["category_specification"] == ["KEYWORD_DISCRIMINATION"]
    assert (statement["automated_detection"], statement["automated_decision"]) == ("Yes", "AUTOMATED_DECISION_FULLY")
    assert statement["puid"] == "t" and statement["content_type"] == ["CONTENT_TYPE_IMAGE"]
    assert "No person has reviewed" in statement["decision_facts"] and "3 of" not in statement["decision_facts"][:20]
    left = {each["field"]: each for each in statement_draft["left_to_platform"]}
    assert set(left) == PLATFORM
    assert left["source_type"]["words"] == sorted(WORDS["source_type"]) and all(each["why"] for each in left.values())
    assert {"automated_detection", "automated_decision", "category"} <= {
        each["field"] for each in statement_draft["to_confirm"]
    }


@pytest.mark.parametrize("review", [False, True])
def test_draft_has_no_personal_data(review):
    record = a_trial()
    meme = record.opened.meme.model_copy(update={"namespace": "tenant-7", "content_id": "post-of-erika"})
    record = altered(record, 0, meme=meme, request_id="erika-1")
    statement_draft = json.dumps(draft(reviewed(record) if review else record), ensure_ascii=False)
    for personal in ("Erika", "Mustermann", "Elm Road", "tenant-7", "erika", "Ruth", meme.pixels_sha256, "p0", "p1"):
        assert personal not in statement_draft
    assert ("A person reviewed the decision on 2026-03-04 and upheld it." in statement_draft) is review


def test_long_policies_are_cut_to_the_field_lengths():
    record = a_trial()
    policy = record.opened.policy.content
    long = tuple(clause.model_copy(update={"text": "x" * 2000}) for clause in policy.clauses)
    content = policy.model_copy(update={"clauses": long})
    record = altered(record, 0, policy=record.opened.policy.model_copy(update={"content": content, "id": "i" * 128}))
    versions = record.opened.versions.model_copy(update={"models": {f"R{n}": f"{n}" * 900 for n in range(9)}})
    statement_draft = fitting_draft(altered(record, 0, versions=versions))
    assert len(statement_draft["statement"]["incompatible_content_ground"]) == 500
    assert len(statement_draft["statement"]["decision_facts"]) == 5000


def test_trial_without_harm_gives_no_draft():
    benign = run_trial(Cast(rounds=2, judge=ACQUITTAL))
    for record in (benign, reviewed(a_trial(), "OVERRULED", "NOT_HARMFUL"), TrialRecord.of(a_trial().events[:5])):
        with pytest.raises(NotDecided, match="did not end in harmful"):
            draft(record)


def test_review_takes_precedence_over_the_verdict():
    acquitted = run_trial(Cast(rounds=2, judge=ACQUITTAL))
    statement = fitting_draft(reviewed(acquitted, "OVERRULED", "HARMFUL", clause="3"))["statement"]
    assert "clause 3 (religion)" in statement["incompatible_content_ground"]
    assert statement["automated_decision"] == "AUTOMATED_DECISION_PARTIALLY"
    assert "overruled it" in statement["decision_facts"]
    # Without a clause, the platform has to name one.
    assert left_in(fitting_draft(reviewed(acquitted, "OVERRULED", "HARMFUL"))) == UNKNOWN_CLAUSE


def test_content_that_a_precedent_decides_was_not_decided_by_machines_alone():
    copy = VerifiedCopy(id="p0", label="HARMFUL", who=SECRET, at=AT)
    events = [
        event.model_copy(update={"copies": (copy,)}) if isinstance(event, VerdictGiven) else event
        for event in a_trial().events
    ]
    statement = draft(TrialRecord.of(events))["statement"]
    assert statement["automated_decision"] == "AUTOMATED_DECISION_PARTIALLY"
    assert "a person had labelled harmful on 2026-03-04" in statement["decision_facts"]
    assert SECRET not in json.dumps(statement)


def test_trial_without_model_calls_leaves_the_clause_to_the_platform():
    statement_draft = fitting_draft(stored(hear(a_court())))
    assert left_in(statement_draft) == UNKNOWN_CLAUSE
    assert "no generative model was asked" in statement_draft["statement"]["decision_facts"]
    # Precedents are labelled examples of a library, not decisions.
    assert "labelled examples it was compared with" in statement_draft["statement"]["decision_facts"]
    assert Procedure.SUMMARY == "SUMMARY"


def test_category_without_counterpart_is_left_out():
    record = a_trial()
    policy = record.opened.policy.content
    own = tuple(
        c if c.number != "4" else Clause(number="4", category="house rules", text="No x.") for c in policy.clauses
    )
    content = policy.model_copy(update={"clauses": own})
    policy = record.opened.policy.model_copy(update={"content": content})
    statement_draft = fitting_draft(altered(record, 0, policy=policy))
    assert left_in(statement_draft) == PLATFORM | {"category"}
    assert "category_specification" not in statement_draft["statement"]


def test_categories_of_the_default_policy_all_have_a_counterpart():
    assert set(CATEGORIES) == set(DEFAULT_POLICY.categories)
    for category, keyword in CATEGORIES.values():
        assert f"STATEMENT_CATEGORY_{category}" in WORDS["category"]
        assert not keyword or f"KEYWORD_{keyword}" in WORDS["category_specification"]


def test_trial_id_that_is_no_valid_puid_gets_a_stable_one():
    record = a_trial()
    renamed = TrialRecord.of(event.model_copy(update={"trial_id": "a b/ü"}) for event in record.events)
    first, second = fitting_draft(renamed), draft(renamed)
    assert first["statement"]["puid"] == second["statement"]["puid"]
    assert first["statement"]["puid"].startswith("trial-")


def test_language_is_taken_from_the_caller():
    record = a_trial()
    assert "content_language" not in draft(record)["statement"]
    german = altered(record, record.text.seq, language="de-AT")
    assert fitting_draft(german)["statement"]["content_language"] == "DE"
    assert "content_language" not in draft(altered(record, record.text.seq, language="gsw"))["statement"]
    assert record.last(VerdictGiven)
