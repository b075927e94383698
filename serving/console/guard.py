"""Request guard in front of every page: access, form origin, and the browser's restrictions on the answer."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from urllib.parse import parse_qsl, quote

from python_multipart.exceptions import FormParserError
from starlette.datastructures import ImmutableMultiDict, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from court.errors import BadRequest, CourtError
from court.meme import LIMITS
from serving.access.callers import NotAllowed
from serving.console.registry import Form, Page, console_of, redirect, root_of
from serving.console.visitors import Visitor
from serving.http.listen import host_of, under

POLICY = (
    "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy without external or inline content: markup injected by a meme's text has no effect."""
PROOF = "proof"
"""Name of the form field (and, in lower case, suffix of the header) with the anti-forgery token."""
HEADER = "x-memecourt-proof"
_COOKIE = "memecourt_session"
_MOST_BYTES, _MOST_FIELDS = 64 * 1024, 200
_MOST_PICTURE = LIMITS.max_bytes + _MOST_BYTES
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer" browsers would also omit a form's origin
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}

_HSTS = "max-age=31536000"
"""One year, without subdomains, which are not ours."""
_log = logging.getLogger("memecourt.console")


class RequestGuard:
    """Refuses unknown host names, and adds security headers to every answer."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None = None, origin: str = "") -> None:
        """Wraps an application.

        Args:
            hosts: Allowed host names; None for any. With DNS rebinding, a malicious page sends its own name.
        """
        self._app = app
        self._hosts = hosts
        self._origin = origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if scope["scheme"] == "https":
                    headers["strict-transport-security"] = _HSTS
                headers.setdefault("cache-control", "no-store")
            await send(message)

        if self._hosts is not None and host_of(scope) not in self._hosts:
            refusal = PlainTextResponse("This console is not reached under that name.\n", status_code=421)
            # Refusals have the same headers as all other answers.
            await refusal(scope, receive, guarded)
            return
        await self._app(under(self._origin, scope), receive, guarded)


def cookie_name(request: Request) -> str:
    """Returns the name of the session cookie; with TLS its prefix binds it to this host, or to TLS under a path."""
    if not _secure(request):
        return _COOKIE
    return f"{'__Secure-' if root_of(request) else '__Host-'}{_COOKIE}"


def cookie_of(request: Request) -> str:
    """Returns the session id in the cookie, or an empty string."""
    return request.cookies.get(cookie_name(request), "")


def set_cookie(request: Request, response: Response, id_: str) -> None:
    """Sets the session cookie, which scripts can't read and cross-site requests don't send."""
    # Strict: requests caused by another site come without it, so they can neither read nor change anything.
    path, secure = root_of(request) or "/", _secure(request)
    response.set_cookie(cookie_name(request), id_, path=path, httponly=True, samesite="strict", secure=secure)


def _secure(request: Request) -> bool:
    return request.url.scheme == "https"  # also behind a proxy that terminates TLS, if the console's origin says so


def guarded(page: Page) -> Callable[[Request], Awaitable[Response]]:
    """Wraps a page's endpoint with checks of the role and, for changes, of the form's anti-forgery token."""

    async def answer(request: Request) -> Response:
        try:
            return await let_in(request)
        except (CourtError, HTTPException):
            raise
        except Exception as error:
            # Here rather than in outer middleware, so that this answer has the headers of all others.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            # Without the exception's message, which may contain untrusted text (PR-1).
            where = f"{frame.name}:{frame.lineno}"
            _log.error("%s on %s in %s", type(error).__qualname__, page.path, where)
            raise HTTPException(500) from None

    async def let_in(request: Request) -> Response:
        sessions = console_of(request).sessions
        found = sessions.find(cookie_of(request))
        request.state.session, request.state.visitor = found or (None, None)
        request.state.form = ImmutableMultiDict()
        # Before reading a form: nothing is read for somebody who is not signed in.
        if page.role is not None and found is None:
            return _to_sign_in(request)
        if request.method not in ("GET", "HEAD"):
            # Also on public pages: another site must not submit the sign-in form.
            request.state.form = await _checked_form(request, page)
        if page.role is not None and found is not None and found[1].role < page.role:
            _refused(found[1], page)
            raise NotAllowed(
                f"This is for {page.role.name.lower()}s, and you are signed in as a {found[1].role.name.lower()}.",
                reason="ROLE_MISSING",
            )
        if _has_nul(request):
            raise BadRequest("No address here holds the character NUL.", reason="BAD_ADDRESS")
        return await page.endpoint(request)

    return answer


def _has_nul(request: Request) -> bool:
    """True if an address contains NUL, which databases treat differently."""
    values = (*map(str, request.path_params.values()), *(value for _, value in request.query_params.multi_items()))
    return any("\0" in value for value in values)


def _refused(visitor: Visitor, page: Page) -> None:
    _log.warning("refused page=%s visitor=%s role=%s", page.path, visitor.name, visitor.role.name)


def _to_sign_in(request: Request) -> Response:
    if request.headers.get("hx-request") == "true":
        # htmx would insert the sign-in page into a part of this one.
        return Response(status_code=401, headers={"hx-refresh": "true"})
    if request.method not in ("GET", "HEAD"):
        # Don't return to a submitted form: its content is lost, and must not be resubmitted automatically.
        return redirect(request, "/sign-in")
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return redirect(request, f"/sign-in?next={quote(path, safe='')}")


async def _checked_form(request: Request, page: Page) -> Form:
    """Returns the submitted form after verifying that one of our pages sent it."""
    origin = request.headers.get("origin")
    own = console_of(request).origin or f"{request.url.scheme}://{request.headers.get('host', '')}"
    # Browsers may omit either header: if present it must match, and the token below is required in any case.
    site = request.headers.get("sec-fetch-site")
    if (origin is not None and origin != own) or site not in (None, "same-origin", "none"):
        raise NotAllowed("This was sent by another site than the console.", reason="OTHER_SITE")
    request.state.picture = b""
    files = page.files and request.headers.get("content-type", "").lower().startswith("multipart/form-data")
    form = await (_with_picture(request) if files else _form(request))
    proof = request.headers.get(HEADER) or form.get(PROOF, "")
    if not console_of(request).sessions.proves(cookie_of(request), proof):
        raise NotAllowed(
            "This page belongs to a session that is over. Open it again, and send it once more.", reason="PROOF_MISSING"
        )
    return form


class _InMemory(MultiPartParser):
    """Parser of forms with a picture, which is never written to a temporary file."""

    spool_max_size = _MOST_PICTURE


async def _with_picture(request: Request) -> Form:
    size = 0

    async def bounded() -> AsyncGenerator[bytes, None]:
        nonlocal size
        async for chunk in request.stream():
            size += len(chunk)
            if size > _MOST_PICTURE:
                raise BadRequest("That is too large for a picture.", reason="TOO_LONG", field="picture")
            yield chunk

    parser = _InMemory(request.headers, bounded(), max_files=1, max_fields=_MOST_FIELDS)
    try:
        form = await parser.parse()
        picture = form.get("picture")
        request.state.picture = b"" if picture is None or isinstance(picture, str) else await picture.read()
    except (MultiPartException, FormParserError, KeyError):
        raise BadRequest("That can't be read as a form.", reason="NO_FORM") from None
    finally:
        for file in parser._files_to_close_on_error:  # all of them: the parser closes them after some errors only
            file.close()
    return ImmutableMultiDict([(name, value) for name, value in form.multi_items() if isinstance(value, str)])


async def _form(request: Request) -> Form:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("", "application/x-www-form-urlencoded"):
        raise BadRequest("A form is sent as application/x-www-form-urlencoded.", reason="NO_FORM")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        # Counted while reading, since an announced length may be wrong or missing.
        if len(body) > _MOST_BYTES:
            raise BadRequest("That is too long for a form.", reason="TOO_LONG")
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError:
        raise BadRequest("That can't be read as a form.", reason="NO_FORM") from None
    return ImmutableMultiDict(fields)
