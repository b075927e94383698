"""The main job over a real socket: a meme goes in over gRPC, a verdict with its record comes out."""

import asyncio
import concurrent.futures
import io
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from PIL import Image

from court.record import TrialState
from memecourt.client import Client, JudgeError, judge_request
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire
from retrieval.starter.draw import draw_meme
from serving.docket.open import Docket
from tests.support.playing import wait_until

pytestmark = pytest.mark.integration

# None of these stands in the starter library.
HARMFUL = ("crowd", "People from Blueland are filth. Kick every one of them out of our town!")
HARMLESS = ("cat", "When the alarm rings on Monday and you are already late for coffee")
FAR = ("landscape", "Section 14b: depreciation of leased turbine blades over nine fiscal years")


def drawn(scene, text, seed=0):
    file = io.BytesIO()
    draw_meme(scene, text, seed=seed).save(file, "PNG")
    return file.getvalue()


def memecourt(*arguments, home, stdin=None):
    return subprocess.run(
        [sys.executable, "-m", "serving.cli", *map(str, arguments)],
        capture_output=True,
        text=stdin is None,
        input=stdin,
        env={**os.environ, "MEMECOURT_HOME": str(home)},
        timeout=300,
    )


def records(docket, *trial_ids):
    async def read():
        store = Docket.open(docket, create=False)
        try:
            lines = await store.index.list(limit=10_000)
            return {line.trial_id: await store.trials.record(line.trial_id) for line in lines}
        finally:
            await store.close()

    kept = asyncio.run(read())
    return [kept[trial_id] for trial_id in trial_ids] if trial_ids else kept


@pytest.mark.parametrize(
    ("meme", "label"),
    [(HARMFUL, wire.LABEL_HARMFUL), (HARMLESS, wire.LABEL_NOT_HARMFUL), (FAR, wire.LABEL_HARMFUL)],
)
def test_a_meme_goes_in_and_a_verdict_with_its_record_comes_out(server, meme, label):
    with Client(server.address) as court:
        response = court.judge(drawn(*meme), timeout=120)
    (record,) = records(server.docket, response.verdict_id)
    assert response.label == label
    # What is like nothing in the library gets the likelier label, and a person.
    assert response.needs_human_review == (meme is FAR)
    # The text was really read off the picture: nearly every word of it is there.
    words = set(meme[1].lower().split())
    assert response.text.source == wire.TEXT_SOURCE_OCR
    assert len(words & set(response.text.text.lower().split())) >= 0.7 * len(words)
    assert record.state is TrialState.DECIDED
    assert record.verdict.rationale == response.rationale
    assert [p.id for p in response.precedents] == [p.id for p in record.precedents.findings.exhibits]
    assert response.needs_human_review == bool(response.review_reasons)
    assert response.needs_human_review or label != wire.LABEL_UNDECIDED
    if meme is HARMFUL:
        assert "nationality" in response.precedents[0].categories
    if meme is FAR:
        assert any("too far" in signal.detail for signal in response.signals)


def test_text_that_is_given_is_judged_instead_of_what_stands_on_the_picture(server):
    with Client(server.address) as court:
        response = court.judge(drawn(*HARMLESS), text=HARMFUL[1], timeout=120)
    assert response.label == wire.LABEL_HARMFUL
    assert response.text.source == wire.TEXT_SOURCE_CALLER


def test_many_at_once_are_all_answered_and_not_mixed_up(server):
    memes = [HARMFUL, HARMLESS] * 4
    with Client(server.address) as court, concurrent.futures.ThreadPoolExecutor(8) as pool:
        requests = [judge_request(drawn(*m, seed=i), text=m[1], request_id=f"r{i}") for i, m in enumerate(memes)]
        responses = list(pool.map(lambda request: court.ask(request, timeout=120), requests))
    assert [r.request_id for r in responses] == [f"r{i}" for i in range(8)]
    assert [r.label for r in responses] == [wire.LABEL_HARMFUL, wire.LABEL_NOT_HARMFUL] * 4


