"""Text of strangers on its way into a prompt.

Everything that a meme, a precedent or a model says is material and never an instruction. It stands in the user message
only, inside a fence with a mark that nobody could know beforehand, and with whatever could become a control token of a
model broken.
"""

from __future__ import annotations

import re
import secrets
import unicodedata

# Every control token of the Qwen, Llama, Gemma, Phi and DeepSeek families and every tag such as <think> or <tool_call>
# begins with one of these; those that are "<" only after compatibility normalisation are meant too.
_ANGLES = str.maketrans({"<": "‹", "＜": "‹", "﹤": "‹"})
# Mistral's control tokens: [INST], [/INST], [AVAILABLE_TOOLS], [IMG] …
_SQUARE = re.compile(r"\[(/?[A-Z_]{3,})\]")


def neutralise(text: str) -> str:
    """Text in which nothing can become a control token.

    Opening angle brackets become ``‹``, bracketed words in capitals become round ones, and invisible characters (which
    could hide either from us and not from a tokeniser) and lone surrogates go.
    """
    visible = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
    return _SQUARE.sub(r"(\1)", visible.translate(_ANGLES))


class Fence:
    """Marks around the material of one trial."""

    def __init__(self, mark: str | None = None) -> None:
        """Makes a fence.

        Args:
            mark: What its posts carry; None for a fresh one that nobody knows. Given only where messages are compared.
        """
        self._mark = mark or secrets.token_hex(8)

    def around(self, text: str) -> str:
        """The text, neutralised, between two posts. It can't hold a post of its own: the mark is taken out of it."""
        inside = neutralise(text)
        # Until it is gone: taking it out once could leave one that was wrapped around another.
        while self._mark in inside:
            inside = inside.replace(self._mark, "")
        return f"[begin {self._mark}]\n{inside}\n[end {self._mark}]"
