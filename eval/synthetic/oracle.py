"""A model of known ability: it plays all roles on synthetic memes, reads the pictures, and errs where configured.

Its replies depend only on its input: the Proposer reads the badge from the pixels, an advocate reads the text and what
it is told about the picture, the Judge looks at the picture, its text, the description, the arguments and the
precedents, and applies the hidden rule. Its sight is limited: without help the Judge recognises the badges of only some
memes, and each help that a trial gives adds to them. Which memes those are, and where it errs although it recognises
the badge, is derived from digests of text and badge. So the outcome of every trial is known in advance, even if a part
of the procedure is left out, and a benchmark that runs it has a right answer (:func:`expected`).

To the tasks of its world it answers likewise: if it recognises no badge, it assumes that the group named is the one
shown; if it errs, it gives the next label in order, or is wrong about whether the group is shown.
"""

import json
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from court.events import Side
from court.prompts.sets import packaged, packaged_versions
from eval.datasets.items import Level
from eval.synthetic.messages import argument, chance_of, fenced, parts_of, picture_in, ruling, wanted_by
from eval.synthetic.world import GROUPS, SHOWN, SIGNS, TARGETS, claim_of, read_badge, signs_of, target_of


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

    def chance(self, what: str, text: str, badge: str | None = None) -> float:
        """A number in [0, 1) of a meme, for one use of it."""
        # Ignores spacing and case: a text that is laid out or read differently has the same outcome.
        return chance_of(str(self.seed), what, " ".join(text.lower().split()), badge or "")


_ANSWER = re.compile(r"The witness's answer:\n\[begin (\w+)\]\n(.*?)\n\[end \1\]", re.DOTALL)
_BADGE = re.compile(r"the badge of (\w+)")
_OPTION = re.compile(r"^([A-Z])\) (.+)$", re.MULTILINE)
_OF_LABEL = re.compile(r"Does this label fit the meme: (.+)\?")
_PRECEDENT = re.compile(r"Precedent (\d+) was found ((?:not |somewhat |very |)harmful)\.")
_LABELLED = re.compile(
    r"(?:In the further question below, people labelled )?(Example|precedent) (\d+)(?:, a meme that [a-z ]*)?: (.*)"
)
_DESCRIPTION, _CAPTION = "Description of its picture by the witness:", "Caption that people wrote for it:"
# A fence is matched as a whole, so that a heading inside it does not count.
_LAID_OUT = re.compile(
    r"(?P<heading>^(?:Above: (?:the meme that is judged|the picture of (?:example|precedent) \d+)\.|"
    r"Text of example \d+:|Example \d+, a meme that people have labelled: [^\n]*|Precedent \d+ was found [^\n]*|"
    r"What precedent \d+ was filed under:|The side that says [^\n:]*:|"
    r"In the further question below, people labelled precedent \d+: [^\n]*|Text of the meme that is judged:|"
    rf"{_DESCRIPTION}|{_CAPTION}))"
    r"|\[begin (?P<mark>\w+)\]\n(?P<fenced>.*?)\n\[end (?P=mark)\]",
    re.DOTALL | re.MULTILINE,
)
# An argument in parts has quotes before its conclusion.
_FOR_HARM, _AGAINST_HARM = (
    re.compile(r"^For harm:|\bThis is harmful "),
    re.compile(r"^Against harm:|\bThis is not harmful "),
)
_WITNESS = "as the witness answered"
_SIGHT = "What badge is shown in the middle of the picture?"
_LATE = "which nobody knew to ask"
_ON_FILE = "as a case on file shows"
_FILED = "On file:"  # begins a precedent that a question fetched (eval.solvers.progressive)
_AIDS: Mapping[str, str] = {"reviewed": "Your earlier answer", "readings": "Its malign reading:", "fetched": _ON_FILE}
"""Words of the Judge's input that show an aid, by the ability that says what the aid is worth."""
_USUAL = Ability()
_LETTERS = f"{string.ascii_lowercase}{string.digits}"
_SURE = 0.9  # probability of the answer to a task
_WEIGHED = {True: {"supporting": "strong", "opposing": "weak"}, False: {"supporting": "weak", "opposing": "moderate"}}
"""Strengths for and against a label that fits, and one that does not."""


