"""Comparison of targets with the same probe: mean score and failure rate by category, and significant leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from court.digests import digest
from court.errors import BadRequest
from eval.probe.folder import MINED, REWRITTEN, SCORED, Mined, ProbeFolder, ProbeManifest, Scored, Step
from eval.probe.refining import usable
from eval.probe.report import THRESHOLD
from eval.reports.sections import Section
from eval.scores.means import RESAMPLES_OF_MEANS, ResampledMeans
from eval.scores.measure import Figure, Floats, figure, interval

_MARKS = {"best": "¹", "second": "²"}


def comparison_lead(comparison: ProbeComparison) -> list[str]:
    """Sentences before the tables."""
    lead = [
        f"{len(comparison.targets)} targets, the same {comparison.memes:,} memes, references and seeds. "
        f"An explanation has failed with a score of {comparison.threshold} or less.",
        "Intervals are 95 %, by bootstrap over memes. ¹ surely ahead of all others, ² of all but one: by paired "
        "differences over the same drawn memes, each at 95 %.",
    ]
    if comparison.unfinished:
        lead.append(f"Not finished, so that figures will change: {', '.join(comparison.unfinished)}.")
    return lead


def comparison_sections(comparison: ProbeComparison) -> list[Section]:
    """The tables: scores, failure rates, and the change by rewriting."""

    def cell(target: str, category: str, metric: str) -> str:
        one = comparison.cells[target, category]
        shown = _shown(one.figures[metric], metric, interval=category == MEAN)
        return shown + _MARKS.get(one.surely.get(metric, ""), "")

    def table(metric: str) -> tuple[tuple[str, ...], ...]:
        rows = ((name, *(cell(name, each, metric) for each in comparison.categories)) for name in comparison.targets)
        return (("target", *comparison.categories), *rows)

    head = ("target", "as they are, %", "together, %", "change, points", "scored", "rewritten")
    changes: list[tuple[str, ...]] = [head]
    for target in comparison.targets:
        mean = comparison.cells[target, MEAN]
        rates = (_shown(mean.figures[each], each, interval=True) for each in (FAILURE_BEFORE, FAILURE, CHANGE))
        changes.append((target, *rates, f"{mean.scored:,}", f"{mean.rewritten:,}"))
    pooled = "As the published tables have it: (failed before + failed after) / (scored before + scored after)."
    return [
        Section("scores", "Mean score of the memes as they are, 1 to 10", table(SCORE)),
        Section("failures", "Failure rate, memes as they are and rewritten together, %", table(FAILURE), (pooled,)),
        Section("refinement", "Change by rewriting, mean of categories", tuple(changes)),
    ]


def _shown(found: Figure | None, metric: str, *, interval: bool) -> str:
    form, times = (".2f", 1.0) if metric == SCORE else ("+.1f" if metric == CHANGE else ".1f", 100.0)
    return figure(found if interval or found is None else found.value, form, times=times)


MEAN = "mean of categories"
SCORE, FAILURE, FAILURE_BEFORE, CHANGE = "score", "failure", "failure_before", "failure_change"
METRICS = (SCORE, FAILURE, FAILURE_BEFORE, CHANGE)


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """One target in one category."""

    scored: int
    rewritten: int
    figures: Mapping[str, Figure | None]
    """Mean score of the memes as they are; failure rate of both together, as published; of the memes as they are; and
    the difference of the two. None where nothing was scored."""
    surely: Mapping[str, str]
    """``best`` or ``second`` by figure: where the target is surely ahead of all others, or of all but one, by paired
    differences over the same drawn memes. A difference of two rates has no place."""


@dataclass(frozen=True, slots=True)
class ProbeComparison:
    """Targets beside each other."""

    targets: tuple[str, ...]
    categories: tuple[str, ...]
    """Categories in which any target was scored, by name; the mean over them is last."""
    cells: Mapping[tuple[str, str], ComparedCell]
    memes: int
    threshold: int
    unfinished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Probed:
    """A probe to compare."""

    root: Path
    manifest: ProbeManifest
    memes: tuple[tuple[str, str], ...]
    mined: Mapping[str, tuple[str, ...]]
    scored: tuple[Scored, ...]
    steps: tuple[Step, ...]

    @property
    def references(self) -> dict[tuple[str, str], str]:
        """Digest of misbelief and reference of each scored meme and category."""
        return {
            (one.meme, one.category): digest([one.misbelief, one.scoring.reference])
            for one in self.scored
            if one.scoring.reference
        }

    @property
    def begun(self) -> set[tuple[str, str]]:
        """Category and meme of each search."""
        return {(step.category, step.seed) for step in self.steps}

    @property
    def able(self) -> set[tuple[str, str]]:
        """Category and meme of all searches that could have begun."""
        names = {one.category for one in self.scored}
        return {(name, one.meme) for name in names for one in usable(self.scored, name)}

    def scores(self, category: str) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        """Scores of a category, of memes as they are and rewritten, each with its meme."""
        own = [(one.meme, float(one.score)) for one in self.scored if one.category == category and one.score]
        steps = [step for step in self.steps if step.category == category]
        return own, [(step.meme, float(step.score)) for step in steps if step.score]


_Drawn = Mapping[str, tuple[float, Floats]]
"""Figures of a target in a category, and their values in each resample; none where nothing was scored."""


def compare_probes(roots: Sequence[Path], *, threshold: int = THRESHOLD) -> ProbeComparison:
    """Compares targets that were probed with the same memes, references and seeds.

    Raises BadRequest: A folder holds no probe, or one that can't be compared with the first.
    """
    if len(roots) < 2:
        raise BadRequest("Name at least two probes to compare.", reason="PROBES_DIFFER")
    probes = [_read(root) for root in roots]
    for other in probes[1:]:
        _require_comparable(probes[0], other)
    names = _names(probes)
    # One set of draws for all targets, so that differences between them are paired.
    # All memes, and not those with a score: the draws are the same whatever a target refused.
    draws = ResampledMeans((meme for meme, _ in probes[0].memes), RESAMPLES_OF_MEANS, 0)
    categories = sorted({one.category for probe in probes for one in probe.scored})
    drawn: dict[tuple[str, str], _Drawn] = {}
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for name, probe in zip(names, probes, strict=True):
        for category in categories:
            own, rewritten = probe.scores(category)
            counts[name, category] = (len(own), len(rewritten))
            drawn[name, category] = _figures(draws, own, rewritten, threshold)
        every = [counts[name, category] for category in categories]
        counts[name, MEAN] = (sum(own for own, _ in every), sum(rewritten for _, rewritten in every))
        drawn[name, MEAN] = _mean_over([drawn[name, category] for category in categories])

    def cell(name: str, category: str) -> ComparedCell:
        own = drawn[name, category]
        others = [drawn[other, category] for other in names if other != name]
        surely = {metric: _rank(own, others, metric) for metric in (SCORE, FAILURE)}
        return ComparedCell(
            *counts[name, category],
            figures={metric: _figure(own.get(metric)) for metric in METRICS},
            surely={metric: rank for metric, rank in surely.items() if rank},
        )

    return ProbeComparison(
        targets=names,
        categories=(*categories, MEAN),
        cells={(name, category): cell(name, category) for name, category in drawn},
        memes=len(probes[0].memes),
        threshold=threshold,
        unfinished=tuple(name for name, probe in zip(names, probes, strict=True) if probe.manifest.finished is None),
    )


def _read(root: Path) -> _Probed:
    folder = ProbeFolder(root)
    manifest = folder.manifest()
    scored = folder.read(SCORED, Scored)
    if not scored:
        raise BadRequest(f"{root} has no score yet that could be compared.", reason="PROBES_DIFFER")
    memes = tuple((meme.id, meme.pixels_sha256) for meme in folder.memes())
    mined = {one.meme: one.categories for one in folder.read(MINED, Mined)}
    steps = folder.read(REWRITTEN, Step)
    return _Probed(root=root, manifest=manifest, memes=memes, mined=mined, scored=scored, steps=steps)


def _require_comparable(one: _Probed, other: _Probed) -> None:
    """Raises BadRequest if two probes differ in more than their targets."""

    def setup(probe: _Probed) -> dict[str, object]:
        manifest = probe.manifest
        return {
            # Ids alone could refer to different pictures.
            "memes": probe.memes,
            "controllers": [manifest.models[name] for name in manifest.controllers],
            **{name: getattr(manifest, name) for name in ("prompts", "steps", "seeds", "examples")},
            "per-category": manifest.per_category,
            "categories of the memes": probe.mined,
        }

    here, there = setup(one), setup(other)
    differ = [name for name in here if here[name] != there[name]]
    # A pair that only one probe could score has no reference in the other: that is a result, not another set-up.
    both = one.references.keys() & other.references.keys()
    if any(one.references[pair] != other.references[pair] for pair in both):
        differ.append("references")
    # A meme without a score begins no search; any other one that only one of them began with makes another probe.
    if (one.begun ^ other.begun) & one.able & other.able:
        differ.append("memes that searches began with")
    if differ:
        raise BadRequest(
            f"{other.root} can't be compared with {one.root}: they differ in {', '.join(differ)}. Probe both with the "
            "same data, controllers and settings, a common store of calls (--calls), and the seeds of one of them "
            "(--seeds-from).",
            reason="PROBES_DIFFER",
        )


def _names(probes: Sequence[_Probed]) -> tuple[str, ...]:
    names = tuple(probe.manifest.target for probe in probes)
    if len(set(names)) < len(names):
        raise BadRequest("Two of the folders are of the same target.", reason="PROBES_DIFFER")
    return names


def _figures(
    draws: ResampledMeans, own: list[tuple[str, float]], rewritten: list[tuple[str, float]], threshold: int
) -> _Drawn:
    if not own:
        return {}
    (pooled, drawn), (before, before_drawn) = (
        draws.of([(meme, float(score <= threshold)) for meme, score in scores]) for scores in ([*own, *rewritten], own)
    )
    return {
        SCORE: draws.of(own),
        FAILURE: (pooled, drawn),
        FAILURE_BEFORE: (before, before_drawn),
        CHANGE: (pooled - before, np.asarray(drawn - before_drawn)),
    }


def _mean_over(every: Sequence[_Drawn]) -> _Drawn:
    """The mean over categories; in a resample, over those of which it has a meme."""
    found = {}
    for metric in METRICS:
        figures = [one[metric] for one in every if metric in one]
        # A mean only if every category has a figure: over fewer categories it would not be comparable.
        if len(figures) == len(every):
            values = np.stack([drawn for _, drawn in figures])
            # A resample without a meme of any category is 0 / 0, and is left out with the other NaN.
            with np.errstate(invalid="ignore"):
                means = np.nansum(values, axis=0) / (~np.isnan(values)).sum(axis=0)
            found[metric] = (float(np.mean([value for value, _ in figures])), np.asarray(means))
    return found


def _figure(found: tuple[float, Floats] | None) -> Figure | None:
    # A resample may have no meme of the category.
    return None if found is None else Figure(found[0], *interval(found[1][~np.isnan(found[1])]))


def _rank(own: _Drawn, others: Sequence[_Drawn], metric: str) -> str:
    """``best`` or ``second`` if that is significant; empty otherwise."""
    theirs = [one[metric][1] for one in others if metric in one]
    if metric not in own or not theirs:
        return ""
    # A high score is good, a high failure rate is not.
    sign = 1.0 if metric == SCORE else -1.0
    differences = (sign * (own[metric][1] - drawn) for drawn in theirs)
    behind = sum(interval(one[~np.isnan(one)])[0] > 0 for one in differences)
    return "best" if behind == len(theirs) else "second" if behind == len(theirs) - 1 and len(theirs) > 1 else ""
