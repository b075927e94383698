"""A selection of trials as a table: as many as there are, page by page, in memory that stays the same.

A line of JSON is a whole record (:mod:`serving.export.source`); a row of Parquet has what is counted and filtered by
in columns of its own, and the events as JSON beside it; a row of CSV has those columns alone.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from court.errors import NotLoaded
from court.record import TrialRecord
from serving.docket.errors import TrialErased
from serving.docket.ports import TrialReader
from serving.docket.store.listing import DocketLine, TrialFilter, TrialIndex
from serving.export.source import ExportSource, document

if TYPE_CHECKING:
    import pyarrow

_PAGE = 200
_ALL = TrialFilter()
_COLUMNS = """
    trial_id opened_at seconds procedure namespace content_id request_id state label decision in_force court_label
    harmful_strength benign_strength harm_score harm_score_meaning risk category clause target rationale review_reasons
    reviewed failure_reason text text_source precedents vote model_calls tokens_in tokens_out tokens_cached models
    software settings prompts policy library encoder pixels_sha256 events
"""
_GROUP_ROWS, _GROUP_BYTES = 1000, 16 * 1024 * 1024
"""A row group of Parquet is written when it has so many rows, or so many bytes of events: all that is held at once."""


class Form(StrEnum):
    """File format of a selection."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


async def _ignore(_: Sequence[DocketLine]) -> None:
    """Is told of what is given where nobody has to know."""


