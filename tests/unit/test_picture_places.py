"""Pictures in object stores, which only a data set's card can name, never a row."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from court.errors import BadRequest, Unavailable
from court.meme import LIMITS
from eval.datasets.known import dataset_of_card
from eval.datasets.read import read_split
from retrieval.library.picture_files import has_picture, picture_sha256, picture_size, read_picture
from tests.support.card_memes import read_by_card
from tests.unit.test_card_layouts import own_card


def write_rows(place, *images):
    lines = [{"id": f"m{n}", "text": "a pond", "image": image, "label": n % 2} for n, image in enumerate(images)]
    (place / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def card_of(address):
    return own_card("jsonl", ["rows.jsonl"], layout={"kind": "jsonl", "pictures": [address]})


class Bucket(BaseHTTPRequestHandler):
    """A minimal S3 server: objects by bucket and key, and their sizes."""

    objects: ClassVar = {"/memes/set/img/m0.png": b"first", "/memes/set/m1.png": b"second"}
    broken = False

    def do_GET(self):
        content = self.objects.get(self.path)
        self.send_response(403 if self.broken else 404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("ETag", '"one"')
        self.end_headers()
        if self.command == "GET" and content and not self.broken:
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *words):
        pass


@pytest.fixture
def bucket(monkeypatch):
    handler = type("OwnBucket", (Bucket,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "here",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        yield handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def fresh_stores():
    from retrieval.library.picture_files import _opened

    _opened.cache_clear()
    yield
    _opened.cache_clear()


def test_pictures_are_read_from_a_bucket(tmp_path, bucket):
    write_rows(tmp_path, "img/m0.png", "m1.png", "m2.png", "../m1.png", "s3://memes/set/m1.png")
    read = read_by_card(card_of("s3://memes/set"), tmp_path, "all")
    assert [problem.line for problem in read.problems] == [4, 5]
    paths = [read.picture_of(meme) for meme in read.memes]
    assert [path and read_picture(path) for path in paths] == [b"first", b"second", None]
    assert picture_size(paths[0]) == 5 and len(picture_sha256(paths[0])) == 64
    split = read_split(dataset_of_card(card_of("s3://memes/set")), tmp_path, "all")
    assert [has_picture(split.pictures / meme.image) for meme in split.memes] == [True, True, False]


def test_unavailable_store_is_an_error_rather_than_a_missing_picture(tmp_path, bucket):
    write_rows(tmp_path, "m1.png")
    bucket.broken = True
    with pytest.raises(Unavailable, match=r"s3://memes") as caught:
        read_by_card(card_of("s3://memes/set"), tmp_path, "all")
    assert caught.value.reason == "PICTURES_UNAVAILABLE"
    assert "secret" not in caught.value.message


def test_oversized_picture_is_not_fetched(tmp_path):
    large = tmp_path / "store" / "m0.png"
    large.parent.mkdir()
    with large.open("wb") as file:
        file.truncate(LIMITS.max_bytes + 1)
    data = tmp_path / "data"
    data.mkdir()
    write_rows(data, "m0.png")
    read = read_by_card(card_of(f"file://{tmp_path}/store"), data, "all")
    path = read.pictures.folder / "m0.png"
    assert has_picture(path)
    with pytest.raises(OSError, match="larger"):
        read_picture(path)


@pytest.mark.parametrize("image", ["file:///etc/hostname", "file:/etc/hostname", "s3:/memes/set/m1.png"])
def test_rows_cannot_name_a_store(tmp_path, monkeypatch, image):
    write_rows(tmp_path, image, "m1.png")
    # With the directory given as ".", no prefix precedes the row's name.
    monkeypatch.chdir(tmp_path)
    read = read_by_card(card_of(""), Path(), "all")
    assert [problem.line for problem in read.problems] == [1]
    assert "leads out" in read.problems[0].reason


@pytest.mark.parametrize(
    "address", ["http://host/x", "ftp://host/x", "s3://memes/*", "s3://memes/{id}", "s3://memes/a.tar"]
)
def test_card_must_name_a_folder_of_a_known_kind_of_store(address):
    with pytest.raises(BadRequest, match=r"object store|lead"):
        card_of(address)
