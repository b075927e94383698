"""A server of the contract that does as it is told, on a real socket: for tests that are about who asks it."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from memecourt.v1 import court_pb2 as wire
from memecourt.v1 import court_pb2_grpc


class Refusal(Exception):
    """An error that a call of the fake court ends with."""

    def __init__(self, code: str, *, after: float | None = None, reason: str = "AS_TOLD", bare: bool = False) -> None:
        super().__init__(code)
        status = status_pb2.Status(code=code_pb2.Code.Value(code), message="as told")
        details = [] if bare else [error_details_pb2.ErrorInfo(reason=reason, domain="memecourt.v1")]
        if after is not None:
            delay = Duration()
            delay.FromMilliseconds(round(1000 * after))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        for detail in details:
            packed = AnyMessage()
            packed.Pack(detail)
            status.details.append(packed)
        self.status = rpc_status.to_status(status)


class FakeCourt(court_pb2_grpc.CourtServicer, court_pb2_grpc.DocketServicer, court_pb2_grpc.PrecedentsServicer):
    """Asks ``answer`` what to do about each call: it returns the answer or raises a :class:`Refusal`.

    ``calls`` counts them by method, ``asked`` has their requests in order, ``at`` when they came (monotonic, seconds),
    ``left`` what was left of their deadlines (seconds), ``metadata`` what came with them.
    """

    def __init__(self, answer: Callable | None = None) -> None:
        self.answer = answer or (lambda method, request, number: self.verdict(request))
        self.stream: Callable | None = None
        self.calls: Counter[str] = Counter()
        self.asked: list = []
        self.at: list[float] = []
        self.left: list[float | None] = []
        self.metadata: list[dict] = []
        self.trials: Counter[str] = Counter()
        self._lock = threading.Lock()

    def verdict(self, request: wire.JudgeRequest) -> wire.JudgeResponse:
        """Returns a verdict; like the real court, it tries each request_id once."""
        with self._lock:
            if not self.trials[request.request_id]:
                self.trials[request.request_id] += 1
        return wire.JudgeResponse(
            verdict_id=f"of {request.request_id}",
            request_id=request.request_id,
            label=wire.LABEL_NOT_HARMFUL,
            decision="allow",
        )

    def _note(self, method: str, request, context) -> int:
        with self._lock:
            self.calls[method] += 1
            self.asked.append(request)
            self.at.append(time.monotonic())
            self.left.append(context.time_remaining())
            self.metadata.append({item.key: item.value for item in context.invocation_metadata()})
            return self.calls[method]

    def _one(self, method: str, request, context):
        try:
            return self.answer(method, request, self._note(method, request, context))
        except Refusal as refusal:
            context.abort_with_status(refusal.status)

    def _many(self, method: str, request, context):
        try:
            yield from self.answer(method, request, self._note(method, request, context))
        except Refusal as refusal:
            context.abort_with_status(refusal.status)

    def JudgeStream(self, requests, context):
        number = self._note("JudgeStream", None, context)
        try:
            yield from self.stream(requests, number, context)
        except Refusal as refusal:
            context.abort_with_status(refusal.status)


def _unary(method: str):
    return lambda self, request, context: self._one(method, request, context)


def _streamed(method: str):
    return lambda self, request, context: self._many(method, request, context)


for _name in (
    "Judge", "GetVerdict", "GetTrial", "ListTrials", "ReviewVerdict", "OpenAppeal", "GetNotice", "ListChanges",
    "SearchPrecedents", "AddPrecedent", "RemovePrecedent", "RelabelPrecedent", "GetLibrary",
):  # fmt: skip
    setattr(FakeCourt, _name, _unary(_name))
for _name in ("WatchTrial", "ExportTrials", "WatchReviews"):
    setattr(FakeCourt, _name, _streamed(_name))


@contextmanager
def an_address() -> Iterator[str]:
    """Reserves an address for :func:`listening`, so that no other process gets its port in between."""
    with socket.socket() as reserved:
        # Bound for as long: a port that is let go may be another's before a server comes to it. Sockets with this
        # option share a port, and of these only one that listens is connected to.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


def listening(court: FakeCourt, address: str = "127.0.0.1:0", credentials=None) -> tuple[grpc.Server, str]:
    """A running server, and where it listens; the address may be one of :func:`an_address`."""
    # Callers may ask often whether it is there: tests are in a hurry.
    shared = int(not address.endswith(":0"))
    options = [("grpc.so_reuseport", shared), ("grpc.http2.min_ping_interval_without_data_ms", 100)]
    server = grpc.server(ThreadPoolExecutor(16), options=options)
    court_pb2_grpc.add_CourtServicer_to_server(court, server)
    court_pb2_grpc.add_DocketServicer_to_server(court, server)
    court_pb2_grpc.add_PrecedentsServicer_to_server(court, server)
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    return server, f"127.0.0.1:{port}"


@contextmanager
def served(court: FakeCourt, credentials=None) -> Iterator[str]:
    """The address of a server that is there for as long."""
    server, address = listening(court, credentials=credentials)
    try:
        yield address
    finally:
        server.stop(0).wait()
