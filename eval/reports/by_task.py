"""Any run's figures, split by the gold labels of another task of the data set: where does it do well, and where not?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.card import card_of
from eval.datasets.known import dataset_of_card, find_dataset
from eval.datasets.read_tasks import gold_by_meme
from eval.reports.sections import Section
from eval.reports.words import plain
from eval.runs.results import Results
from eval.scores.metrics import RESAMPLES, Figure, card
from eval.scores.tables import figure
from eval.scores.task_card import task_card


@dataclass(frozen=True, slots=True)
class PartFigures:
    """Figures over the memes that have one gold label of another task.

    Attributes:
        run: Name of the run.
        scored: Task or protocol that the run is scored on.
        label: Label of the other task; "no label" for memes without one, where it may have none.
        n: Memes.
        figures: Figures by name; None where there is no value.
        baseline: The first of them, of always saying the same.
    """

    run: str
    scored: str
    label: str
    n: int
    figures: dict[str, Figure | None]
    baseline: float | None


NO_LABEL = "no label"


def split_by_task(results: Results, task: str, *, resamples: int = RESAMPLES) -> tuple[PartFigures, ...]:
    """Scores a run on the memes of each label of another task.

    Memes with several labels count under each of them; those of which the task says nothing, under none.

    Raises:
        BadRequest: The data set has no such task, or its files are not where they were.
    """
    gold, labels = _gold(results, task)
    parts = []
    for label in (*labels, NO_LABEL):
        ids = {meme for meme, said in gold.items() if (label in said if label != NO_LABEL else not said)}
        judged = tuple(one for one in results.judged if one.meme.id in ids)
        if judged:
            parts += _scored(replace(results, judged=judged), label, resamples)
    if not parts:
        raise BadRequest(f"No meme of {results.name} has a gold label of {task}.", reason="NOTHING_TO_SCORE")
    return tuple(parts)


def by_task_sections(each: Sequence[Sequence[PartFigures]], task: str) -> list[Section]:
    """A section for each run.

    Args:
        each: Figures of each run, as :func:`split_by_task` gives them.
        task: The other task.
    """
    sections = []
    for number, parts in enumerate(each, 1):
        names = list(dict.fromkeys(name for part in parts for name in part.figures))
        rows = [[plain(task), "scored on", "memes", *names, f"{names[0]} of the baseline"]]
        rows += [
            [
                plain(part.label),
                part.scored,
                f"{part.n:,}",
                *(figure(part.figures.get(name)) for name in names),
                figure(part.baseline),
            ]
            for part in parts
        ]
        note = "Each row has an interval of its own; of many rows, some lie apart by chance."
        title = f"{plain(parts[0].run)} by {plain(task)}"
        sections.append(Section(key=f"by-{number}", title=title, rows=tuple(map(tuple, rows)), notes=(note,)))
    return sections


def _scored(results: Results, label: str, resamples: int) -> list[PartFigures]:
    if results.question is not None:
        found = task_card(results, resamples=resamples)
        shown = dict.fromkeys((found.official, *(("exact",) if found.question.multi else ("accuracy",))))
        figures = {name: found.figures[name] for name in shown}
        baseline = found.baseline[found.official]
        return [
            PartFigures(
                run=results.name,
                scored=found.question.task,
                label=label,
                n=found.n,
                figures=figures,
                baseline=baseline,
            )
        ]
    parts = []
    for protocol in results.protocols:
        try:
            scored = card(results, protocol, resamples=resamples)
        except BadRequest:  # the protocol drops all of these memes: there is no row to show
            continue
        figures = {
            "accuracy, strict": scored.strict.accuracy,
            "macro-F1, strict": scored.strict.macro_f1,
            "AUROC": scored.auroc,
        }
        parts.append(
            PartFigures(
                run=results.name,
                scored=str(protocol),
                label=label,
                n=scored.n,
                figures=figures,
                baseline=scored.majority,
            )
        )
    return parts


def _gold(results: Results, task: str) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Gold labels of the task by meme, and the task's labels."""
    manifest = results.manifest
    if manifest is None:
        raise BadRequest(f"{results.name} is no run: it is not known where its data are.", field="by")
    dataset = (
        dataset_of_card(card_of(manifest.card, "manifest.json")) if manifest.card else find_dataset(results.dataset)
    )
    labels = dataset.card.task(task).labels
    stored = {one.meme.id: one.meme.tasks[task] for one in results.judged if task in one.meme.tasks}
    if stored or manifest.question is not None:
        return stored, labels
    # Runs of trials keep no labels of other tasks.
    return gold_by_meme(dataset, Path(manifest.data_dir), results.split, task), labels
