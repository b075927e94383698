"""Languages of answers: the share of each model's answers in the language that the question asks for."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from eval.arena.events import Answered, Event, TaskFormulated
from eval.datasets.language import shared_detector

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
    """Languages of a model's answers to questions that ask for a language.

    Attributes:
        undetected: Number of answers whose language could not be detected, or whose question asks for a language that
            the detector does not know.
        others: Languages of the answers in another language, with their counts, most frequent first.
    """

    told: int
    right: int
    short: int
    undetected: int
    others: dict[str, int]

    @property
    def share(self) -> float | None:
        """Share of answers in the requested language; None if no language was detected."""
        return self.right / self.told if self.told else None


def answer_languages(events: Iterable[Event]) -> dict[str, LanguageShare]:
    """Detects the languages of answers, by model; leaves out models that were never asked for a language.

    Each round's answer counts separately: each is requested in that language.

    Raises:
        NotLoaded: A question asks for a language, and py3langid is not installed.
    """
    languages: dict[tuple[str, int], str] = {}
    answers: list[Answered] = []
    for event in events:
        if isinstance(event, TaskFormulated) and event.language:
            languages[event.meme, event.task] = event.language
        elif isinstance(event, Answered):
            answers.append(event)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    others: dict[str, Counter[str]] = defaultdict(Counter)
    # Only after the whole record is read: several memes are in progress at once.
    for answer in answers:
        if (wanted := languages.get((answer.meme, answer.task))) is None:
            continue
        # Each round separately: a model may switch languages between rounds.
        for text in answer.reasoning:
            outcome, found = _outcome(text, wanted)
            counts[answer.target][outcome] += 1
            if outcome == "wrong":
                others[answer.target][found] += 1
    return {
        target: LanguageShare(
            told=count["right"] + count["wrong"],
            right=count["right"],
            short=count["short"],
            undetected=count["undetected"],
            others=dict(others[target].most_common()),
        )
        for target, count in counts.items()
    }


def _outcome(text: str, wanted: str) -> tuple[str, str]:
    """Returns ``right``, ``wrong``, ``short`` or ``undetected``, and the detected language."""
    if len(_LETTERS.findall(text)) < FEWEST_LETTERS:
        return "short", ""
    detector = shared_detector()
    language = _plain(wanted)
    # The detector only names languages that it knows, so every answer in another one would count as wrong.
    if language not in {_plain(one) for one in detector.languages}:
        return "undetected", ""
    found = detector.language_of(text)
    if not found:
        return "undetected", ""
    return "right" if _plain(found) == language else "wrong", found


def _plain(tag: str) -> str:
    """Returns the language of a BCP 47 tag, without script and region."""
    language = tag.replace("_", "-").partition("-")[0].lower()
    return _ONE_LANGUAGE.get(language, language)
