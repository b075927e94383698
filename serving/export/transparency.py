"""Figures of a period for a transparency report by the EU's templates (Implementing Regulation (EU) 2024/2835).

The rows stand in ``transparency.toml``. What a docket can't know is left blank and listed; what the templates have no
row for stands in an appendix under its plain name.
"""

from __future__ import annotations

import csv
import io
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any

from court.display import word
from court.events import AppealOpened, VerdictReviewed
from court.in_force import Authority, standing
from court.record import TrialRecord
from court.verdict import Decision, Label
from serving.access.callers import SANDBOX
from serving.docket.errors import TrialUnknown
from serving.docket.open import Docket
from serving.docket.review.drift import wilson
from serving.docket.review.queue import ReviewQueue
from serving.docket.store.listing import TrialFilter
from serving.export.dsa import CATEGORIES, clause_of
from serving.export.tables import Selection

_PAGE = 500
COLUMNS = (
    "Applicability", "Service", "Reporting period", "Section", "Indicator", "Scope", "Value", "Contextual Information",
)  # fmt: skip
_DECIDED = "Decisions to block. Whether a restriction followed, and whether a notice led to it, the platform knows."


@cache
def template() -> Mapping[str, Any]:
    """Returns the rows of the templates."""
    return tomllib.loads(files(__package__).joinpath("transparency.toml").read_text("utf-8"))


@dataclass
class Figures:
    """Figures of the trials that were opened, and of the appeals that were made, in a period.

    Attributes:
        blocked: Decisions to block by category of the templates; the empty one where the policy's has no counterpart.
        appeal_hours: Hours from each appeal to its outcome.
        sample: Counts of (court's label, label of the blind review) in the random sample.
    """

    since: datetime
    until: datetime
    counts: Counter[str] = field(default_factory=Counter)
    blocked: Counter[str] = field(default_factory=Counter)
    automated: Counter[str] = field(default_factory=Counter)
    appeals: Counter[str] = field(default_factory=Counter)
    appeal_hours: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sample: Counter[tuple[Label, Label]] = field(default_factory=Counter)

    def add(self, record: TrialRecord) -> None:
        """Counts a trial."""
        opened, text = record.opened, record.text
        self.counts["Items judged"] += 1
        self.counts[f"Items by procedure: {word(opened.procedure)}"] += 1
        self.counts[f"Decisions: {record.decision or 'none yet'}"] += 1
        if text is not None and text.text:
            self.counts[f"Texts in language: {text.language or 'unknown'}"] += 1
        if record.verdict is None:
            return
        # Failed trials have no time to a decision.
        self.seconds.append(record.seconds)
        self.counts["Verdicts without a label"] += record.verdict.label is Label.UNDECIDED
        if record.review is not None:
            self.counts["Verdicts that a person reviewed"] += 1
            self.counts["Verdicts that a person overruled"] += record.label_in_force is not record.verdict.label
        finding = record.in_force
        if record.decision is not Decision.BLOCK or finding is None:
            return
        clause = clause_of(record)
        category = clause.category if clause else record.verdict.finding.category if record.verdict.finding else ""
        self.counts[f"Blocked by clause: {f'{clause.number} ({clause.category})' if clause else 'none named'}"] += 1
        # A category of the platform's own policy has no counterpart here.
        name = CATEGORIES.get(category, ("", ""))[0]
        self.blocked[name] += 1
        # Whoever reviewed it had a part in it, even by upholding it; so had whoever verified a binding precedent.
        self.automated[name] += finding.by is Authority.COURT and record.review is None

    def add_appeal(self, record: TrialRecord, appeal: AppealOpened) -> None:
        """Counts an appeal with its outcome: the next review by somebody who had not reviewed before it."""
        reviews = [event for event in standing(record.events) if isinstance(event, VerdictReviewed)]
        # By position in the record: clocks of two servers may differ by more than a quick review takes.
        before = [event for event in reviews if event.seq < appeal.seq]
        after = [event for event in reviews if event.seq > appeal.seq]
        decided = next((one for one in after if one.reviewer not in {each.reviewer for each in before}), None)
        if decided is None:
            self.appeals["waiting"] += 1
            return
        verdict = record.verdict
        # What an appeal is against: the last label before it, be it a person's or the court's.
        contested = before[-1].label if before else verdict.label if verdict else None
        self.appeals["upheld" if decided.label is contested else "reversed"] += 1
        self.appeal_hours.append((decided.at - appeal.at) / timedelta(hours=1))


