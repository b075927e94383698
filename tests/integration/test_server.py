"""Judging over a real socket: a meme is sent over gRPC, and a verdict with its record comes back."""

import asyncio
import concurrent.futures
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from PIL import Image

from court.record import TrialState
from memecourt.client import Client, JudgeError, judge_request
from memecourt.retries import Retries
from memecourt.v1 import court_pb2 as wire
from serving.docket.errors import TrialErased, TrialUnknown
from tests.support.consoles import form_proof_in, signed_in
from tests.support.dockets import append_all, events_of, with_docket
from tests.support.playing import wait_until
from tests.support.server import HARMFUL, HARMLESS, drawn, memecourt, records

FAR = ("landscape", "Section 14b: depreciation of leased turbine blades over nine fiscal years")


@pytest.mark.parametrize(
    ("meme", "label"), [(HARMFUL, wire.LABEL_HARMFUL), (HARMLESS, wire.LABEL_NOT_HARMFUL), (FAR, wire.LABEL_UNDECIDED)]
)
def test_meme_gets_a_verdict_with_its_record(server, meme, label):
    with Client(server.address) as court:
        response = court.judge(drawn(*meme), timeout=120).message
    (record,) = records(server.docket, response.verdict_id)
    assert response.label == label
    # A meme unlike anything in the library has no label; with the starter library all verdicts ask for review.
    reasons = {each.reason for each in response.review_reasons}
    assert wire.REVIEW_REASON_STARTER_LIBRARY in reasons and response.decision == "review"
    assert (len(reasons) > 1) == (meme is FAR)
    # The text was really read off the picture: at least 70 % of its words are there.
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
        assert any("too far" in each.detail for each in response.review_reasons) and not response.HasField("harm_score")


def damaged():
    """Returns a picture with zeros for data; a merely truncated one would be judged by its readable part."""
    png = drawn(*HARMLESS)
    data_start = png.index(b"IDAT")
    return png[:data_start] + bytes(len(png) - data_start)


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
    ids=["empty", "not a picture", "svg", "damaged", "bomb", "too large", "1 MB of text", "unknown procedure"],
)
def test_bad_input_gets_a_clear_error_and_the_server_goes_on_serving(server, request_of, field):
    with Client(server.address) as court:
        with pytest.raises(JudgeError) as caught:
            court.ask(request_of(), timeout=120)
        error = caught.value
        assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert error.retry_after is None
        assert len(error.message) > 30 and "0x" not in error.message and "/" not in error.message.replace("and/or", "")
        assert court.judge(drawn(*HARMLESS), text=HARMLESS[1], timeout=120).label == "NOT_HARMFUL"


def test_command_line_judges_through_the_server(server, home, tmp_path):
    for name, meme in (("harmful", HARMFUL), ("harmless", HARMLESS), ("far", FAR)):
        (tmp_path / f"{name}.png").write_bytes(drawn(*meme))
    (tmp_path / "broken.png").write_bytes(damaged())

    def ask(*names, options=()):
        paths = [tmp_path / f"{name}.png" for name in names]
        return memecourt("judge", "--server", server.address, *options, *paths, home=home)

    assert ask("harmless").returncode == 12  # the starter library decides nothing
    assert ask("far", "harmless", options=["--exit-zero"]).returncode == 0
    batch = ask("harmless", "harmful", "far", options=["--json"])
    assert batch.returncode == 12
    answers = [json.loads(line) for line in batch.stdout.splitlines()]
    assert [a["verdict"]["label"] for a in answers] == ["LABEL_NOT_HARMFUL", "LABEL_HARMFUL", "LABEL_UNDECIDED"]
    assert [a["file"].rpartition("/")[2] for a in answers] == ["harmless.png", "harmful.png", "far.png"]
    faulty = ask("harmful", "broken", options=["--json"])
    assert faulty.returncode == 1
    assert json.loads(faulty.stdout.splitlines()[1])["error"]["reason"].startswith("PICTURE_")
    nobody = memecourt("judge", "--server", "127.0.0.1:1", tmp_path / "harmful.png", home=home)
    assert nobody.returncode == 1 and "UNAVAILABLE" in nobody.stderr


