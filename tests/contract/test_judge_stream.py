"""JudgeStream over a real channel: every request has exactly one response, whatever happens."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2

from court.errors import BadLibrary
from memecourt.client import AsyncClient
from memecourt.v1 import court_pb2 as wire
from memecourt.v1.court_pb2_grpc import CourtStub
from serving.rpc.calls import Method, finish_call
from serving.rpc.flow_control import ReceiveBudget
from serving.rpc.health import COURT
from serving.rpc.judge import _OpenStream
from serving.rpc.server import Methods, make_server
from tests.support.fakes import FakeReader
from tests.support.leftovers import collect_earlier_garbage, soon, without_garbage_collector
from tests.support.playing import until
from tests.support.scenes import IMAGE, a_scene, play, remaining_responses
from tests.support.service_calls import Refusal, refusal_of


def item(request_id, *, text="some text", image=IMAGE, timeout=None, **fields):
    request = wire.JudgeRequest(request_id=request_id, image=image, text=text, **fields)
    message = wire.JudgeStreamRequest(request=request)
    if timeout is not None:
        message.timeout.FromMilliseconds(round(timeout * 1000))
    return message


def item_without_text(request_id, **fields):
    """Returns a request whose trial waits for the text to be read."""
    message = item(request_id, **fields)
    message.request.ClearField("text")
    return message


async def read_responses(call, count):
    return [await call.read() for _ in range(count)]


async def test_every_request_has_exactly_one_response(tmp_path):
    """Sends valid, invalid, repeated and conflicting requests, in any order."""
    good = [item(f"good-{n}", text=f"text {n}", client_token=b"%d" % n) for n in range(20)]
    bad = {
        "too long": item("too long", text="x" * 20_000),
        "no procedure": item("no procedure", procedure=99),
        "not loaded": item("not loaded", procedure=wire.PROCEDURE_FULL),
        "pinned": item("pinned", pins=wire.Pins(library="sha256:another")),
        "no time": item("no time", timeout=0),
        "": wire.JudgeStreamRequest(),
    }
    again, other = good[3:6], [item("good-7", text="another text")]
    items = good[10:] + list(bad.values()) + again + good[:10] + other
    async with a_scene(tmp_path, concurrent_trials=4) as it:
        responses = await remaining_responses(it.stub.JudgeStream(iter(items), timeout=60))
    assert Counter(r.request_id for r in responses) == Counter(i.request.request_id for i in items)
    verdicts = [r for r in responses if r.HasField("verdict")]
    failures = {r.request_id: r.failure for r in responses if r.HasField("failure")}
    assert len(verdicts) == len(good) + len(again)
    for response in verdicts:
        assert response.verdict.request_id == response.request_id
        number = response.request_id.removeprefix("good-")
        assert response.verdict.text.text == f"text {number}"
    ids = {(r.request_id, r.verdict.verdict_id) for r in verdicts}
    assert len(ids) == len(good)  # a repeated request gets the same verdict
    taken = failures.pop("good-7")
    assert (taken.code, taken.reason, taken.field) == (code_pb2.ALREADY_EXISTS, "REQUEST_ID_TAKEN", "request_id")
    assert {name: (failure.code, failure.field) for name, failure in failures.items()} == {
        "too long": (code_pb2.INVALID_ARGUMENT, "text"),
        "no procedure": (code_pb2.INVALID_ARGUMENT, "procedure"),
        "not loaded": (code_pb2.FAILED_PRECONDITION, "procedure"),
        "pinned": (code_pb2.FAILED_PRECONDITION, "pins.library"),
        "no time": (code_pb2.INVALID_ARGUMENT, "timeout"),
        "": (code_pb2.INVALID_ARGUMENT, "request_id"),
    }
    assert all(failure.message and not failure.HasField("retry_delay") for failure in failures.values())


async def test_a_failed_trial_is_a_failure_with_its_id_and_ends_nothing_else(tmp_path):
    async with a_scene(tmp_path, found=BadLibrary("Broken.")) as it:
        responses = await remaining_responses(it.stub.JudgeStream(iter([item("a"), item("", text="x")]), timeout=60))
        responses, (line,) = responses, await it.docket.index.list(limit=9)
    failure = next(r.failure for r in responses if r.request_id == "a")
    assert (failure.code, failure.reason) == (code_pb2.FAILED_PRECONDITION, "BAD_LIBRARY")
    assert failure.trial_id == line.trial_id
    assert len(responses) == 2


async def test_a_ready_answer_overtakes_earlier_requests(tmp_path):
    reader = FakeReader("as read")
    async with a_scene(tmp_path, reader=reader) as it:
        reader.wait = asyncio.Event()
        call = it.stub.JudgeStream(timeout=60)
        await call.write(item_without_text("slow"))
        await reader.asked.wait()
        await call.write(item("quick"))
        first = await call.read()
        reader.wait.set()
        second = await call.read()
        await call.done_writing()
        assert ([first.request_id, second.request_id], await call.read()) == (["quick", "slow"], grpc.aio.EOF)


@pytest.mark.slow
async def test_a_full_stream_is_throttled_and_never_refused(tmp_path):
    items = [item(f"r{n}", text=f"text {n}") for n in range(60)]
    async with a_scene(tmp_path, concurrent_trials=2, waiting_trials=0) as it:
        responses = await remaining_responses(it.stub.JudgeStream(iter(items), timeout=60))
    assert {r.request_id for r in responses if r.HasField("verdict")} == {f"r{n}" for n in range(60)}


@pytest.mark.slow
async def test_a_slow_reader_slows_down_its_requests(tmp_path):
    """Responses that are not taken hold up the requests; all are answered once they are taken."""
    count = 90
    items = [item(f"r{n}", text=f"{n} ".ljust(9000, "x")) for n in range(count)]
    async with a_scene(tmp_path, concurrent_trials=4) as it:
        # A caller with the smallest possible receive window.
        narrow = it.another_channel(("grpc.http2.bdp_probe", 0))
        call = CourtStub(narrow).JudgeStream(timeout=60)

        async def send():
            for each in items:
                await call.write(each)
            await call.done_writing()

        sending = asyncio.create_task(send())
        before, opened = -1, 0
        while opened < 4 or opened != before:  # until progress stops
            before = opened
            await asyncio.sleep(0.5)
            opened = len(await it.docket.index.list(limit=count))
        bytes_in_use, unsent = it.service.memory.bytes_in_use, not sending.done()
        responses = await remaining_responses(call)
        await sending
        await narrow.close()
    assert 4 <= opened < count / 2 and unsent
    assert bytes_in_use < 4 * 40_000 + 20 * 2**20  # four requests and a buffer for the next
    assert {r.request_id for r in responses if r.HasField("verdict")} == {f"r{n}" for n in range(count)}
    assert len(responses) == count


async def test_answers_that_are_not_taken_use_little_memory(tmp_path):
    image, count = b"x" * 2**20, 60
    items = [item(f"r{n}", text=f"{n} ".ljust(9000, "x"), image=image) for n in range(count)]
    async with a_scene(tmp_path, concurrent_trials=4) as it:
        narrow = it.another_channel(("grpc.http2.bdp_probe", 0))
        call = CourtStub(narrow).JudgeStream(iter(items), timeout=120)
        before, opened = -1, 0
        async with asyncio.timeout(60):
            # Until progress stops and the four waiting answers have released their pictures.
            while opened < 4 or opened != before or it.service.memory.bytes_in_use >= 4 * 100_000:
                before = opened
                await asyncio.sleep(1)
                opened = len(await it.docket.index.list(limit=count))
        responses = await remaining_responses(call)
        await narrow.close()
    assert opened < count
    assert {r.request_id for r in responses if r.HasField("verdict")} == {f"r{n}" for n in range(count)}


async def test_a_stream_ends_if_its_answers_are_not_taken(tmp_path):
    items = [item(f"r{n}", text=f"{n} ".ljust(9000, "x")) for n in range(60)]
    async with a_scene(tmp_path, concurrent_trials=4, idle=1.0) as it:
        # With threads: grpc.aio loses the final status if it arrives during a write.
        with grpc.insecure_channel(it.address, options=[("grpc.http2.bdp_probe", 0)]) as channel:
            call = CourtStub(channel).JudgeStream(iter(items), timeout=60)
            await until(lambda: it.service.memory.bytes_in_use)
            await it.service.empty(60)  # the court has finished the call and freed everything
            bytes_in_use = it.service.memory.bytes_in_use
            bytes_in_use, responses, refusal = bytes_in_use, *await asyncio.to_thread(_end_of, call)
    assert bytes_in_use == 0
    assert 0 < len(responses) < 60 and all(r.HasField("verdict") for r in responses)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT and refusal.info.reason == "IDLE"


async def test_a_stream_gets_the_reason_if_its_first_answer_is_not_taken(tmp_path):
    async def work(it):
        # With threads: see above. The answer is larger than this caller's receive window.
        narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1000)]
        with grpc.insecure_channel(it.address, options=narrow) as channel:
            call = CourtStub(channel).JudgeStream(iter([item("r", text="x" * 9000)]), timeout=60)
            await until(lambda: it.service.memory.bytes_in_use)
            await it.service.empty(60)
            return await asyncio.to_thread(_end_of, call)

    async with a_scene(tmp_path, idle=1.0) as it:
        with without_garbage_collector(_OpenStream) as left:
            responses, refusal, left = *await work(it), await soon(left)
    assert left == []
    assert [r.request_id for r in responses] == ["r"]  # the library had received it already
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT and refusal.info.reason == "IDLE"


def _end_of(call):
    responses = []
    with pytest.raises(grpc.RpcError) as caught:
        for response in call:
            responses.append(response)
    return responses, Refusal(caught.value)


async def test_each_request_has_its_own_timeout(tmp_path):
    reader = FakeReader("never")
    async with a_scene(tmp_path, reader=reader) as it:
        reader.wait = asyncio.Event()
        call = it.stub.JudgeStream(timeout=60)
        await call.write(item_without_text("short", timeout=0.3))
        await call.write(item("quick", timeout=15))
        responses = await read_responses(call, 2)
        await call.done_writing()
        end = await call.read()
    outcomes = {r.request_id: r.failure.code if r.HasField("failure") else None for r in responses}
    assert outcomes == {"quick": None, "short": code_pb2.DEADLINE_EXCEEDED}
    assert end is grpc.aio.EOF


async def test_a_malformed_request_ends_the_stream_after_pending_answers(tmp_path):
    async with a_scene(tmp_path) as it:
        call = it.channel.stream_stream(f"/{COURT}/JudgeStream")(timeout=60)
        await call.write(item("a").SerializeToString())
        await call.write(b"\xff\xff no message")
        await call.write(item("never read").SerializeToString())
        responses = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while (data := await call.read()) is not grpc.aio.EOF:
                responses.append(wire.JudgeStreamResponse.FromString(data))
        refusal = Refusal(caught.value)
    assert [(r.request_id, r.HasField("verdict")) for r in responses] == [("a", True)]
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT and refusal.info.reason == "MALFORMED_REQUEST"


async def test_a_silent_stream_times_out_unless_it_waits_for_an_answer(tmp_path):
    reader = FakeReader("as read")

    # Longer than a busy machine needs to deliver the first request.
    async with a_scene(tmp_path, reader=reader, idle=1.5) as it:
        reader.wait = asyncio.Event()
        waiting = it.stub.JudgeStream(timeout=120)
        await waiting.write(item_without_text("slow"))
        await until(reader.asked.is_set)
        silent = it.stub.JudgeStream(timeout=120)
        with pytest.raises(grpc.aio.AioRpcError) as first:
            await silent.read()
        await asyncio.sleep(0.5)  # longer than the server's idle timeout since its request
        still_open = not waiting.done()
        reader.wait.set()
        response = await waiting.read()
        with pytest.raises(grpc.aio.AioRpcError) as second:
            await waiting.read()  # no answer is pending any more
        still_open, response, *refusals = still_open, response, Refusal(first.value), Refusal(second.value)
    assert still_open and response.HasField("verdict")
    for refusal in refusals:
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT and refusal.info.reason == "IDLE"


async def test_a_caller_that_leaves_ends_the_trials_of_its_stream(tmp_path):
    reader = FakeReader("never")
    async with a_scene(tmp_path, reader=reader, concurrent_trials=3) as it:
        reader.wait = asyncio.Event()
        call = it.stub.JudgeStream(timeout=60)
        for number in range(10):
            await call.write(item_without_text(f"r{number}", image=b"%d" % number))
        await reader.asked.wait()
        call.cancel()
        await it.service.empty(60)
        states = [line.state.value for line in await it.docket.index.list(limit=99)]
    assert states and set(states) == {"FAILED"}  # the scene checks that memory and slots are free again


async def test_closing_the_court_answers_running_and_refuses_waiting_requests(tmp_path):
    reader = FakeReader("as read")
    async with a_scene(tmp_path, reader=reader, concurrent_trials=2) as it:
        reader.wait = asyncio.Event()
        other = it.stub.Judge(item_without_text("holds the other place", image=b"other").request, timeout=60)
        await reader.asked.wait()
        call = it.stub.JudgeStream(timeout=60)
        await call.write(item_without_text("runs"))
        await until(lambda: it.reception.admission.running == 2)
        await call.write(item("waits"))
        await until(lambda: it.reception.admission.waiting)
        it.service.close()
        refused = await call.read()
        reader.wait.set()
        responses = [refused, await call.read()]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        await other
        (waits, runs), end = responses, Refusal(caught.value)
    assert (waits.request_id, waits.failure.code, waits.failure.reason) == ("waits", code_pb2.UNAVAILABLE, "CLOSING")
    assert waits.failure.retry_delay.ToMilliseconds() > 0
    assert runs.request_id == "runs" and runs.HasField("verdict")
    assert end.code is grpc.StatusCode.UNAVAILABLE and end.of(error_details_pb2.RetryInfo)


def test_a_stream_starts_with_the_number_of_concurrent_requests(tmp_path):
    async def work(it):
        call = it.stub.JudgeStream(timeout=60)
        metadata = dict(await call.initial_metadata())  # before the caller sends anything
        await call.done_writing()
        return metadata

    assert play(work, tmp_path, text_workers=3)["memecourt-at-once"] == "12"
    assert play(work, tmp_path, text_workers=3, concurrent_trials=5)["memecourt-at-once"] == "5"
    assert play(work, tmp_path, text_workers=3, procedure="FULL")["memecourt-at-once"] == "32"


async def test_an_overlong_id_is_truncated_in_the_response(tmp_path):
    async with a_scene(tmp_path) as it:
        (response,) = await remaining_responses(it.stub.JudgeStream(iter([item("x" * 1_000_000)]), timeout=60))
    assert (response.failure.reason, response.failure.field) == ("FIELD_TOO_LONG", "request_id")
    assert response.request_id == "x" * 128


async def test_a_caller_that_vanishes_during_answers_causes_no_error(tmp_path, caplog):
    """The caller takes no answers, so that some wait to be sent; then its connection closes."""
    text = "x" * 9000
    ended = []
    async with a_scene(tmp_path, reuse="namespace") as it:
        judge_stream = it.service._judge_stream

        async def recording(context):
            try:
                await judge_stream(context)
            except BaseException as error:
                ended.append(error)
                raise

        it.service._judge_stream = recording
        for number in range(5):
            async with grpc.aio.insecure_channel(
                it.address, options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                call = CourtStub(channel).JudgeStream()

                async def feed(call=call, number=number):
                    for each in range(1000):
                        await call.write(item(f"{number}-{each}", text=text))

                feeding = asyncio.create_task(feed())
                await call.read()
                await asyncio.sleep(0.5)  # more arrives than is taken
                feeding.cancel()
                call.cancel()
            await until(lambda number=number: len(ended) > number)
    assert "request failed" not in caplog.text
    assert len(ended) == 5


def test_send_errors_after_a_disconnect_cancel_but_real_errors_are_logged(caplog):
    class Context:
        async def abort(self, *arguments):
            raise grpc.aio.AbortError(*arguments)

    async def finish_with(error):
        async def answer():
            raise error

        return await finish_call(Context(), answer())

    collect_earlier_garbage(caplog)
    gone = grpc.aio.InternalError("Failed to send")
    for error in (gone, ExceptionGroup("", [gone, ExceptionGroup("", [gone])])):
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(finish_with(error))
    assert not caplog.records
    for error in (ValueError(), ExceptionGroup("", [gone, ValueError()])):
        with pytest.raises(grpc.aio.AbortError):
            asyncio.run(finish_with(error))
        assert "request failed" in caplog.text
        caplog.clear()


COUNT = 40
NARROW = [("grpc.http2.bdp_probe", 0)]
"""Options of a caller with the smallest possible receive window."""


class LargeExport:
    """Exports many large trials. ``ended`` is set when the service has finished a call."""

    def __init__(self, idle_s):
        self.ended = asyncio.Event()
        self.memory = ReceiveBudget(2**28, idle_s)
        self.calls = 0

    async def export(self, request, context):
        self.calls += 1
        try:
            for number in range(COUNT):
                trial = wire.Trial(summary=wire.TrialSummary(trial_id=f"t{number}"))
                trial.events.add(json="x" * 100_000)
                yield wire.ExportTrialsResponse(trial=trial)
        finally:
            self.ended.set()

    def handler(self):
        method = Method(wire.ExportTrialsRequest, self.export, self.memory).handler()
        return grpc.method_handlers_generic_handler("memecourt.v1.Docket", {"ExportTrials": method})


@asynccontextmanager
async def serving(idle_s):
    service = LargeExport(idle_s)
    server, _ = await make_server(Methods(service))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield service, address
    finally:
        await server.stop(0)


async def test_an_unread_stream_ends_and_frees_its_slot(monkeypatch):
    monkeypatch.setattr("serving.rpc.calls._MOST_STREAMS", 1)
    async with serving(0.5) as (service, address), grpc.aio.insecure_channel(address, options=NARROW) as channel:
        export = channel.unary_stream("/memecourt.v1.Docket/ExportTrials")
        stuck = export(b"")
        async with asyncio.timeout(60):
            await service.ended.wait()
        bytes_in_use = service.memory.bytes_in_use
        async with AsyncClient(address, options=[("grpc.use_local_subchannel_pool", 1)]) as other:
            found = [trial.summary.trial_id async for trial in other.export()]
        refusal = await refusal_of(drain(stuck))
    assert bytes_in_use == 0 and found == [f"t{number}" for number in range(COUNT)]
    assert refusal.summary == ("INVALID_ARGUMENT", "IDLE", "")


async def drain(call):
    async for _ in call:
        pass


async def test_a_slow_client_receives_each_trial_once():
    async with serving(0.5) as (service, address), AsyncClient(address, options=NARROW) as client:
        trials = client.export()
        found = [(await anext(trials)).summary.trial_id]
        async with asyncio.timeout(60):
            await service.ended.wait()
        found += [trial.summary.trial_id async for trial in trials]
        calls = service.calls
    assert found == [f"t{number}" for number in range(COUNT)]
    assert calls >= 2  # on a busy machine it may be slow once more
