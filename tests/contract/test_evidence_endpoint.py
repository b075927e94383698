"""Search endpoints and the pages that they find, over real sockets: slow, down, huge, mistyped or garbled."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import pytest

from court.errors import CourtError, Overrun, Unavailable
from retrieval.facts.endpoint import Endpoint, EndpointEvidence, ResultPaths
from retrieval.facts.pages import MAX_PAGE_BYTES, PageFetcher
from tests.support.http import BOMB
from tests.support.public_host import PUBLIC, answering, endless, lead_here, listening, tls_host

HOST = "news.example.org"
RESULTS = {
    "searxng": {
        "results": [
            {
                "url": f"https://{HOST}/a",
                "title": "A\u0000 page",
                "content": "What it\n says",
                "publishedDate": "2024-05-06",
            },
            {"answer": "an answer without an address"},
            {"url": "javascript:alert(1)", "title": "no page"},
            {"url": f"https://{HOST}/a", "title": "again"},
            {"url": "http://www.other.example/b", "title": None, "content": 7},
        ]
    },
    "serper": {
        "organic": [{"link": f"https://{HOST}/a", "title": "A page", "snippet": "What it says", "date": "2024-05-06"}]
    },
    "json": {
        "data": [{"hits": [{"where": f"https://{HOST}/a", "about": {"name": "A page", "words": "What it says"}}]}]
    },
}
PATHS = ResultPaths(results="data.0.hits", url="where", title="about.name", snippet="about.words")


HTML = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
DRIPPING = endless(HTML + b"Content-Length: 100000\r\n\r\n", b" ", 0.05)


async def silence(writer):
    await asyncio.sleep(30)


async def search(answer, *, shape="searxng", within_s=60.0, then=None, **options):
    """Returns the hits of a search or the error that it raised, and the requests."""
    async with listening(answer) as server:
        endpoint = Endpoint(f"http://127.0.0.1:{server.port}/search", shape, paths=PATHS, **options)
        source = EndpointEvidence(endpoint)
        try:
            hits = await source.search("blue tea & colds", most=5, within_s=within_s)
            return hits if then is None else await then(source, hits), server.requests
        except CourtError as error:
            return error, server.requests
        finally:
            await source.aclose()


@pytest.mark.parametrize("shape", RESULTS)
async def test_each_shape_is_queried_and_parsed_in_its_own_way(shape):
    hits, requests = await search(answering(RESULTS[shape]), shape=shape, key="sesame", query="words")
    first = hits[0]
    assert (first.id, first.source) == (f"https://{HOST}/a", HOST)
    assert (first.title, first.snippet) == ("A page", "What it says")
    assert first.date == ("" if shape == "json" else "2024-05-06")
    ((head, body),) = requests
    method, target, _ = head.split("\r\n")[0].split(" ")
    query = parse_qs(urlsplit(target).query)
    if shape == "serper":
        assert method == "POST" and json.loads(body) == {"q": "blue tea & colds", "num": 5}
        assert "x-api-key: sesame" in head.lower()
    else:
        assert query == (
            {"q": ["blue tea & colds"], "format": ["json"]} if shape == "searxng" else {"words": ["blue tea & colds"]}
        )
        assert "authorization: bearer sesame" in head.lower()
    if shape == "searxng":
        assert [hit.id for hit in hits] == [f"https://{HOST}/a", "http://www.other.example/b"]
        assert (hits[1].source, hits[1].title, hits[1].snippet) == ("other.example", "", "")


async def test_without_fetching_a_result_s_text_is_its_snippet():
    async def then(source, hits):
        return await source.read(hits[0].id, within_s=5)

    found, requests = await search(answering(RESULTS["searxng"]), then=then)
    assert (found.text, found.title, found.source) == ("What it says", "A page", HOST)
    assert len(requests) == 1

    async def unknown(source, hits):
        return await source.read("https://elsewhere.example/", within_s=5)

    error, _ = await search(answering(RESULTS["searxng"]), then=unknown)
    assert error.reason == "EVIDENCE_MISSING"


async def test_a_search_without_hits_is_not_a_failure():
    for engines in ({}, {"unresponsive_engines": []}):
        hits, _ = await search(answering({"results": [], **engines}))
        assert hits == []
    # Some engines may have failed beside those that found something.
    hits, _ = await search(answering({**RESULTS["searxng"], "unresponsive_engines": [["one", "timeout"]]}))
    assert hits


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answering(b"<html>captcha</html>"), "EVIDENCE_GARBLED"),
        (answering(b"[" * 100_000), "EVIDENCE_GARBLED"),
        (answering({"error": "no"}), "EVIDENCE_GARBLED"),
        (answering([1, 2]), "EVIDENCE_GARBLED"),
        (answering({"results": {"a": 1}}), "EVIDENCE_GARBLED"),
        (answering({"results": [{"url": 7}, "x", None]}), "EVIDENCE_GARBLED"),
        (answering({"results": [], "unresponsive_engines": [["one", "CAPTCHA"]]}), "EVIDENCE_UNAVAILABLE"),
        (answering(b"", "500 Oh"), "EVIDENCE_UNAVAILABLE"),
        (answering(b"", "429 Slow", "Retry-After: 9"), "EVIDENCE_UNAVAILABLE"),
        (answering(b"", "302 Elsewhere", "Location: http://127.0.0.1:1/"), "EVIDENCE_UNAVAILABLE"),
        (answering(b"", "403 No"), "EVIDENCE_REFUSED"),
        (answering(BOMB, "200 OK", "Content-Encoding: gzip"), "EVIDENCE_UNAVAILABLE"),
        (endless(HTML + b"\r\n"), "EVIDENCE_UNAVAILABLE"),
        (endless(b"", b"HTTP/1.1 103 Early\r\nX: y\r\n\r\n" * 100), "EVIDENCE_UNAVAILABLE"),
        (answering(b"{}", length=1000), "EVIDENCE_UNAVAILABLE"),
    ],
)
async def test_every_bad_answer_of_an_endpoint_is_a_failure_with_a_reason(answer, reason):
    error, _ = await search(answer)
    assert isinstance(error, Unavailable) and error.reason == reason
    assert "127.0.0.1" not in error.message and "sesame" not in error.message


@pytest.mark.parametrize("answer", [silence, DRIPPING])
async def test_a_slow_endpoint_times_out(answer):
    began = time.monotonic()
    error, _ = await search(answer, within_s=0.5)
    assert isinstance(error, Overrun) and error.reason == "EVIDENCE_TOO_SLOW"
    assert time.monotonic() - began < 20  # the endpoint itself would take 30 s


async def test_an_unreachable_endpoint_is_unavailable():
    source = EndpointEvidence(Endpoint("http://127.0.0.1:9/search"))
    try:
        with pytest.raises(Unavailable) as error:
            await source.search("x", most=1, within_s=5)
        assert error.value.reason == "EVIDENCE_UNAVAILABLE"
    finally:
        await source.aclose()


@asynccontextmanager
async def a_host(monkeypatch, tmp_path, answer, addresses=(PUBLIC,)):
    """Gives a fetcher for which the host's name resolves to ``addresses``, and lists its connections."""
    async with tls_host(tmp_path, answer, HOST, "inside.example") as server:
        lead_here(monkeypatch, server, {HOST: addresses, "inside.example": ("10.0.0.7",)})
        fetcher = PageFetcher(ca_file=server.ca_file)
        try:
            yield fetcher, server.connected
        finally:
            await fetcher.aclose()


