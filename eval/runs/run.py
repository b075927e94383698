"""A run: every meme of a split is tried by the court as it is served, and what came of each is kept.

The docket is the truth. It is on the disk before anything is done about an event; ``predictions.jsonl`` only says
again what it holds, in a form that is easy to read, and is written without waiting for the disk. So a run can be ended
at any moment, by SIGKILL or by a power cut: taken up again, it reads verdicts that have no line yet from their records,
resumes trials that were cut off, and asks no model for anything that the docket or the store of calls has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import JsonValue

from court.deadline import gather_or_cancel
from court.digests import digest
from court.errors import BadRequest, NotLoaded, Unavailable
from court.events import Procedure, TrialFailed
from court.record import TrialRecord
from court.trial import Court
from eval.datasets.items import JudgedMeme
from eval.datasets.known import Dataset, SplitRole
from eval.datasets.language import CARD, require_card_languages
from eval.datasets.picture_finder import picture_path
from eval.datasets.protocol import Protocol
from eval.datasets.read import keep_none, labels_dropped, read_split, source_of
from eval.datasets.read_tasks import examples_source, read_task_split, require_examples, train_splits
from eval.datasets.sample import sample
from eval.models.call_cache import SqliteCallCache
from eval.models.vllm_session import VllmChoice, vllm_session
from eval.runs import environment as about
from eval.runs.attempt import LATE, PICTURE_MISSING, Attempt, Patience, may_pass
from eval.runs.comparators import Comparator, ComparatorAttempt, settings_of_comparator
from eval.runs.controls import Control, with_control
from eval.runs.folder import CALLS, DOCKET, LIBRARY, MANIFEST, PREDICTIONS, STAND_IN, Excluded, RunFolder, RunManifest
from eval.runs.prediction import Outcome, Prediction
from eval.runs.progress import Progress, RunningScore
from eval.runs.question import TEXTS, Answerer, Question, require_inputs, words_of
from eval.runs.question_attempt import OpenQuestion, open_question, settings_of_question
from eval.runs.sole_use import refuse_different, refuse_others, sole_use
from eval.runs.translated import ENGLISH, TranslatedAttempt
from retrieval.audit.leakage import TEMPLATE, LeakThresholds
from retrieval.library.picture_files import absolute, has_picture, read_picture
from retrieval.library.sources import Source
from serving.models.connect import pictures_per_prompt
from serving.runner.executor import TrialExecutor
from serving.settings import ModelSettings, RoleName, Settings
from serving.version import SOFTWARE
from serving.wiring import open_court

if TYPE_CHECKING:
    from eval.runs.ray_cluster import Cluster

SERVER_GONE = "RUN_SERVER_GONE"
"""Reason of an error: so many memes in a row failed for want of something that trying on makes no sense."""
UNFINISHED = "RUN_UNFINISHED"
"""Reason of an error: all memes were tried, and some have no answer for want of something that may come back."""

_STARTING = ".starting"  # stands in a run's folder until its manifest does: what lies there is ours to clear away
_IN_A_ROW = 3  # failures per worker after which nothing is taken to be there any more


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


@dataclass(frozen=True, slots=True)
class _Material:
    """Memes and pictures of a run.

    Attributes:
        memes: In order.
        pictures: Their folder; None where there is none.
        files: SHA-256 of every file of the data set that the run rests on, by name.
    """

    memes: tuple[JudgedMeme, ...]
    pictures: Path | None
    files: Mapping[str, str]

    def picture(self, meme: JudgedMeme) -> Path | None:
        """Returns the path of a meme's picture; None if it is missing."""
        path = picture_path(self.pictures, meme.image) if self.pictures and meme.image else None
        return path if path is not None and has_picture(path) else None


