"""Normalisation of a meme's text before it is embedded or compared.

Memes carry marks of where they were made and posted (site names, handles, watermarks of generators), which must not
make memes similar. In leave-one-out on HarMeme the rules hardly change the vote (log loss 0.4801 to 0.4793 on Harm-C),
so they are kept for their meaning. Stripping times and counts of likes as well brought no improvement.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np

VERSION = "text-1"
"""Part of the encoder's identity; change it whenever the rules change."""

_TOP_LEVEL = r"(?:com|net|org|info|biz|gov|edu|tv|io|co|ly|gg|fm|co\.uk|uk|ca|au)"
_MAKERS = (
    r"img?f[l1i]?ip|meme-?\s?generator|quick\s?meme|make\s?a\s?meme|meme\s?center|memebase|ifunny|9gag|memedroid"
    r"|memecrunch|starecat|bored\s?panda|mematic|kapwing"
)

_RULES: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (needs, re.compile(pattern, re.IGNORECASE), replacement)
    for needs, pattern, replacement in (
        (":", r"\b(?:https?|ftp)\s?:\s?/\s?/\s?\S+", " "),
        (".", r"\bwww\s?\.\s?\S+", " "),
        ("", rf"\b(?:made\s+(?:with|on|in|by)\s+)?(?:{_MAKERS})\b(?:\s?\.\s?(?:com|net|org)\b)?", " "),
        (".", rf"(?<![\w@.])(?:[a-z0-9-]{{2,63}}\.){{1,3}}{_TOP_LEVEL}(?!\w)(?:/\S*)?", " "),
        # As read by OCR: with a space beside the dot.
        (".", r"(?<![\w@.])[a-z0-9-]{2,63}\s?\.\s?(?:com|net|org)(?!\w)", " "),
        ("@", r"(?<!\w)@\s?\w{2,}", " "),
        ("/", r"(?<![\w/])/?[ur]/\w+", " "),
        # Runs of dots and dashes are collapsed; symbols without meaning are removed.
        ("", r"([^\w\s])(?:\s?\1)+", r"\1"),
        ("", r"[_~*|\\^<>=+•·©®™]+", " "),
    )
)
"""For each rule: a substring that a text must contain, as a quick check; the pattern; and its replacement."""


def normalise_text(text: str) -> str:
    """Returns the text without addresses, handles and watermarks, in lower case, with spaces collapsed."""
    # A text that consists only of these is kept, as there is nothing else to compare.
    plain = unicodedata.normalize("NFKC", text).translate(_QUOTES)
    for needs, pattern, replacement in _RULES:
        if needs in plain:
            plain = pattern.sub(replacement, plain)
    return text_key(plain) or text_key(text)


def text_key(text: str) -> str:
    """Returns the key shared by texts that differ only in case and spacing; empty for a blank text."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


class TextColumn:
    """Texts whose keys and words are had in one call, where all are of ASCII words with one space between.

    Nearly all large tables have no others.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        # With a line end before each and behind the last.
        lines = "\n".join(("", *texts, ""))
        signs = np.frombuffer(lines.encode() if lines.isascii() else b"", np.uint8)
        blank, ends = signs <= _BLANK, signs == _LINE_END
        doubled = np.flatnonzero(blank[1:] & blank[:-1])
        counts = list(map(np.count_nonzero, (ends, signs == _BLANK, blank)))
        # Line ends beside each other are those of an empty text.
        plain = counts[0] == len(texts) + 1 and sum(counts[:2]) == counts[2] and ends[[doubled, doubled + 1]].all()
        self._lines, self._signs = (lines, signs) if plain else ("", signs[:0])

    def keys(self) -> list[str]:
        """Returns :func:`text_key` of each text."""
        return self._lines.lower().split("\n")[1:-1] if self._lines else list(map(text_key, self._texts))

    def word_counts(self) -> list[int]:
        """Returns the number of words of each text, parted by any white space."""
        if not self._lines or not self._texts:
            return [len(text.split()) for text in self._texts]
        ends = np.flatnonzero(self._signs == _LINE_END)
        spaces = np.add.reduceat(self._signs == _BLANK, ends[:-1], dtype=np.int64)
        # Line ends beside each other have no word between them.
        return list((spaces + (np.diff(ends) > 1)).tolist())


def letters_of(text: str) -> str:
    """Returns the letters and digits of a text, without accents and with letters that OCR confuses equated."""
    # Digests of it are stored with memes tried before: changing this rule would make them unfindable by text.
    # Decomposed after case folding, which can leave composed letters; accents are then marks, which isalnum() excludes.
    plain = unicodedata.normalize("NFKD", text.casefold()).translate(_SIMILAR_LETTERS)
    return "".join(c for c in plain if c.isalnum()).replace("rn", "m").replace("vv", "w")


def script_of(text: str) -> str:
    """Returns the script of most of a text's letters by its Unicode name, such as ``LATIN``; empty for none."""
    # Chinese characters, kana and Hangul are separate scripts.
    counts = Counter(unicodedata.name(character, "").partition(" ")[0] for character in text if character.isalpha())
    # Ties are broken by name, so that their order in the text does not matter.
    return max(counts, key=lambda name: (counts[name], name)) if counts else ""


_QUOTES = str.maketrans({"\N{RIGHT SINGLE QUOTATION MARK}": "'", **dict.fromkeys("“”", '"')})
_LINE_END, _BLANK = 10, 32
_SIMILAR_LETTERS = str.maketrans({"0": "o", "1": "l", "i": "l", "|": "l", "5": "s", "8": "b", "ı": "l"})
