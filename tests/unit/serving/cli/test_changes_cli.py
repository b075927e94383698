"""Changes by `memecourt precedents`: arguments refused before a library is opened, and commands only for files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from retrieval.library.library import Library
from retrieval.open import open_writer
from serving.cli.main import cli
from tests.support.libraries import drawn_library

SIGNED = ("--who", "ada", "--why", "as was decided")
DATABASE = "postgresql://court:horse@db.example/memes"


def call(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["precedents", *(str(one) for one in arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.output


@pytest.mark.parametrize(
    "arguments",
    [("add-one", "x", "harmful", "--text", "a cat"), ("remove", "x"), ("relabel", "x", "harmful"), ("revoke", 1)],
)
@pytest.mark.parametrize("missing", ["--who", "--why"])
def test_changes_need_a_name_and_a_reason(tmp_path: Path, arguments: tuple[object, ...], missing: str) -> None:
    signed = {"--who": "ada", "--why": "so"}
    del signed[missing]
    code, output = call(arguments[0], tmp_path, *arguments[1:], *(word for pair in signed.items() for word in pair))
    assert (code, f"Missing option '{missing}'" in output) == (2, True), output


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("add-one", "LIBRARY", "x", "harmful"), "Give --text, --picture or both"),
        (("add-one", "LIBRARY", "x", "benign", "--text", "a cat"), "'benign' is not one of"),
        (("relabel", "LIBRARY", "x", "harmless"), "'harmless' is not one of"),
        (("revoke", "LIBRARY", "0"), "0 is not in the range"),
        (("revoke", "LIBRARY", "first"), "'first' is not a valid integer"),
    ],
)
def test_invalid_arguments_are_refused_before_a_library_is_opened(arguments: tuple[str, ...], wrong: str) -> None:
    code, output = call(*arguments, *SIGNED)
    assert (code, wrong in output) == (2, True), output


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
def test_missing_library_is_reported(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    code, output = call(arguments[0], tmp_path / "nothing", *arguments[1:])
    assert (code, "There is no precedent library at the given place" in output) == (1, True), output
    assert not (tmp_path / "nothing").exists()


def test_compacting_reports_the_remaining_memes_and_forgetting_is_final(tmp_path: Path) -> None:
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
def test_file_only_commands_are_refused_for_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = call(arguments[0], DATABASE, *arguments[1:])
    assert (code, f"`{arguments[0]}` is for libraries on disk" in output, "horse" in output) == (1, True, False), output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [("remove", "x", *SIGNED), ("history",)])
def test_malformed_address_is_not_echoed(arguments: tuple[str, ...]) -> None:
    code, output = call(arguments[0], "postgresql://court:horse", *arguments[1:])
    assert (code, "address of a database" in output, "horse" in output) == (1, True, False), output
