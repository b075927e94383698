"""Rotation of a docket's signing key: a chain of keys, each named by its predecessor.

A rotation is a log entry. It states the docket, both keys, its own number and the root of the tree before it, in a note
signed by both keys: the old one names its successor, the new one what it takes over. Checkpoints over more entries are
only signed with the new key.

Trust in any key of the chain suffices to verify all of it. With a stolen key, an attacker can still write another
history up to its rotation and name their own successor. Externally stored checkpoints protect against that, and so does
the new public key, which should be kept wherever the old one is.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from serving.docket.log.entries import Entry, KeyRotated, parse
from serving.docket.log.errors import BadEntry, BadNote
from serving.docket.log.merkle import HASH_SIZE
from serving.docket.log.notes import SigningKey, VerifierKey, open_note, sign_note, split_note

FORMAT = "memecourt-key-rotation/1"
"""First line of a rotation's statement."""


@dataclass(frozen=True, slots=True)
class KeyRotation:
    """A key rotation signed by both keys.

    Attributes:
        number: Number of the rotation's entry: the old key covers the entries before it.
    """

    old: VerifierKey
    new: VerifierKey
    number: int
    root: bytes

    @property
    def text(self) -> str:
        """Returns the statement that both keys sign."""
        root = base64.b64encode(self.root).decode()
        return f"{FORMAT}\n{self.old.name}\n{self.old}\n{self.new}\n{self.number}\n{root}\n"


def sign_rotation(old: SigningKey, new: SigningKey, *, number: int, root: bytes) -> str:
    """Signs the statement of a rotation with both keys.

    Raises:
        BadNote: The new key belongs to another docket, or equals the old one.
    """
    # The name is that of the docket: a key with another name would start another log.
    if new.name != old.name or new.verifier == old.verifier:
        raise BadNote("The new key is another one, and has the name of the docket.")
    return sign_note(KeyRotation(old.verifier, new.verifier, number, root).text, [old, new])


def read_rotation(entry: Entry) -> KeyRotation:
    """Parses a rotation's entry and verifies its signatures; the caller has to check the root.

    Raises:
        BadEntry: The entry is not a valid rotation, states another number, or is not signed by both keys.
    """
    # One error for any problem: the entry can't be trusted, whatever the reason.
    wrong = BadEntry(f"Entry {entry.number} changes the docket's key, and not both keys have signed that.")
    try:
        note = KeyRotated.model_validate(parse(entry.body or "")).note
        # Parsed before the signatures are verified, because the text contains the keys.
        kind, name, old, new, number, root = split_note(note)[0].removesuffix("\n").split("\n")
        rotation = KeyRotation(
            VerifierKey.parse(old), VerifierKey.parse(new), int(number), base64.b64decode(root, validate=True)
        )
        for key in (rotation.old, rotation.new):
            # Each key separately, since with several keys a single signature would suffice.
            if open_note(note, [key]) != rotation.text:
                raise wrong
    except (BadNote, ValueError, RecursionError):
        raise wrong from None
    # Its own number is signed, so that the statement can't be replayed elsewhere in the log.
    if (kind, rotation.number, len(rotation.root)) != (FORMAT, entry.number, HASH_SIZE):
        raise wrong
    if not name == rotation.old.name == rotation.new.name:
        raise wrong
    return rotation


class KeyChain:
    """Keys of a docket, with the sizes of its log for which each signs."""

    def __init__(self, trusted: Sequence[VerifierKey], rotations: Sequence[KeyRotation]) -> None:
        """Links the rotations."""
        self._trusted = tuple(trusted)
        self.rotations: list[KeyRotation] = []
        self.broken: list[int] = []
        for rotation in rotations:
            # A retired key can still sign: its later rotations are not linked but reported.
            if self.rotations and rotation.old != self.rotations[-1].new:
                self.broken.append(rotation.number)
            else:
                self.rotations.append(rotation)

    @property
    def keys(self) -> tuple[VerifierKey, ...]:
        """Keys of the chain, the oldest first; the trusted ones if there was no rotation."""
        if not self.rotations:
            return self._trusted
        return (self.rotations[0].old, *(rotation.new for rotation in self.rotations))

    @property
    def strangers(self) -> tuple[VerifierKey, ...]:
        """Trusted keys of this docket that are missing from the chain."""
        return tuple(key for key in self._trusted if key not in self.keys and key.name == self.keys[0].name)

    @property
    def is_trusted(self) -> bool:
        """True if the chain contains a trusted key, and no trusted key of this docket is missing from it."""
        return not self.strangers and any(key in self.keys for key in self._trusted)

    def keys_for(self, size: int) -> Sequence[VerifierKey]:
        """Returns the keys that may sign a checkpoint over a number of entries."""
        # A chain without a trusted key proves nothing: then only the trusted keys themselves count.
        if not self.is_trusted:
            return self._trusted
        if not self.rotations:
            return self.keys
        # The rotation itself is entry `number`, so a tree of that many entries is the last one without it.
        return [next((each.old for each in self.rotations if size <= each.number), self.rotations[-1].new)]

    def current(self) -> frozenset[str]:
        """Returns the keys that the docket may currently use."""
        return frozenset(str(key) for key in (self.keys[-1:] if self.rotations and self.is_trusted else self._trusted))
