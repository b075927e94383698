"""Telemetry of a running court: metrics, traces and logs.

None of them contains anything of a meme.

The parts of the server report to a :class:`Telemetry`; :data:`SILENT` ignores everything. OpenTelemetry is imported,
and needs to be installed, only if traces are enabled.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
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
"""Maximum number of trials tracked at once: twice as many as a server may run. A trial whose end is never reported,
because the docket could not store it, is dropped after this many others."""

_log = logging.getLogger("memecourt.telemetry")
_trials_log = logging.getLogger("memecourt.trials")


class Telemetry:
    """Turns reported events into metrics, spans and log lines. Its methods never raise.

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
        """Combines the outputs.

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
        """Returns the interceptor that counts and times every call, and creates spans for calls about memes.

        It comes first, so that calls refused by later interceptors are counted too.
        """
        from serving.telemetry.rpc_calls import CallsInterceptor

        return CallsInterceptor(self._metrics, self._tracing)

    def call(
        self,
        method: str,
        headers: Mapping[str, str],
        time_left: Callable[[], float | None],
        code_of: Callable[[BaseException | None], str],
    ) -> AbstractContextManager[None]:
        """Counts, times and traces a call of another transport than gRPC inside the block.

        Args:
            method: Full name, ``/memecourt.v1.Court/Judge``.
            time_left: Returns the seconds until the caller's deadline, or None.
            code_of: Returns the name of the code that the call ended with, given its error.
        """
        from serving.telemetry.rpc_calls import MeasuredCall

        return MeasuredCall.of_method(
            method, headers, self._metrics, self._tracing, time_left=time_left, code_of=code_of
        )

    def trace_id(self) -> str:
        """Returns the trace id of the current call, 32 hex digits, to be stored in its trial's record.

        Empty if tracing is off, or outside of a call.
        """
        return self._tracing.trace_id() if self._tracing else ""

    async def watch(self, event: AnyEvent) -> None:
        """Records a stored event of a trial; a :class:`~court.ports.EventListener`."""
        try:
            self._take_note(event)
        except Exception as error:
            # A verdict must not be lost because counting failed. Only type and traceback: messages may contain text.
            fault = "\n".join([type(error).__name__, "".join(traceback.format_tb(error.__traceback__))])
            _log.error("trial=%s event=%s not counted: %s", event.trial_id, event.kind, fault)

    def resuming(self, record: TrialRecord) -> None:
        """Restores the state of a resumed trial from its earlier events."""
        if self._metrics is None and self._tracing is None and not self._logs:
            return
        self._follow(ObservedTrial.of(record))

    def decoded(self, seconds: float) -> None:
        """Records the decoding of a picture and its duration."""
        if self._metrics:
            self._metrics.decoded(seconds)

    def reused(self, *, near: bool) -> None:
        """Records a reused verdict, of the same meme or of a near-duplicate."""
        if self._metrics:
            self._metrics.reused(near=near)
        if self._tracing:
            self._tracing.reused(near=near)

    def streamed(self, code: int) -> None:
        """Records the answer to a request in a stream: code 0 for a verdict, or the google.rpc code of a failure."""
        if self._metrics:
            self._metrics.streamed(code)

    def reviewed(self, outcome: ReviewOutcome) -> None:
        """Records a review, which :meth:`watch` does not count."""
        if self._metrics:
            self._metrics.reviewed(outcome)

    def webhook_attempted(self, hook: str, outcome: str) -> None:
        """Records a webhook attempt: ``delivered`` or ``failed``; ``given_up`` is recorded in addition."""
        if self._metrics:
            self._metrics.webhook_attempted(hook, outcome)

    def webhook_waits(self, hook: str, *, lag: int, oldest_s: float) -> None:
        """Records a webhook receiver's lag in log entries, and the age of its oldest message."""
        if self._metrics:
            self._metrics.webhook_waits(hook, lag=lag, oldest_s=oldest_s)

    def webhook_elsewhere(self, hook: str) -> None:
        """Records that another server sends to a webhook receiver and reports its lag."""
        if self._metrics:
            self._metrics.webhook_elsewhere(hook)

    def observe_serving(self, services: Iterable[str], is_serving: Callable[[str], bool]) -> None:
        """Registers the status of services; ``is_serving`` is called from another thread."""
        if self._metrics:
            self._metrics.state.observe_serving(services, is_serving)

    def observe_certificate(self, expires: Callable[[], datetime]) -> None:
        """Registers the certificate's expiry time; ``expires`` is called from another thread."""
        if self._metrics:
            self._metrics.state.observe_certificate(expires)

    def docket_written(self, seconds: float) -> None:
        """Records the duration of a write to the docket."""
        if self._metrics:
            self._metrics.state.docket_written(seconds)

    def docket_measured(self, *, entries: int, queue: int, oldest_s: float) -> None:
        """Records the size of the docket's log, and the verdicts waiting for review."""
        if self._metrics:
            self._metrics.state.docket_measured(entries=entries, queue=queue, oldest_s=oldest_s)

    def sample_measured(self, *, reviewed: int, error: float | None, low: float | None, expected: float | None) -> None:
        """Records figures of the random sample of reviews."""
        if self._metrics:
            self._metrics.state.sample_measured(reviewed=reviewed, error=error, low=low, expected=expected)

    def expired(self, erased: int, overdue: int) -> None:
        """Records the result of a retention pass: erased trials, and overdue ones that could not be erased."""
        if self._metrics:
            self._metrics.state.expired(erased, overdue)

    def anchored(self, entries: int) -> None:
        """Records the number of entries covered by the witnessed checkpoint; 0 before the first."""
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
        """Registers sources of gauges, which are called from another thread and must be fast and thread-safe.

        Args:
            bytes: Bytes of requests and decoded pictures in memory.
        """
        if self._metrics:
            self._metrics.observe(running=running, waiting=waiting, held_bytes=bytes, library=library)

    def prefix_cache(self, models: Mapping[str, str], works: Mapping[str, bool]) -> None:
        """Records for each role's model, if known, whether its servers' prefix cache works."""
        if self._metrics:
            self._metrics.prefix_cache(models, works)

    def _take_note(self, event: AnyEvent) -> None:
        if self._metrics is None and self._tracing is None and not self._logs:
            return
        if isinstance(event, TrialOpened):
            self._follow(ObservedTrial.opened(event))
        elif isinstance(event, TrialResumed):
            self._follow(self._trials.get(event.trial_id) or ObservedTrial.unknown(event))
            # Measured from here: the time during which no server ran it does not count.
            self._trials[event.trial_id].began = event.at
        # Unknown if its opening was dropped or happened before this server started: counted anyway.
        trial = self._trials.get(event.trial_id) or ObservedTrial.unknown(event)
        if self._logs:
            trial.log(_trials_log, event)
        calls = trial.calls(event)
        if self._metrics:
            self._metrics.note(event, trial, calls)
        if self._tracing:
            self._tracing.note(event, trial, calls)
        if isinstance(event, VerdictGiven | TrialFailed):
            # After metrics and spans, which need the earlier state.
            self._trials.pop(event.trial_id, None)

    def _follow(self, trial: ObservedTrial) -> None:
        self._trials[trial.trial_id] = trial
        while len(self._trials) > _MOST_TRIALS:
            # The oldest, which is the most likely to have ended without a report.
            self._trials.popitem(last=False)


