"""Studies: one split judged several times, each time with one change, so that a difference is due to that change.

::

    STUDY/study.json          description of the study and its arms (:class:`StudyManifest`)
    STUDY/calls.sqlite        model replies shared by all arms, unless another store is named: what they have in common
                              is called once
    STUDY/library/            precedents of all arms except those with shuffled labels or leaks
    STUDY/ARM/                a run (:mod:`eval.runs.results`)

Arms run one after the other. A study can be resumed: finished arms are skipped, and the others continue.
"""

import asyncio
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from court.digests import sha256_of
from court.errors import BadRequest
from court.events import Procedure
from court.prompts.sets import open_set
from court.settings import TrialSettings
from eval.datasets.read import read_split
from eval.models.vllm_session import VllmSessions
from eval.runs.controls import ALTERATIONS, ALTERED, Control
from eval.runs.judge import Material, judged_memes
from eval.runs.plan import Plan, models_named, require_models
from eval.runs.results import LIBRARY, RunFolder
from eval.runs.run import prepare_library, run
from eval.runs.spec import JudgingSpec
from eval.session.directory import CALLS, SessionFolder, SessionManifest, circumstances
from eval.session.engine import Progress
from eval.solvers.comparator import EQUAL, OF_TEXTS
from retrieval.open import load_encoder_for
from serving.models.connect import pictures_per_prompt
from serving.settings import ModelSettings, RoleSettings, Settings

STUDY = "study.json"
FULL_ARM = "full"
"""Reference arm that the others are compared with."""
Roles = Literal["all", "proposer", "accuser", "defender", "judge"]


class ModelOf(BaseModel):
    """Replacement model for one role or for all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Roles = "all"
    model: str = Field(min_length=1)
    url: str = ""
    """Address of the model's server; empty for the one in the settings."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses ``[ROLE=]NAME[@URL]``. Raises BadRequest if it is malformed."""
        # A role is one of five words; anything else before an equals sign is part of the model's name.
        match = re.fullmatch(r"(?:(all|proposer|accuser|defender|judge)=)?([^@]+)(?:@(https?://\S+))?", text.strip())
        if match is None or not text.isprintable():
            raise BadRequest(f"{text!r} names no model. Write NAME, NAME@URL or ROLE=NAME@URL.", field="with-model")
        return cls(role=match[1] or "all", model=match[2], url=match[3] or "")


class Arm(BaseModel):
    """One way of judging the split."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Also the name of the arm's folder: no slash, and no leading dot or dash.
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.,=_+-]{0,99}$")
    """Name of the arm and of its folder."""
    what: str = ""
    """Description of the change."""
    overlay: dict[str, JsonValue] = Field(default_factory=dict)
    """Trial settings that differ from those of the study."""
    models: tuple[ModelOf, ...] = ()
    policy: str = ""
    """File of another policy; empty for the study's."""
    control: str = ""
    """Value of :class:`eval.runs.controls.Control`, or an alteration of memes (:mod:`eval.runs.controls`); empty for
    none."""
    comparator: str = ""
    """Value of :class:`eval.solvers.comparator.Comparator` if the arm holds no trials; empty if it does."""
    temperature: float | None = None
    """Temperature of all models; None for that of the settings."""


def _arms() -> Iterator[Arm]:
    file = files("eval.studies") / "arms.toml"
    yield from (Arm.model_validate(one) for one in tomllib.loads(file.read_text("utf-8"))["arms"])
    for name, alteration in ALTERATIONS.items():
        yield Arm(name=name, what=f"{alteration.what}; run where it is named", control=f"{ALTERED}{name}")


ARMS: Mapping[str, Arm] = {arm.name: arm for arm in _arms()}
"""The ablations of the paper, controls that it lacks, comparators, and what should change no verdict."""

UNCHANGING = ("other-seed", "defender-first", "reversed-precedents", *ALTERATIONS)
"""Arms that should change no verdict."""
_WITHOUT_MODELS = frozenset({FULL_ARM, "random-precedents", "shuffled-labels", "with-leaks", *ALTERATIONS})
"""Arms that make a difference in a procedure without model calls."""
FROM_THE_FIELD = ("self-correct", "paraphrase", "role-switch", "progressive-retrieval")
"""Arms after other publications."""
_ONLY_NAMED = frozenset({"translate", "with-leaks", *FROM_THE_FIELD, *UNCHANGING})
"""Arms that run only if they are named."""
_LIBRARIES: Mapping[str, str] = {Control.SHUFFLED: f"{LIBRARY}-shuffled", Control.LEAKS: f"{LIBRARY}-with-leaks"}
"""Folders of the libraries of controls that need their own."""


