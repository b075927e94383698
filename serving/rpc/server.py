"""Builds the gRPC server: interceptors, options, services, health and reflection."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from serving.rpc.flow_control import MESSAGE_BYTES, WINDOWS
from serving.rpc.health import Health
from serving.rpc.methods import Methods

_MOST_UNSEEN = 32_768
"""Calls that stand in line before this process has looked at them; each takes 15 KiB. Beyond, any call is cancelled."""


_ALIVE = (
    ("grpc.keepalive_time_ms", 60_000),  # a caller whose machine is gone is noticed
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # without it the timeout above is a minute
    # Clients ask every 30 s whether we are there, also where they send nothing else; by itself the library closes the
    # connection of one that does so more often than every five minutes.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
"""Options of a server about connections over which nothing goes."""


_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


async def make_server(methods: Methods, *, reflect: bool = True) -> tuple[grpc.aio.Server, Health]:
    """A server with these methods, health and reflection, not yet listening; its health says NOT_SERVING.

    Args:
        methods: Methods of the services, which another transport may serve too.
        reflect: True to enable reflection.
    """
    health = Health()
    server = grpc.aio.server(
        interceptors=methods.interceptors,
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_send_message_length", MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),  # a port that is taken is an error, not a share of its requests
            ("grpc.max_concurrent_streams", 128),  # bounds what a rapid-reset attack can cost per connection
            # Calls that were taken back in the same breath stand in line before honest ones, whose own deadline it is
            # that says how long they wait: by itself the library cancels what nobody has looked at for 30 s.
            ("grpc.server_max_unrequested_time_in_server", 3600),
            # Nor does it cancel calls by chance, honest ones too, where 1,000 stand in line, and all from 3,000 on.
            ("grpc.server.max_pending_requests", _MOST_UNSEEN),
            ("grpc.server.max_pending_requests_hard_limit", _MOST_UNSEEN),
            ("grpc.server_handshake_timeout_ms", 10_000),  # a connection that says nothing is closed
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
