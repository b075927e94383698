"""Check of a self-trained judge against its teacher, on held-out model families and memes."""

import asyncio
import hashlib
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from court.meme import Frame
from court.prompts import Fence
from eval.arena.compare import correlation
from eval.arena.judge_examples import PICTURES, Comparison, JudgeExample, JudgeExamplesManifest
from eval.arena.procedure import reply_or_reason
from eval.arena.ranking.battles import Floats, battles, wins
from eval.arena.ranking.bradley_terry import finite_ratings
from eval.arena.speakers import judging, prompt_of
from eval.arena.words import OVERALL, Verdict
from eval.models.metered import MeteredModel
from eval.reports.sections import Section
from eval.scores.means import mean_of, share_of
from eval.scores.measure import figure
from eval.session.engine import run_items
from serving.docket.review.agreement import cohen

BOUND = 33.0
"""Error of ratings on held-out families up to which a student will do, in points (ProBench: 32.58)."""
LONGER = "longer answer"
_OUTCOMES = {1.0: "first", 0.5: "tie", 0.0: "second"}


async def judged_by(
    folder: Path,
    examples: Sequence[JudgeExample],
    judge: MeteredModel,
    *,
    concurrency: int = 4,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> dict[Comparison, Verdict | None]:
    """Asks a model to judge every comparison in some examples, with the prompts that its teacher was given.

    Returns:
        The overall verdict on each comparison; None if the reply was unusable.

    Raises BudgetSpent, CallsError, Unavailable, ModelRefused: The model can't be called; replies so far are stored.
    """
    # Several teachers may have judged the same comparison; the student is asked once.
    wanted = {one.comparison: one for one in examples}
    prompt = prompt_of("judge")

    async def one(item: tuple[Comparison, JudgeExample]) -> tuple[Comparison, Verdict | None]:
        key, example = item
        # The recorded prompt, not today's: the student was trained on it.
        pngs = [await asyncio.to_thread((folder / PICTURES / name).read_bytes) for name in example.images]
        # Every PNG has width and height at this offset; the folder's pictures are our own, hence valid.
        frames = [Frame(png, *struct.unpack(">II", png[16:24])) for png in pngs]
        agent = judging(prompt, example.keys, example.levels, 2000)
        # Derived from the comparison, so that a later session finds the reply in the call cache.
        fence = Fence(hashlib.sha256(repr(key).encode()).hexdigest()[:16])
        system, user = (message["content"] for message in example.prompt)
        reply = await reply_or_reason(judge.say(replace(agent, system=system), [*frames, user], fence=fence))
        return key, None if isinstance(reply, str) else reply.value.by_dimension[OVERALL]

    return dict(await run_items(list(wanted.items()), one, concurrency=concurrency, progress=progress))


def distil_sections(
    manifest: JudgeExamplesManifest,
    examples: Sequence[JudgeExample],
    verdicts: Mapping[str, Mapping[Comparison, Verdict | None]],
    *,
    families: Mapping[str, str],
    usd_per_1000: Mapping[str, float],
    resamples: int = 2000,
) -> tuple[list[Section], dict[str, Any]]:
    """Builds a table of judges, the student first, beside the teacher and the rule that the longer answer wins."""
    taught = _taught(examples)
    longer: dict[Comparison, Verdict | None] = {
        one.comparison: {"A": Verdict.A, "B": Verdict.B}.get(one.longer, Verdict.BOTH_GOOD) for one in examples
    }
    checks = []
    for name, own in {**verdicts, LONGER: longer}.items():
        figures = _check(own, taught, manifest, family=families.get(name, ""), resamples=resamples)
        checks.append({"judge": name, **figures, "usd_per_1000": usd_per_1000.get(name)})
    # Each pair once: the other order is the same pair.
    twice = [
        (_OUTCOMES[score], _OUTCOMES[1 - taught[meme, task, b, a]])
        for (meme, task, a, b), score in taught.items()
        if a < b and (meme, task, b, a) in taught
    ]
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
        "judge": itemgetter("judge"),
        "error of ratings, held-out families": lambda one: figure(one["rmse"], ".1f"),
        "rank correlation": lambda one: figure(one["spearman"], ".2f"),
        "agreement with the teacher, %": lambda one: figure(one["agreement"], ".0f", times=100),
        "κ": lambda one: figure(one["kappa"].value, ".2f"),
        "first shown won, %": lambda one: figure(one["first_share"], ".0f", times=100),
        "own family's lift": lambda one: figure(one["own_lift"], ".2f"),
        "unusable": lambda one: f"{one['unusable']:,}",
        "US$ per 1,000": lambda one: figure(one["usd_per_1000"], ".2f"),
    }
    student, error = checks[0]["judge"], checks[0]["rmse"]
    bound = "It judged nothing."
    if error is not None:
        bound = f"{student} is {'within' if error <= BOUND else 'not within'} the bound of {BOUND:.0f}."
    ceiling = cohen(twice) if twice else None
    limit = "The teacher did not judge both orders, so that there is no ceiling to hold agreement against."
    if ceiling is not None:
        kappa = figure(ceiling.value, ".2f")
        limit = f"The teacher agrees with itself in the other order with κ {kappa}: no student can be asked for more."
    notes = (
        f"On {len(taught):,} comparisons about held-out memes, or with a model of a held-out family "
        f"({', '.join(manifest.held_out)}). Errors are in points of a Bradley-Terry rating. {bound}",
        limit,
    )
    rows = (tuple(columns), *(tuple(cell(one) for cell in columns.values()) for one in checks))
    section = Section("distilled", "A judge of one's own beside its teacher", rows, notes)
    held_out = manifest.held_out
    return [section], {"held_out": held_out, "comparisons": len(taught), "ceiling": ceiling, "checks": checks}


