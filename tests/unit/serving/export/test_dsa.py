"""Drafts of statements of reasons: valid for the EU's database, and free of personal data."""

import json

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from court.events import Procedure, VerdictGiven
from court.policy import DEFAULT_POLICY, Clause
from court.precedents import VerifiedCopy
from court.record import TrialRecord
from serving.cli.main import cli
from serving.docket.errors import NotDecided
from serving.export.dsa import CATEGORIES, draft
from serving.export.dsa_schema import DATES, LENGTHS, LISTS, REQUIRED, WORDS, faults, missing
from tests.support.cast import ACQUITTAL, Cast
from tests.support.dockets import append_all, with_docket
from tests.support.messages import AT, SECRET, a_trial, altered, reviewed, run_trial, stored
from tests.support.trial import a_court, hear

PLATFORM = {
    "decision_visibility": ["DECISION_VISIBILITY_CONTENT_REMOVED"],
    "territorial_scope": ["AT", "DE"],
    "content_date": "2026-01-01",
    "application_date": "2026-01-03",
    "source_type": "SOURCE_VOLUNTARY",
}


def test_draft_fills_in_known_fields_and_lists_those_left_to_the_platform():
    statement_draft = draft(a_trial())
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
    assert set(left) == set(PLATFORM)
    assert left["source_type"]["words"] == sorted(WORDS["source_type"]) and all(each["why"] for each in left.values())
    assert [fault.partition(":")[0] for fault in statement_draft["faults"]] == list(missing(statement))
    assert {"automated_detection", "automated_decision", "category"} <= {
        each["field"] for each in statement_draft["to_confirm"]
    }


def test_platform_fields_complete_the_draft():
    statement_draft = draft(a_trial(), PLATFORM)
    assert statement_draft["faults"] == [] and statement_draft["left_to_platform"] == []
    assert {name: statement_draft["statement"][name] for name in PLATFORM} == PLATFORM
    own = draft(a_trial(), {**PLATFORM, "automated_detection": "No", "puid": "own-1"})
    assert own["statement"]["automated_detection"] == "No" and own["faults"] == []
    assert not {"automated_detection", "puid"} & {each["field"] for each in own["to_confirm"]}


@pytest.mark.parametrize("review", [False, True])
def test_draft_has_no_personal_data(review):
    record = a_trial()
    meme = record.opened.meme.model_copy(update={"namespace": "tenant-7", "content_id": "post-of-erika"})
    record = altered(record, 0, meme=meme, request_id="erika-1")
    statement_draft = json.dumps(draft(reviewed(record) if review else record, PLATFORM), ensure_ascii=False)
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
    statement_draft = draft(altered(record, 0, versions=versions), PLATFORM)
    assert statement_draft["faults"] == []
    for name, most in LENGTHS.items():
        assert len(statement_draft["statement"].get(name, "")) <= most
    assert len(statement_draft["statement"]["incompatible_content_ground"]) == 500
    assert len(statement_draft["statement"]["decision_facts"]) == 5000


def test_trial_without_harm_gives_no_draft():
    benign = run_trial(Cast(rounds=2, judge=ACQUITTAL))
    for record in (benign, reviewed(a_trial(), "OVERRULED", "NOT_HARMFUL"), TrialRecord.of(a_trial().events[:5])):
        with pytest.raises(NotDecided, match="did not end in harmful"):
            draft(record)


def test_review_takes_precedence_over_the_verdict():
    statement_draft = draft(
        reviewed(run_trial(Cast(rounds=2, judge=ACQUITTAL)), "OVERRULED", "HARMFUL", clause="3"), PLATFORM
    )
    statement = statement_draft["statement"]
    assert "clause 3 (religion)" in statement["incompatible_content_ground"]
    assert statement["automated_decision"] == "AUTOMATED_DECISION_PARTIALLY" and statement_draft["faults"] == []
    assert "overruled it" in statement["decision_facts"]
    # Without a clause, the platform has to name one.
    left = draft(reviewed(run_trial(Cast(rounds=2, judge=ACQUITTAL)), "OVERRULED", "HARMFUL"), PLATFORM)[
        "left_to_platform"
    ]
    assert {each["field"] for each in left} == {
        "category", "incompatible_content_ground", "incompatible_content_explanation",
    }  # fmt: skip


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
    statement_draft = draft(stored(hear(a_court())), PLATFORM)
    assert {each["field"] for each in statement_draft["left_to_platform"]} == {
        "category", "incompatible_content_ground", "incompatible_content_explanation",
    }  # fmt: skip
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
    statement_draft = draft(
        altered(record, 0, policy=record.opened.policy.model_copy(update={"content": content})), PLATFORM
    )
    assert [each["field"] for each in statement_draft["left_to_platform"]] == ["category"]
    assert (
        "category" not in statement_draft["statement"] and "category_specification" not in statement_draft["statement"]
    )