def damaged():
    """A picture whose data are noise; one that was only cut short would be judged by what there is of it."""
    whole = drawn(*HARMLESS)
    begins = whole.index(b"IDAT")
    return whole[:begins] + bytes(len(whole) - begins)


def bomb():
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("request_of", "field"),
    [
        (lambda: wire.JudgeRequest(), "image"),
        (lambda: judge_request(b"GIF, honestly"), "image"),
        (lambda: judge_request(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "image"),
        (lambda: judge_request(damaged()), "image"),
        (lambda: judge_request(bomb()), "image"),
        (lambda: judge_request(bytes(32 * 1024 * 1024 + 1)), "image"),
        (lambda: judge_request(drawn(*HARMLESS), text="x" * 1_000_000), "text"),
        (lambda: judge_request(drawn(*HARMLESS), procedure=99), "procedure"),
    ],
    ids=["empty", "not a picture", "svg", "cut", "bomb", "too large", "1 MB of text", "unknown procedure"],
)
def test_bad_input_gets_a_clear_error_and_the_server_still_serves(server, request_of, field):
    with Client(server.address) as court:
        with pytest.raises(JudgeError) as caught:
            court.ask(request_of(), timeout=120)
        error = caught.value
        assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert error.retry_after is None
        assert len(error.message) > 30 and "0x" not in error.message and "/" not in error.message.replace("and/or", "")
        assert court.judge(drawn(*HARMLESS), text=HARMLESS[1], timeout=120).label == wire.LABEL_NOT_HARMFUL


def test_the_command_line_asks_the_server(server, home, tmp_path):
    for name, meme in (("harmful", HARMFUL), ("harmless", HARMLESS), ("far", FAR)):
        (tmp_path / f"{name}.png").write_bytes(drawn(*meme))
    (tmp_path / "broken.png").write_bytes(damaged())

    def ask(*names, options=()):
        paths = [tmp_path / f"{name}.png" for name in names]
        return memecourt("judge", "--server", server.address, *options, *paths, home=home)

    assert ask("harmless").returncode == 0
    assert ask("far", "harmless").returncode == 10
    several = ask("harmless", "harmful", "far", options=["--json"])
    assert several.returncode == 10
    answers = [json.loads(line) for line in several.stdout.splitlines()]
    assert [a["verdict"]["label"] for a in answers] == ["LABEL_NOT_HARMFUL", "LABEL_HARMFUL", "LABEL_HARMFUL"]
    assert [a["file"].rpartition("/")[2] for a in answers] == ["harmless.png", "harmful.png", "far.png"]
    faulty = ask("harmful", "broken", options=["--json"])
    assert faulty.returncode == 1
    assert json.loads(faulty.stdout.splitlines()[1])["error"]["reason"].startswith("PICTURE_")
    nobody = memecourt("judge", "--server", "127.0.0.1:1", tmp_path / "harmful.png", home=home)
    assert nobody.returncode == 1 and "UNAVAILABLE" in nobody.stderr


def test_the_record_can_be_read_in_a_terminal(server, home):
    with Client(server.address) as court:
        response = court.judge(drawn(*HARMFUL), timeout=120)
    shown = memecourt("records", "show", response.verdict_id, "--docket", server.docket, home=home)
    assert shown.returncode == 0
    for part in ("TrialOpened", "TextRead", "PrecedentsCited", "Summarised", "SideRested", "VerdictGiven", "HARMFUL"):
        assert part in shown.stdout
    whole = memecourt("records", "show", response.verdict_id, "--json", "--docket", server.docket, home=home)
    events = json.loads(whole.stdout)["events"]
    assert len(events) >= 8 and [event["seq"] for event in events] == list(range(len(events)))
    assert {"TrialOpened", "TextRead", "VerdictGiven"} <= {event["kind"] for event in events}
    # Other tests of the same server have trials there too, and the verdict may be one of the first.
    listed = memecourt("records", "list", "--limit", "10000", "--json", "--docket", server.docket, home=home)
    assert response.verdict_id in {json.loads(line)["trial_id"] for line in listed.stdout.splitlines()}
    unknown = memecourt("records", "show", "nobody", "--docket", server.docket, home=home)
    assert unknown.returncode == 1 and "no trial nobody" in unknown.stderr