def arms_named(
    names: Sequence[str],
    models: Sequence[ModelOf],
    procedure: Procedure,
    prompts: Sequence[str] = (),
    *,
    policies: Sequence[Path] = (),
    groups: Sequence[str] = (),
) -> tuple[Arm, ...]:
    """The arms of a study: the named ones (by default all that make a difference), and one per model or prompt set.

    Raises BadRequest: There is no such arm or prompt set, it changes nothing in this procedure, or two share a name.
    """
    possible = [name for name in ARMS if procedure is not Procedure.SUMMARY or name in _WITHOUT_MODELS]
    # Translating English texts wastes calls, and figures with leaks do not describe the court.
    usual = [name for name in possible if name not in _ONLY_NAMED]
    chosen = list(names) or ([FULL_ARM] if prompts or policies or groups else usual)
    for name in chosen:
        if name not in ARMS:
            raise BadRequest(f"There is no arm {name!r}. There are: {', '.join(ARMS)}.", field="arms")
        if name not in possible:
            raise BadRequest(
                # Rejected: an arm without effect would show a difference of 0 as if it had been measured.
                f"The arm {name} alters nothing where no model is asked. In the procedure {procedure} there are: "
                f"{', '.join(possible)}.",
                field="arms",
            )
    if (models or prompts or policies) and procedure is Procedure.SUMMARY:
        raise BadRequest(f"The procedure {procedure} asks no model: another one makes no difference.", field="arms")
    # Always first: the others are compared with it, and equal compute spends as many tokens as it did.
    arms = [ARMS[name] for name in dict.fromkeys((FULL_ARM, *chosen))]
    for model in models:
        whose, role = ("every role", "") if model.role == "all" else (f"the {model.role}", f"{model.role}=")
        # Model names contain slashes and other characters that folder names must not.
        name = f"model-{_plain(role + model.model)}"[:100]
        arms.append(Arm(name=name, what=f"{whose} is played by {model.model}", models=(model,)))
    for place in prompts:
        found = open_set(place)
        # An absolute path, as the study may be resumed from another working directory.
        overlay = {"prompts": place if place.isdecimal() else str(Path(place).expanduser().resolve())}
        what = f"models are asked in the words of {found.name} ({found.digest.removeprefix('sha256:')[:12]})"
        arms.append(Arm(name=f"prompts-{_plain(found.name)}"[:100], what=what, overlay=overlay))
    arms += [
        Arm(name=f"policy-{_plain(each.stem)}"[:100], what=f"the policy is {each.name}", policy=str(each.resolve()))
        for each in policies
    ]
    arms += [
        Arm(name=_plain(f"{old}={new}"), what=f"{old} is replaced by {new}", control=f"{ALTERED}{old}={new}")
        for old, new in itertools.permutations(groups, 2)
    ]
    names_given = [arm.name for arm in arms]
    # Two models whose names differ only in such characters would share a folder.
    if twice := sorted({name for name in names_given if names_given.count(name) > 1}):
        raise BadRequest(f"Each arm needs a name of its own; there twice: {', '.join(twice)}.", field="arms")
    return tuple(arms)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=_+-]+", "-", name)


class StudyManifest(JudgingSpec, SessionManifest):
    """Description of a study; arms may be added later."""

    kind: str
    """``ablate``, ``sweep`` or ``audition``."""
    settings: dict[str, JsonValue]
    """Trial settings before the changes of an arm."""
    models: dict[str, str] = Field(default_factory=dict)
    """Model by role, before the changes of an arm, as far as the settings name one."""
    encoder: str
    policy: str
    """Digest of the policy file; empty for the one that comes with the program."""
    arms: tuple[Arm, ...]


class StudyFolder(SessionFolder[StudyManifest]):
    """A directory that holds, or will hold, a study."""

    what = "study"
    missing = "STUDY_MISSING"
    unreadable = "STUDY_UNREADABLE"
    manifest_type = StudyManifest
    manifest_file = STUDY

    def merged(self, before: StudyManifest, now: StudyManifest) -> StudyManifest:
        """Returns the manifest with the arms of both. Raises BadRequest if anything else differs."""
        known = {arm.name: arm for arm in before.arms}
        # A changed arm of the same name would mix two ways of judging in one folder.
        changed = [f"the arm {arm.name}" for arm in now.arms if known.get(arm.name, arm) != arm]
        self.refuse_different([*before.differences(now, {"arms"}), *changed])
        arms = (*before.arms, *(arm for arm in now.arms if arm.name not in known))
        return before.model_copy(update={"arms": arms})


