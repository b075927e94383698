"""Files written by version 0.1.0 open, verify and display; tests/fixtures/first_edition/README.md describes them."""

import json
import shutil

import pytest
from click.testing import CliRunner

from eval.cli import cli as eval_cli
from memecourt import verify
from serving.cli.main import cli
from serving.docket.store.tables import FORMAT
from tests.support.paths import TESTS

FIXTURES = TESTS / "fixtures" / "first_edition"


@pytest.fixture
def copy_of(tmp_path):
    """Copies a part of the fixtures, since opening a docket may write to it."""

    def make_copy(name):
        place = shutil.copytree(FIXTURES / name, tmp_path / name)
        for key in place.glob("*.key"):
            key.chmod(0o600)  # Git doesn't store read permissions
        return place

    return make_copy


def run(*arguments, command=cli, env=None, status=0):
    done = CliRunner().invoke(command, [str(argument) for argument in arguments], env=env)
    assert done.exit_code == status, done.output
    return done.stdout


def trial_lines(docket):
    """Returns the words of each line of the list of trials."""
    return [line.split() for line in run("records", "list", "--docket", docket).splitlines()]


@pytest.mark.parametrize(("name", "count"), [("home", 6), ("run", 3)])
def test_docket_verifies_and_shows_every_trial(copy_of, tmp_path, name, count):
    docket, key = copy_of(name) / "docket.sqlite", tmp_path / "key"
    key.write_text(run("docket", "key", "--docket", docket))
    run("docket", "verify", "--key", key, "--docket", docket)
    trials = trial_lines(docket)
    assert len(trials) == count
    for trial, *_, last in trials:
        output = run("records", "show", trial, "--docket", docket, status=int(last == "erased"))
        assert (trial in output) == (last != "erased")
    # Reading it with this version leaves it verifiable.
    run("docket", "verify", "--key", key, "--docket", docket)


def test_trials_of_every_outcome_are_shown(copy_of):
    docket = copy_of("home") / "docket.sqlite"
    outputs = {line[4]: set() for line in trial_lines(docket)}
    for trial, _, _, _, end, *rest in trial_lines(docket):
        if rest[-1:] != ["erased"]:
            outputs[end].add(run("records", "show", trial, "--docket", docket))
    assert set(outputs) == {"HARMFUL", "UNDECIDED", "FAILED"}
    assert any("upheld      HARMFUL, clause 1, by kim" in words for words in outputs["HARMFUL"])
    assert any("overruled   NOT_HARMFUL, by kim" in words for words in outputs["HARMFUL"])
    assert all("NO_SIMILAR_PRECEDENT" in words or "too far" in words for words in outputs["UNDECIDED"])
    assert all("TrialFailed" in words for words in outputs["FAILED"])


def test_anchors_and_bundles_handed_out_before_still_verify(copy_of, capsys):
    home = copy_of("home")
    docket, key = home / "docket.sqlite", home / "docket.vkey"
    assert run("docket", "key", "--docket", docket).strip() == key.read_text().strip()
    run("docket", "verify", "--key", key, "--anchor", home / "checkpoint.txt", "--docket", docket)
    assert verify.main([str(home / "bundle.json"), "--key", str(key)]) == 0, capsys.readouterr()


def test_key_of_an_old_docket_rotates_and_earlier_anchors_and_bundles_verify(copy_of, capsys):
    home = copy_of("home")
    docket, key = home / "docket.sqlite", home / "docket.vkey"
    options = ("--who", "ada", "--why", "the year is over", "--yes", "--docket", docket)
    new = run("docket", "rotate-key", *options).strip()
    assert run("docket", "key", "--all", "--docket", docket).splitlines() == [key.read_text().strip(), new]
    run("docket", "verify", "--key", key, "--anchor", home / "checkpoint.txt", "--docket", docket)
    assert verify.main([str(home / "bundle.json"), "--key", str(key)]) == 0, capsys.readouterr()


def test_library_information_and_history_are_shown(copy_of):
    library = copy_of("library")
    output = run("precedents", "info", "--library", library)
    assert "first-edition" in output and "4: 3 harmful, 1 not" in output
    history = run("precedents", "history", library)
    assert all(word in history for word in ("m3", "m0", "A closer look.", "A mistake.", "Too like others."))


