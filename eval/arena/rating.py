"""Guidelines, people and questions, and battles of an arena as sheets for raters, and guideline quality by round."""

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from eval.arena.agreement import HumanVerdict, battle_key, judged_in
from eval.arena.events import ContextSimulated, FusionBegun, FusionRound, TaskFormulated
from eval.arena.folder import ArenaFolder
from eval.arena.speakers import answers_of, rounds_of
from eval.arena.words import Relevance
from eval.reports.ratings import RatedItem, SheetKind, SheetRatings, criteria_of
from eval.reports.sections import Section
from eval.scores.means import mean_of
from eval.scores.measure import figure

PAPER = "papers/memearena"
"""File of published ratings."""


def guidelines(root: Path) -> list[RatedItem]:
    """Lists each guideline after each round of its fusion."""
    events = ArenaFolder(root).events()
    answers = answers_of(events)
    # Events may be in any order, and failed rounds have none.
    texts: dict[tuple[str, int], dict[int, tuple[str, str]]] = defaultdict(dict)
    for event in events:
        if isinstance(event, FusionBegun):
            own = answers[event.meme, event.task, event.judge]
            texts[event.meme, event.task][0] = (own.background, own.rounds[0])
        elif isinstance(event, FusionRound):
            texts[event.meme, event.task][event.round] = (event.background, event.reasoning)
    return [
        RatedItem(
            (("background knowledge", background), ("reasoning", reasoning)),
            {"meme": meme, "task": task, "round": number, "last": number == max(rounds)},
        )
        for (meme, task), rounds in sorted(texts.items())
        for number, (background, reasoning) in sorted(rounds.items())
    ]


def _contexts(root: Path) -> list[RatedItem]:
    """Lists memes with the three people and their questions."""
    events = ArenaFolder(root).events()
    questions = {(e.meme, str(e.relevance)): e.rounds[0] for e in events if isinstance(e, TaskFormulated)}
    items = []
    # Sorted, because a resumed arena finishes memes in another order, on which the draw must not depend.
    for event in sorted((e for e in events if isinstance(e, ContextSimulated)), key=lambda e: e.meme):
        # The three people in an order that does not reveal which is meant to be close to the meme.
        kinds = list(map(str, Relevance))
        random.Random(f"people {event.meme}").shuffle(kinds)
        parts: list[tuple[str, str]] = []
        for number, kind in enumerate(kinds, 1):
            parts.append((f"person {number}", str(getattr(event, kind))))
            if (event.meme, kind) in questions:
                parts.append((f"question {number}", questions[event.meme, kind]))
        items.append(RatedItem(tuple(parts), {"meme": event.meme, "people": kinds}))
    return items


def _battles(root: Path) -> list[RatedItem]:
    """Lists battles: a question and two answers, in an order of their own."""
    events = ArenaFolder(root).events()
    questions = rounds_of(events)
    answers = answers_of(events)
    items = []
    for battle in sorted(set(map(battle_key, judged_in(events)))):
        models = [battle.one, battle.other]
        # By name, strong models could be the first ones.
        random.Random(f"order {battle}").shuffle(models)
        shown = [answers[battle.meme, battle.task, model] for model in models]
        a, b = ("\n\n".join(filter(None, (one.background, *one.rounds))) for one in shown)
        parts = (("question", "\n\n".join(questions[battle.meme, battle.task])), ("A", a), ("B", b))
        items.append(RatedItem(parts, {"meme": battle.meme, "task": battle.task, "a": models[0], "b": models[1]}))
    return items


KINDS: Mapping[str, SheetKind] = {
    "guidelines": SheetKind(criteria_of("explanations"), guidelines),
    "contexts": SheetKind(criteria_of("contexts"), _contexts),
    "battles": SheetKind(criteria_of("battles"), _battles),
}


