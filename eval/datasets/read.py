"""Reads one split of a data set: memes with a gold label, as questions, as examples or as precedents.

Samples of memes, and the languages of their texts, are found here too.
"""

import hashlib
import heapq
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from court.digests import digest
from court.errors import BadRequest
from court.meme import checked_language
from court.question import CourtQuestion
from court.verdict import Label
from eval.datasets.card import CardSplit, CardTask, DatasetCard, SplitRole
from eval.datasets.card_split import DOUBLED, CardReader
from eval.datasets.items import JudgedMeme, Level, Protocol, of_level
from eval.datasets.known import SYNTHETIC_KEY, find_card, is_own, mistaken_for, recognised
from eval.datasets.plain_table import PlainTable, read_plain_table
from retrieval.library.sources import Problem, Row, Rows, Source

EXAMPLES = "examples of"
"""Part of the name of a library of labelled examples, whose labels of harm are meaningless."""


def labels_dropped(card: DatasetCard, protocols: Sequence[Protocol]) -> tuple[str, ...]:
    """Lists the labels, in the data set's own words, of memes that none of these protocols scores.

    Raises:
        BadRequest: There are none: all labels are scored.
    """
    dropped = tuple(
        label
        for level, label in enumerate(card.court_task.labels if card.court_task else ())
        if Protocol.PLAIN not in protocols and all(of_level(Level(level), one) is None for one in protocols)
    )
    if not dropped:
        raise BadRequest(
            f"Scored as {', '.join(protocols)}, {card.title} has no label to drop. Labels are dropped by the "
            "protocol extreme, where it is the only one.",
            reason="NOTHING_TO_DROP",
            field="protocol",
        )
    return dropped


@dataclass(frozen=True, slots=True)
class SplitRead:
    """Memes of a split that have a gold label of a task."""

    memes: tuple[JudgedMeme, ...]
    """In the order of the files; ids are unique."""
    problems: tuple[Problem, ...]
    """Rows that could not be used, sorted by line: duplicates of an id and rows without a label included."""
    notes: tuple[str, ...]
    """Sentences with the number of rows that are not among the memes."""
    pictures: Path | None
    """The folder that picture names are relative to; None if no picture was found."""
    files: Mapping[str, str]
    """SHA-256 of every file that was read, by its name below the directory; that of the rows comes first."""
    named: bool = False
    """True if rows name pictures, whether or not these are there."""


Choose = Callable[[Iterable[JudgedMeme]], Sequence[JudgedMeme]]
"""Selects the memes to keep while the split is streamed, such as a sample."""


def read_split(card: DatasetCard, data: Path, split: str, *, task: str = "", choose: Choose = tuple) -> SplitRead:
    """Reads the memes of a split that have a gold label of a task.

    Args:
        task: Id of the task; empty for the one that trials are scored on.
        choose: Selects memes while they are streamed; only selected ones are kept in memory.

    Raises:
        BadRequest: There is no such split or task, its files are missing or belong to another data set, or no meme has
            a label, for instance because a test split has none.
    """
    task_id = card.task(task).id if task else court_task_of(card).id
    refuse_others(card, data, split)
    reader = CardReader(card, data, split)
    # Collected while streaming: the memes are gone when the selection is made.
    unlabelled: list[Problem] = []
    labelled = False

    def with_gold() -> Iterator[JudgedMeme]:
        nonlocal labelled
        for meme in reader.with_pictures():
            if task_id in meme.tasks:
                labelled = True
                yield meme
            else:
                reason = f"it has no label of {task_id}"
                unlabelled.append(Problem(Path(meme.file).name, meme.line, meme.id, reason))

    memes = choose(with_gold())
    if not labelled:
        why = "no row is of this split"
        # Nearly always all rows have the same fault, such as a renamed column.
        for fault in (*reader.problems, *unlabelled)[:1]:
            why = f"line {fault.line}: {fault.reason}" if fault.line else fault.reason
        raise BadRequest(
            f"No row of {', '.join(path.name for path in reader.paths)} can be used as the split {split} of "
            f"{card.title}, with a gold label of {task_id}: {why}. The data are had from "
            f"{card.source_url or 'its authors'}.",
            reason="DATA_UNUSABLE",
        )
    doubled = sum(one.reason.endswith(DOUBLED) for one in reader.problems)
    counts = {
        f"rows of {split} have the id of another row, and are left out.": doubled,
        f"rows of {split} can't be used; memecourt-eval datasets check lists them.": reader.refused - doubled,
        f"rows of {split} are left out, as the card says.": reader.excluded,
        f"memes of {split} have no gold label of {task_id}: nothing is asked about them.": len(unlabelled),
    }
    # Rows that are refused are told above, and would be missing in the counts of labels.
    compared = {} if reader.refused else reader.labels
    differences = card.count_differences(reader.split, reader.rows - reader.elsewhere, compared)
    return SplitRead(
        # Names by which pictures are found only for selected memes: each costs a disk access.
        memes=tuple(one.model_copy(update={"image": reader.pictures.name_of(*one.picture)}) for one in memes),
        problems=tuple(sorted((*reader.problems, *unlabelled), key=lambda problem: problem.line)),
        notes=(
            *(f"{count:,} {what}" for what, count in counts.items() if count),
            *(f"{split} may be another version or split: {what}." for what in differences),
        ),
        pictures=reader.pictures.folder,
        # Joined files are known only after the rows were read.
        files=reader.digests(),
        named=reader.pictures.named,
    )


