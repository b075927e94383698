"""Bundles: a trial's entries, the proof of each, and their signed number, for verification by others.

:mod:`memecourt.verify` verifies a bundle independently of this code.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Sequence
from typing import Any

from serving.docket.log.entries import Entry
from serving.docket.log.errors import BadNote
from serving.docket.log.merkle import ReadNode, consistency_proof, inclusion_proof
from serving.docket.log.notes import Checkpoint, SigningKey, sign_note

FORMAT = "memecourt-bundle/1"
"""Format of bundles, included in each."""
COUNT = "memecourt-count/1"
"""First line of the signed count. A checkpoint has a number in its second line, so neither passes for the other."""
ACCESS = "PictureShown"
"""Kind of entries that say who viewed a picture: their bodies are withheld unless requested."""


def signed_count(key: SigningKey, checkpoint: Checkpoint, trial_id: str, entries: int) -> str:
    """Signs the number of entries that a trial has in the log of a checkpoint.

    Raises:
        BadNote: The id of the trial contains a line break.
    """
    # A line break would let an id add lines to the signed text.
    if "\n" in trial_id:
        raise BadNote("The id of a trial is one line.")
    root = base64.b64encode(checkpoint.root).decode()
    lines = (COUNT, f"log {checkpoint.origin}", f"trial {trial_id}", f"size {checkpoint.size}", f"root {root}")
    return sign_note("".join(f"{line}\n" for line in (*lines, f"entries {entries}")), [key])


def bundle(
    trial_id: str,
    entries: Sequence[Entry],
    parts: Sequence[Entry],
    *,
    checkpoint: str,
    size: int,
    count: str,
    read: ReadNode,
    known: Sequence[tuple[int, str]] = (),
    withheld: Collection[str] = (ACCESS,),
) -> str:
    """A bundle, as the text of a file.

    Args:
        parts: Parts with what the trial quotes, by number.
        count: Count from :func:`signed_count`.
        known: Size and note of checkpoints that the receiver has from earlier: the log is shown to continue them.
        withheld: Kinds whose bodies stay here; that they were logged is shown all the same.
    """

    def shown(entry: Entry) -> dict[str, Any]:
        is_shown = entry.body is not None and entry.salt is not None and entry.kind not in withheld
        return {
            "number": entry.number,
            "header": entry.header().decode(),
            "proof": _encoded(inclusion_proof(entry.number, size, read)),
            "body": entry.body if is_shown else None,
            # Withheld with the body: with the salt, guesses at the body could be verified.
            "salt": base64.b64encode(entry.salt or b"").decode() if is_shown else None,
        }

    value = {
        "format": FORMAT,
        "trial": trial_id,
        "checkpoint": checkpoint,
        "count": count,
        "entries": [shown(entry) for entry in entries],
        "parts": [shown(part) for part in parts],
        "known": [{"checkpoint": note, "proof": _encoded(consistency_proof(old, size, read))} for old, note in known],
    }
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def _encoded(proof: Sequence[bytes]) -> list[str]:
    return [base64.b64encode(one).decode() for one in proof]
