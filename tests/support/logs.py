"""An in-memory log, and checks of an auditor that the service itself does not need."""

import secrets
from collections.abc import Sequence

from court.events import AnyEvent
from serving.docket.log import merkle
from serving.docket.log.entries import SALT_SIZE, Entry, PictureShown, body_of, check, commitment_to
from serving.docket.log.errors import BadProof
from serving.docket.log.notes import Checkpoint, SigningKey, VerifierKey, open_checkpoint, sign_checkpoint
from serving.docket.store.log_queries import nodes
from tests.support.dockets import NOON

AT = "2026-01-02T12:00:00.000000+00:00"


def make_entry(number: int, *, kind: str, trial_id: str, seq: int, at: str, body: str) -> Entry:
    """Returns a new entry with a random salt."""
    salt = secrets.token_bytes(SALT_SIZE)
    return Entry(number, kind, trial_id, seq, at, commitment_to(body.encode(), salt), body, salt)


class MemoryLog:
    """A log in memory: entries, the tiles of their Merkle tree, and the key that signs checkpoints."""

    def __init__(self, name: str = "court.example/docket") -> None:
        self.key = SigningKey.create(name)
        self.entries: list[Entry] = []
        self._frontier = merkle.Frontier()
        self.tiles: dict[tuple[int, int], bytes] = {}

    def add(self, kind: str, body: str, trial_id: str = "", seq: int = -1, at: str = AT) -> Entry:
        """Appends an entry."""
        entry = make_entry(len(self.entries), kind=kind, trial_id=trial_id, seq=seq, at=at, body=body)
        self.entries.append(entry)
        for piece in merkle.tile_updates(self._frontier.append(entry.leaf())):
            tile = (piece.level, piece.index)
            self.tiles[tile] = self.tiles.get(tile, b"") + piece.hashes
        return entry

    def add_events(self, events: Sequence[AnyEvent]) -> None:
        """Appends the events of a trial."""
        for event in events:
            self.add(event.kind, body_of(event), event.trial_id, event.seq, event.at.isoformat())

    def add_picture_view(self, trial_id: str, who: str) -> None:
        """Appends an entry that somebody unblurred a picture."""
        shown = PictureShown(trial_id=trial_id, at=NOON, who=who, what="frame 0")
        self.add(shown.kind, body_of(shown), trial_id)

    def frontier(self) -> bytes:
        """Returns the state from which a docket continues its log."""
        return self._frontier.to_bytes()

    def read(self) -> merkle.TileNodes:
        """Returns a reader of the tree's nodes."""
        return merkle.TileNodes(lambda level, index: self.tiles[level, index])

    def checkpoint(self) -> str:
        """Signs a checkpoint over all entries."""
        return sign_checkpoint(self.key, self.key.name, len(self.entries), self._frontier.root())

    def opened(self) -> Checkpoint:
        """Returns the contents of the current checkpoint, verified."""
        return open_checkpoint(self.checkpoint(), [self.key.verifier])

    def proof(self, number: int) -> list[bytes]:
        """Returns an entry's inclusion proof in the current log."""
        return merkle.inclusion_proof(number, len(self.entries), self.read())


def root_at(size: int, read: merkle.ReadNode) -> bytes:
    """Computes the root hash over the first ``size`` leaves (RFC 6962 §2.1)."""

    def root(start: int, end: int) -> bytes:
        level = (end - start).bit_length() - 1
        if end - start == 1 << level:
            return read(level, start >> level)
        middle = start + (1 << level)
        return merkle.node_hash(root(start, middle), root(middle, end))

    return root(0, size) if size else merkle.EMPTY_ROOT


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Checks that a tree is the start of a later one (RFC 9162 §2.1.4.2).

    Raises:
        BadProof: The proof does not show it.
    """
    wrong = BadProof(f"It is not shown that the log of {old} entries is the start of that of {new} entries.")
    if not 0 <= old <= new:
        raise wrong
    if old in (0, new):
        roots = {old_root, new_root} if old == new else {old_root, merkle.EMPTY_ROOT}
        if proof or len(roots) != 1:
            raise wrong
        return
    # If the old tree is perfect, its root is the first node of the proof and is omitted.
    nodes = list(proof) if old & (old - 1) else [old_root, *proof]
    if not nodes:
        raise wrong
    position, last = old - 1, new - 1
    while position & 1:
        position >>= 1
        last >>= 1
    old_found = new_found = nodes[0]
    for sibling in nodes[1:]:
        if last == 0:
            raise wrong
        if position & 1 or position == last:
            old_found = merkle.node_hash(sibling, old_found)
            new_found = merkle.node_hash(sibling, new_found)
            while not position & 1 and position:
                position >>= 1
                last >>= 1
        else:
            new_found = merkle.node_hash(new_found, sibling)
        position >>= 1
        last >>= 1
    if last or old_found != old_root or new_found != new_root:
        raise wrong


async def checked_log(docket):
    """Verifies the log from its entries up, and returns entries, roots and key."""
    entries = await docket.log.entries(0, 10**6)
    assert [entry.number for entry in entries] == list(range(await docket.log.size()))
    tree = merkle.Frontier()
    roots = [tree.root()]
    for entry in entries:
        check(entry)
        tree.append(entry.leaf())
        roots.append(tree.root())
    key = VerifierKey.parse(await docket.log.vkey())
    now = open_checkpoint(await docket.log.checkpoint(), [key])
    assert (now.size, now.root) == (len(entries), roots[-1])
    for size in {1, len(entries) // 2, len(entries)} - {0}:
        assert await docket.auditor.read(lambda connection, size=size: root_at(size, nodes(connection))) == roots[size]
    return entries, roots, key
