"""Parts of a page on a court's paper beyond tables and claims: figures 3 to 5, balanced draws, settings.

Only sections, which stay in the folder, quote memes and models; the figures as JSON do not.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain, repeat
from typing import Any

from court.events import QuestionAsked, Side
from court.record import TrialRecord
from court.transcript import Turn, transcript
from eval.datasets.read import sample
from eval.reports import figures
from eval.reports.records import read_records
from eval.reports.sections import Drawn, Section
from eval.reproduce.debates import rounds_in
from eval.reproduce.outcome import Reproduced, is_reachable
from eval.reproduce.paper import DebateSpec, find
from eval.reproduce.report import grid, part
from eval.runs.results import Results
from eval.scores.courses import rounds_of
from eval.scores.measure import NOTHING, Figure, figure
from eval.scores.metrics import harm_values
from eval.studies.arms import FULL_ARM
from serving.presets import Preset

_QUESTIONS_SHOWN = 3
BALANCED_DRAWS = 5
Content = Sequence[str | Section]


async def court_figures(
    spec: DebateSpec, arm: Callable[[str, str], Results | None]
) -> tuple[list[Section], dict[str, Any]]:
    """Sections of figures 3 to 5, and what of them has no text."""
    early, late, full = arm(spec.stage, FULL_ARM), arm(spec.stage, spec.late), arm(spec.chain, FULL_ARM)
    lacking = ["Needs the full court and the arm post-stance."]
    questions = await _questions_compared(early, late) if early and late else lacking
    meme = _meme_of_chain(full, spec.meme) if full else ""
    turns = await _chain(full, meme, spec) if full and meme else ["Needs the full court on Harm-P."]
    runs = {name: run for name, stage in spec.rounds.items() if (run := arm(stage, FULL_ARM))}
    # Data where no side asked have no rounds, and no panel.
    rounds = {name: counts for name, run in runs.items() if (counts := rounds_of(run))}
    rows = [
        (
            f"{name}, {one.side.lower()}",
            figures.GOLD_WORDS[one.harmful],
            f"{one.n:,}",
            f"{one.mean:.2f}",
            ", ".join(f"{number}: {memes}" for number, memes in one.counts.items()),
        )
        for name, counts in rounds.items()
        for one in counts
    ]
    drawn = [
        Drawn(name, figures.rounds(counts, f"rounds-{name}") or "", "Share of the memes of each gold label.")
        for name, counts in rounds.items()
    ]
    line = "The paper says that the side which the gold label favours rests sooner: claim C6."
    heads = ["data, side", "gold", "memes", "mean rounds", "memes by number of rounds"]
    counted: Content = [line, grid("Rounds", heads, rows)] if rows else ["No side asked anything."]
    sections = [
        *part("figure-3", "Figure 3: questions with the stance from the start, and without", questions),
        *part("figure-4", "Figure 4: the chain of one meme of Harm-P", turns),
        *part("figure-5", "Figure 5: rounds by side and gold label", counted, drawn),
    ]
    means = {name: [{**asdict(one), "mean": one.mean, "n": one.n} for one in counts] for name, counts in rounds.items()}
    return sections, {"figure_4": {"meme": meme} if meme else None, "figure_5": means}


async def _questions_compared(early: Results, late: Results) -> Content:
    rounds = {one.meme.id: sum(rounds_in(one).values()) for one in late.judged}
    # A meme without rounds in either run (it failed, or nobody asked anything) has nothing to be
    # compared with; counted as zero rounds it would come first.
    apart = {
        one.meme.id: abs(sum(rounds_in(one).values()) - rounds[one.meme.id])
        for one in early.judged
        if rounds_in(one) and rounds.get(one.meme.id)
    }
    # Chosen by difference in rounds, not by hand: examples that were picked for their look prove
    # nothing. Ties go by id, so that the same runs give the same page.
    chosen = sorted(apart, key=lambda meme: (-apart[meme], meme))[:5]
    series = {"from the start": await _questions(early, chosen), "at the summary": await _questions(late, chosen)}
    heads = ["question", *(f"{side.lower()}, {when}" for when in series for side in Side)]
    tables = []
    for meme in chosen:
        columns = [chain(series[when][meme].get(side, []), repeat(NOTHING)) for when in series for side in Side]
        rows = [[f"{n}", *cells] for n, *cells in zip(range(1, _QUESTIONS_SHOWN + 1), *columns, strict=False)]
        tables.append(grid(f"Meme {meme}", heads, rows, words=True))
    line = (
        "The paper shows one meme and says that sides with a stance ask more pointedly, which is for a reader to "
        f"judge; that they need fewer rounds is claim C5. Below, of the {len(chosen)} memes whose rounds differ most, "
        f"each side's first {_QUESTIONS_SHOWN} questions."
    )
    return [line, *tables]


async def _questions(results: Results, memes: Sequence[str]) -> dict[str, dict[Side, list[str]]]:
    records = await _records(results, memes)
    questions: dict[str, dict[Side, list[str]]] = {meme: {} for meme in memes}
    for meme, record in records.items():
        for event in record.all(QuestionAsked):
            questions[meme].setdefault(event.side, []).append(event.question)
    return questions


async def _records(results: Results, memes: Sequence[str]) -> dict[str, TrialRecord]:
    """Records by meme; a page is made all the same where one is gone or damaged."""
    trials = {one.meme.id: one.prediction.trial for one in results.judged if one.meme.id in memes}
    # Runs read from a file of predictions have no records, but arms of a reproduction are always our own runs.
    assert results.root is not None, "a run of ours"
    records = (await read_records(results.root, list(trials.values()), pictures=False)).records
    return {meme: records[trial] for meme, trial in trials.items() if trial in records}


def _meme_of_chain(full: Results, own: str) -> str:
    """The paper's meme if it was judged, else the one whose sides differ most in rounds; empty if no side asked."""
    # Both sides must have asked: their difference is what the figure shows.
    examined = {one.meme.id: rounds for one in full.judged if one.prediction.trial and (rounds := rounds_in(one))}
    # The paper names the meme's file, and data sets differ in whether an id has the ending.
    if found := next((meme for meme in examined if meme.removesuffix(".png") == own), ""):
        return found
    return max(examined, key=lambda meme: abs(examined[meme][Side.ACCUSER] - examined[meme][Side.DEFENDER]), default="")


