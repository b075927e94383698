"""Checks of a full trial: text measures that notice when a debate went wrong. No label follows from any.

They measure shared words and quotes. A text too short to measure passes, because a check that cries wolf is ignored.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from court.events import CheckFailed, OddsGiven, Side
from court.settings import TrialSettings
from court.verdict import ReviewReason as Check

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_QUOTED = re.compile(r"[\"“„«][^\"“”„«»]{1,400}[\"”»]")
_FUNCTION = frozenset(
    _WORD.findall(
        "the and that this with not which from their there they its it what who how these those would could should "
        "because about into between such shows says does have been being when where while than then also only other"
    )
)
"""Function words of English that other languages don't share."""
_HARM = re.compile(
    r"\bharm(?:s|ful|fully)?\b|\battack\w*|\binsult\w*|\bdemean\w*|\bderogat\w*|\bhat(?:e|es|eful|red)\b|\bhurt\w*"
)
_HARMLESS = re.compile(
    r"\bharmless\w*|\bbenign\b|\binnocent\w*|\bplayful\w*|\bfriendl\w*|\bjok\w*|\bhumou?r\w*|\bcelebrat\w*|\bsatir\w*|"
    r"\bordinary\b|\beveryday\b|\bneutral\w*"
)
_NEGATED = re.compile(r"\b(?:not|no|never|nothing|nobody|none|without|neither|nor|hardly|lacks?)\b|n['’]t\b")
_NOBODY = re.compile(r"\W*(?:no|nobody|nothing|none|neither)\b")
_HEDGED = re.compile(
    r"\b(?:accus\w+|claim\w*|alleg\w+|if|might|may|could|would|seem\w*|although|though|any|other|against|than|call\w*)\b"
)
_BEFORE = 45
"""Characters before a word in which a negation belongs to it, within its clause."""
_CLAUSE = re.compile(r"[.!?;,:]")
_PARAGRAPH = 12
"""Fewest words, or runs of words, of a text that is measured."""
_WINDOW = 25
"""Words in a row without a function word that no English text has."""
_SURE = 0.8  # probability of the other side's label from which on an argument counts as changed
_STEM = 6  # letters by which forms of a word are taken for one
_OF_EVERY_HEARING = frozenset(
    word[:_STEM]
    for word in _WORD.findall(
        "text picture words word group groups people person meme memes image viewer viewers harm harmful attack "
        "attacks says shows usual caption read reads"
    )
)
"""Words of policies that any argument needs."""

_OF_EVERY_RULING = _OF_EVERY_HEARING | frozenset(
    word[:_STEM] for word in _WORD.findall("according policy harmless content")
)
"""Words that any rationale needs, as in "which is harmful according to the policy"."""

CUT_MARK = "[…]"
"""Stands where the end of a text was cut off."""
LIMITS: Mapping[Check, float] = {
    Check.SIDES_ALIKE: 0.5,
    Check.POLICY_ECHOED: 0.5,
    Check.RATIONALE_COPIED: 0.7,
    Check.RATIONALE_UNGROUNDED: 0.95,
}
"""Share of words, or of runs of three words, from which on a measured check fails."""
ESSENTIAL = frozenset({Check.SIDE_CHANGED, Check.RATIONALE_COPIED, Check.OTHER_LANGUAGE})
"""Checks whose failure makes a mistrial; a language only in the rationale."""
_FAULTS: Mapping[Check, str] = {
    Check.SIDE_CHANGED: "it argues for the other side; argue for your own",
    Check.POLICY_ECHOED: "it repeats the policy; speak of what the text, the description and the answers say",
    Check.OTHER_LANGUAGE: "it is not in English; write English",
    Check.RATIONALE_COPIED: "its rationale copies one side's argument; give reasons of your own, in your own words",
    Check.RATIONALE_UNGROUNDED: "its rationale names nothing of the meme; name the evidence that you rest on",
    Check.REPLY_CUT: "a text in it was cut off at its limit; be shorter, and end every sentence",
}
"""Faults as a repair request names them; others are not repaired."""
DETAILS: Mapping[Check, str] = {
    Check.SIDE_CHANGED: "the {side} argued for the other side",
    Check.SIDES_ALIKE: "both sides said nearly the same",
    Check.POLICY_ECHOED: "the {side} repeated the policy instead of speaking of the meme",
    Check.RATIONALE_COPIED: "the rationale copies the {side}",
    Check.RATIONALE_UNGROUNDED: "the rationale names nothing of the meme",
    Check.OTHER_LANGUAGE: "{what} is not in the language of the prompts",
    Check.REPLY_CUT: "{what} was cut off at its limit",
    Check.PRECEDENTS_IGNORED: "the Judge compared no precedent with the meme",
    Check.DESCRIPTION_MISSING: "the Proposer gave no description of the picture",
}


