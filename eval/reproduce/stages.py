"""Stages of a reproduction: the runs of each model, their order, and the number of calls.

::

    STUDY/study.json             manifest (:class:`ReproductionManifest`)
    STUDY/SIZE/BENCH/            a study (:mod:`eval.studies.arms`): one run per arm
    STUDY/reproduction.json      results; also .md and .html

Sizes run one at a time, so that one server is enough: a stage acquires its server from :data:`Servers` when it starts,
and releases it at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from court.errors import BadRequest
from court.events import Procedure
from court.settings import TrialSettings
from eval.models.vllm_session import vllm_session
from eval.reproduce.benches import Benchmark
from eval.reproduce.targets import SizeName
from eval.runs.folder import RunFolder
from eval.runs.plan import Plan
from eval.session.directory import CALLS, SessionFolder, SessionManifest
from eval.studies.arms import ARMS, FULL_ARM, STUDY, Arm, Study
from serving.settings import RoleSettings, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SIZES: tuple[SizeName, ...] = get_args(SizeName)
"""Sizes from the smallest to the largest."""
MODELS: Mapping[SizeName, str] = {size: f"Qwen/Qwen2.5-VL-{size.upper()}-Instruct" for size in SIZES}
"""The paper's models, by size."""
ABLATIONS = ("no-precedents", "no-advocates", "no-captioner", "dull-judge")
"""Arms of table 2."""
POST_STANCE = "post-stance"
CONTROLS = ("random-precedents", "shuffled-labels", "swapped-sides", "plain-judge", "equal-compute", "mars")
"""Arms that the paper lacks."""
WITH_LEAKS = "with-leaks"
"""Arm whose precedents may contain judged memes; off unless requested."""
Mode = Literal["as-published", "as-served"]


@dataclass(frozen=True)
class Served:
    """Servers of a stage's model.

    Attributes:
        url: Comma-separated addresses.
        api_key: Key of servers that were started for the stage; None to use the key in the settings.
    """

    url: str
    model: str
    api_key: SecretStr | None = None


@dataclass(frozen=True)
class Stage:
    """All runs with one model.

    Attributes:
        runs: Names of arms by bench, the full court first.
    """

    size: SizeName
    model: str
    runs: Mapping[str, tuple[str, ...]]


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


def named_servers(urls: Mapping[SizeName, str]) -> Servers:
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
    """Starts a local vLLM server for each stage, and stops it at its end.

    Args:
        tell: Receives progress messages.
        flags: Further flags of vLLM.
        pictures: Largest number of pictures in a prompt.
    """

    @asynccontextmanager
    async def server(stage: Stage) -> AsyncIterator[Served]:
        async with vllm_session(stage.model, tell, pictures=pictures, flags=flags) as started:
            yield Served(started.url, started.name, started.api_key)

    return server


def stages_of(
    sizes: Sequence[SizeName],
    benches: Sequence[Benchmark],
    *,
    tables: frozenset[int],
    figures: frozenset[int],
    models: Mapping[SizeName, str],
    controls: bool = True,
    leaks: bool = False,
) -> tuple[Stage, ...]:
    """The runs that these tables and figures need, the largest model first: its figures are those of tables 1 and 2.

    Args:
        tables: Numbers of the paper's tables.
        figures: Numbers of the paper's figures.
        models: Names of models to use instead of the paper's, by size.
        controls: True to run the arms that the paper lacks, in addition to those of table 2.
        leaks: True to run the arm :data:`WITH_LEAKS`, in addition to the largest model's full court.
    """
    stages = []
    for place, size in enumerate(sorted(sizes, key=SIZES.index, reverse=True)):
        first = place == 0
        runs: dict[str, tuple[str, ...]] = {}
        for bench in benches:
            arms: tuple[str, ...] = ()
            if bench.compared == "harm-c":
                # Tables 2 and 3 and figure 3 are on Harm-C only.
                if first and 2 in tables:
                    arms += (*ABLATIONS, *(CONTROLS if controls else ()))
                if first and (3 in tables or 3 in figures):
                    arms = (POST_STANCE, *arms)
                if first and leaks:
                    arms += (WITH_LEAKS,)
                # Figure 4 is of Harm-P.
                wanted = bool(arms) or 3 in tables or (first and bool(tables | (figures - {4})))
            else:
                wanted = first and (1 in tables or (bench.compared == "harm-p" and 4 in figures))
            if wanted:
                runs[bench.name] = (FULL_ARM, *arms)
        if runs:
            stages.append(Stage(size, models.get(size, MODELS[size]), runs))
    return tuple(stages)


