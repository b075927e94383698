"""``memecourt serve``: the gRPC server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import click

from court.errors import BadRequest
from serving.cli.common import (
    PATH,
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
from serving.models.connect import pictures_per_prompt
from serving.models.presets import vllm_settings
from serving.models.vllm import VllmFailed, VllmServer
from serving.settings import Settings
from serving.telemetry.logs import set_up


@click.command()
@click.option(
    "--address",
    default="127.0.0.1:50051",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; port 0 picks a free one. An address beyond loopback needs a certificate and tokens.",
)
@click.option("--concurrent-trials", type=int, help="Maximum concurrent trials; further callers wait.")
@click.option(
    "--waiting-trials", type=int, help="Maximum waiting callers; further ones are refused with a time to retry."
)
@click.option(
    "--reuse",
    type=click.Choice(["off", "namespace", "everywhere"]),
    help="Namespaces whose earlier verdicts on the same meme are reused without a new trial.",
)
@click.option("--tls-certificate", type=PATH, help="Certificate chain of the server (PEM); clients must then use TLS.")
@click.option("--tls-key", type=PATH, help="Private key of the certificate (PEM).")
@click.option("--tls-client-ca", type=PATH, help="Authorities (PEM) that must have issued the client's certificate.")
@click.option("--tokens", type=PATH, help="Token file; see `memecourt tokens`.")
@insecure_option
@click.option("--http", metavar="HOST:PORT", help="Also serve HTTP and JSON on this address; see docs/http.md.")
@click.option("--http-origin", metavar="URL", help="Public address of HTTP, if it differs: https://example.org/court.")
@click.option("--console", metavar="HOST:PORT", help="Also serve the console on this address; see `memecourt console`.")
@click.option("--console-origin", metavar="URL", help="Public address of the console, if it differs.")
@click.option("--reflection/--no-reflection", default=None, help="Offer gRPC reflection, or not.")
@click.option("--metrics", metavar="HOST:PORT", help="Address to serve Prometheus metrics on.")
@click.option("--traces/--no-traces", default=None, help="Export OpenTelemetry traces, or not.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Format of log lines.")
@click.option(
    "--vllm",
    metavar="MODEL|PRESET",
    help="Also start vLLM with this model and use it for full trials; `memecourt vllm --preset list` lists presets.",
)
@click.option("--vllm-flag", multiple=True, metavar="FLAG", help="Pass a flag to vLLM: --vllm-flag=--quantization=fp8.")
@click.option("--resume", is_flag=True, help="Resume trials that were interrupted when a server stopped.")
@trial_options
@reader_option
@library_option
@docket_option
def serve(address: str, vllm: str | None, vllm_flag: tuple[str, ...], resume: bool, **options: Any) -> None:
    """Serves memecourt.v1 over gRPC, with health checks, until SIGTERM or Ctrl-C.

    Prints "listening on ADDRESS" once it listens and "ready" once it judges; until then its health is NOT_SERVING. It
    waits for a model server that is not up yet. It logs one line for every event of a trial after storing it, and never
    logs content of a meme. With --http it serves the same methods over HTTP and JSON too.

    All other settings are in the settings file or in the environment: see `memecourt settings`.
    """
    from serving.app import serve as serve_until_stopped

    values = trial_settings(**options)
    if vllm and values.get("llm", {}).keys() & {"url", "model"}:
        raise click.UsageError("--vllm starts a model server; leave --llm-url and --model out with it.")

    async def work() -> None:
        # Around the court, so that its model server ends after it: trials that finish within the grace still need
        # models.
        async with _models(vllm, vllm_flag, values) as (settings, ended):
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
    model: str | None, flags: tuple[str, ...], values: dict[str, Any]
) -> AsyncIterator[tuple[Settings, Callable[[], Awaitable[int]] | None]]:
    """The settings, with a vLLM behind them if one is to be started, and what tells of its end."""
    if model is None:
        yield settings_of(**values), None
        return

    settings = settings_of(**values)  # what is wrong with them is said before minutes are spent on a model
    try:
        vllm = vllm_settings(model, tell=tell, flags=flags, images=pictures_per_prompt(settings.trial))
    except BadRequest as error:
        raise click.UsageError(f"--vllm: {error.message}") from None
    tell(f"Starting vLLM with {vllm.model}; this can take minutes, longer where the model must be fetched …")
    try:
        async with VllmServer(vllm) as server:
            llm = {**values.get("llm", {}), "url": server.base_url, "model": server.model, "api_key": server.api_key}
            # Settings once more: port and key of the server are known only now.
            yield settings_of(**{**values, "llm": llm}), server.ended
    except VllmFailed as error:
        for line in error.log:
            tell(line)
        raise
