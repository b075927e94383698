"""Maps a failed call to a model server to the court's error, and to whether a retry makes sense.

Of what a server or the SDK wrote, a message has no more than a refusal's own words, and these only if they hold nothing
of the request: servers echo prompts, and exceptions hold addresses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import httpx2
import openai

from court.backends.http import retry_after
from court.backends.http_head import UnreadableAnswer
from court.errors import CourtError, ModelRefused, Overrun, Unavailable

_GONE = "MODEL_GONE"


class Again(Enum):
    """Retry advice for a call that failed."""

    NEVER = "never"
    ONCE = "once"
    """The server may have worked on it, or died of it: a request that kills servers must not kill four."""
    OFTEN = "often"
    """The server turned it away unread."""


class Failure(Exception):
    """A call that failed. It never leaves the backend: what leaves is its ``error``, see :meth:`told`.

    Attributes:
        error: Error that the court raises.
        again: Retry advice.
        after_s: Seconds for which the server asked to be left alone; 0 if it did not say.
        broke_off: True if the connection broke after the request had been sent: the server may have died of it.
        unreached: True if no connection was made.
        stumbled: True if the server reported a fault of its own, as vLLM does just after its engine has died.
    """

    broke_off = False
    unreached = False
    stumbled = False

    def __init__(self, error: CourtError, again: Again = Again.NEVER, after_s: float = 0.0) -> None:
        super().__init__(error.message)
        self.error = error
        self.again = again
        self.after_s = after_s

    @property
    def gone(self) -> bool:
        """True if the server can't be reached or broke off, so that another one is worth asking."""
        return self.error.reason == _GONE

    def to_court_error(self) -> CourtError:
        """The error, to be raised in the place of this, which lets go of it.

        Else each would remember the other, and both the request that was under way, with its pictures.
        """
        error = self.error
        del self.error
        return error


def overrun() -> Overrun:
    """Builds the error for a reply that did not come within its time."""
    return Overrun(
        "The model did not answer in the time that was left. Allow more time, or try when the server is less busy.",
        reason="MODEL_TOO_SLOW",
    )


def garbled() -> Failure:
    """An answer came, but none that can be read. Not tried again: a generation has run and would run once more."""
    return Failure(
        Unavailable("The model server sent an answer that can't be read. Look at its log.", reason="MODEL_GARBLED")
    )


def gone(again: Again) -> Failure:
    """Builds the failure for a connection that could not be made, or broke."""
    message = "The model server can't be reached, or broke off. See whether it runs; try again later."
    return Failure(Unavailable(message, reason=_GONE), again)


def broke_off(again: Again) -> Failure:
    """The connection broke when the request had been sent."""
    failure = gone(again)
    failure.broke_off = True
    return failure


def unreached() -> Failure:
    """No connection came about."""
    failure = gone(Again.OFTEN)
    failure.unreached = True
    return failure


def of_sdk(error: openai.OpenAIError, *, model: str = "", sent: Sequence[str] = ()) -> Failure:
    """The failure behind an error of the SDK, raised before the body of a reply was read; arguments as of_status."""
    # Subclasses count as their base: to the SDK a timeout is a connection error, and many statuses have their own
    # class.
    for kind in type(error).__mro__:
        if kind in MAPPED:
            return MAPPED[kind](error, model, sent)
    return garbled()  # a test tells when the SDK grows an error that would come here unseen


def of_status(
    status: int, headers: Mapping[str, str], detail: str = "", *, model: str = "", sent: Sequence[str] = ()
) -> Failure:
    """The failure behind an HTTP status that is no success.

    Args:
        status: The status.
        headers: Headers of the answer.
        detail: The body's own words.
        model: Name of the model that was asked, as the operator has configured it.
        sent: Texts that were sent, by which echoes of them are found in the words; without any, no words are passed on.
    """
    if status in (401, 403):
        message = "The model server does not accept our key. Check the key that the court was given for it."
        return Failure(ModelRefused(message, reason="MODEL_UNAUTHORISED", status=status))
    # All of these turn a request away unread, so that it may be sent again.
    if status in (408, 409, 429, 503):
        after_s = retry_after(headers)
        message = "The model server is too busy. Try again later."
        # Without a word of its own, a second is what the server is given.
        error = Unavailable(message, reason="MODEL_BUSY", retry_after=after_s or 1.0)
        return Failure(error, Again.OFTEN, after_s)
    if status >= 500:
        # These three may be a passing fault; the others would only be said again.
        failure = gone(Again.ONCE if status in (500, 502, 504) else Again.NEVER)
        failure.after_s = retry_after(headers)
        failure.stumbled = status == 500
        return failure
    if 300 <= status < 400:
        # Never followed: it would carry the key and the pictures to where nobody configured them to go.
        message = f"The model server points elsewhere (HTTP {status}). Configure the address that it points to."
    elif status == 404:
        name = f" {model}" if model else ""
        message = f"The model server does not know the model{name}, or the address is wrong. Check both."
    elif status in (400, 422) and (lengths := context_lengths(detail)) is not None:
        return Failure(ModelRefused(_too_long(*lengths), reason="MODEL_CONTEXT_TOO_SHORT", status=status))
    elif status == 413:
        message = "The request is too large for the model server (HTTP 413). Allow larger requests there."
    elif words := quotable(detail, sent):
        message = f"The model server can't take the request (HTTP {status}). It says: “{words}”"
    else:
        message = (
            f"The model server can't take the request (HTTP {status}): too long for the model, too many pictures, or a "
            "feature that it lacks. Look at its log."
        )
    return Failure(ModelRefused(message, status=status))


