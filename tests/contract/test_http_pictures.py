"""Pictures that an HTTP request names by address: only from listed hosts, at public addresses, within limits."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import httpcore2
import pytest
import trustme
from google.rpc import code_pb2, error_details_pb2

from court.backends import http_addresses
from court.errors import BadInput, Overrun, Unavailable
from court.meme import LIMITS
from serving.rest import remote_pictures
from serving.rest.remote_pictures import open_remote_pictures
from serving.rpc.status import status_of
from tests.support.real_court import IMAGE

HOST = "cdn.example.org"
PUBLIC = "93.184.215.14"


@asynccontextmanager
async def a_host(monkeypatch, tmp_path, answer, addresses=(PUBLIC,)):
    """Serves as a remote host over real TLS; gives the fetch function and the list of addresses connected to.

    Names resolve to ``addresses``, and connections to them end here.
    """
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(HOST).configure_cert(context)
    connected = []

    async def serve(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def resolve(*_):
        return list(addresses)

    original_connect = httpcore2.AnyIOBackend.connect_tcp

    async def connect_tcp(self, host, port, **options):
        connected.append((host, port))
        return await original_connect(self, "127.0.0.1", listening.sockets[0].getsockname()[1], **options)

    monkeypatch.setattr(http_addresses, "resolve", resolve)
    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect_tcp)
    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listening,
        open_remote_pictures([HOST], ca_file=str(tmp_path / "authority.pem")) as fetch,
    ):
        yield fetch, connected


def fetch_picture(monkeypatch, tmp_path, answer, url=f"https://{HOST}/1.png?size=2#top", **options):
    """Returns the picture or the raised error, and the addresses connected to."""

    async def work():
        async with a_host(monkeypatch, tmp_path, answer, **options) as (fetch, connected):
            try:
                return await fetch(url), connected
            except (BadInput, Unavailable) as error:
                return error, connected

    return asyncio.run(work())


def answering(body=b"", status="200 OK", *headers, length=None):
    async def answer(writer):
        head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
        writer.write("\r\n".join([*head, "", ""]).encode())
        # In parts: CPython's TLS has crashed on a busy machine with 20 MB written at once.
        for start in range(0, len(body), 65536):
            writer.write(body[start : start + 65536])
            await writer.drain()
        await writer.drain()

    return answer


def test_a_picture_is_fetched_from_the_address_that_was_checked(monkeypatch, tmp_path):
    found, connected = fetch_picture(monkeypatch, tmp_path, answering(IMAGE))
    assert found == IMAGE
    assert connected == [(PUBLIC, 443)]


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
def test_addresses_other_than_listed_https_hosts_are_not_fetched(monkeypatch, tmp_path, url):
    found, connected = fetch_picture(monkeypatch, tmp_path, answering(IMAGE), url)
    assert found.reason == "URL_NOT_ALLOWED"
    assert connected == []


@pytest.mark.parametrize(
    "addresses", [("10.0.0.1",), ("127.0.0.1",), ("169.254.169.254",), ("::1",), (PUBLIC, "192.168.0.1"), ()]
)
def test_names_that_resolve_to_private_addresses_are_not_fetched(monkeypatch, tmp_path, addresses):
    found, connected = fetch_picture(monkeypatch, tmp_path, answering(IMAGE), addresses=addresses)
    assert found.reason == "URL_NOT_ALLOWED"
    assert connected == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answering(b"", "302 Found", "Location: https://cdn.example.org/2.png"), "PICTURE_NOT_FETCHED"),
        (answering(b"no", "404 Not Found"), "PICTURE_NOT_FETCHED"),
        (answering(b"x", "200 OK", "Content-Encoding: gzip"), "PICTURE_TOO_LARGE"),
        (answering(b"x", length=5), "PICTURE_NOT_FETCHED"),
        (answering(bytes(LIMITS.max_bytes + 1)), "PICTURE_TOO_LARGE"),
    ],
)
def test_bad_answers_and_oversized_pictures_are_refused(monkeypatch, tmp_path, answer, reason):
    found, connected = fetch_picture(monkeypatch, tmp_path, answer)
    assert found.reason == reason
    assert found.field == "image_url"
    assert len(connected) == 1


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
def test_a_host_s_passing_trouble_means_later(monkeypatch, tmp_path, status, headers, retry_after):
    found, _ = fetch_picture(monkeypatch, tmp_path, answering(b"no", status, *headers))
    assert isinstance(found, Unavailable)
    assert (found.reason, found.field, found.retry_after) == ("PICTURE_NOT_FETCHED", "image_url", retry_after)
    answered = status_of(found)
    assert answered.code == code_pb2.UNAVAILABLE
    delays = [detail for detail in answered.details if detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR)]
    assert len(delays) == 1, "HTTP passes it on as Retry-After"


@pytest.mark.parametrize(
    "status", ["301 Moved", "401 Unauthorized", "403 Forbidden", "404 Not Found", "410 Gone", "418 No"]
)
def test_a_host_s_refusal_is_final(monkeypatch, tmp_path, status):
    found, _ = fetch_picture(
        monkeypatch, tmp_path, answering(b"no", status, "Retry-After: 5", "Location: https://a.b/")
    )
    assert isinstance(found, BadInput)
    assert found.reason == "PICTURE_NOT_FETCHED"


def test_a_slow_host_times_out(monkeypatch, tmp_path):
    monkeypatch.setattr(remote_pictures, "FETCH_S", 0.5)

    async def drip(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    found, _ = fetch_picture(monkeypatch, tmp_path, drip)
    assert isinstance(found, Overrun)
    assert found.reason == "PICTURE_NOT_FETCHED"


def test_without_listed_hosts_pictures_are_not_fetched():
    async def work():
        async with open_remote_pictures(()) as fetch:
            await fetch(f"https://{HOST}/1.png")

    with pytest.raises(BadInput, match="fetches no pictures"):
        asyncio.run(work())
