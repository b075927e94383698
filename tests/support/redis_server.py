"""A real Redis server for one test, on a socket in its own folder."""

import asyncio
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
import redis
import redis.asyncio


class RedisServer:
    """``redis-server`` as a subprocess, whose data survive a restart."""

    def __init__(self, *options: str) -> None:
        # A socket's path has at most 107 characters, and pytest's folders may be longer.
        self._folder = Path(tempfile.mkdtemp(prefix="redis-"))
        self._options = options
        self.url = f"unix://{self._folder}/redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        files = f"--dir {self._folder} --unixsocket {self._folder}/redis.sock --appendonly yes --port 0".split()
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(["redis-server", *files, *self._options], stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while True:
            try:
                with redis.Redis.from_url(self.url) as client:
                    client.ping()
                return
            except redis.exceptions.AuthenticationError:
                return
            except redis.exceptions.ConnectionError:
                assert self._process.poll() is None, (self._folder / "log").read_text()
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.02)

    def stop(self) -> None:
        """Ends the process, and leaves its files."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(120)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def redis_server(*options: str) -> RedisServer:
    """Returns a server to be started; skips the test if none is installed."""
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed (Debian: redis-server)")
    return RedisServer(*options)


async def entries_of(url: str, stream: str, *, at_least: int = 0, within_s: float = 120.0) -> list[dict[str, bytes]]:
    """Waits for that many entries of a stream; returns all, each with its Redis id as ``_id``."""
    async with redis.asyncio.Redis.from_url(url) as client:
        async with asyncio.timeout(within_s):
            while (await client.xlen(stream)) < at_least:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        entries = await client.xrange(stream)
    return [{"_id": id_, **{name.decode(): value for name, value in parts.items()}} for id_, parts in entries]
