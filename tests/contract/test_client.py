"""Both clients over a real socket, against a court that does as it is told; and against the real one."""

import asyncio
import itertools
import socket
import struct
import threading
import time
from contextlib import aclosing, closing, contextmanager, suppress

import grpc
import pytest
import trustme

import memecourt.many
from memecourt.client import AsyncClient, CallError, Client, JudgeError, Retries, Tls, judge_request
from memecourt.v1 import court_pb2 as wire
from tests.contract.fake_court import FakeCourt, Refusal, an_address, listening, served
from tests.contract.real_court import IMAGE, real_court

QUICK = Retries(first_s=0.01, most_s=0.05, ready_s=0.5)
Code = grpc.StatusCode


class Threads:
    """The client for threads."""

    @staticmethod
    def call(address, name, *given, _client=None, **options):
        with Client(address, **{"retries": QUICK, **(_client or {})}) as client:
            return getattr(client, name)(*given, **options)

    @staticmethod
    def each(address, name, *given, most=None, _client=None, _found=None, **options):
        found = [] if _found is None else _found
        with Client(address, **{"retries": QUICK, **(_client or {})}) as client:
            with closing(getattr(client, name)(*given, **options)) as items:
                for item in items:
                    found.append(item)
                    if len(found) == most:
                        break
            return found

    @staticmethod
    def closing(address, requests, when, found):
        """Closes the client once ``when`` is set, while it waits for outcomes."""
        with Client(address, retries=QUICK) as client:
            threading.Thread(target=lambda: when.wait(60) and client.close(), daemon=True).start()
            for outcome in client.judge_many(requests, timeout=300):
                found.append(outcome)


class Loop:
    """The client for asyncio."""

    @staticmethod
    def closing(address, requests, when, found):
        async def work():
            async def close():
                await asyncio.to_thread(when.wait, 60)
                await client.close()

            async with AsyncClient(address, retries=QUICK) as client:
                ending = asyncio.ensure_future(close())
                async for outcome in client.judge_many(requests, timeout=300):
                    found.append(outcome)
                await ending

        asyncio.run(asyncio.wait_for(work(), 120))

    @staticmethod
    def call(address, name, *given, _client=None, **options):
        async def work():
            async with AsyncClient(address, **{"retries": QUICK, **(_client or {})}) as client:
                return await getattr(client, name)(*given, **options)

        return asyncio.run(work())

    @staticmethod
    def each(address, name, *given, most=None, _client=None, _found=None, **options):
        async def work():
            found = [] if _found is None else _found
            async with AsyncClient(address, **{"retries": QUICK, **(_client or {})}) as client:
                async with aclosing(getattr(client, name)(*given, **options)) as items:
                    async for item in items:
                        found.append(item)
                        if len(found) == most:
                            break
                return found

        return asyncio.run(work())


@pytest.fixture(params=[Threads, Loop])
def client(request):
    return request.param


def first(refusal, times):
    """Refuses the first calls, then answers."""

    def answer(method, request, number):
        if number <= times:
            raise refusal
        return wire.JudgeResponse(request_id=request.request_id, verdict_id="v")

    return answer


# One call


def test_a_busy_server_is_asked_again_when_it_wants_to_be(client):
    court = FakeCourt(first(Refusal("RESOURCE_EXHAUSTED", after=0.2), 2))
    with served(court) as address:
        response = client.call(address, "judge", b"image", timeout=5)  # gRPC rounds what is longer
    assert response.verdict_id == "v"
    assert court.calls == {"Judge": 3}
    (name,) = {request.request_id for request in court.asked}  # made up once: what is tried is paid once
    assert name == response.request_id
    assert all(after - before >= 0.2 for before, after in zip(court.at, court.at[1:], strict=False))
    assert court.left[0] > court.left[1] > court.left[2] > 0  # one deadline for all attempts


@pytest.mark.parametrize(
    "refusal", [Refusal("UNAVAILABLE", bare=True), Refusal("UNAVAILABLE", after=0.0), Refusal("ABORTED")]
)
def test_what_passes_is_asked_again(client, refusal):
    court = FakeCourt(first(refusal, 1))
    with served(court) as address:
        assert client.call(address, "judge", b"image").verdict_id == "v"
    assert court.calls == {"Judge": 2}


@pytest.mark.parametrize(
    "code",
    ["INVALID_ARGUMENT", "ALREADY_EXISTS", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED",
     "PERMISSION_DENIED", "INTERNAL", "NOT_FOUND", "UNIMPLEMENTED", "DATA_LOSS"],
)  # fmt: skip
def test_what_does_not_pass_is_told_at_once(client, code):
    court = FakeCourt(first(Refusal(code, reason="SO_IT_IS"), 99))
    with served(court) as address, pytest.raises(JudgeError) as told:
        client.call(address, "judge", b"image")
    assert (told.value.code.name, told.value.reason, told.value.message) == (code, "SO_IT_IS", "as told")
    assert court.calls == {"Judge": 1}


def test_nobody_waits_for_what_can_t_come_in_time(client):
    court = FakeCourt(first(Refusal("UNAVAILABLE", after=30), 99))
    with served(court) as address, pytest.raises(JudgeError) as told:
        client.call(address, "judge", b"image", timeout=20)
    assert told.value.retry_after == 30
    assert court.calls == {"Judge": 1}