def repair_of(found: Sequence[CheckFailed]) -> str:
    """Returns the fault that a repair request names; empty if no failed check is repaired."""
    return next((_FAULTS[each.check] for each in found if each.check in _FAULTS), "")


def in_words(failed: CheckFailed) -> str:
    """Describes a failed check for people."""
    side = "" if failed.side is None else failed.side.capitalize()
    what = f"the {side}'s argument" if side else "the description" if failed.about_picture else "the rationale"
    return DETAILS[failed.check].format(side=side, what=what)


def is_mistrial(found: Iterable[CheckFailed], settings: TrialSettings) -> bool:
    """True if an essential part of a trial with these settings went wrong."""
    # A side that asked for the other one was told to.
    essential = ESSENTIAL - {Check.SIDE_CHANGED} if settings.stance_at == "switch" else ESSENTIAL
    return settings.mistrials and any(
        each.check in essential and (each.check is not Check.OTHER_LANGUAGE or each.side is None) for each in found
    )


def of_argument(
    side: Side,
    argument: str,
    *,
    summary: str,
    material: Sequence[str],
    policy: str,
    chars: int,
    instructions: str,
    opening: str = "",
) -> tuple[CheckFailed, ...]:
    """Checks what a side says, by itself.

    Args:
        material: Texts that the side was shown: text, description, answers, precedents.
        chars: Longest summary or justification that was asked for.
        instructions: System message of the side, whose language is asked for.
        opening: Beginning of the side's conclusion, which it can't choose and which is therefore no sign of its stance.
    """
    found = []
    if _argues_for(argument.replace(opening, ".", 1) if opening else argument) is side.other:
        found.append(CheckFailed(check=Check.SIDE_CHANGED, side=side))
    own = [stem for stem in _content(argument) if stem not in _OF_EVERY_HEARING]
    echoed = _share(own, _stems([policy]) - _stems(material))
    if echoed >= LIMITS[Check.POLICY_ECHOED]:
        found.append(CheckFailed(check=Check.POLICY_ECHOED, side=side, share=echoed))
    if in_other_language(argument, instructions):
        found.append(CheckFailed(check=Check.OTHER_LANGUAGE, side=side))
    if is_cut(argument, chars) or is_cut(summary, chars):
        found.append(CheckFailed(check=Check.REPLY_CUT, side=side))
    return tuple(found)


def of_sides(accuser: str, defender: str) -> tuple[CheckFailed, ...]:
    """Compares what the two sides say."""
    # Both may quote the same words.
    ours, theirs = (_runs(_QUOTED.sub(" ", argument)) for argument in (accuser, defender))
    shorter, longer = sorted((ours, theirs), key=len)
    shared = _share(shorter, set(longer))
    return (CheckFailed(check=Check.SIDES_ALIKE, share=shared),) if shared >= LIMITS[Check.SIDES_ALIKE] else ()


def of_rationale(
    rationale: str, *, arguments: Mapping[Side, str], material: Sequence[str], chars: int, instructions: str
) -> tuple[CheckFailed, ...]:
    """Checks the Judge's rationale.

    Args:
        material: Texts of the meme and its precedents that the Judge was shown, apart from the arguments.
    """
    found = []
    # Words of the meme are quoted by everybody, and a formula beside a copied sentence makes it no reason of one's own.
    quoted = {run for text in material for run in _runs(text)}
    own = [
        run
        for run in _runs(rationale)
        if run not in quoted and not _OF_EVERY_RULING.issuperset(_content(" ".join(run)))
    ]
    by_side = {side: set(_runs(argument)) for side, argument in arguments.items()}
    # Of both together: small models put a sentence of one beside a sentence of the other.
    copied = _share(own, set().union(*by_side.values()))
    if copied >= LIMITS[Check.RATIONALE_COPIED]:
        most = max(by_side, key=lambda side: _share(own, by_side[side]))
        found.append(CheckFailed(check=Check.RATIONALE_COPIED, side=most, share=copied))
    known = _stems([*material, *arguments.values()])
    content = _content(rationale)
    foreign = _share(content, {stem for stem in content if stem not in known})
    if foreign >= LIMITS[Check.RATIONALE_UNGROUNDED]:
        found.append(CheckFailed(check=Check.RATIONALE_UNGROUNDED, share=foreign))
    if in_other_language(rationale, instructions):
        found.append(CheckFailed(check=Check.OTHER_LANGUAGE))
    if is_cut(rationale, chars):
        found.append(CheckFailed(check=Check.REPLY_CUT))
    return tuple(found)


def of_readings(supports: Collection[str]) -> tuple[CheckFailed, ...]:
    """Checks that the Judge compared any of several precedents with the meme."""
    ignored = len(supports) > 1 and all(each == "neither" for each in supports)
    return (CheckFailed(check=Check.PRECEDENTS_IGNORED),) if ignored else ()


