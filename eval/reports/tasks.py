"""The report on runs: their answers by data set, split and task, beside baselines, each other, and published figures.

Harm is a task like any other, with a table for each protocol.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from court.display import word
from court.errors import BadRequest
from eval.datasets.card import DatasetCard, SplitRole
from eval.datasets.items import Outcome, Protocol
from eval.reports.sections import BESIDE, Drawn, Rows, Section, Tile, plain
from eval.runs.results import Results, card_of_results
from eval.scores.choose import Choice, choice_in_words, rank
from eval.scores.compare import Comparison, compare
from eval.scores.measure import NOTHING, RESAMPLES, SURE, figure, figure_over, holm, listed, strict_name
from eval.scores.metrics import DECIDED, KINDS, KINDS_OF_MANY, TaskCard, VerdictFault, answers_of, faults_of, task_card
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
        """Warning about the figures of an unfinished run."""
        return (
            f"{self.label} is not finished: {len(self.results.tried):,} of {len(self.results.judged):,} memes are "
            "judged. The others have no answer yet, so that there are no strict figures."
        )


_Figures = tuple[RunView, TaskCard]
"""A run and its figures."""


@dataclass(frozen=True, slots=True)
class Table:
    """All runs on one task of a split; of verdicts, under one protocol."""

    key: str
    rows: tuple[_Figures, ...]
    comparisons: tuple[Comparison, ...]
    remarks: tuple[str, ...]

    @property
    def first(self) -> TaskCard:
        """Figures of the first run."""
        return self.rows[0][1]

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
    # A label for each run: its name, made unique by its folder's name or, as folders in different places may share a
    # name too, by a number.
    names = Counter(one.name for one in results)
    labels = [
        one.name if names[one.name] == 1 or one.root is None else f"{one.name} ({one.root.name})" for one in results
    ]
    twice = Counter(labels)
    groups: dict[tuple[str, str, str], list[RunView]] = {}
    for number, (one, label) in enumerate(zip(results, labels, strict=True), 1):
        run = RunView(f"run-{number}", f"{label} #{number}" if twice[label] > 1 else label, one)
        # Grouped by what determines memes and gold, so that different ways of asking a question are side by side.
        question = str(one.question.material()) if one.question else ""
        groups.setdefault((one.dataset, one.split, question), []).append(run)
    found = (_group(f"group-{number}", runs, resamples, seed) for number, runs in enumerate(groups.values(), 1))
    return Report(tuple(found), resamples)


def _group(key: str, runs: Sequence[RunView], resamples: int, seed: int) -> Group:
    first = runs[0].results
    unscored: list[str] = []
    tables: list[Table] = []
    used = dict.fromkeys(protocol for run in runs for protocol in run.results.protocols)
    for protocol in (None,) if first.question else tuple(used):
        rows = []
        for run in (one for one in runs if protocol is None or protocol in one.results.protocols):
            try:
                rows.append((run, task_card(run.results, protocol, resamples=resamples, seed=seed)))
            except BadRequest as error:
                if protocol is None:
                    raise
                # A run without a meme under this protocol must not prevent a report on the others.
                unscored.append(error.message)
        if rows:
            compared = tuple(_comparisons([run for run, _ in rows], protocol, resamples, seed))
            name = f"{key}-{protocol or re.sub(r'[^a-z0-9]+', '-', rows[0][1].task.lower())}"
            tables.append(Table(name, tuple(rows), compared, tuple(_remarks(rows, compared))))
    card = card_of_results(first)
    return Group(
        key, first.dataset, first.split, card, runs=tuple(runs), tables=tuple(tables), unscored=tuple(unscored)
    )


def _comparisons(runs: Sequence[RunView], protocol: Protocol | None, resamples: int, seed: int) -> Iterator[Comparison]:
    """Compares each finished run with the first of them. Raises BadRequest: Two runs disagree on a gold label."""
    # In an unfinished run, memes without an answer yet would count as wrong.
    finished = [run for run in runs if run.results.finished]
    for run in finished[1:]:
        first = finished[0]
        try:
            found = compare(run.results, first.results, protocol, resamples=resamples, seed=seed)
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


def _remarks(rows: Sequence[_Figures], compared: Sequence[Comparison]) -> Iterator[str]:
    """The limits of a table's figures, in sentences."""
    run, card = rows[0]
    if "accuracy" in card.figures:
        yield noise_in_words(card)
    if card.groups:
        yield (
            f"The memes are of {card.groups:,} groups (of the card, or of one template), which are drawn whole for the "
            "intervals: memes of a group are no independent draws, and where they are alike, tests by memes are too "
            "sure."
        )
    if any((other.n, other.gold) != (card.n, card.gold) for _, other in rows):
        yield (
            f"The runs judged different memes, and are compared on those of both. The sentences above are on "
            f"{run.label}'s."
        )
    # A single comparison needs no correction.
    if len(compared) > 1:
        corrected = holm([one.mcnemar_p for one in compared])
        left = [one.name_a for one, p in zip(compared, corrected, strict=True) if p < SURE]
        yield (
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
            yield f"Without an answer, {one.label}: {counted}."


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
                    {
                        "run": run.label,
                        "root": str(run.results.root or ""),
                        "card": {**asdict(card), "question": card.question and card.question.model_dump(mode="json")},
                    }
                    for run, card in table.rows
                ],
                "remarks": list(table.remarks),
            }
            for group in report.groups
            for table in group.tables
        ],
    }


