"""Plan of a run: the memes to judge, and how to judge them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from court.errors import NotLoaded
from court.events import Procedure
from eval.datasets.card import DatasetCard
from eval.datasets.protocol import Protocol
from eval.datasets.read import labels_dropped
from eval.models.vllm_session import VllmChoice
from eval.runs.folder import DOCKET, LIBRARY, RunSpec
from eval.solvers.question import Answerer, Question
from retrieval.audit.leakage import TEMPLATE, LeakThresholds
from serving.settings import ModelSettings, RoleName, Settings


@dataclass(frozen=True)
class Plan:
    """Plan of a run.

    Attributes:
        out: The run's folder: empty, or one in which this run was started.
        dataset: Data set to judge.
        protocols: Protocols under which the run is scored; the first one is shown while it runs. All memes are judged,
            including those that a protocol drops.
        settings: Settings of the court: trial, models, policy, workers. The run replaces docket and library by its own.
        limit: Maximum number of memes, sampled by :func:`eval.datasets.sample.sample`; None for all.
        seed: Seed of that sample, and of replies sampled at a temperature.
        concurrency: Number of memes tried concurrently.
        calls: Call cache shared by several runs; None for the run's own.
        library: Precedents prepared earlier by :func:`eval.runs.precedents.prepare_precedents`; None to prepare them
            from the train split.
        control: Control condition of :class:`eval.runs.controls.Control`; empty for the unchanged court.
        server: Name of the model servers in the call cache; their addresses if empty. Set it if a server may move and
            should still count as the same.
        allow_missing: True to let memes without a picture fail one by one, instead of refusing to start the run.
        text_only: True to judge each text without its picture, for instance if pictures are unavailable.
        language: BCP 47 tag of the memes' language, ``detect`` to detect it per text, ``card`` for the data set's own,
            or empty to state none.
        retry_failed: True to retry memes that failed for a temporary reason.
        patience_s: Seconds that a meme waits for busy or unreachable servers; with Ray each meme is tried once.
        comparator: Value of :class:`eval.solvers.comparator.Comparator`; empty to run trials.
        question: Question asked about every meme instead of a trial; None to run trials.
        budgets: Tokens that a comparator may spend, by meme.
        drop_precedents: True to exclude memes that no protocol of the run scores, both as precedents and from judging.
        templates_apart: True to exclude precedents that share a template with a judged meme.
        ray: Address of a Ray cluster that judges, ``HOST:PORT``; empty to judge in this process.
        ray_workers: Number of workers there; 0 for one per node.
        vllm: vLLM server to start for all roles for the duration of the run; None if the settings name servers.
    """

    out: Path
    name: str
    dataset: DatasetCard
    data: Path
    split: str
    procedure: Procedure
    protocols: tuple[Protocol, ...]
    settings: Settings
    limit: int | None = None
    seed: int = 0
    concurrency: int = 8
    calls: Path | None = None
    library: Path | None = None
    control: str = ""
    command: str = ""
    server: str = ""
    allow_missing: bool = False
    text_only: bool = False
    language: str = ""
    retry_failed: bool = False
    patience_s: float = 0.0
    comparator: str = ""
    budgets: Mapping[str, int] = field(default_factory=dict)
    question: Question | None = None
    drop_precedents: bool = False
    templates_apart: bool = False
    ray: str = ""
    ray_workers: int = 0
    vllm: VllmChoice | None = None

    @property
    def spec(self) -> RunSpec:
        """Returns the specification of the run, as the manifest has it."""
        own = {name: getattr(self, name) for name in RunSpec.model_fields}
        return RunSpec.model_validate({**own, "dataset": self.dataset.id})

    @property
    def nearness(self) -> LeakThresholds:
        """Returns the thresholds above which a precedent is too similar to a judged meme."""
        return LeakThresholds(template=TEMPLATE if self.templates_apart else None)

    @property
    def dropped_labels(self) -> tuple[str, ...]:
        """Labels whose memes are neither precedents nor judged. Raises BadRequest if all labels are scored."""
        return labels_dropped(self.dataset, self.protocols) if self.drop_precedents else ()

    @property
    def labelled_examples(self) -> Question | None:
        """Question whose labelled examples form the library; None if it holds precedents on harm."""
        # A trial uses precedents on harm even if its Judge is asked another question.
        on_harm = self.question is not None and self.question.by is Answerer.TRIAL and self.dataset.court_task
        return None if on_harm else self.question

    @property
    def without_library(self) -> bool:
        """True if no library is searched: a question is asked without labelled examples."""
        return self.question is not None and not self.question.needs_examples


def require_models(procedure: Procedure, settings: Settings) -> None:
    """Raises NotLoaded, before anything is prepared, if the procedure needs chat models and none is configured."""
    if procedure is Procedure.SUMMARY:
        return
    if not any((own := settings.llm.of_role(role)).url or own.model for role in get_args(RoleName)):
        raise NotLoaded(
            f"The procedure {procedure.lower()} asks chat models, and none is named. Give --llm-url URL and --model "
            "NAME, or name them in a file of settings, or have one started with --vllm; the procedure summary asks "
            "none.",
            reason="PROCEDURE_NOT_LOADED",
            field="procedure",
        )


def court_settings(plan: Plan) -> Settings:
    """Returns the court's settings with the run's own docket and precedents."""
    changes: dict[str, Any] = {
        "docket": plan.out / DOCKET,
        "library": plan.library or plan.out / LIBRARY,
        "procedure": plan.procedure,
    }
    if plan.procedure is Procedure.SUMMARY:
        changes["llm"] = ModelSettings()  # no server has to be up if no model is asked
    return plan.settings.model_copy(update=changes)
