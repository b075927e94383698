"""The report on runs of trials: figures by data set, split and protocol, beside baselines and published figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from court.display import word
from court.errors import BadRequest
from eval.datasets.card import DatasetCard
from eval.datasets.items import Protocol
from eval.reports.sections import (
    BESIDE,
    Drawn,
    Section,
    Tile,
    need_page,
    notes_in_words,
    published_sections,
    traps_in_words,
)
from eval.runs.results import Results, card_of_results
from eval.scores.measure import (
    FEWEST_TO_SAY,
    RESAMPLES,
    SURE,
    Figure,
    TaskArrays,
    figure,
    figure_over,
    holm,
    listed,
    mcnemar,
    odd_memes,
    paired_differences,
)
from eval.scores.metrics import (
    HARM,
    Answers,
    Card,
    VerdictFault,
    answers_of,
    card,
    cards_rows,
    confusion_rows,
    faults_of,
    harm_arrays,
    noise_in_words,
    shared_answers,
)

PROTOCOLS = {
    Protocol.MERGED: "somewhat and very harmful memes are harmful",
    Protocol.EXTREME: "somewhat harmful memes are dropped",
    Protocol.PLAIN: "the data set's own two classes",
}
"""Meaning of each protocol in words."""
_FEW = 50
"""Number of memes of a class below which the report says how much a single one weighs."""
_CURVES = {
    "ROC": "Of the memes with a score.",
    "Precision and recall": "Of the memes with a score.",
    "Risk and coverage": "Share of wrong verdicts if only the memes with the surest scores are decided.",
}


@dataclass(frozen=True, slots=True)
class RunView:
    """One run in a report."""

    key: str
    label: str
    """Name of the run, made unique if two share one."""
    results: Results

    @property
    def finished(self) -> bool:
        """True if the figures of the run will not change."""
        return self.results.finished and len(self.results.tried) == len(self.results.judged)

    @property
    def title(self) -> str:
        """Label, with a warning if the run is not finished."""
        return self.label if self.finished else f"{self.label} (not finished)"

    @property
    def unfinished_words(self) -> str:
        """Warning about the figures of an unfinished run; empty for a finished one."""
        judged, total = len(self.results.tried), len(self.results.judged)
        if self.finished:
            return ""
        if judged == total:
            return f"{self.label} has judged all of its {total:,} memes, but was not closed."
        return (
            f"{self.label} is not finished: {judged:,} of {total:,} memes are judged. The {total - judged:,} others "
            "have no answer yet, so that there are no strict figures."
        )


@dataclass(frozen=True, slots=True)
class Contrast:
    """A run compared with a rival on the memes of both, by the strict figures."""

    label: str
    against: str
    n: int
    differences: Mapping[str, Figure]
    only_run: int
    """Number of memes that only the run gets right."""
    only_rival: int

    @property
    def p(self) -> float:
        """p-value of the exact McNemar test."""
        return mcnemar(self.only_run, self.only_rival)

    @property
    def judgment(self) -> str:
        """``better``, ``worse``, ``within noise`` or ``too few to say``, in accuracy."""
        # So few can't make the exact test significant, however they fall.
        if 0 < self.only_run + self.only_rival < FEWEST_TO_SAY:
            return "too few to say"
        if self.p >= SURE:
            return "within noise"
        return "better" if self.only_run > self.only_rival else "worse"


class TableRow(NamedTuple):
    """A run under a protocol."""

    run: RunView
    card: Card


@dataclass(frozen=True, slots=True)
class Table:
    """All runs on one split under one protocol."""

    key: str
    protocol: Protocol
    rows: tuple[TableRow, ...]
    contrasts: tuple[Contrast, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """All runs on one split of one data set."""

    key: str
    dataset: str
    split: str
    card: DatasetCard | None
    runs: tuple[RunView, ...]
    tables: tuple[Table, ...]
    unscored: tuple[str, ...]
    """Reasons why runs are missing in tables."""

    @property
    def title(self) -> str:
        """Data set and split in words."""
        return f"{self.card.title if self.card else self.dataset}, {self.split}"


@dataclass(frozen=True, slots=True)
class Report:
    """A report on runs, in the order in which they were given."""

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


def gather(results: Sequence[Results], *, resamples: int = RESAMPLES) -> Report:
    """Scores and compares runs, or predictions from elsewhere, of any data sets.

    Raises BadRequest: There is nothing to report on.
    """
    if not results:
        raise BadRequest("A report needs at least one run.", reason="RUN_MISSING")
    groups: dict[tuple[str, str], list[RunView]] = {}
    for number, (one, label) in enumerate(zip(results, _unique_labels(results), strict=True), 1):
        groups.setdefault((one.dataset, one.split), []).append(RunView(f"run-{number}", label, one))
    return Report(
        tuple(_group(dataset, split, runs, resamples) for (dataset, split), runs in groups.items()), resamples
    )


def _unique_labels(results: Sequence[Results]) -> list[str]:
    """A label for each run: its name, made unique by its folder's name or, if that is not enough, by a number."""
    names = Counter(one.name for one in results)
    labels = [
        one.name if names[one.name] == 1 or one.root is None else f"{one.name} ({one.root.name})" for one in results
    ]
    # Folders in different places may share a name, too.
    twice = Counter(labels)
    return [f"{label} #{place}" if twice[label] > 1 else label for place, label in enumerate(labels, 1)]


