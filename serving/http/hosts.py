"""Names that a listener is reached under: a page of another site that has its own name point here sends that name."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from serving.access.exposure import only_here

if TYPE_CHECKING:
    from starlette.types import Scope


def own_names(host: str, origin: str = "") -> frozenset[str] | None:
    """Returns the names of a listener, None for any.

    Args:
        host: Host that it listens on.
        origin: Under which people reach it, where that is another: ``https://console.example.org``.
    """
    # Reached from elsewhere it may have any name: only its operator can say which.
    own = {host.strip("[]"), "localhost", "127.0.0.1", "::1"} if only_here(host) else set()
    if origin:
        own.add(urlsplit(origin).hostname or "")
    return frozenset(own) or None


def host_of(scope: Scope) -> str:
    """The name in the Host header, without the port; empty where there is none."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    try:
        return urlsplit(f"//{host}").hostname or ""
    # Such as of half a bracket: it is no name of ours, and is refused as one.
    except ValueError:
        return ""
