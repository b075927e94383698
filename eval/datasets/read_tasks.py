"""Memes of a split with gold labels of a task of the data set's card, to be asked about or to be shown as examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from court.digests import digest
from court.errors import BadRequest
from court.question import CourtQuestion
from court.verdict import Label
from eval.datasets.card import CardTask, DatasetCard
from eval.datasets.card_split import CardMeme, CardReader
from eval.datasets.items import JudgedMeme
from eval.datasets.known import Dataset, Split, SplitRole
from eval.datasets.read import Choose, keep_none, refuse_others, row_of, with_picture_names
from retrieval.library.sources import Rows, Source, SourceFormat

EXAMPLES = "examples of"
"""Stands in the name of a library of labelled examples: its labels of harm mean nothing."""


@dataclass(frozen=True, slots=True)
class TaskSplit:
    """Content read from a split for a task.

    Attributes:
        memes: Memes that have a gold label of the task, in the order of the files.
        files: SHA-256 of every file that was read, by its name below the directory.
        pictures: The folder that picture names are relative to; None where no picture is at hand.
        notes: Counts of rows that are not among the memes, in sentences.
    """

    memes: tuple[JudgedMeme, ...]
    files: Mapping[str, str]
    pictures: Path | None
    notes: tuple[str, ...]


def train_splits(dataset: Dataset) -> tuple[Split, ...]:
    """The splits that examples come from. Raises BadRequest where the data set has none."""
    found = dataset.of_role(SplitRole.TRAIN)
    if not found:
        raise BadRequest(
            f"{dataset.title} has no train split to take labelled memes from: ask with --shots 0, and a model.",
            reason="NO_TRAIN_SPLIT",
            field="shots",
        )
    return found


def read_task_split(dataset: Dataset, data: Path, split: str, task: str, *, choose: Choose = tuple) -> TaskSplit:
    """The memes of a split that have a gold label of a task.

    Args:
        dataset: Which data set.
        data: Directory of the data set.
        split: Which part of it.
        task: Which of its tasks.
        choose: Chooses among the memes, as :func:`eval.datasets.read.read_split`.

    Raises:
        BadRequest: There is no such split or task, its files are not there, or no meme of it has a label.
    """
    card = dataset.card
    card.task(task)  # one that there is none of is an error, not a task of which no meme has a label
    refuse_others(dataset, data, split)
    reader = CardReader(card, data, split)
    labelled = unlabelled = 0

    def with_gold() -> Iterator[JudgedMeme]:
        nonlocal labelled, unlabelled
        for meme in reader.with_pictures():
            if task in meme.gold:
                labelled += 1
                yield _as_judged(card, meme)
            else:
                unlabelled += 1

    memes = choose(with_gold())
    if not labelled:
        raise BadRequest(
            f"No meme of the split {split} of {dataset.title} has a gold label of {task}.", reason="DATA_UNUSABLE"
        )
    counts = {
        f"rows of {split} can't be used; memecourt-eval datasets check lists them.": reader.refused,
        f"rows of {split} are left out, as the card says.": len(reader.excluded),
        f"memes of {split} have no gold label of {task}: nothing is asked about them.": unlabelled,
    }
    return TaskSplit(
        memes=with_picture_names(memes, reader.pictures),
        files=reader.digests(),
        pictures=reader.pictures.folder,
        notes=tuple(f"{count:,} {what}" for what, count in counts.items() if count),
    )


def examples_source(dataset: Dataset, data: Path, split: str, task: str) -> Source:
    """A split as what a library of labelled examples is built from.

    The memes' labels stand in the data set and not in the library: a library knows of harm alone, and what the task
    says of harm, if anything, is not asked. :func:`require_examples` keeps such a library from holding trials.
    """
    name = f"{dataset.id} {split}, {EXAMPLES} {task}"

    def rows() -> Rows:
        memes = read_task_split(dataset, data, split, task).memes
        # A library wants a label of harm; an example's means nothing, as the name of the source says.
        bare = [replace(row_of(meme, name), label=Label.NOT_HARMFUL, source_label="", categories=()) for meme in memes]
        return Rows(SourceFormat.CARD, bare, [])

    # Once at the beginning too, so that what is wrong is found before a library is built.
    read = read_task_split(dataset, data, split, task, choose=keep_none)
    return Source(
        path=data / next(iter(read.files)),
        name=name,
        pictures=read.pictures,
        format=SourceFormat.CARD,
        rows=rows,
        files=tuple(data / file for file in read.files),
        # A card of one's own may be changed; those that come with the program are known by the files.
        recipe=digest(dataset.own_card.to_json()) if dataset.own_card else "",
    )


def require_examples(library: str, wanted: object) -> None:
    """Raises BadRequest where a library of examples is to hold trials, or one of precedents to give examples.

    Args:
        library: Name of the library.
        wanted: The question that examples are wanted for; None where trials are held.
    """
    if (EXAMPLES in library) != (wanted is not None):
        what = (
            "holds labelled examples of a task, whose labels say nothing of harm"
            if wanted is None
            else "holds precedents of trials, and no examples of the task"
        )
        raise BadRequest(f"The library {library} {what}. Leave --library out.", reason="LIBRARY_FOR_OTHERS")


def require_same_labels(question: CourtQuestion, task: CardTask) -> None:
    """Raises BadRequest where a question of one's own has other options than a task, whose gold it is scored by."""
    if set(question.options) != set(task.labels) or question.several != (task.kind == "multi"):
        several = "true" if task.kind == "multi" else "false"
        raise BadRequest(
            f"The question {question.id} is scored by the task {task.id}: its options must be "
            f"{', '.join(task.labels)}, and several {several}.",
            reason="QUESTION_UNUSABLE",
            field="question",
        )


def gold_by_meme(dataset: Dataset, data: Path, split: str, task: str) -> dict[str, tuple[str, ...]]:
    """Gold labels of a task by meme, of those that have one. Raises BadRequest as :func:`read_task_split`."""
    return {meme.id: meme.tasks[task] for meme in read_task_split(dataset, data, split, task).memes}


def _as_judged(card: DatasetCard, meme: CardMeme) -> JudgedMeme:
    court = card.court_task
    label = meme.gold.get(court.id) if court else None
    return JudgedMeme(
        id=meme.id,
        split=meme.split,
        line=meme.line,
        image=meme.image,
        text=meme.text,
        harmful=None if label is None or court is None or court.court is None else label[0] in court.court.harmful,
        source_label=label[0] if label else "",
        tasks=meme.gold,
        shares=meme.shares,
        annotators=meme.annotators,
        ocr=meme.ocr,
        caption=meme.caption,
        language=meme.language,
        group=meme.group,
    )
