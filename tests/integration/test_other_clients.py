"""Clients that share no code with ours call the real server: buf, grpcurl, and the Node client of docs/calling."""

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
from tests.support.paths import NODE, ROOT
from tests.support.pictures import encode, quarters

BUF = Path(sys.executable).parent / "buf"
METHODS = {
    f"{service.full_name}/{method.name}"
    for service in wire.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def run(*command, stdin="", cwd=ROOT, code=0, **environment):
    result = subprocess.run(
        [str(part) for part in command], input=stdin, capture_output=True, text=True, cwd=cwd, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    return result.stdout + result.stderr if code else result.stdout


@pytest.fixture(scope="module")
def meme():
    return encode(quarters(), "PNG")


def ask(meme, name):
    return {"request_id": name, "image": base64.b64encode(meme).decode(), "text": "the cat is late for coffee"}


def messages(output):
    """Parses the concatenated JSON documents of an output."""
    decoder, documents = json.JSONDecoder(), []
    while output := output.lstrip():
        message, end = decoder.raw_decode(output)
        documents.append(message)
        output = output[end:]
    return documents


@pytest.fixture
def buf(server, tmp_path):
    def call(method, *requests, code=0, schema=True):
        flags = ["--schema", ROOT / "proto"] if schema else []
        return run(
            BUF, "curl", "--protocol", "grpc", "--http2-prior-knowledge", *flags, "-d", "@-",
            f"http://{server.address}/{method}", stdin="\n".join(map(json.dumps, requests)), code=code,
            BUF_CACHE_DIR=str(tmp_path),
        )  # fmt: skip

    return call


def test_buf_repeating_a_request_gets_the_same_verdict(buf, meme):
    first, again = (messages(buf("memecourt.v1.Court/Judge", ask(meme, "buf-1")))[0] for _ in range(2))
    assert first["label"] in ("LABEL_HARMFUL", "LABEL_NOT_HARMFUL", "LABEL_UNDECIDED")
    assert (first["requestId"], again["verdictId"]) == ("buf-1", first["verdictId"])


def test_buf_gets_standard_error_details(buf):
    error = json.loads(buf("memecourt.v1.Court/Judge", {"image": "aGk="}, code=3 << 3))
    assert error["code"] == "invalid_argument"
    assert [detail["type"] for detail in error["details"]] == ["google.rpc.ErrorInfo", "google.rpc.BadRequest"]


def test_buf_streams_both_ways(buf, meme):
    requests = [{"request": ask(meme, f"buf-stream-{number}")} for number in range(5)]
    answers = messages(
        buf("memecourt.v1.Court/JudgeStream", *requests, {"request": {"request_id": "bad", "image": "aGk="}})
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


def test_reflection_lists_every_method(server, tmp_path):
    over = ("--protocol", "grpc", "--http2-prior-knowledge")
    output = run(BUF, "curl", *over, "--list-methods", f"http://{server.address}", BUF_CACHE_DIR=str(tmp_path))
    assert {line for line in output.split() if line.startswith("memecourt.")} == METHODS


def test_grpcurl_calls_every_service(server, meme):
    grpcurl = shutil.which("grpcurl", path=f"{BUF.parent}{os.pathsep}{os.environ['PATH']}")
    if grpcurl is None:
        assert (sys.platform, platform.machine()) != ("linux", "x86_64"), "the extra `dev` installs it on Linux x86-64"
        pytest.skip("grpcurl is not installed, and PyPI has it for Linux on x86-64 only")

    def call(*arguments, **options):
        return run(grpcurl, "-plaintext", "-max-time", "60", *arguments, **options)

    assert "memecourt.v1.Court" in call(server.address, "list").split()
    assert "rpc Judge (" in call(server.address, "describe", "memecourt.v1.Court")
    proto = ("-import-path", ROOT / "proto", "-proto", "memecourt/v1/court.proto")
    for schema in ((), proto):
        (verdict,) = messages(
            call(
                *schema, "-d", "@", server.address, "memecourt.v1.Court/Judge", stdin=json.dumps(ask(meme, "grpcurl-1"))
            )
        )
        assert verdict["request_id" if "request_id" in verdict else "requestId"] == "grpcurl-1"
    watched = messages(
        call("-d", '{"request": {"request_id": "grpcurl-1"}}', server.address, "memecourt.v1.Court/WatchTrial")
    )
    assert watched[-1]["event"]["kind"] == "VerdictGiven"
    query = {"filter": {"needs_review": True, "reviewed": False}}
    call("-d", json.dumps(query), server.address, "memecourt.v1.Docket/ListTrials")
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
            pytest.skip("`make clients` could not fetch the Node packages")
        if os.environ.get("CI") and shutil.which("npm"):
            pytest.fail("npm is installed, but `make clients` was not run")
        pytest.skip("`make clients` has not been run, or can't be: it needs npm")
    if os.access(NODE, os.W_OK):  # otherwise, the code that `make clients` generated is used
        run(sys.executable, ROOT / "scripts/node_client.py", BUF_CACHE_DIR=str(NODE / "buf"))
    return lambda server, *pictures, code: run(
        "node", "judge.mjs", f"http://{server.address}", *pictures, cwd=NODE, code=code
    )


def test_node_client_judges_one_picture_and_many(node, server, meme, tmp_path):
    good, bad = tmp_path / "meme.png", tmp_path / "text.png"
    good.write_bytes(meme)
    bad.write_text("this is no picture")
    # Four coloured squares have no text and resemble no precedent: undecided, and left to a reviewer.
    assert f"{good}: review, LABEL_UNDECIDED, " in node(server, good, code=10)
    output = node(server, good, bad, code=1)
    assert f"{good}: review, LABEL_UNDECIDED, " in output
    assert f"{bad}: no verdict: InvalidArgument PICTURE_FORMAT_NOT_READ: " in output
    assert "InvalidArgument PICTURE_FORMAT_NOT_READ" in node(server, bad, code=1)
