"""Settings to choose from, and the splits that they may be chosen on."""

from collections.abc import Mapping, Sequence
from itertools import product

from pydantic import JsonValue

from court.errors import BadRequest
from eval.datasets.card import DatasetCard, SplitRole
from eval.datasets.items import JudgedMeme, Protocol
from eval.runs.plan import parse_setting
from eval.studies.arms import Arm

_FEWEST = 4
"""Fewest harmful and fewest harmless memes for a choice."""


def require_not_test(dataset: DatasetCard, split: str) -> None:
    """Raises BadRequest if settings must not be chosen on this split."""
    role = dataset.split(split).role
    # Validation only: train memes are the precedents, and test memes measure what was chosen.
    if role is SplitRole.VALIDATION:
        return
    fit = ", ".join(one.name for one in dataset.of_role(SplitRole.VALIDATION)) or "none"
    why = (
        "what was chosen on the memes that it is then measured on scores better than it is, and nobody can say by how "
        "much"
        if role is SplitRole.TEST
        else "its memes are the precedents themselves"
    )
    raise BadRequest(
        f"Settings are not chosen on {split}, a {role} split of {dataset.title}: {why}. Splits for choosing: {fit}.",
        reason="NOT_A_VALIDATION_SPLIT",
        field="split",
    )


def require_both_classes(memes: Sequence[JudgedMeme], protocol: Protocol) -> None:
    """Raises BadRequest if a protocol leaves too few memes of a class for a choice."""
    labels = [meme.gold(protocol) for meme in memes]
    harmful, others = labels.count(True), labels.count(False)
    if min(harmful, others) < _FEWEST:
        raise BadRequest(
            f"Under the protocol {protocol} there are {harmful} harmful and {others} other memes: too few to choose "
            f"anything by. It takes at least {_FEWEST} of each.",
            reason="TOO_FEW_TO_CHOOSE",
        )


def grid(axes: Mapping[str, Sequence[JsonValue]]) -> tuple[Arm, ...]:
    """An arm for every combination; a single arm with the study's own settings if there is no axis.

    Raises BadRequest: An axis has no values, or a duplicate.
    """
    for name, values in axes.items():
        # Compared as strings, since values that are written the same would share a folder.
        if not values or len({_word(value) for value in values}) < len(values):
            raise BadRequest(f"The grid's axis {name} needs values, each of them once.", field="grid")
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return tuple(
        Arm(
            name=",".join(f"{name}={_word(value)}" for name, value in point.items()) or "as-set",
            what="a point of the grid",
            overlay=point,
        )
        for point in points
    )


def parse_axis(text: str) -> tuple[str, tuple[JsonValue, ...]]:
    """Parses a setting and its values, ``name=v1,v2``. Raises BadRequest if there is no such setting."""
    name, _, values = text.partition("=")
    each = [parse_setting(f"{name}={value}") for value in values.split(",") if value.strip()]
    if not each:
        raise BadRequest(f"{text!r} names no values. Write NAME=V1,V2.", field="grid")
    return each[0][0], tuple(value for _, value in each)


def parse_thresholds(text: str) -> tuple[float, ...]:
    """Parses thresholds, ``t1,t2``, without duplicates. Raises BadRequest if one is not a number in [0, 1]."""
    try:
        # A duplicate threshold would be in the table twice.
        each = tuple(dict.fromkeys(float(one) for one in text.split(",") if one.strip()))
    except ValueError:
        # Outside of [0, 1], so that the check below fails.
        each = (-1.0,)
    if not all(0 <= one <= 1 for one in each):
        raise BadRequest(f"{text!r} holds something that is no score: thresholds lie in [0, 1].", field="thresholds")
    return each


def _word(value: JsonValue) -> str:
    """A value as part of a folder's name."""
    plain = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(c if c.isalnum() or c in "._+-" else "-" for c in plain)
