"""Languages of memes' texts: detected offline, or taken from a data set's card."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from court.errors import BadRequest, NotLoaded
from eval.datasets.items import JudgedMeme

DETECT = "detect"
"""Option value: detect the language of each text."""
CARD = "card"
"""Option value: take the language that the data set's card names for each meme."""
SURE = 0.3
"""Minimum probability for a detected language; texts such as a single word or name stay below it."""
_NO_LANGUAGE = "zxx"
"""The model's code for a text without words."""
_LETTERS = re.compile(r"[^\W\d_]")
_FEWEST = 4
"""Minimum number of letters to detect a language; half of it for scripts in which a character is a word."""


class LanguageDetector:
    """Detects 139 languages with py3langid, offline, in a third of a millisecond per text.

    Chosen by measurement on the sixty short captions in twelve languages of `test_language.py`: 59 correct
    in 134 MB, whereas lingua 2.1 gets 58 right in 1.2 GB and takes a thousand times as long.
    """

    def __init__(self) -> None:
        """Loads the model. Raises NotLoaded if py3langid is not installed."""
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ImportError as error:
            raise NotLoaded(
                f"Detecting languages needs {error.name}, which is not installed: pip install 'memecourt[eval]'.",
                reason="LANGUAGES_NOT_INSTALLED",
            ) from None
        self._identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        self.languages = frozenset(map(str, self._identifier.labels)) - {_NO_LANGUAGE}
        """Codes of the languages it can detect."""

    def language_of(self, text: str) -> str:
        """Returns the ISO 639-1 code of a text's language; empty if it has too few letters or none is likely enough."""
        letters = _LETTERS.findall(text)
        # Letters of three or more bytes in UTF-8 belong to scripts that need fewer characters to say as much.
        weight = sum(2 if len(letter.encode("utf-8", "replace")) > 2 else 1 for letter in letters)
        if weight < _FEWEST:
            return ""
        language, probability = self._identifier.classify(text)
        return str(language) if probability >= SURE and language != _NO_LANGUAGE else ""


@cache
def shared_detector() -> LanguageDetector:
    """Returns this process's detector, loaded once. Raises NotLoaded like the class."""
    return LanguageDetector()


def language_of(text: str, wanted: str) -> str:
    """Returns the stated or detected language of a text.

    Args:
        wanted: A BCP 47 tag, returned unchanged; :data:`DETECT`; or empty for no language.

    Raises:
        NotLoaded: Detection was requested, but py3langid is not installed.
    """
    return shared_detector().language_of(text) if wanted == DETECT else wanted


def language_of_meme(meme: JudgedMeme, wanted: str) -> str:
    """Returns the language of a meme's text: like :func:`language_of`, or the card's own for :data:`CARD`."""
    return meme.language if wanted == CARD else language_of(meme.text, wanted)


def require_card_languages(memes: Iterable[JudgedMeme]) -> None:
    """Raises BadRequest if the card names no language for any meme, or one that is not a BCP 47 tag."""
    from serving.rpc.convert import language as checked

    languages = {meme.language: meme.id for meme in memes if meme.language}
    if not languages:
        raise BadRequest(
            "The data set's card names no language of its memes (fields.language). Name it with --language TAG, or "
            "have it detected with --language detect.",
            reason="BAD_LANGUAGE",
            field="language",
        )
    for language, meme in languages.items():
        checked(language, f"The language {language[:40]!r} of the meme {meme}")
