"""Webhook destinations: only public addresses, whatever a name server answers (BO-8). Connections are counted."""

import asyncio
import json
import socket
import ssl
import threading

import pytest
import trustme
from pydantic import ValidationError

import memecourt_queue.pictures
from court.backends import http_addresses
from court.backends.http_addresses import is_public
from court.errors import BadRequest
from serving.webhooks.attempts import Outcome, Receiver
from serving.webhooks.messages import trial_run
from tests.support.dockets import NOON
from tests.support.paths import TESTS
from tests.support.receivers import hook_settings, running_receiver

ADDRESSES = json.loads((TESTS / "fixtures" / "addresses.json").read_text())
INSIDE, OUTSIDE = ADDRESSES["inside"], ADDRESSES["outside"]


@pytest.mark.parametrize("known", [is_public, memecourt_queue.pictures.is_public], ids=["server", "queue"])
def test_public_addresses_are_recognised(known):
    assert [address for address in (*INSIDE, *OUTSIDE) if known(address)] == OUTSIDE


def attempt(hook, *, resolved=None, monkeypatch=None):
    """Makes one attempt; ``resolved`` replaces the name server's answers, in order."""

    async def scene():
        receiver = Receiver(hook)
        try:
            return await receiver.send(trial_run(NOON))
        finally:
            await receiver.aclose()

    if resolved is not None:
        answers = iter(resolved)

        async def resolve(host, port):
            return next(answers)

        monkeypatch.setattr(http_addresses, "resolve", resolve)
    return asyncio.run(scene())


@pytest.fixture
def counting_listener():
    """A socket that counts connections, on all addresses of this machine."""
    counted = []
    with socket.create_server(("0.0.0.0", 0)) as server:

        def count():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                counted.append(connection)
                connection.close()

        threading.Thread(target=count, daemon=True).start()
        yield server.getsockname()[1], counted
        server.shutdown(socket.SHUT_RDWR)


NAMES = ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f000001", "127.1"]


@pytest.mark.promise("BO-8", "every way to name this machine, every address inside a network: 0 connections")
@pytest.mark.parametrize("name", NAMES)
def test_this_machine_is_never_connected_to_under_any_name(name, counting_listener, tmp_path):
    port, counted = counting_listener
    # The port would be refused when settings are read; here only the name must prevent the connection.
    hook = hook_settings("https://example.org/", tmp_path, allow_private=False).model_copy(
        update={"url": f"https://{name}:{port}/"}
    )
    answer = attempt(hook)
    assert answer.outcome is Outcome.FAILED and "not public" in answer.error
    assert counted == []
    # If private addresses are allowed, it is reached: the name does lead here.
    if "::" not in name:
        attempt(hook.model_copy(update={"allow_private": True}))
        assert len(counted) == 1


@pytest.mark.parametrize("name", ["0177.0.0.1", "300.1.1.1", "a..b"])
def test_a_malformed_host_name_prevents_the_start(name, tmp_path):
    with pytest.raises(BadRequest, match="its host is no name"):
        Receiver(hook_settings(f"https://{name}/", tmp_path))


@pytest.mark.promise("BO-8", "every way to name this machine, every address inside a network: 0 connections")
@pytest.mark.parametrize("address", [one for one in INSIDE if one != "no address"])
def test_names_with_any_private_address_are_refused(address, tmp_path, monkeypatch):
    hook = hook_settings("https://hooks.example/", tmp_path, allow_private=False)
    for answers in ([address], [*OUTSIDE, address], [address, *OUTSIDE]):
        answer = attempt(hook, resolved=[answers], monkeypatch=monkeypatch)
        assert "not public" in answer.error


def test_the_connection_goes_to_the_address_that_was_checked(counting_listener, tmp_path, monkeypatch):
    """A name server that changes its answer is not asked a second time."""
    port, counted = counting_listener
    hook = hook_settings("https://hooks.example/", tmp_path, allow_private=False).model_copy(
        update={"url": f"https://hooks.example:{port}/"}
    )
    monkeypatch.setattr(http_addresses, "is_public", lambda address: address == "127.0.0.2")
    assert "not public" not in attempt(hook, resolved=[["127.0.0.2"]], monkeypatch=monkeypatch).error
    assert len(counted) == 1 and counted.clear() is None
    answer = attempt(hook, resolved=[["127.0.0.1"]], monkeypatch=monkeypatch)
    assert "not public" in answer.error and counted == []