def test_a_server_that_starts_late_is_found(client):
    court = FakeCourt()
    patient = {"retries": Retries(attempts=100, first_s=0.2, most_s=0.2, spare=100)}
    with starting(court, 0.5) as address:
        assert client.call(address, "judge", b"image", timeout=60, _client=patient).label == wire.LABEL_NOT_HARMFUL
    assert court.calls == {"Judge": 1}


def test_under_overload_repeats_are_a_tenth_at_most():
    """RE-4: what a client asks on top of its calls, while every call is refused."""
    court = FakeCourt(first(Refusal("RESOURCE_EXHAUSTED", after=0.001), 10**9))
    with served(court) as address, Client(address, retries=Retries(first_s=0.001, most_s=0.001)) as client:
        for _ in range(400):
            with pytest.raises(JudgeError):
                client.judge(b"image")
    assert 410 <= court.calls["Judge"] <= 400 * 1.1 + 10


@contextmanager
def starting(court, after_s):
    """The address of a server that can be reached only after so long."""
    with an_address() as address:
        servers = []
        timer = threading.Timer(after_s, lambda: servers.append(listening(court, address)[0]))
        timer.start()
        try:
            yield address
        finally:
            timer.join()
            for server in servers:
                server.stop(0).wait()


def test_a_server_that_is_starting_is_waited_for(client):
    court = FakeCourt()
    with starting(court, 3.0) as address:
        assert client.call(address, "judge", b"image", _client={"retries": Retries()}).verdict_id
    assert court.calls["Judge"] == 1


def test_many_calls_wait_for_a_server_that_is_starting_and_none_is_lost():
    court = FakeCourt()

    async def work(address):
        async with AsyncClient(address) as client:
            return await asyncio.gather(*(client.judge(b"image") for _ in range(50)))

    with starting(court, 3.0) as address:
        assert len(asyncio.run(work(address))) == 50
    assert court.calls["Judge"] == 50


def test_a_server_that_never_comes_is_given_up_after_the_bound(client):
    bound = Retries(first_s=0.01, most_s=0.02, ready_s=0.6)
    with an_address() as address:  # where nobody listens
        began = time.monotonic()
        with pytest.raises(JudgeError) as told:
            client.call(address, "judge", b"image", _client={"retries": bound})
        assert told.value.code is Code.UNAVAILABLE and time.monotonic() - began >= 0.6


def test_token_and_trace_go_with_every_attempt(client):
    court = FakeCourt(first(Refusal("UNAVAILABLE"), 1))
    tokens = iter(["one", "two"])
    given = {"token": lambda: next(tokens), "metadata": lambda: [("traceparent", "00-a-b-01")]}
    with served(court) as address:
        client.call(address, "judge", b"image", _client=given)
    assert [sent["authorization"] for sent in court.metadata] == ["Bearer one", "Bearer two"]
    assert {sent["traceparent"] for sent in court.metadata} == {"00-a-b-01"}


def test_every_field_that_a_request_may_have_gets_there(client):
    about = {
        "text": "", "language": "en", "procedure": wire.PROCEDURE_FULL, "request_id": "r", "namespace": "n",
        "content_id": "c", "policy": wire.PolicyReference(id="p"), "client_token": b"t", "try_anew": True,
        "pins": wire.Pins(library="sha256:0"),
    }  # fmt: skip
    request = judge_request(b"image", **about)
    assert {field.name for field, _ in request.ListFields()} == set(wire.JudgeRequest.DESCRIPTOR.fields_by_name)
    court = FakeCourt()
    with served(court) as address:
        client.call(address, "ask", request)
        client.call(address, "judge", b"image", **about)
    assert court.asked == [request, request]


# The docket and the precedents


@pytest.mark.parametrize(
    ("name", "method", "request_", "answer"),
    [
        ("review", "ReviewVerdict", wire.ReviewVerdictRequest(trial_id="t"), wire.ReviewVerdictResponse()),
        ("add", "AddPrecedent", wire.AddPrecedentRequest(id="p"), wire.AddPrecedentResponse(id="p", change=3)),
        ("remove", "RemovePrecedent", wire.RemovePrecedentRequest(id="p"), wire.RemovePrecedentResponse(change=3)),
        ("relabel", "RelabelPrecedent", wire.RelabelPrecedentRequest(id="p"), wire.RelabelPrecedentResponse(change=3)),
    ],
)
def test_a_change_is_made_again_only_where_the_server_asks_for_it(client, name, method, request_, answer):
    def told(refusal):
        def play(method, request, number):
            if number == 1:
                raise refusal
            return answer

        return FakeCourt(play)

    court = told(Refusal("UNAVAILABLE", bare=True))  # as from a connection that broke: who knows what came of it
    with served(court) as address, pytest.raises(CallError):
        client.call(address, name, request_)
    assert court.calls == {method: 1}
    court = told(Refusal("UNAVAILABLE", after=0.01))
    with served(court) as address:
        made = client.call(address, name, request_)
    assert court.calls == {method: 2}
    assert court.asked == [request_, request_]
    assert made == {"review": wire.TrialSummary(), "add": answer}.get(name, 3)


