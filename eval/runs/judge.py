"""Judges the memes of a run that have no prediction yet."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.card import SplitRole
from eval.datasets.items import JudgedMeme, Outcome, Prediction, Protocol
from eval.datasets.read import CARD, keep_none, read_split, require_card_languages, sample, source_of, train_splits
from eval.runs.plan import Plan
from eval.runs.results import PREDICTIONS, RunFolder
from eval.session.engine import Patience, Progress, Results, Watch, patiently, run_items
from eval.solvers.calls import PICTURE_MISSING, MemeItem, Solver
from eval.solvers.question import WORDS, gold_of, require_inputs, words_of
from eval.solvers.trial import request_id
from retrieval.library.picture_finder import picture_path
from retrieval.library.sources import Source
from serving.docket.open import Docket


@dataclass(frozen=True, slots=True)
class Material:
    """Memes and pictures of a run."""

    memes: tuple[JudgedMeme, ...]
    pictures: Path | None
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()
    """Sentences on the data: rows that are not judged, and counts that differ from the published ones."""

    def picture(self, meme: JudgedMeme) -> Path | None:
        """Returns the path of a meme's picture; None if it is missing."""
        path = picture_path(self.pictures, meme.image) if self.pictures and meme.image else None
        return path if path is not None and path.is_file() else None


def material_of(plan: Plan, progress: Progress) -> Material:
    """Reads the memes of a run: those with a gold label, where a question is asked.

    Raises BadRequest: They, or required pictures, can't be read.
    """
    question, worded = plan.question, dict[str, JudgedMeme]()
    task = question.task if question else ""

    def drawn(memes: Iterable[JudgedMeme]) -> tuple[JudgedMeme, ...]:
        if question is None:
            return judged_memes(memes, plan.limit, plan.seed, plan.dropped_labels)
        noted = _noting_words(memes, worded)
        return sample(noted, plan.limit, plan.seed, lambda meme: ", ".join(meme.tasks[task]))

    read = read_split(plan.dataset, plan.data, plan.split, task=task, choose=drawn)
    for problem in read.problems[:3]:
        progress.tell(f"{problem.source}, line {problem.line}: {problem.reason}")
    # Precedents or examples come from these files, so they must be unchanged when a run is resumed.
    if question is None:
        sources = plan.dataset.of_role(SplitRole.TRAIN) if plan.library is None else ()
        if plan.language == CARD:
            require_card_languages(read.memes)
    else:
        sources = train_splits(plan.dataset) if question.needs_examples else ()
        require_inputs(question, tuple(worded.values()))
    files, notes = dict(read.files), dict.fromkeys(read.notes)
    for split in sources:
        other = read_split(plan.dataset, plan.data, split.name, task=task, choose=keep_none)
        files |= other.files
        notes |= dict.fromkeys(other.notes)
    progress.tell_once(notes)
    material = Material(read.memes, None if plan.text_only else read.pictures, files, tuple(notes))
    if plan.allow_missing or plan.text_only or (question is not None and not question.needs_picture):
        return material
    if missing := [meme for meme in material.memes if material.picture(meme) is None]:
        examples = ", ".join(meme.image or f"that of {meme.id}" for meme in missing[:3])
        # A plain table has no authors to get pictures from.
        source = plan.dataset.source_url
        instead = f"Get them from {source}" if source else "Name their folder with --pictures FOLDER"
        raise BadRequest(
            f"{len(missing):,} of {len(material.memes):,} pictures are missing in {plan.data} ({examples}"
            f"{' …' if len(missing) > 3 else ''}). {instead}, or give --allow-missing: then those "
            "memes count as failed.",
            reason=PICTURE_MISSING,
        )
    return material


def _noting_words(memes: Iterable[JudgedMeme], worded: dict[str, JudgedMeme]) -> Iterator[JudgedMeme]:
    """Passes memes through, recording the first with words of each kind, over the whole split rather than a sample."""
    for meme in memes:
        for kind in WORDS:
            if kind not in worded and words_of(meme, kind).strip():
                worded[kind] = meme
        yield meme


def examples_of(plan: Plan) -> dict[str, JudgedMeme]:
    """Labelled memes of the train split by id; empty if none are needed."""
    assert plan.question is not None
    if not plan.question.needs_examples:
        return {}
    task = plan.question.task
    splits = [read_split(plan.dataset, plan.data, split.name, task=task) for split in train_splits(plan.dataset)]
    # If an id occurs in two splits, the first wins, as in a library.
    return {meme.id: meme for split in reversed(splits) for meme in split.memes}