async def run(plan: Plan, progress: Progress) -> RunFolder:
    """Starts a run, or takes up the one that was begun in its folder; returns when every meme has a prediction.

    Args:
        plan: Plan to run. For a resumed run it must equal the one that was begun.
        progress: Is told how far it is.

    Raises:
        BadRequest: Somebody else is at this run; the folder is not empty and holds no run; the data set can't be read
            or pictures are missing; or the run was begun with something else than is there now (reason RUN_DIFFERS;
            the message names what).
        BadLibrary, NotLoaded, ModelRefused: As :func:`serving.wiring.open_court`.
        Unavailable: Docket or store of calls can't be used; the model server is gone for good (reason RUN_SERVER_GONE),
            or was too busy for some memes (RUN_UNFINISHED); the vLLM that was to be started did not come up, or ended
            (VllmFailed); or the Ray cluster is not there, or one of its workers can't judge. What was judged is kept.
        asyncio.CancelledError: It was broken off. What was judged is kept.
    """
    if plan.question is not None and (plan.text_only or plan.ray or plan.comparator or plan.control):
        raise BadRequest(
            "A question is asked from this process, of what --inputs names: it goes neither with --text-only nor with "
            "Ray, a comparator or a control."
        )
    if plan.comparator and (plan.text_only or plan.ray or plan.procedure is Procedure.SUMMARY):
        raise BadRequest(
            "A comparator shows each meme to a model from this process: it goes neither with texts alone, nor with "
            "Ray, nor with the procedure summary."
        )
    if plan.control == Control.TRANSLATED and (plan.ray or plan.procedure is Procedure.SUMMARY):
        raise BadRequest(
            "Texts are translated by a model that this process asks: that goes neither with Ray nor with the procedure "
            "summary."
        )
    folder = RunFolder(plan.out)
    with _alone(plan.out):
        begun = folder.manifest() if (plan.out / MANIFEST).exists() else None
        material = await asyncio.to_thread(_material, plan, progress)
        # Before anything is loaded: another data set or seed is an error that needs no model to be found.
        if begun is not None:
            _require_same_material(begun, folder, plan, material)
            if not plan.retry_failed and {p.meme for p in folder.predictions()} >= {m.id for m in material.memes}:
                # Before anything is opened: no model server has to be there to say so.
                progress.tell("Every meme has been judged.")
                if begun.finished is None:
                    folder.write_manifest(begun.model_copy(update={"finished": datetime.now(UTC)}))
                return folder
        # Before the precedents, which can take hours: a model that is not named is an error at once.
        if plan.vllm is None:
            require_models(plan.procedure, plan.settings)
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(_cluster(plan)) if plan.ray else None
            calls = None
            if plan.procedure is not Procedure.SUMMARY:
                # Opened before the court, so closed after it: replies that come while it closes are still stored.
                calls = SqliteCallCache.open(plan.calls or plan.out / CALLS)
                stack.push_async_callback(calls.close)
            checked = _Checked() if begun else await _prepare(plan, folder, material, progress)
            # After the precedents, which take long and need no model: no GPU idles meanwhile.
            plan = await _served(plan, stack, progress)
            settings = _settings(plan)
            # Each meme of a benchmark is tried as if it were the first: what others came to is not looked at.
            # Its text comes with the data set: none is read off the picture.
            house = await stack.enter_async_context(
                open_court(
                    settings,
                    read_text=False,
                    tell=progress.tell,
                    duplicates=False,
                    may_be_blind=_blind_roles(plan.question),
                    search=not plan.without_library,
                )
            )
            question = None
            if plan.question is None:
                house = replace(house, court=with_control(house.court, plan.control, plan.seed))
            else:
                question = await asyncio.to_thread(
                    open_question,
                    plan.question,
                    plan.out,
                    house.court.finder,
                    examples=_examples(plan),
                    progress=progress,
                )
            manifest = _manifest(
                plan, material, court=house.court, excluded=folder.excluded(), checked=dict(checked.nearness)
            )
            if begun is None:
                # The manifest after the memes: where it stands there is a run, whose memes are read.
                folder.write_memes([_on_template(meme, checked.templates) for meme in material.memes])
                folder.write_manifest(manifest)
                (plan.out / _STARTING).unlink(missing_ok=True)
            else:
                _require_same_court(begun, manifest)
                where = {"data_dir": manifest.data_dir, "pictures_dir": manifest.pictures_dir}
                manifest = begun.model_copy(update=where)  # the same data may lie elsewhere now
            judging = _Judging(
                plan=plan,
                folder=folder,
                material=material,
                house=house,
                calls=calls,
                progress=progress,
                manifest=manifest,
                again=begun is not None,
                cluster=cluster,
                question=question,
            )
            await judging.all()
    return folder


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


def _cluster(plan: Plan) -> AbstractAsyncContextManager[Cluster]:
    """The Ray cluster; what belongs to Ray is only loaded where it is used."""
    from eval.runs.ray_cluster import connected

    return connected(plan.ray, workers=plan.ray_workers, concurrency=plan.concurrency)