def _group(dataset: str, split: str, runs: Sequence[RunView], resamples: int) -> Group:
    # The split of a file of predictions may have any name, and ids in a page may not.
    key = re.sub(r"[^a-z0-9]+", "-", f"{dataset}-{split}".lower()).strip("-") or "split"
    unscored: list[str] = []
    tables = []
    for protocol in dict.fromkeys(protocol for run in runs for protocol in run.results.protocols):
        rows = []
        for run in (one for one in runs if protocol in one.results.protocols):
            try:
                rows.append(TableRow(run, card(run.results, protocol, resamples=resamples)))
            except BadRequest as error:
                # A run without a meme under this protocol must not prevent a report on the others.
                unscored.append(error.message)
        if rows:
            differences = contrasts([(run.label, run.results) for run, _ in rows], protocol, resamples)
            notes = remarks([(run.label, found) for run, found in rows], differences)
            tables.append(
                Table(f"{key}-{protocol}", protocol, tuple(rows), contrasts=tuple(differences), remarks=notes)
            )
    described = card_of_results(runs[0].results)
    return Group(key, dataset, split, described, runs=tuple(runs), tables=tuple(tables), unscored=tuple(unscored))


def contrasts(runs: Sequence[tuple[str, Results]], protocol: Protocol, resamples: int) -> list[Contrast]:
    """Compares each finished run (label, results) with the majority class, its vote, and the first of them.

    Raises BadRequest: Two runs disagree on a gold label.
    """
    found: list[Contrast] = []

    def add(label: str, against: str, run: Answers, rival: TaskArrays) -> None:
        systems = run.arrays, rival
        differences = paired_differences(("accuracy", "macro-f1"), systems, run.groups, resamples=resamples)
        odd, odd_of_rival, _ = odd_memes(*systems)
        found.append(Contrast(label, against, len(run.judged), differences, only_run=odd, only_rival=odd_of_rival))

    # In an unfinished run, memes without an answer yet would count as wrong.
    read = [(label, answers_of(results, protocol)) for label, results in runs if results.finished]
    for label, answers in read:
        gold = answers.arrays.gold[:, 1].tolist()
        # If the classes are of equal size, either will do.
        most = 2 * sum(gold) > len(gold)
        add(label, f"always “{HARM[most]}”", answers, harm_arrays(gold, [most] * len(gold)))
        votes = [one.prediction.vote_harmful for one in answers.judged]
        if voted := [place for place, vote in enumerate(votes) if vote is not None]:
            rival = harm_arrays([gold[place] for place in voted], [votes[place] for place in voted])
            add(label, "the precedents' vote", answers.at(voted), rival)
        first_label, first = read[0]
        if answers is not first:
            try:
                ours, theirs = shared_answers(answers, first)
            except BadRequest as error:
                if error.reason == "NOTHING_SHARED":  # parts of a split
                    continue
                raise
            add(label, first_label, ours, theirs.arrays)
    return found


def remarks(rows: Sequence[tuple[str, Card]], against: Sequence[Contrast]) -> tuple[str, ...]:
    """Explains the limits of a table's figures, in sentences."""
    label, card = rows[0]
    found = [noise_in_words(card)]
    if card.groups:
        found.append(
            f"The memes are of {card.groups:,} groups (of the card, or of one template), which are drawn whole for the "
            "intervals: memes of a group are no independent draws, and where they are alike, tests by memes are too "
            "sure."
        )
    few, name = min((card.harmful, "harmful"), (card.benign, "not harmful"))
    if 0 < few < _FEW:
        found.append(
            f"Only {few:,} of {card.n:,} memes are {name}: one of them more or less moves that class's recall by "
            f"{100 / few:.1f} points."
        )
    elif few == 0:
        found.append(f"None of the {card.n:,} memes is {name}: neither macro-F1 nor AUROC says anything here.")
    if any((other.n, other.harmful) != (card.n, card.harmful) for _, other in rows):
        found.append(
            f"The runs judged different memes, and are compared on those of both. The sentences above are on {label}'s."
        )
    found += [_sentence(rival, against) for rival in dict.fromkeys(contrast.against for contrast in against)]
    if len(against) > 3:
        found.append(
            f"These are {len(against)} comparisons. Among so many between systems that are equally good, one in "
            f"{1 / SURE:.0f} comes out with p < {SURE} by chance. {_after_correction(against)}"
        )
    return tuple(found)


