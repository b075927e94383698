"""Outputs of a probe's agents as sheets for raters, and people's judgement beside the agents'."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from eval.probe.folder import MARK, MINED, REWRITTEN, SCORED, Mined, ProbeFolder, Scored, Step, small_pictures
from eval.reports.ratings import RatedItem, SheetKind, SheetRatings, criteria_of
from eval.reports.sections import Section
from eval.scores.measure import NOTHING, figure
from serving.docket.review.agreement import cohen

PAPER = "papers/adammeme"
"""File of published ratings."""


def pictures_of(root: Path) -> Callable[[str], tuple[bytes, ...]]:
    """Returns a function that reads a meme's pictures without text."""
    memes = {meme.id: meme for meme in ProbeFolder(root).memes()}
    return lambda meme: small_pictures(root, memes[meme], 400)


def _mined(root: Path) -> list[RatedItem]:
    """Lists pairs of a meme and a category, with 1 for those that the Miners found and 0 for others."""
    folder, texts = ProbeFolder(root), _texts(root)
    return [
        RatedItem(
            (("text", texts[one.meme]), ("kind of harm", category.line)),
            {"meme": one.meme, "category": category.name, "agent": int(category.name in one.categories)},
        )
        for one in folder.read(MINED, Mined)
        # For these, the Miners have no finding to compare with.
        if one.outcome != "unread"
        for category in folder.taxonomy()
    ]


def _scored(root: Path, *, answers: bool) -> list[RatedItem]:
    """Lists references of the Scorer, or the target's answers beside them with the scores that they got."""
    folder = ProbeFolder(root)
    lines = {category.name: category.line for category in folder.taxonomy()}
    items = []
    for one in folder.read(SCORED, Scored):
        about, scoring = (("text", one.text), ("asked about", lines[one.category])), one.scoring
        origin = {"meme": one.meme, "category": one.category}
        if answers and scoring.score is not None:
            parts = (*about, ("reference", scoring.reference), ("explanation", scoring.answer))
            items.append(RatedItem(parts, {**origin, "agent": scoring.score}))
        elif not answers and scoring.reference:
            items.append(RatedItem((*about, ("explanation", scoring.reference)), origin))
    return items


def _rewritten(root: Path) -> list[RatedItem]:
    texts = _texts(root)
    return [
        RatedItem(
            (("text as it was", texts[step.meme]), ("misbelief", step.misbelief), ("rewritten text", step.text)),
            {"meme": step.meme, "category": step.category, "seed": step.seed, "step": step.number},
        )
        for step in ProbeFolder(root).read(REWRITTEN, Step)
        if step.text
    ]


def _texts(root: Path) -> dict[str, str]:
    return {meme.id: meme.text for meme in ProbeFolder(root).memes()}


KINDS: Mapping[str, SheetKind] = {
    # Half of either, so that a rater who says yes to everything is right on no more than half.
    "mine": SheetKind(criteria_of("mine"), _mined, evenly="agent"),
    "references": SheetKind(criteria_of("explanations"), partial(_scored, answers=False)),
    "scores": SheetKind(criteria_of("scores"), partial(_scored, answers=True)),
    "rewritten": SheetKind(criteria_of("rewritten"), _rewritten, mark=MARK),
}


def agent_sections(rated: SheetRatings, paper: Mapping[str, Any], *, threshold: int) -> list[Section]:
    """People's judgement beside the agents': of the sorting, and of scores; none of what agents did not judge."""
    people: dict[str, list[int]] = defaultdict(list)
    agents: dict[str, float] = {}
    for one, origin in rated.once():
        people[one.item].append(one.score)
        agents[one.item] = float(origin.get("agent", 0))
    pairs = [(agents[item], fmean(scores)) for item, scores in sorted(people.items())]
    if rated.key.what == "mine":
        # Ties have no majority: those memes are in no figure.
        words = [(str(agent > 0.5), str(mean > 0.5)) for agent, mean in pairs if mean != 0.5]
        head = ("", "memes and categories", "accuracy", "κ", "published accuracy", "published κ")
        agreement = (_agreeing(words), figure(cohen(words).value), *paper["mined"].values())
        mined = ("Miners and people’s majority", f"{len(words):,}", *agreement)
        return [Section("agents", "Beside people", (head, mined), (f"Published: {paper['source']}, 200 memes.",))]
    if rated.key.what != "scores":
        return []
    rows = (
        ("", "mean score", "failed, %", "published score", "published failed, %"),
        ("Scorer", *_failures([agent for agent, _ in pairs], threshold), *paper["scored"]["scorer"]),
        ("people", *_failures([mean for _, mean in pairs], threshold), *paper["scored"]["people"]),
    )
    words = [(str(agent <= threshold), str(mean <= threshold)) for agent, mean in pairs]
    note = (
        f"On who failed they agree in {_agreeing(words)} of {len(words):,} cases, κ {figure(cohen(words).value)} "
        f"(people’s mean score, threshold {threshold}). Published: {paper['source']}, 616 cases, agreement .567 "
        "on scores and .738 on failures."
    )
    return [Section("agents", "Beside people", rows, (note,))]


def _agreeing(words: Sequence[tuple[str, str]]) -> str:
    return f"{fmean(one == other for one, other in words):.3f}" if words else NOTHING


def _failures(scores: Sequence[float], threshold: int) -> tuple[str, str]:
    """Mean score, and share of failures in per cent."""
    return f"{fmean(scores):.2f}", f"{100 * fmean(score <= threshold for score in scores):.2f}"
