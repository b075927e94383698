"""The ASGI application: routes and common protections; and its listener."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from court.errors import BadRequest
from serving.access.callers import NotAllowed
from serving.access.exposure import only_here
from serving.export.notice_links import PATH as NOTICE
from serving.http.listen import Listener, host_of, open_listener, own_names, split_address, under
from serving.rest.api import Api, Endpoint, EventEndpoint, error_response, json_response
from serving.rest.events import EventForm
from serving.rest.judging import JudgeEndpoint
from serving.rest.messages import response_json
from serving.rest.moderations import PATH as MODERATIONS
from serving.rest.moderations import ModerationsEndpoint
from serving.rest.notice_page import NoticePage
from serving.rest.operations import JUDGE, OPERATIONS
from serving.rest.remote_pictures import open_remote_pictures
from serving.rpc.docket import DocketService
from serving.rpc.health import COURT, LIVENESS, SERVING, Health
from serving.rpc.server import Methods
from serving.settings import Settings

OPENAPI = Path(__file__).with_name("openapi.json")
"""OpenAPI description, written by ``scripts/openapi.py``."""
_VIEWER = Path(__file__).with_name("viewer")
_VIEWER_FILES = {"index.html": "text/html", "start.js": "text/javascript"}
"""Our own files of the page of the API."""
_VIEWER_FILES_PACKED = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
"""Files of Swagger UI (npm: swagger-ui-dist 5.35.0, without source maps), stored as they are sent, with gzip."""
# Nothing inline and nothing from elsewhere, so that a token that is typed into the page goes to this server alone.
_VIEWER_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
WEBHOOK_KEYS = "/v1/webhooks/keys"
# Proxies and browsers must neither cache answers nor interpret them as pages.
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_LINK = re.compile(rf"{NOTICE}[^/]+\Z")
_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


def create_api(
    api: Api,
    judging: JudgeEndpoint,
    health: Health,
    *,
    names: frozenset[str] | None,
    origin: str = "",
    described: bool,
    webhook_keys: Sequence[str] = (),
    notices: NoticePage | None = None,
) -> Starlette:
    """Builds the HTTP API as an ASGI application."""
    routes: list[BaseRoute] = []
    for operation in OPERATIONS:
        endpoint: ASGIApp = judging if operation is JUDGE else Endpoint(api, operation)
        if operation.descriptor.server_streaming:
            endpoint = EventEndpoint(api, operation, _EVENTS[operation.method])
        # Callers' ids may contain slashes.
        path = operation.path.replace("{id}", "{id:path}").replace("{request_id}", "{request_id:path}")
        route = Route(path, endpoint, methods=[operation.verb])
        if operation.descriptor.server_streaming and route.methods:
            # Starlette adds HEAD to GET. Its answer would have to wait for the stream's end, which may never come, and
            # block the connection.
            route.methods.discard("HEAD")
        routes.append(route)
    routes.append(Route(MODERATIONS, ModerationsEndpoint(api), methods=["POST"]))
    routes.append(Route("/v1/healthz", _health(health, LIVENESS)))
    routes.append(Route("/v1/readyz", _health(health, COURT)))
    routes.append(Route(WEBHOOK_KEYS, _answer({"keys": list(webhook_keys)})))
    if notices is not None:
        routes.append(Route(f"{NOTICE}{{token}}", notices.answer, methods=["GET", "POST"]))
    if described:
        description = json.loads(OPENAPI.read_bytes())
        if origin:
            description["servers"] = [{"url": origin}]
        routes += [Route("/v1/openapi.json", _answer(description)), Route("/v1/docs", _viewer_file("index.html"))]
        routes += [Route(f"/v1/docs/{name}", _viewer_file(name)) for name in (*_VIEWER_FILES, *_VIEWER_FILES_PACKED)]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Front, names=names, origin=origin)],
        exception_handlers={HTTPException: _no_endpoint},
    )
    # No redirects for extra slashes: behind a TLS proxy they would point to http, and a client that follows them would
    # send its token in the clear.
    app.router.redirect_slashes = False
    return app


class Front:
    """Refuses cross-site requests from browsers, and adds common headers to every answer.

    A browser on this machine, or one with an accepted client certificate, would lend its access to any page.
    """

    def __init__(self, app: ASGIApp, *, names: frozenset[str] | None, origin: str) -> None:
        self._app = app
        self._names = names
        self._origin = origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers."""
        sent = dict(scope["headers"]).get(b"x-request-id", b"")
        # Echoed only if it is harmless in a log of whoever reads the answer.
        request_id = sent.decode() if _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        app = self._app
        # DNS rebinding: a page whose own name resolves to this machine sends that name.
        if self._names is not None and host_of(scope) not in self._names:
            app = error_response(BadRequest("This service is not reached under that name.", reason="OTHER_NAME"))
        # Only browsers send this header, and pages can't forge it. The link of a notice is followed from a mail.
        elif dict(scope["headers"]).get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none") and not (
            scope["method"] == "GET" and _LINK.search(scope["path"])
        ):
            app = error_response(
                NotAllowed("This was sent by a browser for a page of another site.", reason="OTHER_SITE")
            )
        await app(under(self._origin, scope), receive, guarded)


def _health(health: Health, service: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        serving = health.status(service) == SERVING
        return json_response({"status": "SERVING" if serving else "NOT_SERVING"}, 200 if serving else 503)

    return answer


def _answer(content: Mapping[str, Any]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return json_response(content)

    return answer


def _viewer_file(name: str) -> Callable[[Request], Awaitable[Response]]:
    packed = name in _VIEWER_FILES_PACKED
    content = (_VIEWER / f"{name}{'.gz' * packed}").read_bytes()
    headers = {"content-security-policy": _VIEWER_POLICY} | ({"content-encoding": "gzip"} if packed else {})

    async def answer(_: Request) -> Response:
        return Response(content, media_type=(_VIEWER_FILES | _VIEWER_FILES_PACKED)[name], headers=headers)

    return answer


async def _no_endpoint(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    # The Allow header, which HTTP requires with this status, comes with the error.
    if error.status_code == 405:
        response = error_response(
            BadRequest(f"This address does not take {request.method[:20]}.", reason="VERB_NOT_TAKEN")
        )
        response.headers.update(error.headers or {})
        return response
    where = f"{request.scope['root_path']}/v1/openapi.json"
    return error_response(
        BadRequest(f"There is no such address here; {where} says which there are.", reason="NO_SUCH_ADDRESS")
    )


_EVENTS: Mapping[str, EventForm] = {
    "WatchTrial": lambda of: (of.event.seq, of.event.kind, response_json(of.event)),
    "WatchReviews": lambda of: (of.next_entry, "review" if of.HasField("reviewed") else "position", response_json(of)),
    "ExportTrials": lambda of: (None, "trial", response_json(of.trial)),
}
"""Number, name and content of the event that each response of a stream becomes."""


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
    docket: DocketService | None = None,
    stopping: asyncio.Event | None = None,
) -> AsyncIterator[str]:
    """Serves the HTTP API inside the block; yields its URL.

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
            notices=NoticePage(docket) if docket is not None and settings.notice_link_days is not None else None,
        )
        url = await stack.enter_async_context(open_listener(listener, app, settings, address, stopping=stopping))
        stack.push_async_callback(judging.aclose)
        yield url
