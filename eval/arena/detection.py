"""Detection versus understanding: tests if the models that explain harm best also label memes best."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from court.errors import BadRequest
from eval.arena.boards import table_of
from eval.arena.compare import rank_correlation
from eval.arena.events import Detected, DifficultyRated, Event, FollowUp, NoReply, TaskFormulated
from eval.arena.folder import ArenaManifest
from eval.arena.procedure import Questions
from eval.arena.ranking.battles import Floats
from eval.arena.speakers import DETECTOR, Detection, FixedQuestion, Speaker, guidelines_of
from eval.arena.words import OVERALL
from eval.reports.sections import Section
from eval.scores.means import ResampledMeans
from eval.scores.measure import NOTHING, figure, share_figure

_CLASSES = {True: 1, False: 0, None: 2}
_MACRO: Mapping[str, Any] = {"labels": [0, 1], "average": "macro", "zero_division": 0.0}


def difficulty_questions(events: Sequence[Event], annotator: str) -> Questions:
    """Lists every task of an arena, for a model to rate."""
    guidelines = guidelines_of(events)
    return {
        FollowUp("difficulty", annotator, e.meme, e.task): partial(_rate, e, guidelines.get((e.meme, e.task)))
        for e in events
        if isinstance(e, TaskFormulated)
    }


async def _rate(task: TaskFormulated, guideline: FixedQuestion | None, speaker: Speaker) -> Event:
    found, call = await speaker.rate_difficulty(task.rounds, guideline)
    about = {"meme": task.meme, "task": task.task, "annotator": speaker.model.name}
    return DifficultyRated.model_validate({**about, **found.model_dump(), "call": call})


def label_questions(manifest: ArenaManifest) -> Questions:
    """Lists every meme of an arena for every target, to label without an explanation."""
    return {
        FollowUp("label", target, meme.id): _label for meme in manifest.memes for target in manifest.settings.targets
    }


async def _label(speaker: Speaker) -> Event:
    reply, call = await speaker.ask(DETECTOR, "detect", Detection)
    harmful = reply.label == "harmful"
    return Detected(meme=speaker.meme.id, target=speaker.model.name, harmful=harmful, call=call)


def detection_sections(
    manifest: ArenaManifest, events: Sequence[Event], *, resamples: int = 2000, seed: int = 0
) -> tuple[list[Section], dict[str, Any]]:
    """Builds a table of models by accuracy of their labels, with their win rates and the rank correlation of both.

    A meme without a label counts as wrong, and as predicted in neither class.

    Raises BadRequest: No model has been asked for labels yet.
    """
    # Imported here, as it is slow to import.
    from sklearn.metrics import f1_score

    # None where a target gave no usable label.
    silent = (event for event in events if isinstance(event, NoReply) and event.to == "label")
    found: dict[tuple[str, str], bool | None] = dict.fromkeys((e.meme, e.model) for e in silent)
    found |= {(e.meme, e.target): e.harmful for e in events if isinstance(e, Detected)}
    if not found:
        raise BadRequest("No target of this arena was asked for labels yet.", reason="ARENA_EMPTY")
    memes = {meme for meme, _ in found}
    gold = {meme.id: meme.harmful for meme in manifest.memes if meme.id in memes}
    draws = ResampledMeans(gold, resamples, seed)
    fought = _scores_of(manifest, events, gold)
    truth = [_CLASSES[harmful] for harmful in gold.values()]
    rows: list[dict[str, Any]] = []
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
        unlabelled = sum(label is None for label in labels.values())
        row: dict[str, Any] = {
            "model": name,
            "labelled": len(gold) - unlabelled,
            "unlabelled": unlabelled,
            "accuracy": share_figure(accuracy, drawn, len(gold)),
            # A missing label is a class of its own, whose F1 is not in the mean.
            "macro_f1": float(f1_score(truth, [_CLASSES[labels[meme]] for meme in gold], **_MACRO)),
            "win_rate": win_rate,
        }
        rows.append(row)
    if not rows:
        raise BadRequest("No target of this arena has labelled all memes yet.", reason="ARENA_EMPTY")
    rows.sort(key=lambda row: -row["accuracy"].value)
    spearman = rank_correlation(np.array(pairs).transpose(2, 1, 0)) if pairs else None
    harmful = float(np.mean(truth))
    majority = max(harmful, 1 - harmful)
    table = [("model", "accuracy", "macro-F1", "labelled", "win rate overall")]
    for row in rows:
        won = NOTHING if row["win_rate"] is None else f"{100 * row['win_rate']:.1f} %"
        cells = (f"{figure(row['accuracy'], '.1f', times=100)} %", f"{row['macro_f1']:.3f}")
        table.append((row["model"], *cells, f"{row['labelled']:,} of {len(gold):,}", won))
    together = "Fewer than three models can be ranked by both, or all are alike in one: there is no correlation."
    if spearman is not None:
        together = (
            f"Spearman's rank correlation of accuracy and win rate over {len(rows)} models is "
            f"{figure(spearman, '.2f')}. With few models its interval says little."
        )
    notes = (
        f"Bare labels of {len(gold):,} memes; a meme without a usable label counts as wrong. Always naming the "
        f"larger class gets {100 * majority:.1f} %. Intervals are 95 %, by bootstrap over memes.",
        together,
    )
    section = Section("detection", "Detection beside understanding", tuple(table), notes)
    return [section], {"memes": len(gold), "majority": majority, "rows": rows, "spearman": spearman}


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
