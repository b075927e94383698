"""Runs an arena from the files that name its models and memes; the same call resumes it."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from court.digests import digest
from court.errors import BadRequest
from eval.arena.folder import ArenaFolder, ArenaManifest, FixedTask, HumanReference, MemeEntry, ModelEntry, read_lines
from eval.arena.procedure import ArenaPlan, run_memes
from eval.arena.settings import ArenaSettings
from eval.arena.speakers import ROLES, prompt_of
from eval.arena.words import Relevance, Setting
from eval.models.metered import MeteredModel, ModelSpec
from eval.models.open import opened_models
from eval.session.directory import CALLS
from eval.session.sampled import SampledPlan


@dataclass(frozen=True)
class Ask(SampledPlan):
    """Options of an arena run."""

    name: str
    settings: ArenaSettings
    specs: Mapping[str, ModelSpec]
    concurrency: int = 4
    tasks: Path | None = None
    references: Path | None = None
    calls: Path | None = None
    vllm: Sequence[str] = ()
    """Models to start a vLLM server for, those of specs without an address; one runs at a time."""
    vllm_flags: Sequence[str] = ()


_TOKENS_IN, _TOKENS_OUT = 1500, 300
"""Tokens of a call, as far as nobody has asked yet: a picture and two answers, and a short reply."""


def estimated_calls(ask: Ask, memes: int, fixed: int) -> tuple[int, float]:
    """Estimates the calls that an arena makes, and their cost in US dollars."""
    settings = ask.settings
    # Only an estimate: missing answers and stored replies make it less, repeated calls for unusable ones make it more.
    tasks = fixed or len(Relevance) * memes
    targets, together = len(settings.targets), settings.answers_per_task
    meetings = together - 1 if settings.pairing == "baseline" else math.comb(together, 2)
    judged = tasks * meetings * settings.judges_per_battle * (1 + settings.swapped)
    # At least: how many rounds a question has is not counted here.
    judged *= 1 + bool(settings.round_verdicts and fixed)
    if settings.bias:
        judged += min(tasks, settings.bias_tasks) * meetings * len(settings.judges) * len(Setting)
    if settings.guideline == "fused" and not fixed:
        # Every answer except the one that the guideline starts from.
        most = targets if settings.fusion_rounds == "all" else settings.fusion_rounds
        judged += tasks * min(targets - 1, most)
    by_role = (
        ((settings.controller,), 0 if fixed else memes + tasks),
        (settings.targets, tasks * targets),
        (settings.judges, judged),
    )
    # Assumes that the calls of a role are shared evenly among its models.
    dollars = sum(
        calls / len(names) * (_TOKENS_IN * ask.specs[name].usd_in + _TOKENS_OUT * ask.specs[name].usd_out) / 1e6
        for names, calls in by_role
        for name in names
    )
    return sum(calls for _, calls in by_role), dollars


async def run(
    ask: Ask,
    tell: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda *_: None,
    models: Mapping[str, MeteredModel] | None = None,
    begin: Callable[[int, float], None] = lambda *_: None,
) -> None:
    """Runs an arena, or the unfinished part of it.

    Args:
        begin: Called before the first call with the estimated number of calls and their cost; may raise.

    Raises:
        BadRequest: The files can't be read, or the folder contains something other than this arena.
        CourtError: The arena can't be run; see :func:`eval.arena.procedure.run_memes` and
            :func:`eval.models.open.opened_models`.
    """
    # Before the folder is touched: an error in these files should leave nothing behind.
    fixed = read_lines(ask.tasks, FixedTask) if ask.tasks else ()
    references = read_lines(ask.references, HumanReference) if ask.references else ()
    memes = {task.meme for task in fixed}
    folder = ArenaFolder(ask.out)
    # The lock is taken before anything reads or writes the folder.
    with folder.locked():
        shown, described = await ask.read_memes((lambda meme: meme in memes) if fixed else (lambda _: True))
        if not shown.memes:
            raise BadRequest("No meme is left to ask about: none has a picture that can be used.", reason="NO_MEMES")
        manifest = ArenaManifest(
            **described,
            name=ask.name,
            settings=ask.settings,
            # Neither address nor key: a manifest is shared with results.
            models={name: ModelEntry.model_validate(spec, from_attributes=True) for name, spec in ask.specs.items()},
            memes=tuple(MemeEntry.model_validate(meme, from_attributes=True) for meme in shown.memes),
            tasks=digest_of(fixed),
            references=digest_of(references),
            prompts={role: prompt_of(role).digest for role in ROLES},
        )
        if folder.events():
            manifest = folder.start(manifest)
        else:  # without events, it may still be replaced by another
            folder.write_manifest(manifest)
        # Memes without a picture are counted below; these are only the ones missing from the sample.
        absent = memes - {meme.id for meme in shown.memes} - shown.without_picture.keys()
        if absent:
            tell(f"{len(absent):,} memes that the questions are about are not in the sample of {ask.samples.split}.")
        if shown.without_picture:
            tell(f"{len(shown.without_picture):,} memes have no picture that can be used and are left out.")
        begin(*estimated_calls(ask, len(shown.memes), len(fixed)))
        opened = opened_models(
            ask.specs, ask.calls or ask.out / CALLS, tell, run_seed=ask.seed, vllm=ask.vllm, vllm_flags=ask.vllm_flags
        )
        async with opened if models is None else nullcontext(models) as models:
            by_meme: dict[str, tuple[FixedTask, ...]] = {}
            for task in fixed:
                by_meme[task.meme] = (*by_meme.get(task.meme, ()), task)
            plan = ArenaPlan(
                settings=ask.settings,
                memes=shown.memes,
                models=models,
                seed=ask.seed,
                fixed_tasks=by_meme,
                references={one.meme: one for one in references},
                concurrency=ask.concurrency,
            )
            await run_memes(plan, folder, progress)
        # Only after all memes: an arena that fails stays unfinished, and the same call resumes it.
        folder.finish(manifest)


def digest_of(lines: Sequence[BaseModel]) -> str:
    """Returns the digest of the lines of a file; empty if there are none."""
    if not lines:
        return ""
    return digest([line.model_dump(mode="json") for line in lines])
