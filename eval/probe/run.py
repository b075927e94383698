"""A probe: memes are prepared and sorted, the target's explanations scored, and texts rewritten, one step on another.

Every reply is stored before it is used, and all random draws are determined by the probe's seed. So a probe that was
interrupted at any moment is resumed by running it again: stored calls are not repeated, and the first new call is the
one at which it was interrupted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import attrgetter

from pydantic import BaseModel

from court.digests import digest
from court.errors import BadRequest
from court.meme import Frame
from court.ports import TextReader
from eval.models.metered import MeteredModel
from eval.models.samples import ShownMeme
from eval.probe.agents import BEGIN, PROMPTS, Category, ProbeModels, Subject, prompt_of
from eval.probe.erasing import erase
from eval.probe.folder import (
    MEMES,
    MINED,
    REWRITTEN,
    SCORED,
    SEEDS,
    TAXONOMY,
    ProbedMeme,
    ProbeFolder,
    ProbeManifest,
    ProbeSpec,
    Scored,
    ScoringOutcome,
    SeedSet,
    Sorted,
    Step,
)
from eval.probe.mining import capped, mine
from eval.probe.refining import chosen_seeds, refine, score_meme
from eval.session.directory import Spent
from eval.session.engine import Progress, Results, run_items
from eval.session.sampled import SampledPlan

NOTICE = (
    "This rewrites memes so that they are harder to recognise. The rewritten texts stay in the probe's folder, each "
    "is marked, and no library of precedents takes them in. Keep the folder to yourself."
)
"""Notice shown before a probe starts."""


@dataclass(frozen=True)
class ProbePlan(SampledPlan):
    """Plan of a probe; the memes' labels are for the report alone."""

    target: str
    controllers: tuple[str, ...]
    spec: ProbeSpec = field(default_factory=ProbeSpec)
    concurrency: int = 8
    seed_set: SeedSet | None = None
    """Memes that searches begin with, by category and in order, such as another target's; drawn where None."""


async def probe(
    plan: ProbePlan, named: Mapping[str, MeteredModel], reader: TextReader, progress: Progress | None = None
) -> ProbeFolder:
    """Starts or resumes a probe.

    Raises:
        BadRequest: The data can't be read, or the folder holds something else.
        Unavailable: A model or the text reader is not there now; what was asked is kept.
        BudgetSpent: A model may not be asked any more, likewise.
    """
    progress = progress or Progress()
    models = ProbeModels(named[plan.target], tuple(named[name] for name in plan.controllers))
    every = (models.target, *models.controllers)
    folder, seeds = ProbeFolder(plan.out), plan.seed_set
    with folder.locked():
        shown, described = await plan.read_memes()
        if shown.without_picture:
            progress.tell(f"{len(shown.without_picture):,} memes have no picture that can be used, and are left out.")
        manifest = folder.start(
            ProbeManifest(
                **described,
                **plan.spec.model_dump(),
                seed_set="" if seeds is None else digest({name: list(memes) for name, memes in seeds.items()}),
                target=plan.target,
                controllers=plan.controllers,
                models={one.name: one.model for one in every},
                taxonomy=BEGIN,
                prompts={one.id: one.digest for one in map(prompt_of, PROMPTS)},
                text_reader=reader.identity,
            )
        )
        # Its files are complete: begun anew, they would be those of an unfinished probe if this session ended early.
        if manifest.finished:
            return folder
        before = folder.spent()
        try:
            subjects = await _subjects(plan, folder, shown.memes, reader=reader, progress=progress)
            await _go_through(plan, folder, models=models, subjects=subjects, progress=progress)
        finally:
            # Also after a failure, as the calls made have to be paid for.
            folder.write_usage({one.name: _spent(one, before.get(one.name, Spent())) for one in every})
        folder.finish(manifest)
    return folder


def _spent(model: MeteredModel, before: Spent) -> Spent:
    """Usage of a model in the whole probe, which each session counts from the start, replies of the store included."""
    counts = model.counts(model.usage.all)
    # A session that ended before it came as far as an earlier one has counted less than is known.
    return Spent(**{name: max(count, getattr(before, name)) for name, count in counts.items()})


