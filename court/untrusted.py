"""Untrusted text on its way into a prompt.

Everything from a meme, a precedent or a model is material, never an instruction. It appears only in the user message,
inside a fence with an unpredictable mark, with anything that could become a control token of a model broken up.
"""

from __future__ import annotations

import re
import secrets
import unicodedata

# Every control token of the Qwen, Llama, Gemma, Phi, DeepSeek and GLM families and every tag such as <think> or
# <tool_call> begins with an angle bracket, also one that only appears after Unicode normalisation.
_ANGLES = str.maketrans({"<": "‹", "＜": "‹", "﹤": "‹", "≮": "‹"})
# All line ends, which must not be dropped, or the words on both sides would be joined.
_LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Invisible characters: control and format characters, lone surrogates, private use, and all others that Unicode calls
# default ignorable (fillers, joiners, variation selectors, tags). Line feed and tab stay.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
# Mistral's, BERT's, GLM's and Kimi's control tokens: [INST], [/INST], [CLS], [gMASK], [control_8], [|user|] … Lists
# stay as they are: a model that is shown its own JSON again must find it there.
_SQUARE = re.compile(r'[\[［﹇]([^\s"\[\]［］﹇﹈]+)[\]］﹈]')
# Replaces a mark that was removed. It is not part of any mark, so the text around it can't join into another one.
_GAP = "·"

SECRET_PREFIX = "memecourt-"
"""Prefix of a prompt's secret (:attr:`court.prompts.Prompt.secret`), which 16 hex digits follow."""
# Its characters may be separated by anything but letters and digits, as a model may spell it out.
_SECRET = re.compile(r"[\W_]*".join("memecourt") + r"(?:[\W_]*[0-9a-f]){16}", re.IGNORECASE)
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[bfnrt])")  # as JSON does it
_BETWEEN = re.compile(r"[\W_]+")


def secrets_in(text: str) -> set[str]:
    """Finds strings in the form of a prompt's secret in a text, also spaced out, escaped or in other letters."""
    return {bare(match[0]) for match in _SECRET.finditer(_spelled(text))}


def bare(text: str) -> str:
    """Returns the letters and digits of a text in lower case, by which secrets are compared."""
    return _BETWEEN.sub("", text).lower()


def _spelled(text: str) -> str:
    return unicodedata.normalize("NFKC", _ESCAPED.sub(lambda match: chr(int(match[1] or "20", 16)), text))


def neutralise(text: str) -> str:
    """Returns the text with everything broken up that could become a control token."""
    # Opening angle brackets become ``‹``, square brackets around a single word round ones, and invisible characters
    # (which could hide either from us but not from a tokeniser) and lone surrogates are removed. So is anything like a
    # prompt's secret, so that an author who knows it can't make a model appear to leak it.
    safe = _without_control(text)
    # Repeated, as the unescaped text may contain further escapes with another secret.
    while _SECRET.search(spelled := _spelled(safe)):
        # Continues with the normalised form, as escapes and full-width letters may hide where the secret begins and
        # ends.
        safe = _without_control(_SECRET.sub("(secret)", spelled))
    return safe


def _without_control(text: str) -> str:
    # The order matters: line ends first, as carriage returns are among the invisible characters; brackets last, as an
    # invisible character in a bracketed word would hide it from _SQUARE.
    visible = _INVISIBLE.sub("", _LINE_ENDS.sub("\n", text))
    return _SQUARE.sub(r"(\1)", visible.translate(_ANGLES))


class Fence:
    """Fence around the untrusted text of one trial."""

    def __init__(self, mark: str | None = None) -> None:
        """Makes a fence; ``mark`` is None for a fresh random one, and set only to compare messages."""
        self._mark = mark or secrets.token_hex(8)

    @property
    def mark(self) -> str:
        """Mark in the fence's begin and end lines."""
        return self._mark

    def around(self, text: str) -> str:
        """Returns the neutralised text between begin and end lines, without the mark, so that it can't fake them."""
        # Authors of memes can't know the mark, but a model that was shown it may repeat it.
        inside = neutralise(text)
        # A mark in full-width letters would be read as the mark too. The search uses no regex: it could not be reused
        # in the next trial, and compiling takes longer than it saves.
        folded = unicodedata.normalize("NFKC", inside)
        if self._mark.lower() in folded.lower():
            # Neutralised again: normalisation turns full-width angle brackets into those of control tokens.
            inside = re.sub(re.escape(self._mark), _GAP, neutralise(folded), flags=re.IGNORECASE)
        return f"[begin {self._mark}]\n{inside}\n[end {self._mark}]"
