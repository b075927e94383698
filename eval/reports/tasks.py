"""Report on runs that asked a card's question, as sections for a terminal, Markdown and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from court.errors import BadRequest
from eval.datasets.card import CardPublished, SplitRole
from eval.datasets.items import Outcome
from eval.reports.sections import BESIDE, Section, Tile, notes_in_words, published_sections, traps_in_words
from eval.runs.results import Results, card_of_results
from eval.scores.choose import Choice, choice_in_words, rank_answers
from eval.scores.compare import compare
from eval.scores.measure import figure, figure_over, strict_name
from eval.scores.metrics import answers_of, question_of
from eval.scores.task_card import TaskCard, task_card
from eval.solvers.question import ELSEWHERE, Answerer

_LISTED = 10
"""Largest number of systems that a choice lists."""


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """Runs that asked the same question of the same split."""

    dataset: str
    split: str
    runs: tuple[tuple[Results, TaskCard], ...]
    caveats: tuple[str, ...]
    role: SplitRole | None
    """Purpose of the split; None if the card is unknown."""
    published: tuple[CardPublished, ...] = ()

    @property
    def first(self) -> TaskCard:
        """Figures of the first run."""
        return self.runs[0][1]


_LABEL_HEAD = (
    *("label", "gold", "said", "prevalence", "precision", "recall", "F1", "accuracy", "macro-F1 yes/no"),
    *("always no: accuracy", "macro-F1"),
)


def gather_tasks(results: Sequence[Results], *, seed: int = 0) -> tuple[TaskGroup, ...]:
    """Scores runs that asked questions, by data set, split, and task.

    Raises BadRequest: A run can't be scored.
    """
    groups: dict[tuple[str, str, str], list[tuple[Results, TaskCard]]] = {}
    for one in results:
        # Grouped by what determines memes and gold, so that different ways of asking a question are side by side.
        key = (one.dataset, one.split, str(question_of(one).material()))
        groups.setdefault(key, []).append((one, task_card(one, seed=seed)))
    return tuple(_group(dataset, split, runs) for (dataset, split, _), runs in groups.items())


def lead_of(groups: Sequence[TaskGroup]) -> list[str]:
    """Sentences before the sections: which figures will change, and notes on the data."""
    runs = [one for group in groups for one, _ in group.runs]
    unfinished = [one.name for one in runs if not one.finished]
    changing = [f"NOT FINISHED, so that these figures will change: {', '.join(unfinished)}."] if unfinished else []
    return [*changing, *notes_in_words([(one.name, one.notes) for one in runs])]


def sections_of(groups: Sequence[TaskGroup]) -> list[Section]:
    """Sections of all groups, in order."""
    return [
        section
        for number, group in enumerate(groups, 1)
        for section in (
            *_figures(group, number),
            *_published(group, number),
            *_grid(group, number),
            *_choice(group, number),
            *_labels(group, number),
            *_confusions(group, number),
            *_orders(group, number),
            *_comparisons(group, number),
        )
    ]


def as_json(groups: Sequence[TaskGroup]) -> list[dict[str, object]]:
    """The figures for other programs."""
    return [
        {
            "dataset": group.dataset,
            "split": group.split,
            "task": group.first.question.task,
            "caveats": list(group.caveats),
            "published": [one.model_dump(mode="json") for one in group.published],
            "runs": [
                {
                    "run": str(one.root or ""),
                    "name": one.name,
                    "finished": one.finished,
                    "question": card.question.model_dump(mode="json"),
                    # Its question stands beside it.
                    "card": asdict(replace(card, question=None)),  # type: ignore[arg-type]
                }
                for one, card in group.runs
            ],
        }
        for group in groups
    ]


def describe_question(card: TaskCard) -> str:
    """Describes briefly how a run asked: its inputs and number of examples."""
    question = card.question
    if question.inputs == (ELSEWHERE,):
        return ELSEWHERE
    if question.by == Answerer.TRIAL:
        return "trial on harm"
    words = [
        "+".join(question.inputs),
        f"{question.shots}-shot" if question.by == Answerer.MODEL else "precedents' vote",
    ]
    if question.rotate:
        words.append(f"{len(question.orders)} orders")
    return ", ".join(words)


def _group(dataset: str, split: str, runs: Sequence[tuple[Results, TaskCard]]) -> TaskGroup:
    card = card_of_results(runs[0][0])
    role = next((one.role for one in card.all_splits() if one.name == split), None) if card else None
    task = runs[0][1].question.task
    published = card.published_on(task, split) if card else ()
    return TaskGroup(dataset, split, tuple(runs), caveats=card.caveats if card else (), role=role, published=published)


def _figures(group: TaskGroup, number: int) -> Iterator[Section]:
    first = group.first
    question = first.question
    title = f"{group.dataset}, {group.split}: {question.title or question.task}"
    for start in range(0, len(group.runs), BESIDE):
        columns = group.runs[start : start + BESIDE]
        cards = [card for _, card in columns]
        rows = [["", *(one.name for one, _ in columns), first.baseline_words]]
        rows.append(["asked with", *map(describe_question, cards), ""])
        rows.append(["memes", *(f"{card.n:,}" for card in cards), f"{first.n:,}"])
        rows.append(["without an answer, failed", *(f"{card.unanswered:,}, {card.failed:,}" for card in cards), ""])
        for name in _shown_metrics(cards):
            cells = [_over(card, name) for card in cards]
            marked = f"{name} (official)" if name == question.official else name
            rows.append([marked, *cells, figure(first.baseline.get(name))])
        last = start + BESIDE >= len(group.runs)
        yield Section(
            key=f"task-{number}-figures-{start}",
            title=title,
            rows=tuple(map(tuple, rows)),
            notes=_notes(group) if last else (),
            tiles=_tiles(columns),
        )


def _tiles(runs: Sequence[tuple[Results, TaskCard]]) -> tuple[Tile, ...]:
    """Accuracy, macro-F1 and coverage of finished runs, as far as the question has them."""
    found = []
    for title, names in (("Accuracy", ("accuracy", "exact")), ("Macro-F1", ("macro-f1",)), ("Coverage", ("coverage",))):
        values = (
            (one.name, next(filter(None, map(card.figures.get, names)), None)) for one, card in runs if one.finished
        )
        bars = tuple((name, value) for name, value in values if value is not None)
        found += [Tile(title, bars)] if bars else []
    return tuple(found)


def _published(group: TaskGroup, number: int) -> list[Section]:
    ours = [
        (run.name, describe_question(card), card.n, {name: _over(card, name) for name in card.figures})
        for run, card in group.runs
    ]
    return published_sections(f"task-{number}-published", group.first.question.task, group.published, ours)


def _notes(group: TaskGroup) -> tuple[str, ...]:
    first = group.first
    drawn = f"groups of memes ({first.groups:,} of them)" if first.groups else "memes"
    notes = [f"Intervals are 95 %, by bootstrap over {drawn}; a meme without an answer is wrong."]
    for results, _ in group.runs:
        predictions = (one.prediction for one in results.judged)
        # By reason, as a run's own output has it: of a hundred malformed replies, the model is to be looked at first.
        found = Counter(one.reason for one in predictions if one.outcome is not Outcome.ANSWERED and one.reason)
        if found:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in found.most_common())
            notes.append(f"Without an answer, {results.name}: {reasons}.")
    return (*notes, *traps_in_words(group.caveats))


def _grid(group: TaskGroup, number: int) -> Iterator[Section]:
    """Shots x inputs, one table for each combination of other differences."""
    # Cells are compared with each other, so that each has to be over all memes.
    official = group.first.official
    if any(card.over.get(official, card.n) < card.n for _, card in group.runs):
        official = strict_name(official)
    kinds: dict[str, list[TaskCard]] = {}
    for one, card in group.runs:
        models = ", ".join(sorted(set(one.manifest.models.values()))) if one.manifest else ""
        orders = "each order of the options" if card.question.rotate else "one order"
        # A trial has its own evidence, so that it is in no row of inputs.
        orders = "trials" if card.question.by == Answerer.TRIAL else orders
        kinds.setdefault(f"{models or card.question.by}, {orders}", []).append(card)
    for name, cards in kinds.items():
        by_votes = cards[0].question.by == Answerer.PRECEDENTS
        shots = sorted({card.question.shots for card in cards})
        inputs = list(dict.fromkeys("+".join(card.question.inputs) for card in cards))
        # A single run, or a single cell, is no grid.
        if len(cards) < 2 or len(shots) * len(inputs) < 2:
            continue
        cells: dict[tuple[str, int], list[str]] = {}
        for card in cards:
            at = ("+".join(card.question.inputs), card.question.shots)
            cells.setdefault(at, []).append(figure(card.figures[official]))
        rows = [["inputs", *("vote" if by_votes else f"{n}-shot" for n in shots)]]
        rows += [[shown, *("; ".join(cells.get((shown, n), ["–"])) for n in shots)] for shown in inputs]
        yield Section(
            key=f"task-{number}-grid-{len(rows)}-{len(shots)}",
            title=f"{official} by inputs and examples: {name}",
            rows=tuple(map(tuple, rows)),
        )


def _choice(group: TaskGroup, number: int) -> Iterator[Section]:
    """The best of several ways of asking, and its selection bias."""
    runs = [one for one, _ in group.runs if one.finished]
    questions = {card.question.model_dump_json() for _, card in group.runs}
    # Runs that asked the same are not alternatives to choose from.
    if len(runs) < 2 or len(questions) < len(runs):
        return
    try:
        choice = rank_answers(runs)
    except BadRequest as error:
        # Runs on different memes or without the official metric can't be ranked, but reported.
        if error.reason not in ("MEMES_DIFFER", "TOO_FEW_TO_CHOOSE"):
            raise
        yield Section(f"task-{number}-choice", "Best first", (), notes=(error.message,))
        return
    test = group.role is SplitRole.TEST
    notes = ("This split is for testing: choose on another, and measure the choice here, once.",) if test else ()
    yield choice_section(f"task-{number}-choice", "Best first", choice, notes)


def choice_section(key: str, title: str, choice: Choice, notes: Sequence[str] = ()) -> Section:
    """Systems, best first, and how sure that order is."""
    rows = [("system", choice.metric, "accuracy", "coverage", "behind the best")]
    for place, way in enumerate(choice.ways[:_LISTED]):
        behind = figure(way.behind) if place else ""
        rows.append((way.name, figure(way.value), f"{way.accuracy:.3f}", f"{way.coverage:.3f}", behind))
    more = len(choice.ways) - _LISTED
    others = [f"and {more:,} more; --json lists all"] if more > 0 else []
    return Section(key, title, tuple(rows), (*others, *choice_in_words(choice), *notes))


def _labels(group: TaskGroup, number: int) -> Iterator[Section]:
    for place, (one, card) in enumerate(group.runs):
        part = f"AUROC of {card.scored:,}" if card.scored < card.n else "AUROC"
        head = (*_LABEL_HEAD[:9], part, "AUROC, strict", *_LABEL_HEAD[9:])
        rows: list[tuple[str, ...]] = [head]
        rows += [
            (
                of.label,
                f"{of.gold:,}",
                f"{of.said:,}",
                figure(of.prevalence),
                *map(figure, (of.precision, of.recall, of.f1, of.accuracy, of.macro_f1, of.auroc, of.auroc_strict)),
                figure(of.baseline_accuracy),
                figure(of.baseline_macro_f1),
            )
            for of in card.labels
        ]
        yield Section(f"task-{number}-labels-{place}", f"Labels, {one.name}", tuple(rows))


def _confusions(group: TaskGroup, number: int) -> Iterator[Section]:
    if group.first.question.multi:
        return
    for place, (one, card) in enumerate(group.runs):
        arrays = answers_of(one).arrays
        labels = card.question.labels
        # An extra column for memes without an answer, so that each row adds up to its gold count.
        predicted = np.column_stack([arrays.predicted, ~arrays.answered]).astype(np.int64)
        counts = arrays.gold.astype(np.int64).T @ predicted
        rows: list[tuple[str, ...]] = [("gold \\ said", *labels, "no answer")]
        rows += [(label, *(f"{n:,}" for n in row)) for label, row in zip(labels, counts.tolist(), strict=True)]
        yield Section(f"task-{number}-confusion-{place}", f"Confusion, {one.name}", tuple(rows))


def _orders(group: TaskGroup, number: int) -> Iterator[Section]:
    for place, (one, card) in enumerate(group.runs):
        if not card.by_order:
            continue
        rows: list[tuple[str, ...]] = [("metric", "of most answers", "mean of the orders", "lowest", "highest")]
        for name, value in card.figures.items():
            each = [of[name] for of in card.by_order if of.get(name) is not None]
            known = [value for value in each if value is not None]
            if known:
                rows.append((name, figure(value), *map(figure, (float(np.mean(known)), min(known), max(known)))))
        title = f"By the order of the options, {one.name}: {len(card.by_order)} orders"
        yield Section(f"task-{number}-orders-{place}", title, tuple(rows))


def _comparisons(group: TaskGroup, number: int) -> Iterator[Section]:
    if len(group.runs) < 2:
        return
    (first, _), *others = group.runs
    # Memes without an answer yet would count as wrong.
    if not first.finished:
        return
    notes: list[str] = []
    rows = [("run", "memes", "metric", f"less {first.name}'s", "p of McNemar", "it is")]
    for one, _ in others:
        if not one.finished:
            continue
        try:
            comparison = compare(one, first)
        except BadRequest as error:
            if error.reason != "NOTHING_SHARED":
                raise
            rows.append((one.name, "–", "–", "–", "–", "of other memes"))
            continue
        if comparison.left_out_a or comparison.left_out_b:
            notes.append(f"{one.name} is compared on {comparison.n:,} memes, those of both.")
        difference = comparison.differences.get(comparison.official)
        words = "within noise" if not comparison.sure else "better" if comparison.better == one.name else "worse"
        counted, p = f"{comparison.n:,}", f"{comparison.mcnemar_p:.2g}"
        rows.append((one.name, counted, comparison.official, figure(difference), p, words))
    if len(rows) > 1:
        yield Section(f"task-{number}-compared", "Compared meme by meme", tuple(rows), notes=tuple(notes))


def _shown_metrics(cards: Sequence[TaskCard]) -> list[str]:
    """Metrics of some runs; strict forms only if one of the runs has no value for some memes."""
    names = dict.fromkeys(name for card in cards for name in card.figures)
    same = {
        strict_name(name)
        for name in names
        if strict_name(name) != name and all(card.over.get(name, card.n) == card.n for card in cards)
    }
    return [name for name in names if name not in same]


def _over(card: TaskCard, name: str) -> str:
    return figure_over(card.figures.get(name), card.over.get(name, card.n), card.n)
