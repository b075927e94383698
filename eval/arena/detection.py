"""Detection versus understanding: tests if the models that explain harm best also label memes best."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from court.errors import BadRequest
from eval.arena.boards import table_of
from eval.arena.compare import rank_correlation
from eval.arena.events import Detected, DifficultyRated, Event, NoReply, TaskFormulated
from eval.arena.folder import ArenaFolder, ArenaManifest
from eval.arena.procedure import reply_or_reason
from eval.arena.ranking.battles import Floats
from eval.arena.speakers import Speaker, guidelines_of
from eval.arena.words import OVERALL
from eval.models.metered import MeteredModel
from eval.models.samples import ShownMeme
from eval.reports.sections import Section
from eval.scores.means import ResampledMeans
from eval.scores.measure import Figure, figure, share_figure


async def rate_difficulty(
    folder: ArenaFolder,
    memes: Mapping[str, ShownMeme],
    annotator: MeteredModel,
    *,
    concurrency: int = 4,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Asks a model to rate every task of an arena and stores the ratings; skips tasks that are rated already.

    Raises:
        BadRequest: Memes are missing.
        BudgetSpent, CallsError, Unavailable, ModelRefused: The model can't be called; ratings so far are stored.
    """
    events = folder.events()
    tasks = {(event.meme, event.task): event for event in events if isinstance(event, TaskFormulated)}
    folder.require_memes((meme for meme, _ in tasks), memes)
    rated = {(e.meme, e.task) for e in events if isinstance(e, DifficultyRated) and e.annotator == annotator.name} | {
        (e.meme, e.task) for e in _silent(events, "difficulty") if e.model == annotator.name
    }
    guidelines = guidelines_of(events)

    async def one(task: TaskFormulated) -> Event:
        speaker = Speaker(annotator, memes[task.meme], 0)
        reply = await reply_or_reason(speaker.rate_difficulty(task.rounds, guidelines.get((task.meme, task.task))))
        about: dict[str, Any] = {"meme": task.meme, "task": task.task}
        if isinstance(reply, str):
            return NoReply(**about, to="difficulty", model=annotator.name, reason=reply)
        found, call = reply
        return DifficultyRated(**about, annotator=annotator.name, **found.model_dump(), call=call)

    await folder.ask_remaining(tasks, one, rated, concurrency=concurrency, progress=progress)


_CLASSES = {True: 1, False: 0, None: 2}
_MACRO: Mapping[str, Any] = {"labels": [0, 1], "average": "macro", "zero_division": 0.0}


def _silent(events: Sequence[Event], to: str) -> list[NoReply]:
    return [event for event in events if isinstance(event, NoReply) and event.to == to]


@dataclass(frozen=True, slots=True)
class DetectionRow:
    """Labels of one model."""

    model: str
    labelled: int
    unlabelled: int
    """Number of memes without one; they count as wrong."""
    accuracy: Figure
    macro_f1: float
    """Mean F1 of the two classes; a meme without a label counts as predicted in neither class."""
    win_rate: float | None
    """Share of its battles that it won overall, counting ties as half; None if it has no battle."""


@dataclass(frozen=True, slots=True)
class DetectionReport:
    """Labels of all models, and their correlation with battles."""

    memes: int
    majority: float
    rows: tuple[DetectionRow, ...]
    spearman: Figure | None
    """Spearman's rank correlation between accuracy and win rate over models, with its interval over memes; None if
    fewer than three models have both."""


