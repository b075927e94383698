"""Sends messages to receivers from their position in the log, at least once, by one server at a time.

The log is the outbox. Each receiver has a position in it, from which sending resumes after a crash; only messages that
failed at the first attempt are stored separately, so that they don't block others. A server sends to a receiver while
it owns the receiver's row; another takes over when that server's heartbeat stops. A sent message that could not be
stored as sent is sent again, under the same id.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from court.deadline import cancel_all
from court.errors import CourtError
from retrieval.library.changes import Change
from retrieval.open import open_writer_of
from retrieval.precedents.finder import LibraryFinder
from retrieval.precedents.postgres_finder import PgvectorFinder
from serving.docket.log.entries import Entry, PrecedentChanged
from serving.docket.open import Docket
from serving.docket.store.hooks import NOTHING, Delivery, Hook, HookStates
from serving.docket.store.log_queries import LogFollower
from serving.docket.store.reviews import ReviewStore
from serving.judging.heartbeat import Heartbeat
from serving.webhooks.attempts import CONNECTIONS, Outcome, Receiver, ReceiverAnswer, next_attempt
from serving.webhooks.messages import Message, messages_of, wanted_kinds

if TYPE_CHECKING:
    from serving.telemetry.metrics import Metrics


POLL_S = 0.5
"""Seconds between two polls for something to send."""
_SHARED_S = 0.9 * POLL_S
"""Seconds for which a state is shared by all senders: slightly less than the poll interval."""
AGAIN_S = 5.0
"""Seconds until the next poll after an error of the docket."""
MOST_WAITING = 1000
"""Maximum number of messages waiting for a retry: beyond it, nothing more is read from the log, where the rest of an
unavailable receiver's messages waits."""
DEAD_AFTER = timedelta(hours=72)
"""Time without any delivery after which a receiver is disabled when a message is given up."""
_MAX_UNSTORED = 1000
"""Number of skipped entries after which a receiver's position is stored even without a message."""
_LAGS = ("webhook_lag_entries", "webhook_oldest_pending_seconds")
"""Gauges that only the server that sends to a receiver has."""
_DRAIN_S = 5.0
"""Seconds for running attempts to finish on shutdown."""

_log = logging.getLogger("memecourt.webhooks")

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class _Attempted:
    """A message that was sent, or is not to be sent any more."""

    delivery: Delivery
    answer: ReceiverAnswer | None


