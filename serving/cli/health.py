"""``memecourt health``: whether a server serves, for containers and scripts."""

from __future__ import annotations

import sys

import click
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from memecourt.client import Tls
from memecourt.connection import Connection
from serving.cli.common import FiniteRange, tls_options

# 2 is click's, for wrong usage.
EXIT_NOT_SERVING, EXIT_NO_ANSWER = 1, 3
_STATUS = health_pb2.HealthCheckResponse.ServingStatus


@click.command()
@click.argument("address", default="127.0.0.1:50051", metavar="[HOST:PORT]")
@click.option(
    "--service",
    default="",
    metavar="NAME",
    help="Service to check: liveness, memecourt.v1.Court, .Docket or .Precedents. [default: memecourt.v1.Court]",
)
@tls_options
@click.option(
    "--timeout",
    default=4.0,
    show_default=True,
    type=FiniteRange(0, min_open=True),
    help="Seconds to wait for the answer.",
)
def health(address: str, service: str, tls: Tls | None, timeout: float) -> None:
    """Asks a server for its health and prints the answer.

    Exit code: 0 if it answers SERVING, 1 if it answers anything else, 3 if it does not answer, 2 for wrong usage.
    """
    if not all(word.isprintable() for word in (address, service, tls.server_name if tls else "")):
        raise click.UsageError("An address, a service or a name holds characters that can't stand in one.")
    try:
        with Connection.to(address, tls=tls).open() as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout
            )
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            raise click.UsageError(f'The server has no service "{service}".') from None
        click.echo(f"No answer from {address}: {error.code().name}: {error.details()}", err=True)
        sys.exit(EXIT_NO_ANSWER)
    click.echo(_STATUS.Name(answer.status))
    sys.exit(0 if answer.status == health_pb2.HealthCheckResponse.SERVING else EXIT_NOT_SERVING)
