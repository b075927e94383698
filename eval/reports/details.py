"""Details of runs of trials, on pages and in Markdown: how each run went, and every wrong verdict with its record."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from statistics import fmean, median

import numpy as np

from court.display import word
from court.events import Side
from eval.datasets.items import JudgedMeme, Outcome, Prediction
from eval.reports import figures
from eval.reports.records import Records, read_records
from eval.reports.sections import Drawn, Filter, MemeEntry, Rows, Section, Statement
from eval.reports.tasks import Group, Report, RunView, faults_section, tried_groups
from eval.runs.results import RunFolder
from eval.scores.courses import rounds_of
from eval.scores.means import share_of
from eval.scores.measure import NOTHING, figure
from eval.scores.metrics import VerdictFault, faults_of

_EXCERPT = 300
"""Longest excerpt of a rationale in a table, in characters."""


@dataclass(frozen=True, slots=True)
class WrongVerdict:
    """Wrong verdict of one run on a meme."""

    run: RunView
    fault: VerdictFault
    prediction: Prediction


@dataclass(slots=True)
class MemeVerdicts:
    """The verdicts of runs on a meme."""

    meme: JudgedMeme
    wrong: list[WrongVerdict] = field(default_factory=list)
    right: list[tuple[RunView, Prediction]] = field(default_factory=list)

    @property
    def worst(self) -> VerdictFault:
        """Worst fault, which decides where the meme is listed."""
        return min(verdict.fault for verdict in self.wrong)

    @property
    def surest(self) -> tuple[int, float]:
        """Sort key: the worst fault of any run, then the confidence of that verdict."""
        scores = (one.prediction.score for one in self.wrong if one.fault is self.worst)
        # Those without a score come last within their kind.
        return self.worst, -max((abs(score - 0.5) for score in scores if score is not None), default=-1.0)


def memes_by_verdict(runs: Sequence[RunView]) -> tuple[list[MemeVerdicts], list[MemeVerdicts]]:
    """The memes that a run judged wrong, the surest and worst first, and those that none did."""
    memes: dict[str, MemeVerdicts] = {}
    for run in runs:
        for fault, one in faults_of(run.results):
            found = memes.setdefault(one.meme.id, MemeVerdicts(one.meme))
            if fault is None:
                found.right.append((run, one.prediction))
            else:
                found.wrong.append(WrongVerdict(run, fault, one.prediction))
    wrong = sorted((one for one in memes.values() if one.wrong), key=lambda one: one.surest)
    return wrong, [one for one in memes.values() if not one.wrong]


def details_sections(report: Report, *, page: bool = False, pictures: bool = True) -> list[Section]:
    """Sections on how each run went and on its wrong verdicts; for a page with plots, records and pictures."""
    sections = [Section("runs", "Runs", detail=True)]
    sections += [section for group in tried_groups(report) for run in group.runs for section in _run(run, page=page)]
    for group in tried_groups(report):
        wrong, right = memes_by_verdict(group.runs)
        counted = faults_section(report, group)
        if not wrong:
            sections.append(counted)
            continue
        records = {run.key: _records_of(run, pictures=page and pictures) for run in group.runs}
        if page:
            sections.append(_entries(group, wrong, right, records=records, counted=counted))
        else:
            listed = f"{counted.title}, the surest first"
            rows = _wrong_rows(wrong, records)
            sections += [counted, Section(f"{counted.key}-list", listed, rows, level=3, words=True, detail=True)]
    return sections


def _records_of(run: RunView, *, pictures: bool) -> Records:
    if run.results.root is None:
        return Records(missing="There are no records: these are predictions from elsewhere.")
    # Only records of wrong verdicts are shown, and a record is large.
    trials = [
        one.prediction.trial for fault, one in faults_of(run.results) if fault is not None and one.prediction.trial
    ]
    return asyncio.run(read_records(run.results.root, trials, pictures=pictures))


def _run(run: RunView, *, page: bool) -> Iterator[Section]:
    rounds = rounds_of(run.results)
    drawn: tuple[Drawn, ...] = ()
    if page:
        chart = figures.rounds(rounds, f"{run.key}-chart") or ""
        drawn = (Drawn("Rounds per side by gold label", chart, "Share of the memes."),)
    facts = tuple((name, value) for name, value in _facts(run) if value)
    yield Section(run.key, run.title, (("run", run.label), *facts), drawn=drawn, level=3, words=True, detail=True)
    counts = [(word(one.side), figures.GOLD_WORDS[one.harmful], f"{one.n:,}", f"{one.mean:.2f}") for one in rounds]
    manifest, root = run.results.manifest, run.results.root
    excluded = [
        (one.precedent, one.meme, one.why, figure(one.text_similarity), figure(one.picture_similarity))
        for one in (RunFolder(root).excluded() if root and manifest and manifest.excluded else ())
    ]
    quartiles = ("side", "round", "summaries", "lower quartile", "median", "upper quartile")
    left_out = ("precedent", "judged meme", "why", "text", "picture")
    tables: list[tuple[str, str, tuple[str, ...], Sequence[tuple[str, ...]]]] = [
        ("rounds", "Rounds", ("side", "gold", "memes", "rounds, mean"), counts),
        ("bits", "Entropy of the summaries in bits", quartiles, list(_entropies(run))),
        ("excluded", "Precedents left out as too near", left_out, excluded),
    ]
    for key, title, head, rows in tables:
        if rows:
            yield Section(f"{run.key}-{key}", f"{title}, {run.label}", (head, *rows), level=4, detail=True)


def _entropies(run: RunView) -> Iterator[tuple[str, ...]]:
    """Quartiles of the summaries' entropy by side and round; a side that has already rested has none."""
    for side in Side:
        sides = (one.prediction.sides[side] for one in run.results.tried if side in one.prediction.sides)
        # Sides of different lengths: a round has the bits of those that got so far.
        for at, column in enumerate(zip_longest(*(one.entropies for one in sides if one.rounds)), 1):
            bits = [one for one in column if one is not None]
            quartiles = (f"{one:.3f}" for one in np.percentile(bits, (25, 50, 75)))
            yield word(side), str(at), f"{len(bits):,}", *quartiles


