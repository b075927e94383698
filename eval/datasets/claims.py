"""Claims of known truth, read from files: our own layout, and those of three public data sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from court.digests import digest
from court.errors import BadRequest
from retrieval.library.tables import json_records, read_text

_MOST = 2000
"""Characters of a claim, at most."""
_SHOWN = 5


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

        {"id": …, "claim": …, "label": …}                        ours, BingCheck's, the claims of Factcheck-Bench alone
        {"claims": [{"claim": …, "label": …}, …]}                FacTool-KBQA
        {"claims": [text, …], "claim_labels": [true, …]}         the answers of several data sets together
        {"sentences": {name: {"claims": […], "claims_factuality_label": […]}}}   Factcheck-Bench, whole

    Raises:
        BadRequest: The file can't be read, contains no claim, or has lines of an unknown layout; lists the first.
    """
    claims: list[GoldClaim] = []
    faults: list[str] = []
    ids: set[str] = set()
    for line, record in json_records(read_text(path, "claims")):
        try:
            if isinstance(record, str):
                raise ValueError(record)
            for place, (text, label) in enumerate(_claims_of(record), 1):
                claim = _claim(record, f"{line}.{place}", text, label)
                if claim is None:
                    continue
                if claim.id in ids:
                    raise ValueError(f"its id {claim.id[:40]!r} is taken")
                ids.add(claim.id)
                claims.append(claim)
        except ValueError as error:
            faults.append(f"line {line:,}: {error}")
    # The whole file is rejected: otherwise a part of it would be measured as if it were all.
    if faults:
        more = f"; and {len(faults) - _SHOWN:,} more lines" if len(faults) > _SHOWN else ""
        raise BadRequest(f"{path.name} can't be used: {'; '.join(faults[:_SHOWN])}{more}.", reason="CLAIMS_UNREADABLE")
    if not claims:
        raise BadRequest(f"{path.name} holds no claim that is true or false.", reason="CLAIMS_UNREADABLE")
    return tuple(claims)


def claims_digest(claims: tuple[GoldClaim, ...]) -> str:
    """Returns the digest of claims, in order."""
    return digest([[claim.id, claim.text, claim.gold] for claim in claims])


def _claims_of(record: dict[str, Any]) -> Iterator[tuple[object, object]]:
    """Yields text and label of each claim of a line. Raises ValueError."""
    if "claim" in record:
        if "label" not in record:
            raise ValueError("it has a claim and no label")
        yield record["claim"], record["label"]
    elif isinstance(record.get("sentences"), dict):
        for sentence in record["sentences"].values():
            if not isinstance(sentence, dict):
                raise ValueError("a sentence is no object")
            yield from _paired(sentence.get("claims", []), sentence.get("claims_factuality_label", []))
    elif isinstance(record.get("claims"), list):
        if "claim_labels" in record:
            yield from _paired(record["claims"], record["claim_labels"])
            return
        for one in record["claims"]:
            if not isinstance(one, dict) or not {"claim", "label"} <= one.keys():
                raise ValueError("one of its claims has no claim and label")
            yield one["claim"], one["label"]
    else:
        raise ValueError("it has no claim: give id, claim and label")


def _paired(claims: object, labels: object) -> Iterator[tuple[object, object]]:
    # Some files have null for sentences without a claim.
    claims, labels = claims or [], labels or []
    if not isinstance(claims, list) or not isinstance(labels, list) or len(claims) != len(labels):
        raise ValueError("it has not as many labels as claims")
    yield from zip(claims, labels, strict=True)


def _claim(record: dict[str, Any], place: str, text: object, label: object) -> GoldClaim | None:
    if not isinstance(text, str) or not text.strip() or len(text) > _MOST:
        raise ValueError(f"a claim is a text of up to {_MOST:,} characters")
    known = record.get("id")
    if known is not None and not isinstance(known, str | int):
        raise ValueError("its id is no text")
    # An id identifies a line; if a line has several claims, they are numbered as well.
    id_ = str(known) if known is not None and "claim" in record else place
    # Data sets spell the same label in different ways.
    word = " ".join(str(label).lower().replace("_", " ").replace("-", " ").split())
    if not isinstance(label, str | bool | None) or word not in _GOLD:
        raise ValueError(f"its label {str(label)[:30]!r} is none: give True, False or Unknown")
    gold = _GOLD[word]
    return None if gold is None else GoldClaim(id_, " ".join(text.split()), gold)
