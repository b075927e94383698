"""Text of strangers on its way into a prompt.

Everything that a meme, a precedent or a model says is material and never an instruction. It stands in the user message
only, inside a fence with a mark that nobody could know beforehand, and with whatever could become a control token of a
model broken.
"""

from __future__ import annotations

import re
import secrets
import unicodedata

# Every control token of the Qwen, Llama, Gemma, Phi, DeepSeek and GLM families and every tag such as <think> or
# <tool_call> begins with an angle bracket; those that are one only after Unicode normalisation are meant too.
_ANGLES = str.maketrans({"<": "‹", "＜": "‹", "﹤": "‹", "≮": "‹"})
# Whatever ends a line; without it, the words on both sides of it would become one.
_LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# What nobody sees: control and format characters, lone surrogates, private use, and of the rest all that Unicode calls
# default ignorable (fillers, joiners, variation selectors, tags). Line feed and tab stay.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
# Mistral's, BERT's, GLM's and Kimi's control tokens: [INST], [/INST], [CLS], [gMASK], [control_8], [|user|] … Lists
# stay as they are: a model that is shown its own JSON again must find it there.
_SQUARE = re.compile(r'[\[［﹇]([^\s"\[\]［］﹇﹈]+)[\]］﹈]')
# What stands for a mark that was taken out. It is part of no mark, so that what it separates can't join into another.
_GAP = "·"

SECRET_PREFIX = "memecourt-"
"""With what a prompt's secret begins (:attr:`court.prompts.Prompt.secret`); 16 hex digits follow."""
# Anything but letters and digits may stand between its characters: a model may spell it out.
_SECRET = re.compile(r"[\W_]*".join("memecourt") + r"(?:[\W_]*[0-9a-f]){16}", re.IGNORECASE)
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[bfnrt])")  # as JSON does it
_BETWEEN = re.compile(r"[\W_]+")


def secrets_in(text: str) -> set[str]:
    """Finds strings in the form of a prompt's secret in a text.

    They may be spaced out, escaped, in capitals or in other letters.
    """
    return {bare(match[0]) for match in _SECRET.finditer(_spelled(text))}


def bare(text: str) -> str:
    """Letters and digits of a text, small: all that counts of a secret."""
    return _BETWEEN.sub("", text).lower()


def _spelled(text: str) -> str:
    return unicodedata.normalize("NFKC", _ESCAPED.sub(lambda match: chr(int(match[1] or "20", 16)), text))


def neutralise(text: str) -> str:
    """Text in which nothing can become a control token.

    Opening angle brackets become ``‹``, square brackets around a single word round ones, and invisible characters
    (which could hide either from us and not from a tokeniser) and lone surrogates go. So does what could be a prompt's
    secret, which only a system message may show: whoever knows it can't put it in a model's mouth.
    """
    safe = _without_control(text)
    # Repeated: what was spelled out may hold further escapes, with another secret behind them.
    while _SECRET.search(spelled := _spelled(safe)):
        # The spelled form goes on, for escapes and full-width letters may have hidden where the secret begins and ends.
        safe = _without_control(_SECRET.sub("(secret)", spelled))
    return safe


def _without_control(text: str) -> str:
    # The order matters: carriage returns and their like are among the unseen, so line ends go first; an unseen
    # character within a bracketed word would hide it from _SQUARE, so brackets go last.
    visible = _UNSEEN.sub("", _LINE_ENDS.sub("\n", text))
    return _SQUARE.sub(r"(\1)", visible.translate(_ANGLES))


class Fence:
    """Marks around the material of one trial."""

    def __init__(self, mark: str | None = None) -> None:
        """Makes a fence.

        Args:
            mark: Mark of its posts; None for a fresh one that nobody knows. Set it only to compare messages.
        """
        self._mark = mark or secrets.token_hex(8)

    @property
    def mark(self) -> str:
        """Mark that the fence's posts carry."""
        return self._mark

    def around(self, text: str) -> str:
        """The text, neutralised, between two posts. It can't hold a post of its own: the mark is taken out of it.

        A stranger can't know the mark, but a model that was shown it may repeat it.
        """
        inside = neutralise(text)
        # Written in full-width letters it would be read as the mark all the same. It is looked for without a pattern:
        # a pattern of a mark is of no use to the next trial, and takes longer to make than it saves.
        folded = unicodedata.normalize("NFKC", inside)
        if self._mark.lower() in folded.lower():
            # Neutralised again: folding turns full-width angle brackets into the ones that control tokens begin with.
            inside = re.sub(re.escape(self._mark), _GAP, neutralise(folded), flags=re.IGNORECASE)
        return f"[begin {self._mark}]\n{inside}\n[end {self._mark}]"
