"""Queue consumer: judges a bounded number of memes concurrently, and acknowledges each only with its answer.

A redelivered message is the same request to the court, which returns the existing verdict instead of trying it twice.
While the court does not serve, messages wait, and no delivery is counted against them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Literal, Protocol

import grpc
import orjson

from court.errors import BadRequest, CourtError, Unavailable
from court.trial import STOPPED
from memecourt.errors import JudgeError
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import NotAllowed
from serving.queue.metrics import QueueMetrics
from serving.queue.over_quota import OverQuota, QuotaWaiters
from serving.queue.source import DeadLetter, QueueAnswer, QueuedMeme, QueueSource
from serving.rest.messages import decision_of, loaded, message_of, require_bytes, response_json
from serving.rest.operations import JUDGE, PICTURE
from serving.rest.remote_pictures import Fetch, picture_at
from serving.rpc.status import failure_of
from serving.runner.quotas import QuotaExceeded

_PARTS = frozenset({"request", PICTURE, "text"})
_AGAIN_S = 1.0
"""Retry delay in seconds for a queue that can't be reached, and for a court that does not serve."""
_LONGEST_AGAIN_S = 30.0
_COUNT_S = 15.0
"""Seconds between two measurements of the queue's backlog."""
_LONGEST_BUSY_S = 300.0
"""Maximum retry delay in seconds for a busy court: for a daily quota it may say many hours, but the quota may be raised
meanwhile."""
# _without_verdict treats most of these as a problem of the consumer's token before it checks _NEVER.
_NOT_KNOWN = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
_NEVER = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        # The token may lack access to the message's namespace only; other messages may still pass.
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # for a message that is too large; a busy court gives a retry delay
    }
)
"""Codes of permanent failures."""

_log = logging.getLogger("memecourt.queue")


class JudgingCourt(Protocol):
    """The court that a consumer calls."""

    async def judge(self, request: wire.JudgeRequest) -> wire.JudgeResponse:
        """Returns the verdict. Raises JudgeError."""
        ...

    async def is_serving(self) -> bool:
        """True if the court can be reached and reports that it serves."""
        ...


