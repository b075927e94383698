"""Ratings of people as sections of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from court.errors import BadRequest
from eval.datasets.json_lines import read_json_lines
from eval.reports.rating_sheet import SheetKey
from eval.reports.sections import Section
from eval.scores.ratings import CriterionRatings, Rating
from eval.scores.tables import figure


def read_ratings(paths: Sequence[Path], key: SheetKey) -> tuple[Rating, ...]:
    """Reads files of ratings.

    Args:
        paths: The files, each with the ratings of one rater or several.
        key: Key of the sheet that was rated.

    Raises:
        BadRequest: A line can't be read, or belongs to another sheet.
    """
    found = []
    for path in paths:
        for number, one in read_json_lines(path, Rating):
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


def rating_section(
    found: Sequence[CriterionRatings],
    published: Mapping[str, tuple[float, float | None]],
    *,
    source: str = "",
    published_self: float | None = None,
) -> Section:
    """Means and agreement by criterion.

    Args:
        published: Published mean and agreement by criterion.
        source: Publication of these; empty to name none.
        published_self: Published self-agreement; None if there is none.
    """
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
