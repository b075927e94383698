"""The oracle's answers to the tasks of its world.

As for harm, they depend only on its input: without a picture, a description or a caption it recognises no badge, and
assumes that the group named is the one shown; each help makes it recognise more memes. When it recognises a badge but
errs, it gives the next label in order, or is wrong about whether the group is shown.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval.synthetic.world import SHOWN, SIGNS, TARGETS, claim_of, read_badge, signs_of, target_of


@dataclass(frozen=True, slots=True)
class Ability:
    """Ability of the oracle: shares of memes, each in [0, 1]."""

    harmful: float = 0.9
    """Share of the harmful memes with a recognised badge that it judges correctly."""
    benign: float = 0.85
    """Share of the other memes with a recognised badge that it judges correctly."""
    eyes: float = 0.4
    """Share of all memes whose badge the Judge recognises without help."""
    description: float = 0.2
    """Additional share with a description that names the right badge."""
    answers: float = 0.2
    """Additional share with arguments that are based on the Proposer's answers."""
    arguments: float = 0.1
    """Additional share with arguments that are based on the description alone."""
    precedents: float = 0.2
    """Additional share with precedents most of which are labelled by the rule."""
    seed: int = 0

    # Effects that papers claim, planted where a demonstration has to show them; none by default.

    groups_told: int = 6
    """Number of the groups whose badges a description names; those of the others come out by a question alone."""
    unseen: float | None = None
    """Share of the memes with an unrecognised badge that it judges correctly; None if it goes by the words alone."""
    lead: int = 0
    """Rounds by which the side that is right rests sooner, and by which late sides rest later."""
    near: bool = False
    """True if precedents help only where most of them name or show the group that the meme names."""
    asked_by: str = ""
    """Stance in which alone a side asks for the badge; empty for any."""
    reviewed: float = 0.0
    """Additional share when it looks over an earlier answer of its own."""
    readings: float = 0.0
    """Additional share with a malign and a benign reading of the meme."""
    fetched: float = 0.0
    """Additional share with arguments that rest on a near precedent that a question fetched."""
    late: float = 0.0
    """Share of memes that it judges wrongly if the sides asked before they knew their stance."""


