"""Clients that share no code with ours ask the real server: buf and grpcurl (Go), and the Node of docs/calling."""

import base64
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memecourt.v1 import court_pb2 as wire
from tests.support.pictures import encode, quarters

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
BUF = Path(sys.executable).parent / "buf"
NODE = ROOT / ".cache" / "node"
METHODS = {
    f"{service.full_name}/{method.name}"
    for service in wire.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def told(*command, given="", cwd=ROOT, code=0, **environment):
    done = subprocess.run(
        [str(part) for part in command], input=given, capture_output=True, text=True, cwd=cwd, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def meme():
    return encode(quarters(), "PNG")


def ask(meme, name):
    return {"request_id": name, "image": base64.b64encode(meme).decode(), "text": "the cat is late for coffee"}


def messages(said):
    """The JSON documents of an answer, one after the other."""
    decoder, found = json.JSONDecoder(), []
    while said := said.lstrip():
        message, end = decoder.raw_decode(said)
        found.append(message)
        said = said[end:]
    return found


@pytest.fixture
def buf(server, tmp_path):
    def call(method, *requests, code=0, schema=True):
        flags = ["--schema", ROOT / "proto"] if schema else []
        return told(
            BUF, "curl", "--protocol", "grpc", "--http2-prior-knowledge", *flags, "-d", "@-",
            f"http://{server.address}/{method}", given="\n".join(map(json.dumps, requests)), code=code,
            BUF_CACHE_DIR=str(tmp_path),
        )  # fmt: skip

    return call


def test_buf_asks_once_and_again(buf, meme):
    first, again = (messages(buf("memecourt.v1.Court/Judge", ask(meme, "buf-1")))[0] for _ in range(2))
    assert first["label"] in ("LABEL_HARMFUL", "LABEL_NOT_HARMFUL", "LABEL_UNDECIDED")
    assert (first["requestId"], again["verdictId"]) == ("buf-1", first["verdictId"])


def test_buf_is_told_what_is_wrong_in_google_s_terms(buf):
    said = json.loads(buf("memecourt.v1.Court/Judge", {"image": "aGk="}, code=3 << 3))
    assert said["code"] == "invalid_argument"
    assert [detail["type"] for detail in said["details"]] == ["google.rpc.ErrorInfo", "google.rpc.BadRequest"]


def test_buf_streams_both_ways(buf, meme):
    asked = [{"request": ask(meme, f"buf-stream-{number}")} for number in range(5)]
    answers = messages(
        buf("memecourt.v1.Court/JudgeStream", *asked, {"request": {"request_id": "bad", "image": "aGk="}})
    )
    assert {answer["requestId"] for answer in answers} == {"bad", *(f"buf-stream-{number}" for number in range(5))}
    assert [answer["requestId"] for answer in answers if "failure" in answer] == ["bad"]
    watched = messages(buf("memecourt.v1.Court/WatchTrial", {"request": {"request_id": "buf-stream-0"}}))
    assert [event["event"].get("seq", 0) for event in watched] == list(range(len(watched)))
    assert watched[-1]["event"]["kind"] == "VerdictGiven"


def test_buf_reads_docket_and_library_without_a_schema_of_its_own(buf):
    library = messages(buf("memecourt.v1.Precedents/GetLibrary", {}, schema=False))[0]
    assert int(library["library"]["size"]) > 0
    listed = messages(buf("memecourt.v1.Docket/ListTrials", {"pageSize": 1}, schema=False))[0]
    assert len(listed.get("trials", ())) <= 1


def test_reflection_tells_every_method(server, tmp_path):
    said = told(
        BUF,
        "curl",
        "--protocol",
        "grpc",
        "--http2-prior-knowledge",
        "--list-methods",
        f"http://{server.address}",
        BUF_CACHE_DIR=str(tmp_path),
    )
    assert {line for line in said.split() if line.startswith("memecourt.")} == METHODS


def test_grpcurl_as_the_page_on_calling_says(server, meme):
    grpcurl = shutil.which("grpcurl", path=f"{BUF.parent}{os.pathsep}{os.environ['PATH']}")
    if grpcurl is None:
        assert (sys.platform, platform.machine()) != ("linux", "x86_64"), "the extra `dev` brings it there"
        pytest.skip("there is no grpcurl here, and PyPI has it for Linux on x86-64 alone")

    def call(*given, **options):
        return told(grpcurl, "-plaintext", "-max-time", "60", *given, **options)

    assert "memecourt.v1.Court" in call(server.address, "list").split()
    assert "rpc Judge (" in call(server.address, "describe", "memecourt.v1.Court")
    proto = ("-import-path", ROOT / "proto", "-proto", "memecourt/v1/court.proto")
    for schema in ((), proto):
        (verdict,) = messages(
            call(
                *schema, "-d", "@", server.address, "memecourt.v1.Court/Judge", given=json.dumps(ask(meme, "grpcurl-1"))
            )
        )
        assert verdict["request_id" if "request_id" in verdict else "requestId"] == "grpcurl-1"
    watched = messages(
        call("-d", '{"request": {"request_id": "grpcurl-1"}}', server.address, "memecourt.v1.Court/WatchTrial")
    )
    assert watched[-1]["event"]["kind"] == "VerdictGiven"
    asked = {"filter": {"needs_review": True, "reviewed": False}}
    call("-d", json.dumps(asked), server.address, "memecourt.v1.Docket/ListTrials")
    found = call(
        "-d", '{"text": "when the alarm rings", "k": 3}', server.address, "memecourt.v1.Precedents/SearchPrecedents"
    )
    assert len(messages(found)[0]["precedents"]) == 3
    refused = call("-d", '{"image": "aGk="}', server.address, "memecourt.v1.Court/Judge", code=64 + 3)
    assert "Code: InvalidArgument" in refused and "PICTURE_FORMAT_NOT_READ" in refused


@pytest.fixture(scope="module")
def node():
    if not (NODE / "node_modules").is_dir():
        if os.environ.get("MEMECOURT_NO_NODE"):
            pytest.skip("`make clients` could not fetch what Node needs")
        if os.environ.get("CI") and shutil.which("npm"):
            pytest.fail("npm is here, and `make clients` was not run")
        pytest.skip("`make clients` has not been run, or can't be: it needs npm")
    if os.access(NODE, os.W_OK):  # else what `make clients` has generated is used
        told(sys.executable, ROOT / "scripts/node_client.py", BUF_CACHE_DIR=str(NODE / "buf"))
    return lambda server, *pictures, code: told(
        "node", "judge.mjs", f"http://{server.address}", *pictures, cwd=NODE, code=code
    )


def test_node_asks_for_one_verdict_and_for_many(node, server, meme, tmp_path):
    good, bad = tmp_path / "meme.png", tmp_path / "text.png"
    good.write_bytes(meme)
    bad.write_text("this is no picture")
    # Four squares of colour have no text and are like no precedent: undecided, and a person must look.
    assert f"{good}: LABEL_UNDECIDED, " in node(server, good, code=10)
    said = node(server, good, bad, code=1)
    assert f"{good}: LABEL_UNDECIDED, " in said
    assert f"{bad}: no verdict: InvalidArgument PICTURE_FORMAT_NOT_READ: " in said
    assert "InvalidArgument PICTURE_FORMAT_NOT_READ" in node(server, bad, code=1)
