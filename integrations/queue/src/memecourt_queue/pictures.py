"""Fetches pictures that messages name by address: from allowed hosts at public addresses, by https, within limits."""

from __future__ import annotations

import asyncio
import email.utils
import ipaddress
import math
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, urlsplit

import grpc
import h11

from memecourt.errors import JudgeError
from memecourt_queue import __version__
from memecourt_queue.request import Fetch, fault

FETCH_S = 5.0
"""Seconds for one picture, from the look-up of its host's name to the last byte."""
MAX_BYTES = 32 * 1024 * 1024
_MAX_HEAD_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_USER_AGENT = f"memecourt-queue/{__version__}"
_LONGEST_AFTER_S = 3600.0
_PASSING = frozenset({408, 425, 429})  # and 5xx

# All of IPv6 that is assigned to hosts on the internet. 6to4 and Teredo embed an IPv4 address to which routers forward
# packets, NAT64 one in its last four bytes.
_UNICAST, _NAT64 = ipaddress.IPv6Network("2000::/3"), ipaddress.IPv6Network("64:ff9b::/96")
_TUNNELS = (ipaddress.IPv6Network("2002::/16"), ipaddress.IPv6Network("2001::/32"))


def fetcher(hosts: Sequence[str], *, ca_file: str | None = None) -> Fetch:
    """Returns a function that fetches pictures from these hosts; ``ca_file`` replaces the usual authorities."""
    context = ssl.create_default_context(cafile=ca_file)

    async def fetch(url: str) -> bytes:
        address = _checked(url, hosts)
        try:
            # One overall timeout: with timeouts per read, a host could send a byte at a time for ever.
            async with asyncio.timeout(FETCH_S):
                return await _get(address, context)
        except TimeoutError:
            raise _later(f"The picture did not come within {FETCH_S:g} seconds.") from None
        except (OSError, h11.RemoteProtocolError):
            raise _later("The host of the picture can't be reached.") from None
        except (h11.LocalProtocolError, UnicodeError):
            raise _not_allowed("it is no address") from None

    return fetch


def is_public(address: str) -> bool:
    """True if an address is public unicast, including any IPv4 address that it embeds."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if found in _NAT64:
            return is_public(str(ipaddress.IPv4Address(found.packed[-4:])))
        return found in _UNICAST and found.is_global and not any(found in tunnel for tunnel in _TUNNELS)
    # Python considers IPv4 multicast global, too.
    return found.is_global and not found.is_multicast and not found.is_reserved


async def _get(url: SplitResult, context: ssl.SSLContext) -> bytes:
    host = url.hostname or ""
    found = await asyncio.get_running_loop().getaddrinfo(host, 443, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in found]
    # All: the owner of the name controls the list. A second look-up could give another answer.
    if not addresses or not all(map(is_public, addresses)):
        raise _not_allowed("its host's name leads to an address that is not public")
    reader, writer = await asyncio.open_connection(addresses[0], 443, ssl=context, server_hostname=host)
    try:
        return await _read(url, host, reader, writer)
    finally:
        writer.transport.abort()  # without a farewell, for which a host could let the caller wait


async def _read(url: SplitResult, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
    # Compressed answers are refused: a small one may become endless.
    headers = {"host": host, "accept-encoding": "identity", "user-agent": _USER_AGENT, "connection": "close"}
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    request = http.send(h11.Request(method="GET", target=target, headers=list(headers.items()))) or b""
    writer.write(request + (http.send(h11.EndOfMessage()) or b""))
    body, head_bytes, in_head = bytearray(), 0, True
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            # With all interim responses before it, which may come without end.
            if in_head and head_bytes > _MAX_HEAD_BYTES:
                raise _too_large()
            data = await reader.read(_READ_BYTES)
            head_bytes += len(data)
            http.receive_data(data)
        elif isinstance(event, h11.Response):
            in_head = False
            _require_usable(event.status_code, dict(event.headers))
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BYTES:
                raise _too_large()
        elif isinstance(event, h11.EndOfMessage):
            return bytes(body)
        elif not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError("the connection ended")


def _require_usable(status: int, headers: Mapping[bytes, bytes]) -> None:
    if status in _PASSING or status >= 500:
        after = headers.get(b"retry-after", b"").decode("latin-1")
        raise _later(f"The picture's host answers with status {status}.", retry_after(after))
    # Includes redirects, which may lead to a host that is not allowed.
    if status != 200:
        raise fault("PICTURE_NOT_FETCHED", f"The picture can't be fetched: its host answers with status {status}.")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise _too_large()


def retry_after(value: str) -> float | None:
    """Returns the seconds of a ``Retry-After`` header, a number or a date, up to an hour; None if it says nothing."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(0.0, seconds), _LONGEST_AFTER_S) if math.isfinite(seconds) else None


def _checked(url: str, hosts: Sequence[str]) -> SplitResult:
    try:
        address = urlsplit(url)
        port = address.port
    except ValueError:
        raise _not_allowed("it is no address") from None
    if address.scheme != "https" or port not in (None, 443) or "@" in address.netloc:
        raise _not_allowed("only https addresses are fetched, at the usual port, and without a name in front")
    # Checked before any name is resolved, so that other names never reach a name server.
    if address.hostname not in hosts:
        raise _not_allowed("its host is none that this consumer fetches pictures from")
    return address


def _later(message: str, retry_after: float | None = None) -> JudgeError:
    return fault("PICTURE_NOT_FETCHED", message, grpc.StatusCode.UNAVAILABLE, retry_after)


def _not_allowed(why: str) -> JudgeError:
    return fault("URL_NOT_ALLOWED", f"The picture can't be fetched: {why}.")


def _too_large() -> JudgeError:
    return fault("PICTURE_TOO_LARGE", f"What the picture's address gives is compressed, or over {MAX_BYTES:,} bytes.")
