"""``memecourt docket``: its output, and the files it writes."""

import asyncio
import json
import random
import re
import shutil
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from memecourt.verify import verify_bundle
from retrieval.library.library import Library
from retrieval.library.writer import LibraryWriter
from serving.cli.main import cli
from serving.docket.errors import DocketError, TrialUnknown
from serving.docket.log.notes import SigningKey, VerifierKey, open_checkpoint, sign_checkpoint
from serving.docket.open import Docket
from serving.docket.store.log_append import read_key
from tests.support.dockets import opened_docket, with_docket
from tests.support.library import ENCODER, content, create
from tests.support.paths import GOLDEN
from tests.support.tampering import scene_of

Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a docket, its public key and a checkpoint from halfway."""
    folder = tmp_path_factory.mktemp("made")

    async def fill():
        docket = Docket.open(folder / "docket.sqlite")
        try:
            filled = await scene_of(docket, random.Random(11), trials=12, place=folder / "docket.sqlite")
            (folder / "key").write_text(f"{filled.key}\n")
            (folder / "anchor").write_text("\n".join(filled.anchor.notes))
        finally:
            await docket.close()

    asyncio.run(fill())
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy of that folder, to be altered."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.fixture
def invoke(folder, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(folder / "home"))
    monkeypatch.setenv("MEMECOURT_DOCKET", str(folder / "docket.sqlite"))

    def invoke(*arguments, **options):
        return CliRunner().invoke(cli, ["docket", *map(str, arguments)], **options)

    return invoke


def test_verify_of_a_clean_docket_matches_the_golden_file(folder, invoke, request):
    ran = invoke("verify", "--key", folder / "key", "--anchor", folder / "anchor")
    assert ran.exit_code == 0, ran.output
    shown = re.sub(r"[A-Za-z0-9+/]{43}=", "ROOT", ran.output)
    path = GOLDEN / "docket_verify.txt"
    if request.config.getoption("--write-golden"):
        path.write_text(shown)
    assert shown == path.read_text()
    value = json.loads(invoke("verify", "--key", folder / "key", "--json").output)
    assert value["outcome"] == "clean" and value["unanchored"] == value["entries"] and not value["findings"]


def test_verify_of_a_violated_docket_exits_with_1_and_locates_the_faults(folder, invoke):
    import sqlite3

    with sqlite3.connect(folder / "docket.sqlite") as connection:
        connection.execute("DROP TRIGGER entries_update")
        connection.execute("UPDATE entries SET salt = zeroblob(32) WHERE number = 7")
        connection.execute("UPDATE trials SET label = 'NOT_HARMFUL' WHERE label = 'HARMFUL'")
    connection.close()
    ran = invoke("verify", "--key", folder / "key")
    assert ran.exit_code == 1 and "violated: " in ran.output
    assert "BODY_ALTERED         The body of entry 7 is not the one that was logged." in ran.output
    assert "is listed with another label than its entries give it." in ran.output
    value = json.loads(invoke("verify", "--key", folder / "key", "--json").output)
    assert value["outcome"] == "violated" and value["faults"]["BODY_ALTERED"] == 1


@pytest.mark.parametrize("index", ["trials_by_time", "trials_by_outcome", "entries_of_trial", "entries_of_kind"])
def test_row_missing_from_an_index_is_detected(folder, invoke, index):
    """The rows are intact, but queries by this index miss one of them."""
    import sqlite3

    with sqlite3.connect(folder / "docket.sqlite") as connection:
        named = "FROM sqlite_master WHERE name = ?"
        (sql,), (table,) = (
            connection.execute(f"SELECT {what} {named}", (index,)).fetchone() for what in ("sql", "tbl_name")
        )
        first = connection.execute(f"SELECT rowid FROM {table} WHERE trial_id <> ''").fetchone()[0]
        connection.execute(f"DROP INDEX {index}")
        connection.execute(f"{sql} {'AND' if 'WHERE' in sql else 'WHERE'} rowid <> {first}")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, index))
    connection.close()
    ran = invoke("verify", "--key", folder / "key")
    assert ran.exit_code == 1 and f"from index {index}." in ran.output, ran.output
    assert json.loads(invoke("verify", "--key", folder / "key", "--json").output)["faults"].keys() == {"INDEX_DIFFERS"}


def test_damaged_file_is_reported_with_a_remedy(folder, invoke):
    import sqlite3

    place = folder / "docket.sqlite"
    with sqlite3.connect(place) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'trials'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with place.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 8)
    ran = invoke("verify", "--key", folder / "key")
    assert ran.exit_code == 2 and "file is damaged. Restore it from a backup" in ran.output, ran.output


def test_blank_ids_and_names_are_refused_without_changes(folder, invoke):
    entries = json.loads(invoke("verify", "--key", folder / "key", "--json").output)["entries"]
    signature = ("--who", "ada", "--why", "asked to", "--yes")
    for bad in ("", "  ", "undecoded \udcff"):
        for command in (
            ("bundle",),
            ("erase", *signature),
            ("erase-precedent", *signature),
            ("erase-document", *signature),
        ):
            ran = invoke(*command, "--", bad)
            assert ran.exit_code == 2 and "'ID': it is empty, or no text." in ran.output, (command, ran.output)
        for command in (("erase", "t"), ("erase-precedent", "t"), ("rotate-key",)):
            for who, why in ((bad, "asked to"), ("ada", bad)):
                ran = invoke(*command, "--who", who, "--why", why, "--yes")
                assert ran.exit_code == 2 and "it is empty, or no text." in ran.output, (command, ran.output)
    ran = invoke("erase", "t", "--who", "a" * 201, "--why", "asked to", "--yes")
    assert ran.exit_code == 2 and "'--who': it has 201 characters; at most 200 are taken." in ran.output
    assert not list(folder.rglob("*.next")), "no rotation was begun"
    assert json.loads(invoke("verify", "--key", folder / "key", "--json").output)["entries"] == entries


async def test_empty_id_does_not_select_entries_without_a_trial(folder):
    """Entries without a trial are texts quoted by all trials: they can't be bundled or erased as a trial."""
    async with opened_docket(folder / "docket.sqlite") as docket:
        size = (await docket.log.checkpoint()).split("\n")[1]
        for attempt in (
            docket.auditor.bundle(""),
            docket.eraser.erase("", who="ada", why="asked to", at=datetime(2026, 1, 2, tzinfo=UTC)),
        ):
            with pytest.raises(TrialUnknown, match="no trial with an empty id"):
                await attempt
        assert (await docket.log.checkpoint()).split("\n")[1] == size


