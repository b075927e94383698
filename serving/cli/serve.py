"""``memecourt serve``: the gRPC server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from serving.cli.common import (
    docket_option,
    insecure_option,
    library_option,
    reader_option,
    run,
    settings_of,
    tell,
    trial_options,
    trial_settings,
)

if TYPE_CHECKING:
    from serving.settings import Settings

_FILE = click.Path(path_type=Path)
_SERVING = (
    "library",
    "docket",
    "reader",
    "concurrent_trials",
    "waiting_trials",
    "reuse",
    "tls_certificate",
    "tls_key",
    "tls_client_ca",
    "tokens",
    "insecure",
    "http",
    "console",
    "console_origin",
    "reflection",
    "metrics",
    "traces",
    "log_format",
)
"""Options that are settings of the same name."""


@click.command()
@click.option(
    "--address",
    default="127.0.0.1:50051",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen; port 0 for a free one. Beyond this machine, give it a certificate and tokens.",
)
@click.option("--concurrent-trials", type=int, help="Trials held at once; beyond, callers wait their turn.")
@click.option("--waiting-trials", type=int, help="Callers that wait; beyond, they are asked to come again.")
@click.option(
    "--reuse",
    type=click.Choice(["off", "namespace", "everywhere"]),
    help="Whose verdicts on the same meme are given again without a trial.",
)
@click.option(
    "--tls-certificate", type=_FILE, help="The server's certificate chain (PEM): callers must speak TLS then."
)
@click.option("--tls-key", type=_FILE, help="The private key of the certificate (PEM).")
@click.option("--tls-client-ca", type=_FILE, help="Authorities (PEM) of which callers must show a certificate.")
@click.option("--tokens", type=_FILE, help="The file of the callers' tokens: see `memecourt tokens`.")
@insecure_option
@click.option("--http", metavar="HOST:PORT", help="Where to serve HTTP and JSON too: docs/http.md.")
@click.option("--console", metavar="HOST:PORT", help="Where to serve the console too: see `memecourt console`.")
@click.option("--console-origin", metavar="URL", help="How people reach the console, where that is another name.")
@click.option("--reflection/--no-reflection", default=None, help="Whether the server tells what calls there are.")
@click.option("--metrics", metavar="HOST:PORT", help="Where Prometheus finds metrics.")
@click.option("--traces/--no-traces", default=None, help="Whether OpenTelemetry traces are exported.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How a line of the log is written.")
@click.option(
    "--vllm",
    metavar="MODEL|PRESET",
    help="Start a vLLM with this model too, and ask it in full trials; `memecourt vllm --preset list` shows presets.",
)
@click.option(
    "--vllm-flag", multiple=True, metavar="FLAG", help="Hand a flag on to vLLM: --vllm-flag=--quantization=fp8."
)
@click.option("--resume", is_flag=True, help="Take up the trials that were cut off when a server ended.")
@trial_options
@reader_option
@library_option
@docket_option
def serve(
    address: str,
    vllm: str | None,
    vllm_flag: tuple[str, ...],
    resume: bool,
    **options: Any,
) -> None:
    """Serves memecourt.v1 over gRPC, with health checks, until SIGTERM or Ctrl-C.

    Says "listening on ADDRESS" once it listens and "ready" once it judges; until then its health is NOT_SERVING. A
    model server that is not there yet is waited for. One line is logged for every event of a trial, once it is kept;
    nothing of a meme is ever logged. With --http the same methods are served over HTTP and JSON too.

    Whatever else can be set stands in the file of settings or in the environment: see `memecourt settings`.
    """
    from serving.app import serve as serve_until_stopped
    from serving.telemetry.logs import set_up

    given = {**{name: options.pop(name) for name in _SERVING}, **trial_settings(**options)}
    if vllm and given.get("llm", {}).keys() & {"url", "model"}:
        raise click.UsageError("--vllm starts a model server; leave --llm-url and --model out with it.")

    async def work() -> None:
        # Around the court, so that its model server ends after it: trials that finish within the grace still need
        # models.
        async with _models(vllm, vllm_flag, given) as (settings, ended):
            set_up(settings.log_format)
            await serve_until_stopped(
                settings,
                address,
                resume=resume,
                ended=ended,
                bound=lambda where: click.echo(f"listening on {where}"),
                ready=lambda: click.echo("ready"),
                tell=tell,
            )

    run(work())


@asynccontextmanager
async def _models(
    model: str | None, flags: tuple[str, ...], given: dict[str, Any]
) -> AsyncIterator[tuple[Settings, Callable[[], Awaitable[int]] | None]]:
    """The settings, with a vLLM behind them if one is to be started, and what tells of its end."""
    if model is None:
        yield settings_of(**given), None
        return
    from court.errors import BadRequest
    from serving.models.connect import pictures_per_prompt
    from serving.models.presets import vllm_settings
    from serving.models.vllm import VllmFailed, VllmServer

    settings = settings_of(**given)  # what is wrong with them is said before minutes are spent on a model
    try:
        asked = vllm_settings(model, tell=tell, flags=flags, images=pictures_per_prompt(settings.trial))
    except BadRequest as error:
        raise click.UsageError(f"--vllm: {error.message}") from None
    tell(f"Starting vLLM with {asked.model}; this can take minutes, longer where the model must be fetched …")
    try:
        async with VllmServer(asked) as server:
            llm = {**given.get("llm", {}), "url": server.base_url, "model": server.model, "api_key": server.api_key}
            # Settings once more: port and key of the server are known only now.
            yield settings_of(**{**given, "llm": llm}), server.ended
    except VllmFailed as error:
        for line in error.log:
            tell(line)
        raise
