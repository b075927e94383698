"""Figures of a run, split by the gold labels of another task of the data set or by a property of the memes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from court.errors import BadRequest
from eval.reports.sections import Section
from eval.runs.results import Results
from eval.scores.bootstrap import Figure
from eval.scores.label_metrics import strict_name
from eval.scores.metrics import card
from eval.scores.subgroups import groups_of
from eval.scores.tables import figure
from eval.scores.task_card import task_card


@dataclass(frozen=True, slots=True)
class PartFigures:
    """Figures over the memes of one group.

    Attributes:
        label: Name of the group, as :func:`eval.scores.subgroups.groups_of` has it.
        figures: Figures by name; None if undefined.
    """

    run: str
    scored: str
    label: str
    n: int
    figures: dict[str, Figure | None]
    baseline: float | None


def split_by_task(results: Results, by: str) -> tuple[PartFigures, ...]:
    """Scores a run on the memes of each group, by a task or a property as :func:`groups_of` takes it.

    Memes in several groups count in each; memes without a gold label for the task count in none.

    Raises:
        BadRequest: There are no such groups (see :func:`groups_of`), or no meme of the run is in one.
        NotLoaded: Languages are to be detected, and py3langid is not installed.
    """
    groups, names = groups_of(results, by)
    parts = []
    for label in names:
        ids = {meme for meme, of in groups.items() if label in of}
        judged = tuple(one for one in results.judged if one.meme.id in ids)
        if judged:
            parts += _scored(replace(results, judged=judged), label)
    if not parts:
        raise BadRequest(f"No meme of {results.name} has a gold label of {by}.", reason="NOTHING_TO_SCORE")
    return tuple(parts)


def by_task_sections(each: Sequence[Sequence[PartFigures]], task: str) -> list[Section]:
    """A section for each run.

    Args:
        each: Figures of each run, as :func:`split_by_task` gives them.
    """
    sections = []
    for number, parts in enumerate(each, 1):
        names = list(dict.fromkeys(name for part in parts for name in part.figures))
        rows = [[task, "scored on", "memes", *names, f"{names[0]} of the baseline"]]
        rows += [
            [
                part.label,
                part.scored,
                f"{part.n:,}",
                *(figure(part.figures.get(name)) for name in names),
                figure(part.baseline),
            ]
            for part in parts
        ]
        note = "Each row has an interval of its own; of many rows, some lie apart by chance."
        title = f"{parts[0].run} by {task}"
        sections.append(Section(key=f"by-{number}", title=title, rows=tuple(map(tuple, rows)), notes=(note,)))
    return sections


def _scored(results: Results, label: str) -> list[PartFigures]:
    if results.question is not None:
        found = task_card(results)
        # Without duplicates, as the official metric may be one of these itself.
        # Rows are compared with each other, so that each figure is over all memes of its row.
        official = strict_name(found.official)
        shown = dict.fromkeys((official, *(("exact",) if found.question.multi else ("accuracy",))))
        figures = {name: found.figures[name] for name in shown}
        baseline = found.baseline[official]
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
            scored = card(results, protocol)
        except BadRequest:  # the protocol drops all of these memes: there is no row to show
            continue
        figures = {
            "accuracy, strict": scored.strict.accuracy,
            "macro-F1, strict": scored.strict.macro_f1,
            "AUROC, strict": scored.auroc_strict,
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
