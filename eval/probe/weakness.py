"""Weaknesses of a probed target, and of its repeats with other seeds, as sections of a report."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from eval.probe.agents import HIGHEST, LOWEST
from eval.probe.folder import Scored, Step, StepOutcome, small_pictures
from eval.probe.report import THRESHOLD_WORDS, CategoryRow, ProbeReport, Rates
from eval.reports.repeats import Repeats, over_repeats, repeats_section
from eval.reports.sections import Filter, MemeEntry, Rows, Section, Tile
from eval.scores.measure import NOTHING, figure, wilson

SHOWN = 100
"""Largest number of failures shown individually; all are in the probe's files."""
_SIDE = 320
"""Longest side of a picture, in pixels."""
_STABLE = 150
"""Memes of a category from which on the paper found its figures stable."""


def weakness_title(report: ProbeReport) -> str:
    """Title of the report."""
    return f"Weaknesses of {report.manifest.target}"


def weakness_lead(report: ProbeReport) -> list[str]:
    """Sentences before the sections."""
    manifest = report.manifest
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in report.mined.items())
    before, after = report.overall.before, report.overall.after
    found = (
        f"Its explanations of memes as they are have a mean score of {figure(before.mean, '.2f')} of 10; "
        f"{_failed(before)} fail."
        if before.mean
        else "None of its explanations could be scored."
    )
    if after.mean:
        found += f" Of rewritten memes, {figure(after.mean, '.2f')} and {_failed(after)}."
    if report.categories and report.categories[0].before.mean:
        found += f" Weakest: {report.categories[0].name}."
    return [
        f"{manifest.target} on {manifest.dataset}, {manifest.split}: {len(report.memes):,} memes, {counts}.",
        found,
        THRESHOLD_WORDS.format(threshold=report.threshold),
        "Scores are those of a model, held against a reference that models wrote. Intervals are 95 %, by bootstrap "
        "over memes. Refused and unscored answers are in no mean and no rate.",
    ]


def weakness_sections(report: ProbeReport, root: Path) -> list[Section]:
    """All sections, in order; failures are for a page alone."""
    sections: list[Section] = []
    if report.manifest.finished is None:
        lead = ("The same command goes on with it.",)
        sections.append(Section("unfinished", "Not finished: these figures will change", lead=lead, warning=True))
    few = [row.name for row in report.categories if row.memes < _STABLE]
    notes = [f"New categories: {', '.join(report.new)}."] if report.new else []
    if report.manifest.per_category is not None and few:
        notes.append(f"Fewer than {_STABLE} memes, so that another draw may tell otherwise: {', '.join(few)}.")
    sections.append(
        Section(
            "categories",
            "By category",
            _rows("category", [*report.categories, report.overall]),
            notes=tuple(notes),
            tiles=_tiles(report),
            caption="The weakest first; mean score of 1 to 10",
        )
    )
    if report.gold:
        caption = "The labels of the data set, which nobody in the probe was told"
        sections.append(Section("gold", "By gold label", _rows("gold label", report.gold), caption=caption, level=3))
    return [*sections, _steps(report), _topics(report), _usage(report), _facts(report), _failures(report, root)]


def _tiles(report: ProbeReport) -> tuple[Tile, ...]:
    """Failures, mean score and the share that was scored, as they are and rewritten; and mean scores by category."""
    both = (("as they are", report.overall.before), ("rewritten", report.overall.after))
    names = [row.name for row in report.categories]
    every = tuple(
        (title, list(zip(names, rates, strict=True)))
        for title, rates in (
            ("Mean score by category, as they are", [row.before for row in report.categories]),
            ("Mean score by category, rewritten", [row.after for row in report.categories]),
        )
    )
    tiles = (
        Tile("Failed", tuple((name, one.failure) for name, one in both if one.failure)),
        *(
            Tile(title, tuple((name, one.mean) for name, one in rows if one.mean), LOWEST, HIGHEST, form=".2f")
            for title, rows in (("Mean score", both), *every)
        ),
        Tile("Scored", tuple((name, share) for name, one in both if (share := wilson(one.scored, one.n)))),
    )
    return tuple(tile for tile in tiles if tile.bars)


def _rows(of: str, rows: Sequence[CategoryRow]) -> Rows:
    head = (of, "memes", "scored", "mean", "failed", "rewritten", "mean", "failed", "change", "together", "points more")
    return (
        head,
        *(
            (
                row.name,
                f"{row.memes:,}",
                *_rates(row.before),
                *_rates(row.after),
                figure(row.change, "+.2f"),
                _failed(row.pooled),
                figure(row.pooled_change and row.pooled_change.value, "+.1f", times=100),
            )
            for row in rows
        ),
    )


def _rates(rates: Rates) -> tuple[str, str, str]:
    lost = [f"{n} {kind}" for n, kind in ((rates.refused, "refused"), (rates.unscored, "unscored")) if n]
    words = f" ({', '.join(lost)})" if lost else ""
    return f"{rates.scored:,}{words}", figure(rates.mean, ".2f"), _failed(rates)


def _failed(rates: Rates) -> str:
    return NOTHING if rates.failure is None else f"{figure(rates.failure, '.1f', times=100)} %"


def _steps(report: ProbeReport) -> Section:
    rows = [("step", "searches", "as they are", "rewritten", "failed", *StepOutcome)]
    for row in report.steps:
        counts = (f"{row.outcomes.get(outcome, 0):,}" for outcome in StepOutcome)
        after = (figure(row.after.mean, ".2f"), _failed(row.after))
        rows.append((str(row.number), f"{row.n:,}", f"{row.before:.2f}", *after, *counts))
    none = "Nothing was rewritten: no category had a meme with a misbelief and a score."
    title = "By step of the refinement"
    return Section("steps", title, tuple(rows) if report.steps else (), () if report.steps else (none,))


