"""The client without a connection: retries, unanswered requests of a stream, and tokens over plain connections."""

import subprocess
import sys
from importlib.metadata import version

import grpc
import pytest

import memecourt
from court.verdict import Decision as CourtDecision
from court.verdict import Label as CourtLabel
from memecourt.connection import MESSAGE_BYTES, Connection, Tls
from memecourt.errors import CallError, JudgeError
from memecourt.many import Book
from memecourt.requests import judge_request, named, watch_request
from memecourt.result import Decision, Label, Reason, Result
from memecourt.retries import Attempts, Budget, Endings, Retries, passing
from memecourt.v1 import court_pb2 as wire

Code = grpc.StatusCode


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def an_error(code=Code.UNAVAILABLE, *, after=None, reason="BUSY", kind=CallError):
    error = kind(code, "as told")
    error.reason, error.retry_after = reason, after
    return error


def attempts(timeout=None, *, clock=None, retries=None, chance=0.5, budget=None, changes=False):
    retries = retries or Retries(first_s=1.0, most_s=8.0, attempts=6)
    return Attempts(
        retries, budget or Budget(retries), timeout, changes=changes, clock=clock or Clock(), chance=lambda: chance
    )


# Retries.


@pytest.mark.parametrize(
    ("code", "after", "again"),
    [
        (Code.UNAVAILABLE, None, True),
        (Code.UNAVAILABLE, 1.0, True),
        (Code.ABORTED, None, True),
        (Code.RESOURCE_EXHAUSTED, 1.0, True),
        (Code.RESOURCE_EXHAUSTED, None, False),  # a message over the limit won't get smaller
        (Code.INVALID_ARGUMENT, None, False),
        (Code.ALREADY_EXISTS, None, False),
        (Code.FAILED_PRECONDITION, None, False),
        (Code.UNAUTHENTICATED, None, False),
        (Code.PERMISSION_DENIED, None, False),
        (Code.NOT_FOUND, None, False),
        (Code.DEADLINE_EXCEEDED, None, False),
        (Code.CANCELLED, None, False),
        (Code.INTERNAL, None, False),
        (Code.INTERNAL, 1.0, False),
    ],
)
def test_status_code_and_retry_delay_decide_about_a_retry(code, after, again):
    assert passing(an_error(code, after=after)) is again


def test_changes_are_retried_only_on_the_server_s_request():
    assert passing(an_error(after=1.0), changes=True)
    assert not passing(an_error(after=None), changes=True)
    assert not passing(an_error(after=1.0, reason=""), changes=True)
    assert not passing(an_error(Code.INTERNAL, after=1.0), changes=True)


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED])
def test_stream_cut_by_a_proxy_is_retried_but_server_errors_are_raised(code):
    retries = Retries()
    stream = Attempts(retries, Budget(retries), None, stream=True)
    assert stream.after(an_error(code, reason="")) >= 0
    with pytest.raises(CallError):
        stream.after(an_error(code, reason="INTERNAL"))
    with pytest.raises(CallError):
        attempts().after(an_error(code, reason=""))  # not a stream


def test_backoff_is_exponential_with_full_jitter_and_a_maximum():
    for chance, expected in (
        (0.0, [0, 0, 0, 0, 0]),
        (0.5, [0.5, 1, 2, 4, 4]),
        (0.999, [0.999, 1.998, 3.996, 7.992, 7.992]),
    ):
        attempt = attempts(chance=chance)
        assert [attempt.after(an_error()) for _ in range(5)] == pytest.approx(expected)


def test_error_is_raised_after_the_last_attempt():
    attempt, error = attempts(retries=Retries(attempts=3)), an_error()
    attempt.after(error)
    attempt.after(error)
    with pytest.raises(CallError) as caught:
        attempt.after(error)
    assert caught.value is error


