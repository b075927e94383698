"""Listeners reachable from other machines require authentication and TLS."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from serving.access.exposure import only_here, require_guarded
from serving.app import serve
from serving.cli.main import cli
from serving.settings import Settings
from tests.support.consoles import create_docket

TLS = {"tls_certificate": Path("chain.pem"), "tls_key": Path("key.pem")}
TOKENS = {"tokens": Path("tokens.toml")}


def refusal_of(host, **settings):
    """Returns the refusal's message, or an empty string if the listener is allowed."""
    try:
        require_guarded("The server", host, Settings(**settings), field="address")
    except BadRequest as error:
        assert error.reason == "LISTENER_UNGUARDED"
        return error.message
    return ""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "unix"])
def test_loopback_listener_needs_neither_tls_nor_tokens(host):
    assert only_here(host) and not refusal_of(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "10.0.0.1", "192.168.1.1", "court.example", ""])
def test_public_listener_needs_tls_and_authentication(host):
    message = refusal_of(host)
    assert "memecourt tokens add" in message and "--tls-certificate" in message and "--insecure" in message
    assert "--tls-certificate" not in refusal_of(host, **TLS) and "tokens add" in refusal_of(host, **TLS)
    assert "tokens add" not in refusal_of(host, **TOKENS) and "--tls-certificate" in refusal_of(host, **TOKENS)
    assert not refusal_of(host, **TLS, **TOKENS)
    assert not refusal_of(host, **TLS, tls_client_ca=Path("ca.pem"))


def test_each_requirement_is_lifted_by_its_own_name():
    assert "tokens add" in refusal_of("0.0.0.0", insecure=("tls",))
    assert "--tls-certificate" in refusal_of("0.0.0.0", insecure=("auth",))
    assert not refusal_of("0.0.0.0", insecure=("tls", "auth"))


def test_serve_refuses_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path))
    outcome = CliRunner().invoke(cli, ["serve", "--address", "0.0.0.0:0"])
    assert outcome.exit_code == 1 and "tokens" in outcome.output and "Traceback" not in outcome.output


def test_console_on_a_public_address_needs_a_file_of_tokens(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path))
    docket = create_docket(tmp_path / "docket.sqlite", [])
    outcome = CliRunner().invoke(cli, ["console", "--address", "0.0.0.0:0", "--docket", str(docket)])
    assert outcome.exit_code == 1 and "a file of tokens" in " ".join(outcome.output.split())


@pytest.mark.parametrize("address", ["127.0.0.1:70000", "127.0.0.1:-1", "127.0.0.1:", "127.0.0.1:٣", "50051", ""])
def test_invalid_port_is_refused_before_anything_listens(address):
    """Unchecked, gRPC would wrap port 70000 around to 4464."""
    with pytest.raises(BadRequest, match=r"its port is no number from 0 to 65535\. Give host:port") as found:
        asyncio.run(serve(Settings(), address))
    assert (found.value.reason, found.value.field) == ("ADDRESS_UNUSABLE", "address")


def test_wildcard_listener_is_described_as_all_addresses():
    assert "would listen on all addresses, where" in refusal_of("")