def _topics(report: ProbeReport) -> Section:
    rows = [(one.words, f"{one.n:,}", f"{one.failed:,}", f"{one.mean:.2f}") for one in report.topics]
    if not rows:
        none = ("No two misbeliefs of memes that failed share a word.",)
        return Section("topics", "Topics of failures", notes=none)
    head = ("failures are about", "misbeliefs", "failed", "mean of lowest")
    caption = "Words that at least two misbeliefs share, those with most failures first; of each meme its lowest score"
    return Section("topics", "Topics of failures", (head, *rows), caption=caption)


def _usage(report: ProbeReport) -> Section:
    usage = []
    for name, one in report.usage.items():
        counts = (one.calls, one.tokens_in, one.tokens_out, one.repaired, one.unusable)
        usage.append((name, *(f"{count:,}" for count in counts), f"{one.usd:.4f}"))
    head = ("model", "calls", "tokens read", "written", "asked again", "unusable", "US dollars")
    caption = "Of the whole probe, calls that came out of the store included; cost by the prices in the file of models"
    return Section("usage", "Calls and costs", (head, *usage) if usage else (), caption=caption)


def _facts(report: ProbeReport) -> Section:
    manifest = report.manifest
    names = [f"{one}: {manifest.models.get(one, '')}" for one in (manifest.target, *manifest.controllers)]
    facts = {
        "target": names[0],
        "controllers, the senior first": ", ".join(names[1:]),
        "memes": f"{len(report.memes):,}{', a sample' if manifest.limit else ''}",
        "without a misbelief": f"{report.without_misbelief:,}",
        "some text left on the picture": f"{report.left:,}",
        "without a picture": f"{len(manifest.without_picture):,}",
        "begun": f"{manifest.created:%Y-%m-%d %H:%M} UTC",
        "software": f"{manifest.software} {manifest.commit[:12]}",
    }
    return Section("probe", "The probe", (("", "value"), *facts.items()), words=True, detail=True)


def _failures(report: ProbeReport, root: Path) -> Section:
    failures = report.failures[:SHOWN]
    lead = ["There is none."]
    if failures:
        some = f": {len(failures)} of {len(report.failures)}" if len(failures) < len(report.failures) else ""
        lead = [
            f"The lowest scores first{some}. Pictures and the words on memes are hidden until asked for, since they "
            "can be offensive; pictures are shown as the target saw them, without text.",
            "Texts that are marked as rewritten were made to be harder to recognise: keep this page to yourself. They "
            "stay in the probe's folder, and no library of precedents takes them in.",
        ]
    keys = {row.name: f"c{number}" for number, row in enumerate(report.categories)}
    # By meme: one that has failed in several categories or steps is made small once.
    pictures = {meme: small_pictures(root, report.memes[meme], _SIDE) for meme in {one.meme for one in failures}}
    return Section(
        "failures",
        "Explanations that failed",
        lead=tuple(lead),
        detail=True,
        entries=tuple(
            _entry(one, report, key=f"f{number}", kind=keys[one.category], pictures=pictures[one.meme])
            for number, one in enumerate(failures, 1)
        ),
        filters=(
            Filter("Category", tuple((keys[row.name], row.name) for row in report.categories)),
            Filter("Text", (("own", "as it is"), ("rewritten", "rewritten"))),
        )
        if failures
        else (),
    )


def _entry(one: Scored | Step, report: ProbeReport, *, key: str, kind: str, pictures: tuple[bytes, ...]) -> MemeEntry:
    meme, step, scoring = report.memes[one.meme], one if isinstance(one, Step) else None, one.scoring
    assert scoring is not None
    tags = [("bad", one.category)]
    facts = [f"score {scoring.score}", f"gold {'harmful' if meme.harmful else 'not harmful'}"]
    texts = [("text", one.text)]
    if step:
        tags.append(("doubt", "rewritten: not for libraries"))
        facts.append(f"step {step.number}, as it is: {step.before}")
        texts = [("rewritten text", one.text), ("its own text", meme.text), ("why it is missed", step.explanation)]
    return MemeEntry(
        key=key,
        meme=one.meme,
        filters=(f"{kind}:{'rewritten' if step else 'own'}",),
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


def repeated_probe(reports: Sequence[ProbeReport]) -> Repeats:
    """Puts reports of repeats together, by category; all categories together are ``all``.

    Raises BadRequest: There are fewer than two, or they are of different targets or memes.
    """

    def figures(row: CategoryRow) -> dict[str, float | None]:
        shown = (("score", row.before.mean), ("failure", row.before.failure), ("pooled", row.pooled.failure))
        return {name: one.value if one else None for name, one in shown}

    repeats = over_repeats(
        [report.manifest for report in reports],
        # Categories may be added during sorting, and not in every repeat.
        [{row.name: figures(row) for row in (*report.categories, report.overall)} for report in reports],
        [{"target": one.manifest.target, "models": one.manifest.models, "memes": list(one.memes)} for one in reports],
    )
    last = reports[0].overall.name
    ordered = sorted(repeats.rows, key=lambda name: (name == last, name))
    return replace(repeats, rows={name: repeats.rows[name] for name in ordered})


def repeat_section(repeats: Repeats) -> Section:
    """Means and spreads as a table."""
    columns = {
        "score": ("score", ".2f", 1.0),
        "failure": ("failed, %", ".1f", 100.0),
        "pooled": ("together, %", ".1f", 100.0),
    }
    note = "“Together”: the memes as they are and rewritten, as the published tables have it."
    return repeats_section(repeats, "category", columns, notes=[note])
