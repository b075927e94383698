"""Commands that are imported when they are called, and how a program ends: with a message and an exit code.

Asking for help must not load an encoder: a command's module imports at its top, but the whole court (`serving.app`,
`serving.wiring`) and what an extra brings where they are used. A signal during imports must end a program as it does
later.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from court.errors import CourtError

_NO_THREAD = "can't start new thread"
"""What Python says, as a RuntimeError without a kind of its own, where the system gives it no thread."""


class CommandTable(click.Group):
    """Commands by name, each in a module that is imported when the command is called."""

    def __init__(self, *, table: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        """Imports nothing yet.

        Args:
            table: Module and one-line summary of each command; the module has the command under its name.
        """
        super().__init__(**settings)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table. See the base class."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command. See the base class."""
        if cmd_name not in self._table:
            return None
        command = getattr(import_module(self._table[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """See the base class. Here, and not in each command, an error of the court becomes its message."""
        # Not above: what it imports would take as long as all the rest of asking for help.
        from serving.access.private_files import make_files_private

        make_files_private()
        try:
            return super().invoke(ctx)
        except CourtError as error:
            # The message says what to do; where it was raised says nothing to a user.
            raise click.ClickException(error.message) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the summaries of the table. See the base class."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._table.items()])


def _terminated(number: int, _: object) -> None:
    """SIGTERM ends a command as Ctrl-C does, wherever it is; an event loop hears of it by itself."""
    from serving.cli.common import Interrupted

    raise Interrupted(number)


def run_command(command: click.Group, *, extra: str = "server") -> None:
    """Runs a command line; whatever goes wrong becomes a message and an exit code, and never a traceback.

    A package that is missing is taken for one of ``extra``; a command with an extra of its own names that itself.
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
        package = (error.name or "").partition(".")[0]
        # A module of our own is no extra: that is a broken installation, and a fault to be reported.
        if package in ("", "court", "retrieval", "serving", "eval", "memecourt"):
            raise
        advice = f"Install it with: pip install 'memecourt[{extra}]'"
        click.echo(f"This command needs {package}, which is not installed. {advice}", err=True)
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"Error: {where}{error.strerror or 'the system refused'}.", err=True)
        sys.exit(1)
    except Exception as error:
        if os.environ.get("MEMECOURT_TRACEBACK"):
            raise
        if isinstance(error, MemoryError) or str(error) == _NO_THREAD:
            click.echo(
                "Error: The system gives this process no more memory or threads. Raise what limits it: `ulimit -v`, "
                "`ulimit -u`, or the container's limits of memory and processes.",
                err=True,
            )
            sys.exit(1)
        click.echo(
            f"Error: MemeCourt made a mistake ({type(error).__name__}). Please report it, with what the same command "
            "prints where MEMECOURT_TRACEBACK=1 is set.",
            err=True,
        )
        sys.exit(1)
