"""Ports of a trial: narrow protocols for all its external dependencies.

A picture reader turns bytes into a :class:`~court.meme.Picture` before the trial; a text reader, a precedent finder and
chat models serve the trial; an event sink stores every event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from court.events import AnyEvent, NearDuplicate, Role, Side, TextLine
from court.events import FinishReason as FinishReason  # offered here too: replies have one
from court.meme import Frame, Picture
from court.precedents import Findings, LibraryIdentity, VerifiedCopy


class EventSink(Protocol):
    """Stores every event as it happens. The trial continues only once it has returned, so that events are stored before
    anything acts on them."""  # noqa: D205, D209

    async def __call__(self, *events: AnyEvent) -> None:
        """Stores one event, or several in order and all or none. Any exception ends the trial without a verdict."""


class EventListener(Protocol):
    """Receives every event once it is stored, one after the other."""

    async def __call__(self, event: AnyEvent, /) -> None:
        """Handles an event. Any exception ends the trial without a verdict."""


class PictureReader(Protocol):
    """Decodes pictures in a sandbox."""

    async def read(self, data: bytes) -> Picture:
        """Decodes the picture in ``data``.

        Raises:
            BadPicture: The picture can't be read or exceeds the limits.
            Unavailable: The picture could not be decoded now (timeout, no process); a retry may succeed.
        """


@dataclass(frozen=True, slots=True)
class Reading:
    """Text read off a picture: lines in reading order, frame by frame."""

    lines: tuple[TextLine, ...]

    @property
    def text(self) -> str:
        """All lines joined by line breaks, without lines that an earlier frame already showed."""
        return "\n".join(dict.fromkeys(line.text for line in self.lines))


class TextReader(Protocol):
    """Reads the text off a picture."""

    @property
    def identity(self) -> str:
        """Name and version."""

    async def read(self, picture: Picture) -> Reading:
        """Reads the text on the picture; no lines if there is none.

        Raises:
            Unavailable: The text can't be read now.
        """


class BindingFinder(Protocol):
    """Finds precedents that are the meme on trial and whose labels named persons answer for."""

    async def copies(self, *, pixels_sha256: str, text: str | None) -> Sequence[VerifiedCopy]:
        """Finds the copies of a meme: the same pixels and text, or the same text where neither has a picture, or any.

        Raises:
            Unavailable: The library can't be read now.
        """


class PrecedentFinder(Protocol):
    """Finds labelled memes like the one on trial."""

    @property
    def library(self) -> LibraryIdentity:
        """Identity of the library that is searched."""

    async def find(
        self, *, text: str, frames: Sequence[Frame], pixels_sha256: str, exhibits: int, tally: int, alpha: float | None
    ) -> Findings:
        """Finds the most similar precedents.

        Raises:
            Unavailable: The search can't be made now.
        """

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Reads the pictures of precedents; None for those without a picture.

        Raises:
            BadLibrary: A picture has changed since the library was written.
            Unavailable: They can't be read now.
        """


class DuplicateFinder(Protocol):
    """Finds near-duplicates of the meme on trial among memes tried before."""

    async def find(
        self, picture: Picture | None, text: str, text_read: bool, namespace: str
    ) -> Sequence[NearDuplicate]:
        """Finds trials of the same meme or near-duplicates, nearest first; empty if there are none.

        Raises:
            Unavailable: The search can't be made now.
        """


@dataclass(frozen=True, slots=True)
class CallId:
    """Identity of a call in its trial; ``attempt`` is 2 for a repair request."""

    role: Role
    task: str
    prompt_digest: str
    side: Side | None = None
    round: int = 0
    attempt: int = 1
    judge: int = 1
    claim: int = 0
    step: int = 0


