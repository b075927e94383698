"""The Merkle tree of RFC 6962, against published vectors and a naive implementation of its definition."""

import json
import random

import pytest

from serving.docket.log import merkle
from serving.docket.log.errors import BadProof
from tests.support.logs import root_at, verify_consistency
from tests.support.paths import TESTS

# From certificate-transparency's reference implementation: cpp/merkletree/merkle_tree_test.cc.
VECTORS = json.loads((TESTS / "fixtures" / "published_vectors.json").read_text())
LEAVES, ROOTS = VECTORS["leaves"], VECTORS["roots"]
PATHS = {(number, size): path for number, size, path in VECTORS["paths"]}
CONSISTENCY = {(old, new): proof for old, new, proof in VECTORS["consistency"]}


def root_of(leaves):
    """Computes MTH as RFC 6962 §2.1 defines it, slowly."""
    if not leaves:
        return merkle.EMPTY_ROOT
    if len(leaves) == 1:
        return leaves[0]
    middle = 1
    while middle * 2 < len(leaves):
        middle *= 2
    return merkle.node_hash(root_of(leaves[:middle]), root_of(leaves[middle:]))


class StoredTree:
    """A tree with its tiles, stored as in a docket."""

    def __init__(self, leaves):
        self.leaves = leaves
        self.tiles: dict[tuple[int, int], bytes] = {}
        frontier, nodes = merkle.Frontier(), list[merkle.Node]()
        for leaf in leaves:
            nodes += frontier.append(leaf)
        self.add(nodes)
        self.root = frontier.root()

    def add(self, nodes):
        for piece in merkle.tile_updates(nodes):
            stored = self.tiles.get((piece.level, piece.index), b"")
            assert len(stored) == 32 * piece.first
            self.tiles[piece.level, piece.index] = stored + piece.hashes

    def nodes(self):
        return merkle.TileNodes(lambda level, index: self.tiles[level, index])


def some_leaves(count):
    return [merkle.leaf_hash(b"entry %d" % number) for number in range(count)]


CT = StoredTree([merkle.leaf_hash(bytes.fromhex(data)) for data in LEAVES])


def test_hashes_match_the_published_ones():
    assert merkle.leaf_hash(b"L123456").hex() == "395aa064aa4c29f7010acfe3f25db9485bbd4b91897b6ad7ad547639252b4d56"
    assert (
        merkle.node_hash(b"N123", b"N456").hex() == "aa217fe888e47007fa15edab33c2b492a722cb106c64667fc2b044444de66bbb"
    )
    frontier, roots = merkle.Frontier(), [merkle.EMPTY_ROOT.hex()]
    for leaf in CT.leaves:
        frontier.append(leaf)
        roots.append(frontier.root().hex())
    assert roots == ROOTS
    assert [root_at(size, CT.nodes()).hex() for size in range(9)] == ROOTS


@pytest.mark.parametrize(("number", "size"), PATHS)
def test_audit_paths_match_the_published_ones(number, size):
    proof = merkle.inclusion_proof(number, size, CT.nodes())
    assert [one.hex() for one in proof] == PATHS[number, size]
    merkle.verify_inclusion(number, size, CT.leaves[number], proof, bytes.fromhex(ROOTS[size]))


@pytest.mark.parametrize(("old", "new"), CONSISTENCY)
def test_consistency_proofs_match_the_published_ones(old, new):
    proof = merkle.consistency_proof(old, new, CT.nodes())
    assert [one.hex() for one in proof] == CONSISTENCY[old, new]
    verify_consistency(old, new, bytes.fromhex(ROOTS[old]), bytes.fromhex(ROOTS[new]), proof)


