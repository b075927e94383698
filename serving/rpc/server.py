"""Builds the gRPC server: interceptors, options, services, health and reflection."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from serving.rpc.flow_control import MESSAGE_BYTES, WINDOWS
from serving.rpc.health import Health
from serving.rpc.methods import Methods

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
