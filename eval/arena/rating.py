"""Guidelines, people and questions of an arena as items for raters, and guideline quality by round of the fusion."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from court.errors import BadRequest
from eval.arena.agreement import HumanVerdict, battle_key
from eval.arena.events import Answered, ContextSimulated, Event, FusionBegun, FusionRound, Judged, TaskFormulated
from eval.arena.words import Relevance
from eval.reports.ratings import EXPLANATION_CRITERIA, Criterion, RatedItem, Rating, SheetKey
from eval.reports.sections import Section
from eval.scores.means import mean_of
from eval.scores.measure import Figure, figure

GUIDELINES, CONTEXTS, BATTLES = "guidelines", "contexts", "battles"
CRITERIA: Mapping[str, tuple[Criterion, ...]] = {
    GUIDELINES: EXPLANATION_CRITERIA,
    CONTEXTS: (
        Criterion("context_diversity", "How different are the three people? (3: very)"),
        Criterion("realistic_views", "Could such people exist and see it so? (3: surely)"),
        Criterion("instruction_suitability", "Can meme and common knowledge answer the questions? (3: all)"),
        Criterion("task_coverage", "Do the questions together cover what the meme is about? (3: all of it)"),
        Criterion("relevance_to_context", "Does each question come out of its person's background? (3: each)"),
    ),
    BATTLES: (Criterion("better", "Which is the better answer to the question? (1: A, 2: neither, 3: B)"),),
}
PAPER = "memearena"
"""File of published ratings."""
_WORD = re.compile(r"\w+")
Pictures = Callable[[str], tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class GuidelineText:
    """A guideline after one round of its fusion."""

    meme: str
    task: int
    round: int
    background: str
    reasoning: str
    last: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Lower-case words of the guideline."""
        return tuple(_WORD.findall(f"{self.background} {self.reasoning}".lower()))


@dataclass(frozen=True, slots=True)
class RoundMeasures:
    """Automatic measures of guidelines after one round, which need no raters."""

    round: int
    n: int
    words: float
    kept: float | None
    """Mean share of words in both this text and the previous one, of words in either; None in round 0."""


@dataclass(frozen=True, slots=True)
class RoundRatings:
    """Ratings of guidelines after one round, all criteria together."""

    round: int
    items: int
    mean: Figure


def guideline_texts(events: Sequence[Event]) -> tuple[GuidelineText, ...]:
    """Lists each guideline after each round, in the order of tasks and rounds."""
    answers = {(e.meme, e.task, e.target): e for e in events if isinstance(e, Answered)}
    texts: dict[tuple[str, int], list[GuidelineText]] = defaultdict(list)
    for event in events:
        if isinstance(event, FusionBegun):
            own = answers.get((event.meme, event.task, event.judge))
            if own is not None:
                start = GuidelineText(event.meme, event.task, 0, background=own.background, reasoning=own.reasoning[0])
                texts[event.meme, event.task].append(start)
        elif isinstance(event, FusionRound):
            texts[event.meme, event.task].append(
                GuidelineText(
                    event.meme, event.task, event.round, background=event.background, reasoning=event.reasoning
                )
            )
    found = []
    for key in sorted(texts):
        # Events may be in any order, and failed rounds have none: the highest round present is the guideline.
        ordered = sorted(texts[key], key=lambda text: text.round)
        found += [*ordered[:-1], replace(ordered[-1], last=True)]
    return tuple(found)


def guideline_items(
    texts: Sequence[GuidelineText],
    *,
    rounds: Sequence[int] | None,
    per_round: int,
    seed: int,
    pictures: Pictures = lambda _: (),
) -> tuple[RatedItem, ...]:
    """Draws guidelines for raters, of different memes within a round as far as possible.

    Raises BadRequest: There is no guideline to draw from.
    """
    drawn: list[GuidelineText] = []
    for number in [None] if rounds is None else rounds:
        of_round = [text for text in texts if (text.last if number is None else text.round == number)]
        drawn += _different_memes(of_round, per_round, random.Random(f"guidelines {seed} {number}"))
    if not drawn:
        raise BadRequest("This arena has no guideline of these rounds to rate.", reason="NOTHING_TO_RATE")
    return tuple(
        RatedItem(
            parts=(("background knowledge", text.background), ("reasoning", text.reasoning)),
            origin={"meme": text.meme, "task": text.task, "round": text.round, "last": text.last},
            pictures=pictures(text.meme),
        )
        for text in drawn
    )


def context_items(
    events: Sequence[Event], *, most: int, seed: int, pictures: Pictures = lambda _: ()
) -> tuple[RatedItem, ...]:
    """Draws memes with the three people and their questions for raters.

    Raises BadRequest: There are no contexts, as when questions are supplied.
    """
    questions = {(e.meme, str(e.relevance)): e.rounds[0] for e in events if isinstance(e, TaskFormulated)}
    # Sorted, because a resumed arena finishes memes in another order, on which the draw must not depend.
    contexts = sorted((e for e in events if isinstance(e, ContextSimulated)), key=lambda e: e.meme)
    if not contexts:
        raise BadRequest("Nobody was made up in this arena: there are no contexts to rate.", reason="NOTHING_TO_RATE")
    drawn = random.Random(f"contexts {seed}").sample(contexts, min(most, len(contexts)))
    items = []
    for event in drawn:
        # The three people in an order that does not reveal which is meant to be close to the meme.
        kinds = list(map(str, Relevance))
        random.Random(f"people {seed} {event.meme}").shuffle(kinds)
        parts: list[tuple[str, str]] = []
        for number, kind in enumerate(kinds, 1):
            parts.append((f"person {number}", str(getattr(event, kind))))
            if (event.meme, kind) in questions:
                parts.append((f"question {number}", questions[event.meme, kind]))
        items.append(RatedItem(tuple(parts), {"meme": event.meme, "people": kinds}, pictures=pictures(event.meme)))
    return tuple(items)


