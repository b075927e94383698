"""Blind sheets for people to rate, and their ratings: means with intervals, and agreement of raters.

A sheet is JSON lines and a table (CSV) of the same items, with a labelling configuration for Label Studio and a folder
of the pictures, which it names by their paths. Items are in random order under meaningless names; some come twice, to
measure raters' self-agreement. The origin of each item is in a separate key, which raters are not given.

Agreement is measured in four ways, as papers use the term loosely: Fleiss' kappa (scores as names), Cohen's kappa with
quadratic weights averaged over pairs of raters, Krippendorff's alpha for ordered scores
(:mod:`eval.scores.annotators`), and the share of repeated items to which a rater gave the same score.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import random
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from court.errors import BadRequest
from eval.datasets.record_files import read_json_lines
from eval.reports.sections import Section
from eval.scores.annotators import alpha
from eval.scores.means import mean_of
from eval.scores.measure import Figure, figure
from retrieval.library.sources import NOT_FOR_LIBRARIES
from serving.access.private_files import hand_on
from serving.docket.review.agreement import Kappa, fleiss

_VEIL = """
.veiled img, .veiled canvas { filter: blur(24px); transition: filter 0s 20s; }
.veiled:active img, .veiled:active canvas { filter: none; transition: none; }
"""
"""Style of a project of Label Studio: a picture is blurred, until it is clicked and for 20 seconds from then."""
_LOCAL_FILES = "/data/local-files/?d="
"""Address at which Label Studio serves files below its LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT."""
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


class Rating(BaseModel):
    """One score by one person; a line of a file of ``--ratings``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    item: str = Field(min_length=1)
    who: str = Field(min_length=1)
    """Name or pseudonym of the person."""
    criterion: str = Field(min_length=1)
    score: int


@dataclass(frozen=True, slots=True)
class Criterion:
    """A question that each item is scored by."""

    key: str
    words: str
    low: int = 1
    high: int = 3


EXPLANATION_CRITERIA = (
    Criterion("conciseness", "Does it say what it says without repetition or filler? (3: nothing could go)"),
    Criterion("informativeness", "Does it tell what one has to know to see the harm? (3: nothing is missing)"),
    Criterion("persuasiveness", "Do its reasons convince? (3: fully)"),
    Criterion("readability", "Is it easy to read and well ordered? (3: at once)"),
    Criterion("soundness", "Is it right about the meme, without errors or leaps? (3: in all)"),
)
"""Criteria by which MemeArena and AdamMeme had explanations of a meme's harm rated."""


@dataclass(frozen=True, slots=True)
class RatedItem:
    """Something to be rated."""

    parts: tuple[tuple[str, str], ...]
    origin: Mapping[str, Any]
    """Origin of the item, for the key only: strings, numbers and lists of them."""
    pictures: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class SheetLine:
    """An item at its position in the sheet."""

    id: str
    item: RatedItem
    repeat_of: str = ""
    """Name of the item's first occurrence; empty if this is the first."""


class KeyEntry(BaseModel):
    """Entry of the key: an item of the sheet with its origin."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    repeat_of: str = ""
    origin: dict[str, Any]


class SheetKey(BaseModel):
    """The key of a sheet, ``NAME.key.json``: raters are not given it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    seed: int
    criteria: dict[str, tuple[int, int]]
    """Lowest and highest score of each criterion."""
    items: dict[str, KeyEntry] = Field(min_length=1)

    @property
    def repeat_of(self) -> dict[str, str]:
        """Original of each repeated item."""
        return {name: entry.repeat_of for name, entry in self.items.items() if entry.repeat_of}