class HookSender:
    """Sends to one receiver while this server owns it."""

    def __init__(
        self,
        receiver: Receiver,
        docket: Docket,
        heartbeat: Heartbeat,
        *,
        metrics: Metrics,
        clock: Clock = lambda: datetime.now(UTC),
        states: LogFollower[HookStates] | None = None,
    ) -> None:
        """Prepares the sender."""
        self._states = states or LogFollower(docket.deliveries.states)
        self._receiver = receiver
        self._docket = docket
        self._heartbeat = heartbeat
        self._metrics = metrics
        self._clock = clock
        self._kinds = wanted_kinds(receiver.settings)
        self._at_once = asyncio.Semaphore(CONNECTIONS)
        self._identity = ""
        # Stored position, and position up to which the entries after it are not for this receiver.
        self._looked = (-1, -1)

    @property
    def name(self) -> str:
        """Name of the receiver."""
        return self._receiver.settings.name

    async def run(self, stopping: asyncio.Event) -> None:
        """Sends until told to stop; running attempts are finished."""
        while not stopping.is_set():
            try:
                # Continue at once while there is something to send.
                pause = 0.0 if await self.work() else POLL_S
            except CourtError as error:
                _log.warning("webhook=%s waits for the docket: reason=%s", self.name, error.reason)
                pause = AGAIN_S
            except Exception as error:
                # A bug must not end this task, which nobody would restart.
                _log.error("webhook=%s could not be sent: error=%s", self.name, type(error).__qualname__)
                pause = AGAIN_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stopping.wait()

    async def work(self) -> bool:
        """Runs one round: sends due and new messages, and stores the outcomes.

        Returns:
            False if there was nothing to do.

        Raises:
            CourtError: The docket can't be read or written now.
        """
        states = await self._states.get()
        hook = await self._own(states)
        if hook is None:
            for gauge in _LAGS:
                self._metrics.forget(gauge, self.name)
            return False
        now, size = self._clock(), states.log_size
        backlog = states.backlogs.get(self.name, NOTHING)
        stored, looked = self._looked
        # If the stored position has changed, a replay or another server has moved it, and it takes precedence.
        reached = looked if stored == hook.next_entry else hook.next_entry
        takes = hook.disabled_at is None and (hook.paused_until is None or now >= hook.paused_until)
        reads = takes and backlog.waiting < MOST_WAITING

        # Retries go first within the same limit, so that new messages can't starve them.
        due = await self._docket.deliveries.due(self.name, now, most=CONNECTIONS) if takes and backlog.waiting else ()
        page = CONNECTIONS if reads else 1  # one, to know how long it has been waiting
        new = await self._docket.log.entries(reached, page, self._kinds) if reached < size else ()
        oldest = [
            *([backlog.oldest] if backlog.oldest else []),
            *(datetime.fromisoformat(entry.at) for entry in new[:1]),
        ]
        waits_s = max(0.0, (now - min(oldest)).total_seconds()) if oldest else 0.0
        for gauge, value in zip(_LAGS, (max(0, size - reached), waits_s), strict=True):
            self._metrics.set(gauge, value, self.name)
        if reads:
            # If the page is not full, nothing else up to `size` is for this receiver. `size` was read before the page,
            # so that later entries are not skipped.
            reached = max(new[-1].number + 1 if new else reached, size if len(new) < page else 0)

        first = await self._first(new) if reads else ()
        # Stored as retries are, so that later messages need not wait for the end of the minute for an undo.
        deferred = [
            replace(each, due_at=m.not_before) for each, m in first if m and m.not_before and m.not_before > now
        ]
        waiting = {(each.entry, each.event) for each in deferred}
        fresh = [pair for pair in first if (pair[0].entry, pair[0].event) not in waiting]
        attempted = await self._attempt_all([*await self._retries(due), *fresh])
        # Otherwise every skipped entry would cost a write for each receiver.
        if not attempted and not deferred and (reached == hook.next_entry or reached < hook.next_entry + _MAX_UNSTORED):
            self._looked = (hook.next_entry, reached)
            return False
        return await self._settle(hook, reached, attempted, deferred)

    async def _own(self, states: HookStates) -> Hook | None:
        """Returns the receiver's row if this server owns it, or could take it over; None otherwise."""
        hook = states.hooks.get(self.name)
        if hook is None or hook.owner == self._heartbeat.server:
            return hook
        if hook.owner and not self._heartbeat.dead(hook.owner):
            return None
        # If several servers see a dead owner, the docket gives the row to one of them.
        self._states.forget()
        if not await self._docket.hooks.take(hook, self._heartbeat.server):
            return None
        _log.info("webhook=%s is sent to by this server", self.name)
        return replace(hook, owner=self._heartbeat.server)

    async def _first(self, entries: Sequence[Entry]) -> Sequence[tuple[Delivery, Message | None]]:
        """Returns the messages of new entries."""
        found: list[tuple[Delivery, Message | None]] = []
        for message in await self._messages(entries):
            # No due time: messages that have not failed are not stored, and are read from the log again after a crash.
            delivery = Delivery(message.entry, message.event, message.at, attempts=0, due_at=None, error="")
            found.append((delivery, message))
        return found

    async def _retries(self, due: Sequence[Delivery]) -> Sequence[tuple[Delivery, Message | None]]:
        """Returns the messages of due retries; None for those that must not be sent any more."""
        entries = [entry for each in due for entry in await self._docket.log.entries(each.entry, 1)]
        messages = {(message.entry, message.event): message for message in await self._messages(entries)}
        return [(each, messages.get((each.entry, each.event))) for each in due]

    async def _messages(self, entries: Sequence[Entry]) -> Sequence[Message]:
        if not entries:
            return ()
        if not self._identity:
            # The first of all its keys: a later one would change the ids of messages that were sent before.
            self._identity = str((await self._docket.log_keys.keys())[0])
        # Read after the entries, so that trials erased in between are not sent.
        named = {entry.trial_id for entry in entries if entry.trial_id}
        subjects = await self._docket.deliveries.subjects(named)
        found: list[Message] = []
        for entry in entries:
            about = subjects.get(entry.trial_id)
            try:
                found += messages_of(entry, about, self._receiver.settings, docket=self._identity)
            except ValueError:
                # Somebody altered it, which `memecourt docket verify` reports.
                _log.error("entry %d can't be read, and webhook=%s is not told of it", entry.number, self.name)
        return found

    async def _attempt_all(self, messages: Sequence[tuple[Delivery, Message | None]]) -> Sequence[_Attempted]:
        async def attempt(delivery: Delivery, message: Message | None) -> _Attempted:
            if message is None:
                return _Attempted(delivery, None)
            async with self._at_once:
                return _Attempted(delivery, await self._receiver.send(message))

        return await asyncio.gather(*(attempt(*each) for each in messages))

    async def _settle(
        self, hook: Hook, reached: int, attempted: Sequence[_Attempted], deferred: Sequence[Delivery]
    ) -> bool:
        now = self._clock()
        gone: list[Delivery] = []
        waiting: list[Delivery] = []
        answers = [each.answer for each in attempted if each.answer is not None]
        for each in attempted:
            if each.answer is None or each.answer.outcome is Outcome.DELIVERED:
                # Includes messages of erased trials, which must not be sent any more.
                gone.append(each.delivery)
                continue
            tried = each.delivery.attempts + 1
            due_at = next_attempt(tried, now)
            waiting.append(replace(each.delivery, attempts=tried, due_at=due_at, error=each.answer.error))
        taken = any(answer.outcome is Outcome.DELIVERED for answer in answers)
        # A round without attempts says nothing about the receiver.
        failing_since = hook.failing_since
        if answers:
            # One accepted message is enough: a receiver that refuses only some is never disabled.
            failing_since = None if taken else failing_since or now
        pause_s = max((answer.pause_s for answer in answers), default=0.0)
        after = replace(
            hook,
            next_entry=reached,
            failing_since=failing_since,
            paused_until=now + timedelta(seconds=pause_s) if pause_s else None,
        )
        # Without a next attempt the message is given up, but stays listed for a person to see.
        given_up = [each for each in waiting if each.due_at is None]
        if any(answer.outcome is Outcome.GONE for answer in answers):
            after = replace(after, disabled_at=now, why="It wants nothing any more: it answered with status 410.")
        elif given_up and failing_since and now - failing_since >= DEAD_AFTER:
            after = replace(after, disabled_at=now, why=f"It took nothing for three days: {given_up[-1].error}.")
        # If this fails nothing is lost: the row's owner resumes from the stored position and resends under the same
        # ids.
        stored = await self._docket.deliveries.settle(hook, after, gone=gone, remaining=[*waiting, *deferred])
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
            self._metrics.count("webhook_deliveries", self.name, outcome)
        for each in waiting:
            what = f"entry={each.entry} attempt={each.attempts}"
            _log.warning("webhook=%s did not take %s: %s", self.name, what, each.error)
        for each in given_up:
            self._metrics.count("webhook_deliveries", self.name, "given_up")
            _log.error("webhook=%s is not sent entry=%d any more: it was given up", self.name, each.entry)
        if hook.disabled_at is not None:
            _log.error(
                "webhook=%s is disabled. %s `memecourt webhooks enable %s` goes on where it stands.",
                self.name,
                hook.why,
                self.name,
            )


