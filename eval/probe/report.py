"""Report of a probe: the target's explanations by category, before and after the refinement.

Means and failure rates only cover scored answers; refused and unscored answers are counted separately. Intervals are
95 %, by percentile bootstrap over memes (2,000 resamples): a meme that belongs to several categories, or was rewritten
in several, is drawn with all its scores.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eval.probe.folder import (
    MINED,
    REWRITTEN,
    SCORED,
    Mined,
    ProbedMeme,
    ProbeFolder,
    ProbeManifest,
    Scored,
    ScoringOutcome,
    Sorted,
    Step,
    StepOutcome,
)
from eval.probe.topics import Topic, topics_of
from eval.scores.means import difference_of, mean_of, share_of
from eval.scores.measure import Figure
from eval.session.directory import Spent

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
    usage: Mapping[str, Spent]


def read_report(root: Path, *, threshold: int = THRESHOLD) -> ProbeReport:
    """The report on a probe, finished or not. Raises BadRequest: There is none in this folder, or it can't be read."""
    folder = ProbeFolder(root)
    manifest = folder.manifest()
    memes = {meme.id: meme for meme in folder.memes()}
    mined = folder.read(MINED, Mined)
    scored = folder.read(SCORED, Scored)
    steps = folder.read(REWRITTEN, Step)

    def row(name: str, keep: Callable[[Scored | Step], bool]) -> CategoryRow:
        return _row(name, [one for one in scored if keep(one)], [step for step in steps if keep(step)], threshold)

    # In order of appearance; which comes first in the report is decided by `_weakest` alone.
    names = dict.fromkeys(one.category for one in scored)
    gold = (
        row("harmful", lambda one: memes[one.meme].harmful),
        row("not harmful", lambda one: not memes[one.meme].harmful),
    )
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
        overall=row("all", lambda _: True),
        categories=tuple(sorted((row(name, partial(_in_category, name)) for name in names), key=_weakest)),
        # A data set without any benign meme has no row for it, in place of a row of dashes.
        gold=tuple(one for one in gold if one.before.n),
        steps=_by_step(steps, threshold),
        topics=topics_of(scored, steps, threshold),
        failures=failures,
        usage=folder.spent(),
    )


def _weakest(row: CategoryRow) -> tuple[float, float, str]:
    """The lowest mean first, of all that was scored in it; without any, last."""
    means = [(rates.mean.value, rates.scored) for rates in (row.before, row.after) if rates.mean is not None]
    # Weighted by what was scored, so that one rewritten meme can't outweigh a hundred as they are.
    n = sum(count for _, count in means)
    # The leading 0 or 1 puts categories without any score last, where their mean of 0.0 would put them
    # first. The name makes the order the same in each report.
    return (0 if n else 1, sum(mean * count for mean, count in means) / n if n else 0.0, row.name)


def _in_category(name: str, one: Scored | Step) -> bool:
    return one.category == name


def _row(name: str, scored: Sequence[Scored], steps: Sequence[Step], threshold: int) -> CategoryRow:
    # A step that went astray or was not rewritten has no scoring: it is counted by its outcome, never as a score.
    tried = [step for step in steps if step.scoring is not None]
    both: list[Scored | Step] = [*scored, *tried]
    # The same seed for every row: rows over the same memes are then drawn alike, so that differences between them are
    # not noise of the bootstrap.
    return CategoryRow(
        name=name,
        # A meme may stand in several categories, and in "all" is still one meme.
        memes=len({one.meme for one in scored}),
        before=_rates(scored, threshold),
        steps=len(steps),
        outcomes=_counted(steps),
        after=_rates(tried, threshold),
        # Against `before` of the step, which is the score of that very meme in that category: paired, so that easy and
        # hard memes cancel out.
        change=mean_of([(step.meme, float(step.score - step.before)) for step in tried if step.score is not None]),
        pooled=_rates(both, threshold),
        # Over the same resamples of memes; computed from two separate intervals the change would look less certain
        # than it is.
        pooled_change=difference_of(_failed(both, threshold), _failed(scored, threshold)),
    )


def _failed(ones: Sequence[Scored | Step], threshold: int) -> list[tuple[str, float]]:
    """Returns 1 for each score that is at most the threshold and 0 for each other, with its meme."""
    return [(one.meme, float(one.score <= threshold)) for one in ones if one.score is not None]


def _rates(ones: Sequence[Scored | Step], threshold: int) -> Rates:
    outcomes = Counter(one.scoring.outcome for one in ones if one.scoring)
    return Rates(
        n=len(ones),
        scored=outcomes[ScoringOutcome.SCORED],
        refused=outcomes[ScoringOutcome.REFUSED],
        unscored=outcomes[ScoringOutcome.UNSCORED],
        # Refused and unscored answers have no score. Counting them as failures, or as successes, would answer a
        # question that the Scorer did not.
        mean=mean_of([(one.meme, float(one.score)) for one in ones if one.score is not None]),
        failure=share_of(_failed(ones, threshold)),
    )


def _by_step(steps: Sequence[Step], threshold: int) -> tuple[StepRow, ...]:
    by_number = {number: [step for step in steps if step.number == number] for number in {one.number for one in steps}}
    return tuple(
        StepRow(
            number=number,
            n=len(these),
            outcomes=_counted(these),
            before=sum(step.before for step in these) / len(these),
            after=_rates([step for step in these if step.scoring], threshold),
        )
        for number, these in sorted(by_number.items())
    )


def _counted(steps: Iterable[Step]) -> dict[StepOutcome, int]:
    count = Counter(step.outcome for step in steps)
    return {outcome: count[outcome] for outcome in StepOutcome if count[outcome]}


def _failures(scored: Sequence[Scored], steps: Sequence[Step], threshold: int) -> tuple[Scored | Step, ...]:
    # Both kinds: a text that the target does not understand is listed, whoever wrote it.
    every: Sequence[Scored | Step] = (*scored, *steps)
    found = [
        (one.score, one.category, one.meme, isinstance(one, Step), one)
        for one in every
        if one.score is not None and one.score <= threshold
    ]
    # The meme's own text goes before its rewritten ones, so that a reader sees what they started from.
    return tuple(one for *_, one in sorted(found, key=lambda each: each[:-1]))
