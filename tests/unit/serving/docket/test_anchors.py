"""Checkpoints witnessed outside the docket: pushed while the court serves, and read back from anchors."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from court.errors import BadRequest, Unavailable
from serving.docket.audit.anchoring import CheckpointWitness, FileWitness, HttpWitness, keep_anchored, open_witness
from serving.docket.log.anchors import read_anchor, read_keys
from serving.docket.log.errors import BadNote
from serving.docket.log.notes import SigningKey, open_checkpoint, sign_checkpoint
from tests.support.virtual_time import run as run_virtually

KEY = SigningKey.create("court.example/docket")


def note_of(size):
    return sign_checkpoint(KEY, KEY.name, size, bytes([size]) * 32)


NOTES = [note_of(size) for size in (1, 5, 9)]


@pytest.mark.parametrize("between", ["", "\n", "\n\n\n"])
def test_notes_are_read_with_any_blank_lines_between_them(tmp_path, between):
    path = tmp_path / "anchor"
    path.write_text(between.join(NOTES))
    anchor = read_anchor(path)
    assert list(anchor.notes) == NOTES and anchor.name == "anchor"


def test_receipts_and_bundles_can_serve_as_anchors(tmp_path):
    path = tmp_path / "responses.jsonl"
    responses = [{"verdictId": "t", "receipt": {"checkpoint": note, "entry": "0"}} for note in NOTES]
    body = {"rationale": "a line\u2028and another"}
    path.write_text("".join(json.dumps(response | body, ensure_ascii=False) + "\n" for response in responses))
    assert list(read_anchor(path).notes) == NOTES
    path.write_text(json.dumps({"format": "memecourt-bundle/1", "checkpoint": NOTES[1], "entries": []}, indent=1))
    assert list(read_anchor(path).notes) == [NOTES[1]]
    path.write_text(json.dumps(responses))
    assert list(read_anchor(path).notes) == NOTES


def test_malformed_notes_are_returned_and_do_not_affect_others(tmp_path):
    path = tmp_path / "anchor"
    path.write_text(NOTES[0] + "\n" + NOTES[1][:30] + "\n\n" + NOTES[2] + "nothing\n")
    read = read_anchor(path).notes
    assert len(read) == 4
    good = [note for note in read if note in NOTES]
    assert good == [NOTES[0], NOTES[2]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no checkpoint"),
        (b"\xff\xfe", "no text"),
        (b"{}", "no checkpoint"),
        (b'{"a": [', "no checkpoint"),
        (b"[" * 100_000, "no checkpoint"),
        (b"[" * 900 + b"]" * 900, "no checkpoint"),
    ],
)
def test_unusable_anchors_are_refused(tmp_path, content, message):
    path = tmp_path / "anchor"
    path.write_bytes(content)
    with pytest.raises(BadNote, match=message):
        read_anchor(path)
    with pytest.raises(BadNote, match="can't be read"):
        read_anchor(tmp_path / "none")


def test_keys_are_read_one_per_line(tmp_path):
    path, other = tmp_path / "keys", SigningKey.create("court.example/docket")
    path.write_text(f"{KEY.verifier}\n\n{other.verifier}\n")
    assert read_keys(path) == [KEY.verifier, other.verifier]
    for content, message in ((b"", "no key"), (b"no key\n", "public key"), (b"\xff", "no text")):
        path.write_bytes(content)
        with pytest.raises(BadNote, match=message):
            read_keys(path)
    with pytest.raises(BadNote, match="can't be read"):
        read_keys(tmp_path / "none")


async def test_file_witness_appends_and_never_rewrites(tmp_path):
    path = tmp_path / "anchor"

    witness = FileWitness(path)
    await witness.push(NOTES[0])
    first = path.read_bytes()
    # A crash left half a line.
    path.write_bytes(first + NOTES[1][:40].encode())
    await witness.push(NOTES[2])
    assert path.read_bytes().startswith(first)
    assert [note for note in read_anchor(path).notes if note in NOTES] == [NOTES[0], NOTES[2]]
    with pytest.raises(Unavailable, match="does not take them"):
        await FileWitness(tmp_path / "none" / "anchor").push(NOTES[0])


class NoteServer:
    """An HTTP server that stores posted notes and answers with the given statuses."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)
        self.bodies: list[str] = []
        self.heads: list[str] = []

    async def answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.partition(":")[2]) for line in head.split("\r\n") if line.lower().startswith("content-l")
        )
        self.heads.append(head)
        self.bodies.append((await reader.readexactly(length)).decode())
        status = self.statuses.pop(0) if self.statuses else 200
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def serving_notes(note_server):
    async with await asyncio.start_server(note_server.answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/checkpoints"


async def test_http_witness_posts_notes():
    note_server = NoteServer(204, 500, 302)
    async with serving_notes(note_server) as url:
        witness = open_witness(url)
        assert isinstance(witness, HttpWitness)
        await witness.push(NOTES[0])
        for status in (500, 302):
            with pytest.raises(Unavailable, match=f"status {status}"):
                await witness.push(NOTES[1])
        await witness.aclose()
    assert note_server.bodies == [NOTES[0], NOTES[1], NOTES[1]]
    assert "POST /checkpoints" in note_server.heads[0] and "text/plain; charset=utf-8" in note_server.heads[0]


def test_witness_is_chosen_by_address(tmp_path):
    assert isinstance(open_witness(str(tmp_path / "file")), FileWitness)
    for bad in ("ftp://a.example/x", "https://", "https://user:key@a.example/x"):
        with pytest.raises(BadRequest, match="place for checkpoints"):
            open_witness(bad)


class GrowingDocket:
    """A docket whose checkpoint changes with ``size``."""

    def __init__(self):
        self.size = 1

    async def checkpoint(self):
        return note_of(self.size)


class FakeWitness:
    """A witness that stores sizes of checkpoints, and fails while ``away`` is set."""

    def __init__(self):
        self.sizes: list[int] = []
        self.tries = 0
        self.away = False
        self.closed = False

    async def push(self, note):
        self.tries += 1
        if self.away:
            raise Unavailable("away")
        self.sizes.append(open_checkpoint(note, [KEY.verifier]).size)

    async def aclose(self):
        self.closed = True


def test_each_new_checkpoint_is_pushed_and_the_last_one_at_shutdown(caplog):
    docket, fake = GrowingDocket(), FakeWitness()
    witness: CheckpointWitness = fake

    async def scenario():
        anchoring = asyncio.create_task(keep_anchored(docket, witness, every_s=1))
        await asyncio.sleep(3.5)
        assert fake.sizes == [1]  # nothing new, nothing pushed
        docket.size = 2
        await asyncio.sleep(1)
        assert fake.sizes == [1, 2]
        fake.away, docket.size = True, 3
        await asyncio.sleep(600)
        assert fake.sizes == [1, 2] and fake.tries < 20  # retries back off
        fake.away, docket.size = False, 4
        await asyncio.sleep(61)
        assert fake.sizes == [1, 2, 4]
        docket.size = 5
        anchoring.cancel()
        await asyncio.wait([anchoring])
        assert fake.sizes == [1, 2, 4, 5] and fake.closed

    with caplog.at_level("INFO", "memecourt.anchor"):
        run_virtually(scenario())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
