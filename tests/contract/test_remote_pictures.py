"""Pictures named by address, in HTTP requests and in messages of a queue: from listed hosts, at public addresses."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from google.rpc import code_pb2, error_details_pb2

from court.errors import BadInput, Overrun, Unavailable
from court.meme import LIMITS
from memecourt.errors import JudgeError
from memecourt_queue import pictures as queue_pictures
from memecourt_queue.request import picture_at
from serving.rest import remote_pictures
from serving.rest.remote_pictures import open_remote_pictures
from serving.rpc.status import status_of
from tests.support.public_host import PUBLIC, AnsweringServer, answering, endless, lead_here, tls_host
from tests.support.real_court import IMAGE

HOST = "cdn.example.org"
FINAL, LATER = "final", "later"
BOTH = pytest.mark.parametrize("way", ["http", "queue"])


@dataclass
class Fetched:
    """Outcome of a fetch, the picture or the error, and the host that was to be asked."""

    found: Any
    server: AnsweringServer

    @property
    def connected(self):
        """Addresses connected to."""
        return self.server.connected

    @property
    def refusal(self):
        """Reason of an error, and whether asking again may help."""
        code = getattr(self.found, "code", None)
        later = code.name == "UNAVAILABLE" if code is not None else isinstance(self.found, Unavailable)
        assert later or code is None or code.name == "INVALID_ARGUMENT"
        return self.found.reason, LATER if later else FINAL


@asynccontextmanager
async def a_fetcher(way, monkeypatch, server, addresses):
    """Fetches in one of the two ways; names resolve to ``addresses``, and connections to them end at the server."""
    if way == "http":
        lead_here(monkeypatch, server, {HOST: addresses})
        async with open_remote_pictures([HOST], ca_file=server.ca_file) as fetch:
            yield fetch
        return
    original = asyncio.open_connection

    async def open_connection(host, number, **options):
        server.connected.append((host, number))
        return await original("127.0.0.1", server.port, **options)

    async def getaddrinfo(*_, **__):
        return [(None, None, None, "", (address, 443)) for address in addresses]

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    fetch = queue_pictures.fetcher([HOST], ca_file=server.ca_file)
    yield lambda url: picture_at(url, fetch)


@pytest.fixture
def fetch_picture(monkeypatch, tmp_path):
    """Fetches from a remote host over real TLS."""

    async def work(way, answer, url=f"https://{HOST}/1.png?size=2#top", addresses=(PUBLIC,)):
        async with tls_host(tmp_path, answer, HOST) as server, a_fetcher(way, monkeypatch, server, addresses) as fetch:
            try:
                return Fetched(await fetch(url), server)
            except (BadInput, Unavailable, JudgeError) as error:
                return Fetched(error, server)

    return lambda *arguments, **options: asyncio.run(work(*arguments, **options))


@BOTH
def test_a_picture_is_fetched_from_the_address_that_was_checked(fetch_picture, way):
    got = fetch_picture(way, answering(IMAGE), addresses=(PUBLIC, PUBLIC))
    assert got.found == IMAGE
    assert got.connected == [(PUBLIC, 443)]
    ((head, _),) = got.server.requests
    assert head.startswith("GET /1.png?size=2 HTTP/1.1\r\n") and "\r\nhost: cdn.example.org\r\n" in head.lower()


@BOTH
@pytest.mark.parametrize(
    "url",
    [
        f"http://{HOST}/1.png",
        f"https://{HOST}:8443/1.png",
        f"https://user@{HOST}/1.png",
        f"https://{HOST}@10.0.0.1/1.png",
        f"https://{HOST}.evil.example/1.png",
        "https://127.0.0.1/1.png",
        "https://[::1]/1.png",
        "https://evil.example/1.png",
        f"ftp://{HOST}/1.png",
        "file:///etc/passwd",
        f"https://{HOST}:x/",
        "https://[",
        "//",
        "",
    ],
)
def test_addresses_other_than_listed_https_hosts_are_not_fetched(fetch_picture, way, url):
    got = fetch_picture(way, answering(IMAGE), url)
    assert got.found.reason == "URL_NOT_ALLOWED"
    assert got.connected == got.server.requests == []


@pytest.mark.parametrize("path", ["a b\r\nx: y", "ä"])
def test_paths_that_are_no_part_of_a_request_line_are_not_fetched(fetch_picture, path):
    """The queue writes the line itself."""
    got = fetch_picture("queue", answering(IMAGE), f"https://{HOST}/{path}")
    assert got.found.reason == "URL_NOT_ALLOWED" and got.server.requests == []


@BOTH
@pytest.mark.parametrize(
    "addresses", [("10.0.0.1",), ("127.0.0.1",), ("169.254.169.254",), ("::1",), (PUBLIC, "192.168.0.1"), ()]
)
def test_names_that_resolve_to_private_addresses_are_not_fetched(fetch_picture, way, addresses):
    got = fetch_picture(way, answering(IMAGE), addresses=addresses)
    assert got.found.reason == "URL_NOT_ALLOWED"
    assert got.connected == []


@BOTH
@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (answering(b"", "302 Found", f"Location: https://{HOST}/2.png"), ("PICTURE_NOT_FETCHED", FINAL)),
        *(
            (answering(b"no", status, "Retry-After: 5", "Location: https://a.b/"), ("PICTURE_NOT_FETCHED", FINAL))
            for status in ("301 Moved", "401 No", "403 Forbidden", "404 Not Found", "410 Gone", "418 No")
        ),
        (answering(b"x", "200 OK", "Content-Encoding: gzip"), ("PICTURE_TOO_LARGE", FINAL)),
        (endless(b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 20)), ("PICTURE_TOO_LARGE", FINAL)),
        (answering(b"x", length=5), ("PICTURE_NOT_FETCHED", LATER)),
    ],
)
def test_bad_answers_and_oversized_pictures_are_refused(fetch_picture, monkeypatch, way, answer, refusal):
    monkeypatch.setattr(queue_pictures, "MAX_BYTES", 4 << 20)
    got = fetch_picture(way, answer)
    assert got.refusal == refusal
    assert way == "queue" or got.found.field == "image_url"
    assert len(got.connected) == 1


def test_a_picture_one_byte_too_large_is_refused(fetch_picture):
    got = fetch_picture("http", answering(bytes(LIMITS.max_bytes + 1)))
    assert got.refusal == ("PICTURE_TOO_LARGE", FINAL)


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (answering(b""), ("PICTURE_EMPTY", FINAL)),
        (endless(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100), ("PICTURE_TOO_LARGE", FINAL)),
        (endless(b"HTTP/1.1 200 OK\r\nx: ", b"x" * 5000), ("PICTURE_NOT_FETCHED", LATER)),
    ],
)
def test_the_queue_bounds_what_it_reads(fetch_picture, answer, refusal):
    got = fetch_picture("queue", answer)
    assert got.refusal == refusal and len(got.connected) == 1


@BOTH
@pytest.mark.parametrize(
    ("status", "headers", "retry_after"),
    [
        ("408 Request Timeout", (), 1.0),
        ("425 Too Early", ("Retry-After: 2",), 2.0),
        ("429 Too Many Requests", ("Retry-After: 90",), 90.0),
        ("500 Oops", (), 1.0),
        ("502 Bad Gateway", ("Retry-After: soon",), 1.0),
        ("503 Service Unavailable", ("Retry-After: 7",), 7.0),
        ("504 Gateway Timeout", ("Retry-After: Thu, 01 Jan 1970 00:00:00 GMT",), 1.0),
        ("599 Other", (), 1.0),
    ],
)
def test_a_host_s_passing_trouble_means_later(fetch_picture, way, status, headers, retry_after):
    got = fetch_picture(way, answering(b"no", status, *headers))
    assert got.refusal == ("PICTURE_NOT_FETCHED", LATER)
    if way == "queue":
        # Without a delay of the host, the queue has one of its own.
        assert retry_after == 1.0 or got.found.retry_after == retry_after
        return
    assert (got.found.field, got.found.retry_after) == ("image_url", retry_after)
    answered = status_of(got.found)
    assert answered.code == code_pb2.UNAVAILABLE
    delays = [detail for detail in answered.details if detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR)]
    assert len(delays) == 1, "HTTP passes it on as Retry-After"


@BOTH
def test_a_slow_host_times_out(fetch_picture, monkeypatch, way):
    for module in (remote_pictures, queue_pictures):
        monkeypatch.setattr(module, "FETCH_S", 0.5)
    got = fetch_picture(way, endless(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"x", 0.05))
    assert got.refusal == ("PICTURE_NOT_FETCHED", LATER)
    assert way == "queue" or isinstance(got.found, Overrun)


async def test_without_listed_hosts_pictures_are_not_fetched():
    with pytest.raises(BadInput, match="fetches no pictures"):
        async with open_remote_pictures(()) as fetch:
            await fetch(f"https://{HOST}/1.png")


def test_pictures_in_data_addresses_are_read_in_place():
    async def none(_):
        raise AssertionError

    assert asyncio.run(picture_at("data:image/png;base64,AAEC", none)) == b"\0\1\2"
    for url, reason in (
        ("data:image/png,abc", "BAD_DATA_URL"),
        ("data:;base64,%", "BAD_BASE64"),
        (7, "MALFORMED_REQUEST"),
    ):
        with pytest.raises(JudgeError) as caught:
            asyncio.run(picture_at(url, none))
        assert caught.value.reason == reason
