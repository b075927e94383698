"""Health checks: liveness of this process, and readiness of each service.

========================  ==============================================================================
``liveness``              SERVING as long as the process answers at all. For supervisors that restart it.
``memecourt.v1.Court``    SERVING while trials can be run: the court is open, its docket answers, its encoder
                          runs or can be started, and the model servers answer, if its procedure needs them.
                          For load balancers.
``""``                    The same, for callers that name no service.
``memecourt.v1.Docket``   SERVING while the docket answers.
``memecourt.v1.Precedents``  SERVING while the court is open and its encoder runs or can be started.
========================  ==============================================================================

A restart of this process does not bring a model server back: liveness therefore ignores model servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from court.deadline import cancel_all
from court.errors import CourtError
from court.ports import PROBE_PRIORITY, ChatRequest

if TYPE_CHECKING:
    from court.backends.chat.client import ChatCompletions

COURT = "memecourt.v1.Court"
DOCKET = "memecourt.v1.Docket"
PRECEDENTS = "memecourt.v1.Precedents"
LIVENESS = "liveness"
OVERALL = ""
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

EVERY_S = 1.0
"""Seconds between the end of one check of a dependency and the next."""
WITHIN_S = 1.75
"""Seconds within which a dependency must answer. Together with the interval, an outage is noticed within 4.5 s."""
DOCKET_WITHIN_S = 4.0
"""Seconds within which the docket must answer: its threads also serve the trials."""
_HELLO = ChatRequest(
    system="You answer briefly.", parts=("Say hello.",), reply_schema=None, max_tokens=1, priority=PROBE_PRIORITY
)

_log = logging.getLogger("memecourt.health")

ReadinessCheck = Callable[[], Awaitable[object]]
"""Checks one dependency; raises CourtError if it does not answer."""


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the library has no types
    """Answers ``grpc.health.v1.Health``.

    The library's own servicer reports SERVING from the start, and writes to watchers while holding the lock that every
    change needs: a single watcher that does not read would block updates to all others.
    """

    def __init__(self) -> None:
        self._status: dict[str, int] = dict.fromkeys((OVERALL, COURT, DOCKET, PRECEDENTS), NOT_SERVING)
        self._status[LIVENESS] = SERVING
        self._changed = asyncio.Event()
        self._over = False

    def status(self, service: str) -> int:
        """Returns the status of a known service."""
        return self._status[service]

    @property
    def services(self) -> list[str]:
        """Names of all services except liveness."""
        return [name for name in self._status if name != LIVENESS]

    async def until_serving(self, service: str) -> bool:
        """Returns True once a service is SERVING."""
        while self._status[service] != SERVING:
            await self._changed.wait()
        return True

    def say(self, service: str, serving: bool) -> None:
        """Sets the status of a service, and notifies its watchers."""
        # A check that ends after the court has closed must not report SERVING again.
        status = SERVING if serving and not self._over else NOT_SERVING
        if self._status[service] != status:
            _log.info("service=%s %s", service or "all", health_pb2.HealthCheckResponse.ServingStatus.Name(status))
            self._status[service] = status
            self._wake()

    def end(self) -> None:
        """Sets all services except liveness to NOT_SERVING for good; watchers are notified, and their calls end."""
        for service in self._status.keys() - {LIVENESS}:
            self.say(service, serving=False)
        self._over = True
        self._wake()

    def _wake(self) -> None:
        # A new event for each change: it wakes all waiters, and none of them has to reset it for the others.
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        """Returns the status of one service; NOT_FOUND if there is no such service."""
        if request.service not in self._status:
            await context.abort(grpc.StatusCode.NOT_FOUND, "There is no service of that name.")
        return health_pb2.HealthCheckResponse(status=self._status[request.service])

    async def List(self, _: health_pb2.HealthListRequest, __: Any) -> health_pb2.HealthListResponse:
        """Returns the status of all services."""
        return health_pb2.HealthListResponse(
            statuses={name: health_pb2.HealthCheckResponse(status=status) for name, status in self._status.items()}
        )

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        """Sends the status of one service, now and after each change; SERVICE_UNKNOWN if there is no such service."""
        last = None
        while True:
            # Read before the status: a change in between sets this event, so that none is missed.
            over, changed = self._over, self._changed
            status = self._status.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != last:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                last = status
            elif over:
                return
            else:
                await changed.wait()


class ModelProbe:
    """Checks that a model works: a server must generate a token, since it may answer while its engine is dead.

    No server is probed if one has just answered another call. If no token is generated in time, but a server answers
    another call meanwhile, the model works and is merely busy.
    """

    def __init__(self, model: ChatCompletions) -> None:
        self._model = model

    async def __call__(self) -> None:
        """Raises CourtError if no server of the model works."""
        began = time.monotonic()
        # A busy server's answers show that it works: don't add a request to its load.
        if self._model.answered_at > began - EVERY_S:
            return
        replies = [asyncio.ensure_future(model.reply(_HELLO, within_s=WITHIN_S)) for model in self._model.apart()]
        try:
            for answer in asyncio.as_completed(replies):
                with contextlib.suppress(CourtError):
                    await answer
                    return
            if self._model.answered_at <= began:
                await replies[0]  # all have failed; raise the first error
        finally:
            await cancel_all(*replies)  # awaited, so that probes don't pile up on a slow server


async def run_health_checks(health: Health, dependencies: Mapping[str, Sequence[ReadinessCheck]]) -> None:
    """Checks the dependencies of all services repeatedly, and sets each service's status; never returns.

    Args:
        dependencies: Dependencies of each service, which is NOT_SERVING until all of them were checked.
    """
    results: dict[ReadinessCheck, bool] = {}

    def update() -> None:
        for service, checks in dependencies.items():
            # A service keeps its initial NOT_SERVING until each dependency was checked once.
            if all(check in results for check in checks):
                health.say(service, all(results[check] for check in checks))

    async def check_repeatedly(check: ReadinessCheck) -> None:
        while True:
            try:
                await check()
                now = True
            except Exception as error:
                # Any exception counts, bugs too: if the loop ended, the service would stay SERVING for ever.
                now = False
                # Logged only on a change: an outage of hours must not flood the log.
                if results.get(check, True):
                    reason = error.reason if isinstance(error, CourtError) else type(error).__qualname__
                    _log.warning("what the court leans on is not there reason=%s", reason)
            results[check] = now
            update()
            await asyncio.sleep(EVERY_S)

    update()
    async with asyncio.TaskGroup() as group:
        # Each check runs once, however many services depend on it.
        for check in {check for checks in dependencies.values() for check in checks}:
            group.create_task(check_repeatedly(check))