BATCH_PRIORITY = 100
"""Offset of the priority of batch requests, larger than any trial's progress can compensate."""
PROBE_PRIORITY = -100
"""Priority of a liveness probe, which takes only a moment."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Request to a chat model: one system message and one user message.

    Attributes:
        parts: Texts and pictures of the user message, in order. Parts shared by several calls come first, so that a
            server's prefix cache can be used.
        thought_tokens: Largest number of tokens of a thought before the reply, in addition to ``max_tokens``; 0 to turn
            thinking off, if the model allows that.
    """

    system: str
    parts: tuple[str | Frame, ...]
    reply_schema: Mapping[str, Any] | None
    max_tokens: int
    temperature: float = 0.0
    thought_tokens: int = 0
    priority: int = 0
    avoid_repetition: bool = False
    # Not compared: requests with the same content are equal.
    call_id: CallId | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ChatReply:
    """Reply of a chat model, with the server's own figures.

    Attributes:
        tokens_cached: Number of the prompt's tokens found in the server's prefix cache; 0 if it does not say.
    """

    text: str
    finish: FinishReason
    model: str
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    latency_s: float
    server: str = ""
    schema_in_words: bool = False
    unknown: tuple[str, ...] = ()
    thought: str = ""

    @property
    def is_cut(self) -> bool:
        """True if the reply was truncated."""
        return self.finish in (FinishReason.LENGTH, FinishReason.REPETITION)


@dataclass(frozen=True, slots=True)
class Odds:
    """Probability of each of some options to be the next token.

    Attributes:
        masses: Probability of each option among all tokens of the vocabulary, in the order asked, each in [0, 1]. They
            need not add up to 1, as other tokens have the rest. Empty if the answer lacked the requested probabilities;
            the call has its cost all the same.
    """

    masses: tuple[float, ...]
    reply: ChatReply


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second that a model server reads and writes for one caller, as measured at start."""

    read: float
    write: float

    def seconds(self, read: int, written: int) -> float:
        """Returns the time to read and write that many tokens."""
        return read / self.read + written / self.write


class ChatModel(Protocol):
    """A vision-language model behind a server; safe to call concurrently. Cancelling a call aborts it at the server."""

    @property
    def name(self) -> str:
        """Name of the model, as used in calls."""

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """Requests one reply.

        Raises:
            Overrun: The call timed out.
            Unavailable: The server is gone or too busy; a later retry may succeed.
            ModelRefused: The server rejected this request; the same request will fail again.
        """

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """Requests the probability of each option as first token of a free reply.

        Returns None without a call for a server known to give none, and for an answer that can't be parsed; an
        :class:`Odds` without masses for an answer that lacked them, to account for its cost.

        Raises:
            As :meth:`reply`.
        """


class ReplicatedModel(ChatModel, Protocol):
    """A model served by one or several servers, of which each trial uses one."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the servers, without keys."""

    def pinned(self, key: str, /) -> ReplicatedModel:
        """Returns the model for one trial, pinned to the server with the fewest calls in flight; it fails over."""

    def room(self) -> bool:
        """True if the server that would be used now could start one more call immediately."""


@dataclass(frozen=True, slots=True)
class EvidenceHit:
    """One result of a search for evidence about a claim."""

    id: str
    title: str
    source: str
    snippet: str
    date: str = ""


@dataclass(frozen=True, slots=True)
class EvidenceDocument:
    """Text of a document that a search found."""

    id: str
    title: str
    source: str
    date: str
    text: str
    sha256: str


class EvidenceSource(Protocol):
    """Finds documents about a claim of fact. It receives words of the claim and nothing else of a trial."""

    @property
    def identity(self) -> str:
        """Name and version; the same identity gives the same documents, as far as the source can guarantee it."""

    @property
    def sends_elsewhere(self) -> bool:
        """True if queries leave the machine; names known only from the picture and contact data are then removed."""

    async def search(self, query: str, *, most: int, within_s: float) -> Sequence[EvidenceHit]:
        """Searches for documents, best first; empty if none are found.

        Raises:
            Overrun: The request timed out.
            Unavailable: The source can't be searched now.
        """

    async def read(self, document_id: str, *, within_s: float) -> EvidenceDocument:
        """Reads the document of a hit.

        Raises:
            Overrun: The request timed out.
            Unavailable: The document can't be read now, is too large, or is not text.
        """
