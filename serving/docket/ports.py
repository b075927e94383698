"""The docket's ports: interfaces of the stores for records, and for state that servers coordinate through.

Once a method has returned, its writes survive a crash of the process and a power failure. Several servers may share a
docket. If it is locked, full, missing or closed, every method raises Unavailable (``DOCKET_UNAVAILABLE``,
``DOCKET_CLOSED``). The data is then almost never stored; only if a connection broke during the commit and can't be
restored is this unknown. A retry is safe: for an event it may report that it already exists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from court.errors import CourtError
from court.events import AnyEvent, AppealOpened, Procedure, ReviewOutcome, TrialFailed, VerdictReviewed
from court.meme import Picture
from court.record import TrialRecord, TrialState
from court.verdict import Label
from serving.docket.log.entries import Entry, Erased, PrecedentChanged
from serving.docket.log.notes import SigningKey, VerifierKey


class DocketError(CourtError):
    """The docket is missing, damaged, or of another format; the message says what is wrong and what to do."""

    default_reason = "BAD_DOCKET"


class TrialUnknown(CourtError):
    """Raised if the docket has no trial of an id."""

    default_reason = "TRIAL_UNKNOWN"


class TrialErased(TrialUnknown):
    """The record of a trial was erased."""

    default_reason = "TRIAL_ERASED"


class NotDecided(CourtError):
    """A trial has no verdict that could be reviewed."""

    default_reason = "TRIAL_NOT_DECIDED"


class RequestConflict(CourtError):
    """The request's name was used before for a different request."""

    default_reason = "REQUEST_ID_TAKEN"

    def __init__(self, message: str, *, reason: str | None = None, field: str | None = "request_id") -> None:
        super().__init__(message, reason=reason, field=field)


@dataclass(frozen=True, slots=True)
class RequestName:
    """Name of a request, unique within the docket.

    Attributes:
        namespace: Namespace of the content, or empty.
    """

    namespace: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease on a request: the server that answers it, and with which trial.

    Attributes:
        trial_id: Id of the trial that answers the request; it may have ended, be running, or not have started.
        owner: Server that runs the trial.
    """

    name: RequestName
    payload: str
    trial_id: str
    owner: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed run of a trial, from its opening or last resumption.

    Attributes:
        begun: Number of the log entry of its start.
        ended: Number of the log entry of its failure.
    """

    begun: int
    ended: int
    failed: TrialFailed


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Filter of trials that must meet all conditions. Empty or None means no condition.

    Attributes:
        opened_from: Earliest opening time, inclusive.
        opened_until: Latest opening time, exclusive.
        reviewed: True for reviewed verdicts, False for others.
        needs_review: True for verdicts that need human review, False for others.
        namespace: Namespace of the content; the empty one is a namespace too.
        namespaces: Namespaces that the caller may see. An empty set matches no trial.
        pixels_sha256: SHA-256 of the picture's pixels; for a text without picture, the text's digest.
        erased: True for erased trials, False for others.
        content_id: Caller's id of the content.
    """

    labels: frozenset[Label] = frozenset()
    states: frozenset[TrialState] = frozenset()
    opened_from: datetime | None = None
    opened_until: datetime | None = None
    reviewed: bool | None = None
    needs_review: bool | None = None
    namespace: str | None = None
    namespaces: frozenset[str] | None = None
    pixels_sha256: str | None = None
    erased: bool | None = None
    other_than: frozenset[str] = frozenset()
    content_id: str | None = None


@dataclass(frozen=True, slots=True)
class DocketLine:
    """One trial in a listing.

    Attributes:
        opened_at: Opening time, UTC.
        content_id: Caller's id of the content.
        state: State of the trial; OPEN includes interrupted trials.
        label: Label by the Judge; None if there is no verdict.
        needs_human_review: True if the verdict needs human review.
        review: The last review, or None where there was none.
        failure_reason: Machine-readable reason of a failure; empty if there was none.
        erased: True if the record was erased, so that nothing of the meme is left.
        text_alone: True if the text was sent without a picture.
    """

    trial_id: str
    opened_at: datetime
    procedure: Procedure
    namespace: str
    content_id: str
    state: TrialState
    label: Label | None
    needs_human_review: bool
    request_id: str = ""
    review: VerdictReviewed | None = None
    failure_reason: str = ""
    erased: bool = False
    text_alone: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """Inclusion proof of a log entry, which anybody with the docket's public key can check.

    Attributes:
        checkpoint: Signed note with the size of the log and the root hash of its tree.
        header: Header of the entry; its hash is a leaf of the tree.
        proof: Hashes from the leaf to the root (RFC 6962 §2.1.1).
    """

    checkpoint: str
    number: int
    header: bytes
    proof: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Hook:
    """Shared state of a webhook receiver.

    Attributes:
        next_entry: Number of the log entry to be read next.
        owner: Server that sends to it; empty if none does.
        paused_until: Time until which the receiver has asked for a pause; None if it has not.
        failing_since: Time of the first attempt in the current run of failures; None if the last one succeeded.
        disabled_at: Time since when nothing is sent; None if the receiver is enabled.
        why: Reason why it was disabled.
    """

    name: str
    next_entry: int
    owner: str = ""
    paused_until: datetime | None = None
    failing_since: datetime | None = None
    disabled_at: datetime | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A webhook message that is not delivered yet.

    Attributes:
        entry: Number of the log entry that it reports.
        attempts: Number of attempts so far.
        due_at: Time of the next attempt; None if it was given up.
        error: Error of the last attempt, as a message of our own.
    """

    entry: int
    event: str
    since: datetime
    attempts: int
    due_at: datetime | None
    error: str