def test_sigkill_in_mid_trial_loses_nothing_that_was_announced(start):
    server = start().ready()
    opened = lambda line: "seq=0 event=TrialOpened" in line  # noqa: E731
    with concurrent.futures.ThreadPoolExecutor(12) as pool, Client(server.address) as court:
        asked = [pool.submit(court.judge, drawn(*HARMLESS, seed=i), timeout=120) for i in range(12)]
        server.wait_for(opened)
        # Some are past their first events, none of the rest can be: reading the text takes a while.
        server.wait_for(lambda line: "event=VerdictGiven" in line)
        assert server.end(kill=True) == -signal.SIGKILL
        answered = [one.result() for one in asked if one.exception() is None]
    announced = server.announced()
    kept = records(server.docket)
    on_record = {(trial_id, event.seq) for trial_id, record in kept.items() for event in record.events}
    assert announced <= on_record
    assert {response.verdict_id for response in answered} <= kept.keys()
    states = [record.state for record in kept.values()]
    assert TrialState.OPEN in states, "the server was killed after all its trials had ended"
    assert TrialState.DECIDED in states
    # The docket opens again, what was cut off is shown as that, and new trials are kept beside it.
    again = start(server.docket).ready()
    with Client(again.address) as court:
        response = court.judge(drawn(*HARMLESS), text=HARMLESS[1], timeout=120)
    assert records(server.docket, response.verdict_id)[0].state is TrialState.DECIDED


def test_sigterm_lets_running_trials_finish_and_turns_new_ones_away(start, monkeypatch):
    monkeypatch.setenv("MEMECOURT_GRACE", "100")  # reading three texts takes long where much else runs
    server = start().ready()
    with concurrent.futures.ThreadPoolExecutor(4) as pool, Client(server.address) as court:
        asked = [pool.submit(court.judge, drawn(*HARMLESS, seed=i), timeout=120) for i in range(3)]
        server.wait_for(lambda line: sum("TrialOpened" in said for said in server.log) == 3 and "TrialOpened" in line)
        assert server.end() == 0
        assert [one.result().label for one in asked] == [wire.LABEL_NOT_HARMFUL] * 3
        with pytest.raises(JudgeError):
            court.judge(drawn(*HARMLESS), timeout=5)
    assert [record.state for record in records(server.docket).values()] == [TrialState.DECIDED] * 3


def test_a_script_can_ask_whether_it_serves(server, home):
    # What it is told while a server is not ready: test_serving.py, with one that waits for its models.
    warm = memecourt("health", server.ready().address, "--timeout", "60", home=home)
    unknown = memecourt("health", server.address, "--timeout", "60", "--service", "Curt", home=home)
    nobody = memecourt("health", "127.0.0.1:1", home=home)
    assert (warm.returncode, warm.stdout) == (0, "SERVING\n")
    assert unknown.returncode == 2 and 'The server has no service "Curt".' in unknown.stderr
    assert nobody.returncode == 3 and "No answer from 127.0.0.1:1: UNAVAILABLE" in nobody.stderr