def of_description(description: str | None, chars: int) -> tuple[CheckFailed, ...]:
    """Checks the description; None without a picture."""
    if description is None:
        return ()
    if not description:
        return (CheckFailed(check=Check.DESCRIPTION_MISSING, about_picture=True),)
    return (CheckFailed(check=Check.REPLY_CUT, about_picture=True),) if is_cut(description, chars) else ()


def of_odds(side: Side, odds: OddsGiven) -> tuple[CheckFailed, ...]:
    """Checks the label that a side's argument supports by the Judge's model; it can only find faults."""
    total = sum(odds.harmful) + sum(odds.not_harmful)
    other = sum(odds.not_harmful if side is Side.ACCUSER else odds.harmful)
    # Far from one half, because small models are unsure of everything.
    if total <= 0 or other / total < _SURE:
        return ()
    return (CheckFailed(check=Check.SIDE_CHANGED, side=side, share=other / total),)


def is_cut(text: str, most: int) -> bool:
    """True if a text ends in mid-sentence at its limit; white space at its end may have been removed."""
    if text.endswith(CUT_MARK):
        return True
    if not most - 2 <= len(text) <= most:
        return False
    last = text[-1]
    return unicodedata.category(last)[0] not in "PS" or last in ",;:-–—([{“‘"


def has_cut_text(content: Any, schema: Mapping[str, Any]) -> bool:
    """True if a text of a reply is cut at the limit that its schema sets."""
    if isinstance(content, str):
        return "maxLength" in schema and is_cut(content.strip(), schema["maxLength"])
    if isinstance(content, dict):
        # Quotes are compared with what was shown, where their end may lie anywhere.
        parts = {name: each for name, each in schema.get("properties", {}).items() if name != "quotes"}
        return any(has_cut_text(content.get(name), each) for name, each in parts.items())
    if isinstance(content, list):
        return any(has_cut_text(each, schema.get("items", {})) for each in content)
    return False


def in_other_language(text: str, instructions: str) -> bool:
    """True if a text, or a long part of it, is not in English although its instructions are.

    Quotes do not count, since memes are quoted in their own language.
    """
    return not _is_english(_QUOTED.sub(" ", text)) and _is_english(instructions)


def _is_english(text: str) -> bool:
    letters = [character for character in text if character.isalpha()]
    # Scripts are told by the names of their letters, as Python knows no other way.
    latin = sum("LATIN" in unicodedata.name(letter, "") for letter in letters)
    if len(letters) >= _PARAGRAPH and latin < 0.7 * len(letters):
        return False
    words = [match[0].casefold() for match in _WORD.finditer(text)]
    if len(words) < _PARAGRAPH:
        return True
    # Windows, because replies drift into another language in their middle.
    starts = range(0, max(1, len(words) - _WINDOW + 1), 5)
    return all(any(word in _FUNCTION for word in words[start : start + _WINDOW]) for start in starts)


def _argues_for(argument: str) -> Side | None:
    """Returns the side that an argument's wording supports; None if it supports neither or both."""
    # Quotes are what the meme says.
    text = _QUOTED.sub(" ", argument).casefold()
    stances = set()
    for words, asserted, denied in ((_HARM, Side.ACCUSER, Side.DEFENDER), (_HARMLESS, Side.DEFENDER, Side.ACCUSER)):
        for found in words.finditer(text):
            before = _CLAUSE.split(text[max(0, found.start() - _BEFORE) : found.start()])[-1]
            # "Nothing here is harmful" and "it attacks nobody" speak for the Defender; "if it were" for nobody.
            if _NEGATED.search(before) or _NOBODY.match(text, found.end()):
                stances.add(denied)
            elif not _HEDGED.search(before):
                stances.add(asserted)
    return stances.pop() if len(stances) == 1 else None


def _words(text: str) -> Iterator[str]:
    return (match[0].casefold() for match in _WORD.finditer(text))


def _content(text: str) -> list[str]:
    """Returns the content words of a text, as stems."""
    return [word[:_STEM] for word in _words(text) if len(word) > 3 and word not in _FUNCTION]


def _stems(texts: Iterable[str]) -> set[str]:
    return {word[:_STEM] for text in texts for word in _words(text)}


def _runs(text: str) -> list[tuple[str, ...]]:
    words = list(_words(text))
    return list(zip(words, words[1:], words[2:], strict=False))


def _share(parts: Sequence[Any], among: Collection[Any]) -> float:
    """Returns the share of parts among others; 0 if there are too few to measure."""
    return sum(part in among for part in parts) / len(parts) if len(parts) >= _PARAGRAPH else 0.0
