"""Readers of text by name, as the setting ``reader`` has them.

=====================  ================================================================================
``rapidocr``           RapidOCR with the models in its package: Chinese, Japanese, Latin letters
``rapidocr:LANGUAGE``  RapidOCR with a model for another script, which ``memecourt setup`` fetches
``tesseract``          an installed Tesseract, for English
``tesseract:A+B``      the same, for other languages by Tesseract's names
``http://HOST/ocr``    a server that speaks the OCR protocol of PaddleX serving (or https)
``none``               nobody: callers send the text
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
    """A reader that is warmed before its first use and closed after its last."""

    async def warm(self) -> None:
        """Makes the first reading as quick as the next. Raises Unavailable if the reader does not work."""
        ...

    async def aclose(self) -> None:
        """Ends its processes or closes its connections."""
        ...


def check_reader_name(name: str) -> str:
    """Returns the name of a reader. Raises ValueError if it is none."""
    kind, _, detail = name.partition(":")
    if kind in ("http", "https"):
        try:
            parts = urlsplit(name)
            # urlsplit() refuses brackets that don't pair, and .port what is no number or beyond 65,535.
            served = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            served = False
        # The name of a reader stands in records, where no password or key may.
        if not served or parts.username is not None or parts.query or parts.fragment:
            raise ValueError("the address of a text reader is http://HOST:PORT/ocr, or https, without keys")
    elif kind == RAPIDOCR and detail:
        if detail not in LANGUAGES:
            raise ValueError(
                f"RapidOCR has no model for {detail!r} here: {', '.join(LANGUAGES)}. Tesseract may read it: "
                "tesseract:LANGUAGE"
            )
    elif kind == TESSERACT and detail:
        # These end up on Tesseract's command line: letters and plus signs alone, so neither an option nor a path.
        if not re.fullmatch(r"\w+(\+\w+)*", detail, re.ASCII):
            raise ValueError("Tesseract's languages are its names with plus signs between them: tesseract:eng+rus")
    elif name not in (RAPIDOCR, TESSERACT, NONE):
        raise ValueError(
            "a text reader is one of rapidocr, rapidocr:LANGUAGE, tesseract, tesseract:LANGUAGE, http://HOST:PORT/ocr "
            "and none"
        )
    return name


def open_reader(name: str, *, workers: int = 1) -> OpenedTextReader | None:
    """Makes the reader of a name; it starts nothing until it is asked or warmed.

    Args:
        name: Name that :func:`check_reader_name` lets pass.
        workers: Processes at most, where it runs here.

    Returns:
        The reader, or None for ``none``.

    Raises:
        NotLoaded: The reader needs what is not installed.
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
    """A reader that runs RapidOCR's models in guarded workers.

    Args:
        language: Key of :data:`~court.backends.ocr.rapidocr_models.LANGUAGES`; empty for the packaged model.
        workers: Processes at most; each holds the models.
        threads: Threads of each process.
        wall_s: Time of one frame on the clock, in seconds.
        watch: Is shown what each frame cost.

    Raises:
        NotLoaded: The language's model was not fetched yet.
    """
    # Before any process is started: a model that was never fetched is reported at the start, not by the first meme.
    model = find_model(language) if language else None
    name = _PACKAGED if model is None else f"{_PACKAGED} + {model.stem}"
    return WorkerTextReader(
        # Whatever can change what is read is named here, since records name their reader by it.
        f"rapidocr/{importlib.metadata.version('rapidocr')} {name}, {METHOD}",
        module="court.backends.ocr.worker",
        settings={"threads": threads, "recognition": str(model.resolve()) if model else None},
        reads_latin=not language or LANGUAGES[language].reads_latin,
        workers=workers,
        wall_s=wall_s,
        watch=watch,
    )
