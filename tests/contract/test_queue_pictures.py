"""Pictures that messages name by address: only from listed hosts, at public addresses, within limits."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest
import trustme

from memecourt.errors import JudgeError
from memecourt_queue import pictures
from memecourt_queue.request import picture_at

HOST = "cdn.example.org"
PUBLIC = "93.184.215.14"
IMAGE = b"\x89PNG\r\n" + bytes(100_000)


@asynccontextmanager
async def a_host(monkeypatch, tmp_path, answer, addresses):
    """Serves as a remote host over real TLS; gives the fetch function, the addresses connected to and the requests.

    Names resolve to ``addresses``, and connections to them end here.
    """
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(HOST).configure_cert(context)
    connected, heads = [], []

    async def serve(reader, writer):
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    original = asyncio.open_connection

    async def connect(host, port, **options):
        connected.append((host, port))
        return await original("127.0.0.1", listening.sockets[0].getsockname()[1], **options)

    async def resolve(*_, **__):
        return [(None, None, None, "", (address, 443)) for address in addresses]

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listening:
        monkeypatch.setattr(asyncio, "open_connection", connect)
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        yield pictures.fetcher([HOST], ca_file=str(tmp_path / "authority.pem")), connected, heads


def fetch_picture(monkeypatch, tmp_path, answer, url=f"https://{HOST}/1.png?size=2#top", addresses=(PUBLIC,)):
    """Returns the picture or the raised error, and the addresses connected to."""

    async def work():
        async with a_host(monkeypatch, tmp_path, answer, addresses) as (fetch, connected, heads):
            try:
                return await picture_at(url, fetch), connected, heads
            except JudgeError as error:
                return error, connected, heads

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


def flooding(start, chunk):
    async def answer(writer):
        writer.write(start)
        while True:
            writer.write(chunk)
            await writer.drain()

    return answer


def test_a_picture_is_fetched_from_the_address_that_was_checked(monkeypatch, tmp_path):
    found, connected, (head,) = fetch_picture(monkeypatch, tmp_path, answering(IMAGE), addresses=(PUBLIC, PUBLIC))
    assert found == IMAGE
    assert connected == [(PUBLIC, 443)]
    assert head.startswith(b"GET /1.png?size=2 HTTP/1.1\r\n") and b"\r\nhost: cdn.example.org\r\n" in head.lower()


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
        "file:///etc/passwd",
        f"https://{HOST}:x/",
        f"https://{HOST}/a b\r\nx: y",
        f"https://{HOST}/ä",
        "https://[",
        "",
    ],
)
def test_addresses_other_than_listed_https_hosts_are_not_fetched(monkeypatch, tmp_path, url):
    found, _, heads = fetch_picture(monkeypatch, tmp_path, answering(IMAGE), url)
    assert found.reason == "URL_NOT_ALLOWED"
    assert heads == []


@pytest.mark.parametrize("addresses", [("10.0.0.1",), ("::1",), ("169.254.169.254",), (PUBLIC, "192.168.0.1"), ()])
def test_names_that_resolve_to_private_addresses_are_not_fetched(monkeypatch, tmp_path, addresses):
    found, connected, _ = fetch_picture(monkeypatch, tmp_path, answering(IMAGE), addresses=addresses)
    assert found.reason == "URL_NOT_ALLOWED"
    assert connected == []


@pytest.mark.parametrize(
    ("answer", "reason", "code"),
    [
        (
            answering(b"", "301 Moved", "Location: https://a.b/"),
            "PICTURE_NOT_FETCHED",
            "INVALID_ARGUMENT",
        ),
        (answering(b"no", "401 Unauthorized"), "PICTURE_NOT_FETCHED", "INVALID_ARGUMENT"),
        (answering(b"no", "403 Forbidden", "Retry-After: 5"), "PICTURE_NOT_FETCHED", "INVALID_ARGUMENT"),
        (answering(b"no", "404 Not Found"), "PICTURE_NOT_FETCHED", "INVALID_ARGUMENT"),
        (answering(b"no", "410 Gone"), "PICTURE_NOT_FETCHED", "INVALID_ARGUMENT"),
        (answering(b"x", "200 OK", "Content-Encoding: gzip"), "PICTURE_TOO_LARGE", "INVALID_ARGUMENT"),
        (answering(b""), "PICTURE_EMPTY", "INVALID_ARGUMENT"),
        (flooding(b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 20)), "PICTURE_TOO_LARGE", "INVALID_ARGUMENT"),
        (flooding(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100), "PICTURE_TOO_LARGE", "INVALID_ARGUMENT"),
        (flooding(b"HTTP/1.1 200 OK\r\nx: ", b"x" * 5000), "PICTURE_NOT_FETCHED", "UNAVAILABLE"),
        (answering(b"x", length=5), "PICTURE_NOT_FETCHED", "UNAVAILABLE"),
        (answering(b"no", "408 Request Timeout"), "PICTURE_NOT_FETCHED", "UNAVAILABLE"),
        (answering(b"no", "425 Too Early"), "PICTURE_NOT_FETCHED", "UNAVAILABLE"),
        (answering(b"no", "429 Too Many Requests", "Retry-After: 90"), "PICTURE_NOT_FETCHED", "UNAVAILABLE"),
        (answering(b"no", "500 Oops"), "PICTURE_NOT_FETCHED", "UNAVAILABLE"),
        (answering(b"no", "502 Bad Gateway"), "PICTURE_NOT_FETCHED", "UNAVAILABLE"),
        (answering(b"no", "503 Service Unavailable", "Retry-After: 7"), "PICTURE_NOT_FETCHED", "UNAVAILABLE"),
    ],
)
def test_passing_trouble_means_later_and_all_else_is_final(monkeypatch, tmp_path, answer, reason, code):
    monkeypatch.setattr(pictures, "MAX_BYTES", 4 << 20)
    found, connected, _ = fetch_picture(monkeypatch, tmp_path, answer)
    assert (found.reason, found.code.name) == (reason, code)
    assert len(connected) == 1


@pytest.mark.parametrize("seconds", [3, 90])
def test_the_host_s_delay_is_passed_on(monkeypatch, tmp_path, seconds):
    answer = answering(b"no", "503 Service Unavailable", f"Retry-After: {seconds}")
    assert fetch_picture(monkeypatch, tmp_path, answer)[0].retry_after == seconds


def test_a_slow_host_times_out(monkeypatch, tmp_path):
    monkeypatch.setattr(pictures, "FETCH_S", 0.5)

    async def drip(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    found, _, _ = fetch_picture(monkeypatch, tmp_path, drip)
    assert (found.reason, found.code.name) == ("PICTURE_NOT_FETCHED", "UNAVAILABLE")


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