def lead_of(report: Report) -> list[str]:
    """Sentences before the sections."""
    notes: dict[str, list[str]] = {}
    for run in report.runs:
        for note in run.results.notes:
            notes.setdefault(note, []).append(run.label)
    of_all = len(report.runs)
    return [
        f"Intervals are 95 %, by bootstrap over memes, {report.resamples:,} resamples. Figures named decided are over "
        "the memes that have an answer, and those with “of” over as many memes as they say; in all others, a meme "
        "without an answer is wrong.",
        # A note on all runs does not repeat their names.
        *(note if len(labels) == of_all > 1 else f"{', '.join(labels)}: {note}" for note, labels in notes.items()),
    ]


def sections_of(report: Report, *, page: bool = False) -> list[Section]:
    """Figures of all runs; with plots for a page."""
    sections: list[Section] = []
    if report.unfinished:
        lines = tuple(run.unfinished_words for run in report.unfinished)
        sections.append(Section("unfinished", "Not finished: these figures will change", lead=lines, warning=True))
    for group in report.groups:
        caveats = group.card.caveats if group.card else ()
        traps = tuple(f"On this data set: {plain(caveat).rstrip('.')}." for caveat in caveats)
        sections.append(Section(group.key, group.title, lead=group.unscored, notes=traps))
        for table in group.tables:
            sections += _table_sections(group, table, page=page)
    return sections


def _table_sections(group: Group, table: Table, *, page: bool) -> Iterator[Section]:
    protocol = table.first.protocol
    title = f"Protocol {protocol}: {PROTOCOLS[protocol]}" if protocol else f"Figures, {table.name}"
    for start in range(0, len(table.rows), BESIDE):
        yield Section(
            f"{table.key}-figures-{start}",
            f"{title}{f', from run {start + 1} on' if start else ''}",
            _figure_rows(table.rows[start : start + BESIDE]),
            notes=table.remarks if start + BESIDE >= len(table.rows) else (),
            tiles=() if start else _tiles(table),
            level=3,
        )
    for run, card in table.rows:
        yield from _run_sections(f"{table.key}-{run.key}", f"{run.label}, {table.name}", run, card, page=page)
    if not protocol:
        yield from _grid(table)
        yield from _choice(group, table)
        yield from _orders(table)
    if table.comparisons:
        yield _compared(table)
    yield from _published(group, table)


def _figure_rows(rows: Sequence[_Figures]) -> Rows:
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
    names = dict.fromkeys(name for card in cards for name in card.metrics)
    partial = {name: strict_name(name) for name in names if strict_name(name) != name}
    # A strict form stands only if one of the runs has no value for some memes.
    same = {strict for name, strict in partial.items() if all(card.over.get(name, card.n) == card.n for card in cards)}
    for name in (name for name in names if name not in same):
        # Over some memes, a figure of an unfinished run means something; over all, memes that wait count as wrong.
        cells = [_over(card, name) if run.finished or name in partial else NOTHING for run, card in rows]
        title = _title_of(name)
        marked = f"{title} (official)" if first.question and name == first.question.official else title
        row(marked, cells, first.baseline.get(name))
        if name in DECIDED and (first.protocol or any(card.unanswered for card in cards)):
            decided = [
                figure_over(card.decided.get(name), card.decided_over.get(name, 0), card.n - card.unanswered)
                for card in cards
            ]
            row(f"{title}, decided", decided)
    row("ECE", [figure_over(card.ece, sum(one.n for one in card.calibration), card.n) for card in cards])
    for name in ("accuracy", "macro-f1"):
        voted = [figure_over(card.vote.get(name), card.voted, card.n) for card in cards]
        row(f"precedents' vote: {_title_of(name)}", voted)
    return tuple(found)


def _title_of(name: str) -> str:
    """Name of a metric as people write it: ``macro-f1`` is macro-F1."""
    return re.sub("auroc|mmae|f1", lambda part: part[0].upper(), name).replace("brier", "Brier")


def _over(card: TaskCard, name: str) -> str:
    return figure_over(card.figures.get(name), card.over.get(name, card.n), card.n)


