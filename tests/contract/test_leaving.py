"""RE-5 and RE-7: callers that leave free their resources within a bound, and nothing grows with the requests."""

import asyncio
import gc
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from court.backends.chat.client import ChatCompletions, http_client
from court.backends.chat.scripted import ScriptedModel
from court.backends.chat.wire import Capabilities
from court.record import TrialState
from court.roles import RoleModel, RoleModels
from court.trial import Court
from eval.standin.faults import Faults
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings as StandInSettings
from memecourt.client import judge_request
from memecourt.v1 import court_pb2 as wire
from tests.support.cast import Cast, PictureFinder, full_court
from tests.support.dockets import open_trials
from tests.support.fakes import FakeReader, H, findings
from tests.support.playing import until
from tests.support.scenes import a_scene
from tests.support.sizes import FULL

CANCELS = 200 if FULL else 30
TICK_S = 0.01


class TickingModelServer(FakeModelServer):
    """A model server that never answers, and measures by its own clock how long calls outlive their callers.

    The clock counts iterations of the event loop that all parts of the test share: a busy machine slows the clock down
    and so makes nothing late.
    """

    def __init__(self):
        super().__init__(StandInSettings())
        self.faults = Faults(["hang"])
        self.ticks = 0
        self.there = {}
        self.gone = []

    async def tick(self):
        while True:
            await asyncio.sleep(TICK_S)
            self.ticks += 1

    async def _completions(self, request):
        self.there[id(request)] = self.ticks
        try:
            return await super()._completions(request)
        finally:
            del self.there[id(request)]
            self.gone.append(self.ticks)


@pytest.mark.promise("RE-5", "200 callers leave: each model call gone within 1 s")
async def test_abandoned_model_calls_end_within_a_second_of_the_server_s_clock(tmp_path):
    random_ = random.Random(23)

    server = TickingModelServer()
    ticking = asyncio.create_task(server.tick())
    stayed = []
    async with serving(server) as port, http_client() as http:
        model = ChatCompletions(base_url=f"http://127.0.0.1:{port}/v1", model="stand-in", http=http)
        model.capabilities = Capabilities()
        role_model = RoleModel(model)
        court = Court(
            finder=PictureFinder(findings([H] * 5)),
            text_reader=FakeReader("as read"),
            software="test",
            role_models=RoleModels(role_model, role_model, role_model, role_model),
        )
        async with a_scene(tmp_path, court=court, concurrent_trials=CANCELS) as it:

            async def leave(number):
                request = judge_request(b"picture %d" % number, procedure=wire.PROCEDURE_FULL)
                return it.stub.Judge(request, timeout=300)

            for first in range(0, CANCELS, 10):
                calls = [await leave(number) for number in range(first, first + 10)]
                await until(lambda: len(server.there) >= 10)
                await asyncio.sleep(random_.uniform(0, 0.05))
                left_at, before = server.ticks, len(server.gone)
                for call in calls:
                    call.cancel()
                await until(lambda: not server.there)
                stayed += [tick - left_at for tick in server.gone[before:]]
            await it.service.empty(120)
            lines = await it.docket.index.list(limit=CANCELS + 1)
            open_now = await open_trials(it.docket)
    ticking.cancel()
    stats, still_open = server.stats, open_now
    assert len(stayed) >= CANCELS and max(stayed) * TICK_S <= 1, Counter(stayed)
    assert stats.disconnects == stats.calls >= CANCELS
    assert not still_open and {line.state for line in lines} == {TrialState.FAILED} and len(lines) == CANCELS


def open_files():
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.slow
async def test_tasks_and_handles_do_not_grow_with_requests(tmp_path):
    """Counts what answered, reused, refused, cancelled and failed requests leave behind."""
    rounds, each = (12, 200) if FULL else (4, 40)
    random_ = random.Random(29)
    cast = Cast(rounds=2, delay_s=0.002)
    usual = cast._speaker("proposer")

    def speak(request):
        return "garbage" if random_.random() < 0.3 else usual(request)

    cast.models["proposer"] = ScriptedModel(speak, name="proposer-model", delay_s=0.002)

    async def ask(it, number):
        kind = number % 5
        fields = {} if kind == 0 else {"procedure": wire.PROCEDURE_FULL if kind in (1, 2) else wire.PROCEDURE_SUMMARY}
        text = "x" * 20_000 if kind == 3 else f"text {number // 7}"
        request = judge_request(b"picture %d" % (number - number % 2), text=text, **fields)
        call = it.stub.Judge(request, timeout=120)
        if kind == 2:
            await asyncio.sleep(random_.uniform(0, 0.05))
            call.cancel()
        with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            await call
        return (await call.code()).name

    async with a_scene(tmp_path, court=full_court(cast), reuse="namespace", concurrent_trials=16) as it:
        codes, counts, in_flight = Counter(), [], it.reception._in_flight

        def tasks():
            return Counter(task.get_coro().__qualname__ for task in asyncio.all_tasks())

        for round_ in range(rounds):
            asking = (ask(it, round_ * each + number) for number in range(each))
            codes.update(await asyncio.gather(*asking))
            await it.service.empty(120)
            await until(lambda: not it.reception.admission.running + it.reception.admission.waiting)
            await asyncio.sleep(0.3)
            await until(lambda: not (in_flight._flights or in_flight._leading or it.reception.decoders._decoding))
            await until(lambda: not in_flight.unstored)
            if round_ > 1:  # some end after their callers have left, but all end
                with suppress(TimeoutError):
                    await until(lambda: not tasks() - counts[1][0], 60)
                assert not tasks() - counts[1][0]
            gc.collect()
            counts.append((tasks(), open_files()))
    assert {"OK", "CANCELLED", "INVALID_ARGUMENT", "ABORTED"} <= set(codes), codes
    handles = [count for _, count in counts]
    # Threads that read the docket reach their number gradually, each with its own connection; a file left open by one
    # request in eight would show.
    assert handles[-1] <= handles[1] + 10, handles