@dataclass(frozen=True)
class Study:
    """Plan of a study."""

    kind: str
    """``ablate``, ``sweep`` or ``audition``."""
    plan: Plan
    """Plan that each arm changes, in the study's folder. A server that it has started plays all roles; for arms with
    another model, a server with that model is started in turn."""
    arms: tuple[Arm, ...]
    """Arms to compare, the reference first."""

    def manifest(self) -> StudyManifest:
        """Returns the stored description of the study."""
        return StudyManifest(
            **circumstances(self.plan.command),
            **{name: getattr(self.plan.spec, name) for name in JudgingSpec.model_fields},
            kind=self.kind,
            # Servers and keys are not part of the study.
            settings=self.plan.settings.trial.model_dump(mode="json"),
            models=models_named(self.plan),
            encoder=self.plan.settings.encoder or "",
            policy=sha256_of(self.plan.settings.policy) if self.plan.settings.policy else "",
            arms=self.arms,
        )


async def run_study(study: Study, progress: Progress) -> tuple[RunFolder, ...]:
    """Runs all arms, one after the other; returns their runs, in order.

    If it starts model servers, arms with the same model run in succession, so that each server is started once.

    Raises:
        BadRequest: The folder holds something else or another study, or an arm can't run with these settings.
        VllmFailed: A server did not start, or exited. Judged memes are kept, and calling this again resumes the study.
        As :func:`eval.runs.run.run`: judged memes are kept, and calling this again resumes the study.
    """
    # Before anything runs, so that an arm with invalid settings fails at once.
    arms = [(arm, settings_of(study.plan.settings, arm), _started_for(study, arm)) for arm in study.arms]
    if study.plan.text_only and (shown := [arm.name for arm in study.arms if arm.comparator not in OF_TEXTS]):
        raise BadRequest(f"These arms show pictures, and --text-only has none: {', '.join(shown)}.", field="arms")
    if study.plan.vllm is None:
        # A server that we start has its model; otherwise a missing model is reported before anything is written.
        require_models(study.plan.procedure, study.plan.settings)
    folder = StudyFolder(study.plan.out)
    with folder.locked():
        manifest = folder.start(study.manifest())
        done = await _run_arms(study, arms, progress)
        folder.finish(manifest)
    # In the order of the plan, whatever the order of execution.
    return tuple(done[arm.name] for arm in study.arms)


async def _run_arms(study: Study, arms: list[tuple[Arm, Settings, str]], progress: Progress) -> Mapping[str, RunFolder]:
    """Runs arms, each with its settings and the model that a server is started with; returns their runs by name."""
    started = list(dict.fromkeys(model for _, _, model in arms))
    # A stable sort with the reference's model first: the full trials finish before their tokens are used as a budget.
    arms.sort(key=lambda one: started.index(one[2]))
    done: dict[str, RunFolder] = {}
    libraries: dict[str, Path] = {}
    async with VllmSessions(
        progress.tell,
        pictures=max(pictures_per_prompt(own.trial) for _, own, _ in arms),
        flags=study.plan.vllm.flags if study.plan.vllm else (),
    ) as sessions:
        for number, (arm, own, model) in enumerate(arms, 1):
            folder = RunFolder(study.plan.out / arm.name)
            # The manifest decides, not the number of predictions: a run is finished once it was closed.
            if folder.finished:
                progress.tell(f"{arm.name} ({number} of {len(arms)}): finished before.")
                done[arm.name] = folder
                continue
            progress.tell(f"{arm.name} ({number} of {len(arms)}): {arm.what}.")
            # Arms share a library, as they must differ in one respect only; shuffled labels and leaks need their own.
            place = _LIBRARIES.get(arm.control, LIBRARY)
            if place not in libraries:
                # Prepared when an arm first needs it: resuming a study with one unfinished arm prepares one.
                controlled = replace(study.plan, control=arm.control)
                libraries[place] = await _prepared(controlled, study.plan.out / place, progress)
            if model:
                llm = (await sessions.serve(model)).in_all_roles(own.llm)
                own = own.model_copy(update={"llm": llm})
            plan = replace(
                study.plan,
                out=folder.root,
                name=arm.name,
                settings=own,
                # One store for all arms: calls that they have in common are made once.
                calls=study.plan.calls or study.plan.out / CALLS,
                library=libraries[place],
                control=arm.control,
                comparator=arm.comparator,
                vllm=None,
            )
            if arm.comparator in EQUAL:
                # The full trials are finished by now, as the arms were sorted; their tokens are the budget.
                plan = replace(plan, budgets=_tokens_spent(done[study.arms[0].name]))
            done[arm.name] = await run(plan, progress)
    return done


