"""The client without a connection: when to ask again, what of a stream is owed, what goes in the clear."""

import subprocess
import sys

import grpc
import pytest

from memecourt.connection import MESSAGE_BYTES, Connection, Tls
from memecourt.errors import CallError, JudgeError
from memecourt.many import Book
from memecourt.requests import Export, judge_request, named, watch_request
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


# When to ask again


@pytest.mark.parametrize(
    ("code", "after", "again"),
    [
        (Code.UNAVAILABLE, None, True),
        (Code.UNAVAILABLE, 1.0, True),
        (Code.ABORTED, None, True),
        (Code.RESOURCE_EXHAUSTED, 1.0, True),
        (Code.RESOURCE_EXHAUSTED, None, False),  # a message over the limit stays over it
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
def test_what_is_asked_again(code, after, again):
    assert passing(an_error(code, after=after)) is again


def test_a_change_is_made_again_only_where_the_server_itself_asks_for_that():
    assert passing(an_error(after=1.0), changes=True)
    assert not passing(an_error(after=None), changes=True)
    assert not passing(an_error(after=1.0, reason=""), changes=True)
    assert not passing(an_error(Code.INTERNAL, after=1.0), changes=True)


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED])
def test_a_stream_that_a_proxy_cut_goes_on_but_our_own_faults_are_told(code):
    retries = Retries()
    stream = Attempts(retries, Budget(retries), None, stream=True)
    assert stream.after(an_error(code, reason="")) >= 0
    with pytest.raises(CallError):
        stream.after(an_error(code, reason="INTERNAL"))
    with pytest.raises(CallError):
        attempts().after(an_error(code, reason=""))  # no stream


def test_waits_double_are_drawn_from_all_of_their_span_and_stop_growing():
    for chance, expected in (
        (0.0, [0, 0, 0, 0, 0]),
        (0.5, [0.5, 1, 2, 4, 4]),
        (0.999, [0.999, 1.998, 3.996, 7.992, 7.992]),
    ):
        asked = attempts(chance=chance)
        assert [asked.after(an_error()) for _ in range(5)] == pytest.approx(expected)


def test_after_the_last_attempt_the_error_is_told():
    asked, error = attempts(retries=Retries(attempts=3)), an_error()
    asked.after(error)
    asked.after(error)
    with pytest.raises(CallError) as told:
        asked.after(error)
    assert told.value is error


def test_what_will_not_pass_is_told_at_once():
    with pytest.raises(CallError, match="INVALID_ARGUMENT: as told"):
        attempts().after(an_error(Code.INVALID_ARGUMENT))


def test_the_server_is_left_alone_as_long_as_it_wants_and_not_stormed_then():
    waits = [attempts(chance=chance).after(an_error(after=5.0)) for chance in (0.0, 0.5, 0.999)]
    assert waits == pytest.approx([5.0, 7.5, 9.995])


def test_the_deadline_is_that_of_all_attempts_together():
    clock = Clock()
    asked = attempts(10.0, clock=clock)
    assert asked.left() == 10.0
    clock.now += 4
    assert asked.left() == 6.0
    assert asked.after(an_error(after=5.0)) < 6.0  # there is time for the wait and an attempt
    with pytest.raises(CallError):
        asked.after(an_error(after=6.0))
    clock.now += 100
    assert asked.left() == 0.0
    assert attempts(None).left() is None


def test_a_server_that_can_t_be_reached_is_waited_for_within_a_bound_and_the_deadline():
    clock, gone = Clock(), an_error(reason="")
    asked = attempts(clock=clock)
    assert (asked.connect_within_s(gone), asked.connect_within_s(an_error())) == (15.0, 0.0), (
        "what has a reason, a server has said"
    )
    clock.now += 10
    assert asked.connect_within_s(gone) == 5.0
    clock.now += 10
    assert asked.connect_within_s(gone) == 0.0
    asked.progress()
    assert asked.connect_within_s(gone) == 15.0
    assert attempts(4.0).connect_within_s(gone) == 2.0
    assert attempts(changes=True).connect_within_s(gone) == 0.0, "nobody knows what came of it"
    assert attempts(retries=Retries(attempts=1)).connect_within_s(gone) == 0.0
    assert attempts().connect_within_s(an_error(Code.INTERNAL, reason="")) == 0.0


