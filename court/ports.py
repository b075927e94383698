"""Ports of a trial: protocols for everything it needs from outside, each as narrow as can be.

A picture reader turns bytes into a :class:`~court.meme.Picture` before the trial; a text reader, a precedent finder
and chat models serve it; a keeper is told of every event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from court.events import AnyEvent, NearDuplicate, Role, Side, TextLine
from court.events import FinishReason as FinishReason  # offered here too: replies have one
from court.meme import Frame, Picture
from court.precedents import Findings, LibraryIdentity


class EventSink(Protocol):
    """Is told of every event as it happens. The trial goes on only when it has returned: what keeps records, keeps
    them before anything is done about them."""  # noqa: D205, D209

    async def __call__(self, *events: AnyEvent) -> None:
        """Takes note of an event, or of several between which nothing is done: of all of them, in order, or of none.

        Raises whatever keeps it from taking note; the trial then ends without a verdict.
        """
        ...


class EventListener(Protocol):
    """Is told of every event once it is kept, one after the other."""

    async def __call__(self, event: AnyEvent, /) -> None:
        """Raises whatever keeps it from taking note; the trial then ends without a verdict."""
        ...


class PictureReader(Protocol):
    """Decodes pictures under guard."""

    async def read(self, data: bytes) -> Picture:
        """The picture in ``data``.

        Raises:
            BadPicture: The picture can't be read or exceeds the limits.
            Unavailable: The picture could not be tried (no time, no process); the same bytes may do later.
        """
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """Text read off a picture.

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
            Unavailable: The text can't be read now.
        """
        ...


class PrecedentFinder(Protocol):
    """Finds labelled memes like the one on trial."""

    @property
    def library(self) -> LibraryIdentity:
        """Identity of the library that is searched."""
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
            text: Text of the meme; empty if it has none.
            frames: Representative frames of its picture; none where it has no picture.
            pixels_sha256: Digest of its normalised pixels, to tell the same picture from a similar one; empty likewise.
            exhibits: Number of precedents to show.
            tally: Least number of precedents to count; the library's own vote settings may require more.
            alpha: Weight of the text against the picture, in [0, 1]; None for what the library was calibrated with.

        Raises:
            Unavailable: The search could not be made now.
        """
        ...

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Pictures of these precedents, to be shown; None where the library has none.

        Args:
            ids: Ids from :meth:`find`. One that has left the library since has no picture.

        Raises:
            BadLibrary: A picture is not what it was when the library was written.
            Unavailable: They could not be read now.
        """
        ...


class DuplicateFinder(Protocol):
    """Finds memes tried before that are nearly the one on trial."""

    async def find(
        self, picture: Picture | None, text: str, text_read: bool, namespace: str
    ) -> Sequence[NearDuplicate]:
        """The trials of memes that are nearly this one, or this one, nearest first; none where nothing is near.

        Args:
            picture: Picture of the meme; None where its text was sent alone: then others that were are searched for a
                text of the same letters.
            text: Text of the meme; empty if it has none.
            text_read: True if the text was read off the picture, so that letters may be misread.
            namespace: Namespace of the content.

        Raises:
            Unavailable: They could not be searched now.
        """
        ...


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Place of a call in its trial.

    Attributes:
        role: Role that is to speak.
        task: Task of the request.
        prompt_digest: Digest of the prompt that the words come from.
        side: Side whose examination it is; None outside of an examination.
        round: Round of the examination; 0 outside of one.
        attempt: 2 where a reply is asked for again.
        judge: Number of the judge on a panel; 1 for a judge that sits alone, and for the other roles.
        claim: Number of the claim of fact that the expert witness checks; 0 elsewhere.
        step: Number of the search, or of the document that is weighed, for that claim; 0 elsewhere.
    """

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
"""Added to the rank of requests for which nobody waits singly: no trial makes up for it by being nearly over."""
PROBE_PRIORITY = -100
"""Rank of a question whether the server is there, which is over in a moment."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Request to a chat model: one system message and one user message.

    Attributes:
        system: Constant for its role: nothing of a meme ever stands here.
        parts: Texts and pictures of the user message, in the order in which they are shown. What stays the same from
            call to call comes first, so that a server's prefix cache can serve it.
        reply_schema: JSON schema that the reply must obey, or None for free text.
        max_tokens: Largest number of tokens of the reply.
        temperature: 0 for the most likely reply.
        thought_tokens: Largest number of tokens of a thought before the reply, on top of ``max_tokens``; 0 for a reply
            without one, as far as the model can be kept from it.
        priority: Rank among requests that wait at the server, where it has ranks: the lower, the earlier.
        avoid_repetition: True to ask in a way that keeps the model from saying the same over and over.
        place: Place of the call in its trial, which no model is told; None outside of a trial.
    """

    system: str
    parts: tuple[str | Frame, ...]
    reply_schema: Mapping[str, Any] | None
    max_tokens: int
    temperature: float = 0.0
    thought_tokens: int = 0
    priority: int = 0
    avoid_repetition: bool = False
    # Not compared: requests in which a model is shown the same are equal.
    place: CallPlace | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ChatReply:
    """Reply of a chat model, with the server's own figures.

    Attributes:
        text: The reply, possibly empty; cut where ``finish`` is LENGTH or REPETITION.
        finish: Why it ended.
        model: Name of the model, as the server gives it.
        tokens_in: Number of tokens of the prompt.
        tokens_out: Number of tokens of the reply.
        tokens_cached: Number of the prompt's tokens found in the server's prefix cache; 0 if it does not say.
        latency_s: From sending the request to the end of the reply, retries included, in seconds.
        server: Address of the server that gave it, without a key; empty where there is none.
        schema_in_words: True if the schema stood in the user message, in words, because the server knows none.
        unknown: Names of figures that the server did not give, or gave as what they can't be; 0 or empty here.
        thought: Thought before the reply, where the server tells it apart; it is no part of ``text``.
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
        """True if it was ended before its own end."""
        return self.finish in (FinishReason.LENGTH, FinishReason.REPETITION)


@dataclass(frozen=True, slots=True)
class Odds:
    """Probability of each of some options to be the next token.

    Attributes:
        masses: Probability of each option among all tokens of the vocabulary, in the order asked, each in [0, 1]. They
            need not add up to 1: what is missing went to other tokens. Empty where the answer had no probabilities, or
            others than were asked for: the call has its cost all the same.
        reply: The call itself, for its figures.
    """

    masses: tuple[float, ...]
    reply: ChatReply


class ChatModel(Protocol):
    """A vision-language model behind a server; safe to call concurrently. Cancelling a call ends it at the server."""

    @property
    def name(self) -> str:
        """The model's name, as calls are made with it."""
        ...

    async def reply(self, request: ChatRequest, *, within_s: float) -> ChatReply:
        """One reply.

        Args:
            request: Request to send.
            within_s: Seconds that it may take, retries included.

        Raises:
            Overrun: There was no reply in that time.
            Unavailable: The server is gone or too busy; asking again later may help.
            ModelRefused: The server can't take this request; the same again will fail again.
        """
        ...

    async def odds(self, request: ChatRequest, options: Sequence[str], *, within_s: float) -> Odds | None:
        """Asks for the probability of each option as first token of a free reply.

        Returns None for a server that is known to give none, which is not asked, and for an answer that can't be read
        at all; an :class:`Odds` without masses for one that came without any, since it has its cost.

        Args:
            request: Request to send; its schema and ``max_tokens`` are ignored.
            options: Words, each of which must be a single token for the model, e.g. ``("A", "B")``.
            within_s: Seconds until it is given up, as for :meth:`reply`.

        Raises:
            As :meth:`reply`.
        """
        ...


