"""The HTTP API of the real server: memory use of large uploads, bodies that never arrive, and a generated client."""

import base64
import importlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest

from serving.app import allow_open_files
from serving.rest.app import OPENAPI
from tests.support.doc_blocks import commands
from tests.support.encoders import png_of
from tests.support.http import url_of
from tests.support.paths import ROOT
from tests.support.sizes import FULL

PAGE = ROOT / "docs/http.md"
FLAGS = re.MULTILINE | re.DOTALL
MIB = 2**20
UPLOADS, UPLOAD_BYTES = 16, 15 * MIB
MEMORY = 128 * MIB
ALLOWANCE = 96 * MIB
"""Bytes allowed beyond the memory for requests: copies of a request while it is parsed, and everything else."""


def peak_memory(pid):
    """Returns the peak memory of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.parametrize("kind", ["form", "raw", "json"])
def test_concurrent_large_uploads_stay_within_the_memory_for_requests(start, monkeypatch, kind):
    monkeypatch.setenv("MEMECOURT_PICTURE_MEMORY", str(MEMORY))
    server = start(None, "--http", "127.0.0.1:0").ready()
    url, pid = url_of(server), server.process.pid
    picture = b"\x89PNG\r\n\x1a\n" + bytes(UPLOAD_BYTES)
    in_json = json.dumps({"image": base64.b64encode(picture).decode()}).encode()

    def upload(_):
        with httpx2.Client(trust_env=False, timeout=120) as client:
            if kind == "form":
                return client.post(f"{url}/v1/judge", files={"image": ("meme.png", picture, "image/png")})
            if kind == "json":
                return client.post(f"{url}/v1/judge", content=in_json, headers={"content-type": "application/json"})
            return client.post(f"{url}/v1/judge", content=picture, headers={"content-type": "image/png"})

    assert upload(0).status_code == 400
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the peak
    before = peak_memory(pid)
    with ThreadPoolExecutor(UPLOADS) as threads:
        answers = list(threads.map(upload, range(UPLOADS)))
    grown = peak_memory(pid) - before
    print(f"\n{UPLOADS} uploads of {UPLOAD_BYTES // MIB} MiB, {kind}: peak memory grew by {grown / MIB:.0f} MiB")
    # None is a picture: each was read whole and refused, turned away with a request to retry, or read too
    # slowly for the machine of the day: this is about memory.
    assert {answer.status_code for answer in answers} <= {400, 429, 504}, [answer.text for answer in answers]
    assert any(answer.status_code == 400 for answer in answers)
    assert grown < MEMORY + ALLOWANCE


def test_bodies_that_never_arrive_block_no_honest_request(start):
    allow_open_files()
    server = start(None, "--http", "127.0.0.1:0").ready()
    url = url_of(server)
    port = int(url.rpartition(":")[2])
    head = b"POST /v1/judge HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: 9000000\r\n\r\n"
    with ExitStack() as stack, httpx2.Client(trust_env=False, timeout=30) as client:
        silent = []
        for number in range(1500 if FULL else 1100):  # more than the server handles at once
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            connection.sendall(head + bytes(number % 3))
            silent.append(connection)
            if number % 100 == 0:
                assert client.get(f"{url}/v1/healthz").status_code == 200
        for _ in range(3):
            # The server waits longer than this for a body: a request queued behind the silent ones would time out.
            with httpx2.Client(trust_env=False, timeout=30) as honest:
                answer = honest.post(f"{url}/v1/judge", content=b"no picture", headers={"content-type": "image/png"})
            assert answer.status_code == 400, answer.text
            for connection in silent[::50]:
                with suppress(OSError):
                    connection.sendall(b"X")


def test_client_generated_from_the_openapi_description_works(start, tmp_path, monkeypatch):
    # Imports 38 grammars, which takes seconds in each worker that merely collects this file.
    from openapi_spec_validator import validate

    validate(json.loads(OPENAPI.read_text()))
    program = Path(sys.executable).parent / "openapi-python-client"
    result = subprocess.run(
        [program, "generate", "--path", OPENAPI, "--meta", "none", "--output-path", tmp_path / "generated"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    monkeypatch.syspath_prepend(tmp_path)
    url = url_of(start(None, "--http", "127.0.0.1:0").ready())
    client = importlib.import_module("generated").Client(url, timeout=120.0)
    models = importlib.import_module("generated.models")

    def call(method, *arguments, **named):
        return importlib.import_module(f"generated.api.{method}").sync(*arguments, client=client, **named)

    request = models.JudgeRequest(
        image=base64.b64encode(png_of((250, 5, 5), (5, 250, 5))).decode(), text="my bird sings"
    )
    verdict = call("court.judge", body=request)
    assert isinstance(verdict, models.JudgeResponse)
    assert verdict.decision in set(models.JudgeResponseDecision)
    assert call("docket.get_trial", verdict.verdict_id).trial.summary.label == verdict.label
    assert call("court.get_verdict", verdict.request_id).verdict.verdict_id == verdict.verdict_id
    review = models.ReviewVerdictRequest(
        outcome=models.ReviewOutcome.REVIEW_OUTCOME_UPHELD, reason="tried", reviewer="me"
    )
    assert call("docket.review_verdict", verdict.verdict_id, body=review).summary.review.reason == "tried"
    found = call("precedents.search_precedents", body=models.SearchPrecedentsRequest(text="a bird", k=2))
    assert len(found.precedents) == 2
    refused = call("court.judge", body=models.JudgeRequest(image="AAAA"))
    assert isinstance(refused, models.Problem)
    assert (refused.status, refused.reason) == (400, "PICTURE_FORMAT_NOT_READ")
    assert call("health.get_readiness").status == "SERVING"
    client.get_httpx_client().close()


def test_documentation_examples_run_verbatim(start, tmp_path):
    url = url_of(start(None, "--http", "127.0.0.1:0").ready())
    (tmp_path / "meme.png").write_bytes(png_of((250, 5, 5), (5, 250, 5)))
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text("utf-8").partition("## Addresses")[0], FLAGS))
    curl, listing = (
        one.line.replace("http://127.0.0.1:8081", url) for one in commands(PAGE) if one.line.startswith("curl")
    )
    (tmp_path / "ask.py").write_text(blocks["python"])
    for name in ("ask.mjs", "ask.go"):
        shutil.copy(PAGE.parent / "calling" / name, tmp_path)
    assert all(len((tmp_path / f"ask.{kind}").read_text().splitlines()) <= 16 for kind in ("py", "mjs", "go"))
    environment = {**os.environ, "COURT": url, "TOKEN": "any", "NO_PROXY": "*"}

    def output_of(*command, shell=False):
        result = subprocess.run(
            command[0] if shell else command, cwd=tmp_path, env=environment, shell=shell, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    verdict = json.loads(output_of(curl, shell=True))
    listed = json.loads(output_of(listing, shell=True))["trials"]
    assert [one["trial_id"] for one in listed] == [verdict["verdict_id"]]
    assert output_of(sys.executable, "ask.py").strip() == verdict["decision"]
    if shutil.which("node"):
        assert output_of("node", "ask.mjs").strip() == verdict["decision"]
    if shutil.which("go"):
        assert output_of("go", "run", "ask.go").strip() == verdict["decision"]
    # The engineer's first session: the same command again gets the same verdict.
    (first,) = (one.line for one in commands(ROOT / "docs/engineer.md") if one.line.startswith("curl"))
    verdict, again = (json.loads(output_of(first.replace("http://127.0.0.1:8081", url), shell=True)) for _ in range(2))
    assert verdict["decision"] == "review" and verdict["verdict_id"] == again["verdict_id"]
    (tmp_path / "meme.png").write_bytes(b"no picture")
    assert output_of(sys.executable, "ask.py").strip() == "hold back: REQUEST_ID_TAKEN"