def _facts(run: RunView) -> Iterator[tuple[str, str]]:
    tried = run.results.tried
    yield "memes", f"{len(tried):,} of {len(run.results.judged):,} judged"
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
    predictions = [one.prediction for one in tried]
    known = [(one.meme, float(one.determined)) for one in predictions if one.determined is not None]
    if share := share_of(known):
        yield "verdicts that their stated reasons determine", f"{figure(share)} of the {len(known):,} where it is known"
    failures = Counter(one.reason or "no reason" for one in predictions if one.outcome is Outcome.FAILED)
    yield "failed", ", ".join(f"{count} {reason}" for reason, count in sorted(failures.items()))
    costs = [one.cost for one in predictions]
    # Unknown for predictions from elsewhere.
    if any(cost.calls or cost.seconds for cost in costs):
        names = ("calls", "stored", "tokens_in", "tokens_cached", "tokens_out")
        calls, stored, read, cached, written = (fmean(getattr(cost, name) for cost in costs) for name in names)
        yield (
            "a meme, on average",
            f"{calls:.1f} model calls ({stored / calls if calls else 0:.0%} from the store), {read:,.0f} tokens read "
            f"({cached:,.0f} cached), {written:,.0f} written",
        )
        # A median: a few trials that waited for a busy server would distort a mean.
        yield "median duration", f"{median(cost.seconds for cost in costs):.2f} s"


def _gold_words(meme: JudgedMeme) -> str:
    """Gold label in our words, and in the data set's own if they say more."""
    ours = "harmful" if meme.harmful else "not harmful"
    own = meme.source_label
    return ours if own.replace("_", " ").lower() == ours else f"{ours} ({own})"


def _label_of(prediction: Prediction) -> str:
    return word(prediction.outcome) + (f" ({word(prediction.reason)})" if prediction.reason else "")


def _rounds_words(prediction: Prediction) -> str:
    return ", ".join(f"{side.lower()} {course.rounds}" for side, course in prediction.sides.items())


def _rationale(prediction: Prediction, records: Records) -> str:
    """The Judge's rationale, or the reason for a missing answer; empty if there is no record."""
    record = records.records.get(prediction.trial)
    if record is None:
        return ""
    if record.verdict is not None:
        return record.verdict.rationale
    return record.failure.message if record.failure else ""