class Selection:
    """Trials, the first opened first; those that are opened while it is gone through come last.

    Attributes:
        erased: Ids of those that were passed over because nothing is left of them.
    """

    def __init__(
        self,
        index: TrialIndex,
        trials: TrialReader,
        which: TrialFilter = _ALL,
        noted: Callable[[Sequence[DocketLine]], Awaitable[None]] = _ignore,
    ) -> None:
        """Has read nothing yet.

        Args:
            noted: Is told the trials, some at a time, before any of these is given.
        """
        self._index = index
        self._trials = trials
        self._which = which
        self._noted = noted
        self.given = 0
        self.erased: list[str] = []

    async def records(self) -> AsyncIterator[TrialRecord]:
        """Yields each record.

        Raises:
            DocketError: One is damaged: no export leaves out what it can't read.
            TrialUnknown: One is listed, and nothing of it is there: the docket was altered.
        """
        after: tuple[datetime, str] | None = None
        while True:
            lines = await self._index.list(limit=_PAGE, after=after, which=self._which, oldest_first=True)
            await self._noted([line for line in lines if not line.erased])
            for line in lines:
                # Moved on before the record is read: one that is erased is passed over, and must not come again.
                after = (line.opened_at, line.trial_id)
                try:
                    record = await self._trials.record(line.trial_id)
                except TrialErased:
                    self.erased.append(line.trial_id)
                    continue
                self.given += 1
                yield record
            # Counted by lines and not by records: a page may have had erased trials on it.
            if len(lines) < _PAGE:
                return

    def chunks(self, form: Form) -> AsyncIterator[bytes]:
        """The file, piece by piece. Raises NotLoaded if what writes Parquet is not installed."""
        return {Form.CSV: self._csv, Form.JSONL: self._jsonl, Form.PARQUET: self._parquet}[form]()

    async def _csv(self) -> AsyncIterator[bytes]:
        names = [name for name in _COLUMNS.split() if name != "events"]
        row = io.StringIO()
        table = csv.DictWriter(row, names, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        async for record in self.records():
            table.writerow({name: _cell(value) for name, value in row_of(record).items()})
            yield row.getvalue().encode("utf-8", "replace")
            row.seek(0)
            row.truncate()
        yield row.getvalue().encode()  # without a trial, the heading alone

    async def _jsonl(self) -> AsyncIterator[bytes]:
        async for record in self.records():
            yield json.dumps(document(ExportSource(record)), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

    async def _parquet(self) -> AsyncIterator[bytes]:
        pa, pq = _arrow()
        schema = schema_of(pa)
        sink = _Sink()
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            rows: list[dict[str, Any]] = []
            buffered = 0
            async for record in self.records():
                rows.append(row_of(record))
                # Bounded by size as well: a thousand long trials would not fit in memory.
                buffered += len(rows[-1]["events"])
                if len(rows) >= _GROUP_ROWS or buffered >= _GROUP_BYTES:
                    writer.write_table(pa.Table.from_pylist(rows, schema=schema))
                    # Before it is handed on: the receiver may be slow, and the rows need not wait in memory.
                    rows, buffered = [], 0
                    yield sink.taken()
            if rows:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        yield sink.taken()


def row_of(record: TrialRecord) -> dict[str, Any]:
    """A row of Parquet; see :func:`schema_of`."""
    opened, verdict, text, cited = record.opened, record.verdict, record.text, record.precedents
    review, failed, calls = record.review, record.failure, record.calls
    finding = verdict.finding if verdict else None
    strengths = verdict.strengths if verdict else None
    return {
        "trial_id": record.trial_id,
        "opened_at": opened.at,
        "seconds": record.seconds,
        "procedure": str(opened.procedure),
        "namespace": opened.meme.namespace,
        "content_id": opened.meme.content_id,
        "request_id": opened.request_id,
        "state": str(record.state),
        # The reviewer's where there is one; the court's own is in the next column.
        "label": str(record.label_in_force) if verdict else None,
        "decision": record.decision and str(record.decision),
        "in_force": str(record.in_force.by) if record.in_force else None,
        "court_label": str(verdict.label) if verdict else None,
        "harmful_strength": str(strengths.harmful) if strengths else None,
        "benign_strength": str(strengths.benign) if strengths else None,
        "harm_score": verdict.harm_score if verdict else None,
        "harm_score_meaning": str(verdict.harm_score_meaning) if verdict and verdict.harm_score_meaning else None,
        "risk": verdict.risk if verdict else None,
        "category": finding.category if finding else None,
        "clause": finding.clause if finding else None,
        "target": finding.target if finding else None,
        "rationale": verdict.rationale if verdict else None,
        "review_reasons": [str(review.reason) for review in verdict.review] if verdict else [],
        "reviewed": str(review.outcome) if review else None,
        "failure_reason": failed.reason if failed and verdict is None else None,
        "text": text.text if text else None,
        "text_source": str(text.source) if text else None,
        "precedents": [exhibit.id for exhibit in cited.findings.exhibits] if cited else [],
        "vote": cited.vote.probability if cited and cited.vote else None,
        "model_calls": sum(each.requests for each in calls),
        "tokens_in": sum(each.call.tokens_in for each in calls),
        "tokens_out": sum(each.call.tokens_out for each in calls),
        "tokens_cached": sum(each.call.tokens_cached for each in calls),
        "models": json.dumps(opened.versions.models, sort_keys=True),
        "software": opened.versions.software,
        "settings": opened.versions.settings,
        "prompts": opened.versions.prompts,
        "policy": opened.policy.digest,
        "library": opened.versions.library,
        "encoder": opened.versions.encoder,
        "pixels_sha256": opened.meme.pixels_sha256,
        "events": "[" + ",".join(event.model_dump_json() for event in record.events) + "]",
    }


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return "; ".join(value)
    # A spreadsheet would run a text that begins like a formula.
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def schema_of(pa: Any) -> pyarrow.Schema:
    """Columns of the Parquet form; what is not known is null."""
    text, number, share = pa.string(), pa.int64(), pa.float64()
    columns: dict[str, Any] = dict.fromkeys(_COLUMNS.split(), text)
    columns |= {"opened_at": pa.timestamp("us", tz="UTC"), "review_reasons": pa.list_(text)}
    columns |= {"precedents": pa.list_(text)}
    columns |= dict.fromkeys(("seconds", "harm_score", "risk", "vote"), share)
    columns |= dict.fromkeys(("model_calls", "tokens_in", "tokens_out", "tokens_cached"), number)
    return pa.schema(list(columns.items()), metadata={"format": "memecourt-trials/1"})


class _Sink(io.RawIOBase):
    """A file that is handed on while it is written; nothing of it is ever read again."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._at += len(piece)
        return len(piece)

    # pyarrow needs the position: the footer names the offset of every row group.
    def tell(self) -> int:
        return self._at

    def taken(self) -> bytes:
        """Returns the bytes written since the last call."""
        whole = b"".join(self._pieces)
        self._pieces.clear()
        return whole


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise NotLoaded(
            "Parquet needs pyarrow. Install it with: pip install 'memecourt[export]', or export as jsonl.",
            reason="EXPORT_NOT_LOADED",
        ) from None
    return pa, pq