async def _chain(full: Results, meme: str, spec: DebateSpec) -> Content:
    one = next(one for one in full.judged if one.meme.id == meme)
    record = (await _records(full, [meme])).get(meme)
    if record is None:
        return [f"The record of {meme} can't be read."]
    shown = transcript(record)
    rows = [
        [f"{each.number}", *(text for side in Side for text in _turn(each.turns[side]))]
        for each in shown.rounds
        # A round that exists only because both sides generated ahead was never part of the examination.
        if any(turn is not None and not turn.ahead for turn in each.turns.values())
    ]
    heads = ["round", *(f"{side.lower()}: {what}" for side in Side for what in ("question", "answer"))]
    arguments = [[side.lower(), each.argument] for side, each in shown.arguments.items() if each is not None]
    return [
        f"The paper's own meme, {spec.meme}: {spec.note}."
        if meme.removesuffix(".png") == spec.meme
        else f"The paper's meme, {spec.meme}, is not among those that were judged. In its place {meme}, whose sides "
        "differ most in rounds.",
        f"{', '.join(f'{side.lower()} {rounds} rounds' for side, rounds in rounds_in(one).items())}. "
        f"Gold: {one.meme.source_label}; verdict: {one.prediction.outcome.lower()}.",
        f"Description: {shown.description}",
        grid("Rounds", heads, rows, words=True),
        grid("Arguments", ["side", "justification"], arguments, words=True),
    ]


def _turn(turn: Turn | None) -> tuple[str, str]:
    # Generated ahead and never needed: no part of the examination that the side rested after.
    if turn is None or turn.ahead:
        return NOTHING, NOTHING
    return turn.asked.question if turn.asked else NOTHING, turn.answered.answer if turn.answered else NOTHING


