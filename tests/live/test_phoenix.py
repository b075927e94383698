"""Traces in a real Arize Phoenix: spans arrive, and its API returns them with the right kinds and contents.

Phoenix runs in an environment of its own (``python scripts/phoenix.py``, or the Python that MEMECOURT_PHOENIX_PYTHON
names). Without one, these tests are skipped; in CI it is built, or they fail.
"""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest

from court.events import Procedure
from court.meme import Meme
from court.settings import TrialSettings
from court.trial import TrialCase
from serving.models.vllm import free_port
from serving.settings import Settings
from serving.telemetry import open_telemetry
from tests.support.cast import Cast, full_court
from tests.support.fakes import a_picture, forwarding_sink
from tests.support.paths import ROOT
from tests.support.telemetry import calls_of

TEXT = "words of people from Blueland"
PROJECT = "memecourt-test"


def phoenix_python():
    configured = os.environ.get("MEMECOURT_PHOENIX_PYTHON")
    found = Path(configured) if configured else ROOT / ".cache" / "phoenix" / "bin" / "python"
    if not found.exists():
        if os.environ.get("CI") == "true":
            installation = subprocess.run(
                [sys.executable, "scripts/phoenix.py"], cwd=ROOT, stdout=subprocess.PIPE, text=True
            )
            if installation.returncode == 0:
                return Path(installation.stdout.strip())
            pytest.fail("Phoenix is not installed, and scripts/phoenix.py failed to install it")
        pytest.skip("Phoenix is not installed: python scripts/phoenix.py")
    return found


class Phoenix:
    def __init__(self, home):
        self.url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
        self.endpoint = f"http://127.0.0.1:{free_port('127.0.0.1')}"
        self.log = home / "phoenix.log"
        environment = {
            **os.environ,
            "PHOENIX_WORKING_DIR": str(home),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": self.url.rpartition(":")[2],
            "PHOENIX_GRPC_PORT": self.endpoint.rpartition(":")[2],
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        command = [phoenix_python(), "-m", "phoenix.server.main", "serve"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def until_up(self, seconds=300):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            try:
                if httpx2.get(f"{self.url}/healthz", trust_env=False, timeout=5).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.5)
        pytest.fail("Phoenix did not start:\n" + self.log.read_text()[-2000:])

    def spans(self, project, count, seconds=60):
        """Waits until a project has that many spans, which arrive gradually; returns all it has."""
        end = time.monotonic() + seconds
        found = []
        while time.monotonic() < end:
            answer = httpx2.get(
                f"{self.url}/v1/projects/{project}/spans", params={"limit": 1000}, trust_env=False, timeout=30
            )
            found = answer.json()["data"] if answer.status_code == 200 else []
            if len(found) >= count:
                break
            time.sleep(0.3)
        return found

    def query(self, query, **variables):
        """Runs a query on Phoenix's GraphQL API, which its own pages use, and returns the data."""
        body = {"query": query, "variables": variables}
        answer = httpx2.post(f"{self.url}/graphql", json=body, trust_env=False, timeout=60).json()
        assert "errors" not in answer, answer
        return answer["data"]


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory):
    running = Phoenix(tmp_path_factory.mktemp("phoenix"))
    try:
        running.until_up()
        yield running
    finally:
        running.process.send_signal(signal.SIGTERM)
        try:
            running.process.wait(30)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait(30)


def traced(phoenix, monkeypatch, project):
    """Runs a full trial that sends traces to a project; returns its record."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", phoenix.endpoint)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"openinference.project.name={project}")
    court = full_court(Cast(rounds=2), settings=TrialSettings(overlap=False))
    court = dataclasses.replace(court, now=lambda: datetime.now(UTC), fence_mark=None)

    async def work():
        async with open_telemetry(Settings(traces=True)) as telemetry:
            case = TrialCase("a-trial", Meme(a_picture(), TEXT), Procedure.FULL)
            return await court.run(case, forwarding_sink(telemetry.watch))

    return asyncio.run(work())


def test_spans_of_a_trial_arrive_with_their_kinds(phoenix, monkeypatch):
    record = traced(phoenix, monkeypatch, PROJECT)
    calls = list(calls_of(record))
    spans = phoenix.spans(PROJECT, len(calls) + 2)
    kinds = Counter(span["span_kind"] for span in spans)
    assert kinds == {"LLM": len(calls), "CHAIN": 1, "RETRIEVER": 1}
    (trial,) = [span for span in spans if span["span_kind"] == "CHAIN"]
    assert trial["name"] == "invoke_workflow memecourt.full" and trial["parent_id"] is None
    assert {span["parent_id"] for span in spans if span is not trial} == {trial["context"]["span_id"]}
    by_prompt = Counter(span["attributes"]["gen_ai.prompt.name"] for span in spans if span["span_kind"] == "LLM")
    assert by_prompt == Counter(call.prompt_id for call, _ in calls)
    # The spans hold no text of the meme.
    spans_json = json.dumps(spans)
    for words in (TEXT, record.verdict.rationale, "text of p0", record.opened.meme.pixels_sha256):
        assert words in "".join(event.model_dump_json() for event in record.events) and words not in spans_json


def test_phoenix_counts_tokens(phoenix, monkeypatch):
    project = f"{PROJECT}-tokens"
    record = traced(phoenix, monkeypatch, project)
    calls = list(calls_of(record))
    assert len(phoenix.spans(project, len(calls) + 2)) == len(calls) + 2
    # Phoenix's reading of the attributes, as its pages show it.
    data = phoenix.query("query { projects { edges { node { name tokenCountPrompt tokenCountCompletion } } } }")
    (counted,) = [edge["node"] for edge in data["projects"]["edges"] if edge["node"]["name"] == project]
    assert counted["tokenCountPrompt"] == sum(call.tokens_in for call, _ in calls)
    assert counted["tokenCountCompletion"] == sum(call.tokens_out for call, _ in calls)