async def measure(
    docket: Docket, queue: ReviewQueue, *, since: datetime, until: datetime, namespace: str | None = None
) -> Figures:
    """Reads the trials of a period one by one, and the appeals of the period from the log.

    Args:
        until: End of the period, itself outside of it.
    """
    figures, labels = Figures(since, until), dict[str, Label]()
    which = TrialFilter(opened_from=since, opened_until=until, namespace=namespace)
    selection = Selection(docket.index, docket.trials, which)
    async for record in selection.records():
        # Tries of the console are nobody's content.
        if record.opened.meme.namespace != SANDBOX:
            figures.add(record)
            if record.verdict is not None:
                labels[record.trial_id] = record.verdict.label
    figures.counts["Items erased since, in no other figure"] += len(selection.erased)
    async for trial_id in _appealed(docket):
        try:
            record = await docket.trials.record(trial_id)
        # Erased since: its appeal is in no figure either.
        except TrialUnknown:
            continue
        if namespace in (None, record.opened.meme.namespace):
            for appeal in record.all(AppealOpened):
                if since <= appeal.at < until:
                    figures.add_appeal(record, appeal)
    for each in await queue.sampled(since=since, until=until, namespace=namespace):
        if each.found is not None and each.trial_id in labels:
            figures.sample[labels[each.trial_id], each.found] += 1
    return figures


async def _appealed(docket: Docket) -> Any:
    """Yields each trial that was appealed, once."""
    first, seen = 0, set[str]()
    while entries := await docket.log.entries(first, _PAGE, {"AppealOpened"}):
        for entry in entries:
            if entry.trial_id not in seen:
                seen.add(entry.trial_id)
                yield entry.trial_id
        first = entries[-1].number + 1


def parts(figures: Figures, service: str = "") -> Mapping[str, Sequence[Sequence[object]]]:
    """Returns the tables of a report, by file name, each with its head."""
    rows = template()
    # The templates name the last day of a period, not the first one after it.
    last = figures.until - timedelta(microseconds=1)
    period = f"{figures.since:%Y-%m-%d}/{last:%Y-%m-%d}"
    six, seven, eight = rows["part_6"], rows["part_7"], rows["part_8"]
    table = [six["head"]]
    table.append(["All", service, period, "TOTAL", figures.blocked.total(), figures.automated.total(), _DECIDED])
    for name in six["categories"]:
        # Blank and not 0 where nothing happened, as the templates ask.
        counts = (figures.blocked[name] or "", figures.automated[name] if figures.blocked[name] else "")
        table.append(["All", service, period, f"STATEMENT_CATEGORY_{name}", *counts, ""])
    times = round(median(figures.appeal_hours), 2) if figures.appeal_hours else ""
    values = [figures.appeals.total(), figures.appeals["upheld"], "", figures.appeals["reversed"], times, ""]
    common = [seven["applies"], service, period, seven["section"], seven["indicator"]]
    complaints = [
        [*common, scope, value, "In hours" if scope == "Median time" else ""]
        for scope, value in zip(seven["scopes"], values, strict=True)
    ]
    automated = figures.automated.total()
    measured = [(automated, _DECIDED), (figures.blocked.total() - automated, _DECIDED), *_accuracy(figures.sample)]
    means = [
        [eight["applies"], service, period, eight["section"], indicator, eight["scope"], value, context]
        for indicator, (value, context) in zip(eight["indicators"], measured, strict=True)
    ]
    return {
        six["file"]: table,
        seven["file"]: [COLUMNS, *complaints],
        eight["file"]: [COLUMNS, *means],
        "appendix.csv": [("Figure", "Value"), *_appendix(figures)],
        "blank.csv": [("Left blank", "Because"), *rows["blank"].items()],
    }


def _accuracy(sample: Counter[tuple[Label, Label]]) -> Iterator[tuple[object, str]]:
    """Yields accuracy, precision and recall in percent, each with its interval; blank without reviews."""
    right, harmful = sum(count for (court, found), count in sample.items() if court is found), Label.HARMFUL
    hits = sample[harmful, harmful]
    called = sum(count for (label, _), count in sample.items() if label is harmful)
    found = sum(count for (_, label), count in sample.items() if label is harmful)
    # The random sample alone: reviews of doubtful cases would make the court look worse than it is.
    for part, whole in ((right, sample.total()), (hits, called), (hits, found)):
        if not whole:
            yield "", "No verdict that was drawn at random was reviewed."
            continue
        low, high = wilson(whole - part, whole)
        interval = f"95 % interval {100 * (1 - high):.1f} to {100 * (1 - low):.1f}"
        yield round(100 * part / whole, 1), f"{part} of {whole} drawn at random and reviewed by people; {interval}."


def _appendix(figures: Figures) -> Iterator[tuple[str, object]]:
    yield from sorted(figures.counts.items())
    yield "Blocked, of a category without counterpart in the templates", figures.blocked[""]
    yield "Appeals that wait for a person", figures.appeals["waiting"]
    yield "Median seconds from opening a trial to its end", round(median(figures.seconds), 3) if figures.seconds else ""


def as_csv(table: Sequence[Sequence[object]]) -> bytes:
    """Returns a table as CSV (RFC 4180, UTF-8)."""
    out = io.StringIO()
    csv.writer(out).writerows(table)
    return out.getvalue().encode()
