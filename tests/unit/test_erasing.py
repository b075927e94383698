"""PR-1: after a trial is erased, no file of the docket contains a byte of its meme. Behaviour: test_docket_log.py."""

import asyncio
import hashlib
import random
import sqlite3

import pytest

from court.errors import Unavailable
from court.events import ModelCall, PrecedentsCited, RawReply, ReviewOutcome, Role, TextRead, VerdictGiven
from court.verdict import Label
from serving.docket.open import Docket
from serving.docket.ports import RequestName, TrialErased
from tests.support.dockets import NOON, append_all, events_of, review_trial, with_docket
from tests.support.fakes import a_picture
from tests.support.sizes import FULL

MEMES = 100 if FULL else 12


class Marked:
    """A trial of a meme whose every field is unique, so that traces of it can be found anywhere."""

    def __init__(self, number, chance):
        self.trial_id = f"t{number}"
        self.precedent = f"from t{number}"
        kinds = ("text", "post", "request", "saying", "look", "key", "reply")
        words = [f"{word}{chance.getrandbits(48):012x}" for word in kinds]
        self.text, self.post, self.request, self.saying, self.look, self.key, self.reply = words
        self.pixels = hashlib.sha256(self.text.encode()).hexdigest()
        self.bytes = hashlib.sha256(self.pixels.encode()).hexdigest()
        self.png = f"pixels of {self.text}".encode()
        self.padding = "".join(chance.choices("abcdefgh ", k=chance.choice([0, 300, 5000, 30_000])))

    def traces(self):
        """Returns every byte sequence of the meme that a file might still contain."""
        strings = [self.text, self.post, self.request, self.saying, self.reply]
        occurrences = [*strings, self.look, self.key, self.pixels, self.bytes]
        return [*(one.encode() for one in occurrences), bytes.fromhex(self.pixels), bytes.fromhex(self.bytes)]

    def events(self):
        whole = events_of(self.trial_id)
        opened = whole[0]
        meme = opened.meme.model_copy(
            update={"pixels_sha256": self.pixels, "bytes_sha256": self.bytes, "content_id": self.post}
        )
        whole[0] = opened.model_copy(update={"meme": meme, "request_id": self.request})
        for place, event in enumerate(whole):
            if isinstance(event, TextRead):
                whole[place] = event.model_copy(update={"text": f"{self.padding}{self.text}"})
            if isinstance(event, VerdictGiven):
                verdict = event.verdict.model_copy(update={"rationale": f"{self.saying}{self.padding}"})
                whole[place] = event.model_copy(update={"verdict": verdict, "call": self.call()})
        return whole

    def call(self):
        """Returns a call whose reply is recorded as it came."""
        reply = RawReply(text=f"{self.padding}{self.reply}")
        figures = {"tokens_in": 1, "tokens_out": 1, "latency_s": 0.1}
        return ModelCall(
            role=Role.JUDGE, model="m", prompt_id="judge/1/judge", prompt_digest="d", replies=(reply,), **figures
        )

    def picture(self):
        picture = a_picture(self.pixels)
        frame = picture.frames[0]
        return type(picture)(
            picture.format, self.bytes, self.pixels, 1, 1, 1, (type(frame)(self.png, frame.width, frame.height, 0),)
        )

    async def keep(self, docket):
        await docket.writer.keep_picture(self.picture())
        await docket.leases.claim(RequestName("n", self.request), payload=self.bytes, trial_id=self.trial_id, owner="A")
        await append_all(docket, self.events())
        await asyncio.gather(
            docket.verdict_keys.put(self.key, self.trial_id),
            docket.fingerprints.put_fingerprint(self.trial_id, self.look.encode()),
        )
        await review_trial(docket, self.trial_id, ReviewOutcome.UPHELD, Label.HARMFUL, reviewer=self.saying)

    async def quoted(self, docket, by):
        """Appends a later trial that is shown this meme as a precedent."""
        whole = events_of(by)
        for place, event in enumerate(whole):
            if isinstance(event, PrecedentsCited):
                shown, *more = event.findings.exhibits
                shown = shown.model_copy(update={"id": self.precedent, "text": self.text})
                findings = event.findings.model_copy(update={"exhibits": (shown, *more)})
                whole[place] = event.model_copy(update={"findings": findings})
        await append_all(docket, whole)


