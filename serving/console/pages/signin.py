"""Sign-in with a token, and sign-out."""

from __future__ import annotations

import secrets
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from serving.console import guard
from serving.console.registry import Page, console_of, form_of, redirect, root_of
from serving.console.rendering import render
from serving.console.visitors import Role


async def sign_in_form(request: Request) -> Response:
    """Shows the sign-in form; redirects a visitor who is already signed in."""
    onward = _own(request, request.query_params.get("next", ""))
    if request.state.visitor is not None:
        return RedirectResponse(onward, status_code=303)
    if request.headers.get("sec-fetch-site") == "cross-site" and "again" not in request.query_params:
        # Reached by a link on another site, so the browser withheld the cookie. A page of ours may request it again.
        return render(request, "onward.html", onward=onward)
    return _form(request, onward)


async def sign_in(request: Request) -> Response:
    """Opens a session, always with a new id."""
    form = form_of(request)
    onward = _own(request, form.get("next", ""))
    opened = console_of(request).sessions.open(form.get("token", "").strip())
    if opened is None:
        return _form(request, onward, "This token is unknown, expired, or gives no access to the console.")
    # Close the browser's previous session, if any: it can't be signed out once its cookie is replaced.
    console_of(request).sessions.close(guard.cookie_of(request))
    response = RedirectResponse(onward, status_code=303)
    guard.set_cookie(request, response, opened[0])
    return response


async def sign_out(request: Request) -> Response:
    """Ends the session."""
    console_of(request).sessions.close(guard.cookie_of(request))
    response = redirect(request, "/sign-in")
    # Replaced, not removed: the CSRF check of the next sign-in form needs a cookie.
    guard.set_cookie(request, response, _passing())
    return response


def _form(request: Request, onward: str, fault: str = "") -> Response:
    # The sign-in form is CSRF-protected by a cookie too: another site can't sign a visitor in as somebody else.
    id_ = guard.cookie_of(request) or _passing()
    sessions = console_of(request).sessions
    values = {"onward": onward, "fault": fault, "by_token": sessions.by_token, "proof": sessions.proof(id_)}
    response = render(request, "sign_in.html", status=403 if fault else 200, **values)
    guard.set_cookie(request, response, id_)
    return response


def _passing() -> str:
    """Returns an id that belongs to no session."""
    return secrets.token_urlsafe(32)


def _own(request: Request, address: str) -> str:
    """Returns the address if it is on this console, else that of its first page."""
    first = f"{root_of(request)}/"
    # Browsers read a backslash as a slash and drop tabs and line breaks, so any of them could lead to another site.
    plain = address.startswith(first) and not address.startswith("//") and address.isprintable()
    # Browsers resolve dots, which would lead out of the console's path.
    dots = any(unquote(part) in (".", "..") for part in address.partition("?")[0].split("/"))
    return address if plain and address != first and not dots and "\\" not in address else f"{first}overview"


PAGES = (
    Page("/sign-in", sign_in_form, role=None, name="sign_in"),
    Page("/sign-in", sign_in, role=None, methods=("POST",)),
    Page("/sign-out", sign_out, role=Role.VIEWER, methods=("POST",), name="sign_out"),
)