def judged_memes(
    memes: Iterable[JudgedMeme], limit: int | None, seed: int, dropped_labels: Sequence[str] = ()
) -> tuple[JudgedMeme, ...]:
    """The memes of a split that a run judges: a sample of those without dropped labels."""
    return sample((meme for meme in memes if meme.source_label not in dropped_labels), limit, seed)


def on_template(meme: JudgedMeme, templates: Mapping[str, str]) -> JudgedMeme:
    """Returns the meme with its template id; empty if unknown."""
    return meme.model_copy(update={"template": templates.get(meme.id, "")})


def train_source(plan: Plan, split: str) -> Source:
    """A split that precedents come from; without pictures if only texts are judged."""
    if plan.labelled_examples is not None:
        return source_of(plan.dataset, plan.data, split, examples_of=plan.labelled_examples.task)
    source = source_of(plan.dataset, plan.data, split)
    return replace(source, pictures=None) if plan.text_only else source


@dataclass(slots=True)
class RunningScore:
    """Running figures of a run."""

    protocol: Protocol | None = None
    """Protocol under which verdicts are scored; memes that it drops are skipped. None if another question is asked."""
    task: str = ""
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, meme: JudgedMeme, prediction: Prediction) -> None:
        """Counts one more prediction."""
        cost = prediction.cost
        self.counts.update(done=1, failed=prediction.outcome is Outcome.FAILED, calls=cost.calls, stored=cost.stored)
        self.counts["tokens"] += cost.tokens_in + cost.tokens_out
        gold: object
        predicted: object
        if self.protocol is None:
            answer = prediction.said.get(self.task)
            gold, predicted = gold_of(meme, self.task), None if answer is None else frozenset(answer.labels)
        else:
            gold, predicted = meme.gold(self.protocol), prediction.outcome.harmful
        if gold is not None:
            self.counts.update(labelled=1, decided=predicted is not None, right=predicted == gold)

    @property
    def words(self) -> str:
        """Calls, tokens, accuracy and coverage."""
        counts, parts = self.counts, []
        if counts["calls"]:
            parts.append(f"{counts['calls']:,} calls ({counts['stored']:,} stored), {counts['tokens']:,} tokens")
        if counts["decided"]:
            accuracy, coverage = counts["right"] / counts["decided"], counts["decided"] / counts["labelled"]
            parts.append(f"{self.protocol or self.task}: accuracy {accuracy:.3f}, coverage {coverage:.3f}")
        if counts["failed"]:
            parts.append(f"{counts['failed']:,} failed")
        return ", ".join(parts)


async def judge(
    plan: Plan, folder: RunFolder, material: Material, *, docket: Docket, solver: Solver, progress: Progress
) -> None:
    """Judges until every meme has a prediction. Raises like :func:`eval.runs.run.run`."""
    # Read before anything is judged, so that trials of this process do not count as interrupted.
    trials = await docket.index.requests()
    memes, question = material.memes, plan.question
    results = Results(folder, PREDICTIONS, Prediction, lambda one: one.meme)
    results.resume({meme.id for meme in memes})
    todo = [meme for meme in memes if meme.id not in results.done]
    score = RunningScore(None if question else plan.protocols[0], question.task if question else "")
    for meme in memes:
        if meme.id in results.done:
            score.add(meme, results.done[meme.id])
    before = len(memes) - len(todo)
    progress.tell(f"{len(memes):,} memes, {before:,} of them judged before.")
    patience = Patience(plan.patience_s)

    async def solved(meme: JudgedMeme) -> Prediction:
        async def picture() -> bytes | None:
            path = material.picture(meme)
            return None if path is None else await asyncio.to_thread(path.read_bytes)

        tried = trials.get(request_id(plan.dataset.id, meme), ())
        known = await docket.trials.record(tried[-1]) if tried else None
        # A line was lost in a crash, but the docket has the outcome: no call is repeated.
        if known is not None and (prediction := solver.rebuilt(meme, known)) is not None:
            return prediction
        return await patiently(lambda state: solver.solve(MemeItem(meme, picture), state or known), patience)

    def store(meme: JudgedMeme, prediction: Prediction) -> None:
        results.add(prediction)
        score.add(meme, prediction)

    await run_items(
        todo,
        solved,
        concurrency=plan.concurrency,
        store=store,
        progress=lambda done, total: progress.step(f"{plan.name} judged", done, total, score.words),
        before=before,
        watch=Watch(plan.concurrency, "memes"),
        failure=lambda one: one.reason,
    )
    results.put_in_order(meme.id for meme in memes)