class QueueConsumer:
    """Reads a queue and has its memes judged.

    Attributes:
        buried: Number of messages that this consumer dead-lettered.
    """

    def __init__(
        self,
        source: QueueSource,
        court: JudgingCourt,
        *,
        fetch: Fetch,
        at_once: int,
        deliveries: int,
        hold_s: float,
        metrics: QueueMetrics | None = None,
    ) -> None:
        """Prepares the consumer.

        Args:
            fetch: Fetches pictures that a request names by address, or refuses to.
            at_once: Maximum number of messages in progress; no more are read, so that the rest waits in the queue.
            deliveries: Maximum number of deliveries before a message without a verdict is dead-lettered.
            hold_s: Seconds between two heartbeats to the queue for messages in progress.
            metrics: Metrics to update; None to discard them.
        """
        self._source = source
        self._court = court
        self._fetch = fetch
        self._at_once = at_once
        self._deliveries = deliveries
        self._hold_s = hold_s
        self._working: dict[asyncio.Task[None], QueuedMeme] = {}
        self._over_quota = QuotaWaiters()
        self._metrics = metrics or QueueMetrics()
        self._metrics.count_now(working=lambda: len(self._working), over_quota=lambda: len(self._over_quota))
        self._refused: CourtError | None = None
        self._ended = False
        self.answered = 0
        self.buried = 0

    async def run(self, stopping: asyncio.Event, *, grace_s: float) -> None:
        """Judges until told to stop; messages in progress then get a grace period, the rest is redelivered.

        Raises:
            NotAllowed: The court does not accept this consumer's token, or does not allow it to request verdicts.
        """
        # Separate tasks: a slow measurement of the backlog must not delay heartbeats.
        beside = [asyncio.create_task(self._keep_holding()), asyncio.create_task(self._keep_counting())]
        stop = asyncio.create_task(stopping.wait())
        try:
            while not (stopping.is_set() or self._refused):
                # Before new ones, since they have waited longest.
                for meme in self._over_quota.take_due(self._at_once - len(self._working)):
                    self._begin(meme, self._work_again(meme))
                # No more than can be processed: messages that wait here are unavailable to other consumers.
                if room := self._at_once - len(self._working):
                    await self._read(room, stopping)
                else:
                    await asyncio.wait((*self._working, stop), return_when=asyncio.FIRST_COMPLETED)
            with suppress(Unavailable):  # messages that still arrive here are redelivered later
                await self._source.stop_receiving()
            if self._working:
                # Even if the court refuses this consumer: messages in progress may still be answered.
                await asyncio.wait(self._working, timeout=grace_s)
        finally:
            self._ended = True
            left = [*beside, stop, *self._working]
            # Before the caller closes the queue, whose client these tasks use.
            cut_off = self._claimed_memes()
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        for meme in cut_off:
            with suppress(Unavailable):  # redelivered later in any case
                await self._give_back(meme, "stopped")
        if self._refused:
            raise self._refused

    def _claimed_memes(self) -> list[QueuedMeme]:
        """Returns the messages that this consumer holds: those in progress, and those waiting for a quota."""
        return [*self._working.values(), *self._over_quota.memes]

    def _is_claimed(self, id_: str) -> bool:
        # Evaluated during the read, not before: a message that is given back meanwhile may come again.
        return id_ in self._over_quota or any(meme.id == id_ for meme in self._working.values())

    async def _read(self, most: int, stopping: asyncio.Event) -> None:
        try:
            memes = await self._source.receive(most, self._is_claimed)
        except Unavailable as error:
            _log.warning("the queue can't be read now: %s", error.message)
            # A pause that ends at once on shutdown.
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):
                    await stopping.wait()
            return
        for meme in memes:
            self._begin(meme, self._work(meme))

    def _begin(self, meme: QueuedMeme, work: Coroutine[Any, Any, None]) -> None:
        # A strong reference in _working, since asyncio does not protect running tasks from garbage collection.
        task = asyncio.create_task(work)
        self._working[task] = meme
        task.add_done_callback(self._over)

    async def _keep_holding(self) -> None:
        # Not only by cancellation, which a queue's client may lose while it connects.
        while not self._ended:
            await asyncio.sleep(self._hold_s)
            with suppress(Unavailable):  # a message that could not be held is redelivered, but still answered once
                await self._source.hold(self._claimed_memes())

    async def _keep_counting(self) -> None:
        while not self._ended:
            try:
                unread = await self._source.waiting()
            except Unavailable:
                unread = None
            # NaN rather than the last value, so that the metric shows that it is unknown.
            self._metrics.unread.set(math.nan if unread is None else unread)
            await asyncio.sleep(_COUNT_S)

    def _over(self, task: asyncio.Task[None]) -> None:
        meme = self._working.pop(task)
        if not task.cancelled() and (error := task.exception()):
            # A bug: the message stays in the queue, and is dead-lettered after too many deliveries.
            _log.error("message=%s ended in a fault: error=%s", meme.id, type(error).__qualname__)

    async def _work_again(self, meme: QueuedMeme) -> None:
        """Processes a message that waited for a quota."""
        try:
            read = await self._source.read_again(meme)
            if read is None:
                _log.warning("message=%s was deleted from the queue while it waited for a quota", meme.id)
                # Otherwise it would be pending for ever, as nobody can answer it.
                await self._source.drop(meme)
                return
        except Unavailable as error:
            _log.warning("message=%s can't be read now, and is delivered again: %s", meme.id, error.message)
            return
        await self._work(read)

    async def _work(self, meme: QueuedMeme) -> None:
        request_id, began = meme.request_id, time.perf_counter()
        try:
            if meme.deliveries > self._deliveries:
                # Earlier consumers ended without an answer: the message may crash them, so it is not tried again.
                why = f"It was delivered {meme.deliveries - 1} times, and no consumer came to an end with it."
                await self._bury(meme, request_id, JudgeError(grpc.StatusCode.ABORTED, why), "DELIVERED_TOO_OFTEN")
                return
            try:
                request = await request_of(meme, self._fetch, self._over_quota.require)
                request_id = request.request_id
                verdict = await self._verdict(request)
            except OverQuota as over:
                # Still held, but without a place in progress, so that other namespaces continue.
                self._over_quota.add(meme, over)
            except CourtError as error:
                await self._without_verdict(meme, request_id, JudgeError.of_failure(failure_of(error)))
            except JudgeError as error:
                await self._without_verdict(meme, request_id, error)
            else:
                body = orjson.dumps(response_json(verdict))
                answer = QueueAnswer(meme.id, verdict.request_id, decision_of(verdict), body)
                # Not counted if another consumer was faster, with the same verdict.
                if await self._source.answer(meme, answer):
                    self.answered += 1
                    self._metrics.answered.labels(answer.decision).inc()
                    self._metrics.seconds.observe(time.perf_counter() - began)
        except Unavailable as error:
            # It is redelivered, and the court then returns the existing verdict.
            _log.warning("message=%s could not be acknowledged: %s", meme.id, error.message)

    async def _verdict(self, request: wire.JudgeRequest) -> wire.JudgeResponse:
        pause = _AGAIN_S
        while True:
            try:
                return await self._court.judge(request)
            except JudgeError as error:
                # A busy or unavailable court is no fault of the message: it waits here, and no delivery is counted
                # against it.
                busy = error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after is not None
                # A stopped court may be back by now.
                away = error.code is grpc.StatusCode.UNAVAILABLE and (
                    error.reason == STOPPED or not await self._court.is_serving()
                )
                if not (busy or away):
                    raise
                _log.warning("the court can't judge now, and messages wait: %s", error.reason or error.code.name)
                # Not sooner than the court asks for, up to the maximum: its delays spread out the callers (RE-4).
                wait_s = min(error.retry_after or 0.0, _LONGEST_BUSY_S)
                # Jitter, so that callers with the same delay do not return at the same moment.
                delay_s = max(pause, wait_s) + random.uniform(0.0, pause)
                if error.reason == QuotaExceeded.default_reason and self._over_quota.has_room:
                    raise OverQuota(request.content.namespace, delay_s) from None
                await asyncio.sleep(delay_s)
                # Poll its health, since each retry of the request would send the picture again.
                while away and not await self._court.is_serving():
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_AGAIN_S)

    async def _without_verdict(self, meme: QueuedMeme, request_id: str, error: JudgeError) -> None:
        why = error.reason or error.code.name
        if error.code in _NOT_KNOWN and why != "NAMESPACE_NOT_ALLOWED":
            # No fault of the message: with such a token, all messages would be dead-lettered.
            self._refused = NotAllowed(f"The court refuses this consumer ({why}): {error.message}", reason=why)
            await self._give_back(meme, "stopped")
        elif error.code in _NEVER or meme.deliveries >= self._deliveries:
            await self._bury(meme, request_id, error, why)
        else:
            _log.warning("message=%s delivery=%d got no verdict: reason=%s", meme.id, meme.deliveries, why)
            await self._give_back(meme, "failed")

    async def _give_back(self, meme: QueuedMeme, why: Literal["failed", "stopped"]) -> None:
        # Only failures count: stopping a consumer says nothing about the message.
        await self._source.give_back(meme, counted=why == "failed")
        self._metrics.given_back.labels(why).inc()

    async def _bury(self, meme: QueuedMeme, request_id: str, error: JudgeError, reason: str) -> None:
        _log.error("message=%s is put aside: reason=%s", meme.id, reason)
        letter = DeadLetter(
            id=meme.id,
            request_id=request_id,
            reason=reason,
            message=error.message,
            code=error.code.name,
            deliveries=meme.deliveries,
        )
        if await self._source.bury(meme, letter):
            self.buried += 1
            self._metrics.dead.labels(reason).inc()