def test_correct_proofs_of_small_trees_verify_and_altered_ones_fail():
    """The proof of every entry and pair of sizes up to 20 verifies, and any single alteration of it fails."""
    chance = random.Random(7)
    tree = StoredTree(some_leaves(20))
    roots = [root_of(tree.leaves[:size]) for size in range(21)]
    for size in range(1, 21):
        for number in range(size):
            proof = merkle.inclusion_proof(number, size, tree.nodes())
            merkle.verify_inclusion(number, size, tree.leaves[number], proof, roots[size])
            wrong = chance.randbytes(32)
            altered = [[*proof, wrong], [wrong, *proof]]
            if proof:
                altered += [proof[:-1], proof[1:], [*proof[:-1], wrong]]
            for other in altered:
                with pytest.raises(BadProof):
                    merkle.verify_inclusion(number, size, tree.leaves[number], other, roots[size])
            for other_number in {number - 1, number + 1, size} - {number}:
                with pytest.raises(BadProof):
                    merkle.verify_inclusion(other_number, size, tree.leaves[number], proof, roots[size])
            with pytest.raises(BadProof):
                merkle.verify_inclusion(number, size, tree.leaves[number], proof, roots[size - 1])
            with pytest.raises(BadProof):
                merkle.verify_inclusion(number, size, wrong, proof, roots[size])
        for old in range(size + 1):
            proof = merkle.consistency_proof(old, size, tree.nodes())
            verify_consistency(old, size, roots[old], roots[size], proof)
            altered = [[*proof, chance.randbytes(32)]] + ([proof[:-1], proof[1:]] if proof else [])
            for other in altered:
                with pytest.raises(BadProof):
                    verify_consistency(old, size, roots[old], roots[size], other)
            for pair in ((roots[old], chance.randbytes(32)), (chance.randbytes(32), roots[size])):
                if old or pair[0] != roots[0]:  # every log continues the empty log
                    with pytest.raises(BadProof):
                        verify_consistency(old, size, *pair, proof)
    with pytest.raises(BadProof):
        verify_consistency(3, 2, roots[3], roots[2], [])


def test_growing_tree_matches_the_definition_and_resumes_at_any_size():
    leaves = some_leaves(300)
    frontier = merkle.Frontier()
    for size, leaf in enumerate(leaves):
        if size in (0, 1, 2, 3, 7, 128, 255, 256, 257):
            assert frontier.root() == root_of(leaves[:size])
        frontier = merkle.Frontier.from_bytes(frontier.to_bytes())
        frontier.append(leaf)
    assert frontier.size == 300 and frontier.root() == root_of(leaves)
    for damaged in (b"", frontier.to_bytes()[:-1], frontier.to_bytes()[:-32], bytes(8) + bytes(32)):
        with pytest.raises(BadProof, match="damaged"):
            merkle.Frontier.from_bytes(damaged)


def test_tile_widths_match_the_c2sp_specification():
    """C2SP tlog-tiles, "Partial Tiles": the tiles of a tree of 70,000 entries."""
    widths = list(merkle.tile_widths(70_000))
    assert [width for level, _, width in widths if level == 0] == [256] * 273 + [112]
    assert [(level, width) for level, _, width in widths if level] == [(1, 256), (1, 17), (2, 1)]
    assert list(merkle.tile_widths(256)) == [(0, 0, 256), (1, 0, 1)]
    assert list(merkle.tile_widths(0)) == []


def test_stored_tiles_yield_every_node_and_proof():
    leaves = some_leaves(merkle.TILE_WIDTH * 3 + 77)
    tree = StoredTree(leaves)
    assert {tile: len(hashes) // 32 for tile, hashes in tree.tiles.items()} == {
        (level, index): width for level, index, width in merkle.tile_widths(len(leaves))
    }
    assert tree.tiles[1, 0][:32] == root_of(leaves[:256])
    read = tree.nodes()
    assert read(3, 5) == root_of(leaves[40:48]) and read(9, 0) == root_of(leaves[:512])
    assert root_at(len(leaves), read) == tree.root
    chance = random.Random(3)
    for _ in range(60):
        size = chance.randrange(1, len(leaves) + 1)
        number, old = chance.randrange(size), chance.randrange(size + 1)
        root = root_at(size, read)
        merkle.verify_inclusion(number, size, leaves[number], merkle.inclusion_proof(number, size, read), root)
        verify_consistency(old, size, root_at(old, read), root, merkle.consistency_proof(old, size, read))
    with pytest.raises(BadProof, match="lacks hashes"):
        tree.nodes()(3, len(leaves) // 8)
    for number, size in ((5, 5), (-1, 5)):
        with pytest.raises(BadProof, match="has no entry"):
            merkle.inclusion_proof(number, size, read)
