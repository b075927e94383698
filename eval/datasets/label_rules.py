"""Computes a row's gold labels for the tasks of a card: maps values to labels, and annotators' votes to one label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from eval.datasets.card import CardTask, TaskKind
from eval.datasets.verbs import Expression, JoinOf, compile_expression
from retrieval.library.cells import BadCell, Record, is_missing, label_of, plain_word, word_of

_TRUE = {"1": "true", "0": "false", "yes": "true", "no": "false", "true": "true", "false": "false"}


@dataclass(frozen=True, slots=True)
class GoldOfTask:
    """Gold of one task for a row."""

    labels: tuple[str, ...] | None
    """Labels in the task's words; None if the row has none for this task."""
    drop: bool = False
    shares: tuple[tuple[str, float], ...] = ()
    """Share of annotators per label, if there are several and the card keeps their votes."""
    annotators: int = 0
    """Number of annotators; 0 if their votes are not kept."""


NO_GOLD = GoldOfTask(None)
_DROPPED = GoldOfTask(None, drop=True)
GoldRule = Callable[[Record], GoldOfTask]


def compile_task(task: CardTask, join_of: JoinOf) -> GoldRule:
    """Returns a function that computes a row's gold for a task, and raises BadCell for a value that no rule names."""
    if task.columns:
        return _by_columns(task, join_of)
    assert task.of is not None
    value, to_label, absent = compile_expression(task.of, join_of), _label_of(task), _absent(task)
    if task.votes is not None:
        return _by_votes(task, join_of)
    if task.kind is TaskKind.MULTI:

        def several(record: Record) -> GoldOfTask:
            found = value(record)
            if found is None or (not isinstance(found, list) and absent(found)):
                return _missing(task, task.of, record)
            items = found if isinstance(found, list) else [found]
            # A label that a row names twice counts once.
            return GoldOfTask(tuple(dict.fromkeys(to_label(item) for item in items)))

        return several
    # Created once and shared by rows.
    answers = {label: GoldOfTask((label,)) for label in task.labels}

    def one(record: Record) -> GoldOfTask:
        found = value(record)
        return _missing(task, task.of, record) if absent(found) else answers[to_label(found)]

    return one


def _missing(task: CardTask, of: Expression | None, record: Record) -> GoldOfTask:
    assert of is not None
    if task.missing == "problem":
        if of.column not in ("", *record):
            reason = "there is no label, as in a test split: the row has no such column"
        # A missing row, column or cell: a lookup can't tell them apart.
        elif of.join is not None:
            reason = f"the label is empty, or {of.join.file} has no such row or column"
        else:
            reason = "the label is empty"
        raise BadCell(reason, of.name)
    return _DROPPED if task.missing == "drop" else NO_GOLD


def _absent(task: CardTask) -> Callable[[object], bool]:
    """Returns a test for missing values: blank cells, and words such as ``nan`` that the card names as no label."""
    # A card that tells cells true from false by a map names no label by it.
    named = {plain_word(word) or "" for word in (*task.map, *([] if task.columns else task.labels))}

    def absent(value: object) -> bool:
        return is_missing(value) or (isinstance(value, str) and label_of(value, named) is None)

    return absent


def _label_of(task: CardTask) -> Callable[[object], str]:
    """Returns the lookup from cells to labels: exact spelling first, then ignoring case and punctuation."""
    mapping = {key: str(label) for key, label in task.map.items()} or {label: label for label in task.labels}
    exact = dict(mapping)
    loose = _loose(exact)
    name = task.of.name if task.of else ""

    def label(value: object) -> str:
        word = word_of(value, name)
        if word is None or not word.strip():
            raise BadCell(f"a label of {task.id} is empty", name)
        found = exact.get(word)
        if found is None:
            # Exact spelling first: two labels of a card may differ only in case.
            found = exact.get(word.strip()) or loose.get(plain_word(word) or "")
        if found is None:
            raise BadCell(f"it is no value that the card names for {task.id} ({', '.join(list(exact)[:8])})", name)
        return found

    return label


def _loose(exact: dict[str, str]) -> dict[str, str]:
    """Labels by their values in plain words, as far as those are unambiguous; 1 and 0 also as true and false."""
    words: dict[str, set[str]] = {}
    for key, label in exact.items():
        words.setdefault(plain_word(key) or "", set()).add(label)
    # Words shared by two labels are ambiguous and left out.
    loose = {word: next(iter(labels)) for word, labels in words.items() if len(labels) == 1}
    if set(loose) == {"0", "1"}:
        loose |= {"true": loose["1"], "false": loose["0"]}
    return loose


def _by_columns(task: CardTask, join_of: JoinOf) -> GoldRule:
    absent = _absent(task)
    columns = [(label, compile_expression(of, join_of), of) for label, of in task.columns.items()]
    exact = {key: bool(value) for key, value in task.map.items()}
    loose = {plain_word(key): value for key, value in exact.items()}
    loose = loose or {word: meaning == "true" for word, meaning in _TRUE.items()}

    def several(record: Record) -> GoldOfTask:
        found: list[str] = []
        for label, value, of in columns:
            cell = value(record)
            if absent(cell):
                # One empty cell makes the whole answer unknown: treating it as "no" would be a guess.
                return _missing(task, of, record)
            word = word_of(cell, of.name) or ""
            named = exact.get(word)
            if named is None:
                named = loose.get(plain_word(word))
            if named is None:
                raise BadCell(
                    f"it is no value that the card names for {task.id} ({', '.join(exact or _TRUE)})", of.name
                )
            if named:
                found.append(label)
        return GoldOfTask(tuple(found))

    return several


def _by_votes(task: CardTask, join_of: JoinOf) -> GoldRule:
    assert task.of is not None and task.votes is not None
    value, to_label, name, votes = compile_expression(task.of, join_of), _label_of(task), task.of.name, task.votes
    absent = _absent(task)

    def voted(record: Record) -> GoldOfTask:
        found = value(record)
        cells = found if isinstance(found, list) else [found]
        # An empty cell is an annotator who gave no answer.
        counts = Counter(to_label(cell) for cell in cells if not absent(cell))
        total = sum(counts.values())
        if not total:
            return _missing(task, task.of, record)
        # In the task's order, so that equal votes are written identically.
        shares = tuple((label, counts[label] / total) for label in task.labels if counts[label]) if votes.keep else ()
        annotators = total if shares else 0
        most = max(counts.values())
        first = [label for label, count in counts.items() if count == most]
        if len(first) > 1 or most < votes.least:
            if task.missing == "problem":
                raise BadCell(f"no label of {task.id} has the most votes, and {votes.least} or more", name)
            # A tie yields no label, but the shares are kept all the same.
            return GoldOfTask(None, task.missing == "drop", shares, annotators)
        return GoldOfTask((first[0],), shares=shares, annotators=annotators)

    return voted
