"""Signing in with a token, and out."""

from __future__ import annotations

import secrets

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from serving.console import guard
from serving.console.registry import Page, console_of, form_of
from serving.console.rendering import render
from serving.console.visitors import Role


async def ask(request: Request) -> Response:
    """The form, or the way on for who is signed in already."""
    onward = _own(request.query_params.get("next", "/"))
    if request.state.visitor is not None:
        return RedirectResponse(onward, status_code=303)
    if request.headers.get("sec-fetch-site") == "cross-site" and "again" not in request.query_params:
        # A link on another site led here, and so the browser kept the cookie back. Our own page may ask once more.
        return render(request, "onward.html", onward=onward)
    return _form(request, onward)


async def sign_in(request: Request) -> Response:
    """Opens a session with a new id, whatever the browser sent."""
    form = form_of(request)
    onward = _own(form.get("next", "/"))
    opened = console_of(request).sessions.open(form.get("token", "").strip())
    if opened is None:
        return _form(request, onward, "That token is not known here, no longer in force, or good for no page.")
    # The session that the browser had until now, if any: nobody can sign it out once its cookie is replaced.
    console_of(request).sessions.close(guard.cookie_of(request))
    response = RedirectResponse(onward, status_code=303)
    guard.set_cookie(request, response, opened[0])
    return response


async def sign_out(request: Request) -> Response:
    """Ends the session."""
    console_of(request).sessions.close(guard.cookie_of(request))
    response = RedirectResponse("/sign-in", status_code=303)
    # Replaced and not removed: the sign-in form that comes next is proved by a cookie.
    guard.set_cookie(request, response, _passing())
    return response


def _form(request: Request, onward: str, fault: str = "") -> Response:
    # The form is proved by a cookie as well: nobody can be signed in by another site, as somebody else.
    id_ = guard.cookie_of(request) or _passing()
    sessions = console_of(request).sessions
    values = {"onward": onward, "fault": fault, "by_token": sessions.by_token, "proof": sessions.proof(id_)}
    response = render(request, "sign_in.html", status=403 if fault else 200, **values)
    guard.set_cookie(request, response, id_)
    return response


def _passing() -> str:
    """An id that is no session."""
    return secrets.token_urlsafe(32)


def _own(address: str) -> str:
    """An address on this console, whatever was asked for."""
    # Browsers read a backslash as a slash and drop tabs and line breaks: each would make an address of another site.
    plain = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if plain and "\\" not in address else "/"


PAGES = (
    Page("/sign-in", ask, role=None, name="sign_in"),
    Page("/sign-in", sign_in, role=None, methods=("POST",)),
    Page("/sign-out", sign_out, role=Role.VIEWER, methods=("POST",), name="sign_out"),
)
