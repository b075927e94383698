"""The command line: one file per command."""

import signal
from importlib import import_module


def start(module: str = "serving.cli.main") -> None:
    """Imports the module of a command line and calls its ``main``.

    Meanwhile Ctrl-C ends the process as SIGTERM does, without a word: nothing has begun, and what a signal interrupts
    in the middle of an import is a traceback.
    """
    # Where whoever started this ignores it, as nohup does, it stays ignored.
    quiet = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if quiet:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    main = import_module(module).main
    if quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
