"""Figures of subgroups of memes, each compared with all other memes, with a correction for multiple testing.

Among twenty groups, one is expected to look worse "with p < 0.05" by chance alone. So p-values are adjusted by Holm's
step-down procedure (Holm 1979) over all tests of a table. It is valid however the tests depend on each other, which
they do: groups overlap if memes belong to several.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import fisher_exact

from court.errors import BadRequest
from eval.datasets.items import Protocol
from eval.datasets.read import DETECT, language_of
from eval.runs.results import Results, card_of_results
from eval.scores.measure import SURE, Bools, Figure, holm, right_answers, wilson
from eval.scores.metrics import answers_of, question_of
from retrieval.text import script_of

NONE = "none"
"""Name of the group of memes that belong to no other group."""
NO_LABEL = "no label"
"""Name of the group of memes whose gold label for a task is that they have none of its labels."""
UNKNOWN = "unknown"
"""Name of the group of memes whose language can't be detected."""
_RULES: dict[str, tuple[tuple[str, ...], Callable[..., tuple[str, ...]]]] = {
    "label": (("source_label",), lambda label: (label,)),
    "language": (("language", "text"), lambda given, text: (given or language_of(text, DETECT) or UNKNOWN,)),
    "script": (("text",), lambda text: (script_of(text).lower() or NONE,)),
    "split": (("split",), lambda split: (split,)),
    "target": (("targets",), lambda targets: targets or (NONE,)),
    "group": (("group",), lambda group: (group or NONE,)),
}
AXES = tuple(_RULES)
"""Properties of memes that they can be grouped by."""


@dataclass(slots=True)
class Share:
    """A share of a group's memes beside the same share of all others."""

    n: int
    """Denominator of the share: number of memes of the group that it is over."""
    count: int
    figure: Figure | None
    """The share, with Wilson's 95 % interval; None if ``n`` is 0."""
    rest: float | None
    p: float | None
    """Two-sided p-value of Fisher's exact test of the two shares; None if either is missing, or no meme differs."""
    corrected: float | None = None

    @property
    def sure(self) -> bool:
        """True if the difference is significant after correction for the number of tests."""
        return self.corrected is not None and self.corrected < SURE


@dataclass(frozen=True, slots=True)
class Subgroup:
    """Figures of one group. A meme without a class, or without an answer, counts as wrong."""

    name: str
    n: int
    harmful: int
    """Number of memes whose gold label is harmful or, in the table of a task's label, that have the label."""
    shares: Mapping[str, Share]
    """Those of :data:`SHARES` that the table covers."""


SHARES = ("accuracy", "false_alarms", "misses", "silent")
"""Shares that are tested: right answers; memes that lack the label and were given it, and those that have it and were
not; memes without an answer."""
_OF_WHOLE, _OF_LABEL = ("accuracy", "silent"), ("accuracy", "false_alarms", "misses")


@dataclass(frozen=True, slots=True)
class SubgroupTable:
    """Figures of all groups."""

    protocol: Protocol | None
    """Protocol by which gold labels became two classes; None if the run asked a question."""
    n: int
    groups: tuple[Subgroup, ...]
    """Groups, the largest first; a meme may be in several."""
    tests: int
    """Number of tests on the run, over which p-values are corrected."""
    task: str
    """Task of a question; empty in a table of verdicts."""
    label: str
    """Label whose memes take the place of the harmful ones; empty in the table of whole answers, in which all memes do,
    and in tables of verdicts."""


def axis_rule(axis: str, tasks: Sequence[str] = ()) -> tuple[tuple[str, ...], Callable[..., tuple[str, ...]]]:
    """Names of the fields of a meme that its groups follow from, and the function of their values.

    Raises BadRequest: There is no such property; the message names the tasks that memes can be grouped by, too.
    """
    if axis not in AXES:
        named = f" and the tasks {', '.join(tasks)}" if tasks else ""
        raise BadRequest(f"Memes can't be grouped by {axis!r}; there are: {', '.join(AXES)}{named}.", field="by")
    return _RULES[axis]


