"""Languages of memes' texts: detected offline, or as a data set's card names them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from court.errors import BadRequest, NotLoaded
from eval.datasets.items import JudgedMeme

DETECT = "detect"
"""Value in place of a language: detect that of each text."""
CARD = "card"
"""Value in place of a language: take the one that the data set's card names for each meme."""
SURE = 0.3
"""Probability below which no language is named, as for a single word or name."""
_NO_LANGUAGE = "zxx"
"""The model's code for a text without words."""
_LETTERS = re.compile(r"[^\W\d_]")
_FEWEST = 4
"""Least number of letters by which a language is detected; half of it for scripts with a letter a word."""


class LanguageDetector:
    """Detects 139 languages by py3langid, offline, in a third of a millisecond a text.

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
        """Codes of the languages that it can detect."""

    def language_of(self, text: str) -> str:
        """Returns the ISO 639-1 code of a text's language; empty with too few letters, or if none is likely enough."""
        letters = _LETTERS.findall(text)
        # Letters of three bytes or more in UTF-8 are of scripts in which fewer characters say as much.
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
    """Returns the stated or detected language of a text.

    Args:
        text: Text of a meme.
        wanted: A BCP 47 tag, which is taken as it is; :data:`DETECT`; or empty for none.

    Raises:
        NotLoaded: A language is to be detected, and py3langid is not installed.
    """
    return shared_detector().language_of(text) if wanted == DETECT else wanted


def language_of_meme(meme: JudgedMeme, wanted: str) -> str:
    """Returns the language of a meme's text: as :func:`language_of`, or the card's own for :data:`CARD`."""
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
