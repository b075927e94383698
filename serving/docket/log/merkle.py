"""The Merkle tree of RFC 6962 §2.1: its root as it grows, its stored tiles, and proofs from these.

A node is named by its level and its index in that level, both counted from 0, leaves at level 0: a node is the root
over the leaves ``[index << level, (index + 1) << level)``. It is stored as tiles (C2SP tlog-tiles): 256 adjacent nodes
at every eighth level; all other nodes are computed from those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from serving.docket.log.errors import BadProof

HASH_SIZE = 32
"""Bytes of a hash (SHA-256)."""
TILE_HEIGHT = 8
"""Number of levels between stored levels."""
TILE_WIDTH = 1 << TILE_HEIGHT
"""Number of nodes in a full tile."""
EMPTY_ROOT = hashlib.sha256(b"").digest()
"""Root hash of a tree without leaves (RFC 6962 §2.1)."""

ReadNode = Callable[[int, int], bytes]
"""Returns the hash of a node by level and index; only called for complete nodes."""
ReadTile = Callable[[int, int], bytes]
"""Returns a tile by tile level (0 for leaves, 1 for nodes of level 8 …) and index: at most 256 hashes, joined."""


def leaf_hash(data: bytes) -> bytes:
    """Returns the hash of a leaf (RFC 6962 §2.1), whose prefix distinguishes it from that of a node."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Returns the hash of two nodes (RFC 6962 §2.1)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True, slots=True)
class Node:
    """A complete node, which never changes again."""

    level: int
    index: int
    hash: bytes


class Frontier:
    """A growing tree, represented by the roots of its perfect subtrees: at most one per level."""

    __slots__ = ("_hashes", "_size")

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        """Restores a tree.

        Args:
            hashes: Roots of its perfect subtrees, the largest and leftmost first: one for each 1 in the binary size.

        Raises:
            BadProof: The number of hashes does not fit the size.
        """
        if size < 0 or len(hashes) != size.bit_count() or any(len(one) != HASH_SIZE for one in hashes):
            raise BadProof(
                f"A tree of {size} entries has {max(size, 0).bit_count()} perfect subtrees; what is stored of it is "
                f"something else ({len(hashes)}). The docket is damaged: restore it, or verify it from its entries."
            )
        self._size = size
        self._hashes = list(hashes)

    @property
    def size(self) -> int:
        """Number of leaves so far."""
        return self._size

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """Roots of the perfect subtrees, the largest first."""
        return tuple(self._hashes)

    def append(self, leaf: bytes) -> list[Node]:
        """Adds the hash of a leaf; returns the nodes that it completes, from the leaf upwards."""
        index, level = self._size, 0
        complete = [Node(0, index, leaf)]
        # Each trailing 1 of the index is a perfect subtree on the left, of the same size as the new one by then.
        while index & 1:
            index >>= 1
            level += 1
            leaf = node_hash(self._hashes.pop(), leaf)
            complete.append(Node(level, index, leaf))
        self._hashes.append(leaf)
        self._size += 1
        return complete

    def root(self) -> bytes:
        """Returns the root over all leaves so far."""
        return _joined(self._hashes)

    def to_bytes(self) -> bytes:
        """Serialises the size (8 bytes, big-endian) and the hashes."""
        return self._size.to_bytes(8, "big") + b"".join(self._hashes)

    @classmethod
    def from_bytes(cls, stored: bytes) -> Frontier:
        """Restores a frontier from :meth:`to_bytes`. Raises BadProof if the bytes are invalid."""
        if len(stored) < 8 or (len(stored) - 8) % HASH_SIZE:
            raise BadProof("What is stored of the log's tree is damaged. Restore the docket from a copy.")
        return cls(int.from_bytes(stored[:8], "big"), _split(stored[8:]))


@dataclass(frozen=True, slots=True)
class TileUpdate:
    """Hashes that continue a tile.

    Attributes:
        level: Level of the tile: its nodes are at ``level * 8`` in the tree.
        first: Position of the first of these hashes in the tile, 0 to 255.
        hashes: One or more, joined.
    """

    level: int
    index: int
    first: int
    hashes: bytes


