"""The report on runs of trials as sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from court.display import word
from court.events import Side
from eval.datasets.known import SHOWN
from eval.reports import figures
from eval.reports.gather import (
    PROTOCOLS,
    Group,
    Report,
    RunView,
    Table,
    TableRow,
    VerdictFault,
    WrongMeme,
    WrongVerdict,
    gold_words,
    judged_of,
)
from eval.reports.sections import (
    Drawn,
    Filter,
    MemeEntry,
    Rows,
    Section,
    Statement,
    Tile,
    need_page,
    notes_in_words,
    plain,
)
from eval.runs.results import Judged
from eval.scores.means import share_of
from eval.scores.measure import NOTHING, figure, listed
from eval.scores.metrics import cards_rows, confusion_rows

_BESIDE = 3
"""Largest number of runs side by side, so that a line fits a terminal."""
_WRONG = "Wrong verdicts"
_EXCERPT = 300
"""Longest excerpt of a rationale in a table, in characters."""
_CURVES = {
    "ROC": "Of the memes with a score.",
    "Precision and recall": "Of the memes with a score.",
    "Risk and coverage": "Share of wrong verdicts if only the memes with the surest scores are decided.",
}
_NO_ROUNDS = "No side examined the Proposer in this run, so there are no rounds."
_NO_SCORES = "No meme has a score, so there is nothing to calibrate."


def verdicts_title(report: Report) -> str:
    """Title of the report: its data sets and splits."""
    return listed(f"{group.title}, {group.split}" for group in report.groups)


def verdicts_lead(report: Report) -> tuple[str, ...]:
    """Sentences before the sections."""
    return (
        f"Intervals are 95 %, by bootstrap over memes, {report.resamples:,} resamples. Decided figures are over the "
        "memes that were given a class; in strict figures a meme without a class is wrong.",
        *notes_in_words([(run.label, run.results.notes) for group in report.groups for run in group.runs]),
    )


def verdicts_sections(report: Report, *, details: bool = True, page: bool = False) -> list[Section]:
    """All sections, in order.

    Args:
        details: False to leave out the details of each run, which a terminal doesn't show.
        page: True to draw the figures, and to show wrong verdicts with pictures and records instead of in tables.

    Raises:
        NotLoaded: jinja2 or matplotlib is not installed, which a page needs.
    """
    if page:
        need_page()
    sections: list[Section] = []
    if report.unfinished:
        lines = tuple(run.unfinished_words for run in report.unfinished)
        sections.append(Section("unfinished", "Not finished: these figures will change", lead=lines, warning=True))
    for group in report.groups:
        sections += _group(group, page=page)
    if details:
        sections.append(Section("runs", "Runs", detail=True))
        for run in report.runs:
            sections += _run(run, page=page)
    for group in report.groups:
        title = _WRONG if len(report.groups) == 1 else f"{_WRONG}: {group.title}, {group.split}"
        sections += _wrong(group, title, page=page)
    return sections


def _group(group: Group, *, page: bool) -> Iterator[Section]:
    missing = () if group.published else ("No published figures of this data set are kept here.",)
    yield Section(group.key, f"{group.title}, {group.split}", lead=group.unscored, notes=(*group.traps, *missing))
    for table in group.tables:
        for first in range(0, len(table.rows), _BESIDE):
            rows, last = table.rows[first : first + _BESIDE], first + _BESIDE >= len(table.rows)
            more = f", from run {first + 1} on" if first else ""
            yield Section(
                f"{table.key}-{first}",
                f"Protocol {table.protocol}: {PROTOCOLS[table.protocol]}{more}",
                cards_rows(
                    [(_name(row.run), row.card) for row in rows],
                    [_name(row.run) for row in rows if not row.run.finished],
                ),
                notes=table.remarks if last else (),
                drawn=_costs(table) if page and last else (),
                tiles=_tiles(table) if page and not first else (),
                level=3,
            )
        for row in table.rows:
            yield from _run_under(table, row, page=page)
        if table.contrasts:
            yield _contrasts(table)
    if group.published:
        yield published_section(group)


def _name(run: RunView) -> str:
    return run.label if run.finished else f"{run.label} (not finished)"


def _run_under(table: Table, row: TableRow, *, page: bool) -> Iterator[Section]:
    """Confusion and calibration of one run."""
    key = f"{table.key}-{row.run.key}"
    drawn: list[Drawn] = []
    bins = row.card.calibration
    if page:
        curve = figures.calibration(bins, f"{key}-curve")
        caption = (
            f"{row.card.scored:,} memes with a score, in bins of nearly equal numbers, ten or more each. On the dashed "
            "line a score is the share of harmful memes among those that have it."
        )
        drawn.append(Drawn("Calibration", curve or "", caption))
        judged = [(gold, one) for one in row.run.results.judged if (gold := one.meme.gold(table.protocol)) is not None]
        lines = figures.curves([gold for gold, _ in judged], [one.prediction for _, one in judged], key)
        drawn += [Drawn(title, svg, _CURVES[title]) for title, svg in lines]
    rows = confusion_rows(row.card)
    yield Section(
        f"{key}-confusion", f"Confusion, {row.run.label}, {table.protocol}", rows, drawn=tuple(drawn), level=3
    )
    failed = Counter(check for one in row.run.results.judged for check in one.prediction.checks)
    if failed:
        card, n = row.card, len(row.run.results.judged)
        sound = card.strict_without_mistrials
        yield Section(
            f"{key}-checks",
            f"Checks of full trials, {row.run.label}, {table.protocol}",
            (
                ("failed check", "memes", "share"),
                *((word(check), f"{count:,}", f"{count / n:.3f}") for check, count in failed.most_common()),
            ),
            notes=(
                f"{card.mistrials:,} of {card.n:,} were mistrials. Accuracy, strict, of all: "
                f"{figure(card.strict.accuracy)}; without mistrials: {figure(sound)}.",
            ),
            level=3,
        )
    yield Section(
        f"{key}-calibration",
        f"Calibration, {row.run.label}, {table.protocol}",
        (
            ("scores", "memes", "mean score", "share harmful"),
            *(
                (
                    f"{one.low:.3f} to {one.high:.3f}",
                    f"{one.n:,}",
                    f"{one.mean_score:.3f}",
                    f"{one.share_harmful:.3f}",
                )
                for one in bins
            ),
        )
        if bins
        else (),
        notes=() if bins else (_NO_SCORES,),
        level=3,
        detail=True,
    )


def _tiles(table: Table) -> tuple[Tile, ...]:
    """Accuracy, macro-F1 and coverage of the finished runs; others have no strict figures."""
    finished = [(row.run.label, row.card) for row in table.rows if row.run.finished]
    if not finished:
        return ()
    return (
        Tile("Accuracy", tuple((label, card.strict.accuracy) for label, card in finished)),
        Tile("Macro-F1", tuple((label, card.strict.macro_f1) for label, card in finished)),
        Tile("Coverage", tuple((label, card.coverage) for label, card in finished)),
    )


def _costs(table: Table) -> tuple[Drawn, ...]:
    """Cost against accuracy of several finished runs."""
    bars = [
        figures.Bar(
            label=plain(row.run.label),
            accuracy=row.card.strict.accuracy,
            calls=row.run.cost.calls if row.run.cost else 0.0,
            tokens=row.run.cost.tokens if row.run.cost else 0.0,
        )
        for row in table.rows
        if row.run.finished
    ]
    cost = figures.costs(bars, f"{table.key}-costs") if len(bars) > 1 else None
    words = "What a trial takes, whether or not its calls came out of the store."
    return (Drawn("Cost against accuracy", cost, words),) if cost else ()


def _contrasts(table: Table) -> Section:
    heads = ("run", "against", "memes", "accuracy", "macro-F1", "only the run right", "only the other", "p")
    rows: list[tuple[str, ...]] = [(*heads, "accuracy is")]
    for one in table.contrasts:
        compared = one.comparison
        differences = (figure(compared.differences[name], "+.1f", times=100) for name in ("accuracy", "macro-f1"))
        odd = (f"{compared.only_a_right:,}", f"{compared.only_b_right:,}", f"{compared.mcnemar_p:.2g}")
        rows.append((one.label, one.against, f"{compared.n:,}", *differences, *odd, one.judgment))
    return Section(
        f"{table.key}-contrasts",
        f"Compared meme by meme, {table.protocol}",
        tuple(rows),
        caption="Differences of the strict figures in points, by paired bootstrap; p by the exact McNemar test",
        level=3,
    )


def published_section(group: Group) -> Section:
    """Published figures on a data set, with the sources and remarks of each."""
    heads = ("system", "split", "protocol", "memes", "accuracy", "macro-F1", "AUROC", "MMAE")
    rows: list[tuple[str, ...]] = [heads]
    # Most rows share a source or a remark, which would fill the screen otherwise.
    systems: dict[str, list[str]] = {}
    for row in group.published:
        memes = NOTHING if row.n is None else f"{row.n:,}"
        numbers = (figure(row.figures.get(name)) for name in SHOWN)
        rows.append((row.name, row.split or "not said", str(row.protocol), memes, *numbers))
        systems.setdefault(f"From {row.source}, read in {row.read_in}", []).append(row.label)
        if row.remark:
            systems.setdefault(row.remark.rstrip("."), []).append(row.label)
    sources = (f"{sentence}: {', '.join(dict.fromkeys(named))}." for sentence, named in systems.items())
    return Section(
        f"{group.key}-published",
        f"As published, not measured here: {group.title}, {group.split}",
        tuple(rows),
        notes=(*group.caveats, *sources),
        lead=("A figure under another protocol, split or version of the data can't be compared with those above.",),
        level=3,
    )


def _run(run: RunView, *, page: bool) -> Iterator[Section]:
    drawn: tuple[Drawn, ...] = ()
    if page:
        course = figures.entropies({Side(side): found for side, found in run.entropies.items()}, f"{run.key}-entropy")
        chart = figures.rounds(run.rounds, f"{run.key}-chart")
        band = (
            "Of the sides' summaries: median, and the band between the quartiles. Above it, the number of summaries: a "
            "side that has rested writes no more."
        )
        drawn = (
            Drawn("Rounds per side by gold label", chart or "", "Share of the memes."),
            Drawn("Entropy by round", course or "", band),
        )
    facts = tuple((name, value) for name, value in _facts(run) if value)
    rows = (("run", run.label), *facts)
    yield Section(run.key, _name(run), rows, drawn=drawn, level=3, words=True, detail=True)
    counts = [
        (word(one.side), "harmful" if one.harmful else "not harmful", f"{one.n:,}", f"{one.mean:.2f}")
        for one in run.rounds
    ]
    yield _detail(
        f"{run.key}-rounds", f"Rounds, {run.label}", (("side", "gold", "memes", "rounds, mean"), *counts), _NO_ROUNDS
    )
    quartiles = [
        (word(side), str(one.round), f"{one.n:,}", *(f"{bits:.3f}" for bits in (one.low, one.middle, one.high)))
        for side, course in run.entropies.items()
        for one in course
    ]
    bits = ("side", "round", "summaries", "lower quartile", "median", "upper quartile")
    yield _detail(f"{run.key}-bits", f"Entropy of the summaries in bits, {run.label}", (bits, *quartiles), _NO_ROUNDS)
    excluded_by = run.results.manifest.excluded if run.results.manifest else {}
    excluded = [
        (one.precedent, one.meme, one.why, figure(one.text_similarity), figure(one.picture_similarity))
        for one in run.excluded
        if excluded_by
    ]
    heads = ("precedent", "judged meme", "why", "text", "picture")
    none = "Which precedents were left out is not listed." if excluded_by else "No precedent was left out."
    yield _detail(f"{run.key}-excluded", f"Precedents left out as too near, {run.label}", (heads, *excluded), none)


def _detail(key: str, title: str, rows: Rows, none: str) -> Section:
    """A table of details at a run, or the reason why there is none."""
    filled = len(rows) > 1
    return Section(key, title, rows if filled else (), () if filled else (none,), level=4, detail=True)


def _facts(run: RunView) -> Iterator[tuple[str, str]]:
    yield "memes", f"{run.judged:,} of {run.total:,} judged"
    manifest = run.results.manifest
    if manifest is None:
        yield "origin", "predictions from elsewhere: nothing is known of how they were made"
    else:
        yield "procedure", word(manifest.procedure)
        yield "control", manifest.control
        yield "limit, seed", f"{'none' if manifest.limit is None else manifest.limit}, {manifest.seed}"
        yield "models", ", ".join(f"{word(role)} {model}" for role, model in sorted(manifest.models.items()))
        yield "library", f"{manifest.library_size:,} precedents, {manifest.library}, {manifest.encoder}"
        excluded = ", ".join(f"{count:,} {why}" for why, count in sorted(manifest.excluded.items()))
        yield "precedents left out as too near", excluded or "none"
        settings = ", ".join(f"{name} {value}" for name, value in sorted(manifest.settings.items()))
        yield "settings", f"{settings} ({manifest.settings_digest})"
        yield "prompts", manifest.prompts
        yield "policy", manifest.policy
        yield "data", ", ".join(f"{name} {digest}" for name, digest in sorted(manifest.data.items()))
        yield "begun", f"{manifest.created:%Y-%m-%d %H:%M} UTC"
        yield "finished", f"{manifest.finished:%Y-%m-%d %H:%M} UTC" if manifest.finished else "no"
        yield "continued", f"{manifest.interruptions} times" if manifest.interruptions else ""
        yield "software", f"{manifest.software} {manifest.commit}, Python {manifest.python}, {manifest.machine}"
        yield "command", manifest.command
    predictions = (one.prediction for one in run.results.judged if one.prediction is not None)
    known = [(one.meme, float(one.determined)) for one in predictions if one.determined is not None]
    if share := share_of(known):
        yield "verdicts that their stated reasons determine", f"{figure(share)} of the {len(known):,} where it is known"
    yield "failed", ", ".join(f"{count} {reason}" for reason, count in sorted(run.failures.items()))
    if cost := run.cost:
        yield (
            "a meme, on average",
            f"{cost.calls:.1f} model calls ({cost.stored:.0%} from the store), {cost.tokens_in:,.0f} tokens read "
            f"({cost.tokens_cached:,.0f} cached), {cost.tokens_out:,.0f} written",
        )
        yield "median", f"longest chain of calls {cost.chain:g}, {cost.seconds:.2f} s"


def _wrong(group: Group, title: str, *, page: bool) -> Iterator[Section]:
    counts = [f"{group.count(fault):,} {fault.title.lower()}" for fault in VerdictFault if group.count(fault)]
    lead = [f"Wrong: {'; '.join(counts) or 'nothing that was judged'}."]
    key = f"{group.key}-wrong"
    if not page or not group.wrong:
        yield Section(key, title, lead=tuple(lead))
        if group.wrong:
            yield Section(
                f"{key}-list", f"{title}, the surest first", _wrong_rows(group.wrong), level=3, words=True, detail=True
            )
        return
    lead.append(
        "The surest faults first. Pictures and the words on memes are hidden until asked for, since they can be "
        "offensive."
    )
    yield Section(
        key,
        "Memes" if title == _WRONG else f"Memes: {group.title}, {group.split}",
        lead=tuple(lead),
        entries=(*(_entry(one, group) for one in group.wrong), *_right_entries(group)),
        filters=(
            Filter(
                "Verdict", (*((str(fault.value), fault.title.lower()) for fault in VerdictFault), ("right", "right"))
            ),
            *([Filter("Run", tuple((run.key, run.label) for run in group.runs))] if len(group.runs) > 1 else []),
        ),
    )


def _wrong_rows(wrong: Sequence[WrongMeme]) -> Rows:
    return (
        ("meme", "gold", "run", "said", "score", "vote", "rounds", "rationale"),
        *(
            (
                one.meme.id,
                gold_words(one.meme),
                each.run.label,
                _label_of(each),
                figure(each.prediction.score),
                figure(each.prediction.vote),
                each.rounds_words or NOTHING,
                each.rationale if len(each.rationale) <= _EXCERPT else f"{each.rationale[: _EXCERPT - 1]}…",
            )
            for one in wrong
            for each in one.verdicts
        ),
    )


def _label_of(verdict: WrongVerdict) -> str:
    prediction = verdict.prediction
    return word(prediction.outcome) + (f" ({word(prediction.reason)})" if prediction.reason else "")


def _entry(wrong: WrongMeme, group: Group) -> MemeEntry:
    facts = [f"gold {gold_words(wrong.meme)}"]
    if wrong.meme.targets:
        facts.append(f"at {', '.join(wrong.meme.targets)}")
    if len(group.runs) > 1:
        facts.append(f"wrong in {len(wrong.verdicts)} of {len(wrong.verdicts) + len(wrong.right)} runs")
    if wrong.right:
        facts.append(f"right: {', '.join(run.label for run in wrong.right)}")
    surely = wrong.worst in (VerdictFault.MISSED, VerdictFault.FALSE_ALARM)
    return MemeEntry(
        key=wrong.key,
        meme=wrong.meme.id,
        filters=(
            *(f"{one.fault.value}:{one.run.key}" for one in wrong.verdicts),
            *(f"right:{run.key}" for run in wrong.right),
        ),
        score=wrong.verdicts[0].prediction.score,
        tags=(("bad" if surely else "doubt", wrong.worst.title),),
        facts=tuple(facts),
        pictures=wrong.pictures,
        texts=(("text", wrong.meme.text),),
        statements=tuple(_statement(one, len(group.runs) > 1) for one in wrong.verdicts),
    )


def _right_entries(group: Group) -> Iterator[MemeEntry]:
    """Memes that no run judged wrong, without pictures and records."""
    wrong = {one.meme.id for one in group.wrong}
    right: dict[str, list[tuple[RunView, Judged]]] = {}
    for run in group.runs:
        for one in judged_of(run.results):
            if one.meme.id not in wrong:
                right.setdefault(one.meme.id, []).append((run, one))
    for number, (id_, judged) in enumerate(right.items(), 1):
        meme, prediction = judged[0][1].meme, judged[0][1].prediction
        yield MemeEntry(
            key=f"{group.key}-right-{number}",
            meme=id_,
            filters=tuple(f"right:{run.key}" for run, _ in judged),
            tags=(("good", "Right"),),
            facts=(f"gold {gold_words(meme)}", f"score {figure(prediction.score)}"),
            texts=(("text", meme.text),),
            score=prediction.score,
        )


def _statement(verdict: WrongVerdict, several: bool) -> Statement:
    prediction, records = verdict.prediction, verdict.run.records
    facts = [verdict.run.label] if several else []
    facts += [
        f"said {_label_of(verdict)}",
        f"score {figure(prediction.score)}",
        f"precedents’ vote {figure(prediction.vote)}",
    ]
    if prediction.sides:
        facts.append(f"rounds {verdict.rounds_words}")
    if prediction.needs_review:
        facts.append("for review")
    if prediction.cost.calls:
        facts.append(
            f"{prediction.cost.calls} calls, {prediction.cost.tokens_in:,}→{prediction.cost.tokens_out:,} tokens"
        )
    record = records.records.get(prediction.trial)
    missing = records.lost.get(prediction.trial) or records.missing or "records were not read."
    return Statement(
        facts=tuple(facts),
        words=verdict.rationale,
        record=record,
        pictures=records.precedents,
        missing=missing if prediction.trial else "there was no trial.",
    )
