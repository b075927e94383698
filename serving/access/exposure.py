"""Requires authentication and encryption for listeners that other machines can reach."""

from __future__ import annotations

import ipaddress

from court.errors import BadRequest
from serving.settings import Settings


def only_here(host: str) -> bool:
    """True if an address is only reachable from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        # Any other name counts as reachable without a lookup, since its address may change.
        return host == "localhost" or host.startswith("unix")


def is_port(text: str) -> bool:
    """True if a text is a port number, including 0."""
    # isdecimal() alone accepts digits of all scripts.
    return text.isascii() and text.isdecimal() and len(text) < 6 and int(text) <= 65535


def require_guarded(listener: str, host: str, settings: Settings, *, field: str) -> None:
    """Refuses a listener that strangers could use or eavesdrop on.

    Callers authenticate by tokens, or by certificates of a configured authority (mTLS). ``settings.insecure`` lifts
    either requirement: ``tls`` if a proxy or mesh in front encrypts, ``auth`` if one authenticates callers.

    Raises:
        BadRequest: The listener is reachable from outside this machine and lacks tokens or TLS.
    """
    if only_here(host):
        return
    # The requirements are independent, and both are reported together (BO-4).
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
