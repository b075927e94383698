"""Report of a probe: the target's explanations by category, before and after the refinement.

Means and failure rates only cover scored answers; refused and unscored answers are counted separately. Intervals are
95 %, by percentile bootstrap over memes (2,000 resamples): a meme that belongs to several categories, or was rewritten
in several, is drawn with all its scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.probe.folder import (
    MINED,
    REWRITTEN,
    SCORED,
    Mined,
    ModelUsage,
    ProbedMeme,
    ProbeFolder,
    ProbeManifest,
    Scored,
    Scoring,
    ScoringOutcome,
    Sorted,
    Step,
    StepOutcome,
)
from eval.probe.topics import Topic, topics_of
from eval.scores.means import difference_of, mean_of, share_of
from eval.scores.measure import Figure

# At most, not below: see THRESHOLD_WORDS for why the default departs from the paper's text.
THRESHOLD = 4
"""Highest score of a failed explanation."""
THRESHOLD_WORDS = (
    "An explanation has failed with a score of {threshold} or less. The paper's text says below 4, but its own figures "
    "come out only where 4 counts as failed, so 4 and less is the default."
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates over some scorings."""

    n: int
    scored: int
    refused: int
    unscored: int
    """Number of answers without a score for another reason."""
    mean: Figure | None
    """Mean score, 1 to 10; None if nothing was scored."""
    failure: Figure | None
    """Share of the scores that are at most the threshold; None if nothing was scored."""


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """A category, a gold label, or all."""

    name: str
    memes: int
    before: Rates
    steps: int
    outcomes: Mapping[StepOutcome, int]
    after: Rates
    change: Figure | None
    """Mean difference of scores, rewritten less as it is, over memes that have both; None where none has."""
    pooled: Rates
    """Rates of both together, as the published tables have them: the memes as they are, and rewritten."""
    pooled_change: Figure | None
    """Failure rate of both together less that of the memes as they are, over the same resamples; None where nothing was
    scored."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """All steps of one number, over all searches."""

    number: int
    n: int
    outcomes: Mapping[StepOutcome, int]
    before: float
    after: Rates


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Content of a report."""

    manifest: ProbeManifest
    threshold: int
    memes: Mapping[str, ProbedMeme]
    mined: Mapping[Sorted, int]
    new: tuple[str, ...]
    without_misbelief: int
    """Number of pairs of a meme and a category with an unreadable reply of the Narrator: they are scored, but not used
    in searches."""
    left: int
    overall: CategoryRow
    categories: tuple[CategoryRow, ...]
    """The weakest first; those without a meme are left out."""
    gold: tuple[CategoryRow, ...]
    steps: tuple[StepRow, ...]
    topics: tuple[Topic, ...]
    failures: tuple[Scored | Step, ...]
    """Explanations of memes as they are, or rewritten, that failed; the lowest scores first."""
    usage: tuple[ModelUsage, ...]


Scorings = Sequence[tuple[str, Scoring]]
"""Pairs of a meme's id and a scoring."""


def read_report(root: Path, *, threshold: int = THRESHOLD) -> ProbeReport:
    """The report on a probe, finished or not. Raises BadRequest: There is none in this folder, or it can't be read."""
    folder = ProbeFolder(root)
    manifest = folder.manifest()
    memes = {meme.id: meme for meme in folder.memes() or ()}
    mined = folder.read(MINED, Mined)
    scored = folder.read(SCORED, Scored)
    steps = folder.read(REWRITTEN, Step)

    def row(name: str, these: Sequence[Scored], rewritten: Sequence[Step]) -> CategoryRow:
        # The same seed for every row: rows over the same memes are then drawn alike, so that
        # differences between them are not noise of the bootstrap.
        return _row(name, these, steps=rewritten, threshold=threshold)

    rows = [
        row(name, [one for one in scored if one.category == name], [step for step in steps if step.category == name])
        # In order of appearance; which comes first in the report is decided by `_weakest` alone.
        for name in dict.fromkeys(one.category for one in scored)
    ]
    gold = [
        row(
            word,
            [one for one in scored if memes[one.meme].harmful is harmful],
            [step for step in steps if memes[step.meme].harmful is harmful],
        )
        for word, harmful in (("harmful", True), ("not harmful", False))
    ]
    failures = _failures(scored, steps, threshold)
    # Categories that were not in the taxonomy at the beginning came in while memes were sorted.
    begin = {category.name for category in manifest.taxonomy}
    return ProbeReport(
        manifest=manifest,
        threshold=threshold,
        memes=memes,
        mined={outcome: sum(one.outcome is outcome for one in mined) for outcome in Sorted},
        new=tuple(name for name in dict.fromkeys(n for one in mined for n in one.categories) if name not in begin),
        without_misbelief=sum(not one.misbelief for one in scored),
        left=sum(meme.left > 0 for meme in memes.values()),
        overall=row("all", scored, steps),
        categories=tuple(sorted(rows, key=_weakest)),
        # A data set without any benign meme has no row for it, in place of a row of dashes.
        gold=tuple(one for one in gold if one.before.n),
        steps=_by_step(steps, threshold),
        topics=topics_of(scored, steps, threshold),
        failures=failures,
        usage=folder.usage(),
    )


