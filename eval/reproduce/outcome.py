"""The outcome of a reproduction: published figures beside ours, the claims, and the data behind the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from court.events import Side
from eval.datasets.items import Protocol
from eval.datasets.read import sample
from eval.reports.gather import Rounds, rounds_of
from eval.reproduce.paper import (
    Claim,
    ClaimPart,
    JudgedArms,
    Reached,
    Target,
    claims_of,
    has_accuracy,
    is_reachable,
    worth_of_leaks,
)
from eval.reproduce.study import POST_STANCE, WITH_LEAKS, Benchmark, Reproduction
from eval.runs.results import Results, read_results
from eval.scores.measure import RESAMPLES, Figure
from eval.scores.metrics import Card, card, score
from eval.studies.arms import FULL_ARM

BALANCED_DRAWS = 5


@dataclass(frozen=True, slots=True)
class BalancedFigures:
    """Figures on all memes of the rarer class and equally many of the other, over several draws of the latter."""

    n: int
    accuracy: Figure
    macro_f1: Figure
    reachable: bool | None


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """A published row beside ours, or a run of ours without a published counterpart."""

    id: str
    table: int | None
    row: str
    size: str
    model: str
    benchmark: str
    split: str
    arm: str
    target: Target | None
    card: Card | None
    reached: Reached
    why: str
    calls: float = 0.0
    tokens: float = 0.0
    balanced: BalancedFigures | None = None

    @property
    def differences(self) -> tuple[float, float] | None:
        """Our accuracy and macro-F1 minus the published ones, in points; None if either is missing."""
        if self.target is None or self.card is None:
            return None
        ours = self.card.strict
        return (
            100 * ours.accuracy.value - self.target.accuracy,
            100 * ours.macro_f1.value - self.target.macro_f1,
        )


@dataclass(frozen=True)
class Reproduced:
    """Content of the report on a reproduction."""

    plan: Reproduction
    rows: tuple[RowOutcome, ...]
    claims: tuple[Claim, ...]
    full: Mapping[str, Results]
    rounds: Mapping[str, tuple[Rounds, ...]]
    chain: tuple[Results, str] | None
    """Run and meme of figure 4; None if there was no examination."""
    asked: tuple[Results, Results] | None
    """Runs with the stance from the start and at the summary: figure 3; None if either is missing."""
    finished: bool
    leaks: ClaimPart | None = None
    """Lead of the full court with leaks over that without, of the largest model; None where either is missing."""


def outcome_of(plan: Reproduction, *, balanced: bool = False) -> Reproduced:
    """Reads and scores everything judged so far, also by earlier calls with other sizes.

    Raises BadRequest: A run can't be read.
    """
    begun = plan.begun()
    wanted = [(*key, arm.name) for key, study in begun.items() for arm in study.arms]
    runs = dict(_runs(plan, wanted))
    models = {size: study.server for (size, _), study in begun.items()}
    scoring = _Scoring(plan, models, balanced=balanced)
    rows = [
        scoring.row(target, each, runs.get((target.size, each.name, target.arm)))
        for target in plan.paper.targets
        for each in plan.benchmarks
        if each.data == target.data
    ]
    # A run may match rows of several tables, and then has a published counterpart.
    compared = {(row.size, row.benchmark, row.arm) for row in rows}
    rows += [
        scoring.row(None, plan.benchmark(name), results, size=size, arm=arm)
        for (size, name, arm), results in runs.items()
        if (size, name, arm) not in compared
    ]
    # Of all sizes that there are: calling it with a smaller size must not change the main figures.
    largest = max(models, key=plan.paper.sizes.index, default="")
    main = plan.benchmarks[0]
    arms = {arm: results for (size, name, arm), results in runs.items() if (size, name) == (largest, main.name)}
    # Main benchmark only, so that sizes are compared on the same memes.
    sizes = {size: runs[size, main.name, FULL_ARM] for size in plan.paper.sizes if (size, main.name, FULL_ARM) in runs}
    judged = JudgedArms(arms, sizes, protocol=protocol_of(main), seed=plan.base.seed, resamples=RESAMPLES)
    full = {name: results for (size, name, arm), results in runs.items() if size == largest and arm == FULL_ARM}
    left = [run for run in plan.planned() if not run.finished]
    return Reproduced(
        plan=plan,
        rows=tuple(rows),
        claims=claims_of(judged, plan.paper.claims),
        full=full,
        # Benchmarks where no side asked have no rounds, and no panel in figure 5.
        rounds={name: found for name, results in full.items() if (found := rounds_of(results))},
        chain=_chain(plan, full),
        finished=not left and len(runs) == len(wanted),
        asked=(arms[FULL_ARM], arms[POST_STANCE]) if {FULL_ARM, POST_STANCE} <= arms.keys() else None,
        leaks=worth_of_leaks(judged, WITH_LEAKS),
    )


def protocol_of(benchmark: Benchmark) -> Protocol:
    """Protocol under which a benchmark is scored."""
    return benchmark.plan.protocols[0]


def _runs(plan: Reproduction, wanted: Sequence[tuple[str, str, str]]) -> Iterator[tuple[tuple[str, str, str], Results]]:
    """Finished runs by size, benchmark and arm."""
    for key in wanted:
        folder = plan.folder(*key)
        # Figures on the memes that happen to be finished first do not represent the split.
        if folder.finished:
            yield key, read_results(folder.root)


@dataclass(frozen=True, slots=True)
class _Scoring:
    """Scores runs against targets."""

    plan: Reproduction
    models: Mapping[str, str]
    balanced: bool

    def row(
        self, target: Target | None, benchmark: Benchmark, results: Results | None, *, size: str = "", arm: str = ""
    ) -> RowOutcome:
        size, arm = (target.size, target.arm) if target else (size, arm)
        scored = None
        if results is not None:
            scored = card(results, protocol_of(benchmark), seed=self.plan.base.seed)
        reached, why = _reached(target, scored)
        costs = [one.prediction.cost for one in results.judged] if results else []
        return RowOutcome(
            id=target.id if target else "",
            table=target.table if target else None,
            row=target.row if target else arm,
            size=size,
            model=self.models.get(size, ""),
            benchmark=benchmark.name,
            split=benchmark.plan.split,
            arm=arm,
            target=target,
            card=scored,
            reached=reached,
            why=why,
            calls=sum(cost.calls for cost in costs) / len(costs) if costs else 0.0,
            tokens=sum(cost.tokens_in + cost.tokens_out for cost in costs) / len(costs) if costs else 0.0,
            balanced=_balanced(results, benchmark, target, self.plan.base.seed) if self.balanced and results else None,
        )


def _reached(target: Target | None, scored: Card | None) -> tuple[Reached, str]:
    if target is None:
        return Reached.NONE, "an arm or a model of which nothing is published"
    if scored is None:
        return Reached.NOT_RUN, "not run, or not finished"
    # Before any comparison of intervals: where no confusion matrix gives the published figures, being
    # outside of ours says nothing.
    if not is_reachable(target, benign=scored.benign, harmful=scored.harmful):
        classes = f"{scored.benign:,} not harmful and {scored.harmful:,} harmful memes"
        why = (
            "the accuracy could occur, but not together with the macro-F1"
            if has_accuracy(target.accuracy, scored.n)
            else "no number of right answers rounds to the accuracy"
        )
        return Reached.UNREACHABLE, f"with {classes}, {why}"
    ours = scored.strict
    outside = [
        name
        for name, published, figure in (
            ("accuracy", target.accuracy, ours.accuracy),
            ("macro-F1", target.macro_f1, ours.macro_f1),
        )
        # Published figures are rounded to two places: half of the last one is allowed for.
        if not 100 * figure.low - 0.005 <= published <= 100 * figure.high + 0.005
    ]
    if outside:
        return Reached.OUTSIDE, f"{' and '.join(outside)} outside our interval"
    return Reached.WITHIN, "both figures lie in our intervals"


def _balanced(results: Results, benchmark: Benchmark, target: Target | None, seed: int) -> BalancedFigures | None:
    """Scores all memes of the rarer class with equally many of the other; None if a class has no meme."""
    by_class: dict[bool, list[str]] = {True: [], False: []}
    predicted = {}
    for gold, one in results.under(protocol_of(benchmark)):
        by_class[gold].append(one.meme.id)
        # A missing class counts as wrong, as in the strict figures.
        harmful = one.prediction.outcome.harmful
        # The opposite of gold is a wrong answer of the other class, which is what a balanced draw needs.
        predicted[one.meme.id] = not gold if harmful is None else harmful
    # Ties go to the first class: the draw is then the whole split.
    rarer = min(by_class, key=lambda gold: len(by_class[gold]))
    few = len(by_class[rarer])
    if not few:
        return None
    others = [one.meme for gold, one in results.under(protocol_of(benchmark)) if gold is not rarer]
    accuracies, macro_f1s = [], []
    # Seeds in a row, so that a second report shows the same draws.
    for draw in range(seed, seed + BALANCED_DRAWS):
        drawn = [meme.id for meme in sample(others, few, draw)]
        labels = [rarer] * few + [not rarer] * len(drawn)
        # One resample, as no interval is needed: the range comes from the draws.
        found = score(labels, [predicted[meme] for meme in (*by_class[rarer], *drawn)], resamples=1)
        accuracies.append(found.accuracy.value)
        macro_f1s.append(found.macro_f1.value)

    def over(values: Sequence[float]) -> Figure:
        return Figure(sum(values) / len(values), min(values), max(values))

    reachable = is_reachable(target, benign=few, harmful=few) if target else None
    return BalancedFigures(2 * few, over(accuracies), over(macro_f1s), reachable)


def _chain(plan: Reproduction, full: Mapping[str, Results]) -> tuple[Results, str] | None:
    """Run and meme of figure 4: the paper's own if it was judged, else the one whose sides differ most in rounds."""
    shown = plan.paper.chain
    for name in (each.name for each in plan.benchmarks if each.data == shown.data and each.name in full):
        examined = {
            one.meme.id: abs(one.prediction.sides[Side.ACCUSER].rounds - one.prediction.sides[Side.DEFENDER].rounds)
            for one in full[name].judged
            # Both sides must have asked: their difference is what the figure shows.
            if one.prediction.trial and set(Side) <= {Side(side) for side in one.prediction.sides}
        }
        own = next((meme for meme in examined if meme.removesuffix(".png") == shown.meme), None)
        if examined:
            return full[name], own or max(examined, key=lambda meme: examined[meme])
    return None
