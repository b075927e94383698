"""Bias of judges: self-preference, and how much the reference and the panel stabilise rankings.

Each judge judges the same battles in the same order under each setting. Its ranking uses counted win rates, which exist
whatever the table looks like.

Contrasts of two settings are paired: memes are resampled for both at once. Ratings are Bradley-Terry ratings with a
quarter of a tied battle added to each pair of models, as one judge has too few battles for every model to lose one.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from eval.arena.agreement import battle_key, joint_scores, judged_in
from eval.arena.events import Event, Judged
from eval.arena.ranking.battles import Floats, battles, win_rates, wins, wins_by
from eval.arena.ranking.bootstrap import LEAST_MEMES, meme_weights, over_memes
from eval.arena.ranking.bradley_terry import finite_ratings
from eval.arena.words import OVERALL, SETTING_WORDS, Row, Setting
from eval.reports.sections import Section
from eval.scores.measure import Figure, figure

Battle = tuple[str, int, str, str, str]
"""Meme, task, the two answers as they were shown, and the judge."""
Draw = tuple[int, int]
"""Number of resamples of the memes, and the seed."""

_NOTES = (
    "Every judge judged the same battles under every setting. Each one's ranking is set beside that of the rest of the "
    "panel, both without their own cases: by NDCG with relevance P − p and discount log2(p + 1), and by Kendall's τ. "
    "Both are 1 for the same ranking; turned upside down, τ is −1, and NDCG still far above 0.",
    "By chance: mean NDCG of a random order; below it, a ranking is worse than none. Own lift: how many points more "
    "often judges let their own answers win than impartial judges do, mean over judges. Joint vote: as MemeArena has "
    "it, beside the ranking by the majority of all judges, itself included, so that every judge agrees with itself.",
)


def contrasts(events: Sequence[Event], models: Sequence[str], families: Mapping[str, str], draw: Draw) -> list[Row]:
    """Compares every setting of the bias study with the fused guideline or, without it, the first that was run."""
    scores: dict[Setting, dict[Battle, float]] = defaultdict(dict)
    for event in judged_in(events, "bias"):
        scores[event.setting][event.meme, event.task, event.a, event.b, event.judge] = event.verdicts[OVERALL].score
    # In the order of Setting: the others are compared with the first one, which is the fused guideline if it was used.
    compared = [setting for setting in Setting if setting in scores]
    return [
        {"one": one, "other": compared[0], "battles": len(common)}
        | _contrast(common, (scores[one], scores[compared[0]]), models, families, draw=draw)
        for one in compared[1:]
        # A judgement that failed under one setting is dropped under both, or the differences would not be paired.
        if (common := sorted(scores[one].keys() & scores[compared[0]].keys()))
    ]


def _contrast(
    fought: Sequence[Battle],
    scores: tuple[Mapping[Battle, float], Mapping[Battle, float]],
    models: Sequence[str],
    families: Mapping[str, str],
    draw: Draw,
) -> Row:
    # Memes are drawn by index, which must not depend on the order of a set.
    memes, judges = sorted({battle[0] for battle in fought}), sorted({battle[4] for battle in fought})
    # One draw for both settings and all judges makes the differences paired. The actual memes come first.
    weights = meme_weights(len(memes), *draw)
    number = {pair: number for number, pair in enumerate(itertools.product(judges, memes))}
    unit = np.array([number[judge, meme] for meme, _, _, _, judge in fought], dtype=np.int64)

    def ratings(of: Mapping[Battle, float]) -> Floats:
        """Returns ratings by each judge, for each row of weights."""
        table = battles(models, [(a, b, of[meme, task, a, b, judge], meme) for meme, task, a, b, judge in fought])
        won = weights @ wins_by(table, unit, len(number)).reshape(len(judges), len(memes), -1)
        return finite_ratings(won.reshape(len(judges), -1, len(models), len(models)))

    # float of shape (settings, judges, 1 + resamples, models)
    rated = np.stack([ratings(of) for of in scores])
    moved = rated[0] - rated[1]
    # An unknown family matches nothing: two models without one are not related.
    kin = {name: families.get(name) or (name,) for name in (*models, *judges)}
    own = np.array([[kin[judge] == kin[model] for model in models] for judge in judges])
    shifts: list[Row] = []
    for (j, judge), (t, model) in itertools.product(enumerate(judges), enumerate(models)):
        points = over_memes(moved[j, :, t], len(memes))
        # Surely moved only over enough memes: a few may all point the same way by chance.
        sure = len(memes) >= LEAST_MEMES and (points.low > 0 or points.high < 0)
        shifts.append({"judge": judge, "target": model, "own_family": bool(own[j, t]), "points": points, "sure": sure})
    # A judge whose targets are all of its own family, or none, contributes no difference.
    mixed = [j for j in range(len(own)) if own[j].any() and not own[j].all()]
    lifts = [moved[j][:, own[j]].mean(axis=1) - moved[j][:, ~own[j]].mean(axis=1) for j in mixed]
    # Spread per judge first, then the mean: averaging ratings first would cancel out judges who disagree.
    spreads = rated.std(axis=3).mean(axis=1)  # (settings, 1 + resamples)
    return {
        "memes": len(memes),
        "shifts": shifts,
        "own_family": over_memes(np.mean(lifts, axis=0), len(memes)) if lifts else None,
        "spread": float(spreads[0, 0]),
        "other_spread": float(spreads[1, 0]),
        "wider": over_memes(spreads[0] - spreads[1], len(memes)),
    }


def contrast_section(contrast: Row, models: Sequence[str]) -> Section:
    """Builds the table of a contrast, with targets as rows and judges as columns."""
    one, other = SETTING_WORDS[contrast["one"]], SETTING_WORDS[contrast["other"]]
    judges = dict.fromkeys(shift["judge"] for shift in contrast["shifts"])
    cells = {
        (shift["judge"], shift["target"]): figure(shift["points"], "+.0f")
        + "*" * shift["sure"]
        + "°" * shift["own_family"]
        for shift in contrast["shifts"]
    }
    notes = [
        f"Points that a target's rating is higher by a judge's verdicts with {one} than with {other}, over the same "
        f"{contrast['battles']:,} judgements in the same order; 95 % intervals by bootstrap over memes. * the interval "
        f"does not hold 0, over {LEAST_MEMES} memes or more; ° of the judge's own family. Each interval is by itself: "
        "of twenty, one misses by chance.",
        f"Ratings are spread by {contrast['spread']:.0f} points with {one} and {contrast['other_spread']:.0f} with "
        f"{other} (standard deviation, mean over judges): {figure(contrast['wider'], '+.0f')}.",
    ]
    if contrast["own_family"] is not None:
        notes.append(f"The judges' own families gain {figure(contrast['own_family'], '+.0f')} more than the others.")
    if sure := [f"{shift['target']} by {shift['judge']}" for shift in contrast["shifts"] if shift["sure"]]:
        notes.append(f"Surely moved: {'; '.join(sure)}.")
    rows = [("target", *judges), *((model, *(cells[judge, model] for judge in judges)) for model in models)]
    title = f"Ratings with {one}, less those with {other}"
    return Section(f"contrast-{contrast['one']}", title, tuple(rows), tuple(notes), level=3, detail=True)


def ndcg(ratings: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """Computes how well a ranking preserves a reference ranking, weighted towards the top; 1 for the same order.

    As MemeArena defines it: of P models, the one at place p of the reference has relevance P − p; a ranking's gain is
    the sum of relevance / log2(p + 1) over its own places p, and is divided by the reference's gain. Tied models share
    their places: each counts with the mean relevance, which is the expectation over random orders of them.
    """
    # Imported here: a report without a bias study does not need them, and both are slow to import.
    from scipy.stats import rankdata
    from sklearn.metrics import ndcg_score

    # Relevance ends at 0, so the reference's last model adds nothing wherever it is ranked.
    relevance = rankdata(list(reference.values())) - 1
    # A single model has relevance 0, so there is no gain to lose.
    return float(ndcg_score([relevance], [[ratings[one] for one in reference]])) if relevance.any() else 1.0


def closeness(ratings: Mapping[str, float], reference: Mapping[str, float]) -> Row:
    """Compares two rankings by the models that both have.

    Returns ``ndcg``, Kendall's τ-b as ``tau``, None if either ranking ties all models, and as ``chance`` the mean NDCG
    of a random order: a ranking below it is worse than none.
    """
    from scipy.stats import kendalltau

    reference = {model: rate for model, rate in reference.items() if model in ratings}
    tau = kendalltau([ratings[model] for model in reference], list(reference.values())).statistic
    return {
        "ndcg": ndcg(ratings, reference),
        # NaN for a constant ranking.
        "tau": None if np.isnan(tau) else float(tau),
        "chance": ndcg(dict.fromkeys(reference, 0.0), reference),
    }


def bias_report(events: Sequence[Event], models: Sequence[str], judges: Sequence[str], draw: Draw) -> Row | None:
    """Reports the bias study; None if it was not run.

    Returns the panel under each of ``settings``, and ``sizes``: nearness of smaller panels to the whole panel, under
    the setting ``sized_by``.
    """
    by_setting: dict[Setting, dict[str, list[Judged]]] = {}
    fought = judged_in(events, "bias")
    # In panel order, without judges that have no judgement under a setting.
    for setting, judge in itertools.product(Setting, judges):
        if own := [event for event in fought if event.setting is setting and event.judge == judge]:
            by_setting.setdefault(setting, {})[judge] = own
    if not by_setting:
        return None
    # All settings cover the same battles, so any would do; the first in the order of Setting is the arena's own
    # where that was run.
    sized_by = next(iter(by_setting))
    return {
        "settings": [_under(setting, judged, models, draw) for setting, judged in by_setting.items()],
        "sizes": _sizes(by_setting[sized_by], models),
        "sized_by": sized_by,
    }


def _under(setting: Setting, judged: Mapping[str, Sequence[Judged]], models: Sequence[str], draw: Draw) -> Row:
    """Describes the panel under one setting.

    Each judge's ranking is compared with that of the rest of the panel, both without their judges' own cases, and as
    ``joint`` with that by the joint vote of all judges, itself included, as in MemeArena. The setting's own figures are
    means over judges, None if no judge can be compared.
    """
    everything = [event for found in judged.values() for event in found]
    # The joint vote of all judges counts once per battle. It is the same reference for each of them.
    votes = joint_scores(everything, OVERALL).items()
    joint = _counted([(key.one, key.other, score, key.meme) for key, score in votes], models)
    agreements, cases = [], []
    for judge, own in judged.items():
        # A judge's verdicts on its own answers are no yardstick for other judges.
        others = [event for event in everything if event.judge not in (judge, event.a, event.b)]
        # A panel of one has nothing to be compared with; its battles still count in `battles`.
        if not others:
            continue
        # What a judge makes of its own answers shows in its lift; its ranking is that of the other models.
        impartial = [event for event in own if judge not in (event.a, event.b)]
        here, there = _rates(impartial, models), _rates(others, models)
        # One model is no ranking: a judge of two models, one of them itself, has nothing but its own cases.
        if len(here.keys() & there.keys()) > 1:
            # With own cases, as MemeArena has it.
            whole = closeness(_rates(own, models), joint)
            named = {"joint": whole["ndcg"], "joint_tau": whole["tau"], "joint_chance": whole["chance"]}
            agreements.append({"judge": judge, **closeness(here, there), **named})
        if case := _own_case(judge, own, others, draw):
            cases.append(case)
    names = ("ndcg", "tau", "chance", "joint", "joint_tau")
    return {
        "setting": setting,
        "battles": len(everything),
        "judges": agreements,
        **{name: _mean(each[name] for each in agreements) for name in names},
        "own_cases": cases,
        "own_lift": _mean(case["own"] - case["others"] for case in cases),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that there are; None without any."""
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def _rates(events: Iterable[Judged], models: Sequence[str]) -> dict[str, float]:
    """Returns the counted win rates of the models that have a battle."""
    return _counted([(event.a, event.b, event.verdicts[OVERALL].score, event.meme) for event in events], models)


