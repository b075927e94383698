"""Rotation of the key that a docket's checkpoints are signed with: a chain of keys, each named by the one before.

A rotation is an entry of the log. It states the docket, both keys, its own number and the root of the tree before it,
in a note that both keys have signed: the old one names its successor, the new one what it takes over. Checkpoints over
more entries than that are signed with the new key, and with no other.

Whoever trusts any key of the chain can check all of it. Whoever has a stolen key can still write another history up to
its rotation and name a successor of their own: against that stand checkpoints that are kept outside, and the new public
key, which is to be kept where the old one is.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from serving.docket.log.canonical_json import parse
from serving.docket.log.entries import Entry, KeyRotated
from serving.docket.log.errors import BadEntry, BadNote
from serving.docket.log.merkle import HASH_SIZE
from serving.docket.log.notes import SigningKey, VerifierKey, open_note, sign_note, split_note

FORMAT = "memecourt-key-rotation/1"
"""First line of the statement."""


@dataclass(frozen=True, slots=True)
class KeyRotation:
    """A change of keys that both have signed.

    Attributes:
        old: Key that is retired.
        new: Key that takes its place.
        number: Number of the entry that says so: the last one that the old key speaks for is before it.
        root: Root of the tree over the entries before it.
    """

    old: VerifierKey
    new: VerifierKey
    number: int
    root: bytes

    @property
    def text(self) -> str:
        """Statement that both keys sign."""
        root = base64.b64encode(self.root).decode()
        return f"{FORMAT}\n{self.old.name}\n{self.old}\n{self.new}\n{self.number}\n{root}\n"


def sign_rotation(old: SigningKey, new: SigningKey, *, number: int, root: bytes) -> str:
    """The statement of a change of keys, signed with both.

    Raises:
        BadNote: The new key is of another docket, or the old one itself.
    """
    # The name is that of the docket: a key with another one would begin another log.
    if new.name != old.name or new.verifier == old.verifier:
        raise BadNote("The new key is another one, and has the name of the docket.")
    return sign_note(KeyRotation(old.verifier, new.verifier, number, root).text, [old, new])


def read_rotation(entry: Entry) -> KeyRotation:
    """The change of keys that an entry states, its signatures checked; the root is for whoever has the tree.

    Raises:
        BadEntry: The entry states none, or not for itself, or not both keys have signed it.
    """
    # One error for whatever is wrong: the entry is not to be believed, and why makes no difference.
    wrong = BadEntry(f"Entry {entry.number} changes the docket's key, and not both keys have signed that.")
    try:
        note = KeyRotated.model_validate(parse(entry.body or "")).note
        # Parsed before the signatures are checked, because the keys to check them with stand in the text.
        kind, name, old, new, number, root = split_note(note)[0].removesuffix("\n").split("\n")
        rotation = KeyRotation(
            VerifierKey.parse(old), VerifierKey.parse(new), int(number), base64.b64decode(root, validate=True)
        )
        for key in (rotation.old, rotation.new):
            # Each by itself: of several keys, one would do.
            if open_note(note, [key]) != rotation.text:
                raise wrong
    except (BadNote, ValueError, RecursionError):
        raise wrong from None
    # Its own number is signed: the statement can't be repeated at another place of the log.
    if (kind, rotation.number, len(rotation.root)) != (FORMAT, entry.number, HASH_SIZE):
        raise wrong
    if not name == rotation.old.name == rotation.new.name:
        raise wrong
    return rotation


class KeyChain:
    """Keys of a docket, and for which sizes of its log each signs.

    Attributes:
        rotations: Changes of keys that follow on each other, by number.
        broken: Entries that change keys and do not follow on those before.
    """

    def __init__(self, trusted: Sequence[VerifierKey], rotations: Sequence[KeyRotation]) -> None:
        """Links them.

        Args:
            trusted: Public keys that are known from elsewhere.
            rotations: Changes of keys in the log, by number.
        """
        self._trusted = tuple(trusted)
        self.rotations: list[KeyRotation] = []
        self.broken: list[int] = []
        for rotation in rotations:
            # A retired key can still sign. What it states after its retirement links nothing, and is reported.
            if self.rotations and rotation.old != self.rotations[-1].new:
                self.broken.append(rotation.number)
            else:
                self.rotations.append(rotation)

    @property
    def keys(self) -> tuple[VerifierKey, ...]:
        """Keys of the chain, the first one first; the trusted ones where nothing was changed."""
        if not self.rotations:
            return self._trusted
        return (self.rotations[0].old, *(rotation.new for rotation in self.rotations))

    @property
    def strangers(self) -> tuple[VerifierKey, ...]:
        """Trusted keys that the chain does not have, though they are of this docket."""
        return tuple(key for key in self._trusted if key not in self.keys and key.name == self.keys[0].name)

    @property
    def is_trusted(self) -> bool:
        """True if at least one key of the chain is known from elsewhere, and none that is is missing from it."""
        return not self.strangers and any(key in self.keys for key in self._trusted)

    def keys_for(self, size: int) -> Sequence[VerifierKey]:
        """Keys that may sign a checkpoint over so many entries."""
        # A chain without a known key vouches for nobody: then only the keys that were given count.
        if not self.is_trusted:
            return self._trusted
        if not self.rotations:
            return self.keys
        # The rotation is itself entry `number`, so that a tree of that many entries is the last one without it.
        return [next((each.old for each in self.rotations if size <= each.number), self.rotations[-1].new)]

    def current(self) -> frozenset[str]:
        """Keys that the docket may name as its own now."""
        return frozenset(str(key) for key in (self.keys[-1:] if self.rotations and self.is_trusted else self._trusted))
