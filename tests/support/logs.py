"""A log in memory, and the checks of an auditor that the service has no use for."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from court.events import AnyEvent
from serving.docket.log.entries import SALT_SIZE, Entry, PictureShown, body_of, commitment_to
from serving.docket.log.errors import BadProof
from serving.docket.log.merkle import (
    EMPTY_ROOT,
    Frontier,
    ReadNode,
    TileNodes,
    inclusion_proof,
    node_hash,
    tile_updates,
)
from serving.docket.log.notes import Checkpoint, SigningKey, open_checkpoint, sign_checkpoint
from tests.support.dockets import NOON

AT = "2026-01-02T12:00:00.000000+00:00"


def make(number: int, *, kind: str, trial_id: str, seq: int, at: str, body: str) -> Entry:
    """A new entry, with a salt of its own."""
    salt = secrets.token_bytes(SALT_SIZE)
    return Entry(number, kind, trial_id, seq, at, commitment_to(body.encode(), salt), body, salt)


class MemoryLog:
    """Entries, the tiles of their tree, and the key that signs them."""

    def __init__(self, name: str = "court.example/docket") -> None:
        self.key = SigningKey.create(name)
        self.entries: list[Entry] = []
        self._frontier = Frontier()
        self.tiles: dict[tuple[int, int], bytes] = {}

    def add(self, kind: str, body: str, trial_id: str = "", seq: int = -1, at: str = AT) -> Entry:
        """Appends an entry."""
        entry = make(len(self.entries), kind=kind, trial_id=trial_id, seq=seq, at=at, body=body)
        self.entries.append(entry)
        for piece in tile_updates(self._frontier.append(entry.leaf())):
            tile = (piece.level, piece.index)
            self.tiles[tile] = self.tiles.get(tile, b"") + piece.hashes
        return entry

    def add_events(self, events: Sequence[AnyEvent]) -> None:
        """Appends the events of a trial."""
        for event in events:
            self.add(event.kind, body_of(event), event.trial_id, event.seq, event.at.isoformat())

    def add_look(self, trial_id: str, who: str) -> None:
        """Appends that somebody looked at a picture."""
        shown = PictureShown(trial_id=trial_id, at=NOON, who=who, what="frame 0")
        self.add(shown.kind, body_of(shown), trial_id)

    def frontier(self) -> bytes:
        """What a docket keeps to go on from."""
        return self._frontier.to_bytes()

    def read(self) -> TileNodes:
        """Gives nodes of the tree."""
        return TileNodes(lambda level, index: self.tiles[level, index])

    def checkpoint(self) -> str:
        """Over all entries."""
        return sign_checkpoint(self.key, self.key.name, len(self.entries), self._frontier.root())

    def opened(self) -> Checkpoint:
        """What that says."""
        return open_checkpoint(self.checkpoint(), [self.key.verifier])

    def proof(self, number: int) -> list[bytes]:
        """Of an entry, in the log as it is."""
        return inclusion_proof(number, len(self.entries), self.read())


def root_at(size: int, read: ReadNode) -> bytes:
    """The root over so many of the first leaves (RFC 6962 §2.1)."""

    def root(start: int, end: int) -> bytes:
        level = (end - start).bit_length() - 1
        if end - start == 1 << level:
            return read(level, start >> level)
        middle = start + (1 << level)
        return node_hash(root(start, middle), root(middle, end))

    return root(0, size) if size else EMPTY_ROOT


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Checks that a tree is the start of a later one (RFC 9162 §2.1.4.2).

    Raises:
        BadProof: It is not shown.
    """
    wrong = BadProof(f"It is not shown that the log of {old} entries is the start of that of {new} entries.")
    if not 0 <= old <= new:
        raise wrong
    if old in (0, new):
        roots = {old_root, new_root} if old == new else {old_root, EMPTY_ROOT}
        if proof or len(roots) != 1:
            raise wrong
        return
    # Where the old tree is perfect, its root is the first node of the proof and is left out.
    given = list(proof) if old & (old - 1) else [old_root, *proof]
    if not given:
        raise wrong
    here, last = old - 1, new - 1
    while here & 1:
        here >>= 1
        last >>= 1
    old_found = new_found = given[0]
    for sibling in given[1:]:
        if last == 0:
            raise wrong
        if here & 1 or here == last:
            old_found = node_hash(sibling, old_found)
            new_found = node_hash(sibling, new_found)
            while not here & 1 and here:
                here >>= 1
                last >>= 1
        else:
            new_found = node_hash(new_found, sibling)
        here >>= 1
        last >>= 1
    if last or old_found != old_root or new_found != new_root:
        raise wrong
