"""Recognises replies in which a model says the same over and over, up to the limit of its tokens or of a string."""

from __future__ import annotations

_MOST = 300
"""Characters of the longest phrase that is looked for."""
_TIMES = 4
_END = 40
_LEAST = 200
"""Characters that a phrase must fill by being repeated: letters that a meme draws out, or a laugh, are no loop."""


def find_loop(text: str) -> int | None:
    """Returns the place at which a text has said a phrase once and begins to repeat it up to its end; None if none.

    Args:
        text: Text of a reply, cut or whole; the last repetition may be cut.
    """
    end = text[-_END:]
    place = len(text) - len(end)
    # By the places at which the end of the text stands before: of most texts there are none.
    # Each search ends one character to the left of the last find, not one length: a phrase shorter than `end` makes it
    # overlap itself.
    while (place := text.rfind(end, max(0, len(text) - len(end) - _MOST), place + len(end) - 1)) >= 0:
        period = len(text) - len(end) - place
        fills = max(_TIMES * period, _LEAST)
        # Finds farther to the left have longer periods, which need even more text.
        if fills > len(text):
            return None
        # Equal to itself moved by one period: a single comparison, however often the phrase stands there.
        if text[-fills:-period] == text[period - fills :]:
            start = len(text) - fills
            while start and text[start - 1] == text[start - 1 + period]:
                start -= 1
            return start + period
    return None


def find_loop_in_reply(reply: str) -> int | None:
    """Returns the place in a reply at which a loop begins; None if it has none.

    A string under a schema ends at its greatest length, and the reply goes on as if it were whole. So each stretch
    between quotation marks is looked at, beside the end of the reply.

    Args:
        reply: Reply as the model wrote it.
    """
    start = 0
    for piece in reply.split('"'):
        if (found := find_loop(piece)) is not None:
            return start + found
        start += len(piece) + 1
    return find_loop(reply)
