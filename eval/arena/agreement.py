"""Agreement between the panel and people who judged some of the same battles."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from eval.arena.events import ArenaValue, Event, Judged
from eval.arena.words import OVERALL, Row
from eval.reports.sections import Section
from eval.scores.means import share_of
from eval.scores.measure import NOTHING, Figure, figure, wilson
from serving.docket.review.agreement import Kappa, cohen, fleiss


class BattleKey(NamedTuple):
    """BattleKey of a battle, independent of the order in which answers were shown."""

    meme: str
    task: int
    one: str
    other: str


def key_of(meme: str, task: int, one: str, other: str) -> BattleKey:
    """Returns the key of a battle of two models; ``one`` of the key comes first by name."""
    return BattleKey(meme, task, *sorted((one, other)))


def battle_key(event: Judged) -> BattleKey:
    """Returns the key of the battle that was judged."""
    return key_of(event.meme, event.task, event.a, event.b)


def judged_in(events: Iterable[Event], study: str = "arena") -> list[Judged]:
    """Selects the judgements of one study; those of others have settings of their own and must not count in it."""
    return [event for event in events if isinstance(event, Judged) and event.study == study]


def joint_scores(fought: Iterable[Judged], dimension: str) -> dict[BattleKey, float]:
    """Returns the score of ``one`` in each battle by the panel's vote: 1 won, 0.5 tied, 0 lost.

    Every judgement counts 1 for the better answer, 2 for a far better one, and 0 for a tie. The sign of the sum
    decides; a sum of 0 is a tie. With three levels, this is the majority of the judges who see a difference.
    """
    sums: dict[BattleKey, int] = defaultdict(int)
    for event in fought:
        key, lead = battle_key(event), event.verdicts[dimension].lead
        # Whichever order was shown, a judgement counts for the same model.
        sums[key] += lead if event.a == key.one else -lead
    return {key: 0.5 if not total else float(total > 0) for key, total in sums.items()}


def noise_in(events: Sequence[Event], dimension: str) -> str:
    """Returns the reason why verdicts of a dimension can't rank models; empty if they can."""
    fought = judged_in(events)
    decided = [event for event in fought if event.verdicts[dimension].score != 0.5]
    first = sum(event.verdicts[dimension].score > 0.5 for event in decided)
    both_orders = judged_in_both_orders(fought, dimension)
    for won, place in ((first, "first"), (len(decided) - first, "second")):
        # A panel that looks at answers alone comes out near a half, whoever wins; here, four of five choices are of the
        # place. Uses the lower end of the interval, so that a few battles alone are not called noise.
        if (share := wilson(won, len(decided))) and share.low > 0.8:
            # If that was done already, changing the judges is the only remedy.
            orders = "" if both_orders else ", or have battles judged in both orders"
            return (
                f"No ranking: the answer shown {place} won {won:,} of {len(decided):,} decided battles. The judges "
                f"chose by the place and not by the answer; take other judges{orders}."
            )
    # A tie in either order leaves no winner to compare.
    twice = [pair for pair in both_orders if 0.5 not in pair]
    same, both = sum((one > 0.5) == (other > 0.5) for one, other in twice), len(twice)
    # Here the burden of proof is reversed: verdicts count only if they are surely better than a coin flip.
    if (share := wilson(same, both)) and share.low <= 0.5:
        return (
            f"No ranking: judged in both orders, {same:,} of {both:,} battles had the same outcome, which a coin "
            "could have given too. Take other judges, or more battles."
        )
    return ""


def judged_in_both_orders(fought: Sequence[Judged], dimension: str) -> list[tuple[float, float]]:
    """Pairs the scores that a judge gave an answer when it was shown first and second, in the order of the turns."""
    twice: dict[tuple[BattleKey, str], dict[int, float]] = defaultdict(dict)
    for event in fought:
        key, score = battle_key(event), event.verdicts[dimension].score
        twice[key, event.judge][event.turn] = score if event.a == key.one else 1 - score
    return [(turns[0], turns[1]) for turns in twice.values() if len(turns) == 2]


class HumanVerdict(ArenaValue):
    """One person's verdict on one battle; one line of ``--humans``."""

    meme: str
    task: int
    one: str
    other: str
    who: str
    """A name that stands for the person, and need not be theirs."""
    better: Literal["one", "other", "tie"]


def human_agreement(events: Sequence[Event], humans: Sequence[HumanVerdict]) -> Row:
    """Compares the overall verdicts of the panel with those of people.

    Returns the panel's ``accuracy``, the share of ``battles`` in which its majority matches the people's, and
    ``kappa``; both of each of ``judges``, over the battles of both; those of smaller ``panels``; agreement among
    ``people``; and ``even``, the battles without a majority because one side's votes are even, which are in no figure.
    """
    panel: dict[BattleKey, list[str]] = defaultdict(list)
    by_judge: dict[str, dict[BattleKey, list[str]]] = defaultdict(lambda: defaultdict(list))
    for event in judged_in(events):
        key = battle_key(event)
        word = _word(key, event.a, event.verdicts[OVERALL].score)
        panel[key].append(word)
        by_judge[event.judge][key].append(word)
    people: dict[BattleKey, dict[str, str]] = defaultdict(dict)
    for rating in humans:
        key = key_of(rating.meme, rating.task, rating.one, rating.other)
        # If a person judged a battle twice, the later verdict counts: nobody has two votes.
        people[key][rating.who] = _word(key, rating.one, {"one": 1.0, "other": 0.0, "tie": 0.5}[rating.better])
    voted = {key: _majority(list(words.values())) for key, words in people.items()}
    pairs = _with(dict(sorted(panel.items())), voted)
    # A judge that contradicts itself when the order of answers is swapped has no vote on that battle.
    of_judges = {judge: _with(found, voted) for judge, found in sorted(by_judge.items())}
    return {
        **_agreed(pairs),
        "people": fleiss([list(words.values()) for words in people.values()]),
        "judges": [{"judge": judge, **_agreed(own)} for judge, own in of_judges.items() if own],
        "even": len(voted.keys() & panel.keys()) - len(pairs),
        "panels": _panels(list(of_judges.values())),
    }