def test_retry_delay_of_the_server_is_respected_with_jitter():
    waits = [attempts(chance=chance).after(an_error(after=5.0)) for chance in (0.0, 0.5, 0.999)]
    assert waits == pytest.approx([5.0, 7.5, 9.995])


def test_deadline_covers_all_attempts():
    clock = Clock()
    attempt = attempts(10.0, clock=clock)
    assert attempt.left() == 10.0
    clock.now += 4
    assert attempt.left() == 6.0
    assert attempt.after(an_error(after=5.0)) < 6.0  # enough time to wait and try
    with pytest.raises(CallError):
        attempt.after(an_error(after=6.0))
    clock.now += 100
    assert attempt.left() == 0.0
    assert attempts(None).left() is None


def test_connecting_waits_within_a_bound_and_the_deadline():
    clock, gone = Clock(), an_error(reason="")
    attempt = attempts(clock=clock)
    assert (attempt.connect_within_s(gone), attempt.connect_within_s(an_error())) == (15.0, 0.0), (
        "an error with a reason came from a server"
    )
    clock.now += 10
    assert attempt.connect_within_s(gone) == 5.0
    clock.now += 10
    assert attempt.connect_within_s(gone) == 0.0
    attempt.progress()
    assert attempt.connect_within_s(gone) == 15.0
    assert attempts(4.0).connect_within_s(gone) == 2.0
    assert attempts(changes=True).connect_within_s(gone) == 0.0, "the change may have been made"
    assert attempts(retries=Retries(attempts=1)).connect_within_s(gone) == 0.0
    assert attempts().connect_within_s(an_error(Code.INTERNAL, reason="")) == 0.0


def test_waiting_for_a_connection_uses_no_retry_budget():
    retries = Retries(share=0.0, spare=1.0, attempts=9)
    attempt = attempts(retries=retries, budget=Budget(retries))
    for _ in range(4):
        attempt.after(an_error(reason=""), unreached=True)
    attempt.after(an_error())
    with pytest.raises(CallError):
        attempt.after(an_error())


@pytest.mark.parametrize(("calls", "repeats"), [(0, 2), (10, 3), (1000, 102)])
def test_retries_are_limited_to_a_share_of_calls(calls, repeats):
    retries = Retries(share=0.1, spare=2)
    budget = Budget(retries)
    made = sum(budget.repeat() for _ in range(50))
    assert made == 2  # the spare repeats, once
    for _ in range(calls):
        budget.call()
        made += sum(budget.repeat() for _ in range(4))
    assert made == pytest.approx(repeats, abs=1)


def test_retry_budget_does_not_accumulate_without_bound():
    budget = Budget(Retries(share=0.1, spare=10))
    for _ in range(100_000):
        budget.call()
    assert sum(budget.repeat() for _ in range(100)) == 10


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"first_s": -1.0},
        {"first_s": 9.0, "most_s": 1.0},
        {"share": -0.1},
        {"spare": -1},
        {"longest_told_s": -1},
    ],
)
def test_invalid_retry_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="attempts is 1 or more"):
        Retries(**wrong)


def test_too_long_retry_delay_fails_at_once():
    attempt = attempts(timeout=60.0, retries=Retries(longest_told_s=5.0))
    assert attempt.after(an_error(after=5.0)) >= 5.0
    with pytest.raises(CallError):
        attempt.after(an_error(after=5.1))


# Unanswered requests of a stream.


def a_book(clock, *, at_once=3, timeout=10.0, retries=None):
    retries = retries or Retries(first_s=1.0, most_s=8.0)
    return Book(retries, Budget(retries), timeout=timeout, at_once=at_once, clock=clock, chance=lambda: 0.5)


def request_of(name):
    return judge_request(b"image", text="x", request_id=name)


def send_pending(book, stream=0):
    """Sends all pending requests in a stream, by default a new one; returns their ids."""
    names, stream = [], stream or book.opened()
    while book.to_send():
        names.append(book.send(stream).request.request_id)
    return names


