"""``memecourt serve``: the gRPC server."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from serving.cli.common import docket_option, library_option, run, settings_of, tell


@click.command()
@click.option(
    "--address",
    default="127.0.0.1:50051",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen; port 0 for a free one. There is no TLS yet: keep it on this machine or behind a proxy.",
)
@click.option("--concurrent-trials", type=int, help="Trials held at once; beyond, callers are asked to come again.")
@library_option
@docket_option
def serve(address: str, concurrent_trials: int | None, library: Path | None, docket: Path | None) -> None:
    """Serves memecourt.v1.Court over gRPC, with health checks and reflection, until SIGTERM or Ctrl-C.

    Says "listening on ADDRESS" once it listens and "ready" once it judges; until then its health is NOT_SERVING. One
    line is logged for every event of a trial, once it is kept; nothing of a meme is ever logged.
    """
    from serving.server import serve as serve_until_stopped

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("memecourt").setLevel(logging.INFO)
    settings = settings_of(library=library, docket=docket, concurrent_trials=concurrent_trials)
    run(
        serve_until_stopped(
            settings,
            address,
            bound=lambda where: click.echo(f"listening on {where}"),
            ready=lambda: click.echo("ready"),
            tell=tell,
        )
    )
