"""Both clients, for threads and for asyncio, over a real socket: against a scripted court and against the real one."""

import asyncio
import itertools
import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress

import grpc
import pytest
import trustme

import memecourt.many
from memecourt.client import AsyncClient, CallError, Client, JudgeError, Retries, Tls, judge_request
from memecourt.result import Result
from memecourt.v1 import court_pb2 as wire
from tests.support.client import QUICK, Loop, Threads, answered
from tests.support.client import client as client
from tests.support.fake_court import FakeCourt, Refusal, an_address, listening, served
from tests.support.real_court import IMAGE, real_court

Code = grpc.StatusCode


def refuse_first(refusal, times):
    """Returns a handler that refuses the first calls, then answers."""

    def answer(method, request, number):
        if number <= times:
            raise refusal
        return wire.JudgeResponse(request_id=request.request_id, verdict_id="v")

    return answer


# Single calls


def test_a_busy_server_is_retried_after_the_delay_it_asks_for(client):
    court = FakeCourt(refuse_first(Refusal("RESOURCE_EXHAUSTED", after=0.2), 2))
    with served(court) as address:
        response = client.call(address, "judge", b"image", timeout=5)  # gRPC rounds longer timeouts
    assert response.verdict_id == "v"
    assert court.calls == {"Judge": 3}
    (name,) = {request.request_id for request in court.asked}  # generated once and reused, so that one trial is paid
    assert name == response.message.request_id
    assert all(after - before >= 0.2 for before, after in zip(court.at, court.at[1:], strict=False))
    assert court.left[0] > court.left[1] > court.left[2] > 0  # one deadline for all attempts


def test_under_overload_retries_are_limited_to_a_tenth():
    """RE-4: bounds the calls that a client adds as retries while every call is refused."""
    court = FakeCourt(refuse_first(Refusal("RESOURCE_EXHAUSTED", after=0.001), 10**9))
    with served(court) as address, Client(address, retries=Retries(first_s=0.001, most_s=0.001)) as client:
        for _ in range(400):
            with pytest.raises(JudgeError):
                client.judge(b"image")
    assert 410 <= court.calls["Judge"] <= 400 * 1.1 + 10


@contextmanager
def starting_later(court, after_s):
    """Yields the address of a server that can be reached only after this delay."""
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


def test_a_call_waits_for_a_starting_server(client):
    court = FakeCourt()
    with starting_later(court, 3.0) as address:
        assert client.call(address, "judge", b"image", _client={"retries": Retries()}).verdict_id
    assert court.calls["Judge"] == 1


async def test_many_calls_wait_for_a_starting_server_and_none_is_lost():
    court = FakeCourt()

    with starting_later(court, 3.0) as address:
        async with AsyncClient(address) as client:
            assert len(await asyncio.gather(*(client.judge(b"image") for _ in range(50)))) == 50
    assert court.calls["Judge"] == 50


def test_waiting_for_a_missing_server_ends_after_the_limit(client):
    retries = Retries(first_s=0.01, most_s=0.02, ready_s=0.6)
    with an_address() as address:  # without a listener
        began = time.monotonic()
        with pytest.raises(JudgeError) as caught:
            client.call(address, "judge", b"image", _client={"retries": retries})
        assert caught.value.code is Code.UNAVAILABLE and time.monotonic() - began >= 0.6


def test_token_and_trace_are_sent_with_every_attempt(client):
    court = FakeCourt(refuse_first(Refusal("UNAVAILABLE"), 1))
    tokens = iter(["one", "two"])
    client_options = {"token": lambda: next(tokens), "metadata": lambda: [("traceparent", "00-a-b-01")]}
    with served(court) as address:
        client.call(address, "judge", b"image", _client=client_options)
    assert [sent["authorization"] for sent in court.metadata] == ["Bearer one", "Bearer two"]
    assert {sent["traceparent"] for sent in court.metadata} == {"00-a-b-01"}


def test_every_request_field_is_sent(client):
    fields = {
        "text": "", "language": "en", "procedure": wire.PROCEDURE_FULL, "request_id": "r", "namespace": "n",
        "content_id": "c", "policy": wire.PolicyReference(id="p"), "client_token": b"t", "try_anew": True,
        "pins": wire.Pins(library="sha256:0"),
    }  # fmt: skip
    request = judge_request(b"image", **fields)
    assert {field.name for field, _ in request.ListFields()} == set(wire.JudgeRequest.DESCRIPTOR.fields_by_name)
    court = FakeCourt()
    with served(court) as address:
        client.call(address, "ask", request)
        client.call(address, "judge", b"image", **fields)
    assert court.asked == [request, request]


