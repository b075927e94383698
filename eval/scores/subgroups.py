"""Figures of subgroups of memes, each held against all other memes, with a correction for so many looks.

Whoever looks at twenty groups finds one that is treated worse "with p < 0.05" where none is. So p-values are corrected
by Holm's step-down procedure (Holm 1979), over all tests of a table, which holds however the tests depend on each
other: groups overlap where memes are of several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scipy.stats import binomtest, fisher_exact

from court.errors import BadRequest
from eval.datasets.items import JudgedMeme
from eval.datasets.language import DETECT, language_of
from eval.datasets.protocol import Protocol
from eval.datasets.read_tasks import gold_by_meme
from eval.runs.folder import dataset_of
from eval.runs.results import Judged, Results
from eval.scores.compare import SURE, holm
from eval.scores.metrics import Figure
from retrieval.text import script_of

NONE = "none"
"""Name of the group of memes that are of no other."""
NO_LABEL = "no label"
"""Name of the group of memes of which a task's gold says that they have none of its labels."""
UNKNOWN = "unknown"
"""Name of the group of memes whose language can't be told."""
AXES = ("label", "language", "script", "split", "target", "group")
"""Properties that every meme has, by which they are grouped."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a group's memes beside the same share of all others.

    Attributes:
        n: Memes of the group that it is over.
        count: Number of them that it counts.
        figure: The share, with Wilson's 95 % interval; None where ``n`` is 0.
        rest: The same share of the others; None where there are none.
        p: Two-sided p-value of Fisher's exact test of the two; None where either is missing, or no meme differs.
        corrected: The p-value after Holm's correction; None likewise.
    """

    n: int
    count: int
    figure: Figure | None
    rest: float | None
    p: float | None = None
    corrected: float | None = None

    @property
    def sure(self) -> bool:
        """True if the difference is larger than chance would often make it among so many."""
        return self.corrected is not None and self.corrected < SURE


@dataclass(frozen=True, slots=True)
class Subgroup:
    """Figures of one group. A meme without a class counts as wrong.

    Attributes:
        name: Name of the group.
        n: Its memes.
        harmful: Number of them whose gold label is harmful.
        accuracy: Share of labels that agree with gold.
        false_alarms: Share of the memes that are not harmful which were called harmful.
        misses: Share of the harmful memes that were not called harmful.
        silent: Share of memes without a class.
    """

    name: str
    n: int
    harmful: int
    accuracy: Share
    false_alarms: Share
    misses: Share
    silent: Share


SHARES = ("accuracy", "false_alarms", "misses", "silent")
"""The fields of a subgroup that are tested."""


@dataclass(frozen=True, slots=True)
class SubgroupTable:
    """Figures of all groups.

    Attributes:
        protocol: Protocol by which gold labels became two classes.
        n: Memes that are scored.
        groups: The largest first; a meme may be of several.
        tests: Number of tests that were made, over which p-values are corrected.
    """

    protocol: Protocol
    n: int
    groups: tuple[Subgroup, ...]
    tests: int


def groups_by(memes: Sequence[JudgedMeme], axis: str) -> dict[str, tuple[str, ...]]:
    """Groups of each meme by one of its own properties, by id.

    Args:
        memes: The memes.
        axis: One of :data:`AXES`: the card's group (a template, a source), the data set's own label, the language that
            the card names or else the detected one, the script of most of the text's letters, the split, or the targets
            that the data set names.

    Raises:
        BadRequest: There is no such property.
        NotLoaded: Languages are to be detected, and py3langid is not installed.
    """
    if axis not in AXES:
        raise BadRequest(f"Memes can't be grouped by {axis!r}; there are: {', '.join(AXES)}.", field="by")
    named: dict[str, Callable[[JudgedMeme], tuple[str, ...]]] = {
        "group": lambda meme: (meme.group or NONE,),
        "label": lambda meme: (meme.source_label,),
        "language": lambda meme: (meme.language or language_of(meme.text, DETECT) or UNKNOWN,),
        "script": lambda meme: (script_of(meme.text).lower() or NONE,),
        "split": lambda meme: (meme.split,),
        "target": lambda meme: meme.targets or (NONE,),
    }
    return {meme.id: named[axis](meme) for meme in memes}