def _wrong_rows(wrong: Sequence[MemeVerdicts], records: Mapping[str, Records]) -> Rows:
    rows: list[tuple[str, ...]] = [("meme", "gold", "run", "said", "score", "vote", "rounds", "rationale")]
    for one in wrong:
        for each in one.wrong:
            prediction, why = each.prediction, _rationale(each.prediction, records[each.run.key])
            shown = (figure(prediction.score), figure(prediction.vote), _rounds_words(prediction) or NOTHING)
            excerpt = why if len(why) <= _EXCERPT else f"{why[: _EXCERPT - 1]}…"
            rows.append((one.meme.id, _gold_words(one.meme), each.run.label, _label_of(prediction), *shown, excerpt))
    return tuple(rows)


def _entries(
    group: Group,
    wrong: Sequence[MemeVerdicts],
    right: Sequence[MemeVerdicts],
    *,
    records: Mapping[str, Records],
    counted: Section,
) -> Section:
    """All memes on a page: the wrong ones with pictures and records, then the others."""
    faults = ((str(fault.value), fault.title.lower()) for fault in VerdictFault)
    of_runs = [Filter("Run", tuple((run.key, run.label) for run in group.runs))] if len(group.runs) > 1 else []
    hidden = (
        "The surest faults first. Pictures and the words on memes are hidden until asked for, since they can be "
        "offensive."
    )
    return replace(
        counted,
        title=counted.title.replace("Wrong verdicts", "Memes"),
        lead=(*counted.lead, hidden),
        entries=tuple(
            replace(_entry(one, records, several=bool(of_runs)), key=f"{group.key}-{kind}-{number}")
            for kind, memes in (("wrong", wrong), ("right", right))
            for number, one in enumerate(memes, 1)
        ),
        filters=(Filter("Verdict", (*faults, ("right", "right"))), *of_runs),
    )


def _entry(of: MemeVerdicts, records: Mapping[str, Records], *, several: bool) -> MemeEntry:
    """A meme on a page, with the records of its wrong verdicts."""
    meme, first = of.meme, of.wrong[0].prediction if of.wrong else of.right[0][1]
    facts, tag = [f"gold {_gold_words(meme)}", f"score {figure(first.score)}"], ("good", "Right")
    if of.wrong:
        surely = of.worst in (VerdictFault.MISSED, VerdictFault.FALSE_ALARM)
        tag = ("bad" if surely else "doubt", of.worst.title)
        # Scores stand at each statement.
        facts = [
            facts[0],
            f"at {', '.join(meme.targets)}" if meme.targets else "",
            f"wrong in {len(of.wrong)} of {len(of.wrong) + len(of.right)} runs" if several else "",
            f"right: {', '.join(run.label for run, _ in of.right)}" if of.right else "",
        ]
    shown = (records[one.run.key].pictures_of(one.prediction.trial) for one in of.wrong)
    return MemeEntry(
        key="",
        meme=meme.id,
        filters=(
            *(f"{one.fault.value}:{one.run.key}" for one in of.wrong),
            *(f"right:{run.key}" for run, _ in of.right),
        ),
        score=first.score,
        tags=(tag,),
        facts=tuple(filter(None, facts)),
        pictures=next(filter(None, shown), ()),
        texts=(("text", meme.text),),
        statements=tuple(
            _statement(one.prediction, records[one.run.key], one.run.label if several else "") for one in of.wrong
        ),
    )


def _statement(prediction: Prediction, records: Records, run: str) -> Statement:
    facts = [
        run,
        f"said {_label_of(prediction)}",
        f"score {figure(prediction.score)}",
        f"precedents’ vote {figure(prediction.vote)}",
        f"rounds {_rounds_words(prediction)}" if prediction.sides else "",
        "for review" if prediction.needs_review else "",
    ]
    if (cost := prediction.cost).calls:
        facts.append(f"{cost.calls} calls, {cost.tokens_in:,}→{cost.tokens_out:,} tokens")
    missing = records.lost.get(prediction.trial) or records.missing or "records were not read."
    return Statement(
        facts=tuple(filter(None, facts)),
        words=_rationale(prediction, records),
        record=records.records.get(prediction.trial),
        pictures=records.precedents,
        missing=missing if prediction.trial else "there was no trial.",
    )