@dataclass(frozen=True, slots=True)
class Backlog:
    """Counts of undelivered messages.

    Attributes:
        waiting: Number of messages that will be retried.
        given_up: Number of messages that were given up.
        oldest: Time of the oldest entry among the waiting messages; None if there are none.
    """

    waiting: int
    given_up: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class HookStates:
    """Snapshot of the state of all receivers.

    Attributes:
        backlogs: Undelivered messages by receiver; receivers without any may be missing.
    """

    log_size: int
    hooks: Mapping[str, Hook]
    backlogs: Mapping[str, Backlog]


@dataclass(frozen=True, slots=True)
class Subject:
    """Fields of a trial that messages contain.

    Attributes:
        content_id: Caller's id of the content.
        erased: True if its record was erased.
    """

    namespace: str
    content_id: str
    request_id: str
    erased: bool


@dataclass(frozen=True, slots=True)
class AwaitingReview:
    """Counts of verdicts that wait for human review.

    Attributes:
        oldest: Opening time of the oldest of their trials; None if there is none.
    """

    count: int
    oldest: datetime | None


class TrialWriter(Protocol):
    """Stores the events and pictures of trials."""

    async def append(self, *events: AnyEvent) -> None:
        """Appends one or several events in order, atomically.

        Raises:
            Unavailable: They could not be kept now.
            DocketError: The trial already has an event of that number.
        """
        ...

    async def keep_picture(self, picture: Picture) -> None:
        """Stores the representative frames of a picture under the digest of its pixels; idempotent.

        Raises:
            Unavailable: They could not be kept now.
        """
        ...


class TrialReader(Protocol):
    """Reads one trial: its record, its events, the frames of its picture."""

    async def record(self, trial_id: str) -> TrialRecord:
        """Returns the record of a trial.

        Raises:
            TrialUnknown: There is none of that id.
            DocketError: The stored content is not a valid record.
        """
        ...

    async def events(self, trial_id: str, from_seq: int = 0) -> Sequence[AnyEvent]:
        """Returns the events of a trial from a sequence number on; none if it has not got that far.

        Raises:
            TrialUnknown: There is none of that id.
            DocketError: The stored content is not a valid list of events.
        """
        ...

    async def frames(self, pixels_sha256: str) -> Sequence[bytes]:
        """Returns the stored frames of a picture as PNG files; none if it is unknown."""
        ...