async def detect(
    folder: ArenaFolder,
    memes: Sequence[ShownMeme],
    models: Mapping[str, MeteredModel],
    *,
    concurrency: int = 4,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Asks every target for a bare label of every meme and stores it; skips labels that are stored already.

    Raises BudgetSpent, CallsError, Unavailable, ModelRefused: A model can't be called; labels so far are stored.
    """
    answered = _labels(folder.events())
    pairs = {(meme.id, model.name): (meme, model) for meme in memes for model in models.values()}

    async def one(item: tuple[ShownMeme, MeteredModel]) -> Event:
        meme, model = item
        found = await reply_or_reason(Speaker(model, meme, 0).detect())
        if isinstance(found, str):
            return NoReply(meme=meme.id, to="label", model=model.name, reason=found)
        return Detected(meme=meme.id, target=model.name, harmful=found[0], call=found[1])

    await folder.ask_remaining(pairs, one, answered, concurrency=concurrency, progress=progress)


def detection_report(
    manifest: ArenaManifest, events: Sequence[Event], *, resamples: int = 2000, seed: int = 0
) -> DetectionReport:
    """Scores the labels and compares them with the battles.

    Raises BadRequest: No model has been asked for labels yet.
    """
    # Imported here, as it is slow to import.
    from sklearn.metrics import f1_score

    found = _labels(events)
    if not found:
        raise BadRequest("No target of this arena was asked for labels yet.", reason="ARENA_EMPTY")
    memes = {meme for meme, _ in found}
    gold = {meme.id: meme.harmful for meme in manifest.memes if meme.id in memes}
    draws = ResampledMeans(gold, resamples, seed)
    fought = _scores_of(manifest, events, gold)
    truth = [_CLASSES[harmful] for harmful in gold.values()]
    rows: list[DetectionRow] = []
    pairs: list[tuple[Floats, Floats]] = []
    for name in manifest.settings.targets:
        labels = {meme: label for (meme, target), label in found.items() if target == name and meme in gold}
        if labels.keys() != gold.keys():
            continue  # labelling was interrupted before this model had labelled every meme
        # Compared by identity: a missing label is None, which matches neither class.
        accuracy, drawn = draws.of([(meme, float(label is gold[meme])) for meme, label in labels.items()])
        win_rate = None
        if fought[name]:
            # From the same resampled memes as the accuracy, so that the correlation can be resampled.
            win_rate, drawn_rate = draws.of(fought[name])
            pairs.append((np.append(accuracy, drawn), np.append(win_rate, drawn_rate)))
        rows.append(
            DetectionRow(
                model=name,
                labelled=sum(label is not None for label in labels.values()),
                unlabelled=sum(label is None for label in labels.values()),
                accuracy=share_figure(accuracy, drawn, len(gold)),
                # A missing label is a class of its own, whose F1 is not in the mean.
                macro_f1=float(f1_score(truth, [_CLASSES[labels[meme]] for meme in gold], **_MACRO)),
                win_rate=win_rate,
            )
        )
    if not rows:
        raise BadRequest("No target of this arena has labelled all memes yet.", reason="ARENA_EMPTY")
    harmful = float(np.mean(list(gold.values())))
    return DetectionReport(
        memes=len(gold),
        majority=max(harmful, 1 - harmful),
        rows=tuple(sorted(rows, key=lambda row: -row.accuracy.value)),
        spearman=rank_correlation(np.array(pairs).transpose(2, 1, 0)) if pairs else None,
    )


def _labels(events: Sequence[Event]) -> dict[tuple[str, str], bool | None]:
    """Returns whether each target called each meme harmful; None where it gave no usable label."""
    labels: dict[tuple[str, str], bool | None] = {(e.meme, e.model): None for e in _silent(events, "label")}
    return labels | {(e.meme, e.target): e.harmful for e in events if isinstance(e, Detected)}


def _scores_of(
    manifest: ArenaManifest, events: Sequence[Event], memes: Collection[str]
) -> Mapping[str, Sequence[tuple[str, float]]]:
    """Returns, by model, the meme and overall score of each of its battles: 1 won, 0.5 tied, 0 lost.

    Accuracy is compared with win rates instead of ratings: win rates exist even if a model never lost, and rank models
    the same way if all pairs meet equally often, which the arena ensures.
    """
    table, _, tasks = table_of(manifest, events, OVERALL)
    found: dict[str, list[tuple[str, float]]] = {name: [] for name in table.models}
    for (meme, _), left, right, score in zip(tasks, table.left, table.right, table.score, strict=True):
        if meme in memes:
            found[table.models[left]].append((meme, float(score)))
            found[table.models[right]].append((meme, 1 - float(score)))
    return found


def detection_sections(report: DetectionReport) -> list[Section]:
    """Builds a table of models by accuracy, with their win rates and the rank correlation."""
    table = (
        ("model", "accuracy", "macro-F1", "labelled", "win rate overall"),
        *(
            (
                row.model,
                f"{figure(row.accuracy, '.1f', times=100)} %",
                f"{row.macro_f1:.3f}",
                f"{row.labelled:,} of {row.labelled + row.unlabelled:,}",
                "–" if row.win_rate is None else f"{100 * row.win_rate:.1f} %",
            )
            for row in report.rows
        ),
    )
    if report.spearman is None:
        together = "Fewer than three models can be ranked by both, or all are alike in one: there is no correlation."
    else:
        together = (
            f"Spearman's rank correlation of accuracy and win rate over {len(report.rows)} models is "
            f"{figure(report.spearman, '.2f')}. With few models its interval says little."
        )
    notes = (
        f"Bare labels of {report.memes:,} memes; a meme without a usable label counts as wrong. Always naming the "
        f"larger class gets {100 * report.majority:.1f} %. Intervals are 95 %, by bootstrap over memes.",
        together,
    )
    return [Section("detection", "Detection beside understanding", table, notes)]