def test_client_alone_judges_through_the_server(server):
    # What `pip install memecourt` brings has none of these.
    absent = "PIL alembic cryptography cv2 faiss grpc_health numpy onnxruntime orjson platformdirs pydantic sqlalchemy"
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({absent.split()!r})); from serving.cli import start; start()"
    )
    options = ["--server", server.address, "--text", HARMFUL[1]]
    outcome = subprocess.run(
        [sys.executable, "-c", program, "judge", *options], capture_output=True, text=True, timeout=300
    )
    assert (outcome.returncode, outcome.stderr) == (12, "")
    assert "verdict     HARMFUL" in outcome.stdout and "harm score" in outcome.stdout


def test_health_command_reports_the_serving_status(server, home):
    # For a server that is not ready, see test_serving.py, where one waits for its models.
    serving = memecourt("health", server.ready().address, "--timeout", "60", home=home)
    unknown = memecourt("health", server.address, "--timeout", "60", "--service", "Curt", home=home)
    unreachable = memecourt("health", "127.0.0.1:1", home=home)
    assert (serving.returncode, serving.stdout) == (0, "SERVING\n")
    assert unknown.returncode == 2 and 'The server has no service "Curt".' in unknown.stderr
    assert unreachable.returncode == 3 and "No answer from 127.0.0.1:1: UNAVAILABLE" in unreachable.stderr


def test_missing_library_ends_the_start_without_a_traceback(home, tmp_path):
    outcome = memecourt("serve", "--address", "127.0.0.1:0", "--library", tmp_path / "none", home=home)
    assert outcome.returncode == 1
    assert "no precedent library" in outcome.stderr and "precedents build" in outcome.stderr
    # Workers still starting are then stopped while the server waits for them, which must raise no further error.
    assert "RuntimeError" not in outcome.stderr and "Traceback" not in outcome.stderr


def test_occupied_port_is_reported(server, home):
    second = memecourt("serve", "--address", server.address, home=home)
    assert second.returncode == 1
    assert "Can't listen" in second.stderr


def test_server_listens_on_a_socket_and_says_so(start, home, tmp_path):
    where = f"unix:{tmp_path}/court"
    running = start(None, "--address", where)
    assert running.address == where
    assert memecourt("health", where, "--service", "liveness", "--timeout", "60", home=home).stdout == "SERVING\n"


def encoder_of(server):
    """Returns the id of the process that runs a server's encoder; None if there is none."""
    tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
    children = [pid for task in tasks.iterdir() for pid in read_if_there(task / "children").split()]
    encoders = [
        pid for pid in children if "retrieval.embed.process" in read_if_there(pathlib.Path(f"/proc/{pid}/cmdline"))
    ]
    return int(encoders[0]) if encoders else None


