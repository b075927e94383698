"""Normalisation of a meme's text before it is embedded or compared.

Memes carry marks of where they were made and posted (site names, handles, watermarks of generators); two memes with the
same watermark are not alike for it. By leave-one-out on HarMeme the rules move the vote hardly at all (log loss 0.4801
to 0.4793 on Harm-C): they stand for what they mean. Stripping times and counts of likes as well made it no better.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

VERSION = "text-1"
"""Part of the encoder's identity: change it with every change of the rules."""

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
        # As OCR reads them: a space beside the dot.
        (".", r"(?<![\w@.])[a-z0-9-]{2,63}\s?\.\s?(?:com|net|org)(?!\w)", " "),
        ("@", r"(?<!\w)@\s?\w{2,}", " "),
        ("/", r"(?<![\w/])/?[ur]/\w+", " "),
        # Rows of dots and dashes count as one; signs that carry no words as none.
        ("", r"([^\w\s])(?:\s?\1)+", r"\1"),
        ("", r"[_~*|\\^<>=+•·©®™]+", " "),
    )
)
"""What has to stand in a text for a rule to find anything, which is quick to see; what it finds; and what is put in
its place."""


def normalise_text(text: str) -> str:
    """The words of a meme without addresses, handles and watermarks; lower case, spaces collapsed.

    A text that is nothing but these is kept as it is: it is all there is to go by.
    """
    plain = unicodedata.normalize("NFKC", text).translate(_QUOTES)
    for needs, pattern, replacement in _RULES:
        if needs in plain:
            plain = pattern.sub(replacement, plain)
    return text_key(plain) or text_key(text)


def text_key(text: str) -> str:
    """Returns the form that texts share if they differ in case and spacing alone; empty for a blank text."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def letters_of(text: str) -> str:
    """A text without spaces, signs and accents, which readers drop and put in; what they mistake is made alike."""
    # Digests of it are kept with memes tried before: by another rule, none of those would be found by its letters.
    # Taken apart after folding, which leaves composed letters behind; accents are marks then, and no isalnum().
    plain = unicodedata.normalize("NFKD", text.casefold()).translate(_SIMILAR_LETTERS)
    return "".join(c for c in plain if c.isalnum()).replace("rn", "m").replace("vv", "w")


def script_of(text: str) -> str:
    """The script of most of a text's letters, as Unicode names it: ``LATIN``, ``CYRILLIC``, ``CJK``; empty for none.

    Chinese characters, kana and Hangul keep names of their own.
    """
    counts = Counter(unicodedata.name(character, "").partition(" ")[0] for character in text if character.isalpha())
    # By name where two have as many letters, so that their order in the text does not matter.
    return max(counts, key=lambda name: (counts[name], name)) if counts else ""


_QUOTES = str.maketrans({"\N{RIGHT SINGLE QUOTATION MARK}": "'", **dict.fromkeys("“”", '"')})
_SIMILAR_LETTERS = str.maketrans({"0": "o", "1": "l", "i": "l", "|": "l", "5": "s", "8": "b", "ı": "l"})
