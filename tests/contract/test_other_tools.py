"""Verdicts sent to Ozone and hashes sent to an HMA, over real sockets; fake servers stand in for both tools."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pdqhash
import pytest

from court.events import ReviewOutcome
from court.meme import Frame, Picture, PictureFormat
from court.verdict import Label
from eval.synthetic.scenes import draw_meme
from tests.support.dockets import NOON, append_all, review_trial, with_docket
from tests.support.paths import ROOT
from tests.support.receivers import backlog_of, decided, failed, hook_settings, sending, until_idle

SOURCE = ROOT / "integrations/receivers/src"
POST = "at://did:plc:z72i7hdynmk6r22z27h6tvur/app.bsky.feed.post/3l6oveex3ii2l"
CID = "bafyreidfayvfuwqa7qlnopdjiqrxzs6blmoeu4rujcjtnci5beludirz2a"
DID, OZONE = "did:plc:ewvi7nxzyoun6zhxrhs64oiz", "did:plc:ar7c4by46qjdydhdevvrndac"


@contextmanager
def serve(answer):
    """Yields the address of a local server: ``answer(verb, path, headers, body)`` returns status and JSON."""

    class Handler(BaseHTTPRequestHandler):
        def _any(self):
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, reply = answer(self.command, self.path, self.headers, body)
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_DELETE = _any

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class Ozone:
    """A fake of an account's server with Ozone behind it; atproto's own models check the emitted events."""

    def __init__(self):
        from atproto import models  # takes a second, and each worker collects each file

        self.models = models
        self.events = []
        self.sessions = 0
        self.refuses = []

    def __call__(self, verb, path, headers, body):
        models = self.models
        if path == "/xrpc/com.atproto.server.createSession":
            models.get_or_create(body, models.ComAtprotoServerCreateSession.Data, strict_string_format=True)
            if body["password"] != "app-password":
                return 401, {"error": "AuthenticationRequired", "message": "Invalid identifier or password"}
            self.sessions += 1
            return 200, {"did": DID, "accessJwt": f"jwt-{self.sessions}", "refreshJwt": "r", "handle": "court.test"}
        assert (verb, path) == ("POST", "/xrpc/tools.ozone.moderation.emitEvent")
        assert headers["atproto-proxy"] == f"{OZONE}#atproto_labeler"
        if headers["authorization"] != f"Bearer jwt-{self.sessions}":
            return 400, {"error": "ExpiredToken", "message": "Token has expired"}
        checked = models.get_or_create(body, models.ToolsOzoneModerationEmitEvent.Data, strict_string_format=True)
        assert checked.created_by == DID
        if self.refuses:
            return self.refuses.pop(0)
        key = (checked.event.py_type, checked.external_id, json.dumps(body["subject"]))
        if key in [known for known, _ in self.events]:
            return 400, {
                "error": "DuplicateExternalId",
                "message": "An event with the same external ID already exists.",
            }
        self.events.append((key, checked))
        return 200, {"id": len(self.events), "event": body["event"], "subject": body["subject"], "createdBy": DID}

    def emitted(self):
        found = []
        for _, checked in self.events:
            event = checked.event
            kind = event.py_type.rpartition("#modEvent")[2]
            labels = (event.create_label_vals, event.negate_label_vals) if kind == "Label" else event.report_type
            found.append((kind, labels, checked.external_id.partition("/")[0]))
        return found


@pytest.fixture
def ozone():
    answer = Ozone()
    with serve(answer) as url:
        answer.url = url
        yield answer


@contextmanager
def emitting(ozone, tmp_path, **environment):
    """Runs ``memecourt-ozone`` as a process; yields the settings of the court's receiver."""
    hook = hook_settings("http://127.0.0.1:1", tmp_path)
    variables = {
        "PYTHONPATH": str(SOURCE),
        "OZONE_PDS": ozone.url,
        "OZONE_ACCOUNT": "court.test",
        "OZONE_PASSWORD": "app-password",
        "OZONE_DID": OZONE,
        "MEMECOURT_SECRET": hook.secret_file.read_text().strip(),
        "MEMECOURT_LISTEN": "127.0.0.1:0",
        **environment,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "memecourt_receivers.ozone"],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield hook.model_copy(update={"url": line.removeprefix("receiving on ").strip()})
    finally:
        process.terminate()
        process.wait(120)
        process.stdout.close()


def with_content_id(events, content_id):
    """Returns the events of a trial about this content."""
    opened = events[0]
    meme = opened.meme.model_copy(update={"content_id": content_id})
    return [opened.model_copy(update={"meme": meme}), *events[1:]]


