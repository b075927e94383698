"""Files of version 0.1.0 are opened, checked and shown; tests/fixtures/first_edition/README.md describes them."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from eval.cli import cli as eval_cli
from memecourt import verify
from serving.cli.main import cli
from serving.docket.store.tables import FORMAT

FIXTURES = Path(__file__).parents[1] / "fixtures" / "first_edition"


@pytest.fixture
def copy(tmp_path):
    """Copies a part of them, since whatever opens a docket may write to it."""

    def copy_of(name):
        place = shutil.copytree(FIXTURES / name, tmp_path / name)
        for key in place.glob("*.key"):
            key.chmod(0o600)  # Git doesn't store who may read a file
        return place

    return copy_of


def run(*arguments, command=cli, env=None, status=0):
    done = CliRunner().invoke(command, [str(argument) for argument in arguments], env=env)
    assert done.exit_code == status, done.output
    return done.stdout


def listed(docket):
    """The words of each line of the list of trials."""
    return [line.split() for line in run("records", "list", "--docket", docket).splitlines()]


@pytest.mark.parametrize(("name", "count"), [("home", 6), ("run", 3)])
def test_a_docket_verifies_and_shows_every_trial(copy, tmp_path, name, count):
    docket, key = copy(name) / "docket.sqlite", tmp_path / "key"
    key.write_text(run("docket", "key", "--docket", docket))
    run("docket", "verify", "--key", key, "--docket", docket)
    trials = listed(docket)
    assert len(trials) == count
    for trial, *_, last in trials:
        told = run("records", "show", trial, "--docket", docket, status=int(last == "erased"))
        assert (trial in told) == (last != "erased")
    # Opened by this version it still is what it was.
    run("docket", "verify", "--key", key, "--docket", docket)


def test_every_way_that_a_trial_can_end_is_shown(copy):
    docket = copy("home") / "docket.sqlite"
    told = {line[4]: set() for line in listed(docket)}
    for trial, _, _, _, end, *rest in listed(docket):
        if rest[-1:] != ["erased"]:
            told[end].add(run("records", "show", trial, "--docket", docket))
    assert set(told) == {"HARMFUL", "UNDECIDED", "FAILED"}
    assert any("upheld      HARMFUL, clause 1, by kim" in words for words in told["HARMFUL"])
    assert any("overruled   NOT_HARMFUL, by kim" in words for words in told["HARMFUL"])
    assert all("NO_SIMILAR_PRECEDENT" in words or "too far" in words for words in told["UNDECIDED"])
    assert all("TrialFailed" in words for words in told["FAILED"])


def test_what_was_handed_out_still_holds(copy, capsys):
    home = copy("home")
    docket, key = home / "docket.sqlite", home / "docket.vkey"
    assert run("docket", "key", "--docket", docket).strip() == key.read_text().strip()
    run("docket", "verify", "--key", key, "--anchor", home / "checkpoint.txt", "--docket", docket)
    assert verify.main([str(home / "bundle.json"), "--key", str(key)]) == 0, capsys.readouterr()


def test_its_docket_goes_over_to_another_key_and_what_was_handed_out_still_holds(copy, capsys):
    home = copy("home")
    docket, key = home / "docket.sqlite", home / "docket.vkey"
    asked = ("--who", "ada", "--why", "the year is over", "--yes", "--docket", docket)
    new = run("docket", "rotate-key", *asked).strip()
    assert run("docket", "key", "--all", "--docket", docket).splitlines() == [key.read_text().strip(), new]
    run("docket", "verify", "--key", key, "--anchor", home / "checkpoint.txt", "--docket", docket)
    assert verify.main([str(home / "bundle.json"), "--key", str(key)]) == 0, capsys.readouterr()


def test_a_library_is_checked_and_told(copy):
    library = copy("library")
    told = run("precedents", "info", "--library", library)
    assert "first-edition" in told and "4: 3 harmful, 1 not" in told
    history = run("precedents", "history", library)
    assert all(word in history for word in ("m3", "m0", "A closer look.", "A mistake.", "Too like others."))


def test_a_library_is_searched_for_each_of_its_memes(copy):
    assert run("vote", copy("library"), "--leave-one-out", command=eval_cli)


@pytest.mark.slow
def test_a_library_is_searched_by_the_encoder_that_made_it(copy):
    found = json.loads(
        run(
            "precedents",
            "search",
            "--text",
            "swallow bleach and the flu is gone",
            "--library",
            copy("library"),
            "--json",
        )
    )
    assert "m2" in json.dumps(found)


@pytest.mark.parametrize(("folder", "command"), [("arena", "arena"), ("probe", "probe")], ids=lambda value: str(value))
def test_an_arena_and_a_probe_are_reported(copy, folder, command):
    assert json.loads(run(command, "--out", copy(folder), "--report", "--json", command=eval_cli))


def test_runs_are_reported(copy):
    told = run("report", copy("run"), copy("full_run"), command=eval_cli)
    assert "first-edition" in told and "full court" in told


def test_settings_are_understood_as_before():
    environment = dict(line.split("=", 1) for line in (FIXTURES / "settings.env").read_text().splitlines())
    environment["MEMECOURT_CONFIG"] = str(FIXTURES / "settings.toml")
    told = json.loads(run("settings", "--json", env=environment))
    before = json.loads((FIXTURES / "settings.json").read_text())
    # Settings that are new have values of their own.
    assert {name: told.get(name) for name in before if name not in ("llm", "trial", "trial_digest")} == {
        name: value for name, value in before.items() if name not in ("llm", "trial", "trial_digest")
    }
    roles = before["llm"].pop("roles")
    assert before["llm"].items() <= told["llm"].items()
    assert all(own.items() <= told["llm"]["roles"][role].items() for role, own in roles.items())
    # Calibrated risk calls a person in place of these two, which can still be set.
    changed = {"review_margin": 0.0, "review_one_sided": False}
    assert (before["trial"] | changed).items() <= told["trial"].items()


def test_tokens_are_those_of_before():
    told = run("tokens", "list", "--file", FIXTURES / "tokens.toml")
    assert "moderation" in told and "auditors" in told and "forum" in told


def test_all_of_it_is_brought_to_this_version(copy, tmp_path):
    """Everything of one installation, as its operator goes over to a new version."""
    docket, library = copy("home") / "docket.sqlite", copy("library")
    bytes_before = docket.read_bytes()
    places = {"MEMECOURT_TOKENS": str(FIXTURES / "tokens.toml"), "MEMECOURT_CONFIG": str(FIXTURES / "settings.toml")}
    arguments = ("--docket", docket, "--library", library)
    looked = run("upgrade", "--check", *arguments, env=places, status=1)
    assert f"format 6 of {FORMAT}" in looked and ("memecourt docket backup" in looked) == (FORMAT > 6)
    assert docket.read_bytes() == bytes_before, "a look changes nothing"
    assert "build it again" in looked and "tokens" in looked
    done = run("upgrade", *arguments, env=places, status=1)
    assert (f"upgraded to format {FORMAT}" in done) == (FORMAT > 6) and "build it again" in done
    assert f"format {FORMAT} of {FORMAT}" in run("upgrade", "--check", *arguments, env=places, status=1)
    key = tmp_path / "key"
    key.write_text(run("docket", "key", "--docket", docket))
    run("docket", "verify", "--key", key, "--docket", docket)
    # A library that was built by this version leaves nothing to do.
    assert "to do" not in run("upgrade", "--docket", docket, env={"MEMECOURT_TOKENS": places["MEMECOURT_TOKENS"]})


def test_what_this_version_can_t_read_is_named(tmp_path):
    (tmp_path / "docket.sqlite").write_bytes(b"no database" * 100)
    (tmp_path / "tokens.toml").write_text("[[token]]\nname = 3\n")
    told = run(
        *("upgrade", "--docket", tmp_path / "docket.sqlite", "--library", tmp_path / "none"),
        env={"MEMECOURT_TOKENS": str(tmp_path / "tokens.toml")},
        status=2,
    )
    lines = [line for line in told.splitlines() if line.split()[0] in ("docket", "library", "tokens")]
    assert len(lines) == 3 and told.count("before a server is started") == 3
