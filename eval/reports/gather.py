"""Content of a report on runs of trials as plain values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from pathlib import Path
from statistics import fmean, median, quantiles

from court.errors import BadRequest
from court.events import Side
from eval.datasets.card import CardPublished
from eval.datasets.items import JudgedMeme, Outcome, Prediction, Protocol
from eval.datasets.known import caveats, published, published_on_harm, remarked
from eval.reports.records import Records, read_records
from eval.reports.sections import traps_in_words
from eval.runs.results import NOT_JUDGED, SCORED, Excluded, Judged, Results, RunFolder, card_of_results
from eval.scores.compare import Contrast, contrasts, remarks
from eval.scores.measure import RESAMPLES
from eval.scores.metrics import Card, card
from eval.session.directory import MANIFEST

PROTOCOLS = {
    Protocol.MERGED: "somewhat and very harmful memes are harmful",
    Protocol.EXTREME: "somewhat harmful memes are dropped",
    Protocol.PLAIN: "the data set's own two classes",
}
"""Meaning of each protocol in words."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Number of rounds of a side, over memes of one gold label."""

    side: Side
    harmful: bool
    counts: dict[int, int]

    @property
    def n(self) -> int:
        """Number of memes."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """Mean number of rounds per meme."""
        return sum(rounds * memes for rounds, memes in self.counts.items()) / self.n


@dataclass(frozen=True, slots=True)
class EntropyAt:
    """The entropy of a side's summaries at one round, in bits."""

    round: int
    """Counted from 1."""
    n: int
    """Number of summaries; a side that has already rested has none."""
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class MeanCost:
    """Mean cost of a meme in a run; see :class:`eval.datasets.items.Cost`."""

    n: int
    calls: float
    stored: float
    tokens_in: float
    tokens_out: float
    tokens_cached: float
    chain: float
    """Median of the longest chain of calls."""
    seconds: float

    @property
    def tokens(self) -> float:
        """Mean number of tokens read and written per meme."""
        return self.tokens_in + self.tokens_out


@dataclass(frozen=True, slots=True)
class RunView:
    """One run in a report."""

    key: str
    label: str
    """Name of the run, made unique if two share one."""
    results: Results
    excluded: tuple[Excluded, ...]
    judged: int
    failures: dict[str, int]
    cost: MeanCost | None
    rounds: tuple[Rounds, ...]
    """Rounds of the sides; empty if no side asked."""
    entropies: dict[str, tuple[EntropyAt, ...]]
    records: Records

    @property
    def total(self) -> int:
        """Number of memes to judge."""
        return len(self.results.judged)

    @property
    def finished(self) -> bool:
        """True if everything was judged and the run was closed. Predictions from elsewhere count as finished."""
        manifest = self.results.manifest
        return self.judged == self.total and (manifest is None or manifest.finished is not None)

    @property
    def unfinished_words(self) -> str:
        """Warning about the figures of an unfinished run; empty for a finished one."""
        if self.finished:
            return ""
        if self.judged == self.total:
            return f"{self.label} has judged all of its {self.total:,} memes, but was not closed."
        return (
            f"{self.label} is not finished: {self.judged:,} of {self.total:,} memes are judged. The "
            f"{self.total - self.judged:,} others have no answer yet, so that there are no strict figures."
        )


@dataclass(frozen=True, slots=True)
class TableRow:
    """A run under a protocol."""

    run: RunView
    card: Card


@dataclass(frozen=True, slots=True)
class Table:
    """All runs on one split under one protocol."""

    key: str
    dataset: str
    title: str
    split: str
    protocol: Protocol
    rows: tuple[TableRow, ...]
    contrasts: tuple[Contrast, ...]
    remarks: tuple[str, ...]


class VerdictFault(IntEnum):
    """Kind of wrong verdict, the worst first."""

    MISSED = 0
    """A harmful meme judged not harmful."""
    FALSE_ALARM = 1
    """A meme that is not harmful judged harmful."""
    UNDECIDED = 2
    FAILED = 3

    @property
    def title(self) -> str:
        """Title of the kind."""
        return _TITLES[self]


_TITLES = {
    VerdictFault.MISSED: "Harmful, said not harmful",
    VerdictFault.FALSE_ALARM: "Not harmful, said harmful",
    VerdictFault.UNDECIDED: "Undecided",
    VerdictFault.FAILED: "Failed",
}


