"""Idempotency leases: which server handles which request, and which trial answers a meme, agreed through the docket.

A request is claimed under its name, for a trial and by a server. So is a meme that has no verdict yet, under the key
that it will be known by: of all servers that are asked about it at once, under whatever request ids, one holds its
trial, and the others follow that.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from weakref import WeakValueDictionary

from court.record import TrialRecord, TrialState
from serving.docket.ports import Lease, LeaseStore, RequestName, TrialReader, TrialUnknown
from serving.runner.heartbeat import Heartbeat

MEMES = "\0meme"
"""Namespace under which memes are claimed by their keys; no caller can name one that holds NUL."""
_LED = "meme/"
"""Before a key as the owner of a request's claim: whoever holds the meme of that key sees to it, whoever that is."""
_NO_OWNER = ""
"""Owner of what a server that had claimed it has left, or never began."""


class LeaseTable:
    """The claims of one server, and its view of those of others."""

    def __init__(self, leases: LeaseStore, trials: TrialReader, pulse: Heartbeat) -> None:
        """Claims nothing yet.

        Args:
            leases: Leases of all servers.
            trials: Records of the trials that they name.
            pulse: Tells which servers live, and what this one is called.
        """
        self._leases = leases
        self._trials = trials
        self._pulse = pulse
        self._numbers = itertools.count()
        # Weak, so that a lock lives only while somebody uses it, and nothing grows with the trials that were (RE-7).
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def owner(self) -> str:
        """This server, with a new number: whoever compares it sees whether a claim has changed hands meanwhile."""
        return f"{self._pulse.server}/{next(self._numbers)}"

    def wanted(self, name: RequestName, payload: str, trial_id: str, owner: str = "") -> Lease:
        """A claim to be made.

        Args:
            name: Name of the request.
            payload: Digest of what it asks.
            trial_id: The trial.
            owner: Server that runs the trial; this one if left out.
        """
        return Lease(name, payload, trial_id, owner or self.owner())

    async def claim(self, wanted: Lease) -> Lease:
        """Claims a request for a trial, unless that has been done; then what stands.

        Raises:
            RequestConflict: The request of that name is another one.
            Unavailable: The claim can't be stored now.
        """
        return await self._leases.claim(
            wanted.name, payload=wanted.payload, trial_id=wanted.trial_id, owner=wanted.owner
        )

    def wanted_lead(self, key: str) -> Lease:
        """The claim of a meme, by the key that it will be known by, for a trial that nobody has begun."""
        return self.wanted(RequestName(MEMES, key), "", str(uuid.uuid4()))

    async def take_over(self, claim: Lease, trial_id: str | None = None, owner: str = "") -> Lease | None:
        """Puts this server, or the owner named, and perhaps another trial in a claim, if that is still what stands."""
        return await self._leases.take_over(claim, owner=owner or self.owner(), trial_id=trial_id)

    async def leave(self, claim: Lease) -> None:
        """A trial that this server was to begin is left to whoever comes: a request waits for it no longer.

        The docket writes in the order in which it is asked to. So it does not matter whether it is known that the claim
        was made: what was being written when its caller left, is written before this.
        """
        if self.own(claim):
            await self.take_over(claim, owner=f"{_NO_OWNER}/0")

    async def standing(self, claim: Lease) -> Lease:
        """Returns the current lease in the place of a claim."""
        return await self._leases.claim_of(claim.name) or claim

    async def ruling(self, claim: Lease, record: TrialRecord | None) -> Lease:
        """The claim by which servers agree who holds a trial.

        That is the one of the request which it was opened for; before it is opened, that of the meme for all requests
        that follow it.
        """
        if record is not None:
            name = request_of(record)
        elif claim.owner.startswith(_LED):
            name = RequestName(MEMES, claim.owner.removeprefix(_LED))
        else:
            return claim
        return claim if name == claim.name else await self._leases.claim_of(name) or claim

    async def lead(self, wanted: Lease, answers: Callable[[TrialRecord], bool]) -> Lease:
        """The trial that is to answer a meme of which no verdict is known.

        Args:
            wanted: Claim from :meth:`wanted_lead`. The claim may stand, and wait for its trial to be begun, also if
                this raises.
            answers: True if a trial that has ended may answer requests for the meme.

        Returns:
            The claim that stands; the one that was wanted, if this has made it.

        Raises:
            Unavailable: The docket can't say.
        """
        lead = await self.claim(wanted)
        while lead.trial_id != wanted.trial_id:
            record = await self.record(lead.trial_id)
            if record is None or record.state is TrialState.OPEN or answers(record):
                return lead
            # It came to nothing that would serve another request. Its own request may be on trial anew.
            ruling = await self.ruling(lead, record)
            own = ruling.trial_id == lead.trial_id
            trial_id, owner = (wanted.trial_id, wanted.owner) if own else (ruling.trial_id, "")
            # take_over compares before it sets: where another server is quicker, what that has written is judged next.
            lead = await self.take_over(lead, trial_id, owner) or await self.standing(lead)
        return lead

    async def follow(self, claim: Lease, trial_id: str) -> Lease | None:
        """Puts another trial in a claim, which goes on as it did: this server's, or with whoever holds the meme."""
        return await self.take_over(claim, trial_id, claim.owner if claim.owner.startswith(_LED) else "")

    async def record(self, trial_id: str) -> TrialRecord | None:
        """The record of a trial; None where it was not opened yet."""
        try:
            return await self._trials.record(trial_id)
        except TrialUnknown:
            return None

    def taking(self, trial_id: str) -> asyncio.Lock:
        """Held while a trial is taken over: what the docket says then must not be seen before it is held here."""
        lock = self._locks.get(trial_id)
        if lock is None:
            lock = self._locks[trial_id] = asyncio.Lock()
        return lock

    def left_alone(self, ruling: Lease, record: TrialRecord | None) -> bool:
        """True if no server is running a trial that has no verdict and is not in flight here."""
        # Whoever ran it has stored its end and is done with it, whatever the claim says.
        if record is not None and record.state is TrialState.FAILED:
            return True
        # The owner counts as gone if it is this server: callers check first that the trial is not in flight here.
        return self.gone(server_of(ruling))

    def gone(self, server: str) -> bool:
        """True if a server runs none of its trials any more: it is this one, has left the trial, or is dead."""
        return server in (self._pulse.server, _NO_OWNER) or self._pulse.dead(server)

    def lives(self, server: str) -> bool:
        """True if a server's heartbeat was seen, and advances."""
        return self._pulse.lives(server)

    def own(self, claim: Lease) -> bool:
        """True if the lease belongs to this server."""
        return server_of(claim) == self._pulse.server


def owner_of_meme(key: str) -> str:
    """Owner of the claims of requests that wait for the trial of a meme, by the key of that."""
    return _LED + key


def server_of(claim: Lease) -> str:
    """The server that sees to a claim."""
    return claim.owner.partition("/")[0]


def request_of(record: TrialRecord) -> RequestName:
    """The request that a trial was opened for."""
    return RequestName(record.opened.meme.namespace, record.opened.request_id)