def tile_updates(nodes: Iterable[Node]) -> list[TileUpdate]:
    """Computes the changes to stored tiles from newly complete nodes, in order of completion; ordered by tile."""
    found: dict[tuple[int, int], tuple[int, list[bytes]]] = {}
    for node in nodes:
        # Only every eighth level is stored; the others are computed.
        if node.level % TILE_HEIGHT == 0:
            tile = (node.level // TILE_HEIGHT, node.index // TILE_WIDTH)
            # The position of the first hash is kept, since the nodes of a tile are completed in order.
            found.setdefault(tile, (node.index % TILE_WIDTH, []))[1].append(node.hash)
    return [TileUpdate(*tile, first, b"".join(hashes)) for tile, (first, hashes) in sorted(found.items())]


def tile_widths(size: int) -> Iterator[tuple[int, int, int]]:
    """Yields level, index and width (in hashes) of all tiles of a tree of a given size."""
    level = 0
    while size:
        full, remainder = divmod(size, TILE_WIDTH)
        yield from ((level, index, TILE_WIDTH) for index in range(full))
        if remainder:
            yield level, full, remainder
        # Only a full tile forms a node of the next level.
        size, level = full, level + 1


@dataclass(slots=True)
class TileNodes:
    """Reads nodes from tiles, each of which is read once. Instances are a :data:`ReadNode`."""

    read: ReadTile
    _tiles: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)

    def __call__(self, level: int, index: int) -> bytes:
        """Returns the hash of a node. Raises BadProof if its tile is too short."""
        rise = level % TILE_HEIGHT
        tile = (level // TILE_HEIGHT, (index << rise) // TILE_WIDTH)
        if tile not in self._tiles:
            self._tiles[tile] = _split(self.read(*tile))
        # Levels between stored ones are computed from the nodes below them: 128 hashes at most.
        first = (index << rise) % TILE_WIDTH
        hashes = self._tiles[tile][first : first + (1 << rise)]
        if len(hashes) != 1 << rise:
            raise BadProof(
                f"Tile {tile[1]} of level {tile[0]} of the log's tree lacks hashes. Run `memecourt docket verify`; "
                "restore the docket from a copy."
            )
        while len(hashes) > 1:
            hashes = [node_hash(*hashes[index : index + 2]) for index in range(0, len(hashes), 2)]
        return hashes[0]


def inclusion_proof(number: int, size: int, read: ReadNode) -> list[bytes]:
    """Builds the audit path of a leaf (RFC 6962 §2.1.1), the leaf's sibling first.

    Raises:
        BadProof: The tree has no such leaf.
    """
    if not 0 <= number < size:
        raise BadProof(f"A log of {size} entries has no entry {number}.")
    return [_range(part, read) for part in _path(number, 0, size)]


def consistency_proof(old: int, new: int, read: ReadNode) -> list[bytes]:
    """Proves that a tree is a prefix of a later one (RFC 6962 §2.1.2); empty if no proof is needed.

    Raises:
        BadProof: The old size exceeds the new one.
    """
    if not 0 <= old <= new:
        raise BadProof(f"A log of {old} entries can't be the start of one of {new}.")
    if old in (0, new):
        return []
    return [_range(part, read) for part in _subproof(old, 0, new, whole=True)]


def verify_inclusion(number: int, size: int, leaf: bytes, proof: Sequence[bytes], root: bytes) -> None:
    """Verifies an audit path (by the algorithm in RFC 9162 §2.1.3.2, which RFC 6962 lacks).

    Raises:
        BadProof: The proof does not show that the leaf is in the tree at that position.
    """
    if not 0 <= number < size:
        raise BadProof(f"A log of {size} entries has no entry {number}.")
    here, last = number, size - 1
    for sibling in proof:
        # Nothing can follow above the root, so RFC 9162 fails here.
        if last == 0:
            raise BadProof(f"The proof of entry {number} is too long for a log of {size} entries.")
        if here & 1 or here == last:
            leaf = node_hash(sibling, leaf)
            # The last node of an odd level has no sibling there, and moves up until it has one.
            while not here & 1 and here:
                here >>= 1
                last >>= 1
        else:
            leaf = node_hash(leaf, sibling)
        here >>= 1
        last >>= 1
    # If the proof is too short, it ends below the root and `last` is not yet 0.
    if last or leaf != root:
        raise BadProof(f"The proof does not show entry {number} in the log of {size} entries with that root.")


def _joined(hashes: Sequence[bytes]) -> bytes:
    """Returns the root over adjacent perfect subtrees, the largest first."""
    if not hashes:
        return EMPTY_ROOT
    # RFC 6962 splits after the largest power of two, so that the smallest subtrees on the right are joined first.
    root = hashes[-1]
    for left in hashes[-2::-1]:
        root = node_hash(left, root)
    return root


def _split(joined: bytes) -> list[bytes]:
    return [joined[at : at + HASH_SIZE] for at in range(0, len(joined), HASH_SIZE)]


def _perfect(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the perfect subtrees (level and index) of the tree over leaves ``[start, end)``, left to right.

    ``start`` must be aligned to a subtree of at least the range's length.
    """
    while start < end:
        level = (end - start).bit_length() - 1
        yield level, start >> level
        start += 1 << level


def _range(part: tuple[int, int], read: ReadNode) -> bytes:
    return _joined([read(*node) for node in _perfect(*part)])


def _split_at(start: int, end: int) -> int:
    """Returns the split of leaves ``[start, end)`` by RFC 6962: after the largest power of two below their count."""
    # Minus binds tighter than the shift: this is 1 << (bits - 1).
    return start + (1 << (end - start - 1).bit_length() - 1)


def _path(number: int, start: int, end: int) -> list[tuple[int, int]]:
    """Computes PATH of RFC 6962 §2.1.1 as ranges of leaves."""
    path: list[tuple[int, int]] = []
    while end - start > 1:
        middle = _split_at(start, end)
        if number < middle:
            path.append((middle, end))
            end = middle
        else:
            path.append((start, middle))
            start = middle
    # Collected from the root downwards; a path is listed from the leaf upwards.
    return path[::-1]


def _subproof(old: int, start: int, end: int, *, whole: bool) -> list[tuple[int, int]]:
    """Computes SUBPROOF of RFC 6962 §2.1.2 as ranges of leaves; ``old`` counts from the start of the log."""
    if old == end:
        # The verifier already has the root of the whole old tree, but not that of a part of it.
        return [] if whole else [(start, end)]
    middle = _split_at(start, end)
    if old <= middle:
        return [*_subproof(old, start, middle, whole=whole), (middle, end)]
    return [*_subproof(old, middle, end, whole=False), (start, middle)]
