import json
import tomllib

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from court.errors import BadRequest
from court.events import Procedure
from court.policy import Policy
from court.settings import TrialSettings
from serving.cli.common import _warn_of_misspelled, misspelled_variables, trial_settings
from serving.cli.main import cli
from serving.settings import ModelSettings, Settings
from tests.support.paths import TESTS

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


def test_options_override_the_environment_which_overrides_the_file(config, monkeypatch):
    monkeypatch.setenv("MEMECOURT_LLM__MODEL", "from-environment")
    monkeypatch.setenv("MEMECOURT_TRIAL__EPSILON", "0.2")
    settings = Settings(trial={"epsilon": 0.3})
    assert settings.procedure is Procedure.FULL
    assert (settings.llm.url, settings.llm.model) == (("http://from-file/v1",), "from-environment")
    assert (settings.trial.rounds_max, settings.trial.epsilon) == (4, 0.3)


def test_settings_of_a_role_fall_back_to_the_common_ones(config):
    llm = Settings().llm
    judge, accuser = llm.of_role("judge"), llm.of_role("accuser")
    assert (judge.url, judge.model, judge.temperature) == (("http://from-file/v1",), "large", 0.5)
    assert (accuser.url, accuser.model, accuser.temperature) == (("http://from-file/v1",), "from-file", 0.0)
    assert judge.api_key.get_secret_value() == "file-secret"


@pytest.mark.parametrize(("role", "fewest"), [("proposer", 300), ("accuser", 600), ("defender", 600), ("judge", 1200)])
def test_token_limit_too_small_for_a_full_reply_is_refused(role, fewest):
    """One token per four characters, for 1,200 characters, twice and four times as many."""
    assert Settings(llm={"roles": {role: {"max_tokens": fewest}}}).llm.of_role(role).max_tokens == fewest
    with pytest.raises(ValidationError, match=f"max_tokens of the {role} is {fewest - 1}.*{fewest} tokens"):
        Settings(llm={"roles": {role: {"max_tokens": fewest - 1}}})
    # With shorter replies, the limit suffices.
    assert Settings(llm={"max_tokens": fewest - 1}, trial={"reply_chars": 40})


def test_too_small_token_limit_is_explained_in_the_terminal():
    outcome = CliRunner().invoke(cli, ["settings"], env={"MEMECOURT_LLM__MAX_TOKENS": "100"})
    assert outcome.exit_code == 1
    assert "can't be used: max_tokens of the proposer is 100" in outcome.output


SERVERS = ("http://a:8000/v1", "http://b:8000/v1")


def test_several_server_urls_may_be_a_list_or_separated_by_commas(tmp_path, monkeypatch):
    assert Settings(llm={"url": list(SERVERS)}).llm.url == SERVERS
    assert Settings(llm={"url": ", ".join(SERVERS)}).llm.url == SERVERS
    monkeypatch.setenv("MEMECOURT_LLM__URL", ",".join(SERVERS))
    assert Settings().llm.of_role("judge").url == SERVERS
    monkeypatch.setenv("MEMECOURT_LLM__ROLES__JUDGE__URL", "http://c/v1")
    assert Settings().llm.of_role("judge").url == ("http://c/v1",)
    shown = CliRunner().invoke(cli, ["settings"]).output
    assert 'url = ["http://a:8000/v1", "http://b:8000/v1"]' in shown and 'url = "http://c/v1"' in shown
    (tmp_path / "shown.toml").write_text(shown)
    monkeypatch.delenv("MEMECOURT_LLM__URL")
    monkeypatch.setenv("MEMECOURT_CONFIG", str(tmp_path / "shown.toml"))
    assert Settings().llm.url == SERVERS


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user:secret@a/v1", "as api_key, not in it"),
        ("http://a/v1?key=secret", "as api_key, not in it"),
        ("a:8000", "is http://HOST"),
        ("ftp://a/v1", "is http://HOST"),
        ("http://a:99999/v1", "is http://HOST"),
        ("http://a/v1,", "is http://HOST"),
        ([], "at least one"),
        (["http://a/v1", "http://a/v1/"], "once"),
    ],
)
def test_invalid_urls_and_urls_with_secrets_are_refused(url, message):
    with pytest.raises(ValidationError, match=message) as caught:
        Settings(llm={"url": url})
    assert "secret" not in str(caught.value.errors(include_input=False))


