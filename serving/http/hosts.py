"""Host names of a listener, to detect DNS rebinding: a malicious page resolves its own name to this listener."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from serving.access.exposure import only_here

if TYPE_CHECKING:
    from starlette.types import Scope


def own_names(host: str, origin: str = "") -> frozenset[str] | None:
    """Returns the allowed names of a listener; None for any."""
    # If reachable from elsewhere it may have any name, which only its operator knows.
    own = {host.strip("[]"), "localhost", "127.0.0.1", "::1"} if only_here(host) else set()
    if origin:
        own.add(urlsplit(origin).hostname or "")
    return frozenset(own) or None


def under(origin: str, scope: Scope) -> Scope:
    """Returns the scope of a request as its sender addressed it, by a public address such as ``https://a.org/court``.

    The proxy may pass the path on or take it off. The application's own addresses begin with the scope's ``root_path``.
    """
    if not origin:
        return scope
    site, inner = urlsplit(origin), scope["path"]
    if site.path and (inner == site.path or inner.startswith(f"{site.path}/")):
        inner = inner[len(site.path) :] or "/"
    return {**scope, "scheme": site.scheme, "root_path": site.path, "path": site.path + inner}


def host_of(scope: Scope) -> str:
    """Returns the name in the Host header without the port; empty if there is none."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    try:
        return urlsplit(f"//{host}").hostname or ""
    # A malformed header, such as an unmatched bracket, matches no allowed name.
    except ValueError:
        return ""
