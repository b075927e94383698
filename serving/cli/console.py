"""``memecourt console``: the pages on which people read and review trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from serving.cli.common import docket_option, insecure_option, library_option, run, settings_of

if TYPE_CHECKING:
    from serving.settings import Settings

_FILE = click.Path(path_type=Path)


@click.command()
@click.option(
    "--address",
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen; port 0 for a free one. Beyond this machine it needs tokens, and a certificate.",
)
@click.option("--tokens", type=_FILE, help="The file of tokens of those who may sign in: see `memecourt tokens`.")
@click.option(
    "--console-origin", metavar="URL", help="How people reach it, where that is another name: https://console.example."
)
@click.option("--tls-certificate", type=_FILE, help="The certificate chain (PEM); browsers must speak TLS then.")
@click.option("--tls-key", type=_FILE, help="The private key of the certificate (PEM).")
@click.option("--tls-client-ca", type=_FILE, help="Authorities (PEM) of which browsers must show a certificate.")
@click.option(
    "--blind-first/--no-blind-first", default=None, help="Whether reviewers decide before they see the verdict."
)
@click.option(
    "--overrulings",
    type=click.Choice(["never", "chosen", "always"]),
    help="Which overruled verdicts become precedents: none, those of which the reviewer says so (the default), or all.",
)
@click.option("--metrics", metavar="HOST:PORT", help="Where Prometheus finds how many verdicts were reviewed here.")
@insecure_option
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How a line of the log is written.")
@library_option
@docket_option
def console(address: str, **options: Any) -> None:
    """Serves pages on which trials are read, searched and reviewed, until SIGTERM or Ctrl-C.

    It is a process of its own beside a court, or without one, over the same docket: it reads, and writes nothing but
    reviews and who looked at which picture. Without --tokens it is for this machine alone. `memecourt serve --console`
    serves the same beside gRPC.
    """
    from serving.telemetry.logs import set_up

    settings = settings_of(**options)
    set_up(settings.log_format)
    run(_serve(settings, address))


async def _serve(settings: Settings, address: str) -> None:
    import asyncio
    from contextlib import AsyncExitStack

    from court.errors import NotLoaded
    from retrieval.open import require_library
    from serving.access.reload import follow_files
    from serving.access.tls import Certificates
    from serving.access.tokens import WHAT, Tokens
    from serving.app import allow_open_files, stop_signals
    from serving.docket.open import open_docket
    from serving.telemetry import open_telemetry

    try:
        from serving.console.serve import open_console, pictures_of
        from serving.wiring import parts_alone
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
        parts = await stack.enter_async_context(parts_alone(docket, settings, telemetry.reviewed))
        opening = open_console(docket, settings, address, tokens=tokens, pictures=pictures_of(settings), parts=parts)
        click.echo(f"console on {await stack.enter_async_context(opening)}")
        await stopping.wait()
