"""The command ``memecourt``.

Commands are imported when they are called: asking for help must not load an encoder.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module

import click

_COMMANDS = {
    "setup": ("serving.cli.setup", "Fetch the encoder's weights, once."),
    "judge": ("serving.cli.judge", "Try memes and say what each is."),
    "serve": ("serving.cli.serve", "Serve verdicts over gRPC."),
    "consume": ("serving.cli.consume", "Have a court judge the memes of a queue."),
    "console": ("serving.cli.console", "Serve pages on which trials are read and reviewed."),
    "health": ("serving.cli.health", "Ask a server whether it serves."),
    "tokens": ("serving.cli.tokens", "Say who may call the server, and what each may do."),
    "webhooks": ("serving.cli.webhooks", "List, test, replay and stop what is told to receivers."),
    "vllm": ("serving.cli.vllm", "Start a vLLM on this machine, set up for the court."),
    "precedents": ("serving.cli.precedents", "Make, extend, search and describe libraries of precedents."),
    "facts": ("serving.cli.facts", "Make, show and search corpora of documents that claims are checked by."),
    "records": ("serving.cli.records", "List trials, show them step by step, resume those that were cut off."),
    "prompts": ("serving.cli.prompts", "Show, check and compare the words in which models are asked."),
    "docket": ("serving.cli.docket", "Check what is kept, hand trials over with proofs, erase."),
    "rejudge": ("serving.cli.rejudge", "Try memes of stored trials once more, after policy or library have changed."),
    "drift": ("serving.cli.drift", "Show the error of verdicts that chance brought to the desk, week by week."),
    "settings": ("serving.cli.settings", "Show the settings that are in force."),
    "upgrade": ("serving.cli.upgrade", "See what an earlier version left, and bring the docket to this one's format."),
    "demo": ("serving.cli.demo", "See it work: a server, three memes drawn for it, three verdicts."),
}

_CLIENT_ONLY = (
    "This command needs the court itself, and only the client is installed ({missing} is missing). "
    "Install it with: pip install 'memecourt[server]'"
)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command = getattr(import_module(_COMMANDS[name][0]), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="memecourt")
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="Settings file (TOML).")
def cli(config: str | None) -> None:
    """MemeCourt puts memes on trial: two sides argue, precedents are cited, a judge rules, every step is kept.

    Settings come from options, else from the environment (MEMECOURT_HOME, MEMECOURT_LIBRARY, MEMECOURT_DOCKET …), else
    from the file that --config or MEMECOURT_CONFIG names. `memecourt settings` shows those in force.
    """
    # Not above: what it imports would take as long as all the rest of asking for help.
    from serving.access.private_files import make_files_private

    make_files_private()
    if config:
        # Where Settings looks for it, in this process and in those it starts.
        os.environ["MEMECOURT_CONFIG"] = config


def main() -> None:
    """Entry point."""
    run_command(cli)


def _terminated(number: int, _: object) -> None:
    """SIGTERM ends a command as Ctrl-C does, wherever it is; an event loop hears of it by itself."""
    from serving.cli.common import Interrupted

    raise Interrupted(number)


def run_command(command: click.Group) -> None:
    """Runs a command line; whatever goes wrong becomes a message and an exit code, and never a traceback.

    ``MEMECOURT_TRACEBACK=1`` shows where a fault of ours came from.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that knows fewer characters than a meme gets the others as escapes.
            stream.reconfigure(errors="backslashreplace")
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _terminated)
    try:
        code = command.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort as error:
        # Click's own name for Ctrl-C, and for a question that is answered with no.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            click.echo("Aborted.", err=True)
            sys.exit(1)
        click.echo("Interrupted.", err=True)
        sys.exit(getattr(error.__cause__, "exit_code", 128 + signal.SIGINT))
    except ModuleNotFoundError as error:
        # A module of our own is no extra: that is a broken installation, and a fault to be reported.
        if error.name is None or error.name.partition(".")[0] in ("court", "retrieval", "serving", "eval", "memecourt"):
            raise
        click.echo(_CLIENT_ONLY.format(missing=error.name), err=True)
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"Error: {where}{error.strerror or 'the system refused'}.", err=True)
        sys.exit(1)
    except Exception as error:
        if os.environ.get("MEMECOURT_TRACEBACK"):
            raise
        click.echo(
            f"Error: MemeCourt made a mistake ({type(error).__name__}). Please report it, with what the same command "
            "prints where MEMECOURT_TRACEBACK=1 is set.",
            err=True,
        )
        sys.exit(1)
