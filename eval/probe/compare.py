"""Comparison of targets with the same probe: mean score and failure rate by category, and significant leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from court.errors import BadRequest
from eval.probe.folder import MINED, REWRITTEN, SCORED, Mined, ProbeFolder, ProbeManifest, Scored, Step
from eval.probe.report import THRESHOLD
from eval.reports.sections import Rows, Section
from eval.scores.means import RESAMPLES_OF_MEANS, ResampledMeans
from eval.scores.measure import Figure, Floats, figure, interval

MEAN = "mean of categories"
METRICS = SCORE, FAILURE, FAILURE_BEFORE, CHANGE = "score", "failure", "failure_before", "failure_change"


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """One target in one category."""

    target: str
    category: str
    scored: int
    rewritten: int
    figures: Mapping[str, Figure | None]
    """Mean score of the memes as they are; failure rate of both together, as published; of the memes as they are; and
    the difference of the two. None where nothing was scored."""
    surely: Mapping[str, str]
    """``best`` or ``second`` by figure: where the target is surely ahead of all others, or of all but one, by paired
    differences over the same drawn memes. A difference of two rates has no place."""

    def shown(self, metric: str) -> str:
        """A figure in words, with its mark."""
        form, times = (".2f", 1.0) if metric == SCORE else ("+.1f" if metric == CHANGE else ".1f", 100.0)
        found = self.figures[metric]
        # Intervals of all categories would not fit on a line.
        words = figure(found if self.category == MEAN or found is None else found.value, form, times=times)
        return words + {"best": "¹", "second": "²"}.get(self.surely.get(metric, ""), "")


def compare_probes(
    roots: Sequence[Path], *, threshold: int = THRESHOLD
) -> tuple[list[str], list[Section], dict[str, Any]]:
    """Compares targets that were probed with the same memes, references and seeds.

    Returns sentences, tables, and the same as figures: cells by target and by category, whose mean is the last one.

    Raises BadRequest: A folder holds no probe, or one that can't be compared with the first.
    """
    if len(roots) < 2:
        raise BadRequest("Name at least two probes to compare.", reason="PROBES_DIFFER")
    first, *others = probes = [_read(root) for root in roots]
    for other in others:
        _require_comparable(first, other)
    names = [probe.manifest.target for probe in probes]
    if len(set(names)) < len(names):
        raise BadRequest("Two of the folders are of the same target.", reason="PROBES_DIFFER")
    cells = _compared(probes, threshold)
    unfinished = [probe.manifest.target for probe in probes if probe.manifest.finished is None]
    lead = [
        f"{len(names)} targets, the same {len(first.memes):,} memes, references and seeds. "
        f"An explanation has failed with a score of {threshold} or less.",
        "Intervals are 95 %, by bootstrap over memes. ¹ surely ahead of all others, ² of all but one: by paired "
        "differences over the same drawn memes, each at 95 %.",
    ]
    if unfinished:
        lead.append(f"Not finished, so that figures will change: {', '.join(unfinished)}.")
    figures = {
        "targets": names,
        "categories": list(dict.fromkeys(cell.category for cell in cells)),
        "cells": [asdict(cell) for cell in cells],
        "memes": len(first.memes),
        "threshold": threshold,
        "unfinished": unfinished,
    }
    return lead, comparison_sections(cells), figures


def comparison_sections(cells: Sequence[ComparedCell]) -> list[Section]:
    """The tables: scores, failure rates, and the change by rewriting."""
    rows: dict[str, list[ComparedCell]] = {}
    for cell in cells:
        rows.setdefault(cell.target, []).append(cell)

    def table(metric: str) -> Rows:
        head = ("target", *(cell.category for cell in next(iter(rows.values()))))
        return (head, *((target, *(cell.shown(metric) for cell in row)) for target, row in rows.items()))

    changes: list[tuple[str, ...]] = [
        ("target", "as they are, %", "together, %", "change, points", "scored", "rewritten")
    ]
    for target, (*_, mean) in rows.items():
        rates = (replace(mean, surely={}).shown(metric) for metric in (FAILURE_BEFORE, FAILURE, CHANGE))
        changes.append((target, *rates, f"{mean.scored:,}", f"{mean.rewritten:,}"))
    pooled = "As the published tables have it: (failed before + failed after) / (scored before + scored after)."
    return [
        Section("scores", "Mean score of the memes as they are, 1 to 10", table(SCORE)),
        Section("failures", "Failure rate, memes as they are and rewritten together, %", table(FAILURE), (pooled,)),
        Section("refinement", "Change by rewriting, mean of categories", tuple(changes)),
    ]


def _compared(probes: Sequence[_Probed], threshold: int) -> list[ComparedCell]:
    # One set of draws for all targets, so that differences between them are paired.
    # All memes, and not those with a score: the draws are the same whatever a target refused.
    draws = ResampledMeans((meme for meme, _ in probes[0].memes), RESAMPLES_OF_MEANS, 0)
    categories = sorted({one.category for probe in probes for one in probe.scored})
    shape = (len(probes), len(categories) + 1)
    counts = np.zeros((*shape, 2), dtype=int)
    # Each figure, and after it its values in each resample; NaN where nothing was scored.
    drawn = np.full((*shape, len(METRICS), 1 + RESAMPLES_OF_MEANS), np.nan)
    for place in np.ndindex(shape[0], len(categories)):
        probe, category = probes[place[0]], categories[place[1]]
        own, rewritten = (
            [(one.meme, float(one.score)) for one in ones if one.category == category and one.score]
            for ones in (probe.scored, probe.steps)
        )
        counts[place] = len(own), len(rewritten)
        if own:
            failed = [[(meme, float(score <= threshold)) for meme, score in ones] for ones in ([*own, *rewritten], own)]
            score, pooled, before = (np.hstack(draws.of(values)) for values in (own, *failed))
            drawn[place] = score, pooled, before, pooled - before
    counts[:, -1] = counts.sum(axis=1)
    known, every = ~np.isnan(drawn[:, :-1]), drawn[:, :-1, :, 0]
    # In a resample over those categories of which it has a meme; one without any is 0 / 0, and left out with other NaN.
    with np.errstate(invalid="ignore"):
        drawn[:, -1] = np.nansum(drawn[:, :-1], axis=1) / known.sum(axis=1)
    # A mean only if every category has figures: over fewer categories it would not be comparable.
    drawn[:, -1][np.isnan(every).any(axis=1)] = np.nan
    return [
        ComparedCell(
            probe.manifest.target,
            category,
            scored=int(counts[row, column, 0]),
            rewritten=int(counts[row, column, 1]),
            figures={metric: _figure(one) for metric, one in zip(METRICS, drawn[row, column], strict=True)},
            surely={
                metric: rank
                for number, metric in enumerate(METRICS[:2])
                if (rank := _rank(drawn[:, column, number], row, good=metric == SCORE))
            },
        )
        for row, probe in enumerate(probes)
        for column, category in enumerate((*categories, MEAN))
    ]


def _figure(drawn: Floats) -> Figure | None:
    # A resample may have no meme of the category.
    value, over = float(drawn[0]), drawn[1:]
    return None if np.isnan(value) else Figure(value, *interval(over[~np.isnan(over)]))


def _rank(drawn: Floats, row: int, *, good: bool) -> str:
    """``best`` or ``second`` if the target in a row is that significantly; empty otherwise."""
    others = [one for number, one in enumerate(drawn) if number != row and not np.isnan(one[0])]
    if np.isnan(drawn[row, 0]) or not others:
        return ""
    # A high score is good, a high failure rate is not.
    ahead = [(drawn[row] - one if good else one - drawn[row])[1:] for one in others]
    behind = sum(interval(one[~np.isnan(one)])[0] > 0 for one in ahead)
    return "best" if behind == len(others) else "second" if behind == len(others) - 1 and len(others) > 1 else ""


@dataclass(frozen=True, slots=True)
class _Probed:
    """A probe to compare."""

    root: Path
    manifest: ProbeManifest
    memes: tuple[tuple[str, str], ...]
    """Id and digest of the pixels of each meme: ids alone could refer to different pictures."""
    mined: Mapping[str, tuple[str, ...]]
    scored: tuple[Scored, ...]
    steps: tuple[Step, ...]


def _read(root: Path) -> _Probed:
    folder = ProbeFolder(root)
    manifest, scored = folder.manifest(), folder.read(SCORED, Scored)
    if not scored:
        raise BadRequest(f"{root} has no score yet that could be compared.", reason="PROBES_DIFFER")
    return _Probed(
        root,
        manifest,
        memes=tuple((meme.id, meme.pixels_sha256) for meme in folder.memes()),
        mined={one.meme: one.categories for one in folder.read(MINED, Mined)},
        scored=scored,
        steps=folder.read(REWRITTEN, Step),
    )


def _require_comparable(one: _Probed, other: _Probed) -> None:
    """Raises BadRequest if two probes differ in more than their targets."""

    def setup(probe: _Probed) -> dict[str, object]:
        manifest = probe.manifest
        return {
            "memes": probe.memes,
            "controllers": [manifest.models[name] for name in manifest.controllers],
            **{name: getattr(manifest, name) for name in ("prompts", "steps", "seeds", "examples")},
            "per-category": manifest.per_category,
            "categories of the memes": probe.mined,
        }

    differ = [
        name for (name, here), there in zip(setup(one).items(), setup(other).values(), strict=True) if here != there
    ]
    both = (one, other)
    # A pair that only one probe could score has no reference in the other: that is a result, not another set-up.
    here, there = (
        {
            (pair.meme, pair.category): (pair.misbelief, pair.scoring.reference)
            for pair in probe.scored
            if pair.scoring.reference
        }
        for probe in both
    )
    if any(here[pair] != there[pair] for pair in here.keys() & there.keys()):
        differ.append("references")
    # A meme without a score begins no search; any other one that only one of them began with makes another probe.
    begun, other_begun = ({(step.category, step.seed) for step in probe.steps} for probe in both)
    able, other_able = ({(pair.category, pair.meme) for pair in probe.scored if pair.usable} for probe in both)
    if (begun ^ other_begun) & able & other_able:
        differ.append("memes that searches began with")
    if differ:
        raise BadRequest(
            f"{other.root} can't be compared with {one.root}: they differ in {', '.join(differ)}. Probe both with the "
            "same data, controllers and settings, a common store of calls (--calls), and the seeds of one of them "
            "(--seeds-from).",
            reason="PROBES_DIFFER",
        )
