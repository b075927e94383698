"""What of prompts could have come from vLLM's prefix cache: whole blocks that they begin with in common with others."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from court.backends.chat import wire
from court.backends.chat.wire import Capabilities
from court.meme import Frame
from court.ports import ChatRequest

PICTURE_TOKEN = "<|image_pad|>"

Placed = tuple[int, str | None]
"""A token, and where it stands for a part of a picture, that picture's SHA-256: the cache tells both apart."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the prefix cache sees it.

    Attributes:
        tokens: All of them.
        cached: How many of them the server says it had.
        sent: When, in seconds of any one clock.
        answered: When the answer was here, by the same clock.
    """

    tokens: Sequence[Placed]
    cached: int
    sent: float
    answered: float


@dataclass(frozen=True, slots=True)
class Share:
    """Tokens of prompts.

    Attributes:
        prompts: All.
        reached: Served from the cache.
        possible: That could have been: whole blocks of what a prompt begins with in common with one sent before it.
        settled: The same, with only those prompts that had been answered by then.
    """

    prompts: int
    reached: int
    possible: int
    settled: int


def share(asked: Sequence[Prompt], past: Sequence[Prompt], block: int) -> Share:
    """What of prompts was served from the cache, and what could have been.

    Args:
        asked: The prompts that count.
        past: Prompts that were answered before all of these.
        block: Tokens in a block of the cache.
    """
    possible = settled = 0
    for each in asked:
        others = [other for other in asked if other.sent < each.sent]
        before = _whole_blocks(each, past, block)
        sent = max(before, _whole_blocks(each, others, block))
        answered = _whole_blocks(each, [other for other in others if other.answered < each.sent], block)
        possible, settled = possible + sent, settled + max(before, answered)
    return Share(
        prompts=sum(len(each.tokens) for each in asked),
        reached=sum(each.cached for each in asked),
        possible=possible,
        settled=settled,
    )


def tokenize_body(model: str, request: ChatRequest) -> dict[str, Any]:
    """What vLLM's ``/tokenize`` is asked for a prompt as its engine is given it: by the template, pictures in full."""
    return {"model": model, "messages": wire.messages(request, Capabilities(), {})}


def placed(tokens: Iterable[int], request: ChatRequest, picture_token: int) -> list[Placed]:
    """Tokens with the pictures that they stand for. Raises ValueError if there are more or fewer than in the request.

    Args:
        tokens: As vLLM tells them.
        request: That they are the prompt of.
        picture_token: Id of :data:`PICTURE_TOKEN`.
    """
    names = [wire.digest(part) for part in request.parts if isinstance(part, Frame)]
    found: list[Placed] = []
    shown = 0
    for is_picture, run in itertools.groupby(tokens, lambda token: token == picture_token):
        shown += is_picture
        if shown > len(names):
            raise ValueError("the prompt shows more pictures than the request has")
        found += [(token, names[shown - 1] if is_picture else None) for token in run]
    if shown < len(names):
        raise ValueError("the prompt shows fewer pictures than the request has")
    return found


def common(one: Sequence[Placed], other: Sequence[Placed]) -> int:
    """Length of what two begin with in common."""
    return sum(1 for _ in itertools.takewhile(_same, zip(one, other, strict=False)))


def _same(pair: tuple[Placed, Placed]) -> bool:
    return pair[0] == pair[1]


def _whole_blocks(prompt: Prompt, others: Iterable[Prompt], block: int) -> int:
    # The last token is always computed: it is what the reply begins with.
    most = len(prompt.tokens) - 1
    longest = max((common(prompt.tokens, other.tokens) for other in others), default=0)
    return min(longest, most) // block * block