def cut_stream(book, error, stream=0):
    """Ends a stream, by default the newest; returns seconds until another may be opened, None for never."""
    book.cut(stream or book._streams, error)
    return None if book.refused else max(0.0, book._not_before - book._clock())


def verdict(name):
    return wire.JudgeStreamResponse(
        request_id=name, verdict=wire.JudgeResponse(request_id=name, verdict_id=f"of {name}")
    )


def failure(name, code=Code.UNAVAILABLE, after=None, reason="BUSY"):
    failure_message = wire.Failure(code=code.value[0], reason=reason, message="as told", field="image", trial_id="t")
    if after is not None:
        failure_message.retry_delay.FromMilliseconds(round(1000 * after))
    return wire.JudgeStreamResponse(request_id=name, failure=failure_message)


def book_with(*names, **options):
    clock = Clock()
    book = a_book(clock, **options)
    for name in names:
        book.take(request_of(name))
    return clock, book


def outcomes_of(book):
    outcomes = dict(book.outcomes)
    assert len(outcomes) == len(book.outcomes)
    book.outcomes.clear()
    return outcomes


def test_huge_retry_delay_is_no_client_error():
    failure_message = wire.Failure(code=Code.UNAVAILABLE.value[0], reason="BUSY")
    failure_message.retry_delay.seconds = 10**14
    assert JudgeError.of_failure(failure_message).retry_after == 1e14


def test_outcomes_are_matched_to_requests_by_id():
    _, book = book_with("a", "b")
    assert send_pending(book) == ["a", "b"]
    book.hear(verdict("b"))
    book.hear(failure("a", Code.INVALID_ARGUMENT, reason="PICTURE_DAMAGED"))
    book.hear(verdict("b"))  # duplicates are ignored
    book.hear(verdict("nobody's"))
    outcomes = outcomes_of(book)
    assert outcomes["b"].verdict_id == "of b"
    error = outcomes["a"]
    assert isinstance(error, JudgeError)
    assert (error.code, error.reason, error.field) == (Code.INVALID_ARGUMENT, "PICTURE_DAMAGED", "image")
    assert (error.message, error.retry_after, error.metadata) == ("as told", None, {"trial_id": "t"})
    assert not book.done
    book.closed = True
    assert book.done


def test_response_without_outcome_is_an_error():
    _, book = book_with("a")
    send_pending(book)
    book.hear(wire.JudgeStreamResponse(request_id="a"))
    assert outcomes_of(book)["a"].code is Code.UNKNOWN
    assert JudgeError.of_failure(wire.Failure(code=77)).code is Code.UNKNOWN


def test_pending_requests_and_unconsumed_outcomes_are_limited():
    _, book = book_with("a", "b", at_once=3)
    assert book.room()
    book.take(request_of("c"))
    assert not book.room()
    send_pending(book)
    book.hear(verdict("a"))
    assert not book.room()  # its outcome is not yet consumed
    outcomes_of(book)
    assert book.room()


def test_temporary_failure_is_retried_after_the_server_s_delay():
    clock, book = book_with("a", "b")
    send_pending(book)
    book.hear(failure("a", Code.RESOURCE_EXHAUSTED, after=2.0))
    assert not book.outcomes and send_pending(book) == []
    assert book.wait_s() == pytest.approx(3.0)
    clock.now += 2.9
    assert send_pending(book) == []
    clock.now += 0.2
    assert send_pending(book) == ["a"]
    book.hear(verdict("a"))
    assert outcomes_of(book)["a"].verdict_id == "of a"


