"""A reproduction: a study of each model on each benchmark of a paper, one model after the other, and what comes out.

::

    STUDY/SIZE/BENCHMARK/        a study (:mod:`eval.studies.arms`): one run per arm
    STUDY/reproduction.json      results; also .md and .html

Sizes run one at a time, as a GPU has room for one server.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from court.errors import BadRequest
from court.events import Side
from eval.datasets.card import SplitRole
from eval.datasets.items import JudgedMeme, Protocol
from eval.datasets.read import read_split, sample
from eval.models.vllm_session import ServedModel, VllmSessions
from eval.reproduce.paper import Claim, JudgedArms, Paper, Reached, Target, claims_of, has_accuracy, is_reachable
from eval.runs.judge import judged_memes
from eval.runs.plan import Plan
from eval.runs.results import Results, RunFolder, read_results
from eval.scores.courses import Rounds, rounds_of
from eval.scores.measure import RESAMPLES, Figure
from eval.scores.metrics import TaskCard, harm_values, task_card
from eval.session.directory import refuse_others
from eval.session.engine import Progress
from eval.studies.arms import ARMS, FULL_ARM, Study, StudyFolder, StudyManifest, calls_of_arm, run_study
from serving.models.connect import pictures_per_prompt

POST_STANCE = "post-stance"
WITH_LEAKS = "with-leaks"
"""Arm whose precedents may contain judged memes; off unless requested."""


@dataclass(frozen=True)
class Stage:
    """All runs with one model."""

    size: str
    model: str
    runs: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Benchmark:
    """A split that a paper's figures are compared on."""

    name: str
    data: str
    plan: Plan

    def judged(self) -> tuple[JudgedMeme, ...]:
        """Memes that a run judges. Raises BadRequest if the split can't be read."""
        plan = self.plan
        read = read_split(plan.dataset, plan.data, plan.split)
        return judged_memes(read.memes, plan.limit, plan.seed, plan.dropped_labels)


def present(benchmarks: Sequence[Benchmark]) -> tuple[tuple[Benchmark, ...], dict[str, str]]:
    """The benchmarks whose data exist, and the reasons why others are missing, by name.

    Raises BadRequest: No data exist, or existing data can't be read.
    """
    found, missing = [], {}
    for each in benchmarks:
        try:
            # The train split as well: precedents come from it.
            for split in (each.plan.split, *(train.name for train in each.plan.dataset.of_role(SplitRole.TRAIN))):
                read_split(each.plan.dataset, each.plan.data, split)
        except BadRequest as error:
            # Damaged data must not be mistaken for a benchmark that was omitted on purpose.
            if error.reason != "DATA_MISSING":
                raise
            missing[each.name] = error.message
        else:
            found.append(each)
    if not found:
        raise BadRequest(next(iter(missing.values())), reason="DATA_MISSING")
    return tuple(found), missing


def stages_of(
    paper: Paper,
    sizes: Sequence[str],
    benchmarks: Mapping[str, str],
    *,
    tables: frozenset[int],
    figures: frozenset[int],
    models: Mapping[str, str],
    leaks: bool = False,
) -> tuple[Stage, ...]:
    """The runs that these tables and figures need, the largest model first: its figures are those of most tables."""
    stages = []
    for rank, size in enumerate(sorted(sizes, key=paper.sizes.index, reverse=True)):
        runs: dict[str, tuple[str, ...]] = {}
        for name, data in benchmarks.items():
            wanted = [
                each
                for each in paper.runs
                if data in each.data and each.wanted(tables, figures) and (rank == 0 or each.every_size)
            ]
            arms = [arm for each in wanted for arm in each.arms]
            # Leaks are looked at on the data of most runs.
            if leaks and rank == 0 and data == paper.benchmarks[0].data:
                arms.append(WITH_LEAKS)
            if wanted or arms:
                runs[name] = tuple(dict.fromkeys((FULL_ARM, *arms)))
        if runs:
            stages.append(Stage(size, models.get(size, paper.models[size]), runs))
    return tuple(stages)


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan."""

    stage: Stage
    benchmark: Benchmark
    arm: str
    memes: int
    fewest: int
    """Smallest number of calls without stored replies; calls shared with ``full`` are counted there."""
    most: int
    """Largest number of calls, if every examination has its maximal length."""
    judged: int
    finished: bool


@dataclass(frozen=True)
class Reproduction:
    """Plan of a reproduction."""

    out: Path
    paper: Paper
    mode: Literal["as-published", "as-served"]
    preset_digest: str
    benchmarks: tuple[Benchmark, ...]
    """Benchmarks with data; the claims are about the first."""
    stages: tuple[Stage, ...]
    urls: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    """Addresses of servers that are running, by size."""
    vllm_flags: tuple[str, ...] | None = None
    """Flags of the vLLM that is started for each stage; None to start none."""

    @property
    def base(self) -> Plan:
        """Plan with the settings, seed and limit that all runs have in common."""
        return self.benchmarks[0].plan

    def benchmark(self, name: str) -> Benchmark:
        """The benchmark of a name."""
        return next(each for each in self.benchmarks if each.name == name)

    def folder(self, size: str, benchmark: str, arm: str) -> RunFolder:
        """Folder of a run."""
        return RunFolder(self.out / size / benchmark / arm)

    def study(self, stage: Stage, benchmark: Benchmark, served: ServedModel | None = None) -> Study:
        """The study of a stage on a benchmark, at the servers named for its size or at one that was started."""
        settings = benchmark.plan.settings
        trial = settings.trial
        # The same model in all roles; a key in the settings is only for the servers named with it.
        changes: dict[str, object] = {"model": stage.model, "roles": {}}
        if stage.size in self.urls:
            changes["url"] = self.urls[stage.size]
        if self.mode == "as-published":
            # The paper's court has no panel, no guard and no expert witness, whatever the user's settings name.
            changes |= {"judges": (), "guard": None}
            trial = trial.model_copy(update={"expert": "off"})
        llm = settings.llm.model_copy(update=changes)
        llm = served.in_all_roles(llm) if served else llm
        plan = replace(
            benchmark.plan,
            out=self.out / stage.size / benchmark.name,
            settings=settings.model_copy(update={"llm": llm, "trial": trial}),
            server=stage.model,  # the same server, even if it returns at another address
        )
        return Study("reproduce", plan, tuple(ARMS[name] for name in stage.runs[benchmark.name]))

    def begun(self) -> dict[tuple[str, str], StudyManifest]:
        """Manifests of the studies in the folder, by size and benchmark."""
        folders = {
            (size, each.name): StudyFolder(self.out / size / each.name)
            for size in self.paper.sizes
            for each in self.benchmarks
        }
        return {key: folder.manifest() for key, folder in folders.items() if folder.begun}

    def planned(self) -> tuple[PlannedRun, ...]:
        """Runs in order of execution. Raises BadRequest if a split can't be read."""
        found = []
        names = dict.fromkeys(name for stage in self.stages for name in stage.runs)
        memes = {name: len(self.benchmark(name).judged()) for name in names}
        for stage in self.stages:
            for name, arms in stage.runs.items():
                for arm in arms:
                    fewest, most = calls_of_arm(arm, self.base.settings.trial)
                    folder = self.folder(stage.size, name, arm)
                    found.append(
                        PlannedRun(
                            stage=stage,
                            benchmark=self.benchmark(name),
                            arm=arm,
                            memes=memes[name],
                            fewest=fewest * memes[name],
                            most=most * memes[name],
                            # A meme that was tried again has several lines.
                            judged=len({one.meme for one in folder.predictions()}) if folder.begun else 0,
                            finished=folder.finished,
                        )
                    )
        return tuple(found)