def test_a_precedent_that_the_client_has_named_is_added_once_whatever_becomes_of_answers(client):
    there = set()

    def play(method, request, number):
        if request.id in there:
            raise Refusal("ALREADY_EXISTS", reason="DUPLICATE_ID")
        there.add(request.id)
        raise Refusal("UNAVAILABLE", bare=True)  # the connection breaks once it is added

    court = FakeCourt(play)
    request = wire.AddPrecedentRequest(text="cat")
    with served(court) as address:
        made = client.call(address, "add", request)
    assert court.calls == {"AddPrecedent": 2}
    assert {made.id} == there and not request.id

    there.clear()
    with served(court) as address, pytest.raises(CallError) as told:
        client.call(address, "add", wire.AddPrecedentRequest(id="mine"))
    assert told.value.code is Code.UNAVAILABLE  # one that is there already may be another's
    with served(court) as address, pytest.raises(CallError) as told:
        client.call(address, "add", wire.AddPrecedentRequest(id="mine"))
    assert told.value.code is Code.ALREADY_EXISTS


def test_what_only_reads_is_asked_again(client):
    answers = {
        "GetTrial": wire.GetTrialResponse(trial=wire.Trial(summary=wire.TrialSummary(trial_id="t"))),
        "SearchPrecedents": wire.SearchPrecedentsResponse(alpha=0.5),
        "GetLibrary": wire.GetLibraryResponse(voters=25),
    }

    def answer(method, request, number):
        if number == 1:
            raise Refusal("UNAVAILABLE", bare=True)
        return answers[method]

    court = FakeCourt(answer)
    with served(court) as address:
        assert client.call(address, "trial", "t") == answers["GetTrial"].trial
        assert client.call(address, "search", wire.SearchPrecedentsRequest(text="x")) == answers["SearchPrecedents"]
        assert client.call(address, "library") == answers["GetLibrary"]
    assert court.calls == dict.fromkeys(answers, 2)


def a_trial(number, second=None):
    trial = wire.Trial(summary=wire.TrialSummary(trial_id=f"t{number}"))
    trial.summary.opened_at.FromSeconds(number if second is None else second)
    return trial


def test_pages_are_turned_until_there_are_no_more(client):
    which = wire.TrialFilter(needs_review=True)
    everything = [a_trial(number).summary for number in range(7)]

    def answer(method, request, number):
        assert (request.filter, request.page_size) == (which, 3)
        start = int(request.page_token or 0)
        more = str(start + 3) if start + 3 < len(everything) else ""
        return wire.ListTrialsResponse(trials=everything[start : start + 3], next_page_token=more)

    court = FakeCourt(answer)
    with served(court) as address:
        assert client.each(address, "trials", which, page_size=3) == everything
        assert court.calls == {"ListTrials": 3}
        assert client.each(address, "trials", which, page_size=3, most=2) == everything[:2]
    assert court.calls == {"ListTrials": 4}  # a page that nobody wants is not fetched