def _started_for(study: Study, arm: Arm) -> str:
    """The model that a server is started with for an arm; empty if one is running. Raises BadRequest for two models."""
    if study.plan.vllm is None:
        return ""
    for other in arm.models:
        if other.role != "all":
            raise BadRequest(
                f"The arm {arm.name} asks two models by turns, and --vllm has one served at a time. Start both "
                "servers, and name them with --llm-url, --model and --with-model ROLE=NAME@URL.",
                field="with-model",
            )
        # A model with its own server needs none to be started.
        return "" if other.url else other.model
    return study.plan.vllm.model


def _tokens_spent(full: RunFolder) -> dict[str, int]:
    """Tokens, read and written, that each meme's full trial used; for trials without any, the mean of the others.

    Prompt tokens that a server had in its prefix cache count like any other.
    """
    spent = {one.meme: one.cost.tokens_in + one.cost.tokens_out for one in full.predictions()}
    known = [tokens for tokens in spent.values() if tokens]
    # A failed trial may have no recorded tokens; the mean of the others estimates what it would have used.
    mean = sum(known) // len(known) if known else 0
    return {meme: tokens or mean for meme, tokens in spent.items()}


def settings_of(settings: Settings, arm: Arm) -> Settings:
    """The settings of an arm. Raises BadRequest: The overlay has an unknown trial setting, or an invalid value."""
    try:
        # Validated again: the overlay comes from a file or a command line, and `model_copy` accepts any value.
        trial = TrialSettings.model_validate({**settings.trial.model_dump(), **arm.overlay})
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors())
        raise BadRequest(f"The arm {arm.name} can't be held: {faults}.", reason="BAD_SETTINGS") from None
    llm = settings.llm
    for other in arm.models:
        llm = _with_model(llm, other)
    if arm.temperature is not None:
        warmer = {"temperature": arm.temperature}
        roles = {name: own.model_copy(update=warmer) for name, own in llm.roles.items()}
        llm = llm.model_copy(update={**warmer, "roles": roles})
    policy = {"policy": Path(arm.policy)} if arm.policy else {}
    return settings.model_copy(update={"trial": trial, "llm": llm, **policy})


def _with_model(llm: ModelSettings, other: ModelOf) -> ModelSettings:
    # A key must only be sent to the server that it belongs to.
    named: dict[str, Any] = {"model": other.model}
    if other.url:
        try:
            # Validated like an address in the settings.
            urls = RoleSettings.model_validate({"url": other.url}).url
        except ValidationError as error:
            fault = error.errors()[0]["msg"]
            raise BadRequest(f"{other.url} is no model server: {fault}.", field="with-model") from None
        named |= {"url": urls, "api_key": None}
    if other.role == "all":
        # Roles keep their call settings, but not their own model, server or key.
        roles = {
            name: own.model_copy(update={"url": None, "model": None, "api_key": None})
            for name, own in llm.roles.items()
        }
        return llm.model_copy(update={**named, "roles": roles})
    if other.url and llm.api_key is not None:
        raise BadRequest(
            f"The key of the model server would be sent to another one, that of the {other.role}. Name that server and "
            "its key in the file of settings, or give all roles one server.",
            field="with-model",
        )
    own = llm.roles.get(other.role, RoleSettings()).model_copy(update=named)
    return llm.model_copy(update={"roles": {**llm.roles, other.role: own}})


async def _prepared(plan: Plan, root: Path, progress: Progress) -> Path:
    """Folder of the precedents of an arm; built once, then reused."""
    chosen = partial(judged_memes, limit=plan.limit, seed=plan.seed, dropped_labels=plan.dropped_labels)
    read = await asyncio.to_thread(read_split, plan.dataset, plan.data, plan.split, choose=chosen)
    material = Material(read.memes, read.pictures, read.files)
    encoder = await asyncio.to_thread(load_encoder_for, None, plan.settings.encoder)
    return (await prepare_library(plan, root, material, encoder=encoder, progress=progress)).library.root