def chance_of(seed: int, what: str, text: str, badge: str) -> float:
    """Returns a number in [0, 1) that is a function of its arguments."""
    # Ignores spacing and case: a text that is laid out or read differently has the same outcome.
    words = " ".join(text.lower().split())
    digest = hashlib.sha256(f"{seed}\0{what}\0{words}\0{badge}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


_BADGE = re.compile(r"the badge of (\w+)")
_OPTION = re.compile(r"^([A-Z])\) (.+)$", re.MULTILINE)
_OF_LABEL = re.compile(r"Does this label fit the meme: (.+)\?")
_LAID_OUT = re.compile(
    r"(?P<heading>^(?:Above: (?:the meme that is judged|the picture of (?:example|precedent) \d+)\.|"
    r"Text of example \d+:|Example \d+, a meme that people have labelled: [^\n]*|Precedent \d+ was found [^\n]*|"
    r"What precedent \d+ was filed under:|The side that says [^\n]*:|"
    r"In the further question below, people labelled precedent \d+: [^\n]*|Text of the meme that is judged:|"
    r"Description of its picture by the witness:|Caption that people wrote for it:))"
    r"|\[begin (?P<mark>\w+)\]\n(?P<fenced>.*?)\n\[end (?P=mark)\]",
    re.DOTALL | re.MULTILINE,
)
_LABELLED = re.compile(r"Example (\d+), a meme that people have labelled: ([^\n]*)")
_PRECEDENT = re.compile(r"Precedent (\d+) was found")
_PRECEDENT_LABELLED = re.compile(r"In the further question below, people labelled precedent (\d+): ([^\n]*)")
_SURE = 0.9  # probability of the answer


@dataclass(frozen=True, slots=True)
class TaskInput:
    """Input of the oracle for a question about a task."""

    text: str
    badge: str | None = None
    """Badge on its picture; None if no picture is shown."""
    named: str | None = None
    """Badge that a description or caption names; None without either."""
    follow: bool = False
    """True if most of the examples shown are labelled by the rule; False without any."""


def answer_target(shown: TaskInput, ability: Ability) -> str:
    """Answer to the task ``target``."""
    badge, slips = _sight(shown, ability)
    answer = target_of(shown.text, badge)
    # An error names the next label, so that the wrong answer is the same each time.
    return TARGETS[(TARGETS.index(answer) + 1) % len(TARGETS)] if slips else answer


def answer_signs(shown: TaskInput, ability: Ability) -> tuple[str, ...]:
    """Answer to the task ``signs``."""
    badge, slips = _sight(shown, ability)
    answer = set(signs_of(shown.text, badge))
    # An error is about the one sign that requires sight: whether the group is shown.
    return tuple(sign for sign in SIGNS if sign in (answer ^ {SHOWN} if slips else answer))


def task_reply(parts: Sequence[str | bytes], wanted: Mapping[str, Any], ability: Ability) -> dict[str, Any] | None:
    """Returns the reply to a question for labels of a task, also one to a trial's Judge; None for any other."""
    why = {"rationale": "By what is said and shown."} if "rationale" in wanted else {}
    if set(wanted.get("label", {}).get("enum", ())) == set(TARGETS):
        return {**why, "label": answer_target(_shown(parts), ability)}
    if set(wanted.get("labels", {}).get("properties", ())) == set(SIGNS):
        reply = answer_signs(_shown(parts), ability)
        labels = wanted["labels"]["properties"]
        # A trial's Judge rates each label, whereas a single call answers yes or no.
        if why:
            return {**why, "labels": {label: _WEIGHED[label in reply] for label in labels}}
        return {"labels": {label: label in reply for label in labels}}
    return None


_WEIGHED = {
    True: {"supporting": "strong", "opposing": "weak"},
    False: {"supporting": "weak", "opposing": "moderate"},
}
"""Strengths for and against a label that fits, and one that does not."""


def task_odds(parts: Sequence[str | bytes], ability: Ability) -> dict[str, float] | None:
    """Returns probabilities of the letters that a question for labels of a task offers; None for any other."""
    # The question comes after everything that is shown.
    last = next(part for part in reversed(parts) if isinstance(part, str))
    options = dict(_OPTION.findall(last))
    of_label = _OF_LABEL.search(last)
    if of_label is not None:
        answer = "yes" if of_label[1] in answer_signs(_shown(parts), ability) else "no"
    elif set(options.values()) == set(TARGETS):
        answer = answer_target(_shown(parts), ability)
    else:
        return None
    remainder = (1 - _SURE) / (len(options) - 1)
    return {letter: 0.98 * (_SURE if label == answer else remainder) for letter, label in options.items()}


def _sight(shown: TaskInput, ability: Ability) -> tuple[str | None, bool]:
    """Returns the badge that the oracle takes the meme to show, and True if it errs."""
    # A badge that is seen takes precedence over one that is named.
    badge = shown.badge or shown.named
    claim = claim_of(shown.text)
    helped = ability.eyes * (shown.badge is not None) + ability.description * (shown.named is not None)
    helped += ability.precedents * shown.follow

    def chance(what: str) -> float:
        return chance_of(ability.seed, what, shown.text, badge or "")

    # Rounded: decimal shares that add up to 1 may fall short of it in binary.
    if badge is None or chance("eyes") >= round(helped, 9):
        return (claim.group if claim else None), False
    harmful = target_of(shown.text, badge) == badge
    return badge, chance("slip") >= (ability.harmful if harmful else ability.benign)


def _shown(parts: Sequence[str | bytes]) -> TaskInput:
    """Parses the input according to the layout of the prompt."""
    texts, pictures, headings = laid_out(parts, _LAID_OUT)
    under = {heading: found[-1] for heading, found in texts.items()}
    labelled: dict[str, str] = {}
    for heading in headings:
        if example := _LABELLED.match(heading):
            labelled[f"example {example[1]}"] = example[2]
        elif precedent := _PRECEDENT_LABELLED.match(heading):
            labelled[f"precedent {precedent[1]}"] = precedent[2]
        elif precedent := _PRECEDENT.match(heading):
            # The heading also contains its similarity, so the text is looked up by number alone.
            under[f"Text of precedent {precedent[1]}:"] = under.get(heading, "")
    by_rule = [
        _follows(under.get(f"Text of {which}:", ""), pictures.get(f"Above: the picture of {which}."), label)
        for which, label in labelled.items()
    ]
    openings = ("Description of its picture by the witness:", "Caption that people wrote for it:")
    words = "".join(under.get(heading, "") for heading in openings)
    named = _BADGE.search(words)
    return TaskInput(
        text=under.get("Text of the meme that is judged:", ""),
        badge=pictures.get("Above: the meme that is judged."),
        named=named[1] if named else None,
        follow=2 * sum(by_rule) > len(by_rule),
    )


def laid_out(
    parts: Sequence[str | bytes], pattern: re.Pattern[str]
) -> tuple[dict[str, list[str]], dict[str, str | None], list[str]]:
    """Parses a user message according to the layout of its prompt.

    Args:
        parts: The message: texts, and pictures as PNG, which precede their captions.
        pattern: Finds headings (group ``heading``) and texts between marks (``fenced``).

    Returns:
        The texts under each heading, in order; the badge on each picture by its caption; all headings.
    """
    under: dict[str, list[str]] = {}
    pictures: dict[str, str | None] = {}
    headings: list[str] = []
    before: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            before.append(part)
            continue
        # Reset in each part: no text belongs to a heading of the part before.
        heading = ""
        for found in pattern.finditer(part):
            if found["fenced"] is not None:
                under.setdefault(heading, []).append(found["fenced"])
                continue
            heading = found["heading"]
            headings.append(heading)
            if heading.startswith("Above:"):
                pictures[heading] = next((read_badge(each) for each in before), None)
                # Pictures belong to the heading that follows them.
                before = []
    return under, pictures, headings


def _follows(text: str, badge: str | None, label: str) -> bool:
    """Returns True if an example is labelled by the rule, as far as it shows it."""
    claim = claim_of(text)
    if claim is None:
        return False
    group = badge or claim.group
    return label in (target_of(text, group), ", ".join(signs_of(text, group)) or "none of the labels")
