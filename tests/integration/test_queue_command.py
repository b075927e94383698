"""``memecourt-queue`` with a real server and a real Redis, killed and stopped while it works."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
import redis

from court.events import VerdictGiven
from serving.models.vllm import free_port
from tests.support.paths import ROOT
from tests.support.redis_server import entries_of, redis_server
from tests.support.server import HARMFUL, HARMLESS, drawn, records

PAGE = ROOT / "docs/queue.md"
COMMAND = [sys.executable, "-m", "memecourt_queue"]
ENV = {**os.environ, "PYTHONPATH": str(ROOT / "integrations/queue/src")}


class Consumer:
    """``memecourt-queue`` as a subprocess; ``first`` is its first line of output."""

    def __init__(self, queue, server, *options):
        command = [*COMMAND, queue, "--server", server.address, *options]
        self.process = subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()

    def end(self, signal_number):
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        output, errors = self.process.communicate(timeout=120)
        return self.process.returncode, self.first + output, errors


@pytest.fixture
def queue():
    with redis_server() as running:
        yield running


@pytest.fixture
def consume():
    started = []

    def start_consumer(*arguments):
        started.append(Consumer(*arguments))
        return started[-1]

    yield start_consumer
    for consumer in started:
        consumer.end(signal.SIGKILL)


MEMES = 48
"""Enough that some are unanswered after two kills, even if a busy machine delivers these late."""


def put_memes(queue, count):
    """Adds memes that differ, so that no verdict is reused."""
    with redis.Redis.from_url(queue.url) as client:
        for number in range(count):
            request = {"request_id": f"post-{number}", "content": {"namespace": "forum", "id": str(number)}}
            text = f"the printer jams on floor {number}, again, with {number * 7} pages left"
            client.xadd("memes", {"request": json.dumps(request), "text": text, "image": drawn(*HARMLESS, seed=number)})


def answers_in(queue, at_least=0):
    return asyncio.run(entries_of(queue.url, "memes.answers", at_least=at_least, within_s=240))


def test_killed_consumers_lose_no_meme_and_judge_none_twice(start, queue, consume):
    server = start(None, "--reuse", "off").ready()
    put_memes(queue, MEMES)
    options = ("--at-once", "4", "--again-after", "1")
    answered = 0
    for _ in range(2):  # each is killed while the court judges some of its memes
        killed = consume(queue.url, server, *options)
        assert killed.first == "consuming memes\n"
        answers_in(queue, at_least=answered + 1)
        killed.end(signal.SIGKILL)
        answered = len(answers_in(queue))
    assert answered < MEMES, "the consumers were killed too late: nothing was left"
    last = consume(queue.url, server, *options)
    answers = answers_in(queue, at_least=MEMES)
    code, output, errors = last.end(signal.SIGTERM)
    assert code == 0, errors
    assert "answered, 0 dead-lettered" in output

    names = [answer["request_id"].decode() for answer in answers_in(queue)]
    assert sorted(names) == sorted(f"post-{number}" for number in range(MEMES)), "each meme is answered once"
    answered_with = {answer["request_id"].decode(): json.loads(answer["verdict"])["verdict_id"] for answer in answers}
    verdicts = {}
    for record in records(server.docket).values():
        if record.last(VerdictGiven):
            verdicts.setdefault(record.opened.request_id, []).append(record.trial_id)
    assert verdicts == {name: [verdict] for name, verdict in answered_with.items()}, (
        "each meme has one verdict in the docket"
    )
    with redis.Redis.from_url(queue.url) as client:
        assert client.xpending("memes", "memecourt")["pending"] == 0
        assert client.xlen("memes.dead") == 0


def test_refused_messages_become_dead_letters_and_harmful_memes_are_withheld(server, queue, consume):
    with redis.Redis.from_url(queue.url) as client:
        client.xadd("in", {"image": drawn(*HARMFUL)})
        client.xadd("in", {"image": b"no picture"})
        client.xadd("in", {"request": json.dumps({"image_url": "https://cdn.example.org/meme.png"})})
    names = ("--stream", "in", "--group", "g", "--answers", "out", "--dead", "aside", "--remove")
    metrics_address = f"127.0.0.1:{free_port('127.0.0.1')}"
    consumer = consume(queue.url, server, *names, "--metrics", metrics_address)
    (answer,) = asyncio.run(entries_of(queue.url, "out", at_least=1))
    dead_letters = asyncio.run(entries_of(queue.url, "aside", at_least=2))
    assert answer["decision"] in (b"block", b"review")
    assert sorted(dead_letter["dead_reason"] for dead_letter in dead_letters) == [
        b"PICTURE_FORMAT_NOT_READ",
        b"URL_NOT_ALLOWED",
    ]
    assert asyncio.run(entries_of(queue.url, "in")) == []
    with urllib.request.urlopen(f"http://{metrics_address}/metrics", timeout=60) as page:
        metrics = page.read().decode()
    assert 'memecourt_queue_dead_total{reason="URL_NOT_ALLOWED"} 1.0' in metrics
    assert "memecourt_queue_message_duration_seconds_count 1.0" in metrics
    code, output, _ = consumer.end(signal.SIGTERM)
    assert (code, output) == (0, "consuming in\n1 answered, 2 dead-lettered\n")


def test_documented_python_example_gets_a_decision(server, queue, consume, tmp_path):
    code = re.search(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert code
    assert len(code[1].strip().splitlines()) <= 17, "fifteen lines and two blank ones"
    (tmp_path / "ask.py").write_text(code[1])
    (tmp_path / "meme.png").write_bytes(drawn(*HARMLESS))
    example = subprocess.Popen(
        [sys.executable, "ask.py"], cwd=tmp_path, env={**os.environ, "QUEUE": queue.url}, stdout=subprocess.PIPE
    )
    consume(queue.url, server)
    output, _ = example.communicate(timeout=120)
    assert output.decode().strip() in ("allow", "review", "block")


def test_wrong_arguments_end_with_an_error_and_no_traceback(server, queue):
    def error_of(*arguments, **environment):
        result = subprocess.run(
            [*COMMAND, *arguments], capture_output=True, text=True, timeout=120, env={**ENV, **environment}
        )
        assert result.returncode
        assert "Traceback" not in result.stderr
        return result.stderr

    assert "redis://HOST:PORT/DATABASE" in error_of("amqp://here")
    for option, value in (("--at-once", "0"), ("--timeout", "nan"), ("--grace", "-1"), ("--server-ca", "/missing")):
        assert option in error_of(queue.url, option, value)
    assert "can't be served" in error_of(queue.url, "--metrics", "127.0.0.1:notaport")
    assert "can't be reached" in error_of("redis://127.0.0.1:1/0")
    assert "Redis refuses this consumer" in error_of(queue.url.replace("unix://", "unix://:wrong@"))
    assert "certificate needs its key" in error_of(queue.url, "--certificate", str(PAGE))
    assert "token" in error_of(queue.url, "--server", "court.example.org:443", MEMECOURT_TOKEN="secret")


@pytest.mark.parametrize(("signal_number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_can_be_interrupted_while_its_queue_does_not_answer(signal_number, code):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        process = subprocess.Popen([*COMMAND, address], env=ENV, stderr=subprocess.PIPE, text=True)
        silent.settimeout(120)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal_number)
            _, errors = process.communicate(timeout=120)
    assert process.returncode == code and "Interrupted." in errors and "Traceback" not in errors, errors