@dataclass(frozen=True, slots=True)
class JudgeInput:
    """Input of whoever judges a meme, or labels it."""

    text: str
    badge: str | None = None
    """Badge on the picture; None if there is no picture, or no badge on it."""
    named: str | None = None
    """Badge that a description or caption names; None without either."""
    aids: frozenset[str] = frozenset()
    """Names of further shares of an ability that count: ``arguments`` or ``answers``, if the arguments of both sides
    name that badge, ``precedents``, if most precedents or examples are labelled by the rule, and :data:`_AIDS`."""
    late: bool = False
    """True if the sides asked before they knew their stance."""

    def recognises(self, badge: str | None, ability: Ability) -> bool:
        """True if the oracle recognises a badge with such help."""
        helped = ability.eyes * (self.badge is not None) + ability.description * (self.named == badge)
        helped += sum(getattr(ability, aid) for aid in self.aids)
        # Rounded: decimal shares that add up to 1 may fall short of it in binary.
        return badge is not None and ability.chance("eyes", self.text, badge) < round(helped, 9)


@dataclass(frozen=True, slots=True)
class Opinion:
    """Opinion of the Judge."""

    level: Level
    recognised: bool
    """True if it recognised the badge; otherwise it goes by the text alone, and takes every bad word for an attack."""
    probability: float
    """Probability of harm that it would give."""

    @property
    def harmful(self) -> bool:
        """Two-class label."""
        return self.level is not Level.NOT_HARMFUL


def judge(shown: JudgeInput, ability: Ability) -> Opinion:
    """Returns the Judge's opinion. A text that does not belong to this world is harmful, with doubt."""
    claim = claim_of(shown.text)
    if claim is None:
        return Opinion(Level.SOMEWHAT_HARMFUL, False, 0.5)

    def chance(what: str) -> float:
        return ability.chance(what, shown.text, shown.badge)

    sees_badge = shown.recognises(shown.badge, ability)
    truth = claim.bad and claim.group == shown.badge
    if sees_badge:
        harmful = truth == (chance("slip") < (ability.harmful if truth else ability.benign))
    else:
        # Without recognising the badge, the Judge goes by the words alone.
        harmful = claim.bad if ability.unseen is None else truth == (chance("guess") < ability.unseen)
    if shown.late and chance("late") < ability.late:
        harmful = not truth
    sure = (0.8 + 0.19 * chance("sure")) if sees_badge else (0.55 + 0.2 * chance("sure"))
    # Kind words that are called harmful by an error are somewhat harmful.
    level = (claim.level if claim.bad else Level.SOMEWHAT_HARMFUL) if harmful else Level.NOT_HARMFUL
    return Opinion(level, sees_badge, sure if harmful else 1 - sure)


def answer_target(shown: JudgeInput, ability: Ability) -> str:
    """Answer to the task ``target``."""
    badge, slips = _recognised(shown, ability)
    answer = target_of(shown.text, badge)
    # An error names the next label, so that the wrong answer is the same each time.
    return TARGETS[(TARGETS.index(answer) + 1) % len(TARGETS)] if slips else answer


def answer_signs(shown: JudgeInput, ability: Ability) -> tuple[str, ...]:
    """Answer to the task ``signs``."""
    badge, slips = _recognised(shown, ability)
    answer = set(signs_of(shown.text, badge))
    # An error is about the one sign that requires sight: whether the group is shown.
    return tuple(sign for sign in SIGNS if sign in (answer ^ {SHOWN} if slips else answer))


def _recognised(shown: JudgeInput, ability: Ability) -> tuple[str | None, bool]:
    """Returns the badge that the oracle takes the meme to show, and True if it errs."""
    # A badge that is seen takes precedence over one that is named.
    badge = shown.badge or shown.named
    if not shown.recognises(badge, ability):
        claim = claim_of(shown.text)
        return (claim.group if claim else None), False
    harmful = target_of(shown.text, badge) == badge
    return badge, ability.chance("slip", shown.text, badge) >= (ability.harmful if harmful else ability.benign)


def expected(
    text: str,
    badge: str | None,
    ability: Ability,
    *,
    dull: bool = False,
    advocates: bool = True,
    captioner: bool = True,
    stance_from_start: bool = True,
    precedents: Iterable[tuple[str, str | None, bool]] = (),
) -> Opinion:
    """Predicts the reply of the Judge of a full trial with these settings.

    Args:
        badge: Group whose badge its picture shows; None without one.
        precedents: Text, badge (None without its picture) and label (harmful?) of each precedent shown.
    """
    if dull:
        return judge(JudgeInput(text, badge), ability)
    described = badge is not None and _names_badge(badge, ability)
    argued = advocates and badge is not None
    aids = _precedents_aid(_by_rule(shown, text if ability.near else "") for shown in precedents)
    # Without a side, an advocate does not know what to ask for.
    if argued and captioner and stance_from_start:
        aids |= {"answers"}
    elif argued and described:
        aids |= {"arguments"}
    late = argued and captioner and not stance_from_start
    return judge(JudgeInput(text, badge, named=badge if described else None, aids=aids, late=late), ability)


