"""The ports of the docket: where records are stored, and what several servers must agree on.

What a method has returned from outlives the process, and the machine's power. Several servers may use the same docket.
Where it is locked, full, gone or closed, every method raises Unavailable (``DOCKET_UNAVAILABLE``, ``DOCKET_CLOSED``).
What was to be stored is then almost always not stored; where a connection broke at the very end and has not come back,
nobody can say, and asking again is safe: of an event it may say that it is there.
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
    """The docket is missing, damaged, or of another format: what is wrong, and what to do."""

    default_reason = "BAD_DOCKET"


class TrialUnknown(CourtError):
    """Raised where the docket has no trial of that id."""

    default_reason = "TRIAL_UNKNOWN"


class TrialErased(TrialUnknown):
    """The record of a trial was erased."""

    default_reason = "TRIAL_ERASED"


class NotDecided(CourtError):
    """A trial has no verdict that could be reviewed."""

    default_reason = "TRIAL_NOT_DECIDED"


class RequestConflict(CourtError):
    """A request was asked under this name before, and it was another one."""

    default_reason = "REQUEST_ID_TAKEN"

    def __init__(self, message: str, *, reason: str | None = None, field: str | None = "request_id") -> None:
        super().__init__(message, reason=reason, field=field)


@dataclass(frozen=True, slots=True)
class RequestName:
    """Names a request.

    Attributes:
        namespace: Namespace of its content, or empty.
        request_id: Its own.
    """

    namespace: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Lease:
    """A request, the server that answers it, and with which trial.

    Attributes:
        name: Name of the request.
        payload: Digest of what was asked.
        trial_id: The trial that answers it; held, being held, or not begun yet.
        owner: The server that sees to it.
    """

    name: RequestName
    payload: str
    trial_id: str
    owner: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A trial that failed, from when it was opened or last taken up.

    Attributes:
        begun: Number of the entry that it began with.
        ended: Number of the entry that says so.
        failed: Event of the failure.
    """

    begun: int
    ended: int
    failed: TrialFailed


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Which trials are meant: those that all of this holds for. What is empty or None asks for nothing.

    Attributes:
        labels: The Judge's label is one of these.
        states: The state is one of these.
        opened_from: Opened then or later.
        opened_until: Opened before then.
        reviewed: True for reviewed verdicts, False for others.
        needs_review: True for verdicts that ask for a person, False for others.
        namespace: Namespace of the content; the empty one is a namespace too.
        namespaces: The namespace is one of these: what a caller may see. An empty set is no trial at all.
        pixels_sha256: SHA-256 of the meme's picture; of a text that was sent alone, the text's digest.
        erased: True for erased trials, False for others.
        other_than: The namespace is none of these.
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
        trial_id: Opens the record.
        opened_at: UTC.
        procedure: Procedure of the trial.
        namespace: Namespace of the content.
        content_id: Caller's id of the content.
        state: State of the trial; OPEN also if it was interrupted.
        label: The Judge's, or None where there is no verdict.
        needs_human_review: True if the verdict asks for a person.
        request_id: The request that it was opened for.
        review: The last review, or None where there was none.
        failure_reason: Why it failed, for machines; empty where it did not.
        erased: True if its record was erased: nothing of the meme is known any more.
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
    """Shows that an entry is in the log, to whoever has the docket's public key.

    Attributes:
        checkpoint: A signed note: how far the log was, and the root of its tree.
        number: Number of the entry.
        header: Header of the entry, whose hash is a leaf of the tree.
        proof: From the leaf to the root (RFC 6962 §2.1.1).
    """

    checkpoint: str
    number: int
    header: bytes
    proof: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Hook:
    """A receiver of webhooks, as far as servers must agree on it.

    Attributes:
        name: Name in the settings.
        next_entry: Number of the entry of the log to be read next.
        owner: Server that sends to it; empty where none does.
        paused_until: Time until which it wants nothing; None where it did not say.
        failing_since: First attempt since which it has taken nothing; None where it took the last.
        disabled_at: Time from which on nothing is sent; None where it is enabled.
        why: Reason for which it was disabled.
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
    """A message that its receiver has not taken yet.

    Attributes:
        entry: Number of the entry that it tells of.
        event: Type of the event.
        since: Time of the entry.
        attempts: Attempts so far.
        due_at: Time of the next attempt; None where it was given up.
        error: Outcome of the last attempt, in words of ours.
    """

    entry: int
    event: str
    since: datetime
    attempts: int
    due_at: datetime | None
    error: str


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages that are not delivered, in numbers.

    Attributes:
        waiting: Messages that will be sent again.
        given_up: Messages that won't.
        oldest: Time of the oldest entry among those that wait; None where none does.
    """

    waiting: int
    given_up: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True)
