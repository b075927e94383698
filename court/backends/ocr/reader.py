"""Creates text readers by the names of the setting ``reader``.

=====================  ================================================================================
``rapidocr``           RapidOCR with the models in its package: Chinese, Japanese, Latin letters
``rapidocr:LANGUAGE``  RapidOCR with a model for another script, which ``memecourt setup`` fetches
``http://HOST/ocr``    a server that speaks the OCR protocol of PaddleX serving (or https)
``none``               no reader: callers send the text
=====================  ================================================================================
"""

from __future__ import annotations

import asyncio
import base64
import importlib.metadata
import logging
from typing import Annotated, Protocol
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, Field, ValidationError

from court.backends.http import http_client
from court.backends.ocr.rapidocr_models import LANGUAGES, find_model
from court.backends.ocr.worker_reader import (
    FoundLine,
    WorkerTextReader,
    check_sample,
    reader_failed,
    sample_frame,
    text_lines,
)
from court.errors import Unavailable
from court.events import TextLine
from court.meme import Frame, Picture
from court.ports import Reading, TextReader

logger = logging.getLogger(__name__)

_READ_S = 60.0
_CONNECTIONS = 64
_Point = tuple[float, float]
_Many = Annotated[list[float], Field(max_length=1000)]


class _TextLines(BaseModel):
    # Extra fields are ignored, unlike in a worker's reply: the protocol has many that are not needed here.
    rec_texts: list[str] = Field(max_length=1000)
    rec_scores: _Many
    rec_polys: list[tuple[_Point, _Point, _Point, _Point]] = Field(max_length=1000)


class _Page(BaseModel):
    prunedResult: _TextLines


class _ServedResult(BaseModel):
    ocrResults: list[_Page] = Field(min_length=1, max_length=1)


class _ServerReply(BaseModel):
    errorCode: int
    result: _ServedResult


class ServedTextReader:
    """A :class:`~court.ports.TextReader` that calls a server; safe to call concurrently.

    The server is trusted with the pictures only: its answers are limited in size and checked.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = http_client(_CONNECTIONS)

    @property
    def identity(self) -> str:
        """Protocol and address, as the server does not report its models."""
        return f"paddlex-serving {self._url}"

    async def read(self, picture: Picture) -> Reading:
        """Reads the text on the picture, frame by frame in reading order; no lines if there is none.

        Raises:
            Unavailable: The server can't be reached, fails, or sends an invalid answer.
        """
        frames = await asyncio.gather(*(self._read(frame) for frame in picture.frames))
        return Reading(lines=tuple(line for lines in frames for line in lines))

    async def warm(self) -> None:
        """Sends a sample picture.

        Raises:
            Unavailable: The server can't be reached, or did not read the sample's word.
        """
        try:
            lines = await self._read(sample_frame())
        except Unavailable:
            raise Unavailable(
                f"The text reader at {self._url} can't be asked. Start it, or name another with --reader.",
                reason="TEXT_READER_FAILED",
            ) from None
        check_sample(lines, reads_latin=True)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def _read(self, frame: Frame) -> list[TextLine]:
        # The larger copy of a long picture, in which small letters are legible.
        png = frame.legible_png or frame.png
        # In this protocol type 1 is an image, and 0 a PDF.
        body = {"file": base64.b64encode(png).decode(), "fileType": 1, "visualize": False}
        try:
            async with asyncio.timeout(_READ_S):
                response = await self._client.post(self._url, json=body)
            response.raise_for_status()
            answer = _ServerReply.model_validate_json(response.content)
            if answer.errorCode:
                raise ValueError("an error code")
            found = _found(answer.result.ocrResults[0].prunedResult, frame.width / _width(png))
        except (httpx2.HTTPError, TimeoutError, ValidationError, ValueError) as error:
            # A failure must never be mistaken for a picture without text.
            logger.warning("the text reader at %s failed by %s", self._url, type(error).__name__)
            raise reader_failed() from None
        return text_lines(found, frame.index)


def _found(lines: _TextLines, scale: float) -> list[FoundLine]:
    """Lines in pixels of the frame. Raises ValueError if the lists differ in length."""
    return [
        FoundLine(text=text, confidence=score, box=tuple((x * scale, y * scale) for x, y in box))
        for text, score, box in zip(lines.rec_texts, lines.rec_scores, lines.rec_polys, strict=True)
    ]


def _width(png: bytes) -> int:
    """Width of a PNG written by this program, in pixels, from its header."""
    return int.from_bytes(png[16:20], "big")


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