# Docket and precedents


@pytest.mark.parametrize(
    ("name", "method", "request_", "answer"),
    [
        ("review", "ReviewVerdict", wire.ReviewVerdictRequest(trial_id="t"), wire.ReviewVerdictResponse()),
        ("add", "AddPrecedent", wire.AddPrecedentRequest(id="p"), wire.AddPrecedentResponse(id="p", change=3)),
        ("remove", "RemovePrecedent", wire.RemovePrecedentRequest(id="p"), wire.RemovePrecedentResponse(change=3)),
        ("relabel", "RelabelPrecedent", wire.RelabelPrecedentRequest(id="p"), wire.RelabelPrecedentResponse(change=3)),
    ],
)
def test_a_change_is_retried_only_when_the_server_asks_for_it(client, name, method, request_, answer):
    def court_refusing_first(refusal):
        def play(method, request, number):
            if number == 1:
                raise refusal
            return answer

        return FakeCourt(play)

    court = court_refusing_first(Refusal("UNAVAILABLE", bare=True))  # a broken connection: the outcome is unknown
    with served(court) as address, pytest.raises(CallError):
        client.call(address, name, request_)
    assert court.calls == {method: 1}
    court = court_refusing_first(Refusal("UNAVAILABLE", after=0.01))
    with served(court) as address:
        made = client.call(address, name, request_)
    assert court.calls == {method: 2}
    assert court.asked == [request_, request_]
    assert made == (answer if name in ("review", "add") else 3)


def test_a_precedent_named_by_the_client_is_added_once_despite_lost_answers(client):
    added = set()

    def play(method, request, number):
        if request.id in added:
            raise Refusal("ALREADY_EXISTS", reason="DUPLICATE_ID")
        added.add(request.id)
        raise Refusal("UNAVAILABLE", bare=True)  # the connection breaks once it is added

    court = FakeCourt(play)
    request = wire.AddPrecedentRequest(text="cat")
    with served(court) as address:
        made = client.call(address, "add", request)
    assert court.calls == {"AddPrecedent": 2}
    assert {made.id} == added and not request.id

    added.clear()
    with served(court) as address, pytest.raises(CallError) as caught:
        client.call(address, "add", wire.AddPrecedentRequest(id="mine"))
    assert caught.value.code is Code.UNAVAILABLE  # an existing precedent with this id may be somebody else's
    with served(court) as address, pytest.raises(CallError) as caught:
        client.call(address, "add", wire.AddPrecedentRequest(id="mine"))
    assert caught.value.code is Code.ALREADY_EXISTS


def test_read_only_calls_are_retried(client):
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


def test_trials_are_listed_page_by_page_to_the_end(client):
    trial_filter = wire.TrialFilter(needs_review=True)
    everything = [a_trial(number).summary for number in range(7)]

    def answer(method, request, number):
        assert (request.filter, request.page_size) == (trial_filter, 3)
        start = int(request.page_token or 0)
        more = str(start + 3) if start + 3 < len(everything) else ""
        return wire.ListTrialsResponse(trials=everything[start : start + 3], next_page_token=more)

    court = FakeCourt(answer)
    with served(court) as address:
        assert client.each(address, "trials", trial_filter, page_size=3) == everything
        assert court.calls == {"ListTrials": 3}
        assert client.each(address, "trials", trial_filter, page_size=3, most=2) == everything[:2]
    assert court.calls == {"ListTrials": 4}  # pages that the caller does not read are not fetched