INVALID_TEXT = "CAST(x'FF7B' AS TEXT)"
"""A value that SQLite stores as text although it is not valid UTF-8."""
LATEST = "(SELECT max(size) FROM checkpoints)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE log SET checkpoint = ''", "CHECKPOINT_UNSIGNED"),
        ("UPDATE log SET checkpoint = NULL", "CHECKPOINT_UNSIGNED"),
        (f"UPDATE log SET checkpoint = {INVALID_TEXT}", "CHECKPOINT_UNSIGNED"),
        ("UPDATE log SET checkpoint = x'00'", "CHECKPOINT_UNSIGNED"),
        ("UPDATE log SET checkpoint = '', key = ''", "KEY_DIFFERS"),
        (f"UPDATE log SET key = {INVALID_TEXT}", "KEY_DIFFERS"),
        ("UPDATE log SET frontier = NULL, size = NULL", "STATE_DIFFERS"),
        *(
            (f"UPDATE checkpoints SET note = {note} WHERE size = {LATEST}", "CHECKPOINT_UNSIGNED")
            for note in ("''", "NULL", INVALID_TEXT, "x'00'", "17", "'— \n\n— a b\n'", "substr(note, 9)")
        ),
        (f"UPDATE checkpoints SET size = -1 WHERE size = {LATEST}", "CHECKPOINT_DIFFERS"),
        *(
            (f"UPDATE entries SET {name} = {INVALID_TEXT} WHERE number = 5", "CHECKPOINT")
            for name in ("kind", "trial_id", "at")
        ),
        *(
            (f"UPDATE trials SET {name} = {INVALID_TEXT} WHERE rowid = 1", "TRIAL_DIFFERS")
            for name in ("trial_id", "namespace", "review")
        ),
        ("UPDATE parts SET of = CAST(x'FF' AS TEXT)", "PART_DIFFERS"),
        ("UPDATE parts SET key = 1000000000000000000 WHERE number = (SELECT min(number) FROM parts)", "PART_DIFFERS"),
        ("UPDATE entries SET body = x'FFFFFF7F00' WHERE number = 5", "BODY_ALTERED"),
        (f"INSERT INTO entries VALUES ({10**18}, 'z', {10**18}, 'Described', '', x'', NULL, NULL)", "SEQUENCE"),
        ("UPDATE trials SET review = '{'", "TRIAL_DIFFERS"),
        # SQL treats it as false like 0, and the driver as true like 1.
        ("UPDATE trials SET erased = 'x' WHERE erased", "TRIAL_DIFFERS"),
    ],
)
def test_corrupt_rows_are_violations_and_no_crash(folder, invoke, statement, fault):
    import sqlite3

    with sqlite3.connect(folder / "docket.sqlite", isolation_level=None) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("PRAGMA writable_schema = 1")  # possible for anyone who can write the file
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE name IN ('log', 'checkpoints')"
        )
    connection.close()
    with sqlite3.connect(folder / "docket.sqlite", isolation_level=None) as connection:
        assert connection.execute(statement).rowcount
    connection.close()
    if statement.startswith("UPDATE trials SET review = '{'"):  # queries of the listing then fail
        shutil.rmtree(folder / "docket.sqlite-pictures")
        (folder / "docket.sqlite-pictures").mkdir()
    ran = invoke("verify", "--key", folder / "key")
    assert ran.exit_code == 1 and fault in ran.output, (ran.output, ran.exception)
    assert json.loads(invoke("verify", "--key", folder / "key", "--json").output)["outcome"] == "violated"


