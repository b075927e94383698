"""What `memecourt precedents` says of changes before it looks at any library, and of those that only files allow."""

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


def call(*given: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["precedents", *(str(one) for one in given)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.output


@pytest.mark.parametrize(
    "given",
    [("add-one", "x", "harmful", "--text", "a cat"), ("remove", "x"), ("relabel", "x", "harmful"), ("revoke", 1)],
)
@pytest.mark.parametrize("missing", ["--who", "--why"])
def test_nothing_is_changed_unsigned(tmp_path: Path, given: tuple[object, ...], missing: str) -> None:
    signed = {"--who": "ada", "--why": "so"}
    del signed[missing]
    code, told = call(given[0], tmp_path, *given[1:], *(word for pair in signed.items() for word in pair))
    assert (code, f"Missing option '{missing}'" in told) == (2, True), told


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (("add-one", "LIBRARY", "x", "harmful"), "Give --text, --picture or both"),
        (("add-one", "LIBRARY", "x", "benign", "--text", "a cat"), "'benign' is not one of"),
        (("relabel", "LIBRARY", "x", "harmless"), "'harmless' is not one of"),
        (("revoke", "LIBRARY", "0"), "0 is not in the range"),
        (("revoke", "LIBRARY", "first"), "'first' is not a valid integer"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_opened(given: tuple[str, ...], wrong: str) -> None:
    code, told = call(*given, *SIGNED)
    assert (code, wrong in told) == (2, True), told


@pytest.mark.parametrize(
    "given",
    [
        ("remove", "x", *SIGNED),
        ("relabel", "x", "harmful", *SIGNED),
        ("revoke", 1, *SIGNED),
        ("history",),
        ("compact",),
    ],
)
def test_where_there_is_no_library_that_is_said(tmp_path: Path, given: tuple[object, ...]) -> None:
    code, told = call(given[0], tmp_path / "nothing", *given[1:])
    assert (code, "There is no precedent library at the given place" in told) == (1, True), told
    assert not (tmp_path / "nothing").exists()


def test_the_only_precedent_stays(tmp_path: Path) -> None:
    drawn_library(tmp_path, 1, 1)
    code, told = call("remove", tmp_path, "drawn-0", *SIGNED)
    assert (code, "It is the only precedent in the library" in told) == (1, True), told


def test_compacting_tells_what_is_left_and_forgetting_what_can_not_come_back(tmp_path: Path) -> None:
    drawn_library(tmp_path, 1, 5)
    assert call("remove", tmp_path, "drawn-0", *SIGNED)[0] == 0
    code, told = call("compact", tmp_path)
    library = Library.open(tmp_path, None)
    assert (code, told) == (0, f"4 memes, digest {library.digest}\n")
    assert call("revoke", tmp_path, 1, *SIGNED) == (0, "change 2: revoked 1, drawn-0\n")
    assert call("remove", tmp_path, "drawn-0", *SIGNED)[0] == 0
    code, told = call("compact", tmp_path, "--forget", "--json")
    assert (code, json.loads(told)) == (0, {"digest": Library.open(tmp_path, None).digest, "memes": 4})
    code, told = call("revoke", tmp_path, 3, *SIGNED)
    assert (code, "was forgotten on purpose" in told) == (1, True), told
    with open_writer(tmp_path) as writer:
        assert [one.change.meme for one in writer.history()] == ["drawn-0"] * 3


@pytest.mark.parametrize("given", [("compact",), ("build", "memes.jsonl"), ("add", "memes.jsonl")])
def test_what_needs_files_is_refused_for_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, told = call(given[0], DATABASE, *given[1:])
    assert (code, f"`{given[0]}` is for libraries on disk" in told, "horse" in told) == (1, True, False), told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [("remove", "x", *SIGNED), ("history",)])
def test_an_address_that_is_none_is_not_repeated(given: tuple[str, ...]) -> None:
    code, told = call(given[0], "postgresql://court:horse", *given[1:])
    assert (code, "address of a database" in told, "horse" in told) == (1, True, False), told