class StageEntry(BaseModel):
    """A stage as stored in the manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: SizeName
    model: str
    runs: dict[str, tuple[str, ...]]


class ReproductionManifest(SessionManifest):
    """Description of a reproduction; stages and arms may be added later."""

    paper: str
    mode: Mode
    preset_digest: str
    """Digest of the preset that the settings are from; empty for the settings as served."""
    benches: dict[str, tuple[str, str]]
    """Data set and split by bench."""
    limit: int | None
    seed: int
    stages: tuple[StageEntry, ...]


class ReproductionFolder(SessionFolder[ReproductionManifest]):
    """A directory that holds, or will hold, a reproduction."""

    what = "reproduction"
    missing = "STUDY_MISSING"
    unreadable = "STUDY_UNREADABLE"
    manifest_type = ReproductionManifest
    manifest_file = STUDY

    def merged(self, before: ReproductionManifest, now: ReproductionManifest) -> ReproductionManifest:
        """Returns the manifest with the stages and arms of both. Raises BadRequest if anything else differs."""
        known = {stage.size: stage for stage in before.stages}
        changed = [
            f"the model of {stage.size} (was {known[stage.size].model})"
            for stage in now.stages
            if stage.size in known and known[stage.size].model != stage.model
        ]
        self.refuse_different([*before.differences(now, {"stages"}), *changed])
        merged = dict(known)
        for stage in now.stages:
            runs = dict(merged[stage.size].runs) if stage.size in merged else {}
            for name, arms in stage.runs.items():
                # Existing arms come first, so that the full court, the reference, stays the first arm.
                runs[name] = tuple(dict.fromkeys((*runs.get(name, ()), *arms)))
            merged[stage.size] = StageEntry(size=stage.size, model=stage.model, runs=runs)
        return before.model_copy(update={"stages": tuple(merged.values())})


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan.

    Attributes:
        fewest: Smallest number of calls without stored replies; calls shared with ``full`` are counted there.
        most: Largest number of calls, if every examination has its maximal length.
        judged: Number of memes already judged.
        finished: True if it was finished before.
    """

    stage: Stage
    bench: Benchmark
    arm: str
    memes: int
    fewest: int
    most: int
    judged: int
    finished: bool