async def fetch(monkeypatch, tmp_path, answer, url=f"https://{HOST}/a#top", *, within_s=60.0, **options):
    """Returns the text of a page or the error, and the addresses connected to."""
    async with a_host(monkeypatch, tmp_path, answer, **options) as (fetcher, connected):
        try:
            return await fetcher.fetch(url, within_s=within_s), connected
        except Unavailable as error:
            return error, connected


PAGE = b"<title>T</title><p>Blue tea does not shorten a cold.<script>x()</script>"


@pytest.mark.parametrize(
    ("type_", "body", "text"),
    [
        ("text/html", PAGE, "Blue tea does not shorten a cold."),
        ("application/xhtml+xml; charset=utf-8", PAGE, "Blue tea does not shorten a cold."),
        ("text/plain; charset=iso-8859-1", "caf\xe9 <p>".encode("latin-1"), "café <p>"),
        ("text/plain; charset=klingon", b"words", "words"),
        ("text/html; charset=iso-8859-1", "<p>caf\xe9".encode("latin-1"), "café"),
    ],
)
async def test_a_page_is_fetched_from_the_address_that_was_checked(monkeypatch, tmp_path, type_, body, text):
    found, connected = await fetch(monkeypatch, tmp_path, answering(body, "200 OK", f"Content-Type: {type_}"))
    assert found == text
    assert connected == [(PUBLIC, 443)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answering(b"%PDF-1.7", "200 OK", "Content-Type: application/pdf"), "PAGE_UNREADABLE"),
        (answering(PAGE, "200 OK", "Content-Type: image/png"), "PAGE_UNREADABLE"),
        (answering(PAGE), "PAGE_UNREADABLE"),
        (answering(b"<script>x</script>", "200 OK", "Content-Type: text/html"), "PAGE_UNREADABLE"),
        (answering(PAGE, "404 Gone", "Content-Type: text/html"), "PAGE_UNREADABLE"),
        (answering(b"a" * (MAX_PAGE_BYTES + 1), "200 OK", "Content-Type: text/plain"), "PAGE_UNREADABLE"),
        (endless(HTML + b"\r\n"), "PAGE_UNREADABLE"),
        (answering(BOMB, "200 OK", "Content-Type: text/html", "Content-Encoding: gzip"), "PAGE_UNREADABLE"),
        (answering(PAGE, "200 OK", "Content-Type: text/html", length=1000), "PAGE_UNREADABLE"),
        (answering(b"", "302 x", f"Location: https://{HOST}/again"), "PAGE_UNREADABLE"),
        (answering(b"", "302 x", f"Location: http://{HOST}/plain"), "PAGE_NOT_ALLOWED"),
        (answering(b"", "301 x", "Location: https://inside.example/admin"), "PAGE_NOT_ALLOWED"),
        (answering(b"", "307 x", "Location: file:///etc/passwd"), "PAGE_NOT_ALLOWED"),
        (answering(b"", "308 x", "Location: https://127.0.0.1/"), "PAGE_NOT_ALLOWED"),
        (DRIPPING, "PAGE_TOO_SLOW"),
        (silence, "PAGE_TOO_SLOW"),
    ],
)
async def test_a_page_that_cannot_be_read_is_a_failure_with_a_reason(monkeypatch, tmp_path, answer, reason):
    error, connected = await fetch(monkeypatch, tmp_path, answer, within_s=1.0 if reason == "PAGE_TOO_SLOW" else 60.0)
    assert isinstance(error, Unavailable) and error.reason == reason
    assert HOST not in error.message
    # Redirects included, only the public address was connected to.
    assert set(connected) == {(PUBLIC, 443)}