class TrialIndex(Protocol):
    """Finds trials by their properties."""

    async def list(
        self,
        *,
        limit: int,
        after: tuple[datetime, str] | None = None,
        which: TrialFilter = TrialFilter(),
        oldest_first: bool = False,
    ) -> Sequence[DocketLine]:
        """Lists trials by opening time, the latest first.

        Args:
            limit: Maximum number of lines.
            after: Cursor: ``opened_at`` and ``trial_id`` of the last line of the previous page.
            oldest_first: True to reverse the order.
        """
        ...

    async def labels(self, trial_ids: Sequence[str]) -> Mapping[str, Label]:
        """Returns the labels in force, by trial: the Judge's, or the reviewer's if overruled.

        Trials that have no verdict or do not exist are missing.
        """
        ...

    async def failures(self, pixels_sha256: str) -> Sequence[Failure]:
        """Returns failures of trials in which a model may have been shown this picture, in stored order.

        Only those since the last verdict by a model that was shown it; trials without models do not count.
        """
        ...

    async def requests(self) -> Mapping[str, Sequence[str]]:
        """Returns the ids of all trials by the request that they were opened for, the oldest first."""
        ...


class LeaseStore(Protocol):
    """Leases on requests: one owner and one trial each, changed by compare-and-set."""

    async def claim(self, name: RequestName, *, payload: str, trial_id: str, owner: str) -> Lease:
        """Acquires the lease on a request unless there is one; returns the current lease.

        Of concurrent callers, in any process, one succeeds and all get its lease.

        Raises:
            RequestConflict: The name belongs to a different request.
            Unavailable: The lease can't be stored now.
        """
        ...

    async def take_over(self, claim: Lease, *, owner: str, trial_id: str | None = None) -> Lease | None:
        """Replaces the owner, and optionally the trial, of a lease by compare-and-set.

        Returns:
            The new lease; None if owner or trial had changed, because somebody was quicker.
        """
        ...

    async def claim_of(self, name: RequestName) -> Lease | None:
        """Finds the lease on a request; None if nobody has claimed it."""
        ...

    async def open_claims(self) -> Sequence[Lease]:
        """Returns the lease of each open trial.

        Leases whose trial was never opened are not included: their request is unknown until it is repeated.
        """
        ...


class HeartbeatStore(Protocol):
    """Heartbeat counters by which servers see which others are alive."""

    async def beat(self, owner: str) -> None:
        """Increments a server's counter."""
        ...

    async def retire(self, owner: str, count: int | None = None) -> None:
        """Removes the counter of a server that is gone.

        Args:
            count: Counter when last read; if it has advanced since, it is not removed. None for a server that shuts
                down itself.
        """
        ...

    async def heartbeats(self) -> Mapping[str, int]:
        """Returns the counters of all known servers, by server.

        Reading twice shows whether a counter advances, independently of clocks.
        """
        ...


class VerdictKeys(Protocol):
    """Keys of reusable verdicts, with the trials that answer them."""

    async def put(self, key: str, trial_id: str) -> None:
        """Maps a key to a trial, unless it is mapped already or the trial's verdict was overruled."""
        ...

    async def get(self, key: str) -> str | None:
        """Returns the trial that answers a key, or None."""
        ...

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Returns the trials for up to some hundred keys, by key; keys without one are missing."""
        ...


class FingerprintStore(Protocol):
    """Fingerprints of the pictures of trials, in the order in which they were stored."""

    async def put_fingerprint(self, trial_id: str, fingerprint: bytes) -> None:
        """Stores the fingerprint of a trial's picture; idempotent."""
        ...

    async def fingerprints(self, since: int, *, most: int = 10_000) -> Sequence[tuple[int, str, bytes]]:
        """Returns number, trial and fingerprint of entries above a number, in order, at most ``most``.

        A number only becomes visible after all lower ones, so a reader that continues from the last one misses none.
        """
        ...


