"""Plan of a run: the memes to judge, and how to judge them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from court.errors import NotLoaded
from court.events import Procedure
from eval.datasets.known import Dataset
from eval.datasets.protocol import Protocol
from eval.datasets.read import labels_dropped
from eval.models.vllm_session import VllmChoice
from eval.runs.folder import DOCKET, LIBRARY
from eval.runs.question import Answerer, Question
from retrieval.audit.leakage import TEMPLATE, LeakThresholds
from serving.settings import ModelSettings, RoleName, Settings


@dataclass(frozen=True)
class Plan:
    """Plan of a run.

    Attributes:
        out: The run's folder; an empty one, or one in which this run was begun.
        name: Name of the run.
        dataset: Data set to judge.
        data: Directory of the data set.
        split: Which part of it.
        procedure: Procedure of the trials.
        protocols: Under which the run is scored; the first one is shown while it runs. All memes are judged, those too
            that a protocol drops.
        settings: Settings of the court: trial, models, policy, workers. Docket and library are the run's own.
        limit: Judge so many memes only, as :func:`eval.datasets.sample.sample` takes them; None for all.
        seed: Seed of that sample, and of replies if a temperature makes them draws.
        concurrency: Memes on trial at once.
        calls: Store of calls that runs share; None for the run's own.
        library: Precedents that :func:`eval.runs.precedents.prepare_precedents` made before; None to have them made
            from the train split.
        control: Control condition of :class:`eval.runs.controls.Control`; empty for a court as it is served.
        command: Command line of the run.
        server: Name of the model servers in the store of calls; their addresses if empty. Set it if a server may move
            and is to count as the same.
        allow_missing: True if memes without a picture fail, each by itself, instead of keeping the run from starting.
        text_only: True to judge each text without its picture, as where the pictures can't be had.
        language: BCP 47 tag of the memes' language, ``detect`` to detect it of each text, ``card`` for the data
            set's own, or empty to say none.
        retry_failed: True to retry memes that failed for a passing reason.
        patience_s: Seconds that a meme waits for what is busy or away; with Ray each is tried once.
        comparator: Way of asking of :class:`eval.runs.comparators.Comparator`; empty to hold trials.
        question: Question that is asked of every meme in place of a trial; None to hold trials.
        budgets: Tokens that a comparator may spend, by meme.
        drop_precedents: True if memes that no protocol of the run scores are neither precedents nor judged.
        templates_apart: True if no precedent is on the template of a judged meme.
        ray: Address of a Ray cluster that judges, ``HOST:PORT``; empty to judge in this process.
        ray_workers: Workers there; 0 for one a node.
        vllm: Server to start for all roles, for as long as the run takes; None where the settings name servers.
    """

    out: Path
    name: str
    dataset: Dataset
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
    def nearness(self) -> LeakThresholds:
        """Returns from where on a precedent is too near to a judged meme."""
        return LeakThresholds(template=TEMPLATE if self.templates_apart else None)

    @property
    def dropped_labels(self) -> tuple[str, ...]:
        """Labels of memes that are neither precedents nor judged. Raises BadRequest if all labels are scored."""
        return labels_dropped(self.dataset, self.protocols) if self.drop_precedents else ()

    @property
    def labelled_examples(self) -> Question | None:
        """Question whose labelled examples make up the library; None where it has precedents of harm."""
        # A trial's precedents are of harm, also where its Judge is asked something else.
        on_harm = self.question is not None and self.question.by is Answerer.TRIAL and self.dataset.card.court_task
        return None if on_harm else self.question

    @property
    def without_library(self) -> bool:
        """True if nothing is searched for: a question is asked without labelled examples."""
        return self.question is not None and not self.question.needs_examples


def require_models(procedure: Procedure, settings: Settings) -> None:
    """Before anything is prepared: raises NotLoaded where the procedure asks chat models and none is named."""
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
        changes["llm"] = ModelSettings()  # no server has to be there for what asks none
    return plan.settings.model_copy(update=changes)