def with_label(events, label):
    verdict = events[-1].verdict.model_copy(update={"label": label})
    return [*events[:-1], events[-1].model_copy(update={"verdict": verdict})]


def test_verdicts_reviews_and_failures_reach_ozone(ozone, tmp_path):
    post = f"{POST} {CID}"

    async def scene(docket, hook):
        async with sending(docket, hook) as sender:
            await append_all(docket, with_content_id(decided("harmful"), post))
            # Another namespace, so that what people find about one is not said of the other.
            await append_all(docket, with_content_id(decided("unsure", review=True, namespace="blog"), post))
            await append_all(docket, with_content_id(failed("failed"), post))
            await append_all(docket, with_content_id(decided("account"), DID))
            await until_idle(sender)
            ozone.sessions += 1  # the session ends meanwhile
            await review_trial(docket, "harmful")
            await review_trial(docket, "unsure", ReviewOutcome.UPHELD, Label.HARMFUL)
            await until_idle(sender)
            # Sent once more, as after a crash: Ozone recognises the events by their ids. The unsure verdict carries the
            # decision of today, which is a person's.
            await docket.hooks.replay(hook.name, 0)
            await until_idle(sender)
            assert (await backlog_of(docket, hook.name)).waiting == 0

    with emitting(ozone, tmp_path) as hook:
        with_docket(tmp_path / "docket.sqlite", lambda docket: scene(docket, hook))
    emitted = ozone.emitted()
    other = "com.atproto.moderation.defs#reasonOther"
    assert sorted(map(repr, emitted)) == sorted(
        map(
            repr,
            [
                ("Label", (["harmful-meme"], []), "harmful"),
                ("Report", other, "unsure"),
                ("Report", other, "failed"),
                ("Label", (["harmful-meme"], []), "account"),
                ("Label", ([], ["harmful-meme"]), "harmful"),
                ("Label", (["harmful-meme"], []), "unsure"),
                ("Label", (["harmful-meme"], []), "unsure"),
            ],
        )
    )
    subjects = {checked.external_id.partition("/")[0]: checked.subject for _, checked in ozone.events}
    assert (subjects["harmful"].uri, subjects["harmful"].cid, subjects["account"].did) == (POST, CID, DID)
    comments = " ".join(checked.event.comment for _, checked in ozone.events)
    assert "Blueland" not in comments and "satire" not in comments, "no text of a meme or name of a person"
    assert ozone.sessions == 3


def test_events_refused_by_ozone_wait_and_allowed_memes_emit_none(ozone, tmp_path):
    async def scene(docket, hook):
        async with sending(docket, hook) as sender:
            await append_all(docket, with_content_id(with_label(decided("fine"), Label.NOT_HARMFUL), f"{POST} {CID}"))
            await until_idle(sender)
            assert (await backlog_of(docket, hook.name)).waiting == 0
            ozone.refuses = [(502, {"error": "UpstreamFailure"}), (403, {"error": "Forbidden"})]
            await append_all(docket, with_content_id(decided("a"), f"{POST} {CID}"))
            await append_all(docket, with_content_id(decided("b"), f"{POST} {CID}"))
            await append_all(docket, with_content_id(decided("c"), "post-17"))
            await until_idle(sender)
            return (await backlog_of(docket, hook.name)).waiting

    with emitting(ozone, tmp_path) as hook:
        assert with_docket(tmp_path / "docket.sqlite", lambda docket: scene(docket, hook)) == 3
    assert ozone.events == []


def test_requests_with_a_wrong_signature_are_ignored(ozone, tmp_path):
    async def scene(docket, hook):
        async with sending(docket, hook) as sender:
            await append_all(docket, with_content_id(decided("a"), f"{POST} {CID}"))
            await until_idle(sender)
            return (await backlog_of(docket, hook.name)).waiting

    other = "whsec_" + "A" * 43 + "="
    with emitting(ozone, tmp_path, MEMECOURT_SECRET=other) as hook:
        assert with_docket(tmp_path / "docket.sqlite", lambda docket: scene(docket, hook)) == 1
    assert (ozone.events, ozone.sessions) == ([], 0)