def balanced_sections(outcome: Reproduced) -> list[Section]:
    """Figures of each arm on all memes of the rarer class and as many of the other, over several draws of these."""
    rows = []
    for row in (row for table in outcome.paper.tables if table.id.startswith("Table") for row in table.rows):
        arm = re.search(r"arm=([\w-]+)", row.key)
        run = outcome.arm(row.stage, arm[1]) if arm else None
        if run is None or (balanced := _balanced(run, outcome.seed)) is None:
            continue
        n, *ours = balanced
        theirs = find(outcome.paper.figures(), row.cite) if row.cite else None
        published, occurs = NOTHING, NOTHING
        if theirs:
            published = f"{theirs['accuracy']:.2f} / {theirs['macro_f1']:.2f}"
            occurs = (
                "yes" if is_reachable(theirs["accuracy"], theirs["macro_f1"], benign=n // 2, harmful=n // 2) else "no"
            )
        rows.append([row.name, f"{n:,}", published, *(figure(each, ".2f", times=100) for each in ours), occurs])
    line = (
        "Not a public split: all memes of the rarer class and as many of the other, "
        f"{BALANCED_DRAWS} draws, mean and range, in percent."
    )
    heads = ["row", "memes", "published acc / F1", "accuracy", "macro-F1", "published can occur"]
    return part("balanced", "Balanced draws", [line, grid("Accuracy and macro-F1", heads, rows)])


def _balanced(run: Results, seed: int) -> tuple[int, Figure, Figure] | None:
    """Number of memes, accuracy and macro-F1; None if a class has no meme."""
    gold = {one.meme.id: (one, label) for label, one in run.under(run.protocols[0])}
    # A missing class counts as wrong, as in the strict figures: the opposite of gold is a wrong answer.
    answered = {
        meme: not label if (harmful := one.prediction.outcome.harmful) is None else harmful
        for meme, (one, label) in gold.items()
    }
    labels = [label for _, label in gold.values()]
    # Ties go to the first class: the draw is then the whole split.
    rarer = min((True, False), key=labels.count)
    rare = [meme for meme, (_, label) in gold.items() if label is rarer]
    others = [one.meme for one, label in gold.values() if label is not rarer]
    if not rare:
        return None
    values = []
    # Seeds in a row, so that a second report shows the same draws.
    for draw in range(seed, seed + BALANCED_DRAWS):
        memes = [*rare, *(meme.id for meme in sample(others, len(rare), draw))]
        values.append(harm_values([gold[meme][1] for meme in memes], [answered[meme] for meme in memes]))
    accuracy, macro_f1 = (Figure(sum(each) / len(each), min(each), max(each)) for each in zip(*values, strict=True))
    return 2 * len(rare), accuracy, macro_f1


def preset_rows(preset: Preset, encoder: str) -> Iterator[list[str]]:
    """Yields the values of a preset, with their origin, and the encoder if another one was named."""
    for value in preset.values:
        here = json.dumps(value.value)
        # A value that was overridden shows both: a page with the preset's own would claim what was not run.
        if value.setting == "encoder" and encoder not in ("", value.value):
            here = f"{json.dumps(encoder)} (preset: {here})"
        yield [value.setting, here, value.source_words, value.why]
    for other in preset.others:
        yield [other.thing, other.here, other.source_words, f"the paper: {other.paper}"]


def left_out(spec: DebateSpec, arm: Callable[[str, str], Results | None]) -> Iterator[str]:
    """Sentences on the number of precedents that each data set lost to the rule against near-duplicates."""
    for name, stage in spec.rounds.items():
        run = arm(stage, FULL_ARM)
        if run is not None and run.manifest is not None:
            excluded = run.manifest.excluded
            why = ", ".join(f"{count:,} {kind}" for kind, count in excluded.items())
            yield (
                f"{name}: {run.manifest.library_size:,} precedents; {sum(excluded.values()):,} of the train split were "
                f"left out as too near to what is judged{f' ({why})' if why else ''}."
            )
