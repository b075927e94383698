"""Authorisation of every method, checked before it runs.

What is not named here is refused, whoever calls: a method that somebody adds to the contract, and forgets here, can be
called by nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import grpc

from court.errors import CourtError
from serving.access.callers import ANYBODY, Caller, NotAllowed, Scope, Unauthenticated, set_current, unknown_token
from serving.access.tokens import Tokens
from serving.rpc.calls import abort

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
    # Who asks for verdicts must hear which do not hold any more.
    "/memecourt.v1.Docket/WatchReviews": Scope.JUDGE,
    "/memecourt.v1.Precedents/SearchPrecedents": Scope.JUDGE,
    "/memecourt.v1.Precedents/GetLibrary": Scope.JUDGE,
    "/memecourt.v1.Precedents/AddPrecedent": Scope.ADMIN,
    "/memecourt.v1.Precedents/RemovePrecedent": Scope.ADMIN,
    "/memecourt.v1.Precedents/RelabelPrecedent": Scope.ADMIN,
}
"""What a caller needs for a method."""
WITHOUT_TOKEN = frozenset(
    {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List", "/grpc.health.v1.Health/Watch"}
)
"""Orchestrators and load balancers have no token; health tells nothing but whether there is any."""
WITH_ANY_TOKEN = frozenset({"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"})

_log = logging.getLogger("memecourt.access")

if TYPE_CHECKING:
    from serving.service_call import ServiceCall

    _Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    _Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]


class Access(grpc.aio.ServerInterceptor):
    """Lets a call through to its method, or answers it with UNAUTHENTICATED or PERMISSION_DENIED."""

    def __init__(self, tokens: Tokens | None) -> None:
        """Args: the tokens in force; None for a server that knows no callers."""
        self._tokens = tokens

    async def intercept_service(self, continuation: _Continuation, details: grpc.HandlerCallDetails) -> _Handler | None:
        """The method's handler, or one that refuses."""
        if details.method in WITHOUT_TOKEN:
            return await continuation(details)
        caller: Caller | None = None
        try:
            caller, now = (ANYBODY, None) if self._tokens is None else _caller(self._tokens, details)
            handler = await continuation(details)
            if handler is None:
                return handler  # there is no such method: the library says so
            _check(caller, details.method)
        except (Unauthenticated, NotAllowed) as error:
            method = details.method if details.method in SCOPES else "another"  # it is whatever the caller sent
            _log.warning("refused method=%s caller=%s reason=%s", method, caller.name if caller else "", error.reason)
            return _refusing(error)
        set_current(caller, now)
        return handler


def _caller(tokens: Tokens, details: grpc.HandlerCallDetails) -> tuple[Caller, Callable[[], Caller | None]]:
    """Returns the caller, and a function that returns the current caller of the same token."""
    metadata: Sequence[tuple[str, str | bytes]] = tuple(details.invocation_metadata or ())
    values = [value for key, value in metadata if key == "authorization"]
    if not values:
        raise Unauthenticated(
            'This server wants to know who calls: send a token, as metadata "authorization: Bearer TOKEN".',
            reason="TOKEN_MISSING",
        )
    scheme, _, token = str(values[0]).partition(" ")
    # Two headers are refused, or what counts would depend on who reads them, here or at a proxy.
    if len(values) > 1 or scheme.lower() != "bearer" or not token:
        raise Unauthenticated(
            'One token is wanted, as metadata "authorization: Bearer TOKEN".', reason="TOKEN_MALFORMED"
        )
    token = token.strip()
    caller = tokens.caller(token)
    if caller is None:
        raise unknown_token()
    # Evaluated again while a call goes on: a token that is taken out ends its open streams (GR-1).
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
    """Answers a call of any form without reading what it sends."""

    async def refuse(_: object, context: ServiceCall) -> NoReturn:
        await abort(context, error)

    handler: _Handler = grpc.stream_stream_rpc_method_handler(refuse)
    return handler