def _after_correction(against: Sequence[Contrast]) -> str:
    """Names the comparisons of a table that remain significant after Holm's correction."""
    corrected = holm([one.p for one in against])
    left = [f"{one.label} against {one.against}" for one, p in zip(against, corrected, strict=True) if p < SURE]
    return f"Left after Holm's correction for that many: {'; '.join(left) or 'none'}."


def _sentence(rival: str, against: Sequence[Contrast]) -> str:
    """Sums up the contrasts of all runs with one rival."""
    parts = []
    for judgment, words_of in (
        ("better", "better by more than chance often makes"),
        ("worse", "worse by more than chance often makes"),
        ("within noise", "within noise"),
        ("too few to say", "not to be told from it on so few memes"),
    ):
        runs = [one.label for one in against if one.against == rival and one.judgment == judgment]
        if runs:
            parts.append(f"{listed(runs)} {'is' if len(runs) == 1 else 'are'} {words_of}")
    return f"In accuracy against {rival}: {'; '.join(parts)}."


def verdicts_json(report: Report) -> dict[str, object]:
    """The figures for other programs."""
    return {
        "resamples": report.resamples,
        "unfinished": [run.label for run in report.unfinished],
        "tables": [
            {
                "dataset": group.dataset,
                "split": group.split,
                "protocol": str(table.protocol),
                "rows": [{"run": row.run.label, "card": asdict(row.card)} for row in table.rows],
                "remarks": list(table.remarks),
            }
            for group in report.groups
            for table in group.tables
        ],
    }


def verdicts_title(report: Report) -> str:
    """Title of the report: its data sets and splits."""
    return listed(group.title for group in report.groups)


def verdicts_lead(report: Report) -> list[str]:
    """Sentences before the sections."""
    return [
        f"Intervals are 95 %, by bootstrap over memes, {report.resamples:,} resamples. Decided figures are over the "
        "memes that were given a class; in strict figures a meme without a class is wrong.",
        *notes_in_words([(run.label, run.results.notes) for run in report.runs]),
    ]


def verdicts_sections(report: Report, *, page: bool = False) -> list[Section]:
    """Figures of all runs; with plots for a page. Raises NotLoaded if what draws them is not installed."""
    if page:
        need_page()
    sections: list[Section] = []
    if report.unfinished:
        lines = tuple(run.unfinished_words for run in report.unfinished)
        sections.append(Section("unfinished", "Not finished: these figures will change", lead=lines, warning=True))
    for group in report.groups:
        sections += _group_sections(group, page=page)
    return sections


def faults_sections(report: Report) -> list[Section]:
    """Counts of wrong verdicts, for a terminal; pages and Markdown list them."""
    titles = ("" if len(report.groups) == 1 else f": {group.title}" for group in report.groups)
    return [
        Section(f"{group.key}-wrong", f"Wrong verdicts{more}", lead=(faults_in_words(group),))
        for group, more in zip(report.groups, titles, strict=True)
    ]


def faults_in_words(group: Group) -> str:
    """Numbers of memes by the worst fault of any run on them."""
    worst: dict[str, VerdictFault] = {}
    for run in group.runs:
        for fault, one in faults_of(run.results):
            worst[one.meme.id] = min(fault, worst.get(one.meme.id, fault))
    counts = Counter(worst.values())
    parts = [f"{counts[fault]:,} {fault.title.lower()}" for fault in VerdictFault if counts[fault]]
    return f"Wrong: {'; '.join(parts) or 'nothing that was judged'}."


def _group_sections(group: Group, *, page: bool) -> Iterator[Section]:
    traps = traps_in_words(group.card.caveats) if group.card else ()
    yield Section(group.key, group.title, lead=group.unscored, notes=tuple(traps))
    for table in group.tables:
        for first in range(0, len(table.rows), BESIDE):
            rows, last = table.rows[first : first + BESIDE], first + BESIDE >= len(table.rows)
            more = f", from run {first + 1} on" if first else ""
            yield Section(
                f"{table.key}-{first}",
                f"Protocol {table.protocol}: {PROTOCOLS[table.protocol]}{more}",
                cards_rows(
                    [(run.title, found) for run, found in rows], [run.title for run, _ in rows if not run.finished]
                ),
                notes=table.remarks if last else (),
                tiles=_tiles(table) if page and not first else (),
                level=3,
            )
        for row in table.rows:
            yield from _row_sections(table, row, page=page)
        if table.contrasts:
            yield _contrasts(table)
        yield from _published(group, table)