async def request_of(meme: QueuedMeme, fetch: Fetch, require: Callable[[str], None]) -> wire.JudgeRequest:
    """Parses the request in a message, by the rules of ``POST /v1/judge``.

    Args:
        fetch: Fetches the picture if the request names it by address.
        require: Raises OverQuota if messages of this namespace must wait, before anything is fetched.

    Raises:
        BadRequest: The message is malformed.
        OverQuota: ``require`` raises it.
        Unavailable: The picture could not be fetched now.
    """
    for name in meme.parts.keys() - _PARTS:
        raise BadRequest(
            f"A message has the parts request (a JSON object), image and text; {name[:100]} is none of them.",
            reason="MALFORMED_REQUEST",
            field=name[:100],
        )
    if not meme.parts:
        raise BadRequest("The message has no parts.", reason="MALFORMED_REQUEST")
    fields = loaded(meme.parts["request"]) if "request" in meme.parts else {}
    picture = meme.parts.get(PICTURE)
    # Removed, since the protobuf message has no field for an address. Null is refused as an invalid address, since a
    # picture was meant.
    by_address, url = "image_url" in fields, fields.pop("image_url", None)
    if (picture is not None) + by_address + (PICTURE in fields) > 1:
        raise BadRequest("The picture stands in the message twice.", reason="MALFORMED_REQUEST", field=PICTURE)
    message = message_of(JUDGE.request, fields, _text_of(meme.parts))
    assert isinstance(message, wire.JudgeRequest)
    # The same for each delivery, so that the court recognises the request and tries nothing twice.
    message.request_id = message.request_id or meme.request_id
    require(message.content.namespace)
    if by_address:
        # Last, so that a malformed message costs no download.
        picture = await picture_at(url, fetch)
    if picture is not None:
        require_bytes(picture)
        message.image = picture
    return message


def _text_of(parts: Mapping[str, bytes]) -> Mapping[str, str]:
    if "text" not in parts:
        return {}
    try:
        return {"text": parts["text"].decode()}
    except UnicodeDecodeError:
        raise BadRequest("The part text is not UTF-8.", reason="MALFORMED_REQUEST", field="text") from None
