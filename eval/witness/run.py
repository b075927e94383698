"""An evaluation of the witness in a folder: each claim in each arm once, and what was asked is not asked again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict

from court.deadline import gather_or_cancel
from court.errors import Unavailable
from court.ports import ChatModel, EvidenceSource
from court.settings import TrialSettings
from eval.datasets import stored_files
from eval.datasets.stored_files import json_line, replace_file, replace_lines, stored_lines
from eval.models.call_cache import CallCache
from eval.runs.folder import CALLS
from eval.runs.progress import Progress
from eval.runs.sole_use import LOCK, differing, refuse_different, refuse_others, sole_use
from eval.witness.arms import SOURCE_AWAY, Arm, PassingError
from eval.witness.check import CheckedClaim, Checking
from eval.witness.claims import GoldClaim, claims_digest
from serving.version import SOFTWARE

MANIFEST, CHECKED = "manifest.json", "checked.jsonl"
_OURS = (LOCK, CALLS, f"{CALLS}-wal", f"{CALLS}-shm")
EXPERT_S = 3600.0
"""Seconds that one claim may take: nobody waits for it, but a source that hangs must not hold a run."""


class WitnessManifest(BaseModel):
    """Description of an evaluation. Everything but its times has to be the same when it is taken up again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    created: AwareDatetime
    finished: AwareDatetime | None = None
    claims: str
    """Digest of the claims."""
    source: str
    """Identity of the source of evidence."""
    model: str
    citations_by: str = ""
    """Model that was asked whether passages bear findings; empty where nobody was."""
    arms: tuple[Arm, ...]
    queries: int
    results: int
    steps: Literal["merged", "apart"]
    temperature: float
    forced: bool
    seed: int
    demonstration: bool = False
    """True for the drawn world with its stand-in."""
    software: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessPlan:
    """Plan of an evaluation.

    Attributes:
        out: Its folder; an empty one, or one in which it was begun.
        claims: The claims.
        arms: Arms in which each is checked.
        queries: Searches for a claim, at most.
        results: Documents of a search that are read, at most.
        steps: Questions about a document in one call, or each in a call of its own.
        temperature: Temperature of the calls.
        forced: True to ask for true or false where the evidence is not enough.
        concurrency: Claims at once.
        seed: Seed of draws.
        demonstration: True for the drawn world with its stand-in.
        command: Command line.
    """

    out: Path
    claims: tuple[GoldClaim, ...]
    arms: tuple[Arm, ...]
    queries: int = 4
    results: int = 2
    steps: Literal["merged", "apart"] = "merged"
    temperature: float = 0.0
    forced: bool = False
    concurrency: int = 8
    seed: int = 0
    demonstration: bool = False
    command: str = ""

    @property
    def settings(self) -> TrialSettings:
        """Settings of the witness."""
        return TrialSettings(
            expert="always",
            expert_waits=True,
            expert_queries=self.queries,
            expert_results=self.results,
            expert_steps=self.steps,
            expert_s=EXPERT_S,
        )


