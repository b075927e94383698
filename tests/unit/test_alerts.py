"""Shipped alerts and dashboard: they query existing metrics, and alerts fire when they should."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from serving.settings import Settings
from serving.telemetry.metrics import Metrics
from tests.support.paths import ROOT

PROMETHEUS, DASHBOARD = ROOT / "deploy" / "prometheus", ROOT / "deploy" / "grafana" / "memecourt.json"
RULES = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]


def exported_samples():
    """Names of all samples that the server can export, with the labels of each."""
    samples = {}
    for collector, names in Metrics(Settings()).registry._collector_to_names.items():
        labels = set(getattr(collector, "_labelnames", ()))
        for name in names:
            samples[name] = labels | ({"version"} if name.endswith("_info") else set())
            samples[f"{name}_bucket"] = labels | {"le"}
    return samples


def dashboard_queries():
    return [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("query", [*(rule["expr"] for rule in RULES), *dashboard_queries()])
def test_queries_use_only_exported_metrics_and_labels(query):
    samples = exported_samples()
    named = re.findall(r"\b(memecourt_\w+)(?:\{([^}]*)\})?", query)
    assert named
    for name, matchers in named:
        assert name in samples
        matched = set(re.findall(r"(\w+)\s*=?[=~!]", matchers)) - {"instance", "job"}
        assert matched <= samples[name], f"{name} has no {matched - samples[name]}"


def test_label_values_in_queries_are_those_of_the_court():
    queries = "\n".join([*(rule["expr"] for rule in RULES), *dashboard_queries()])
    words = {
        "service": {"memecourt.v1.Court"},
        "outcome": {"DECIDED", "FAILED", "OVERRULED"},
        "label": {"HARMFUL"},
        "source": {"OCR"},
        "method": {"Judge"},
        "of": {"waiting_requests", "running_trials", "request_memory_bytes"},
    }
    for label, known in words.items():
        assert set(re.findall(rf'\b{label}="([^"]+)"', queries)) == known


def test_dashboard_has_the_expected_layout_and_data_source():
    board = json.loads(DASHBOARD.read_text())
    kinds = [panel["type"] for panel in board["panels"]]
    assert kinds.count("timeseries") == 6 and set(kinds) == {"stat", "timeseries"}
    assert len({panel["id"] for panel in board["panels"]}) == len(kinds)
    sources = {json.dumps(part["datasource"]) for panel in board["panels"] for part in (panel, *panel["targets"])}
    assert sources == {json.dumps({"type": "prometheus", "uid": "${datasource}"})}
    # No panels overlap.
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


def test_each_alert_has_a_severity_and_says_what_to_do():
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


RULE_FILES = ("alerts", "queue_alerts")


def promtool_files(name):
    """Returns promtool's tests of a file of rules."""
    return sorted(PROMETHEUS.glob(f"{name}_*test.yml"))


@pytest.mark.parametrize("name", RULE_FILES)
def test_each_alert_is_tested(name):
    tested = [each for path in promtool_files(name) for each in yaml.safe_load(path.read_text())["tests"]]
    fired = {each["alertname"] for test in tested for each in test["alert_rule_test"] if each.get("exp_alerts")}
    rules = yaml.safe_load((PROMETHEUS / f"{name}.yml").read_text())["groups"][0]["rules"]
    assert fired == {rule["alert"] for rule in rules}


def test_prometheus_loads_every_rule_and_asks_every_program():
    configuration = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert configuration["rule_files"] == [f"{name}.yml" for name in RULE_FILES]
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    for job in configuration["scrape_configs"]:
        named = [target.split(":") for each in job.get("static_configs", ()) for target in each["targets"]]
        named += [(name, str(each["port"])) for each in job.get("dns_sd_configs", ()) for name in each["names"]]
        for service, port in named:
            assert f"--metrics=0.0.0.0:{port}" in services[service]["command"], job["job_name"]
    jobs = {job["job_name"] for job in configuration["scrape_configs"]}
    for name in RULE_FILES:
        assert set(re.findall(r'job="([^"]+)"', (PROMETHEUS / f"{name}.yml").read_text())) <= jobs


@pytest.fixture(scope="module")
def promtool():
    found = subprocess.run([sys.executable, ROOT / "scripts" / "promtool.py"], capture_output=True, text=True)
    if found.returncode == 75 and not os.environ.get("CI"):
        pytest.skip(found.stderr)
    assert found.returncode == 0, found.stderr
    return lambda *words, cwd=PROMETHEUS: subprocess.run(
        [found.stdout.strip(), *words], cwd=cwd, capture_output=True, text=True
    )


@pytest.mark.slow
def test_alerts_fire_exactly_when_they_should(promtool, tmp_path):
    checked = promtool("check", "config", "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for path in (path for name in RULE_FILES for path in promtool_files(name)):
        tested = promtool("test", "rules", path.name)
        assert tested.returncode == 0, tested.stdout + tested.stderr
    # The tests catch a wrong rule: that of the first release never fired if there had been no review at all.
    (tmp_path / "days.yml").write_text((PROMETHEUS / "alerts_days_test.yml").read_text())
    rules = (PROMETHEUS / "alerts.yml").read_text()
    old_rules = rules.replace(
        "unless sum(increase(memecourt_reviews_total[1d])) > 0", "and sum(increase(memecourt_reviews_total[1d])) == 0"
    )
    assert old_rules != rules
    (tmp_path / "alerts.yml").write_text(old_rules)
    failed = promtool("test", "rules", "days.yml", cwd=tmp_path)
    assert failed.returncode != 0 and "NobodyReviews" in failed.stdout + failed.stderr


@pytest.mark.slow
def test_prometheus_parses_dashboard_queries(promtool, tmp_path):
    rules = [
        {"record": f"query_{number}", "expr": query.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, query in enumerate(dashboard_queries())
    ]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = promtool("check", "rules", "queries.yml", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