class LogKeys(Protocol):
    """Signing keys of the log, and key rotation."""

    async def keys(self) -> Sequence[VerifierKey]:
        """Returns all public keys that ever signed checkpoints, the oldest first. Raises DocketError."""
        ...

    async def rotate(
        self, old: SigningKey, new: SigningKey, *, who: str, why: str, compromised: bool, at: datetime
    ) -> int:
        """Signs checkpoints with another key from now on, which the signer must have; returns the entry's number.

        Args:
            old: Current key of the docket.
            who: Person or system that wants it.
            compromised: True if the old key may have leaked.

        Raises:
            DocketError: The docket has another key by now, or the new key is not in the key file (``DOCKET_KEY``).
            Unavailable: The change can't be stored now.
        """
        ...


class TransparencyLog(Protocol):
    """The append-only log of all events, and its signatures."""

    async def entries(self, first: int, most: int, kinds: Collection[str] | None = None) -> Sequence[Entry]:
        """Returns log entries from a number on, as stored, without verification.

        Args:
            first: Number of the first entry.
            kinds: Kinds of entries to include; None for all.
        """
        ...

    async def size(self) -> int:
        """Returns the number of entries in the log, which is also the number of the next one."""
        ...

    async def added(self, first: int) -> tuple[int, Collection[tuple[str, str]]]:
        """Returns the size of the log, and the distinct pairs of kind and trial among entries from a number on."""
        ...

    async def checkpoint(self) -> str:
        """Returns the signed checkpoint of the current log (C2SP tlog-checkpoint).

        Raises:
            DocketError: The key is not there, or not this docket's (``DOCKET_KEY``).
        """
        ...

    async def sign(self) -> None:
        """Signs the current log and stores the checkpoint, which also proves that the key works.

        Raises:
            DocketError: The key is not there, or not this docket's (``DOCKET_KEY``).
            Unavailable: The checkpoint can't be stored now.
        """
        ...

    async def vkey(self) -> str:
        """Returns the public key that verifies checkpoints (C2SP signed-note). Raises DocketError as above."""
        ...

    async def receipt(self, trial_id: str) -> Receipt:
        """Returns the inclusion proof of a verdict, which is the same each time.

        Raises:
            TrialUnknown: There is no trial of that id.
            NotDecided: The trial has no verdict.
            DocketError: The docket is damaged or can't be read, as above.
        """
        ...


class ReviewStore(Protocol):
    """Reviews of verdicts by people, and audit entries of pictures shown and precedents changed."""

    async def review(
        self,
        trial_id: str,
        *,
        outcome: ReviewOutcome,
        label: Label,
        reason: str,
        clause: str,
        reviewer: str,
        at: datetime,
    ) -> VerdictReviewed:
        """Appends a review to a decided trial; the keys of an overruled trial are removed in the same transaction.

        Raises:
            TrialUnknown: There is none of that id.
            NotDecided: The trial has no verdict.
            Unavailable: The review can't be stored now.
        """
        ...

    async def open_appeal(
        self, trial_id: str, *, by: str, statement: str, reference: str, at: datetime
    ) -> AppealOpened:
        """Appends an appeal to a decided trial; idempotent by ``reference``.

        Raises:
            TrialUnknown: There is none of that id.
            NotDecided: The trial has no verdict to appeal against.
            Unavailable: The appeal can't be stored now.
        """
        ...

    async def note_access(
        self, trial_id: str, *, who: str, what: str, at: datetime, kind: Literal["PictureShown"] = "PictureShown"
    ) -> None:
        """Records that somebody views an unblurred picture, before it is shown.

        Raises:
            TrialUnknown: There is none of that id, or its record was erased (TrialErased).
            Unavailable: The access can't be stored now.
        """
        ...

    async def note_changes(self, changes: Sequence[PrecedentChanged], *, since: int) -> int:
        """Records changes of one library that are not recorded yet; safe for concurrent servers.

        Args:
            changes: Changes in order, the newest last.
            since: Number of the last change to skip, if none of this library was ever recorded.

        Returns:
            Number of changes that were recorded.
        """
        ...

    async def awaiting_review(self) -> AwaitingReview:
        """Counts verdicts that need human review and have none."""
        ...


