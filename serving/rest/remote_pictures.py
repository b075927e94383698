"""Pictures that a request names by an address: fetched from hosts that the operator lists, and from nowhere else.

The contract has no field for an address. Here the gateway fetches, and the court sees bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

import httpx2

from court.backends.http import http_client
from court.backends.http_addresses import AddressRefused
from court.backends.http_head import UnreadableAnswer
from court.errors import BadPicture, BadRequest, Overrun, Unavailable
from court.meme import LIMITS
from serving.rest.messages import from_base64

Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Fetches the picture at an address."""

FETCH_S = 5.0
"""Seconds that a picture may take to come."""
_AT_ONCE = 64
_FIELD = "image_url"


@asynccontextmanager
async def open_remote_pictures(hosts: Sequence[str], *, ca_file: str | None = None) -> AsyncIterator[Fetch]:
    """Gives a function that fetches pictures from these hosts, by https, while the block lasts.

    Args:
        hosts: Names of hosts, whose addresses must be public.
        ca_file: Certificate authorities to trust in place of the usual ones, PEM.
    """
    if not hosts:
        yield _refuse
        return
    # BO-1 and BO-8: a listed name may still lead inside the network, and a listed host may send without end.
    client = http_client(_AT_ONCE, public_only=True, ca_file=ca_file, max_answer_bytes=LIMITS.max_bytes)

    async def fetch(url: str) -> bytes:
        place = _checked(url, hosts)
        try:
            # One limit over everything: limits of single reads let a host go on for ever, a byte at a time.
            async with asyncio.timeout(FETCH_S), client.stream("GET", place.geturl()) as answer:
                # A redirect as well: it is not followed, for it may lead to a host that is not listed.
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
    """The picture that an address names: in it (``data:``), or where it leads. Raises BadRequest, Unavailable."""
    if not isinstance(url, str):
        raise BadRequest(f"{field} is an address, as text.", reason="MALFORMED_REQUEST", field=field)
    if not url.startswith("data:"):
        return await fetch(url)
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadRequest(
            f'{field} is a data: address, and not of the form "data:image/png;base64,…".',
            reason="BAD_DATA_URL",
            field=field,
        )
    return from_base64(data, field)


async def _refuse(_: str) -> bytes:
    raise _not_allowed("this server fetches no pictures. Send the picture itself, or a data: address")


def _checked(url: str, hosts: Sequence[str]) -> SplitResult:
    """Takes an address apart that may be fetched from. Raises BadRequest."""
    try:
        place = urlsplit(url)
        port = place.port
    except ValueError:
        raise _not_allowed("it is no address") from None
    if place.scheme != "https" or port not in (None, 443) or "@" in place.netloc:
        raise _not_allowed("only https addresses are fetched, at the usual port, and without a name in front")
    # BO-8: compared before any name is resolved, so that no other name gets as far as a name server.
    if place.hostname not in hosts:
        raise _not_allowed("its host is none that this server fetches pictures from")
    # A fragment is for whoever shows the page, and is never sent.
    return place._replace(fragment="")


def _not_allowed(why: str) -> BadRequest:
    return BadRequest(f"The picture can't be fetched: {why}.", reason="URL_NOT_ALLOWED", field=_FIELD)


def _not_fetched(why: str) -> BadPicture:
    return BadPicture(f"The picture can't be fetched: {why}.", reason="PICTURE_NOT_FETCHED", field=_FIELD)