def _taught(examples: Sequence[JudgeExample]) -> dict[Comparison, float]:
    """Returns the teacher's score of the answer shown first, in the orders it saw; several judges are averaged."""
    found: dict[Comparison, list[float]] = defaultdict(list)
    for one in examples:
        # Mirrored examples repeat the same verdict: counting them would make the teacher agree with itself.
        if not one.mirrored:
            found[one.comparison].append(one.verdict.score)
    # The sign of the mean gives won, tied or lost, like the verdict of one judge.
    return {key: (1 + float(np.sign(np.mean(scores) - 0.5))) / 2 for key, scores in found.items()}


def _check(
    own: Mapping[Comparison, Verdict | None],
    taught: Mapping[Comparison, float],
    manifest: JudgeExamplesManifest,
    *,
    family: str,
    resamples: int,
) -> dict[str, Any]:
    """Compares a judge with the teacher on the comparisons that both judged in the same order.

    Ratings are compared over the models of held-out families, in points. The lift is the mean score that it gives
    answers of its own family, minus the teacher's on the same comparisons. A figure without a comparison is None.
    """
    scores = {key: verdict.score for key, verdict in own.items() if verdict is not None}
    both = [key for key in taught if key in scores]
    # Over all its comparisons, even if the teacher did not judge them in this order: measuring position bias needs no
    # teacher.
    decided = [score for score in scores.values() if score != 0.5]
    places = [place for place, model in enumerate(manifest.targets) if manifest.families[model] in manifest.held_out]
    # The student's ratings use only comparisons that the teacher judged, so that both rest on the same battles.
    mine, theirs = _ratings(manifest.targets, {key: scores[key] for key in both}), _ratings(manifest.targets, taught)
    lifts = [
        (key[0], sign * (scores[key] - taught[key]))
        for key in both
        # 0 if both answers are of its family, or neither is: there is nothing to favour.
        if (sign := (manifest.families[key[2]] == family) - (manifest.families[key[3]] == family))
    ]
    return {
        "n": len(both),
        "unusable": sum(verdict is None for verdict in own.values()),
        "agreement": share_of([(key[0], float(scores[key] == taught[key])) for key in both], resamples, 0),
        "kappa": cohen([(_OUTCOMES[scores[key]], _OUTCOMES[taught[key]]) for key in both]),
        "rmse": float(np.sqrt(np.mean((mine - theirs)[places] ** 2))) if both else None,
        "spearman": correlation(mine, theirs),
        "first_share": float(np.mean(decided)) if decided else None,
        "own_lift": mean_of(lifts, resamples, 0),
    }


def _ratings(models: Sequence[str], scores: Mapping[Comparison, float]) -> Floats:
    """Computes ratings, float of shape (models,); a model may be undefeated over few memes."""
    return finite_ratings(wins(battles(models, [(a, b, score, meme) for (meme, _, a, b), score in scores.items()])))
