"""Reasons of lost battles: the aspect and error by which an answer lost, named by models that did not write it."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eval.arena.agreement import battle_key, joint_scores
from eval.arena.events import Event, Judged, LossExplained, NoReply, TaskFormulated
from eval.arena.folder import ArenaFolder, ArenaManifest
from eval.arena.procedure import reply_or_reason
from eval.arena.speakers import FixedQuestion, Speaker, answers_of
from eval.arena.words import LOSS_ERRORS, OVERALL
from eval.models.metered import MeteredModel
from eval.models.samples import ShownMeme
from eval.reports.sections import Section
from eval.scores.means import ResampledMeans
from eval.scores.measure import Figure, figure, share_figure
from serving.docket.review.agreement import Kappa, cohen

SECOND = 0.1
"""Share of losses on which another model is heard too."""
_SECOND: Literal["second explanation"] = "second explanation"


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


@dataclass(frozen=True, slots=True)
class LossShares:
    """Losses of one model, by aspect and by error."""

    model: str
    n: int
    aspects: Mapping[str, Figure]
    """Share of each aspect, adding up to 1, with intervals over memes."""
    errors: Mapping[str, Figure]


@dataclass(frozen=True, slots=True)
class LossReport:
    """Reasons of all explained losses."""

    models: tuple[LossShares, ...]
    unexplained: int
    aspects: Kappa
    errors: Kappa


def losses_of(manifest: ArenaManifest, events: Sequence[Event], *, most: int, seed: int) -> tuple[Loss, ...]:
    """Lists lost battles, at most ``most`` of each model, sampled by seed.

    With an anchor that every model meets, only losses against it count; otherwise all.
    """
    fought = [event for event in events if isinstance(event, Judged) and event.study == "arena"]
    by_battle: dict[tuple[object, ...], list[Judged]] = defaultdict(list)
    for event in fought:
        by_battle[battle_key(event)].append(event)
    anchor = manifest.settings.anchor if manifest.settings.pairing == "baseline" else None
    found: dict[str, list[Loss]] = defaultdict(list)
    # Sorted, because a resumed arena has its events in another order, on which the draw below must not depend.
    for key, score in sorted(joint_scores(fought, OVERALL).items()):
        if score == 0.5:
            continue
        winner, loser = (key.one, key.other) if score > 0.5 else (key.other, key.one)
        if anchor is not None and winner != anchor:
            continue
        # Judges that chose another winner give reasons in favour of the loser.
        agreed = [event for event in by_battle[key] if _gain(event, winner, OVERALL) > 0]
        found[loser].append(
            Loss(
                meme=key.meme,
                task=key.task,
                winner=winner,
                loser=loser,
                aspects=_worst(agreed, winner, among=manifest.settings.dimensions[:-1]),
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


def _worst(agreed: Sequence[Judged], winner: str, *, among: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the dimensions in which most agreeing judges saw the loser behind; all dimensions if none did."""
    gains = {name: sum(_gain(event, winner, name) for event in agreed) for name in among}
    largest = max(gains.values())
    return tuple(name for name, gain in gains.items() if gain == largest) if largest > 0 else among


