"""The report on runs: their answers by data set, split and task, beside baselines, each other, and published figures.

Harm is a task like any other, with a table for each protocol.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np

from court.display import word
from court.errors import BadRequest
from eval.datasets.card import DatasetCard, SplitRole
from eval.datasets.items import Outcome, Protocol
from eval.reports.sections import (
    BESIDE,
    Drawn,
    Rows,
    Section,
    Tile,
    need_page,
    notes_in_words,
    published_sections,
    traps_in_words,
)
from eval.runs.results import Results, card_of_results
from eval.scores.choose import Choice, choice_in_words, rank_answers
from eval.scores.compare import Comparison, compare
from eval.scores.measure import NOTHING, RESAMPLES, SURE, figure, figure_over, holm, listed, strict_name
from eval.scores.metrics import DECIDED, KINDS, KINDS_OF_MANY, TaskCard, VerdictFault, faults_of, task_card
from eval.solvers.question import ELSEWHERE, Answerer

PROTOCOLS = {
    Protocol.MERGED: "somewhat and very harmful memes are harmful",
    Protocol.EXTREME: "somewhat harmful memes are dropped",
    Protocol.PLAIN: "the data set's own two classes",
}
"""Meaning of each protocol in words."""
_LISTED = 10
"""Largest number of systems that a choice lists."""
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
        """True if the figures of the run will not change. Predictions from elsewhere are all that there are."""
        results = self.results
        return results.finished and (results.manifest is None or len(results.tried) == len(results.judged))

    @property
    def title(self) -> str:
        """Label, with a warning if the run is not finished."""
        return self.label if self.finished else f"{self.label} (not finished)"

    @property
    def unfinished_words(self) -> str:
        """Warning about the figures of an unfinished run; empty for a finished one."""
        if self.finished:
            return ""
        return (
            f"{self.label} is not finished: {len(self.results.tried):,} of {len(self.results.judged):,} memes are "
            "judged. The others have no answer yet, so that there are no strict figures."
        )


class TableRow(NamedTuple):
    """A run and its figures."""

    run: RunView
    card: TaskCard


@dataclass(frozen=True, slots=True)
class Table:
    """All runs on one task of a split; of verdicts, under one protocol."""

    key: str
    rows: tuple[TableRow, ...]
    comparisons: tuple[Comparison, ...]
    remarks: tuple[str, ...]

    @property
    def first(self) -> TaskCard:
        """Figures of the first run."""
        return self.rows[0].card

    @property
    def name(self) -> str:
        """The protocol, or the task of a question."""
        return str(self.first.protocol or self.first.task)


@dataclass(frozen=True, slots=True)
class Group:
    """All runs on one split of one data set that were asked the same."""

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
        """Data set and split in words, with the question if one was asked."""
        question = self.runs[0].results.question
        about = f": {question.title or question.task}" if question else ""
        return f"{self.card.title if self.card else self.dataset}, {self.split}{about}"

    @property
    def verdicts(self) -> bool:
        """True if the runs held trials."""
        return self.runs[0].results.question is None


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

    @property
    def title(self) -> str:
        """Title of the report: its data sets and splits."""
        return listed(group.title for group in self.groups)


def gather(results: Sequence[Results], *, resamples: int = RESAMPLES, seed: int = 0) -> Report:
    """Scores and compares runs, or predictions from elsewhere, of any data sets.

    Raises BadRequest: There is nothing to report on, or answers to a question can't be scored.
    """
    if not results:
        raise BadRequest("A report needs at least one run.", reason="RUN_MISSING")
    groups: dict[tuple[str, str, str], list[RunView]] = {}
    for number, (one, label) in enumerate(zip(results, _unique_labels(results), strict=True), 1):
        # Grouped by what determines memes and gold, so that different ways of asking a question are side by side.
        question = str(one.question.material()) if one.question else ""
        groups.setdefault((one.dataset, one.split, question), []).append(RunView(f"run-{number}", label, one))
    found = (_group(f"group-{number}", runs, resamples, seed) for number, runs in enumerate(groups.values(), 1))
    return Report(tuple(found), resamples)


def _unique_labels(results: Sequence[Results]) -> list[str]:
    """A label for each run: its name, made unique by its folder's name or, if that is not enough, by a number."""
    names = Counter(one.name for one in results)
    labels = [
        one.name if names[one.name] == 1 or one.root is None else f"{one.name} ({one.root.name})" for one in results
    ]
    # Folders in different places may share a name, too.
    twice = Counter(labels)
    return [f"{label} #{place}" if twice[label] > 1 else label for place, label in enumerate(labels, 1)]