def test_options_of_a_trial_become_settings():
    values = trial_settings(llm_url="http://a/v1,http://b/v1", model="m", max_tokens=2000, stance_at=None)
    assert Settings(**values).llm == ModelSettings(url=("http://a/v1", "http://b/v1"), model="m", max_tokens=2000)
    assert trial_settings(dull_judge=None, review_rate=None) == {}


def test_named_config_file_must_exist(monkeypatch):
    monkeypatch.setenv("MEMECOURT_CONFIG", "/nowhere/at/all.toml")
    with pytest.raises(BadRequest, match="no file of settings"):
        Settings()
    outcome = CliRunner().invoke(cli, ["settings"])
    assert outcome.exit_code == 1 and "no file of settings" in outcome.output


def test_unknown_or_impossible_settings_are_refused():
    for wrong in ({"trail": {}}, {"trial": {"epsilom": 1}}, {"llm": {"roles": {"bailiff": {}}}}):
        with pytest.raises(ValidationError):
            Settings(**wrong)
    with pytest.raises(ValidationError, match="rounds_min is more"):
        TrialSettings(rounds_min=5, rounds_max=4)


def test_command_shows_effective_settings_without_keys(config):
    shown = CliRunner().invoke(cli, ["settings"])
    assert shown.exit_code == 0
    assert 'url = "http://from-file/v1"' in shown.output and "rounds_max = 4" in shown.output
    assert "[llm.roles.judge]" in shown.output
    assert "file-secret" not in shown.output
    values = json.loads(CliRunner().invoke(cli, ["settings", "--json"]).output)
    assert values["trial"]["epsilon"] == 0.1 and values["trial_digest"].startswith("sha256:")


def test_arrays_of_tables_are_shown_as_in_a_settings_file(config, tmp_path, monkeypatch):
    hooks = """
[[webhooks]]
name = "queue"
url = "https://hooks.example.org/memecourt"
secret_file = "queue.secret"
"""
    judges = """
[[llm.judges]]
model = "second"

[[llm.judges]]
url = "http://third/v1"
model = "third"
"""
    # Without a key, because keys are not shown.
    config.write_text(FILE.replace('api_key = "file-secret"\n', "") + judges + hooks)
    settings = Settings()
    assert len(settings.llm.judges) == 2 and len(settings.webhooks) == 1
    copy = tmp_path / "again.toml"
    copy.write_text(CliRunner().invoke(cli, ["settings"]).output)
    monkeypatch.setenv("MEMECOURT_CONFIG", str(copy))
    assert Settings() == settings


def test_non_ascii_settings_are_printed_as_valid_toml(config, tmp_path, monkeypatch):
    config.write_text('[namespaces."grün 🦊"]\nreview_share = 0.5\n[llm]\nmodel = "fox 🦊"\n')
    settings = Settings()
    copy = tmp_path / "again.toml"
    copy.write_text(CliRunner().invoke(cli, ["settings"]).output, encoding="utf-8")
    monkeypatch.setenv("MEMECOURT_CONFIG", str(copy))
    assert Settings() == settings and settings.llm.model == "fox 🦊"


def test_config_file_can_be_named_by_an_option(config, monkeypatch):
    monkeypatch.delenv("MEMECOURT_CONFIG")
    outcome = CliRunner().invoke(cli, ["--config", str(config), "settings"])
    assert "rounds_max = 4" in outcome.output


def test_digest_of_settings_depends_on_their_values_only():
    assert TrialSettings().digest == TrialSettings().digest
    assert TrialSettings().digest != TrialSettings(epsilon=0.03).digest


