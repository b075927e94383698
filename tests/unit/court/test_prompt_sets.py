"""Custom prompt sets: faults are reported, and valid sets are used, recorded and shown."""

import asyncio
import itertools
import json
from dataclasses import replace
from importlib.resources import files

import pytest
from click.testing import CliRunner

from court import prompts, replies
from court.backends.chat.scripted import ScriptedModel
from court.errors import BadRequest, CantResume
from court.events import Procedure, VerdictGiven
from court.policy import DEFAULT_POLICY
from court.prompts import sets
from court.record import TrialAborted, TrialRecord
from court.replies import Answer, Argument, Description, Question, ruling_schema, schema_of
from court.settings import TrialSettings
from eval.replay.replay import replay
from serving.cli.main import cli
from serving.models.rehearsal import rehearse, shortest
from serving.views.messages import messages_of
from tests.support.cast import Cast, full_court, prompt_text, try_meme
from tests.support.fakes import RecordingSink, a_meme
from tests.support.trial import hear


@pytest.fixture
def folder(tmp_path):
    """A folder with a copy of the packaged prompts, to be altered."""
    place = tmp_path / "mine"
    place.mkdir()
    for name in ("proposer", "advocate", "judge"):
        (place / f"{name}.toml").write_text(sets.source("1", name))
    return place


def alter(folder, name, before, after):
    path = folder / f"{name}.toml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))


def run(*arguments, status=0, env=None):
    done = CliRunner().invoke(cli, ["prompts", *(str(argument) for argument in arguments)], env=env)
    assert done.exit_code == status, done.output
    assert "Traceback" not in done.output
    return done.output


def refusal_message(folder):
    with pytest.raises(BadRequest) as refusal:
        sets.open_set(str(folder))
    assert str(folder.parent) not in refusal.value.message  # reveals no path
    return refusal.value.message


def test_packaged_sets_are_valid_and_have_the_digests_that_records_name():
    assert sets.packaged().digest == "sha256:c8574aa79ca17e91f6e4a9d81b403581c7933f83e77eee7a6f59ebf02e251551"
    assert sets.packaged_versions() == ("1", "2")
    for version, name in itertools.product(sets.packaged_versions(), sets.FILES):
        assert sets.faults_of(name, sets.source(version, name)) == []
        assert sets.packaged(version).by_file[name].digest == prompts.load(name, int(version)).digest
    assert sets.open_set("1").digest == sets.packaged().digest


def test_copy_of_the_packaged_set_has_the_same_digest(folder):
    assert sets.open_set(str(folder)).digest == sets.packaged().digest
    assert sets.open_set(str(folder)).name == "mine"


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("judge", "{{secret}}", "", "judge.toml: system must name {{secret}}."),
        ("judge", "{{policy}}", "", "system must name {{policy}}."),
        ("judge", "{{text}}", "", "tasks.text must name {{text}}."),
        ("judge", "{{accuser}}", "", "tasks.arguments must name {{accuser}}."),
        ("judge", "Precedent {{number}} was", "One was", "tasks.precedent_text must name {{number}}."),
        ("proposer", "{{question}}", "{{text}}", "tasks.answer names {{text}}, which has no value there"),
        ("proposer", "You look", "Look at {{text}}. You look", "system names {{text}}, which has no value there"),
        ("advocate", "{{description}}", "", "tasks.material must name {{description}}."),
        ("advocate", "Never write {{secret}}", "{{secret}} {{secret}}", "system must name {{secret}} once."),
        ("advocate", "ask = ", "inquire = ", "[tasks] has inquire, which nothing uses."),
        ("advocate", "defender = ", "defence = ", "stances.defender is missing"),
        ("judge", 'id = "judge"', 'id = "court"', 'Its id must be "judge".'),
        ("judge", "version = 1", 'version = "a b"', "Its version must be"),
        ("judge", "version = 1", "version = 1\nmodel = 2", "It has model, which nothing uses."),
        ("judge", "[tasks]", '[tasks]\ntext_alone = "{{text}}"', "tasks.text_alone names {{text}}, which has no value"),
        ("judge", "[tasks]", "[tusks]", "It has no table [tasks]."),
        ("judge", "[tasks]", "[tasks", "It is no TOML"),
    ],
)
def test_faults_of_a_set_are_reported(folder, name, before, after, message):
    alter(folder, name, before, after)
    assert message in refusal_message(folder)
    assert message in run("check", folder, status=1)


def test_all_faults_are_reported_at_once(folder):
    alter(folder, "judge", "{{secret}}", "")
    alter(folder, "proposer", "{{question}}", "")
    (folder / "advocate.toml").unlink()
    message = refusal_message(folder)
    for fault in ("judge.toml: system", "proposer.toml: tasks.answer", "There is no advocate.toml"):
        assert fault in message


@pytest.mark.parametrize(
    ("place", "message"), [("7", "no packaged prompts of version 7"), ("nowhere", "no folder nowhere of prompts")]
)
def test_missing_set_is_named(place, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadRequest, match=message):
        sets.open_set(place)
    assert "Error" in run("check", place, status=1)


