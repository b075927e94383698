"""The services' methods with what guards and counts their calls, for every transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from serving.access.tokens import Tokens
from serving.rpc.auth import Access
from serving.telemetry import SILENT, Telemetry

if TYPE_CHECKING:
    from serving.rpc.calls import Method


class Service(Protocol):
    """A service that a server offers.

    Attributes:
        methods: Methods with one request, by name.
    """

    methods: Mapping[str, Method[Any]]

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the gRPC handler of its methods."""
        ...


class Methods:
    """The methods of services, and the interceptors that count and authorise their calls over gRPC.

    Attributes:
        interceptors: Interceptors of every gRPC call, the outermost first.
    """

    def __init__(self, *services: Service, tokens: Tokens | None = None, telemetry: Telemetry = SILENT) -> None:
        """Collects the handlers and interceptors."""
        self.access = Access(tokens)
        self.telemetry = telemetry
        self._services = services
        self.handlers = [service.handler() for service in services]
        # Telemetry comes first, so that calls refused by Access are counted too.
        self.interceptors: Sequence[grpc.aio.ServerInterceptor] = (telemetry.interceptor(), self.access)

    def __getitem__(self, name: str) -> Method[Any]:
        """Returns the method of a name, ``Judge``; no two services have one of the same name."""
        return next(service.methods[name] for service in self._services if name in service.methods)
