"""Sends messages to receivers: from where each is in the log, at least once, by one server at a time.

The log is the outbox. A receiver has a place in it, and goes on from there after a crash; only what it did not take at
the first attempt is written down, so that it holds up nothing else. A server sends to a receiver while it owns its row;
another takes over when that server's heartbeat stands still. What was sent and could not be stored as sent is sent
again, under the same id.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from court.errors import CourtError
from serving.docket.log.entries import Entry
from serving.docket.open import Docket
from serving.docket.ports import Backlog, Delivery, DeliveryStore, Hook, HookStates
from serving.runner.heartbeat import Heartbeat
from serving.telemetry import Telemetry
from serving.webhooks.attempts import CONNECTIONS, Outcome, Receiver, ReceiverAnswer, next_attempt
from serving.webhooks.messages import Message, messages_of, wanted_kinds

POLL_S = 0.5
"""Seconds between two looks for something to send."""
_SHARED_S = 0.9 * POLL_S
"""Seconds for which a state that was read serves all senders: a little less than until the same one looks again."""
AGAIN_S = 5.0
"""Seconds until the next look where the docket could not be asked."""
MOST_WAITING = 1000
"""Messages that wait for another attempt beyond which nothing more is read from the log: a receiver that takes nothing
has the rest waiting there."""
DEAD_AFTER = timedelta(hours=72)
"""A receiver that has taken nothing for so long is disabled when the first message is given up."""
_STORE_ANYWAY = 1000
"""Entries that are none of a receiver's after which its place is stored all the same."""
_NOTHING = Backlog(waiting=0, given_up=0, oldest=None)
_LAST_S = 5.0
"""Seconds that attempts have to end when sending is to stop."""

_log = logging.getLogger("memecourt.webhooks")

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Returns the time, UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Attempted:
    """A message that was sent, or was found to be nobody's any more.

    Attributes:
        delivery: The delivery as it stood before.
        answer: Answer of its receiver; None where there was nothing to send.
    """

    delivery: Delivery
    answer: ReceiverAnswer | None


class SharedStates:
    """State of all receivers, read once for all senders of a server that look at about the same time."""

    def __init__(self, deliveries: DeliveryStore, *, good_s: float = 0.0) -> None:
        """Has read nothing yet; what was read serves for so many seconds."""
        self._deliveries = deliveries
        self._good_s = good_s
        self._until = 0.0
        self._reading: asyncio.Future[HookStates] | None = None

    async def get(self) -> HookStates:
        """The state, as it was at most so many seconds ago. Raises CourtError where the docket can't be read now."""
        now = asyncio.get_running_loop().time()
        reading = self._reading
        # What failed is read anew by the next who asks, instead of failing for them too.
        if reading is None or (reading.done() and (now >= self._until or reading.cancelled() or reading.exception())):
            self._until = now + self._good_s
            reading = self._reading = asyncio.ensure_future(self._deliveries.states())
        # Shielded: a sender that is ended must not end the reading of the others.
        return await asyncio.shield(reading)

    def forget(self) -> None:
        """Has the state read anew: something of it was changed."""
        self._reading = None