def test_file_that_is_not_utf_8_is_refused(folder):
    (folder / "judge.toml").write_bytes(b"\xff\xfe\x00")
    assert "judge.toml can't be read as UTF-8" in refusal_message(folder)


def test_oversized_file_is_refused_rather_than_truncated(folder):
    (folder / "judge.toml").write_text(sets.source("1", "judge") + "# more\n" * 40_000)
    assert "judge.toml is larger than 200,000 bytes" in refusal_message(folder)


def test_optional_placeholders_may_be_left_out(folder):
    alter(folder, "judge", " Likeness to the meme, at most 1: {{similarity}}.", "")
    counted = "Of the {{voters}} labelled memes nearest to this one, {{harmful}} were found harmful. On"
    alter(folder, "judge", counted, "On")
    alter(folder, "advocate", "Question {{number}}:", "A question:")
    alter(folder, "advocate", "The policy by which the meme will be judged:\n\n{{policy}}\n", "")
    record, cast = try_with(folder)
    judged = prompt_text(cast.requests("judge")[0])
    assert "Likeness" not in judged and "text of p0" in judged and "probability of about" in judged
    assert "A question:" in prompt_text(cast.requests("accuser")[-1])
    assert record.verdict


def try_with(place, cast=None, **settings):
    cast = cast or Cast(rounds=2)
    court = replace(
        full_court(cast, settings=TrialSettings(prompts=str(place), **settings)), prompts=sets.open_set(str(place))
    )
    return hear(court, a_meme("words"), procedure=Procedure.FULL), cast


def test_trial_uses_its_set_of_prompts_and_records_it(folder):
    alter(folder, "judge", "Judge the meme.", "Judge the meme. Take your time.")
    alter(folder, "judge", "version = 1", 'version = "slow"')
    alter(folder, "proposer", "Describe the picture:", "Describe the picture in order:")
    record, cast = try_with(folder)
    assert "Take your time." in prompt_text(cast.requests("judge")[0])
    assert "in order:" in prompt_text(cast.requests("proposer")[0])
    versions, verdict_event = record.opened.versions, record.last(VerdictGiven)
    assert versions.prompts == sets.open_set(str(folder)).digest != sets.packaged().digest
    assert verdict_event.call.prompt_id == "judge/slow/judge"
    assert verdict_event.call.prompt_digest == sets.open_set(str(folder)).judge.digest
    # The name of the folder without its path.
    assert record.opened.settings["prompts"] == "mine"
    assert str(folder.parent) not in "".join(event.model_dump_json() for event in record.events)
    # Its messages can be rebuilt, and it replays, wherever the set was opened.
    assert all(message.exact for event in record.events for message in messages_of(record, event))
    replayed = asyncio.run(replay(record))
    assert (replayed.differences, replayed.obstacle) == ((), "")


def test_record_of_an_unavailable_set_cannot_be_replayed(folder, monkeypatch):
    alter(folder, "judge", "Judge the meme.", "Judge the meme. Take your time.")
    record, _ = try_with(folder)
    monkeypatch.setattr("court.prompts.sets._OPENED", {})
    assert "worded otherwise" in asyncio.run(replay(record)).obstacle


def test_custom_set_has_its_own_secret_which_still_ends_a_trial(folder):
    alter(folder, "judge", "Judge the meme.", "Judge the meme. Take your time.")
    secret = sets.open_set(str(folder)).judge.secret
    assert secret != sets.packaged().judge.secret
    with pytest.raises(TrialAborted, match="gave its instructions away"):
        try_with(folder, Cast(rounds=2, describe={"description": f"I was told {secret}"}))


@pytest.mark.parametrize("name", prompts.ADDED_PROMPTS)
def test_changed_added_prompt_changes_the_settings_digest(name, monkeypatch):
    """Verdicts are reused and trials resumed only under identical recorded settings."""
    before, record = full_court(Cast()).versions(Procedure.FULL), try_meme(Cast())
    summary = full_court(Cast()).versions(Procedure.SUMMARY)
    assert record.opened.settings["added_prompts"][name] == prompts.load(name).digest
    content = {**prompts.load(name).content, "version": "another"}
    monkeypatch.setattr(
        "court.roles.load", lambda wanted: prompts.Prompt(content) if wanted == name else prompts.load(wanted)
    )
    now = full_court(Cast()).versions(Procedure.FULL)
    assert now.prompts == before.prompts and now.settings != before.settings
    assert full_court(Cast()).versions(Procedure.SUMMARY) == summary, "a summary sends no prompts"


def test_settings_of_trials_name_every_prompt_file_they_may_use():
    named = {*sets.FILES, *prompts.ADDED_PROMPTS, *prompts.EXPERT_PROMPTS, "guard"}
    # Questions are asked after the verdict: the ruling's own call names this prompt.
    named.add("question")
    packaged_files = {
        file.name.partition(".")[0] for file in files("court.prompts").iterdir() if file.suffix == ".toml"
    }
    assert packaged_files == named