def _group(key: str, runs: Sequence[RunView], resamples: int, seed: int) -> Group:
    first = runs[0].results
    unscored: list[str] = []
    tables: list[Table] = []
    used = dict.fromkeys(protocol for run in runs for protocol in run.results.protocols)
    for protocol in (None,) if first.question else tuple(used):
        rows = []
        for run in (one for one in runs if protocol is None or protocol in one.results.protocols):
            try:
                rows.append(TableRow(run, task_card(run.results, protocol, resamples=resamples, seed=seed)))
            except BadRequest as error:
                if protocol is None:
                    raise
                # A run without a meme under this protocol must not prevent a report on the others.
                unscored.append(error.message)
        if rows:
            compared = tuple(_comparisons(rows, resamples, seed))
            name = f"{key}-{protocol or re.sub(r'[^a-z0-9]+', '-', rows[0].card.task.lower())}"
            tables.append(Table(name, tuple(rows), comparisons=compared, remarks=remarks(rows, compared)))
    card = card_of_results(first)
    return Group(
        key, first.dataset, first.split, card, runs=tuple(runs), tables=tuple(tables), unscored=tuple(unscored)
    )


def _comparisons(rows: Sequence[TableRow], resamples: int, seed: int) -> Iterator[Comparison]:
    """Compares each finished run with the first of them. Raises BadRequest: Two runs disagree on a gold label."""
    # In an unfinished run, memes without an answer yet would count as wrong.
    finished = [run for run, _ in rows if run.results.finished]
    for run in finished[1:]:
        first = finished[0]
        try:
            found = compare(run.results, first.results, rows[0].card.protocol, resamples=resamples, seed=seed)
        except BadRequest as error:
            if error.reason == "NOTHING_SHARED":  # parts of a split
                continue
            raise
        yield replace(found, name_a=run.label, name_b=first.label)


def noise_in_words(card: TaskCard) -> str:
    """Describes how much the accuracy over all memes would vary with another sample of the same size."""
    accuracy = card.known("accuracy")
    memes = f"{card.n:,} meme{'' if card.n == 1 else 's'}"
    return (
        f"With {memes} an accuracy of {accuracy.value:.3f} is known to lie between {accuracy.low:.3f} and "
        f"{accuracy.high:.3f}; a difference within that between two systems is noise unless they are compared meme by "
        "meme."
    )


def remarks(rows: Sequence[TableRow], compared: Sequence[Comparison]) -> tuple[str, ...]:
    """Explains the limits of a table's figures, in sentences."""
    (run, card), n = rows[0], rows[0].card.n
    found = [noise_in_words(card)] if "accuracy" in card.figures else []
    if card.groups:
        found.append(
            f"The memes are of {card.groups:,} groups (of the card, or of one template), which are drawn whole for the "
            "intervals: memes of a group are no independent draws, and where they are alike, tests by memes are too "
            "sure."
        )
    if any((other.n, other.gold) != (n, card.gold) for _, other in rows):
        found.append(
            f"The runs judged different memes, and are compared on those of both. The sentences above are on "
            f"{run.label}'s."
        )
    # A single comparison needs no correction.
    if len(compared) > 1:
        corrected = holm([one.mcnemar_p for one in compared])
        left = [one.name_a for one, p in zip(compared, corrected, strict=True) if p < SURE]
        found.append(
            f"These are {len(compared)} comparisons. Among so many between systems that are equally good, one in "
            f"{1 / SURE:.0f} comes out with p < {SURE} by chance. Left after Holm's correction for that many: "
            f"{', '.join(left) or 'none'}."
        )
    for one, each in rows:
        # By reason, as a run's own output has it: of a hundred malformed replies, the model is to be looked at first.
        tried = (judged.prediction for judged in one.results.tried)
        reasons = Counter(p.reason for p in tried if p.outcome is Outcome.FAILED and p.reason)
        if each.question and reasons:
            counted = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
            found.append(f"Without an answer, {one.label}: {counted}.")
    return tuple(found)