def test_waiting_for_a_connection_costs_nothing_of_the_budget():
    retries = Retries(share=0.0, spare=1.0, attempts=9)
    asked = attempts(retries=retries, budget=Budget(retries))
    for _ in range(4):
        asked.after(an_error(reason=""), unreached=True)
    asked.after(an_error())
    with pytest.raises(CallError):
        asked.after(an_error())


@pytest.mark.parametrize(("calls", "repeats"), [(0, 2), (10, 3), (1000, 102)])
def test_repeats_are_a_share_of_the_calls(calls, repeats):
    retries = Retries(share=0.1, spare=2)
    budget = Budget(retries)
    made = sum(budget.repeat() for _ in range(50))
    assert made == 2  # what is spare, once
    for _ in range(calls):
        budget.call()
        made += sum(budget.repeat() for _ in range(4))
    assert made == pytest.approx(repeats, abs=1)


def test_a_quiet_client_saves_up_no_storm():
    budget = Budget(Retries(share=0.1, spare=10))
    for _ in range(100_000):
        budget.call()
    assert sum(budget.repeat() for _ in range(100)) == 10


def test_without_a_budget_nothing_is_asked_again():
    retries = Retries(share=0, spare=0)
    asked = attempts(retries=retries)
    with pytest.raises(CallError):
        asked.after(an_error())


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
def test_retries_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match="attempts is 1 or more"):
        Retries(**wrong)


def test_a_call_that_is_put_off_for_too_long_ends_at_once():
    asked = attempts(timeout=60.0, retries=Retries(longest_told_s=5.0))
    assert asked.after(an_error(after=5.0)) >= 5.0
    with pytest.raises(CallError):
        asked.after(an_error(after=5.1))


# What of a stream is owed


def a_book(clock, *, at_once=3, timeout=10.0, retries=None):
    retries = retries or Retries(first_s=1.0, most_s=8.0)
    return Book(retries, Budget(retries), timeout=timeout, at_once=at_once, clock=clock, chance=lambda: 0.5)


def asked(name):
    return judge_request(b"image", text="x", request_id=name)


def sent(book, stream=0):
    """What is sent in a stream; in a new one, where none is given."""
    names, stream = [], stream or book.opened()
    while book.to_send():
        names.append(book.send(stream).request.request_id)
    return names


def cut(book, error, stream=0):
    """Seconds until another stream may be opened, once one has ended, the newest where none is given; None: never."""
    book.cut(stream or book._streams, error)
    return None if book.refused else max(0.0, book._not_before - book._clock())


def verdict(name):
    return wire.JudgeStreamResponse(
        request_id=name, verdict=wire.JudgeResponse(request_id=name, verdict_id=f"of {name}")
    )


def failure(name, code=Code.UNAVAILABLE, after=None, reason="BUSY"):
    told = wire.Failure(code=code.value[0], reason=reason, message="as told", field="image", trial_id="t")
    if after is not None:
        told.retry_delay.FromMilliseconds(round(1000 * after))
    return wire.JudgeStreamResponse(request_id=name, failure=told)


def taken(*names, **options):
    clock = Clock()
    book = a_book(clock, **options)
    for name in names:
        book.take(asked(name))
    return clock, book


def told(book):
    outcomes = dict(book.outcomes)
    assert len(outcomes) == len(book.outcomes)
    book.outcomes.clear()
    return outcomes


def test_a_wait_of_more_than_a_calendar_holds_is_no_error_of_the_client():
    told = wire.Failure(code=Code.UNAVAILABLE.value[0], reason="BUSY")
    told.retry_delay.seconds = 10**14
    assert JudgeError.of_failure(told).retry_after == 1e14


def test_each_request_has_the_outcome_that_bears_its_name():
    _, book = taken("a", "b")
    assert sent(book) == ["a", "b"]
    book.hear(verdict("b"))
    book.hear(failure("a", Code.INVALID_ARGUMENT, reason="PICTURE_DAMAGED"))
    book.hear(verdict("b"))  # said twice counts once
    book.hear(verdict("nobody's"))
    outcomes = told(book)
    assert outcomes["b"].verdict_id == "of b"
    error = outcomes["a"]
    assert isinstance(error, JudgeError)
    assert (error.code, error.reason, error.field) == (Code.INVALID_ARGUMENT, "PICTURE_DAMAGED", "image")
    assert (error.message, error.retry_after, error.metadata) == ("as told", None, {"trial_id": "t"})
    assert not book.done
    book.closed = True
    assert book.done