def contents_of(folder):
    """Returns all files below a folder, each as its name and its bytes."""
    return {
        path: str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def occurrences(folder, traces):
    files = contents_of(folder)
    return {trace: [path.name for path, data in files.items() if trace in data] for trace in traces}


@pytest.mark.promise("PR-1", "50 of 100 memes erased: 0 bytes of theirs left")
def test_erased_memes_leave_no_trace_in_any_file(tmp_path):
    chance = random.Random(11)
    memes = [Marked(number, chance) for number in range(MEMES)]
    doomed = chance.sample(memes, MEMES // 2)
    remaining = [meme for meme in memes if meme not in doomed]

    async def scene(docket):
        for meme in memes:  # interleaved with other trials, so that database pages hold parts of several
            await meme.keep(docket)
            await asyncio.gather(*(append_all(docket, events_of(f"{meme.trial_id} {n}")) for n in range(4)))
        for meme in memes:
            await meme.quoted(docket, f"quotes {meme.trial_id}")
        before = [occurrences(tmp_path, meme.traces()) for meme in doomed]
        for meme in doomed:
            await docket.eraser.erase(meme.trial_id, who="Ruth", why="asked for", at=NOON, precedents=[meme.precedent])
        while_open = [occurrences(tmp_path, meme.traces()) for meme in doomed]
        records = [await docket.trials.record(meme.trial_id) for meme in remaining]
        return before, while_open, records, [await docket.trials.frames(meme.pixels) for meme in remaining]

    before, while_open, records, frames = with_docket(tmp_path / "d.sqlite", scene)
    for traces in before:
        hexed = {trace: files for trace, files in traces.items() if len(trace) < 65 and trace.isalnum()}
        assert all(hexed.values()), {trace: "was not there to be found" for trace, files in hexed.items() if not files}
    afterwards = [occurrences(tmp_path, meme.traces()) for meme in doomed]
    for traces in (*while_open, *afterwards):
        assert not any(traces.values()), {trace: files for trace, files in traces.items() if files}
    assert all(
        meme.reply in record.last(VerdictGiven).call.replies[0].text
        for record, meme in zip(records, remaining, strict=True)
    )
    assert [record.text.text for record in records] == [f"{meme.padding}{meme.text}" for meme in remaining]
    assert frames == [[meme.png] for meme in remaining]


def test_erasure_is_reported_unfinished_while_a_reader_holds_the_database_open(tmp_path, monkeypatch):
    monkeypatch.setattr("serving.docket.store.erasure._READERS_S", 0.2)
    meme = Marked(1, random.Random(12))

    async def scene(docket):
        await meme.keep(docket)
        reader = sqlite3.connect(tmp_path / "d.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchone()
        with pytest.raises(Unavailable) as unfinished:
            await docket.eraser.erase(meme.trial_id, who="Ruth", why="asked for", at=NOON)
        assert unfinished.value.reason == "ERASURE_UNFINISHED"
        assert any(occurrences(tmp_path, meme.traces()).values())
        reader.close()
        await docket.eraser.erase(meme.trial_id, who="Ruth", why="asked for", at=NOON)
        assert not any(occurrences(tmp_path, meme.traces()).values())
        return [entry for entry in await docket.log.entries(0, 99) if entry.kind == "Erased"]

    assert len(with_docket(tmp_path / "d.sqlite", scene, patience=0.2)) == 1


def test_picture_survives_for_a_trial_opened_while_its_last_other_trial_is_erased(tmp_path):
    first, second = Marked(1, random.Random(1)), Marked(1, random.Random(1))
    second.trial_id = "t2"

    async def scene(docket):
        await docket.writer.keep_picture(first.picture())
        await append_all(docket, first.events())
        forget, loop = docket.pictures.forget_now, asyncio.get_running_loop()

        def meanwhile(pixels):
            wait = asyncio.run_coroutine_threadsafe
            wait(docket.writer.keep_picture(second.picture()), loop).result()  # finds the picture still stored
            forget(pixels)
            wait(append_all(docket, second.events()), loop).result()

        docket.pictures.forget_now = meanwhile
        await docket.eraser.erase("t1", who="ada", why="asked to", at=NOON)
        return await docket.trials.frames(second.pixels)

    assert with_docket(tmp_path / "docket.sqlite", scene) == [second.png]


@pytest.mark.parametrize("again", ["when retried", "at the next erasure", "at the next start"])
def test_picture_that_cannot_be_removed_now_is_removed_later(tmp_path, again):
    meme, other = Marked(1, random.Random(13)), Marked(2, random.Random(14))
    pictures, away = tmp_path / "d.sqlite-pictures", tmp_path / "away"

    async def scene(docket: Docket):
        await meme.keep(docket)
        await other.keep(docket)
        pictures.rename(away)
        with pytest.raises(Unavailable) as unfinished:
            await docket.eraser.erase(meme.trial_id, who="Ruth", why="asked for", at=NOON, precedents=["p"])
        assert unfinished.value.reason == "ERASURE_UNFINISHED"
        with pytest.raises(TrialErased):
            await docket.trials.record(meme.trial_id)
        await docket.log.sign()  # a docket whose pictures are unavailable still works
        away.rename(pictures)
        assert await docket.trials.frames(meme.pixels)
        if again == "when retried":
            await docket.eraser.erase(meme.trial_id, who="Ruth", why="asked for", at=NOON, precedents=["p"])
        if again == "at the next erasure":
            await docket.eraser.erase(other.trial_id, who="Ruth", why="asked for", at=NOON)

    with_docket(tmp_path / "d.sqlite", scene)
    if again == "at the next start":
        pictures.rename(away)
        pictures.touch()  # a file in place of the picture folder
        with pytest.raises(Unavailable):
            Docket.open(tmp_path / "d.sqlite")
        pictures.unlink()
        away.rename(pictures)

    async def after(docket):
        assert await docket.trials.frames(meme.pixels) == []
        return [entry for entry in await docket.log.entries(0, 99) if entry.kind == "Erased"]

    assert len(with_docket(tmp_path / "d.sqlite", after)) == 1 + (again == "at the next erasure")
    assert not any(occurrences(tmp_path, meme.traces()).values())


def test_picture_due_for_removal_stays_for_a_trial_opened_since(tmp_path):
    first, second = Marked(1, random.Random(1)), Marked(1, random.Random(1))
    second.trial_id = "t2"
    pictures, away = tmp_path / "d.sqlite-pictures", tmp_path / "away"

    async def scene(docket):
        await first.keep(docket)
        pictures.rename(away)
        with pytest.raises(Unavailable):
            await docket.eraser.erase("t1", who="ada", why="asked to", at=NOON)
        away.rename(pictures)
        await append_all(docket, second.events())
        await docket.writer.keep_picture(second.picture())

    async def after(docket):
        frames = await docket.trials.frames(second.pixels)
        await docket.eraser.erase("t2", who="ada", why="asked to", at=NOON)
        return frames, await docket.trials.frames(second.pixels)

    with_docket(tmp_path / "d.sqlite", scene)
    assert with_docket(tmp_path / "d.sqlite", after) == ([second.png], [])
