"""Reads memes with gold labels for a task of the data set's card, as questions or as examples."""

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
"""Part of the name of a library of labelled examples, whose labels of harm are meaningless."""


@dataclass(frozen=True, slots=True)
class TaskSplit:
    """Content of a split for a task.

    Attributes:
        memes: Memes that have a gold label of the task, in the order of the files.
        files: SHA-256 of every file that was read, by its name below the directory.
        pictures: The folder that picture names are relative to; None if no picture was found.
        notes: Sentences with the number of rows that are not among the memes.
    """

    memes: tuple[JudgedMeme, ...]
    files: Mapping[str, str]
    pictures: Path | None
    notes: tuple[str, ...]


def train_splits(dataset: Dataset) -> tuple[Split, ...]:
    """The splits that examples come from. Raises BadRequest if the data set has none."""
    found = dataset.of_role(SplitRole.TRAIN)
    if not found:
        raise BadRequest(
            f"{dataset.title} has no train split to take labelled memes from: ask with --shots 0, and a model.",
            reason="NO_TRAIN_SPLIT",
            field="shots",
        )
    return found


def read_task_split(dataset: Dataset, data: Path, split: str, task: str, *, choose: Choose = tuple) -> TaskSplit:
    """Reads the memes of a split that have a gold label for a task.

    Args:
        choose: Selects memes, as in :func:`eval.datasets.read.read_split`.

    Raises:
        BadRequest: There is no such split or task, its files are missing, or no meme has a label.
    """
    card = dataset.card
    card.task(task)  # an unknown task is an error, rather than a task for which no meme has a label
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
    """A split as a source for a library of labelled examples.

    The labels stay in the data set and are not stored in the library: a library knows only harm, which the task may say
    nothing about. :func:`require_examples` prevents trials from using such a library.
    """
    name = f"{dataset.id} {split}, {EXAMPLES} {task}"

    def rows() -> Rows:
        memes = read_task_split(dataset, data, split, task).memes
        # A library requires a label of harm; for examples it is meaningless, as the name of the source says.
        bare = [replace(row_of(meme, name), label=Label.NOT_HARMFUL, source_label="", categories=()) for meme in memes]
        return Rows(SourceFormat.CARD, bare, [])

    # Also read once now, so that errors appear before a library is built.
    read = read_task_split(dataset, data, split, task, choose=keep_none)
    return Source(
        path=data / next(iter(read.files)),
        name=name,
        pictures=read.pictures,
        format=SourceFormat.CARD,
        rows=rows,
        files=tuple(data / file for file in read.files),
        # A user's card may change; shipped ones are identified by the files.
        recipe=digest(dataset.own_card.to_json()) if dataset.own_card else "",
    )


def require_examples(library: str, wanted: object) -> None:
    """Raises BadRequest if trials were to use a library of examples, or a task a library of precedents.

    Args:
        wanted: The question for which examples are needed; None for trials.
    """
    if (EXAMPLES in library) != (wanted is not None):
        what = (
            "holds labelled examples of a task, whose labels say nothing of harm"
            if wanted is None
            else "holds precedents of trials, and no examples of the task"
        )
        raise BadRequest(f"The library {library} {what}. Leave --library out.", reason="LIBRARY_FOR_OTHERS")


def require_same_labels(question: CourtQuestion, task: CardTask) -> None:
    """Raises BadRequest if a custom question has other options than the task whose gold labels score it."""
    if set(question.options) != set(task.labels) or question.several != (task.kind == "multi"):
        several = "true" if task.kind == "multi" else "false"
        raise BadRequest(
            f"The question {question.id} is scored by the task {task.id}: its options must be "
            f"{', '.join(task.labels)}, and several {several}.",
            reason="QUESTION_UNUSABLE",
            field="question",
        )


def gold_by_meme(dataset: Dataset, data: Path, split: str, task: str) -> dict[str, tuple[str, ...]]:
    """Gold labels of a task by meme, for memes that have one. Raises BadRequest like :func:`read_task_split`."""
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
