"""Webhooks of the real server, as a process: killed, doubled, and received by what the documentation shows."""

import base64
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from memecourt.client import Client, judge_request
from serving.models.vllm import free_port
from serving.webhooks.signing import make_secret
from tests.integration.test_http import url_of
from tests.integration.test_other_clients import NODE
from tests.integration.test_server import records
from tests.support.pictures import encode, quarters
from tests.support.playing import wait_until
from tests.support.receivers import a_receiver

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hook(tmp_path, monkeypatch):
    """Has servers that are started from now on tell a receiver, by a file of settings."""
    make_secret(tmp_path / "queue.secret", ed25519=False)

    def to(url, **more):
        lines = {"name": "queue", "url": url, "secret_file": str(tmp_path / "queue.secret"), **more}
        told = "".join(f'{name} = "{value}"\n' for name, value in lines.items())
        (tmp_path / "memecourt.toml").write_text(f"[[webhooks]]\nallow_private = true\n{told}")
        monkeypatch.setenv("MEMECOURT_CONFIG", str(tmp_path / "memecourt.toml"))

    return to


def judge(server, first, count):
    """Verdicts on memes that differ in their words, under requests of their own."""
    picture = encode(quarters(), "PNG")
    with Client(server.address) as court:
        return [
            court.ask(
                judge_request(picture, text=f"the cat drinks {number} cups", request_id=f"r-{number}"), timeout=120
            )
            for number in range(first, first + count)
        ]


def given(receiver):
    return [taken for taken in receiver.requests if taken.message["type"] == "memecourt.verdict.given"]


def test_a_server_that_is_killed_loses_no_message(start, hook, tmp_path):
    with a_receiver() as receiver:
        hook(receiver.url)
        first = start().ready()
        verdicts = judge(first, 0, 3)
        receiver.wait_for(1)
        # It takes nothing while the next are given, and what was told of them dies with the server.
        receiver.answer = lambda _: (time.sleep(1), (500, {}))[1]
        verdicts += judge(first, 3, 3)
        first.end(kill=True)
        receiver.answer = lambda _: (204, {})
        second = start().ready()
        verdicts += judge(second, 6, 2)
        wanted = {verdict.verdict_id for verdict in verdicts}
        assert len(wanted) == 8

        def taken():
            return {each.message["data"]["verdict_id"] for each in given(receiver)} >= wanted

        wait_until(taken)
        # Each was sent under one id however often, and every one of the docket's.
        ids = {(each.id, each.message["data"]["entry"]) for each in given(receiver)}
        assert len(ids) == len({id_ for id_, _ in ids}) == 8
        assert second.end() == 0
        assert set(records(second.docket)) == wanted


def test_two_servers_on_one_docket_send_each_message_once(start, hook):
    with a_receiver() as receiver:
        hook(receiver.url)
        first = start()
        second = start(first.docket)
        first.ready(), second.ready()
        verdicts = [verdict for number in range(6) for verdict in judge((first, second)[number % 2], 2 * number, 2)]
        wait_until(lambda: len(given(receiver)) >= 12)
        # The one that sends is stopped: the other goes on at once.
        sends = next(each for each in (first, second) if any("is sent to by this server" in line for line in each.log))
        other = second if sends is first else first
        assert sends.end() == 0
        verdicts += judge(other, 12, 2)
        wait_until(lambda: len(given(receiver)) >= 14)
        time.sleep(1.5)  # three looks more
        assert other.end() == 0
        told = [each.message["data"]["verdict_id"] for each in given(receiver)]
        assert sorted(told) == sorted(verdict.verdict_id for verdict in verdicts)