def read_if_there(path):
    """Returns a file of a thread or process; an empty text if that has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return path.read_text()
    return ""


@pytest.mark.skipif(sys.platform != "linux", reason="finds child processes in Linux's /proc")
def test_killed_encoder_is_restarted_without_loss_and_ends_with_the_server(start, monkeypatch):
    monkeypatch.setenv("MEMECOURT_TRIAL__FIND_S", "300")  # the time to reload the encoder is not tested
    server = start().ready()
    killed = []
    with concurrent.futures.ThreadPoolExecutor(8) as pool, Client(server.address, retries=Retries(attempts=1)) as court:
        for turn in range(3):
            pending = [
                pool.submit(court.judge, drawn(*HARMFUL, seed=i % 4), text=f"{turn} {i} {HARMFUL[1]}", timeout=300)
                for i in range(20)
            ]
            while not any(future.done() for future in pending):
                time.sleep(0.01)
            killed.append(encoder_of(server))
            os.kill(killed[-1], signal.SIGKILL)
            # All are answered, so the next encoder is up and can be killed in turn.
            assert [future.result().label for future in pending] == ["HARMFUL"] * 20
        # An encoder killed while idle is restarted by the next request.
        assert court.judge(drawn(*HARMFUL), text=f"last {HARMFUL[1]}", timeout=300).label == "HARMFUL"
    assert len(set(killed)) == 3
    # The log arrives through a pipe, possibly later than the answers.
    wait_until(lambda: sum("encoder's process ended (signal SIGKILL)" in line for line in server.log) == 3)
    assert [record.state for record in records(server.docket).values()] == [TrialState.DECIDED] * 61
    last = encoder_of(server)
    assert server.end() == 0
    assert not pathlib.Path(f"/proc/{last}").exists()


def test_second_server_on_a_docket_logs_a_warning(start, tmp_path):
    docket_path = tmp_path / "docket.sqlite"
    first = start(docket_path).ready()
    second = start(docket_path).ready()
    assert second.wait_for(lambda line: "Another server of this machine serves the docket" in line)
    assert not any("Another server" in line for line in first.log)
    first.end()
    second.end()
    assert not any("Another server" in line for line in start(docket_path).ready().log)


def sharp(visitor, trial_id, picture_id):
    """Unblurs a picture and returns it."""
    proof = form_proof_in(visitor.get(f"/trials/{trial_id}").text)
    page = visitor.post(f"/trials/{trial_id}/show", data={"proof": proof, "of": picture_id})
    address = re.search(r'src="([^"]*/sharp/[^"]*)"', page.text)[1]
    return Image.open(io.BytesIO(visitor.get(address).content)).convert("RGB")


def test_console_in_the_server_and_as_a_process_show_the_same_trial(start, home):
    server = start(None, "--console", "127.0.0.1:0").ready()
    in_server = server.wait_for(lambda line: line.startswith("console on ")).removeprefix("console on ")
    with Client(server.address) as court:
        response = court.judge(drawn(*HARMFUL), timeout=120)
    trial = response.verdict_id
    command = [sys.executable, "-m", "serving.cli", "console", "--address", "127.0.0.1:0", "--docket", server.docket]
    environment = {**os.environ, "MEMECOURT_HOME": str(home)}
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("console on ")
        precedent = response.precedents[0].id
        pictures = []
        for url in (in_server, line.strip().removeprefix("console on ")):
            with closing(signed_in(url)) as visitor:
                page = visitor.get(f"/trials/{trial}").text
                assert "<h1>Harmful</h1>" in page and precedent in page and "verified against" in page
                assert f"/trials/{trial}" in visitor.get("/").text
                pictures.append(
                    [sharp(visitor, trial, picture_id).tobytes() for picture_id in ("meme", f"precedent:{precedent}")]
                )
        assert pictures[0] == pictures[1], "both consoles show the same pictures"
        assert pictures[0][0] != pictures[0][1]
    finally:
        process.terminate()
        code = process.wait(120)
        process.stdout.close()
    assert code == 0
    # Both consoles write to one log who unblurred which picture.
    with closing(signed_in(in_server)) as visitor:
        assert visitor.get(f"/trials/{trial}").text.count("saw ") == 4
    assert server.end() == 0


def record_of(docket_path, trial_id):
    return with_docket(docket_path, lambda docket: docket.trials.record(trial_id), create=False)


def eventually(check, *, seconds=120):
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check()
        except (TrialUnknown, AssertionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.25)


def erased(docket_path, trial_id):
    try:
        record_of(docket_path, trial_id)
    except TrialErased:
        return True
    raise AssertionError("the trial is still on record")


def test_server_erases_old_trials_and_takes_appeals(start, tmp_path, monkeypatch):
    docket_path = tmp_path / "docket.sqlite"
    old, new = datetime.now(UTC) - timedelta(days=3), datetime.now(UTC) - timedelta(hours=3)

    async def fill(docket):
        await asyncio.gather(append_all(docket, events_of("old", old)), append_all(docket, events_of("new", new)))

    with_docket(docket_path, fill)
    config = tmp_path / "memecourt.toml"
    config.write_text('retention_days = 2\nreuse = "off"\n')
    monkeypatch.setenv("MEMECOURT_CONFIG", str(config))
    server = start(docket_path).ready()
    with Client(server.address, retries=Retries(attempts=1)) as client:
        content = wire.Content(namespace="shop", id="post 7")
        response = client.ask(wire.JudgeRequest(text="people from Blueland are late", content=content), timeout=120)
        appeal = wire.OpenAppealRequest(content=content, statement="It is satire.", by="forum", reference="1")
        assert client.appeal(appeal) == client.appeal(appeal)
    eventually(lambda: erased(docket_path, "old"))
    assert record_of(docket_path, "new").trial_id == "new"
    assert [event.kind for event in record_of(docket_path, response.verdict_id).events][-1] == "AppealOpened"
