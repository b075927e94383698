"""The command line without a server; its human-readable output is compared with golden files."""

import csv
import json
import re
from contextlib import asynccontextmanager

import click
import pytest
from click.testing import CliRunner

from court.events import ModelCall, SummarisedAhead, Unused
from court.record import TrialRecord
from memecourt.v1 import court_pb2 as wire
from retrieval.library.library import Library
from retrieval.open import open_writer
from serving.cli import judge as command
from serving.cli.common import excerpt, printable
from serving.cli.main import cli
from serving.cli.records import render
from serving.docket.review.search import CHOICES, FREE
from serving.settings import Settings
from tests.support.dockets import NOON, append_all, events_of, review_trial, with_docket
from tests.support.fakes import FakeReader, H, N, RecordingSink, a_meme, findings
from tests.support.golden import assert_matches_golden
from tests.support.libraries import drawn_library
from tests.support.trial import a_court, hear

HOSTILE = "\x1b[2Jcleared\u202egnp.exe\u200b\x07"


def invoke(*arguments, **options):
    return CliRunner().invoke(cli, [str(a) for a in arguments], **options)


def test_a_search_has_every_filter_of_lists_over_http():
    chosen = {name for values in CHOICES.values() for fields in values.values() for name in fields}
    assert chosen | set(FREE.values()) >= set(wire.TrialFilter.DESCRIPTOR.fields_by_name)


def helps(command, context):
    """Yields the help of a command and of all commands below it."""
    yield f"## {context.command_path}\n\n{command.get_help(context)}\n\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            yield from helps(part, click.Context(part, info_name=name, parent=context, **part.context_settings))


