"""``memecourt consume`` beside the real server and a real Redis, killed and stopped in the middle of its work."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import redis

from court.events import VerdictGiven
from serving.models.vllm import free_port
from tests.integration.test_server import HARMFUL, HARMLESS, drawn, records
from tests.support.redis_server import entries_of, redis_server

pytestmark = [pytest.mark.integration, pytest.mark.slow]


PAGE = Path(__file__).parents[2] / "docs/queue.md"


class Consumer:
    """The command as a process of its own."""

    def __init__(self, queue, server, *options):
        command = [sys.executable, "-m", "serving.cli", "consume", queue, "--server", server.address, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()

    def end(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)
        said, errors = self.process.communicate(timeout=120)
        return self.process.returncode, self.first + said, errors


@pytest.fixture
def queue():
    with redis_server() as running:
        yield running


@pytest.fixture
def consume():
    started = []

    def another(*arguments):
        started.append(Consumer(*arguments))
        return started[-1]

    yield another
    for one in started:
        one.end(signal.SIGKILL)


MEMES = 48
"""So many that some are left when consumers have been killed twice, however late a busy machine is with that."""


def put_memes(queue, number):
    """Memes that differ, so that no verdict is given for another's."""
    with redis.Redis.from_url(queue.url) as client:
        for each in range(number):
            about = {"request_id": f"post-{each}", "content": {"namespace": "forum", "id": str(each)}}
            text = f"the printer jams on floor {each}, again, with {each * 7} pages left"
            client.xadd("memes", {"request": json.dumps(about), "text": text, "image": drawn(*HARMLESS, seed=each)})


def answers_in(queue, at_least=0):
    return asyncio.run(entries_of(queue.url, "memes.answers", at_least=at_least, within_s=240))


def test_consumers_that_are_killed_lose_nothing_and_have_nothing_judged_twice(start, queue, consume):
    server = start(None, "--reuse", "off").ready()
    put_memes(queue, MEMES)
    options = ("--at-once", "4", "--again-after", "1")
    answered = 0
    for _ in range(2):  # each dies with memes on their way to the court
        dies = consume(queue.url, server, *options)
        assert dies.first == "consuming memes\n"
        answers_in(queue, at_least=answered + 1)
        dies.end(signal.SIGKILL)
        answered = len(answers_in(queue))
    assert answered < MEMES, "there was nothing left to take up"
    last = consume(queue.url, server, *options)
    answers = answers_in(queue, at_least=MEMES)
    code, said, errors = last.end(signal.SIGTERM)
    assert code == 0, errors
    assert "answered, 0 put aside" in said

    names = [answer["request_id"].decode() for answer in answers_in(queue)]
    assert sorted(names) == sorted(f"post-{each}" for each in range(MEMES)), "each is answered once"
    given = {answer["request_id"].decode(): json.loads(answer["verdict"])["verdict_id"] for answer in answers}
    verdicts = {}
    for record in records(server.docket).values():
        if record.last(VerdictGiven):
            verdicts.setdefault(record.opened.request_id, []).append(record.trial_id)
    assert verdicts == {name: [verdict] for name, verdict in given.items()}, "each has one verdict in the docket"
    with redis.Redis.from_url(queue.url) as client:
        assert client.xpending("memes", "memecourt")["pending"] == 0
        assert client.xlen("memes.dead") == 0


def test_a_server_that_is_restarted_loses_nothing_either(start, queue, consume, tmp_path):
    docket = tmp_path / "docket.sqlite"
    server = start(docket).ready()
    put_memes(queue, 10)
    consumer = consume(queue.url, server, "--at-once", "4", "--again-after", "1", "--timeout", "120")
    answers_in(queue, at_least=3)
    server.end(kill=True)
    address = server.address
    time.sleep(1)
    again = start(docket, "--address", address).ready()
    answers = answers_in(queue, at_least=10)
    assert {answer["decision"] for answer in answers} <= {b"allow", b"review", b"block"}
    assert consumer.end(signal.SIGTERM)[0] == 0
    assert len(answers_in(queue)) == 10
    decided = [record for record in records(docket).values() if record.last(VerdictGiven)]
    assert len({record.opened.request_id for record in decided}) == len(decided) == 10
    again.end()


def test_what_the_court_refuses_is_put_aside_and_a_harmful_meme_is_not_allowed(server, queue, consume):
    with redis.Redis.from_url(queue.url) as client:
        client.xadd("in", {"image": drawn(*HARMFUL)})
        client.xadd("in", {"image": b"no picture"})
        client.xadd("in", {"request": json.dumps({"image_url": "https://cdn.example.org/meme.png"})})
    names = ("--stream", "in", "--group", "g", "--answers", "out", "--dead", "aside", "--remove")
    at = f"127.0.0.1:{free_port('127.0.0.1')}"
    consumer = consume(queue.url, server, *names, "--metrics", at)
    (answer,) = asyncio.run(entries_of(queue.url, "out", at_least=1))
    letters = asyncio.run(entries_of(queue.url, "aside", at_least=2))
    assert answer["decision"] in (b"block", b"review")
    assert sorted(letter["dead_reason"] for letter in letters) == [b"PICTURE_FORMAT_NOT_READ", b"URL_NOT_ALLOWED"]
    assert asyncio.run(entries_of(queue.url, "in")) == []
    with urllib.request.urlopen(f"http://{at}/metrics", timeout=60) as page:
        metrics = page.read().decode()
    assert 'memecourt_queue_dead_total{reason="URL_NOT_ALLOWED"} 1.0' in metrics
    assert "memecourt_queue_message_duration_seconds_count 1.0" in metrics
    code, said, _ = consumer.end(signal.SIGTERM)
    assert (code, said) == (0, "consuming in\n1 answered, 2 put aside\n")


def test_the_lines_of_the_page_get_an_answer(server, queue, consume, tmp_path):
    code = re.search(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert code
    assert len(code[1].strip().splitlines()) <= 17, "fifteen and the blank ones"
    (tmp_path / "ask.py").write_text(code[1])
    (tmp_path / "meme.png").write_bytes(drawn(*HARMLESS))
    asking = subprocess.Popen(
        [sys.executable, "ask.py"], cwd=tmp_path, env={**os.environ, "QUEUE": queue.url}, stdout=subprocess.PIPE
    )
    consume(queue.url, server)
    said, _ = asking.communicate(timeout=120)
    assert said.decode().strip() in ("allow", "review", "block")


def test_what_is_wrong_is_said_in_a_line(server, queue):
    def said(*arguments, **environment):
        done = subprocess.run(
            [sys.executable, "-m", "serving.cli", "consume", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **environment},
        )
        assert done.returncode
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "redis://HOST:PORT/DATABASE" in said("amqp://here")
    assert "can't be reached" in said("redis://127.0.0.1:1/0")
    assert "Redis refuses this consumer" in said(queue.url.replace("unix://", "unix://:wrong@"))
    assert "token" in said(queue.url, "--server", "court.example.org:443", MEMECOURT_TOKEN="secret")
