"""Queue consumer: judges a bounded number of memes concurrently, and acknowledges each only with its answer."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field

import grpc

from memecourt.errors import JudgeError
from memecourt.v1 import court_pb2 as wire
from memecourt_queue.court import RemoteCourt
from memecourt_queue.metrics import QueueMetrics
from memecourt_queue.request import Fetch, answer_of, fault, picture_at, request_of
from memecourt_queue.source import AnswerTooLarge, BrokerAway, DeadLetter, QueuedMeme, QueueSource, Unusable

_AGAIN_S = 1.0  # retry delay for a queue that can't be reached, and for a court that does not serve
_LONGEST_AGAIN_S = 30.0
_COUNT_S = 15.0  # between two measurements of the queue's backlog
_LONGEST_BUSY_S = 300.0  # maximum retry delay for a busy court
_SERVER_STOPPED = "SERVER_STOPPED"  # the court's reason for trials that its own end cut off
_Code = grpc.StatusCode
# Of these, _without_verdict takes all but a refused namespace for a problem of the consumer's token, not of a message.
_NOT_KNOWN = frozenset({_Code.UNAUTHENTICATED, _Code.PERMISSION_DENIED})
# RESOURCE_EXHAUSTED is for a message that is too large; a busy court gives a retry delay.
_NEVER = {_Code.INVALID_ARGUMENT, _Code.OUT_OF_RANGE, _Code.ALREADY_EXISTS, _Code.FAILED_PRECONDITION}
_NEVER |= {_Code.PERMISSION_DENIED, _Code.RESOURCE_EXHAUSTED}

_log = logging.getLogger("memecourt.queue")


@dataclass(eq=False)
class QueueConsumer:
    """Reads a queue and has its memes judged."""

    source: QueueSource
    court: RemoteCourt
    _: KW_ONLY
    fetch: Fetch
    at_once: int  # no more are read, so that the rest waits in the queue
    deliveries: int  # after which a message without a verdict is dead-lettered
    again_after_s: float  # without a heartbeat until a redelivery, and until that of a message that failed
    metrics: QueueMetrics = field(default_factory=QueueMetrics)
    answered: int = 0
    buried: int = 0

    def __post_init__(self) -> None:
        self._working: dict[asyncio.Task[None], QueuedMeme] = {}
        self._unjudged: list[QueuedMeme] = []
        self._refused: Unusable | None = None
        self._ended = False
        # Four heartbeats in the time after which another consumer gets a message: one that is lost does no harm.
        self._hold_s = self.again_after_s / 4
        self.metrics.count_working(lambda: len(self._working))

    async def run(self, stopping: asyncio.Event, *, grace_s: float) -> None:
        """Judges until told to stop; messages in progress then get a grace period, the rest is redelivered.

        Raises Unusable if the court does not accept this consumer's token.
        """
        # Separate tasks: a slow measurement of the backlog must not delay heartbeats.
        beside = [asyncio.create_task(self._keep_holding()), asyncio.create_task(self._keep_counting())]
        stop = asyncio.create_task(stopping.wait())
        try:
            while not (stopping.is_set() or self._refused):
                # No more than can be processed: messages that wait here are unavailable to other consumers.
                if room := self.at_once - len(self._working):
                    await self._read(room, stopping)
                else:
                    await asyncio.wait((*self._working, stop), return_when=asyncio.FIRST_COMPLETED)
            with suppress(BrokerAway):  # messages that still arrive here are redelivered later
                await self.source.stop_receiving()
            if self._working:
                # Even if the court refuses this consumer: messages in progress may still be answered.
                await asyncio.wait(self._working, timeout=grace_s)
        finally:
            self._ended = True
            left = [*beside, stop, *self._working]
            # Before the caller closes the queue, whose client these tasks use.
            cut_off = list(self._working.values())
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        for meme in (*cut_off, *self._unjudged):
            await self._give_back(meme, None)
        if self._refused:
            raise self._refused

    def _is_claimed(self, key: tuple[str, str]) -> bool:
        # Evaluated during the read, not before: a message that is given back meanwhile may come again.
        return any(meme.key == key for meme in self._working.values())

    async def _read(self, most: int, stopping: asyncio.Event) -> None:
        try:
            memes = await self.source.receive(most, self._is_claimed)
        except BrokerAway as error:
            self.metrics.reachable.set(0)
            _log.warning("the queue can't be read now: %s", error)
            # A pause that ends at once on shutdown.
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):
                    await stopping.wait()
            return
        self.metrics.reachable.set(1)
        for meme in memes:
            # A strong reference, since asyncio does not protect running tasks from garbage collection.
            task = asyncio.create_task(self._work(meme))
            self._working[task] = meme
            task.add_done_callback(self._over)

    async def _keep_holding(self) -> None:
        # Not only by cancellation, which a queue's client may lose while it connects.
        while not self._ended:
            await asyncio.sleep(self._hold_s)
            with suppress(BrokerAway):  # a message that could not be held is redelivered, but still answered once
                await self.source.hold(list(self._working.values()))

    async def _keep_counting(self) -> None:
        while not self._ended:
            unread = None
            with suppress(BrokerAway):
                unread = await self.source.waiting()
            # NaN rather than the last value, so that the metric shows that it is unknown.
            self.metrics.unread.set(math.nan if unread is None else unread)
            await asyncio.sleep(_COUNT_S)

    def _over(self, task: asyncio.Task[None]) -> None:
        meme = self._working.pop(task)
        if not task.cancelled() and (error := task.exception()):
            # A bug: the message stays in the queue, and is dead-lettered after too many deliveries.
            _log.error("message=%s ended in a fault: error=%s", meme.id, type(error).__qualname__)

    async def _work(self, meme: QueuedMeme) -> None:
        request_id, began = meme.request_id, time.perf_counter()
        if meme.deliveries > self.deliveries:
            # Earlier consumers ended without an answer: the message may crash them, so it is not tried again.
            why = f"It was delivered {meme.deliveries - 1} times, and no consumer came to an end with it."
            await self._bury(meme, request_id, fault("DELIVERED_TOO_OFTEN", why, _Code.ABORTED))
            return
        try:
            request, url = request_of(meme)
            request_id = request.request_id
            # Last, so that a malformed message costs no download.
            if url is not None:
                request.image = await picture_at(url, self.fetch)
            verdict = await self._verdict(request)
        except JudgeError as error:
            await self._without_verdict(meme, request_id, error)
            return
        answer = answer_of(meme, verdict)
        try:
            # Not counted if another consumer was faster, with the same verdict.
            if await self._stored(meme, lambda: self.source.answer(meme, answer)):
                self.answered += 1
                self.metrics.answered.labels(answer.decision).inc()
                self.metrics.seconds.observe(time.perf_counter() - began)
        except AnswerTooLarge:
            why = f"The broker takes no answer of {len(answer.verdict):,} bytes: see trial {verdict.verdict_id}."
            await self._bury(meme, request_id, fault("ANSWER_TOO_LARGE", why))

    async def _verdict(self, request: wire.JudgeRequest) -> wire.JudgeResponse:
        pause = _AGAIN_S
        while True:
            try:
                return await self.court.judge(request)
            except JudgeError as error:
                # A busy or unavailable court is no fault of the message: it waits here, and no delivery is counted
                # against it.
                busy = error.code is _Code.RESOURCE_EXHAUSTED and error.retry_after is not None
                away = error.code is _Code.UNAVAILABLE
                # A stopped court may be back by now.
                away = away and (error.reason == _SERVER_STOPPED or not await self.court.is_serving())
                if not (busy or away):
                    raise
                _log.warning("the court can't judge now, and messages wait: %s", error.reason or error.code.name)
                # Not sooner than the court asks for, up to the maximum: its delays spread out the callers (RE-4).
                wait_s = min(error.retry_after or 0.0, _LONGEST_BUSY_S)
                # Jitter, so that callers with the same delay do not return at the same moment.
                await asyncio.sleep(max(pause, wait_s) + random.uniform(0.0, pause))
                # Poll its health, since each retry of the request would send the picture again.
                while away and not await self.court.is_serving():
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_AGAIN_S)

    async def _without_verdict(self, meme: QueuedMeme, request_id: str, error: JudgeError) -> None:
        why = error.reason or error.code.name
        if error.code in _NOT_KNOWN and why != "NAMESPACE_NOT_ALLOWED":
            # No fault of the message: with such a token, all messages would be dead-lettered.
            self._refused = Unusable(f"The court refuses this consumer ({why}): {error.message}")
            # Given back at the end: until then it could be delivered here again.
            self._unjudged.append(meme)
        elif error.code in _NEVER or meme.deliveries >= self.deliveries:
            await self._bury(meme, request_id, error)
        else:
            _log.warning("message=%s delivery=%d got no verdict: reason=%s", meme.id, meme.deliveries, why)
            # Not before the time that a picture's host asks for.
            await self._give_back(meme, max(self.again_after_s, error.retry_after or 0.0))

    async def _give_back(self, meme: QueuedMeme, after_s: float | None) -> None:
        with suppress(BrokerAway):  # redelivered later in any case
            await self.source.give_back(meme, after_s)
        self.metrics.given_back.labels("stopped" if after_s is None else "failed").inc()

    async def _bury(self, meme: QueuedMeme, request_id: str, error: JudgeError) -> None:
        reason, code, times = error.reason or error.code.name, error.code.name, meme.deliveries
        letter = DeadLetter(meme.id, request_id, reason, error.message, code, times, meme.size, meme.sha256)
        if await self._stored(meme, lambda: self.source.bury(meme, letter)):
            _log.error("message=%s is dead-lettered: reason=%s", meme.id, reason)
            self.buried += 1
            self.metrics.dead.labels(reason).inc()

    async def _stored(self, meme: QueuedMeme, store: Callable[[], Awaitable[bool]]) -> bool:
        """Stores an answer or a letter, however long the broker takes it not: that is no fault of the message."""
        pause = _AGAIN_S
        while True:
            try:
                return await store()
            except BrokerAway as error:
                self.metrics.reachable.set(0)
                _log.warning("message=%s can't be settled now, and waits: %s", meme.id, error)
            await asyncio.sleep(pause + random.uniform(0.0, pause))
            pause = min(2 * pause, _LONGEST_AGAIN_S)