def test_failures_after_half_close_are_retried_in_another_stream():
    clock, book = book_with("a", "b")
    first = book.opened()
    send_pending(book, first)
    assert not book.all_sent
    book.closed = True
    assert book.all_sent and not book.done
    book.hear(failure("a", after=1.0))  # whatever happens to the other
    assert not book.all_sent and not book.to_open()
    clock.now += 2
    assert book.to_open()
    second = book.opened()
    assert send_pending(book, second) == ["a"] and book.all_sent
    assert cut_stream(book, an_error(), second) > 0  # the first stream is unaffected
    clock.now += 2
    assert send_pending(book, book.opened()) == ["a"]
    book.hear(verdict("a"))
    assert not book.done
    book.hear(verdict("b"))
    assert book.done and not book.given_up
    assert cut_stream(book, None, first) is not None and len(outcomes_of(book)) == 2


def test_book_gives_up_when_only_expired_requests_are_unanswered():
    clock, book = book_with("a", "b")
    send_pending(book, 1)
    book.hear(verdict("b"))
    clock.now += 11
    book.expire()
    assert book.given_up
    book.cut(2, None)
    assert book.given_up
    book.cut(1, None)
    assert not book.given_up  # the stream has ended


def test_retry_beyond_the_deadline_returns_the_last_failure():
    _, book = book_with("a")
    send_pending(book)
    book.hear(failure("a", after=10.0))  # beyond its deadline
    assert outcomes_of(book)["a"].reason == "BUSY"
    clock, book = book_with("a")
    send_pending(book)
    book.hear(failure("a", after=4.0))
    clock.now += 10
    assert send_pending(book) == []
    assert outcomes_of(book)["a"].reason == "BUSY"


def test_retries_in_a_stream_are_limited():
    clock, book = book_with("a", timeout=1e6, retries=Retries(attempts=3, first_s=1.0))
    for _ in range(3):
        assert send_pending(book) == ["a"]
        book.hear(failure("a", after=1.0))
        clock.now += 100
    assert outcomes_of(book)["a"].reason == "BUSY"
    clock, book = book_with("a", retries=Retries(share=0, spare=0))
    send_pending(book)
    book.hear(failure("a", after=1.0))
    assert outcomes_of(book)["a"].reason == "BUSY"


def test_unanswered_requests_are_resent_in_order_after_a_cut():
    clock, book = book_with("a", "b", "c", at_once=4)
    send_pending(book)
    book.hear(verdict("b"))
    book.take(request_of("d"))
    assert cut_stream(book, an_error(reason="", kind=JudgeError)) == pytest.approx(0.5)
    assert send_pending(book) == ["a", "c", "d"]
    # Reconnects back off until an answer arrives.
    assert cut_stream(book, an_error()) == pytest.approx(1.0)
    assert [cut_stream(book, an_error(), book.opened()) for _ in range(2)] == pytest.approx([2.0, 4.0])
    assert not book.to_open() and book.wait_s() == pytest.approx(4.0)
    clock.now += 4
    assert book.to_open()
    send_pending(book)
    book.hear(verdict("a"))
    assert cut_stream(book, an_error()) == pytest.approx(0.5)
    assert cut_stream(book, an_error(after=3.0), book.opened()) >= 3.0
    assert list(outcomes_of(book)) == ["b", "a"]


def test_stream_closed_as_idle_is_reopened_without_delay():
    _, book = book_with("a")
    send_pending(book)
    assert cut_stream(book, an_error(Code.INVALID_ARGUMENT, reason="IDLE")) == 0.0
    assert send_pending(book) == ["a"] and not book.outcomes


def test_clean_end_with_unanswered_requests_counts_as_a_cut():
    _, book = book_with("a")
    assert cut_stream(book, None) == 0.0
    send_pending(book)
    assert cut_stream(book, None) > 0
    assert send_pending(book) == ["a"]


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED])
def test_requests_survive_a_cut_by_a_proxy_but_not_server_errors(code):
    _, book = book_with("a", "b")
    send_pending(book)
    assert cut_stream(book, an_error(code, reason="")) is not None
    assert send_pending(book) == ["a", "b"]
    assert cut_stream(book, an_error(code, reason="INTERNAL")) is None
    assert {name: error.reason for name, error in outcomes_of(book).items()} == {"a": "INTERNAL", "b": "INTERNAL"}