def test_what_the_command_line_changes_in_a_library_is_told(start, home, hook, tmp_path):
    start(tmp_path / "first.sqlite").ready().end()
    (starter,) = (home / "libraries").glob("starter-*")
    library = shutil.copytree(starter, tmp_path / "library")
    with a_receiver() as receiver:
        hook(receiver.url)
        server = start(None, "--library", str(library)).ready()
        words = [str(library), "starter-001", "harmful", "--who", "Ruth", "--why", "looked again"]
        done = subprocess.run(
            [sys.executable, "-m", "serving.cli", "precedents", "relabel", *words], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        (taken,) = receiver.wait_for(1)
        assert taken.message["type"] == "memecourt.precedent.changed"
        assert (taken.message["data"]["precedent_id"], taken.message["data"]["change"]) == ("starter-001", "relabel")
        assert server.end() == 0


def test_the_public_key_is_served_and_verifies_what_is_sent(start, hook, tmp_path):
    private = make_secret(tmp_path / "key.secret", ed25519=True)
    with a_receiver() as receiver:
        hook(receiver.url, secret_file=str(tmp_path / "key.secret"))
        server = start(None, "--http", "127.0.0.1:0").ready()
        (key,) = requests.get(f"{url_of(server)}/v1/webhooks/keys", timeout=120).json()["keys"]
        assert key == private.public_key
        with Client(server.address) as client:
            client.judge(text="the printer jams", timeout=120)
        (taken,) = receiver.wait_for(1, 120)[:1]
    scheme, _, signature = taken.headers["webhook-signature"].partition(",")
    assert scheme == "v1a"
    signed = f"{taken.id}.{taken.headers['webhook-timestamp']}.".encode() + taken.body
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key.removeprefix("whpk_")))
    public.verify(base64.b64decode(signature), signed)  # raises where it is not by that key


def test_a_receiver_that_can_not_be_used_keeps_a_server_from_starting(start, hook, tmp_path):
    hook("https://hooks.example/", old_secret_file=str(tmp_path / "none"))
    server = start()
    assert server.process.wait(timeout=150) == 1
    server.end()
    assert any("The file none with the secret of the webhook queue can't be read" in line for line in server.log)
    assert not any("Traceback" in line for line in server.log)


@contextmanager
def receiving(*command, secret, port, cwd):
    """A receiver from the documentation, as a process; yields what it has written so far."""
    process = subprocess.Popen(
        [*map(str, command), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, "MEMECOURT_SECRET": secret},
    )
    try:
        wait_until(lambda: answers(port) or process.poll() is not None)
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def answers(port):
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def in_python(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "webhooks.md").read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    (tmp_path / "receive.py").write_text(code)
    return [sys.executable, tmp_path / "receive.py"], tmp_path


def in_node(tmp_path):
    if not (NODE / "node_modules" / "standardwebhooks").is_dir():
        if os.environ.get("CI") and shutil.which("npm") and not os.environ.get("MEMECOURT_NO_NODE"):
            pytest.fail("npm is here, and `make clients` was not run")
        pytest.skip("`make clients` has not been run, or can't be: it needs npm")
    code = (NODE / "receive.mjs").read_text()
    assert code == (ROOT / "docs/calling/receive.mjs").read_text()
    assert len([line for line in code.splitlines() if line.strip() and not line.startswith("//")]) <= 15
    return ["node", NODE / "receive.mjs"], NODE


@pytest.mark.parametrize("shown", [in_python, in_node])
def test_a_receiver_of_the_documentation_verifies_what_it_is_sent(shown, hook, tmp_path):
    command, cwd = shown(tmp_path)
    secret, port = (tmp_path / "queue.secret").read_text().strip(), free_port("127.0.0.1")
    hook(f"http://127.0.0.1:{port}/hook")

    def tried():
        return subprocess.run(
            [sys.executable, "-m", "serving.cli", "webhooks", "test", "queue"],
            capture_output=True,
            text=True,
            timeout=120,
        )

    with receiving(*command, secret=secret, port=port, cwd=cwd) as process:
        done = tried()
        assert (done.returncode, done.stdout) == (0, "queue took it.\n"), done.stderr
        # Another secret is none.
        (tmp_path / "queue.secret").unlink()
        make_secret(tmp_path / "queue.secret", ed25519=False)
        assert "did not take it: status 401" in tried().stderr
        process.kill()
        said = process.stdout.read()
    assert re.search(r"^msg_\w+ memecourt\.hook\.test", said, re.MULTILINE), said
