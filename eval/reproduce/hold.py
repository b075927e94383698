"""Execution of a reproduction: its stages one after the other, each with its server, until all runs are finished."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import ValidationError

from court.errors import BadRequest
from eval.datasets.stored_files import replace_file
from eval.reproduce.stages import Reproduction, ReproductionManifest, Servers, StageEntry
from eval.runs.progress import Progress
from eval.runs.sole_use import refuse_others
from eval.studies.arms import STUDY, run_study


async def hold(plan: Reproduction, servers: Servers, progress: Progress) -> None:
    """Executes all unfinished runs; a stage whose runs are all finished needs no server.

    Raises:
        BadRequest: The folder has something else or another reproduction, or no server is named for a stage.
        As :func:`eval.studies.arms.run_study`: judged memes are kept, and calling this again resumes.
    """
    # Before any run: nothing may be written into a folder of another reproduction.
    begin(plan)
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


def begin(plan: Reproduction) -> None:
    """Writes the manifest, or checks that it matches the existing one; stages and arms may be added.

    Raises:
        BadRequest: The folder has something else, or a reproduction with other settings.
    """
    place, manifest = plan.out / STUDY, _manifest(plan)
    before = read_manifest(plan)
    if before is None:
        # No foreign files: their figures would be mixed with those of the reproduction.
        refuse_others(plan.out, "reproduction", ours=())
    else:
        manifest = _continued(plan, before, manifest)
    replace_file(place, manifest.model_dump_json(indent=2) + "\n")


def read_manifest(plan: Reproduction) -> ReproductionManifest | None:
    """Reads the manifest in the plan's folder; None if there is none. Raises BadRequest if it can't be read."""
    place = plan.out / STUDY
    try:
        return ReproductionManifest.model_validate_json(place.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise BadRequest(
            f"{place} is no reproduction's file: it belongs to another kind of study, was written by another version, "
            "or was changed by hand. Name another folder.",
            reason="STUDY_UNREADABLE",
        ) from None


def _manifest(plan: Reproduction) -> ReproductionManifest:
    return ReproductionManifest(
        created=datetime.now(UTC),
        paper=plan.paper,
        mode=plan.mode,
        preset_digest=plan.preset_digest,
        benches={bench.name: (bench.dataset.id, bench.split) for bench in plan.benches},
        limit=plan.limit,
        seed=plan.seed,
        stages=tuple(StageEntry(size=one.size, model=one.model, runs=dict(one.runs)) for one in plan.stages),
        command=plan.command,
    )


def _continued(plan: Reproduction, before: ReproductionManifest, now: ReproductionManifest) -> ReproductionManifest:
    # Everything that determines the figures; stages and arms may be added, and are merged below.
    same = ("paper", "mode", "preset_digest", "benches", "limit", "seed")
    differ = [name for name in same if getattr(before, name) != getattr(now, name)]
    known = {stage.size: stage for stage in before.stages}
    differ += [
        f"the model of {stage.size} (was {known[stage.size].model})"
        for stage in now.stages
        if stage.size in known and known[stage.size].model != stage.model
    ]
    if differ:
        raise BadRequest(
            f"The reproduction in {plan.out} was begun with something else: {', '.join(differ)}. Set it up as it was, "
            "or name another folder.",
            reason="STUDY_DIFFERS",
        )
    merged = {stage.size: stage for stage in before.stages}
    for stage in now.stages:
        runs = dict(merged[stage.size].runs) if stage.size in merged else {}
        for name, arms in stage.runs.items():
            # Existing arms come first, so that the full court, the reference, stays the first arm.
            runs[name] = tuple(dict.fromkeys((*runs.get(name, ()), *arms)))
        merged[stage.size] = StageEntry(size=stage.size, model=stage.model, runs=runs)
    return before.model_copy(update={"stages": tuple(merged.values())})