async def _served(plan: Plan, stack: AsyncExitStack, progress: Progress) -> Plan:
    """Starts the run's own model server, if it is to have one; returns the plan with its address."""
    if plan.vllm is None:
        return plan
    pictures = pictures_per_prompt(plan.settings.trial)
    session = vllm_session(plan.vllm.model, progress.tell, pictures=pictures, flags=plan.vllm.flags)
    served = await stack.enter_async_context(session)
    llm = served.in_all_roles(plan.settings.llm)
    return replace(plan, settings=plan.settings.model_copy(update={"llm": llm}))


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Makes the folder where it is not there, and keeps others off it."""
    # Two processes at one run would try each meme twice, and write lines into each other's file.
    with sole_use(out, "run"):
        if not (out / MANIFEST).exists():
            # What a start that was cut off has left is ours, and is written over.
            if not (out / _STARTING).exists():
                refuse_others(out, "run")
            # Before anything else is written: what a crash leaves from here on is known to be ours.
            (out / _STARTING).touch()
        yield


def _material(plan: Plan, progress: Progress) -> _Material:
    if plan.question is not None:
        return _question_material(plan, plan.question, progress)
    chosen = partial(judged_memes, limit=plan.limit, seed=plan.seed, dropped_labels=plan.dropped_labels)
    read = read_split(plan.dataset, plan.data, plan.split, choose=chosen)
    for problem in read.problems[:3]:
        progress.tell(f"{read.file.name}, line {problem.line}: {problem.reason}")
    if read.problems:
        progress.tell(f"{len(read.problems):,} rows can't be used; memecourt-eval datasets check lists them.")
    for protocol in plan.protocols:
        if protocol not in plan.dataset.protocols:
            known = ", ".join(plan.dataset.protocols)
            raise BadRequest(f"{plan.dataset.title} has no protocol {protocol}; it has {known}.")
    memes = read.memes
    if plan.language == CARD:
        require_card_languages(memes)
    files = dict(read.files)
    if plan.library is None:
        # Precedents come from these files, so a resumed run must find them unchanged as well.
        for split in plan.dataset.of_role(SplitRole.TRAIN):
            files |= read_split(plan.dataset, plan.data, split.name, choose=keep_none).files
    if plan.text_only:
        return _Material(memes, None, files)
    return _with_pictures(plan, _Material(memes, read.pictures, files))


def _question_material(plan: Plan, question: Question, progress: Progress) -> _Material:
    """Memes with a gold label of the question's task, and the files that they and its examples come from."""
    worded: dict[str, JudgedMeme] = {}

    def drawn(memes: Iterable[JudgedMeme]) -> tuple[JudgedMeme, ...]:
        noted = _noting_words(memes, worded)
        return sample(noted, plan.limit, plan.seed, lambda meme: ", ".join(meme.tasks[question.task]))

    read = read_task_split(plan.dataset, plan.data, plan.split, question.task, choose=drawn)
    for sentence in read.notes:
        progress.tell(sentence)
    require_inputs(question, tuple(worded.values()))
    files = dict(read.files)
    if question.needs_examples:
        for split in train_splits(plan.dataset):
            files |= read_task_split(plan.dataset, plan.data, split.name, question.task, choose=keep_none).files
    material = _Material(read.memes, read.pictures, files)
    return _with_pictures(plan, material) if question.needs_picture else material


def _noting_words(memes: Iterable[JudgedMeme], worded: dict[str, JudgedMeme]) -> Iterator[JudgedMeme]:
    """Passes memes on, and notes the first that has words of each kind: of the whole split, and not of a sample."""
    for meme in memes:
        for kind in TEXTS:
            if kind not in worded and words_of(meme, kind).strip():
                worded[kind] = meme
        yield meme


def _examples(plan: Plan) -> dict[str, JudgedMeme]:
    """Labelled memes of the train split by id; none where none are needed."""
    assert plan.question is not None
    if not plan.question.needs_examples:
        return {}
    task = plan.question.task
    splits = [read_task_split(plan.dataset, plan.data, split.name, task) for split in train_splits(plan.dataset)]
    # Of an id that stands in two splits the first is taken, as a library takes it.
    return {meme.id: meme for split in reversed(splits) for meme in split.memes}


def _blind_roles(question: Question | None) -> tuple[RoleName, ...]:
    """Roles whose models need not take pictures: those that a question shows none."""
    if question is None or "picture" in question.inputs:
        return ()
    return ("judge",) if "description" in question.inputs else ("proposer", "judge")


