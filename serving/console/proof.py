"""Log proof of a trial: each entry checked against its commitment and the docket's signed checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import ValidationError
from sqlalchemy import Connection

from serving.docket.audit.audit import Auditor
from serving.docket.log.entries import NO_SEQ, Entry, check, event_of, parse
from serving.docket.log.errors import LogError
from serving.docket.log.merkle import inclusion_proof, verify_inclusion
from serving.docket.log.notes import Checkpoint, VerifierKey, open_checkpoint
from serving.docket.store import log_queries
from serving.docket.store.bodies import PART


class Standing(StrEnum):
    """Standing of an entry in the log."""

    PROVEN = "PROVEN"
    """Matches the log, and is covered by the signed checkpoint."""
    ERASED = "ERASED"
    """Header proven likewise; the body was erased."""
    UNSIGNED = "UNSIGNED"
    """Added after the last checkpoint."""
    WRONG = "WRONG"
    """Differs from what was logged."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An entry as a page shows it.

    Attributes:
        who: Person who viewed a picture, if the entry is about that.
    """

    entry: Entry
    standing: Standing
    why: str = ""
    who: str = ""
    what: str = ""

    @property
    def digest(self) -> str:
        """Returns the first digits of the commitment."""
        return self.entry.commitment.hex()[:12]


@dataclass(frozen=True, slots=True)
class Proof:
    """Log proof of a trial.

    Attributes:
        checkpoint: Checkpoint of the check; None if none could be opened.
        why: Fault of the checkpoint, or its absence; empty if it is valid.
    """

    entries: tuple[Shown, ...]
    checkpoint: Checkpoint | None
    why: str = ""

    @property
    def counts(self) -> Mapping[Standing, int]:
        """Counts entries by their standing."""
        return Counter(one.standing for one in self.entries)

    @property
    def wrong(self) -> Sequence[Shown]:
        """Returns the entries that differ from what was logged."""
        return [one for one in self.entries if one.standing is Standing.WRONG]

    @property
    def root(self) -> str:
        """Returns the first digits of the tree's root."""
        return self.checkpoint.root.hex()[:12] if self.checkpoint else ""

    @property
    def by_event(self) -> Mapping[int, Shown]:
        """Returns the entries of events by sequence number."""
        return {one.entry.seq: one for one in self.entries if one.entry.seq != NO_SEQ}

    @property
    def others(self) -> Sequence[Shown]:
        """Returns the entries that are not events: picture accesses and erasures."""
        return [one for one in self.entries if one.entry.seq == NO_SEQ and one.entry.kind != PART]


async def proof_of(auditor: Auditor, trial_id: str) -> Proof:
    """Proves all entries about a trial.

    The entries are checked against the docket's own signature. Replacement of the whole docket is only detected with a
    checkpoint that is kept elsewhere: ``memecourt docket verify --anchor``.

    Raises:
        TrialUnknown: There is no trial with that id.
        Unavailable: The docket can't be read now.
    """
    return await auditor.read(lambda connection: _proof(connection, trial_id))


def unreadable(entry: Entry) -> Sequence[str]:
    """Explains in sentences why an event's body can't be parsed; empty if it can, or if it was erased."""
    if entry.body is None or entry.seq == NO_SEQ:
        return ()
    try:
        event_of(entry.body)
    except ValidationError as error:
        # Parts are stored separately, so a stored body differs from the event in these places.
        faults = [one for one in error.errors(include_input=False) if not _of_part(entry.body, one["loc"])]
        return [f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}" for one in faults]
    except ValueError as error:
        return [str(error)]
    return ()


def _of_part(body: str, loc: Sequence[str | int]) -> bool:
    at = parse(body)
    for step in loc:
        if isinstance(at, dict) and set(at) == {"part"}:
            return True
        try:
            at = at[step]
        except (KeyError, IndexError, TypeError):
            continue  # the event's kind is a step of the location
    return isinstance(at, dict) and set(at) == {"part"}


def _proof(connection: Connection, trial_id: str) -> Proof:
    entries = log_queries.entries_of(connection, trial_id)
    checkpoint: Checkpoint | None = None
    why = ""
    note, key = log_queries.checkpoint(connection), log_queries.key(connection)
    if note is None or not key:
        why = "The log has grown since it was signed last; the next server that writes signs it."
    else:
        try:
            checkpoint = open_checkpoint(note, [VerifierKey.parse(key)])
        except LogError as error:
            why = f"The docket's own checkpoint can't be trusted: {error}"
    read = log_queries.nodes(connection)
    shown = []
    for entry in entries:
        standing, wrong = Standing.ERASED if entry.erased else Standing.PROVEN, ""
        try:
            # Its own commitment first: an altered entry is wrong, whether or not it is signed yet.
            check(entry)
            # The log may have grown since it was signed; that is not a fault.
            if checkpoint is None or entry.number >= checkpoint.size:
                # ERASED takes precedence over UNSIGNED, as it is more informative.
                standing = standing if entry.erased else Standing.UNSIGNED
            else:
                proof = inclusion_proof(entry.number, checkpoint.size, read)
                verify_inclusion(entry.number, checkpoint.size, leaf=entry.leaf(), proof=proof, root=checkpoint.root)
        except LogError as error:
            standing, wrong = Standing.WRONG, str(error)
        who, what = _looked(entry)
        shown.append(Shown(entry, standing, why=wrong, who=who, what=what))
    return Proof(tuple(shown), checkpoint, why)


def _looked(entry: Entry) -> tuple[str, str]:
    if entry.kind != "PictureShown" or entry.body is None:
        return "", ""
    try:
        # An altered body may contain anything, and the page that reports it must still render.
        content = parse(entry.body)
    except ValueError:
        return "", ""
    return (str(content.get("who", "")), str(content.get("what", ""))) if isinstance(content, dict) else ("", "")