class Hma:
    """A fake of an HMA's curator: hashes can be put into a bank and taken out."""

    def __init__(self):
        self.bank = {}
        self.given = 0
        self.fails = 0

    def __call__(self, verb, path, headers, body):
        if self.fails:
            self.fails -= 1
            return 500, {"message": "storage"}
        if verb == "POST" and path == "/c/bank/memes/signal":
            note = body.pop("note")
            if list(body) != ["pdq"] or not re.fullmatch("[0-9a-f]{64}", body["pdq"]) or len(note) > 255:
                return 400, {"message": "Invalid pdq signal"}
            self.given += 1
            self.bank[self.given] = (body["pdq"], note)
            return 201, {"id": self.given, "signals": body}
        if verb == "DELETE" and (found := re.fullmatch(r"/c/bank/memes/content/(\d+)", path)):
            return 200, {"deleted": int(self.bank.pop(int(found[1]), None) is not None)}
        return 404, {"message": "bank not found"}


@pytest.fixture
def hma():
    answer = Hma()
    with serve(answer) as url:
        answer.url = url
        yield answer


def drawn(seed):
    image = draw_meme("crowd", f"The printer on floor {seed} jams", seed=seed).convert("RGB")
    file = io.BytesIO()
    image.save(file, "PNG")
    pixels = hashlib.sha256(image.tobytes()).hexdigest()
    picture = Picture(
        format=PictureFormat.PNG,
        bytes_sha256="b" * 64,
        pixels_sha256=pixels,
        width=image.width,
        height=image.height,
        frame_count=1,
        frames=(Frame(file.getvalue(), *image.size),),
    )
    return np.asarray(image), picture


def exported_hashes(docket):
    result = subprocess.run(
        [sys.executable, "-m", "serving.cli", "docket", "hashes", "--docket", str(docket)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def push(lines, hma, pushed, bank="memes"):
    return subprocess.run(
        [sys.executable, "-m", "memecourt_receivers.hma", hma.url, "--bank", bank, "--pushed", str(pushed)],
        input=lines,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


@pytest.mark.slow
def test_hashes_of_upheld_memes_stay_in_the_bank_until_overruled_or_erased(hma, tmp_path):
    docket, pushed = tmp_path / "docket.sqlite", tmp_path / "pushed.json"
    pictures = {name: drawn(seed) for seed, name in enumerate(("upheld", "changed", "erased", "never", "fine"))}

    async def reviewed(docket):
        for name, (_, picture) in pictures.items():
            await docket.writer.keep_picture(picture)
            opened, *others = decided(name)
            meme = opened.meme.model_copy(update={"pixels_sha256": picture.pixels_sha256})
            await append_all(docket, [opened.model_copy(update={"meme": meme}), *others])
        for name in ("upheld", "changed", "erased"):
            await review_trial(docket, name, ReviewOutcome.UPHELD, Label.HARMFUL)
        await review_trial(docket, "fine")

    async def later(docket):
        await review_trial(docket, "changed")
        await docket.eraser.erase("erased", who="Ruth", why="asked to", at=NOON)

    def pdq(name):
        bits, _ = pdqhash.compute(pictures[name][0])
        return np.packbits(bits).tobytes().hex()

    with_docket(docket, reviewed)
    lines = exported_hashes(docket)
    assert lines.count("\n") == 4
    assert push(lines, hma, pushed).stdout == "3 pushed, 0 taken out\n"
    assert sorted(hma.bank.values()) == sorted(
        (pdq(name), f"memecourt {name}") for name in ("upheld", "changed", "erased")
    )
    assert push(lines, hma, pushed).stdout == "0 pushed, 0 taken out\n"

    broken_off = push(lines.rpartition("\n{")[0], hma, pushed)
    assert broken_off.returncode and "broke off" in broken_off.stderr
    assert push("", hma, pushed).returncode
    assert len(hma.bank) == 3, "an interrupted command must not empty the bank"

    with_docket(docket, later)
    hma.fails = 1
    failing = push(exported_hashes(docket), hma, pushed)
    assert failing.returncode and "may be behind: run it again" in failing.stderr
    assert push(exported_hashes(docket), hma, pushed).stdout == "0 pushed, 2 taken out\n"
    assert list(hma.bank.values()) == [(pdq("upheld"), "memecourt upheld")]


def test_unpushable_hashes_are_reported_in_one_line(hma, tmp_path):
    end = '{"end": true}\n'
    line = json.dumps({"verdict_id": "a", "pdq": "0" * 64}) + "\n"
    other_bank = push(line + end, hma, tmp_path / "pushed", bank="nobody's")
    assert (other_bank.returncode, other_bank.stdout) == (1, "")
    assert other_bank.stderr.startswith("the HMA answers with status 404")
    for bad in ("no JSON\n", '{"verdict_id": "a", "pdq": "00"}\n', "{}\n"):
        refused = push(bad + end, hma, tmp_path / "pushed")
        assert refused.returncode == 1 and "can't be read" in refused.stderr and "Traceback" not in refused.stderr
    assert hma.bank == {}
