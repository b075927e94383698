"""Entries of the log: a header that stays, and a body that may be erased.

A leaf of the tree is a header. It contains a commitment to the body, made with a salt that is stored with the body:
with both, anyone can verify that the body is the logged one; without them, nothing about the body can be learned or
guessed, and everything else still verifies.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import orjson
from pydantic import AwareDatetime, BaseModel, Field, TypeAdapter

from court.events import AnyEvent, parse_event
from court.values import Value
from serving.docket.log.canonical_json import canonical, parse
from serving.docket.log.errors import BadEntry
from serving.docket.log.merkle import leaf_hash

FORMAT = 1
"""Format of headers, included in each."""
SALT_SIZE = 32
"""Size of a salt in bytes."""
NO_SEQ = -1
"""Sequence number of entries that are not events of a trial."""


_EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log.

    Attributes:
        number: Position in the log, counted from 0 without gaps.
        seq: Position among the events of the trial, counted from 0 without gaps; -1 if it is not an event.
        at: Time of the event as text: ISO 8601, UTC.
        commitment: HMAC-SHA256 of the body under the salt, 32 bytes.
        body: Content of the event as canonical JSON; None once it is erased.
        salt: 32 random bytes; None once the body is erased.
    """

    number: int
    kind: str
    trial_id: str
    seq: int
    at: str
    commitment: bytes
    body: str | None
    salt: bytes | None

    def header(self) -> bytes:
        """Returns the entry's permanent header: canonical JSON, the data of the leaf."""
        # Quicker than canonical_bytes: nothing here has to be marked, and the keys are in order.
        return orjson.dumps(
            {
                "at": self.at,
                "commitment": self.commitment.hex(),
                "kind": self.kind,
                "number": self.number,
                "seq": self.seq,
                "trial": self.trial_id,
                "v": FORMAT,
            }
        )

    def leaf(self) -> bytes:
        """Returns the hash of its leaf."""
        return leaf_hash(self.header())

    @property
    def erased(self) -> bool:
        """True if the body was erased."""
        return self.body is None and self.salt is None


class _OwnEntry(Value):
    trial_id: str
    at: AwareDatetime


class PictureShown(_OwnEntry):
    """Somebody viewed an unblurred picture of a trial, or on a case its text."""

    kind: Literal["PictureShown"] = "PictureShown"
    who: str = Field(min_length=1)
    what: str
    """Shown content: ``meme`` (with its text), ``text``, ``precedent:`` and its id, or ``all`` of these at once."""


class Erased(_OwnEntry):
    """Bodies of entries were erased. Its own body never is; bodies missing without such an entry were tampered with."""

    kind: Literal["Erased"] = "Erased"
    who: str = Field(min_length=1)
    why: str = Field(min_length=1)
    numbers: tuple[int, ...]
    """Numbers of the entries whose bodies were erased, ascending."""
    buried: int = 0
    """Number of precedents of which nothing is stored any more, even if quoted later."""
    left: dict[str, str | bool | None] = Field(default_factory=dict)
    """Remaining row of the trial in the listing, which can't be derived any more; empty if no trial was erased."""


class PrecedentChanged(_OwnEntry):
    """A precedent of the served library was changed; only recorded if webhook receivers subscribe to it."""

    kind: Literal["PrecedentChanged"] = "PrecedentChanged"
    trial_id: Literal[""] = ""
    precedent_id: str = Field(min_length=1)
    change: Literal["add", "remove", "relabel", "revoke"]
    library: str
    """Name of the library."""
    number: int = Field(ge=1)
    """Number of the change in the library's history."""


class KeyRotated(_OwnEntry):
    """The docket's checkpoints are signed with another key from here on; see :mod:`serving.docket.log.rotation`."""

    kind: Literal["KeyRotated"] = "KeyRotated"
    trial_id: Literal[""] = ""
    who: str = Field(min_length=1)
    why: str = Field(min_length=1)
    compromised: bool = False
    """True if the retired key may have leaked."""
    note: str
    """Statement of the rotation, signed by both keys."""


class SampleCommitted(_OwnEntry):
    """A sample of trials is to be drawn by the value that a public beacon gives later, and by nothing else."""

    kind: Literal["SampleCommitted"] = "SampleCommitted"
    trial_id: Literal[""] = ""
    who: str = Field(min_length=1)
    checkpoint: str
    """Signed checkpoint of the log that is drawn from."""
    count: int = Field(ge=1)
    """Number of trials to draw."""
    beacon: str = Field(min_length=1)
    """Name or address of the beacon."""
    round: int = Field(ge=0)
    due: AwareDatetime
    """Time before which nobody knows the round's value."""


OWN_KINDS = frozenset({"PictureShown", "Erased", "Part", "PrecedentChanged", "KeyRotated", "SampleCommitted"})
"""Kinds of entries that are not events of a trial."""


def commitment_to(body: bytes, salt: bytes) -> bytes:
    """Returns the header's commitment to a UTF-8 body."""
    return hmac.digest(salt, body, sha256)


def check(entry: Entry) -> None:
    """Verifies that the body matches the header's commitment and fields.

    An erased body is accepted: only the whole log shows whether it was erased properly.

    Raises:
        BadEntry: The entry is inconsistent; the message says how.
    """
    if entry.erased:
        return
    # An erasure removes both, so a remaining one indicates tampering.
    if entry.body is None or entry.salt is None:
        raise BadEntry(f"Entry {entry.number} has lost its {'body' if entry.body is None else 'salt'}.")
    if not hmac.compare_digest(commitment_to(entry.body.encode(), entry.salt), entry.commitment):
        raise BadEntry(f"The body of entry {entry.number} is not the one that was logged.")


def body_of(value: BaseModel) -> str:
    """Builds the body of an entry for an event, or for one of our own kinds."""
    return canonical(value.model_dump(mode="json"))


def event_of(body: str) -> AnyEvent:
    """Parses the event in a body. Raises ValueError (or its subclass ValidationError) if it is invalid."""
    # Markers stand for values that JSON can't represent, so such a body needs the slower parser.
    return _EVENT.validate_python(parse(body)) if '"$' in body else parse_event(body)


def erased_of(body: str) -> Erased:
    """Parses the body of an erasure entry. Raises BadEntry if it is invalid."""
    try:
        return Erased.model_validate(parse(body))
    # RecursionError: a body may be nested too deeply for the parser.
    except (ValueError, RecursionError):
        raise BadEntry("An entry that says what was erased can't be read.") from None
