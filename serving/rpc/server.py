"""The gRPC server, and the services' methods with what guards and counts their calls, for every transport.

Every method is authorised before it runs. Methods that are not listed here are refused to every caller, so that a
method added to the contract but forgotten here is closed rather than open.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from court.errors import CourtError
from serving.access.callers import ANYBODY, Caller, NotAllowed, Scope, Unauthenticated, set_current, unknown_token
from serving.access.tokens import Tokens
from serving.rpc.calls import abort
from serving.rpc.flow_control import MESSAGE_BYTES, WINDOWS
from serving.rpc.health import Health
from serving.telemetry import SILENT, Telemetry

if TYPE_CHECKING:
    from serving.rpc.calls import CallContext, Method

    _Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    _Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]

SCOPES: dict[str, Scope] = {
    "/memecourt.v1.Court/Judge": Scope.JUDGE,
    "/memecourt.v1.Court/JudgeStream": Scope.JUDGE,
    "/memecourt.v1.Court/WatchTrial": Scope.JUDGE,
    "/memecourt.v1.Court/GetVerdict": Scope.JUDGE,
    "/memecourt.v1.Docket/GetTrial": Scope.REVIEW,
    "/memecourt.v1.Docket/ListTrials": Scope.REVIEW,
    "/memecourt.v1.Docket/ExportTrials": Scope.REVIEW,
    "/memecourt.v1.Docket/ReviewVerdict": Scope.REVIEW,
    "/memecourt.v1.Docket/OpenAppeal": Scope.JUDGE,
    "/memecourt.v1.Docket/GetNotice": Scope.JUDGE,
    # Callers that request verdicts must learn which ones were overruled.
    "/memecourt.v1.Docket/WatchReviews": Scope.JUDGE,
    "/memecourt.v1.Docket/ListChanges": Scope.JUDGE,
    "/memecourt.v1.Precedents/SearchPrecedents": Scope.JUDGE,
    "/memecourt.v1.Precedents/GetLibrary": Scope.JUDGE,
    "/memecourt.v1.Precedents/AddPrecedent": Scope.ADMIN,
    "/memecourt.v1.Precedents/RemovePrecedent": Scope.ADMIN,
    "/memecourt.v1.Precedents/RelabelPrecedent": Scope.ADMIN,
}
"""Scope that a caller needs for each method."""
WITHOUT_TOKEN = frozenset(
    {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List", "/grpc.health.v1.Health/Watch"}
)
"""Open to callers without a token: orchestrators and load balancers have none, and health reveals nothing else."""
WITH_ANY_TOKEN = frozenset({"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"})

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

_log = logging.getLogger("memecourt.access")


class Access(grpc.aio.ServerInterceptor):
    """Lets a call through to its method, or answers it with UNAUTHENTICATED or PERMISSION_DENIED."""

    def __init__(self, tokens: Tokens | None) -> None:
        self._tokens = tokens

    def admit(self, method: str, metadata: Metadata, *, exists: bool = True) -> None:
        """Sets the caller of the current call, if it may call a method.

        Raises:
            Unauthenticated, NotAllowed: The call is refused.
        """
        caller: Caller | None = None
        try:
            caller, now = (ANYBODY, None) if self._tokens is None else _caller(self._tokens, metadata)
            if exists:
                _check(caller, method)
        except (Unauthenticated, NotAllowed) as error:
            method = method if method in SCOPES else "another"  # the caller may send any text
            _log.warning("refused method=%s caller=%s reason=%s", method, caller.name if caller else "", error.reason)
            raise
        set_current(caller, now)

    async def intercept_service(self, continuation: _Continuation, details: grpc.HandlerCallDetails) -> _Handler | None:
        """Returns the method's handler, or one that refuses the call."""
        handler = await continuation(details)
        if details.method not in WITHOUT_TOKEN:
            try:
                self.admit(details.method, tuple(details.invocation_metadata or ()), exists=handler is not None)
            except (Unauthenticated, NotAllowed) as error:
                return _refusing(error)
        return handler


