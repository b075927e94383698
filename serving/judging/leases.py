"""Idempotency leases: which server handles which request, and which trial answers a meme, agreed through the docket.

A lease binds a request, by name, to a trial and a server. A meme without a verdict is leased too, under its future
cache key: of all servers that are asked about it concurrently, under whatever request ids, one runs its trial and the
others wait for that.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakValueDictionary

from court.record import TrialRecord, TrialState
from serving.docket.errors import TrialUnknown
from serving.docket.ports import TrialReader
from serving.docket.store.requests import Lease, LeaseStore, RequestName
from serving.judging.heartbeat import Heartbeat

MEMES = "\0meme"
"""Namespace of leases on memes, by their keys; callers can't use a namespace that contains NUL."""
_MEME_PREFIX = "meme/"
"""Prefix of a meme's key as the owner of a request's lease: the owner is whichever server leases the meme."""
_NO_OWNER = ""
"""Owner of a lease that a server gave up, or under which it never started a trial."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The trial has a verdict."""

    record: TrialRecord


@dataclass(frozen=True, slots=True)
class RunningElsewhere:
    """The trial belongs to another server.

    Attributes:
        alive: True if the server's heartbeat was seen to advance; False if that is not known yet.
    """

    alive: bool


@dataclass(frozen=True, slots=True)
class Orphaned:
    """No server runs the trial, which has no verdict."""

    ruling: Lease
    record: TrialRecord | None


@dataclass(frozen=True, slots=True)
class Moved:
    """The request that the trial was opened for has moved to another trial, and so do all that follow it."""

    trial_id: str


LeaseState: TypeAlias = Answered | RunningElsewhere | Orphaned | Moved


