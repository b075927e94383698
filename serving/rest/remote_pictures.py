"""Fetches pictures that requests name by address, only from hosts that the operator has allowed.

The gRPC contract has no field for an address: the HTTP gateway fetches the picture and passes on its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

import httpx2

from court.backends.http import UnreadableAnswer, http_client, retry_after
from court.backends.http_addresses import AddressRefused
from court.errors import BadPicture, BadRequest, Overrun, Unavailable
from court.meme import LIMITS
from serving.errors import Malformed
from serving.rest.messages import from_base64

Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Function that fetches the picture at an address."""

FETCH_S = 5.0
"""Timeout in seconds for fetching a picture."""
_AT_ONCE = 64
_PASSING = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
"""Statuses below 500 after which a later attempt may succeed."""
_FIELD = "image_url"


@asynccontextmanager
async def open_remote_pictures(hosts: Sequence[str], *, ca_file: str | None = None) -> AsyncIterator[Fetch]:
    """Yields a function that fetches pictures from the given hosts over https, valid inside the block."""
    if not hosts:
        yield _refuse
        return
    # BO-1 and BO-8: an allowed name may resolve to a private address, and an allowed host may send endlessly.
    client = http_client(_AT_ONCE, public_only=True, ca_file=ca_file, max_answer_bytes=LIMITS.max_bytes)

    async def fetch(url: str) -> bytes:
        place = _checked(url, hosts)
        try:
            # One overall timeout: with timeouts per read, a host could send a byte at a time for ever.
            async with asyncio.timeout(FETCH_S), client.stream("GET", place.geturl()) as answer:
                if answer.status_code in _PASSING or answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise Unavailable(
                        f"The host of the picture answers with status {answer.status_code}.",
                        reason="PICTURE_NOT_FETCHED",
                        field=_FIELD,
                        retry_after=retry_after(answer.headers) or 1.0,
                    )
                # Includes redirects, which are not followed, since they may lead to a host that is not allowed.
                if answer.status_code != HTTPStatus.OK:
                    raise _not_fetched(f"its host answers with status {answer.status_code}")
                return await answer.aread()
        except TimeoutError:
            raise Overrun(
                f"The picture did not come within {FETCH_S:g} seconds.", reason="PICTURE_NOT_FETCHED", field=_FIELD
            ) from None
        except AddressRefused:
            raise _not_allowed("its host's name leads to an address that is not public") from None
        except UnreadableAnswer:
            raise BadPicture(
                f"What its address gives is compressed, or has more than {LIMITS.max_bytes:,} bytes.",
                reason="PICTURE_TOO_LARGE",
                field=_FIELD,
            ) from None
        except httpx2.TransportError:
            raise Unavailable(
                "The host of the picture can't be reached.", reason="PICTURE_NOT_FETCHED", field=_FIELD
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError):
            raise _not_allowed("it is no address") from None

    try:
        yield fetch
    finally:
        await client.aclose()


async def picture_at(url: object, fetch: Fetch, field: str = "image_url") -> bytes:
    """Returns the picture of a ``data:`` or https address. Raises BadRequest, Unavailable."""
    if not isinstance(url, str):
        raise Malformed(f"{field} is an address, as text.", field=field)
    if url[:5].lower() != "data:":
        return await fetch(url)
    head, comma, data = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise BadRequest(
            f'{field} is a data: address, and not of the form "data:image/png;base64,…".',
            reason="BAD_DATA_URL",
            field=field,
        )
    return from_base64(data, field)


async def _refuse(_: str) -> bytes:
    raise _not_allowed("this server fetches no pictures. Send the picture itself, or a data: address")


def _checked(url: str, hosts: Sequence[str]) -> SplitResult:
    """Parses an address and checks that it may be fetched. Raises BadRequest."""
    try:
        place = urlsplit(url)
        port = place.port
    except ValueError:
        raise _not_allowed("it is no address") from None
    if place.scheme != "https" or port not in (None, 443) or "@" in place.netloc:
        raise _not_allowed("only https addresses are fetched, at the usual port, and without a name in front")
    # BO-8: checked before any name is resolved, so that other names never reach a name server.
    if place.hostname not in hosts:
        raise _not_allowed("its host is none that this server fetches pictures from")
    # Fragments are for browsers and are never sent.
    return place._replace(fragment="")


def _not_allowed(why: str) -> BadRequest:
    return BadRequest(f"The picture can't be fetched: {why}.", reason="URL_NOT_ALLOWED", field=_FIELD)


def _not_fetched(why: str) -> BadPicture:
    return BadPicture(f"The picture can't be fetched: {why}.", reason="PICTURE_NOT_FETCHED", field=_FIELD)
