"""Telemetry of a running court: metrics, traces and logs.

None of them holds anything of a meme, but for traces of an operator who wants it
(:mod:`serving.telemetry.span_contents`).

The parts of the server are given a :class:`Telemetry` and tell it what happens; :data:`SILENT` listens and does
nothing. OpenTelemetry is imported only where traces are asked for, and need not be installed where they are not.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import grpc

from court.errors import NotLoaded
from court.events import AnyEvent, ReviewOutcome, TrialFailed, TrialOpened, TrialResumed, VerdictGiven
from court.record import TrialRecord
from serving.telemetry.trial_state import ObservedTrial

if TYPE_CHECKING:
    from serving.settings import Settings
    from serving.telemetry.metrics import Metrics
    from serving.telemetry.tracing import Tracing

__all__ = ["SILENT", "Telemetry", "open_telemetry"]

_MOST_TRIALS = 20_000
"""Trials that are followed at once: twice as many as any server may hold. One whose end is never told of, because the
docket could not keep it, is forgotten when so many others have come."""

_log = logging.getLogger("memecourt.telemetry")
_trials_log = logging.getLogger("memecourt.trials")


class Telemetry:
    """Is told what happens, and makes metrics, spans and log lines of it. Nothing that it is told can fail.

    Attributes:
        metrics_port: Port of the metrics; None if they are not served.
    """

    def __init__(
        self,
        metrics: Metrics | None = None,
        tracing: Tracing | None = None,
        *,
        log: bool = False,
        metrics_port: int | None = None,
    ) -> None:
        """Listens.

        Args:
            metrics: Metrics to count with; None to count nothing.
            tracing: Sink of spans; None for no tracing.
            log: True to log a line for each event of a trial.
            metrics_port: Port of the metrics; None if they are not served.
        """
        self.metrics_port = metrics_port
        self._metrics = metrics
        self._tracing = tracing
        self._logs = log
        self._trials: OrderedDict[str, ObservedTrial] = OrderedDict()

    def interceptor(self) -> grpc.aio.ServerInterceptor:
        """Counts and times every call of a server, and makes a span of each that is about memes.

        It goes first: what a later interceptor refuses is counted too.
        """
        from serving.telemetry.rpc_calls import CallsInterceptor

        return CallsInterceptor(self._metrics, self._tracing)

    def trace_id(self) -> str:
        """Trace of the call that is being answered, 32 hex digits: the one that its trial's record must name.

        Empty where nothing is traced, or outside a call.
        """
        return self._tracing.trace_id() if self._tracing else ""

    async def watch(self, event: AnyEvent) -> None:
        """Takes note of an event of a trial, once it is kept; a :class:`~court.ports.EventListener`."""
        try:
            self._take_note(event)
        except Exception as error:
            # A verdict must not be lost because it could not be counted. Only kind and place: an event holds text.
            fault = "\n".join([type(error).__name__, "".join(traceback.format_tb(error.__traceback__))])
            _log.error("trial=%s event=%s not counted: %s", event.trial_id, event.kind, fault)

    def resuming(self, record: TrialRecord) -> None:
        """Is told what was said before, when a trial is taken up again: its events to come don't say it once more."""
        if self._metrics is None and self._tracing is None and not self._logs:
            return
        self._follow(ObservedTrial.of(record))

    def decoded(self, seconds: float) -> None:
        """A picture was decoded, in so many seconds."""
        if self._metrics:
            self._metrics.decoded(seconds)

    def reused(self, *, near: bool) -> None:
        """A verdict of an earlier trial was given again: of the same meme, or of one that is nearly the same."""
        if self._metrics:
            self._metrics.reused(near=near)
        if self._tracing:
            self._tracing.reused(near=near)

    def streamed(self, code: int) -> None:
        """A request in a stream was answered: with a verdict, code 0, or with a failure, of that google.rpc code."""
        if self._metrics:
            self._metrics.streamed(code)

    def reviewed(self, outcome: ReviewOutcome) -> None:
        """A person upheld or overruled a verdict; :meth:`watch` does not count that."""
        if self._metrics:
            self._metrics.reviewed(outcome)

    def shadow_tried(self, outcome: str) -> None:
        """The shadow tried a meme, or passed it over: ``decided``, ``failed`` or ``dropped``."""
        if self._metrics:
            self._metrics.shadow_tried(outcome)

    def webhook_attempted(self, hook: str, outcome: str) -> None:
        """A message was sent to a receiver of webhooks: ``delivered``, ``failed``, or ``given_up`` besides."""
        if self._metrics:
            self._metrics.webhook_attempted(hook, outcome)

    def webhook_waits(self, hook: str, *, lag: int, oldest_s: float) -> None:
        """A receiver of webhooks is so many entries of the log behind, and its oldest message waits for so long."""
        if self._metrics:
            self._metrics.webhook_waits(hook, lag=lag, oldest_s=oldest_s)

    def webhook_elsewhere(self, hook: str) -> None:
        """Another server sends to a receiver of webhooks, and tells how far it is."""
        if self._metrics:
            self._metrics.webhook_elsewhere(hook)

    def observe_serving(self, services: Iterable[str], is_serving: Callable[[str], bool]) -> None:
        """Says where to look whether services answer; called from another thread."""
        if self._metrics:
            self._metrics.state.observe_serving(services, is_serving)

    def observe_certificate(self, expires: Callable[[], datetime]) -> None:
        """Says where to look when the server's certificate expires; called from another thread."""
        if self._metrics:
            self._metrics.state.observe_certificate(expires)

    def docket_written(self, seconds: float) -> None:
        """The docket has stored something, in so many seconds."""
        if self._metrics:
            self._metrics.state.docket_written(seconds)

    def docket_measured(self, *, entries: int, queue: int, oldest_s: float) -> None:
        """The docket was looked into: entries of its log, and verdicts that wait for a review."""
        if self._metrics:
            self._metrics.state.docket_measured(entries=entries, queue=queue, oldest_s=oldest_s)

    def sample_measured(self, *, reviewed: int, error: float | None, low: float | None, expected: float | None) -> None:
        """The random sample of reviews was looked at."""
        if self._metrics:
            self._metrics.state.sample_measured(reviewed=reviewed, error=error, low=low, expected=expected)

    def expired(self, erased: int, overdue: int) -> None:
        """Trials were erased by age; some may be overdue that could not be."""
        if self._metrics:
            self._metrics.state.expired(erased, overdue)

    def anchored(self, entries: int) -> None:
        """A checkpoint is kept outside that covers so many entries; 0 before the first is."""
        if self._metrics:
            self._metrics.state.anchored(entries)

    def observe(
        self,
        *,
        running: Callable[[], float] | None = None,
        waiting: Callable[[], float] | None = None,
        bytes: Callable[[], float] | None = None,  # noqa: A002 - what it is
        library: Callable[[], float] | None = None,
    ) -> None:
        """Says where to look when metrics are asked for; called from another thread, each must be quick and safe there.

        Args:
            running: Trials that are being held.
            waiting: Requests that wait their turn.
            bytes: Bytes of requests and decoded pictures in memory.
            library: Memes in the library that is searched.
        """
        if self._metrics:
            self._metrics.observe(running=running, waiting=waiting, held_bytes=bytes, library=library)

    def prefix_cache(self, models: Mapping[str, str], works: Mapping[str, bool]) -> None:
        """Says of the model of each role whether its servers' prefix cache works, where that is known."""
        if self._metrics:
            self._metrics.prefix_cache(models, works)

    def _take_note(self, event: AnyEvent) -> None:
        if self._metrics is None and self._tracing is None and not self._logs:
            return
        if isinstance(event, TrialOpened):
            self._follow(ObservedTrial.opened(event))
        elif isinstance(event, TrialResumed):
            self._follow(self._trials.get(event.trial_id) or ObservedTrial.unknown(event))
            # From here: the time in which no server held it is no part of what it took.
            self._trials[event.trial_id].began = event.at
        # Unknown where its beginning was forgotten, or came before this server: it is counted all the same.
        trial = self._trials.get(event.trial_id) or ObservedTrial.unknown(event)
        if self._logs:
            trial.log(_trials_log, event)
        calls = trial.calls(event)
        if self._metrics:
            self._metrics.note(event, trial, calls)
        if self._tracing:
            self._tracing.note(event, trial, calls)
        if isinstance(event, VerdictGiven | TrialFailed):
            # After metrics and spans, which need what came before.
            self._trials.pop(event.trial_id, None)

    def _follow(self, trial: ObservedTrial) -> None:
        self._trials[trial.trial_id] = trial
        while len(self._trials) > _MOST_TRIALS:
            # The one that was followed first, so the likeliest to have ended without a word.
            self._trials.popitem(last=False)