def _with_pictures(plan: Plan, material: _Material) -> _Material:
    """The material. Raises BadRequest where pictures are missing and may not be."""
    memes = material.memes
    missing = [meme for meme in memes if material.picture(meme) is None]
    if missing and not plan.allow_missing:
        examples = ", ".join(meme.image or f"that of {meme.id}" for meme in missing[:3])
        raise BadRequest(
            f"{len(missing):,} of {len(memes):,} pictures are missing in {plan.data} ({examples}"
            f"{' …' if len(missing) > 3 else ''}). Get them from {plan.dataset.source_url}, or give --allow-missing: "
            "then those memes count as failed.",
            reason=PICTURE_MISSING,
        )
    return material


def judged_memes(
    memes: Iterable[JudgedMeme], limit: int | None, seed: int, dropped_labels: Sequence[str] = ()
) -> tuple[JudgedMeme, ...]:
    """The memes of a split that a run judges: a sample of those that have none of the dropped labels."""
    return sample((meme for meme in memes if meme.source_label not in dropped_labels), limit, seed)


def _settings(plan: Plan) -> Settings:
    """Returns the court's settings with the run's own docket and precedents."""
    changes: dict[str, Any] = {
        "docket": plan.out / DOCKET,
        "library": plan.library or plan.out / LIBRARY,
        "procedure": plan.procedure,
    }
    if plan.procedure is Procedure.SUMMARY:
        changes["llm"] = ModelSettings()  # no server has to be there for what asks none
    return plan.settings.model_copy(update=changes)


@dataclass(frozen=True, slots=True)
class _Checked:
    """Outcome of comparing the precedents with what is judged.

    Attributes:
        nearness: From where on a precedent was too near, for the manifest.
        templates: Templates that judged memes share, as :attr:`eval.runs.precedents.Prepared.templates`.
    """

    nearness: Mapping[str, JsonValue] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)


async def _prepare(plan: Plan, folder: RunFolder, material: _Material, progress: Progress) -> _Checked:
    """Has the precedents ready: the train split without what is too near to a judged meme. Says how that was told."""
    from court.backends.pictures.reader import GuardedPictureReader
    from eval.runs.precedents import comparing, prepare_precedents, read_prepared
    from retrieval.open import load_encoder_for

    if plan.without_library:
        folder.write_excluded(())
        return _Checked()
    encoder = await asyncio.to_thread(load_encoder_for, plan.library, plan.settings.encoder)
    if plan.library is not None:
        prepared = await asyncio.to_thread(read_prepared, plan.library, encoder)
        require_examples(prepared.library.manifest.name, plan.labelled_examples)
        if prepared.dropped_labels != plan.dropped_labels:
            had, wanted = (", ".join(labels) or "none" for labels in (prepared.dropped_labels, plan.dropped_labels))
            raise BadRequest(
                f"Of the precedents in {plan.library} these labels were dropped: {had}; in this run they are to be: "
                f"{wanted}. Give --drop-precedents for both or for neither.",
                reason="LIBRARY_FOR_OTHERS",
            )
        if plan.templates_apart and prepared.nearness.template is None:
            raise BadRequest(
                f"The precedents in {plan.library} may be on templates of judged memes. Have them prepared for this "
                "run, or leave templates together.",
                reason="LIBRARY_FOR_OTHERS",
            )
    else:
        progress.tell("Preparing the precedents …")
        train = plan.dataset.of_role(SplitRole.TRAIN)
        if not train:
            raise BadRequest(
                f"{plan.dataset.title} has no train split, and a run takes its precedents from that. Ask a model "
                "without precedents, as memecourt-eval arena does, or score predictions (memecourt-eval score).",
                reason="NO_TRAIN_SPLIT",
                field="dataset",
            )
        reader = GuardedPictureReader(workers=plan.settings.picture_workers)
        try:
            prepared = await prepare_precedents(
                plan.out / LIBRARY,
                train=[await asyncio.to_thread(_source, plan, split.name) for split in train],
                judged=material.memes,
                pictures=material.pictures,
                encoder=encoder,
                reader=reader,
                shuffled_labels=plan.seed if plan.control == Control.SHUFFLED else None,
                dropped_labels=plan.dropped_labels,
                nearness=plan.nearness,
                # For all runs: the whole train split is embedded once.
                cache=plan.settings.home / "train-libraries",
                progress=progress.step,
                compared_by=await asyncio.to_thread(comparing, encoder),
            )
        finally:
            await reader.aclose()
    for note in prepared.notes:
        progress.tell(note)
    size, out = len(prepared.library.memes), len(prepared.excluded)
    counts = ", ".join(f"{count:,} {why}" for why, count in prepared.counts.items())
    why = f" ({counts})" if counts else ""
    progress.tell(f"{size:,} precedents; {out:,} were left out as too near to what is judged{why}.")
    folder.write_excluded(prepared.excluded)
    return _Checked(prepared.checked, prepared.templates)