def groups_of(results: Results, by: str) -> dict[str, tuple[str, ...]]:
    """Groups of each meme of a run by id.

    Args:
        by: A task of the data set's card, whose gold labels are the groups (memes without a gold label are in none),
            or one of :data:`AXES`: the card's group (a template, a source), the data set's own label, the language that
            the card names or else the detected one, the script of most letters of the text, the split, or the targets
            that the data set names.

    Raises:
        BadRequest: There is no such task or property.
        NotLoaded: Languages are to be detected, and py3langid is not installed.
    """
    memes = [one.meme for one in results.judged]
    # The memes' own properties are known without the card.
    tasks = [task.id for task in card.all_tasks()] if (card := card_of_results(results)) else []
    if by in tasks:
        return {meme.id: meme.tasks[by] or (NO_LABEL,) for meme in memes if by in meme.tasks}
    names, group = axis_rule(by, tasks)
    return {meme.id: group(*(getattr(meme, name) for name in names)) for meme in memes}


def subgroup_tables(
    results: Results, groups: Mapping[str, Sequence[str]], protocol: Protocol | None = None
) -> tuple[SubgroupTable, ...]:
    """Figures of each group of memes in a run, beside those of all others.

    Of verdicts there is one table. Of answers to a question there is one of whole answers, then one per label: given to
    memes that lack it, or not given to memes that have it. A task with two labels only has the table of the first one,
    as that of the other is its mirror image. The p-values of all tables are corrected together.

    Raises:
        BadRequest: The protocol leaves no meme to score, or no meme has a gold label of the question's task.
        ValueError: The protocol is not for a data set of this kind.
    """
    answers = answers_of(results, protocol)
    arrays, question = answers.arrays, None if protocol else question_of(results)
    columns = zip(arrays.labels, arrays.gold.T, arrays.predicted.T, strict=True)
    # Label, gold and answers of each table, and the shares in it. No share is in two tables: testing it twice would
    # make the correction stricter.
    parts: list[tuple[str, Bools, Bools, tuple[str, ...]]]
    if question is None:
        parts = [("", gold, predicted, SHARES) for label, gold, predicted in columns if label == "harmful"]
    elif len(arrays.labels) == 2 and not question.multi:
        # With two labels, missing one is a false alarm of the other.
        parts = [(*next(columns), SHARES)]
    else:
        whole = ("", np.ones_like(arrays.answered), right_answers(arrays), _OF_WHOLE)
        parts = [whole, *((*column, _OF_LABEL) for column in columns)]
    of_meme = [frozenset(groups.get(one.meme.id) or (NONE,)) for one in answers.judged]
    members = {
        name: np.array([name in names for names in of_meme], dtype=np.bool_) for name in frozenset().union(*of_meme)
    }
    tables = [
        _groups(members, arrays.answered, gold, predicted, shares=covered) for _, gold, predicted, covered in parts
    ]
    shares = [share for table in tables for group in table for share in group.shares.values()]
    tested = [(share, share.p) for share in shares if share.p is not None]
    for (share, _), corrected in zip(tested, holm([p for _, p in tested]), strict=True):
        share.corrected = corrected
    task = question.task if question else ""
    return tuple(
        SubgroupTable(protocol, len(of_meme), tuple(table), tests=len(tested), task=task, label=label)
        for (label, *_), table in zip(parts, tables, strict=True)
    )


def _groups(
    members: Mapping[str, Bools], answered: Bools, gold: Bools, predicted: Bools, *, shares: Sequence[str]
) -> list[Subgroup]:
    """Groups before p-values are corrected, the largest first; arrays are of shape (memes,), of members by group.

    Args:
        gold: True for memes with the label, ``predicted`` for those that were given it.
    """
    every = np.ones_like(gold)
    # Numerator and denominator of each share.
    counted = {
        "accuracy": (answered & (gold == predicted), every),
        "false_alarms": (predicted & ~gold, ~gold),
        "misses": (~predicted & gold, gold),
        "silent": (~answered, every),
    }
    found = [
        Subgroup(
            name,
            n=int(inside.sum()),
            harmful=int(gold[inside].sum()),
            shares={share: _share(*counted[share], inside) for share in shares},
        )
        for name, inside in members.items()
    ]
    return sorted(found, key=lambda group: (-group.n, group.name))


def _share(hits: Bools, of: Bools, inside: Bools) -> Share:
    # The others instead of all memes: a large group would largely be compared with itself.
    (count, n), (other_count, other_n) = ((int(hits[here].sum()), int(of[here].sum())) for here in (inside, ~inside))
    # If no meme counts, or all do, a test is pointless and would only make the correction stricter.
    testable = n and other_n and 0 < count + other_count < n + other_n
    return Share(
        n=n,
        count=count,
        figure=wilson(count, n),
        rest=other_count / other_n if other_n else None,
        p=float(fisher_exact([[count, n - count], [other_count, other_n - other_count]]).pvalue) if testable else None,
    )
