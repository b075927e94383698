"""Report of a probe: the target's explanations by category, before and after the refinement.

Means and failure rates only cover scored answers; refused and unscored answers are counted separately. Intervals are
95 %, by percentile bootstrap over memes (2,000 resamples): a meme that belongs to several categories, or was rewritten
in several, is drawn with all its scores.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from eval.probe.agents import HIGHEST, LOWEST
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
    small_pictures,
)
from eval.probe.topics import topics_of
from eval.reports.repeats import Repeats, over_repeats, repeats_section
from eval.reports.sections import Filter, MemeEntry, Rows, Section, Tile
from eval.scores.means import difference_of, mean_of, share_of
from eval.scores.measure import NOTHING, Figure, figure, wilson

# At most, not below: see the lead of the report for why the default departs from the paper's text.
THRESHOLD = 4
"""Highest score of a failed explanation."""
SHOWN = 100
"""Largest number of failures shown individually; all are in the probe's files."""
_STABLE = 150
"""Memes of a category from which on the paper found its figures stable."""


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
class ProbeReport:
    """A probe as sections for people, and as figures for programs."""

    manifest: ProbeManifest
    memes: tuple[str, ...]
    """Ids of the memes, in order."""
    rows: tuple[CategoryRow, ...]
    """Categories that have a meme, the weakest first; the last row is all together."""
    lead: list[str]
    sections: list[Section]
    """All sections, in order; failures are for a page alone."""
    figures: dict[str, Any]
    """Figures without any text of a meme: texts stay in the probe's folder, also where somebody pipes its report."""

    @property
    def title(self) -> str:
        """Title of the report."""
        return f"Weaknesses of {self.manifest.target}"


def read_report(root: Path, *, threshold: int = THRESHOLD) -> ProbeReport:
    """The report on a probe, finished or not. Raises BadRequest: There is none in this folder, or it can't be read."""
    folder = ProbeFolder(root)
    manifest = folder.manifest()
    memes = {meme.id: meme for meme in folder.memes()}
    mined, scored, steps = folder.read(MINED, Mined), folder.read(SCORED, Scored), folder.read(REWRITTEN, Step)

    def row(name: str, keep: Callable[[Scored | Step], bool]) -> CategoryRow:
        return _row(name, [one for one in scored if keep(one)], [step for step in steps if keep(step)], threshold)

    def of_category(name: str) -> CategoryRow:
        return row(name, lambda one: one.category == name)

    categories = sorted(map(of_category, {one.category for one in scored}), key=_weakest)
    overall = row("all", lambda _: True)
    gold = [
        row("harmful", lambda one: memes[one.meme].harmful),
        row("not harmful", lambda one: not memes[one.meme].harmful),
    ]
    # A data set without any benign meme has no row for it, in place of a row of dashes.
    gold = [one for one in gold if one.before.n]
    # Categories that were not in the taxonomy at the beginning came in while memes were sorted.
    begin = {category.name for category in manifest.taxonomy}
    new = [name for name in dict.fromkeys(name for one in mined for name in one.categories) if name not in begin]
    sorted_into = {outcome: sum(one.outcome is outcome for one in mined) for outcome in Sorted}
    failures = _failures(scored, steps, threshold)
    by_step, steps_section = _by_step(steps, threshold)
    topics = topics_of(scored, steps, threshold)
    usage = [{"name": name, **one.model_dump()} for name, one in folder.spent().items()]
    # Pairs of a meme and a category with an unreadable reply of the Narrator are scored, but not used in searches.
    counts = {
        "without_misbelief": sum(not one.misbelief for one in scored),
        "left": sum(meme.left > 0 for meme in memes.values()),
    }
    return ProbeReport(
        manifest=manifest,
        memes=tuple(memes),
        rows=(*categories, overall),
        lead=_lead(manifest, sorted_into, [*categories, overall], memes=len(memes), threshold=threshold),
        sections=[
            *([] if manifest.finished else [_UNFINISHED]),
            _categories(manifest, categories, overall, new),
            *([Section("gold", "By gold label", _rows("gold label", gold), caption=_GOLD, level=3)] if gold else []),
            steps_section,
            _topics([(one.words, f"{one.n:,}", f"{one.failed:,}", f"{one.mean:.2f}") for one in topics]),
            _usage(usage),
            _facts(manifest, len(memes), **counts),
            _shown(root, memes, failures, [one.name for one in categories]),
        ],
        figures={
            **{name: getattr(manifest, name) for name in ("target", "controllers", "dataset", "split")},
            "samples": [one.model_dump(mode="json") for one in manifest.samples],
            "finished": manifest.finished is not None,
            "threshold": threshold,
            "memes": len(memes),
            "mined": sorted_into,
            "new": new,
            **counts,
            "overall": asdict(overall),
            "categories": [asdict(one) for one in categories],
            "gold": [asdict(one) for one in gold],
            "steps": by_step,
            "topics": [asdict(one) for one in topics],
            "failures": len(failures),
            "usage": usage,
        },
    )