class HookStates:
    """State of all receivers at one time.

    Attributes:
        log_size: Entries of the log.
        hooks: Receivers by name.
        backlogs: Messages that are not delivered, by receiver; one that has none may be missing.
    """

    log_size: int
    hooks: Mapping[str, Hook]
    backlogs: Mapping[str, Backlog]


@dataclass(frozen=True, slots=True)
class Subject:
    """A trial, as far as messages name it.

    Attributes:
        namespace: Namespace of the content.
        content_id: Caller's id of the content.
        request_id: The request that it was opened for.
        erased: True if its record was erased.
    """

    namespace: str
    content_id: str
    request_id: str
    erased: bool


@dataclass(frozen=True, slots=True)
class AwaitingReview:
    """Verdicts that ask for a person and that nobody has reviewed, in numbers.

    Attributes:
        count: Number of them.
        oldest: Time when the first of their trials was opened; None where there is none.
    """

    count: int
    oldest: datetime | None


class TrialWriter(Protocol):
    """Stores trials: their events, and the pictures that they are about."""

    async def append(self, *events: AnyEvent) -> None:
        """Keeps an event, or several in this order: all of them or none.

        Raises:
            Unavailable: They could not be kept now.
            DocketError: The trial already has an event of that number.
        """
        ...

    async def keep_picture(self, picture: Picture) -> None:
        """Keeps the representative frames of a picture under the digest of its pixels; again is no harm.

        Raises:
            Unavailable: They could not be kept now.
        """
        ...


class TrialReader(Protocol):
    """Reads one trial: its record, its events, the frames of its picture."""

    async def record(self, trial_id: str) -> TrialRecord:
        """The record of a trial.

        Raises:
            TrialUnknown: There is none of that id.
            DocketError: Stored content is no record.
        """
        ...

    async def events(self, trial_id: str, from_seq: int = 0) -> Sequence[AnyEvent]:
        """The events of a trial from a number on, in order; none where it has not got so far.

        Raises:
            TrialUnknown: There is none of that id.
            DocketError: Stored content is no list of events.
        """
        ...

    async def frames(self, pixels_sha256: str) -> Sequence[bytes]:
        """The kept frames of a picture as PNG files; none if it is unknown."""
        ...


class TrialIndex(Protocol):
    """Finds trials by what is known of them."""

    async def list(
        self,
        *,
        limit: int,
        after: tuple[datetime, str] | None = None,
        which: TrialFilter = TrialFilter(),
        oldest_first: bool = False,
    ) -> Sequence[DocketLine]:
        """Trials by the time when they were opened, the last first unless asked otherwise.

        Args:
            limit: Largest number of lines.
            after: ``opened_at`` and ``trial_id`` of the line after which to go on.
            which: Filter of the trials.
            oldest_first: True to reverse the order.
        """
        ...

    async def labels(self, trial_ids: Sequence[str]) -> Mapping[str, Label]:
        """The labels that hold, by trial: the Judge's, or the reviewer's where it was overruled.

        A trial without a verdict, or that there is not, has none.
        """
        ...

    async def failures(self, pixels_sha256: str) -> Sequence[Failure]:
        """Failures of trials in which models may have been shown this picture, in the order in which they were kept.

        Only those since a model that was shown it last gave a verdict: what no model saw says nothing of them.
        """
        ...

    async def count_opened(self, namespace: str, since: datetime) -> Mapping[datetime, int]:
        """Counts the trials of a namespace that were opened from a time on, by the minute; erased ones too."""
        ...

    async def requests(self) -> Mapping[str, Sequence[str]]:
        """Ids of all trials by the request that they were opened for, the first opened first."""
        ...


