"""A reproduction: a study of each model on each benchmark of a paper, one model after the other.

::

    STUDY/SIZE/BENCHMARK/        a study (:mod:`eval.studies.arms`): one run per arm
    STUDY/reproduction.json      results; also .md and .html

Sizes run one at a time, so that one server is enough: a stage acquires its server from :data:`Servers` when it starts,
and releases it at its end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import SecretStr, ValidationError

from court.errors import BadRequest
from eval.datasets.card import SplitRole
from eval.datasets.items import JudgedMeme
from eval.datasets.read import read_split
from eval.models.vllm_session import vllm_session
from eval.reproduce.paper import Paper
from eval.runs.judge import judged_memes
from eval.runs.plan import Plan
from eval.runs.results import RunFolder
from eval.session.directory import refuse_others
from eval.session.engine import Progress
from eval.studies.arms import ARMS, FULL_ARM, Study, StudyFolder, StudyManifest, calls_of_arm, run_study
from serving.settings import RoleSettings

POST_STANCE = "post-stance"
WITH_LEAKS = "with-leaks"
"""Arm whose precedents may contain judged memes; off unless requested."""


@dataclass(frozen=True)
class Served:
    """Servers of a stage's model."""

    url: str
    model: str
    api_key: SecretStr | None = None
    """Key of servers that were started for the stage; None to use the key in the settings."""


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


def urls_of(text: str) -> tuple[str, ...]:
    """Parses comma-separated addresses of one model's servers. Raises BadRequest if one is malformed."""
    try:
        urls = RoleSettings.model_validate({"url": text}).url
    except ValidationError as error:
        raise BadRequest(f"{text} is no model server: {error.errors()[0]['msg']}.", field="llm-url") from None
    assert urls is not None, "it was given"
    return urls


Servers = Callable[[Stage], AbstractAsyncContextManager[Served]]
"""Opens the server of a stage when its turn comes, and closes it at its end."""


def named_servers(urls: Mapping[str, str]) -> Servers:
    """Servers that are already running, by size."""

    @asynccontextmanager
    async def server(stage: Stage) -> AsyncIterator[Served]:
        if stage.size not in urls:
            raise BadRequest(
                f"No server is named for the size {stage.size} ({stage.model}). Give --llm-url {stage.size}=URL, or "
                "leave that size out with --size.",
                field="llm-url",
            )
        yield Served(urls[stage.size], stage.model)

    return server


def started_servers(tell: Callable[[str], None], *, flags: Sequence[str], pictures: int) -> Servers:
    """Starts a local vLLM server for each stage, and stops it at its end."""

    @asynccontextmanager
    async def server(stage: Stage) -> AsyncIterator[Served]:
        async with vllm_session(stage.model, tell, pictures=pictures, flags=flags) as started:
            yield Served(started.url, started.name, started.api_key)

    return server


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

    def study(self, stage: Stage, benchmark: Benchmark, served: Served | None = None) -> Study:
        """The study of a stage on a benchmark; without servers it can only be compared."""
        settings = benchmark.plan.settings
        trial = settings.trial
        # The same model in all roles; a key in the settings is only for the servers named with it.
        changes: dict[str, object] = {"model": stage.model, "roles": {}}
        if served is not None:
            changes |= {"url": urls_of(served.url), "model": served.model}
            if served.api_key:
                changes["api_key"] = served.api_key
        if self.mode == "as-published":
            # The paper's court has no panel, no guard and no expert witness, whatever the user's settings name.
            changes |= {"judges": (), "guard": None}
            trial = trial.model_copy(update={"expert": "off"})
        llm = settings.llm.model_copy(update=changes)
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


async def run_reproduction(plan: Reproduction, servers: Servers, progress: Progress) -> None:
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
    for number, stage in enumerate(plan.stages, 1):
        if all(each.finished and not plan.base.retry_failed for each in planned if each.stage is stage):
            progress.tell(f"{stage.size}, {stage.model}: finished before.")
            continue
        progress.tell(f"Stage {number} of {len(plan.stages)}: {stage.size}, {stage.model}.")
        # One server at a time, as a GPU has room for one: a stage closes its server before the next one starts.
        async with servers(stage) as served:
            for name in stage.runs:
                progress.tell(f"{stage.size}, {name}:")
                await run_study(plan.study(stage, plan.benchmark(name), served), progress)
