"""The interface of queues, and its value types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Settings of one consumer.

    Attributes:
        address: Address of the queue's server; its scheme says of which kind it is.
        answers: Stream or subject for verdicts.
        dead: Stream or subject for dead letters.
        again_after_s: Seconds without a heartbeat after which a message is redelivered.
        remove: True to delete messages from the stream once they are answered or dead-lettered.
    """

    address: str
    stream: str
    group: str
    answers: str
    dead: str
    again_after_s: float
    remove: bool


@dataclass(frozen=True, slots=True)
class QueuedMeme:
    """A message of a queue.

    Attributes:
        id: Id of the message in its queue, the same for each delivery.
        request_id: Id of its request where it names none: that of its queue and its own, so that the court takes each
            delivery for the same request.
        parts: Its parts by name: ``request`` (JSON), ``image`` (a picture's bytes), ``text`` (UTF-8).
    """

    id: str
    request_id: str
    parts: Mapping[str, bytes]
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """Answer to a message.

    Attributes:
        decision: Decision that the verdict comes to: allow, block or review.
        verdict: Verdict in JSON, as ``POST /v1/judge`` answers with it.
    """

    id: str
    request_id: str
    decision: str
    verdict: bytes


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Reason why a message gets no verdict, stored with its parts.

    Attributes:
        code: Status code of gRPC by name.
    """

    id: str
    request_id: str
    reason: str
    message: str
    code: str
    deliveries: int


def no_message(_: str) -> bool:
    """Always False: the default for ``is_claimed``."""
    return False


class QueueSource(Protocol):
    """A queue, as one of its consumers sees it.

    Every method raises Unavailable if the queue can't be reached.
    """

    async def receive(self, most: int, is_claimed: Callable[[str], bool] = no_message) -> Sequence[QueuedMeme]:
        """Receives up to ``most`` messages, new or abandoned by other consumers; none if none arrive soon.

        Args:
            most: Largest number of messages.
            is_claimed: True for ids of messages that this consumer holds: if a heartbeat was late, they are neither
                delivered to it again nor is a delivery counted.
        """
        ...

    async def stop_receiving(self) -> None:
        """Stops receiving, so that the queue delivers remaining messages to other consumers."""
        ...

    async def read_again(self, meme: QueuedMeme) -> QueuedMeme | None:
        """Reads the parts of a message that this consumer holds; None if it was deleted."""
        ...

    async def hold(self, memes: Collection[QueuedMeme]) -> None:
        """Sends a heartbeat for messages in progress, so that they are not redelivered."""
        ...

    async def answer(self, meme: QueuedMeme, answer: QueueAnswer) -> bool:
        """Stores an answer and acknowledges its message; False if it was acknowledged before."""
        ...

    async def bury(self, meme: QueuedMeme, letter: DeadLetter) -> bool:
        """Stores a dead letter and acknowledges its message; False if it was acknowledged before."""
        ...

    async def give_back(self, meme: QueuedMeme, *, counted: bool = True) -> None:
        """Returns a message to the queue for redelivery.

        Args:
            counted: False to redeliver it at once without counting this delivery, as far as the queue supports that,
                because nothing was wrong with the message.
        """
        ...

    async def drop(self, meme: QueuedMeme) -> None:
        """Acknowledges a deleted message, of which nothing is left to answer."""
        ...

    async def waiting(self) -> int | None:
        """Number of messages that no consumer of the group has read yet; None where the queue does not say."""
        ...

    async def aclose(self) -> None:
        """Closes connections. What was received and not acknowledged is delivered again."""
        ...
