"""A user's search endpoint as a source of evidence: SearXNG, an API like Serper's, or any other that returns JSON.

Only the endpoint's address is contacted. It learns words of the meme on trial (docs/security.md). Its snippets are the
evidence, unless fetching pages is allowed.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

import httpx2

from court.backends.http import http_client, retry_after
from court.errors import Overrun, Unavailable
from court.ports import EvidenceDocument, EvidenceHit
from retrieval.facts.documents import host_of, tidy
from retrieval.facts.pages import PageFetcher
from retrieval.facts.source import evidence_document

Shape = Literal["searxng", "serper", "json"]
# Tighter than the 8 MiB of BO-1, as a page of results is far smaller.
_MAX_ANSWER_BYTES = 2 * 1024 * 1024
_CONNECTIONS = 32
_KNOWN = 4096
_MAX_URL, _MAX_WORDS = 2000, 1000


@dataclass(frozen=True, slots=True)
class ResultPaths:
    """Dotted paths to the results in an endpoint's JSON answer, with indexes from 0; an empty date for none."""

    results: str = "results"
    url: str = "url"
    title: str = "title"
    snippet: str = "snippet"
    date: str = ""


_PATHS: Mapping[Shape, ResultPaths] = {
    "searxng": ResultPaths(snippet="content", date="publishedDate"),
    "serper": ResultPaths(results="organic", url="link", date="date"),
    "json": ResultPaths(),
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A search endpoint."""

    url: str
    shape: Shape = "searxng"
    key: str | None = field(default=None, repr=False)
    paths: ResultPaths = ResultPaths()
    query: str = "q"


class EndpointEvidence:
    """An :class:`~court.ports.EvidenceSource` that queries a search endpoint; safe to call concurrently."""

    def __init__(self, endpoint: Endpoint, pages: PageFetcher | None = None) -> None:
        """Opens no connection yet; without ``pages``, snippets are all there is."""
        self._endpoint = endpoint
        self._paths = endpoint.paths if endpoint.shape == "json" else _PATHS[endpoint.shape]
        self._pages = pages
        # Not restricted to public addresses: the operator configured it, so it may be on the internal network.
        self._client = http_client(_CONNECTIONS, max_answer_bytes=_MAX_ANSWER_BYTES)
        self._known: OrderedDict[str, EvidenceHit] = OrderedDict()

    @property
    def identity(self) -> str:
        """Shape and address of the endpoint, and whether pages are read. Its results change over time."""
        pages = "pages" if self._pages else "snippets"
        return f"search {self._endpoint.shape} {self._endpoint.url}, {pages}"

    @property
    def sends_elsewhere(self) -> bool:
        """True: queries are sent to the endpoint, wherever it runs."""
        return True

    async def search(self, query: str, *, most: int, within_s: float) -> Sequence[EvidenceHit]:
        """Results of the endpoint, in its order.

        Raises:
            Overrun: The request timed out.
            Unavailable: The endpoint can't be reached, refuses, or sends an answer that does not match its shape.
        """
        try:
            async with asyncio.timeout(within_s):
                answer = await self._ask(query, most)
        except TimeoutError:
            raise Overrun("The search endpoint did not answer in time.", reason="EVIDENCE_TOO_SLOW") from None
        # A subclass of HTTPError, caught first to tell transient failures from permanent ones.
        except httpx2.TransportError:
            raise Unavailable(
                "The search endpoint can't be reached, breaks off, or sends what can't be read.",
                reason="EVIDENCE_UNAVAILABLE",
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL):
            raise Unavailable(
                "The search endpoint has no address that can be asked.", reason="EVIDENCE_UNAVAILABLE"
            ) from None
        found: dict[str, EvidenceHit] = {}
        for hit in self._hits(answer):
            found.setdefault(hit.id, hit)  # the first hit of a page keeps the endpoint's rank
        hits = list(found.values())[:most]
        for hit in hits:
            self._known[hit.id] = hit
            self._known.move_to_end(hit.id)
        # Bounds memory on a long-running server; evicted hits can still be read if pages are fetched.
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return hits

    async def read(self, document_id: str, *, within_s: float) -> EvidenceDocument:
        """The page of a result, or its snippet if pages are not fetched.

        Raises:
            Overrun: Fetching the page timed out.
            Unavailable: The page can't be fetched or read, or the result was evicted.
        """
        hit = self._known.get(document_id)
        if self._pages is not None:
            text = await self._pages.fetch(document_id, within_s=within_s)
        elif hit is not None and hit.snippet:
            text = hit.snippet
        else:
            raise Unavailable(
                "The result has no snippet, or is not remembered any more. Search again.", reason="EVIDENCE_MISSING"
            )
        return evidence_document(
            document_id,
            text,
            title=hit.title if hit else "",
            source=hit.source if hit else host_of(document_id),
            date=hit.date if hit else "",
        )

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.aclose()
        if self._pages is not None:
            await self._pages.aclose()

    async def _ask(self, query: str, most: int) -> Any:
        at, key = self._endpoint, self._endpoint.key
        if at.shape == "serper":
            # In a header, not in the URL, which proxies and servers log.
            headers = {"X-API-KEY": key} if key else {}
            request = self._client.build_request("POST", at.url, json={"q": query, "num": most}, headers=headers)
        else:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            parameters = {"q": query, "format": "json"} if at.shape == "searxng" else {at.query: query}
            request = self._client.build_request("GET", at.url, params=parameters, headers=headers)
        response = await self._client.send(request)
        if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            hint = "; SearXNG must allow the format json" if at.shape == "searxng" else ""
            raise Unavailable(
                f"The search endpoint refuses us: check its key{hint}.", reason="EVIDENCE_REFUSED", retry_after=None
            )
        if response.status_code != HTTPStatus.OK:
            # Redirects fail too, as following one would send query and key elsewhere.
            raise Unavailable(
                f"The search endpoint answers with status {response.status_code}.",
                reason="EVIDENCE_UNAVAILABLE",
                retry_after=retry_after(response.headers) or 1.0,
            )
        try:
            return json.loads(response.content)
        # Deeply nested brackets raise RecursionError, which is not a ValueError.
        except (ValueError, RecursionError):
            raise _garbled("is no JSON") from None

    def _hits(self, answer: Any) -> list[EvidenceHit]:
        results = _at(answer, self._paths.results)
        if not isinstance(results, list):
            # Not treated as an empty result, or the claim would count as checked.
            raise _garbled(f"has no list at {self._paths.results or 'its top'}")
        # SearXNG answers normally even if its engines block it or are slow, and lists those engines.
        if not results and self._endpoint.shape == "searxng" and _at(answer, "unresponsive_engines"):
            raise Unavailable(
                "The search endpoint found nothing, and engines that it asks gave it no answer: see its settings.",
                reason="EVIDENCE_UNAVAILABLE",
            )
        hits = [hit for one in results if (hit := self._hit(one)) is not None]
        if results and not hits:
            raise _garbled(f"has no result with an address at {self._paths.url}")
        return hits

    def _hit(self, result: Any) -> EvidenceHit | None:
        """Parses a result; None if it has no valid address, as for the engine's own answers."""
        url = _at(result, self._paths.url)
        # The URL becomes the id of a document, is shown to people and perhaps fetched, so it must be a valid address.
        if not isinstance(url, str) or not url.startswith(("https://", "http://")) or len(url) > _MAX_URL:
            return None
        paths = self._paths
        title, snippet, date = (
            _words(_at(result, at) if at else "") for at in (paths.title, paths.snippet, paths.date)
        )
        return EvidenceHit(id=url, title=title, source=host_of(url), snippet=snippet, date=date[:40])


def _at(value: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _words(value: Any) -> str:
    return " ".join(tidy(value).split())[:_MAX_WORDS] if isinstance(value, str) else ""


def _garbled(how: str) -> Unavailable:
    return Unavailable(
        f"What the search endpoint sends {how}: check the setting expert.shape.", reason="EVIDENCE_GARBLED"
    )