def _on_template(meme: JudgedMeme, templates: Mapping[str, str]) -> JudgedMeme:
    return meme.model_copy(update={"template": templates.get(meme.id, "")})


def _source(plan: Plan, split: str) -> Source:
    """A split that precedents come from; without its pictures where only texts are judged."""
    if plan.labelled_examples is not None:
        return examples_source(plan.dataset, plan.data, split, plan.labelled_examples.task)
    source = source_of(plan.dataset, plan.data, split)
    return replace(source, pictures=None) if plan.text_only else source


def _manifest(
    plan: Plan, material: _Material, court: Court, excluded: Sequence[Excluded], checked: dict[str, JsonValue]
) -> RunManifest:
    asks_nobody = plan.procedure is Procedure.SUMMARY
    settings = court.settings.model_dump(mode="json") | {"prompts": court.prompts.name}
    if court.chairs is not None and not asks_nobody:
        settings |= court.chairs.settings(court.settings.reply_chars)
    # Among the settings: so their digest tells a run with another prompt from this one.
    if plan.comparator:
        settings["comparator"] = settings_of_comparator(Comparator(plan.comparator))
    if plan.question is not None:
        settings["question"] = settings_of_question(plan.question)
    library = court.finder.library
    return RunManifest(
        name=plan.name,
        created=datetime.now(UTC),
        dataset=plan.dataset.id,
        card=plan.dataset.own_card.to_json() if plan.dataset.own_card else {},
        split=plan.split,
        data=dict(material.files),
        # Whole paths: a run may be taken up from another folder.
        data_dir=str(plan.data.resolve()),
        pictures_dir=str(absolute(material.pictures)) if material.pictures else "",
        protocols=plan.protocols,
        limit=plan.limit,
        seed=plan.seed,
        procedure=plan.procedure,
        settings=settings,
        settings_digest=digest(settings),
        models={} if asks_nobody or court.chairs is None else court.chairs.models,
        prompts="" if asks_nobody else court.prompts.digest,
        policy=court.policy.digest,
        library=library.digest,
        library_size=library.size,
        library_dir=str(plan.library.resolve()) if plan.library else "",
        calls_file=str(plan.calls.resolve()) if plan.calls else "",
        server=plan.server,
        encoder=library.encoder,
        excluded=dict(Counter(one.why for one in excluded)),
        checked=checked,
        control=plan.control,
        comparator=plan.comparator,
        question=plan.question,
        dropped_labels=plan.dropped_labels,
        text_only=plan.text_only,
        language=plan.language,
        software=SOFTWARE,
        commit=about.commit(),
        python=about.python(),
        machine=about.machine(),
        command=plan.command,
    )


def _require_same_material(begun: RunManifest, folder: RunFolder, plan: Plan, material: _Material) -> None:
    """Compares a resumed run with its manifest before anything is loaded.

    Raises BadRequest, which names all differences.
    """
    now = {
        "dataset": plan.dataset.id,
        "split": plan.split,
        "limit": plan.limit,
        "seed": plan.seed,
        "procedure": plan.procedure,
        "control": plan.control,
        "comparator": plan.comparator,
        "question": plan.question,
        "dropped_labels": plan.dropped_labels,
        "text_only": plan.text_only,
        "language": plan.language,
        "server": plan.server,
    }
    differ = [_was(name, getattr(begun, name), value) for name, value in now.items() if getattr(begun, name) != value]
    names = sorted(begun.data.keys() | material.files.keys())
    differ += [f"the file {name}" for name in names if begun.data.get(name) != material.files.get(name)]
    if (plan.out / STAND_IN).exists():
        differ.append("a plain picture beside each text, which this version judges alone")
    # Same files and other memes: another version reads them differently. Half a run of each would be neither.
    # Templates are told once, when a run begins, and not read from the data set.
    if not differ and tuple(_on_template(meme, {}) for meme in folder.memes()) != material.memes:
        differ = ["how this version of MemeCourt reads the data set"]
    refuse_different("run", differ)


