"""Every way out of the court carries the decision in force, and all of them agree.

Messages, file formats and types of webhooks are enumerated: one that is added without the decision fails here.
"""

import csv
import io
import json
import typing

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from court.events import ReviewOutcome
from court.verdict import Label
from memecourt.client import judge_request
from memecourt.result import Result
from memecourt.v1 import court_pb2 as wire
from serving.cli.main import cli
from serving.export.source import ExportSource, Pictures
from serving.export.tables import Form, Selection
from serving.export.trial_file import TrialForm, write_trial
from serving.rest.moderations import moderation_of
from serving.settings import WebhookEvent
from serving.webhooks.messages import messages_of
from tests.support.dockets import append_all, review_trial, with_docket
from tests.support.real_court import IMAGE, real_court
from tests.support.receivers import decided, failed, hook_settings

WITHOUT_LABEL_OF_CONTENT = {
    "Precedent": "the label of a precedent decides nothing about its content",
    "NearDuplicate": "names its trial, which has the decision",
    "ReviewedVerdict": "its review has the decision",
}
DECIDED_BY_ITS_OWN = {"InForce", "VerdictReview"}
ABOUT_NO_CONTENT = {"memecourt.record.erased", "memecourt.precedent.changed"}


def answers():
    """Yields every message that can be part of a response."""
    left = [method.output_type for service in wire.DESCRIPTOR.services_by_name.values() for method in service.methods]
    found = set()
    while left:
        message = left.pop()
        if message.full_name not in found and message.file is wire.DESCRIPTOR:
            found.add(message.full_name)
            left += [field.message_type for field in message.fields if field.message_type]
            yield message


@pytest.mark.parametrize("message", list(answers()), ids=lambda message: message.name)
def test_messages_with_a_label_of_content_carry_the_decision(message):
    labelled = any(field.enum_type is wire.Label.DESCRIPTOR for field in message.fields)
    if labelled and message.name not in WITHOUT_LABEL_OF_CONTENT:
        assert "decision" in message.fields_by_name
        assert message.name in DECIDED_BY_ITS_OWN or "in_force" in message.fields_by_name


async def contents(chunks):
    return b"".join([chunk async for chunk in chunks])


def test_files_commands_and_webhooks_tell_the_decision_of_a_person(tmp_path):
    """The verdict asks for review, and a person has upheld its label since."""
    path = tmp_path / "docket.sqlite"
    hook = hook_settings("https://hooks.example/", tmp_path, events=list(typing.get_args(WebhookEvent)))

    async def scene(docket):
        await append_all(docket, decided("a", review=True))
        await review_trial(docket, "a", ReviewOutcome.UPHELD, Label.HARMFUL)
        await append_all(docket, failed("b"))
        record = await docket.trials.record("a")
        files = {
            form: write_trial(ExportSource(record), form, pictures=Pictures.NONE, messages=False) for form in TrialForm
        }
        tables = {form: await contents(Selection(docket.index, docket.trials).chunks(form)) for form in Form}
        subjects = await docket.deliveries.subjects(["a", "b"])
        entries = await docket.log.entries(0, 100)
        return (
            files,
            tables,
            [each for entry in entries for each in messages_of(entry, subjects.get(entry.trial_id), hook, docket="d")],
        )

    files, tables, messages = with_docket(path, scene)
    read = {
        TrialForm.JSON: lambda data: json.loads(data)["decision"],
        TrialForm.DSA: lambda data: json.loads(data)["decision"],
        TrialForm.HTML: lambda data: data.decode().partition("<dt>Decision</dt><dd>")[2].partition("<")[0],
    }
    assert {form: read[form](data) for form, data in files.items()} == dict.fromkeys(TrialForm, "block")
    by = {"by": "PERSON", "label": "HARMFUL", "decision": "block", "id": "a"}
    assert all(json.loads(files[form])["in_force"].items() >= by.items() for form in (TrialForm.JSON, TrialForm.DSA))
    assert "a person found it harmful" in files[TrialForm.HTML].decode()
    rows = {
        Form.CSV: lambda data: [row["decision"] for row in csv.DictReader(io.StringIO(data.decode()))],
        Form.JSONL: lambda data: [json.loads(line)["decision"] for line in data.splitlines()],
        Form.PARQUET: lambda data: pq.read_table(io.BytesIO(data)).column("decision").to_pylist(),
    }
    assert {form: rows[form](data) for form, data in tables.items()} == {form: ["block", "review"] for form in Form}
    about = [message for message in messages if message.event not in ABOUT_NO_CONTENT]
    assert {message.event for message in about} == set(typing.get_args(WebhookEvent)) - ABOUT_NO_CONTENT
    # As it is when they are sent: the review has been stored before the message about the verdict goes out.
    assert [message.data["decision"] for message in about] == ["block", "block", "block", "review"]
    assert [message.data.get("in_force", by).items() >= by.items() for message in about] == [True] * 4
    listed = CliRunner().invoke(cli, ["records", "list", "--json", "--docket", str(path)]).stdout
    assert [json.loads(line)["decision"] for line in listed.splitlines()] == ["review", "block"]
    assert json.loads(listed.splitlines()[1])["in_force"].items() >= by.items()


async def test_every_call_tells_the_same_decision_before_and_after_a_review(tmp_path):
    async with real_court(tmp_path) as court:
        request = judge_request(IMAGE, text="my bird sings", request_id="r")
        response = await court.judge.Judge(request)
        other = wire.LABEL_HARMFUL if response.label == wire.LABEL_NOT_HARMFUL else wire.LABEL_NOT_HARMFUL
        decision = "block" if other == wire.LABEL_HARMFUL else "allow"
        review = wire.ReviewVerdictRequest(
            trial_id=response.verdict_id,
            outcome=wire.REVIEW_OUTCOME_OVERRULED,
            label=other,
            reason="I looked.",
            reviewer="ada",
        )
        (before,) = (await court.records.ListTrials(wire.ListTrialsRequest())).trials
        reviewed = (await court.records.ReviewVerdict(review)).summary
        repeated = await court.judge.Judge(request)
        verdict = (await court.judge.GetVerdict(wire.GetVerdictRequest(trial_id=response.verdict_id))).verdict
        (after,) = (await court.records.ListTrials(wire.ListTrialsRequest())).trials
    assert response.decision == before.decision == ("review" if response.needs_human_review else before.decision)
    messages = [reviewed, reviewed.review, repeated, verdict, after]
    assert [each.decision for each in messages] == [decision] * len(messages)
    for each in (reviewed, repeated, verdict, after, Result(repeated).message):
        assert (each.in_force.by, each.in_force.label) == (wire.AUTHORITY_PERSON, other)
        assert (each.in_force.decision, each.in_force.id) == (decision, response.verdict_id)
    assert response.in_force.by == before.in_force.by == wire.AUTHORITY_COURT
    (result,) = moderation_of([verdict])["results"]
    assert result["memecourt"]["decision"] == result["memecourt"]["in_force"]["decision"] == decision
    assert result["flagged"] is (decision != "allow")
