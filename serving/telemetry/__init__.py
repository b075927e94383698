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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, cast

import grpc

from court.errors import NotLoaded
from court.events import AnyEvent, ReportedCall, Side, Summarised, SummarisedAhead, TrialOpened
from court.record import TrialRecord, TrialState
from serving.access.callers import SANDBOX

if TYPE_CHECKING:
    from serving.settings import Settings
    from serving.telemetry.metrics import Metrics
    from serving.telemetry.tracing import Tracing


@dataclass(slots=True)
class ObservedTrial:
    """A tracked trial.

    Attributes:
        procedure: Procedure of the trial; UNKNOWN if its beginning was not observed.
        trace_id: Trace id of its record, 32 hex digits or empty.
        began: Start of the observed part: the trial's opening or resumption.
        ahead: Summaries run ahead of their round, by side and round, whose calls are already counted.
    """

    trial_id: str
    procedure: str
    request_id: str
    trace_id: str
    models: Mapping[str, str] = field(default_factory=dict)
    began: datetime | None = None
    ahead: set[tuple[Side, int]] = field(default_factory=set)
    span: Any = None

    @classmethod
    def opened(cls, event: TrialOpened) -> ObservedTrial:
        """Starts tracking a new trial."""
        return cls(
            trial_id=event.trial_id,
            procedure=event.procedure.value,
            request_id=event.request_id,
            trace_id=event.trace_id,
            models=event.versions.models,
            began=event.at,
        )

    @classmethod
    def of(cls, record: TrialRecord) -> ObservedTrial:
        """Starts tracking a resumed trial."""
        trial = cls.opened(record.opened)
        trial.began = None  # when it is resumed
        for event in record.events:
            # Rebuilds `ahead`: calls of summaries run ahead must not be counted twice.
            trial.calls(event)
        return trial

    @classmethod
    def unknown(cls, event: AnyEvent) -> ObservedTrial:
        """Starts tracking a trial of which only this event is known."""
        return cls(event.trial_id, "UNKNOWN", "", "")

    def calls(self, event: AnyEvent) -> Sequence[ReportedCall]:
        """Returns the model calls that this event is the first to report."""
        if isinstance(event, SummarisedAhead):
            self.ahead.add((event.side, event.round))
        # The same call, reported again once its round counts.
        elif isinstance(event, Summarised) and (event.side, event.round) in self.ahead:
            return ()
        return event.reported_calls

    def log(self, log: logging.Logger, event: AnyEvent) -> None:
        """Logs one line per event, without anything of the meme or its namespace."""
        if log.isEnabledFor(logging.INFO):
            # Built by hand: the caller is not shown in our lines, and logging would search the stack for it each time.
            identity = (event.trial_id, self.request_id, event.seq, event.kind)
            log.handle(log.makeRecord(log.name, logging.INFO, fn="", lno=0, msg=_LINE, args=identity, exc_info=None))


_LINE = "trial=%s request=%s seq=%d event=%s"

_MOST_TRIALS = 20_000
"""Maximum number of trials tracked at once: twice as many as a server may run. A trial whose end is never reported,
because the docket could not store it, is dropped after this many others."""

_log = logging.getLogger("memecourt.telemetry")
_trials_log = logging.getLogger("memecourt.trials")


class _NoMetrics:
    """Metrics that ignore everything, and need no library."""

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Self:
        return self

    def __call__(self, *args: object, **kwargs: object) -> None:
        pass


class Telemetry:
    """Turns the events of trials into metrics, spans and log lines. Its methods never raise."""

    def __init__(
        self,
        metrics: Metrics | None = None,
        tracing: Tracing | None = None,
        *,
        log: bool = False,
        metrics_port: int | None = None,
    ) -> None:
        self.metrics_port = metrics_port
        self.metrics = metrics or cast("Metrics", _NoMetrics())
        self._tracing = tracing
        self._logs = log
        self._observes = metrics is not None or tracing is not None or log
        self._trials: OrderedDict[str, ObservedTrial] = OrderedDict()
        self._tries: OrderedDict[str, None] = OrderedDict()

    def interceptors(self) -> Sequence[grpc.aio.ServerInterceptor]:
        """Returns what counts and times every call, and creates spans for calls about memes; none if nobody looks."""
        if not self.metrics and self._tracing is None:
            return ()
        from serving.telemetry.rpc_calls import CallsInterceptor

        return (CallsInterceptor(self.metrics, self._tracing),)

    def call(
        self,
        method: str,
        headers: Mapping[str, str],
        time_left: Callable[[], float | None],
        code_of: Callable[[BaseException | None], str],
    ) -> AbstractContextManager[None]:
        """Counts, times and traces a call of another transport than gRPC inside the block."""
        from serving.telemetry.rpc_calls import MeasuredCall

        return MeasuredCall.of_method(
            method, headers, self.metrics, self._tracing, time_left=time_left, code_of=code_of
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
        if self._observes:
            self._follow(ObservedTrial.of(record))

    def reused(self, *, near: bool) -> None:
        """Records a reused verdict, of the same meme or of a near-duplicate."""
        self.metrics.count("reused_verdicts", "near" if near else "exact")
        if self._tracing:
            self._tracing.reused(near=near)

    def _take_note(self, event: AnyEvent) -> None:
        if not self._observes:
            return
        # Tries count nowhere.
        if isinstance(event, TrialOpened) and event.meme.namespace == SANDBOX:
            self._tries[event.trial_id] = None
            while len(self._tries) > _MOST_TRIALS:
                self._tries.popitem(last=False)
        if event.trial_id in self._tries:
            return
        if isinstance(event, TrialOpened):
            self._follow(ObservedTrial.opened(event))
        elif event.state is TrialState.OPEN:
            self._follow(self._trials.get(event.trial_id) or ObservedTrial.unknown(event))
            # Measured from here: the time during which no server ran it does not count.
            self._trials[event.trial_id].began = event.at
        # Unknown if its opening was dropped or happened before this server started: counted anyway.
        trial = self._trials.get(event.trial_id) or ObservedTrial.unknown(event)
        if self._logs:
            trial.log(_trials_log, event)
        calls = trial.calls(event)
        self.metrics.on_event(event, trial, calls)
        if self._tracing:
            self._tracing.on_event(event, trial, calls)
        if event.state not in (None, TrialState.OPEN):
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
