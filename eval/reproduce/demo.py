"""Fake model servers for a reproduction without a GPU or real data (``make reproduce-demo``)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from eval.reproduce.drawn import ABILITIES, drawn_model
from eval.standin.server import FakeModelServer, serving
from eval.standin.settings import Settings
from eval.synthetic.served import ServedOracle


@contextlib.contextmanager
def stand_ins() -> Iterator[dict[str, str]]:
    """Runs a fake server of each ability on the loopback interface; yields their addresses by size."""
    listening = threading.Event()
    urls: dict[str, str] = {}
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        end = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            for size, ability in ABILITIES.items():
                oracle = ServedOracle(ability)
                settings = Settings(model=drawn_model(size), play="synthetic", capacity=64)
                server = FakeModelServer(settings, answer=oracle.answer, odds=oracle.odds)
                urls[size] = f"http://127.0.0.1:{await stack.enter_async_context(serving(server))}/v1"
            loops.append((asyncio.get_running_loop(), end))
            listening.set()
            await end.wait()

    # A thread with a loop of its own: the command that calls the servers runs its own loop meanwhile.
    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    if not listening.wait(30):
        raise RuntimeError("the stand-in servers did not start")
    try:
        yield urls
    finally:
        loop, end = loops[0]
        # The event belongs to the other thread's loop: set from here, it would not wake the waiting task.
        loop.call_soon_threadsafe(end.set)
        thread.join()


def arguments(root: Path, urls: dict[str, str]) -> list[str]:
    """The command's arguments for drawn benchmarks and stand-ins."""
    servers = [word for size, url in urls.items() for word in ("--llm-url", f"{size}={url}")]
    drawn = ["--data", str(root / "data"), "--dataset", "synthetic-harmeme", "--encoder", "builtin"]
    # With --resume and --yes, as the demo may run repeatedly and unattended.
    return ["reproduce", "memecourt", *drawn, "--out", str(root / "study"), *servers, "--balanced", "--resume", "--yes"]
