"""Authorises every method before it runs.

Methods that are not listed here are refused to every caller, so that a method added to the contract but forgotten here
is closed rather than open.
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
    # Callers that request verdicts must learn which ones were overruled.
    "/memecourt.v1.Docket/WatchReviews": Scope.JUDGE,
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

if TYPE_CHECKING:
    from serving.rpc.calls import CallContext

    _Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    _Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]


class Access(grpc.aio.ServerInterceptor):
    """Lets a call through to its method, or answers it with UNAUTHENTICATED or PERMISSION_DENIED."""

    def __init__(self, tokens: Tokens | None) -> None:
        self._tokens = tokens

    def admit(self, method: str, metadata: Metadata, *, exists: bool = True) -> None:
        """Sets the caller of the current call, if it may call a method."""
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