_UNFINISHED = Section(
    "unfinished", "Not finished: these figures will change", lead=("The same command goes on with it.",), warning=True
)
_GOLD = "The labels of the data set, which nobody in the probe was told"


def _weakest(row: CategoryRow) -> tuple[float, float, str]:
    """The lowest mean first, of all that was scored in it; without any, last."""
    means = [(rates.mean.value, rates.scored) for rates in (row.before, row.after) if rates.mean is not None]
    # Weighted by what was scored, so that one rewritten meme can't outweigh a hundred as they are.
    n = sum(count for _, count in means)
    # The leading 0 or 1 puts categories without any score last, where their mean of 0.0 would put them
    # first. The name makes the order the same in each report.
    return (0 if n else 1, sum(mean * count for mean, count in means) / n if n else 0.0, row.name)


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
        outcomes=dict(Counter(step.outcome for step in steps)),
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


def _failures(scored: Sequence[Scored], steps: Sequence[Step], threshold: int) -> list[Scored | Step]:
    """Explanations of memes as they are, or rewritten, that failed; the lowest scores first."""
    every: list[Scored | Step] = [*scored, *steps]
    found = [one for one in every if one.score is not None and one.score <= threshold]
    # The meme's own text goes before its rewritten ones, so that a reader sees what they started from.
    return sorted(found, key=lambda one: (one.score, one.category, one.meme, isinstance(one, Step)))


def _lead(
    manifest: ProbeManifest,
    sorted_into: Mapping[Sorted, int],
    rows: Sequence[CategoryRow],
    *,
    memes: int,
    threshold: int,
) -> list[str]:
    before, after = rows[-1].before, rows[-1].after
    found = "None of its explanations could be scored."
    if before.mean:
        mean = figure(before.mean, ".2f")
        found = f"Its explanations of memes as they are have a mean score of {mean} of 10; {_percent(before)} fail."
    if after.mean:
        found += f" Of rewritten memes, {figure(after.mean, '.2f')} and {_percent(after)}."
    if len(rows) > 1 and rows[0].before.mean:
        found += f" Weakest: {rows[0].name}."
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted_into.items())
    return [
        f"{manifest.target} on {manifest.dataset}, {manifest.split}: {memes:,} memes, {counts}.",
        found,
        f"An explanation has failed with a score of {threshold} or less. The paper's text says below 4, but its own "
        "figures come out only where 4 counts as failed, so 4 and less is the default.",
        "Scores are those of a model, held against a reference that models wrote. Intervals are 95 %, by bootstrap "
        "over memes. Refused and unscored answers are in no mean and no rate.",
    ]


def _categories(
    manifest: ProbeManifest, categories: Sequence[CategoryRow], overall: CategoryRow, new: Sequence[str]
) -> Section:
    few = [row.name for row in categories if row.memes < _STABLE]
    notes = [f"New categories: {', '.join(new)}."] if new else []
    if manifest.per_category is not None and few:
        notes.append(f"Fewer than {_STABLE} memes, so that another draw may tell otherwise: {', '.join(few)}.")
    both = [("as they are", overall.before), ("rewritten", overall.after)]
    scores = {
        "Mean score": both,
        "Mean score by category, as they are": [(row.name, row.before) for row in categories],
        "Mean score by category, rewritten": [(row.name, row.after) for row in categories],
    }
    tiles = (
        Tile("Failed", tuple((name, one.failure) for name, one in both if one.failure)),
        *(
            Tile(title, tuple((name, one.mean) for name, one in rates if one.mean), LOWEST, HIGHEST, form=".2f")
            for title, rates in scores.items()
        ),
        Tile("Scored", tuple((name, share) for name, one in both if (share := wilson(one.scored, one.n)))),
    )
    return Section(
        "categories",
        "By category",
        _rows("category", [*categories, overall]),
        notes=tuple(notes),
        tiles=tuple(tile for tile in tiles if tile.bars),
        caption="The weakest first; mean score of 1 to 10",
    )


