"""Blind sheets for people to rate, and their ratings: means with intervals, and agreement of raters.

A kind of sheet is data (:class:`SheetKind`). A sheet is JSON lines and a table (CSV) of the same items, with a
labelling configuration for Label Studio and a folder of the pictures, which it names by their paths. Items are in
random order under meaningless names; some come twice, to measure raters' self-agreement. The origin of each item is in
a separate key, which raters are not given.

Agreement is measured in four ways, as papers use the term loosely: Fleiss' kappa (scores as names), Cohen's kappa with
quadratic weights averaged over pairs of raters, Krippendorff's alpha for ordered scores
(:mod:`eval.scores.annotators`), and the share of repeated items to which a rater gave the same score.
"""

import csv
import hashlib
import io
import itertools
import json
import random
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from court.errors import BadRequest
from eval.datasets.record_files import read_json_lines
from eval.reports.sections import Section
from eval.scores.annotators import alpha
from eval.scores.means import mean_of
from eval.scores.measure import NOTHING, figure
from retrieval.library.sources import NOT_FOR_LIBRARIES
from serving.access.private_files import hand_on
from serving.docket.review.agreement import fleiss

_LOCAL_FILES = "/data/local-files/?d="
"""Address at which Label Studio serves files below its LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT."""
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_REPEATED = 0.1
"""Share of items that come a second time."""


class Rating(BaseModel):
    """One score by one person; a line of a file of ``--ratings``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    item: str = Field(min_length=1)
    who: str = Field(min_length=1)
    """Name or pseudonym of the person."""
    criterion: str = Field(min_length=1)
    score: int


Pictures = Callable[[str], tuple[bytes, ...]]
"""A meme's pictures as JPEG files, by its id."""
Criteria = Mapping[str, Mapping[str, Any]]
"""Questions that each item is scored by, by key: ``question``, and the scores ``low`` and ``high`` at the ends."""


def criteria_of(kind: str) -> Criteria:
    """Reads the criteria of a kind of sheet."""
    table = tomllib.loads((files("eval.reports") / "sheets.toml").read_text("utf-8"))[kind]
    return {key: {"low": 1, "high": 3, **row} for key, row in table.items()}


@dataclass(frozen=True, slots=True)
class RatedItem:
    """Something to be rated."""

    parts: tuple[tuple[str, str], ...]
    """Headings and texts."""
    origin: Mapping[str, Any]
    """Origin of the item, for the key only: its ``meme``, other strings, numbers, and lists of them."""


@dataclass(frozen=True, slots=True)
class SheetKind:
    """Description of what is rated."""

    criteria: Criteria
    items: Callable[[Path], Sequence[RatedItem]]
    """Lists all items in a folder; the same each time, in the same order."""
    evenly: str = ""
    """Entry of the origin of which each value is drawn equally often."""
    mark: str = ""
    """Mark that keeps each line out of every library of precedents; empty for none."""


class KeyEntry(BaseModel):
    """Entry of the key: an item of the sheet with its origin."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    repeat_of: str = ""
    """Name of the item's first occurrence; empty if this is the first."""
    origin: dict[str, Any]


class SheetKey(BaseModel):
    """The key of a sheet, ``NAME.key.json``: raters are not given it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    seed: int
    criteria: dict[str, tuple[int, int]]
    """Lowest and highest score of each criterion."""
    items: dict[str, KeyEntry] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class SheetRatings:
    """Ratings of a sheet."""

    key: SheetKey
    ratings: tuple[Rating, ...]
    """A person's last score of an item by a criterion alone."""

    def once(self) -> Iterator[tuple[Rating, Mapping[str, Any]]]:
        """Yields each rating with the origin of its item, without those of items that came a second time."""
        # Repeats measure self-agreement; anywhere else they would give their item double weight.
        for one in self.ratings:
            if not (entry := self.key.items[one.item]).repeat_of:
                yield one, entry.origin


def draw_items(items: Sequence[RatedItem], most: int, *, seed: int, evenly: str = "") -> list[RatedItem]:
    """Draws items, two about one meme only if there are too few memes. Raises BadRequest: There are none.

    Args:
        evenly: Entry of the origin of which each value is drawn equally often.
    """
    if not items:
        raise BadRequest("There is nothing of that kind to rate here yet.", reason="NOTHING_TO_RATE")
    counts: Counter[tuple[Any, str]] = Counter()
    groups: dict[Any, list[tuple[int, RatedItem]]] = defaultdict(list)
    for item in random.Random(f"drawn items {seed}").sample(items, len(items)):
        group = item.origin.get(evenly)
        # A second item about a meme sorts after all first ones.
        groups[group].append((counts[group, item.origin["meme"]], item))
        counts[group, item.origin["meme"]] += 1
    ranked = [sorted(group, key=itemgetter(0)) for group in groups.values()]
    # To the end of the smallest group.
    return [item for turn in zip(*ranked, strict=False) for _, item in turn][:most]