def test_refused_stream_does_not_affect_working_ones():
    clock, book = book_with("a", "b", "c", "d")
    first = book.opened()
    send_pending(book, first)
    book.hear(failure("b", after=0.0))
    clock.now += 1
    second = book.opened()
    assert send_pending(book, second) == ["b"]
    assert cut_stream(book, an_error(Code.UNAUTHENTICATED, reason="NO_TOKEN"), second) is None
    assert {name: error.reason for name, error in outcomes_of(book).items()} == {"b": "NO_TOKEN"}
    book.hear(verdict("a"))
    book.hear(failure("c", after=0.0))  # no stream to retry it in
    assert {name: getattr(found, "reason", "verdict") for name, found in outcomes_of(book).items()} == {
        "a": "verdict",
        "c": "BUSY",
    }
    assert not book.done
    book.cut(first, an_error())
    assert outcomes_of(book)["d"].reason == "NO_TOKEN"
    assert book.done and book.refused.reason == "NO_TOKEN" and not book.to_open()


def test_simultaneous_cuts_count_as_one_failure():
    clock, book = book_with("a", "b", "c")
    for name in "abc":
        send_pending(book)
        book.hear(failure(name, after=0.0))
        clock.now += 1
    assert send_pending(book) == ["c"]
    book.take(request_of("d"))
    assert send_pending(book) == ["d"]
    assert [cut_stream(book, an_error(), stream) for stream in (3, 5, 2, 4)] == pytest.approx([0.5] * 4)
    clock.now += 0.5
    assert set(send_pending(book)) == {"a", "b", "c", "d"}
    assert cut_stream(book, an_error()) == pytest.approx(1.0)


def test_retry_delay_of_one_stream_applies_to_all():
    clock, book = book_with("a", "b")
    send_pending(book)
    book.hear(failure("a", after=0.0))
    clock.now += 1
    send_pending(book)
    assert cut_stream(book, an_error(), 1) == pytest.approx(0.5)
    assert cut_stream(book, an_error(after=3.0), 2) >= 3.0
    assert cut_stream(book, an_error(), book.opened()) >= 3.0  # not shortened by another error


def test_error_after_all_outcomes_is_ignored():
    _, book = book_with("a")
    send_pending(book)
    book.closed = True
    book.hear(verdict("a"))
    assert cut_stream(book, an_error(Code.UNAUTHENTICATED, reason="NO_TOKEN")) is not None
    assert book.done and book.refused is None


def test_request_added_after_a_refusal_fails_with_it():
    _, book = book_with()
    cut_stream(book, an_error(Code.UNAUTHENTICATED, reason="NO_TOKEN"), book.opened())
    book.take(request_of("a"))
    assert outcomes_of(book)["a"].reason == "NO_TOKEN" and book.done


def test_due_retry_is_no_longer_waited_for():
    """Even if nothing can be sent now; otherwise the caller would poll in a busy loop."""
    clock, book = book_with("a", timeout=60.0)
    send_pending(book)
    book.hear(failure("a", after=1.0))
    assert book.wait_s() == pytest.approx(1.5)
    clock.now += 2
    book.expire()
    assert book.wait_s() == pytest.approx(58.0)
    assert book.to_open()


def test_timeout_error_states_earlier_failures():
    clock, book = book_with("a", timeout=5.0)
    send_pending(book)
    clock.now += 4.9
    book.expire()
    assert not book.outcomes
    clock.now += 0.2
    book.expire()
    assert outcomes_of(book)["a"].code is Code.DEADLINE_EXCEEDED
    book.hear(verdict("a"))  # too late
    assert not book.outcomes

    clock, book = book_with("a", timeout=5.0)
    send_pending(book)
    cut_stream(book, an_error(Code.UNAVAILABLE, reason=""))
    clock.now += 6
    book.expire()
    error = outcomes_of(book)["a"]
    assert (error.code, error.message) == (
        Code.DEADLINE_EXCEEDED,
        "There was no verdict within 5 s. Streams before ended in UNAVAILABLE: as told",
    )

    clock, book = book_with("a", timeout=5.0)
    send_pending(book)
    cut_stream(book, an_error(Code.UNAVAILABLE, reason=""))
    send_pending(book)
    book.hear(failure("a"))
    clock.now += 1
    assert send_pending(book) == ["a"]
    clock.now += 6
    book.expire()
    assert outcomes_of(book)["a"].message == (
        "There was no verdict within 5 s. It was answered before with UNAVAILABLE: as told"
    )