def test_an_export_that_breaks_off_goes_on_and_tells_each_trial_once(client):
    trials = [a_trial(number, second=number // 3) for number in range(10)]  # three at a time were opened at once

    def answer(method, request, number):
        asked = request.filter
        since = asked.opened_from.seconds if asked.HasField("opened_from") else 0
        assert asked.namespace == "forum"
        for told, trial in enumerate(t for t in trials if t.summary.opened_at.seconds >= since):
            if told == 4 and number < 9:
                raise Refusal("UNAVAILABLE", bare=True)
            yield wire.ExportTrialsResponse(trial=trial)

    court = FakeCourt(answer)
    with served(court) as address:
        found = client.each(address, "export", wire.TrialFilter(namespace="forum"))
    assert found == trials
    assert court.calls["ExportTrials"] > 2


def test_watching_goes_on_where_it_broke_off(client):
    def answer(method, request, number):
        assert request.trial_id == "t"
        for seq in range(request.from_seq, 7):
            if seq == 3 * number:
                raise Refusal("UNAVAILABLE", bare=True)
            yield wire.WatchTrialResponse(event=wire.TrialEvent(trial_id="t", seq=seq))

    court = FakeCourt(answer)
    with served(court) as address:
        assert [event.seq for event in client.each(address, "watch", "t")] == list(range(7))
        assert [request.from_seq for request in court.asked] == [0, 3, 6]
        court.calls.clear()
        assert [event.seq for event in client.each(address, "watch", "t", from_seq=5)] == [5, 6]


def test_a_trial_that_can_t_be_watched(client):
    court = FakeCourt(first(Refusal("NOT_FOUND", reason="TRIAL_UNKNOWN"), 99))
    with served(court) as address, pytest.raises(CallError) as told:
        client.each(address, "watch", request_id="r", namespace="n")
    assert (told.value.reason, court.calls["WatchTrial"]) == ("TRIAL_UNKNOWN", 1)
    assert court.asked[0].request == wire.RequestName(namespace="n", request_id="r")


def test_a_verdict_is_asked_for_by_either_id(client):
    court = FakeCourt(lambda method, request, number: wire.GetVerdictResponse(trial_id="t"))
    with served(court) as address:
        assert client.call(address, "verdict", "t").trial_id == "t"
        assert client.call(address, "verdict", request_id="r", namespace="n").trial_id == "t"
        with pytest.raises(ValueError):
            client.call(address, "verdict")
    name = wire.RequestName(namespace="n", request_id="r")
    assert court.asked == [wire.GetVerdictRequest(trial_id="t"), wire.GetVerdictRequest(request=name)]


def test_reviews_go_on_where_they_broke_off_however_often(client):
    def answer(method, request, number):
        first = request.from_entry if request.HasField("from_entry") else 40
        assert request.overruled_only
        yield wire.WatchReviewsResponse(next_entry=first)
        for entry in range(first, 70):
            if entry == 40 + number:
                raise Refusal("UNAVAILABLE", bare=True)
            reviewed = wire.ReviewedVerdict(trial_id=f"t{entry}") if entry % 2 else None
            yield wire.WatchReviewsResponse(next_entry=entry + 1, reviewed=reviewed)

    court = FakeCourt(answer)
    with served(court) as address:
        found = client.each(address, "reviews", overruled_only=True)
    assert [response.reviewed.trial_id for response in found] == [f"t{entry}" for entry in range(41, 70, 2)]
    assert found[-1].next_entry == 70
    assert not court.asked[0].HasField("from_entry")
    assert [request.from_entry for request in court.asked[1:4]] == [41, 42, 43]  # also where no review was between
    assert court.calls["WatchReviews"] == 30


@contextmanager
def resetting(codes):
    """The address of what resets a call with each of these codes in turn, as a proxy does that has had enough."""

    def frame(kind, flags, stream, body=b""):
        return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body

    def reset(connection):
        with connection, suppress(OSError), connection.makefile("rb") as came:
            connection.sendall(frame(4, 0, 0))  # SETTINGS
            came.read(24)
            while head := came.read(9):
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                body = came.read(int.from_bytes(head[:3], "big"))
                if kind in (4, 6) and not flags & 1:  # SETTINGS and PING want to be acknowledged
                    connection.sendall(frame(kind, 1, 0, body if kind == 6 else b""))
                if kind == 1:  # HEADERS: answered with status 200 and content-type, then RST_STREAM
                    connection.sendall(frame(1, 4, stream, b"\x88\x0f\x10\x10application/grpc"))
                    connection.sendall(frame(3, 0, stream, struct.pack(">I", codes.pop(0))))

    def accept():
        with suppress(OSError):
            while True:
                threading.Thread(target=reset, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(("name", "given"), [("watch", ("t",)), ("export", ()), ("reviews", (0,))])
def test_what_a_proxy_resets_goes_on(client, name, given):
    codes = [0, 2, 8, 12]  # NO_ERROR, INTERNAL_ERROR, CANCEL; and INADEQUATE_SECURITY, which does not pass
    with resetting(codes) as address, pytest.raises(CallError) as told:
        client.each(address, name, *given)
    assert (told.value.code, codes) == (Code.PERMISSION_DENIED, [])


def test_who_is_slow_to_read_goes_on_however_often(client):
    def answer(method, request, number):
        if request.from_seq == 30:
            return
        yield wire.WatchTrialResponse(event=wire.TrialEvent(trial_id="t", seq=request.from_seq))
        raise Refusal("INVALID_ARGUMENT", reason="IDLE")

    court = FakeCourt(answer)
    with served(court) as address:
        assert [event.seq for event in client.each(address, "watch", "t")] == list(range(30))


def test_who_closes_the_client_ends_what_would_go_on():
    told = []

    def answer(method, request, number):
        yield wire.WatchReviewsResponse(next_entry=1, reviewed=wire.ReviewedVerdict(trial_id="t"))
        over.wait(60)

    def read():
        try:
            for _ in client.reviews(0):
                there.set()
        except CallError as error:
            told.append(error.code)

    over, there, court = threading.Event(), threading.Event(), FakeCourt(answer)
    with served(court) as address:
        client = Client(address, retries=QUICK)
        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        assert there.wait(60)
        client.close()
        reading.join(60)
        over.set()
    assert (told, court.calls["WatchReviews"]) == ([Code.CANCELLED], 1)


def test_reviews_that_can_t_be_watched(client):
    court = FakeCourt(first(Refusal("INVALID_ARGUMENT", reason="OUT_OF_RANGE"), 99))
    with served(court) as address, pytest.raises(CallError) as told:
        client.each(address, "reviews", 9)
    assert (told.value.reason, court.calls["WatchReviews"]) == ("OUT_OF_RANGE", 1)
    court = FakeCourt(first(Refusal("UNAVAILABLE", bare=True), 99))
    with served(court) as address, pytest.raises(CallError):
        client.each(address, "reviews", 9, _client={"retries": Retries(attempts=1)})
    assert court.calls["WatchReviews"] == 1


# Streams of requests


def asks(count):
    return [judge_request(b"image", text="x", request_id=f"r{number}") for number in range(count)]


def answered(court, asked):
    return wire.JudgeStreamResponse(request_id=asked.request.request_id, verdict=court.verdict(asked.request))


def refused(asked, code, after=None):
    failure = wire.Failure(code=code.value[0], reason="AS_TOLD", message="as told")
    if after is not None:
        failure.retry_delay.FromMilliseconds(round(1000 * after))
    return wire.JudgeStreamResponse(request_id=asked.request.request_id, failure=failure)


def outcomes_of(found):
    outcomes = dict(found)
    assert len(outcomes) == len(found)  # each once
    return outcomes


def test_every_request_of_a_stream_has_one_outcome(client):
    court, tried = FakeCourt(), []

    def stream(requests, number, context):
        held = []
        for asked in requests:
            assert 0 < asked.timeout.ToMilliseconds() <= 60_000
            tried.append(asked.request.request_id)
            if asked.request.request_id == "r7":
                yield refused(asked, Code.INVALID_ARGUMENT)
            elif asked.request.request_id == "r11" and tried.count("r11") < 3:
                yield refused(asked, Code.RESOURCE_EXHAUSTED, after=0.05)
            else:
                held.append(asked)
            if len(held) == 4:
                yield from (answered(court, one) for one in reversed(held))
                held.clear()
        yield from (answered(court, one) for one in held)

    court.stream = stream
    with served(court) as address:
        found = client.each(address, "judge_many", asks(50))
    outcomes = outcomes_of(found)
    assert set(outcomes) == {f"r{number}" for number in range(50)}
    refusal = outcomes.pop("r7")
    assert isinstance(refusal, JudgeError) and refusal.reason == "AS_TOLD"
    assert {name: response.verdict_id for name, response in outcomes.items()} == {
        name: f"of {name}" for name in outcomes
    }
    assert [name for name, _ in found] != [f"r{number}" for number in range(50)]  # as they were ready
    assert (tried.count("r11"), tried.count("r7"), len(tried)) == (3, 1, 52)


def test_what_fails_in_passing_at_the_end_is_asked_again_at_once(client):
    """Not only when the slowest of the others has its answer; and nothing is kept open for that meanwhile."""
    court, ends, again = FakeCourt(), [], threading.Event()

    def stream(requests, number, context):
        asked = list(requests)  # until our side is closed
        if number == 1:
            assert [one.request.request_id for one in asked] == ["r0", "r1"]
            yield refused(asked[1], Code.UNAVAILABLE, after=0.05)
            assert again.wait(60)
        again.set()
        yield answered(court, asked[0])
        time.sleep(0.2)  # whoever does not wait for its end takes the call back
        ends.append(context.is_active())

    court.stream = stream
    with served(court) as address:
        found = client.each(address, "judge_many", asks(2), timeout=120)
    assert {name: outcome.verdict_id for name, outcome in found} == {"r0": "of r0", "r1": "of r1"}
    assert (ends, court.calls["JudgeStream"]) == ([True, True], 2)


@pytest.mark.parametrize("lacking", ["a server's leave", "a token"])
def test_what_can_be_answered_is_though_no_other_stream_is_to_be_had(client, lacking):
    court, missed, tokens = FakeCourt(), threading.Event(), itertools.count(1)

    def stream(requests, number, context):
        if number > 1:
            missed.set()
            raise Refusal("UNAUTHENTICATED", reason="NO_TOKEN")
        asked = list(requests)
        yield refused(asked[1], Code.UNAVAILABLE, after=0.05)
        assert missed.wait(60)
        time.sleep(0.2)
        yield answered(court, asked[0])

    def token():
        if next(tokens) > 1 and lacking == "a token":
            missed.set()
            raise OSError("nobody gives any")
        return "t"

    court.stream = stream
    found = []
    with served(court) as address, pytest.raises((JudgeError, OSError)) as caught:
        client.each(address, "judge_many", asks(2), timeout=120, _client={"token": token}, _found=found)
    outcomes = outcomes_of(found)
    assert outcomes.pop("r0").verdict_id == "of r0"
    if lacking == "a token":
        assert caught.type is OSError and outcomes["r1"].code is Code.FAILED_PRECONDITION
    else:
        assert caught.value.reason == outcomes["r1"].reason == "NO_TOKEN"


def test_where_no_stream_is_to_be_had_no_more_is_drawn_than_is_told(client):
    court, found, drawn = FakeCourt(), [], []

    def stream(requests, number, context):
        next(requests)
        raise Refusal("UNAUTHENTICATED", reason="NO_TOKEN")

    def source():
        for number in itertools.count():
            drawn.append(f"r{number}")
            yield judge_request(b"image", text="x", request_id=drawn[-1])

    court.stream = stream
    with served(court) as address, pytest.raises(JudgeError):
        client.each(address, "judge_many", source(), at_once=2, _found=found)
    assert sorted(outcomes_of(found)) == sorted(drawn)


def test_what_the_caller_s_own_requests_raise_is_raised_whatever_a_stream_ends_in(client):
    court = FakeCourt()

    def stream(requests, number, context):
        yield from (answered(court, asked) for asked in requests)
        raise Refusal("UNAUTHENTICATED", reason="NO_TOKEN")

    def source():
        yield from asks(2)
        raise KeyError("mine")

    court.stream = stream
    found = []
    with served(court) as address, pytest.raises(KeyError, match="mine"):
        client.each(address, "judge_many", source(), _found=found)
    assert set(outcomes_of(found)) == {"r0", "r1"}


@pytest.mark.parametrize("given", ["t\n", lambda: "t\u00e9"])
def test_a_token_that_can_not_go_with_a_call_is_told_of(client, given):
    with served(FakeCourt()) as address:
        for name, what in (("judge", b"image"), ("judge_many", asks(1))):
            use = client.call if name == "judge" else client.each
            with pytest.raises(ValueError, match="the token holds a character"):
                use(address, name, what, _client={"token": given})


def test_a_token_that_takes_its_time_holds_up_no_answer():
    court, heard, tokens = FakeCourt(), threading.Event(), itertools.count(1)

    def stream(requests, number, context):
        asked = list(requests)
        if number == 1:
            yield refused(asked.pop(), Code.UNAVAILABLE, after=0.05)
            time.sleep(0.3)
        yield from (answered(court, one) for one in asked)

    def token():
        if next(tokens) == 2:
            heard.wait(60)
        return "t"

    court.stream = stream
    with served(court) as address, Client(address, retries=QUICK, token=token) as client:
        found = []
        for outcome in client.judge_many(asks(2), timeout=120):
            found.append((outcome, heard.is_set()))
            heard.set()
    assert [(name, response.verdict_id, was) for (name, response), was in found] == [
        ("r0", "of r0", False),
        ("r1", "of r1", True),
    ]


def test_who_closes_the_client_ends_its_streams(client):
    court, asked = FakeCourt(), threading.Event()

    def stream(requests, number, context):
        list(requests)
        asked.set()
        while context.is_active():
            time.sleep(0.01)
        yield from ()

    court.stream = stream
    found = []
    with served(court) as address, pytest.raises((ValueError, grpc.aio.UsageError), match=r"[Cc]losed"):
        client.closing(address, asks(2), asked, found)
    assert {name for name, _ in found} == {"r0", "r1"}
    assert all(isinstance(error, JudgeError) for _, error in found)


def test_no_more_are_on_their_way_than_wanted(client):
    court, most, drawn = FakeCourt(), [], []

    def stream(requests, number, context):
        held = []
        context.send_initial_metadata(())  # as a server does that tells nothing of what it works on at once
        for asked in requests:
            held.append(asked)
            most.append(len(held))
            if len(held) == 5:
                time.sleep(0.05)  # more would come, if more came
                yield from (answered(court, one) for one in held)
                held.clear()

    def source():
        for request in asks(30):
            drawn.append(request)
            yield request

    court.stream = stream
    with served(court) as address:
        found = client.each(address, "judge_many", source(), at_once=5)
        assert all(outcome.verdict_id for outcome in outcomes_of(found).values())
        assert len(found) == 30 and max(most) == 5
        drawn.clear()
        # Who takes no outcomes is not read ahead for either.
        assert len(client.each(address, "judge_many", source(), at_once=5, most=1)) == 1
    assert len(drawn) <= 12


def test_a_stream_outlives_its_server_and_nothing_is_tried_twice(client):
    """The server is gone in mid-stream, and back at the same address: each request is tried once and answered once."""
    court, gone = FakeCourt(), threading.Event()

    def stream(requests, number, context):
        for place, asked in enumerate(requests):
            court.verdict(asked.request)  # it is tried, also where the answer gets lost
            if number == 1 and place == 20:
                gone.set()
                time.sleep(1)
            yield answered(court, asked)

    court.stream = stream
    second = []
    with an_address() as address:
        server, _ = listening(court, address)

        def replace():
            gone.wait(60)
            server.stop(0).wait()
            second.append(listening(court, address)[0])

        replacer = threading.Thread(target=replace)
        replacer.start()
        try:
            found = client.each(address, "judge_many", asks(100), timeout=120)
        finally:
            replacer.join()
            second[0].stop(0).wait()
    outcomes = outcomes_of(found)
    assert len(outcomes) == 100
    assert all(response.label == wire.LABEL_NOT_HARMFUL for response in outcomes.values())
    assert court.calls["JudgeStream"] >= 2
    assert set(court.trials.values()) == {1} and len(court.trials) == 100


def test_where_no_stream_is_to_be_had_all_are_told_so(client):
    court = FakeCourt()

    def stream(requests, number, context):
        next(requests)
        raise Refusal("UNAUTHENTICATED", reason="NO_TOKEN")
        yield

    court.stream = stream
    with served(court) as address, Client(address) as sync:
        found = []
        with pytest.raises(JudgeError, match="UNAUTHENTICATED") as told:
            for outcome in sync.judge_many(asks(10), at_once=4):
                found.append(outcome)
        with pytest.raises(JudgeError, match="UNAUTHENTICATED"):
            client.each(address, "judge_many", asks(10))
    assert told.value.reason == "NO_TOKEN"
    assert 1 <= len(found) <= 4
    assert all(isinstance(error, JudgeError) and error.reason == "NO_TOKEN" for error in outcomes_of(found).values())


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(client):
    court = FakeCourt()

    def stream(requests, number, context):
        next(requests)
        while context.is_active():
            time.sleep(0.02)
        yield

    court.stream = stream
    with served(court) as address:
        outcomes = outcomes_of(client.each(address, "judge_many", asks(2), timeout=0.4))
    assert {error.code for error in outcomes.values()} == {Code.DEADLINE_EXCEEDED}


def test_no_server_at_all_is_an_outcome_too(client):
    with an_address() as address:
        outcomes = outcomes_of(client.each(address, "judge_many", asks(2), timeout=3))
    for error in outcomes.values():
        assert error.code is Code.DEADLINE_EXCEEDED
        assert "Streams before ended in UNAVAILABLE: " in error.message


def test_a_call_whose_time_is_over_tells_what_came_of_its_attempts(client):
    def play(method, request, number):
        if number <= 2:
            raise Refusal("UNAVAILABLE", reason="BUSY")
        gone.wait(60)
        raise Refusal("UNAVAILABLE")

    court, gone = FakeCourt(play), threading.Event()
    with served(court) as address:
        with pytest.raises(JudgeError) as told:
            client.call(address, "judge", b"image", timeout=3)
        gone.set()
    assert told.value.code is Code.DEADLINE_EXCEEDED
    assert told.value.message.endswith(" Attempts before ended in UNAVAILABLE: as told (2 times)")


def test_requests_that_come_slowly_outlast_the_server_s_patience(client):
    court, tired = FakeCourt(), threading.Event()

    def stream(requests, number, context):
        yield answered(court, next(requests))
        tired.set()
        raise Refusal("INVALID_ARGUMENT", reason="IDLE")

    def slowly():
        for request in asks(3):
            yield request
            tired.wait(60)
            tired.clear()
            time.sleep(0.1)

    async def slowly_async():
        for request in asks(3):
            yield request
            await asyncio.to_thread(tired.wait, 60)
            tired.clear()
            await asyncio.sleep(0.1)

    court.stream = stream
    with served(court) as address:
        found = client.each(address, "judge_many", slowly() if client is Threads else slowly_async())
    assert [name for name, _ in found] == ["r0", "r1", "r2"]
    assert all(isinstance(response, wire.JudgeResponse) for _, response in found)
    assert court.calls["JudgeStream"] == 3


def test_who_leaves_ends_the_stream(client):
    court, left = FakeCourt(), threading.Event()

    def stream(requests, number, context):
        context.add_callback(left.set)
        yield answered(court, next(requests))
        for _ in requests:
            pass

    court.stream = stream
    with served(court) as address:
        assert len(client.each(address, "judge_many", asks(50), most=1)) == 1
        assert left.wait(60)
    assert court.calls["JudgeStream"] == 1


@pytest.fixture
def all_taken(monkeypatch):
    """Gives an event that is set once a client has taken so many requests, the one it refuses included."""

    def after(count):
        taken, whole, really = itertools.count(1), threading.Event(), memecourt.many.Book.take

        def take(self, request):
            try:
                really(self, request)
            finally:
                if next(taken) == count:
                    whole.set()

        monkeypatch.setattr(memecourt.many.Book, "take", take)
        return whole

    return after


@pytest.mark.parametrize("wrong", [[judge_request(b"x")], asks(1) * 2])
def test_requests_that_can_t_be_told_apart(client, wrong, all_taken):
    court, whole = FakeCourt(), all_taken(len(wrong))

    def stream(requests, number, context):
        for asked in requests:
            whole.wait(60)  # so that the first is still unanswered when the second comes
            yield answered(court, asked)

    court.stream = stream
    with served(court) as address, pytest.raises(ValueError, match="request_id"):
        client.each(address, "judge_many", wrong)


@pytest.mark.parametrize(
    ("last", "error", "said"),
    [
        (LookupError("no more memes"), LookupError, "no more memes"),
        (judge_request(b"x"), ValueError, "no request_id"),
        (asks(1)[0], ValueError, "'r0'; give each one of its own"),
    ],
)
def test_what_ends_the_source_is_raised_once_all_before_have_their_outcome(client, last, error, said, all_taken):
    over = all_taken(4)

    def source():
        yield from asks(3)
        if isinstance(last, Exception):
            over.set()
            raise last
        yield last

    def stream(requests, number, context):
        held = [next(requests) for _ in range(3)]
        over.wait(60)  # a request of a name that is taken must come while that one has no answer
        time.sleep(0.2)  # the source has ended long since
        yield from (answered(court, asked) for asked in held)

    found = []

    async def each_async(address):
        async with AsyncClient(address) as it:
            async for outcome in it.judge_many(source()):
                found.append(outcome)

    court = FakeCourt()
    court.stream = stream
    with served(court) as address, pytest.raises(error, match=said):
        if client is Loop:
            asyncio.run(each_async(address))
        else:
            with Client(address) as it:
                for outcome in it.judge_many(source()):
                    found.append(outcome)
    assert set(outcomes_of(found)) == {"r0", "r1", "r2"}


def test_a_source_without_an_end_is_read_as_outcomes_are_taken(client):
    court, drawn, left = FakeCourt(), itertools.count(), threading.Event()

    def stream(requests, number, context):
        context.add_callback(left.set)
        yield from (answered(court, asked) for asked in requests)

    def source():
        for number in drawn:
            yield judge_request(b"image", request_id=f"r{number}")

    court.stream = stream
    with served(court) as address:
        found = client.each(address, "judge_many", source(), at_once=4, most=20)
        assert left.wait(60)  # who leaves ends what is on its way
    assert len(outcomes_of(found)) == 20
    assert next(drawn) <= 20 + 2 * 4 + 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at_once": 0}, "at_once is 1 or more, not 0"),
        ({"at_once": float("nan")}, "at_once is 1 or more"),
        ({"timeout": 0}, "timeout is longer than nothing"),
        ({"timeout": -1}, "not -1"),
        ({"timeout": float("nan")}, "timeout is longer"),
        ({"timeout": float("inf")}, "at most a year"),
    ],
)
def test_limits_that_make_no_sense_are_told_of_before_anything_is_read(client, options, said):
    def never():
        raise AssertionError("it was read")
        yield

    async def make():
        async with AsyncClient("127.0.0.1:1") as it:
            it.judge_many(never(), **options)

    with pytest.raises(ValueError, match=said):
        if client is Loop:
            asyncio.run(make())
        else:
            Client("127.0.0.1:1").judge_many(never(), **options)


def test_no_requests_need_no_server(client):
    assert client.each("127.0.0.1:1", "judge_many", []) == []


# Encrypted


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def pem(path, *blobs):
    path.write_bytes(b"".join(blob.bytes() for blob in blobs))
    return path


@pytest.fixture
def files(tmp_path, authority):
    """The authority's certificate, and a client's own with its key."""
    own = authority.issue_cert("client@court.example")
    return {
        "roots": pem(tmp_path / "roots.pem", authority.cert_pem),
        "certificate": pem(tmp_path / "own.pem", *own.cert_chain_pems),
        "key": pem(tmp_path / "own.key", own.private_key_pem),
    }


def credentials_of(authority, name, *, mutual):
    own = authority.issue_cert(name)
    chain = b"".join(blob.bytes() for blob in own.cert_chain_pems)
    roots = authority.cert_pem.bytes() if mutual else None
    return grpc.ssl_server_credentials([(own.private_key_pem.bytes(), chain)], roots, mutual)


def test_the_way_may_be_encrypted_and_the_server_is_known_by_its_name(client, authority, files):
    court = FakeCourt()
    never = Retries(attempts=1)
    with served(court, credentials_of(authority, "court.example", mutual=False)) as address:
        known = Tls(files["roots"], server_name="court.example")
        client.call(address, "judge", b"image", _client={"tls": known, "token": "secret"})
        for wrong in (Tls(files["roots"]), Tls(server_name="court.example"), None):
            with pytest.raises(JudgeError) as refused:
                client.call(address, "judge", b"image", _client={"tls": wrong, "retries": never})
            assert refused.value.code is Code.UNAVAILABLE
    assert court.calls == {"Judge": 1}
    assert court.metadata[0]["authorization"] == "Bearer secret"


def test_a_client_may_show_a_certificate(client, authority, files):
    court = FakeCourt()
    with served(court, credentials_of(authority, "127.0.0.1", mutual=True)) as address:
        client.call(address, "judge", b"image", _client={"tls": Tls(**files)})
        with pytest.raises(JudgeError) as refused:
            client.call(
                address, "judge", b"image", _client={"tls": Tls(files["roots"]), "retries": Retries(attempts=1)}
            )
    assert refused.value.code is Code.UNAVAILABLE
    assert court.calls == {"Judge": 1}


# The real court


def test_all_calls_of_the_real_court(tmp_path):
    signed = {"who": "ada", "why": "as was decided"}

    async def work():
        async with real_court(tmp_path) as it, AsyncClient(it.address) as client:
            requests = [judge_request(IMAGE, text=f"cat {n}", request_id=f"r{n}", namespace="forum") for n in range(20)]
            bad = judge_request(b"no picture", request_id="bad")
            found = [outcome async for outcome in client.judge_many([*requests, bad], at_once=8)]
            outcomes = outcomes_of(found)
            refused = outcomes.pop("bad")
            assert (refused.code, refused.reason) == (Code.INVALID_ARGUMENT, "NOT_A_PICTURE")
            assert set(outcomes) == {request.request_id for request in requests}

            again = await client.ask(requests[0])
            assert again.verdict_id == outcomes["r0"].verdict_id
            with pytest.raises(JudgeError) as taken:
                await client.ask(judge_request(IMAGE, text="dog", request_id="r0", namespace="forum"))
            assert (taken.value.code, taken.value.reason) == (Code.ALREADY_EXISTS, "REQUEST_ID_TAKEN")
            assert taken.value.field == "request_id"

            events = [event async for event in client.watch(request_id="r0", namespace="forum")]
            assert [event.seq for event in events] == list(range(len(events)))
            trial = await client.trial(again.verdict_id)
            assert list(trial.events) == events
            listed = [summary async for summary in client.trials(wire.TrialFilter(namespace="forum"), page_size=3)]
            exported = [each async for each in client.export(wire.TrialFilter(namespace="forum"))]
            assert [each.summary for each in reversed(exported)] == listed
            assert {summary.request_id for summary in listed} == set(outcomes)

            review = wire.ReviewVerdictRequest(
                trial_id=again.verdict_id, outcome=wire.REVIEW_OUTCOME_UPHELD, reason="seen", reviewer="ada"
            )
            assert (await client.review(review)).review.reviewer == "ada"
            with pytest.raises(CallError) as unknown:
                await client.trial("no such trial")
            assert unknown.value.code is Code.NOT_FOUND

            library = await client.library()
            added = await client.add(
                wire.AddPrecedentRequest(id="new", text="cat dog", label=wire.LABEL_HARMFUL, **signed)
            )
            unnamed = await client.add(wire.AddPrecedentRequest(text="dog cat", label=wire.LABEL_HARMFUL, **signed))
            assert unnamed.id and unnamed.change == added.change + 1
            assert await client.remove(wire.RemovePrecedentRequest(id=unnamed.id, **signed)) == added.change + 2
            changes = [
                added.change + 2,
                await client.relabel(wire.RelabelPrecedentRequest(id="new", label=wire.LABEL_NOT_HARMFUL, **signed)),
                await client.remove(wire.RemovePrecedentRequest(id="new", **signed)),
            ]
            assert changes == list(range(changes[0], changes[0] + 3))
            nearest = await client.search(wire.SearchPrecedentsRequest(text="cat dog", k=3))
            assert len(nearest.precedents) == 3 and nearest.library == library.library

    asyncio.run(work())