def _rows(of: str, rows: Sequence[CategoryRow]) -> Rows:
    cells = [
        (
            row.name,
            f"{row.memes:,}",
            *_cells(row.before),
            *_cells(row.after),
            figure(row.change, "+.2f"),
            _percent(row.pooled),
            figure(row.pooled_change and row.pooled_change.value, "+.1f", times=100),
        )
        for row in rows
    ]
    head = ("memes", "scored", "mean", "failed", "rewritten", "mean", "failed", "change", "together", "points more")
    return ((of, *head), *cells)


def _cells(rates: Rates) -> tuple[str, str, str]:
    lost = [f"{n} {kind}" for n, kind in ((rates.refused, "refused"), (rates.unscored, "unscored")) if n]
    words = f" ({', '.join(lost)})" if lost else ""
    return f"{rates.scored:,}{words}", figure(rates.mean, ".2f"), _percent(rates)


def _percent(rates: Rates) -> str:
    return NOTHING if rates.failure is None else f"{figure(rates.failure, '.1f', times=100)} %"


def _by_step(steps: Sequence[Step], threshold: int) -> tuple[list[dict[str, Any]], Section]:
    """Figures of the steps of each number, over all searches, and the same as a section."""
    figures: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = [("step", "searches", "as they are", "rewritten", "failed", *StepOutcome)]
    for number in sorted({step.number for step in steps}):
        these = [step for step in steps if step.number == number]
        before, outcomes = fmean(step.before for step in these), Counter(step.outcome for step in these)
        after = _rates([step for step in these if step.scoring], threshold)
        one = {"number": number, "n": len(these), "outcomes": dict(outcomes), "before": before, "after": asdict(after)}
        figures.append(one)
        cells = (f"{before:.2f}", figure(after.mean, ".2f"), _percent(after))
        rows.append((str(number), f"{len(these):,}", *cells, *(f"{outcomes[each]:,}" for each in StepOutcome)))
    title = "By step of the refinement"
    none = "Nothing was rewritten: no category had a meme with a misbelief and a score."
    return figures, Section("steps", title, tuple(rows)) if figures else Section("steps", title, notes=(none,))


def _topics(rows: Sequence[tuple[str, ...]]) -> Section:
    if not rows:
        none = ("No two misbeliefs of memes that failed share a word.",)
        return Section("topics", "Topics of failures", notes=none)
    head = ("failures are about", "misbeliefs", "failed", "mean of lowest")
    caption = "Words that at least two misbeliefs share, those with most failures first; of each meme its lowest score"
    return Section("topics", "Topics of failures", (head, *rows), caption=caption)


def _usage(usage: Sequence[Mapping[str, Any]]) -> Section:
    counts = ("calls", "tokens_in", "tokens_out", "repaired", "unusable")
    rows = [(one["name"], *(f"{one[name]:,}" for name in counts), f"{one['usd']:.4f}") for one in usage]
    head = ("model", "calls", "tokens read", "written", "asked again", "unusable", "US dollars")
    caption = "Of the whole probe, calls that came out of the store included; cost by the prices in the file of models"
    return Section("usage", "Calls and costs", (head, *rows) if rows else (), caption=caption)


def _facts(manifest: ProbeManifest, memes: int, *, without_misbelief: int, left: int) -> Section:
    target, *controllers = (
        f"{one}: {manifest.models.get(one, '')}" for one in (manifest.target, *manifest.controllers)
    )
    facts = {
        "target": target,
        "controllers, the senior first": ", ".join(controllers),
        "memes": f"{memes:,}{', a sample' if manifest.limit else ''}",
        "without a misbelief": f"{without_misbelief:,}",
        "some text left on the picture": f"{left:,}",
        "without a picture": f"{len(manifest.without_picture):,}",
        "begun": f"{manifest.created:%Y-%m-%d %H:%M} UTC",
        "software": f"{manifest.software} {manifest.commit[:12]}",
    }
    return Section("probe", "The probe", (("", "value"), *facts.items()), words=True, detail=True)