def test_an_interrupted_export_resumes_and_yields_each_trial_once(client):
    trials = [a_trial(number, second=number // 3) for number in range(10)]  # three trials share each opening time

    def answer(method, request, number):
        trial_filter = request.filter
        since = trial_filter.opened_from.seconds if trial_filter.HasField("opened_from") else 0
        assert trial_filter.namespace == "forum"
        for sent, trial in enumerate(t for t in trials if t.summary.opened_at.seconds >= since):
            if sent == 4 and number < 9:
                raise Refusal("UNAVAILABLE", bare=True)
            yield wire.ExportTrialsResponse(trial=trial)

    court = FakeCourt(answer)
    with served(court) as address:
        found = client.each(address, "export", which := wire.TrialFilter(namespace="forum"))
    assert found == trials and which == wire.TrialFilter(namespace="forum"), "the caller's filter is unchanged"
    assert court.calls["ExportTrials"] > 2


def test_watching_a_trial_resumes_after_an_interruption(client):
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


def test_watching_an_unknown_trial_raises_without_a_retry(client):
    court = FakeCourt(refuse_first(Refusal("NOT_FOUND", reason="TRIAL_UNKNOWN"), 99))
    with served(court) as address, pytest.raises(CallError) as caught:
        client.each(address, "watch", request_id="r", namespace="n")
    assert (caught.value.reason, court.calls["WatchTrial"]) == ("TRIAL_UNKNOWN", 1)
    assert court.asked[0].request == wire.RequestName(namespace="n", request_id="r")


def test_a_verdict_is_found_by_trial_id_or_request_id(client):
    court = FakeCourt(lambda method, request, number: wire.GetVerdictResponse(trial_id="t"))
    with served(court) as address:
        assert client.call(address, "verdict", "t").trial_id == "t"
        assert client.call(address, "verdict", request_id="r", namespace="n").trial_id == "t"
        with pytest.raises(ValueError):
            client.call(address, "verdict")
    name = wire.RequestName(namespace="n", request_id="r")
    assert court.asked == [wire.GetVerdictRequest(trial_id="t"), wire.GetVerdictRequest(request=name)]


def test_watching_reviews_resumes_after_any_number_of_interruptions(client):
    def answer(method, request, number):
        first_entry = request.from_entry if request.HasField("from_entry") else 40
        assert request.overruled_only
        yield wire.WatchReviewsResponse(next_entry=first_entry)
        for entry in range(first_entry, 70):
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
    assert [request.from_entry for request in court.asked[1:4]] == [41, 42, 43]  # also across entries without a review
    assert court.calls["WatchReviews"] == 30


@contextmanager
def resetting_proxy(codes):
    """Yields the address of a proxy that resets one call with each of these codes in turn."""

    def frame(kind, flags, stream, body=b""):
        return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body

    def reset(connection):
        with connection, suppress(OSError), connection.makefile("rb") as received:
            connection.sendall(frame(4, 0, 0))  # SETTINGS
            received.read(24)
            while head := received.read(9):
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                body = received.read(int.from_bytes(head[:3], "big"))
                if kind in (4, 6) and not flags & 1:  # SETTINGS and PING require an acknowledgement
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


@pytest.mark.parametrize(("name", "arguments"), [("watch", ("t",)), ("export", ()), ("reviews", (0,))])
def test_streams_resume_after_a_proxy_resets_them(client, name, arguments):
    codes = [0, 2, 8, 12]  # NO_ERROR, INTERNAL_ERROR, CANCEL are retried, INADEQUATE_SECURITY is not
    with resetting_proxy(codes) as address, pytest.raises(CallError) as caught:
        client.each(address, name, *arguments)
    assert (caught.value.code, codes) == (Code.PERMISSION_DENIED, [])


def test_a_slow_reader_resumes_after_any_number_of_idle_timeouts(client):
    def answer(method, request, number):
        if request.from_seq == 30:
            return
        yield wire.WatchTrialResponse(event=wire.TrialEvent(trial_id="t", seq=request.from_seq))
        raise Refusal("INVALID_ARGUMENT", reason="IDLE")

    court = FakeCourt(answer)
    with served(court) as address:
        assert [event.seq for event in client.each(address, "watch", "t")] == list(range(30))


def test_closing_the_client_ends_a_watch_that_would_resume():
    errors = []

    def answer(method, request, number):
        yield wire.WatchReviewsResponse(next_entry=1, reviewed=wire.ReviewedVerdict(trial_id="t"))
        finished.wait(60)

    def read():
        try:
            for _ in client.reviews(0):
                received.set()
        except CallError as error:
            errors.append(error.code)

    finished, received, court = threading.Event(), threading.Event(), FakeCourt(answer)
    with served(court) as address:
        client = Client(address, retries=QUICK)
        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        assert received.wait(60)
        client.close()
        reading.join(60)
        finished.set()
    assert (errors, court.calls["WatchReviews"]) == ([Code.CANCELLED], 1)


# Streams of requests


def numbered_requests(count):
    return [judge_request(b"image", text="x", request_id=f"r{number}") for number in range(count)]


def refused(message, code, after=None):
    failure = wire.Failure(code=code.value[0], reason="AS_TOLD", message="as told")
    if after is not None:
        failure.retry_delay.FromMilliseconds(round(1000 * after))
    return wire.JudgeStreamResponse(request_id=message.request.request_id, failure=failure)


def outcomes_of(found):
    outcomes = dict(found)
    assert len(outcomes) == len(found)  # no request has two outcomes
    return outcomes


def test_every_request_of_a_stream_has_one_outcome(client):
    court, tried = FakeCourt(), []

    def stream(requests, number, context):
        delayed = []
        for message in requests:
            assert 0 < message.timeout.ToMilliseconds() <= 60_000
            tried.append(message.request.request_id)
            if message.request.request_id == "r7":
                yield refused(message, Code.INVALID_ARGUMENT)
            elif message.request.request_id == "r11" and tried.count("r11") < 3:
                yield refused(message, Code.RESOURCE_EXHAUSTED, after=0.05)
            else:
                delayed.append(message)
            if len(delayed) == 4:
                yield from (answered(court, delayed_message) for delayed_message in reversed(delayed))
                delayed.clear()
        yield from (answered(court, delayed_message) for delayed_message in delayed)

    court.stream = stream
    with served(court) as address:
        found = client.each(address, "judge_many", numbered_requests(50))
    outcomes = outcomes_of(found)
    assert set(outcomes) == {f"r{number}" for number in range(50)}
    refusal = outcomes.pop("r7")
    assert isinstance(refusal, JudgeError) and refusal.reason == "AS_TOLD"
    assert {name: response.verdict_id for name, response in outcomes.items()} == {
        name: f"of {name}" for name in outcomes
    }
    assert [name for name, _ in found] != [f"r{number}" for number in range(50)]  # in the order of completion
    assert (tried.count("r11"), tried.count("r7"), len(tried)) == (3, 1, 52)


def test_transient_failures_at_the_end_of_a_stream_are_retried_at_once(client):
    """The retry does not wait for the slowest answer, and the server's call is not cancelled meanwhile."""
    court, ends, again = FakeCourt(), [], threading.Event()

    def stream(requests, number, context):
        messages = list(requests)  # until the client half-closes
        if number == 1:
            assert [message.request.request_id for message in messages] == ["r0", "r1"]
            yield refused(messages[1], Code.UNAVAILABLE, after=0.05)
            assert again.wait(60)
        again.set()
        yield answered(court, messages[0])
        time.sleep(0.2)  # a client that does not wait for the end cancels the call
        ends.append(context.is_active())

    court.stream = stream
    with served(court) as address:
        found = client.each(address, "judge_many", numbered_requests(2), timeout=120)
    assert {name: outcome.verdict_id for name, outcome in found} == {"r0": "of r0", "r1": "of r1"}
    assert (ends, court.calls["JudgeStream"]) == ([True, True], 2)


@pytest.mark.parametrize("lacking", ["authorization", "a token"])
def test_pending_answers_arrive_although_no_further_stream_can_be_opened(client, lacking):
    court, missed, tokens = FakeCourt(), threading.Event(), itertools.count(1)

    def stream(requests, number, context):
        if number > 1:
            missed.set()
            raise Refusal("UNAUTHENTICATED", reason="NO_TOKEN")
        messages = list(requests)
        yield refused(messages[1], Code.UNAVAILABLE, after=0.05)
        assert missed.wait(60)
        time.sleep(0.2)
        yield answered(court, messages[0])

    def token():
        if next(tokens) > 1 and lacking == "a token":
            missed.set()
            raise OSError("no token available")
        return "t"

    court.stream = stream
    found = []
    with served(court) as address, pytest.raises((JudgeError, OSError)) as caught:
        client.each(address, "judge_many", numbered_requests(2), timeout=120, _client={"token": token}, _found=found)
    outcomes = outcomes_of(found)
    assert outcomes.pop("r0").verdict_id == "of r0"
    if lacking == "a token":
        assert caught.type is OSError and outcomes["r1"].code is Code.FAILED_PRECONDITION
    else:
        assert caught.value.reason == outcomes["r1"].reason == "NO_TOKEN"


def test_requests_drawn_without_any_stream_all_get_an_outcome(client):
    court, found, drawn = FakeCourt(), [], []

    def stream(requests, number, context):
        next(requests)
        raise Refusal("UNAUTHENTICATED", reason="NO_TOKEN")

    def source():
        for number in itertools.count():
            drawn.append(f"r{number}")
            yield judge_request(b"image", text="x", request_id=drawn[-1])

    court.stream = stream
    with served(court) as address, pytest.raises(JudgeError, match="UNAUTHENTICATED") as caught:
        client.each(address, "judge_many", source(), at_once=2, _found=found)
    assert sorted(outcomes_of(found)) == sorted(drawn)
    assert {error.reason for error in (caught.value, *outcomes_of(found).values())} == {"NO_TOKEN"}


def test_errors_of_the_caller_s_own_iterator_win_over_the_stream_s_error(client):
    court = FakeCourt()

    def stream(requests, number, context):
        yield from (answered(court, message) for message in requests)
        raise Refusal("UNAUTHENTICATED", reason="NO_TOKEN")

    def source():
        yield from numbered_requests(2)
        raise KeyError("mine")

    court.stream = stream
    found = []
    with served(court) as address, pytest.raises(KeyError, match="mine"):
        client.each(address, "judge_many", source(), _found=found)
    assert set(outcomes_of(found)) == {"r0", "r1"}


@pytest.mark.parametrize("token", ["t\n", lambda: "t\u00e9"])
def test_a_token_with_invalid_characters_raises_value_error(client, token):
    with served(FakeCourt()) as address:
        for name, argument in (("judge", b"image"), ("judge_many", numbered_requests(1))):
            run_call = client.call if name == "judge" else client.each
            with pytest.raises(ValueError, match="the token holds a character"):
                run_call(address, name, argument, _client={"token": token})


def test_a_slow_token_source_delays_no_answer():
    court, first_received, tokens = FakeCourt(), threading.Event(), itertools.count(1)

    def stream(requests, number, context):
        messages = list(requests)
        if number == 1:
            yield refused(messages.pop(), Code.UNAVAILABLE, after=0.05)
            time.sleep(0.3)
        yield from (answered(court, message) for message in messages)

    def token():
        if next(tokens) == 2:
            first_received.wait(60)
        return "t"

    court.stream = stream
    with served(court) as address, Client(address, retries=QUICK, token=token) as client:
        found = []
        for outcome in client.judge_many(numbered_requests(2), timeout=120):
            found.append((outcome, first_received.is_set()))
            first_received.set()
    assert [(name, response.verdict_id, after_first) for (name, response), after_first in found] == [
        ("r0", "of r0", False),
        ("r1", "of r1", True),
    ]


def test_closing_the_client_ends_its_streams(client):
    court, all_received = FakeCourt(), threading.Event()

    def stream(requests, number, context):
        list(requests)
        all_received.set()
        while context.is_active():
            time.sleep(0.01)
        yield from ()

    court.stream = stream
    found = []
    with served(court) as address, pytest.raises((ValueError, grpc.aio.UsageError), match=r"[Cc]losed"):
        client.closing(address, numbered_requests(2), all_received, found)
    assert {name for name, _ in found} == {"r0", "r1"}
    assert all(isinstance(error, JudgeError) for _, error in found)


def test_at_once_bounds_the_requests_in_flight(client):
    court, in_flight, drawn = FakeCourt(), [], []

    def stream(requests, number, context):
        waiting = []
        context.send_initial_metadata(())  # like a server that reports no progress at first
        for message in requests:
            waiting.append(message)
            in_flight.append(len(waiting))
            if len(waiting) == 5:
                time.sleep(0.05)  # time for further requests, if the client sent any
                yield from (answered(court, message) for message in waiting)
                waiting.clear()

    def source():
        for request in numbered_requests(30):
            drawn.append(request)
            yield request

    court.stream = stream
    with served(court) as address:
        found = client.each(address, "judge_many", source(), at_once=5)
        assert all(outcome.verdict_id for outcome in outcomes_of(found).values())
        assert len(found) == 30 and max(in_flight) == 5
        drawn.clear()
        # A caller that takes no outcomes causes no reading ahead either.
        assert len(client.each(address, "judge_many", source(), at_once=5, most=1)) == 1
    assert len(drawn) <= 12


def test_a_stream_survives_a_server_restart_and_nothing_is_tried_twice(client):
    """The server stops in mid-stream and returns at the same address: each request is tried and answered once."""
    court, stopping = FakeCourt(), threading.Event()

    def stream(requests, number, context):
        for position, message in enumerate(requests):
            court.verdict(message.request)  # tried even if the answer is lost
            if number == 1 and position == 20:
                stopping.set()
                time.sleep(1)
            yield answered(court, message)

    court.stream = stream
    second = []
    with an_address() as address:
        server, _ = listening(court, address)

        def replace():
            stopping.wait(60)
            server.stop(0).wait()
            second.append(listening(court, address)[0])

        replacer = threading.Thread(target=replace)
        replacer.start()
        try:
            found = client.each(address, "judge_many", numbered_requests(100), timeout=120)
        finally:
            replacer.join()
            second[0].stop(0).wait()
    outcomes = outcomes_of(found)
    assert len(outcomes) == 100
    assert all(response.label == "NOT_HARMFUL" for response in outcomes.values())
    assert court.calls["JudgeStream"] >= 2
    assert set(court.trials.values()) == {1} and len(court.trials) == 100


def test_a_missing_server_is_an_outcome_of_each_request(client):
    with an_address() as address:
        outcomes = outcomes_of(client.each(address, "judge_many", numbered_requests(2), timeout=3))
    for error in outcomes.values():
        assert error.code is Code.DEADLINE_EXCEEDED
        assert "Streams before ended in UNAVAILABLE: " in error.message


def test_a_deadline_error_lists_the_failures_of_earlier_attempts(client):
    def play(method, request, number):
        if number <= 2:
            raise Refusal("UNAVAILABLE", reason="BUSY")
        finished.wait(60)
        raise Refusal("UNAVAILABLE")

    court, finished = FakeCourt(play), threading.Event()
    with served(court) as address:
        with pytest.raises(JudgeError) as caught:
            client.call(address, "judge", b"image", timeout=3)
        finished.set()
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    assert caught.value.message.endswith(" Attempts before ended in UNAVAILABLE: as told (2 times)")


def test_slow_request_sources_outlast_the_server_s_idle_timeout(client):
    court, timed_out = FakeCourt(), threading.Event()

    def stream(requests, number, context):
        yield answered(court, next(requests))
        timed_out.set()
        raise Refusal("INVALID_ARGUMENT", reason="IDLE")

    def slow_requests():
        for request in numbered_requests(3):
            yield request
            timed_out.wait(60)
            timed_out.clear()
            time.sleep(0.1)

    async def slow_requests_async():
        for request in numbered_requests(3):
            yield request
            await asyncio.to_thread(timed_out.wait, 60)
            timed_out.clear()
            await asyncio.sleep(0.1)

    court.stream = stream
    with served(court) as address:
        found = client.each(address, "judge_many", slow_requests() if client is Threads else slow_requests_async())
    assert [name for name, _ in found] == ["r0", "r1", "r2"]
    assert all(isinstance(response, Result) for _, response in found)
    assert court.calls["JudgeStream"] == 3


@pytest.fixture
def all_taken(monkeypatch):
    """Gives a function that returns an event, set once a client has taken that many requests, refused ones included."""

    def set_after(count):
        taken, taken_all, original_take = itertools.count(1), threading.Event(), memecourt.many.Book.take

        def take(self, request):
            try:
                original_take(self, request)
            finally:
                if next(taken) == count:
                    taken_all.set()

        monkeypatch.setattr(memecourt.many.Book, "take", take)
        return taken_all

    return set_after


@pytest.mark.parametrize(
    ("last", "error", "message"),
    [
        (LookupError("no more memes"), LookupError, "no more memes"),
        (judge_request(b"x"), ValueError, "no request_id"),
        (numbered_requests(1)[0], ValueError, "'r0'; give each one of its own"),
    ],
)
def test_an_error_of_the_source_is_raised_after_all_earlier_outcomes(client, last, error, message, all_taken):
    source_ended = all_taken(4)

    def source():
        yield from numbered_requests(3)
        if isinstance(last, Exception):
            source_ended.set()
            raise last
        yield last

    def stream(requests, number, context):
        messages = [next(requests) for _ in range(3)]
        source_ended.wait(60)  # a repeated id must come while the first is unanswered
        time.sleep(0.2)  # ample time for the source to end
        yield from (answered(court, each) for each in messages)

    found = []

    async def each_async(address):
        async with AsyncClient(address) as client_:
            async for outcome in client_.judge_many(source()):
                found.append(outcome)

    court = FakeCourt()
    court.stream = stream
    with served(court) as address, pytest.raises(error, match=message):
        if client is Loop:
            asyncio.run(each_async(address))
        else:
            with Client(address) as client_:
                for outcome in client_.judge_many(source()):
                    found.append(outcome)
    assert set(outcomes_of(found)) == {"r0", "r1", "r2"}


def test_an_endless_source_is_read_only_as_outcomes_are_taken(client):
    court, drawn, left = FakeCourt(), itertools.count(), threading.Event()

    def stream(requests, number, context):
        context.add_callback(left.set)
        yield from (answered(court, message) for message in requests)

    def source():
        for number in drawn:
            yield judge_request(b"image", request_id=f"r{number}")

    court.stream = stream
    with served(court) as address:
        found = client.each(address, "judge_many", source(), at_once=4, most=20)
        assert left.wait(60)  # leaving cancels the requests in flight
    assert len(outcomes_of(found)) == 20
    assert next(drawn) <= 20 + 2 * 4 + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at_once": 0}, "at_once is 1 or more, not 0"),
        ({"at_once": float("nan")}, "at_once is 1 or more"),
        ({"timeout": 0}, "timeout is longer than nothing"),
        ({"timeout": -1}, "not -1"),
        ({"timeout": float("nan")}, "timeout is longer"),
        ({"timeout": float("inf")}, "at most a year"),
    ],
)
def test_invalid_limits_are_rejected_before_anything_is_read(client, options, message):
    def never():
        raise AssertionError("it was read")
        yield

    async def make():
        async with AsyncClient("127.0.0.1:1") as client_:
            client_.judge_many(never(), **options)

    with pytest.raises(ValueError, match=message):
        if client is Loop:
            asyncio.run(make())
        else:
            Client("127.0.0.1:1").judge_many(never(), **options)


