"""Words of label columns, and which of them mean harmful: told by the words, never by their order."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from court.errors import BadRequest
from retrieval.library.cells import label_of, plain_word

LABEL_WORDS = {
    **dict.fromkeys(("harmful", "1", "true", "hateful", "misogynous", "somewhat harmful", "very harmful"), True),
    **dict.fromkeys(("not harmful", "0", "false", "not hateful", "not misogynous", "harmless", "benign"), False),
    **dict.fromkeys(("non harmful", "non hateful", "non misogynous"), False),
}
"""Words and numbers for the two labels, as :func:`plain_word` leaves them; True for harmful."""
_MARKS = frozenset({"not", "non", "no", "none", "normal", "benign", "ok", "0"})
"""Words that mark the benign one of two labels, wherever they stand in it."""
_STEMS = frozenset(
    {"harm", "hate", "toxic", "offensive", "offens", "abusive", "misogyn", "misogynous", "sexist", "racist"}
)
"""Words to which ``non`` or ``less`` may be joined: "nonhateful" and "harmless" are marked, "notorious" is not."""


def classes_of(counts: Mapping[str, int], harmful: Collection[str] = ()) -> dict[str, bool] | None:
    """Tells which labels are harmful; None if their words don't say.

    Args:
        counts: Number of rows by label, in the words of the data set.
        harmful: Labels that the user names as harmful; all others are then benign.

    Raises:
        BadRequest: A named label is none of them, or all are named.
    """
    if harmful:
        named = {plain_word(word) or "" for word in harmful}
        found = {label: plain_word(label) in named for label in counts}
        unknown = sorted(named - {plain_word(label) for label in counts})
        if unknown or all(found.values()):
            what = f"has {', '.join(unknown)}, which is no label" if unknown else "names every label"
            raise BadRequest(f"--harmful {what}. The labels are: {counted(counts)}.", reason="LABEL_UNKNOWN")
        return found
    words = {label: plain_word(label) or "" for label in counts}
    if all(word in LABEL_WORDS for word in words.values()):
        found = {label: LABEL_WORDS[word] for label, word in words.items()}
        return found if len(set(found.values())) == 2 else None
    # Of three labels or more, those without a mark need not be harmful: "funny" beside "hateful" and "none".
    if len(words) != 2:
        return None
    marks = {label: _marks(word, {other for other in words.values() if other != word}) for label, word in words.items()}
    # One label marked once and the other not at all; "non-benign" is marked twice, and says nothing.
    return {label: not count for label, count in marks.items()} if sorted(marks.values()) == [0, 1] else None


def _marks(word: str, others: Collection[str]) -> int:
    """Number of words and affixes that mark a label as benign; 2 for a phrase that may mean either."""
    # "No harm" is said of the degree of harm, and of jokes that do some.
    if word == "no harm":
        return 2
    stems = {*_STEMS, *(part for other in others for part in other.split())}
    stems |= {stem.removesuffix(ending) for stem in stems for ending in ("ful", "eful")}
    count = 0
    for part in word.split():
        if part in _MARKS:
            count += 1
            continue
        count += any(part.startswith(mark) and part.removeprefix(mark) in stems for mark in ("not", "non", "no"))
        count += part.endswith("less") and part.removesuffix("less") in stems
    return count


def label_counts(counts: Mapping[str, int]) -> tuple[dict[str, int], str]:
    """Labels of a column by the spelling that most rows have, without missing values; and a note on ``none``.

    Args:
        counts: Number of rows by value.
    """
    spellings: dict[str, dict[str, int]] = {}
    for value, count in counts.items():
        if (word := label_of(value, {"none"})) is not None:
            own = spellings.setdefault(word, {})
            own[value.strip()] = own.get(value.strip(), 0) + count
    note = ""
    if "none" in spellings:
        # Beside one other label it is the second class; beside several, the mark of a missing value.
        if len(spellings) == 2:
            note = "none is read as a label, as there is one other."
        else:
            note = f"none is read as a missing value ({sum(spellings.pop('none').values()):,} rows)."
    found = {max(own, key=lambda one: (own[one], one)): sum(own.values()) for own in spellings.values()}
    return found, note


def counted(counts: Mapping[str, int]) -> str:
    """Labels with their numbers of rows, in words."""
    return ", ".join(f"{label} ({count:,})" for label, count in counts.items())