class Eraser(Protocol):
    """Erases memes and precedents."""

    async def erase(self, trial_id: str, *, who: str, why: str, at: datetime, precedents: Sequence[str] = ()) -> Erased:
        """Erases a trial's meme and records that in the log. Idempotent: returns the existing erasure.

        Deletes the bodies of its entries, its picture unless another trial has the same, and its data in other tables.
        The records of who viewed it and that it was erased remain, and so do earlier copies of the docket.

        Args:
            who: Person or system that requests the erasure.
            precedents: Ids of precedents made from the trial; their texts are erased from all records that quote them.

        Raises:
            TrialUnknown: There is none of that id.
            Unavailable: The erasure can't be done now; or it is done, but files or the picture storage still contain
                some of it (``ERASURE_UNFINISHED``): repeat it.
        """
        ...

    async def erase_all(
        self, trials: Mapping[str, Sequence[str]], *, who: str, why: str, at: datetime
    ) -> Sequence[Erased]:
        """Erases several trials with the precedents made from them, as :meth:`erase` but with one clean-up.

        If one of them is unknown, the others are still erased before the error is raised.
        """
        ...

    async def erase_precedent(self, precedent_id: str, *, who: str, why: str, at: datetime) -> Erased:
        """Erases a precedent's texts and picture digests from all records that quote it; as above.

        Later quotes under its id are not stored either. Repeating it adds nothing to the log.
        """
        ...

    async def erase_precedents(
        self, precedent_ids: Collection[str], *, who: str, why: str, at: datetime
    ) -> Sequence[Erased]:
        """Erases several precedents, or documents by their names in the docket, with one clean-up."""
        ...


class HookStore(Protocol):
    """Webhook receivers: which server sends to them, and their position in the log."""

    async def register(self, names: Collection[str]) -> None:
        """Adds receivers that are missing; they start with the next log entry."""
        ...

    async def hooks(self) -> Sequence[Hook]:
        """Returns all receivers that were ever registered, by name."""
        ...

    async def take(self, hook: Hook, owner: str) -> bool:
        """Makes a server the owner by compare-and-set; False if another was quicker."""
        ...

    async def release(self, owner: str) -> None:
        """Releases all receivers owned by a server."""
        ...

    async def replay(self, name: str, entry: int) -> bool:
        """Resends everything from an entry on; False if there is no such receiver."""
        ...

    async def enable(self, name: str) -> bool:
        """Enables a receiver, which continues where it stopped; False if there is no such receiver."""
        ...

    async def disable(self, name: str, *, why: str, at: datetime) -> bool:
        """Disables a receiver until it is enabled again; False if there is no such receiver."""
        ...


class DeliveryStore(Protocol):
    """Undelivered webhook messages, and the trials that they report."""

    async def due(self, name: str, now: datetime, *, most: int) -> Sequence[Delivery]:
        """Returns messages that are due for another attempt, the longest waiting first."""
        ...

    async def backlog(self, name: str) -> Backlog:
        """Counts the undelivered messages of a receiver."""
        ...

    async def states(self) -> HookStates:
        """Reads the positions and backlogs of all receivers in one snapshot."""
        ...

    async def settle(
        self, before: Hook, after: Hook, *, gone: Collection[Delivery], remaining: Collection[Delivery]
    ) -> bool:
        """Stores the outcome of some attempts atomically.

        Args:
            before: State of the receiver as it was read.
            after: New state of the receiver, with the same owner.
            gone: Messages that no longer wait.
            remaining: Messages that still wait, or were given up.

        Returns:
            False if another server has taken over or the position was reset: then nothing is stored.
        """
        ...

    async def subjects(self, trial_ids: Collection[str]) -> Mapping[str, Subject]:
        """Returns trials by id; unknown ones are missing."""
        ...