def test_repair_request_uses_the_set_s_prompt(folder):
    words = sets.source("1", "repair").replace("could not be used", "could not be used, alas")
    (folder / "repair.toml").write_text(words)
    described = iter(["no", {"description": "A flag."}])
    record, cast = try_with(folder, Cast(rounds=2, describe=lambda request: next(described)))
    assert any("alas" in prompt_text(request) for request in cast.requests("proposer"))
    assert record.verdict and asyncio.run(replay(record)).differences == ()


def test_trial_of_another_set_is_not_resumed(folder):
    record, _ = try_with(folder)
    interrupted = TrialRecord.of(record.events[:5])
    alter(folder, "judge", "Judge the meme.", "Judge the meme. Take your time.")
    court = replace(
        full_court(Cast(rounds=2), settings=TrialSettings(prompts=str(folder))), prompts=sets.open_set(str(folder))
    )
    with pytest.raises(CantResume, match="other prompts"):
        asyncio.run(court.resume(interrupted, a_meme("words").picture, RecordingSink()))


# Against the reply schemas, with scripted replies


def test_shortest_reply_satisfies_every_schema():
    for kind in (Description, Answer, Question, Argument):
        assert replies.parse(kind, json.dumps(shortest(schema_of(kind, 400))))
    assert replies.parse_ruling(json.dumps(shortest(ruling_schema(DEFAULT_POLICY, 2, 400))), DEFAULT_POLICY, 2)


def test_rehearsal_sends_every_task_of_the_set(monkeypatch):
    """A task that no rehearsal sends would fail first in a real trial."""
    sent = []

    class RecordingModel(ScriptedModel):
        async def reply(self, request, *, within_s):
            sent.append(prompt_text(request))
            return await super().reply(request, within_s=within_s)

        async def odds(self, request, options, *, within_s):
            sent.append(prompt_text(request))
            return await super().odds(request, options, within_s=within_s)

    monkeypatch.setattr("serving.models.rehearsal.ScriptedModel", RecordingModel)
    rehearsal = asyncio.run(rehearse(sets.packaged(), TrialSettings()))
    all_text = "\n".join(sent)
    for name in ("proposer", "advocate", "judge"):
        for task, template in prompts.load(name).content["tasks"].items():
            beginning = template.split("{{")[0].strip()
            assert beginning in all_text, (name, task)
    assert rehearsal.calls == len(sent) and rehearsal.longest > 1000


def test_set_that_reaches_no_verdict_is_reported(folder, monkeypatch):
    monkeypatch.setattr("serving.models.rehearsal.shortest", lambda schema: "no object")
    assert "came to no verdict" in run("check", folder, status=1)


# The commands


def test_sets_are_listed_with_the_one_in_use_marked(folder):
    output = run("list")
    assert sets.packaged().digest in output and output.count("in use") == 1
    alter(folder, "judge", "version = 1", "version = 2")
    output = run("list", env={"MEMECOURT_TRIAL__PROMPTS": str(folder)})
    mine = next(line for line in output.splitlines() if line.startswith("mine"))
    assert mine.endswith("in use") and output.count("in use") == 1


def test_prompt_is_shown_exactly_as_in_its_file(folder):
    for name in sets.FILES:
        assert run("show", name) == sets.source("1", name)
    alter(folder, "judge", "version = 1", "version = 2")
    assert run("show", "judge", "--from", folder) == (folder / "judge.toml").read_text()
    assert "no packaged prompts" in run("show", "judge", "--from", "9", status=1)


def test_valid_set_is_checked_with_a_rehearsal(folder):
    output = run("check", folder)
    assert sets.packaged().digest in output and "came to its verdict" in output


def test_sets_are_compared_part_by_part(folder):
    assert "same words" in run("diff", "1", folder)
    alter(folder, "judge", "Judge the meme.", "Judge this meme.")
    output = run("diff", "1", folder, status=1)
    assert "--- 1: judge tasks.judge" in output and "+++ mine: judge tasks.judge" in output
    assert "+Judge this meme. Reply" in output and "advocate" not in output


def test_unusable_set_is_refused_before_a_trial_begins(folder, tmp_path):
    alter(folder, "judge", "{{secret}}", "")
    command = ["judge", "--text", "words", "--prompts", str(folder), "--docket", str(tmp_path / "d.sqlite")]
    home = {"MEMECOURT_HOME": str(tmp_path)}
    done = CliRunner().invoke(cli, [*command, str(folder / "judge.toml")], env=home)
    assert done.exit_code == 1 and "system must name {{secret}}" in done.output
    assert not (tmp_path / "d.sqlite").exists()


def test_placeholder_tables_cover_every_prompt_and_task():
    for name in sets.FILES:
        contents = [prompts.load(name, int(version)).content for version in sets.packaged_versions()]
        for content in contents:
            assert sets.TASKS[name].keys() == content["tasks"].keys() - sets.OPTIONAL_TASKS.get(name, frozenset())
        for task, wanted in {**sets.TASKS[name], "system": sets.SYSTEM[name]}.items():
            templates = [each["system"] if task == "system" else each["tasks"][task] for each in contents]
            # No placeholder is optional in name alone: a set uses it.
            assert set().union(*map(prompts.placeholders_in, templates)) == wanted.required | wanted.optional