def _shown(
    root: Path, memes: Mapping[str, ProbedMeme], every: Sequence[Scored | Step], categories: Sequence[str]
) -> Section:
    """The failures one by one, with their memes."""
    title, failures = "Explanations that failed", every[:SHOWN]
    if not failures:
        return Section("failures", title, lead=("There is none.",), detail=True)
    some = f": {len(failures)} of {len(every)}" if len(failures) < len(every) else ""
    keys = {name: f"c{number}" for number, name in enumerate(categories)}
    # By meme: one that has failed in several categories or steps is made small once.
    pictures = {meme: small_pictures(root, memes[meme], side=320) for meme in {one.meme for one in failures}}
    entries = [
        _entry(one, memes[one.meme], key=f"f{number}", kind=keys[one.category], pictures=pictures[one.meme])
        for number, one in enumerate(failures, 1)
    ]
    return Section(
        "failures",
        title,
        lead=(
            f"The lowest scores first{some}. Pictures and the words on memes are hidden until asked for, since they "
            "can be offensive; pictures are shown as the target saw them, without text.",
            "Texts that are marked as rewritten were made to be harder to recognise: keep this page to yourself. They "
            "stay in the probe's folder, and no library of precedents takes them in.",
        ),
        detail=True,
        entries=tuple(entries),
        filters=(
            Filter("Category", tuple((key, name) for name, key in keys.items())),
            Filter("Text", (("own", "as it is"), ("rewritten", "rewritten"))),
        ),
    )


def _entry(one: Scored | Step, meme: ProbedMeme, *, key: str, kind: str, pictures: tuple[bytes, ...]) -> MemeEntry:
    scoring = one.scoring
    assert scoring is not None
    tags = [("bad", one.category)]
    facts = [f"score {scoring.score}", f"gold {'harmful' if meme.harmful else 'not harmful'}"]
    texts = [("text", one.text)]
    if isinstance(one, Step):
        tags.append(("doubt", "rewritten: not for libraries"))
        facts.append(f"step {one.number}, as it is: {one.before}")
        texts = [("rewritten text", one.text), ("its own text", meme.text), ("why it is missed", one.explanation)]
    return MemeEntry(
        key=key,
        meme=one.meme,
        filters=(f"{kind}:{'rewritten' if isinstance(one, Step) else 'own'}",),
        tags=tuple(tags),
        facts=tuple(facts),
        pictures=pictures,
        texts=(*texts, ("misbelief", one.misbelief)),
        folded=(
            (f"The target's answer{', cut at its limit' if scoring.cut else ''}", scoring.answer),
            (f"The reference, of {scoring.references} drafts", scoring.reference),
            ("The Scorer", scoring.comment),
        ),
    )


def repeated_probe(reports: Sequence[ProbeReport]) -> tuple[Repeats, Section]:
    """Puts reports of repeats together, by category; all categories together are ``all``, the last row.

    Raises BadRequest: There are fewer than two, or they are of different targets or memes.
    """

    def figures(row: CategoryRow) -> dict[str, float | None]:
        shown = (("score", row.before.mean), ("failure", row.before.failure), ("pooled", row.pooled.failure))
        return {name: one.value if one else None for name, one in shown}

    repeats = over_repeats(
        [report.manifest for report in reports],
        # Categories may be added during sorting, and not in every repeat.
        [{row.name: figures(row) for row in report.rows} for report in reports],
        [{"target": one.manifest.target, "models": one.manifest.models, "memes": one.memes} for one in reports],
    )
    last = reports[0].rows[-1].name
    repeats = replace(repeats, rows=dict(sorted(repeats.rows.items(), key=lambda row: (row[0] == last, row[0]))))
    columns = {
        "score": ("score", ".2f", 1.0),
        "failure": ("failed, %", ".1f", 100.0),
        "pooled": ("together, %", ".1f", 100.0),
    }
    note = "“Together”: the memes as they are and rewritten, as the published tables have it."
    return repeats, repeats_section(repeats, "category", columns, notes=[note])
