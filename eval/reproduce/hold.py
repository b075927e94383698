"""Execution of a reproduction: its stages one after the other, each with its server, until all runs are finished."""

from __future__ import annotations

from eval.reproduce.stages import Reproduction, ReproductionFolder, ReproductionManifest, Servers, StageEntry
from eval.session.directory import circumstances
from eval.session.progress import Progress
from eval.studies.arms import run_study


async def hold(plan: Reproduction, servers: Servers, progress: Progress) -> None:
    """Executes all unfinished runs; a stage whose runs are all finished needs no server.

    Raises:
        BadRequest: The folder has something else or another reproduction, or no server is named for a stage.
        As :func:`eval.studies.arms.run_study`: judged memes are kept, and calling this again resumes.
    """
    # Before any run: nothing may be written into a folder of another reproduction.
    folder = ReproductionFolder(plan.out)
    with folder.locked():
        manifest = folder.start(manifest_of(plan))
        await _run_stages(plan, servers, progress)
        folder.finish(manifest)


async def _run_stages(plan: Reproduction, servers: Servers, progress: Progress) -> None:
    planned = plan.planned()
    for number, stage in enumerate(plan.stages, 1):
        left = [each for each in planned if each.stage is stage and (not each.finished or plan.retry_failed)]
        if not left:
            progress.tell(f"{stage.size}, {stage.model}: finished before.")
            continue
        progress.tell(f"Stage {number} of {len(plan.stages)}: {stage.size}, {stage.model}.")
        # One server at a time, as a GPU has room for one: a stage closes its server before the next one starts.
        async with servers(stage) as served:
            for name in stage.runs:
                progress.tell(f"{stage.size}, {name}:")
                await run_study(plan.study(stage, plan.split_named(name), served), progress)


def manifest_of(plan: Reproduction) -> ReproductionManifest:
    """Returns the manifest of a reproduction that is started now."""
    return ReproductionManifest(
        **circumstances(plan.command),
        paper=plan.paper,
        mode=plan.mode,
        preset_digest=plan.preset_digest,
        benches={bench.name: (bench.dataset.id, bench.split) for bench in plan.benches},
        limit=plan.limit,
        seed=plan.seed,
        stages=tuple(StageEntry(size=one.size, model=one.model, runs=dict(one.runs)) for one in plan.stages),
    )
