"""A run: tries every meme of a split with the court as it is served, and stores the outcomes.

The docket is the source of truth. Events are on disk before anything acts on them; ``predictions.jsonl`` only repeats
the docket in a readable form, and is not synced. So a run can be killed at any moment, by SIGKILL or a power cut: when
resumed, it rebuilds missing predictions from the records, resumes interrupted trials, and repeats no model call that
the docket or the call cache holds.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from court.backends.pictures.reader import GuardedPictureReader
from court.digests import digest
from court.errors import BadRequest
from court.events import Procedure
from court.policy import DEFAULT_POLICY, Policy
from court.prompts.sets import open_set
from court.trial import Court
from eval.datasets.card import SplitRole
from eval.datasets.read import require_examples
from eval.models.call_cache import SqliteCallCache
from eval.models.vllm_session import vllm_session
from eval.runs.controls import ALTERED, Control, alteration_of, altered, with_control
from eval.runs.judge import Material, examples_of, judge, material_of, on_template, train_source
from eval.runs.plan import Plan, court_settings, facts_of, models_named, require_models
from eval.runs.precedents import Prepared, PreparedCheck, comparing, prepare_precedents, read_prepared
from eval.runs.ray_cluster import connected
from eval.runs.results import EXCLUDED, LIBRARY, MEMES, RunFolder, RunManifest
from eval.session.directory import CALLS, STARTING, circumstances
from eval.session.engine import Progress
from eval.solvers.calls import Solver, StoredCourt
from eval.solvers.comparator import OF_TEXTS, Comparator, ComparatorSolver, settings_of_comparator
from eval.solvers.labelling import open_question, settings_of_question
from eval.solvers.question import Question
from eval.solvers.trial import ENGLISH, TrialSolver
from retrieval.audit.leakage import TEMPLATE, LeakThresholds
from retrieval.embed.encoder import Encoder
from retrieval.open import load_encoder_for
from serving.judging.executor import TrialExecutor
from serving.models.connect import pictures_per_prompt
from serving.settings import RoleName
from serving.wiring import open_court


async def run(plan: Plan, progress: Progress) -> RunFolder:
    """Starts a run, or resumes the one in its folder; returns when every meme has a prediction.

    Raises:
        BadRequest: Another process has this run; the folder is not empty and holds no run; the data set can't be read
            or pictures are missing; or the run was started with other inputs (reason RUN_DIFFERS; the message names
            them).
        BadLibrary, NotLoaded, ModelRefused: As for :func:`serving.wiring.open_court`.
        Unavailable: Docket or call cache can't be used; the model server is gone for good (reason RUN_SERVER_GONE), or
            was too busy for some memes (RUN_UNFINISHED); the vLLM to be started did not come up, or exited
            (VllmFailed); or the Ray cluster is unreachable, or one of its workers can't judge. Results so far are kept.
        asyncio.CancelledError: The run was cancelled. Results so far are kept.
    """
    if plan.comparator and plan.text_only and plan.comparator not in OF_TEXTS:
        raise BadRequest(f"The comparator {plan.comparator} asks about the picture: leave --text-only out.")
    if plan.ray and (plan.control.startswith(ALTERED) or plan.control in (Control.FETCHING, Control.TRANSLATED)):
        raise BadRequest("This process alters or translates memes, and fetches precedents: that does not go with Ray.")
    folder = RunFolder(plan.out)
    # Two processes on one run would try each meme twice and interleave lines in each other's file.
    with folder.locked():
        if not folder.begun:
            # Written first: it marks leftovers of a crash from here on as ours.
            (plan.out / STARTING).touch()
        material = await asyncio.to_thread(material_of, plan, progress)
        # Before anything is loaded: a different data set or seed can be reported without a model.
        begun = folder.manifest() if folder.begun else None
        if begun is not None:
            _require_same_material(folder, begun, plan, material)
            if {p.meme for p in folder.predictions()} >= {m.id for m in material.memes}:
                # Before anything is opened: no model server has to be up to report this.
                progress.tell("Every meme has been judged.")
                folder.finish(begun)
                return folder
            # Lines of a finished run may be lost: until they are there again it is not finished.
            folder.write_manifest(begun.model_copy(update={"finished": None}))
        # Before preparing the precedents, which can take hours: an unconfigured model is reported at once.
        if plan.vllm is None:
            require_models(plan.procedure, plan.settings)
        async with AsyncExitStack() as stack:
            cluster = None
            if plan.ray:
                connecting = connected(plan.ray, workers=plan.ray_workers, concurrency=plan.concurrency)
                cluster = await stack.enter_async_context(connecting)
            calls = None
            if plan.procedure is not Procedure.SUMMARY:
                # Opened before the court, so closed after it: replies that arrive during shutdown are still stored.
                calls = SqliteCallCache(plan.calls or plan.out / CALLS)
                stack.push_async_callback(calls.close)
            check = None if begun else await _prepare(plan, folder, material, progress)
            # After preparing the precedents, which takes long and needs no model, so that no GPU idles meanwhile.
            plan = await _served(plan, stack, progress)
            # Each meme of a benchmark is tried as if it were the first: near-duplicates of earlier trials are not
            # consulted. The text comes from the data set as a rule, so OCR is not warmed up.
            executor = await stack.enter_async_context(
                open_court(
                    court_settings(plan),
                    read_text=False,
                    tell=progress.tell,
                    duplicates=False,
                    may_be_blind=_blind_roles(plan.question),
                    search=not plan.without_library,
                )
            )
            if plan.question is None:
                executor = replace(executor, court=with_control(executor.court, plan.control, plan.seed))
            solver = await _solver(plan, executor, calls, progress)
            if cluster is not None:
                assert isinstance(solver, TrialSolver), "a cluster holds trials alone"
                store = await asyncio.to_thread((plan.calls or plan.out / CALLS).resolve)
                solving = cluster.solving(solver, calls=store, settings=court_settings(plan), control=plan.control)
                solver = await stack.enter_async_context(solving)
            manifest = _manifest(plan, material, executor.court, check)
            if begun is None:
                # The manifest comes after the memes: if it exists, the run's memes can be read.
                folder.write(MEMES, [on_template(meme, check.templates if check else {}) for meme in material.memes])
            manifest = folder.start(manifest)
            (plan.out / STARTING).unlink(missing_ok=True)
            await judge(plan, folder, material, docket=executor.docket, solver=solver, progress=progress)
            folder.finish(manifest)
    return folder


async def _solver(plan: Plan, executor: TrialExecutor, calls: SqliteCallCache | None, progress: Progress) -> Solver:
    seed = plan.seed + (plan.control == Control.RESEEDED)
    stored = StoredCourt(executor, calls, plan.server, seed, fetches=plan.control == Control.FETCHING)
    if plan.comparator:
        return ComparatorSolver(stored, Comparator(plan.comparator), plan.budgets, text_only=plan.text_only)
    trial = TrialSolver(stored, plan.dataset.id, plan.procedure, text_only=plan.text_only, language=plan.language)
    if plan.question is not None:
        # In a thread, as the whole train split is read.
        examples = await asyncio.to_thread(examples_of, plan)
        return await asyncio.to_thread(open_question, plan.question, trial, examples=examples, progress=progress)
    if alteration := alteration_of(plan.control):
        return replace(trial, altered=partial(altered, alteration=alteration, seed=plan.seed))
    if plan.control == Control.TRANSLATED:
        # The trial gets the English translation, whatever the original language.
        return replace(trial, language=ENGLISH if plan.language else "", translated_from=plan.language)
    return trial


def _require_same_material(folder: RunFolder, begun: RunManifest, plan: Plan, material: Material) -> None:
    """Compares a resumed run with its manifest before anything is loaded. Raises BadRequest with all differences."""
    # Of a run whose memes are all judged, too: what is named in vain must not pass for what was asked, and how.
    named = {role: model for role, model in models_named(plan).items() if role in begun.models and not plan.vllm}
    models = begun.models | named
    court = plan.settings
    # An audition may change one setting.
    trial = court.trial.model_dump(mode="json", include=begun.settings.keys() - ({"probes"} if court.audition else ()))
    own = {
        "data": dict(material.files),
        "models": models,
        "settings": begun.settings | trial | {"prompts": open_set(court.trial.prompts).name},
        "policy": (Policy.load(court.policy) if court.policy else DEFAULT_POLICY).digest,
    }
    now = begun.model_copy(update={**dict(plan.spec), **own})
    differ = begun.differences(now, folder.changes)
    # Same files but other memes: another version reads them differently, and the halves would not match. Templates are
    # computed when a run starts, not read from the data set.
    if not differ and tuple(on_template(meme, {}) for meme in folder.memes()) != material.memes:
        differ = ["how this version of MemeCourt reads the data set"]
    folder.refuse_different(differ)


async def _served(plan: Plan, stack: AsyncExitStack, progress: Progress) -> Plan:
    """Starts the run's own model server if the plan has one; returns the plan with its address."""
    if plan.vllm is None:
        return plan
    pictures = pictures_per_prompt(plan.settings.trial)
    session = vllm_session(plan.vllm.model, progress.tell, pictures=pictures, flags=plan.vllm.flags)
    served = await stack.enter_async_context(session)
    llm = served.in_all_roles(plan.settings.llm)
    return replace(plan, settings=plan.settings.model_copy(update={"llm": llm}))


