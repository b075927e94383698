"""Entries of the log: a header that stays, and a body that may be erased.

A leaf of the tree is a header. It holds a commitment to the body, made with a salt that is kept beside the body: with
both, anyone can check that the body is the one that was logged; without them nothing about the body can be learned or
tried out, and everything else still verifies.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from court.events import AnyEvent, parse_event
from serving.docket.log.canonical_json import canonical, canonical_plain, parse
from serving.docket.log.errors import BadEntry
from serving.docket.log.merkle import leaf_hash

FORMAT = 1
"""Of headers; stands in each."""
SALT_SIZE = 32
"""Bytes."""
NO_SEQ = -1
"""Sequence number of an entry that is no event of a trial."""


_EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log.

    Attributes:
        number: Its place in the log, counted from 0 without gaps.
        kind: Kind of the event, or one of our own (:data:`OWN_KINDS`).
        trial_id: The trial it belongs to, or empty.
        seq: Its place among the events of that trial, counted from 0 without gaps; -1 where it is no event.
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
        """Header of the entry, which is logged for ever: canonical JSON, the data of the leaf."""
        # canonical_plain does not sort: the keys have to stand in order here.
        return canonical_plain(
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
        """The hash of its leaf."""
        return leaf_hash(self.header())

    @property
    def erased(self) -> bool:
        """True if the body was erased."""
        return self.body is None and self.salt is None


class _OwnEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    trial_id: str
    at: AwareDatetime


class PictureShown(_OwnEntry):
    """Somebody looked at the picture of a trial as it is."""

    kind: Literal["PictureShown"] = "PictureShown"
    who: str = Field(min_length=1)
    what: str
    """Which picture: ``frame 0``, or ``precedent`` and its id."""


class Erased(_OwnEntry):
    """Bodies of entries were erased. Its own never is: what is gone without such an entry was taken."""

    kind: Literal["Erased"] = "Erased"
    who: str = Field(min_length=1)
    why: str = Field(min_length=1)
    numbers: tuple[int, ...]
    """Of the entries whose bodies were erased, ascending."""
    buried: int = 0
    """Precedents of which nothing is kept any more, whoever quotes them."""
    left: dict[str, str | bool | None] = Field(default_factory=dict)
    """What the listing still says of the trial: nothing else vouches for it any more. Empty where no trial is meant."""


class PrecedentChanged(_OwnEntry):
    """A precedent of the library that is served was changed; noted where receivers of webhooks are told of it."""

    kind: Literal["PrecedentChanged"] = "PrecedentChanged"
    trial_id: Literal[""] = ""
    precedent_id: str = Field(min_length=1)
    change: Literal["add", "remove", "relabel", "revoke"]
    library: str
    """Its name."""
    number: int = Field(ge=1)
    """Number of the change in the library's history."""


class KeyRotated(_OwnEntry):
    """The docket's checkpoints are signed with another key from here on; see :mod:`serving.docket.log.rotation`."""

    kind: Literal["KeyRotated"] = "KeyRotated"
    trial_id: Literal[""] = ""
    who: str = Field(min_length=1)
    why: str = Field(min_length=1)
    compromised: bool = False
    """Whether others may have the key that is retired."""
    note: str
    """Statement of the change, signed with both keys."""


OWN_KINDS = frozenset({"PictureShown", "Erased", "Part", "PrecedentChanged", "KeyRotated"})
"""Kinds of entries that are no events of a trial."""


def commitment_to(body: bytes, salt: bytes) -> bytes:
    """Returns the commitment in the header to a body in UTF-8."""
    return hmac.digest(salt, body, sha256)


def check(entry: Entry) -> None:
    """Checks that the body is the one that the header commits to, and that both tell of the same.

    An erased body is right here: whether it was erased by an entry that says so shows only in the whole log.

    Raises:
        BadEntry: The entry is inconsistent; the message says how.
    """
    if entry.erased:
        return
    # An erasure takes both: where one of them is left, this was none.
    if entry.body is None or entry.salt is None:
        raise BadEntry(f"Entry {entry.number} has lost its {'body' if entry.body is None else 'salt'}.")
    if not hmac.compare_digest(commitment_to(entry.body.encode(), entry.salt), entry.commitment):
        raise BadEntry(f"The body of entry {entry.number} is not the one that was logged.")


def body_of(value: BaseModel) -> str:
    """The body of an entry for an event, or for one of our own kinds."""
    return canonical(value.model_dump(mode="json"))


def event_of(body: str) -> AnyEvent:
    """The event in a body. Raises ValueError (of which pydantic's ValidationError is one) if it is none."""
    # Marks stand for what JSON can't hold: such a body goes by way of the values themselves.
    return _EVENT.validate_python(parse(body)) if '"$' in body else parse_event(body)


def erased_of(body: str) -> Erased:
    """Parses the body of an erasure entry. Raises BadEntry if it is none."""
    try:
        return Erased.model_validate(parse(body))
    # RecursionError: a body may be nested deeper than the parser goes.
    except (ValueError, RecursionError):
        raise BadEntry("An entry that says what was erased can't be read.") from None