@dataclass(frozen=True, slots=True)
class WrongVerdict:
    """Wrong verdict of one run on a meme."""

    run: RunView
    fault: VerdictFault
    prediction: Prediction

    @property
    def rationale(self) -> str:
        """The Judge's rationale, or the reason for a missing answer; empty if there is no record."""
        record = self.run.records.records.get(self.prediction.trial)
        if record is None:
            return ""
        if record.verdict is not None:
            return record.verdict.rationale

        failed = record.failure
        return failed.message if failed else ""

    @property
    def pictures(self) -> tuple[bytes, ...]:
        """Scaled-down pictures of the tried meme, one per frame; empty if none are stored."""
        records = self.run.records
        record = records.records.get(self.prediction.trial)
        return records.frames.get(record.opened.meme.pixels_sha256, ()) if record else ()

    @property
    def rounds_words(self) -> str:
        """Rounds per side; empty if there were none."""
        return ", ".join(f"{side.lower()} {course.rounds}" for side, course in self.prediction.sides.items())


@dataclass(frozen=True, slots=True)
class WrongMeme:
    """A meme that at least one run judged wrong."""

    key: str
    meme: JudgedMeme
    verdicts: tuple[WrongVerdict, ...]
    right: tuple[RunView, ...]
    pictures: tuple[bytes, ...]
    """JPEG files, one per frame; empty if none is stored or requested."""

    @property
    def worst(self) -> VerdictFault:
        """Worst fault, which decides where the meme is listed."""
        return min(verdict.fault for verdict in self.verdicts)


def gold_words(meme: JudgedMeme) -> str:
    """Gold label in our words, and in the data set's own if they say more."""
    ours = "harmful" if meme.harmful else "not harmful"
    own = meme.source_label
    return ours if own.replace("_", " ").lower() == ours else f"{ours} ({own})"


@dataclass(frozen=True, slots=True)
class Group:
    """All runs on one split of one data set."""

    key: str
    title: str
    split: str
    runs: tuple[RunView, ...]
    tables: tuple[Table, ...]
    published: tuple[CardPublished, ...]
    caveats: tuple[str, ...]
    traps: tuple[str, ...]
    wrong: tuple[WrongMeme, ...]
    unscored: tuple[str, ...]

    def count(self, fault: VerdictFault) -> int:
        """Number of memes listed under a fault."""
        return sum(one.worst is fault for one in self.wrong)


@dataclass(frozen=True, slots=True)
class Report:
    """A report on runs, in the order in which they were given."""

    # Not in the repr: asyncio.run computes the repr of a task's result, which can have thousands of records.
    groups: tuple[Group, ...] = field(repr=False)
    resamples: int

    @property
    def runs(self) -> tuple[RunView, ...]:
        """All runs of the report."""
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def unfinished(self) -> tuple[RunView, ...]:
        """Unfinished runs, whose figures will change."""
        return tuple(run for run in self.runs if not run.finished)


async def gather(
    results: Sequence[Results], *, records: bool = True, pictures: bool = True, resamples: int = RESAMPLES
) -> Report:
    """Scores, compares and looks up everything that a report contains.

    Args:
        results: Results of runs, or predictions from elsewhere; of any data sets.

    Raises:
        BadRequest: There is nothing to report on, or a run can't be read.
    """
    if not results:
        raise BadRequest("A report needs at least one run.", reason="RUN_MISSING")
    labels = _unique_labels(results)
    views = [
        await _view(one, f"run-{number}", label=label, records=records, pictures=pictures)
        for number, (one, label) in enumerate(zip(results, labels, strict=True), 1)
    ]
    # In the order in which runs were named.
    splits = dict.fromkeys((one.dataset, one.split) for one in results)
    groups = [
        _group(
            dataset, split, [v for v in views if (v.results.dataset, v.results.split) == (dataset, split)], resamples
        )
        for dataset, split in splits
    ]
    return Report(tuple(groups), resamples)


def runs_below(path: Path) -> tuple[Path, ...]:
    """The folder itself if it is a run, or else the runs in it, by name.

    Raises BadRequest: The folder is no run, and contains none.
    """
    if (path / MANIFEST).exists() or (path / SCORED).exists():
        return (path,)
    # One level deeper stand the repeats of a grid.
    below = (path.glob(f"*/{MANIFEST}"), path.glob(f"*/{SCORED}"), path.glob(f"*/repeat-*/{MANIFEST}"))
    found = tuple(sorted(each.parent for each in chain.from_iterable(below)))
    if not found:
        raise BadRequest(
            f"{path} holds no run and no folder of one. `memecourt-eval run` writes one where --out says.",
            reason="RUN_MISSING",
        )
    return found