def keep_none(memes: Iterable[JudgedMeme]) -> tuple[JudgedMeme, ...]:
    """Selects no meme: the files are read only for their digests and problems."""
    deque(memes, maxlen=0)
    return ()


def train_splits(card: DatasetCard) -> tuple[CardSplit, ...]:
    """The splits that examples come from. Raises BadRequest if the data set has none."""
    found = card.of_role(SplitRole.TRAIN)
    if not found:
        raise BadRequest(
            f"{card.title} has no train split to take labelled memes from: ask with --shots 0, and a model.",
            reason="NO_TRAIN_SPLIT",
            field="shots",
        )
    return found


def source_of(card: DatasetCard, data: Path, split: str, *, examples_of: str = "") -> Source:
    """A split as a source for a library, with pictures. Raises BadRequest like :func:`read_split`.

    Args:
        examples_of: Task whose labelled examples form the library. The labels stay in the data set: a library knows
            only harm, which the task may say nothing about. :func:`require_examples` keeps trials from using it.
    """
    # Reads the files without keeping memes, so that errors appear before a library is built; rows are read on use.
    read = read_split(card, data, split, task=examples_of, choose=keep_none)
    name = f"{card.id} {split}" + f", {EXAMPLES} {examples_of}" * bool(examples_of)

    def rows() -> Rows:
        # Read again, so that no rows stay in memory between naming a source and building from it.
        anew = read_split(card, data, split, task=examples_of)
        good = [row_of(meme) for meme in anew.memes]
        if examples_of:
            bare = [replace(row, label=Label.NOT_HARMFUL, source_label="", categories=()) for row in good]
            return Rows(bare)
        return Rows(good, list(anew.problems))

    return Source(
        path=data / next(iter(read.files)),
        name=name,
        # Names that exist nowhere are missing pictures, and not memes without one.
        pictures=read.pictures or (Path(card.layout.pictures_at or data) if read.named else None),
        rows=rows,
        files=tuple(data / file for file in read.files if (data / file).is_file()),
        notes=read.notes,
        # Shipped cards are identified by the files; a user's card may change. A tree of pictures has no file digest.
        recipe=digest([card.to_json(), dict(read.files)]) if is_own(card) else "",
    )


def row_of(meme: JudgedMeme) -> Row:
    """A meme as a row for a precedent library, labelled by the data set's two classes."""
    # Harm only: a library has no levels.
    return Row(
        line=meme.line,
        id=meme.id,
        label=Label.HARMFUL if meme.harmful else Label.NOT_HARMFUL,
        source_label=meme.source_label,
        text=meme.text,
        categories=meme.targets,
        image=meme.image,
    )