def test_an_answer_without_an_outcome_is_no_acquittal():
    _, book = taken("a")
    sent(book)
    book.hear(wire.JudgeStreamResponse(request_id="a"))
    assert told(book)["a"].code is Code.UNKNOWN
    assert JudgeError.of_failure(wire.Failure(code=77)).code is Code.UNKNOWN


def test_only_so_many_are_on_their_way_or_wait_to_be_told():
    _, book = taken("a", "b", at_once=3)
    assert book.room()
    book.take(asked("c"))
    assert not book.room()
    sent(book)
    book.hear(verdict("a"))
    assert not book.room()  # nobody has taken it yet
    told(book)
    assert book.room()


def test_what_passes_is_asked_again_when_the_server_wants_it():
    clock, book = taken("a", "b")
    sent(book)
    book.hear(failure("a", Code.RESOURCE_EXHAUSTED, after=2.0))
    assert not book.outcomes and sent(book) == []
    assert book.wait_s() == pytest.approx(3.0)
    clock.now += 2.9
    assert sent(book) == []
    clock.now += 0.2
    assert sent(book) == ["a"]
    book.hear(verdict("a"))
    assert told(book)["a"].verdict_id == "of a"


def test_our_side_of_a_stream_may_be_closed_once_all_is_sent_and_what_fails_then_is_asked_in_another():
    clock, book = taken("a", "b")
    first = book.opened()
    sent(book, first)
    assert not book.all_sent
    book.closed = True
    assert book.all_sent and not book.done
    book.hear(failure("a", after=1.0))  # whatever becomes of the other
    assert not book.all_sent and not book.to_open()
    clock.now += 2
    assert book.to_open()
    second = book.opened()
    assert sent(book, second) == ["a"] and book.all_sent
    assert cut(book, an_error(), second) > 0  # which is nothing to the first
    clock.now += 2
    assert sent(book, book.opened()) == ["a"]
    book.hear(verdict("a"))
    assert not book.done
    book.hear(verdict("b"))
    assert book.done and not book.given_up
    assert cut(book, None, first) is not None and len(told(book)) == 2


def test_a_server_that_owes_an_answer_that_nobody_waits_for_is_not_waited_for():
    clock, book = taken("a", "b")
    sent(book, 1)
    book.hear(verdict("b"))
    clock.now += 11
    book.expire()
    assert book.given_up
    book.cut(2, None)
    assert book.given_up
    book.cut(1, None)
    assert not book.given_up  # that is over


def test_what_does_not_pass_in_time_is_told_as_it_was_answered():
    _, book = taken("a")
    sent(book)
    book.hear(failure("a", after=10.0))  # beyond its deadline
    assert told(book)["a"].reason == "BUSY"
    clock, book = taken("a")
    sent(book)
    book.hear(failure("a", after=4.0))
    clock.now += 10
    assert sent(book) == []
    assert told(book)["a"].reason == "BUSY"


def test_repeats_in_a_stream_are_limited_too():
    clock, book = taken("a", timeout=1e6, retries=Retries(attempts=3, first_s=1.0))
    for _ in range(3):
        assert sent(book) == ["a"]
        book.hear(failure("a", after=1.0))
        clock.now += 100
    assert told(book)["a"].reason == "BUSY"
    clock, book = taken("a", retries=Retries(share=0, spare=0))
    sent(book)
    book.hear(failure("a", after=1.0))
    assert told(book)["a"].reason == "BUSY"


def test_after_a_cut_what_is_unanswered_is_asked_again_in_order():
    clock, book = taken("a", "b", "c", at_once=4)
    sent(book)
    book.hear(verdict("b"))
    book.take(asked("d"))
    assert cut(book, an_error(reason="", kind=JudgeError)) == pytest.approx(0.5)
    assert sent(book) == ["a", "c", "d"]
    # A connection that can't be made is tried less and less often, until an answer comes.
    assert cut(book, an_error()) == pytest.approx(1.0)
    assert [cut(book, an_error(), book.opened()) for _ in range(2)] == pytest.approx([2.0, 4.0])
    assert not book.to_open() and book.wait_s() == pytest.approx(4.0)
    clock.now += 4
    assert book.to_open()
    sent(book)
    book.hear(verdict("a"))
    assert cut(book, an_error()) == pytest.approx(0.5)
    assert cut(book, an_error(after=3.0), book.opened()) >= 3.0
    assert list(told(book)) == ["b", "a"]