def _blind_roles(question: Question | None) -> tuple[RoleName, ...]:
    """Roles whose models need not accept pictures, because a question shows them none."""
    if question is None or "picture" in question.inputs:
        return ()
    return ("judge",) if "description" in question.inputs else ("proposer", "judge")


async def _prepare(plan: Plan, folder: RunFolder, material: Material, progress: Progress) -> PreparedCheck | None:
    """Prepares the precedents: the train split without leaks. Returns the check; None if there is no library."""
    if plan.without_library:
        folder.write(EXCLUDED, ())
        return None
    encoder = await asyncio.to_thread(load_encoder_for, plan.library, plan.settings.encoder)
    if plan.library is not None:
        prepared = await asyncio.to_thread(read_prepared, plan.library, encoder)
        require_examples(prepared.library.manifest.name, plan.labelled_examples)
        both = prepared.check.dropped_labels, plan.dropped_labels
        if both[0] != both[1]:
            had, wanted = (", ".join(labels) or "none" for labels in both)
            raise BadRequest(
                f"Of the precedents in {plan.library} these labels were dropped: {had}; in this run they are to be: "
                f"{wanted}. Give --drop-precedents for both or for neither.",
                reason="LIBRARY_FOR_OTHERS",
            )
        if plan.templates_apart and prepared.check.nearness.template is None:
            raise BadRequest(
                f"The precedents in {plan.library} may be on templates of judged memes. Have them prepared for this "
                "run, or leave templates together.",
                reason="LIBRARY_FOR_OTHERS",
            )
    else:
        progress.tell("Preparing the precedents …")
        prepared = await prepare_library(plan, plan.out / LIBRARY, material, encoder=encoder, progress=progress)
    check = prepared.check
    for note in check.notes:
        progress.tell(note)
    size, out = len(prepared.library.memes), len(check.excluded)
    why = f" ({check.counts})" if out else ""
    progress.tell(f"{size:,} precedents; {out:,} were left out as too near to what is judged{why}.")
    folder.write(EXCLUDED, check.excluded)
    return check