@pytest.mark.parametrize(
    "url",
    [
        f"http://{HOST}/",
        f"https://{HOST}:8443/",
        f"https://user@{HOST}/",
        "https://10.0.0.1/",
        "https://[::1]/",
        "https://inside.example/",
        "https://[",
        f"https://{HOST}:x/",
        "ftp://x/",
        "",
    ],
)
async def test_unsafe_page_addresses_are_not_fetched(monkeypatch, tmp_path, url):
    error, connected = await fetch(monkeypatch, tmp_path, answering(PAGE), url)
    assert error.reason == "PAGE_NOT_ALLOWED" and connected == []


@pytest.mark.parametrize(
    "addresses", [("127.0.0.1",), ("169.254.169.254",), (PUBLIC, "192.168.0.1"), ("64:ff9b::a00:1",)]
)
async def test_names_that_resolve_to_private_addresses_are_not_fetched(monkeypatch, tmp_path, addresses):
    error, connected = await fetch(monkeypatch, tmp_path, answering(PAGE), addresses=addresses)
    assert error.reason == "PAGE_NOT_ALLOWED" and connected == []


async def test_pages_are_fetched_when_enabled(monkeypatch, tmp_path):
    async with a_host(monkeypatch, tmp_path, answering(PAGE, "200 OK", "Content-Type: text/html")) as (fetcher, _):
        source = EndpointEvidence(Endpoint("http://127.0.0.1:9/search"), fetcher)
        assert source.identity.endswith("pages")
        found = await source.read(f"https://{HOST}/a", within_s=60)
    assert (found.text, found.source) == ("Blue tea does not shorten a cold.", HOST)
