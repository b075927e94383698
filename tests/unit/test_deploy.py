"""Deployment files: Kubernetes manifests, Compose file, systemd unit and Containerfile."""

import json
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml
from click.testing import CliRunner

from court.guard import GuardAdapter
from memecourt_queue.cli import main as queue_cli
from serving.cli.main import cli
from serving.models.vllm import VllmSettings
from serving.settings import GuardSettings, NamespaceSettings, RoleSettings, Settings, WebhookSettings
from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").rglob("*.yaml") if path.name != "kustomization.yaml")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MAX_EXPOSURE = 4.0
OPTIONAL_TABLES = ("namespaces", "webhooks")
"""Settings whose tables have no defaults."""


def check_command(words):
    """Fails if the command line does not know the command or an option; runs nothing."""
    outcome = CliRunner().invoke(cli, [*words, "--help"])
    assert outcome.exit_code == 0, outcome.output


def test_metrics_are_served_to_other_machines_from_containers():
    """Otherwise Prometheus, in a container of its own, would find nothing."""
    for words in (container()[1]["args"], COMPOSE["services"]["court"]["command"]):
        assert "--metrics=0.0.0.0:9464" in words


def container(folder=""):
    (manifest,) = yaml.safe_load_all((DEPLOY / "kubernetes" / folder / "deployment.yaml").read_text())
    pod = manifest["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.relative_to(DEPLOY).as_posix())
def test_kubernetes_manifests_are_valid(path):
    from kubernetes_validate import validate  # slow import, and each worker collects each file

    for manifest in yaml.safe_load_all(path.read_text()):
        validate(manifest, "1.37", strict=True)
    assert path.name in yaml.safe_load((path.parent / "kustomization.yaml").read_text())["resources"]


@pytest.mark.parametrize("folder", ["", "queue"])
def test_pods_meet_the_restricted_security_standard(folder):
    pod, main = container(folder)
    assert (
        pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    )
    context = main["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod["automountServiceAccountToken"]


def test_pods_leave_in_time_for_load_balancers_and_trials():
    pod, court = container()
    environment = {entry["name"]: entry.get("value") for entry in court["env"]}
    leaving = court["lifecycle"]["preStop"]["sleep"]["seconds"] + float(environment["MEMECOURT_DRAIN_DELAY"])
    assert leaving >= 10 and pod["terminationGracePeriodSeconds"] >= leaving + Settings().grace + 20


def test_consumers_of_a_queue_run_beside_the_court():
    """In Kubernetes, by systemd and by Compose, with options and names that exist, and let in by the court's policy."""
    pod, consumer = container("queue")
    service = COMPOSE["services"]["consumer"]
    known = {name for parameter in queue_cli.params for name in parameter.opts}
    for words in (consumer["args"], service["command"]):
        assert {word.partition("=")[0] for word in words} <= known and "--metrics=0.0.0.0:9465" in words
    (manifest,) = yaml.safe_load_all((DEPLOY / "kubernetes/queue/deployment.yaml").read_text())
    (policy,) = yaml.safe_load_all((DEPLOY / "kubernetes/network.yaml").read_text())
    callers = policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert callers.items() <= manifest["spec"]["template"]["metadata"]["labels"].items()
    read = {name for parameter in queue_cli.params for name in [parameter.envvar or ""]}
    unit = (DEPLOY / "systemd/memecourt-queue.service").read_text()
    named = {entry["name"] for entry in consumer["env"]} | set(re.findall(r"MEMECOURT_QUEUE\w*|MEMECOURT_TOKEN", unit))
    assert named <= read | {"MEMECOURT_QUEUE"} and "ExecStart=/opt/memecourt/bin/memecourt-queue\n" in unit
    assert service["build"]["dockerfile"] == "integrations/queue/Containerfile"
    recipe = (ROOT / service["build"]["dockerfile"]).read_text()
    assert 'ENTRYPOINT ["memecourt-queue"]' in recipe and "USER 10001:10001" in recipe
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    assert "!integrations/queue" in ignored, "what the image is built of"
    assert pod["terminationGracePeriodSeconds"] >= 30


def test_commands_of_pods_and_containers_exist():
    _, court = container()
    check_command(court["args"])
    probes = [court[name]["exec"]["command"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    for command in probes:
        assert command[0] == "memecourt"
        check_command(command[1:2])
        known = {option for parameter in cli.get_command(None, "health").params for option in parameter.opts}
        assert {word.partition("=")[0] for word in command[3:]} <= known
    check_command(COMPOSE["services"]["court"]["command"])
    recipe = (DEPLOY / "Containerfile").read_text()
    check_command(json.loads(re.search(r"^CMD (\[.*\])$", recipe, re.MULTILINE)[1]))


def test_image_has_a_user_a_volume_and_a_health_check():
    recipe = (DEPLOY / "Containerfile").read_text()
    last = recipe[recipe.rindex("\nFROM") :]
    assert "USER 10001:10001" in last and "VOLUME /data" in last and 'CMD ["memecourt", "health"]' in last
    # Without the ignore file, COPY would include keys and dockets.
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    assert "*" in ignored
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]["custom"]["path"]
    assert f"!{hook}" in ignored, "the wheel's build calls it"


def test_compose_mounts_exist_and_its_vllm_options_match_ours():
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), source
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), "without TLS only on loopback"
    model, *words = COMPOSE["services"]["vllm"]["command"]
    flags = dict(flag.partition("=")[::2] for flag in words)
    ours = VllmSettings(model=model).arguments(8000)
    for name, value in flags.items():
        assert name in ours, name
        if value:
            configured = ours[ours.index(name) + 1]
            assert (json.loads(value) == json.loads(configured)) if value.startswith("{") else value == configured, name
    assert COMPOSE["services"]["vllm"]["environment"] == {"VLLM_NO_USAGE_STATS": "1"}, "as in VllmServer"
    # Our own vLLM process needs options for loopback, its key and shutdown, which Compose does not.
    left_out = {"--served-model-name", "--host", "--port", "--max-num-queued-reqs", "--shutdown-timeout"}
    assert {word for word in ours if word.startswith("--")} - set(flags) == left_out | {"--disable-uvicorn-access-log"}


VARIABLE = re.compile(r"(MEMECOURT_[A-Z_]+)(?:: |=|, value: )([^\s}]+)")
SETTING_FILES = {
    "compose.yaml": {"DOCKET", "PROCEDURE", "LLM__URL", "LLM__MODEL"},
    "kubernetes/deployment.yaml": {"DOCKET", "DOCKET_KEY", "DRAIN_DELAY"},
    "systemd/memecourt.service": {"HOME"},
    "Containerfile": {"HOME"},
}


@pytest.mark.parametrize("path", SETTING_FILES)
def test_settings_in_deployment_files_are_valid(path, monkeypatch):
    """Including settings suggested in comments."""
    found = dict(VARIABLE.findall((DEPLOY / path).read_text()))
    # Not a setting itself, but the path of the settings file.
    found.pop("MEMECOURT_CONFIG", None)
    found.pop("MEMECOURT_QUEUE", None)  # of the consumer beside the court
    names = {name.removeprefix("MEMECOURT_") for name in found}
    assert names == SETTING_FILES[path]
    for name, value in found.items():
        monkeypatch.setenv(name, value.strip('"'))
    assert {name.partition("__")[0].lower() for name in names} <= Settings().model_fields_set


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_units_are_confined(unit):
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd here")
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    complaints = [line for line in verified.stderr.splitlines() if "/opt/memecourt/bin/memecourt" not in line]
    assert not [line for line in complaints if unit.name in line], complaints
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", unit], capture_output=True, text=True
    )
    level = re.search(rf"Overall exposure level for {unit.name}: ([0-9.]+)", judged.stdout)
    assert float(level[1]) <= MAX_EXPOSURE, judged.stdout


