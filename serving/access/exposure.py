"""Listeners that others than this machine can reach: they need to know who calls, and to encrypt what is said."""

from __future__ import annotations

import ipaddress

from court.errors import BadRequest
from serving.settings import Settings


def only_here(host: str) -> bool:
    """True if an address is of this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        # Any other name counts as reachable without being looked up: what it resolves to may change.
        return host == "localhost" or host.startswith("unix")


def is_port(text: str) -> bool:
    """True if a text is the number of a port, 0 included."""
    # isdecimal() alone lets digits of all scripts pass.
    return text.isascii() and text.isdecimal() and len(text) < 6 and int(text) <= 65535


def require_guarded(listener: str, host: str, settings: Settings, *, field: str) -> None:
    """Refuses a listener that strangers could use or listen in on.

    Callers are known by tokens, or by certificates of an authority that was named (mTLS). ``settings.insecure`` lifts
    either demand by name: ``tls`` where a proxy or a mesh in front encrypts, ``auth`` where one knows the callers.

    Args:
        listener: Name of the listener, to begin a sentence with.
        host: Host that it listens on.
        settings: Certificates, tokens and what was lifted.
        field: Setting or argument that is at fault.

    Raises:
        BadRequest: The server is reachable from outside this machine, and lacks tokens or TLS.
    """
    if only_here(host):
        return
    # Each demand stands for itself, and both are reported at once (BO-4).
    lacks = []
    if settings.tokens is None and settings.tls_client_ca is None and "auth" not in settings.insecure:
        lacks.append(
            "nobody would be asked who they are: make a token with `memecourt tokens add NAME --scope judge"
            " --file FILE` and give --tokens FILE, give --tls-client-ca, or say --insecure auth where something"
            " in front does that"
        )
    if settings.tls_certificate is None and "tls" not in settings.insecure:
        lacks.append(
            "memes and tokens would cross the network in clear text: give --tls-certificate and --tls-key, or say "
            "--insecure tls where something in front encrypts"
        )
    if lacks:
        raise BadRequest(
            f"{listener} would listen on {host or 'all addresses'}, where others than this machine can reach it, and "
            f"{'; and '.join(lacks)}. Or listen on 127.0.0.1.",
            reason="LISTENER_UNGUARDED",
            field=field,
        )