def rounds_of(
    text: str, badge: str | None = None, side: Side | None = None, ability: Ability = _USUAL, *, late: bool = False
) -> int:
    """Returns the number of rounds until a side's summary stays the same, unless settings end the examination earlier.

    Args:
        badge: Badge that the side knows of; None if it knows of none.
        late: True if it asked before it knew its stance.
    """
    claim = claim_of(text)
    right = None if badge is None or claim is None else (claim.bad and claim.group == badge) is (side is Side.ACCUSER)
    behind = ability.lead * ((right is not True) + late)
    return 2 + int(4 * _USUAL.chance("rounds", text)) + behind


def _names_badge(badge: str, ability: Ability) -> bool:
    return list(GROUPS).index(badge) < ability.groups_told


def _by_rule(shown: tuple[str, str | None, bool], near: str) -> bool:
    """True if a precedent is labelled by the rule, as far as it shows it, and is near to a text if one is given."""
    text, badge, harmful = shown
    claim, wanted = claim_of(text), claim_of(near)
    if claim is None or (wanted is not None and wanted.group not in (claim.group, badge)):
        return False
    return (claim.bad and badge in (None, claim.group)) == harmful


def _precedents_aid(by_rule: Iterable[bool]) -> frozenset[str]:
    """The aid of precedents or examples, if more than half of them are labelled by the rule: a tie does not help."""
    marks = list(by_rule)
    return frozenset({"precedents"} if 2 * sum(marks) > len(marks) else ())