async def send_webhooks(docket: Docket, receivers: Sequence[Receiver], *, metrics: Metrics) -> None:
    """Sends to receivers until cancelled; running attempts then get seconds to finish, and other servers take over."""
    heartbeat = Heartbeat(docket.heartbeats, f"webhooks-{uuid.uuid4().hex}")
    stopping = asyncio.Event()
    states = LogFollower(docket.deliveries.states, fresh_s=_SHARED_S)
    senders = [HookSender(receiver, docket, heartbeat, metrics=metrics, states=states) for receiver in receivers]
    beating = asyncio.create_task(heartbeat.run())
    sending: set[asyncio.Task[None]] = set()
    try:
        await _registered(docket, [sender.name for sender in senders])
        sending = {asyncio.create_task(sender.run(stopping)) for sender in senders}
        await asyncio.wait(sending)
    finally:
        stopping.set()
        if sending:
            # An interrupted attempt is repeated by another server, under the same id.
            await asyncio.wait(sending, timeout=_DRAIN_S)
        await cancel_all(*sending, beating)
        with suppress(CourtError):
            # Only after the senders have ended, or another server would send the same messages concurrently.
            await docket.hooks.release(heartbeat.server)
            await heartbeat.retire()
        for receiver in receivers:
            await receiver.aclose()


async def _registered(docket: Docket, names: Sequence[str]) -> None:
    """Registers receivers once the docket can be written."""
    while True:
        try:
            return await docket.hooks.register(names)
        except CourtError as error:
            _log.warning("webhooks wait for the docket: reason=%s", error.reason)
            await asyncio.sleep(AGAIN_S)


PRECEDENTS_EVERY_S = 2.0
"""Seconds between two checks of the library."""


async def note_precedent_changes(
    reviews: ReviewStore, finder: LibraryFinder | PgvectorFinder, *, every_s: float = PRECEDENTS_EVERY_S
) -> None:
    """Records changes of the served library until cancelled.

    For a library without recorded changes, only those from now on.
    """
    recorded, since = "", None
    while True:
        try:
            identity = (await finder.account()).identity
            if identity.digest != recorded:
                history = await asyncio.to_thread(_history, finder)
                if since is None:
                    since = history[-1].number if history else 0
                changes = [_entry_of(change, identity.name) for change in history]
                if added := await reviews.record_changes(changes, since=since):
                    _log.info("changes of precedents are on record: changes=%d", added)
                # Only once they are stored, so that a failed round is repeated.
                recorded = identity.digest
        except CourtError as error:
            _log.warning("changes of precedents can't be put on record now: reason=%s", error.reason)
        except ValueError:
            _log.warning("changes of precedents can't be put on record now: the library can't be read")
        await asyncio.sleep(every_s)


def _history(finder: LibraryFinder | PgvectorFinder) -> list[Change]:
    with open_writer_of(finder) as writer:
        return [recorded.change for recorded in writer.history()]


def _entry_of(change: Change, library: str) -> PrecedentChanged:
    return PrecedentChanged(
        at=change.at,
        precedent_id=change.meme,
        change=change.kind.value,
        library=library,
        number=change.number,
        trial_id="",
    )
