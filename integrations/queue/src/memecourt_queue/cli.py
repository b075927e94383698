"""``memecourt-queue``: memes out of a queue, verdicts into another."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
from prometheus_client import start_http_server

from memecourt.connection import Tls
from memecourt_queue import __version__
from memecourt_queue.consumer import QueueConsumer
from memecourt_queue.court import RemoteCourt
from memecourt_queue.jetstream import JetStreamQueue
from memecourt_queue.metrics import QueueMetrics
from memecourt_queue.pictures import fetcher
from memecourt_queue.redis_streams import RedisStreams
from memecourt_queue.source import BrokerAway, QueueSettings, QueueSource, Unusable

_KINDS: dict[str, type[RedisStreams | JetStreamQueue]] = {
    **dict.fromkeys(("redis", "rediss", "unix"), RedisStreams),
    **dict.fromkeys(("nats", "tls"), JetStreamQueue),
}
_TLS = {"roots": "server_ca", "certificate": "certificate", "key": "key", "server_name": "server_name"}
_SECONDS = click.FloatRange(1, 86_400)
_HOSTS_VARIABLE = "MEMECOURT_QUEUE_FETCH_HOSTS"
_HOSTS = "Host from which pictures named by image_url are fetched; may be repeated."
_METRICS = "Address that serves the consumer's metrics to Prometheus, under /metrics."
_PEM = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(context_settings={"show_default": True})
@click.version_option(__version__)
@click.argument("queue", metavar="ADDRESS", envvar="MEMECOURT_QUEUE")
@click.option("--stream", default="memes", help="Stream to read memes from.")
@click.option("--group", default="memecourt", help="Consumer group that shares the memes.")
@click.option("--answers", metavar="NAME", help="Destination of verdicts.  [default: STREAM.answers]")
@click.option("--dead", metavar="NAME", help="Destination of memes without a verdict.  [default: STREAM.dead]")
@click.option("--server", default="127.0.0.1:50051", metavar="HOST:PORT", help="Address of the court.")
@click.option("--token", envvar="MEMECOURT_TOKEN", show_envvar=True, help="Bearer token for the court.")
@click.option("--tls", is_flag=True, help="Connect to the court with TLS; implied by the options below.")
@click.option("--server-ca", type=_PEM, help="Trust this certificate (PEM) as the court's, and no other.")
@click.option("--server-name", default="", help="Name in the court's certificate, if it differs from the address.")
@click.option("--certificate", type=_PEM, help="Client certificate (PEM), if the court requires one; needs --key.")
@click.option("--key", type=_PEM, help="Private key of the client certificate (PEM).")
@click.option("--at-once", default=8, type=click.IntRange(1, 1000), help="Maximum memes in flight to the court.")
@click.option("--timeout", default=120.0, type=_SECONDS, help="Seconds allowed for one meme.")
@click.option("--again-after", "again_after_s", default=60.0, type=_SECONDS, help="Seconds until another takes a meme.")
@click.option("--deliveries", default=5, type=click.IntRange(1, 1000), help="Tries before a meme is dead-lettered.")
@click.option("--grace", default=20.0, type=click.FloatRange(0, 3600), help="Seconds to finish after a stop signal.")
@click.option("--fetch-host", "hosts", multiple=True, envvar=_HOSTS_VARIABLE, show_envvar=True, help=_HOSTS)
@click.option("--metrics", envvar="MEMECOURT_QUEUE_METRICS", show_envvar=True, metavar="HOST:PORT", help=_METRICS)
@click.option("--log-format", default="text", type=click.Choice(["text", "json"]), help="Format of the log.")
@click.option("--remove", is_flag=True, help="Delete messages from the stream once they are answered or dead-lettered.")
def main(**options: Any) -> None:
    """Sends the memes of a queue to a running court, until SIGTERM or Ctrl-C.

    ADDRESS is redis://HOST:PORT/DATABASE or nats://HOST:PORT (with TLS rediss:// or tls://); an address with a password
    is safer in MEMECOURT_QUEUE. A message is acknowledged once its answer is stored.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(options["log_format"]))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    try:
        asyncio.run(_consume(options))
    except (Unusable, BrokerAway) as error:
        raise click.ClickException(str(error)) from None


@asynccontextmanager
async def open_queue(settings: QueueSettings) -> AsyncIterator[QueueSource]:
    """Opens a queue inside the block. Raises Unusable, BrokerAway."""
    # Only the scheme is parsed here: the rest may contain a password, and is passed to the client unchanged.
    kind = _KINDS.get(settings.address.partition("://")[0].lower())
    if kind is None:
        raise Unusable("The address of a queue is redis://HOST:PORT/DATABASE or nats://HOST:PORT, or with TLS.")
    source = await kind(settings).open()
    try:
        yield source
    finally:
        await source.aclose()


def _interrupted(number: int) -> None:
    # At once: nothing was received yet, and a client of a silent broker can lose its cancellation.
    click.echo("Interrupted.", err=True)
    os._exit(128 + number)


async def _consume(options: dict[str, Any]) -> None:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _interrupted, number)
    if any(options[name] != options[name] for name in ("timeout", "again_after_s", "grace")):
        raise Unusable("--timeout, --again-after and --grace are numbers.")  # click takes nan for one in any range
    named = {field: options[name] for field, name in _TLS.items()}
    try:
        tls = Tls(**named) if options["tls"] or any(named.values()) else None
        court = RemoteCourt(options["server"], tls=tls, token=options["token"], timeout_s=options["timeout"])
    except (ValueError, OSError) as error:  # a token without TLS, or a file that can't be read
        raise Unusable(str(error)) from None
    stream, metrics = options["stream"], QueueMetrics()
    settings = QueueSettings(
        address=options["queue"],
        answers=options["answers"] or f"{stream}.answers",
        dead=options["dead"] or f"{stream}.dead",
        **{name: options[name] for name in ("stream", "group", "again_after_s", "remove")},
    )
    if options["metrics"]:
        _serve_metrics(options["metrics"], metrics)
    async with court, open_queue(settings) as source:
        limits = {name: options[name] for name in ("at_once", "deliveries", "again_after_s")}
        consumer = QueueConsumer(source, court, fetch=fetcher(options["hosts"]), metrics=metrics, **limits)
        if not await court.is_serving():
            click.echo("The court does not serve now; memes wait in the queue until it does.", err=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        click.echo(f"consuming {stream}")
        try:
            await consumer.run(stopping, grace_s=options["grace"])
        finally:
            click.echo(f"{consumer.answered:,} answered, {consumer.buried:,} dead-lettered")


def _serve_metrics(address: str, metrics: QueueMetrics) -> None:
    host, _, port = address.rpartition(":")
    try:
        start_http_server(int(port), addr=host.strip("[]") or "127.0.0.1", registry=metrics.registry)
    except (ValueError, OverflowError, OSError) as error:
        raise Unusable(f"--metrics {address} can't be served: {error}.") from None


class _Lines(logging.Formatter):
    """Formats the log; of foreign messages, which may contain anything of a meme, only the origin."""

    def __init__(self, log_format: str) -> None:
        super().__init__()
        self._as_json = log_format == "json"

    def format(self, record: logging.LogRecord) -> str:
        ours = record.name.startswith("memecourt")
        message = record.getMessage() if ours else f"{record.module}:{record.lineno}"
        message = "".join(char if char.isprintable() else " " for char in message)
        parts = {"time": self.formatTime(record), "level": record.levelname, "logger": record.name, "message": message}
        return json.dumps(parts) if self._as_json else " ".join(parts.values())