class HookSender:
    """Sends to one receiver, whenever this server is the one that does."""

    def __init__(
        self,
        receiver: Receiver,
        docket: Docket,
        pulse: Heartbeat,
        *,
        telemetry: Telemetry,
        clock: Clock = utc_now,
        states: SharedStates | None = None,
    ) -> None:
        """Sends nothing yet.

        Args:
            receiver: The receiver.
            docket: Docket whose log it is told of.
            pulse: Heartbeat of this server, as far as it sends.
            telemetry: Counts attempts.
            clock: The time, UTC.
            states: State of the receivers, shared with other senders; read for each round if not given.
        """
        self._states = states or SharedStates(docket.deliveries)
        self._receiver = receiver
        self._docket = docket
        self._pulse = pulse
        self._telemetry = telemetry
        self._clock = clock
        self._kinds = wanted_kinds(receiver.settings)
        self._at_once = asyncio.Semaphore(CONNECTIONS)
        self._identity = ""
        # Its place as it is stored, and how far nothing behind that is for it.
        self._looked = (-1, -1)

    @property
    def name(self) -> str:
        """Name of the receiver."""
        return self._receiver.settings.name

    async def run(self, stopping: asyncio.Event) -> None:
        """Sends until it is to stop; what is on its way then is finished."""
        while not stopping.is_set():
            try:
                # Right on while there is something to send: the pause is for an empty log alone.
                pause = 0.0 if await self.work() else POLL_S
            except CourtError as error:
                _log.warning("webhook=%s waits for the docket: reason=%s", self.name, error.reason)
                pause = AGAIN_S
            except Exception as error:
                # A fault of ours must not end what nobody would start again.
                _log.error("webhook=%s could not be sent: error=%s", self.name, type(error).__qualname__)
                pause = AGAIN_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stopping.wait()

    async def work(self) -> bool:
        """Makes one round: sends what is due and what is new, and stores what came of it.

        Returns:
            False where there was nothing to do.

        Raises:
            CourtError: The docket can't be asked or written now.
        """
        states = await self._states.get()
        hook = await self._own(states)
        if hook is None:
            self._telemetry.webhook_elsewhere(self.name)
            return False
        now, size = self._clock(), states.log_size
        backlog = states.backlogs.get(self.name, _NOTHING)
        stored, looked = self._looked
        # The stored place decides where it is another than this server has seen: a replay or another server has moved
        # it.
        reached = looked if stored == hook.next_entry else hook.next_entry
        takes = hook.disabled_at is None and (hook.paused_until is None or now >= hook.paused_until)
        reads = takes and backlog.waiting < MOST_WAITING

        # What failed before goes first and within the same bound, so that new messages can't crowd it out.
        due = await self._docket.deliveries.due(self.name, now, most=CONNECTIONS) if takes and backlog.waiting else ()
        page = CONNECTIONS if reads else 1  # one, to know since when it waits
        new = await self._docket.log.entries(reached, page, self._kinds) if reached < size else ()
        oldest = [*([backlog.oldest] if backlog.oldest else []), *(_time_of(entry) for entry in new[:1])]
        waits_s = max(0.0, (now - min(oldest)).total_seconds()) if oldest else 0.0
        self._telemetry.webhook_waits(self.name, lag=max(0, size - reached), oldest_s=waits_s)
        if reads:
            # A page that is not full says that nothing else up to `size` is for this receiver. `size` was read before
            # the page, so that nothing stored since is passed over.
            reached = max(new[-1].number + 1 if new else reached, size if len(new) < page else 0)

        attempted = await self._attempt_all([*await self._again(due), *(await self._first(new) if reads else ())])
        # Otherwise each entry that is none of its own would cost a write for each receiver.
        if not attempted and (reached == hook.next_entry or reached < hook.next_entry + _STORE_ANYWAY):
            self._looked = (hook.next_entry, reached)
            return False
        return await self._settle(hook, reached, attempted)

    async def _own(self, states: HookStates) -> Hook | None:
        """The row of the receiver, once this server is the one that sends; None where another is."""
        hook = states.hooks.get(self.name)
        if hook is None or hook.owner == self._pulse.server:
            return hook
        if hook.owner and not self._pulse.dead(hook.owner):
            return None
        # Of several servers that see the same owner dead, the docket gives the row to one.
        self._states.forget()
        if not await self._docket.hooks.take(hook, self._pulse.server):
            return None
        _log.info("webhook=%s is sent to by this server", self.name)
        return replace(hook, owner=self._pulse.server)

    async def _first(self, entries: Sequence[Entry]) -> Sequence[tuple[Delivery, Message | None]]:
        """Messages of entries that were not looked at yet."""
        found: list[tuple[Delivery, Message | None]] = []
        for message in await self._messages(entries):
            # No due time: what has never failed is stored nowhere, and a crash has it read from the log again.
            delivery = Delivery(message.entry, message.event, message.at, attempts=0, due_at=None, error="")
            found.append((delivery, message))
        return found

    async def _again(self, due: Sequence[Delivery]) -> Sequence[tuple[Delivery, Message | None]]:
        """Messages that are due again; None for those that must not be sent any more."""
        entries = [entry for each in due for entry in await self._docket.log.entries(each.entry, 1)]
        messages = {(message.entry, message.event): message for message in await self._messages(entries)}
        return [(each, messages.get((each.entry, each.event))) for each in due]

    async def _messages(self, entries: Sequence[Entry]) -> Sequence[Message]:
        if not entries:
            return ()
        if not self._identity:
            # Of all its keys the first: with a later one, what was sent before would come again under another id.
            self._identity = str((await self._docket.log_keys.keys())[0])
        # After the entries: what was erased between the two is not sent.
        named = {entry.trial_id for entry in entries if entry.trial_id}
        subjects = await self._docket.deliveries.subjects(named)
        found: list[Message] = []
        for entry in entries:
            about = subjects.get(entry.trial_id)
            try:
                found += messages_of(entry, about, self._receiver.settings, docket=self._identity)
            except ValueError:
                # Somebody altered it, which `memecourt docket verify` tells of.
                _log.error("entry %d can't be read, and webhook=%s is not told of it", entry.number, self.name)
        return found

    async def _attempt_all(self, messages: Sequence[tuple[Delivery, Message | None]]) -> Sequence[_Attempted]:
        async def attempt(delivery: Delivery, message: Message | None) -> _Attempted:
            if message is None:
                return _Attempted(delivery, None)
            async with self._at_once:
                return _Attempted(delivery, await self._receiver.send(message))

        return await asyncio.gather(*(attempt(*each) for each in messages))

    async def _settle(self, hook: Hook, reached: int, attempted: Sequence[_Attempted]) -> bool:
        now = self._clock()
        gone: list[Delivery] = []
        waiting: list[Delivery] = []
        answers = [each.answer for each in attempted if each.answer is not None]
        for each in attempted:
            if each.answer is None or each.answer.outcome is Outcome.DELIVERED:
                # An erased message as well: it must not be sent any more, and waits for nothing.
                gone.append(each.delivery)
                continue
            tried = each.delivery.attempts + 1
            due_at = next_attempt(tried, now)
            waiting.append(replace(each.delivery, attempts=tried, due_at=due_at, error=each.answer.error))
        taken = any(answer.outcome is Outcome.DELIVERED for answer in answers)
        # A round in which nothing was sent says nothing about the receiver.
        failing_since = hook.failing_since
        if answers:
            # One message that is taken is enough: a receiver that refuses only some is never disabled for it.
            failing_since = None if taken else failing_since or now
        pause_s = max((answer.pause_s for answer in answers), default=0.0)
        after = replace(
            hook,
            next_entry=reached,
            failing_since=failing_since,
            paused_until=now + timedelta(seconds=pause_s) if pause_s else None,
        )
        # Without a next time there was one attempt too many; it stays listed, for a person to look at.
        given_up = [each for each in waiting if each.due_at is None]
        if any(answer.outcome is Outcome.GONE for answer in answers):
            after = replace(after, disabled_at=now, why="It wants nothing any more: it answered with status 410.")
        elif given_up and failing_since and now - failing_since >= DEAD_AFTER:
            after = replace(after, disabled_at=now, why=f"It took nothing for three days: {given_up[-1].error}.")
        # Nothing is lost: whoever has the row now goes on from the stored place, and sends again under the same ids.
        stored = await self._docket.deliveries.settle(hook, after, gone=gone, remaining=waiting)
        self._states.forget()
        if not stored:
            _log.info("webhook=%s was moved meanwhile, or another server sends to it", self.name)
            return True
        self._looked = (reached, reached)
        self._report(after, answers, waiting, given_up)
        return True

    def _report(
        self, hook: Hook, answers: Sequence[ReceiverAnswer], waiting: Sequence[Delivery], given_up: Sequence[Delivery]
    ) -> None:
        for answer in answers:
            outcome = "delivered" if answer.outcome is Outcome.DELIVERED else "failed"
            self._telemetry.webhook_attempted(self.name, outcome)
        for each in waiting:
            what = f"entry={each.entry} attempt={each.attempts}"
            _log.warning("webhook=%s did not take %s: %s", self.name, what, each.error)
        for each in given_up:
            self._telemetry.webhook_attempted(self.name, "given_up")
            _log.error("webhook=%s is not sent entry=%d any more: it was given up", self.name, each.entry)
        if hook.disabled_at is not None:
            _log.error(
                "webhook=%s is disabled. %s `memecourt webhooks enable %s` goes on where it stands.",
                self.name,
                hook.why,
                self.name,
            )


