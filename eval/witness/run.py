"""Evaluation of the witness in a folder: checks each claim in each arm once, and resumes without repeated calls."""

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
    """Description of an evaluation. Everything except its times must be the same when it is resumed."""

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
        out: Folder of the evaluation; either empty or that of the evaluation to resume.
        queries: Maximum number of searches per claim.
        results: Maximum number of documents read per search.
        steps: Mode of asking about a document: all questions in one call, or each in a separate call.
        forced: True to ask for true or false if the evidence is not enough.
        concurrency: Number of claims in progress at once.
        demonstration: True for the synthetic world with its stand-in model.
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
    """Checks all claims in all arms, or resumes doing so.

    Args:
        source: Source of documents; None if all arms run without documents.
        store: Call cache, which also makes the fence marks.
        citations_by: Model that judges if passages support findings; None to skip this judgement.

    Raises:
        BadRequest: The folder contains something else, or an evaluation with other settings.
        Unavailable: Some claims have no answer yet, for transient reasons.
        BudgetSpent: The model's budget is exhausted; replies so far are stored.
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
        # Checked under the lock: another process may have started in the folder since.
        refuse_place(plan.out)
        if (plan.out / MANIFEST).exists():
            begun = read_manifest(plan.out)
            # A later version of the software may resume it.
            refuse_different("evaluation", differing(begun, manifest, {"created", "finished", "command", "software"}))
            # The first manifest stays: it has the original creation time and command.
            manifest = begun
        else:
            # Before any check, so that a folder with results always has a manifest.
            replace_file(plan.out / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        await _check_all(plan, checking, progress)
        # The first time stays: a call that finds nothing to do does not change it.
        manifest = manifest.model_copy(update={"finished": manifest.finished or datetime.now(UTC)})
        replace_file(plan.out / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
    return manifest


def refuse_place(out: Path) -> None:
    """Raises BadRequest if a folder contains something other than an evaluation of the witness."""
    if not (out / MANIFEST).exists():
        refuse_others(out, "evaluation", _OURS)


def read_manifest(out: Path) -> WitnessManifest:
    """Reads the manifest of an evaluation. Raises BadRequest if it is missing or of another format."""
    return stored_files.read_manifest(out / MANIFEST, WitnessManifest, "evaluation of the witness")


def read_checked(out: Path) -> tuple[CheckedClaim, ...]:
    """Reads the results so far, skipping a last line that a crash truncated. Raises BadRequest."""
    path = out / CHECKED
    return stored_lines(path, CheckedClaim.model_validate_json) if path.exists() else ()


async def _check_all(plan: WitnessPlan, checking: Checking, progress: Progress) -> None:
    # Without claims that an earlier version recorded as failed although the source was unavailable.
    done = {(one.arm, one.id): one for one in read_checked(plan.out) if one.failure not in SOURCE_AWAY}
    todo = [(arm, claim) for arm in plan.arms for claim in plan.claims if (arm, claim.id) not in done]
    total, turn = len(plan.arms) * len(plan.claims), asyncio.Semaphore(plan.concurrency)
    passing: list[PassingError] = []
    # Drops a line that a crash truncated.
    replace_lines(plan.out / CHECKED, done.values())
    with (plan.out / CHECKED).open("a", encoding="ascii") as file:

        async def one(arm: Arm, claim: GoldClaim) -> None:
            async with turn:
                # A few may fail for unrelated reasons; as many as run at once mean that the model is unavailable.
                if len(passing) >= max(3, plan.concurrency):
                    return  # unavailable for all claims
                try:
                    checked = await checking.check(claim, arm)
                except PassingError as error:
                    passing.append(error)
                    return
            done[arm, claim.id] = checked
            # Written immediately; claims lost in a crash are checked again from the call cache.
            file.write(json_line(checked))
            file.flush()
            # Counts finished checks, not started ones, as they end in any order.
            progress.step("checked", len(done), total)

        if todo:
            await gather_or_cancel(*(one(arm, claim) for arm, claim in todo))
    if passing:
        cause = passing[0].cause
        left = total - len(done)
        # An exhausted budget does not recover by itself: the error is raised unchanged.
        if not isinstance(cause, Unavailable):
            raise cause
        raise Unavailable(
            f"{left:,} of {total:,} checks have no answer yet, for a reason that may pass: {cause.message} The same "
            "command goes on.",
            reason=cause.reason,
        )
    order = {(arm, claim.id): place for place, (arm, claim) in enumerate(_pairs(plan))}
    # Finally sorted in the order of the plan, so that two runs of the same plan give the same file.
    ordered = sorted(done.values(), key=lambda one: order[one.arm, one.id])
    replace_lines(plan.out / CHECKED, ordered)


def _pairs(plan: WitnessPlan) -> list[tuple[Arm, GoldClaim]]:
    return [(arm, claim) for arm in plan.arms for claim in plan.claims]
