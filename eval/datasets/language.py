"""Languages of memes' texts: detected offline, or as a data set's card names them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from court.errors import BadRequest, NotLoaded
from eval.datasets.items import JudgedMeme

DETECT = "detect"
"""In place of a language: the one that each text is detected to be in."""
CARD = "card"
"""In place of a language: the one that the data set's card names for each meme."""
SURE = 0.3
"""Probability below which no language is named: of a word or a name alone nobody can tell."""
_NO_LANGUAGE = "zxx"
"""What the model calls a text without words."""
_LETTERS = re.compile(r"[^\W\d_]")
_FEWEST = 4
"""Letters below which a text says nothing of its language; of scripts with a letter a word, half as many."""


class LanguageDetector:
    """Tells 139 languages by py3langid, which takes a third of a millisecond and asks no network.

    It was chosen by measurement on the sixty short captions in twelve languages of ``tests/unit/test_language.py``: 59
    right in 134 MB, where lingua 2.1 has 58 right in 1.2 GB and takes a thousand times as long.
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
        """Codes of the languages that it can tell."""

    def language_of(self, text: str) -> str:
        """ISO 639-1 code of the language of a text; empty where it has too few letters, or none is likely enough."""
        letters = _LETTERS.findall(text)
        # Three bytes or more in UTF-8: scripts in which fewer characters say as much.
        weight = sum(2 if len(letter.encode("utf-8", "replace")) > 2 else 1 for letter in letters)
        if weight < _FEWEST:
            return ""
        language, probability = self._identifier.classify(text)
        return str(language) if probability >= SURE and language != _NO_LANGUAGE else ""


@cache
def shared_detector() -> LanguageDetector:
    """Returns the detector of this process, loaded once. Raises NotLoaded as it does."""
    return LanguageDetector()


def language_of(text: str, wanted: str) -> str:
    """Language that a text is told to be in.

    Args:
        text: Text of a meme.
        wanted: A BCP 47 tag, which is taken as it is; :data:`DETECT`; or empty for none.

    Raises:
        NotLoaded: A language is to be detected, and py3langid is not installed.
    """
    return shared_detector().language_of(text) if wanted == DETECT else wanted


def language_of_meme(meme: JudgedMeme, wanted: str) -> str:
    """Language that a meme's text is told to be in, as :func:`language_of`, or :data:`CARD` for the card's own."""
    return meme.language if wanted == CARD else language_of(meme.text, wanted)


def require_card_languages(memes: Iterable[JudgedMeme]) -> None:
    """Raises BadRequest where the card names no language of any meme, or one that is no BCP 47 tag."""
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