def test_example_settings_are_the_defaults_and_all_explained(monkeypatch, tmp_path):
    everything = CliRunner().invoke(cli, ["settings", "--example"]).output
    example = everything.partition("# A guard model,")[0]  # followed by tables without defaults
    assert {"expert", "findings", "llm", "trial"} == set(tomllib.loads(everything))
    # The example with every value uncommented.
    whole = tmp_path / "memecourt.toml"
    whole.write_text(re.sub(r"^# (\w+ = )", r"\1", example, flags=re.MULTILINE), encoding="utf-8")
    plain = Settings()
    monkeypatch.setenv("MEMECOURT_CONFIG", str(whole))
    assert Settings() == plain
    explained = re.findall(r"^# .+\n(?:# (\w+) =)", example, re.MULTILINE)
    assert len(explained) == len(re.findall(r"^# \w+ =", example, re.MULTILINE)), "a setting has no explanation"
    assert set(explained) >= Settings.model_fields.keys() - {"expert", "findings", "llm", "trial", *OPTIONAL_TABLES}


@pytest.mark.parametrize(
    ("head", "model", "own"),
    [
        (
            "[llm.guard]",
            GuardSettings,
            {"url": "http://127.0.0.1:8000/v1", "model": "guard", "adapter": GuardAdapter.LLAMA_GUARD_4.value},
        ),
        ("[[llm.judges]]", RoleSettings, {"model": "another"}),
        ("[[webhooks]]", WebhookSettings, {"name": "queue", "url": "https://hooks.example.org/", "secret_file": "key"}),
        ("[namespaces.NAME]", NamespaceSettings, {"review_share": 0.5}),
    ],
)
def test_example_settings_explain_tables_without_defaults(head, model, own, monkeypatch, tmp_path):
    example = CliRunner().invoke(cli, ["settings", "--example"]).output
    # Up to the introduction of the next table.
    part = re.split(r"\n# [^\n]+:\n# \[", example.partition(f"# {head}\n")[2])[0]
    assert re.findall(r"^# .+\n(?:# (\w+) =)", part, re.MULTILINE) == list(model.model_fields)
    required = re.findall(r"Required\.\n# (\w+) =", part)
    assert set(required) == {name for name, field in model.model_fields.items() if field.is_required()}

    def filled(found):
        return f"{found[1]} = {json.dumps(own[found[1]])}" if found[1] in own else found[0]

    # The table with required values filled in, and all values uncommented.
    table = re.sub(r"^# (\w+) =.*$", filled, part, flags=re.MULTILINE)
    whole = tmp_path / "memecourt.toml"
    whole.write_text(f"{head}\n" + re.sub(r"^# (\w+ = )", r"\1", table, flags=re.MULTILINE), encoding="utf-8")
    monkeypatch.setenv("MEMECOURT_CONFIG", str(whole))
    settings = Settings()
    found = {
        "[llm.guard]": [settings.llm.guard],
        "[[llm.judges]]": settings.llm.judges,
        "[[webhooks]]": settings.webhooks,
        "[namespaces.NAME]": settings.namespaces.values(),
    }
    assert list(found[head]) == [model(**own)]