def as_json(report: Report) -> dict[str, object]:
    """The figures for other programs."""
    return {
        "resamples": report.resamples,
        "unfinished": [run.label for run in report.unfinished],
        "tables": [
            {
                "dataset": group.dataset,
                "split": group.split,
                "task": table.first.task,
                "protocol": table.first.protocol,
                "rows": [
                    {"run": row.run.label, "root": str(row.run.results.root or ""), "card": _card_json(row.card)}
                    for row in table.rows
                ],
                "remarks": list(table.remarks),
            }
            for group in report.groups
            for table in group.tables
        ],
    }


def _card_json(card: TaskCard) -> dict[str, object]:
    question = card.question.model_dump(mode="json") if card.question else None
    return {**asdict(replace(card, question=None)), "question": question}


def lead_of(report: Report) -> list[str]:
    """Sentences before the sections."""
    return [
        f"Intervals are 95 %, by bootstrap over memes, {report.resamples:,} resamples. Figures named decided are over "
        "the memes that have an answer, and those with “of” over as many memes as they say; in all others, a meme "
        "without an answer is wrong.",
        *notes_in_words([(run.label, run.results.notes) for run in report.runs]),
    ]


def sections_of(report: Report, *, page: bool = False) -> list[Section]:
    """Figures of all runs; with plots for a page. Raises NotLoaded if what draws them is not installed."""
    if page:
        need_page()
    sections: list[Section] = []
    if report.unfinished:
        lines = tuple(run.unfinished_words for run in report.unfinished)
        sections.append(Section("unfinished", "Not finished: these figures will change", lead=lines, warning=True))
    for group in report.groups:
        traps = traps_in_words(group.card.caveats) if group.card else ()
        sections.append(Section(group.key, group.title, lead=group.unscored, notes=tuple(traps)))
        for table in group.tables:
            sections += _table_sections(group, table, page=page)
    return sections


