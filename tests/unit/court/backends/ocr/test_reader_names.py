"""Tests of text readers by name: a stand-in for a PaddleX server, downloaded RapidOCR models, and none."""

import base64
import contextlib
import hashlib
import json
import threading
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest
import rapidocr
from click.testing import CliRunner
from PIL import Image

from court.backends.ocr import rapidocr_models
from court.backends.ocr.rapidocr_models import LANGUAGES, MIRROR, RecognitionModel, find_model
from court.backends.ocr.reader import check_reader_name, open_reader
from court.errors import BadRequest, NotLoaded, Unavailable
from serving.cli.main import cli
from serving.settings import Settings
from tests.support.pictures import captioned, decoded, encode


async def read(name, still, *, warm=False):
    reader = open_reader(name)
    assert reader is not None
    async with aclosing(reader):
        if warm:
            await reader.warm()
        return reader.identity, (await reader.read(still)).lines


@pytest.mark.parametrize("name", ["rapidocr", "rapidocr:cyrillic", "http://127.0.0.1:8080/ocr", "none"])
def test_reader_setting_accepts_every_kind_of_name(name):
    assert check_reader_name(name) == name == Settings(reader=name).reader


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "a text reader is one of"),
        ("easyocr", "a text reader is one of"),
        ("none:x", "a text reader is one of"),
        ("rapidocr:klingon", "no model for 'klingon'"),
        ("http://", "address of a text reader"),
        ("http://user:key@host/ocr", "without keys"),
        ("http://host/ocr?key=1", "without keys"),
        ("http://host:99999/ocr", "address of a text reader"),
        ("http://[::1/ocr", "address of a text reader"),
    ],
)
def test_unknown_reader_names_are_refused_with_an_explanation(name, message):
    with pytest.raises(ValueError, match=message):
        check_reader_name(name)
    done = CliRunner().invoke(cli, ["judge", "--reader", name, str(Path(__file__))])
    assert done.exit_code == 1 and "reader: " in done.stderr and "Traceback" not in done.stderr


# No reader.


@pytest.mark.slow
def test_without_a_reader_a_meme_needs_its_text(starter_home, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(starter_home))
    image_file = starter_home / "meme.png"
    image_file.write_bytes(encode(captioned("HELLO"), "PNG"))
    refused = CliRunner().invoke(cli, ["judge", "--reader", "none", "--json", str(image_file)])
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)["error"]["reason"] == "TEXT_READER_OFF"
    judged = CliRunner().invoke(cli, ["judge", "--reader", "none", "--json", "--text", "hello", str(image_file)])
    assert json.loads(judged.stdout)["verdict"]["text"]["text"] == "hello"
    records = CliRunner().invoke(cli, ["records", "list", "--json"])
    assert len(records.stdout.splitlines()) == 1, "the refused request opened no trial"


# An OCR server.


