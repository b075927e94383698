"""A fake of the package vLLM: ``vllm serve`` with the fake model server behind it.

It plays the oracle of the synthetic benchmark, and writes its starts and ends to a journal. If the environment has
``DIES_AFTER``, it kills itself after that many calls.
"""

from pathlib import Path

_MAIN = """
import asyncio, os, signal, sys, time

from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings


def note(what):
    with open({journal!r}, "a") as journal:
        journal.write(f"{{what}} {{model}} {{os.getpid()}}\\n")


arguments = dict(zip(sys.argv[3::2], sys.argv[4::2]))
model = arguments["--served-model-name"]
assert sys.argv[1] == "serve", sys.argv
if "missing" in model:
    sys.exit("OSError: there is no such model")
note("start")


async def serve():
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    settings = Settings(model=model, api_key=os.environ["VLLM_API_KEY"], play="synthetic")
    server = FakeModelServer(settings)
    async with serving(server, int(arguments["--port"])):
        while not stopped.is_set():
            if server.stats.calls >= int(os.environ.get("DIES_AFTER", sys.maxsize)):
                print("out of memory", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(0.02)


asyncio.run(serve())
note("end")
"""


class FakeVllmPackage:
    """The fake package, installed in a folder.

    Attributes:
        site: Folder for the module search path of vLLM's Python.
    """

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site"
        self._journal = folder / "journal"
        package = self.site / "vllm" / "entrypoints" / "cli"
        package.mkdir(parents=True)
        for part in (package, package.parent, package.parent.parent):
            (part / "__init__.py").touch()
        (package / "main.py").write_text(_MAIN.format(journal=str(self._journal)))

    def journal(self) -> list[tuple[str, str]]:
        """Returns starts and ends in order, each with the name of the model."""
        return [(kind, model) for kind, model, _ in self._lines()]

    def pids(self) -> list[int]:
        """Returns the ids of the processes that were started."""
        return [int(pid) for kind, _, pid in self._lines() if kind == "start"]

    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self._journal.read_text().splitlines()] if self._journal.exists() else []