async def send_webhooks(
    docket: Docket, receivers: Sequence[Receiver], *, telemetry: Telemetry, pulse: Heartbeat | None = None
) -> None:
    """Sends to receivers until it is cancelled; what is on its way then has seconds to end, and others take over.

    Args:
        docket: Docket whose log they are told of.
        receivers: The receivers; closed at the end.
        telemetry: Counts attempts.
        pulse: Heartbeat of this server, as far as it sends.
    """
    pulse = pulse or Heartbeat(docket.heartbeats, f"webhooks-{uuid.uuid4().hex}")
    stopping = asyncio.Event()
    states = SharedStates(docket.deliveries, good_s=_SHARED_S)
    senders = [HookSender(receiver, docket, pulse, telemetry=telemetry, states=states) for receiver in receivers]
    beating = asyncio.create_task(pulse.run())
    sending: set[asyncio.Task[None]] = set()
    try:
        await _registered(docket, [sender.name for sender in senders])
        sending = {asyncio.create_task(sender.run(stopping)) for sender in senders}
        await asyncio.wait(sending)
    finally:
        stopping.set()
        if sending:
            # An attempt that is cut off is made again by another server, under the same id.
            _, late = await asyncio.wait(sending, timeout=_LAST_S)
            for task in late:
                task.cancel()
        beating.cancel()
        await asyncio.gather(*sending, beating, return_exceptions=True)
        with suppress(CourtError):
            # Only after the senders have ended, or another server would send the same at the same time.
            await docket.hooks.release(pulse.server)
            await pulse.retire()
        for receiver in receivers:
            await receiver.aclose()


async def _registered(docket: Docket, names: Sequence[str]) -> None:
    """Enters receivers, once the docket can be written."""
    while True:
        try:
            return await docket.hooks.register(names)
        except CourtError as error:
            _log.warning("webhooks wait for the docket: reason=%s", error.reason)
            await asyncio.sleep(AGAIN_S)


def _time_of(entry: Entry) -> datetime:
    return datetime.fromisoformat(entry.at)
