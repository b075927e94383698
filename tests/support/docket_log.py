"""Helpers of tests of docket log."""

from serving.docket.log.entries import check
from serving.docket.log.merkle import (
    Frontier,
)
from serving.docket.log.notes import VerifierKey, open_checkpoint
from serving.docket.store.log_queries import nodes
from tests.support.logs import root_at


async def checked_log(docket):
    """Verifies the log from its entries up, and returns entries, roots and key."""
    entries = await docket.log.entries(0, 10**6)
    assert [entry.number for entry in entries] == list(range(await docket.log.size()))
    tree = Frontier()
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