class LeaseStore(Protocol):
    """Leases on requests: one owner and one trial for each, by compare-and-set."""

    async def claim(self, name: RequestName, *, payload: str, trial_id: str, owner: str) -> Lease:
        """Registers who answers a request and with which trial, unless that has been done: then what stands.

        Of all who claim the same at once, in whichever process, one claim stands and all of them get it.

        Raises:
            RequestConflict: The request of that name is another one.
            Unavailable: The claim can't be stored now.
        """
        ...

    async def take_over(self, claim: Lease, *, owner: str, trial_id: str | None = None) -> Lease | None:
        """Puts another owner, and perhaps another trial, in the place of those that were last seen.

        Returns:
            The claim as it is now; None where owner or trial had changed: somebody was quicker.
        """
        ...

    async def claim_of(self, name: RequestName) -> Lease | None:
        """Finds the lease on a request; None if nobody has claimed it."""
        ...

    async def open_claims(self) -> Sequence[Lease]:
        """Returns the claim of each trial that is open.

        A claim whose trial was never opened is not among them: what was asked is not known before it is asked again.
        """
        ...


class HeartbeatStore(Protocol):
    """Counters by which servers see that each other live."""

    async def beat(self, owner: str) -> None:
        """Counts one on for a server: it lives."""
        ...

    async def retire(self, owner: str, count: int | None = None) -> None:
        """Forgets the count of a server that is gone.

        Args:
            owner: The server.
            count: Heartbeat count at the last look; if it has advanced since, nothing is forgotten. None for a server
                that leaves by itself.
        """
        ...

    async def heartbeats(self) -> Mapping[str, int]:
        """Counters of all servers that are not forgotten, by server.

        Whether one moves is seen by looking twice, whatever clocks say.
        """
        ...


class VerdictKeys(Protocol):
    """Keys of verdicts that may be reused, each with the trial that answers it."""

    async def put(self, key: str, trial_id: str) -> None:
        """Keeps which trial answers a key, unless another does already, or the trial's verdict was overruled."""
        ...

    async def get(self, key: str) -> str | None:
        """The trial that answers a key, or None."""
        ...

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, str]:
        """The trials that answer those of some hundred keys that are answered, by key."""
        ...


class FingerprintStore(Protocol):
    """Fingerprints of the pictures of trials, in the order in which they were stored."""

    async def put_fingerprint(self, trial_id: str, fingerprint: bytes) -> None:
        """Stores what the picture of a trial looks like, for whoever compares pictures; again is no harm."""
        ...

    async def fingerprints(self, since: int, *, most: int = 10_000) -> Sequence[tuple[int, str, bytes]]:
        """Number, trial and fingerprint of those above a number, in order, at most so many; ask on until none is left.

        No process ever sees a number before it could see all lower ones: whoever goes on from the last misses none.
        """
        ...