def _row_sections(table: Table, row: TableRow, *, page: bool) -> Iterator[Section]:
    """Confusion, failed checks and calibration of one run."""
    run, found = row
    key, title = f"{table.key}-{run.key}", f"{run.label}, {table.protocol}"
    drawn = _plots(table, row, key) if page else ()
    yield Section(f"{key}-confusion", f"Confusion, {title}", confusion_rows(found), drawn=drawn, level=3)
    judged = run.results.judged
    if failed := Counter(check for one in judged for check in one.prediction.checks):
        cells = ((word(check), f"{count:,}", f"{count / len(judged):.3f}") for check, count in failed.most_common())
        without = figure(found.strict_without_mistrials)
        note = (
            f"{found.mistrials:,} of {found.n:,} were mistrials. Accuracy, strict, of all: "
            f"{figure(found.strict.accuracy)}; without mistrials: {without}."
        )
        rows = (("failed check", "memes", "share"), *cells)
        yield Section(f"{key}-checks", f"Checks of full trials, {title}", rows, notes=(note,), level=3)
    bins = [
        (f"{one.low:.3f} to {one.high:.3f}", f"{one.n:,}", f"{one.mean_score:.3f}", f"{one.share_harmful:.3f}")
        for one in found.calibration
    ]
    yield Section(
        f"{key}-calibration",
        f"Calibration, {title}",
        (("scores", "memes", "mean score", "share harmful"), *bins) if bins else (),
        notes=() if bins else ("No meme has a score, so there is nothing to calibrate.",),
        level=3,
        detail=True,
    )


def _plots(table: Table, row: TableRow, key: str) -> tuple[Drawn, ...]:
    from eval.reports import figures

    caption = (
        f"{row.card.scored:,} memes with a score, in bins of nearly equal numbers. On the dashed "
        "line a score is the share of harmful memes among those that have it."
    )
    pairs = row.run.results.under(table.protocol)
    lines = figures.curves([gold for gold, _ in pairs], [one.prediction for _, one in pairs], key)
    return (
        Drawn("Calibration", figures.calibration(row.card.calibration, f"{key}-curve") or "", caption),
        *(Drawn(title, svg, _CURVES[title]) for title, svg in lines),
    )


def _tiles(table: Table) -> tuple[Tile, ...]:
    """Accuracy, macro-F1 and coverage of the finished runs; others have no strict figures."""
    finished = [(run.label, found) for run, found in table.rows if run.finished]
    if not finished:
        return ()
    return (
        Tile("Accuracy", tuple((label, found.strict.accuracy) for label, found in finished)),
        Tile("Macro-F1", tuple((label, found.strict.macro_f1) for label, found in finished)),
        Tile("Coverage", tuple((label, found.coverage) for label, found in finished)),
    )


def _contrasts(table: Table) -> Section:
    heads = ("run", "against", "memes", "accuracy", "macro-F1", "only the run right", "only the other", "p")
    rows: list[tuple[str, ...]] = [(*heads, "accuracy is")]
    for one in table.contrasts:
        differences = (figure(one.differences[name], "+.1f", times=100) for name in ("accuracy", "macro-f1"))
        odd = (f"{one.only_run:,}", f"{one.only_rival:,}", f"{one.p:.2g}")
        rows.append((one.label, one.against, f"{one.n:,}", *differences, *odd, one.judgment))
    return Section(
        f"{table.key}-contrasts",
        f"Compared meme by meme, {table.protocol}",
        tuple(rows),
        caption="Differences of the strict figures in points, by paired bootstrap; p by the exact McNemar test",
        level=3,
    )


def _published(group: Group, table: Table) -> list[Section]:
    task = group.card.court_task if group.card else None
    if group.card is None or task is None:
        return []
    ours = []
    for run, found in table.rows:
        strict = found.strict
        cells = {
            "accuracy": figure(strict.accuracy),
            "macro-f1": figure(strict.macro_f1),
            "auroc": figure_over(found.auroc, found.scored, found.n),
            "mmae": figure_over(found.mmae, found.levelled, found.n),
        }
        manifest = run.results.manifest
        ours.append((run.title, word(manifest.procedure) if manifest else "", found.n, cells))
    theirs = group.card.published_on(task.id, group.split, table.protocol)
    return published_sections(f"{table.key}-published", str(table.protocol), theirs, ours, level=3)