def test_an_empty_list_of_requests_needs_no_server(client):
    assert client.each("127.0.0.1:1", "judge_many", []) == []


# TLS


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def pem(path, *blobs):
    path.write_bytes(b"".join(blob.bytes() for blob in blobs))
    return path


@pytest.fixture
def tls_files(tmp_path, authority):
    """Paths of the authority's certificate and of a client's certificate and key."""
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


def test_tls_verifies_the_server_by_its_name(client, authority, tls_files):
    court = FakeCourt()
    never = Retries(attempts=1)
    with served(court, credentials_of(authority, "court.example", mutual=False)) as address:
        known = Tls(tls_files["roots"], server_name="court.example")
        client.call(address, "judge", b"image", _client={"tls": known, "token": "secret"})
        for wrong in (Tls(tls_files["roots"]), Tls(server_name="court.example"), None):
            with pytest.raises(JudgeError) as refused:
                client.call(address, "judge", b"image", _client={"tls": wrong, "retries": never})
            assert refused.value.code is Code.UNAVAILABLE
    assert court.calls == {"Judge": 1}
    assert court.metadata[0]["authorization"] == "Bearer secret"


def test_a_client_can_present_a_certificate(client, authority, tls_files):
    court = FakeCourt()
    with served(court, credentials_of(authority, "127.0.0.1", mutual=True)) as address:
        client.call(address, "judge", b"image", _client={"tls": Tls(**tls_files)})
        with pytest.raises(JudgeError) as refused:
            client.call(
                address, "judge", b"image", _client={"tls": Tls(tls_files["roots"]), "retries": Retries(attempts=1)}
            )
    assert refused.value.code is Code.UNAVAILABLE
    assert court.calls == {"Judge": 1}


# The real court


async def test_every_call_works_against_the_real_court(tmp_path):
    signed = {"who": "ada", "why": "as was decided"}
    async with real_court(tmp_path) as served_court, AsyncClient(served_court.address) as client:
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
        assert (await client.review(review)).summary.review.reviewer == "ada"
        with pytest.raises(CallError) as unknown:
            await client.trial("no such trial")
        assert unknown.value.code is Code.NOT_FOUND

        library = await client.library()
        added = await client.add(wire.AddPrecedentRequest(id="new", text="cat dog", label=wire.LABEL_HARMFUL, **signed))
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
