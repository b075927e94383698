"""``memecourt vllm``: a vLLM on this machine, set up for the court."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from pathlib import Path

import click

from court.errors import BadRequest
from serving.cli.common import PATH, printable, run, settings_of, tell
from serving.models.connect import pictures_per_prompt
from serving.models.presets import AUTO, PRESETS, vllm_settings
from serving.models.vllm import VllmFailed, VllmServer, VllmSettings

KEY = "MEMECOURT_LLM__API_KEY"
"""Where the key is looked for here and by the commands that ask the server."""


def _list(context: click.Context, _: click.Parameter, preset: str | None) -> str | None:
    """Lists the presets and ends, before anything else is asked for."""
    if preset != "list":
        return preset

    click.echo(f"{'preset':<16}{'model':<30}{'weights':>8}{'GPU memory':>14}{'on each of two':>17}{'context':>10}")
    for one in PRESETS.values():
        billions, single, shared = one.weights / 1e9, one.memory_gib(), one.memory_gib(2)
        click.echo(
            f"{one.name:<16}{one.model:<30}{billions:>7.1f}B{single:>10.1f} GiB{shared:>13.1f} GiB{one.context:>10,}"
            + (f"  {shlex.join(one.flags)}" if one.flags else "")
        )
    context.exit()


@click.command()
@click.option("--model", metavar="NAME", help="Model name on the Hugging Face hub, or a folder.")
@click.option(
    "--preset",
    is_eager=True,
    callback=_list,
    metavar="NAME",
    help=(
        "Tested model with its flags, such as qwen3-vl-8b. `list` shows all with the GPU memory they need; "
        "`auto` picks the largest that fits this machine. Other options override the preset."
    ),
)
@click.option("--name", help="Name that clients use for the model. [default: the model's name]")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8000, show_default=True, help="Port; 0 picks a free one."
)
@click.option(
    "--context", type=click.IntRange(1024), help="Context length in tokens, prompt and reply together. [default: 32768]"
)
@click.option(
    "--images",
    type=click.IntRange(0, 64),
    help=(
        "Maximum pictures in one prompt; 0 for a text model. [default: what a trial shows, four frames plus "
        "trial.exhibits]"
    ),
)
@click.option(
    "--max-pixels",
    type=click.IntRange(0),
    help=(
        "Maximum pixels of a picture; larger ones are scaled down. 0 for a model without such a bound. "
        "[default: 1003520]"
    ),
)
@click.option("--tensor-parallel", type=click.IntRange(1, 64), help="Number of GPUs that share the model. [default: 1]")
@click.option(
    "--python",
    type=PATH,
    help="Python interpreter that has vLLM installed. [default: MEMECOURT_VLLM_PYTHON, else the current one]",
)
@click.option("--verbose", is_flag=True, help="Show vLLM's log while it runs.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- MORE FLAGS OF VLLM]")
def vllm(
    model: str | None,
    preset: str | None,
    name: str | None,
    port: int,
    context: int | None,
    images: int | None,
    max_pixels: int | None,
    tensor_parallel: int | None,
    python: Path | None,
    verbose: bool,
    flags: tuple[str, ...],
) -> None:
    """Runs vLLM on this machine with the flags that the court needs, until Ctrl-C or SIGTERM.

    It listens on loopback only, caches prefixes, takes pictures as bytes and never fetches one, and requires a key: the
    one in MEMECOURT_LLM__API_KEY, else a new one that is printed once on standard output. Progress goes to standard
    error, as do the last lines of vLLM's log if it fails.
    """
    if (model is None) == (preset is None):
        raise click.UsageError("Name what to start: either --model NAME or --preset NAME.")
    if preset is not None and preset not in (AUTO, *PRESETS):
        raise click.UsageError(f"There is no preset {preset!r}. There are: {', '.join(PRESETS)}, and {AUTO}.")
    values = {
        "name": name,
        "port": port,
        "context": context,
        "images": pictures_per_prompt(settings_of().trial) if images is None else images,
        "max_pixels": max_pixels,
        "tensor_parallel": tensor_parallel,
        "python": python,
        "flags": flags,
        "api_key": os.environ.get(KEY) or None,
    }
    values = {key: value for key, value in values.items() if value is not None}
    try:
        settings = vllm_settings(model or preset or "", tell=tell, **values)
    except BadRequest as error:
        raise click.UsageError(error.message) from None
    run(_serve_until_stopped(settings, verbose))


async def _serve_until_stopped(settings: VllmSettings, verbose: bool) -> None:
    """Runs it until told to stop; raises what went wrong, after its log was shown."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    server = VllmServer(settings, log=_show if verbose else lambda _: None)
    tell(f"starting vLLM with {settings.model}; this can take minutes, longer where the model must be fetched")
    work = asyncio.ensure_future(_serve(server))
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        tell("stopping vLLM")
        # Leaves the server's block, which ends vLLM in order; waited for, so that nothing is left when this process
        # ends.
        work.cancel()
        await asyncio.wait((work,))
        return
    stopped.cancel()
    try:
        work.result()
    except VllmFailed as error:
        # With --verbose they were shown as they came.
        if not verbose:
            for line in error.log:
                _show(line)
        raise


async def _serve(server: VllmServer) -> None:
    async with server:
        click.echo(f"vLLM answers at {server.base_url} as {server.model}")
        # A key that the operator has set is known to them, and need not show in a terminal.
        if not os.environ.get(KEY):
            click.echo(f"key: {server.api_key}")
        click.echo(f"use it: {KEY}=… memecourt serve --llm-url {server.base_url} --model {shlex.quote(server.model)}")
        code = await server.ended()
        raise VllmFailed(
            f"vLLM ended with code {code} though nobody told it to; the last lines of its log stand above.",
            reason="VLLM_ENDED",
            log=server.log(),
        )


def _show(line: str) -> None:
    # vLLM's log may repeat parts of a request, and so a stranger's control characters.
    tell(f"vllm| {printable(line)}")
