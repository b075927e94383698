"""Leaderboard of an arena: ratings by dimension, and evidence of their reliability."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from court.errors import BadRequest
from eval.arena.agreement import HumanAgreement, HumanVerdict, human_agreement, judged_in_both_orders
from eval.arena.bias import BiasReport, SettingContrast, bias_report, contrasts
from eval.arena.boards import Board, board_of
from eval.arena.events import Answered, Event, Judged, MemeDone, MemeLeftOut, NoReply, TaskFormulated
from eval.arena.folder import ArenaFolder, ArenaManifest
from eval.arena.words import OVERALL
from eval.datasets.read import shared_detector
from eval.session.directory import Spent

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


@dataclass(frozen=True, slots=True)
class LanguageShare:
    """Languages of a model's answers to questions that ask for a language."""

    told: int
    """Number of answers whose language could be detected."""
    right: int
    unknown: int
    """Number of answers that are too short, or whose question asks for a language that the detector does not know."""

    @property
    def share(self) -> float | None:
        """Share of answers in the requested language; None if no language was detected."""
        return self.right / self.told if self.told else None


def answer_languages(events: Sequence[Event]) -> dict[str, LanguageShare]:
    """Detects the languages of answers, by model; leaves out models that were never asked for a language.

    Each round's answer counts separately: each is requested in that language.

    Raises NotLoaded: A question asks for a language, and py3langid is not installed.
    """
    wanted = {(e.meme, e.task): e.language for e in events if isinstance(e, TaskFormulated) and e.language}
    found: dict[str, list[bool | None]] = defaultdict(list)
    for event in events:
        if isinstance(event, Answered) and (language := wanted.get((event.meme, event.task))):
            found[event.target] += [_is_in(text, language) for text in event.reasoning]
    return {
        target: LanguageShare(len(answers) - answers.count(None), answers.count(True), answers.count(None))
        for target, answers in found.items()
    }


def _is_in(text: str, tag: str) -> bool | None:
    """True if a text is in the language of a tag; None if there is no telling."""
    if len(_LETTERS.findall(text)) < FEWEST_LETTERS:
        return None
    detector, language = shared_detector(), _plain(tag)
    # The detector only names languages that it knows, so every answer in another one would count as wrong.
    if language not in map(_plain, detector.languages) or not (found := detector.language_of(text)):
        return None
    return _plain(found) == language


def _plain(tag: str) -> str:
    """Returns the language of a BCP 47 tag, without script and region."""
    language = tag.replace("_", "-").partition("-")[0].lower()
    return _ONE_LANGUAGE.get(language, language)


@dataclass(frozen=True, slots=True)
class Target:
    """Further facts about one model."""

    model: str
    called: str
    family: str
    answered: int
    unanswered: dict[str, int]
    words: float
    tokens: float
    as_judge: int
    unjudged: int
    in_language: LanguageShare | None = None


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Report on an arena."""

    manifest: ArenaManifest
    boards: tuple[Board, ...]
    targets: tuple[Target, ...]
    memes: int
    left_out: dict[str, int]
    tasks: int
    unmerged: int
    """Number of answers that could not be merged into their guideline."""
    first_wins: tuple[float, int]
    """Share of decided battles won by the answer shown first, and the number of decided battles."""
    consistent: tuple[float, int] | None
    references: dict[str, int]
    """Number of battles judged with each reference; a battle has none if no judge had an answer to start a guideline
    from."""
    spent: dict[str, Spent] = field(default_factory=dict)
    bias: BiasReport | None = None
    humans: HumanAgreement | None = None
    contrasts: tuple[SettingContrast, ...] = ()
    """Ratings under each setting of the bias study minus those under the first; empty without the study."""

    @property
    def asks_for_languages(self) -> bool:
        """True if a question asks for a language."""
        return any(target.in_language is not None for target in self.targets)

    def board(self, dimension: str) -> Board:
        """Returns the board of one dimension. Raises KeyError if there is none."""
        return {board.dimension: board for board in self.boards}[dimension]


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
    settings = manifest.settings
    return Leaderboard(
        manifest=manifest,
        # The last criterion is OVERALL itself, which comes first here.
        boards=tuple(board_of(manifest, events, name) for name in (OVERALL, *settings.dimensions[:-1])),
        targets=_targets(manifest, events),
        memes=sum(isinstance(event, MemeDone) for event in events),
        left_out=dict(Counter(event.reason for event in events if isinstance(event, MemeLeftOut))),
        tasks=sum(isinstance(event, TaskFormulated) for event in events),
        unmerged=sum(isinstance(event, NoReply) and event.to == "merging" for event in events),
        # 0.5 without a decided battle: no preference either way.
        first_wins=(float(np.mean(decided)) if decided else 0.5, len(decided)),
        consistent=(float(np.mean([one == other for one, other in both])), len(both)) if both else None,
        references=dict(Counter(str(event.setting) for event in fought)),
        spent=folder.spent(),
        # Given all events: it selects its own battles.
        bias=bias_report(events, settings.targets, settings.judges, resamples=settings.resamples, seed=manifest.seed),
        humans=human_agreement(events, humans) if humans else None,
        contrasts=contrasts(
            events,
            settings.targets,
            {name: entry.family for name, entry in manifest.models.items()},
            resamples=settings.resamples,
            seed=manifest.seed,
        ),
    )


def _targets(manifest: ArenaManifest, events: Sequence[Event]) -> tuple[Target, ...]:
    answers: dict[str, list[Answered]] = defaultdict(list)
    for event in events:
        if isinstance(event, Answered):
            answers[event.target].append(event)
    # Includes the bias study: these count all calls to a model as a judge.
    judged = Counter(event.judge for event in events if isinstance(event, Judged))
    missing = [event for event in events if isinstance(event, NoReply)]
    unjudged = Counter(event.model for event in missing if event.to == "battle")
    languages = answer_languages(events)
    rows = []
    for name in manifest.settings.targets:
        entry, own = manifest.models[name], answers[name]
        rows.append(
            Target(
                model=name,
                called=entry.model,
                family=entry.family,
                answered=len(own),
                unanswered=dict(Counter(e.reason for e in missing if e.to == "answer" and e.model == name)),
                words=float(np.mean([one.style.words for one in own])) if own else 0.0,
                tokens=float(np.mean([one.tokens_out for one in own])) if own else 0.0,
                as_judge=judged[name],
                unjudged=unjudged[name],
                in_language=languages.get(name),
            )
        )
    return tuple(rows)
