"""Evaluation of the witness in a folder: checks each claim in each arm once, and resumes without repeated calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from court.ports import ChatModel, EvidenceSource
from court.settings import TrialSettings
from eval.datasets.claims import GoldClaim, claims_digest
from eval.models.call_cache import CallCache
from eval.session.directory import SessionFolder, SessionManifest, circumstances
from eval.session.engine import Results, Watch, run_items
from eval.session.progress import Progress
from eval.solvers.witness import CheckedClaim, WitnessSolver
from eval.solvers.witness_arms import Arm

CHECKED = "checked.jsonl"
EXPERT_S = 3600.0
"""Seconds that one claim may take: nobody waits for it, but a source that hangs must not hold a run."""


class WitnessManifest(SessionManifest):
    """Description of an evaluation."""

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


class WitnessFolder(SessionFolder[WitnessManifest]):
    """A directory that holds, or will hold, an evaluation of the witness."""

    what = "evaluation of the witness"
    manifest_type = WitnessManifest

    def checked(self) -> tuple[CheckedClaim, ...]:
        """Reads the results so far, skipping a last line that a crash truncated. Raises BadRequest."""
        return self.read(CHECKED, CheckedClaim)


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
        **circumstances(plan.command),
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
    )
    solver = WitnessSolver(
        model=model,
        source=source,
        settings=plan.settings,
        temperature=plan.temperature,
        forced=plan.forced,
        citations_by=citations_by,
        mark=store.fence_mark,
    )
    folder = WitnessFolder(plan.out)
    with folder.locked():
        # Before any check, so that a folder with results always has a manifest.
        manifest = folder.start(manifest)
        await _check_all(plan, folder, solver, progress)
        return folder.finish(manifest)


async def _check_all(plan: WitnessPlan, folder: WitnessFolder, solver: WitnessSolver, progress: Progress) -> None:
    results = Results(folder, CHECKED, CheckedClaim, lambda one: (one.arm, one.id))
    pairs = {(arm, claim.id): claim for arm in plan.arms for claim in plan.claims}
    results.resume(pairs)
    todo = [(arm, claim) for (arm, id_), claim in pairs.items() if (arm, id_) not in results.done]

    async def one(item: tuple[Arm, GoldClaim]) -> CheckedClaim:
        arm, claim = item
        return await solver.solve(claim, arm)

    await run_items(
        todo,
        one,
        concurrency=plan.concurrency,
        store=lambda _, checked: results.add(checked),
        progress=partial(progress.step, "checked"),
        before=len(pairs) - len(todo),
        watch=Watch(plan.concurrency, "checks"),
    )
    results.put_in_order(pairs)