def test_a_server_that_waited_long_enough_is_asked_again_without_a_wait():
    _, book = taken("a")
    sent(book)
    assert cut(book, an_error(Code.INVALID_ARGUMENT, reason="IDLE")) == 0.0
    assert sent(book) == ["a"] and not book.outcomes


def test_a_polite_end_that_leaves_requests_unanswered_is_a_cut():
    _, book = taken("a")
    assert cut(book, None) == 0.0
    sent(book)
    assert cut(book, None) > 0
    assert sent(book) == ["a"]


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.UNKNOWN, Code.CANCELLED])
def test_a_proxy_may_cut_a_stream_but_our_own_faults_are_told(code):
    _, book = taken("a", "b")
    sent(book)
    assert cut(book, an_error(code, reason="")) is not None
    assert sent(book) == ["a", "b"]
    assert cut(book, an_error(code, reason="INTERNAL")) is None
    assert {name: error.reason for name, error in told(book).items()} == {"a": "INTERNAL", "b": "INTERNAL"}


def test_no_other_stream_to_be_had_is_no_matter_of_those_that_work():
    clock, book = taken("a", "b", "c", "d")
    first = book.opened()
    sent(book, first)
    book.hear(failure("b", after=0.0))
    clock.now += 1
    second = book.opened()
    assert sent(book, second) == ["b"]
    assert cut(book, an_error(Code.UNAUTHENTICATED, reason="NO_TOKEN"), second) is None
    assert {name: error.reason for name, error in told(book).items()} == {"b": "NO_TOKEN"}
    book.hear(verdict("a"))
    book.hear(failure("c", after=0.0))  # there is nothing to ask it in
    assert {name: getattr(found, "reason", "verdict") for name, found in told(book).items()} == {
        "a": "verdict",
        "c": "BUSY",
    }
    assert not book.done
    book.cut(first, an_error())
    assert told(book)["d"].reason == "NO_TOKEN"
    assert book.done and book.refused.reason == "NO_TOKEN" and not book.to_open()


def test_what_cuts_several_streams_counts_once():
    clock, book = taken("a", "b", "c")
    for name in "abc":
        sent(book)
        book.hear(failure(name, after=0.0))
        clock.now += 1
    assert sent(book) == ["c"]
    book.take(asked("d"))
    assert sent(book) == ["d"]
    assert [cut(book, an_error(), stream) for stream in (3, 5, 2, 4)] == pytest.approx([0.5] * 4)
    clock.now += 0.5
    assert set(sent(book)) == {"a", "b", "c", "d"}
    assert cut(book, an_error()) == pytest.approx(1.0)


def test_a_server_that_wants_to_be_left_alone_is_whichever_stream_it_says_so_in():
    clock, book = taken("a", "b")
    sent(book)
    book.hear(failure("a", after=0.0))
    clock.now += 1
    sent(book)
    assert cut(book, an_error(), 1) == pytest.approx(0.5)
    assert cut(book, an_error(after=3.0), 2) >= 3.0
    assert cut(book, an_error(), book.opened()) >= 3.0  # no less because of another


def test_a_stream_that_ends_badly_once_all_is_told_is_no_matter():
    _, book = taken("a")
    sent(book)
    book.closed = True
    book.hear(verdict("a"))
    assert cut(book, an_error(Code.UNAUTHENTICATED, reason="NO_TOKEN")) is not None
    assert book.done and book.refused is None


def test_what_is_taken_when_no_stream_is_to_be_had_is_told_so():
    _, book = taken()
    cut(book, an_error(Code.UNAUTHENTICATED, reason="NO_TOKEN"), book.opened())
    book.take(asked("a"))
    assert told(book)["a"].reason == "NO_TOKEN" and book.done


def test_what_is_due_to_be_asked_again_is_waited_for_no_longer():
    """Also where nothing can be sent now: else whoever waits would ask again and again."""
    clock, book = taken("a", timeout=60.0)
    sent(book)
    book.hear(failure("a", after=1.0))
    assert book.wait_s() == pytest.approx(1.5)
    clock.now += 2
    book.expire()
    assert book.wait_s() == pytest.approx(58.0)
    assert book.to_open()