def battle_items(
    events: Sequence[Event], *, most: int, seed: int, pictures: Pictures = lambda _: ()
) -> tuple[RatedItem, ...]:
    """Draws battles for raters: a question and two answers, in an order of their own.

    Raises BadRequest: Nothing was judged.
    """
    questions = {(e.meme, e.task): e.rounds for e in events if isinstance(e, TaskFormulated)}
    answers = {(e.meme, e.task, e.target): e for e in events if isinstance(e, Answered)}
    battles = sorted({battle_key(e) for e in events if isinstance(e, Judged) and e.study == "arena"})
    if not battles:
        raise BadRequest("This arena has no battle to rate.", reason="NOTHING_TO_RATE")
    rng = random.Random(f"battles {seed}")
    items = []
    for battle in rng.sample(battles, min(most, len(battles))):
        models = [battle.one, battle.other]
        # By name, strong models could be the first ones.
        rng.shuffle(models)
        shown = [answers[battle.meme, battle.task, model] for model in models]
        texts = ["\n\n".join(filter(None, (one.background, *one.reasoning))) for one in shown]
        question = "\n\n".join(questions[battle.meme, battle.task])
        origin = {"meme": battle.meme, "task": battle.task, "a": models[0], "b": models[1]}
        parts = (("question", question), ("A", texts[0]), ("B", texts[1]))
        items.append(RatedItem(parts, origin, pictures=pictures(battle.meme)))
    return tuple(items)


def human_verdicts(ratings: Sequence[Rating], key: SheetKey) -> tuple[HumanVerdict, ...]:
    """Returns people's verdicts on the battles of a sheet; a battle that was shown again counts once."""
    better: Mapping[int, Literal["one", "tie", "other"]] = {1: "one", 2: "tie", 3: "other"}
    found = []
    for one in ratings:
        if key.items[one.item].repeat_of:
            continue
        origin = key.items[one.item].origin
        about = {"meme": origin["meme"], "task": origin["task"], "one": origin["a"], "other": origin["b"]}
        found.append(HumanVerdict(**about, who=one.who, better=better[one.score]))
    return tuple(found)


def measures_by_round(texts: Sequence[GuidelineText]) -> tuple[RoundMeasures, ...]:
    """Measures the length of guidelines, and how much of each is kept from round to round."""
    before = {(text.meme, text.task, text.round): set(text.words) for text in texts}
    found = []
    for number in sorted({text.round for text in texts}):
        of_round = [text for text in texts if text.round == number]
        shares = [
            # Shared words divided by all words (Jaccard).
            len(earlier & set(text.words)) / max(1, len(earlier | set(text.words)))
            for text in of_round
            if (earlier := before.get((text.meme, text.task, number - 1))) is not None
        ]
        found.append(
            RoundMeasures(
                round=number,
                n=len(of_round),
                words=float(np.mean([len(text.words) for text in of_round])),
                kept=float(np.mean(shares)) if shares else None,
            )
        )
    return tuple(found)


def ratings_by_round(ratings: Sequence[Rating], key: SheetKey) -> tuple[RoundRatings, ...]:
    """Computes the mean score by round of the fusion, all criteria together."""
    by_round: dict[int, list[tuple[str, float]]] = defaultdict(list)
    items: dict[int, set[str]] = defaultdict(set)
    for one in ratings:
        entry = key.items.get(one.item)
        # Repeats measure self-agreement; here they would give their item double weight.
        if entry is None or entry.repeat_of:
            continue
        number = int(entry.origin["round"])
        by_round[number].append((str(entry.origin["meme"]), float(one.score)))
        items[number].add(one.item)
    found = []
    for number in sorted(by_round):
        mean = mean_of(by_round[number])
        assert mean is not None
        found.append(RoundRatings(number, len(items[number]), mean))
    return tuple(found)


def plateau(rounds: Sequence[RoundRatings]) -> int | None:
    """Finds the round after which scores no longer rise; None if they still rise in the last round.

    No later round's mean exceeds that round's mean by half the width of the later round's interval or more.
    """
    for place, here in enumerate(rounds[:-1]):
        gains = [one.mean.value - here.mean.value >= (one.mean.high - one.mean.low) / 2 for one in rounds[place + 1 :]]
        if not any(gains):
            return here.round
    return None


def _different_memes(texts: Sequence[GuidelineText], most: int, rng: random.Random) -> list[GuidelineText]:
    """Draws texts; two of one meme only if there are too few memes."""
    shuffled = list(texts)
    rng.shuffle(shuffled)
    counts: dict[str, int] = defaultdict(int)
    ranked = []
    for place, text in enumerate(shuffled):
        # A second text of a meme sorts after all first ones.
        ranked.append((counts[text.meme], place, text))
        counts[text.meme] += 1
    return [text for _, _, text in sorted(ranked, key=lambda one: one[:2])[:most]]


def round_section(rounds: Sequence[RoundRatings], end: int | None) -> Section:
    """Builds a table of mean ratings by round, with the round after which scores no longer rise."""
    rows = [(str(one.round), f"{one.items:,}", figure(one.mean, ".2f")) for one in rounds]
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


def measure_section(measures: Sequence[RoundMeasures]) -> Section:
    """Builds a table of automatic measures by round."""
    rows = [
        (str(one.round), f"{one.n:,}", f"{one.words:.0f}", "–" if one.kept is None else f"{100 * one.kept:.0f} %")
        for one in measures
    ]
    note = "Kept: words that this text and the one before it have in common, of all that they have (Jaccard)."
    return Section("measures", "By round of the fusion", (("round", "guidelines", "words", "kept"), *rows), (note,))