_SHOWN = 240
"""Characters of a server's own words that are passed on."""
_ECHO = 12
"""Characters from which on a run that stands in the request too is an echo of it, and no chance."""
# Between words alone: an apostrophe within one begins no quotation.
_QUOTED = re.compile(r"""(?<!\w)'[^']*'(?!\w)|"[^"]*"|`[^`]*`|“[^”]*”|\{.*\}|\[.*\]""", re.DOTALL)
_NOT_SHOWN = re.compile(r"""\\|://|[\w+/=%-]{40}|(?<!\w)'|["`“{}[\]]""")
"""Escapes, which hide an echo; addresses; what may be an encoded picture or a key; a quotation that was cut."""


def quotable(detail: str, sent: Sequence[str]) -> str:
    """Returns what a server says about a request that it refuses; empty if nothing of it can be shown safely.

    Quotations are left out. If what remains may hold an address or a part of the request, all of it is withheld: a
    text of strangers must get into no message and no log.

    Args:
        detail: Words of the server.
        sent: Texts of the request; without any an echo can't be told, and nothing is shown.
    """
    words = " ".join(_QUOTED.sub("…", detail).split())
    # First of all: an echo in what is not shown does no harm.
    shown = words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…"
    if not sent or not shown.isprintable() or _NOT_SHOWN.search(shown) or not any(map(str.isalpha, shown)):
        return ""
    plain = shown.casefold()
    texts = [" ".join(text.split()).casefold() for text in sent if text.strip()]
    # A short text is looked for whole: "no more" is an echo too where that is all of the meme.
    runs = {plain[start : start + _ECHO] for start in range(max(1, len(plain) - _ECHO + 1))}
    if any(run in text for run in runs for text in texts) or any(text in plain for text in texts):
        return ""
    return shown


_CONTEXT = re.compile(
    r"context (?:length|size|window)|(?:context|prompt) (?:is )?too long|max(?:imum)?[ _]model[ _]len|"
    r"exceed_context_size|n_ctx",
    re.I,
)
# Not the digits in names of models and versions, which stand beside letters and dots.
_NUMBER = re.compile(r"(?<![\w.])\d{2,9}(?![\w.]*\d)")


def context_lengths(detail: str) -> tuple[int | None, int | None] | None:
    """Tokens that a model takes and that a request had, as far as a server says so; None where it is about another.

    Servers word it differently and agree on the order of size: what a model takes is the smallest number in what they
    say, and the request, which was too long for it, the largest.
    """
    if not _CONTEXT.search(detail):
        return None
    numbers = sorted(int(number) for number in _NUMBER.findall(detail))
    if len(numbers) < 2 or numbers[0] == numbers[-1]:
        return (numbers[0] if numbers else None), None
    # Of a request they may give the parts too: the model takes the largest number that is below the whole.
    limit = next((n for n in _limits_in(detail) if n in numbers), numbers[0])
    return limit, numbers[-1] if numbers[-1] > limit else None


def _limits_in(detail: str) -> list[int]:
    """Numbers that stand right behind words for what a model takes."""
    found = re.findall(r"(?:maximum[\w ]*?|context (?:length|size|window)|limit|n_ctx)\D{0,24}?(\d{2,9})", detail, re.I)
    return [int(number) for number in found]


def _too_long(limit: int | None, requested: int | None) -> str:
    known = f"takes {limit:,} tokens" if limit is not None else "is too short"
    request = f"the request with its reply has {requested:,}" if requested is not None else "the request is longer"
    return (
        f"The model's context {known}; {request}. Start the server with a longer one (vLLM: --max-model-len), lower "
        "trial.exhibits or trial.reply_chars, or name a model with more."
    )


def _of_status_error(error: openai.OpenAIError, model: str, sent: Sequence[str]) -> Failure:
    assert isinstance(error, openai.APIStatusError)
    answer = error.response
    return of_status(answer.status_code, answer.headers, _error_message(error), model=model, sent=sent)


def _error_message(error: openai.APIStatusError) -> str:
    """The words of an error's body, shortened; empty where there are none."""
    body = error.body
    for key in ("error", "message", "detail"):
        if isinstance(body, Mapping) and key in body:
            body = body[key]
    return str(body)[:2000] if isinstance(body, str | Mapping) else ""


def _of_connection_error(error: openai.OpenAIError, _: str, __: Sequence[str]) -> Failure:
    # A transport error to the SDK as well, but the server is there and has answered: it must not count as gone.
    if isinstance(error.__cause__, UnreadableAnswer):
        return garbled()
    return unreached() if _never_sent(error.__cause__) else broke_off(Again.ONCE)


MAPPED: Mapping[type, Callable[[openai.OpenAIError, str, Sequence[str]], Failure]] = {
    openai.APIStatusError: _of_status_error,
    openai.APIConnectionError: _of_connection_error,
    openai.APIResponseValidationError: lambda *_: garbled(),
}
"""What the SDK raises on a chat completion, subclasses included, and what becomes of it, for a model and texts sent."""


def _never_sent(cause: BaseException | None) -> bool:
    """True if the request can't have reached the server because no connection was made."""
    return isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | httpx2.ProxyError)
