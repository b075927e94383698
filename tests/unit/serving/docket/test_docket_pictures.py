"""Pictures stored outside the docket's database: in a directory or an S3 bucket."""

import asyncio
import re
import sqlite3
import threading
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from court.errors import BadRequest, Unavailable
from serving.docket.open import Docket, open_docket
from serving.docket.store.pictures import ObjectPictures
from serving.settings import Settings
from tests.support.dockets import NOON, append_all, events_of, opened_docket, with_docket
from tests.support.fakes import a_picture

DIGEST = "ab" * 32


def three_frames():
    picture = a_picture(DIGEST)
    return replace(picture, frames=tuple(replace(picture.frames[0], png=f"f{n}".encode(), index=n) for n in range(3)))


class Bucket(BaseHTTPRequestHandler):
    """A fake of the S3 calls used here: PUT, GET and HEAD of objects, and DeleteObjects."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]

    def log_message(self, *_):
        pass

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Fri, 02 Jan 2026 12:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self):
        self.objects[self.name()] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)

    def do_GET(self):
        found = self.objects.get(self.name())
        self.answer(404 if found is None else 200, found or b"")

    do_HEAD = do_GET

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        keys = re.findall("<Key>(.*?)</Key>", body)
        for key in keys:
            self.objects.pop(f"{self.name().rstrip('/')}/{key}", None)
        gone = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self.answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())

    def name(self):
        return unquote(urlsplit(self.path).path)


@contextmanager
def a_bucket(monkeypatch):
    """Runs a server of one bucket; yields its objects."""
    objects = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Bucket,), {"objects": objects}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "here",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    try:
        yield objects
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def store_and_erase(docket):
    picture = three_frames()
    opened, *more = events_of("t")
    meme = opened.meme.model_copy(update={"pixels_sha256": DIGEST})
    await docket.writer.keep_picture(picture)
    await docket.writer.keep_picture(picture)
    await append_all(docket, [opened.model_copy(update={"meme": meme}), *more])
    stored = await docket.trials.frames(DIGEST)
    await docket.eraser.erase("t", who="Ruth", why="asked for", at=NOON)
    return stored, await docket.trials.frames(DIGEST)


def test_pictures_are_stored_next_to_the_docket_and_deleted_on_erasure(tmp_path):
    place = tmp_path / "d.sqlite-pictures"
    with_docket(tmp_path / "d.sqlite", lambda docket: docket.writer.keep_picture(three_frames()))
    assert sorted(path.name for path in place.rglob("*.png")) == [f"{DIGEST}.{n}.png" for n in range(3)]
    assert with_docket(tmp_path / "d.sqlite", store_and_erase) == ([b"f0", b"f1", b"f2"], [])
    assert not [path for path in place.rglob("*") if path.is_file()]


def test_pictures_are_stored_in_s3(tmp_path, monkeypatch):
    settings = Settings(home=tmp_path, pictures="s3://court/of/memes")
    with a_bucket(monkeypatch) as objects:

        async def scenario():
            docket = open_docket(settings)
            try:
                await docket.writer.keep_picture(three_frames())
                names = sorted(objects)
                return names, await store_and_erase(docket), await docket.trials.frames("cd" * 32)
            finally:
                await docket.close()

        names, (stored, erased), none = asyncio.run(scenario())
    assert names == [f"/court/of/memes/ab/{DIGEST}.{n}.png" for n in range(3)]
    assert stored == [b"f0", b"f1", b"f2"] and erased == none == [] and not objects
    assert not (tmp_path / "docket.sqlite-pictures").exists()


async def test_picture_without_its_first_frame_is_stored_again(tmp_path):
    """Frames are stored from last to first, so a picture left incomplete by a crash is stored again."""
    async with opened_docket(tmp_path / "d.sqlite") as docket:
        await docket.writer.keep_picture(three_frames())
        (place,) = (tmp_path / "d.sqlite-pictures").rglob("*.0.png")
        place.unlink()
        before = await docket.trials.frames(DIGEST)
        await docket.writer.keep_picture(three_frames())
        assert (before, await docket.trials.frames(DIGEST)) == ([], [b"f0", b"f1", b"f2"])


@pytest.mark.parametrize("name", ["", "..", "../d", "a/b", "a" * 200, "\0"])
def test_malformed_digests_find_no_picture(tmp_path, name):
    (tmp_path / "d.0.png").write_bytes(b"not to be read")
    assert with_docket(tmp_path / "d.sqlite", lambda docket: docket.trials.frames(name)) == []


def test_invalid_picture_store_is_refused_without_echoing_it(tmp_path):
    with pytest.raises(BadRequest) as refused:
        Docket.open(tmp_path / "d.sqlite", pictures="nonsense://user:secret@host/x")
    assert "secret" not in refused.value.message and refused.value.field == "pictures"
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable):
        ObjectPictures.open(tmp_path / "file")


def test_picture_removed_concurrently_is_forgotten_without_error(tmp_path, monkeypatch):
    pictures = ObjectPictures.open(tmp_path / "pictures")
    pictures.keep_now([(DIGEST, [b"f0", b"f1", b"f2"])])
    usual = pictures._there

    def exists_then_vanishes(path):
        found = usual(path)
        (tmp_path / "pictures" / path).unlink(missing_ok=True)
        return found

    monkeypatch.setattr(pictures, "_there", exists_then_vanishes)
    pictures.forget_now(DIGEST)
    assert pictures.frames_now(DIGEST) == []
    pictures.close()


PATIENCE_S = 60


def entries_in(path, copy):
    """Entries in the file alone, without the write-ahead log beside it."""
    copy.write_bytes(path.read_bytes())
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(f"file:{copy}?immutable=1", uri=True)) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        return connection.execute("SELECT count(*) FROM entries").fetchone()[0] if tables else 0
    return 0  # copied in the middle of a write


async def moved_entries(path, copy, count):
    for _ in range(PATIENCE_S * 20):
        if (found := entries_in(path, copy)) >= count:
            break
        await asyncio.sleep(0.05)
    return found


def movers():
    return [thread for thread in threading.enumerate() if thread.name == "docket-mover"]


async def test_commits_are_moved_into_the_file_while_the_docket_is_open(tmp_path):
    path, events = tmp_path / "docket.sqlite", events_of()

    before = len(movers())
    docket = Docket.open(path)
    await append_all(docket, events)
    moved = await moved_entries(path, tmp_path / "copy", len(events))
    running = len(movers())
    await docket.close()
    assert moved >= len(events)
    assert running == before + 1 and len(movers()) == before


async def test_open_reader_delays_the_move_until_it_ends(tmp_path):
    path, (first, *others) = tmp_path / "docket.sqlite", events_of()

    docket = Docket.open(path)
    await docket.writer.append(first)
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchone()
        await append_all(docket, others)  # waits for no reader
        await asyncio.sleep(1)
        moved_before = entries_in(path, tmp_path / "copy")
    moved = await moved_entries(path, tmp_path / "copy", 1 + len(others))
    await docket.close()
    assert moved_before <= 1 and moved >= 1 + len(others)