def write_sheet(
    stem: Path, what: str, kind: SheetKind, items: Sequence[RatedItem], *, seed: int, pictures: Pictures = lambda _: ()
) -> tuple[tuple[Path, ...], SheetKey]:
    """Writes a sheet as JSON lines, as a table and as a project of Label Studio, and its key.

    Args:
        stem: Path of the files without their endings.

    Returns:
        The paths of the lines, of the table, of the project, and of the key; and the key.
    """
    # Imported here, as jinja2 is slow to import.
    from serving.views.text import environment

    marked = {NOT_FOR_LIBRARIES: kind.mark} if kind.mark else {}
    folder = stem.with_suffix(".pictures").name
    shown = {meme: pictures(meme) for meme in dict.fromkeys(str(item.origin["meme"]) for item in items)}
    columns = {heading: re.sub(r"\W+", "_", heading) for item in items for heading, _ in item.parts}
    frames = [f"picture_{number}" for number in range(1, max(map(len, shown.values())) + 1)]
    lines, file, entries = [], io.StringIO(), {}
    names = ("item", *columns.values(), *frames, "who", *kind.criteria, *marked)
    table = csv.DictWriter(file, names, restval="", lineterminator="\n")
    table.writeheader()
    for name, repeat_of, item in _laid_out(items, seed):
        texts, paths = dict(item.parts), [_path(folder, jpeg) for jpeg in shown[str(item.origin["meme"])]]
        row = {**marked, "item": name, "parts": texts, "pictures": paths, "criteria": kind.criteria}
        lines.append(json.dumps(row, ensure_ascii=True) + "\n")
        # A spreadsheet would run a text that begins like a formula.
        cells = {columns[heading]: f"'{text}" if text[:1] in _FORMULAS else text for heading, text in texts.items()}
        addresses = dict(zip(frames, (f"{_LOCAL_FILES}{path}" for path in paths), strict=False))
        table.writerow({"item": name, **cells, **addresses, **marked})
        entries[name] = KeyEntry(repeat_of=repeat_of, origin=dict(item.origin))
    ends = {name: (one["low"], one["high"]) for name, one in kind.criteria.items()}
    key = SheetKey(what=what, seed=seed, criteria=ends, items=entries)
    project = environment("eval.reports").get_template("label-studio.xml")
    contents = {
        ".jsonl": "".join(lines),
        ".csv": file.getvalue(),
        ".label-studio.xml": project.render(columns=columns, frames=frames, criteria=kind.criteria),
        ".key.json": key.model_dump_json(indent=2) + "\n",
    }
    for ending, content in contents.items():
        _write(stem.with_suffix(ending), content.encode())
    for jpeg in {jpeg for those in shown.values() for jpeg in those}:
        _write(stem.parent / _path(folder, jpeg), jpeg)
    return tuple(stem.with_suffix(ending) for ending in contents), key