def test_policy_is_loaded_from_a_file_and_its_digest_follows_its_text(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(
        'id = "forum"\nversion = "7"\npreamble = "Be kind."\ntargets = ["member"]\n'
        '[[clauses]]\nnumber = "A.1"\ncategory = "spam"\ntext = "No adverts."\n'
    )
    policy = Policy.load(path)
    assert policy.categories == ("spam",) and "A.1. (spam) No adverts." in policy.text
    assert policy.digest != policy.model_copy(update={"preamble": "Be kinder."}).digest


@pytest.mark.parametrize(
    ("content", "message"),
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
def test_faulty_policy_file_is_explained(tmp_path, content, message):
    path = tmp_path / "policy.toml"
    path.write_text(content)
    with pytest.raises(BadRequest, match=message):
        Policy.load(path)
    with pytest.raises(BadRequest, match="can't be read"):
        Policy.load(tmp_path / "none.toml")


@pytest.mark.parametrize(("value", "parsed"), [("on", "on"), ("off", "off"), (2048, 2048), ("2048", 2048)])
def test_thinking_is_off_on_or_a_token_budget_for_all_roles_or_one(value, parsed, monkeypatch):
    llm = Settings(llm={"thinking": value, "roles": {"judge": {"thinking": 99}}}).llm
    assert (llm.of_role("accuser").thinking, llm.of_role("judge").thinking) == (parsed, 99)
    assert Settings().llm.of_role("judge").thinking == "off"
    monkeypatch.setenv("MEMECOURT_LLM__THINKING", str(value))
    monkeypatch.setenv("MEMECOURT_LLM__ROLES__JUDGE__THINKING", "off")
    assert (Settings().llm.thinking, Settings().llm.of_role("judge").thinking) == (parsed, "off")
    assert Settings(**trial_settings(thinking=str(value))).llm.thinking == parsed


@pytest.mark.parametrize("value", [True, False, 0, -1, "yes", 1.5])
def test_other_values_of_thinking_are_refused(value):
    with pytest.raises(ValidationError):
        Settings(llm={"thinking": value})


def test_namespace_settings_are_read_shown_and_explained(tmp_path, monkeypatch):
    file = tmp_path / "memecourt.toml"
    file.write_text('retention_days = 90\n[namespaces."a b"]\nretention_days = "unlimited"\n[namespaces.shop]\n')
    monkeypatch.setenv("MEMECOURT_CONFIG", str(file))
    monkeypatch.setenv("MEMECOURT_NAMESPACES__FORUM__RETENTION_DAYS", "7")
    found = Settings()
    assert {name: each.retention_days for name, each in found.namespaces.items()} == {
        "a b": "unlimited",
        "shop": None,
        "forum": 7,
    }
    shown = CliRunner().invoke(cli, ["settings"]).output
    namespaces = tomllib.loads(shown)["namespaces"]
    assert namespaces["a b"]["retention_days"] == "unlimited" and namespaces["forum"]["retention_days"] == 7
    explained = CliRunner().invoke(cli, ["settings", "--example"]).output
    assert "# [namespaces.NAME]" in explained and tomllib.loads(explained).get("namespaces") is None


@pytest.mark.parametrize("days", [0, -1, "never", 1e9])
def test_retention_is_a_number_of_days_or_unlimited(days):
    with pytest.raises(ValidationError):
        Settings(namespaces={"shop": {"retention_days": days}})


@pytest.mark.parametrize(
    ("variable", "value"), [("WEBHOOKS", '[{"name":'), ("INSECURE", "tls"), ("LLM__JUDGES", "x"), ("NAMESPACES", "{")]
)
def test_variable_with_invalid_json_is_named_but_its_value_is_not_shown(variable, value, monkeypatch):
    monkeypatch.setenv(f"MEMECOURT_{variable}", value)
    result = CliRunner().invoke(cli, ["settings"])
    assert result.exit_code == 1
    name = variable.partition("__")[0]
    assert result.output.startswith(f"Error: Settings can't be used: {name.lower()}: ")
    assert f"MEMECOURT_{name}, or" in result.output and "is no JSON" in result.output


@pytest.mark.parametrize("name", ["HOME", "LIBRARY", "DOCKET", "TOKENS", "TLS_CLIENT_CA", "PICTURES"])
def test_empty_path_variable_does_not_mean_the_current_folder(monkeypatch, name):
    monkeypatch.setenv(f"MEMECOURT_{name}", "")
    result = CliRunner().invoke(cli, ["settings"])
    assert result.exit_code == 1 and f"MEMECOURT_{name} is empty. Unset it, or give the path." in result.output


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ('library = ""', "library"),
        ('docket = ""', "docket"),
        ('tokens = ""', "tokens"),
        ('home = ""', "home"),
        ('[expert]\ncorpus = ""', "expert.corpus"),
        ('[namespaces.forum]\npolicy = ""', "namespaces.forum.policy"),
    ],
)
def test_empty_path_in_the_file_is_refused_by_name(text, setting, tmp_path):
    result = settings_with(tmp_path, text)
    assert result.exit_code == 1
    assert f"{setting}: " in result.output.replace(".function-before[_place(), union[Path,Address]]", "")
    assert "it is empty: give the path, or leave the setting out" in result.output


