"""Helpers of tests of reception."""

import asyncio
import hashlib
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from court.meme import Frame, Picture, PictureFormat
from court.trial import Court
from retrieval.library.postgres.address import Address
from serving.docket.open import Docket
from serving.judging.executor import TrialExecutor
from serving.judging.heartbeat import Heartbeat
from serving.judging.judge import TrialRunner
from serving.judging.request import SingleFlight, TrialRequest, uncounted
from serving.settings import Settings
from serving.telemetry import SILENT
from tests.support.fakes import LIBRARY, FakeFinder, FakeReader, H, findings, ticking_clock
from tests.support.gates import FakeAdmission


class Pictures:
    """A fake picture reader for "pixels|file": all files with the same pixels show the same picture."""

    def __init__(self):
        self.started = []
        self.errors = {}
        self.gate = None

    @property
    def decoded(self):
        return len(self.started)

    async def read(self, data):
        self.started.append(data)
        if self.gate is not None:
            await self.gate.wait()
        if data in self.errors:
            raise self.errors[data]
        pixels = hashlib.sha256(data.partition(b"|")[0]).hexdigest()
        return Picture(
            format=PictureFormat.PNG,
            bytes_sha256=hashlib.sha256(data).hexdigest(),
            pixels_sha256=pixels,
            width=4,
            height=3,
            frame_count=1,
            frames=(Frame(png=PNG + data, width=4, height=3),),
        )


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x04\0\0\0\x03"  # as much of a PNG as the docket reads of a frame


class Finder(FakeFinder):
    """Returns the configured findings once the gate is open; counts how many searches have ended."""

    def __init__(self, result=None, library=LIBRARY):
        super().__init__(findings([H] * 5) if result is None else result)
        self.library = library
        self.gate = None
        self.searching = asyncio.Event()
        self.ended = 0

    async def find(self, **query):
        self.searching.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
            return await super().find(**query)
        finally:
            self.ended += 1


class Town:
    """A docket, and servers that share it."""

    def __init__(self, path, home=None, **settings):
        self.path = path
        self.home = home or path.parent
        self.settings = Settings(home=self.home, **settings)
        self.finder = Finder()
        self.reader = FakeReader("text on the picture")
        self.pictures = Pictures()
        self.software = "test"
        self.opened = []
        self.waiting = 0
        """Callers that wait for a shared trial or picture."""

    def docket(self):
        """A docket for several servers; the fixture closes it."""
        self.opened.append(Docket.open(self.path))
        return self.opened[-1]

    @asynccontextmanager
    async def server(self, *, name="here", docket=None, beat_s=0.05, dead_s=0.4, **changes):
        own = docket is None
        docket = docket or Docket.open(self.path)
        clock = ticking_clock()
        forget_s, memory = changes.pop("forget_s", 60), changes.pop("memory", uncounted)
        telemetry = changes.pop("telemetry", SILENT)
        court = Court(
            finder=changes.pop("finder", self.finder),
            text_reader=self.reader,
            software=self.software,
            now=lambda: next(clock),
            **changes,
        )
        executor = TrialExecutor(court, self.pictures, docket)
        heartbeat = Heartbeat(docket.heartbeats, name, beat_s=beat_s, dead_s=dead_s, forget_s=forget_s)
        try:
            async with TrialRunner(
                executor, self.settings, telemetry, heartbeat=heartbeat, admission=FakeAdmission(), memory=memory
            ) as runner:
                runner.executor = executor
                yield runner
        finally:
            if own:
                await docket.close()


@pytest.fixture
def town(request, tmp_path, monkeypatch):
    """A town that counts callers that wait for a shared trial; its docket may be in PostgreSQL."""
    place = (tmp_path / "docket.sqlite",)
    if getattr(request, "param", "") == "postgres":
        place = (Address(request.getfixturevalue("docket_database")), tmp_path)
    monkeypatch.delenv("MEMECOURT_CONFIG", raising=False)
    # A busy machine needs longer to record that a trial ended by its deadline.
    monkeypatch.setattr("serving.judging.request._TO_END_S", 30.0)
    made, result = Town(*place), SingleFlight.result

    async def counted(shared):
        made.waiting += 1
        try:
            return await result(shared)
        finally:
            made.waiting -= 1

    monkeypatch.setattr(SingleFlight, "result", counted)
    yield made
    for docket in made.opened:
        asyncio.run(docket.close())


each_docket = pytest.mark.parametrize("town", ["sqlite", "postgres"], indirect=True)
"""Tests that depend on the docket, by which servers coordinate."""


ASK = TrialRequest(image=b"pixels|file", text="some text", namespace="us", request_id="r1", content_id="c")


def other(**changes):
    return replace(ASK, **{"request_id": "r2", **changes})


async def trials_in(docket):
    return [line.trial_id for line in await docket.index.list(limit=10_000)]


class Turns:
    """Admission with a fixed number of turns; counts the turns taken."""

    def __init__(self, most=1):
        self.free = asyncio.Semaphore(most)
        self.most = most
        self.taken = 0
        self.second = asyncio.Event()
        self.asked = asyncio.Event()  # set when a caller has to wait for a turn

    @asynccontextmanager
    async def __call__(self):
        if self.free.locked():
            self.asked.set()
        async with self.free:
            self.taken += 1
            if self.taken == 2:
                self.second.set()
            yield

    @property
    def all_free(self):
        return self.free._value == self.most


async def wait_until_idle(runner):
    """Waits until no trial or picture is in progress; abandoned trials still record their end."""
    in_flight = runner._in_flight
    decoding = runner.decoders._decoding
    for shared in [*in_flight._flights.values(), *decoding.values()]:
        await asyncio.wait_for(shared.over(), 60)
    await asyncio.sleep(0)
    assert not (in_flight._flights or in_flight._leading or decoding)
