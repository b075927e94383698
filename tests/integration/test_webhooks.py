"""Webhooks of the real server: after a kill, and to the receivers shown in the documentation."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from memecourt.client import Client, judge_request
from retrieval.open import open_writer
from serving.models.vllm import free_port
from serving.webhooks.signing import make_secret
from tests.support.consoles import form_proof_in, signed_in
from tests.support.paths import NODE, ROOT
from tests.support.pictures import encode, quarters
from tests.support.playing import wait_until
from tests.support.receivers import running_receiver
from tests.support.server import records


@pytest.fixture
def hook(tmp_path, monkeypatch):
    """Writes the settings by which servers started from now on send to a receiver."""
    make_secret(tmp_path / "queue.secret", ed25519=False)

    def send_to(url, **options):
        values = {"name": "queue", "url": url, "secret_file": str(tmp_path / "queue.secret"), **options}
        settings = "".join(f'{name} = "{value}"\n' for name, value in values.items())
        (tmp_path / "memecourt.toml").write_text(f"[[webhooks]]\nallow_private = true\n{settings}")
        monkeypatch.setenv("MEMECOURT_CONFIG", str(tmp_path / "memecourt.toml"))

    return send_to


def judge(server, first, count):
    """Returns verdicts on memes with different texts, each with its own request id."""
    picture = encode(quarters(), "PNG")
    with Client(server.address) as court:
        return [
            court.ask(
                judge_request(picture, text=f"the cat drinks {number} cups", request_id=f"r-{number}"), timeout=120
            )
            for number in range(first, first + count)
        ]


def verdict_messages(receiver):
    return [request for request in receiver.requests if request.message["type"] == "memecourt.verdict.given"]


def test_killed_server_loses_no_message(start, hook, tmp_path):
    with running_receiver() as receiver:
        hook(receiver.url)
        first = start().ready()
        verdicts = judge(first, 0, 3)
        receiver.wait_for(1)
        # The receiver fails while the next verdicts are given: their messages are pending when the server dies.
        receiver.answer = lambda _: (time.sleep(1), (500, {}))[1]
        verdicts += judge(first, 3, 3)
        first.end(kill=True)
        receiver.answer = lambda _: (204, {})
        second = start().ready()
        verdicts += judge(second, 6, 2)
        verdict_ids = {verdict.verdict_id for verdict in verdicts}
        assert len(verdict_ids) == 8

        def all_received():
            return {request.message["data"]["verdict_id"] for request in verdict_messages(receiver)} >= verdict_ids

        wait_until(all_received)
        # Each verdict has one message id, however often its message was sent.
        ids = {(request.id, request.message["data"]["entry"]) for request in verdict_messages(receiver)}
        assert len(ids) == len({id_ for id_, _ in ids}) == 8
        assert second.end() == 0
        assert set(records(second.docket)) == verdict_ids


@contextmanager
def receiving(*command, secret, port, cwd):
    """Runs a receiver from the documentation as a subprocess; yields the process once it listens."""
    process = subprocess.Popen(
        [*map(str, command), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, "MEMECOURT_SECRET": secret},
    )
    try:
        wait_until(lambda: is_listening(port) or process.poll() is not None)
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def is_listening(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def in_python(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "webhooks.md").read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    (tmp_path / "receive.py").write_text(code)
    return [sys.executable, tmp_path / "receive.py"], tmp_path


def in_node(tmp_path):
    if not (NODE / "node_modules" / "standardwebhooks").is_dir():
        if os.environ.get("CI") and shutil.which("npm") and not os.environ.get("MEMECOURT_NO_NODE"):
            pytest.fail("npm is installed, but `make clients` was not run")
        pytest.skip("`make clients` has not been run, or can't be: it needs npm")
    code = (NODE / "receive.mjs").read_text()
    assert code == (ROOT / "docs/calling/receive.mjs").read_text()
    assert len([line for line in code.splitlines() if line.strip() and not line.startswith("//")]) <= 15
    return ["node", NODE / "receive.mjs"], NODE


@pytest.mark.parametrize("example", [in_python, in_node])
def test_documented_receiver_accepts_only_messages_signed_with_its_secret(example, hook, tmp_path):
    command, cwd = example(tmp_path)
    secret, port = (tmp_path / "queue.secret").read_text().strip(), free_port("127.0.0.1")
    hook(f"http://127.0.0.1:{port}/hook")

    def send_test_message():
        return subprocess.run(
            [sys.executable, "-m", "serving.cli", "webhooks", "test", "queue"],
            capture_output=True,
            text=True,
            timeout=120,
        )

    with receiving(*command, secret=secret, port=port, cwd=cwd) as process:
        result = send_test_message()
        assert (result.returncode, result.stdout) == (0, "queue took it.\n"), result.stderr
        # A message signed with another secret is refused.
        (tmp_path / "queue.secret").unlink()
        make_secret(tmp_path / "queue.secret", ed25519=False)
        assert "did not take it: status 401" in send_test_message().stderr
        process.kill()
        output = process.stdout.read()
    assert re.search(r"^msg_\w+ memecourt\.hook\.test", output, re.MULTILINE), output


def test_a_server_killed_within_the_minute_for_an_undo_sends_and_makes_what_stands(start, hook, home, tmp_path):
    start(tmp_path / "first.sqlite").ready().end()
    (starter,) = (home / "libraries").glob("starter-*")
    library = shutil.copytree(starter, tmp_path / "library")
    options = ("--library", str(library), "--console", "127.0.0.1:0")
    with running_receiver() as receiver:
        hook(receiver.url)
        first = start(None, *options).ready()
        stands, undone = (verdict.verdict_id for verdict in judge(first, 0, 2))
        labels = {name: record.verdict.label for name, record in records(first.docket).items()}
        visitor = signed_in(first.wait_for(lambda line: line.startswith("console on ")).removeprefix("console on "))

        def send(trial_id, form, **fields):
            at = f"/desk/cases/{trial_id}"
            proof = form_proof_in(visitor.get(at).text)
            path = f"/trials/{trial_id}/show" if form == "show" else f"{at}/{form}"
            answer = visitor.post(path, data={"proof": proof, **fields})
            assert answer.status_code == 200, answer.text
            return answer

        for trial_id in (undone, stands):
            send(trial_id, "take", again="yes")
            send(trial_id, "show", of="all", back="case")
            label = "HARMFUL" if labels[trial_id] == "NOT_HARMFUL" else "NOT_HARMFUL"
            fields = {"label": label, "clause": "1", "reason": "I looked.", "precedent": "yes"}
            review = send(trial_id, "review", **fields)
            if trial_id == undone:
                (number,) = re.findall(r'name="of" value="(\d+)"', review.text)
                send(trial_id, "undo", of=number)
        visitor.close()
        first.end(kill=True)
        begun = time.monotonic()
        second = start(first.docket, *options).ready()
        assert time.monotonic() - begun < 50, "the server stands again within the minute"

        def decided():
            return [one.message["data"] for one in receiver.requests if one.message["type"].endswith("review.decided")]

        assert not decided() and f"trial:{stands}" not in changes_of(library)
        wait_until(lambda: decided() and f"trial:{stands}" in changes_of(library), 120)
        # Both would have come together with what stands.
        wait_until(lambda: len([one for one in receiver.requests if "precedent.changed" in one.message["type"]]) == 1)
        assert [each["verdict_id"] for each in decided()] == [stands]
        assert changes_of(library) == {f"trial:{stands}"}
        in_force = {name: record.in_force.by for name, record in records(second.docket).items()}
        assert in_force == {stands: "PERSON", undone: "COURT"}
        assert second.end() == 0


def changes_of(library):
    """Returns the ids of the memes that were added to a library by a person."""
    with open_writer(library) as writer:
        return {each.change.meme for each in writer.history() if each.change.kind == "add"}