def test_failed_checks_exit_with_2(folder, invoke):
    key, anchor = folder / "key", folder / "anchor"
    (folder / "empty").write_text("")
    foreign = SigningKey.create("another.example/docket")
    (folder / "foreign").write_text(sign_checkpoint(foreign, foreign.name, 3, bytes(32)))
    for arguments, message in (
        (("--key", folder / "none"), "can't be read"),
        (("--key", folder / "empty"), "no key"),
        (("--key", anchor), "public key"),
        (("--key", key, "--anchor", folder / "none"), "can't be read"),
        (("--key", key, "--anchor", folder / "empty"), "no checkpoint"),
        (("--key", key, "--anchor", folder / "foreign"), "not signed with the given key"),
        (("--key", key, "--docket", folder / "none.sqlite"), "no docket"),
        ((), "--key"),
    ):
        outcome = invoke("verify", *arguments)
        assert outcome.exit_code == 2 and message in outcome.output, (arguments, outcome.output)
    assert not (folder / "none.sqlite").exists()
    # Violations take precedence over failed checks.
    (folder / "docket.key").unlink()
    assert invoke("verify", "--key", key, "--anchor", anchor).exit_code == 0  # the private key is not needed


def test_truncated_log_is_detected_only_with_an_external_checkpoint(folder, invoke):
    """Restores the whole docket of yesterday."""
    yesterday = folder / "yesterday.sqlite"
    shutil.copy(folder / "docket.sqlite", yesterday)
    checkpoint = invoke("checkpoint")
    assert checkpoint.exit_code == 0
    (folder / "anchor").write_text(checkpoint.output)
    lines = with_docket(folder / "docket.sqlite", lambda docket: docket.index.list(limit=50))
    trial_id = next(line.trial_id for line in lines if line.label and not line.erased)
    assert invoke("erase", trial_id, "--who", "ada", "--why", "asked to", "--yes").exit_code == 0
    today = invoke("checkpoint").output
    shutil.copy(yesterday, folder / "docket.sqlite")
    assert invoke("verify", "--key", folder / "key", "--anchor", folder / "anchor").exit_code == 0
    with (folder / "anchor").open("a") as anchor:
        anchor.write(today)
    ran = invoke("verify", "--key", folder / "key", "--anchor", folder / "anchor")
    assert ran.exit_code == 1 and "TAIL_MISSING" in ran.output


