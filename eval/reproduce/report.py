"""The report of a reproduction: tables 1 to 3 beside ours, claims, figures 3 to 5, and what differs from the paper.

Only the document, which stays in the folder, quotes memes and models; the figures as JSON do not.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, repeat
from typing import Any

from court.events import QuestionAsked, Side
from court.transcript import transcript
from eval.reports import figures
from eval.reports.records import read_records
from eval.reports.sections import Drawn, Section
from eval.reproduce.paper import Claim, ClaimPart, Reached
from eval.reproduce.staged import Cell, StagedOutcome
from eval.reproduce.study import BALANCED_DRAWS, BalancedFigures, Reproduced, RowOutcome
from eval.runs.results import Results
from eval.scores.measure import NOTHING, Figure
from serving.presets import Preset

_MEMES_COMPARED = 5
_QUESTIONS_SHOWN = 3
_OURS = "Ours alone: controls, comparators, other models"


def reproduction_title(outcome: Reproduced) -> str:
    """Title of the report."""
    return f"{outcome.plan.paper.paper}, reproduced"


def reproduction_lead(outcome: Reproduced, preset: Preset | None) -> list[str]:
    """Sentences before the sections."""
    seed, limit = outcome.plan.base.seed, outcome.plan.base.limit
    settings = f"preset {preset.id}, {preset.digest}" if preset else "the court as it is served"
    return [
        f"Settings: {settings}. Seed {seed}; "
        + (f"a sample of {limit:,} memes of each split." if limit else "all memes of each split."),
        "Figures are strict (a meme without a class is wrong), in percent, with 95 % intervals by bootstrap over "
        f"memes. Differences are ours less what {outcome.plan.paper.figures}, in points.",
        "On which memes the published figures were measured is not known: a figure is unreachable on a split where no "
        "confusion matrix over its classes rounds to its accuracy and macro-F1."
        if outcome.plan.paper.figures == "is published"
        else "What must be follows from the drawn memes and the abilities of the stand-ins.",
        *(() if outcome.finished else ("Not finished: rows without figures are still to be run.",)),
    ]


async def reproduction_sections(outcome: Reproduced, preset: Preset | None) -> list[Section]:
    """All sections, in order."""
    parts = [
        # Tables without rows are omitted: a reproduction of Table 2 alone shows no empty grids for the others.
        *(
            _table(outcome, number)
            for number in (*outcome.plan.paper.tables, None)
            if any(row.table == number for row in outcome.rows)
        ),
        _baselines(outcome),
        _claims(outcome.claims),
        await _figure_3(outcome),
        await _figure_4(outcome),
        _figure_5(outcome),
        _differences(outcome, preset),
    ]
    return [section for part in parts for section in part]


def _part(
    key: str, title: str, lines: Sequence[str] = (), tables: Sequence[Section] = (), drawn: Sequence[Drawn] = ()
) -> list[Section]:
    """A section and those of its tables."""
    numbered = (replace(table, key=f"{key}-{number}") for number, table in enumerate(tables, 1))
    return [Section(key, title, lead=tuple(lines), drawn=tuple(drawn)), *numbered]


def _grid(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> Section:
    return Section("", title, (tuple(heads), *map(tuple, rows)), level=3, words=words)


def as_json(outcome: Reproduced) -> dict[str, Any]:
    """The figures of a reproduction, without any text of memes or models."""
    return {
        "paper": outcome.plan.paper.paper,
        "mode": outcome.plan.mode,
        "preset_digest": outcome.plan.preset_digest,
        "finished": outcome.finished,
        "seed": outcome.plan.base.seed,
        "limit": outcome.plan.base.limit,
        "rows": [_row_json(row) for row in outcome.rows],
        "claims": [asdict(claim) for claim in outcome.claims],
        "figure_4": {"run": str(outcome.chain[0].root), "meme": outcome.chain[1]} if outcome.chain else None,
        "figure_5": {
            name: [{**asdict(one), "mean": one.mean, "n": one.n} for one in found]
            for name, found in outcome.rounds.items()
        },
    }


def _row_json(row: RowOutcome) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(row).items() if name not in ("card", "target")}
    card, target = row.card, row.target
    return fields | {
        "published": {"accuracy": target.accuracy, "macro_f1": target.macro_f1} if target else None,
        "ours": {
            "n": card.n,
            "harmful": card.gold["harmful"],
            "failed": card.failed,
            "undecided": card.unanswered - card.failed,
            "accuracy": asdict(card.known("accuracy")),
            "macro_f1": asdict(card.known("macro-f1")),
            "majority": card.baseline["accuracy"],
        }
        if card
        else None,
        "differences": row.differences,
    }


def _table(outcome: Reproduced, number: int | None) -> list[Section]:
    rows = [row for row in outcome.rows if row.table == number]
    figures = outcome.plan.paper.figures
    named = figures.removeprefix("is ")
    heads = ["row", "data", "model", "memes (harmful)", f"{named} acc / F1", "accuracy", "macro-F1", "difference"]
    heads += ["calls a meme", "tokens a meme", f"beside what {figures}"]
    tables = [_grid(f"Ours beside what {figures}", heads, [_cells(row) for row in rows])]
    balanced = [(row, row.balanced) for row in rows if row.balanced]
    if balanced:
        caption = (
            "Balanced draws, not a public split: all memes of the rarer class and as many of the other, "
            f"{BALANCED_DRAWS} draws, mean and range"
        )
        heads = ["row", "data", "memes", f"{named} acc / F1", "accuracy", "macro-F1", f"{named} can occur"]
        tables.append(_grid(caption, heads, [_balanced_cells(row, found) for row, found in balanced]))
    key = f"table-{number or 'ours'}"
    return _part(key, outcome.plan.paper.tables[number] if number else _OURS, tables=tables)


def _cells(row: RowOutcome) -> list[str]:
    card, differences = row.card, row.differences
    return [
        f"{row.id}: {row.row}" if row.id else f"{row.row}, {row.size}",
        f"{row.benchmark}, {row.split}",
        row.model or row.size,
        f"{card.n:,} ({card.gold['harmful']:,})" if card else NOTHING,
        _published(row),
        _percent(card.known("accuracy") if card else None),
        _percent(card.known("macro-f1") if card else None),
        " / ".join(f"{points:+.2f}" for points in differences) if differences else NOTHING,
        f"{row.calls:.1f}" if card else NOTHING,
        f"{row.tokens:,.0f}" if card else NOTHING,
        f"{row.reached}: {row.why}",
    ]


def _balanced_cells(row: RowOutcome, found: BalancedFigures) -> list[str]:
    # By identity of the keys: None is "not computed", which is not the same as "no".
    can = {None: NOTHING, True: "yes", False: "no"}[found.reachable]
    data = f"{row.benchmark}, {row.split}"
    figures_ = (_percent(found.accuracy), _percent(found.macro_f1))
    return [row.id or row.row, data, f"{found.n:,}", _published(row), *figures_, can]


def _published(row: RowOutcome) -> str:
    return f"{row.target.accuracy:.2f} / {row.target.macro_f1:.2f}" if row.target else NOTHING


def _percent(figure: Figure | None) -> str:
    if figure is None:
        return NOTHING
    return f"{100 * figure.value:.2f} ({100 * figure.low:.1f} to {100 * figure.high:.1f})"


def _baselines(outcome: Reproduced) -> list[Section]:
    rows = [
        [name, *(f"{accuracy:.2f} / {macro_f1:.2f}" for accuracy, macro_f1 in pairs)]
        for name, pairs in outcome.plan.paper.baselines.items()
    ]
    line = "The paper quotes these figures and did not run them; nor do we. They are context."
    tables = [_grid("Accuracy / macro-F1, in percent", ["system", *outcome.plan.paper.titles], rows)]
    return _part("baselines", "Baselines that the paper quotes", lines=[line], tables=tables)


def _claims(claims: Sequence[Claim]) -> list[Section]:
    rows = [list(cells) for claim in claims for cells in _claim_rows(claim)]
    line = (
        "Tests of each claim on what was judged here, with the largest model that was run. Several tests at "
        "5 %: one in twenty comes out by chance alone."
    )
    heads = ["claim", "measured", "value", "p", "outcome"]
    grid = _grid("Claims and their tests", heads, rows, words=True)
    return _part("claims", "Claims and their tests", lines=[line], tables=[grid])


def _claim_rows(claim: Claim) -> Iterator[tuple[str, str, str, str, str]]:
    yield f"{claim.id}: {claim.claim}", claim.why, "", "", str(claim.verdict)
    for part in claim.parts:
        p = "" if part.p is None else f"{part.p:.2g}"
        yield claim.id, part.what, _value(part), p, str(part.verdict)


def _value(part: ClaimPart) -> str:
    figure = part.figure
    # Counts such as rounds have no interval, which is written as one of no width; a range of a number
    # to itself would look like certainty.
    if figure.low == figure.high == figure.value:
        return f"{figure.value:+.3f}"
    return f"{figure.value:+.3f} ({figure.low:+.3f} to {figure.high:+.3f})"


async def _figure_3(outcome: Reproduced) -> list[Section]:
    title = "Figure 3: questions with the stance from the start, and without"
    if outcome.asked is None:
        lines = ["Needs the arms full and post-stance of the largest model."]
        return _part("figure-3", title, lines=lines)
    early, late = outcome.asked
    chosen = _apart_in_rounds(early, late)
    tables = []
    series = {"from the start": await _questions(early, chosen), "at the summary": await _questions(late, chosen)}
    # Chosen by difference in rounds, not by hand: examples that were picked for their look prove
    # nothing. Ties go by id, so that the same runs give the same page.
    for meme in chosen:
        columns = [chain(series[when][meme].get(side, []), repeat(NOTHING)) for when in series for side in Side]
        rows = [[f"{n}", *cells] for n, *cells in zip(range(1, _QUESTIONS_SHOWN + 1), *columns, strict=False)]
        heads = ["question", *(f"{side.lower()}, {when}" for when in series for side in Side)]
        tables.append(_grid(f"Meme {meme}", heads, rows, words=True))
    line = (
        "The paper shows one meme and says that sides with a stance ask more pointedly, which is for a reader to "
        f"judge; that they need fewer rounds is claim C5. Below, of the {len(chosen)} memes whose rounds differ most, "
        f"each side's first {_QUESTIONS_SHOWN} questions."
    )
    return _part("figure-3", title, lines=[line], tables=tables)


def _apart_in_rounds(early: Results, late: Results) -> list[str]:
    """Memes with the largest difference in rounds between two runs, among those examined in both."""
    # A meme without rounds in either run (it failed, or nobody asked anything) has nothing to be
    # compared with; counted as zero rounds it would come first.
    rounds = {one.meme.id: sum(side.rounds for side in one.prediction.sides.values()) for one in late.judged}
    apart = {
        one.meme.id: abs(sum(side.rounds for side in one.prediction.sides.values()) - rounds[one.meme.id])
        for one in early.judged
        if one.prediction.sides and rounds.get(one.meme.id)
    }
    return sorted(apart, key=lambda meme: (-apart[meme], meme))[:_MEMES_COMPARED]


async def _questions(results: Results, memes: Sequence[str]) -> dict[str, dict[Side, list[str]]]:
    trials = {one.meme.id: one.prediction.trial for one in results.judged if one.meme.id in memes}
    # Runs read from a file of predictions have no records, but arms of a reproduction are always our own runs.
    assert results.root is not None, "a run of ours"
    records = (await read_records(results.root, list(trials.values()), pictures=False)).records
    questions: dict[str, dict[Side, list[str]]] = {meme: {} for meme in memes}
    for meme, trial in trials.items():
        # A record may be gone or damaged. Its meme then has fewer questions, and the page is made all
        # the same.
        for event in records[trial].all(QuestionAsked) if trial in records else ():
            questions[meme].setdefault(event.side, []).append(event.question)
    return questions


async def _figure_4(outcome: Reproduced) -> list[Section]:
    title = "Figure 4: the chain of one meme of Harm-P"
    if outcome.chain is None:
        return _part("figure-4", title, lines=["Needs the full court on Harm-P."])
    results, meme = outcome.chain
    one = next(one for one in results.judged if one.meme.id == meme)
    assert results.root is not None, "a run of ours"
    records = await read_records(results.root, [one.prediction.trial], pictures=False)
    record = records.records.get(one.prediction.trial)
    if record is None:
        why = records.missing or records.lost.get(one.prediction.trial, "its record is gone")
        return _part("figure-4", title, lines=[f"The record of {meme} can't be read: {why}"])
    shown = transcript(record)
    rows = [
        [f"{each.number}", *(text for side in Side for text in _turn(each.turns[side]))]
        for each in shown.rounds
        # A round that exists only because both sides generated ahead was never part of the examination.
        if any(turn is not None and not turn.ahead for turn in each.turns.values())
    ]
    heads = ["round", *(f"{side.lower()}: {what}" for side in Side for what in ("question", "answer"))]
    # The paper names the meme's file, and data sets differ in whether an id has the ending.
    paper = outcome.plan.paper.chain
    own = meme.removesuffix(".png") == paper.meme
    lines = [
        f"The paper's own meme, {paper.meme}: {paper.note}."
        if own
        else f"The paper's meme, {paper.meme}, is not among those that were judged. In its place {meme}, "
        "whose sides differ most in rounds.",
        f"{', '.join(f'{side.lower()} {one.prediction.sides[side].rounds} rounds' for side in Side)}. "
        f"Gold: {one.meme.source_label}; verdict: {one.prediction.outcome.lower()}.",
        f"Description: {shown.description}",
    ]
    arguments = [
        [side.lower(), argument.argument] for side, argument in shown.arguments.items() if argument is not None
    ]
    tables = [
        _grid("Rounds", heads, rows, words=True),
        _grid("Arguments", ["side", "justification"], arguments, words=True),
    ]
    return _part("figure-4", title, lines=lines, tables=tables)


def _turn(turn: Any) -> tuple[str, str]:
    # Generated ahead and never needed: no part of the examination that the side rested after.
    if turn is None or turn.ahead:
        return NOTHING, NOTHING
    return turn.asked.question if turn.asked else NOTHING, turn.answered.answer if turn.answered else NOTHING


def _figure_5(outcome: Reproduced) -> list[Section]:
    title = "Figure 5: rounds by side and gold label"
    rows = [
        [
            f"{name}, {one.side.lower()}",
            figures.GOLD_WORDS[one.harmful],
            f"{one.n:,}",
            f"{one.mean:.2f}",
            ", ".join(f"{rounds}: {memes}" for rounds, memes in one.counts.items()),
        ]
        for name, found in outcome.rounds.items()
        for one in found
    ]
    drawn = [
        Drawn(name, figures.rounds(found, f"rounds-{name}") or "", "Share of the memes of each gold label.")
        for name, found in outcome.rounds.items()
    ]
    line = "The paper says that the side which the gold label favours rests sooner: claim C6."
    heads = ["data, side", "gold", "memes", "mean rounds", "memes by number of rounds"]
    tables = [_grid("Rounds", heads, rows)] if rows else []
    lines = [line] if rows else ["No side asked anything."]
    return _part("figure-5", title, lines=lines, tables=tables, drawn=drawn)


def _left_out(outcome: Reproduced) -> Iterator[str]:
    """Sentences on the number of precedents that each benchmark lost to the rule against near-duplicates."""
    for benchmark, results in outcome.full.items():
        if results.manifest is not None:
            excluded = results.manifest.excluded
            why = ", ".join(f"{count:,} {name}" for name, count in excluded.items())
            yield (
                f"{benchmark}: {results.manifest.library_size:,} precedents; {sum(excluded.values()):,} of the train "
                f"split were left out as too near to what is judged{f' ({why})' if why else ''}."
            )


def _differences(outcome: Reproduced, preset: Preset | None) -> list[Section]:
    if preset is None:
        line = (
            "The court was run as it is served, not as the paper describes it: precedents with their likeness and the "
            "vote of a wider set before the Judge, the product's own policy, and probabilities asked for. The preset "
            "as-published (memecourt settings --preset as-published) has the paper's values."
        )
        return _part("differences", "What differs from the paper", lines=[line])
    trial = outcome.plan.base.settings.model_dump(mode="json")
    rows = []
    for value in preset.values:
        table, dot, name = value.setting.partition(".")
        # Names of settings are `table.name`, or the name of a whole table.
        now = trial[table].get(name) if dot else trial.get(table)
        unchanged = value.setting == "policy" or now == value.value
        # A value that was overridden shows both: a page that shows the preset's own would claim what
        # was not run.
        here = json.dumps(value.value) if unchanged else f"{json.dumps(now)} (preset: {json.dumps(value.value)})"
        rows.append([value.setting, here, value.source_words, value.why])
    for other in preset.others:
        rows.append([other.thing, other.here, other.source_words, f"the paper: {other.paper}"])
    return _differing(rows, ["Made of the preset that the runs were held with.", *_left_out(outcome)])


def _differing(rows: Sequence[Sequence[str]], lines: Sequence[str]) -> list[Section]:
    grid = _grid("Settings and choices", ["what", "here", "in the paper", "why"], rows, words=True)
    return _part("differences", "What differs from the paper", lines=lines, tables=[grid])


def staged_lead(outcome: StagedOutcome, mode: str) -> list[str]:
    """Sentences before the sections of a paper whose figures come from our other commands."""
    what = "is published" if outcome.planted is None else "must be"
    return [
        f"Settings: {mode}. Intervals are 95 %, by bootstrap; differences are ours less what {what}.",
        "A published share of right answers is unreachable where no number of them, out of ours, rounds to it."
        if outcome.planted is None
        else "What must be follows from the drawn data and the abilities of the stand-ins.",
        *(f"The stage {stage} stands: {why}." for stage, why in outcome.left.items()),
    ]


def staged_sections(outcome: StagedOutcome, commands: Mapping[str, str]) -> list[Section]:
    """All sections of such a paper, in order.

    Args:
        commands: The command of each stage.
    """
    paper = outcome.paper
    parts = []
    for spec in paper.tables:
        cells = outcome.tables()[spec.id]
        named = "must be" if outcome.planted is not None and spec.demo else "published"
        heads = ("row", "figure", "n", named, "ours", "difference", "can occur here", "beside it")
        grid = _grid(f"{spec.id}: figures", heads, list(map(staged_cells, cells)))
        lines = [spec.note] if spec.note else []
        if outcome.planted is not None and not spec.demo:
            lines.append("Nothing drawn is for it: the figures below are the published ones.")
        key = spec.id.lower().replace(" ", "-")
        parts += _part(key, f"{spec.id}: {spec.title}", lines=lines, tables=[grid])
    stages = [[one.id, one.title, commands[one.id], outcome.left.get(one.id, "finished")] for one in paper.stages]
    unread = [[what, why] for what, why in paper.unread.items()]
    return [
        *parts,
        *_claims(outcome.claims()),
        *_differing([[one[key] for key in ("what", "here", "paper", "why")] for one in paper.differs], []),
        *_part("unread", "Not shown", tables=[_grid("Parts of the paper", ["what", "why"], unread, words=True)]),
        *_part(
            "stages", "Stages", tables=[_grid("Commands", ["stage", "what", "command", "state"], stages, words=True)]
        ),
    ]


def staged_cells(cell: Cell) -> list[str]:
    """A figure in words: its row and name, n, what it is beside, ours with its interval, and how the two stand."""

    def number(value: float | None, sign: str = "") -> str:
        return NOTHING if value is None else f"{value:{sign},.{cell.places}f}"

    ours = number(cell.ours.value if cell.ours else None)
    if cell.ours and cell.ours.low != cell.ours.high:
        ours = f"{ours} ({number(cell.ours.low)} to {number(cell.ours.high)})"
    occurs = {None: NOTHING, True: "yes", False: "no"}[cell.occurs]
    n = NOTHING if cell.n is None else f"{cell.n:,}"
    published, difference = number(cell.published), number(cell.difference, "+")
    reached = NOTHING if cell.reached is Reached.NONE else str(cell.reached)
    return [cell.row, cell.figure, n, published, ours, difference, occurs, reached]


def staged_json(outcome: StagedOutcome) -> dict[str, Any]:
    """The figures of such a paper, without any text of memes or models."""
    return {
        "paper": outcome.paper.paper,
        "finished": not outcome.left,
        "left": dict(outcome.left),
        "tables": {
            name: [{**asdict(cell), "difference": cell.difference} for cell in cells]
            for name, cells in outcome.tables().items()
        },
        "claims": [asdict(claim) for claim in outcome.claims()],
    }
