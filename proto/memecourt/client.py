"""Typed clients of a MemeCourt service, for threads and for asyncio: verdicts, records and precedents.

    >>> with Client("localhost:50051") as court:                              # doctest: +SKIP
    ...     result = court.judge(Path("meme.png").read_bytes(), timeout=30)
    ...     if result.decision == "review":
    ...         print(result.reasons)

Only the decision ``allow`` is an acquittal: ``block``, ``review`` and an error are not. ``result.message`` is the whole
response.

Transient errors are retried (:mod:`memecourt.retries`) within the timeout of the call. A request without a request_id
gets one, the same for all attempts, so that a verdict is paid for once.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from memecourt.aio import AsyncClient
from memecourt.connection import MESSAGE_BYTES, Connection, Options, Tls
from memecourt.errors import CallError, JudgeError
from memecourt.many import TO_END_S, Book, Outcome, not_opened
from memecourt.requests import (
    About,
    Export,
    added,
    judge_request,
    named,
    named_precedent,
    verdict_request,
    watch_request,
)
from memecourt.result import Decision, Label, Result
from memecourt.retries import HEALTH, NOT_THERE, Attempts, Budget, Retries, connect_again_s, patient
from memecourt.v1 import court_pb2 as wire
from memecourt.v1.court_pb2_grpc import CourtStub, DocketStub, PrecedentsStub

__all__ = [
    "MESSAGE_BYTES",
    "AsyncClient",
    "CallError",
    "Client",
    "Decision",
    "JudgeError",
    "Label",
    "Result",
    "Retries",
    "Tls",
    "judge_request",
]

_Request = TypeVar("_Request", bound=Message)
_Answer = TypeVar("_Answer", bound=Message)


class Client:
    """A connection to a service; safe to use from several threads. Close it, or use it in a ``with`` block."""

    def __init__(
        self,
        address: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        tls: Tls | None = None,
        token: str | Callable[[], str] | None = None,
        allow_plain_token: bool = False,
        metadata: Callable[[], Sequence[tuple[str, str]]] | None = None,
        options: Options = (),
        retries: Retries | None = None,
    ) -> None:
        """Connects at the first call.

        Args:
            address: ``host:port``, or ``unix:PATH``.
            tls: TLS options; without these and ``credentials``, nothing is encrypted.
            token: Token of the caller, sent with each call; or a function that returns it, called before each.
            allow_plain_token: True to send the token to another machine without TLS, because something else encrypts.
            metadata: Function that returns further metadata, such as ``traceparent``; called before each call.

        Raises:
            ValueError: Arguments contradict each other.
        """
        self._connection = Connection.to(
            address,
            credentials=credentials,
            tls=tls,
            token=token,
            allow_plain_token=allow_plain_token,
            metadata=metadata,
            options=options,
        )
        self._retries = retries or Retries()
        self._budget = Budget(self._retries)
        self._closed = False
        self._channel = self._connection.open()
        self._court = CourtStub(self._channel)
        self._docket = DocketStub(self._channel)
        self._precedents = PrecedentsStub(self._channel)
        self._health: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(HEALTH, None, None)

    # The court

    def judge(
        self, image: bytes | None = None, *, text: str | None = None, timeout: float = 60.0, **about: Unpack[About]
    ) -> Result:
        """Asks for a verdict on a meme, or on a text alone.

        Args:
            image: The picture file: JPEG, PNG, WebP or GIF; None to have the text judged alone.
            text: Text of the meme; None to have it read off the picture, ``""`` if it has none.
            about: Further fields of the request, such as ``request_id``, ``language`` and ``namespace``: those of
                :func:`~memecourt.requests.judge_request`.
            timeout: Seconds for all attempts together; when they have passed, the trial stops.

        Raises:
            JudgeError: There is no verdict.
            ValueError: The picture has no bytes and there is a text.
        """
        return Result(self.ask(judge_request(image, text=text, **about), timeout=timeout))

    def ask(self, request: wire.JudgeRequest, *, timeout: float = 60.0) -> wire.JudgeResponse:
        """Like :meth:`judge`, in messages: for a request made by :func:`judge_request` or by hand."""
        return self._call(self._court.Judge, named(request), timeout, error=JudgeError)

    def judge_many(
        self, requests: Iterable[wire.JudgeRequest], *, timeout: float = 60.0, at_once: int = 32
    ) -> Generator[Outcome, None, None]:
        """Judges memes in one stream, and yields each outcome as soon as it is ready, in any order.

        Every request that is read has exactly one outcome: a verdict, or the error that Judge would have ended with. If
        a connection breaks, another one is opened, and unanswered requests are sent again.

        Args:
            requests: Requests, each with a request_id of its own; read in a separate thread, as outcomes are taken.
            timeout: Seconds that each may take, from when it is read from ``requests``.
            at_once: Maximum number of requests in flight; fewer if the server says that it works on fewer at once.

        Returns:
            Pairs of request_id and outcome.

        Raises:
            JudgeError: No further stream can be opened, now or later (for example without a token). Before that, each
                request that was read and that no working stream carries has had this error as its outcome.
            ValueError: ``timeout`` or ``at_once`` is out of range; or a request has no request_id, or that of another
                request in flight. Like an error of ``requests`` itself, this is raised once all requests read before
                have had their outcome.
        """
        return _Stream(self, requests, timeout, at_once).outcomes()

    def watch(
        self, trial_id: str = "", *, request_id: str = "", namespace: str = "", from_seq: int = 0
    ) -> Generator[wire.TrialEvent, None, None]:
        """Yields the events of a trial until its end, each once, even if connections break; new ones as they happen.

        Args:
            trial_id: Id of the trial; empty to name it by its request.
            namespace: Namespace of that request's content.

        Raises:
            CallError: There is no such trial (NOT_FOUND), or it can't be watched.
        """
        request = watch_request(trial_id, request_id, namespace, from_seq)
        attempts = Attempts(self._retries, self._budget, None, stream=True)
        for response in self._resumed(self._court.WatchTrial, lambda: request, attempts):
            attempts.progress()
            # Before the event is yielded: a reopened stream begins after it, so each event comes once.
            request.from_seq = response.event.seq + 1
            yield response.event

    def verdict(
        self, trial_id: str = "", *, request_id: str = "", namespace: str = "", timeout: float = 60.0
    ) -> wire.GetVerdictResponse:
        """Returns the current state of a trial, and its verdict if it has one, without waiting.

        Args:
            trial_id: Id of the trial; empty to name it by its request.
            namespace: Namespace of that request's content.

        Raises:
            CallError: There is no such trial, or it has not begun (NOT_FOUND).
        """
        return self._call(self._court.GetVerdict, verdict_request(trial_id, request_id, namespace), timeout)

    # The docket

    def trial(self, trial_id: str, *, timeout: float = 60.0) -> wire.Trial:
        """Returns a trial with all of its events.

        Raises:
            CallError: There is no trial of that id (NOT_FOUND).
        """
        return self._call(self._docket.GetTrial, wire.GetTrialRequest(trial_id=trial_id), timeout).trial

    def trials(
        self, which: wire.TrialFilter | None = None, *, page_size: int = 0, timeout: float = 60.0
    ) -> Generator[wire.TrialSummary, None, None]:
        """Yields trials, newest first; pages are fetched as needed, each within the timeout."""
        request = wire.ListTrialsRequest(page_size=page_size, filter=which)
        while True:
            page = self._call(self._docket.ListTrials, request, timeout)
            yield from page.trials
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def export(self, which: wire.TrialFilter | None = None) -> Generator[wire.Trial, None, None]:
        """Yields trials with all of their events, the first opened first; each once, even if connections break."""
        export = Export(which)
        attempts = Attempts(self._retries, self._budget, None, stream=True)
        for response in self._resumed(self._docket.ExportTrials, export.request, attempts):
            attempts.progress()
            if export.is_new(response.trial):
                yield response.trial

    def review(self, request: wire.ReviewVerdictRequest, *, timeout: float = 60.0) -> wire.ReviewVerdictResponse:
        """Upholds or overrules a verdict.

        Like all calls that change something, it is retried only if the server itself asks for that: after a broken
        connection, check whether the review was stored.

        Returns:
            The trial's summary, and the precedent that was asked for, or why the library did not take it
            (``precedent_failure``): the review stands either way.
        """
        return self._call(self._docket.ReviewVerdict, request, timeout, changes=True)

    def notice(self, trial_id: str, language: str = "", *, timeout: float = 60.0) -> wire.GetNoticeResponse:
        """Returns what to tell those whose content was decided on, in plain words (``en``, ``de``)."""
        return self._call(self._docket.GetNotice, wire.GetNoticeRequest(trial_id=trial_id, language=language), timeout)

    def appeal(self, request: wire.OpenAppealRequest, *, timeout: float = 60.0) -> wire.OpenAppealResponse:
        """Opens an appeal against a verdict; with a ``reference`` the call is retried, and opens one appeal."""
        return self._call(self._docket.OpenAppeal, request, timeout, changes=not request.reference)

    def reviews(
        self, from_entry: int | None = None, *, overruled_only: bool = False
    ) -> Generator[wire.WatchReviewsResponse, None, None]:
        """Yields reviews of verdicts in the order in which they were stored, and new ones, without an end.

        After a broken connection it continues where it was, however long that takes (``Retries(attempts=1)``: never).
        To continue after a restart, store ``next_entry`` of the last response that you have processed.

        Args:
            from_entry: Entry of the log to begin with, 0 for all past reviews; None for new ones only.
            overruled_only: True to leave out reviews that upheld the verdict.

        Returns:
            Responses that hold a review, under ``reviewed``.

        Raises:
            CallError: Reviews can't be watched, for example without a token, or the log ends before ``from_entry``
                (OUT_OF_RANGE).
        """
        request = wire.WatchReviewsRequest(from_entry=from_entry, overruled_only=overruled_only)
        retries = patient(self._retries)
        # A separate budget: an endless call must not use up the retries of the client's other calls.
        attempts = Attempts(retries, Budget(retries), None, stream=True)
        for response in self._resumed(self._docket.WatchReviews, lambda: request, attempts):
            # Also from a response without a review: it says how far the log was read, which is then not read again.
            request.from_entry = response.next_entry
            if response.HasField("reviewed"):
                attempts.progress()
                yield response

    def changes(
        self, entry: int, *, page_size: int = 0, timeout: float = 60.0
    ) -> Generator[wire.AnsweredRequest, None, None]:
        """Yields the requests that were given a verdict on a content before a review of it, page by page.

        Args:
            entry: Entry of the log that holds the review, as ``reviewed.entry`` of :meth:`reviews`.

        Raises:
            CallError: There is no review in that entry, or its trial has been erased (NOT_FOUND).
        """
        request = wire.ListChangesRequest(entry=entry, page_size=page_size)
        while True:
            page = self._call(self._docket.ListChanges, request, timeout)
            yield from page.requests
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    # The precedents

    def search(self, request: wire.SearchPrecedentsRequest, *, timeout: float = 60.0) -> wire.SearchPrecedentsResponse:
        """Returns the precedents most similar to a text, a picture or both."""
        return self._call(self._precedents.SearchPrecedents, request, timeout)

    def add(self, request: wire.AddPrecedentRequest, *, timeout: float = 60.0) -> wire.AddPrecedentResponse:
        """Adds a labelled meme to the library.

        A precedent without an id gets one here, the same for all attempts: the call is then also retried after a
        broken connection, and the precedent added once. With an id of yours it is retried like all calls that change
        something: see :meth:`review`.

        Returns:
            Its id, and the number of the change; 0 if an attempt added it whose answer was lost.

        Raises:
            CallError: The precedent was not added, or its fate is unknown (UNAVAILABLE, DEADLINE_EXCEEDED).
        """
        if request.id:
            # The caller's id may belong to another precedent, so ALREADY_EXISTS would not prove that this one was
            # added.
            return self._call(self._precedents.AddPrecedent, request, timeout, changes=True)
        request = named_precedent(request)
        try:
            return self._call(self._precedents.AddPrecedent, request, timeout)
        except CallError as error:
            return added(request, error)

    def remove(self, request: wire.RemovePrecedentRequest, *, timeout: float = 60.0) -> int:
        """Removes a meme from the library; returns the number of the change."""
        return self._call(self._precedents.RemovePrecedent, request, timeout, changes=True).change

    def relabel(self, request: wire.RelabelPrecedentRequest, *, timeout: float = 60.0) -> int:
        """Gives a meme of the library another label; returns the number of the change."""
        return self._call(self._precedents.RelabelPrecedent, request, timeout, changes=True).change

    def library(self, *, timeout: float = 60.0) -> wire.GetLibraryResponse:
        """Returns a description of the library in use."""
        return self._call(self._precedents.GetLibrary, wire.GetLibraryRequest(), timeout)

    def close(self) -> None:
        """Closes the connection."""
        # First: a stream that breaks by the close must not be opened again.
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resumed(
        self,
        method: grpc.UnaryStreamMultiCallable[_Request, _Answer],
        request: Callable[[], _Request],
        attempts: Attempts,
    ) -> Generator[_Answer, None, None]:
        while True:
            call = method(request(), metadata=self._connection.metadata())
            try:
                yield from call
                return
            except grpc.RpcError as error:
                failure = CallError.of(error)
            finally:
                # Also when the caller stops reading: otherwise the server keeps the stream open.
                call.cancel()
            if self._closed:
                raise failure  # a closed channel looks like a proxy's reset, but must not be retried
            self._wait_for_next(attempts, failure)

    def _wait_for_next(self, attempts: Attempts, error: CallError) -> None:
        """Waits for the next attempt; first for a connection, if no server can be reached.

        Raises:
            CallError: The error of the last attempt, if there will be no other.
        """
        unreached = self._had_to_connect(attempts.connect_within_s(error))
        time.sleep(attempts.after(error, unreached=unreached))

    def _had_to_connect(self, within_s: float) -> bool:
        """Waits at most ``within_s`` for a reachable server; False if one was reachable at once."""
        until = time.monotonic() + within_s
        for waits in itertools.count():
            if (left := until - time.monotonic()) <= 0:
                break
            try:
                self._health(b"", timeout=left)
            except grpc.RpcError as error:
                # Any other response, even an error, shows that a server is reachable.
                if error.code() in NOT_THERE:
                    time.sleep(min(left, connect_again_s(waits)))
                    continue
            break
        return waits > 0

    def _call(
        self,
        method: grpc.UnaryUnaryMultiCallable[_Request, _Answer],
        request: _Request,
        timeout: float,
        *,
        changes: bool = False,
        error: type[CallError] = CallError,
    ) -> _Answer:
        attempts = Attempts(self._retries, self._budget, timeout, changes=changes)
        while True:
            try:
                # The timeout covers all attempts, so each gets what is left; the token may have changed in between.
                return method(request, timeout=attempts.left(), metadata=self._connection.metadata())
            except grpc.RpcError as failed:
                failure = error.of(failed)
            self._wait_for_next(attempts, failure)


class _Stream:
    """One ``judge_many``: a thread that reads the requests, threads that run streams, and the consumer of outcomes."""

    def __init__(self, client: Client, requests: Iterable[wire.JudgeRequest], timeout: float, at_once: int) -> None:
        self._client = client
        self._requests = requests
        self._book = Book(client._retries, client._budget, timeout=timeout, at_once=at_once)
        # Few until the server says how many it works on at once: requests that queue there use up their timeout.
        self._book.limit_until_known()
        self._changed = threading.Condition()  # guards the fields below, and the book
        self._open: dict[int, grpc.Call] = {}  # streams by number
        self._closed: set[int] = set()  # numbers of streams that accept no more requests
        self._stream_threads: list[threading.Thread] = []
        self._stopped = False
        self._error: BaseException | None = None
        self._no_more: BaseException | None = None  # error raised while reading the requests

    def outcomes(self) -> Generator[Outcome, None, None]:
        """Yields outcomes as they come. Closing the generator ends the streams, and with them the trials."""
        # Not joined at the end: it may be blocked in the caller's iterator, and ends when that yields.
        threading.Thread(target=self._read, daemon=True).start()
        self._start_stream()
        try:
            while True:
                with self._changed:
                    self._book.expire()
                    ready = list(self._book.outcomes)
                    self._book.outcomes.clear()
                    if not ready:
                        if self._book.done:
                            # A stream may still owe an answer to a timed-out request, and would not end in time.
                            if not self._book.given_up:
                                self._changed.wait_for(lambda: not self._open, TO_END_S)
                            if (error := self._error or self._no_more or self._book.refused) is not None:
                                raise error
                            return
                        self._changed.wait(self._book.wait_s())
                    # Delivered outcomes make room for further requests, which `_read` waits for.
                    self._changed.notify_all()
                # Outside the lock, so that streams continue while the caller processes the outcomes.
                yield from ready
        finally:
            with self._changed:
                self._stopped = True
                for call in self._open.values():
                    call.cancel()
                self._changed.notify_all()
            for thread in self._stream_threads:  # no new ones start: all have been told to stop
                thread.join()

    def _start_stream(self) -> None:
        thread = threading.Thread(target=self._run_stream, daemon=True)
        self._stream_threads.append(thread)
        thread.start()

    def _read(self) -> None:
        no_more: BaseException | None = None
        try:
            requests = iter(self._requests)
            while True:
                with self._changed:  # wait for room before reading: every request read is taken
                    self._changed.wait_for(lambda: self._stopped or self._book.refused or self._book.room())
                    if self._stopped or self._book.refused is not None:
                        return
                try:
                    request = next(requests)
                except StopIteration:
                    break
                with self._changed:
                    self._book.take(request)
                    self._changed.notify_all()
        # `outcomes` raises it after every request taken before has had its outcome.
        except BaseException as error:
            no_more = error
        with self._changed:
            self._no_more = no_more
            self._book.closed = True
            self._changed.notify_all()

    def _run_stream(self) -> None:
        """Opens streams one after another while there is something to send, until one has sent everything."""
        while True:
            with self._changed:
                while not (self._stopped or self._book.done or self._book.to_open()):
                    self._changed.wait(self._book.wait_s())
                if self._stopped or self._book.done:
                    return
                number = self._book.opened()
            try:
                ended = self._stream(number)
            except BaseException as error:
                self._error, ended = error, not_opened(error)
            with self._changed:
                self._open.pop(number, None)
                self._book.cut(number, ended)
                self._changed.notify_all()
                # This stream has sent everything: `_messages` has started another thread for requests to be retried.
                if self._stopped or self._book.refused is not None or number in self._closed:
                    return

    def _stream(self, number: int) -> JudgeError | None:
        """Runs one stream from its beginning to its end, and returns the error that ended it."""
        metadata = self._client._connection.metadata()  # outside the lock: a token function may be slow
        over = threading.Event()
        call = self._client._court.JudgeStream(self._messages(over, number), metadata=metadata)
        with self._changed:
            self._open[number] = call
            # `outcomes` cancelled the streams known to it; this one was opened at the same moment.
            if self._stopped:
                call.cancel()
        try:
            initial = call.initial_metadata()
            with self._changed:
                self._book.set_limit_from(initial)
                self._changed.notify_all()
            for response in call:
                with self._changed:
                    self._book.hear(response)
                    self._changed.notify_all()
            return None
        except grpc.RpcError as error:
            return JudgeError.of(error)
        finally:
            with self._changed:
                # gRPC's thread may still wait in `_messages`, and must not take a request for a finished stream.
                over.set()
                self._changed.notify_all()

    def _messages(self, over: threading.Event, number: int) -> Iterator[wire.JudgeStreamRequest]:
        """Yields the requests of one stream; gRPC reads them in a thread of its own."""
        while True:
            with self._changed:
                while not (over.is_set() or self._stopped or self._book.to_send() or self._book.all_sent):
                    self._changed.wait(self._book.wait_s())
                if over.is_set() or self._stopped:
                    return
                if self._book.all_sent:
                    self._closed.add(number)
                    self._start_stream()
                    return
                message = self._book.send(number)
            yield message
