"""Trials exported as pages, JSON and tables: complete, inert, and without side effects."""

import asyncio
import base64
import hashlib
import io
import json
import os
import random
import re
import stat
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from court.events import PrecedentsCited, QuestionAsked, Side, Summarised, TextRead, VerdictGiven, VerdictReviewed
from court.record import TrialRecord
from eval.session.directory import replace_file
from memecourt import verify
from serving.access import private_files
from serving.cli.main import cli
from serving.docket.errors import DocketError, TrialErased, TrialUnknown
from serving.docket.store.listing import DocketLine, TrialFilter
from serving.export import tables
from serving.export.source import ExportSource, Pictures, document, gather, read_document, write_document
from serving.export.tables import Form, Selection
from serving.export.trial_file import page
from serving.views.blur import blurred
from serving.views.messages import messages_of
from tests.support.cast import Cast
from tests.support.dockets import NOON, append_all, random_records, with_docket
from tests.support.fakes import a_picture
from tests.support.html import ParsedPage
from tests.support.messages import SHOWN, altered, place_of, run_trial
from tests.support.pictures import encode, quarters

pq = pytest.importorskip("pyarrow.parquet")

SHARP = encode(quarters((300, 220)), "PNG")
HOSTILE = (
    'go home \u202egnp.exe\u202c <script>alert(1)</script> <img src=x onerror=alert(2)> " onmouseover="alert(3) '
    "{{ 7*7 }} {% raw %} </style></title><svg onload=alert(4)> zero\u200bwidth &amp; <!-- --> javascript:alert(5)"
)


@pytest.fixture(scope="module")
def hostile():
    """A trial in which strangers and models said everything that could break a page."""
    texts = {"question": HOSTILE, "answer": HOSTILE, "summary": HOSTILE, "justification": HOSTILE}
    cast = Cast(
        rounds=2,
        describe={"description": HOSTILE},
        answer={"answer": HOSTILE},
        ask={"question": HOSTILE},
        summarise={key: texts[key] for key in ("summary", "justification")},
    )
    exhibits = tuple(
        each.model_copy(update={"text": HOSTILE, "categories": (HOSTILE,), "source": HOSTILE})
        for each in SHOWN.exhibits
    )
    record = run_trial(cast, text=HOSTILE, found=SHOWN.model_copy(update={"exhibits": exhibits}))
    verdict_event = record.last(VerdictGiven)
    record = altered(record, verdict_event.seq, verdict=verdict_event.verdict.model_copy(update={"rationale": HOSTILE}))
    review = VerdictReviewed(
        trial_id="t",
        seq=len(record.events),
        at=NOON,
        outcome="UPHELD",
        label="HARMFUL",
        reason=HOSTILE,
        reviewer=HOSTILE,
    )
    return TrialRecord.of((*record.events, review))


def test_page_is_self_contained_and_runs_no_code(hostile):
    html = page(ExportSource(hostile, (SHARP,), {"p0": SHARP}), pictures=Pictures.SHARP)
    found = ParsedPage(html)
    kinds = {tag for tag, _, _ in found.tags}
    assert not kinds & {"script", "link", "iframe", "object", "embed", "base", "form", "video", "audio", "source"}
    for tag, attributes, _ in found.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "srcset", "srcdoc")], tag
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,")), attributes
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    assert "url(" not in style and "@import" not in style
    policy = next(attributes["content"] for tag, attributes, _ in found.tags if "http-equiv" in attributes)
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in policy
    assert policy.startswith("default-src 'none'")


def test_page_contains_every_statement_and_shows_hidden_characters(hostile):
    html = page(ExportSource(hostile))
    words = "".join(ParsedPage(html).text)
    plain = HOSTILE.replace("\u202e", "U+202E").replace("\u202c", "U+202C").replace("\u200b", "U+200B")
    # Text, description, two rounds of two sides (question, answer, summary), two justifications, three precedents …
    assert words.count(plain) >= 1 + 1 + 12 + 2 + 3 + 1
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b]", html)
    assert words.count("exactly as sent") == len([e for e in hostile.events if getattr(e, "call", None)]) + 1
    assert "by " in words and "upheld" in words