def test_help_of_each_command_matches_the_golden_file(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    context = click.Context(cli, info_name="memecourt", terminal_width=100, **cli.context_settings)
    assert_matches_golden("help.txt", "".join(helps(cli, context)), request)


def test_usage_errors_have_their_own_exit_code(tmp_path):
    without_arguments = invoke("judge")
    assert (
        without_arguments.exit_code == 2
        and "Name a picture, or give a text to be judged alone" in without_arguments.output
    )
    assert invoke("judge", "--text", " ").exit_code == 2
    assert invoke("judge", "a.png", "b.png", "--text", "x").exit_code == 2
    assert invoke("judge", "a.png", "--server", "x:1", "--library", tmp_path).exit_code == 2
    assert invoke("judge", "a.png", "--procedure", "trial by combat").exit_code == 2
    assert invoke("precedents", "search").exit_code == 2


def test_untrusted_text_cannot_control_the_terminal():
    shown = printable(HOSTILE)
    assert shown == "<U+001B>[2Jcleared<U+202E>gnp.exe<U+200B><U+0007>"
    assert "\x1b" not in excerpt(HOSTILE) and "\n" not in excerpt("two\nlines")
    assert len(excerpt("x" * 500, 60)) == 60


def test_rendered_record_matches_the_golden_file(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    found = findings([H, N, H, H, N], notes=("two precedents have no picture",))
    record = hear(a_court(found, FakeReader("one line\nanother"), harm_cost=2.0), a_meme(None))
    shown = re.sub(r"in \d\.\d+ s", "in … s", click.unstyle(render(record)))  # durations vary
    assert_matches_golden("record.txt", shown + "\n", request)


def test_rendered_incomplete_record_says_so():
    record = hear(a_court())
    assert "cut off" in render(TrialRecord.of(record.events[:3]))


def test_hidden_characters_in_a_record_are_made_visible():
    record = hear(a_court(), a_meme(HOSTILE))
    shown = click.unstyle(render(record))
    assert "\x1b" not in shown and "<U+202E>" in shown


def test_records_are_listed_and_shown_as_text_or_json(tmp_path):
    notes = RecordingSink()
    hear(a_court(), watch=notes)
    path = tmp_path / "docket.sqlite"
    with_docket(path, lambda docket: append_all(docket, notes.events))
    listed = invoke("records", "list", "--docket", path)
    assert listed.exit_code == 0 and "HARMFUL" in listed.output
    assert invoke("records", "list", "--docket", path, "--limit", 10**20).output == listed.output
    (line,) = invoke("records", "list", "--docket", path, "--json").output.splitlines()
    assert json.loads(line)["label"] == "HARMFUL"
    head, row = listed.output.splitlines()
    assert head.index("decision") == row.index("block") and head.index("verdict") == row.index("HARMFUL")
    assert invoke("records", "list", "--docket", path, "label:not-harmful").output == ""
    # The last entry of the log is none that the review queue reads.
    access = {"who": "vera", "what": "meme", "at": NOON}
    with_docket(path, lambda docket: docket.reviews.record_access("t", **access))
    search = ["label:harmful", "since:2020-01-01", "is:decided"]
    assert invoke("records", "list", "--docket", path, *search).output == listed.output
    assert invoke("records", "list", "--docket", path, *search, "is:reviewed").output == ""
    assert "unknown filter `lable:`; known: label" in invoke("records", "list", "--docket", path, "lable:x").output
    (row,) = csv.DictReader(invoke("records", "list", "--docket", path, "--as", "csv").output.splitlines())
    assert (row["trial_id"], row["decision"], row["review"]) == ("t", "block", "")
    assert (row["in_force"], row["finding"]) == ("COURT", "HARMFUL")
    shown = invoke("records", "show", "t", "--docket", path, "--json")
    assert len(json.loads(shown.output)["events"]) == len(notes.events)
    with_docket(path, lambda docket: review_trial(docket, "t"))
    head, row = invoke("records", "list", "--docket", path).output.splitlines()
    assert head.index("finding") == row.index("person: not harmful") and head.index("decision") == row.index("allow")
    (row,) = csv.DictReader(invoke("records", "list", "--docket", path, "--as", "csv").output.splitlines())
    assert (row["review"], row["in_force"], row["finding"]) == ("OVERRULED", "PERSON", "NOT_HARMFUL")


def test_trials_are_named_by_the_beginning_of_their_id(tmp_path):
    path = tmp_path / "docket.sqlite"

    async def scene(docket):
        for trial_id in ("abc", "abd", "abdx", "x_1", "xy1"):
            await append_all(docket, events_of(trial_id))

    with_docket(path, scene)

    def shown(beginning):
        return invoke("records", "show", beginning, "--docket", path, "--json")

    ids = {
        beginning: json.loads(shown(beginning).output)["trial_id"] for beginning in ("abc", "abd", "abdx", "x_", "xy")
    }
    assert ids == {"abc": "abc", "abd": "abd", "abdx": "abdx", "x_": "x_1", "xy": "xy1"}
    assert shown("ab").exit_code == 1 and "Several trials begin with ab" in shown("ab").output
    assert shown("abde").exit_code == 1 and "no trial abde" in shown("abde").output
    for line in (("records", "export", "--as", "json", "-o", "-"), ("docket", "bundle", "-o", tmp_path / "b")):
        assert "Several trials" in invoke(*line[:2], "ab", *line[2:], "--docket", path).output
    exported = invoke("records", "export", "xy", "--as", "json", "-o", "-", "--docket", path).output
    assert json.loads(exported)["trial_id"] == "xy1"
    why = ("--who", "ada", "--why", "asked for", "--docket", path)
    assert "Erase trial xy1 for ever?" in invoke("docket", "erase", "xy", *why).output
    assert invoke("docket", "erase", "ab", "--yes", *why).exit_code == 1


def test_shells_complete_commands(monkeypatch):
    environment = {"_MEMECOURT_COMPLETE": "bash_complete", "COMP_WORDS": "memecourt rec", "COMP_CWORD": "1"}
    completed = CliRunner().invoke(cli, prog_name="memecourt", env=environment)
    assert completed.output.split() == ["plain,records"]


def test_missing_docket_or_trial_is_reported(tmp_path):
    for arguments in (("records", "list"), ("records", "show", "t")):
        outcome = invoke(*arguments, "--docket", tmp_path / "none.sqlite")
        assert outcome.exit_code == 1 and "There is no docket" in outcome.output
    with_docket(tmp_path / "d.sqlite", lambda docket: docket.index.list(limit=1))
    outcome = invoke("records", "show", "t", "--docket", tmp_path / "d.sqlite")
    assert outcome.exit_code == 1 and "no trial t" in outcome.output


@pytest.mark.parametrize("urls", ["http://a:1/v1,http://b:2/v1", '["http://a:1/v1", "http://b:2/v1"]'])
def test_server_urls_are_read_from_the_environment(monkeypatch, urls):
    for name in ("LLM__URL", "LLM__ROLES__JUDGE__URL", "LLM__GUARD__URL"):
        monkeypatch.setenv(f"MEMECOURT_{name}", urls)
    monkeypatch.setenv("MEMECOURT_LLM__GUARD__MODEL", "guard")
    monkeypatch.setenv("MEMECOURT_LLM__GUARD__ADAPTER", "llama-guard-4")
    llm = Settings().llm
    assert llm.url == llm.roles["judge"].url == llm.guard.url == ("http://a:1/v1", "http://b:2/v1")


def test_invalid_settings_are_named_without_their_values(tmp_path):
    outcome = invoke("records", "list", env={"MEMECOURT_CONCURRENT_TRIALS": "hunter2"})
    assert outcome.exit_code == 1
    assert "concurrent_trials" in outcome.output and "hunter2" not in outcome.output


def test_unused_calls_of_a_full_trial_are_shown():
    unused = Unused(calls=2, tokens_in=1200, tokens_out=90, unanswered=3)
    call = ModelCall(
        role="ACCUSER", model="m", prompt_id="p", prompt_digest="d", tokens_in=1, tokens_out=1, latency_s=0
    )
    fields = {"side": "ACCUSER", "round": 3, "summary": "written early", "justification": "so", "call": call}
    record = hear(a_court())
    (*before, last) = record.events
    ahead = SummarisedAhead(trial_id="t", seq=last.seq, at=last.at, **fields)
    ended = last.model_copy(update={"unused": unused, "seq": last.seq + 1})
    shown = click.unstyle(render(TrialRecord.of((*before, ahead, ended))))
    assert "accuser, round 3, before it was known whether the round counts" in shown and "written early" in shown
    assert "unused      2 more calls (1,200 tokens in, 90 out); 3 not answered" in shown
    assert "unused" not in click.unstyle(render(record))


HARMFUL, HARMLESS, UNDECIDED = wire.LABEL_HARMFUL, wire.LABEL_NOT_HARMFUL, wire.LABEL_UNDECIDED
ANSWERS = {
    "allow": wire.JudgeResponse(label=HARMLESS, decision="allow"),
    "block": wire.JudgeResponse(label=HARMFUL, decision="block"),
    "review": wire.JudgeResponse(label=HARMFUL, decision="review"),
    "undecided": wire.JudgeResponse(label=UNDECIDED, decision="review"),
    "acquitted": wire.JudgeResponse(label=UNDECIDED, decision="allow"),
    "later": wire.JudgeResponse(label=HARMLESS, decision="quarantine"),
    "strange": wire.JudgeResponse(label=99, decision="review"),
    "error": command.JudgeFailure("No.", "NO"),
}


@pytest.fixture
def judge(monkeypatch, tmp_path):
    """Runs the command on files that are answered by their content."""

    @asynccontextmanager
    async def scripted(*_):
        async def ask(request):
            return ANSWERS[request.image.decode()]

        yield ask

    def run(*names, options=()):
        for name in names:
            (tmp_path / name).write_text(name)
        paths = [str(tmp_path / name) for name in names]
        return CliRunner().invoke(cli, ["judge", "--server", "court:1", *options, *paths])

    monkeypatch.setattr(command, "_there", scripted)
    return run


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["allow"], 0),
        (["block"], 10),
        (["undecided"], 11),
        (["review"], 12),
        (["error"], 1),
        (["acquitted"], 0),
        (["later"], 12),
        (["strange"], 11),
        (["allow", "undecided"], 11),
        (["undecided", "allow", "review"], 12),
        (["review", "block", "undecided"], 10),
        (["block", "error", "allow"], 1),
    ],
)
def test_exit_code_is_the_gravest_decision(judge, names, code):
    assert judge(*names).exit_code == code
    assert judge(*names, options=["--exit-zero"]).exit_code == (1 if code == 1 else 0)
    assert judge(*names, options=["--json"]).exit_code == code


