"""Reasons of lost battles: the aspect and error by which an answer lost, named by models that did not write it."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from court.errors import BadRequest
from eval.arena.agreement import battle_key, joint_scores, judged_in
from eval.arena.events import Event, FollowUp, Judged, LossExplained, NoReply, Wanted
from eval.arena.folder import ArenaManifest
from eval.arena.procedure import Questions
from eval.arena.speakers import FixedQuestion, Speaker, answers_of, rounds_of
from eval.arena.words import LOSS_ERRORS, OVERALL
from eval.reports.sections import Section
from eval.scores.means import ResampledMeans
from eval.scores.measure import figure, share_figure
from serving.docket.review.agreement import Kappa, cohen

SECOND = 0.1
"""Share of losses on which another model is heard too."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A battle that was lost by the vote of its judges."""

    meme: str
    task: int
    winner: str
    loser: str
    aspects: tuple[str, ...]
    """Dimensions in which it lost most, by the verdicts; several if these are undecided."""
    why: str
    """Reasons of a judge that agrees with the vote."""


def losses_of(manifest: ArenaManifest, events: Sequence[Event], *, most: int, seed: int) -> tuple[Loss, ...]:
    """Lists lost battles, at most ``most`` of each model, sampled by seed.

    With an anchor that every model meets, only losses against it count; otherwise all.
    """
    fought = judged_in(events)
    by_battle: dict[tuple[object, ...], list[Judged]] = defaultdict(list)
    for event in fought:
        by_battle[battle_key(event)].append(event)
    anchor = manifest.settings.anchor if manifest.settings.pairing == "baseline" else None
    found: dict[str, list[Loss]] = defaultdict(list)
    dimensions = manifest.settings.dimensions[:-1]
    # Sorted, because a resumed arena has its events in another order, on which the draw below must not depend.
    for key, score in sorted(joint_scores(fought, OVERALL).items()):
        if score == 0.5:
            continue
        winner, loser = (key.one, key.other) if score > 0.5 else (key.other, key.one)
        if anchor is not None and winner != anchor:
            continue
        # Judges that chose another winner give reasons in favour of the loser.
        agreed = [event for event in by_battle[key] if _gain(event, winner, OVERALL) > 0]
        gains = {name: sum(_gain(event, winner, name) for event in agreed) for name in dimensions}
        # Those in which most agreeing judges saw the loser behind; all if none did.
        worst = tuple(name for name, gain in gains.items() if gain == max(gains.values()) > 0)
        found[loser].append(
            Loss(
                meme=key.meme,
                task=key.task,
                winner=winner,
                loser=loser,
                aspects=worst or dimensions,
                # By name and turn, as a resumed arena has its events in another order.
                why=min(agreed, key=lambda event: (event.judge, event.turn)).why,
            )
        )
    drawn = []
    for name in manifest.settings.targets:
        own = found[name]
        # A generator per model, so that one model's losses do not change which of another model's are drawn.
        drawn += random.Random(f"losses {seed} {name}").sample(own, min(most, len(own)))
    return tuple(drawn)


def _gain(event: Judged, winner: str, dimension: str) -> float:
    gain = event.verdicts[dimension].score - 0.5
    return gain if event.a == winner else -gain


def loss_questions(
    events: Sequence[Event], losses: Sequence[Loss], *, explainer: str, second: str | None, seed: int
) -> Questions:
    """Lists who is asked why battles were lost; no model explains its own battles."""
    # If the explainer took part in the battle itself, the second model replaces it as the first.
    models = [
        [name for name in (explainer, second) if name is not None and name not in (loss.winner, loss.loser)]
        for loss in losses
    ]
    rng = random.Random(f"second opinion {seed}")
    # From those that both may explain, and at least one: without any there is no agreement to report.
    by_two = [place for place, able in enumerate(models) if len(able) == 2]
    twice = set(rng.sample(by_two, min(len(by_two), max(1, round(SECOND * len(losses))))))
    answers, rounds = answers_of(events), rounds_of(events)
    to: tuple[Wanted, Wanted] = ("explanation", "second explanation")
    return {
        FollowUp(to[is_second], name, loss.meme, loss.task, about=(loss.winner, loss.loser)): partial(
            _explain, loss, is_second, rounds=rounds[loss.meme, loss.task], answers=answers
        )
        for place, (loss, able) in enumerate(zip(losses, models, strict=True))
        for name, is_second in zip(able, (False, True), strict=False)
        if not is_second or place in twice
    }