def test_health_tells_that_nothing_can_be_written(start):
    server = start().ready()
    check = health_pb2.HealthCheckRequest(service="memecourt.v1.Court")
    liveness = health_pb2.HealthCheckRequest(service="liveness")
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def becomes(status):
            # How soon is what test_serving.py computes; a busy machine may be later.
            wait_until(lambda: stub.Check(check, timeout=60).status == status)

        becomes(serving)
        with closing(sqlite3.connect(server.docket, timeout=60, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # others can still read
            becomes(not_serving)
            assert stub.Check(liveness, timeout=60).status == serving
            other.execute("ROLLBACK")
        becomes(serving)


def test_a_library_that_is_not_there_is_an_error_and_nothing_else_is_said(home, tmp_path):
    done = memecourt("serve", "--address", "127.0.0.1:0", "--library", tmp_path / "none", home=home)
    assert done.returncode == 1 and "no precedent library" in done.stderr
    # Workers that are starting then are ended while somebody waits for their first word.
    assert "RuntimeError" not in done.stderr and "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_an_error_that_says_so(server, home):
    second = memecourt("serve", "--address", server.address, home=home)
    assert second.returncode == 1
    assert "Can't listen" in second.stderr


def test_a_library_that_is_not_there_stops_the_server_with_a_message(home, tmp_path):
    outcome = memecourt("serve", "--address", "127.0.0.1:0", "--library", tmp_path / "none", home=home)
    assert outcome.returncode == 1
    assert "no precedent library" in outcome.stderr and "precedents build" in outcome.stderr


def test_nothing_of_a_meme_is_logged(server):
    with Client(server.address) as court:
        court.judge(drawn(*HARMLESS), text="a marker nobody else would write: zanzibarquux", timeout=120)
    assert not any("zanzibarquux" in line for line in server.log)


def encoder_of(server):
    """Id of the process that a server's encoder runs in; None where there is none."""
    tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
    children = [pid for task in tasks.iterdir() for pid in read_if_there(task / "children").split()]
    named = [
        pid for pid in children if "retrieval.embed.process" in read_if_there(pathlib.Path(f"/proc/{pid}/cmdline"))
    ]
    return int(named[0]) if named else None


def read_if_there(path):
    """A file of a thread or process, which may end before it is read; empty then."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return path.read_text()
    return ""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for a process by its parent, as Linux has it")
def test_no_trial_is_lost_when_the_encoder_is_killed_and_none_outlives_the_server(start, monkeypatch):
    monkeypatch.setenv("MEMECOURT_TRIAL__FIND_S", "300")  # how soon a busy machine loads it again is not what is tested
    server = start().ready()
    killed = []
    with concurrent.futures.ThreadPoolExecutor(8) as pool, Client(server.address, retries=Retries(attempts=1)) as court:
        for turn in range(3):
            asked = [
                pool.submit(court.judge, drawn(*HARMFUL, seed=i % 4), text=f"{turn} {i} {HARMFUL[1]}", timeout=300)
                for i in range(20)
            ]
            while not any(one.done() for one in asked):
                time.sleep(0.01)
            killed.append(encoder_of(server))
            os.kill(killed[-1], signal.SIGKILL)
            # All of them: then the next encoder has answered, and may be killed as well.
            assert [one.result().label for one in asked] == [wire.LABEL_HARMFUL] * 20
        # One that had nothing to do when it was killed is started again by who asks next.
        assert court.judge(drawn(*HARMFUL), text=f"last {HARMFUL[1]}", timeout=300).label == wire.LABEL_HARMFUL
    assert len(set(killed)) == 3
    # What the server says comes over a pipe, and may be read later than its answers.
    wait_until(lambda: sum("encoder's process ended (signal SIGKILL)" in line for line in server.log) == 3)
    assert [record.state for record in records(server.docket).values()] == [TrialState.DECIDED] * 61
    last = encoder_of(server)
    assert server.end() == 0
    assert not pathlib.Path(f"/proc/{last}").exists()


def test_a_second_server_on_one_docket_says_so(start, tmp_path):
    place = tmp_path / "docket.sqlite"
    first = start(place).ready()
    second = start(place).ready()
    assert second.wait_for(lambda line: "Another server of this machine serves the docket" in line)
    assert not any("Another server" in line for line in first.log)
    first.end()
    second.end()
    assert not any("Another server" in line for line in start(place).ready().log)
