"""Repeats of an arena or a probe with other seeds: mean and spread of each figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from court.errors import BadRequest
from eval.reports.sections import Section
from eval.scores.means import RepeatedFigure, repeated
from eval.scores.measure import NOTHING, figure
from eval.session.sampled import SampledManifest

FigureTable = Mapping[str, Mapping[str, float | None]]
"""Figures of one repeat, by row and name; a row may be missing in some repeats."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """Figures over all repeats."""

    seeds: tuple[int, ...]
    finished: bool
    rows: Mapping[str, Mapping[str, RepeatedFigure]]

    @property
    def lead(self) -> list[str]:
        """Sentences above the table."""
        lead = f"{len(self.seeds)} repeats about the same memes, seeds {', '.join(map(str, self.seeds))}."
        return [lead, *([] if self.finished else ["Not finished: these figures will change."])]


def over_repeats(
    manifests: Sequence[SampledManifest], tables: Sequence[FigureTable], same: Sequence[Mapping[str, object]]
) -> Repeats:
    """Computes mean and spread of each figure, in rows by name.

    Args:
        same: Properties by name, which must be equal in all repeats.

    Raises BadRequest: There are fewer than two repeats, or they differ.
    """
    if len(manifests) < 2:
        raise BadRequest("Repeats are compared where there are at least two.", reason="REPEATS_MISSING")
    if differ := [name for name in same[0] if any(other[name] != same[0][name] for other in same)]:
        raise BadRequest(
            f"Repeats are of one and the same thing; these differ in {', '.join(differ)}.", reason="REPEATS_DIFFER"
        )
    rows = sorted({name for table in tables for name in table})
    figures = list(dict.fromkeys(name for table in tables for row in table.values() for name in row))
    return Repeats(
        tuple(manifest.seed for manifest in manifests),
        all(manifest.finished is not None for manifest in manifests),
        # A repeat without the row has None there, which is left out of mean and spread: it has no figure of 0.
        {row: {one: repeated([table.get(row, {}).get(one) for table in tables]) for one in figures} for row in rows},
    )


def repeats_section(
    repeats: Repeats,
    of: str,
    columns: Mapping[str, tuple[str, str, float]],
    *,
    notes: Sequence[str],
    last: tuple[str, Mapping[str, str]] | None = None,
) -> Section:
    """Builds a table of means, standard deviations and the figures of each repeat.

    Args:
        columns: Title, format and factor of each figure.
        last: Title and cells of a further column.
    """
    numbers = range(1, len(repeats.seeds) + 1)
    titles = [each for title, _, _ in columns.values() for each in (title, "SD", *map(str, numbers))]
    rows = []
    for name, figures in repeats.rows.items():
        row = [name]
        for key, (_, form, times) in columns.items():
            one = figures[key]
            row += [figure(value, form, times=times) for value in (one.mean, one.sd, *one.values)]
        rows.append((*row, *([last[1].get(name, NOTHING)] if last else [])))
    head = (of, *titles, *([last[0]] if last else []))
    spread = "SD is the standard deviation over repeats, of those that have a figure; numbers are repeats."
    return Section("repeats", "Over all repeats", (head, *rows), (spread, *notes))
