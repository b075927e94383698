"""Tests of the options by which commands reach a server over TLS, against a real server."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import trustme
from click.testing import CliRunner
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from serving.cli.main import cli

NAME = "court.example.org"


@pytest.fixture
def files(tmp_path):
    """PEM files: an authority, a certificate below it with its key, and an unrelated authority."""
    authority = trustme.CA()
    issued = authority.create_child_ca().issue_cert(NAME)
    contents = {
        "ca.pem": authority.cert_pem.bytes(),
        "tls.crt": b"".join(part.bytes() for part in issued.cert_chain_pems),
        "tls.key": issued.private_key_pem.bytes(),
        "other.pem": trustme.CA().cert_pem.bytes(),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.fixture
def address(files):
    """The address of a running server with that certificate."""
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), server)
    pair = (files / "tls.key").read_bytes(), (files / "tls.crt").read_bytes()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def exit_code(*words):
    return CliRunner().invoke(cli, [str(word) for word in words]).exit_code


# The certificate itself can stand for its authority: probes have nothing else (deploy/kubernetes).
@pytest.mark.parametrize("trusted", ["ca.pem", "tls.crt"])
def test_server_is_trusted_by_its_authority_or_certificate_under_its_name(files, address, trusted):
    options = ("--timeout", 30, "--server-ca", files / trusted)
    assert exit_code("health", address, *options, "--server-name", NAME) == 0
    assert exit_code("health", address, *options, "--server-name", "another.example.org") == 3
    assert exit_code("health", address, *options) == 3, "the certificate is not for the address"


def test_server_of_another_authority_is_not_trusted(files, address):
    assert exit_code("health", address, "--server-ca", files / "other.pem", "--server-name", NAME) == 3


@pytest.mark.parametrize("command", [("health",), ("judge", "--text", "a quiet sunday", "--server", "127.0.0.1:1")])
def test_certificate_without_its_key_is_a_usage_error(files, command):
    outcome = CliRunner().invoke(cli, [*command, "--certificate", str(files / "tls.crt")])
    assert outcome.exit_code == 2 and "A certificate needs its key" in outcome.output


def test_judge_reaches_a_server_under_another_name(files, address):
    server = ("--server", address, "--server-ca", files / "ca.pem")
    arguments = ("judge", "--text", "a quiet sunday", *server, "--timeout", 30)
    outcome = CliRunner().invoke(cli, [str(word) for word in (*arguments, "--server-name", NAME, "--json")])
    # The server has no court: UNIMPLEMENTED shows that the call got through.
    assert outcome.exit_code == 1 and '"UNIMPLEMENTED"' in outcome.output