def test_key_and_checkpoint_are_printed_ready_to_store(folder, invoke):
    key = invoke("key").output
    assert key == (folder / "key").read_text()
    note = invoke("checkpoint").output
    entries = json.loads(invoke("verify", "--key", folder / "key", "--json").output)["entries"]
    assert open_checkpoint(note, [VerifierKey.parse(key)]).size == entries


def test_bundle_of_a_trial_verifies_elsewhere(folder, invoke):
    lines = with_docket(folder / "docket.sqlite", lambda docket: docket.index.list(limit=50))
    for line in lines:
        out = folder / "bundle.json"
        assert invoke("bundle", line.trial_id, "-o", out).exit_code == 0
        trial = verify_bundle(out.read_text(), [(folder / "key").read_text()])
        assert trial.trial_id == line.trial_id
        assert (trial.last("VerdictGiven") is None) == (line.erased or not line.label)
        # The bundle serves as an anchor of the same log.
        assert invoke("verify", "--key", folder / "key", "--anchor", out).exit_code == 0
    # An earlier checkpoint is proven consistent with the log; one ahead of the log reveals lost entries.
    shown = invoke("bundle", lines[0].trial_id, "-o", out, "--anchor", folder / "anchor")
    (earlier,) = verify_bundle(out.read_text(), [(folder / "key").read_text()]).known
    assert shown.exit_code == 0 and earlier.size < trial.checkpoint.size
    ahead = SigningKey.parse((folder / "docket.key").read_text())
    (folder / "ahead").write_text(sign_checkpoint(ahead, ahead.name, 10_000, bytes(32)))
    lost = invoke("bundle", lines[0].trial_id, "-o", out, "--anchor", folder / "ahead")
    assert lost.exit_code == 1 and "entries are missing" in lost.output
    assert invoke("bundle", "nobody", "-o", out).exit_code == 1
    assert invoke("bundle", lines[0].trial_id, "-o", folder / "none" / "x.json").exit_code == 1
    (folder / "docket.key").unlink()
    assert "key" in invoke("bundle", lines[0].trial_id, "-o", out).output


def test_erasing_asks_first_and_keeps_the_docket_verifiable(folder, invoke):
    lines = with_docket(folder / "docket.sqlite", lambda docket: docket.index.list(limit=50))
    trial_id = next(line.trial_id for line in lines if line.label and not line.erased)
    confirmation = invoke("erase", trial_id, "--who", "ada", "--why", "asked to", input="n\n")
    assert confirmation.exit_code == 1 and "for ever?" in confirmation.output
    assert not next(
        line.erased
        for line in with_docket(folder / "docket.sqlite", lambda docket: docket.index.list(limit=50))
        if line.trial_id == trial_id
    )
    done = invoke("erase", trial_id, "--who", "ada", "--why", "asked to", "--yes")
    assert done.exit_code == 0 and f"entries of trial {trial_id} are erased" in done.output
    ran = invoke("verify", "--key", folder / "key", "--anchor", folder / "anchor", "--json")
    value = json.loads(ran.output)
    assert ran.exit_code == 0 and value["erased"] > 0
    assert invoke("erase", "nobody", "--who", "ada", "--why", "asked to", "--yes").exit_code == 1


def test_erasing_a_trial_removes_the_precedent_made_from_it(folder, invoke):
    lines = with_docket(folder / "docket.sqlite", lambda docket: docket.index.list(limit=50))
    one, other = [line.trial_id for line in lines if line.label and not line.erased][:2]
    root = folder / "library"
    writer = LibraryWriter(create(root, "a", "b"))
    (meme,), rows = content(f"trial:{one}")
    writer.add(meme, rows[0], b"its picture", who="Ruth", why="overruled")
    assert f"words of trial:{one}".encode() in everything_in(root)
    options = ("--who", "ada", "--why", "asked to", "--yes", "--library", root)
    ran = invoke("erase", one, *options)
    assert ran.exit_code == 0 and "out of the library" in ran.output, ran.output
    assert list(Library.open(root, ENCODER.identity).ids()) == ["a", "b"]
    for text in (f"words of trial:{one}", "its picture"):
        assert text.encode() not in everything_in(root)
    ran = invoke("erase", other, *options)
    assert ran.exit_code == 0 and "library" not in ran.output