async def prepare_library(plan: Plan, root: Path, material: Material, encoder: Encoder, progress: Progress) -> Prepared:
    """Builds the precedents of a plan in a folder, from the train split without leaks; reuses those that are there."""
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
        return await prepare_precedents(
            root,
            train=[await asyncio.to_thread(train_source, plan, split.name) for split in train],
            judged=material.memes,
            pictures=material.pictures,
            encoder=encoder,
            reader=reader,
            # By the seed of the plan, so that labels are permuted in the same way when it is resumed.
            shuffled_labels=plan.seed if plan.control == Control.SHUFFLED else None,
            keep_leaks=plan.control == Control.LEAKS,
            dropped_labels=plan.dropped_labels,
            nearness=LeakThresholds(template=TEMPLATE if plan.templates_apart else None),
            # Shared by all runs: the whole train split is embedded once.
            cache=plan.settings.home / "train-libraries",
            progress=progress.step,
            compared_by=await asyncio.to_thread(comparing, encoder),
        )
    finally:
        await reader.aclose()


def _manifest(plan: Plan, material: Material, court: Court, check: PreparedCheck | None) -> RunManifest:
    facts = facts_of(court, plan.procedure)
    # Among the settings, so that their digest tells runs with different prompts apart.
    if plan.comparator:
        facts["settings"]["comparator"] = settings_of_comparator(Comparator(plan.comparator))
    elif plan.question is not None:
        facts["settings"]["question"] = settings_of_question(plan.question)
    return RunManifest(
        name=plan.name,
        dropped_labels=plan.dropped_labels,
        **dict(plan.spec),
        **circumstances(plan.command),
        **facts,
        card=plan.dataset.to_json(),
        data=dict(material.files),
        settings_digest=digest(facts["settings"]),
        excluded=dict(Counter(one.why for one in check.excluded)) if check else {},
        checked=check.nearness.model_dump(mode="json", exclude_none=True) if check else {},
        notes=material.notes,
    )