SILENT = Telemetry()
"""Listens and does nothing."""


@asynccontextmanager
async def open_telemetry(settings: Settings) -> AsyncIterator[Telemetry]:
    """Opens telemetry by the settings until the block is left; waiting spans are then exported.

    Raises:
        BadRequest: Metrics can't be served at that address.
        NotLoaded: Traces are asked for, and OpenTelemetry is not installed.
    """
    from serving.telemetry.metrics import Metrics
    from serving.telemetry.metrics_port import MetricsPort

    async with AsyncExitStack() as stack:
        tracing = None
        if settings.traces:
            tracing = _open_tracing(settings)
            # In a thread: the last spans may take seconds, and the loop has other things to end.
            stack.push_async_callback(asyncio.to_thread, tracing.close)
        metrics = port = None
        if settings.metrics:
            metrics = Metrics(settings)
            served = MetricsPort(metrics.registry, settings.metrics)
            stack.push_async_callback(asyncio.to_thread, served.close)
            port = served.port
            _log.info("metrics are served: path=/metrics port=%d", port)
        yield Telemetry(metrics, tracing, log=True, metrics_port=port)


def _open_tracing(settings: Settings) -> Tracing:
    try:
        from serving.telemetry.tracing import open_tracing
    except ModuleNotFoundError as error:
        # Any other module that is missing is a fault that this remedy would not mend.
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise NotLoaded(
            "Traces need OpenTelemetry. Install it with: pip install 'memecourt[telemetry]', or leave traces off.",
            reason="TRACES_NOT_LOADED",
            field="traces",
        ) from None
    if settings.trace_contents:
        _log.warning("traces hold what was said in trials: texts of memes, and what models said of them")
    return open_tracing(contents=settings.trace_contents, console=_console_of(settings))


def _console_of(settings: Settings) -> str:
    """Address of the console, for links to it: as people reach it, or where it listens; empty where there is none."""
    if settings.console_origin:
        return settings.console_origin
    return f"{'https' if settings.tls_certificate else 'http'}://{settings.console}" if settings.console else ""