@dataclass(frozen=True)
class Reproduction:
    """Plan of a reproduction.

    Attributes:
        paper: Name of the paper.
        settings: Settings of the court, without a model.
        preset_digest: Digest of the preset; empty for none.
        stages: Stages, in order.
        limit: Largest number of memes to judge per benchmark; None for all.
        seed: Seed of samples, controls and bootstraps.
        concurrency: Number of memes on trial at once.
        patience_s: Seconds that a meme waits for a busy or unreachable server.
        allow_missing: True if a missing picture only fails its meme, not the run.
        retry_failed: True to retry memes that failed for a transient reason.
    """

    out: Path
    paper: str
    mode: Mode
    settings: Settings
    preset_digest: str
    benches: tuple[Benchmark, ...]
    stages: tuple[Stage, ...]
    limit: int | None = None
    seed: int = 0
    concurrency: int = 16
    command: str = ""
    patience_s: float = 600.0
    allow_missing: bool = False
    retry_failed: bool = False

    def split_named(self, name: str) -> Benchmark:
        """The bench of a name."""
        return next(bench for bench in self.benches if bench.name == name)

    def folder(self, size: str, bench: str, arm: str) -> RunFolder:
        """Folder of a run."""
        return RunFolder(self.out / size / bench / arm)

    def study(self, stage: Stage, bench: Benchmark, served: Served) -> Study:
        """The study of a stage on a bench."""
        # The same model in all roles; a key in the settings is only for the servers named with it.
        llm = self.settings.llm.model_copy(
            update={
                **{"url": urls_of(served.url), "model": served.model, "roles": {}},
                **({"api_key": served.api_key} if served.api_key else {}),
                # The paper's court has no panel, no guard and no expert witness, whatever the user's settings name.
                **({"judges": (), "guard": None} if self.mode == "as-published" else {}),
            }
        )
        trial = self.settings.trial
        if self.mode == "as-published":
            trial = trial.model_copy(update={"expert": "off"})
        plan = Plan(
            out=self.out / stage.size / bench.name,
            dataset=bench.dataset,
            data=bench.data,
            split=bench.split,
            procedure=Procedure.FULL,
            protocols=(bench.protocol,),
            settings=self.settings.model_copy(update={"llm": llm, "trial": trial}),
            limit=self.limit,
            seed=self.seed,
            concurrency=self.concurrency,
            command=self.command,
            server=stage.model,  # the same server, even if it returns at another address
            allow_missing=self.allow_missing,
            patience_s=self.patience_s,
            retry_failed=self.retry_failed,
            drop_precedents=bench.drops,
        )
        return Study("reproduce", plan, arms_of(stage, bench))

    def planned(self) -> tuple[PlannedRun, ...]:
        """Runs in order of execution. Raises BadRequest if a split can't be read."""
        found = []
        memes = {
            name: len(self.split_named(name).judged(self.limit, self.seed))
            for name in dict.fromkeys(name for stage in self.stages for name in stage.runs)
        }
        for stage in self.stages:
            for name, arms in stage.runs.items():
                for arm in arms:
                    fewest, most = calls_of_arm(arm, self.settings.trial)
                    judged, finished = _state(self.folder(stage.size, name, arm))
                    found.append(
                        PlannedRun(
                            stage=stage,
                            bench=self.split_named(name),
                            arm=arm,
                            memes=memes[name],
                            fewest=fewest * memes[name],
                            most=most * memes[name],
                            judged=judged,
                            finished=finished,
                        )
                    )
        return tuple(found)

    def stores(self) -> tuple[Path, ...]:
        """Existing stores of calls."""
        places = (self.out / stage.size / name / CALLS for stage in self.stages for name in stage.runs)
        return tuple(place for place in places if place.exists())


def arms_of(stage: Stage, bench: Benchmark) -> tuple[Arm, ...]:
    """Arms of a stage on a bench."""
    return tuple(ARMS[name] for name in stage.runs[bench.name])


def calls_of_arm(arm: str, settings: TrialSettings) -> tuple[int, int]:
    """Smallest and largest number of calls per meme in an arm, in addition to those shared with ``full``.

    A full trial takes ``D + R(q + a + s)`` for each of two sides and ``J``; probabilities take two more calls.
    Speculative calls that turn out to be unnecessary and repeated requests for a usable reply come on top.
    """
    # The ruling; with a score two calls more, one for each order of the options.
    judge = 3 if settings.score else 1
    # Two sides; each round has a question, an answer and a summary.
    examined = tuple(2 * 3 * rounds for rounds in (settings.rounds_min, settings.rounds_max))
    fewest, most = (1 + calls + judge for calls in examined)
    match arm:
        case "full":
            return fewest, most
        case "post-stance":
            # Everything but the description, which is shared with full.
            return examined[0] + judge, examined[1] + judge
        case "no-captioner":
            # One summary of each side; the description is shared.
            return 2 + judge, 2 + judge
        case "plain-judge":
            return 1, 1
        case "mars":
            # Description, evidence for, evidence against, conclusion.
            return 4, 4
        case "equal-compute":
            # As many tokens as full; a sample is about as long as the mean call of a full trial.
            return fewest, most
        case _:
            # Everything before the judgment is shared with full, by the store of calls.
            return judge, judge


def _state(folder: RunFolder) -> tuple[int, bool]:
    """Number of judged memes, and True if the run is finished."""
    try:
        manifest = folder.manifest()
    except BadRequest as error:
        if error.reason != "RUN_MISSING":
            raise
        return 0, False
    # A meme that was tried again has several lines.
    return len({prediction.meme for prediction in folder.predictions()}), manifest.finished is not None