def _tiles(table: Table) -> tuple[Tile, ...]:
    """Accuracy, macro-F1 and coverage of the finished runs, as far as the task has them."""
    found = []
    for title, names in (("Accuracy", ("accuracy", "exact")), ("Macro-F1", ("macro-f1",)), ("Coverage", ("coverage",))):
        values = (
            (run.label, next(filter(None, map(card.figures.get, names)), None))
            for run, card in table.rows
            if run.finished
        )
        bars = tuple((label, value) for label, value in values if value is not None)
        found += [Tile(title, bars)] if bars else []
    return tuple(found)


def _run_sections(key: str, title: str, run: RunView, card: TaskCard, *, page: bool) -> Iterator[Section]:
    """Labels, confusion, failed checks and calibration of one run."""
    if run.finished:
        yield Section(f"{key}-labels", f"Labels, {title}", _label_rows(card), level=3)
    if card.confusion:
        # Columns for memes without an answer, so that each row adds up to its gold count.
        head = ("gold \\ said", *card.gold, "no answer" if card.question else "undecided", "failed")
        counts = ((label, *(f"{n:,}" for n in counts)) for label, counts in zip(card.gold, card.confusion, strict=True))
        drawn = _plots(run, card, key) if page and card.protocol else ()
        yield Section(f"{key}-confusion", f"Confusion, {title}", (head, *counts), drawn=drawn, level=3)
    judged = run.results.judged
    if failed := Counter(check for one in judged for check in one.prediction.checks):
        cells = ((word(check), f"{count:,}", f"{count / len(judged):.3f}") for check, count in failed.most_common())
        note = (
            f"{card.mistrials:,} of {card.n:,} were mistrials. Accuracy of all: {figure(card.known('accuracy'))}; "
            f"without mistrials: {figure(card.sound)}."
        )
        checks = (("failed check", "memes", "share"), *cells)
        yield Section(f"{key}-checks", f"Checks of full trials, {title}", checks, notes=(note,), level=3)
    if bins := [
        (f"{one.low:.3f} to {one.high:.3f}", f"{one.n:,}", f"{one.mean_score:.3f}", f"{one.share_harmful:.3f}")
        for one in card.calibration
    ]:
        bins.insert(0, ("scores", "memes", "mean score", "share harmful"))
        yield Section(f"{key}-calibration", f"Calibration, {title}", tuple(bins), level=3, detail=True)


def _label_rows(card: TaskCard) -> Rows:
    kinds = [kind for kind in (*KINDS, *KINDS_OF_MANY) if any(f"{kind}:{label}" in card.figures for label in card.gold)]
    scored = card.over.get("auroc", card.n)
    heads = {"auroc": f"AUROC of {scored:,}" if scored < card.n else "AUROC", "auroc-strict": "AUROC, strict"}
    heads |= {"f1": "F1", "binary-accuracy": "accuracy", "binary-macro-f1": "macro-F1 yes/no"}
    rows = (
        (
            *(label, f"{gold:,}", f"{card.said[label]:,}", figure(gold / card.n)),
            *(figure(card.figures[f"{kind}:{label}"]) for kind in kinds),
        )
        for label, gold in card.gold.items()
    )
    return (("label", "gold", "said", "prevalence", *(heads.get(kind, kind) for kind in kinds)), *rows)


def _plots(run: RunView, card: TaskCard, key: str) -> tuple[Drawn, ...]:
    from eval.reports import figures

    assert card.protocol is not None, "only verdicts are drawn"
    caption = (
        f"{sum(one.n for one in card.calibration):,} memes with a score, in bins of nearly equal numbers. On the "
        "dashed line a score is the share of harmful memes among those that have it."
    )
    lines = figures.curves(answers_of(run.results, card.protocol).arrays, key)
    return (
        Drawn("Calibration", figures.calibration(card.calibration, f"{key}-curve") or "", caption),
        *(Drawn(title, svg, _CURVES[title]) for title, svg in lines),
    )


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