class LeaseTable:
    """The leases of one server, and its view of those of others."""

    def __init__(self, leases: LeaseStore, trials: TrialReader, heartbeat: Heartbeat) -> None:
        self._leases = leases
        self._trials = trials
        self._heartbeat = heartbeat
        self._numbers = itertools.count()
        # Weak, so that a lock lives only while it is in use, and memory does not grow with past trials (RE-7).
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def owner(self) -> str:
        """Returns this server's name with a fresh number, so that compare-and-set detects a changed owner."""
        return f"{self._heartbeat.server}/{next(self._numbers)}"

    def wanted(self, name: RequestName, payload: str, trial_id: str, owner: str = "", *, content_id: str = "") -> Lease:
        """Builds a lease that is yet to be acquired."""
        return Lease(name, payload, trial_id, owner=owner or self.owner(), content_id=content_id)

    async def acquire(self, wanted: Lease, former: Lease | None = None) -> Lease:
        """Acquires a lease, in place of the request's former one or unless there is one; returns the current lease.

        The request may have been leased to another trial meanwhile: it is being answered elsewhere.

        Raises:
            RequestConflict: The name belongs to a different request.
            Unavailable: The lease can't be stored now.
        """
        if former is not None:
            return await self.take_over(former, wanted.trial_id, wanted.owner) or await self.standing(former)
        return await self._leases.claim(
            wanted.name,
            payload=wanted.payload,
            trial_id=wanted.trial_id,
            owner=wanted.owner,
            content_id=wanted.content_id,
        )

    async def find(self, name: RequestName) -> Lease | None:
        """Returns the lease on a request or a meme; None if there is none."""
        return await self._leases.claim_of(name)

    async def of_open_trials(self) -> Sequence[Lease]:
        """Returns the leases of all open trials."""
        return await self._leases.open_claims()

    async def take_over(self, lease: Lease, trial_id: str | None = None, owner: str = "") -> Lease | None:
        """Gives a lease to this server, or ``owner``, by compare-and-set; None if it has changed meanwhile."""
        return await self._leases.take_over(lease, owner=owner or self.owner(), trial_id=trial_id)

    async def leave(self, lease: Lease) -> None:
        """Gives up a lease on a trial that this server did not start, so that others can start it.

        The docket writes in request order. So it does not matter whether the lease was acquired: a write in progress
        when its caller left is done before this one.
        """
        if self.own(lease):
            await self.take_over(lease, owner=f"{_NO_OWNER}/0")

    async def standing(self, lease: Lease) -> Lease:
        """Returns the lease that is currently in force for the same request or meme."""
        return await self._leases.claim_of(lease.name) or lease

    async def ruling(self, lease: Lease, record: TrialRecord | None) -> Lease:
        """Returns the lease that determines which server runs a trial.

        For an opened trial this is the lease of its request; before that, for requests that follow a meme, the meme's
        lease.
        """
        if record is not None:
            name = request_of(record)
        elif lease.owner.startswith(_MEME_PREFIX):
            name = RequestName(MEMES, lease.owner.removeprefix(_MEME_PREFIX))
        else:
            return lease
        return lease if name == lease.name else await self._leases.claim_of(name) or lease

    async def lead(self, wanted: Lease, answers: Callable[[TrialRecord], bool]) -> Lease:
        """Acquires the lease on a meme without a verdict, or returns the existing one.

        Args:
            wanted: Lease for a new trial. It may be in force, with its trial not started, even if this raises.

        Returns:
            The lease in force; ``wanted`` if this call acquired it.

        Raises:
            Unavailable: The docket can't say.
        """
        lead = await self.acquire(wanted)
        while lead.trial_id != wanted.trial_id:
            record = await self.record(lead.trial_id)
            if record is None or record.state is TrialState.OPEN or answers(record):
                return lead
            # Its trial can't serve other requests. Its own request may be tried again.
            ruling = await self.ruling(lead, record)
            own = ruling.trial_id == lead.trial_id
            trial_id, owner = (wanted.trial_id, wanted.owner) if own else (ruling.trial_id, "")
            # take_over is a compare-and-set: if another server is quicker, the loop continues with what it has written.
            lead = await self.take_over(lead, trial_id, owner) or await self.standing(lead)
        return lead

    async def follow(self, lease: Lease, trial_id: str) -> Lease | None:
        """Replaces the trial of a lease, and keeps its kind of owner (this server, or that of the meme)."""
        return await self.take_over(lease, trial_id, lease.owner if lease.owner.startswith(_MEME_PREFIX) else "")

    async def record(self, trial_id: str) -> TrialRecord | None:
        """Returns the record of a trial; None if it was not opened yet."""
        try:
            return await self._trials.record(trial_id)
        except TrialUnknown:
            return None

    def taking(self, trial_id: str) -> asyncio.Lock:
        """Returns the lock that is held while a trial is taken over, until it is registered as running here."""
        lock = self._locks.get(trial_id)
        if lock is None:
            lock = self._locks[trial_id] = asyncio.Lock()
        return lock

    async def state(self, lease: Lease) -> LeaseState:
        """Returns the state of a lease whose trial is not running on this server. Raises Unavailable."""
        record = await self.record(lease.trial_id)
        if record is not None and record.state is TrialState.DECIDED:
            return Answered(record)
        ruling = await self.ruling(lease, record)
        if ruling.trial_id != lease.trial_id:
            return Moved(ruling.trial_id)
        server = server_of(ruling)
        # A server that has stored the end of a trial is done with it, whatever the lease says.
        if (record is not None and record.state is TrialState.FAILED) or self._gone(server):
            return Orphaned(ruling, record)
        return RunningElsewhere(self._heartbeat.lives(server))

    def _gone(self, server: str) -> bool:
        """True if a lease's owner does not run the trial any more: it gave the lease up, is dead, or is this server."""
        return server in (self._heartbeat.server, _NO_OWNER) or self._heartbeat.dead(server)

    def own(self, lease: Lease) -> bool:
        """True if the lease belongs to this server."""
        return server_of(lease) == self._heartbeat.server


def owner_of_meme(key: str) -> str:
    """Returns the owner for leases of requests that wait for a meme's trial."""
    return _MEME_PREFIX + key


def server_of(lease: Lease) -> str:
    """Returns the server in a lease's owner."""
    return lease.owner.partition("/")[0]


def request_of(record: TrialRecord) -> RequestName:
    """Returns the name of the request that a trial was opened for."""
    return RequestName(record.opened.meme.namespace, record.opened.request_id)