def test_no_stream_to_be_had_is_the_outcome_of_all_that_were_taken():
    _, book = taken("a", "b")
    sent(book)
    assert cut(book, an_error(Code.UNAUTHENTICATED, reason="NO_TOKEN")) is None
    outcomes = told(book)
    assert set(outcomes) == {"a", "b"}
    assert all(isinstance(error, JudgeError) and error.code is Code.UNAUTHENTICATED for error in outcomes.values())


def test_who_has_waited_long_enough_is_told_why():
    clock, book = taken("a", timeout=5.0)
    sent(book)
    clock.now += 4.9
    book.expire()
    assert not book.outcomes
    clock.now += 0.2
    book.expire()
    assert told(book)["a"].code is Code.DEADLINE_EXCEEDED
    book.hear(verdict("a"))  # too late
    assert not book.outcomes

    clock, book = taken("a", timeout=5.0)
    sent(book)
    cut(book, an_error(Code.UNAVAILABLE, reason=""))
    clock.now += 6
    book.expire()
    error = told(book)["a"]
    assert (error.code, error.message) == (
        Code.DEADLINE_EXCEEDED,
        "There was no verdict within 5 s. Streams before ended in UNAVAILABLE: as told",
    )

    clock, book = taken("a", timeout=5.0)
    sent(book)
    cut(book, an_error(Code.UNAVAILABLE, reason=""))
    sent(book)
    book.hear(failure("a"))
    clock.now += 1
    assert sent(book) == ["a"]
    clock.now += 6
    book.expire()
    assert told(book)["a"].message == (
        "There was no verdict within 5 s. It was answered before with UNAVAILABLE: as told"
    )


def test_of_what_attempts_ended_in_each_kind_is_told_once():
    endings = Endings()
    assert endings.describe("Attempts") == ""
    for number in (1, 2, 3, 3, 4, 2):
        endings.add(CallError(Code.UNAVAILABLE, f"no {number}"))
    assert endings.describe("Attempts") == (
        " Attempts before ended in UNAVAILABLE: no 3 (2 times), then UNAVAILABLE: no 4, "
        "then UNAVAILABLE: no 2 (2 times)"
    )


def test_the_server_is_told_how_long_is_left():
    clock, book = taken("a", timeout=5.0)
    clock.now += 1
    assert book.to_send()
    assert book.send(book.opened()).timeout.ToMilliseconds() == 4000
    cut(book, an_error())
    clock.now += 3
    assert book.to_send()
    assert book.send(book.opened()).timeout.ToMilliseconds() == 1000


def test_a_request_that_no_server_takes_does_not_end_the_stream_of_the_others():
    _, book = taken("a")
    large = judge_request(b"x" * MESSAGE_BYTES, request_id="large")
    book.take(large)
    assert told(book)["large"].code is Code.RESOURCE_EXHAUSTED
    book.take(asked("x" * 129))
    (error,) = told(book).values()
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, "request_id")
    assert sent(book) == ["a"]


def test_requests_that_could_not_be_told_apart():
    _, book = taken("a")
    with pytest.raises(ValueError, match="no request_id"):
        book.take(asked(""))
    with pytest.raises(ValueError, match="'a'; give each one of its own"):
        book.take(asked("a"))
    with pytest.raises(ValueError, match="at_once"):
        a_book(Clock(), at_once=0)


# Requests


def test_a_request_without_a_name_is_given_one_and_the_caller_s_is_left_as_it_is():
    request = judge_request(b"image", text="")
    one, two = named(request), named(request)
    assert not request.request_id
    assert one.request_id and one.request_id != two.request_id
    assert (one.image, one.HasField("text")) == (b"image", True)
    mine = judge_request(b"image", request_id="mine")
    assert named(mine) is mine


def test_a_trial_is_watched_by_one_name():
    assert watch_request("t", "", "", 3) == wire.WatchTrialRequest(trial_id="t", from_seq=3)
    assert watch_request("", "r", "n", 0).request == wire.RequestName(namespace="n", request_id="r")
    for both in (("", ""), ("t", "r")):
        with pytest.raises(ValueError, match="trial_id or by its request_id"):
            watch_request(*both, "", 0)


