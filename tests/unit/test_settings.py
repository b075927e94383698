import json

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from court.errors import BadRequest
from court.events import Procedure
from court.policy import DEFAULT_POLICY, Policy
from court.settings import TrialSettings
from serving.cli.main import cli
from serving.settings import Settings

FILE = """
procedure = "FULL"

[llm]
url = "http://from-file/v1"
model = "from-file"
api_key = "file-secret"

[llm.roles.judge]
model = "large"
temperature = 0.5

[trial]
rounds_max = 4
epsilon = 0.1
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    path = tmp_path / "memecourt.toml"
    path.write_text(FILE)
    monkeypatch.setenv("MEMECOURT_CONFIG", str(path))
    return path


def test_options_go_before_the_environment_and_that_before_the_file(config, monkeypatch):
    monkeypatch.setenv("MEMECOURT_LLM__MODEL", "from-environment")
    monkeypatch.setenv("MEMECOURT_TRIAL__EPSILON", "0.2")
    settings = Settings(trial={"epsilon": 0.3})
    assert settings.procedure is Procedure.FULL
    assert (settings.llm.url, settings.llm.model) == ("http://from-file/v1", "from-environment")
    assert (settings.trial.rounds_max, settings.trial.epsilon) == (4, 0.3)


def test_a_role_has_its_own_and_what_it_has_not_is_that_of_all(config):
    llm = Settings().llm
    judge, accuser = llm.of_role("judge"), llm.of_role("accuser")
    assert (judge.url, judge.model, judge.temperature) == ("http://from-file/v1", "large", 0.5)
    assert (accuser.url, accuser.model, accuser.temperature) == ("http://from-file/v1", "from-file", 0.0)
    assert judge.api_key.get_secret_value() == "file-secret"


def test_a_role_may_be_given_in_the_environment(monkeypatch):
    monkeypatch.setenv("MEMECOURT_LLM__ROLES__JUDGE__MODEL", "large")
    assert Settings().llm.of_role("judge").model == "large"


def test_a_file_that_is_named_must_be_there(monkeypatch):
    monkeypatch.setenv("MEMECOURT_CONFIG", "/nowhere/at/all.toml")
    with pytest.raises(BadRequest, match="no file of settings"):
        Settings()
    outcome = CliRunner().invoke(cli, ["settings"])
    assert outcome.exit_code == 1 and "no file of settings" in outcome.output


def test_what_is_unknown_or_impossible_is_refused():
    for wrong in ({"trail": {}}, {"trial": {"epsilom": 1}}, {"llm": {"roles": {"bailiff": {}}}}):
        with pytest.raises(ValidationError):
            Settings(**wrong)
    with pytest.raises(ValidationError, match="rounds_min is more"):
        TrialSettings(rounds_min=5, rounds_max=4)


def test_the_command_shows_what_is_in_force_and_no_key(config):
    shown = CliRunner().invoke(cli, ["settings"])
    assert shown.exit_code == 0
    assert 'url = "http://from-file/v1"' in shown.output and "rounds_max = 4" in shown.output
    assert "[llm.roles.judge]" in shown.output
    assert "file-secret" not in shown.output
    values = json.loads(CliRunner().invoke(cli, ["settings", "--json"]).output)
    assert values["trial"]["epsilon"] == 0.1 and values["trial_digest"].startswith("sha256:")


def test_what_the_command_shows_is_a_file_of_settings(config, tmp_path, monkeypatch):
    shown = CliRunner().invoke(cli, ["settings"]).output
    again = tmp_path / "again.toml"
    again.write_text(shown)
    monkeypatch.setenv("MEMECOURT_CONFIG", str(again))
    assert Settings().trial == TrialSettings(rounds_max=4, epsilon=0.1)


def test_config_may_be_given_as_an_option(config, monkeypatch):
    monkeypatch.delenv("MEMECOURT_CONFIG")
    outcome = CliRunner().invoke(cli, ["--config", str(config), "settings"])
    assert "rounds_max = 4" in outcome.output


def test_equal_settings_have_equal_digests_and_others_others():
    assert TrialSettings().digest == TrialSettings().digest
    assert TrialSettings().digest != TrialSettings(epsilon=0.03).digest


def test_the_default_policy_has_the_field_s_categories_and_targets():
    assert set(DEFAULT_POLICY.categories) >= {
        "race",
        "gender",
        "religion",
        "nationality",
        "disability",
        "animal",
        "politics",
        "child exploitation",
        "health misinformation",
    }
    assert DEFAULT_POLICY.targets == ("individual", "organization", "community", "society")
    assert all(clause.text in DEFAULT_POLICY.text for clause in DEFAULT_POLICY.clauses)


def test_a_policy_is_swapped_without_code_and_its_digest_follows_its_words(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(
        'id = "forum"\nversion = "7"\npreamble = "Be kind."\ntargets = ["member"]\n'
        '[[clauses]]\nnumber = "A.1"\ncategory = "spam"\ntext = "No adverts."\n'
    )
    policy = Policy.load(path)
    assert policy.categories == ("spam",) and "A.1. (spam) No adverts." in policy.text
    assert policy.digest != policy.model_copy(update={"preamble": "Be kinder."}).digest


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("not toml [", "no TOML"),
        ('id = "x"\nversion = "1"\npreamble = "p"\ntargets = ["a"]\nclauses = []\n', "clauses"),
        (
            'id = "x"\nversion = "1"\npreamble = "p"\ntargets = ["a"]\n'
            + '[[clauses]]\nnumber = "1"\ncategory = "c"\ntext = "t"\n' * 2,
            "same number",
        ),
        ('id = "x"\n', "version"),
    ],
)
def test_a_file_that_is_no_policy_says_what_is_wrong(tmp_path, content, named):
    path = tmp_path / "policy.toml"
    path.write_text(content)
    with pytest.raises(BadRequest, match=named):
        Policy.load(path)
    with pytest.raises(BadRequest, match="can't be read"):
        Policy.load(tmp_path / "none.toml")
