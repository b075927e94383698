"""Creates text readers by the names of the setting ``reader``.

=====================  ================================================================================
``rapidocr``           RapidOCR with the models in its package: Chinese, Japanese, Latin letters
``rapidocr:LANGUAGE``  RapidOCR with a model for another script, which ``memecourt setup`` fetches
``http://HOST/ocr``    a server that speaks the OCR protocol of PaddleX serving (or https)
``none``               no reader: callers send the text
=====================  ================================================================================
"""

from __future__ import annotations

import importlib.metadata
from typing import Protocol
from urllib.parse import urlsplit

from court.backends.ocr.rapidocr_models import LANGUAGES, find_model
from court.backends.ocr.served import ServedTextReader
from court.backends.ocr.worker_reader import WorkerTextReader
from court.ports import TextReader

RAPIDOCR = "rapidocr"
NONE = "none"
METHOD = "coarse to fine 1"
"""The way in which :mod:`court.backends.ocr.worker` uses the models: to be changed with what it reads."""
_PACKAGED = "PP-OCRv6-small"


class OpenedTextReader(TextReader, Protocol):
    """A reader with warm-up and shutdown."""

    async def warm(self) -> None:
        """Warms up, so that the first reading is as fast as later ones. Raises Unavailable if the reader fails."""

    async def aclose(self) -> None:
        """Ends its processes or closes its connections."""


def check_reader_name(name: str) -> str:
    """Validates and returns the name of a reader. Raises ValueError if it is invalid."""
    kind, _, detail = name.partition(":")
    if kind in ("http", "https"):
        try:
            parts = urlsplit(name)
            # urlsplit() rejects unbalanced brackets, and .port anything but numbers up to 65,535.
            served = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            served = False
        # The name of a reader is stored in records, which must not contain a password or key.
        if not served or parts.username is not None or parts.query or parts.fragment:
            raise ValueError("the address of a text reader is http://HOST:PORT/ocr, or https, without keys")
    elif kind == RAPIDOCR and detail:
        if detail not in LANGUAGES:
            raise ValueError(f"RapidOCR has no model for {detail!r} here: {', '.join(LANGUAGES)}")
    elif name not in (RAPIDOCR, NONE):
        raise ValueError("a text reader is one of rapidocr, rapidocr:LANGUAGE, http://HOST:PORT/ocr and none")
    return name


def open_reader(name: str, *, workers: int = 1) -> OpenedTextReader | None:
    """Creates a reader by name; it starts nothing before its first use or warm-up.

    Raises:
        NotLoaded: The reader's model was not fetched yet.
    """
    kind, _, detail = check_reader_name(name).partition(":")
    if kind == NONE:
        return None
    if kind == RAPIDOCR:
        return rapidocr_reader(detail, workers=workers)
    return ServedTextReader(name)


def rapidocr_reader(language: str = "", *, workers: int = 1, threads: int = 1) -> WorkerTextReader:
    """Creates a reader that runs RapidOCR's models in sandboxed workers.

    Raises:
        NotLoaded: The language's model was not fetched yet.
    """
    # Checked before any process starts, so that a missing model is reported at startup and not by the first meme.
    model = find_model(language) if language else None
    name = _PACKAGED if model is None else f"{_PACKAGED} + {model.stem}"
    return WorkerTextReader(
        # Names everything that can affect the text, as records identify their reader by it.
        f"rapidocr/{importlib.metadata.version('rapidocr')} {name}, {METHOD}",
        settings={"threads": threads, "recognition": str(model.resolve()) if model else None},
        reads_latin=not language or LANGUAGES[language].reads_latin,
        workers=workers,
    )