def _published(group: Group, table: Table) -> Iterator[Section]:
    """Figures of the runs and those that others published on the same task, split and protocol."""
    data, protocol = group.card, table.first.protocol
    task = (data.court_task.id if data and data.court_task else "") if protocol else table.first.task
    published = data.published_on(task, group.split, *([protocol] if protocol else [])) if data and task else ()
    if not published:
        return
    # Metrics that we lack come last, and are empty in our rows.
    theirs = {name for one in published for name in one.figures}
    names = [*(name for name in table.first.metrics if name in theirs), *sorted(theirs - {*table.first.metrics})]
    rows = [("system", "asked with", "memes", *names)]
    for run, card in table.rows:
        manifest = run.results.manifest
        how = describe_question(card) if card.question else word(manifest.procedure) if manifest else ""
        ours = (_over(card, name) if name in card.over else NOTHING for name in names)
        rows.append((run.title, how, f"{card.n:,}", *ours))
    counts = {card.n for _, card in table.rows}
    # Most rows share a source or a remark, which would fill the screen otherwise.
    notes: dict[str, list[str]] = {}
    for one in published:
        system = f"{one.system} ({one.year})" if one.year else one.system
        memes = "not said" if one.n is None else f"{one.n:,}"
        rows.append((system, one.setup, memes, *(figure(one.figures.get(name)) for name in names)))
        # If runs differ in their memes, a figure is on another number than at least one of them.
        if one.n is not None and counts != {one.n}:
            counted = " or ".join(f"{n:,}" for n in sorted(counts))
            notes.setdefault(f"On {one.n:,} memes, and not on {counted} as here", []).append(one.system)
        if one.remark:
            notes.setdefault(one.remark.rstrip("."), []).append(one.system)
        source = f"From {one.source}{f', read in {one.read_in}' if one.read_in else ''}"
        notes.setdefault(source, []).append(one.system)
    lines = tuple(f"{words}: {', '.join(dict.fromkeys(systems))}." for words, systems in notes.items())
    title = f"As published by others, beside these runs: {table.name}"
    yield Section(f"{table.key}-published", title, tuple(rows), lines, level=3)


def tried_groups(report: Report) -> list[Group]:
    """Groups of runs that held trials."""
    return [group for group in report.groups if group.runs[0].results.question is None]


def faults_section(report: Report, group: Group) -> Section:
    """Numbers of memes by the worst fault of any run on them; pages and Markdown list the memes, too."""
    worst: dict[str, VerdictFault] = {}
    for run in group.runs:
        for fault, one in faults_of(run.results):
            if fault is not None:
                worst[one.meme.id] = min(fault, worst.get(one.meme.id, fault))
    counts = Counter(worst.values())
    parts = [f"{counts[fault]:,} {fault.title.lower()}" for fault in VerdictFault if counts[fault]]
    lead = f"Wrong: {'; '.join(parts) or 'nothing that was judged'}."
    of = "" if len(tried_groups(report)) == 1 else f": {group.title}"
    return Section(f"{group.key}-wrong", f"Wrong verdicts{of}", lead=(lead,))


def describe_question(card: TaskCard) -> str:
    """Describes briefly how a run asked: its inputs and number of examples."""
    question = card.question
    if question is None or question.by == Answerer.TRIAL:
        return "trial on harm"
    if question.inputs == (ELSEWHERE,):
        return ELSEWHERE
    shots = f"{question.shots}-shot" if question.by == Answerer.MODEL else "precedents' vote"
    orders = [f"{len(question.orders)} orders"] if question.rotate else []
    return ", ".join(["+".join(question.inputs), shots, *orders])


def _grid(table: Table) -> Iterator[Section]:
    """Shots x inputs, one table for each combination of other differences."""
    # Cells are compared with each other, so that each has to be over all memes.
    official = table.first.official
    if any(card.over.get(official, card.n) < card.n for _, card in table.rows):
        official = strict_name(official)
    kinds: dict[str, dict[tuple[str, int], list[str]]] = {}
    for run, card in table.rows:
        question, manifest = card.question, run.results.manifest
        assert question is not None, "only questions are asked in several ways"
        models = ", ".join(sorted(set(manifest.models.values()))) if manifest else ""
        orders = "each order of the options" if question.rotate else "one order"
        # A trial has its own evidence, so that it is in no row of inputs.
        orders = "trials" if question.by == Answerer.TRIAL else orders
        cells = kinds.setdefault(f"{models or question.by}, {orders}", {})
        cells.setdefault(("+".join(question.inputs), question.shots), []).append(figure(card.figures[official]))
    for number, (name, cells) in enumerate(kinds.items()):
        inputs, shots = list(dict.fromkeys(shown for shown, _ in cells)), sorted({n for _, n in cells})
        # A single run, or a single cell, is no grid.
        if len(inputs) * len(shots) < 2:
            continue
        head = ("inputs", *(f"{n}-shot" for n in shots))
        rows = ((shown, *("; ".join(cells.get((shown, n), [NOTHING])) for n in shots)) for shown in inputs)
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
        choice = rank(runs)
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
        rows: list[tuple[str, ...]] = [("metric", "of most answers", "mean of the orders", "lowest", "highest")]
        for name in card.metrics if card.by_order else ():
            known = [value for of in card.by_order if (value := of.get(name)) is not None]
            if known:
                cells = (card.figures[name], float(np.mean(known)), min(known), max(known))
                rows.append((name, *map(figure, cells)))
        if card.by_order:
            title = f"By the order of the options, {run.label}: {len(card.by_order)} orders"
            yield Section(f"{table.key}-{run.key}-orders", title, tuple(rows), level=3)