async def run_witness(
    plan: WitnessPlan,
    *,
    model: ChatModel,
    source: EvidenceSource | None,
    store: CallCache,
    citations_by: ChatModel | None = None,
    progress: Progress | None = None,
) -> WitnessManifest:
    """Checks all claims in all arms, or goes on with that.

    Args:
        plan: Plan of the evaluation.
        model: Model of the witness.
        source: Finds documents; None where only arms without any are run.
        store: Store of calls, which makes the marks of fences.
        citations_by: Model that says whether passages bear findings; None to ask nobody.
        progress: Is told how far it is.

    Raises:
        BadRequest: The folder holds something else, or the evaluation was begun otherwise.
        Unavailable: Some claims have no answer yet, for reasons that may pass.
        BudgetSpent: The model may not be asked any more; what it said is kept.
    """
    progress = progress or Progress()
    manifest = WitnessManifest(
        created=datetime.now(UTC),
        claims=claims_digest(plan.claims),
        source=source.identity if source else "none",
        model=model.name,
        citations_by=citations_by.name if citations_by else "",
        arms=plan.arms,
        queries=plan.queries,
        results=plan.results,
        steps=plan.steps,
        temperature=plan.temperature,
        forced=plan.forced,
        seed=plan.seed,
        demonstration=plan.demonstration,
        software=SOFTWARE,
        command=plan.command,
    )
    checking = Checking(
        model=model,
        source=source,
        settings=plan.settings,
        temperature=plan.temperature,
        forced=plan.forced,
        citations_by=citations_by,
        mark=store.fence_mark,
    )
    with sole_use(plan.out, "evaluation"):
        # Looked at within the lock: another process may have begun in the folder since.
        refuse_place(plan.out)
        if (plan.out / MANIFEST).exists():
            begun = read_manifest(plan.out)
            # A later version of the software may go on with it.
            refuse_different("evaluation", differing(begun, manifest, {"created", "finished", "command", "software"}))
            # The first manifest stays: its time of creation and its command are those of the beginning.
            manifest = begun
        else:
            # Before any check, so that no line stands in a folder that says nothing of what it is.
            replace_file(plan.out / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        await _check_all(plan, checking, progress)
        # Finished once: a call that finds nothing to do does not move the time.
        manifest = manifest.model_copy(update={"finished": manifest.finished or datetime.now(UTC)})
        replace_file(plan.out / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
    return manifest


def refuse_place(out: Path) -> None:
    """Raises BadRequest where a folder holds something else than an evaluation of the witness."""
    if not (out / MANIFEST).exists():
        refuse_others(out, "evaluation", _OURS)


def read_manifest(out: Path) -> WitnessManifest:
    """Reads the manifest of an evaluation. Raises BadRequest if there is none, or none of this format."""
    return stored_files.read_manifest(out / MANIFEST, WitnessManifest, "evaluation of the witness")


def read_checked(out: Path) -> tuple[CheckedClaim, ...]:
    """Reads what was checked so far; a last line that a crash cut is passed over. Raises BadRequest."""
    path = out / CHECKED
    return stored_lines(path, CheckedClaim.model_validate_json) if path.exists() else ()


async def _check_all(plan: WitnessPlan, checking: Checking, progress: Progress) -> None:
    # Without those that an earlier version wrote down as failed though the source was away.
    done = {(one.arm, one.id): one for one in read_checked(plan.out) if one.failure not in SOURCE_AWAY}
    todo = [(arm, claim) for arm in plan.arms for claim in plan.claims if (arm, claim.id) not in done]
    total, turn = len(plan.arms) * len(plan.claims), asyncio.Semaphore(plan.concurrency)
    passing: list[PassingError] = []
    # Without a line that a crash cut.
    replace_lines(plan.out / CHECKED, done.values())
    with (plan.out / CHECKED).open("a", encoding="ascii") as file:

        async def one(arm: Arm, claim: GoldClaim) -> None:
            async with turn:
                # A few may fail each for a reason of its own; as many as are asked at once mean that
                # the model is away.
                if len(passing) >= max(3, plan.concurrency):
                    return  # what is away is away for all
                try:
                    checked = await checking.check(claim, arm)
                except PassingError as error:
                    passing.append(error)
                    return
            done[arm, claim.id] = checked
            # Handed to the system at once: what a crash costs is asked again, out of the store.
            file.write(json_line(checked))
            file.flush()
            # By what is done and not by what was begun, as checks end in any order.
            progress.step("checked", len(done), total)

        if todo:
            await gather_or_cancel(*(one(arm, claim) for arm, claim in todo))
    if passing:
        cause = passing[0].cause
        left = total - len(done)
        # A limit that is spent will not come back by itself: the error is passed on as it is.
        if not isinstance(cause, Unavailable):
            raise cause
        raise Unavailable(
            f"{left:,} of {total:,} checks have no answer yet, for a reason that may pass: {cause.message} The same "
            "command goes on.",
            reason=cause.reason,
        )
    order = {(arm, claim.id): place for place, (arm, claim) in enumerate(_pairs(plan))}
    # In the order of the plan at the end, so that two runs of the same plan give the same file.
    ordered = sorted(done.values(), key=lambda one: order[one.arm, one.id])
    replace_lines(plan.out / CHECKED, ordered)


def _pairs(plan: WitnessPlan) -> list[tuple[Arm, GoldClaim]]:
    return [(arm, claim) for arm in plan.arms for claim in plan.claims]
