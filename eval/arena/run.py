"""Running an arena from the files that name its models and its memes; taking it up again is the same call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from court.digests import digest
from court.errors import BadRequest
from court.meme import LIMITS
from eval.arena.folder import (
    CALLS,
    ArenaFolder,
    ArenaManifest,
    FixedTask,
    HumanReference,
    MemeEntry,
    ModelEntry,
    read_lines,
)
from eval.arena.hold import ArenaPlan, hold
from eval.arena.settings import ArenaSettings
from eval.arena.speakers import ROLES, prompt_of
from eval.arena.words import Relevance, Setting
from eval.models.call_cache import SqliteCallCache
from eval.models.memes import ShownMemes
from eval.models.metered import MeteredModel
from eval.models.open import ModelSpec, open_chairs
from eval.models.samples import SampledSet, Samples, read_memes
from eval.runs import environment as about
from eval.runs.sole_use import refuse_different, refuse_others, sole_use
from serving.version import SOFTWARE


@dataclass(frozen=True, slots=True)
class Ask:
    """Options of an arena run.

    Attributes:
        out: The arena's folder.
        name: Name of the arena.
        settings: Settings of the arena.
        specs: The models that it needs.
        samples: The memes that it is about.
        seed: Seed of that sample and of all else that is drawn.
        concurrency: Memes under way at once.
        tasks: A file of questions that come with a set; None where the controller writes them.
        references: A file of what people wrote; None where there is none.
        calls: A store of calls that arenas share; None for the arena's own.
        command: Command line of the run.
        vllm: Models that a vLLM is started with, those of specs without an address; one runs at a time.
        vllm_flags: Further flags of vLLM.
        sample_seed: Seed of the sample, where it is another than that of all else.
    """

    out: Path
    name: str
    settings: ArenaSettings
    specs: Mapping[str, ModelSpec]
    samples: Samples
    seed: int = 0
    concurrency: int = 4
    tasks: Path | None = None
    references: Path | None = None
    calls: Path | None = None
    command: str = ""
    vllm: Sequence[str] = ()
    vllm_flags: Sequence[str] = ()
    sample_seed: int | None = None

    @property
    def drawn_by(self) -> int:
        """Seed of the sample of memes."""
        return self.seed if self.sample_seed is None else self.sample_seed


_TOKENS_IN, _TOKENS_OUT = 1500, 300
"""Tokens of a call, as far as nobody has asked yet: a picture and two answers, and a short reply."""


def foretold(ask: Ask, memes: int, fixed: int) -> tuple[int, float]:
    """Calls that an arena makes, and about what they cost in US dollars.

    Args:
        ask: Options of the run.
        memes: Number of memes.
        fixed: Number of questions that come with it; 0 where they are made up, three for each meme.
    """
    settings = ask.settings
    # Only about right: forfeits and replies out of the store make it less, replies that are asked for again make it
    # more.
    tasks = fixed or len(Relevance) * memes
    meetings = settings.answers_per_task * (settings.answers_per_task - 1) // 2
    if settings.pairing == "baseline":
        meetings = settings.answers_per_task - 1
    judged = tasks * meetings * settings.judges_per_battle * (2 if settings.swapped else 1)
    if settings.bias:
        judged += min(tasks, settings.bias_tasks) * meetings * len(settings.judges) * len(Setting)
    # Every answer but the one that the guideline starts from.
    rounds = len(settings.targets) - 1
    if settings.fusion_rounds != "all":
        rounds = min(rounds, settings.fusion_rounds)
    merged = tasks * rounds if settings.guideline == "fused" and not fixed else 0
    by_role = (
        ((settings.controller,), 0 if fixed else memes + tasks),
        (settings.targets, tasks * len(settings.targets)),
        (settings.judges, judged + merged),
    )
    dollars = 0.0
    for names, calls in by_role:
        for name in names:
            spec = ask.specs[name]
            # The calls of a role are taken to be shared evenly among its models.
            dollars += calls / len(names) * (_TOKENS_IN * spec.usd_in + _TOKENS_OUT * spec.usd_out) / 1e6
    return sum(calls for _, calls in by_role), dollars


async def run(
    ask: Ask,
    tell: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda *_: None,
    chairs: Mapping[str, MeteredModel] | None = None,
    begin: Callable[[int, float], None] = lambda *_: None,
) -> None:
    """Holds an arena, or what is missing of it.

    Args:
        ask: Options of the run.
        tell: Is told what one should know.
        progress: Told how many memes of how many are done.
        chairs: The models, where they are connected already.
        begin: Function that takes the number of all calls and about what they cost, before the first; it may raise.

    Raises:
        BadRequest: The files can't be read, or the folder holds something else than this arena.
        CourtError: The arena can't be run; see :func:`eval.arena.hold.hold` and :func:`eval.models.open.open_chairs`.
    """
    # Before the folder is touched: a fault in these files should leave nothing behind.
    fixed = read_lines(ask.tasks, FixedTask) if ask.tasks else ()
    references = read_lines(ask.references, HumanReference) if ask.references else ()
    memes = {task.meme for task in fixed}
    # The lock comes before everything that reads or writes the folder.
    with alone(ask.out):
        shown, sets = await read_memes(
            ask.samples,
            seed=ask.drawn_by,
            keep=(lambda meme: meme in memes) if fixed else (lambda _: True),
        )
        if not shown.memes:
            raise BadRequest("No meme is left to ask about: none has a picture that can be used.", reason="NO_MEMES")
        folder = ArenaFolder(ask.out)
        manifest = _manifest(ask, shown, fixed=fixed, references=references, sets=sets)
        if folder.begun and folder.events():  # where nothing has happened yet, it may still become another
            manifest = _taken_up(folder.manifest(), manifest)
        folder.write_manifest(manifest)
        # Memes without a picture are counted below; here are only those that the sample lacks.
        absent = memes - {meme.id for meme in shown.memes} - shown.without_picture.keys()
        if absent:
            tell(f"{len(absent):,} memes that the questions are about are not in the sample of {ask.samples.split}.")
        if shown.without_picture:
            tell(f"{len(shown.without_picture):,} memes have no picture that can be used and are left out.")
        begin(*foretold(ask, len(shown.memes), len(fixed)))
        async with AsyncExitStack() as stack:
            store = SqliteCallCache.open(ask.calls or ask.out / CALLS)
            # Before the chairs are opened, so that it is closed after them: they use it.
            stack.push_async_callback(store.close)
            if chairs is None:
                most = LIMITS.representative_frames
                chairs = await open_chairs(
                    ask.specs,
                    store,
                    stack,
                    tell,
                    pictures=most,
                    run_seed=ask.seed,
                    vllm=ask.vllm,
                    vllm_flags=ask.vllm_flags,
                )
            by_meme: dict[str, tuple[FixedTask, ...]] = {}
            for task in fixed:
                by_meme[task.meme] = (*by_meme.get(task.meme, ()), task)
            plan = ArenaPlan(
                settings=ask.settings,
                memes=shown.memes,
                chairs=chairs,
                seed=ask.seed,
                fixed_tasks=by_meme,
                references={one.meme: one for one in references},
                concurrency=ask.concurrency,
            )
            await hold(plan, folder, progress)
        # Only after all memes: an arena that ends by an error stays unfinished, and the same call goes on with it.
        folder.write_manifest(manifest.model_copy(update={"finished": datetime.now(UTC)}))


def _manifest(
    ask: Ask,
    shown: ShownMemes,
    *,
    fixed: Sequence[FixedTask],
    references: Sequence[HumanReference],
    sets: tuple[SampledSet, ...],
) -> ArenaManifest:
    return ArenaManifest(
        name=ask.name,
        created=datetime.now(UTC),
        dataset=ask.samples.dataset,
        split=ask.samples.split,
        data=shown.files,
        limit=ask.samples.limit,
        seed=ask.seed,
        sample_seed=ask.sample_seed,
        samples=sets,
        cards=ask.samples.own_cards,
        settings=ask.settings,
        models={
            # Neither address nor key: a manifest is handed on with results.
            name: ModelEntry(model=spec.model, family=spec.family, usd_in=spec.usd_in, usd_out=spec.usd_out)
            for name, spec in ask.specs.items()
        },
        memes=tuple(
            MemeEntry(
                id=meme.id,
                harmful=meme.harmful,
                source_label=meme.source_label,
                pixels_sha256=meme.pixels_sha256,
                dataset=meme.dataset if sets else "",
            )
            for meme in shown.memes
        ),
        without_picture=shown.without_picture,
        tasks=digest_of(fixed),
        references=digest_of(references),
        prompts={role: prompt_of(role).digest for role in ROLES},
        software=SOFTWARE,
        commit=about.commit(),
        python=about.python(),
        machine=about.machine(),
        command=ask.command,
    )


def digest_of(lines: Sequence[BaseModel]) -> str:
    """Digest of the lines of a file; empty where there are none."""
    if not lines:
        return ""
    # Without tags where there are none, so that a file of the first edition keeps its digest.
    contents = [line.model_dump(mode="json") for line in lines]
    return digest([{name: value for name, value in one.items() if name != "tags" or value} for one in contents])


def _taken_up(begun: ArenaManifest, now: ArenaManifest) -> ArenaManifest:
    """The manifest of an arena that goes on. Raises BadRequest where it would be another one."""
    refuse_different("arena", begun.differs_from(now))
    # A finished arena that is gone through once more was not interrupted.
    return begun.model_copy(update={"interruptions": begun.interruptions + (begun.finished is None)})


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Keeps others off the folder. Raises BadRequest where it holds something else, or is in use."""
    with sole_use(out, "arena"):
        # Under the lock, so that of two that begin in the same empty folder the second one finds it in use.
        if not ArenaFolder(out).begun:
            refuse_others(out, "arena")
        yield