def test_the_certificate_must_match_the_name(tmp_path, monkeypatch):
    authority = trustme.CA()
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    monkeypatch.setattr(http_addresses, "is_public", lambda _: True)

    def send_with_certificate_for(name):
        certificate = authority.issue_cert(name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        with running_receiver() as receiver:
            receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
            port = receiver._server.server_port
            hook = hook_settings("https://hooks.example/", tmp_path, allow_private=False, ca_file=tmp_path / "ca.pem")
            hook = hook.model_copy(update={"url": f"https://hooks.example:{port}/"})
            answer = attempt(hook, resolved=[["127.0.0.1"]], monkeypatch=monkeypatch)
            return answer.outcome, len(receiver.requests)

    assert send_with_certificate_for("hooks.example") == (Outcome.DELIVERED, 1)
    assert send_with_certificate_for("127.0.0.1") == (Outcome.FAILED, 0)


def test_redirects_are_not_followed(tmp_path):
    with running_receiver() as target, running_receiver() as receiver:
        for status in (301, 302, 303, 307, 308):
            receiver.answer = lambda _, status=status: (status, {"Location": target.url})
            answer = attempt(hook_settings(receiver.url, tmp_path))
            assert (answer.outcome, answer.error) == (Outcome.FAILED, f"status {status}")
        assert target.connections == 0 and len(receiver.requests) == 5


def test_proxy_settings_of_the_environment_are_not_used(tmp_path, monkeypatch):
    with running_receiver() as proxy, running_receiver() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert attempt(hook_settings(receiver.url, tmp_path)).outcome is Outcome.DELIVERED
        assert proxy.connections == 0


@pytest.mark.parametrize(
    ("url", "private", "message"),
    [
        ("http://hooks.example/", False, "https and port 443"),
        ("https://hooks.example:8443/", False, "https and port 443"),
        ("https://hooks.example:22/", False, "https and port 443"),
        ("https://user@hooks.example/", False, "without a user"),
        ("https://user:secret@hooks.example/", True, "without a user"),
        ("https://hooks.example/#part", False, "fragment"),
        ("ftp://hooks.example/", True, "https://HOST/PATH"),
        ("file:///etc/passwd", True, "https://HOST/PATH"),
        ("https:///path", True, "https://HOST/PATH"),
        ("https://hooks.example:99999/", True, "no address"),
        ("hooks.example", True, "https://HOST/PATH"),
    ],
)
def test_invalid_destinations_are_refused_in_settings(url, private, message, tmp_path):
    with pytest.raises(ValidationError, match=message) as refused:
        hook_settings(url, tmp_path, allow_private=private)
    assert "secret@" not in str(refused.value.errors(include_input=False))
    assert hook_settings("https://hooks.example:443/a?b=c", tmp_path, allow_private=False)
    assert hook_settings("http://inside:8080/", tmp_path, allow_private=True)


ENDLESS = {"head": b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 50_000, "body": b"HTTP/1.1 200 OK\r\n\r\n"}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_an_endless_answer_is_read_up_to_a_limit(kind, tmp_path):
    """A receiver that acknowledged a message has done so, whatever follows."""
    sent = 0

    async def endless(reader, writer):
        nonlocal sent
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ENDLESS[kind])
            while True:
                writer.write(bytes(65536) if kind == "body" else b"X: 1\r\n" * 10_000)
                await writer.drain()
                sent += 60_000
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    receiver = Receiver(hook_settings(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", tmp_path))
    try:
        answer = await receiver.send(trial_run(NOON))
    finally:
        await receiver.aclose()
        server.close()
    assert answer.outcome is (Outcome.DELIVERED if kind == "body" else Outcome.FAILED)
    assert sent < 16 * 2**20  # bytes in the sockets' buffers were sent, but not read


@pytest.mark.parametrize(("status", "outcome"), [(200, Outcome.DELIVERED), (410, Outcome.GONE)])
def test_a_status_counts_even_if_its_body_is_late(status, outcome, tmp_path, monkeypatch):
    async def time_out(_):
        raise TimeoutError

    monkeypatch.setattr("serving.webhooks.attempts._read_some", time_out)
    with running_receiver() as receiver:
        receiver.answer = lambda _: (status, {})
        assert attempt(hook_settings(receiver.url, tmp_path)).outcome is outcome


def test_a_silent_receiver_times_out(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hook = hook_settings(f"http://127.0.0.1:{silent.getsockname()[1]}/", tmp_path, timeout=1)
        assert attempt(hook).error == "no answer in time"


def test_a_port_without_a_listener_is_a_connection_error(tmp_path):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert "no connection" in attempt(hook_settings(f"http://127.0.0.1:{bound.getsockname()[1]}/", tmp_path)).error
