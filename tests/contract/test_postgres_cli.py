"""A library in a database, from the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from retrieval.embed.builtin import BuiltinEncoder
from retrieval.library.postgres.address import Address
from serving.cli.main import cli
from serving.settings import Settings
from tests.support.libraries import drawn_library

SECRET = "correct%20horse"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))


def call(*arguments):
    result = CliRunner().invoke(cli, list(arguments))
    return result.exit_code, result.output


def test_a_library_is_built_pushed_and_searched_in_the_database(tmp_path, database, monkeypatch):
    lines = [{"id": f"m{n}", "label": "harmful", "text": text} for n, text in enumerate(("a cat", "a dog", "rain"))]
    (tmp_path / "memes.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    place, url = str(tmp_path / "library"), str(database)
    assert call("precedents", "build", place, str(tmp_path / "memes.jsonl"))[0] == 0
    code, output = call("precedents", "push", place, url, "--json")
    assert code == 0, output
    pushed = json.loads(output[output.index("{") :])
    assert pushed["library"]["encoder"] == str(BuiltinEncoder().identity)
    assert "already" in call("precedents", "push", place, url)[1]

    found = [
        call("precedents", "search", "--text", "the cat", "--library", place_, "--json") for place_ in (place, url)
    ]
    assert found[0][0] == found[1][0] == 0, found
    on_disk, in_database = (json.loads(output[output.index('{"') :]) for _, output in found)
    assert on_disk == in_database
    assert in_database["exhibits"][0]["id"] == "m0"

    monkeypatch.setenv("MEMECOURT_LIBRARY", url)
    code, output = call("precedents", "info")
    assert (code, "no files" in output) == (1, True)


def test_a_push_does_not_replace_another_library_unasked(tmp_path, database):
    for seed in range(2):
        drawn_library(tmp_path / str(seed), seed, 4)
    url = str(database)
    assert call("precedents", "push", str(tmp_path / "0"), url)[0] == 0
    code, output = call("precedents", "push", str(tmp_path / "1"), url)
    assert (code, "replaced" in output) == (1, True)
    assert call("precedents", "push", str(tmp_path / "1"), url, "--replace")[0] == 0


def test_settings_hide_passwords(monkeypatch):
    url = f"postgresql://court:{SECRET}@db.example/memes"
    monkeypatch.setenv("MEMECOURT_LIBRARY", url)
    assert Settings().library == Address(url)
    for options in ((), ("--json",)):
        code, output = call("settings", *options)
        assert (code, "postgresql://court:***@db.example/memes" in output) == (0, True)
        assert "horse" not in output
    assert "horse" not in repr(Settings())
    monkeypatch.setenv("MEMECOURT_LIBRARY", f"postgresql://court:{SECRET}")
    code, output = call("settings")
    assert (code, "ADDRESS" in output or "address of a database" in output, "horse" in output) == (1, True, False)
    monkeypatch.setenv("MEMECOURT_LIBRARY", "folder/of/precedents")
    assert Settings().library == Path("folder/of/precedents")
