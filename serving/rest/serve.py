"""Serves the HTTP API, which calls the same methods as gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from serving.access.exposure import only_here
from serving.http.hosts import own_names
from serving.http.listen import Listener, open_listener, split_address
from serving.rest.api import Api
from serving.rest.app import create_api
from serving.rest.judging import JudgeEndpoint
from serving.rest.remote_pictures import open_remote_pictures
from serving.rpc.health import Health
from serving.rpc.methods import Methods
from serving.settings import Settings

_AT_ONCE = 1024
"""Maximum number of concurrent connections: each caller that waits for a verdict has one."""
_TO_WAIT_S = 10.0


@asynccontextmanager
async def open_api(
    methods: Methods,
    health: Health,
    settings: Settings,
    address: str,
    *,
    webhook_keys: Sequence[str] = (),
    stopping: asyncio.Event | None = None,
) -> AsyncIterator[str]:
    """Serves the HTTP API inside the block; yields its URL.

    Args:
        settings: TLS, tokens, and hosts that pictures are fetched from.
        address: ``host:port``; port 0 for a free one.
        webhook_keys: Public keys that signatures of webhooks are verified with.
        stopping: Event that is set when the server begins to stop.

    Raises:
        BadRequest: The address can't be listened on, or is reachable by other machines without tokens or TLS.
    """
    listener = Listener(
        "The HTTP API",
        field="http",
        example="127.0.0.1:8081",
        at_once=_AT_ONCE,
        # A body may wait for memory and be read as long as gRPC requests; their own timeouts, which give a reason, come
        # first.
        body_s=2 * settings.idle + _TO_WAIT_S,
    )
    host, _ = split_address(listener, address)
    # If callers are authenticated, DNS rebinding is no threat: a malicious page has no token to send.
    unknown = settings.tokens is None and "auth" not in settings.insecure and only_here(host)
    async with open_remote_pictures(settings.http_fetch_hosts) as fetch, AsyncExitStack() as stack:
        api = Api(methods, fetch, fetches=bool(settings.http_fetch_hosts))
        judging = JudgeEndpoint(api)
        app = create_api(
            api,
            judging,
            health,
            names=own_names(host, settings.http_origin or "") if unknown else None,
            origin=settings.http_origin or "",
            described=settings.reflection,
            webhook_keys=webhook_keys,
        )
        url = await stack.enter_async_context(open_listener(listener, app, settings, address, stopping=stopping))
        stack.push_async_callback(judging.aclose)
        yield url