def judged_of(results: Results) -> tuple[Judged, ...]:
    """The memes that were judged, including failures."""
    # The placeholder of a meme that is not judged yet has neither rounds nor cost.
    return tuple(one for one in results.judged if one.prediction.reason != NOT_JUDGED)


def rounds_of(results: Results) -> tuple[Rounds, ...]:
    """Rounds per side and gold label; empty if no side ever asked.

    Gold is the data set's own two classes, or the protocol ``merged`` if it has three.
    """
    found = []
    for side in Side:
        for harmful in (False, True):
            counts = [
                one.prediction.sides[side].rounds
                for one in judged_of(results)
                if one.meme.harmful is harmful and side in one.prediction.sides
            ]
            if counts:
                found.append(Rounds(side, harmful, {rounds: counts.count(rounds) for rounds in sorted(set(counts))}))
    # All at 0 rounds if sides ask nothing, as in the arm no-captioner.
    return tuple(found) if any(rounds for one in found for rounds in one.counts) else ()


def entropies_of(results: Results) -> dict[Side, tuple[EntropyAt, ...]]:
    """Median and quartiles of the summaries' entropy by round, per side; only sides that summed up after a round."""
    found = {}
    for side in Side:
        courses = [
            one.prediction.sides[side].entropies
            for one in judged_of(results)
            if side in one.prediction.sides and one.prediction.sides[side].rounds
        ]
        longest = max(map(len, courses), default=0)
        by_round = [[course[at] for course in courses if len(course) > at] for at in range(longest)]
        if by_round:
            found[side] = tuple(_quartiles(number, values) for number, values in enumerate(by_round, 1))
    return found


def cost_of(results: Results) -> MeanCost | None:
    """Means over the judged memes; None if costs are unknown (predictions from elsewhere)."""
    costs = [one.prediction.cost for one in judged_of(results)]
    if not costs or not any(cost.calls or cost.seconds for cost in costs):
        return None
    calls = sum(cost.calls for cost in costs)
    return MeanCost(
        n=len(costs),
        calls=calls / len(costs),
        stored=sum(cost.stored for cost in costs) / calls if calls else 0.0,
        tokens_in=fmean(cost.tokens_in for cost in costs),
        tokens_out=fmean(cost.tokens_out for cost in costs),
        tokens_cached=fmean(cost.tokens_cached for cost in costs),
        # Medians: a few trials that waited for a busy server would distort a mean.
        chain=median(cost.chain for cost in costs),
        seconds=median(cost.seconds for cost in costs),
    )


def _quartiles(number: int, values: Sequence[float]) -> EntropyAt:
    # quantiles() needs two values.
    if len(values) == 1:
        return EntropyAt(round=number, n=1, low=values[0], middle=values[0], high=values[0])
    # Inclusive: these are all values, not a sample of a larger population.
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return EntropyAt(round=number, n=len(values), low=low, middle=middle, high=high)


def _unique_labels(results: Sequence[Results]) -> list[str]:
    """A label for each run: its name, made unique by its folder's name or, if that is not enough, by a number."""
    names = Counter(one.name for one in results)
    labels = [
        one.name if names[one.name] == 1 or one.root is None else f"{one.name} ({one.root.name})" for one in results
    ]
    # Folders in different places may share a name, too.
    twice = Counter(labels)
    return [f"{label} #{place}" if twice[label] > 1 else label for place, label in enumerate(labels, 1)]


async def _view(results: Results, key: str, label: str, records: bool, pictures: bool) -> RunView:
    judged = judged_of(results)
    # Only records of wrong verdicts are shown, and a record is large.
    trials = [one.prediction.trial for _, one in wrong_of(results) if one.prediction.trial]
    if results.root is None:
        found = Records(missing="There are no records: these are predictions from elsewhere.")
    elif records:
        found = await read_records(results.root, trials, pictures=pictures)
    else:
        found = Records()
    return RunView(
        key=key,
        label=label,
        results=results,
        excluded=RunFolder(results.root).excluded() if results.root else (),
        judged=len(judged),
        failures=dict(
            Counter(one.prediction.reason or "no reason" for one in judged if one.prediction.outcome is Outcome.FAILED)
        ),
        cost=cost_of(results),
        rounds=rounds_of(results),
        entropies={str(side): course for side, course in entropies_of(results).items()},
        records=found,
    )