def test_an_export_goes_on_where_it_broke_off():
    which = wire.TrialFilter(namespace="forum")
    export = Export(which)
    assert export.request().filter == which

    def a_trial(name, second):
        trial = wire.Trial(summary=wire.TrialSummary(trial_id=name))
        trial.summary.opened_at.FromSeconds(second)
        return trial

    first = [a_trial("a", 1), a_trial("b", 2), a_trial("c", 2)]
    assert [export.is_new(trial) for trial in first] == [True] * 3
    again = export.request().filter
    assert (again.opened_from.seconds, again.namespace) == (2, "forum")
    assert [export.is_new(trial) for trial in (first[1], first[2], a_trial("d", 2), a_trial("e", 3))] == [
        False,
        False,
        True,
        True,
    ]
    assert not which.HasField("opened_from")  # the caller's own is left as it is


# The way there


@pytest.mark.parametrize(
    "address", ["court.example:443", "10.0.0.1:50051", "0.0.0.0:1", "[2001:db8::1]:50051", "dns:///x:1"]
)
def test_a_token_does_not_leave_the_machine_in_the_clear(address):
    with pytest.raises(ValueError, match="in the clear"):
        Connection.to(address, token="secret")
    assert Connection.to(address, token="secret", allow_plain_token=True).metadata() == (
        ("authorization", "Bearer secret"),
    )
    assert Connection.to(address, token="secret", tls=Tls()).credentials is not None


@pytest.mark.parametrize("address", ["localhost:1", "127.0.0.1:1", "[::1]:1", "unix:/run/court"])
def test_on_this_machine_it_may(address):
    assert Connection.to(address, token="secret").metadata() == (("authorization", "Bearer secret"),)


def test_a_token_that_changes_is_asked_for_each_time():
    tokens = iter("ab")
    connection = Connection.to("localhost:1", token=lambda: next(tokens), metadata=lambda: [("traceparent", "00")])
    assert connection.metadata() == (("authorization", "Bearer a"), ("traceparent", "00"))
    assert connection.metadata() == (("authorization", "Bearer b"), ("traceparent", "00"))


def test_what_does_not_go_together(tmp_path):
    with pytest.raises(ValueError, match="needs its key"):
        Tls(certificate=tmp_path / "c.pem")
    with pytest.raises(ValueError, match="needs its key"):
        Tls(key=tmp_path / "k.pem")
    with pytest.raises(ValueError, match="either credentials or tls"):
        Connection.to("localhost:1", credentials=grpc.ssl_channel_credentials(), tls=Tls())


def test_options_given_go_over_our_own():
    options = Connection.to(
        "localhost:1", tls=Tls(server_name="court"), options=[("grpc.max_reconnect_backoff_ms", 7)]
    ).options
    assert ("grpc.ssl_target_name_override", "court") in options
    assert [value for name, value in options if name == "grpc.max_reconnect_backoff_ms"] == [7]


def test_the_client_needs_nothing_but_grpc_and_protobuf():
    asked = "import sys; before = set(sys.modules); import memecourt.client; print(*(set(sys.modules) - before))"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    parts = {name.partition(".")[0] for name in said.split()} - set(sys.stdlib_module_names)
    # grpc itself looks whether these are there.
    optional = {"grpc_tools", "grpc_health", "grpc_reflection", "typing_extensions"}
    assert {name for name in parts - optional if not name.startswith(("_cython", "cython"))} == {
        "memecourt",
        "grpc",
        "grpc_status",
        "google",
    }


@pytest.mark.parametrize("name", ["roots", "certificate", "key"])
@pytest.mark.parametrize("content", [b"-----BEGIN CERTIFICATE-----", "ca.pem"])
def test_tls_takes_paths_and_says_so(name, content):
    with pytest.raises(TypeError, match=f"path of a PEM file as {name}"):
        Tls(**{name: content})


@pytest.mark.parametrize(
    ("said", "bound"),
    [
        ([("memecourt-at-once", "3")], 3),
        ([("other", "3"), ("memecourt-at-once", "500")], 16),
        ([("memecourt-at-once", "0")], 16),
        ([("memecourt-at-once", "many")], 16),
        ([], 16),
        (None, 16),
    ],
)
def test_no_more_are_on_their_way_than_the_server_works_on(said, bound):
    book = a_book(lambda: 0.0, at_once=16)

    def taken():
        while book.room():
            book.take(wire.JudgeRequest(request_id=f"{len(book._pending)}"))
        return len(book._pending)

    book.limit_until_known()
    assert taken() == 4, "few until it has said how many"
    book.set_limit_from(said)
    assert taken() == max(4, bound)
