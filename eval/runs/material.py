"""The memes, pictures and sources of precedents that a run uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.card import SplitRole
from eval.datasets.items import JudgedMeme
from eval.datasets.language import CARD, require_card_languages
from eval.datasets.read import keep_none, read_split, source_of, train_splits
from eval.datasets.sample import sample
from eval.runs.plan import Plan
from eval.session.progress import Progress
from eval.solvers.calls import PICTURE_MISSING
from eval.solvers.question import WORDS, Question, require_inputs, words_of
from retrieval.library.picture_finder import picture_path
from retrieval.library.sources import Source


@dataclass(frozen=True, slots=True)
class Material:
    """Memes and pictures of a run.

    Attributes:
        files: SHA-256 of every file of the data set that the run uses, by name.
    """

    memes: tuple[JudgedMeme, ...]
    pictures: Path | None
    files: Mapping[str, str]

    def picture(self, meme: JudgedMeme) -> Path | None:
        """Returns the path of a meme's picture; None if it is missing."""
        path = picture_path(self.pictures, meme.image) if self.pictures and meme.image else None
        return path if path is not None and path.is_file() else None


def material_of(plan: Plan, progress: Progress) -> Material:
    """Reads the memes of a run. Raises BadRequest if they, or required pictures, can't be read."""
    if plan.question is not None:
        return _question_material(plan, plan.question, progress)
    chosen = partial(judged_memes, limit=plan.limit, seed=plan.seed, dropped_labels=plan.dropped_labels)
    read = read_split(plan.dataset, plan.data, plan.split, choose=chosen)
    for problem in read.problems[:3]:
        progress.tell(f"{problem.source}, line {problem.line}: {problem.reason}")
    for sentence in read.notes:
        progress.tell(sentence)
    for protocol in plan.protocols:
        if protocol not in plan.dataset.protocols:
            known = ", ".join(plan.dataset.protocols)
            raise BadRequest(f"{plan.dataset.title} has no protocol {protocol}; it has {known}.")
    memes = read.memes
    if plan.language == CARD:
        require_card_languages(memes)
    files = dict(read.files)
    if plan.library is None:
        # Precedents come from these files, so they must be unchanged when a run is resumed.
        for split in plan.dataset.of_role(SplitRole.TRAIN):
            files |= read_split(plan.dataset, plan.data, split.name, choose=keep_none).files
    if plan.text_only:
        return Material(memes, None, files)
    return _with_pictures(plan, Material(memes, read.pictures, files))


def _question_material(plan: Plan, question: Question, progress: Progress) -> Material:
    """Memes with a gold label for the question's task, and the files that they and its examples come from."""
    worded: dict[str, JudgedMeme] = {}

    def drawn(memes: Iterable[JudgedMeme]) -> tuple[JudgedMeme, ...]:
        noted = _noting_words(memes, worded)
        return sample(noted, plan.limit, plan.seed, lambda meme: ", ".join(meme.tasks[question.task]))

    read = read_split(plan.dataset, plan.data, plan.split, task=question.task, choose=drawn)
    for sentence in read.notes:
        progress.tell(sentence)
    require_inputs(question, tuple(worded.values()))
    files = dict(read.files)
    if question.needs_examples:
        for split in train_splits(plan.dataset):
            files |= read_split(plan.dataset, plan.data, split.name, task=question.task, choose=keep_none).files
    material = Material(read.memes, read.pictures, files)
    return _with_pictures(plan, material) if question.needs_picture else material


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


def _with_pictures(plan: Plan, material: Material) -> Material:
    """The material with its folder of pictures. Raises BadRequest if required pictures are missing."""
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