def faults_sections(report: Report) -> list[Section]:
    """Counts of wrong verdicts, for a terminal; pages and Markdown list them."""
    groups = [group for group in report.groups if group.verdicts]
    titles = ("" if len(groups) == 1 else f": {group.title}" for group in groups)
    return [
        Section(f"{group.key}-wrong", f"Wrong verdicts{more}", lead=(faults_in_words(group),))
        for group, more in zip(groups, titles, strict=True)
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


def figure_rows(rows: Sequence[TableRow]) -> Rows:
    """Figures of runs side by side, one per column, and those of a constant answer."""
    cards = [card for _, card in rows]
    first = cards[0]
    found: list[tuple[str, ...]] = [("", *(run.title for run, _ in rows), first.baseline_words)]

    def row(title: str, cells: Sequence[str], baseline: float | None = None) -> None:
        if any(cell != NOTHING for cell in cells):
            found.append((title, *cells, figure(baseline) if baseline is not None else ""))

    if first.question:
        row("asked with", [describe_question(card) for card in cards])
    else:
        row("protocol", [str(card.protocol) for card in cards])
    row("memes", [f"{card.n:,}" for card in cards])
    if not first.question:
        row("of these harmful", [f"{card.gold['harmful']:,}" for card in cards])
        row("dropped by the protocol", [f"{card.dropped:,}" if card.dropped else NOTHING for card in cards])
    row("without an answer, failed", [f"{card.unanswered:,}, {card.failed:,}" for card in cards])
    for name in _shown_metrics(cards):
        # Over some memes, a figure of an unfinished run means something; over all, memes that wait count as wrong.
        partial = strict_name(name) != name
        cells = [_over(card, name) if run.finished or partial else NOTHING for run, card in rows]
        title = _title_of(name)
        marked = f"{title} (official)" if first.question and name == first.question.official else title
        row(marked, cells, first.baseline.get(name))
        if name in DECIDED and (first.protocol or any(card.unanswered for card in cards)):
            row(f"{title}, decided", [figure(card.decided.get(name)) for card in cards])
    row("ECE", [figure_over(card.ece, sum(one.n for one in card.calibration), card.n) for card in cards])
    for name in ("accuracy", "macro-f1"):
        voted = [figure_over(card.vote.get(name), card.voted, card.n) for card in cards]
        row(f"precedents' vote: {_title_of(name)}", voted)
    return tuple(found)


def _title_of(name: str) -> str:
    """Name of a metric as people write it: ``macro-f1`` is macro-F1."""
    return re.sub("auroc|mmae|f1", lambda part: part[0].upper(), name).replace("brier", "Brier")


def _shown_metrics(cards: Sequence[TaskCard]) -> list[str]:
    """Metrics of some runs; strict forms only if one of the runs has no value for some memes."""
    names = dict.fromkeys(name for card in cards for name in card.metrics)
    same = {
        strict_name(name)
        for name in names
        if strict_name(name) != name and all(card.over.get(name, card.n) == card.n for card in cards)
    }
    return [name for name in names if name not in same]


def _over(card: TaskCard, name: str) -> str:
    return figure_over(card.figures.get(name), card.over.get(name, card.n), card.n)


def label_rows(card: TaskCard) -> Rows:
    """Figures of each label, with a row per label."""
    kinds = [kind for kind in (*KINDS, *KINDS_OF_MANY) if any(f"{kind}:{label}" in card.figures for label in card.gold)]
    scored = card.over.get("auroc", card.n)
    heads = {"auroc": f"AUROC of {scored:,}" if scored < card.n else "AUROC", "auroc-strict": "AUROC, strict"}
    heads |= {"f1": "F1", "binary-accuracy": "accuracy", "binary-macro-f1": "macro-F1 yes/no"}
    return (
        ("label", "gold", "said", "prevalence", *(heads.get(kind, kind) for kind in kinds)),
        *(
            (
                label,
                f"{gold:,}",
                f"{card.said[label]:,}",
                figure(gold / card.n),
                *(figure(card.figures[f"{kind}:{label}"]) for kind in kinds),
            )
            for label, gold in card.gold.items()
        ),
    )


def confusion_rows(card: TaskCard) -> Rows:
    """Confusion counts, with a row per gold label and a column per outcome; empty if a meme may have several labels."""
    if not card.confusion:
        return ()
    # Columns for memes without an answer, so that each row adds up to its gold count.
    head = ("gold \\ said", *card.gold, "no answer" if card.question else "undecided", "failed")
    counts = (tuple(f"{n:,}" for n in row) for row in card.confusion)
    return (head, *((label, *row) for label, row in zip(card.gold, counts, strict=True)))


def _table_sections(group: Group, table: Table, *, page: bool) -> Iterator[Section]:
    protocol = table.first.protocol
    title = f"Protocol {protocol}: {PROTOCOLS[protocol]}" if protocol else f"Figures, {table.name}"
    for start in range(0, len(table.rows), BESIDE):
        last = start + BESIDE >= len(table.rows)
        yield Section(
            f"{table.key}-figures-{start}",
            f"{title}{f', from run {start + 1} on' if start else ''}",
            figure_rows(table.rows[start : start + BESIDE]),
            notes=table.remarks if last else (),
            tiles=_tiles(table) if page and not start else (),
            level=3,
        )
    for row in table.rows:
        yield from _row_sections(table, row, page=page)
    if not protocol:
        yield from _grid(table)
        yield from _choice(group, table)
        yield from _orders(table)
    if table.comparisons:
        yield _compared(table)
    yield from _published(group, table)


def _row_sections(table: Table, row: TableRow, *, page: bool) -> Iterator[Section]:
    """Labels, confusion, failed checks and calibration of one run."""
    run, card = row
    key, title = f"{table.key}-{run.key}", f"{run.label}, {table.name}"
    if run.finished:
        yield Section(f"{key}-labels", f"Labels, {title}", label_rows(card), level=3)
    drawn = _plots(row, key) if page and card.protocol else ()
    if counts := confusion_rows(card):
        yield Section(f"{key}-confusion", f"Confusion, {title}", counts, drawn=drawn, level=3)
    judged = run.results.judged
    if failed := Counter(check for one in judged for check in one.prediction.checks):
        cells = ((word(check), f"{count:,}", f"{count / len(judged):.3f}") for check, count in failed.most_common())
        note = (
            f"{card.mistrials:,} of {card.n:,} were mistrials. Accuracy of all: {figure(card.known('accuracy'))}; "
            f"without mistrials: {figure(card.sound)}."
        )
        rows = (("failed check", "memes", "share"), *cells)
        yield Section(f"{key}-checks", f"Checks of full trials, {title}", rows, notes=(note,), level=3)
    if bins := [
        (f"{one.low:.3f} to {one.high:.3f}", f"{one.n:,}", f"{one.mean_score:.3f}", f"{one.share_harmful:.3f}")
        for one in card.calibration
    ]:
        head = ("scores", "memes", "mean score", "share harmful")
        yield Section(f"{key}-calibration", f"Calibration, {title}", (head, *bins), level=3, detail=True)


def _plots(row: TableRow, key: str) -> tuple[Drawn, ...]:
    from eval.reports import figures

    run, card = row
    assert card.protocol is not None, "only verdicts are drawn"
    caption = (
        f"{sum(one.n for one in card.calibration):,} memes with a score, in bins of nearly equal numbers. On the "
        "dashed line a score is the share of harmful memes among those that have it."
    )
    pairs = run.results.under(card.protocol)
    lines = figures.curves([gold for gold, _ in pairs], [one.prediction for _, one in pairs], key)
    return (
        Drawn("Calibration", figures.calibration(card.calibration, f"{key}-curve") or "", caption),
        *(Drawn(title, svg, _CURVES[title]) for title, svg in lines),
    )


def _tiles(table: Table) -> tuple[Tile, ...]:
    """Accuracy, macro-F1 and coverage of the finished runs, as far as the task has them."""
    found = []
    for title, names in (("Accuracy", ("accuracy", "exact")), ("Macro-F1", ("macro-f1",)), ("Coverage", ("coverage",))):
        values = [
            (run.label, next(filter(None, map(card.figures.get, names)), None))
            for run, card in table.rows
            if run.finished
        ]
        bars = tuple((label, value) for label, value in values if value is not None)
        found += [Tile(title, bars)] if bars else []
    return tuple(found)


def _compared(table: Table) -> Section:
    first = table.comparisons[0]
    names = ("accuracy", "macro-f1") if first.protocol else (first.official,)
    rows: list[tuple[str, ...]] = [
        ("run", "memes", *names, "only the run right", "only the first", "p", f"{first.official} is")
    ]
    for one in table.comparisons:
        differences = (figure(one.differences.get(name), "+.1f", times=100) for name in names)
        odd = (f"{one.only_a_right:,}", f"{one.only_b_right:,}", f"{one.mcnemar_p:.2g}")
        rows.append((one.name_a, f"{one.n:,}", *differences, *odd, one.judgment))
    return Section(
        f"{table.key}-compared",
        f"Compared meme by meme with {first.name_b}, {table.name}",
        tuple(rows),
        caption="Differences of the figures over all memes in points, by paired bootstrap; p by the exact McNemar test",
        level=3,
    )


def _published(group: Group, table: Table) -> list[Section]:
    card, protocol = group.card, table.first.protocol
    task = (card.court_task.id if card and card.court_task else "") if protocol else table.first.task
    if card is None or not task:
        return []
    ours = []
    for run, found in table.rows:
        manifest = run.results.manifest
        how = describe_question(found) if found.question else word(manifest.procedure) if manifest else ""
        ours.append((run.title, how, found.n, {name: _over(found, name) for name in found.metrics}))
    theirs = card.published_on(task, group.split, *([protocol] if protocol else []))
    return published_sections(f"{table.key}-published", table.name, theirs, ours, level=3)


def describe_question(card: TaskCard) -> str:
    """Describes briefly how a run asked: its inputs and number of examples."""
    question = card.question
    if question is None or question.by == Answerer.TRIAL:
        return "trial on harm"
    if question.inputs == (ELSEWHERE,):
        return ELSEWHERE
    words = [
        "+".join(question.inputs),
        f"{question.shots}-shot" if question.by == Answerer.MODEL else "precedents' vote",
    ]
    if question.rotate:
        words.append(f"{len(question.orders)} orders")
    return ", ".join(words)


def _grid(table: Table) -> Iterator[Section]:
    """Shots x inputs, one table for each combination of other differences."""
    # Cells are compared with each other, so that each has to be over all memes.
    official = table.first.official
    if any(card.over.get(official, card.n) < card.n for _, card in table.rows):
        official = strict_name(official)
    kinds: dict[str, list[tuple[str, int, str]]] = {}
    for run, card in table.rows:
        question, manifest = card.question, run.results.manifest
        assert question is not None, "only questions are asked in several ways"
        models = ", ".join(sorted(set(manifest.models.values()))) if manifest else ""
        orders = "each order of the options" if question.rotate else "one order"
        # A trial has its own evidence, so that it is in no row of inputs.
        orders = "trials" if question.by == Answerer.TRIAL else orders
        cell = ("+".join(question.inputs), question.shots, figure(card.figures[official]))
        kinds.setdefault(f"{models or question.by}, {orders}", []).append(cell)
    for number, (name, cells) in enumerate(kinds.items()):
        shots, inputs = sorted({n for _, n, _ in cells}), list(dict.fromkeys(shown for shown, _, _ in cells))
        # A single run, or a single cell, is no grid.
        if len(cells) < 2 or len(shots) * len(inputs) < 2:
            continue
        by_cell: dict[tuple[str, int], list[str]] = {}
        for shown, n, value in cells:
            by_cell.setdefault((shown, n), []).append(value)
        head = ("inputs", *(f"{n}-shot" for n in shots))
        rows = ((shown, *("; ".join(by_cell.get((shown, n), [NOTHING])) for n in shots)) for shown in inputs)
        title = f"{official} by inputs and examples: {name}"
        yield Section(f"{table.key}-grid-{number}", title, (head, *rows), level=3)


def _choice(group: Group, table: Table) -> Iterator[Section]:
    """The best of several ways of asking, and its selection bias."""
    runs = [run.results for run, _ in table.rows if run.results.finished]
    questions = {card.question.model_dump_json() for _, card in table.rows if card.question}
    # Runs that asked the same are not alternatives to choose from.
    if len(runs) < 2 or len(questions) < len(runs):
        return
    key, title = f"{table.key}-choice", "Best first"
    try:
        choice = rank_answers(runs)
    except BadRequest as error:
        # Runs on different memes or without the official metric can't be ranked, but reported.
        if error.reason not in ("MEMES_DIFFER", "TOO_FEW_TO_CHOOSE"):
            raise
        yield Section(key, title, notes=(error.message,), level=3)
        return
    splits = group.card.all_splits() if group.card else ()
    test = any(one.name == group.split and one.role is SplitRole.TEST for one in splits)
    notes = ("This split is for testing: choose on another, and measure the choice here, once.",) if test else ()
    yield replace(choice_section(key, title, choice, notes), level=3)


def choice_section(key: str, title: str, choice: Choice, notes: Sequence[str] = ()) -> Section:
    """Systems, best first, and how sure that order is."""
    rows = [("system", choice.metric, "accuracy", "coverage", "behind the best")]
    for place, way in enumerate(choice.ways[:_LISTED]):
        behind = figure(way.behind) if place else ""
        rows.append((way.name, figure(way.value), f"{way.accuracy:.3f}", f"{way.coverage:.3f}", behind))
    more = len(choice.ways) - _LISTED
    others = [f"and {more:,} more; --json lists all"] if more > 0 else []
    return Section(key, title, tuple(rows), (*others, *choice_in_words(choice), *notes))


def _orders(table: Table) -> Iterator[Section]:
    for run, card in table.rows:
        if not card.by_order:
            continue
        rows: list[tuple[str, ...]] = [("metric", "of most answers", "mean of the orders", "lowest", "highest")]
        for name in card.metrics:
            known = [value for of in card.by_order if (value := of.get(name)) is not None]
            if known:
                cells = (card.figures[name], float(np.mean(known)), min(known), max(known))
                rows.append((name, *map(figure, cells)))
        title = f"By the order of the options, {run.label}: {len(card.by_order)} orders"
        yield Section(f"{table.key}-{run.key}-orders", title, tuple(rows), level=3)