def named_source(
    dataset: str,
    data: Path,
    split: str,
    *,
    columns: Sequence[str] = (),
    harmful: str = "",
    pictures: Path | None = None,
) -> Source | None:
    """Returns the source for this data set, like :func:`source_of`; None if the data set is unknown.

    Entry point ``memecourt.datasets``, by which ``memecourt precedents build`` finds data sets and reads plain tables.

    Args:
        dataset: Id or card; empty for a plain table, with ``data`` as its file.
        split: Split to read; empty for the train split or, of a plain table without splits, for all rows.
        columns: Columns of a plain table by field, ``NAME=COLUMN`` each.
        harmful: Harmful labels of a plain table, separated by commas.
        pictures: Folder of the pictures of a plain table.

    Raises:
        BadRequest: The data set, the card with this name, or the table can't be read.
    """
    if not dataset:
        return _source_of_table(read_plain_table(data, columns, harmful, pictures), split)
    try:
        found = find_card(dataset)
    except BadRequest as error:
        if error.reason == "DATASET_UNKNOWN":
            return None
        raise
    # Never the test split by default: precedents taken from it would flatter every figure measured on it.
    return source_of(found, data, split or SplitRole.TRAIN)


def _source_of_table(table: PlainTable, split: str) -> Source:
    names, notes = [one.name for one in table.card.splits], table.notes
    chosen = split or next((one.name for one in table.card.of_role(SplitRole.TRAIN)), names[0])
    if table.is_divided:
        notes = (*notes, f"Precedents are made of the split {chosen}, of {', '.join(names)}; --split names another.")
    else:
        chosen = names[0]  # a name that the user gives to all rows
    source = source_of(table.card, table.data, chosen)
    return replace(source, name=Path(table.card.title).stem, notes=(*notes, *source.notes))


def court_task_of(card: DatasetCard) -> CardTask:
    """The task that trials are scored on. Raises BadRequest if there is none or a jury has to be chosen."""
    if card.court_task is not None:
        return card.court_task
    # A task with several juries is listed once for each.
    juries = [task.variant for task in card.all_tasks() if task.court]
    raise BadRequest(
        f"{card.id} has labels by several juries, and a figure has no meaning without its jury. Name one of "
        f"{', '.join(juries)} behind the data set or the card: {card.id}:{juries[0]}, FILE.toml:{juries[0]}."
        if juries
        else f"No task of {card.id} says whether a meme is harmful (its card has no table court): no trial can be "
        "scored on it, and no precedent made of it.",
        reason="NO_COURT_TASK",
        field="dataset",
    )