class LogKeys(Protocol):
    """The keys that the log was ever signed with, and the change to another."""

    async def keys(self) -> Sequence[VerifierKey]:
        """All public keys that checkpoints were ever signed with, the first one first. Raises DocketError."""
        ...

    async def rotate(
        self, old: SigningKey, new: SigningKey, *, who: str, why: str, compromised: bool, at: datetime
    ) -> int:
        """Has checkpoints signed with another key from now on, which the signer must have; the number of the entry.

        Args:
            old: Key of the docket.
            new: Key that takes its place, of the same name.
            who: Person or system that wants it.
            why: Why.
            compromised: True if others may have the old key.
            at: Time of the request.

        Raises:
            DocketError: The docket has another key by now, or the new one is not where keys lie (``DOCKET_KEY``).
            Unavailable: The change can't be stored now.
        """
        ...


class TransparencyLog(Protocol):
    """The append-only log of everything that happened, and its signatures."""

    async def entries(self, first: int, most: int, kinds: Collection[str] | None = None) -> Sequence[Entry]:
        """Entries of the log from a number on, in order, as they are stored: nothing is checked.

        Args:
            first: The lowest number.
            most: Largest number of entries.
            kinds: Kinds of entries; others are left out.
        """
        ...

    async def size(self) -> int:
        """Number of entries in the log, which is that of the next one."""
        ...

    async def added(self, first: int) -> tuple[int, Collection[tuple[str, str]]]:
        """Number of entries in the log, and kind and trial of those from a number on, each pair once."""
        ...

    async def checkpoint(self) -> str:
        """The signed note of the log as it is now (C2SP tlog-checkpoint).

        Raises:
            DocketError: The key is not there, or not this docket's (``DOCKET_KEY``).
        """
        ...

    async def sign(self) -> None:
        """Signs the log as it is now, and keeps the checkpoint; shows that it can be signed.

        Raises:
            DocketError: The key is not there, or not this docket's (``DOCKET_KEY``).
            Unavailable: The checkpoint can't be stored now.
        """
        ...

    async def vkey(self) -> str:
        """The public key that checkpoints are checked with (C2SP signed-note). Raises DocketError as above."""
        ...

    async def receipt(self, trial_id: str) -> Receipt:
        """Shows that a verdict is in the log; the same each time.

        Raises:
            TrialUnknown: There is no trial of that id.
            NotDecided: The trial has no verdict.
            DocketError: The docket is damaged or can't be read, as above.
        """
        ...


class ReviewStore(Protocol):
    """Reviews of verdicts by people, and notes of what else they did: pictures that they were shown, precedents."""

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
        """Appends a review to a decided trial. An overruled trial answers no key any more, in the same transaction.

        Raises:
            TrialUnknown: There is none of that id.
            NotDecided: The trial has no verdict.
            Unavailable: The review can't be stored now.
        """
        ...

    async def open_appeal(
        self, trial_id: str, *, by: str, statement: str, reference: str, at: datetime
    ) -> AppealOpened:
        """Appends an appeal to a decided trial; once more under the same reference, it is the one that stands.

        Raises:
            TrialUnknown: There is none of that id.
            NotDecided: The trial has no verdict that could be contested.
            Unavailable: The appeal can't be stored now.
        """
        ...

    async def note_access(
        self, trial_id: str, *, who: str, what: str, at: datetime, kind: Literal["PictureShown"] = "PictureShown"
    ) -> None:
        """Puts on record that somebody looks at what is blurred; done before it is shown.

        Raises:
            TrialUnknown: There is none of that id, or its record was erased (TrialErased).
            Unavailable: The access can't be stored now.
        """
        ...

    async def note_changes(self, changes: Sequence[PrecedentChanged], *, since: int) -> int:
        """Puts changes of one library on record that are not there yet; several servers may do so at once.

        Args:
            changes: Changes in their order, the newest last.
            since: Number of the last change that is not to be noted, where none of this library ever was.

        Returns:
            Number of changes that were noted.
        """
        ...

    async def awaiting_review(self) -> AwaitingReview:
        """Counts verdicts that ask for a person and that nobody has reviewed."""
        ...