def test_categories_of_the_default_policy_all_have_a_counterpart():
    assert set(CATEGORIES) == set(DEFAULT_POLICY.categories)
    for category, keyword in CATEGORIES.values():
        assert f"STATEMENT_CATEGORY_{category}" in WORDS["category"]
        assert not keyword or f"KEYWORD_{keyword}" in WORDS["category_specification"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"category": "STATEMENT_CATEGORY_PORNOGRAPHY_OR_SEXUALIZED_CONTENT"}, "category: "),  # until 2025
        ({"automated_decision": "Yes"}, "automated_decision: "),
        ({"automated_detection": True}, "automated_detection: "),
        ({"decision_visibility": "DECISION_VISIBILITY_CONTENT_REMOVED"}, "decision_visibility: a list"),
        ({"decision_visibility": []}, "decision_visibility: a list"),
        ({"territorial_scope": ["UK"]}, "territorial_scope: UK"),
        ({"content_date": "01.02.2026"}, "content_date: a day"),
        ({"content_date": "1999-12-31"}, "content_date: a day"),
        ({"content_date": "2026-02-30"}, "content_date: a day"),
        ({"puid": "a b"}, "puid: "),
        ({"content_language": "de"}, "content_language: "),
        ({"decision_facts": "x" * 5001}, "decision_facts: at most 5000"),
        ({"url": "https://example.org"}, "url: there is no such field"),
    ],
)
def test_values_invalid_for_the_database_are_refused(changes, named):
    with pytest.raises(BadRequest, match=named):
        draft(a_trial(), {**PLATFORM, **changes})


def test_dependent_required_fields_are_reported_missing():
    whole = draft(a_trial(), PLATFORM)["statement"]
    assert faults(whole) == []
    other = {**whole, "decision_visibility": ["DECISION_VISIBILITY_OTHER"], "content_type": ["CONTENT_TYPE_OTHER"]}
    assert missing(other) == ["decision_visibility_other", "content_type_other"]
    illegal = {**whole, "decision_ground": "DECISION_GROUND_ILLEGAL_CONTENT"}
    assert missing(illegal) == ["illegal_content_legal_ground", "illegal_content_explanation"]
    account = {name: value for name, value in whole.items() if name != "decision_visibility"}
    assert missing(account) == ["decision_visibility"]
    assert missing({**account, "decision_account": "DECISION_ACCOUNT_SUSPENDED"}) == []
    for name in REQUIRED:
        assert name in missing({key: value for key, value in whole.items() if key != name})
    assert set(DATES) & set(REQUIRED) == {"content_date", "application_date"} and "territorial_scope" in LISTS


def test_trial_id_that_is_no_valid_puid_gets_a_stable_one():
    record = a_trial()
    renamed = TrialRecord.of(event.model_copy(update={"trial_id": "a b/ü"}) for event in record.events)
    first, second = draft(renamed, PLATFORM), draft(renamed, PLATFORM)
    assert first["statement"]["puid"] == second["statement"]["puid"] and first["faults"] == []
    assert first["statement"]["puid"].startswith("trial-")


def test_language_is_taken_from_the_caller():
    record = a_trial()
    assert "content_language" not in draft(record)["statement"]
    german = altered(record, record.text.seq, language="de-AT")
    assert draft(german, PLATFORM)["statement"]["content_language"] == "DE" and draft(german, PLATFORM)["faults"] == []
    assert "content_language" not in draft(altered(record, record.text.seq, language="gsw"))["statement"]
    assert record.last(VerdictGiven)


def test_command_fills_in_fields_from_a_file(tmp_path):
    record = a_trial()
    with_docket(tmp_path / "d.sqlite", lambda docket: append_all(docket, record.events))
    (tmp_path / "own.json").write_text(json.dumps(PLATFORM))
    (tmp_path / "bad.json").write_text("[]")

    def export(*more):
        arguments = ["records", "export", "t", "--as", "dsa", "--docket", tmp_path / "d.sqlite", "-o", "-", *more]
        return CliRunner().invoke(cli, [str(each) for each in arguments])

    assert json.loads(export().stdout)["faults"]
    assert json.loads(export("--filled", tmp_path / "own.json").stdout)["faults"] == []
    for bad in ("[]", '{"incompatible_content_explanation": "\\ud800"}', '{"a":' * 100_000, "\xff"):
        (tmp_path / "bad.json").write_text(bad, "latin-1")
        ran = export("--filled", tmp_path / "bad.json")
        assert ran.exit_code == 1 and "no JSON object" in ran.output, bad[:50]