def refuse_others(card: DatasetCard, data: Path, split: str) -> None:
    """Refuses data that certainly belong to another data set. Raises BadRequest."""
    card.split(split)
    # They would be read without an error, and results on synthetic memes taken for those of the data set.
    if (data / SYNTHETIC_KEY).is_file() and not card.id.startswith("synthetic") and not is_own(card):
        raise BadRequest(
            f"{data} holds a synthetic benchmark: figures on it are none on {card.title}. Ask for --dataset "
            f"{recognised(data)[0].id}, or name the directory of {card.id}.",
            reason="DATA_OF_ANOTHER",
        )
    other = mistaken_for(card, data)
    if other is not None:
        raise BadRequest(
            f"{data} has as many rows in its train split as {other.title}, and not as {card.title}. Name the "
            f"directory of {card.id}, or ask for --dataset {other.id}.",
            reason="DATA_OF_ANOTHER",
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


def by_harm(meme: JudgedMeme) -> str:
    """Stratum of a meme by its label of harm."""
    # Levels and classes become digits, so that the order of strata stays that of earlier versions.
    return str(int((meme.harmful or False) if meme.level is None else meme.level))


def sample(
    memes: Iterable[JudgedMeme], limit: int | None, seed: int, stratum_of: Callable[[JudgedMeme], str] = by_harm
) -> tuple[JudgedMeme, ...]:
    """Draws at most ``limit`` memes, in the order of the split.

    Each label (each level, if there are three) gets its share of the limit, rounded by largest remainder. Within a
    label, the memes with the smallest SHA-256 of seed and id are taken: the sample depends neither on the order of the
    file nor on a version of a random generator, and a larger limit only adds memes to a label.

    Memory holds at most ``limit`` memes of each label.

    Args:
        limit: Maximum number of memes; None for all.
        stratum_of: Function that returns a meme's stratum.
    """
    if limit is None:
        return tuple(memes)
    # The best so far of each label in a heap, worst on top; the index avoids comparing memes.
    best: dict[str, list[tuple[int, int, JudgedMeme]]] = {}
    counts: Counter[str] = Counter()
    for place, meme in enumerate(memes):
        label = stratum_of(meme)
        counts[label] += 1
        heap = best.setdefault(label, [])
        rank = int.from_bytes(hashlib.sha256(f"{seed}\0{meme.id}".encode()).digest())
        entry = (-rank, -place, meme)
        # No label can have more memes than the whole sample.
        if len(heap) < limit:
            heapq.heappush(heap, entry)
        elif heap and entry > heap[0]:
            heapq.heapreplace(heap, entry)
    labels = sorted(counts)
    exact = {label: limit * counts[label] / max(limit, counts.total()) for label in labels}
    shares = {label: int(exact[label]) for label in labels}
    # Ties in the remainders are broken by label, so that the order of the file never matters.
    by_remainder = sorted(labels, key=lambda label: (shares[label] - exact[label], label))
    for label in by_remainder[: min(limit, counts.total()) - sum(shares.values())]:
        shares[label] += 1
    taken = [entry for label in labels for entry in heapq.nlargest(shares[label], best[label])]
    return tuple(meme for _, _, meme in sorted(taken, key=lambda entry: -entry[1]))


DETECT = "detect"
"""Option value: detect the language of each text."""
CARD = "card"
"""Option value: take the language that the data set's card names for each meme."""
_SURE = 0.3
"""Minimum probability for a detected language; texts such as a single word or name stay below it."""
_NO_LANGUAGE = "zxx"
"""The model's code for a text without words."""
_LETTERS = re.compile(r"[^\W\d_]")
_FEWEST = 4
"""Minimum number of letters to detect a language; half of it for scripts in which a character is a word."""


@cache
def language_identifier() -> Any:
    """Loads py3langid, once in a process, which tells 139 languages offline in a third of a millisecond per text.

    Chosen by measurement on the sixty short captions in twelve languages of `test_language.py`: 59 correct
    in 134 MB, whereas lingua 2.1 gets 58 right in 1.2 GB and takes a thousand times as long.
    """
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def language_of(text: str, wanted: str) -> str:
    """Returns the stated or detected language of a text; empty if it has too few letters or none is likely enough.

    Args:
        wanted: A BCP 47 tag, returned unchanged; :data:`DETECT`, for an ISO 639-1 code; or empty for no language.
    """
    if wanted != DETECT:
        return wanted
    # Letters of three or more bytes in UTF-8 belong to scripts that need fewer characters to say as much.
    weight = sum(2 if len(letter.encode("utf-8", "replace")) > 2 else 1 for letter in _LETTERS.findall(text))
    if weight < _FEWEST:
        return ""
    language, probability = language_identifier().classify(text)
    return str(language) if probability >= _SURE and language != _NO_LANGUAGE else ""


def language_of_meme(meme: JudgedMeme, wanted: str) -> str:
    """Returns the language of a meme's text: like :func:`language_of`, or the card's own for :data:`CARD`."""
    return meme.language if wanted == CARD else language_of(meme.text, wanted)


def require_card_languages(memes: Iterable[JudgedMeme]) -> None:
    """Raises BadRequest if the card names no language for any meme, or one that is not a BCP 47 tag."""
    languages = {meme.language: meme.id for meme in memes if meme.language}
    if not languages:
        raise BadRequest(
            "The data set's card names no language of its memes (fields.language). Name it with --language TAG, or "
            "have it detected with --language detect.",
            reason="BAD_LANGUAGE",
            field="language",
        )
    for language, meme in languages.items():
        checked_language(language, f"The language {language[:40]!r} of the meme {meme}")