def test_pictures_are_blurred_in_the_file_unless_sharp_ones_are_requested():
    record = run_trial(Cast(rounds=2), found=SHOWN)
    source = ExportSource(record, (SHARP,), {"p1": SHARP})
    shown = page(source)
    images = [a["src"] for tag, a, _ in ParsedPage(shown).tags if tag == "img"]
    assert images == [f"data:image/png;base64,{base64.b64encode(blurred(SHARP)).decode()}"] * 2
    assert "img" not in {tag for tag, _, _ in ParsedPage(page(source, pictures=Pictures.NONE)).tags}
    sharp = ParsedPage(page(source, pictures=Pictures.SHARP))
    sharp_url = f"data:image/png;base64,{base64.b64encode(SHARP).decode()}"
    around = [around for tag, attributes, around in sharp.tags if tag == "img" and attributes["src"] == sharp_url]
    assert len(around) == 2 and all("details" in each for each in around), "shown before it is asked for"
    assert not any("open" in attributes for tag, attributes, _ in sharp.tags if tag == "details")


def test_precedent_picture_that_changed_since_is_reported():
    record = run_trial(Cast(rounds=2), found=SHOWN)
    then = b"picture of p0"  # the picture in the cast's library
    assert not ExportSource(record, (), {"p0": then}).changed("p0")
    assert ExportSource(record, (), {"p0": SHARP}).changed("p0")
    assert "has another picture for it now" in page(ExportSource(record, (), {"p0": SHARP}))
    assert "has another picture for it now" not in page(ExportSource(record, (SHARP,)))


def test_inconsistent_records_are_flagged_in_the_page():
    record = run_trial(Cast(rounds=3))
    assert "Comes out otherwise" not in page(ExportSource(record))
    place = place_of(record, Summarised, side=Side.ACCUSER, round=2)
    worse = altered(record, place, summary="zzzz")
    assert "Comes out otherwise" in page(ExportSource(worse)) and "not shown to be as sent" not in page(
        ExportSource(worse)
    )
    other = altered(record, place_of(record, QuestionAsked), question="Something else?")
    assert "Comes out otherwise" not in page(ExportSource(other)) and "not shown to be as sent" in page(
        ExportSource(other)
    )


def test_gathered_trial_includes_pictures_unless_excluded(tmp_path):
    record = run_trial(Cast(rounds=2), found=SHOWN)
    picture = a_picture()

    async def scene(docket):
        await append_all(docket, record.events)
        await docket.writer.keep_picture(picture)

        async def gathered(pictures):
            return await gather("t", trials=docket.trials, log=docket.log, pictures=pictures)

        return await gathered(Pictures.VEILED), await gathered(Pictures.NONE)

    with_pictures, without = with_docket(tmp_path / "d.sqlite", scene)
    assert with_pictures.frames == (b"png",) and without.frames == ()
    assert with_pictures.record == record


def test_exported_document_reads_back_as_the_same_record(hostile):
    source = ExportSource(hostile, (SHARP,))
    for text in (
        write_document(source),
        write_document(source, pictures=Pictures.SHARP, messages=True),
        json.dumps(document(source)),
    ):
        assert read_document(text) == hostile
    exported = document(source, pictures=Pictures.VEILED, messages=True)
    assert exported["label"] == exported["court_label"] == "HARMFUL" and exported["reviewed"] == "UPHELD"
    assert (
        base64.b64decode(exported["pictures"][0]["png_base64"]) == blurred(SHARP) and exported["pictures"][0]["veiled"]
    )
    assert exported["pictures"][0]["sha256"] == hashlib.sha256(SHARP).hexdigest()
    assert all(call["exact"] for call in exported["messages"])
    assert "pictures" not in document(source) and "messages" not in document(source)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "memecourt-trial/1"}',
        '{"format": "memecourt-trial/1", "events": [{}]}',
        pytest.param("[" * 100_000, id="nested"),
    ],
)
def test_malformed_documents_are_refused(text):
    with pytest.raises(BadRequest, match="no trial in the form"):
        read_document(text)


# Selections of trials.


async def joined(chunks):
    return b"".join([chunk async for chunk in chunks])


def fill_docket(tmp_path, count=25):
    trials = random_records(random.Random(3), count, NOON)

    async def fill(docket):
        for events in trials:
            await append_all(docket, events)

    with_docket(tmp_path / "d.sqlite", fill)
    return tmp_path / "d.sqlite", {events[0].trial_id: TrialRecord.of(events) for events in trials}


