"""Leaderboard of an arena: ratings by dimension, and evidence of their reliability."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from court.errors import BadRequest
from eval.arena.agreement import HumanVerdict, human_agreement, judged_in_both_orders
from eval.arena.bias import bias_report, contrasts
from eval.arena.boards import Board, board_of
from eval.arena.events import Answered, Event, Judged, MemeDone, MemeLeftOut, NoReply, TaskFormulated
from eval.arena.folder import ArenaFolder, ArenaManifest
from eval.arena.words import OVERALL, Row
from eval.datasets.read import DETECT, language_identifier, language_of

FEWEST_LETTERS = 20
"""Letters below which an answer is not looked at: of a name or a "yes" nobody can tell the language."""
_LETTERS = re.compile(r"[^\W\d_]")
_ONE_LANGUAGE = {
    **dict.fromkeys(("cmn", "wuu", "yue"), "zh"),
    **dict.fromkeys(("nb", "nn"), "no"),
    **dict.fromkeys(("ary", "arz"), "ar"),
    **dict.fromkeys(("bs", "hr", "sh"), "sr"),
    **{"ms": "id", "in": "id", "iw": "he", "fil": "tl", "uzs": "uz"},
}
"""Tags of one written language, or of languages that share most words, so that a detector's word is no proof."""


def answer_languages(events: Sequence[Event]) -> dict[str, Row]:
    """Detects the languages of answers, by model; leaves out models that were never asked for a language.

    Each round's answer counts separately: each is requested in that language. ``told`` counts the answers whose
    language could be detected, ``right`` those of them in the language asked for, and ``unknown`` the others, which are
    too short, or asked for in a language that the detector does not know.

    Raises NotLoaded: A question asks for a language, and py3langid is not installed.
    """
    wanted = {(e.meme, e.task): e.language for e in events if isinstance(e, TaskFormulated) and e.language}
    found: dict[str, list[bool | None]] = defaultdict(list)
    for event in events:
        if isinstance(event, Answered) and (language := wanted.get((event.meme, event.task))):
            found[event.target] += [_is_in(text, language) for text in event.reasoning]
    return {
        target: {
            "told": len(answers) - answers.count(None),
            "right": answers.count(True),
            "unknown": answers.count(None),
        }
        for target, answers in found.items()
    }


def _is_in(text: str, tag: str) -> bool | None:
    """True if a text is in the language of a tag; None if there is no telling."""
    if len(_LETTERS.findall(text)) < FEWEST_LETTERS:
        return None
    language, known = _plain(tag), map(str, language_identifier().labels)
    # The detector only names languages that it knows, so every answer in another one would count as wrong.
    if language not in map(_plain, known) or not (found := language_of(text, DETECT)):
        return None
    return _plain(found) == language


def _plain(tag: str) -> str:
    """Returns the language of a BCP 47 tag, without script and region."""
    language = tag.replace("_", "-").partition("-")[0].lower()
    return _ONE_LANGUAGE.get(language, language)


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Report on an arena."""

    manifest: ArenaManifest
    boards: tuple[Board, ...]
    """The overall board first."""
    figures: Row
    """All figures for other programs, without any text."""

    @property
    def overall(self) -> Board:
        """The board that ranks."""
        return self.boards[0]


def leaderboard(root: Path, humans: Sequence[HumanVerdict] = ()) -> Leaderboard:
    """Reads an arena, finished or not.

    Raises:
        BadRequest: The folder contains no arena, or the arena has no battle yet.
        NotLoaded: A question asks for a language, and py3langid is not installed.
    """
    folder = ArenaFolder(root)
    manifest, events = folder.manifest(), folder.events()
    # The bias study's battles run under their own settings and must not count in ratings.
    fought = [event for event in events if isinstance(event, Judged) and event.study == "arena"]
    if not fought:
        raise BadRequest(f"{root} has no battle yet that could be ranked.", reason="ARENA_EMPTY")
    # Ties say nothing about a preference for the answer shown first.
    decided = [s for event in fought if (s := event.verdicts[OVERALL].score) != 0.5]
    both = judged_in_both_orders(fought, OVERALL)
    settings, draw = manifest.settings, (manifest.settings.resamples, manifest.seed)
    families = {name: entry.family for name, entry in manifest.models.items()}
    # The last criterion is OVERALL itself, which comes first here.
    boards = tuple(board_of(manifest, events, name) for name in (OVERALL, *settings.dimensions[:-1]))
    figures: Row = {
        "manifest": {
            "name": manifest.name,
            "dataset": manifest.dataset,
            "split": manifest.split,
            "finished": manifest.finished is not None,
            "settings": settings.model_dump(mode="json"),
            "samples": [one.model_dump(mode="json") for one in manifest.samples],
        },
        "boards": boards,
        "targets": _targets(manifest, events),
        "memes": sum(isinstance(event, MemeDone) for event in events),
        "left_out": Counter(event.reason for event in events if isinstance(event, MemeLeftOut)),
        "tasks": sum(isinstance(event, TaskFormulated) for event in events),
        # Answers that could not be merged into their guideline.
        "unmerged": sum(isinstance(event, NoReply) and event.to == "merging" for event in events),
        # Share of decided battles won by the answer shown first. 0.5 without one: no preference either way.
        "first_wins": (float(np.mean(decided)) if decided else 0.5, len(decided)),
        "consistent": (float(np.mean([one == other for one, other in both])), len(both)) if both else None,
        # A battle has no reference if no judge had an answer to start a guideline from.
        "references": Counter(str(event.setting) for event in fought),
        "spent": {name: spent.model_dump() for name, spent in folder.spent().items()},
        # Given all events: it selects its own battles.
        "bias": bias_report(events, settings.targets, settings.judges, draw),
        "humans": human_agreement(events, humans) if humans else None,
        "contrasts": contrasts(events, settings.targets, families, draw),
    }
    return Leaderboard(manifest, boards, figures)


def _targets(manifest: ArenaManifest, events: Sequence[Event]) -> list[Row]:
    """Returns further facts about each model."""
    answers: dict[str, list[Answered]] = defaultdict(list)
    for event in events:
        if isinstance(event, Answered):
            answers[event.target].append(event)
    # Includes the bias study: these count all calls to a model as a judge.
    judged = Counter(event.judge for event in events if isinstance(event, Judged))
    missing = [event for event in events if isinstance(event, NoReply)]
    languages = answer_languages(events)
    return [
        {
            "model": name,
            "called": manifest.models[name].model,
            "family": manifest.models[name].family,
            "answered": len(answers[name]),
            "unanswered": Counter(e.reason for e in missing if e.to == "answer" and e.model == name),
            "words": float(np.mean([one.style.words for one in answers[name]])) if answers[name] else 0.0,
            "tokens": float(np.mean([one.tokens_out for one in answers[name]])) if answers[name] else 0.0,
            "as_judge": judged[name],
            "unjudged": sum(e.to == "battle" and e.model == name for e in missing),
            "in_language": languages.get(name),
        }
        for name in manifest.settings.targets
    ]