def _agreed(pairs: Mapping[BattleKey, tuple[str, str]]) -> Row:
    shares = [(key.meme, float(ours == theirs)) for key, (ours, theirs) in pairs.items()]
    return {"battles": len(pairs), "accuracy": share_of(shares), "kappa": cohen(list(pairs.values()))}


def _panels(of_judges: Sequence[Mapping[BattleKey, tuple[str, str]]]) -> list[Row]:
    """Compares panels of each size with people, on the battles that all judges of a panel judged.

    Returns means over the panels that judged a battle together, with the range of their accuracy.
    """
    sizes: list[Row] = []
    for size in range(1, len(of_judges) + 1):
        pairs = []
        for panel in itertools.combinations(of_judges, size):
            common = sorted(set.intersection(*map(set, panel)))
            # A panel's even vote is a tie, as in the arena's joint vote; leaving it out would spare small panels their
            # hardest battles.
            votes = [(_majority([own[key][0] for own in panel]) or "tie", panel[0][key][1]) for key in common]
            if votes:
                pairs.append(votes)
        shares = [fmean(vote == theirs for vote, theirs in each) for each in pairs]
        # If no panel of this size shares a battle, no larger one does.
        if not shares:
            break
        kappas = [value for each in pairs if (value := cohen(each).value) is not None]
        sizes.append(
            {
                "size": size,
                "panels": len(pairs),
                "battles": fmean(map(len, pairs)),
                "accuracy": fmean(shares),
                "lowest": min(shares),
                "highest": max(shares),
                "kappa": fmean(kappas) if kappas else None,
            }
        )
    # A single size does not show how agreement changes with the size of a panel.
    return sizes if len(sizes) > 1 else []


def _with(
    found: Mapping[BattleKey, Sequence[str]], voted: Mapping[BattleKey, str | None]
) -> dict[BattleKey, tuple[str, str]]:
    # An even vote is not a tie: it means disagreement, while a tie is a majority's verdict.
    return {
        key: (ours, theirs)
        for key, words in found.items()
        if (ours := _majority(words)) is not None and (theirs := voted.get(key)) is not None
    }


def _word(key: BattleKey, model: str, score: float) -> str:
    """Names the winner regardless of the order shown: the first by name, the second, or a tie."""
    return {1.0: "first", 0.5: "tie", 0.0: "second"}[score if model == key.one else 1 - score]


def _majority(words: Sequence[str]) -> str | None:
    """Returns the word that most reviewers give; None if two are equally frequent."""
    (first, count), *others = Counter(words).most_common(2)
    return first if not others or others[0][1] < count else None


def human_sections(humans: Row) -> Iterator[Section]:
    """Builds tables of the agreement of judges and people."""
    people = humans["people"]
    rows = [
        ("who", "agree", "κ"),
        ("panel and people", percent(humans["accuracy"]), _kappa(humans["kappa"])),
        ("people among themselves (Fleiss)", percent(people.observed), _kappa(people)),
        *((f"{one['judge']} and people", percent(one["accuracy"]), _kappa(one["kappa"])) for one in humans["judges"]),
    ]
    even = f"; {humans['even']} more on which votes were even" if humans["even"] else ""
    caption = f"{humans['battles']} battles that both judged{even}"
    yield Section("people", "Panel and people", tuple(rows), caption=caption, level=3)
    if humans["panels"]:
        panels = (
            (
                str(one["size"]),
                f"{one['panels']:,}",
                f"{one['battles']:.0f}",
                f"{percent(one['accuracy'])} [{percent(one['lowest'])}, {percent(one['highest'])}]",
                figure(one["kappa"], ".2f"),
            )
            for one in humans["panels"]
        )
        yield Section(
            "people-panels",
            "People, and smaller panels",
            (("judges", "panels", "battles", "agree", "κ"), *panels),
            notes=("Published (MemeArena, 50 battles): 64, 60, 62 and 68 % for one to four.",),
            caption="Share of votes that are the people's, even votes being ties",
            level=3,
            detail=True,
        )


def percent(value: Figure | float | None) -> str:
    """A share in per cent, with its interval if it has one."""
    return NOTHING if value is None else f"{figure(value, '.1f', times=100)} %"


def _kappa(kappa: Kappa) -> str:
    if kappa.value is None or kappa.low is None or kappa.high is None:
        return figure(kappa.value, ".2f")
    return figure(Figure(kappa.value, kappa.low, kappa.high), ".2f")