def _counted(rows: Sequence[tuple[str, str, float, str]], models: Sequence[str]) -> dict[str, float]:
    rates = win_rates(wins(battles(models, rows)))
    # NaN means a model without a battle: it has no rate, which is not the same as a rate of 0.
    return {model: float(rate) for model, rate in zip(models, rates, strict=True) if not np.isnan(rate)}


def _own_case(judge: str, own: Sequence[Judged], others: Sequence[Judged], draw: Draw) -> Row | None:
    """Compares a judge's verdicts on its own answers with the impartial judges' verdicts on the same battles.

    Its ``lift`` has an interval by bootstrap over memes, if there are enough of them.
    """
    mine, theirs = (
        [(battle_key(event), event) for event in found if judge in (event.a, event.b)] for found in (own, others)
    )
    # Only battles that both sides judged: otherwise easier battles on one side would distort the lift.
    both = {key for key, _ in mine} & {key for key, _ in theirs}
    if not both:
        return None
    # Sorted, so that the draws don't depend on the order in which battles arrived.
    memes = {meme: place for place, meme in enumerate(sorted({key.meme for key in both}))}
    # Per meme: sum of scores and number of battles, by its own judgement and by the others'.
    sums = np.zeros((len(memes), 4))
    for found, column in ((mine, 0), (theirs, 2)):
        for key, event in found:
            if key in both:
                score = event.verdicts[OVERALL].score
                # A score is that of the answer shown first; the judge's own answer may be either one.
                sums[memes[key.meme], column] += score if event.a == judge else 1 - score
                sums[memes[key.meme], column + 1] += 1
    total = meme_weights(len(memes), *draw) @ sums
    # A resample may leave out all battles of one side.
    with np.errstate(invalid="ignore"):
        lifts = total[:, 0] / total[:, 1] - total[:, 2] / total[:, 3]
    # With fewer memes, a judge would too often be accused by chance.
    lift = over_memes(lifts, len(memes)) if len(memes) >= LEAST_MEMES else float(lifts[0])
    return {
        "judge": judge,
        "own": float(total[0, 0] / total[0, 1]),
        "others": float(total[0, 2] / total[0, 3]),
        "lift": lift,
        "favours_itself": isinstance(lift, Figure) and lift.low > 0,
    }


