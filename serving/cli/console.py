"""``memecourt console``: the pages on which people read and review trials."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from court.errors import NotLoaded
from memecourt.aio import AsyncClient
from memecourt.client import Tls
from retrieval.open import require_library
from serving.access.reload import follow_files
from serving.access.tls import Certificates
from serving.access.tokens import WHAT, Tokens
from serving.cli.common import PATH, awaited, docket_option, insecure_option, library_option, settings_of, tls_options
from serving.docket.open import Docket, open_docket
from serving.telemetry import open_telemetry
from serving.telemetry.logs import set_up

if TYPE_CHECKING:
    from serving.console.registry import Trying


@click.command()
@click.option(
    "--address",
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; port 0 picks a free one. An address beyond loopback needs tokens and a certificate.",
)
@click.option("--tokens", type=PATH, help="Token file of the people who may sign in; see `memecourt tokens`.")
@click.option(
    "--console-origin",
    metavar="URL",
    help="Public address, if it differs: https://console.example, or with a path https://example.org/court.",
)
@click.option("--tls-certificate", type=PATH, help="Certificate chain (PEM); browsers must then use TLS.")
@click.option("--tls-key", type=PATH, help="Private key of the certificate (PEM).")
@click.option("--tls-client-ca", type=PATH, help="Authorities (PEM) that must have issued the browser's certificate.")
@click.option(
    "--blind-first/--no-blind-first", default=None, help="Have reviewers decide before they see the verdict, or not."
)
@click.option(
    "--overrulings",
    type=click.Choice(["never", "chosen", "always"]),
    help="Overruled verdicts that become precedents: none, those that the reviewer chooses (the default), or all.",
)
@click.option("--metrics", metavar="HOST:PORT", help="Address to serve Prometheus metrics of reviews on.")
@click.option("--server", metavar="ADDRESS", help="Court at host:port, on the same docket, that judges tries.")
@click.option(
    "--token", envvar="MEMECOURT_TOKEN", show_envvar=True, help="Bearer token for --server. Safer in the environment."
)
@tls_options
@insecure_option
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Format of log lines.")
@library_option
@docket_option
@awaited
async def console(address: str, server: str | None, token: str | None, tls: Tls | None, **options: Any) -> None:
    """Serves web pages to read, search and review trials, until SIGTERM or Ctrl-C.

    The console is a process of its own on the court's docket, and also works without a court. It writes only reviews
    and who viewed which picture. Without --tokens it accepts connections from this machine only. With --server people
    try memes at that court. `memecourt serve --console` serves the same pages beside gRPC.
    """
    from serving.app import allow_open_files, stop_signals

    if tls and not server:
        raise click.UsageError("--tls and certificates are for asking a court: give --server too.")
    settings = settings_of(**options)
    set_up(settings.log_format)
    try:
        from serving.console.app import open_console, pictures_of
        from serving.wiring import open_reviewing
    except ModuleNotFoundError as error:
        raise NotLoaded(
            f"The console is not installed ({error.name} is missing): pip install 'memecourt[console]'."
        ) from None
    allow_open_files()
    async with AsyncExitStack() as stack:
        tokens = Tokens.of(settings.tokens) if settings.tokens else None
        Certificates.of(settings)  # raises where a part is missing, or is no certificate
        await asyncio.to_thread(require_library, settings.library)
        docket = await asyncio.to_thread(open_docket, settings, create=False)
        stack.push_async_callback(docket.close)
        if tokens is not None:
            following = asyncio.create_task(follow_files([tokens.path], tokens.use, WHAT, tokens.contents))
            stack.callback(following.cancel)
        stopping = stop_signals()
        # Without traces: no trial runs in this process.
        telemetry = await stack.enter_async_context(open_telemetry(settings.model_copy(update={"traces": False})))
        reviewing = await stack.enter_async_context(open_reviewing(docket, settings, telemetry.metrics))
        trying = await _court_at(stack, docket, server, tls=tls, token=token) if server else None
        opening = open_console(
            docket, settings, address, tokens=tokens, pictures=pictures_of(settings), reviewing=reviewing, trying=trying
        )
        click.echo(f"console on {await stack.enter_async_context(opening)}")
        await stopping.wait()


async def _court_at(
    stack: AsyncExitStack, docket: Docket, address: str, *, tls: Tls | None, token: str | None
) -> Trying:
    from serving.cli.remote_court import RETRIES, RemoteCourt

    try:
        client = AsyncClient(address, tls=tls, token=token, retries=RETRIES)
    except (ValueError, OSError) as error:
        # A token without TLS, or a file that can't be read.
        raise click.ClickException(str(error)) from None
    return RemoteCourt(await stack.enter_async_context(client), docket.trials).trying
