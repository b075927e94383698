"""A log in memory, for tests of what is signed and proven."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from court.events import AnyEvent
from serving.docket.log.entries import SALT_SIZE, Entry, PictureShown, body_of, commitment_to
from serving.docket.log.merkle import Frontier, TileNodes, inclusion_proof, tile_updates
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