async def _go_through(
    plan: ProbePlan, folder: ProbeFolder, models: ProbeModels, subjects: Sequence[Subject], progress: Progress
) -> None:
    taxonomy = {category.name: category for category in BEGIN}
    line = _live(folder, MINED, progress, len(subjects))
    mined = await mine(models, subjects, taxonomy, batch=plan.spec.batch, tell=line)
    folder.write_json(TAXONOMY, [one.model_dump() for one in taxonomy.values()])
    # Before the cap, so that the file has the whole sorting.
    folder.write(MINED, mined)
    sorted_into = Counter(one.outcome for one in mined)
    counts = ", ".join(f"{sorted_into[outcome]:,} {outcome}" for outcome in Sorted)
    new = ", ".join(list(taxonomy)[len(BEGIN) :]) or "none"
    progress.tell(f"{len(mined):,} memes sorted: {counts}. New categories: {new}.")
    if plan.spec.per_category is not None:
        # By the seed of the sample, so that repeats score the same memes.
        mined = capped(mined, plan.spec.per_category, plan.drawn_by)

    known = {subject.id: subject for subject in subjects}
    pairs = [(known[one.meme], taxonomy[name]) for one in mined for name in one.categories]
    line = _live(folder, SCORED, progress, len(pairs))
    scored = await run_items(
        pairs, lambda pair: score_meme(models, *pair), concurrency=plan.concurrency, store=lambda _, one: line(one)
    )
    # In the order of the pairs: so far lines stand in the order in which calls came back.
    folder.write(SCORED, scored)
    outcomes = Counter(one.scoring.outcome for one in scored)
    counts = ", ".join(f"{outcomes[outcome]:,} {outcome}" for outcome in ScoringOutcome)
    progress.tell(f"{len(scored):,} pairs of a meme and a category: {counts}.")

    good = {name: tuple(one for one in scored if one.category == name and one.usable) for name in taxonomy}
    seeds = _seeds(plan, good, progress)
    folder.write_json(SEEDS, {name: [one.meme for one in those] for name, those in seeds.items() if those})
    most = plan.spec.steps * sum(map(len, seeds.values()))
    line = _live(folder, REWRITTEN, progress, most)

    async def refine_category(category: Category) -> tuple[Step, ...]:
        usable_memes, starts = good[category.name], seeds[category.name]
        return await refine(models, category, usable_memes, known, spec=plan.spec, seeds=starts, tell=line)

    # Categories side by side; searches of one share a history, and follow each other.
    steps = await run_items(list(taxonomy.values()), refine_category, concurrency=plan.concurrency)
    folder.write(REWRITTEN, (step for of_category in steps for step in of_category))
    progress.tell(f"{sum(map(len, steps)):,} texts were rewritten.")


def _seeds(
    plan: ProbePlan, good: Mapping[str, tuple[Scored, ...]], progress: Progress
) -> dict[str, tuple[Scored, ...]]:
    """The memes that searches begin with, by category: drawn, or those of a list."""
    if plan.seed_set is None:
        return {name: chosen_seeds(those, plan.spec.seeds, plan.seed) for name, those in good.items()}
    wanted = {name: memes[: plan.spec.seeds] for name, memes in plan.seed_set.items()}
    seeds = {}
    for name, those in good.items():
        known = {one.meme: one for one in those}
        # No replacement for a missing one, or two targets would begin their searches with different memes.
        seeds[name] = tuple(known[meme] for meme in wanted.get(name, ()) if meme in known)
    searches = sum(map(len, wanted.values()))
    if missing := searches - sum(map(len, seeds.values())):
        progress.tell(f"{missing:,} of {searches:,} searches can't begin: their memes have no score here.")
    return seeds


async def _subjects(
    plan: ProbePlan, folder: ProbeFolder, memes: Sequence[ShownMeme], *, reader: TextReader, progress: Progress
) -> list[Subject]:
    """The memes with their texts taken off; what was prepared before is not prepared again.

    The text reader may read a picture otherwise on another machine, and a picture that is otherwise painted over would
    be another one to ask about.
    """
    results = Results(folder, MEMES, ProbedMeme, attrgetter("id"))
    by_id = {meme.id: meme for meme in memes}
    # The manifest has digests of the data files; these are digests of the pixels as they are decoded now.
    if any(id_ not in by_id or one.pixels_sha256 != by_id[id_].pixels_sha256 for id_, one in results.done.items()):
        raise BadRequest("The probe was begun with other pictures than are there now.", reason="RUN_DIFFERS")
    results.resume(by_id)

    async def prepared(item: tuple[int, ShownMeme]) -> ProbedMeme:
        number, meme = item
        erased = await erase(meme.frames, reader)
        names = tuple(f"{number:05}-{frame.index}.png" for frame in erased.frames)
        for name, frame in zip(names, erased.frames, strict=True):
            await asyncio.to_thread(folder.write_erased, name, frame.png)
        text = meme.text.strip()
        return ProbedMeme(
            **{name: getattr(meme, name) for name in ("id", "harmful", "source_label", "pixels_sha256")},
            text=text or erased.text,
            text_read=not text,
            lines=erased.lines,
            left=erased.left,
            erased=names,
        )

    if left := [(number, meme) for number, meme in enumerate(memes, 1) if meme.id not in results.done]:
        progress.tell(f"Taking the text off {len(left):,} pictures …")
        await run_items(
            left,
            prepared,
            concurrency=plan.concurrency,
            store=lambda _, meme: results.add(meme),
            progress=partial(progress.step, "erased"),
        )
        painted, still = sum(m.lines for m in results.done.values()), sum(m.left > 0 for m in results.done.values())
        progress.tell(f"{painted:,} lines were painted over; of {still:,} pictures some can still be read.")
    # Also where none was left: a session may have been killed before this.
    results.put_in_order(by_id)
    subjects = []
    for meme in memes:
        one = results.done[meme.id]
        # Without a larger copy, which would still have the text.
        erased = (
            Frame(folder.erased(name), frame.width, frame.height, frame.index)
            for name, frame in zip(one.erased, meme.frames, strict=True)
        )
        subjects.append(Subject(meme.id, one.text, meme.frames, tuple(erased)))
    return subjects


def _live(folder: ProbeFolder, name: str, progress: Progress, most: int) -> Callable[[BaseModel], None]:
    """Begins a file anew, and returns a function that adds lines as they come."""
    # Anew: what a session that was cut off had written comes again, out of the store of calls.
    folder.write(name, ())
    done = count(1)

    def line(item: BaseModel) -> None:
        folder.append(name, [item])
        progress.step(name.removesuffix(".jsonl"), next(done), most)

    return line