def test_selection_contains_each_trial_once_across_pages(tmp_path, monkeypatch):
    place, records = fill_docket(tmp_path)
    monkeypatch.setattr(tables, "_PAGE", 7)
    monkeypatch.setattr(tables, "_GROUP_ROWS", 5)

    async def scene(docket):
        lines = await joined(Selection(docket.index, docket.trials).chunks(Form.JSONL))
        rows = await joined(Selection(docket.index, docket.trials).chunks(Form.PARQUET))
        harmful = TrialFilter(labels=frozenset({"HARMFUL"}))
        # As the docket has them: some are of the same content, which a person has decided in another trial.
        decided = {trial_id: await docket.trials.record(trial_id) for trial_id in records}
        return lines, rows, await joined(Selection(docket.index, docket.trials, harmful).chunks(Form.JSONL)), decided

    lines, rows, harmful, decided = with_docket(place, scene)
    read = [read_document(line) for line in lines.splitlines()]
    assert {record.trial_id: record for record in read} == records and len(read) == len(records)
    assert [r.opened.at for r in read] == sorted(r.opened.at for r in read)
    table = pq.read_table(io.BytesIO(rows))
    assert table.num_rows == len(records) and pq.ParquetFile(io.BytesIO(rows)).num_row_groups == len(records) // 5
    for row in table.to_pylist():
        record = records[row["trial_id"]]
        assert TrialRecord.of(map(parsed_event, json.loads(row["events"]))) == record
        assert row["opened_at"] == record.opened.at and row["state"] == record.state
        assert row["label"] == (str(decided[record.trial_id].label_in_force) if record.verdict else None)
        assert row["rationale"] == (record.verdict.rationale if record.verdict else None)
    wanted = {id_ for id_, record in records.items() if record.verdict and record.verdict.label == "HARMFUL"}
    assert {json.loads(line)["trial_id"] for line in harmful.splitlines()} == wanted != set(records)


def parsed_event(fields):
    from court.events import parse_event

    return parse_event(json.dumps(fields))


def test_table_counts_the_calls_and_tokens_actually_used():
    cast = Cast(rounds=3, describe=lambda request: None if len(request.parts) > 2 else "cut")
    record = run_trial(cast, overlap=False)
    row = tables.row_of(record)
    assert row["model_calls"] == cast.calls()
    calls_by_model = [model.asked for model in cast.models.values()]
    words = sum(
        len(" ".join([a.request.system, *(p for p in a.request.parts if isinstance(p, str))]).split())
        for calls in calls_by_model
        for a in calls
    )
    assert row["tokens_in"] == words
    assert row["category"] == "nationality" and row["clause"] == "4" and row["models"].startswith('{"ACCUSER"')


class GeneratedDocket:
    """A fake docket of ``count`` trials generated on demand, every seventh of them erased."""

    def __init__(self, count, record):
        self.count = count
        self.record_of = record

    async def list(self, *, limit, after=None, which=None, oldest_first=False):
        first = 0 if after is None else int(after[1]) + 1
        opened = self.record_of.opened
        return [
            DocketLine(f"{n:09}", datetime.fromtimestamp(n, UTC), opened.procedure, "", "", "DECIDED", "HARMFUL", False)
            for n in range(first, min(first + limit, self.count))
        ]

    async def record(self, trial_id):
        if int(trial_id) % 7 == 3:
            raise TrialErased("erased")
        events = [event.model_copy(update={"trial_id": trial_id}) for event in self.record_of.events]
        return TrialRecord.of(events)


@pytest.mark.parametrize("form", list(Form))
def test_memory_does_not_grow_with_the_selection(form, monkeypatch):
    monkeypatch.setattr(tables, "_PAGE", 10)
    monkeypatch.setattr(tables, "_GROUP_ROWS", 10)

    record = run_trial(Cast(rounds=2))

    def peak(count):
        async def scene():
            endless = GeneratedDocket(count, record)
            selection = Selection(endless, endless)
            size = 0
            async for chunk in selection.chunks(form):
                size += len(chunk)
            assert selection.given + len(selection.erased) == count
            assert selection.erased == [f"{n:09}" for n in range(3, count, 7)]
            return size

        tracemalloc.start()
        try:
            size = asyncio.run(scene())
            return tracemalloc.get_traced_memory()[1], size
        finally:
            tracemalloc.stop()

    (little, small), (much, large) = peak(20), peak(80)
    assert large > 3 * small if form is Form.JSONL else large > small
    assert much < 1.5 * little


@pytest.mark.parametrize("wrong", [DocketError("is no record"), TrialUnknown("listed, and not there")])
def test_damaged_record_fails_the_export(wrong):
    class Damaged(GeneratedDocket):
        async def record(self, trial_id):
            raise wrong

    damaged = Damaged(5, run_trial(Cast(rounds=1)))
    with pytest.raises(type(wrong)):
        asyncio.run(joined(Selection(damaged, damaged).chunks(Form.JSONL)))


# The command.


