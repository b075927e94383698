"""What a trial needs from outside, each as narrow as can be.

A picture reader turns bytes into a :class:`~court.meme.Picture` before the trial; a text reader, a precedent finder
and chat models serve it; a watcher is told of every event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from court.events import AnyEvent, TextLine
from court.meme import Frame, Picture
from court.precedents import Findings, LibraryIdentity


class Watcher(Protocol):
    """Is told of every event as it happens. The trial goes on only when it has returned: what keeps records, keeps
    them before anything is done about them."""  # noqa: D205, D209

    async def __call__(self, event: AnyEvent, /) -> None:
        """Raises whatever keeps it from taking note; the trial then ends without a verdict."""
        ...


class PictureReader(Protocol):
    """Decodes pictures under guard."""

    async def read(self, data: bytes) -> Picture:
        """The picture in ``data``.

        Raises:
            BadPicture: It can't be read or is beyond the limits.
            Unavailable: It could not be tried (no time, no process); the same bytes may do later.
        """
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read off a picture.

    Attributes:
        lines: In reading order, frame by frame.
    """

    lines: tuple[TextLine, ...]

    @property
    def text(self) -> str:
        """The lines below each other, a line that a former frame already showed left out."""
        return "\n".join(dict.fromkeys(line.text for line in self.lines))


class TextReader(Protocol):
    """Reads the text off a picture."""

    @property
    def identity(self) -> str:
        """Name and version."""
        ...

    async def read(self, picture: Picture) -> Reading:
        """The text on the picture; no lines where there is none.

        Raises:
            Unavailable: It could not be read now.
        """
        ...


class PrecedentFinder(Protocol):
    """Finds labelled memes like the one on trial."""

    @property
    def library(self) -> LibraryIdentity:
        """What is searched."""
        ...

    async def find(
        self,
        *,
        text: str,
        frames: Sequence[Frame],
        pixels_sha256: str,
        exhibits: int,
        tally: int,
        alpha: float | None,
    ) -> Findings:
        """The most similar precedents.

        Args:
            text: Of the meme; empty where it has none.
            frames: Representative frames of its picture.
            pixels_sha256: Digest of its normalised pixels, to tell the same picture from a similar one.
            exhibits: How many to show.
            tally: How many to count at least; the library's own vote settings may ask for more.
            alpha: Weight of the text against the picture, in [0, 1]; None for what the library was calibrated with.

        Raises:
            Unavailable: The search could not be made now.
        """
        ...


class FinishReason(StrEnum):
    """Why a model stopped speaking."""

    STOP = "STOP"
    LENGTH = "LENGTH"
    REFUSAL = "REFUSAL"


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a model is asked.

    Attributes:
        system: Constant for its role.
        parts: Texts and pictures, in the order in which they are shown.
        reply_schema: JSON schema that the reply must obey, or None for free text.
        max_tokens: Of the reply.
        temperature: 0 for the most likely reply.
        deadline_s: Seconds that the call may take.
    """

    system: str
    parts: Sequence[str | Frame]
    reply_schema: dict[str, Any] | None
    max_tokens: int
    temperature: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What a model said, in the server's own figures.

    Attributes:
        text: The reply; may be cut where ``finish`` is not STOP.
        finish: Why it ended.
        model: As the server names it.
        tokens_in: Of the prompt.
        tokens_out: Of the reply.
        tokens_cached: Of ``tokens_in``, those found in the prefix cache.
        latency_s: In seconds.
    """

    text: str
    finish: FinishReason
    model: str
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    latency_s: float


class ChatModel(Protocol):
    """A vision-language model that answers one request at a time; safe to call concurrently."""

    async def reply(self, request: ChatRequest) -> ChatReply:
        """One reply.

        Raises:
            Unavailable: The server is gone, busy or too slow.
        """
        ...
