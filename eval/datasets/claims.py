"""Claims of known truth, read from files: our own layout, and those of public data sets."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

from court.digests import digest
from court.errors import BadRequest
from eval.datasets.record_files import parsed_rows
from retrieval.library.cells import BadCell
from retrieval.library.tables import json_records, read_text

_MOST = 2000
"""Characters of a claim, at most."""


class Gold(StrEnum):
    """Truth of a claim according to its data set."""

    TRUE = "True"
    FALSE = "False"


_GOLD: dict[object, Gold | None] = {
    **dict.fromkeys(("true", "supported", "supports"), Gold.TRUE),
    **dict.fromkeys(("false", "refuted", "refutes"), Gold.FALSE),
    **dict.fromkeys(("unknown", "not enough evidence", "not supported", "partially supported", "na", "none", "")),
}


@dataclass(frozen=True, slots=True)
class GoldClaim:
    """A claim of known truth."""

    id: str
    text: str
    gold: Gold


def read_claims(path: Path) -> tuple[GoldClaim, ...]:
    """Reads a file of claims, one JSON object per line; each line's layout is detected from its fields.

    Claims that their data set calls unknown are left out, as published: no answer to them is right.

    ::

        {"id": …, "claim": …, "label": …}          ours, BingCheck's, the claims of Factcheck-Bench
        {"claims": [{"claim": …, "label": …}, …]}  FacTool-KBQA

    Raises:
        BadRequest: The file can't be read, contains no claim, or has lines of an unknown layout; lists the first.
    """
    ids: set[str] = set()

    def parse(line: int, record: dict[str, Any]) -> list[GoldClaim]:
        claims = [_claim(one, f"{line}.{place}") for place, one in enumerate(_claims_of(record), 1)]
        found = list(filter(None, claims))
        for claim in found:
            if claim.id in ids:
                raise BadCell(f"its id {claim.id[:40]!r} is taken")
            ids.add(claim.id)
        return found

    # The whole file is rejected: otherwise a part of it would be measured as if it were all.
    records = json_records(read_text(path, "claims"))
    read = parsed_rows(path, records, parse, purpose="used as claims", reason="CLAIMS_UNREADABLE")
    if not any(read):
        raise BadRequest(f"{path.name} holds no claim that is true or false.", reason="CLAIMS_UNREADABLE")
    return tuple(chain.from_iterable(read))


def claims_digest(claims: tuple[GoldClaim, ...]) -> str:
    """Returns the digest of claims, in order."""
    return digest([[claim.id, claim.text, claim.gold] for claim in claims])


def _claims_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Claims of a line, with their labels. Raises BadCell."""
    claims = record.get("claims", [record])
    if not isinstance(claims, list) or not all(
        isinstance(one, dict) and {"claim", "label"} <= set(one) for one in claims
    ):
        raise BadCell("it has no claim with a label: give id, claim and label")
    # An id identifies a line; if a line has several claims, they are numbered.
    return claims if claims == [record] else [one | {"id": None} for one in claims]


def _claim(record: dict[str, Any], place: str) -> GoldClaim | None:
    text, label, known = record["claim"], record["label"], record.get("id")
    if not isinstance(text, str) or not text.strip() or len(text) > _MOST:
        raise BadCell(f"a claim is a text of up to {_MOST:,} characters")
    if known is not None and not isinstance(known, str | int):
        raise BadCell("its id is no text")
    # Data sets spell the same label in different ways.
    word = " ".join(str(label).lower().replace("_", " ").replace("-", " ").split())
    if not isinstance(label, str | bool | None) or word not in _GOLD:
        raise BadCell(f"its label {str(label)[:30]!r} is none: give True, False or Unknown")
    gold = _GOLD[word]
    return None if gold is None else GoldClaim(place if known is None else str(known), " ".join(text.split()), gold)
