"""``memecourt serve``: the gRPC server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from serving.cli.common import docket_option, library_option, run, settings_of, tell, trial_options, trial_settings

if TYPE_CHECKING:
    from serving.settings import Settings


@click.command()
@click.option(
    "--address",
    default="127.0.0.1:50051",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen; port 0 for a free one. There is no TLS yet: keep it on this machine or behind a proxy.",
)
@click.option("--concurrent-trials", type=int, help="Trials held at once; beyond, callers are asked to come again.")
@click.option("--vllm", metavar="MODEL", help="Start a vLLM with this model too, and ask it in full trials.")
@click.option(
    "--vllm-flag", multiple=True, metavar="FLAG", help="Hand a flag on to vLLM: --vllm-flag=--quantization=fp8."
)
@click.option("--resume", is_flag=True, help="First take up the trials that were cut off when the server last ended.")
@trial_options
@library_option
@docket_option
def serve(
    address: str,
    concurrent_trials: int | None,
    vllm: str | None,
    vllm_flag: tuple[str, ...],
    resume: bool,
    library: Path | None,
    docket: Path | None,
    **options: Any,
) -> None:
    """Serves memecourt.v1.Court over gRPC, with health checks and reflection, until SIGTERM or Ctrl-C.

    Says "listening on ADDRESS" once it listens and "ready" once it judges; until then its health is NOT_SERVING. One
    line is logged for every event of a trial, once it is kept; nothing of a meme is ever logged.
    """
    from serving.server import serve as serve_until_stopped

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("memecourt").setLevel(logging.INFO)
    given = {"library": library, "docket": docket, "concurrent_trials": concurrent_trials, **trial_settings(**options)}
    if vllm and given.get("llm", {}).keys() & {"url", "model"}:
        raise click.UsageError("--vllm starts a model server; leave --llm-url and --model out with it.")

    async def work() -> None:
        async with _models(vllm, vllm_flag, given) as (settings, ended):
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
    from serving.vllm import VllmFailed, VllmServer
    from serving.vllm_settings import VllmSettings

    settings_of(**given)  # what is wrong with them is said before minutes are spent on a model
    tell(f"Starting vLLM with {model}; this can take minutes, longer where the model must be fetched …")
    try:
        async with VllmServer(VllmSettings(model=model, flags=flags)) as server:
            llm = {**given.get("llm", {}), "url": server.base_url, "model": server.model, "api_key": server.api_key}
            yield settings_of(**{**given, "llm": llm}), server.ended
    except VllmFailed as error:
        for line in error.log:
            tell(line)
        raise