def test_erasing_a_precedent_removes_its_text_from_records_and_library(folder, invoke):
    async def cited(docket):
        """Texts by precedent, as shown in records."""
        texts: dict[str, set[str]] = {}
        for line in await docket.index.list(limit=50):
            found = None if line.erased else (await docket.trials.record(line.trial_id)).precedents
            for exhibit in found.findings.exhibits if found else ():
                texts.setdefault(exhibit.id, set()).add(exhibit.text)
        return texts

    before = with_docket(folder / "docket.sqlite", cited)
    name = next(id_ for id_, texts in before.items() if texts != {"[erased]"})
    root = folder / "library"
    LibraryWriter(create(root, "a", "b")).add(content(name)[0][0], content(name)[1][0], None, who="Ruth", why="test")
    options = (name, "--who", "ada", "--why", "asked to", "--library", root)
    assert invoke("erase-precedent", *options, input="n\n").exit_code == 1
    assert with_docket(folder / "docket.sqlite", cited) == before
    ran = invoke("erase-precedent", *options, "--yes")
    assert ran.exit_code == 0 and "out of the library" in ran.output, ran.output
    after = with_docket(folder / "docket.sqlite", cited)
    assert after[name] == {"[erased]"} and {**after, name: before[name]} == before
    assert list(Library.open(root, ENCODER.identity).ids()) == ["a", "b"]
    assert invoke("verify", "--key", folder / "key").exit_code == 0
    assert "nothing of it" in invoke("erase-precedent", "nobody", *options[1:], "--yes").output


def everything_in(root):
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())


def test_key_can_be_created_before_the_docket(invoke, tmp_path):
    key = tmp_path / "secret" / "docket.key"
    made = invoke("key", "--new", key)
    assert made.exit_code == 0 and stat.S_IMODE(key.stat().st_mode) == 0o600
    assert made.output.strip() == str(read_key(key).verifier), "only the public key is printed"
    again = invoke("key", "--new", key)
    assert again.exit_code == 2 and "never written over" in again.output


class TestExpire:
    """Trials beyond the retention period are counted, and erased on confirmation."""

    def test_missing_retention_period_error_names_the_setting(self, invoke):
        ran = invoke("expire", "--dry-run")
        assert ran.exit_code == 2 and "retention_days" in ran.output

    def test_dry_run_counts_by_namespace_and_erases_nothing(self, invoke, folder, monkeypatch):
        monkeypatch.setenv("MEMECOURT_RETENTION_DAYS", "1")
        before = (folder / "docket.sqlite").read_bytes()
        ran = invoke("expire", "--dry-run")
        assert ran.exit_code == 0 and "Nothing was erased." in ran.output
        assert sum(int(line.split()[0].replace(",", "")) for line in ran.output.splitlines()[:-1]) >= 1
        assert (folder / "docket.sqlite").read_bytes() == before

    def test_expire_asks_and_erases(self, invoke, folder, monkeypatch):
        monkeypatch.setenv("MEMECOURT_RETENTION_DAYS", "1")
        refused = invoke("expire", input="n\n")
        assert refused.exit_code == 1 and "are erased" not in refused.output
        done = invoke("expire", "--yes")
        assert re.fullmatch(r"[1-9]\d* trials are erased\.\n", done.output), done.output
        assert "No trial is older than it may be." in invoke("expire", "--dry-run").output
        verified = invoke("verify", "--key", folder / "key", "--anchor", folder / "anchor")
        assert verified.exit_code == 0, verified.output


@pytest.mark.parametrize("read_only", [False, True])
def test_reading_an_empty_file_is_refused_and_leaves_it_empty(tmp_path, read_only):
    path = tmp_path / "records.sqlite"
    path.touch()
    with pytest.raises(DocketError, match="empty"):
        Docket.open(path, create=False, read_only=read_only)
    assert path.stat().st_size == 0


async def test_a_server_makes_its_docket_in_an_empty_file(tmp_path):
    path = tmp_path / "records.sqlite"
    path.touch()

    await Docket.open(path).close()
    await Docket.open(path, create=False).close()
