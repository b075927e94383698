"""Plan of a run: the memes to judge, and how to judge them."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import JsonValue

from court.errors import BadRequest, NotLoaded
from court.events import Procedure
from court.settings import TrialSettings
from court.trial import Court
from eval.datasets.card import DatasetCard
from eval.datasets.items import Protocol
from eval.datasets.read import labels_dropped
from eval.models.vllm_session import VllmChoice
from eval.runs.results import DOCKET, LIBRARY, RunSpec
from eval.runs.spec import Circumstances
from eval.solvers.question import Answerer, Question
from serving.settings import ModelSettings, RoleName, Settings


@dataclass(frozen=True, kw_only=True)
class Plan(Circumstances):
    """Plan of a run: the fields of its specification, its circumstances, and the court that judges.

    Attributes:
        protocols: Protocols under which the run is scored; the first one is shown while it runs. All memes are judged,
            including those that a protocol drops.
        settings: Settings of the court. The run replaces docket and library by its own.
        library: Precedents prepared earlier by :func:`eval.runs.precedents.prepare_precedents`; None to prepare them
            from the train split.
        patience_s: Seconds that a meme waits for busy or unreachable servers.
    """

    dataset: DatasetCard
    split: str
    procedure: Procedure
    protocols: tuple[Protocol, ...]
    settings: Settings
    limit: int | None = None
    seed: int = 0
    control: str = ""
    command: str = ""
    server: str = ""
    text_only: bool = False
    language: str = ""
    patience_s: float = 0.0
    comparator: str = ""
    budgets: Mapping[str, int] = field(default_factory=dict)
    question: Question | None = None
    drop_precedents: bool = False
    templates_apart: bool = False
    vllm: VllmChoice | None = None

    @property
    def spec(self) -> RunSpec:
        """Returns the specification of the run, as the manifest has it."""
        own = {name: getattr(self, name) for name in RunSpec.model_fields if name != "dataset"}
        return RunSpec(dataset=self.dataset.id, **own)

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


def parse_setting(text: str) -> tuple[str, JsonValue]:
    """Parses a trial setting ``name=value``; the value is parsed as JSON if possible, and else taken as a string.

    Raises BadRequest: There is no such setting.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    name = name.removeprefix("trial.")
    if not equals or name not in TrialSettings.model_fields:
        raise BadRequest(
            f"{text!r} sets nothing. Write NAME=VALUE with one of: {', '.join(TrialSettings.model_fields)}.",
            field="set",
        )
    if value in ("", "none"):
        return name, None  # settings such as limits have None for none
    with suppress(ValueError):
        # Anything but JSON is a string: `stance_at=summary` needs no quotes.
        found: JsonValue = json.loads(value)
        return name, found
    return name, value


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


def facts_of(court: Court, procedure: Procedure) -> dict[str, Any]:
    """Everything besides the meme that decides a verdict, as a run's manifest has it: it is equal on all workers."""
    asks_nobody = procedure is Procedure.SUMMARY
    models = None if asks_nobody else court.role_models
    settings = court.settings.model_dump(mode="json") | {"prompts": court.prompts.name}
    library = court.finder.library
    return {
        "settings": settings | (models.settings(court.settings.reply_chars) if models else {}),
        "models": models.models if models else {},
        "prompts": "" if asks_nobody else court.prompts.digest,
        "policy": court.policy.digest,
        "library": library.digest,
        "library_size": library.size,
        "encoder": library.encoder,
    }


def models_named(plan: Plan) -> dict[str, str]:
    """Model by role as records name it, as far as the settings name one, or that of the server to be started."""
    if plan.procedure is Procedure.SUMMARY and plan.question is None:
        return {}
    named = {role.upper(): plan.settings.llm.of_role(role).model for role in get_args(RoleName)}
    if plan.vllm:
        return dict.fromkeys(named, plan.vllm.model)
    return {role: model for role, model in named.items() if model}


def court_settings(plan: Plan) -> Settings:
    """Returns the court's settings with the run's own docket and precedents."""
    changes: dict[str, Any] = {
        "docket": plan.out / DOCKET,
        "library": plan.library or plan.out / LIBRARY,
        "procedure": plan.procedure,
        # A benchmark measures the court, not its memory.
        "binding": "off",
    }
    if plan.procedure is Procedure.SUMMARY:
        changes["llm"] = ModelSettings()  # no server has to be up if no model is asked
    return plan.settings.model_copy(update=changes)