class ReplicatedModel(ChatModel, Protocol):
    """A model that one or several servers have, of which each trial keeps to one."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the servers, without keys."""
        ...

    def pinned(self, key: str, /) -> ReplicatedModel:
        """The model for one trial, which keeps to one server: the one with the fewest calls in flight when it begins.

        Of those that are equally busy, the key decides. When it is gone, the call that finds out and all later ones of
        the trial go on to another.
        """
        ...

    def room(self) -> bool:
        """True if the server that is asked now would work on one more call at once."""
        ...


@dataclass(frozen=True, slots=True)
class EvidenceHit:
    """One result of a search for evidence about a claim.

    Attributes:
        id: Name of the document within its source, by which it can be read.
        title: Title of the document; empty if it has none.
        source: Publisher of the document, such as a site's name.
        snippet: Passage that answered the query, or its beginning.
        date: Date of the document as its source gives it; empty if it gives none.
    """

    id: str
    title: str
    source: str
    snippet: str
    date: str = ""


@dataclass(frozen=True, slots=True)
class EvidenceDocument:
    """Text of a document that a search found.

    Attributes:
        id: Name of the document within its source.
        title: Title of the document; empty if it has none.
        source: Publisher of the document.
        date: Date of the document as its source gives it; empty if it gives none.
        text: Text, or the passage of it that was found.
        sha256: SHA-256 of the text in UTF-8, in hex.
    """

    id: str
    title: str
    source: str
    date: str
    text: str
    sha256: str


class EvidenceSource(Protocol):
    """Finds documents that speak about a claim of fact. It is sent words of the claim, and nothing else of a trial."""

    @property
    def identity(self) -> str:
        """Name and version: the same identity gives the same documents, as far as the source can promise it."""
        ...

    @property
    def sends_elsewhere(self) -> bool:
        """True if queries leave the machine: then names that only the picture gave, and contact data, are held back."""
        ...

    async def search(self, query: str, *, most: int, within_s: float) -> Sequence[EvidenceHit]:
        """Documents about the query, best first; none where nothing is found.

        Args:
            query: Words to search for.
            most: Largest number of hits.
            within_s: Seconds that the search may take.

        Raises:
            Overrun: There was no answer in that time.
            Unavailable: The source can't be searched now.
        """
        ...

    async def read(self, document_id: str, *, within_s: float) -> EvidenceDocument:
        """The document of a hit.

        Args:
            document_id: Id of a hit.
            within_s: Seconds that reading may take.

        Raises:
            Overrun: There was no answer in that time.
            Unavailable: The document can't be read now, is too large, or is no text.
        """
        ...


@dataclass(frozen=True, slots=True)
class Entailed:
    """Relation of a hypothesis to a premise, as probabilities that add up to 1.

    Attributes:
        entailment: The premise says that the hypothesis is true.
        neutral: The premise says neither.
        contradiction: The premise says that the hypothesis is false.
    """

    entailment: float
    neutral: float
    contradiction: float


class Entailment(Protocol):
    """A model of natural-language inference."""

    @property
    def identity(self) -> str:
        """Name and version of the model."""
        ...

    async def infer(self, premise: str, hypothesis: str) -> Entailed:
        """Returns how a hypothesis relates to a premise.

        Raises:
            Unavailable: The model can't be asked now.
        """
        ...
