"""Audit by a beacon: the log commits to a sample before anybody can know which trials it will be.

First an entry names the checkpoint, the number of trials, a public beacon and a future round. The round's value then
decides which entries are drawn, and :func:`memecourt.verify.verify_sample` checks that without trusting the court.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from court.errors import BadRequest
from court.verdict import Label
from memecourt.verify import SAMPLE, sample_numbers
from serving.docket.audit.audit import encoded
from serving.docket.log.entries import Entry, SampleCommitted, parse
from serving.docket.log.merkle import consistency_proof, inclusion_proof
from serving.docket.log.notes import SigningKey, read_checkpoint, sign_note, split_note
from serving.docket.review.drift import wilson
from serving.docket.store import log_queries
from serving.docket.store import tables as t
from serving.docket.store.log_append import EntryDraft, open_appender
from serving.docket.store.log_queries import TransparencyLog
from serving.docket.store.transactions import Batch, Rank, Transactions

RESULT = "memecourt-audit/1"
"""First line of the signed result of an audit."""


async def commit_sample(
    transactions: Transactions, log: TransparencyLog, fields: Mapping[str, Any], *, at: datetime
) -> Mapping[str, Any]:
    """Commits the log to a sample; returns what the auditor keeps until the round is due.

    Args:
        fields: The other fields of the entry, but for its checkpoint.

    Raises:
        BadRequest: The round is not in the future.
        Unavailable: The entry can't be stored now.
    """
    # The checkpoint fixes the entries that can be drawn, so that none can be added for the draw.
    own = SampleCommitted(at=at, checkpoint=await log.checkpoint(), **fields)
    # A past round is known already: whoever commits could choose a round whose draw suits them.
    if own.due <= at:
        raise BadRequest("The round has to be in the future: its value must be unknown now.", field="due")
    number = await transactions.write(_COMMIT, own)
    return {"entry": number, **own.model_dump(mode="json")}


async def draw_sample(transactions: Transactions, log: TransparencyLog, number: int, value: str) -> str:
    """Draws the sample that an entry committed to, as the text of a file with all proofs.

    Raises:
        BadRequest: The entry commits to no sample, or the value is no hex.
    """
    try:
        # As letters the value would be hashed as well, and two spellings of it would draw two samples.
        bytes.fromhex(value)
    except ValueError:
        raise BadRequest("The beacon's value is written in hex.", field="value") from None

    # In one transaction, so that all proofs are of the same tree.
    def made(connection: Connection) -> str | None:
        note = log_queries.checkpoint(connection)
        if note is None:
            return None
        size, read = read_checkpoint(split_note(note)[0]).size, log_queries.nodes(connection)
        found = _entry(connection, number)
        if found is None or found.kind != "SampleCommitted" or found.body is None:
            raise BadRequest(f"Entry {number} commits to no sample.", field="entry")
        body = parse(found.body)
        # The tree of the commitment: later entries are outside of the draw.
        old = read_checkpoint(split_note(body["checkpoint"])[0]).size

        def shown(entry: Entry, tree: int, *, whole: bool = False) -> Mapping[str, Any]:
            # Without body and salt an entry is proven to stand there and tells nothing.
            salt = base64.b64encode(entry.salt or b"").decode()
            content = {"body": entry.body, "salt": salt} if whole else {"body": None, "salt": None}
            proof = encoded(inclusion_proof(entry.number, tree, read))
            return {"number": entry.number, "header": entry.header().decode(), "proof": proof, **content}

        draws, left = list[Mapping[str, Any]](), body["count"]
        for each in sample_numbers(body, old, value):
            drawn = _entry(connection, each)
            assert drawn is not None, "the log has no gaps"
            # Also entries that are no verdicts, so that an auditor sees that none was passed over.
            draws.append(shown(drawn, old))
            left -= drawn.kind == "VerdictGiven"
            if not left:
                break
        file = {
            "format": SAMPLE,
            "checkpoint": note,
            "commitment": shown(found, size, whole=True),
            "consistency": encoded(consistency_proof(old, size, read)),
            "draws": draws,
        }
        return json.dumps(file, ensure_ascii=False, indent=1) + "\n"

    # A log that was never signed has no checkpoint to prove against.
    while (text := await transactions.read(made)) is None:
        await log.sign()
    return text


def sign_result(
    commitment: Mapping[str, Any], trials: Sequence[str], pairs: Mapping[str, tuple[Label, Label]], key: SigningKey
) -> str:
    """Signs the result of an audit: how often the court's label differs from the auditor's, with its 95 % interval."""
    # Undecided is no label: it agrees with nothing, and is counted apart.
    decided = {name: pair for name, pair in pairs.items() if Label.UNDECIDED not in pair}
    wrong = sum(court is not found for court, found in decided.values())
    low, high = wilson(wrong, len(decided)) if decided else (0.0, 1.0)
    # A digest commits to the labels without telling them to everyone who sees the result.
    judged = json.dumps({name: [*map(str, pairs[name])] for name in sorted(pairs)}).encode()
    lines = [
        RESULT,
        f"commitment {commitment['entry']}",
        f"beacon {commitment['beacon']} {commitment['round']}",
        f"drawn {len(trials)}",
        f"not judged {len(trials) - len(pairs)}",
        f"undecided {len(pairs) - len(decided)}",
        f"compared {len(decided)}",
        f"wrong {wrong}",
        f"error {wrong / len(decided):.4f}" if decided else "error unknown",
        f"interval {low:.4f} {high:.4f}",
        f"labels sha256:{hashlib.sha256(judged).hexdigest()}",
    ]
    return sign_note("".join(f"{line}\n" for line in lines), [key])


def _entry(connection: Connection, number: int) -> Entry | None:
    row = connection.execute(select(t.entries).where(t.entries.c.number == number)).one_or_none()
    return None if row is None else log_queries.entry_in(row)


def _commit(connection: Connection, drafts: Sequence[SampleCommitted]) -> Sequence[int]:
    return open_appender(connection).add([EntryDraft.of(each) for each in drafts])


_COMMIT = Batch(Rank.ACCESS, _commit)
