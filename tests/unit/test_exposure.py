"""Listeners beyond this machine need to know who calls, and to encrypt."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from court.errors import BadRequest
from serving.access.exposure import only_here, require_guarded
from serving.app import serve
from serving.cli.main import cli
from serving.settings import Settings

TLS = {"tls_certificate": Path("chain.pem"), "tls_key": Path("key.pem")}
TOKENS = {"tokens": Path("tokens.toml")}


def guarded(host: str, **given: object) -> str:
    """The refusal's message; empty where the listener is let be."""
    try:
        require_guarded("The server", host, Settings(**given), field="address")
    except BadRequest as error:
        assert error.reason == "LISTENER_UNGUARDED"
        return error.message
    return ""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "unix"])
def test_this_machine_alone_needs_nothing(host):
    assert only_here(host) and not guarded(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "10.0.0.1", "192.168.1.1", "court.example", ""])
def test_beyond_it_both_are_asked_for_by_name(host):
    said = guarded(host)
    assert "memecourt tokens add" in said and "--tls-certificate" in said and "--insecure" in said
    assert "--tls-certificate" not in guarded(host, **TLS) and "tokens add" in guarded(host, **TLS)
    assert "tokens add" not in guarded(host, **TOKENS) and "--tls-certificate" in guarded(host, **TOKENS)
    assert not guarded(host, **TLS, **TOKENS)
    assert not guarded(host, **TLS, tls_client_ca=Path("ca.pem"))


def test_either_is_lifted_by_its_own_name():
    assert "tokens add" in guarded("0.0.0.0", insecure=("tls",))
    assert "--tls-certificate" in guarded("0.0.0.0", insecure=("auth",))
    assert not guarded("0.0.0.0", insecure=("tls", "auth"))


def test_serve_refuses_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMECOURT_HOME", str(tmp_path))
    said = CliRunner().invoke(cli, ["serve", "--address", "0.0.0.0:0"])
    assert said.exit_code == 1 and "tokens" in said.output and "Traceback" not in said.output


@pytest.mark.parametrize("address", ["127.0.0.1:70000", "127.0.0.1:-1", "127.0.0.1:", "127.0.0.1:٣", "50051", ""])
def test_a_port_that_is_none_is_refused_before_anything_listens(address):
    """By itself gRPC takes 70000 for 4464."""
    with pytest.raises(BadRequest, match=r"its port is no number from 0 to 65535\. Give host:port") as found:
        asyncio.run(serve(Settings(), address))
    assert (found.value.reason, found.value.field) == ("ADDRESS_UNUSABLE", "address")


def test_a_listener_on_all_addresses_is_called_so():
    assert "would listen on all addresses, where" in guarded("")
