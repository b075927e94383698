"""Watching a trial: its events as they are kept, in order and without gaps, wherever it is held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress

from court.errors import BadRequest
from court.events import AnyEvent, TrialFailed, TrialOpened, TrialResumed, VerdictGiven
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import check_namespace, current
from serving.docket.store import Docket, RequestName, TrialUnknown
from serving.reception.admission import Admission
from serving.reception.reception import Reception
from serving.services.calls import not_in_session
from serving.services.fields import within
from serving.services.listings import event_of

_LOOK_AGAIN_S = 0.5
"""How often the docket is asked for what other servers have kept, in seconds."""
_LONGEST_ID = 128


class Hub:
    """Wakes those who watch a trial when an event of it was kept by this server."""

    def __init__(self) -> None:
        """Nobody watches."""
        self._watching: dict[str, set[asyncio.Event]] = {}
        self.closed = False

    def tell(self, event: AnyEvent) -> None:
        """An event was kept."""
        for woken in self._watching.get(event.trial_id, ()):
            woken.set()

    def close(self) -> None:
        """The court closes: who watches what is not held here is sent away."""
        self.closed = True
        for watching in self._watching.values():
            for woken in watching:
                woken.set()

    @contextmanager
    def watching(self, trial_id: str) -> Iterator[asyncio.Event]:
        """While the block lasts, the event is set whenever there is more of that trial."""
        woken = asyncio.Event()
        self._watching.setdefault(trial_id, set()).add(woken)
        try:
            yield woken
        finally:
            self._watching[trial_id].discard(woken)
            if not self._watching[trial_id]:
                del self._watching[trial_id]


async def watch_trial(
    request: wire.WatchTrialRequest, docket: Docket, reception: Reception, hub: Hub, admission: Admission
) -> AsyncGenerator[wire.WatchTrialResponse, None]:
    """The events of a trial from a number on, those to come as they are kept, until the trial has ended.

    What is told is always read from the docket, from where the caller is: the hub only says when to look. So nothing is
    told twice or passed over, a caller that is slow to read costs no memory, and it does not matter whose trial it is.

    Raises:
        BadRequest: No trial is named, or the number is negative.
        NotAllowed: The request that is named is none of the caller's business.
        TrialUnknown: There is no such trial, none yet, or none that is the caller's business.
        Unavailable: The court closes, and no trial is held here any more.
    """
    if request.from_seq < 0:
        raise BadRequest("from_seq counts from 0.", reason="OUT_OF_RANGE", field="from_seq")
    trial_id = await _trial_of(request, reception)
    with hub.watching(trial_id) as woken:
        seq, over = 0, False
        while True:
            # Before looking: what is kept from now on wakes again, and what runs no longer has kept its end.
            woken.clear()
            at_an_end = hub.closed and not admission.running
            for event in await docket.events(trial_id, seq):
                if isinstance(event, TrialOpened) and not current().sees(event.meme.namespace):
                    raise _unknown()
                over = isinstance(event, VerdictGiven | TrialFailed) or (over and not isinstance(event, TrialResumed))
                seq = event.seq + 1
                if event.seq >= request.from_seq:
                    yield wire.WatchTrialResponse(event=event_of(event))
            if over:
                return
            if at_an_end:
                raise not_in_session()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await woken.wait()


async def _trial_of(request: wire.WatchTrialRequest, reception: Reception) -> str:
    if request.WhichOneof("trial") == "trial_id":
        return within(request.trial_id, _LONGEST_ID, "trial_id")
    if not request.request.request_id:
        raise BadRequest(
            "Name the trial by its id, or by the request that it is held for.", reason="FIELD_MISSING", field="trial"
        )
    namespace = within(request.request.namespace, _LONGEST_ID, "request.namespace")
    check_namespace(namespace, "request.namespace")
    name = RequestName(namespace, within(request.request.request_id, _LONGEST_ID, "request.request_id"))
    trial_id = await reception.trial_of(name)
    if trial_id is None:
        raise _unknown()
    return trial_id


def _unknown() -> TrialUnknown:
    return TrialUnknown("There is no such trial, or it has not begun yet.")
