"""The interface of queues, its value types and errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Protocol, TypeAlias

_MAX_STREAM_CHARS = 50
"""Characters of a stream's name in a request_id, which has at most 128."""


class BrokerAway(Exception):
    """The broker can't be reached, or refuses to store something now; a later attempt may succeed."""


class BrokerRefused(BrokerAway):
    """The broker was reached and refuses."""


class AnswerTooLarge(Exception):
    """The answer can never be stored in its place."""


class Unusable(Exception):
    """The queue can't be used with these settings; the message is for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Settings of one consumer: streams or subjects, and seconds without a heartbeat until a redelivery."""

    address: str
    stream: str
    group: str
    answers: str
    dead: str
    again_after_s: float
    remove: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMeme:
    """A message of a queue.

    Attributes:
        life: Token of the stream's life in which this delivery was made.
        request_id: Id of its request where it names none: of each delivery, and of no other message of any broker.
    """

    id: str
    life: str
    request_id: str
    parts: Mapping[str, bytes]
    size: int
    sha256: str
    deliveries: int = 1

    @property
    def key(self) -> tuple[str, str]:
        """Key among all messages that a consumer holds."""
        return self.life, self.id


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """Answer to a message: allow, block or review, and the verdict in JSON as ``POST /v1/judge`` answers with it."""

    id: str
    request_id: str
    decision: str
    verdict: bytes


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Reason why a message gets no verdict, stored with its content (``kept``) unless that does not fit."""

    id: str
    request_id: str
    reason: str
    message: str
    code: str
    deliveries: int
    size: int
    sha256: str
    content: str = "kept"

    def shortened(self) -> DeadLetter:
        """Returns the letter for a place that does not take the content; about a kilobyte at most."""
        # In ASCII, since JSON may write any other character in twelve bytes.
        short = (text.encode("ascii", "replace")[:200].decode() for text in (self.message, self.request_id))
        message, request_id = short
        return replace(self, content="left out", message=message, request_id=request_id)


def request_id_of(stream: str, id_: str, *origin: str) -> str:
    """Returns the request_id of a message, which differs wherever its stream, id or ``origin`` does."""
    digest = sha256("\0".join((stream, id_, *origin)).encode(errors="surrogatepass")).hexdigest()
    return f"{stream[:_MAX_STREAM_CHARS]}/{id_}/{digest[:24]}"


IsClaimed: TypeAlias = Callable[[tuple[str, str]], bool]  # true for keys of messages that a consumer holds


class QueueSource(Protocol):
    """A queue, as one of its consumers sees it. Every method raises BrokerAway if the broker can't be reached."""

    async def receive(self, most: int, is_claimed: IsClaimed) -> Sequence[QueuedMeme]:
        """Receives messages, none if none arrive soon, and none that are claimed; makes a missing group again."""

    async def stop_receiving(self) -> None:
        """Stops receiving, so that the queue delivers remaining messages to other consumers."""

    async def hold(self, memes: Collection[QueuedMeme]) -> None:
        """Sends a heartbeat for messages in progress, so that they are not redelivered."""

    async def answer(self, meme: QueuedMeme, answer: QueueAnswer) -> bool:
        """Stores an answer, then acknowledges its message; False if it was there already. Raises AnswerTooLarge."""

    async def bury(self, meme: QueuedMeme, letter: DeadLetter) -> bool:
        """Stores a dead letter, shortened if need be, then acknowledges its message; False as for an answer."""

    async def give_back(self, meme: QueuedMeme, after_s: float | None) -> None:
        """Returns a message for redelivery after some seconds; None: at once, and without counting this delivery."""

    async def waiting(self) -> int | None:
        """Number of messages that no consumer of the group has read yet; None where the queue does not say."""

    async def aclose(self) -> None:
        """Closes connections. What was received and not acknowledged is delivered again."""