def _require_same_court(begun: RunManifest, now: RunManifest) -> None:
    """The rest. Raises BadRequest, which names everything that differs."""
    names = ("models", "prompts", "policy", "library", "encoder")
    differ = [
        _was(name, getattr(begun, name), getattr(now, name))
        for name in names
        if getattr(begun, name) != getattr(now, name)
    ]
    for name in sorted(begun.settings.keys() | now.settings.keys()):
        before, after = begun.settings.get(name), now.settings.get(name)
        if before != after:
            differ.append(_was(f"setting {name}", before, after))
    refuse_different("run", differ)


def _was(name: str, before: object, after: object) -> str:
    return f"{name} (was {_short(before)}, is {_short(after)})"


def _short(value: object) -> str:
    text = "nothing" if value in ("", None) else str(value)
    return text if len(text) <= 40 else f"{text[:36]} …"


class _Judging:
    """Judges what has no prediction yet."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        material: _Material,
        house: TrialExecutor,
        calls: SqliteCallCache | None,
        progress: Progress,
        manifest: RunManifest,
        *,
        again: bool,
        cluster: Cluster | None = None,
        question: OpenQuestion | None = None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._material = material
        self._house = house
        self._progress = progress
        self._manifest = manifest
        self._again = again
        self._cluster = cluster
        of_run: dict[str, Any] = {
            "house": house,
            "calls": calls,
            "dataset": plan.dataset.id,
            "procedure": plan.procedure,
            "seed": plan.seed,
            "server": plan.server,
            "retry_failed": plan.retry_failed,
            "text_only": plan.text_only,
            "language": plan.language,
            "patience": Patience(plan.patience_s),
        }
        self._trier: Attempt
        if question is not None:
            self._trier = question.attempt(**of_run)
        elif plan.comparator:
            comparator = Comparator(plan.comparator)
            self._trier = ComparatorAttempt(**of_run, comparator=comparator, budgets=plan.budgets)
        elif plan.control == Control.TRANSLATED:
            # Of a text in English, whatever language it was in before.
            of_run["language"] = ENGLISH if plan.language else ""
            self._trier = TranslatedAttempt(**of_run, source_language=plan.language)
        else:
            self._trier = Attempt(**of_run)
        self._left: Counter[str] = Counter()
        self._trials: Mapping[str, Sequence[str]] = {}
        self._tally = RunningScore(
            None if plan.question else plan.protocols[0],
            total=len(material.memes),
            task=plan.question.task if plan.question else "",
        )
        self._failures = 0  # in a row, for want of something

    async def all(self) -> None:
        """Until every meme has a prediction. Raises as :func:`run`."""
        # Read before anything is judged: a trial of this process is none that was cut off.
        self._trials = await self._house.docket.index.requests()
        predictions = await self._valid_predictions()
        todo = [meme for meme in self._material.memes if meme.id not in predictions]
        for meme in self._material.memes:
            if meme.id in predictions:
                self._tally.add(meme, predictions[meme.id])
        self._tally.before = self._tally.done
        # Not finished any more: with --retry-failed a run that was gets new answers.
        if self._again and todo:
            self._manifest = self._manifest.model_copy(
                update={"interruptions": self._manifest.interruptions + 1, "finished": None}
            )
            self._folder.write_manifest(self._manifest)
        # Without a line that a crash cut, and without those that are tried again.
        self._folder.write_predictions(list(predictions.values()))
        self._progress.begin(self._tally)
        try:
            if todo:
                await self._judge(todo)
        finally:
            self._progress.end(self._tally)
        if self._left:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in self._left.most_common())
            raise Unavailable(
                f"{self._left.total():,} of {len(self._material.memes):,} memes have no answer yet, for reasons that "
                f"may pass ({reasons}).",
                reason=UNFINISHED,
            )
        if self._manifest.finished is None:
            self._folder.write_manifest(self._manifest.model_copy(update={"finished": datetime.now(UTC)}))

    async def _valid_predictions(self) -> dict[str, Prediction]:
        """Predictions that hold, the last of each meme."""
        wanted = {meme.id for meme in self._material.memes}
        predictions = {p.meme: p for p in self._folder.predictions() if p.meme in wanted}
        if not self._plan.retry_failed:
            return predictions
        return {name: p for name, p in predictions.items() if not await self._may_pass(p)}

    async def _may_pass(self, prediction: Prediction) -> bool:
        """True if a failure's reason may have passed; a meme without even a trial is always tried."""
        if prediction.outcome is not Outcome.FAILED:
            return False
        if not prediction.trial:
            return True
        failed = (await self._house.docket.trials.record(prediction.trial)).last(TrialFailed)
        return failed is None or may_pass(failed)

    async def _judge(self, todo: Sequence[JudgedMeme]) -> None:
        ticking = asyncio.create_task(self._tick())
        try:
            with (self._plan.out / PREDICTIONS).open("a", encoding="ascii") as file:

                def keep(meme: JudgedMeme, prediction: Prediction, passing: bool) -> None:
                    # Without an await: lines of memes that are done at once can't mix.
                    if passing:
                        self._left[prediction.reason] += 1
                    else:
                        # Handed to the system at once. Lost with it, it is read from the docket.
                        file.write(prediction.model_dump_json(ensure_ascii=True) + "\n")
                        file.flush()
                        self._tally.add(meme, prediction)
                        self._progress.judged(self._tally)
                    self._watch_for_the_end(prediction, passing)

                await (self._here(todo, keep) if self._cluster is None else self._there(self._cluster, todo, keep))
        finally:
            ticking.cancel()
            # That it is cancelled is no error of the run.
            await asyncio.gather(ticking, return_exceptions=True)

    async def _here(self, todo: Sequence[JudgedMeme], keep: Callable[[JudgedMeme, Prediction, bool], None]) -> None:
        """Judges in this process."""
        # One iterator for all: each takes the next meme when it is done with one.
        remaining = iter(todo)

        async def work() -> None:
            for meme in remaining:
                known = await self._known(meme)
                keep(meme, *await self._trier.try_meme(meme, known, partial(self._picture, meme)))

        await gather_or_cancel(*(work() for _ in range(min(self._plan.concurrency, len(todo)))))

    async def _there(
        self, cluster: Cluster, todo: Sequence[JudgedMeme], keep: Callable[[JudgedMeme, Prediction, bool], None]
    ) -> None:
        """Has a cluster judge what there is no record of yet, or only half a one."""
        known = {}
        remaining = []
        for meme in todo:
            record = await self._known(meme)
            # A line that a crash cost is written from the record: that takes no worker.
            if record is not None and not self._trier.to_be_resumed(record):
                keep(meme, *await self._trier.try_meme(meme, record, partial(self._picture, meme)))
                continue
            remaining.append(meme)
            if record is not None:
                known[meme.id] = record
        if not remaining:
            return
        pictures = {meme.id: path for meme in remaining if (path := self._material.picture(meme)) is not None}
        calls = self._plan.calls or self._plan.out / CALLS
        settings = _settings(self._plan)
        judged = cluster.judged(
            remaining,
            trier=self._trier,
            known=known,
            pictures=pictures,
            calls=calls,
            settings=settings,
            control=self._plan.control,
        )
        # Closed even where keep() raises: workers would go on until the generator is collected.
        async with contextlib.aclosing(judged):
            async for meme, prediction, passing in judged:
                keep(meme, prediction, passing)

    async def _picture(self, meme: JudgedMeme) -> bytes | None:
        path = self._material.picture(meme)
        return None if path is None else await asyncio.to_thread(read_picture, path)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._progress.tick(self._tally)

    def _watch_for_the_end(self, prediction: Prediction, passing: bool) -> None:
        """Ends a run before a server that is gone: it would fail every meme that is left, one after the other."""
        # Late ones too: a server that hangs lets every meme run out of time.
        self._failures = self._failures + 1 if passing or prediction.reason in LATE else 0
        # Who has waited in vain, and saw no other meme answered meanwhile, speaks for all.
        waited = passing and self._plan.patience_s > 0 and not self._plan.ray
        most = 1 if waited else _IN_A_ROW * max(self._plan.concurrency, 3)
        if self._failures >= most:
            raise Unavailable(
                f"The last {self._failures} memes in a row failed, the last with {prediction.reason}: something that "
                "trials need is not there.",
                reason=SERVER_GONE,
            )

    async def _known(self, meme: JudgedMeme) -> TrialRecord | None:
        """The record of a meme's last trial in this run."""
        trials = self._trials.get(self._trier.request(meme), ())
        return await self._house.docket.trials.record(trials[-1]) if trials else None