class Eraser(Protocol):
    """Erases what is known of a meme or of a precedent."""

    async def erase(self, trial_id: str, *, who: str, why: str, at: datetime, precedents: Sequence[str] = ()) -> Erased:
        """Erases what is known of a trial's meme, and says so in the log. Once more is no harm: then what stands.

        The bodies of its entries go, its picture unless another trial has the same, and what other tables hold of it.
        Who looked at it, and that it was erased, stays. So does what a copy of the docket holds, made before.

        Args:
            trial_id: Which.
            who: Person or system that requests the erasure.
            why: Why.
            at: Time of the request.
            precedents: Ids of precedents that the trial was made into; their texts go from all records that quote them.

        Raises:
            TrialUnknown: There is none of that id.
            Unavailable: The erasure can't be done now; or it is done, and files or the place of pictures still hold
                something of it (``ERASURE_UNFINISHED``): ask once more.
        """
        ...

    async def erase_all(
        self, trials: Mapping[str, Sequence[str]], *, who: str, why: str, at: datetime
    ) -> Sequence[Erased]:
        """Erases several trials, each with the precedents that it was made into; as :meth:`erase`, with one clean-up.

        Where one of them is unknown, the others are erased all the same before the error is raised.
        """
        ...

    async def erase_precedent(self, precedent_id: str, *, who: str, why: str, at: datetime) -> Erased:
        """Erases the texts of a precedent, and digests of its picture, from all records that quote it; as above.

        What is quoted under its id from then on is not kept either. Once more adds nothing to the log.
        """
        ...

    async def erase_precedents(
        self, precedent_ids: Collection[str], *, who: str, why: str, at: datetime
    ) -> Sequence[Erased]:
        """Erases several precedents, or documents by their names in the docket; with one clean-up."""
        ...


class HookStore(Protocol):
    """Receivers of webhooks: who sends to them, and how far in the log they are."""

    async def register(self, names: Collection[str]) -> None:
        """Enters receivers that are not there; they begin with the next entry of the log."""
        ...

    async def hooks(self) -> Sequence[Hook]:
        """Returns all receivers that were ever entered, by name."""
        ...

    async def take(self, hook: Hook, owner: str) -> bool:
        """Puts a server in the place of the one that was last seen; False where another was quicker."""
        ...

    async def release(self, owner: str) -> None:
        """Lets a server send to nobody any more."""
        ...

    async def replay(self, name: str, entry: int) -> bool:
        """Has a receiver told everything from an entry on, once more; False where there is no such receiver."""
        ...

    async def enable(self, name: str) -> bool:
        """Has a receiver told again, from where it stood; False where there is no such receiver."""
        ...

    async def disable(self, name: str, *, why: str, at: datetime) -> bool:
        """Has a receiver told nothing until it is enabled; False where there is no such receiver."""
        ...


class DeliveryStore(Protocol):
    """Messages that receivers of webhooks have not taken yet, and what messages tell of."""

    async def due(self, name: str, now: datetime, *, most: int) -> Sequence[Delivery]:
        """Returns messages whose time for another attempt has come, the one that waits longest first."""
        ...

    async def backlog(self, name: str) -> Backlog:
        """Counts the messages that a receiver has not taken."""
        ...

    async def states(self) -> HookStates:
        """Reads where all receivers are, and what waits for each, at once."""
        ...

    async def settle(
        self, before: Hook, after: Hook, *, gone: Collection[Delivery], remaining: Collection[Delivery]
    ) -> bool:
        """Stores the outcome of some attempts: all of it or none.

        Args:
            before: The receiver as it was read.
            after: The receiver as it is to be, with the same owner.
            gone: Messages that wait no longer.
            remaining: Messages that wait, or were given up.

        Returns:
            False where another server sends meanwhile, or somebody had it begin elsewhere: then nothing is stored.
        """
        ...

    async def subjects(self, trial_ids: Collection[str]) -> Mapping[str, Subject]:
        """Returns trials by id; one that there is not is left out."""
        ...