@dataclass(frozen=True, slots=True)
class Oracle:
    """Replies in every role: words and pictures in, words out."""

    ability: Ability = _USUAL

    def answer(self, payload: Mapping[str, Any]) -> str | None:
        """Returns the reply to a chat completion; None if it is not part of a full trial."""
        system = next((m["content"] for m in payload["messages"] if m["role"] == "system"), "")
        reply = self.reply(system, _shown(payload), wanted_by(payload))
        return None if reply is None else json.dumps(reply)

    def odds(self, payload: Mapping[str, Any]) -> dict[str, float]:
        """Returns probabilities of the first token; equal ones if the question is not part of a trial."""
        parts = _shown(payload)
        in_trial = any("Answer with the letter alone" in part for part in _texts(parts[-1:]))
        return self.masses(parts) if in_trial else {"A": 0.5, "B": 0.5}

    def reply(self, system: str, parts: Sequence[str | bytes], wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the reply to a call; None if the call is not part of a full trial or of a comparator's."""
        # Checked first: a task's question requires a label too, as some comparators do.
        task_answer = self._labelled(parts, wanted)
        if task_answer is not None:
            return task_answer
        if "description" in wanted:
            return {"description": f"A drawn scene with words. {self._sight(parts, described=True)}"}
        if "answer" in wanted:
            asks_for_badge = any(_SIGHT in part for part in _texts(parts))
            return {"answer": self._sight(parts) if asks_for_badge else "There are many colours in the background."}
        if "question" in wanted:
            return {"question": self._question(system, parts)}
        if "summary" in wanted or "quotes" in wanted:
            return self._argument(system, parts, wanted)
        if "harmful_strength" in wanted:
            return self._ruling(parts, wanted)
        if "translation" in wanted:
            # All synthetic memes are in English, so the translation is the text itself.
            return {"translation": fenced(_texts(parts))[0]}
        if "evidence" in wanted:
            return {"evidence": f"The words stand beside what is shown. {self._sight(parts)}"}
        if "label" in wanted:
            harmful = self._judge(parts).harmful
            why = {"rationale": "Weighed by what is shown."} if "rationale" in wanted else {}
            return {**why, "label": "harmful" if harmful else "not harmful"}
        return None

    def masses(self, parts: Sequence[str | bytes]) -> dict[str, float]:
        """Returns probabilities of the offered letters, for the Judge's label or for a task's."""
        # The question comes after everything that is shown.
        last = _texts(parts)[-1]
        options, of_label = dict(_OPTION.findall(last)), _OF_LABEL.search(last)
        if of_label is not None or set(options.values()) == set(TARGETS):
            shown = _task_input(parts)
            answer = answer_target(shown, self.ability)
            if of_label is not None:
                answer = "yes" if of_label[1] in answer_signs(shown, self.ability) else "no"
            remainder = (1 - _SURE) / (len(options) - 1)
            return {letter: 0.98 * (_SURE if label == answer else remainder) for letter, label in options.items()}
        probability = self._judge(parts).probability
        # The court asks twice, with the options in either order.
        first, second = ("A", "B") if "A) harmful" in last else ("B", "A")
        # Some probability goes to other tokens, as with real models.
        return {first: 0.98 * probability, second: 0.98 * (1 - probability)}

    def _labelled(self, parts: Sequence[str | bytes], wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        """Reply to a question for labels of a task, also one to a trial's Judge; None for any other."""
        why = {"rationale": "By what is said and shown."} if "rationale" in wanted else {}
        if set(wanted.get("label", {}).get("enum", ())) == set(TARGETS):
            return {**why, "label": answer_target(_task_input(parts), self.ability)}
        labels = wanted.get("labels", {}).get("properties", ())
        if set(labels) != set(SIGNS):
            return None
        reply = answer_signs(_task_input(parts), self.ability)
        # A trial's Judge rates each label, whereas a single call answers yes or no.
        return {**why, "labels": {label: _WEIGHED[label in reply] if why else label in reply for label in labels}}

    def _sight(self, parts: Sequence[str | bytes], *, described: bool = False) -> str:
        badge = next((read_badge(part) for part in parts if isinstance(part, bytes)), None)
        if badge is None or (described and not _names_badge(badge, self.ability)):
            return "I don't know of any badge."
        return f"In the middle is the badge of {badge}."

    def _question(self, system: str, parts: Sequence[str | bytes]) -> str:
        put, stance = len(_exchanges(parts)), self.ability.asked_by
        # The one question that yields evidence; without a stance an advocate does not know to ask it.
        knows = _takes(system, stance) if stance else put == 0 and not _takes(system, "none")
        if knows and not any(_SIGHT in part for part in _texts(parts)):
            return _SIGHT
        return f"What else is there to see in the background, {put + 1}?"

    def _argument(self, system: str, parts: Sequence[str | bytes], wanted: Mapping[str, Any]) -> dict[str, Any]:
        # A text alone has no description.
        text, description = (*fenced(_texts(parts)), "")[:2]
        answers = _exchanges(parts)
        answered, described = _BADGE.search("\n".join(answers)), _BADGE.search(description)
        claim = claim_of(text)
        side = Side.ACCUSER if _takes(system, "accuser") else Side.DEFENDER
        named = f"the text names {claim.group}" if claim else "the text names nobody"
        if answered:
            sight = f"{_WITNESS} there is the badge of {answered[1]}"
        elif described:
            sight = f"the description has the badge of {described[1]}"
        else:
            sight = "what is shown is not known"
        known = answered or described
        late = bool(answers) and not any(_SIGHT in part for part in _texts(parts))
        rounds = rounds_of(text, known[1] if known else None, side, self.ability, late=late)
        # Four more letters per round until the last but one: the last summary is the first that adds nothing new.
        points = _LETTERS[: 4 * min(len(answers), rounds - 1) + 2]
        wanted_group = claim.group if claim else ""
        filed = any(_FILED in each and wanted_group in each.partition(_FILED)[2] for each in answers)
        reason = f"{named}, and {sight}{f', {_LATE}' if late else ''}{f', {_ON_FILE}' if filed else ''}."
        return argument(
            wanted,
            f"points {points}",
            f"{'For' if side is Side.ACCUSER else 'Against'} harm: {reason}",
            quote=" ".join((text or description).split()[:8]),
            # Twice, so that each round changes the entropy of the whole by more than the usual epsilon.
            because=f"{reason} Points {points} {points}.",
        )

    def _judge(self, parts: Sequence[str | bytes]) -> Opinion:
        return judge(_judge_input(parts, self.ability.near), self.ability)

    def _ruling(self, parts: Sequence[str | bytes], wanted: Mapping[str, Any]) -> dict[str, Any]:
        opinion = self._judge(parts)
        why = "The badge was made out." if opinion.recognised else "The badge was not made out: the text alone counts."
        found = {"category": "nationality", "clause": "4", "target": "community"} if opinion.harmful else {}
        named = {name: _among(wanted[name]["enum"], found.get(name)) for name in ("category", "clause", "target")}
        strong = "strong" if opinion.level is Level.VERY_HARMFUL else "moderate"
        return ruling(wanted, why, harmful=opinion.harmful, strong=strong, **named)


def _shown(payload: Mapping[str, Any]) -> list[str | bytes]:
    return [part if isinstance(part, str) else picture_in(part) for part in parts_of(payload)]


def _takes(system: str, stance: str) -> bool:
    """Returns True if a system message of any packaged set has an advocate take this stance."""
    return any(packaged(version).advocate.stance(stance) in system for version in packaged_versions())


def _among(words: Sequence[str], wanted: str | None) -> str:
    """Returns the word if the policy has it, else the policy's first; "none" if no word is wanted."""
    if wanted is None:
        return "none"
    return wanted if wanted in words else words[0]


def _texts(parts: Sequence[str | bytes]) -> list[str]:
    return [part for part in parts if isinstance(part, str)]


def _exchanges(parts: Sequence[str | bytes]) -> list[str]:
    """Returns the answers that an advocate has received; precedents may precede them, after the description."""
    return [found[2] for found in _ANSWER.finditer("\n\n".join(_texts(parts)))]


def _laid_out(parts: Sequence[str | bytes]) -> tuple[dict[str, list[str]], dict[str, str | None]]:
    """Parses a user message as its prompt lays it out: texts by heading, and badges by the captions of the pictures."""
    under: dict[str, list[str]] = {}
    pictures: dict[str, str | None] = {}
    before: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            before.append(part)
            continue
        # Reset in each part: no text belongs to a heading of the part before.
        heading = ""
        for found in _LAID_OUT.finditer(part):
            if found["fenced"] is not None:
                under.setdefault(heading, []).append(found["fenced"])
                continue
            heading = found["heading"]
            under.setdefault(heading, [])
            if heading.startswith("Above:"):
                pictures[heading] = next((read_badge(each) for each in before), None)
                # Pictures belong to the heading that follows them.
                before = []
    return under, pictures


def _meme_in(under: Mapping[str, list[str]], pictures: Mapping[str, str | None]) -> JudgeInput:
    """The meme itself, and the badge that a description or caption names."""
    named = _BADGE.search("".join(text for heading in (_DESCRIPTION, _CAPTION) for text in under.get(heading, ())))
    text = "".join(under.get("Text of the meme that is judged:", ()))
    return JudgeInput(text, pictures.get("Above: the meme that is judged."), named[1] if named else None)


def _task_input(parts: Sequence[str | bytes]) -> JudgeInput:
    under, pictures = _laid_out(parts)
    texts = {heading: found[-1] for heading, found in under.items() if found}
    # The heading also contains its similarity, so the text is looked up by number alone.
    texts |= {
        f"Text of precedent {of[1]}:": text for heading, text in texts.items() if (of := _PRECEDENT.match(heading))
    }
    by_rule = []
    for found in filter(None, map(_LABELLED.match, under)):
        which = f"{found[1].lower()} {found[2]}"
        picture = pictures.get(f"Above: the picture of {which}.")
        by_rule.append(_fits(found[3], texts.get(f"Text of {which}:", ""), picture))
    return replace(_meme_in(under, pictures), aids=_precedents_aid(by_rule))


def _fits(label: str, text: str, badge: str | None) -> bool:
    """Returns True if an example is labelled by a task's rule, as far as it shows it."""
    claim = claim_of(text)
    if claim is None:
        return False
    group = badge or claim.group
    return label in (target_of(text, group), ", ".join(signs_of(text, group)) or "none of the labels")


def _judge_input(parts: Sequence[str | bytes], near: bool) -> JudgeInput:
    under, pictures = _laid_out(parts)
    meme = _meme_in(under, pictures)
    precedents = [
        (texts[0], pictures.get(f"Above: the picture of precedent {shown[1]}."), shown[2] != "not harmful")
        for heading, texts in under.items()
        if (shown := _PRECEDENT.match(heading)) and texts
    ]
    words = "\n".join(_texts(parts))
    against = "The side that says it is not"
    accuser = "".join(under.get("The side that says it is harmful:", ())[:1])
    defender = "".join((under.get(f"{against}:") or under.get(f"{against} harmful:", []))[:1])
    aids = _precedents_aid(_by_rule(each, meme.text if near else "") for each in precedents)
    aids |= _arguments_aid(accuser, defender, meme.badge) | {aid for aid, mark in _AIDS.items() if mark in words}
    return replace(meme, aids=aids, late=_LATE in accuser and _LATE in defender)


def _arguments_aid(accuser: str, defender: str, badge: str | None) -> frozenset[str]:
    """Returns the aid of the arguments. Arguments on the wrong side, or about another badge, do not help."""
    arguments = (accuser, defender)
    named = [found[1] for each in arguments if (found := _BADGE.search(each))]
    if badge is None or not (_FOR_HARM.search(accuser) and _AGAINST_HARM.search(defender)) or named != [badge, badge]:
        return frozenset()
    return frozenset({"answers" if all(_WITNESS in each for each in arguments) else "arguments"})