def _laid_out(items: Sequence[RatedItem], seed: int) -> Iterator[tuple[str, str, RatedItem]]:
    """Yields items in random order, some a second time, with their names and those of their first occurrences."""
    rng = random.Random(f"rating sheet {seed}")
    order = rng.sample(range(len(items)), len(items))
    # Items of the first half are repeated in the second, so that a repeat always follows its original.
    first, second = order[: len(order) // 2 + 1], order[len(order) // 2 + 1 :]
    second += rng.sample(first, min(round(_REPEATED * len(items)), len(first)))
    rng.shuffle(second)
    width = len(str(len(first) + len(second)))
    named: dict[int, str] = {}
    for number, place in enumerate([*first, *second], 1):
        name = f"r{number:0{width}}"
        yield name, named.get(place, ""), items[place]
        named.setdefault(place, name)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    # The process creates files readable by their owner only; a sheet is for others, as far as the umask allows.
    hand_on(path)


def _path(folder: str, jpeg: bytes) -> str:
    # Named by content: neither order nor meme can be read off it, and a picture is stored once.
    return f"{folder}/{hashlib.sha256(jpeg).hexdigest()[:16]}.jpg"


def read_sheet(key_file: Path, rated: Sequence[Path], kinds: Mapping[str, SheetKind]) -> SheetRatings:
    """Reads a key and files of ratings: JSON lines, or tables (CSV) such as a filled sheet or one from Label Studio.

    Raises BadRequest: A file or a line can't be read, or belongs to another sheet or command.
    """
    try:
        key = SheetKey.model_validate_json(key_file.read_bytes())
    except OSError:
        raise _unreadable(f"{key_file} can't be read: name the sheet's key.") from None
    except ValidationError:
        raise _unreadable(f"{key_file.name} is no key of a sheet.") from None
    if key.what not in kinds:
        raise _unreadable(f"{key_file.name} is of a sheet of {key.what}: another command's.")
    found: dict[tuple[str, str, str], Rating] = {}
    for path in rated:
        for number, one in _rated(path, key) if path.suffix == ".csv" else read_json_lines(path, Rating):
            # An unknown criterion gets an empty range, so that every score is rejected.
            low, high = key.criteria.get(one.criterion, (1, 0))
            if one.item not in key.items or not low <= one.score <= high:
                raise _unreadable(
                    f"{path.name}, line {number}: the sheet has no item {one.item} with a score of {one.score} for "
                    f"{one.criterion}. Name the key of the sheet that was rated."
                )
            found[one.item, one.who, one.criterion] = one
    if not found:
        raise _unreadable("There is no rating in these files.")
    return SheetRatings(key, tuple(found.values()))


def _unreadable(message: str) -> BadRequest:
    return BadRequest(message, reason="FILE_UNREADABLE")


def _rated(path: Path, key: SheetKey) -> Iterator[tuple[int, Rating]]:
    """Yields the ratings in the rows of a table; an empty cell is a question without an answer."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error):
        raise _unreadable(f"{path} can't be read.") from None
    for number, row in enumerate(rows, 2):
        # `annotator` in an export of Label Studio.
        about = {"item": row.get("item") or "", "who": row.get("who") or row.get("annotator") or ""}
        for criterion in key.criteria:
            if score := row.get(criterion) or "":
                try:
                    yield number, Rating.model_validate({**about, "criterion": criterion, "score": score.strip()})
                except ValidationError as error:
                    fault = error.errors()[0]
                    raise _unreadable(f"{path.name}, line {number}: {fault['loc'][0]}: {fault['msg']}.") from None


def summarise(rated: SheetRatings) -> list[dict[str, Any]]:
    """Figures of each criterion, in order of first appearance; None if undefined.

    An item counts once, however often it was shown. ``repeated`` counts scores of items that their rater scored twice,
    and ``alike`` is the share of these with the same score both times; ``cohen`` is the mean over pairs of raters.
    """
    scores: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for one, _ in rated.once():
        scores[one.criterion][one.item][one.who] = one.score
    twice: dict[str, list[bool]] = defaultdict(list)
    for one in rated.ratings:
        first = scores[one.criterion].get(rated.key.items[one.item].repeat_of, {})
        if one.who in first:
            twice[one.criterion].append(one.score == first[one.who])
    found = []
    for criterion, by_item in scores.items():
        # The bootstrap draws items with all their scores, as raters of an item see the same text.
        mean = mean_of([(item, float(score)) for item, own in by_item.items() for score in own.values()])
        # Only repeats were rated by this criterion.
        if mean is None:
            continue
        raters = sorted({who for own in by_item.values() for who in own})
        pairs = itertools.combinations(raters, 2)
        both = ([(own[a], own[b]) for own in by_item.values() if a in own and b in own] for a, b in pairs)
        kappas, alike = [kappa for each in both if (kappa := weighted_kappa(each)) is not None], twice[criterion]
        figures = {
            "criterion": criterion,
            "items": len(by_item),
            "raters": len(raters),
            "mean": mean,
            "fleiss": fleiss([[str(score) for score in own.values()] for own in by_item.values()]),
            "cohen": float(np.mean(kappas)) if kappas else None,
            "pairs": len(kappas),
            "alpha": alpha([list(own.values()) for own in by_item.values()]),
            "repeated": len(alike),
            "alike": float(np.mean(alike)) if alike else None,
        }
        found.append(figures)
    return found


def weighted_kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Cohen's kappa with quadratic weights; None if it is undefined, for example if all scores are equal."""
    from sklearn.metrics import cohen_kappa_score

    if len(pairs) < 2 or len({score for pair in pairs for score in pair}) < 2:
        return None
    one, other = zip(*pairs, strict=True)
    # Includes unused scores: weights depend on positions, and 2 and 5 must not become adjacent if 3 and 4 are unused.
    scores = range(min(*one, *other), max(*one, *other) + 1)
    return float(cohen_kappa_score(one, other, labels=scores, weights="quadratic"))


def rating_section(found: Sequence[Mapping[str, Any]], what: str, paper: Mapping[str, Any]) -> Section:
    """Means and agreement by criterion, beside those of a file of published figures."""
    published = paper["rated"].get(what, {})
    header = ("criterion", "items", "raters", "mean", "Fleiss’ κ", "Cohen’s κ, quadratic", "Krippendorff’s α")
    header = (*header, "alike again", *(("published", "agreement") if published else ()))
    rows = []
    for one in found:
        printed = published.get(one["criterion"], {})
        cells = [figure(printed.get(name), ".2f") for name in ("mean", "agreement")] if published else ()
        values = (figure(value, ".2f") for value in (one["mean"], one["fleiss"].value, one["cohen"], one["alpha"]))
        alike = NOTHING if one["alike"] is None else f"{one['alike']:.2f} of {one['repeated']:,}"
        rows.append((one["criterion"], f"{one['items']:,}", f"{one['raters']:,}", *values, alike, *cells))
    notes = [
        "Intervals are 95 %, by bootstrap over items. κ with quadratic weights is the mean over pairs of raters, α is "
        "for ordered scores; “alike again” is the share of items shown twice that their rater scored alike.",
        f"Published: {paper['source']}, whose measure of agreement is not named.",
    ]
    if own_agreement := paper.get("self_agreement", {}).get(what):
        notes.append(f"Published agreement with oneself: {own_agreement:.3f}.")
    return Section("ratings", "Ratings by criterion", (header, *rows), tuple(notes))