def test_repeated_failures_are_summarised_in_the_error():
    endings = Endings()
    assert endings.describe("Attempts") == ""
    for number in (1, 2, 3, 3, 4, 2):
        endings.add(CallError(Code.UNAVAILABLE, f"no {number}"))
    assert endings.describe("Attempts") == (
        " Attempts before ended in UNAVAILABLE: no 3 (2 times), then UNAVAILABLE: no 4, "
        "then UNAVAILABLE: no 2 (2 times)"
    )


def test_remaining_time_is_sent_to_the_server():
    clock, book = book_with("a", timeout=5.0)
    clock.now += 1
    assert book.to_send()
    assert book.send(book.opened()).timeout.ToMilliseconds() == 4000
    cut_stream(book, an_error())
    clock.now += 3
    assert book.to_send()
    assert book.send(book.opened()).timeout.ToMilliseconds() == 1000


def test_invalid_request_fails_without_ending_the_stream():
    _, book = book_with("a")
    large = judge_request(b"x" * MESSAGE_BYTES, request_id="large")
    book.take(large)
    assert outcomes_of(book)["large"].code is Code.RESOURCE_EXHAUSTED
    book.take(request_of("x" * 129))
    (error,) = outcomes_of(book).values()
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, "request_id")
    assert send_pending(book) == ["a"]


# Requests.


def test_missing_request_id_is_filled_in_on_a_copy():
    request = judge_request(b"image", text="")
    one, two = named(request), named(request)
    assert not request.request_id
    assert one.request_id and one.request_id != two.request_id
    assert (one.image, one.HasField("text")) == (b"image", True)
    with_id = judge_request(b"image", request_id="mine")
    assert named(with_id) is with_id


def test_watch_request_takes_exactly_one_id():
    assert watch_request("t", "", "", 3) == wire.WatchTrialRequest(trial_id="t", from_seq=3)
    assert watch_request("", "r", "n", 0).request == wire.RequestName(namespace="n", request_id="r")
    for both in (("", ""), ("t", "r")):
        with pytest.raises(ValueError, match="trial_id or by its request_id"):
            watch_request(*both, "", 0)


# Connections.


@pytest.mark.parametrize(
    "address", ["court.example:443", "10.0.0.1:50051", "0.0.0.0:1", "[2001:db8::1]:50051", "dns:///x:1"]
)
def test_token_is_not_sent_to_another_machine_without_tls(address):
    with pytest.raises(ValueError, match="in the clear"):
        Connection.to(address, token="secret")
    assert Connection.to(address, token="secret", allow_plain_token=True).metadata() == (
        ("authorization", "Bearer secret"),
    )
    assert Connection.to(address, token="secret", tls=Tls()).credentials is not None


@pytest.mark.parametrize("address", ["localhost:1", "127.0.0.1:1", "[::1]:1", "unix:/run/court"])
def test_token_is_sent_without_tls_on_the_same_machine(address):
    assert Connection.to(address, token="secret").metadata() == (("authorization", "Bearer secret"),)


def test_conflicting_connection_options_are_refused(tmp_path):
    with pytest.raises(ValueError, match="needs its key"):
        Tls(certificate=tmp_path / "c.pem")
    with pytest.raises(ValueError, match="needs its key"):
        Tls(key=tmp_path / "k.pem")
    with pytest.raises(ValueError, match="either credentials or tls"):
        Connection.to("localhost:1", credentials=grpc.ssl_channel_credentials(), tls=Tls())