def _sizes(by_judge: Mapping[str, Sequence[Judged]], models: Sequence[str]) -> list[Row]:
    """Compares panels of each size with the whole panel."""
    whole = _rates(itertools.chain(*by_judge.values()), models)
    sizes: list[Row] = []
    for size in range(1, len(by_judge) + 1):
        panels = itertools.combinations(by_judge.values(), size)
        # A small panel may not have judged every model.
        found = [closeness(_rates(itertools.chain(*panel), models), whole) for panel in panels]
        means = {name: _mean(each[name] for each in found) for name in ("ndcg", "tau", "chance")}
        sizes.append({"size": size, "panels": len(found), **means})
    return sizes


def bias_sections(bias: Row, contrasts: Iterable[Row], models: Sequence[str]) -> Iterator[Section]:
    """Builds tables of the panel by setting, of contrasts of settings, and of smaller panels."""
    head = ("reference", "judgements", "NDCG", "by chance", "τ", "own lift", "NDCG, joint vote", "τ, joint vote")
    rows = [(*head, "favour themselves")]
    for one in bias["settings"]:
        guilty = (
            f"{case['judge']} ({figure(case['lift'], '+.0f', times=100)})"
            for case in one["own_cases"]
            if case["favours_itself"]
        )
        rows.append(
            (
                SETTING_WORDS[one["setting"]],
                f"{one['battles']:,}",
                *_nearness(one),
                figure(one["own_lift"], "+.1f", times=100),
                figure(one["joint"]),
                figure(one["joint_tau"], ".2f"),
                ", ".join(guilty) or "nobody",
            )
        )
    title = "Bias, by what judges are shown as a reference"
    yield Section("bias", title, tuple(rows), notes=_NOTES, caption="Mean over judges", level=3)
    yield from (contrast_section(one, models) for one in contrasts)
    sizes = ((str(one["size"]), f"{one['panels']:,}", *_nearness(one)) for one in bias["sizes"])
    caption = f"Nearness to the ranking by the whole panel; reference: {SETTING_WORDS[bias['sized_by']]}"
    table = (("judges", "panels", "NDCG", "by chance", "τ"), *sizes)
    yield Section("panels", "Smaller panels", table, caption=caption, level=3, detail=True)


def _nearness(one: Row) -> tuple[str, str, str]:
    return figure(one["ndcg"]), figure(one["chance"]), figure(one["tau"], ".2f")