def export(*arguments):
    return CliRunner().invoke(cli, ["records", "export", *(str(each) for each in arguments)])


@pytest.fixture
def docket(tmp_path):
    record = run_trial(Cast(rounds=2), found=SHOWN)

    async def fill(docket):
        await append_all(docket, record.events)
        await docket.writer.keep_picture(a_picture())

    with_docket(tmp_path / "d.sqlite", fill)
    return tmp_path / "d.sqlite"


def test_command_writes_each_form(docket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for form, named, begins in (
        ("json", "t.json", b'{\n "format"'),
        ("dsa", "t.dsa.json", b'{\n "format": "memecourt-dsa-draft/1"'),
    ):
        outcome = export("t", "--as", form, "--docket", docket)
        assert outcome.exit_code == 0, outcome.output
        assert Path(named).read_bytes().startswith(begins) and outcome.output.strip() == named
    html = export("t", "--as", "html", "--with-picture", "none", "--docket", docket, "-o", "-")
    assert html.exit_code == 0 and html.output.startswith("<!doctype html>")
    for form in Form:
        outcome = export("--as", form, "--docket", docket, "-o", tmp_path / f"all.{form}")
        assert outcome.exit_code == 0 and "1 trial\n" in outcome.output
    assert pq.read_table(tmp_path / "all.parquet").num_rows == 1
    none = export("--as", "jsonl", "is:failed", "--docket", docket, "-o", "-")
    assert none.exit_code == 0 and none.stdout == ""
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--as", "html"),
        ("t", "--as", "dsa", "--with-picture", "sharp"),
        ("t", "--as", "json", "--library", "."),
        ("--as", "parquet", "--library", "."),
        ("t", "label:harmful", "--as", "html"),
    ],
)
def test_options_without_effect_on_a_form_are_refused(arguments, docket):
    outcome = export(*arguments, "--docket", docket)
    assert outcome.exit_code == 2 and ("name its ID" in outcome.output or "means nothing" in outcome.output)


def test_unknown_trial_and_unwritable_target_are_reported(docket, tmp_path):
    assert "no trial x" in export("x", "--as", "json", "--docket", docket).output
    nowhere = tmp_path / "none" / "t.json"
    outcome = export("t", "--as", "json", "--docket", docket, "-o", nowhere)
    assert outcome.exit_code == 1 and "can't be written" in outcome.output
    outcome = export("--as", "jsonl", "--docket", docket, "-o", tmp_path / "none" / "t.jsonl")
    assert outcome.exit_code == 1 and "can't be written" in outcome.output


def test_interrupted_export_leaves_no_partial_file(docket, tmp_path, monkeypatch):
    async def broken(self):
        yield b"half"
        raise DocketError("is no record")

    monkeypatch.setattr(Selection, "_jsonl", broken)
    out = tmp_path / "all.jsonl"
    out.write_text("the last one")
    assert export("--as", "jsonl", "--docket", docket, "-o", out).exit_code == 1
    assert out.read_text() == "the last one" and not list(tmp_path.glob(".*.part"))


def test_exported_verdict_verifies_against_the_log(docket, tmp_path):
    """The standalone verifier accepts it, and refuses it if the receipt was altered or is another trial's."""
    key, out = tmp_path / "docket.vkey", tmp_path / "t.json"

    async def vkey(docket):
        return await docket.log.vkey()

    key.write_text(f"{with_docket(docket, vkey)}\n")
    assert export("t", "--as", "json", "--docket", docket, "-o", out).exit_code == 0
    assert verify.main([str(out), "--key", str(key)]) == 0
    exported = json.loads(out.read_text())
    assert "checkpoint" in exported["receipt"] and "verdict_id" in exported
    for change in (
        {"verdict_id": "u"},
        {"receipt": {**exported["receipt"], "entry": exported["receipt"]["entry"] + 1}},
    ):
        out.write_text(json.dumps({**exported, **change}))
        assert verify.main([str(out), "--key", str(key)]) == 1
    page_of = export("t", "--as", "html", "--with-picture", "none", "--docket", docket, "-o", "-").output
    assert exported["receipt"]["checkpoint"].splitlines()[2] in page_of