def _group(dataset: str, split: str, runs: Sequence[RunView], resamples: int) -> Group:
    described = card_of_results(runs[0].results)
    title = described.title if described else dataset
    key = _key(f"{dataset}-{split}")
    unscored: list[str] = []
    tables = []
    for protocol in dict.fromkeys(protocol for run in runs for protocol in run.results.protocols):
        rows = []
        for run in runs:
            if protocol not in run.results.protocols:
                continue
            try:
                rows.append(TableRow(run, card(run.results, protocol, resamples=resamples)))
            except BadRequest as error:
                # A run without a meme under this protocol must not prevent a report on the others.
                unscored.append(error.message)
        if rows:
            differences = contrasts([(row.run.label, row.run.results) for row in rows], protocol, resamples)
            tables.append(
                Table(
                    key=f"{key}-{protocol}",
                    dataset=dataset,
                    title=title,
                    split=split,
                    protocol=protocol,
                    rows=tuple(rows),
                    contrasts=differences,
                    remarks=remarks([(row.run.label, row.card) for row in rows], differences),
                )
            )
    # Figures in the code are shown for any split, with its name; those of a card only if they are comparable.
    known = published(dataset)
    if described:
        known += published_on_harm(described, split, [table.protocol for table in tables])
    memes = {table.protocol: {row.card.n for row in table.rows} for table in tables}
    return Group(
        key=key,
        title=title,
        split=split,
        runs=tuple(runs),
        tables=tuple(tables),
        published=tuple(remarked(row, split, memes) for row in known),
        caveats=caveats(dataset),
        traps=tuple(traps_in_words(described.caveats)) if described else (),
        wrong=_wrong_memes(runs, key),
        unscored=tuple(unscored),
    )


def fault_of(meme: JudgedMeme, prediction: Prediction) -> VerdictFault | None:
    """Returns the fault of a prediction; None if it is right.

    A meme that was not judged (yet) is not a wrong verdict: these are counted separately.
    """
    if prediction.outcome is Outcome.UNDECIDED:
        return VerdictFault.UNDECIDED
    if prediction.outcome is Outcome.FAILED:
        # A meme that is not judged yet is not a fault.
        return None if prediction.reason == NOT_JUDGED else VerdictFault.FAILED
    if prediction.outcome.harmful is meme.harmful:
        return None
    return VerdictFault.MISSED if meme.harmful else VerdictFault.FALSE_ALARM


def wrong_of(results: Results) -> tuple[tuple[VerdictFault, Judged], ...]:
    """Every wrong verdict of a run, under any of its protocols, in the order of the split."""
    found = []
    for one in results.judged:
        fault = fault_of(one.meme, one.prediction)
        # A meme that every protocol drops has no gold class to compare with.
        if fault is not None and any(one.meme.gold(protocol) is not None for protocol in results.protocols):
            found.append((fault, one))
    return tuple(found)


def surest_first(faults: Sequence[tuple[VerdictFault, Prediction]]) -> tuple[int, float]:
    """Sort key of a meme: the worst fault of any run, then the confidence of that verdict."""
    worst = min(fault for fault, _ in faults)
    sure = [
        abs(prediction.score - 0.5) for fault, prediction in faults if fault is worst and prediction.score is not None
    ]
    # Those without a score come last within their kind.
    return int(worst), -max(sure, default=-1.0)


def _wrong_memes(runs: Sequence[RunView], key: str) -> tuple[WrongMeme, ...]:
    memes: dict[str, JudgedMeme] = {}
    verdicts: dict[str, list[WrongVerdict]] = {}
    by_meme: dict[str, list[tuple[RunView, Judged]]] = {}
    for run in runs:
        for fault, one in wrong_of(run.results):
            memes.setdefault(one.meme.id, one.meme)
            verdicts.setdefault(one.meme.id, []).append(WrongVerdict(run, fault, one.prediction))
        for one in judged_of(run.results):
            by_meme.setdefault(one.meme.id, []).append((run, one))
    order = sorted(
        memes, key=lambda meme: surest_first([(verdict.fault, verdict.prediction) for verdict in verdicts[meme]])
    )
    return tuple(
        WrongMeme(
            key=f"{key}-wrong-{number}",
            meme=memes[meme],
            verdicts=tuple(verdicts[meme]),
            # `is`, not `==`: an undecided verdict is None, which is never right.
            right=tuple(run for run, one in by_meme[meme] if one.prediction.outcome.harmful is one.meme.harmful),
            pictures=next((verdict.pictures for verdict in verdicts[meme] if verdict.pictures), ()),
        )
        for number, meme in enumerate(order, 1)
    )


def _key(words: str) -> str:
    """Makes a string safe for an id in a page, as the split of a file of predictions may have any name."""
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "split"