def _weakest(row: CategoryRow) -> tuple[float, float, str]:
    """The lowest mean first, of all that was scored in it; without any, last."""
    means = [(rates.mean.value, rates.scored) for rates in (row.before, row.after) if rates.mean is not None]
    # Weighted by what was scored, so that one rewritten meme can't outweigh a hundred as they are.
    n = sum(count for _, count in means)
    # The leading 0 or 1 puts categories without any score last, where their mean of 0.0 would put them
    # first. The name makes the order the same in each report.
    return (0 if n else 1, sum(mean * count for mean, count in means) / n if n else 0.0, row.name)


def _row(name: str, scored: Sequence[Scored], steps: Sequence[Step], threshold: int) -> CategoryRow:
    own, tried = [(one.meme, one.scoring) for one in scored], _tried(steps)
    failed, failed_before = _failed([*own, *tried], threshold), _failed(own, threshold)
    changes = [
        # Against `before` of the step, which is the score of that very meme in that category: paired,
        # so that easy and hard memes cancel out.
        (step.meme, float(step.scoring.score - step.before))
        for step in steps
        if step.scoring is not None and step.scoring.score is not None
    ]
    return CategoryRow(
        name=name,
        # A meme may stand in several categories, and in "all" is still one meme.
        memes=len({one.meme for one in scored}),
        before=_rates(own, threshold),
        steps=len(steps),
        outcomes=_counted(steps),
        after=_rates(tried, threshold),
        change=mean_of(changes),
        pooled=_rates([*own, *tried], threshold),
        # Over the same resamples of memes; computed from two separate intervals the change would look
        # less certain than it is.
        pooled_change=difference_of(failed, failed_before),
    )


def _tried(steps: Sequence[Step]) -> list[tuple[str, Scoring]]:
    # A step that went astray or was not rewritten has no scoring: it is counted by its outcome, never as a score.
    return [(step.meme, step.scoring) for step in steps if step.scoring is not None]


def _failed(scorings: Scorings, threshold: int) -> list[tuple[str, float]]:
    """Returns 1 for each score that is at most the threshold and 0 for each other, with its meme."""
    return [(meme, float(one.score <= threshold)) for meme, one in scorings if one.score is not None]


def _rates(scorings: Scorings, threshold: int) -> Rates:
    outcomes = Counter(one.outcome for _, one in scorings)
    return Rates(
        n=len(scorings),
        scored=outcomes[ScoringOutcome.SCORED],
        refused=outcomes[ScoringOutcome.REFUSED],
        unscored=outcomes[ScoringOutcome.UNSCORED],
        # Refused and unscored answers have no score. Counting them as failures, or as successes, would answer a
        # question that the Scorer did not.
        mean=mean_of([(meme, float(one.score)) for meme, one in scorings if one.score is not None]),
        failure=share_of(_failed(scorings, threshold)),
    )


def _by_step(steps: Sequence[Step], threshold: int) -> tuple[StepRow, ...]:
    rows = []
    for number in sorted({step.number for step in steps}):
        these = [step for step in steps if step.number == number]
        rows.append(
            StepRow(
                number=number,
                n=len(these),
                outcomes=_counted(these),
                before=sum(step.before for step in these) / len(these),
                after=_rates(_tried(these), threshold),
            )
        )
    return tuple(rows)


def _counted(steps: Iterable[Step]) -> dict[StepOutcome, int]:
    count = Counter(step.outcome for step in steps)
    return {outcome: count[outcome] for outcome in StepOutcome if count[outcome]}


def _failures(scored: Sequence[Scored], steps: Sequence[Step], threshold: int) -> tuple[Scored | Step, ...]:
    # Both kinds: a text that the target does not understand is listed, whoever wrote it.
    every: Sequence[Scored | Step] = (*scored, *steps)
    found = [
        (one.scoring.score, one.category, one.meme, isinstance(one, Step), one)
        for one in every
        if one.scoring is not None and one.scoring.score is not None and one.scoring.score <= threshold
    ]
    # The meme's own text goes before its rewritten ones, so that a reader sees what they started from.
    return tuple(one for *_, one in sorted(found, key=lambda each: each[:-1]))