def test_export_writes_through_pipes_and_links_without_replacing_them(docket, tmp_path, monkeypatch):
    """Run as root, renaming a file to /dev/null would replace the device for every program on the machine."""
    monkeypatch.setattr(private_files, "_callers_umask", 0o022)
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe, 0o600)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # without a reader the writer would block
    try:
        for write in (
            lambda: export("t", "--as", "json", "--docket", docket, "-o", pipe).exit_code,
            lambda: (
                CliRunner().invoke(cli, ["docket", "bundle", "t", "--docket", str(docket), "-o", str(pipe)]).exit_code
            ),
            lambda: replace_file(pipe, '{"format": "any"}'),
        ):
            # A pipe buffers 64 kB, more than any of these writes.
            assert not write()
            assert json.loads(os.read(reading, 1 << 20))["format"]
            assert stat.S_ISFIFO(pipe.stat().st_mode) and stat.S_IMODE(pipe.stat().st_mode) == 0o600
    finally:
        os.close(reading)
    # A link to an anonymous pipe, such as /dev/stdout, resolves to no path.
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as read, os.fdopen(writing, "wb"):
        assert export("t", "--as", "json", "--docket", docket, "-o", f"/proc/self/fd/{writing}").exit_code == 0
        assert json.loads(os.read(read.fileno(), 1 << 20))["format"]
    target.write_text("before")
    link.symlink_to(target)
    assert export("t", "--as", "json", "--docket", docket, "-o", link).exit_code == 0
    assert link.is_symlink() and read_document(target.read_text()).trial_id == "t"
    assert "has no name" in export("t", "--as", "json", "--docket", docket, "-o", "").output


def test_erased_trials_are_left_out_of_exports_and_counted(docket, tmp_path):
    """Trials that quoted an erased precedent state that their messages differ from those sent."""
    other = [event.model_copy(update={"trial_id": "u"}) for event in run_trial(Cast(rounds=2), found=SHOWN).events]

    async def erase(docket):
        await append_all(docket, other)
        await docket.eraser.erase("u", who="ada", why="asked for", at=NOON)
        await docket.eraser.erase_precedent("p1", who="ada", why="asked for", at=NOON)
        return await docket.trials.record("t")

    record = with_docket(docket, erase)
    outcome = export("--as", "jsonl", "--docket", docket, "-o", tmp_path / "all.jsonl")
    assert "1 trial, 1 more is erased: u\n" in outcome.output
    assert [read_document(line).trial_id for line in (tmp_path / "all.jsonl").read_bytes().splitlines()] == ["t"]
    assert export("u", "--as", "json", "--docket", docket).exit_code == 1
    html = page(ExportSource(record))
    assert "text of p1" not in html and "text of p0" in html
    ruling, odds = messages_of(record, record.last(VerdictGiven))
    assert not ruling.exact and not odds.exact and "erased" in ruling.why
    messages = [each for event in record.events for each in messages_of(record, event)]
    assert all(each.exact for each in messages if each.call.role != "JUDGE"), "other roles see no precedents"


def test_sharp_pictures_are_exported_and_the_disclosure_is_logged(docket, tmp_path):
    out = tmp_path / "t.json"
    assert (
        export("t", "--as", "json", "--with-picture", "veiled", "--docket", docket, "-o", out).exit_code == 1
    )  # no PNG
    outcome = export("t", "--as", "json", "--with-picture", "sharp", "--docket", docket, "-o", out)
    assert outcome.exit_code == 0, outcome.output
    assert base64.b64decode(json.loads(out.read_text())["pictures"][0]["png_base64"]) == b"png"
    entries = with_docket(docket, lambda docket: docket.log.entries(0, 1000))
    (noted,) = [json.loads(entry.body) for entry in entries if entry.kind == "PictureShown"]
    assert noted["trial_id"] == "t" and noted["what"] == "export as json" and noted["who"] == "command line"


def test_pictures_are_read_from_the_configured_folder(docket, tmp_path, monkeypatch):
    (tmp_path / "d.sqlite-pictures").rename(tmp_path / "elsewhere")
    monkeypatch.setenv("MEMECOURT_PICTURES", str(tmp_path / "elsewhere"))
    out = tmp_path / "t.json"
    outcome = export("t", "--as", "json", "--with-picture", "sharp", "--docket", docket, "-o", out)
    assert outcome.exit_code == 0, outcome.output
    assert len(json.loads(out.read_text())["pictures"]) == 1


def test_page_depends_only_on_the_record():
    """The same record gives the same page byte for byte, except for its creation time."""
    record = run_trial(Cast(rounds=2), found=SHOWN)
    assert page(ExportSource(record), now=NOON) == page(ExportSource(record), now=NOON)
    text = record.last(TextRead)
    assert page(ExportSource(altered(record, text.seq, text="other")), now=NOON) != page(ExportSource(record), now=NOON)
    assert record.last(PrecedentsCited) is not None
