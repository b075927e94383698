"""The client for asyncio; :mod:`memecourt.client` has the same for threads, and documents each call."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from typing import Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from memecourt.connection import Connection, Options, Tls
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
from memecourt.result import Result
from memecourt.retries import HEALTH, NOT_THERE, Attempts, Budget, Retries, connect_again_s, patient
from memecourt.v1 import court_pb2 as wire
from memecourt.v1.court_pb2_grpc import CourtStub, DocketStub, PrecedentsStub

_Request = TypeVar("_Request", bound=Message)
_Answer = TypeVar("_Answer", bound=Message)


class AsyncClient:
    """A connection to a service. Close it, or use it in an ``async with`` block."""

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
        self._channel = self._connection.open_async()
        self._court = CourtStub(self._channel)
        self._docket = DocketStub(self._channel)
        self._precedents = PrecedentsStub(self._channel)
        self._health: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(HEALTH, None, None)

    # The court

    async def judge(
        self, image: bytes | None = None, *, text: str | None = None, timeout: float = 60.0, **about: Unpack[About]
    ) -> Result:
        """See :meth:`memecourt.client.Client.judge`."""
        return Result(await self.ask(judge_request(image, text=text, **about), timeout=timeout))

    async def ask(self, request: wire.JudgeRequest, *, timeout: float = 60.0) -> wire.JudgeResponse:
        """See :meth:`memecourt.client.Client.ask`."""
        return await self._call(self._court.Judge, named(request), timeout, error=JudgeError)

    def judge_many(
        self,
        requests: Iterable[wire.JudgeRequest] | AsyncIterable[wire.JudgeRequest],
        *,
        timeout: float = 60.0,
        at_once: int = 32,
    ) -> AsyncGenerator[Outcome, None]:
        """See :meth:`memecourt.client.Client.judge_many`; ``requests`` is read in the event loop."""
        return _Stream(self, requests, timeout, at_once).outcomes()

    async def watch(
        self, trial_id: str = "", *, request_id: str = "", namespace: str = "", from_seq: int = 0
    ) -> AsyncGenerator[wire.TrialEvent, None]:
        """See :meth:`memecourt.client.Client.watch`."""
        request = watch_request(trial_id, request_id, namespace, from_seq)
        attempts = Attempts(self._retries, self._budget, None, stream=True)
        opened = self._resumed(self._court.WatchTrial, lambda: request, attempts)
        # Ends the call when the caller leaves the loop, not when the inner generator is garbage-collected.
        async with contextlib.aclosing(opened) as responses:
            async for response in responses:
                attempts.progress()
                # Before the event is yielded: a reopened stream begins after it, so each event comes once.
                request.from_seq = response.event.seq + 1
                yield response.event

    # The docket

    async def verdict(
        self, trial_id: str = "", *, request_id: str = "", namespace: str = "", timeout: float = 60.0
    ) -> wire.GetVerdictResponse:
        """See :meth:`memecourt.client.Client.verdict`."""
        return await self._call(self._court.GetVerdict, verdict_request(trial_id, request_id, namespace), timeout)

    async def trial(self, trial_id: str, *, timeout: float = 60.0) -> wire.Trial:
        """See :meth:`memecourt.client.Client.trial`."""
        return (await self._call(self._docket.GetTrial, wire.GetTrialRequest(trial_id=trial_id), timeout)).trial

    async def trials(
        self, which: wire.TrialFilter | None = None, *, page_size: int = 0, timeout: float = 60.0
    ) -> AsyncGenerator[wire.TrialSummary, None]:
        """See :meth:`memecourt.client.Client.trials`."""
        request = wire.ListTrialsRequest(page_size=page_size, filter=which)
        while True:
            page = await self._call(self._docket.ListTrials, request, timeout)
            for summary in page.trials:
                yield summary
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def export(self, which: wire.TrialFilter | None = None) -> AsyncGenerator[wire.Trial, None]:
        """See :meth:`memecourt.client.Client.export`."""
        export = Export(which)
        attempts = Attempts(self._retries, self._budget, None, stream=True)
        opened = self._resumed(self._docket.ExportTrials, export.request, attempts)
        async with contextlib.aclosing(opened) as responses:
            async for response in responses:
                attempts.progress()
                if export.is_new(response.trial):
                    yield response.trial

    async def review(self, request: wire.ReviewVerdictRequest, *, timeout: float = 60.0) -> wire.ReviewVerdictResponse:
        """See :meth:`memecourt.client.Client.review`."""
        return await self._call(self._docket.ReviewVerdict, request, timeout, changes=True)

    async def notice(self, trial_id: str, language: str = "", *, timeout: float = 60.0) -> wire.GetNoticeResponse:
        """See :meth:`memecourt.client.Client.notice`."""
        return await self._call(
            self._docket.GetNotice, wire.GetNoticeRequest(trial_id=trial_id, language=language), timeout
        )

    async def appeal(self, request: wire.OpenAppealRequest, *, timeout: float = 60.0) -> wire.OpenAppealResponse:
        """See :meth:`memecourt.client.Client.appeal`."""
        return await self._call(self._docket.OpenAppeal, request, timeout, changes=not request.reference)

    async def reviews(
        self, from_entry: int | None = None, *, overruled_only: bool = False
    ) -> AsyncGenerator[wire.WatchReviewsResponse, None]:
        """See :meth:`memecourt.client.Client.reviews`."""
        request = wire.WatchReviewsRequest(from_entry=from_entry, overruled_only=overruled_only)
        retries = patient(self._retries)
        # A separate budget: an endless call must not use up the retries of the client's other calls.
        attempts = Attempts(retries, Budget(retries), None, stream=True)
        opened = self._resumed(self._docket.WatchReviews, lambda: request, attempts)
        async with contextlib.aclosing(opened) as responses:
            async for response in responses:
                # Also from a response without a review: it says how far the log was read, which is then not read again.
                request.from_entry = response.next_entry
                if response.HasField("reviewed"):
                    attempts.progress()
                    yield response

    async def changes(
        self, entry: int, *, page_size: int = 0, timeout: float = 60.0
    ) -> AsyncGenerator[wire.AnsweredRequest, None]:
        """See :meth:`memecourt.client.Client.changes`."""
        request = wire.ListChangesRequest(entry=entry, page_size=page_size)
        while True:
            page = await self._call(self._docket.ListChanges, request, timeout)
            for each in page.requests:
                yield each
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    # The precedents

    async def search(
        self, request: wire.SearchPrecedentsRequest, *, timeout: float = 60.0
    ) -> wire.SearchPrecedentsResponse:
        """See :meth:`memecourt.client.Client.search`."""
        return await self._call(self._precedents.SearchPrecedents, request, timeout)

    async def add(self, request: wire.AddPrecedentRequest, *, timeout: float = 60.0) -> wire.AddPrecedentResponse:
        """See :meth:`memecourt.client.Client.add`."""
        if request.id:
            # The caller's id may belong to another precedent, so ALREADY_EXISTS would not prove that this one was
            # added.
            return await self._call(self._precedents.AddPrecedent, request, timeout, changes=True)
        request = named_precedent(request)
        try:
            return await self._call(self._precedents.AddPrecedent, request, timeout)
        except CallError as error:
            return added(request, error)

    async def remove(self, request: wire.RemovePrecedentRequest, *, timeout: float = 60.0) -> int:
        """See :meth:`memecourt.client.Client.remove`."""
        return (await self._call(self._precedents.RemovePrecedent, request, timeout, changes=True)).change

    async def relabel(self, request: wire.RelabelPrecedentRequest, *, timeout: float = 60.0) -> int:
        """See :meth:`memecourt.client.Client.relabel`."""
        return (await self._call(self._precedents.RelabelPrecedent, request, timeout, changes=True)).change

    async def library(self, *, timeout: float = 60.0) -> wire.GetLibraryResponse:
        """See :meth:`memecourt.client.Client.library`."""
        return await self._call(self._precedents.GetLibrary, wire.GetLibraryRequest(), timeout)

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _resumed(
        self,
        method: grpc.aio.UnaryStreamMultiCallable[_Request, _Answer],
        request: Callable[[], _Request],
        attempts: Attempts,
    ) -> AsyncGenerator[_Answer, None]:
        while True:
            call = method(request(), metadata=self._connection.metadata())
            try:
                async for response in call:
                    yield response
                return
            except grpc.RpcError as error:
                failure = CallError.of(error)
            finally:
                # Also when the caller stops reading: otherwise the server keeps the stream open.
                call.cancel()
            await self._wait_for_next(attempts, failure)

    async def _wait_for_next(self, attempts: Attempts, error: CallError) -> None:
        unreached = await self._had_to_connect(attempts.connect_within_s(error))
        await asyncio.sleep(attempts.after(error, unreached=unreached))

    async def _had_to_connect(self, within_s: float) -> bool:
        until = time.monotonic() + within_s
        for waits in itertools.count():
            if (left := until - time.monotonic()) <= 0:
                break
            try:
                await self._health(b"", timeout=left)
            except grpc.RpcError as error:
                # Any other response, even an error, shows that a server is reachable.
                if error.code() in NOT_THERE:
                    await asyncio.sleep(min(left, connect_again_s(waits)))
                    continue
            break
        return waits > 0

    async def _call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Answer],
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
                return await method(request, timeout=attempts.left(), metadata=self._connection.metadata())
            except grpc.RpcError as failed:
                failure = error.of(failed)
            await self._wait_for_next(attempts, failure)


class _Stream:
    """One ``judge_many``: a task that reads requests, tasks that hold streams, and the consumer of the outcomes."""

    def __init__(
        self,
        client: AsyncClient,
        requests: Iterable[wire.JudgeRequest] | AsyncIterable[wire.JudgeRequest],
        timeout: float,
        at_once: int,
    ) -> None:
        self._client = client
        self._requests = requests
        self._book = Book(client._retries, client._budget, timeout=timeout, at_once=at_once)
        # Few until the server says how many it works on at once: requests that queue there use up their timeout.
        self._book.limit_until_known()
        self._changed = asyncio.Condition()
        self._open = 0  # streams
        self._closed: set[int] = set()  # numbers of streams that accept no more requests
        self._stream_tasks: list[asyncio.Task[None]] = []
        self._error: Exception | None = None
        self._no_more: Exception | None = None  # error raised while reading the requests

    async def outcomes(self) -> AsyncGenerator[Outcome, None]:
        """Yields outcomes as they come. Closing the generator ends the streams, and with them the trials."""
        reading = asyncio.ensure_future(self._read())
        self._start_stream()
        try:
            while True:
                async with self._changed:
                    self._book.expire()
                    ready = list(self._book.outcomes)
                    self._book.outcomes.clear()
                    if not ready:
                        if self._book.done:
                            # A stream may still owe an answer to a timed-out request, and would not end in time.
                            if not self._book.given_up:
                                with contextlib.suppress(TimeoutError):
                                    async with asyncio.timeout(TO_END_S):
                                        await self._changed.wait_for(lambda: not self._open)
                            if (error := self._error or self._no_more or self._book.refused) is not None:
                                raise error
                            return
                        await self._wait()
                    # Delivered outcomes make room for further requests, which `_read` waits for.
                    self._changed.notify_all()
                # Outside the lock, so that streams continue while the caller processes the outcomes.
                for outcome in ready:
                    yield outcome
        finally:
            # Repeatedly: until a stream is cancelled, its `_send` may start another task.
            while tasks := [task for task in (reading, *self._stream_tasks) if not task.done()]:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self) -> None:
        """Waits until something has changed or is due; the condition is locked before and after."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._book.wait_s()):
                await self._changed.wait()

    def _start_stream(self) -> None:
        self._stream_tasks.append(asyncio.ensure_future(self._run_stream()))

    async def _read(self) -> None:
        requests = self._requests
        source = requests if isinstance(requests, AsyncIterable) else _each(requests)
        no_more: Exception | None = None
        try:
            drawn = aiter(source)
            while True:
                async with self._changed:  # wait for room before reading: every request read is taken
                    await self._changed.wait_for(lambda: self._book.refused is not None or self._book.room())
                    if self._book.refused is not None:
                        return
                try:
                    request = await anext(drawn)
                except StopAsyncIteration:
                    break
                async with self._changed:
                    self._book.take(request)
                    self._changed.notify_all()
        # `outcomes` raises it after every request taken before has had its outcome.
        except Exception as error:
            no_more = error
        async with self._changed:
            self._no_more = no_more
            self._book.closed = True
            self._changed.notify_all()

    async def _run_stream(self) -> None:
        """Opens streams one after another while there is something to send, until one has sent everything."""
        while True:
            async with self._changed:
                while not (self._book.done or self._book.to_open()):
                    await self._wait()
                if self._book.done:
                    return
                number = self._book.opened()
                self._open += 1
            try:
                ended = await self._stream(number)
            except Exception as error:
                self._error, ended = error, not_opened(error)
            async with self._changed:
                self._open -= 1
                self._book.cut(number, ended)
                self._changed.notify_all()
                # This stream has sent everything: `_send` has started another task for requests to be retried.
                if self._book.refused is not None or number in self._closed:
                    return

    async def _stream(self, number: int) -> JudgeError | None:
        """Runs one stream from its beginning to its end, and returns the error that ended it."""
        call = self._client._court.JudgeStream(metadata=self._client._connection.metadata())
        sending = asyncio.ensure_future(self._send(call, number))
        try:
            metadata = await call.initial_metadata()
            async with self._changed:
                self._book.set_limit_from(metadata)
                self._changed.notify_all()
            async for response in call:
                async with self._changed:
                    self._book.hear(response)
                    self._changed.notify_all()
            return None
        except grpc.RpcError as error:
            return JudgeError.of(error)
        except asyncio.CancelledError:
            # gRPC raises CancelledError for a closed channel too; only a cancelled task may propagate it.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return JudgeError(grpc.StatusCode.CANCELLED, "The client was closed.")
        finally:
            call.cancel()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(
        self, call: grpc.aio.StreamStreamCall[wire.JudgeStreamRequest, wire.JudgeStreamResponse], number: int
    ) -> None:
        # A stream that ends during a write fails the reader too, which reports the error.
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                async with self._changed:
                    while not (self._book.to_send() or self._book.all_sent):
                        await self._wait()
                    if self._book.all_sent:
                        # Before closing our side: requests to be retried from now on need another stream.
                        self._closed.add(number)
                        self._start_stream()
                        break
                    message = self._book.send(number)
                await call.write(message)
            await call.done_writing()


async def _each(requests: Iterable[wire.JudgeRequest]) -> AsyncIterator[wire.JudgeRequest]:
    for request in requests:
        yield request