def lay_out(items: Sequence[RatedItem], *, seed: int, repeats: float = 0.1) -> tuple[SheetLine, ...]:
    """Puts items into random order and repeats some of them.

    Args:
        repeats: Share of items that are repeated in the second half.
    """
    rng = random.Random(f"rating sheet {seed}")
    order = list(range(len(items)))
    rng.shuffle(order)
    # Items of the first half are repeated in the second, so that a repeat always follows its original.
    repeated = rng.sample(order[: len(order) // 2 + 1], min(round(repeats * len(items)), len(order) // 2 + 1))
    first, second = order[: len(order) // 2 + 1], [*order[len(order) // 2 + 1 :], *repeated]
    rng.shuffle(second)
    width = len(str(len(items) + len(repeated)))
    lines: list[SheetLine] = []
    named: dict[int, str] = {}
    for number, place in enumerate([*first, *second], 1):
        name = f"r{number:0{width}}"
        lines.append(SheetLine(name, items[place], repeat_of=named.get(place, "")))
        # The first place of an item; a later one repeats it.
        named.setdefault(place, name)
    return tuple(lines)


def write_sheet(
    stem: Path, what: str, lines: Sequence[SheetLine], criteria: Sequence[Criterion], *, seed: int, mark: str = ""
) -> tuple[Path, Path, Path, Path]:
    """Writes a sheet as JSON lines, as a table and as a project of Label Studio, and its key.

    Args:
        stem: Path of the files without their endings.
        mark: Mark that keeps each line out of every library of precedents; empty for none.

    Returns:
        The paths of the lines, of the table, of the project, and of the key.
    """
    marked = {NOT_FOR_LIBRARIES: mark} if mark else {}
    folder = stem.with_suffix(".pictures").name
    scales = {one.key: {"question": one.words, "low": one.low, "high": one.high} for one in criteria}
    rows = [
        {
            **marked,
            "item": line.id,
            "parts": dict(line.item.parts),
            "pictures": [_path(folder, jpeg) for jpeg in line.item.pictures],
            "criteria": scales,
        }
        for line in lines
    ]
    key = SheetKey(
        what=what,
        seed=seed,
        criteria={one.key: (one.low, one.high) for one in criteria},
        items={line.id: KeyEntry(repeat_of=line.repeat_of, origin=dict(line.item.origin)) for line in lines},
    )
    headings = list(dict.fromkeys(name for line in lines for name, _ in line.item.parts))
    pictures = max((len(line.item.pictures) for line in lines), default=0)
    contents = {
        ".jsonl": "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows),
        ".csv": _table(lines, headings, pictures, criteria=criteria, marked=marked, folder=folder),
        ".label-studio.xml": _project(headings, pictures, criteria),
        ".key.json": key.model_dump_json(indent=2) + "\n",
    }
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = tuple(stem.with_suffix(ending) for ending in contents)
    for path, content in zip(paths, contents.values(), strict=True):
        path.write_text(content, encoding="utf-8")
        # The process creates files readable by their owner only; a sheet is for others, as far as the umask allows.
        hand_on(path)
    for jpeg in {jpeg for line in lines for jpeg in line.item.pictures}:
        path = stem.parent / _path(folder, jpeg)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg)
        hand_on(path)
    return paths[0], paths[1], paths[2], paths[3]


def _path(folder: str, jpeg: bytes) -> str:
    # Named by content: neither order nor meme can be read off it, and a picture is stored once.
    return f"{folder}/{hashlib.sha256(jpeg).hexdigest()[:16]}.jpg"


def _column(heading: str) -> str:
    return re.sub(r"\W+", "_", heading)


def _table(
    lines: Sequence[SheetLine],
    headings: Sequence[str],
    pictures: int,
    criteria: Sequence[Criterion],
    marked: Mapping[str, str],
    folder: str,
) -> str:
    file = io.StringIO()
    shown = [f"picture_{number}" for number in range(1, pictures + 1)]
    columns = ("item", *map(_column, headings), *shown, "who", *(one.key for one in criteria), *marked)
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for line in lines:
        # A spreadsheet would run a text that begins like a formula.
        texts = {_column(name): f"'{text}" if text[:1] in _FORMULAS else text for name, text in line.item.parts}
        addresses = (f"{_LOCAL_FILES}{_path(folder, jpeg)}" for jpeg in line.item.pictures)
        frames = dict(zip(shown, addresses, strict=False))
        writer.writerow({"item": line.id, **texts, **frames, **marked})
    return file.getvalue()


def _project(headings: Sequence[str], pictures: int, criteria: Sequence[Criterion]) -> str:
    """The labelling configuration for Label Studio, into which the table is imported."""
    view = ElementTree.Element("View")
    if pictures:
        ElementTree.SubElement(view, "Style").text = _VEIL
    veiled = ElementTree.SubElement(view, "View", className="veiled")
    for number in range(1, pictures + 1):
        ElementTree.SubElement(veiled, "Image", name=f"picture_{number}", value=f"$picture_{number}")
    for heading in headings:
        ElementTree.SubElement(view, "Header", value=heading)
        ElementTree.SubElement(view, "Text", name=_column(heading), value=f"${_column(heading)}")
    for one in criteria:
        ElementTree.SubElement(view, "Header", value=one.words)
        choices = ElementTree.SubElement(
            view, "Choices", name=one.key, toName=_column(headings[0]), choice="single-radio", required="true"
        )
        for score in range(one.low, one.high + 1):
            ElementTree.SubElement(choices, "Choice", value=str(score))
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"


def read_key(path: Path) -> SheetKey:
    """Reads the key of a sheet. Raises BadRequest if it can't be read."""
    try:
        return SheetKey.model_validate_json(path.read_bytes())
    except OSError:
        raise BadRequest(f"{path} can't be read: name the sheet's key.", reason="FILE_UNREADABLE") from None
    except ValidationError:
        raise BadRequest(f"{path.name} is no key of a sheet.", reason="FILE_UNREADABLE") from None


def read_ratings(paths: Sequence[Path], key: SheetKey) -> tuple[Rating, ...]:
    """Reads files of ratings: JSON lines, or tables (CSV) such as a filled sheet or an export of Label Studio.

    Raises BadRequest: A line can't be read, or belongs to another sheet.
    """
    found = []
    for path in paths:
        for number, one in _rated(path, key) if path.suffix == ".csv" else read_json_lines(path, Rating):
            # An unknown criterion gets an empty range, so that every score is rejected.
            low, high = key.criteria.get(one.criterion, (1, 0))
            if one.item not in key.items or not low <= one.score <= high:
                raise BadRequest(
                    f"{path.name}, line {number}: the sheet has no item {one.item} with a score of {one.score} for "
                    f"{one.criterion}. Name the key of the sheet that was rated.",
                    reason="FILE_UNREADABLE",
                )
            found.append(one)
    if not found:
        raise BadRequest("There is no rating in these files.", reason="FILE_UNREADABLE")
    return tuple(found)


def _rated(path: Path, key: SheetKey) -> Iterator[tuple[int, Rating]]:
    """Yields the ratings in the rows of a table; an empty cell is a question without an answer."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error):
        raise BadRequest(f"{path} can't be read.", reason="FILE_UNREADABLE") from None
    for number, row in enumerate(rows, 2):
        # `annotator` in an export of Label Studio.
        who = row.get("who") or row.get("annotator") or ""
        for criterion in key.criteria:
            if score := row.get(criterion) or "":
                try:
                    one = Rating.model_validate(
                        {"item": row.get("item") or "", "who": who, "criterion": criterion, "score": score.strip()}
                    )
                except ValidationError as error:
                    fault = error.errors()[0]
                    raise BadRequest(
                        f"{path.name}, line {number}: {fault['loc'][0]}: {fault['msg']}.", reason="FILE_UNREADABLE"
                    ) from None
                yield number, one


@dataclass(frozen=True, slots=True)
class SelfAgreement:
    """Agreement of raters with themselves, on items that they were shown twice."""

    n: int
    alike: float | None
    kappa: float | None
    """Cohen's kappa with quadratic weights; None if it is undefined."""


@dataclass(frozen=True, slots=True)
class CriterionRatings:
    """Ratings by one criterion."""

    criterion: str
    items: int
    """Number of items that were rated, each counted once however often it was shown."""
    raters: int
    mean: Figure
    fleiss: Kappa
    cohen: float | None
    """Mean of Cohen's kappa with quadratic weights over pairs of raters; None if it is undefined for all."""
    pairs: int
    alpha: float | None
    self_agreement: SelfAgreement


def summarise(ratings: Sequence[Rating], repeat_of: Mapping[str, str]) -> tuple[CriterionRatings, ...]:
    """Figures of each criterion, in order of first appearance.

    Args:
        ratings: Scores; a person's last score of an item by a criterion replaces earlier ones.
    """
    found = []
    for criterion in dict.fromkeys(one.criterion for one in ratings):
        own = {(one.item, one.who): one.score for one in ratings if one.criterion == criterion}
        # Repeats only count for self-agreement; otherwise their item would have double weight.
        first = {key: score for key, score in own.items() if key[0] not in repeat_of}
        repeated = [
            (own[repeat_of[item], who], score)
            for (item, who), score in own.items()
            if item in repeat_of and (repeat_of[item], who) in own
        ]
        # Only repeats were rated by this criterion.
        if not first:
            continue
        by_item: dict[str, dict[str, int]] = defaultdict(dict)
        for (item, who), score in first.items():
            by_item[item][who] = score
        # The bootstrap draws items with all their scores, as raters of an item see the same text.
        mean = mean_of([(item, float(score)) for (item, _), score in first.items()])
        assert mean is not None
        kappas = _pairwise(by_item)
        found.append(
            CriterionRatings(
                criterion=criterion,
                items=len(by_item),
                raters=len({who for _, who in first}),
                mean=mean,
                fleiss=fleiss([[str(score) for score in scores.values()] for scores in by_item.values()]),
                cohen=float(np.mean(kappas)) if kappas else None,
                pairs=len(kappas),
                alpha=alpha([list(scores.values()) for scores in by_item.values()]),
                self_agreement=SelfAgreement(
                    n=len(repeated),
                    alike=float(np.mean([one == other for one, other in repeated])) if repeated else None,
                    kappa=weighted_kappa(repeated),
                ),
            )
        )
    return tuple(found)


def weighted_kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Cohen's kappa with quadratic weights; None if it is undefined, for example if all scores are equal."""
    from sklearn.metrics import cohen_kappa_score

    if len(pairs) < 2 or len({score for pair in pairs for score in pair}) < 2:
        return None
    one, other = zip(*pairs, strict=True)
    # Includes unused scores: weights depend on positions, and 2 and 5 must not become adjacent if 3 and 4 are unused.
    scores = range(min(*one, *other), max(*one, *other) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 0 / 0, which shows in the result
        value = float(cohen_kappa_score(one, other, labels=scores, weights="quadratic"))
    return None if np.isnan(value) else value


def _pairwise(by_item: Mapping[str, Mapping[str, int]]) -> list[float]:
    raters = sorted({who for scores in by_item.values() for who in scores})
    found = []
    for one, other in itertools.combinations(raters, 2):
        value = weighted_kappa(
            [(scores[one], scores[other]) for scores in by_item.values() if one in scores and other in scores]
        )
        if value is not None:
            found.append(value)
    return found


def rating_section(
    found: Sequence[CriterionRatings],
    published: Mapping[str, tuple[float, float | None]],
    *,
    source: str = "",
    published_self: float | None = None,
) -> Section:
    """Means and agreement by criterion."""
    header = (
        *(
            "criterion",
            "items",
            "raters",
            "mean",
            "Fleiss’ κ",
            "Cohen’s κ, quadratic",
            "Krippendorff’s α",
            "alike again",
        ),
        *("published", "agreement") * bool(published),
    )
    rows = [
        (
            one.criterion,
            f"{one.items:,}",
            f"{one.raters:,}",
            figure(one.mean, ".2f"),
            figure(one.fleiss.value, ".2f"),
            figure(one.cohen, ".2f"),
            figure(one.alpha, ".2f"),
            "–" if one.self_agreement.alike is None else f"{one.self_agreement.alike:.2f} of {one.self_agreement.n:,}",
            *(_published(published, one.criterion) if published else ()),
        )
        for one in found
    ]
    notes = [
        "Intervals are 95 %, by bootstrap over items. κ with quadratic weights is the mean over pairs of raters, α is "
        "for ordered scores; “alike again” is the share of items shown twice that their rater scored alike.",
    ]
    if source:
        notes.append(f"Published: {source}, whose measure of agreement is not named.")
    if published_self is not None:
        notes.append(f"Published agreement with oneself: {published_self:.3f}.")
    return Section("ratings", "Ratings by criterion", (header, *rows), tuple(notes))


def _published(published: Mapping[str, tuple[float, float | None]], criterion: str) -> tuple[str, str]:
    if criterion not in published:
        return "–", "–"
    mean, agreement = published[criterion]
    return f"{mean:.2f}", figure(agreement, ".2f")