SILENT = Telemetry()
"""Ignores everything."""


@asynccontextmanager
async def open_telemetry(settings: Settings) -> AsyncIterator[Telemetry]:
    """Opens telemetry by the settings; exports pending spans at the end of the block.

    Raises:
        BadRequest: Metrics can't be served at that address.
        NotLoaded: Traces are enabled, and OpenTelemetry is not installed.
    """
    from serving.telemetry.metrics import Metrics
    from serving.telemetry.metrics_port import MetricsPort

    async with AsyncExitStack() as stack:
        tracing = None
        if settings.traces:
            tracing = _open_tracing()
            # In a thread: exporting the last spans may take seconds, while the loop has other work to finish.
            stack.push_async_callback(asyncio.to_thread, tracing.close)
        metrics = port = None
        if settings.metrics:
            metrics = Metrics(settings)
            served = MetricsPort(metrics.registry, settings.metrics)
            stack.push_async_callback(asyncio.to_thread, served.close)
            port = served.port
            _log.info("metrics are served: path=/metrics port=%d", port)
        yield Telemetry(metrics, tracing, log=True, metrics_port=port)


def _open_tracing() -> Tracing:
    try:
        from serving.telemetry.tracing import open_tracing
    except ModuleNotFoundError as error:
        # The suggested fix does not help if any other module is missing.
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise NotLoaded(
            "Traces need OpenTelemetry. Install it with: pip install 'memecourt[telemetry]', or leave traces off.",
            reason="TRACES_NOT_LOADED",
            field="traces",
        ) from None
    return open_tracing()
