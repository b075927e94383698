"""Creates text readers by the names of the setting ``reader``.

=====================  ================================================================================
``rapidocr``           RapidOCR with the models in its package: Chinese, Japanese, Latin letters
``rapidocr:LANGUAGE``  RapidOCR with a model for another script, which ``memecourt setup`` fetches
``tesseract``          an installed Tesseract, for English
``tesseract:A+B``      the same, for other languages by Tesseract's names
``http://HOST/ocr``    a server that speaks the OCR protocol of PaddleX serving (or https)
``none``               no reader: callers send the text
=====================  ================================================================================
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from court.backends.ocr.rapidocr_models import LANGUAGES, find_model
from court.backends.ocr.served import ServedTextReader
from court.backends.ocr.tesseract import tesseract_reader
from court.backends.ocr.worker_reader import WorkerTextReader
from court.backends.sandbox.process import Reply
from court.ports import TextReader

RAPIDOCR = "rapidocr"
TESSERACT = "tesseract"
NONE = "none"
METHOD = "coarse to fine 1"
"""The way in which :mod:`court.backends.ocr.engine` uses the models: to be changed with what it reads."""
_PACKAGED = "PP-OCRv6-small"


class OpenedTextReader(TextReader, Protocol):
    """A reader with warm-up and shutdown."""

    async def warm(self) -> None:
        """Warms up, so that the first reading is as fast as later ones. Raises Unavailable if the reader fails."""
        ...

    async def aclose(self) -> None:
        """Ends its processes or closes its connections."""
        ...


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
            raise ValueError(
                f"RapidOCR has no model for {detail!r} here: {', '.join(LANGUAGES)}. Tesseract may read it: "
                "tesseract:LANGUAGE"
            )
    elif kind == TESSERACT and detail:
        # Goes on Tesseract's command line: only word characters and plus signs, so neither an option nor a path.
        if not re.fullmatch(r"\w+(\+\w+)*", detail, re.ASCII):
            raise ValueError("Tesseract's languages are its names with plus signs between them: tesseract:eng+rus")
    elif name not in (RAPIDOCR, TESSERACT, NONE):
        raise ValueError(
            "a text reader is one of rapidocr, rapidocr:LANGUAGE, tesseract, tesseract:LANGUAGE, http://HOST:PORT/ocr "
            "and none"
        )
    return name


def open_reader(name: str, *, workers: int = 1) -> OpenedTextReader | None:
    """Creates a reader by name; it starts nothing before its first use or warm-up.

    Args:
        name: Name that :func:`check_reader_name` accepts.
        workers: Maximum number of processes of a local reader.

    Returns:
        The reader, or None for ``none``.

    Raises:
        NotLoaded: The reader needs something that is not installed.
        Unavailable: The reader is installed but can't be run.
    """
    kind, _, detail = check_reader_name(name).partition(":")
    if kind == NONE:
        return None
    if kind == TESSERACT:
        return tesseract_reader(detail or "eng", workers=workers)
    if kind == RAPIDOCR:
        return rapidocr_reader(detail, workers=workers)
    return ServedTextReader(name)


def rapidocr_reader(
    language: str = "",
    *,
    workers: int = 1,
    threads: int = 1,
    wall_s: float = 60.0,
    watch: Callable[[Reply], None] | None = None,
) -> WorkerTextReader:
    """Creates a reader that runs RapidOCR's models in sandboxed workers.

    Args:
        language: Key of :data:`~court.backends.ocr.rapidocr_models.LANGUAGES`; empty for the packaged model.
        workers: Maximum number of processes; each holds the models.
        wall_s: Wall-clock limit of one frame, in seconds.
        watch: Callback for the cost of each frame.

    Raises:
        NotLoaded: The language's model was not fetched yet.
    """
    # Checked before any process starts, so that a missing model is reported at startup and not by the first meme.
    model = find_model(language) if language else None
    name = _PACKAGED if model is None else f"{_PACKAGED} + {model.stem}"
    return WorkerTextReader(
        # Names everything that can affect the text, as records identify their reader by it.
        f"rapidocr/{importlib.metadata.version('rapidocr')} {name}, {METHOD}",
        module="court.backends.ocr.worker",
        settings={"threads": threads, "recognition": str(model.resolve()) if model else None},
        reads_latin=not language or LANGUAGES[language].reads_latin,
        workers=workers,
        wall_s=wall_s,
        watch=watch,
    )