def human_verdicts(rated: SheetRatings) -> tuple[HumanVerdict, ...]:
    """Returns people's verdicts on the battles of a sheet; a battle that was shown again counts once."""
    better: Mapping[int, Literal["one", "tie", "other"]] = {1: "one", 2: "tie", 3: "other"}
    return tuple(
        HumanVerdict(
            meme=origin["meme"],
            task=origin["task"],
            one=origin["a"],
            other=origin["b"],
            who=one.who,
            better=better[one.score],
        )
        for one, origin in rated.once()
    )


def measures_by_round(items: Sequence[RatedItem]) -> list[dict[str, Any]]:
    """Measures by round what needs no raters: mean length in words, and how much is kept from the round before.

    Kept is the mean share of words in both texts, of words in either (Jaccard); None in round 0.
    """
    texts: dict[int, dict[tuple[str, int], list[str]]] = defaultdict(dict)
    for item in items:
        text = " ".join(words for _, words in item.parts)
        texts[item.origin["round"]][item.origin["meme"], item.origin["task"]] = re.findall(r"\w+", text.lower())
    found = []
    for number, here in sorted(texts.items()):
        # A round that failed left no text.
        pairs = [(set(here[key]), set(before)) for key, before in texts.get(number - 1, {}).items() if key in here]
        shares = [len(now & before) / max(1, len(now | before)) for now, before in pairs]
        overlap = fmean(shares) if shares else None
        found.append({"round": number, "n": len(here), "words": fmean(map(len, here.values())), "kept": overlap})
    return found


def measure_section(measures: Sequence[Mapping[str, Any]]) -> Section:
    """Builds a table of the measures by round."""
    rows = ((str(one["round"]), f"{one['n']:,}", f"{one['words']:.0f}", figure(one["kept"], ".0%")) for one in measures)
    note = "Kept: words that a text and the one before it have in common, of all that they have (Jaccard)."
    return Section("measures", "By round of the fusion", (("round", "guidelines", "words", "kept"), *rows), (note,))


def ratings_by_round(rated: SheetRatings) -> list[dict[str, Any]]:
    """Computes the mean score by round of the fusion, all criteria together."""
    scores: dict[int, list[tuple[str, float]]] = defaultdict(list)
    items: dict[int, set[str]] = defaultdict(set)
    for one, origin in rated.once():
        scores[origin["round"]].append((origin["meme"], float(one.score)))
        items[origin["round"]].add(one.item)
    return [
        {"round": number, "items": len(items[number]), "mean": mean_of(values)}
        for number, values in sorted(scores.items())
    ]


def plateau(rounds: Sequence[Mapping[str, Any]]) -> int | None:
    """Finds the round after which scores no longer rise; None if they still rise in the last round.

    No later round's mean exceeds that round's mean by half the width of the later round's interval or more.
    """
    for place, here in enumerate(rounds[:-1]):
        later = (one["mean"] for one in rounds[place + 1 :])
        if not any(mean.value - here["mean"].value >= (mean.high - mean.low) / 2 for mean in later):
            return int(here["round"])
    return None


def round_section(rounds: Sequence[Mapping[str, Any]], end: int | None) -> Section:
    """Builds a table of mean ratings by round, with the round after which scores no longer rise."""
    rows = [(str(one["round"]), f"{one['items']:,}", figure(one["mean"], ".2f")) for one in rounds]
    if len(rounds) < 2:
        note = "Guidelines of several rounds (--rounds 0-14) show from which one on nothing is gained."
    elif end is None:
        note = "The last round that was rated still gained half the width of its interval or more."
    else:
        note = (
            f"After round {end}, no further one gains half the width of its interval: with "
            f"fusion_rounds = {max(1, end)} in [arena] the calls of all later ones are saved. Published: about 8 of 14."
        )
    notes = ("All criteria together; intervals are 95 %, by bootstrap over memes.", note)
    return Section("rounds", "By round of the fusion", (("round", "guidelines", "mean score"), *rows), notes)