async def explain_losses(
    folder: ArenaFolder,
    losses: Sequence[Loss],
    memes: Mapping[str, ShownMeme],
    *,
    explainer: MeteredModel,
    second: MeteredModel | None,
    seed: int,
    concurrency: int = 4,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Asks why battles were lost and stores the explanations; skips losses that are explained already.

    Raises:
        BadRequest: Memes are missing.
        BudgetSpent, CallsError, Unavailable, ModelRefused: A model can't be called; replies so far are stored.
    """
    folder.require_memes((loss.meme for loss in losses), memes, "the lost battles")
    events = folder.events()
    explained = {
        (e.meme, e.task, e.winner, e.loser, e.explainer, e.second) for e in events if isinstance(e, LossExplained)
    } | {
        (e.meme, e.task, *e.about, e.model, e.to == _SECOND)
        for e in events
        if isinstance(e, NoReply) and e.to in ("explanation", _SECOND)
    }
    answers = answers_of(events)
    rounds = {(e.meme, e.task): e.rounds for e in events if isinstance(e, TaskFormulated)}
    assignments = {
        (loss.meme, loss.task, loss.winner, loss.loser, model.name, is_second): (loss, model, is_second)
        for loss, model, is_second in _assignments(losses, explainer=explainer, second=second, seed=seed)
    }

    async def one(item: tuple[Loss, MeteredModel, bool]) -> Event:
        return await _explained(*item, rounds=rounds, answers=answers, meme=memes[item[0].meme])

    await folder.ask_remaining(assignments, one, explained, concurrency=concurrency, progress=progress)


def _assignments(
    losses: Sequence[Loss], *, explainer: MeteredModel, second: MeteredModel | None, seed: int
) -> list[tuple[Loss, MeteredModel, bool]]:
    """Pairs each loss with an explainer and a flag for the second one; no model explains its own battles."""
    # If the explainer took part in the battle itself, the second model replaces it as the first.
    models = [
        [one for one in (explainer, second) if one is not None and one.name not in (loss.winner, loss.loser)]
        for loss in losses
    ]
    rng = random.Random(f"second opinion {seed}")
    # From those that both may explain, and at least one: without any there is no agreement to report.
    by_two = [place for place, able in enumerate(models) if len(able) == 2]
    twice = set(rng.sample(by_two, min(len(by_two), max(1, round(SECOND * len(losses))))))
    assignments = []
    for place, (loss, able) in enumerate(zip(losses, models, strict=True)):
        for model, is_second in zip(able, (False, True), strict=False):
            if not is_second or place in twice:
                assignments.append((loss, model, is_second))
    return assignments


async def _explained(
    loss: Loss,
    model: MeteredModel,
    second: bool,
    *,
    rounds: Mapping[tuple[str, int], tuple[str, ...]],
    answers: Mapping[tuple[str, int, str], FixedQuestion],
    meme: ShownMeme,
) -> LossExplained | NoReply:
    about: dict[str, Any] = {"meme": loss.meme, "task": loss.task}
    # The length of parts is irrelevant here: explain sets its own.
    reply = await reply_or_reason(
        Speaker(model, meme, 0).explain(
            rounds[loss.meme, loss.task],
            answers[loss.meme, loss.task, loss.winner],
            answers[loss.meme, loss.task, loss.loser],
            why=loss.why,
            aspects=loss.aspects,
        )
    )
    if isinstance(reply, str):
        to: Literal["explanation", "second explanation"] = _SECOND if second else "explanation"
        return NoReply(**about, to=to, model=model.name, about=(loss.winner, loss.loser), reason=reply)
    explanation, call = reply
    several = len(loss.aspects) > 1
    return LossExplained(
        **about,
        winner=loss.winner,
        loser=loss.loser,
        explainer=model.name,
        second=second,
        aspect=explanation.aspect if several else loss.aspects[0],
        asked=several,
        error=explanation.error,
        why=explanation.why,
        call=call,
    )


def loss_report(
    manifest: ArenaManifest, events: Sequence[Event], *, resamples: int = 2000, seed: int = 0
) -> LossReport | None:
    """Summarises why battles were lost; None if no loss is explained."""
    explained = [event for event in events if isinstance(event, LossExplained)]
    by_battle: dict[tuple[str, int, str, str], LossExplained] = {}
    for event in explained:
        if not event.second:  # if another model was asked later, the first one counts
            by_battle.setdefault((event.meme, event.task, event.winner, event.loser), event)
    first = list(by_battle.values())
    if not first:
        return None
    models = []
    aspects = manifest.settings.dimensions[:-1]
    for name in manifest.settings.targets:
        own = [event for event in first if event.loser == name]
        if own:
            models.append(
                LossShares(
                    model=name,
                    n=len(own),
                    aspects=_shares([(e.meme, e.aspect) for e in own], aspects, resamples=resamples, seed=seed),
                    errors=_shares([(e.meme, e.error) for e in own], LOSS_ERRORS, resamples=resamples, seed=seed),
                )
            )
    silent = {(e.meme, e.task, *e.about) for e in events if isinstance(e, NoReply) and e.to == "explanation"}
    pairs = [
        (by_battle[key], e) for e in explained if e.second and (key := (e.meme, e.task, e.winner, e.loser)) in by_battle
    ]
    return LossReport(
        models=tuple(models),
        # A loss that one explainer failed to explain may have been explained by another later.
        unexplained=len(silent - by_battle.keys()),
        # If the aspect follows from the verdicts, no explainer chose it, so there is nothing to agree on.
        aspects=cohen([(one.aspect, other.aspect) for one, other in pairs if one.asked]),
        errors=cohen([(one.error, other.error) for one, other in pairs]),
    )


def _shares(values: Sequence[tuple[str, str]], names: Sequence[str], *, resamples: int, seed: int) -> dict[str, Figure]:
    """Returns the share of each name, with its interval over memes; the shares add up to 1."""
    draws = ResampledMeans((meme for meme, _ in values), resamples, seed)
    found = {}
    for name in names:
        value, drawn = draws.of([(meme, float(named == name)) for meme, named in values])
        found[str(name)] = share_figure(value, drawn, len({meme for meme, _ in values}))
    return found


def loss_sections(report: LossReport) -> list[Section]:
    """Builds tables of aspects and of errors by model; each row adds up to 100 %."""
    names = list(report.models[0].aspects)
    aspects = (
        ("model", "losses", *(name.replace("_", " ") for name in names)),
        *((one.model, f"{one.n:,}", *_percents(one.aspects, names)) for one in report.models),
    )
    errors = (
        ("model", "losses", *LOSS_ERRORS),
        *((one.model, f"{one.n:,}", *_percents(one.errors, LOSS_ERRORS)) for one in report.models),
    )
    notes = [
        "In per cent of a model's losses that were explained, with 95 % intervals by bootstrap over memes. The aspect "
        "is that of the battle's verdicts, or the explainer's where these leave it open."
    ]
    if report.unexplained:
        notes.append(f"{report.unexplained:,} losses have no explanation that can be used, and are in no figure.")
    return [
        Section("aspects", "Why battles were lost: in what", aspects, (*notes, _agreement("aspect", report.aspects))),
        Section(
            "errors",
            "Why battles were lost: by which error",
            errors,
            (
                _agreement("error", report.errors),
                "Published (ProBench, of other models and questions): perception 25 to 41 %, reasoning 26 to 39, text "
                "20 to 31, knowledge 3.5 to 9, refusal 0 to 13.",
            ),
        ),
    ]


def _percents(shares: Mapping[str, Figure], names: Iterable[str]) -> list[str]:
    # In the order of the names, which are the column headings.
    return [figure(shares[name], ".0f", times=100) for name in names]


def _agreement(what: str, kappa: Kappa) -> str:
    losses = "1 loss" if kappa.n == 1 else f"{kappa.n:,} losses"
    if kappa.value is None:
        return f"Over {losses} with two explainers (--second) there is no κ for the {what}: nothing differs."
    few = "" if kappa.enough else " (too few to rely on)"
    return f"Two explainers agree on the {what} of {losses} with κ = {kappa.value:.2f}{few}."