class OcrServer(ThreadingHTTPServer):
    """A stand-in for PaddleX serving: decodes the pictures sent to it and answers as configured."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), OcrAnswer)
        self.status = 200
        self.body: bytes | None = None
        self.sizes: list[tuple[int, int]] = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/ocr"


class OcrAnswer(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        assert isinstance(server, OcrServer)
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert payload["fileType"] == 1 and self.path == "/ocr"
        with Image.open(BytesIO(base64.b64decode(payload["file"]))) as image:
            server.sizes.append(image.size)
        body = answer(["COURT"]) if server.body is None else server.body
        self.send_response(server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def answer(texts, scores=None, **more):
    boxes = [[[20, 10 + 40 * at], [120, 10 + 40 * at], [120, 30 + 40 * at], [20, 30 + 40 * at]] for at in range(9)]
    lines = {"rec_texts": texts, "rec_scores": scores or [0.75] * len(texts), "rec_polys": boxes[: len(texts)]}
    page = {"prunedResult": {"model_settings": {}, **lines}, "ocrImage": None}
    return json.dumps({"logId": "1", "errorCode": 0, "result": {"ocrResults": [page]}, **more}).encode()


@pytest.fixture
def server():
    with OcrServer() as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,)).start()
        yield listening
        listening.shutdown()


async def test_ocr_server_gets_one_request_per_frame_and_boxes_match_the_frame(server):
    identity, _ = await read(server.url, decoded(captioned("COURT")), warm=True)
    assert identity == f"paddlex-serving {server.url}"
    server.body = answer(["second", "first"])
    body = json.loads(server.body)
    body["result"]["ocrResults"][0]["prunedResult"]["rec_polys"].reverse()
    server.body, server.sizes = json.dumps(body).encode(), []
    _, lines = await read(server.url, decoded(captioned("ONE"), captioned("TWO"), scale=2))
    assert [(line.text, line.frame) for line in lines] == [("first", 0), ("second", 0), ("first", 1), ("second", 1)]
    assert lines[0].box[0] == (10, 5) and lines[0].confidence == 0.75
    assert server.sizes == [(1280, 960)] * 2, "the legible version is sent"
    server.body = answer([])
    assert await read(server.url, decoded(captioned("ONE"))) == (identity, ())


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"no"),
        (404, answer(["x"])),
        (302, answer(["x"])),
        (200, b"no"),
        (200, b"{}"),
        (200, answer(["x"], errorCode=500)),
        (200, answer(["x", "y"], [0.5])),
        (200, answer(["x"]).replace(b"0.75", b"NaN")),
        (200, answer(["x" * 10_001])),
        (200, json.dumps({"errorCode": 0, "result": {"ocrResults": []}}).encode()),
    ],
)
async def test_failing_ocr_server_is_an_error_and_no_empty_text(server, status, body):
    server.status, server.body = status, body
    with pytest.raises(Unavailable) as caught:
        await read(server.url, decoded(captioned("ONE")))
    assert caught.value.reason == "TEXT_READER_FAILED" and server.url not in caught.value.message


async def test_absent_or_wrongly_reading_ocr_server_is_reported_at_the_start(server):
    with pytest.raises(Unavailable, match=r"http://127.0.0.1:1/ocr can't be asked"):
        await read("http://127.0.0.1:1/ocr", decoded(captioned("ONE")), warm=True)
    server.body = answer(["SOMETHING ELSE"])
    with pytest.raises(Unavailable, match="did not read its sample"):
        await read(server.url, decoded(captioned("ONE")), warm=True)


# Downloaded models.


class Models(BaseHTTPRequestHandler):
    content = (Path(rapidocr.__file__).parent / "models" / "PP-OCRv6_rec_small.onnx").read_bytes()

    def do_GET(self):
        found = self.path == "/mirror/rec/other.onnx"
        self.send_response(200 if found else 404)
        self.end_headers()
        if found:
            with contextlib.suppress(ConnectionError):  # a client that takes a thousand bytes at most hangs up
                self.wfile.write(self.content)

    def log_message(self, *_):
        pass


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A mirror with a model for Korean: the packaged model under another name."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,)).start()
        monkeypatch.setenv(MIRROR, f"http://127.0.0.1:{listening.server_port}/mirror/")
        monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path / "home"))
        known = RecognitionModel("rec/other.onnx", hashlib.sha256(Models.content).hexdigest(), reads_latin=True)
        monkeypatch.setitem(LANGUAGES, "korean", known)
        yield
        listening.shutdown()


async def test_setup_downloads_a_model_by_name_and_the_reader_uses_it(mirror):
    with pytest.raises(NotLoaded, match="run `memecourt setup --reader rapidocr:korean`"):
        open_reader("rapidocr:korean")
    done = CliRunner().invoke(cli, ["setup", "--reader", "rapidocr:korean"])
    assert done.exit_code == 0 and str(find_model("korean")) in done.stdout, done.output
    assert [path.name for path in find_model("korean").parent.iterdir()] == ["other.onnx"]
    identity, lines = await read("rapidocr:korean", decoded(captioned("HELLO THERE")), warm=True)
    assert "PP-OCRv6-small + other" in identity and [line.text for line in lines] == ["HELLO THERE"]


@pytest.mark.parametrize("fault", ["another file", "too large", "not there", "no server"])
def test_failed_or_mismatching_model_downloads_are_not_stored(mirror, monkeypatch, fault):
    match fault:
        case "another file":
            monkeypatch.setitem(LANGUAGES, "korean", RecognitionModel("rec/other.onnx", "0" * 64, reads_latin=True))
        case "too large":
            monkeypatch.setattr(rapidocr_models, "_MAX_BYTES", 1000)
        case "not there":
            monkeypatch.setitem(LANGUAGES, "korean", RecognitionModel("rec/none.onnx", "0" * 64, reads_latin=True))
        case _:
            monkeypatch.setenv(MIRROR, "http://127.0.0.1:1")
    done = CliRunner().invoke(cli, ["setup", "--reader", "rapidocr:korean"])
    assert done.exit_code == 1 and "Traceback" not in done.stderr
    assert ("SHA-256" if fault in ("another file", "too large") else "can't be fetched") in done.stderr
    with pytest.raises(NotLoaded):
        find_model("korean")


def test_setup_refuses_readers_that_need_no_download():
    for name in ("none", "rapidocr", "rapidocr:klingon"):
        done = CliRunner().invoke(cli, ["setup", "--reader", name])
        assert done.exit_code == 2, name
    with pytest.raises(BadRequest):
        find_model("klingon")