def _caller(tokens: Tokens, metadata: Metadata) -> tuple[Caller, Callable[[], Caller | None]]:
    """Returns the caller, and a function that looks up the same token again."""
    values = [value for key, value in metadata if key == "authorization"]
    if not values:
        raise Unauthenticated(
            'This server wants to know who calls: send a token, as metadata "authorization: Bearer TOKEN".',
            reason="TOKEN_MISSING",
        )
    scheme, _, token = str(values[0]).partition(" ")
    # Two headers are refused: this server and a proxy might otherwise read different ones.
    if len(values) > 1 or scheme.lower() != "bearer" or not token:
        raise Unauthenticated(
            'One token is wanted, as metadata "authorization: Bearer TOKEN".', reason="TOKEN_MALFORMED"
        )
    token = token.strip()
    caller = tokens.caller(token)
    if caller is None:
        raise unknown_token()
    # Re-evaluated during a call: revoking a token ends its open streams (GR-1).
    return caller, lambda: tokens.caller(token)


def _check(caller: Caller, method: str) -> None:
    if method in WITH_ANY_TOKEN:
        return
    scope = SCOPES.get(method)
    if scope is None:
        raise NotAllowed("Nobody may call this method: it has no scope.", reason="METHOD_NOT_OPEN")
    if scope not in caller.scopes:
        raise NotAllowed(f"This token has not the scope {scope}, which the method needs.", reason="SCOPE_MISSING")


def _refusing(error: CourtError) -> _Handler:
    """Returns a handler that refuses a call of any kind without reading its requests."""

    async def refuse(_: object, context: CallContext) -> NoReturn:
        await abort(context, error)

    handler: _Handler = grpc.stream_stream_rpc_method_handler(refuse)
    return handler


class Service(Protocol):
    """A service that a server offers."""

    methods: Mapping[str, Method[Any]]

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the gRPC handler of its methods."""


class Methods:
    """The methods of services, and the interceptors that count and authorise their calls over gRPC."""

    def __init__(self, *services: Service, tokens: Tokens | None = None, telemetry: Telemetry = SILENT) -> None:
        self.access = Access(tokens)
        self.telemetry = telemetry
        self._services = services
        self.handlers = [service.handler() for service in services]
        # Telemetry comes first, so that calls refused by Access are counted too.
        self.interceptors: Sequence[grpc.aio.ServerInterceptor] = (*telemetry.interceptors(), self.access)

    def __getitem__(self, name: str) -> Method[Any]:
        """Returns the method of a name, ``Judge``; no two services have one of the same name."""
        return next(service.methods[name] for service in self._services if name in service.methods)


_MAX_PENDING = 32_768
"""Maximum number of calls queued before this process has accepted them, 15 KiB each; beyond, calls are cancelled."""


_ALIVE = (
    ("grpc.keepalive_time_ms", 60_000),  # notices callers whose machine is gone
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # without it the timeout above is raised to a minute
    # Clients ping every 30 s even when idle; by default the library closes connections that are pinged more often than
    # every five minutes.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
"""Server options for idle connections."""


_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


async def make_server(methods: Methods, *, reflect: bool = True) -> tuple[grpc.aio.Server, Health]:
    """Builds a server with these methods, health and reflection; it does not listen yet and reports NOT_SERVING."""
    health = Health()
    server = grpc.aio.server(
        interceptors=methods.interceptors,
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_send_message_length", MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),  # an occupied port is an error instead of being shared
            ("grpc.max_concurrent_streams", 128),  # bounds what a rapid-reset attack can cost per connection
            # Calls that were cancelled at once are queued ahead of honest ones, which should wait until their own
            # deadline: by default the library cancels calls that were not accepted for 30 s.
            ("grpc.server_max_unrequested_time_in_server", 3600),
            # By default the library cancels calls at random from 1,000 queued ones on, and all from 3,000 on.
            ("grpc.server.max_pending_requests", _MAX_PENDING),
            ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
            ("grpc.server_handshake_timeout_ms", 10_000),  # closes silent connections
            *_ALIVE,
            *WINDOWS,
        ],
    )
    server.add_generic_rpc_handlers(methods.handlers)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if reflect:
        names = [*(name for name in health.services if name.startswith("memecourt.")), _HEALTH, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, server)
    return server, health