async def _explain(
    loss: Loss,
    second: bool,
    speaker: Speaker,
    *,
    rounds: tuple[str, ...],
    answers: Mapping[tuple[str, int, str], FixedQuestion],
) -> Event:
    better, worse = (answers[loss.meme, loss.task, name] for name in (loss.winner, loss.loser))
    explanation, call = await speaker.explain(rounds, better, worse, why=loss.why, aspects=loss.aspects)
    several = len(loss.aspects) > 1
    return LossExplained(
        meme=loss.meme,
        task=loss.task,
        winner=loss.winner,
        loser=loss.loser,
        explainer=speaker.model.name,
        second=second,
        aspect=explanation.aspect if several else loss.aspects[0],
        asked=several,
        error=explanation.error,
        why=explanation.why,
        call=call,
    )


def loss_sections(
    manifest: ArenaManifest, events: Sequence[Event], *, resamples: int = 2000, seed: int = 0
) -> tuple[list[Section], dict[str, Any]]:
    """Builds tables of aspects and of errors by model, each row adding up to 100 %, with intervals over memes.

    Raises BadRequest: No loss is explained yet.
    """
    explained = [event for event in events if isinstance(event, LossExplained)]
    first: dict[tuple[str, int, str, str], LossExplained] = {}
    for event in explained:
        if not event.second:  # if another model was asked later, the first one counts
            first.setdefault((event.meme, event.task, event.winner, event.loser), event)
    if not first:
        raise BadRequest("No loss has been explained yet.", reason="ARENA_EMPTY")
    named: dict[str, Sequence[str]] = {"aspect": manifest.settings.dimensions[:-1], "error": LOSS_ERRORS}
    models: list[dict[str, Any]] = []
    for model in manifest.settings.targets:
        if own := [event for event in first.values() if event.loser == model]:
            draws, memes = ResampledMeans((e.meme for e in own), resamples, seed), len({e.meme for e in own})
            shares = {
                f"{what}s": {
                    name: share_figure(*draws.of([(e.meme, float(getattr(e, what) == name)) for e in own]), memes)
                    for name in names
                }
                for what, names in named.items()
            }
            models.append({"model": model, "n": len(own), **shares})
    silent = {(e.meme, e.task, *e.about) for e in events if isinstance(e, NoReply) and e.to == "explanation"}
    # A loss that one explainer failed to explain may have been explained by another later.
    unexplained = len(silent - first.keys())
    seconds = [(e, first.get((e.meme, e.task, e.winner, e.loser))) for e in explained if e.second]
    pairs = [(one, other) for other, one in seconds if one is not None]
    # If the aspect follows from the verdicts, no explainer chose it, so there is nothing to agree on.
    aspects = cohen([(one.aspect, other.aspect) for one, other in pairs if one.asked])
    errors = cohen([(one.error, other.error) for one, other in pairs])
    notes = [
        "In per cent of a model's losses that were explained, with 95 % intervals by bootstrap over memes. The aspect "
        "is that of the battle's verdicts, or the explainer's where these leave it open."
    ]
    if unexplained:
        notes.append(f"{unexplained:,} losses have no explanation that can be used, and are in no figure.")
    published = (
        "Published (ProBench, of other models and questions): perception 25 to 41 %, reasoning 26 to 39, text 20 to "
        "31, knowledge 3.5 to 9, refusal 0 to 13."
    )
    sections = []
    for what, way, lines in (
        ("aspect", "in what", (*notes, _agreement("aspect", aspects))),
        ("error", "by which error", (_agreement("error", errors), published)),
    ):
        head = ("model", "losses", *(name.replace("_", " ") for name in named[what]))
        rows = (
            (one["model"], f"{one['n']:,}", *(figure(share, ".0f", times=100) for share in one[f"{what}s"].values()))
            for one in models
        )
        sections.append(Section(f"{what}s", f"Why battles were lost: {way}", (head, *rows), lines))
    return sections, {"models": models, "unexplained": unexplained, "aspects": aspects, "errors": errors}


def _agreement(what: str, kappa: Kappa) -> str:
    losses = "1 loss" if kappa.n == 1 else f"{kappa.n:,} losses"
    if kappa.value is None:
        return f"Over {losses} with two explainers (--second) there is no κ for the {what}: nothing differs."
    few = "" if kappa.enough else " (too few to rely on)"
    return f"Two explainers agree on the {what} of {losses} with κ = {kappa.value:.2f}{few}."