@pytest.mark.parametrize("name", ["allow", "block", "review"])
def test_first_line_is_the_decision_and_json_has_it(judge, name):
    assert judge(name).stdout.split()[0] == name.upper()
    assert json.loads(judge(name, options=["--json"]).stdout)["verdict"]["decision"] == name


SIGNED = ("--who", "ada", "--why", "as was decided")
DATABASE = "postgresql://court:horse@db.example/memes"


def call(*arguments):
    done = CliRunner().invoke(cli, ["precedents", *(str(one) for one in arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.output


def test_precedent_without_text_and_picture_is_refused_before_a_library_is_opened():
    code, output = call("add-one", "LIBRARY", "x", "harmful", *SIGNED)
    assert (code, "Give --text, --picture or both" in output) == (2, True), output


@pytest.mark.parametrize(
    "arguments",
    [
        ("remove", "x", *SIGNED),
        ("relabel", "x", "harmful", *SIGNED),
        ("revoke", 1, *SIGNED),
        ("history",),
        ("compact",),
    ],
)
def test_missing_library_is_reported(tmp_path, arguments):
    code, output = call(arguments[0], tmp_path / "nothing", *arguments[1:])
    assert (code, "There is no precedent library at the given place" in output) == (1, True), output
    assert not (tmp_path / "nothing").exists()


def test_compacting_reports_the_remaining_memes_and_forgetting_is_final(tmp_path):
    drawn_library(tmp_path, 1, 5)
    assert call("remove", tmp_path, "drawn-0", *SIGNED)[0] == 0
    code, output = call("compact", tmp_path)
    library = Library.open(tmp_path, None)
    assert (code, output) == (0, f"4 memes, digest {library.digest}\n")
    assert call("revoke", tmp_path, 1, *SIGNED) == (0, "change 2: revoked 1, drawn-0\n")
    assert call("remove", tmp_path, "drawn-0", *SIGNED)[0] == 0
    code, output = call("compact", tmp_path, "--forget", "--json")
    assert (code, json.loads(output)) == (0, {"digest": Library.open(tmp_path, None).digest, "memes": 4})
    code, output = call("revoke", tmp_path, 3, *SIGNED)
    assert (code, "was forgotten on purpose" in output) == (1, True), output
    with open_writer(tmp_path) as writer:
        assert [one.change.meme for one in writer.history()] == ["drawn-0"] * 3


@pytest.mark.parametrize("arguments", [("compact",), ("build", "memes.jsonl"), ("add", "memes.jsonl")])
def test_file_only_commands_are_refused_for_a_database(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    code, output = call(arguments[0], DATABASE, *arguments[1:])
    assert (code, f"`{arguments[0]}` is for libraries on disk" in output, "horse" in output) == (1, True, False), output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [("remove", "x", *SIGNED), ("history",)])
def test_malformed_address_is_not_echoed(arguments):
    code, output = call(arguments[0], "postgresql://court:horse", *arguments[1:])
    assert (code, "address of a database" in output, "horse" in output) == (1, True, False), output
