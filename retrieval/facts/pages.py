"""Fetches the text of pages found by a search: only from public addresses, by https, limited in size and time."""

from __future__ import annotations

import asyncio
import email.message
from http import HTTPStatus
from urllib.parse import SplitResult, urljoin, urlsplit

import httpx2

from court.backends.http import UnreadableAnswer, http_client
from court.backends.http_addresses import AddressRefused
from court.backends.sandbox.process import Guard
from court.errors import BadRequest, Overrun, Unavailable
from retrieval.facts.documents import tidy
from retrieval.facts.extraction import TextExtractor

# BO-8 guarantees this limit and the next.
MAX_PAGE_BYTES = 1024 * 1024
FETCH_S = 10.0
MAX_REDIRECTS = 3
_CONNECTIONS = 64
_GUARD = Guard(cpu_s=5.0, wall_s=15.0, memory_bytes=768 * 1024 * 1024, max_reply_bytes=4 * MAX_PAGE_BYTES)
"""For pages, which are smaller than files of a corpus and keep a trial waiting."""
_HTML = ("text/html", "application/xhtml+xml")
_PLAIN = "text/plain"


class PageFetcher:
    """Fetches pages and extracts their text in a sandboxed process; safe to call concurrently."""

    def __init__(self, *, ca_file: str | None = None) -> None:
        # BO-1 and BO-8: authors of pages control both the address that a name resolves to and the answer.
        self._client = http_client(_CONNECTIONS, public_only=True, ca_file=ca_file, max_answer_bytes=MAX_PAGE_BYTES)
        self._extractor = TextExtractor(workers=2, guard=_GUARD)

    async def fetch(self, url: str, *, within_s: float) -> str:
        """The text of the page at ``https://HOST/…``; fetching alone never takes more than :data:`FETCH_S`.

        Raises:
            Overrun: Fetching or extraction timed out.
            Unavailable: The page can't be fetched: its address is not allowed, or its host can't be reached, or the
                answer has another type, is too large or can't be read.
        """
        try:
            async with asyncio.timeout(within_s):
                # One timeout for everything, as per-read timeouts would let a host send single bytes indefinitely.
                async with asyncio.timeout(FETCH_S):
                    type_, charset, data = await self._download(url)
                if type_ == _PLAIN:
                    return tidy(_decoded(data, charset))
                return (await self._extractor.extract(data, "html", charset=charset, strict=False)).text
        except TimeoutError:
            raise Overrun("The page did not come in time.", reason="PAGE_TOO_SLOW") from None
        except BadRequest:
            raise _unreadable("it has no text that can be read") from None

    async def aclose(self) -> None:
        """Closes the connections and ends the process."""
        await self._client.aclose()
        await self._extractor.aclose()

    async def _download(self, url: str) -> tuple[str, str, bytes]:
        """Type, encoding and body of a page."""
        try:
            for _ in range(MAX_REDIRECTS + 1):
                # In the loop, so that each redirect is checked too.
                place = _checked(url)
                async with self._client.stream("GET", place.geturl()) as answer:
                    if answer.status_code in (301, 302, 303, 307, 308):
                        # Checked like the first address, as redirects are untrusted.
                        url = urljoin(place.geturl(), answer.headers.get("location", ""))
                        continue
                    if answer.status_code != HTTPStatus.OK:
                        raise _unreadable(f"its host answers with status {answer.status_code}")
                    about = email.message.Message()
                    about["content-type"] = answer.headers.get("content-type", "")
                    # Without the header, Message would return text/plain.
                    type_ = about.get_content_type() if about["content-type"] else ""
                    if type_ not in (*_HTML, _PLAIN):
                        raise _unreadable("it is no text")
                    return type_, str(about.get_content_charset() or ""), await answer.aread()
        # Caught before its base class TransportError, as a refused address must not be retried.
        except AddressRefused:
            raise _not_allowed("its host's name leads to an address that is not public") from None
        except UnreadableAnswer:
            raise _unreadable(f"it is compressed, or has more than {MAX_PAGE_BYTES:,} bytes") from None
        except httpx2.TransportError:
            raise _unreadable("its host can't be reached, or breaks off") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError):
            raise _not_allowed("it is no address") from None
        raise _unreadable("it is redirected too often")


def _checked(url: str) -> SplitResult:
    """Parses an address. Raises Unavailable if fetching from it is not allowed."""
    try:
        place = urlsplit(url)
        port = place.port
    except ValueError:
        raise _not_allowed("it is no address") from None
    # The resolved address is checked on connecting, as it could still change here (BO-8).
    if place.scheme != "https" or port not in (None, 443) or "@" in place.netloc or not place.hostname:
        raise _not_allowed("only https addresses are fetched, at the usual port, and without a name in front")
    return place._replace(fragment="")


def _decoded(data: bytes, charset: str) -> str:
    try:
        return data.decode(charset or "utf-8", "replace")
    except LookupError:
        return data.decode("utf-8", "replace")


def _not_allowed(why: str) -> Unavailable:
    return Unavailable(f"The page is not fetched: {why}.", reason="PAGE_NOT_ALLOWED", retry_after=None)


def _unreadable(why: str) -> Unavailable:
    return Unavailable(f"The page can't be read: {why}.", reason="PAGE_UNREADABLE")
