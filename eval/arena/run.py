"""Runs an arena from the files that name its models and memes; the same call resumes it."""

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
        specs: Models that the arena needs.
        seed: Seed of the sample of memes and of all other draws.
        concurrency: Number of memes in progress at once.
        tasks: File of supplied questions; None if the controller writes them.
        references: File of human references; None without any.
        calls: Call cache shared between arenas; None for the arena's own.
        vllm: Models to start a vLLM server for, those of specs without an address; one runs at a time.
        vllm_flags: Further flags of vLLM.
        sample_seed: Seed of the sample of memes, if different from ``seed``.
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
    """Estimates the calls that an arena makes, and their cost in US dollars.

    Args:
        fixed: Number of supplied questions; 0 if the controller writes them, three per meme.
    """
    settings = ask.settings
    # Only an estimate: forfeits and cached replies make it less, repeated calls for unusable replies make it more.
    tasks = fixed or len(Relevance) * memes
    meetings = settings.answers_per_task * (settings.answers_per_task - 1) // 2
    if settings.pairing == "baseline":
        meetings = settings.answers_per_task - 1
    judged = tasks * meetings * settings.judges_per_battle * (2 if settings.swapped else 1)
    if settings.bias:
        judged += min(tasks, settings.bias_tasks) * meetings * len(settings.judges) * len(Setting)
    # Every answer except the one that the guideline starts from.
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
            # Assumes that the calls of a role are shared evenly among its models.
            dollars += calls / len(names) * (_TOKENS_IN * spec.usd_in + _TOKENS_OUT * spec.usd_out) / 1e6
    return sum(calls for _, calls in by_role), dollars


async def run(
    ask: Ask,
    tell: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda *_: None,
    role_models: Mapping[str, MeteredModel] | None = None,
    begin: Callable[[int, float], None] = lambda *_: None,
) -> None:
    """Runs an arena, or the unfinished part of it.

    Args:
        tell: Called with messages for the user.
        progress: Called with the number of memes done and their total.
        role_models: Models, if they are connected already.
        begin: Called before the first call with the estimated number of calls and their cost; may raise.

    Raises:
        BadRequest: The files can't be read, or the folder contains something other than this arena.
        CourtError: The arena can't be run; see :func:`eval.arena.hold.hold` and :func:`eval.models.open.open_chairs`.
    """
    # Before the folder is touched: an error in these files should leave nothing behind.
    fixed = read_lines(ask.tasks, FixedTask) if ask.tasks else ()
    references = read_lines(ask.references, HumanReference) if ask.references else ()
    memes = {task.meme for task in fixed}
    # The lock is taken before anything reads or writes the folder.
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
        if folder.begun and folder.events():  # without events, it may still be replaced by another
            manifest = _taken_up(folder.manifest(), manifest)
        folder.write_manifest(manifest)
        # Memes without a picture are counted below; these are only the ones missing from the sample.
        absent = memes - {meme.id for meme in shown.memes} - shown.without_picture.keys()
        if absent:
            tell(f"{len(absent):,} memes that the questions are about are not in the sample of {ask.samples.split}.")
        if shown.without_picture:
            tell(f"{len(shown.without_picture):,} memes have no picture that can be used and are left out.")
        begin(*foretold(ask, len(shown.memes), len(fixed)))
        async with AsyncExitStack() as stack:
            store = SqliteCallCache.open(ask.calls or ask.out / CALLS)
            # Registered before the models are opened, so that it is closed after them: they use it.
            stack.push_async_callback(store.close)
            if role_models is None:
                most = LIMITS.representative_frames
                role_models = await open_chairs(
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
                role_models=role_models,
                seed=ask.seed,
                fixed_tasks=by_meme,
                references={one.meme: one for one in references},
                concurrency=ask.concurrency,
            )
            await hold(plan, folder, progress)
        # Only after all memes: an arena that fails stays unfinished, and the same call resumes it.
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
            # Neither address nor key: a manifest is shared with results.
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
    """Returns the digest of the lines of a file; empty if there are none."""
    if not lines:
        return ""
    # Omits empty tags, so that a file of the first edition keeps its digest.
    contents = [line.model_dump(mode="json") for line in lines]
    return digest([{name: value for name, value in one.items() if name != "tags" or value} for one in contents])


def _taken_up(begun: ArenaManifest, now: ArenaManifest) -> ArenaManifest:
    """Returns the manifest of a resumed arena. Raises BadRequest if it would be a different arena."""
    refuse_different("arena", begun.differs_from(now))
    # Running a finished arena once more is not an interruption.
    return begun.model_copy(update={"interruptions": begun.interruptions + (begun.finished is None)})


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Locks the folder. Raises BadRequest if it contains something else, or is in use."""
    with sole_use(out, "arena"):
        # Under the lock, so that if two runs start in the same empty folder, the second finds it in use.
        if not ArenaFolder(out).begun:
            refuse_others(out, "arena")
        yield
