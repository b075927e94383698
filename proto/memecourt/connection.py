"""Connection settings of a client: address, TLS, its own certificate, its token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import grpc

MESSAGE_BYTES = 32 * 1024 * 1024 + 64 * 1024
"""Largest message that a server takes by default."""

_LARGEST_ANSWER = 64 * 1024 * 1024  # the record of a long trial may be larger than any request

Metadata = tuple[tuple[str, str], ...]
Options = Sequence[tuple[str, int | str]]

_OPTIONS: Options = (
    ("grpc.max_send_message_length", -1),  # the server itself refuses oversized messages, with a reason
    ("grpc.max_receive_message_length", _LARGEST_ANSWER),
    # Finds a restarted server within seconds; gRPC's default backoff grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Detects a dead connection (power loss, an expired NAT entry) within 40 s while there are calls; nothing else
    # would report it.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # the timeout above is a minute without it
    ("grpc.http2.max_pings_without_data", 0),  # otherwise a client that only listens stops pinging after two
)


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS options. ``Tls()`` trusts the authorities that gRPC trusts; files are PEM."""

    roots: Path | None = None
    """File of the certificate authorities to trust instead."""
    certificate: Path | None = None
    """The client's own certificate chain (mTLS), with ``key``."""
    key: Path | None = None
    """The private key of that certificate."""
    server_name: str = ""
    """Name that the server's certificate must have, if it differs from the address."""

    def __post_init__(self) -> None:
        for name in ("roots", "certificate", "key"):
            if not isinstance(getattr(self, name), Path | None):
                raise TypeError(f"Tls takes the path of a PEM file as {name}, such as Path('ca.pem'), not its content")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate needs its key, and a key its certificate")

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files and returns credentials for a channel."""
        roots, key, chain = (path.read_bytes() if path else None for path in (self.roots, self.key, self.certificate))
        return grpc.ssl_channel_credentials(roots, key, chain)


@dataclass(frozen=True, slots=True)
class Connection:
    """Settings of the connection to one server."""

    address: str
    credentials: grpc.ChannelCredentials | None
    options: Options
    token: str | Callable[[], str] | None
    further: Callable[[], Sequence[tuple[str, str]]] | None

    @classmethod
    def to(
        cls,
        address: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        tls: Tls | None = None,
        token: str | Callable[[], str] | None = None,
        allow_plain_token: bool = False,
        metadata: Callable[[], Sequence[tuple[str, str]]] | None = None,
        options: Options = (),
    ) -> Connection:
        """Checks that arguments fit together; see :class:`memecourt.client.Client` for what they mean."""
        if credentials is not None and tls is not None:
            raise ValueError("give either credentials or tls")
        # Refused before anything is sent: a token sent in the clear once is compromised.
        if token is not None and credentials is None and tls is None and not (allow_plain_token or _is_here(address)):
            raise ValueError(
                "the token would go over the network in the clear: give tls=Tls(), or allow_plain_token=True where "
                "something else encrypts the connection"
            )
        named = (("grpc.ssl_target_name_override", tls.server_name),) if tls and tls.server_name else ()
        if tls is not None:
            credentials = tls.credentials()
        # Each name once: gRPC does not define which of two values counts.
        merged = dict((*_OPTIONS, *named, *options))
        return cls(
            address=address, credentials=credentials, options=tuple(merged.items()), token=token, further=metadata
        )

    def metadata(self) -> Metadata:
        """Returns the metadata of a call.

        Raises:
            ValueError: The token can't be sent. gRPC's own error could be mistaken for a broken connection.
        """
        # A token function is called for each, because tokens change.
        token = self.token() if callable(self.token) else self.token
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("the token holds a character that no header may hold, such as a line break at its end")
        pairs = (("authorization", f"Bearer {token}"),) if token is not None else ()
        return (*pairs, *(self.further() if self.further else ()))

    def open(self) -> grpc.Channel:
        """Opens a channel for threads."""
        if self.credentials is None:
            return grpc.insecure_channel(self.address, options=self.options)
        return grpc.secure_channel(self.address, self.credentials, options=self.options)

    def open_async(self) -> grpc.aio.Channel:
        """Opens a channel for asyncio."""
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.address, options=self.options)
        return grpc.aio.secure_channel(self.address, self.credentials, options=self.options)


def _is_here(address: str) -> bool:
    """True if the address is local to this machine, so that nothing can be intercepted."""
    if address.startswith("unix:"):
        return True
    # Split at the last colon: an IPv6 address in brackets contains colons itself.
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