def groups_of(results: Results, by: str) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Groups of each meme of a run by id, and the names of all groups in order.

    Args:
        results: Results of the run.
        by: A task of the data set's card, whose gold labels are the groups: memes of which the task says nothing are of
            none. Or else a property, as of :func:`groups_by`.

    Raises:
        BadRequest: There is no such task or property, or the data set's files are not where they were.
        NotLoaded: Languages are to be detected, and py3langid is not installed.
    """
    memes, manifest = [one.meme for one in results.judged], results.manifest
    try:
        dataset = dataset_of(manifest) if manifest else None
    except BadRequest:  # its properties are known without the card
        dataset = None
    tasks = {task.id: task for task in dataset.card.all_tasks()} if dataset else {}
    if dataset is None or manifest is None or by not in tasks:
        if by not in AXES:
            named = f" and the tasks {', '.join(tasks)}" if tasks else ""
            raise BadRequest(
                f"Memes of {results.name} can't be grouped by {by!r}. There are the properties {', '.join(AXES)}"
                f"{named}.",
                field="by",
            )
        of_meme = groups_by(memes, by)
        # By name, as no card puts these groups in an order.
        return of_meme, tuple(sorted({name for names in of_meme.values() for name in names}))
    court = dataset.card.court_task
    if manifest.question is not None:
        gold = {meme.id: meme.tasks[by] for meme in memes if by in meme.tasks}
    elif court is not None and by == court.id:
        gold = {meme.id: (meme.source_label,) for meme in memes}
    else:
        # Runs of trials keep no labels of other tasks.
        gold = gold_by_meme(dataset, Path(manifest.data_dir), results.split, by)
    return {meme: labels or (NO_LABEL,) for meme, labels in gold.items()}, (*tasks[by].labels, NO_LABEL)


def subgroup_table(results: Results, protocol: Protocol, groups: Mapping[str, Sequence[str]]) -> SubgroupTable:
    """Figures of each group of memes beside those of all others.

    Args:
        results: Gold labels and predictions.
        protocol: Protocol by which gold labels become two classes.
        groups: Names of each meme's groups, by id; memes that it lacks are of the group :data:`NONE`.

    Raises:
        BadRequest: The protocol leaves no meme to be scored.
        ValueError: The protocol is not for a data set of this kind.
    """
    pairs = results.under(protocol)
    if not pairs:
        raise BadRequest(
            f"Under the protocol {protocol} no meme of {results.name} is left to be scored.", reason="NOTHING_TO_SCORE"
        )
    by_group: dict[str, list[int]] = {}
    for place, (_, one) in enumerate(pairs):
        # A group that is named twice counts the meme once.
        for name in dict.fromkeys(groups.get(one.meme.id) or (NONE,)):
            by_group.setdefault(name, []).append(place)
    names = sorted(by_group, key=lambda name: (-len(by_group[name]), name))
    found = []
    for name in names:
        inside = set(by_group[name])
        own = [pair for place, pair in enumerate(pairs) if place in inside]
        # The others and not all: a large group would be compared with itself.
        rest = [pair for place, pair in enumerate(pairs) if place not in inside]
        counted = {field: _share(*_counts(own)[field], others=_counts(rest)[field]) for field in SHARES}
        harmful = sum(gold for gold, _ in own)
        found.append((name, len(own), harmful, counted))
    # All tests of the table are corrected together, of whichever share they are.
    tests = [(shares, field, share.p) for *_, shares in found for field, share in shares.items() if share.p is not None]
    for (shares, field, _), corrected in zip(tests, holm([p for *_, p in tests]), strict=True):
        shares[field] = replace(shares[field], corrected=corrected)
    return SubgroupTable(
        protocol=protocol,
        n=len(pairs),
        groups=tuple(Subgroup(name=name, n=n, harmful=harmful, **shares) for name, n, harmful, shares in found),
        tests=len(tests),
    )


def wilson(count: int, n: int) -> Figure | None:
    """A share with Wilson's 95 % interval (1927), which holds for few memes and shares near 0 and 1; None of none."""
    if not n:
        return None
    span = binomtest(count, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Figure(count / n, float(span.low), float(span.high))


def _counts(pairs: Sequence[tuple[bool, Judged]]) -> dict[str, tuple[int, int]]:
    """Counts the memes of each share, and those that it is over."""
    said = [(gold, one.prediction.outcome.harmful) for gold, one in pairs]
    harmful = [label for gold, label in said if gold]
    benign = [label for gold, label in said if not gold]
    return {
        "accuracy": (sum(label is gold for gold, label in said), len(said)),
        "false_alarms": (sum(label is True for label in benign), len(benign)),
        "misses": (sum(label is not True for label in harmful), len(harmful)),
        "silent": (sum(label is None for _, label in said), len(said)),
    }


def _share(count: int, n: int, others: tuple[int, int]) -> Share:
    rest, of = others
    # Where no meme counts, or all do, no test could tell anything; it would only weigh on the correction.
    testable = n and of and 0 < count + rest < n + of
    return Share(
        n=n,
        count=count,
        figure=wilson(count, n),
        rest=rest / of if of else None,
        p=float(fisher_exact([[count, n - count], [rest, of - rest]]).pvalue) if testable else None,
    )
