"""Evaluation of the witness in a folder: checks each claim in each arm once, and resumes without repeated calls."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from court.ports import ChatModel, EvidenceSource
from court.settings import TrialSettings
from eval.datasets.claims import GoldClaim, claims_digest
from eval.models.call_cache import CallCache
from eval.session.directory import SessionFolder, SessionManifest, circumstances
from eval.session.engine import Progress, Results, Watch, run_items
from eval.session.spec import Option
from eval.solvers.witness import Arm, CheckedClaim, WitnessSolver

CHECKED = "checked.jsonl"


class WitnessSpec(BaseModel):
    """Specification of an evaluation, which is compared when it is resumed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arms: tuple[Arm, ...]
    queries: Annotated[int, Field(ge=1, le=20), Option("Maximum queries per claim.")] = 4
    results: Annotated[int, Field(ge=1, le=10), Option("Maximum results to read per query.")] = 2
    steps: Annotated[
        Literal["merged", "apart"], Option("Ask all questions about a document in one call, or each in its own call.")
    ] = "merged"
    temperature: Annotated[float, Field(ge=0, le=2), Option("Temperature of the witness's calls.")] = 0.0
    forced: bool = False
    """True to ask for true or false if the evidence is not enough."""
    seed: Annotated[int, Field(ge=0), Option("Seed of the sample, draws and bootstrap.")] = 0
    demonstration: bool = False
    """True for the drawn world with its stand-in."""


class WitnessManifest(WitnessSpec, SessionManifest):
    """Description of an evaluation."""

    claims: str
    """Digest of the claims."""
    source: str
    """Identity of the source of evidence."""
    model: str
    citations_by: str = ""
    """Model that was asked whether passages bear findings; empty where nobody was."""


class WitnessFolder(SessionFolder[WitnessManifest]):
    """A directory that holds, or will hold, an evaluation of the witness."""

    what = "evaluation of the witness"
    manifest_type = WitnessManifest

    def checked(self) -> tuple[CheckedClaim, ...]:
        """Reads the results so far, skipping a last line that a crash truncated. Raises BadRequest."""
        return self.read(CHECKED, CheckedClaim)


class WitnessPlan(WitnessSpec):
    """Plan of an evaluation, in an empty folder or that of the evaluation to resume."""

    out: Path
    claims: tuple[GoldClaim, ...]
    concurrency: int = 8
    command: str = ""


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

    Raises:
        BadRequest: The folder contains something else, or an evaluation with other settings.
        Unavailable: Some claims have no answer yet, for transient reasons.
        BudgetSpent: The model's budget is exhausted; replies so far are stored.
    """
    progress = progress or Progress()
    solver = WitnessSolver(
        model=model,
        source=source,
        settings=TrialSettings(
            expert="always",
            expert_waits=True,
            expert_queries=plan.queries,
            expert_results=plan.results,
            expert_steps=plan.steps,
            # Nobody waits for a claim, but a source that hangs must not hold a run.
            expert_s=3600.0,
        ),
        temperature=plan.temperature,
        forced=plan.forced,
        citations_by=citations_by,
        mark=store.fence_mark,
    )
    folder = WitnessFolder(plan.out)
    with folder.locked():
        # Before any check, so that a folder with results always has a manifest.
        manifest = folder.start(
            WitnessManifest(
                **circumstances(plan.command),
                claims=claims_digest(plan.claims),
                source=source.identity if source else "none",
                model=model.name,
                citations_by=citations_by.name if citations_by else "",
                **{name: getattr(plan, name) for name in WitnessSpec.model_fields},
            )
        )
        results = Results(folder, CHECKED, CheckedClaim, lambda one: (one.arm, one.id))
        pairs = {(arm, claim.id): claim for arm in plan.arms for claim in plan.claims}
        results.resume(pairs)
        todo = [(arm, claim) for (arm, id_), claim in pairs.items() if (arm, id_) not in results.done]

        async def checked(item: tuple[Arm, GoldClaim]) -> CheckedClaim:
            arm, claim = item
            calls = results.done[Arm.WITNESS, claim.id].calls if arm is Arm.FIRE else 0
            return await solver.solve(claim, arm, calls)

        # FIRE last, because it makes at most as many calls as the witness made about the claim.
        for fire in (False, True):
            await run_items(
                [item for item in todo if (item[0] is Arm.FIRE) is fire],
                checked,
                concurrency=plan.concurrency,
                store=lambda _, one: results.add(one),
                progress=partial(progress.step, "checked"),
                before=len(results.done),
                watch=Watch(plan.concurrency, "checks"),
            )
        results.put_in_order(pairs)
        return folder.finish(manifest)