@pytest.mark.parametrize("text", ['docket = "mysql://court:geheim@db/records"', 'library = "sqlite:///x.db"'])
def test_address_of_another_database_is_not_taken_for_a_path(text, tmp_path):
    result = settings_with(tmp_path, text)
    assert result.exit_code == 1 and "postgresql://USER@HOST:PORT/DATABASE" in result.output
    assert "geheim" not in result.output
    assert result.output.startswith("Error: library: " if "library" in text else "Error: docket: ")


@pytest.mark.parametrize("option", ["--docket", "--library"])
def test_address_of_another_database_in_an_option_is_refused(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["judge", "--text", "x", option, "mysql://court@db/records"])
    assert result.exit_code == 1 and "postgresql://USER@HOST:PORT/DATABASE" in result.output
    assert list(tmp_path.iterdir()) == []


def settings_with(folder, text):
    """The result of `memecourt settings` with this text in its file."""
    (folder / "s.toml").write_text(text)
    # Set only in the environment of this call: --config would set it for other tests too.
    return CliRunner().invoke(cli, ["settings"], env={"MEMECOURT_CONFIG": str(folder / "s.toml")})


def test_error_without_a_home_directory_names_the_setting(monkeypatch):
    def homeless(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("MEMECOURT_HOME", raising=False)
    monkeypatch.setattr("serving.settings.user_data_path", homeless)
    result = CliRunner().invoke(cli, ["settings"])
    assert result.exit_code == 1 and "name a folder for records in MEMECOURT_HOME" in result.output


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("CONCURENT_TRIALS", "CONCURRENT_TRIALS"),
        ("RETENTION_DAY", "RETENTION_DAYS"),
        ("LLM_URL", "LLM__URL"),
        ("TRIAL_REVIEW_RATE", "TRIAL__REVIEW_RATE"),
        ("TLS_CERTIFICAT", "TLS_CERTIFICATE"),
        # Other variables of ours, and those that Kubernetes sets for a service of this name.
        ("TOKEN", None),
        ("QUEUE_METRICS", None),
        ("ENCODER_WEIGHTS", None),
        ("VLLM_PYTHON", None),
        ("SERVICE_HOST", None),
        ("PORT", None),
        ("PORT_50051_TCP_ADDR", None),
        ("NAMESPACES__Forum__POLICY", None),
        ("LLM__ROLES__JUDGE__MODEL", None),
    ],
)
def test_misspelled_setting_variable_is_named(variable, meant, monkeypatch):
    monkeypatch.setenv(f"MEMECOURT_{variable}", "1")
    found = misspelled_variables()
    assert found.get(f"MEMECOURT_{variable}") == (meant and f"MEMECOURT_{meant}")


def test_variables_read_elsewhere_are_not_taken_for_misspelled_settings(monkeypatch):
    codes = (TESTS / "golden" / "stored_names" / "codes.txt").read_text("utf-8").split()
    variables = [code for code in codes if code.startswith("MEMECOURT_")]
    assert "MEMECOURT_CONFIG" in variables
    for variable in variables:
        monkeypatch.setenv(variable, "1")
    assert misspelled_variables() == {}


def test_misspelling_is_reported_once_and_does_not_stop_a_command(monkeypatch):
    monkeypatch.setenv("MEMECOURT_RETENTION_DAY", "30")
    _warn_of_misspelled.cache_clear()
    results = [CliRunner().invoke(cli, ["settings", "--json"]) for _ in range(2)]
    assert [result.exit_code for result in results] == [0, 0]
    words = "MEMECOURT_RETENTION_DAY is no setting and has no effect. Did you mean MEMECOURT_RETENTION_DAYS?\n"
    assert [result.stderr for result in results] == [words, ""]
