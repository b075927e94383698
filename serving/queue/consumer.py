"""Judges the memes of a queue: some at a time, each acknowledged only with its answer.

A message that is delivered again is the same request to the court, which gives it the verdict that it has and tries
nothing twice. While the court does not serve, messages wait, and that counts against none of them.
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
"""Seconds until the queue is asked again that could not be reached, and until the court is that does not serve."""
_LONGEST_AGAIN_S = 30.0
_COUNT_S = 15.0
"""Seconds from one look at how many messages wait in the queue to the next."""
_LONGEST_BUSY_S = 300.0
"""Seconds after which a busy court is asked again at the latest: of a quota of a day it says many hours, and meanwhile
the quota may be raised."""
# Of these two, _without_verdict takes most for a fault of the consumer's token before it looks at _NEVER.
_NOT_KNOWN = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
_NEVER = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        # Reached where the token is not let into the message's namespace; others of the queue may still pass.
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # of a message that is too large; a busy court says when to come again
    }
)
"""Codes of what will fail again."""

_log = logging.getLogger("memecourt.queue")


class JudgingCourt(Protocol):
    """The court that a consumer asks."""

    async def judge(self, request: wire.JudgeRequest) -> wire.JudgeResponse:
        """The verdict. Raises JudgeError."""
        ...

    async def is_serving(self) -> bool:
        """True if the court is reached and says that it serves."""
        ...


class QueueConsumer:
    """Reads a queue and has its memes judged.

    Attributes:
        answered: Number of messages that got an answer here.
        buried: Number of messages that were put aside here with a reason.
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
        """Has read nothing yet.

        Args:
            source: Queue.
            court: Court that is asked.
            fetch: Fetches pictures where a request names an address, or refuses to.
            at_once: Messages that are worked on at once; no more are read, so that the rest waits in the queue.
            deliveries: Deliveries after which a message that got no verdict is put aside.
            hold_s: Seconds from one sign to the queue to the next that messages are still worked on.
            metrics: Metrics that are counted; None for some that nobody reads.
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
        """Judges until it is told to stop; what is on its way then has seconds to end, the rest is delivered again.

        Raises:
            NotAllowed: The court does not know this consumer, or does not let it ask for verdicts.
        """
        # Apart from each other: a queue that does not say how much waits must not keep signs of life back.
        beside = [asyncio.create_task(self._keep_holding()), asyncio.create_task(self._keep_counting())]
        stop = asyncio.create_task(stopping.wait())
        try:
            while not (stopping.is_set() or self._refused):
                # Before new ones: they have waited longest.
                for meme in self._over_quota.take_due(self._at_once - len(self._working)):
                    self._begin(meme, self._work_again(meme))
                # No more than can be worked on: what is read and waits here is time in which no other consumer can have
                # it.
                if room := self._at_once - len(self._working):
                    await self._read(room, stopping)
                else:
                    await asyncio.wait((*self._working, stop), return_when=asyncio.FIRST_COMPLETED)
            with suppress(Unavailable):  # what comes here all the same is delivered again, only later
                await self._source.stop_receiving()
            if self._working:
                # Also where the court refuses this consumer: what it has already taken on may still be answered.
                await asyncio.wait(self._working, timeout=grace_s)
        finally:
            self._ended = True
            left = [*beside, stop, *self._working]
            # Ended before the caller closes the queue, whose client these tasks use.
            cut_off = self._claimed_memes()
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        for meme in cut_off:
            with suppress(Unavailable):  # delivered again all the same, only later
                await self._give_back(meme, "stopped")
        if self._refused:
            raise self._refused

    def _claimed_memes(self) -> list[QueuedMeme]:
        """Messages that this consumer has: those that are worked on, and those that wait for a quota."""
        return [*self._working.values(), *self._over_quota.memes]

    def _is_claimed(self, id_: str) -> bool:
        # Asked while the queue is being read, and not before: a message that is given back meanwhile may come again.
        return id_ in self._over_quota or any(meme.id == id_ for meme in self._working.values())

    async def _read(self, most: int, stopping: asyncio.Event) -> None:
        try:
            memes = await self._source.receive(most, self._is_claimed)
        except Unavailable as error:
            _log.warning("the queue can't be read now: %s", error.message)
            # A pause that ends at once when it is to stop.
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):
                    await stopping.wait()
            return
        for meme in memes:
            self._begin(meme, self._work(meme))

    def _begin(self, meme: QueuedMeme, work: Coroutine[Any, Any, None]) -> None:
        # Remembered in _working, for asyncio itself would not save a running task from garbage collection.
        task = asyncio.create_task(work)
        self._working[task] = meme
        task.add_done_callback(self._over)

    async def _keep_holding(self) -> None:
        # Not until it is cancelled alone: a queue's client may lose a cancellation that meets it while it connects.
        while not self._ended:
            await asyncio.sleep(self._hold_s)
            with suppress(Unavailable):  # what could not be held is delivered again, and answered once all the same
                await self._source.hold(self._claimed_memes())

    async def _keep_counting(self) -> None:
        while not self._ended:
            try:
                unread = await self._source.waiting()
            except Unavailable:
                unread = None
            # Not the last figure: whoever looks at the metric is to see that nobody knows.
            self._metrics.unread.set(math.nan if unread is None else unread)
            await asyncio.sleep(_COUNT_S)

    def _over(self, task: asyncio.Task[None]) -> None:
        meme = self._working.pop(task)
        if not task.cancelled() and (error := task.exception()):
            # A fault of ours: the message stays in the queue, and is put aside when it was delivered too often.
            _log.error("message=%s ended in a fault: error=%s", meme.id, type(error).__qualname__)

    async def _work_again(self, meme: QueuedMeme) -> None:
        """Works on a message that waited for a quota."""
        try:
            read = await self._source.read_again(meme)
            if read is None:
                _log.warning("message=%s was deleted from the queue while it waited for a quota", meme.id)
                # Or it would be pending for ever, as nobody can answer it.
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
                # Whoever had it before ended without a word: it may be what ends them, and is not tried again.
                why = f"It was delivered {meme.deliveries - 1} times, and no consumer came to an end with it."
                await self._bury(meme, request_id, JudgeError(grpc.StatusCode.ABORTED, why), "DELIVERED_TOO_OFTEN")
                return
            try:
                request = await request_of(meme, self._fetch, self._over_quota.require)
                request_id = request.request_id
                verdict = await self._verdict(request)
            except OverQuota as over:
                # Still held, but without its place: messages of other namespaces go on.
                self._over_quota.add(meme, over)
            except CourtError as error:
                await self._without_verdict(meme, request_id, JudgeError.of_failure(failure_of(error)))
            except JudgeError as error:
                await self._without_verdict(meme, request_id, error)
            else:
                body = orjson.dumps(response_json(verdict))
                answer = QueueAnswer(meme.id, verdict.request_id, decision_of(verdict), body)
                # Not counted where another consumer was faster: it has answered with the same verdict.
                if await self._source.answer(meme, answer):
                    self.answered += 1
                    self._metrics.answered.labels(answer.decision).inc()
                    self._metrics.seconds.observe(time.perf_counter() - began)
        except Unavailable as error:
            # Delivered again, and the court then gives the verdict that it has.
            _log.warning("message=%s could not be acknowledged: %s", meme.id, error.message)

    async def _verdict(self, request: wire.JudgeRequest) -> wire.JudgeResponse:
        pause = _AGAIN_S
        while True:
            try:
                return await self._court.judge(request)
            except JudgeError as error:
                # A court that is full or away says nothing about the message: it waits here, and no delivery is counted
                # against it.
                busy = error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after is not None
                # One that was stopped may be there again by now.
                away = error.code is grpc.StatusCode.UNAVAILABLE and (
                    error.reason == STOPPED or not await self._court.is_serving()
                )
                if not (busy or away):
                    raise
                _log.warning("the court can't judge now, and messages wait: %s", error.reason or error.code.name)
                # Never sooner than the court asks for, within that bound: that delay spreads its callers (RE-4).
                wait_s = min(error.retry_after or 0.0, _LONGEST_BUSY_S)
                # Those that were told the same do not come back at the same moment.
                delay_s = max(pause, wait_s) + random.uniform(0.0, pause)
                if error.reason == QuotaExceeded.default_reason and self._over_quota.has_room:
                    raise OverQuota(request.content.namespace, delay_s) from None
                await asyncio.sleep(delay_s)
                # By its health: each attempt at the request would send the picture once more.
                while away and not await self._court.is_serving():
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_AGAIN_S)

    async def _without_verdict(self, meme: QueuedMeme, request_id: str, error: JudgeError) -> None:
        why = error.reason or error.code.name
        if error.code in _NOT_KNOWN and why != "NAMESPACE_NOT_ALLOWED":
            # No fault of the message: with such a token, all of them would be put aside.
            self._refused = NotAllowed(f"The court refuses this consumer ({why}): {error.message}", reason=why)
            await self._give_back(meme, "stopped")
        elif error.code in _NEVER or meme.deliveries >= self._deliveries:
            await self._bury(meme, request_id, error, why)
        else:
            _log.warning("message=%s delivery=%d got no verdict: reason=%s", meme.id, meme.deliveries, why)
            await self._give_back(meme, "failed")

    async def _give_back(self, meme: QueuedMeme, why: Literal["failed", "stopped"]) -> None:
        # Only a failure counts: that a consumer is stopped says nothing about the message.
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
    """The request in a message, by the rules of ``POST /v1/judge``.

    Args:
        meme: Message.
        fetch: Fetches the picture where the request names an address.
        require: Raises OverQuota where messages of this namespace wait, before anything is fetched.

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
    # Taken out: the message on the wire has no field for an address. One that is null is refused as no address, for a
    # picture was meant.
    by_address, url = "image_url" in fields, fields.pop("image_url", None)
    if (picture is not None) + by_address + (PICTURE in fields) > 1:
        raise BadRequest("The picture stands in the message twice.", reason="MALFORMED_REQUEST", field=PICTURE)
    message = message_of(JUDGE.request, fields, _text_of(meme.parts))
    assert isinstance(message, wire.JudgeRequest)
    # The same for each delivery, so that the court knows the request again and tries nothing twice.
    message.request_id = message.request_id or meme.request_id
    require(message.content.namespace)
    if by_address:
        # Last: a message that is malformed costs no download.
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