def test_custom_channel_options_override_defaults():
    options = Connection.to(
        "localhost:1", tls=Tls(server_name="court"), options=[("grpc.max_reconnect_backoff_ms", 7)]
    ).options
    assert ("grpc.ssl_target_name_override", "court") in options
    assert [value for name, value in options if name == "grpc.max_reconnect_backoff_ms"] == [7]


def test_client_imports_only_grpc_and_protobuf():
    code = "import sys; before = set(sys.modules); import memecourt.client; print(*(set(sys.modules) - before))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    parts = {name.partition(".")[0] for name in output.split()} - set(sys.stdlib_module_names)
    # grpc itself tries to import these.
    optional = {"grpc_tools", "grpc_health", "grpc_reflection", "typing_extensions"}
    assert {name for name in parts - optional if not name.startswith(("_cython", "cython"))} == {
        "memecourt",
        "grpc",
        "grpc_status",
        "google",
    }


@pytest.mark.parametrize("name", ["roots", "certificate", "key"])
@pytest.mark.parametrize("content", [b"-----BEGIN CERTIFICATE-----", "ca.pem"])
def test_tls_refuses_anything_but_paths(name, content):
    with pytest.raises(TypeError, match=f"path of a PEM file as {name}"):
        Tls(**{name: content})


@pytest.mark.parametrize(
    ("metadata", "bound"),
    [
        ([("memecourt-at-once", "3")], 3),
        ([("other", "3"), ("memecourt-at-once", "500")], 16),
        ([("memecourt-at-once", "0")], 16),
        ([("memecourt-at-once", "many")], 16),
        ([], 16),
        (None, 16),
    ],
)
def test_pending_requests_respect_the_server_s_limit(metadata, bound):
    book = a_book(lambda: 0.0, at_once=16)

    def fill():
        while book.room():
            book.take(wire.JudgeRequest(request_id=f"{len(book._pending)}"))
        return len(book._pending)

    book.limit_until_known()
    assert fill() == 4, "a low limit until the server has stated its own"
    book.set_limit_from(metadata)
    assert fill() == max(4, bound)


def test_client_and_court_have_the_same_decisions_and_labels():
    assert list(Decision) == list(CourtDecision)
    assert list(Label) == list(CourtLabel)


@pytest.mark.parametrize("word", ["", "ALLOW", "free"])
def test_unknown_words_of_a_decision_mean_review(word):
    assert Result(wire.JudgeResponse(label=wire.LABEL_NOT_HARMFUL, decision=word)).decision is Decision.REVIEW


@pytest.mark.parametrize("label", [wire.LABEL_UNSPECIFIED, 99])
def test_unknown_labels_are_undecided(label):
    assert Result(wire.JudgeResponse(label=label)).label is Label.UNDECIDED


def test_result_has_what_a_caller_acts_on_and_the_message_itself():
    message = wire.JudgeResponse(
        label=wire.LABEL_HARMFUL,
        decision="block",
        risk=0.0,
        precedents=[wire.Precedent(id="p1")],
        review_reasons=[
            wire.Review(reason=wire.REVIEW_REASON_RISK_ABOVE_CUTOFF, detail="too risky"),
            wire.Review(reason=999, detail="new"),
        ],
    )
    result = Result(message)
    assert (result.decision, result.label, result.risk) == (Decision.BLOCK, Label.HARMFUL, 0.0)
    assert [precedent.id for precedent in result.precedents] == ["p1"]
    assert result.reasons == [Reason("RISK_ABOVE_CUTOFF", "too risky"), Reason("999", "new")]
    assert result.message is message
    assert Result(wire.JudgeResponse()).risk is None


def test_package_has_its_version():
    assert memecourt.__version__ == version("memecourt")
    assert not hasattr(memecourt, "version")
