"""``memecourt consume``: memes out of a queue, verdicts into another."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import click

from serving.cli.common import FiniteRange, run, settings_of, tell, tls_options

if TYPE_CHECKING:
    from memecourt.client import Tls
    from serving.queue.source import QueueSettings
    from serving.settings import Settings

_SECONDS = FiniteRange(1, 86_400)


@click.command()
@click.argument("queue", metavar="ADDRESS", envvar="MEMECOURT_QUEUE")
@click.option("--stream", default="memes", show_default=True, help="Stream or subject to read memes from.")
@click.option("--group", default="memecourt", show_default=True, help="Consumer group that shares the memes.")
@click.option("--answers", metavar="NAME", help="Destination of verdicts. [default: STREAM.answers]")
@click.option(
    "--dead", metavar="NAME", help="Destination of memes without a verdict, with the reason. [default: STREAM.dead]"
)
@click.option(
    "--server", default="127.0.0.1:50051", show_default=True, metavar="HOST:PORT", help="Address of the court."
)
@click.option(
    "--token",
    envvar="MEMECOURT_TOKEN",
    show_envvar=True,
    help="Bearer token for the court. Safer in the environment.",
)
@tls_options
@click.option(
    "--at-once",
    default=8,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Maximum memes in flight to the court.",
)
@click.option("--timeout", default=120.0, show_default=True, type=_SECONDS, help="Seconds allowed for one meme.")
@click.option(
    "--again-after",
    default=60.0,
    show_default=True,
    type=_SECONDS,
    help="Seconds after which another consumer takes over an unacknowledged meme.",
)
@click.option(
    "--deliveries",
    default=5,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Deliveries after which a meme without a verdict is dead-lettered.",
)
@click.option(
    "--grace",
    default=20.0,
    show_default=True,
    type=FiniteRange(0, 3600),
    help="Seconds to finish work in flight after a stop signal.",
)
@click.option(
    "--metrics",
    envvar="MEMECOURT_QUEUE_METRICS",
    show_envvar=True,
    metavar="HOST:PORT",
    help="Address that serves the consumer's metrics to Prometheus, under /metrics.",
)
@click.option("--remove", is_flag=True, help="Delete messages from the stream once they are answered or dead-lettered.")
def consume(
    queue: str,
    stream: str,
    group: str,
    answers: str | None,
    dead: str | None,
    server: str,
    token: str | None,
    tls: Tls | None,
    at_once: int,
    timeout: float,
    again_after: float,
    deliveries: int,
    grace: float,
    metrics: str | None,
    remove: bool,
) -> None:
    """Sends the memes of a queue to a running court, until SIGTERM or Ctrl-C.

    ADDRESS is redis://HOST:PORT/DATABASE or nats://HOST:PORT (with TLS rediss:// or tls://); an address with a password
    is safer in MEMECOURT_QUEUE. A message is acknowledged in the same step in which its answer is stored. A meme that
    is delivered again gets its existing verdict and no second trial.

    Pictures that messages name by URL are fetched only from the hosts of the setting http_fetch_hosts.
    """
    from serving.queue.source import QueueSettings
    from serving.telemetry.logs import set_up

    settings = settings_of()
    set_up(settings.log_format)
    queue_settings = QueueSettings(
        address=queue,
        stream=stream,
        group=group,
        answers=answers or f"{stream}.answers",
        dead=dead or f"{stream}.dead",
        again_after_s=again_after,
        remove=remove,
    )
    run(
        _consume(
            settings,
            queue_settings,
            (server, tls, token, timeout),
            at_once=at_once,
            deliveries=deliveries,
            grace_s=grace,
            metrics_at=metrics,
        )
    )


async def _consume(
    settings: Settings,
    queue: QueueSettings,
    court_at: tuple[str, Tls | None, str | None, float],
    *,
    at_once: int,
    deliveries: int,
    grace_s: float,
    metrics_at: str | None,
) -> None:
    from serving.app import stop_signals
    from serving.queue.consumer import QueueConsumer
    from serving.queue.metrics import QueueMetrics
    from serving.queue.open import RemoteCourt, open_queue
    from serving.rest.remote_pictures import open_remote_pictures
    from serving.telemetry.metrics_port import MetricsPort

    address, tls, token, timeout_s = court_at
    try:
        court = RemoteCourt(address, tls=tls, token=token, timeout_s=timeout_s)
    except (ValueError, OSError) as error:
        # A token without TLS, or a file that can't be read.
        raise click.ClickException(str(error)) from None
    metrics = QueueMetrics()
    async with AsyncExitStack() as stack:
        if metrics_at:
            served = MetricsPort(metrics.registry, metrics_at)
            stack.push_async_callback(asyncio.to_thread, served.close)
        await stack.enter_async_context(court)
        fetch = await stack.enter_async_context(open_remote_pictures(settings.http_fetch_hosts))
        source = await stack.enter_async_context(open_queue(queue))
        # Four signs in the time after which another consumer gets a message: one that is lost does no harm.
        consumer = QueueConsumer(
            source,
            court,
            fetch=fetch,
            at_once=at_once,
            deliveries=deliveries,
            hold_s=queue.again_after_s / 4,
            metrics=metrics,
        )
        if not await court.is_serving():
            tell(f"The court at {address} does not serve now; memes wait in the queue until it does.")
        # Only now: until then a signal ends the command, and need not wait for a queue that does not answer.
        stopping = stop_signals()
        click.echo(f"consuming {queue.stream}")
        try:
            await consumer.run(stopping, grace_s=grace_s)
        finally:
            click.echo(f"{consumer.answered:,} answered, {consumer.buried:,} put aside")
