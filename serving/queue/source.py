"""The small protocol that a queue is read by, and the values that go through it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Settings of one consumer.

    Attributes:
        address: Address of the queue's server; its scheme says of which kind it is.
        stream: Name of the stream that messages come from.
        group: Name of the consumers that share them.
        answers: Stream, or subject, that verdicts go to.
        dead: Stream, or subject, that messages go to which get no verdict.
        again_after_s: Seconds after which a message that nobody works on is delivered again.
        remove: True to take messages out of the stream once they are answered or put aside.
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
        id: Identifies it in its queue, equal at each delivery.
        request_id: Id of its request where it names none: that of its queue and its own, so that the court takes each
            delivery for the same request.
        parts: Its parts by name: ``request`` (JSON), ``image`` (a picture's bytes), ``text`` (UTF-8).
        deliveries: Times that it was delivered, with this one.
    """

    id: str
    request_id: str
    parts: Mapping[str, bytes]
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """Answer to a message.

    Attributes:
        id: Id of the message.
        request_id: Id of its request.
        decision: Decision that the verdict comes to: allow, block or review.
        verdict: Verdict in JSON, as ``POST /v1/judge`` answers with it.
    """

    id: str
    request_id: str
    decision: str
    verdict: bytes


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that gets no verdict, beside which its parts are stored.

    Attributes:
        id: Id of the message.
        request_id: Id of its request.
        reason: Why, for machines.
        message: Why, for people.
        code: Status code of gRPC by name.
        deliveries: Times that it was delivered.
    """

    id: str
    request_id: str
    reason: str
    message: str
    code: str
    deliveries: int


def no_message(_: str) -> bool:
    """True for no message."""
    return False


class QueueSource(Protocol):
    """A queue, as one of its consumers sees it.

    Every method raises Unavailable where the queue can't be reached now.
    """

    async def receive(self, most: int, is_claimed: Callable[[str], bool] = no_message) -> Sequence[QueuedMeme]:
        """Up to so many messages: new ones, and those that another consumer has left; none where none came soon.

        Args:
            most: Largest number of messages.
            is_claimed: True for ids of messages that this consumer has: where a sign of them came too late, they are
                not given to it a second time, nor is that counted against them.
        """
        ...

    async def stop_receiving(self) -> None:
        """Says that nothing is received here any more, so that the queue delivers what is left to other consumers."""
        ...

    async def read_again(self, meme: QueuedMeme) -> QueuedMeme | None:
        """A message that this consumer has, with its parts; None where it was deleted."""
        ...

    async def hold(self, memes: Collection[QueuedMeme]) -> None:
        """Says that these are still worked on, so that they are not delivered to another consumer."""
        ...

    async def answer(self, meme: QueuedMeme, answer: QueueAnswer) -> bool:
        """Stores an answer and acknowledges its message; False where that was acknowledged before."""
        ...

    async def bury(self, meme: QueuedMeme, letter: DeadLetter) -> bool:
        """Stores a message with the reason for its end and acknowledges it; False where it was acknowledged before."""
        ...

    async def give_back(self, meme: QueuedMeme, *, counted: bool = True) -> None:
        """Leaves a message to be delivered again later.

        Args:
            meme: Message.
            counted: False to have it delivered at once, and as if it had not been delivered here, as far as the queue
                can take that back: nothing was wrong with it.
        """
        ...

    async def drop(self, meme: QueuedMeme) -> None:
        """Acknowledges a message that was deleted: nothing of it is left that could be answered or put aside."""
        ...

    async def waiting(self) -> int | None:
        """Number of messages that no consumer of the group has read yet; None where the queue does not say."""
        ...

    async def aclose(self) -> None:
        """Closes connections. What was received and not acknowledged is delivered again."""
        ...