async def run_reproduction(plan: Reproduction, progress: Progress) -> None:
    """Executes all unfinished runs; a stage whose runs are all finished needs no server.

    Raises:
        BadRequest: The folder has something else or another reproduction, or no server is named for a stage.
        As :func:`eval.studies.arms.run_study`: judged memes are kept, and calling this again resumes.
    """
    # Before any run: nothing may be written into a folder of another reproduction.
    begun = plan.begun()
    if not begun:
        refuse_others(plan.out, "reproduction", (*plan.paper.sizes, "data"))
    for stage in plan.stages:
        for name in stage.runs:
            if before := begun.get((stage.size, name)):
                study = plan.study(stage, plan.benchmark(name))
                StudyFolder(study.plan.out).merged(before, study.manifest())
    planned = plan.planned()
    pictures = pictures_per_prompt(plan.base.settings.trial)
    async with VllmSessions(progress.tell, pictures=pictures, flags=plan.vllm_flags or ()) as sessions:
        for number, stage in enumerate(plan.stages, 1):
            if all(each.finished for each in planned if each.stage is stage):
                progress.tell(f"{stage.size}, {stage.model}: finished before.")
                continue
            progress.tell(f"Stage {number} of {len(plan.stages)}: {stage.size}, {stage.model}.")
            if plan.vllm_flags is None and stage.size not in plan.urls:
                raise BadRequest(
                    f"No server is named for the size {stage.size} ({stage.model}). Give --llm-url {stage.size}=URL, "
                    "or leave that size out with --size.",
                    field="llm-url",
                )
            served = None if plan.vllm_flags is None else await sessions.serve(stage.model)
            for name in stage.runs:
                progress.tell(f"{stage.size}, {name}:")
                await run_study(plan.study(stage, plan.benchmark(name), served), progress)


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
    card: TaskCard | None
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
        return (
            100 * self.card.known("accuracy").value - self.target.accuracy,
            100 * self.card.known("macro-f1").value - self.target.macro_f1,
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
            scored = task_card(results, protocol_of(benchmark), seed=self.plan.base.seed)
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


def _reached(target: Target | None, scored: TaskCard | None) -> tuple[Reached, str]:
    if target is None:
        return Reached.NONE, "an arm or a model of which nothing is published"
    if scored is None:
        return Reached.NOT_RUN, "not run, or not finished"
    # Before any comparison of intervals: where no confusion matrix gives the published figures, being
    # outside of ours says nothing.
    benign, harmful = scored.gold.values()
    if not is_reachable(target, benign=benign, harmful=harmful):
        classes = f"{benign:,} not harmful and {harmful:,} harmful memes"
        why = (
            "the accuracy could occur, but not together with the macro-F1"
            if has_accuracy(target.accuracy, scored.n)
            else "no number of right answers rounds to the accuracy"
        )
        return Reached.UNREACHABLE, f"with {classes}, {why}"
    outside = [
        name
        for name, published, figure in (
            ("accuracy", target.accuracy, scored.known("accuracy")),
            ("macro-F1", target.macro_f1, scored.known("macro-f1")),
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
        accuracy, macro_f1 = harm_values(labels, [predicted[meme] for meme in (*by_class[rarer], *drawn)])
        accuracies.append(accuracy)
        macro_f1s.append(macro_f1)

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