def test_library_is_searched_for_each_of_its_memes(copy_of):
    assert run("vote", copy_of("library"), "--leave-one-out", command=eval_cli)


@pytest.mark.slow
def test_library_is_searched_with_the_encoder_that_built_it(copy_of):
    found = json.loads(
        run(
            "precedents",
            "search",
            "--text",
            "swallow bleach and the flu is gone",
            "--library",
            copy_of("library"),
            "--json",
        )
    )
    assert "m2" in json.dumps(found)


@pytest.mark.parametrize(("folder", "command"), [("arena", "arena"), ("probe", "probe")], ids=lambda value: str(value))
def test_arena_and_probe_are_reported(copy_of, folder, command):
    assert json.loads(run(command, "--out", copy_of(folder), "--report", "--json", command=eval_cli))


def test_runs_are_reported(copy_of):
    output = run("report", copy_of("run"), copy_of("full_run"), command=eval_cli)
    assert "first-edition" in output and "full court" in output


def test_settings_keep_their_meaning():
    environment = dict(line.split("=", 1) for line in (FIXTURES / "settings.env").read_text().splitlines())
    environment["MEMECOURT_CONFIG"] = str(FIXTURES / "settings.toml")
    current = json.loads(run("settings", "--json", env=environment))
    before = json.loads((FIXTURES / "settings.json").read_text())
    # Settings added since have defaults.
    assert {name: current.get(name) for name in before if name not in ("llm", "trial", "trial_digest")} == {
        name: value for name, value in before.items() if name not in ("llm", "trial", "trial_digest")
    }
    roles = before["llm"].pop("roles")
    assert before["llm"].items() <= current["llm"].items()
    assert all(own.items() <= current["llm"]["roles"][role].items() for role, own in roles.items())
    # Calibrated risk replaces these two as a reason for review; both can still be set.
    changed = {"review_margin": 0.0, "review_one_sided": False}
    assert (before["trial"] | changed).items() <= current["trial"].items()


def test_tokens_are_read():
    output = run("tokens", "list", "--file", FIXTURES / "tokens.toml")
    assert "moderation" in output and "auditors" in output and "forum" in output


def test_whole_installation_is_upgraded(copy_of, tmp_path):
    """Upgrades everything of one installation, as its operator would."""
    docket, library = copy_of("home") / "docket.sqlite", copy_of("library")
    bytes_before = docket.read_bytes()
    places = {"MEMECOURT_TOKENS": str(FIXTURES / "tokens.toml"), "MEMECOURT_CONFIG": str(FIXTURES / "settings.toml")}
    arguments = ("--docket", docket, "--library", library)
    report = run("upgrade", "--check", *arguments, env=places, status=1)
    assert f"format 6 of {FORMAT}" in report and ("memecourt docket backup" in report) == (FORMAT > 6)
    assert docket.read_bytes() == bytes_before, "checking changes nothing"
    assert "build it again" in report and "tokens" in report
    done = run("upgrade", *arguments, env=places, status=1)
    assert (f"upgraded to format {FORMAT}" in done) == (FORMAT > 6) and "build it again" in done
    assert f"format {FORMAT} of {FORMAT}" in run("upgrade", "--check", *arguments, env=places, status=1)
    key = tmp_path / "key"
    key.write_text(run("docket", "key", "--docket", docket))
    run("docket", "verify", "--key", key, "--docket", docket)
    # With a library built by this version, nothing remains to be done.
    assert "to do" not in run("upgrade", "--docket", docket, env={"MEMECOURT_TOKENS": places["MEMECOURT_TOKENS"]})


def test_unreadable_files_are_named(tmp_path):
    (tmp_path / "docket.sqlite").write_bytes(b"no database" * 100)
    (tmp_path / "tokens.toml").write_text("[[token]]\nname = 3\n")
    output = run(
        *("upgrade", "--docket", tmp_path / "docket.sqlite", "--library", tmp_path / "none"),
        env={"MEMECOURT_TOKENS": str(tmp_path / "tokens.toml")},
        status=2,
    )
    lines = [line for line in output.splitlines() if line.split()[0] in ("docket", "library", "tokens")]
    assert len(lines) == 3 and output.count("before a server is started") == 3
