"""``memecourt demo``: the main job from end to end, with the real server and the real client."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import click

from memecourt.client import Client, judge_request
from retrieval.library.postgres.address import Address
from serving.cli.common import docket_option, run, settings_of, tell, trial_settings
from serving.cli.judge import JudgeFailure, judging_here, show_verdict, this_command
from serving.settings import Settings

# None of them stands in the starter library.
_MEMES = ("crowd", "cat", "landscape")


_FULL_S = 3600.0  # for one trial: models on CPUs write a few tokens a second


@click.command()
@docket_option
@click.option("--llm-url", metavar="URL", help="Chat-completions server (…/v1), for full trials that are shown live.")
@click.option("--model", help="Model to use on that server.")
def demo(docket: Path | Address | None, llm_url: str | None, model: str | None) -> None:
    """Starts a server, sends three drawn memes, requests a verdict on each, and ends with the address of the console.

    In a terminal the console stays until Ctrl-C; elsewhere the command that opens it again is printed.

    One meme is harmful, one is harmless, and one resembles nothing in the library of precedents. With --llm-url and
    --model they are tried by the full procedure, in this process, and each step is shown as it happens.
    """
    if llm_url or model:
        models = trial_settings(procedure="full", llm_url=llm_url, model=model)
        run(_debates(settings_of(docket=docket, **models)))
        return
    settings = settings_of(docket=docket)
    place, log = settings.docket_place, settings.home / "demo.log"
    tell(f"The log is in {log}.")
    with _server(docket, log) as (process, address, console):
        with Client(address) as court:
            for scene in _MEMES:
                response = court.judge(_picture(scene), timeout=120)
                show_verdict(f"a drawn {scene}, sent to {address}", response.message, docket=place)
        if console and sys.stdin.isatty() and sys.stdout.isatty():
            tell(f"Try a meme of your own, or read these trials: {console}/try (Ctrl-C ends it)")
            with suppress(KeyboardInterrupt):
                process.wait()
            return
    home = f"MEMECOURT_HOME={settings.home} " if "MEMECOURT_HOME" in os.environ else ""
    start = f"{home}{this_command()} serve --console 127.0.0.1:8080"
    tell(f"Try a meme of your own: {start}, then open http://127.0.0.1:8080/try")


async def _debates(settings: Settings) -> None:
    """Tries the memes one after the other, since the steps of several would mix."""
    async with judging_here(settings, timeout=_FULL_S, watch=True) as ask:
        for scene in _MEMES:
            tell(f"On trial: a drawn {scene}.")
            # Anew: an earlier demo may have left a verdict.
            response = await ask(judge_request(_picture(scene), try_anew=True))
            if isinstance(response, JudgeFailure):
                # Small models fail at some memes; the others are shown all the same.
                tell(f"The trial of a drawn {scene} came to no verdict: {response.message}")
            else:
                show_verdict(f"a drawn {scene}", response, docket=settings.docket_place)


def _picture(scene: str) -> bytes:
    return files("retrieval.starter").joinpath("demo", f"{scene}.png").read_bytes()


@contextmanager
def _server(docket: Path | Address | None, log: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A real server in a process of its own, on free ports, ready; its addresses, of the console where it is installed.

    Yields:
        The process, the court's address, and the console's, which may be empty.
    """
    if docket is not None and not isinstance(docket, Path):
        # Options of a process can be seen by others, and this one may hold a password.
        raise click.ClickException("`demo` is given a file. Name a database with MEMECOURT_DOCKET instead.")
    command = [sys.executable, "-m", "serving.cli", "serve", "--address", "127.0.0.1:0"]
    command += [] if docket is None else ["--docket", str(docket)]
    command += ["--console", "127.0.0.1:0"] if all(map(find_spec, ("jinja2", "starlette", "uvicorn"))) else []
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            output = ""
            address = ""
            # It listens before it can judge: models and library are still being loaded.
            while output != "ready":
                line = process.stdout.readline()
                if not line:
                    raise click.ClickException(f"The server did not start; its log is {log}.")
                output = line.strip()
                if output.startswith("listening on "):
                    address = output.removeprefix("listening on ")
            console = re.search(r"^console on (\S+)$", log.read_text(), re.MULTILINE)
            yield process, address, console[1] if console else ""
        finally:
            process.terminate()
            process.wait(timeout=60)
