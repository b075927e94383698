"""Maps failed calls to model servers to the court's errors, with retry advice.

Messages contain nothing from a server or the SDK except the text of a rejection, and only if it contains nothing of the
request: servers echo prompts, and exceptions contain addresses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import httpx2
import openai

from court.backends.http import UnreadableAnswer, retry_after
from court.errors import CourtError, ModelRefused, Overrun, Unavailable

_GONE = "MODEL_GONE"


class Retries(Enum):
    """Retry advice for a call that failed."""

    NEVER = "never"
    ONCE = "once"
    """The server may have processed it, or crashed on it: a request that crashes servers must not be sent four
    times."""
    OFTEN = "often"
    """The server rejected it without processing."""


class Failure(Exception):
    """A failed call. It never leaves the backend; callers get its ``error``, see :meth:`to_court_error`.

    Attributes:
        broke_off: True if the connection broke after the request was sent, so the server may have crashed on it.
        stumbled: True if the server reported an internal error, as vLLM does just after its engine has crashed.
    """

    broke_off = False
    unreached = False
    stumbled = False

    def __init__(self, error: CourtError, retries: Retries = Retries.NEVER, after_s: float = 0.0) -> None:
        super().__init__(error.message)
        self.error = error
        self.retries = retries
        self.after_s = after_s

    @property
    def gone(self) -> bool:
        """True if the server can't be reached or disconnected, so that another one should be tried."""
        return self.error.reason == _GONE

    def to_court_error(self) -> CourtError:
        """Returns the error to raise instead, and drops the reference to it."""
        # Otherwise the two would form a reference cycle that keeps the request and its pictures alive.
        error = self.error
        del self.error
        return error


def overrun() -> Overrun:
    """Builds the error for a call that timed out."""
    return Overrun(
        "The model did not answer in the time that was left. Allow more time, or try when the server is less busy.",
        reason="MODEL_TOO_SLOW",
    )


def garbled() -> Failure:
    """Builds the failure for an unparsable answer. Not retried, as the generation has already run."""
    return Failure(
        Unavailable("The model server sent an answer that can't be read. Look at its log.", reason="MODEL_GARBLED")
    )


def gone(retries: Retries) -> Failure:
    """Builds the failure for a connection that could not be made, or broke."""
    message = "The model server can't be reached, or broke off. See whether it runs; try again later."
    return Failure(Unavailable(message, reason=_GONE), retries)


def broke_off(retries: Retries) -> Failure:
    """Builds the failure for a connection that broke after the request was sent."""
    failure = gone(retries)
    failure.broke_off = True
    return failure


def unreached() -> Failure:
    """Builds the failure for a connection that could not be made."""
    failure = gone(Retries.OFTEN)
    failure.unreached = True
    return failure


def of_sdk(error: openai.OpenAIError, *, model: str = "", sent: Sequence[str] = ()) -> Failure:
    """Maps an error of the SDK, raised before the body was read, to a failure; arguments as of_status."""
    # Subclasses are mapped by their base: in the SDK a timeout is a connection error, and many statuses have classes.
    for kind in type(error).__mro__:
        if kind in MAPPED:
            return MAPPED[kind](error, model, sent)
    return garbled()  # a test fails if the SDK adds an error that would end up here


def of_status(
    status: int, headers: Mapping[str, str], detail: str = "", *, model: str = "", sent: Sequence[str] = ()
) -> Failure:
    """Maps an HTTP error status to a failure."""
    if status in (401, 403):
        message = "The model server does not accept our key. Check the key that the court was given for it."
        return Failure(ModelRefused(message, reason="MODEL_UNAUTHORISED", status=status))
    # These statuses reject a request without processing it, so it may be retried.
    if status in (408, 409, 429, 503):
        after_s = retry_after(headers)
        message = "The model server is too busy. Try again later."
        # Defaults to one second without a Retry-After.
        error = Unavailable(message, reason="MODEL_BUSY", retry_after=after_s or 1.0)
        return Failure(error, Retries.OFTEN, after_s)
    if status >= 500:
        # These three may be transient; others would only repeat.
        failure = gone(Retries.ONCE if status in (500, 502, 504) else Retries.NEVER)
        failure.after_s = retry_after(headers)
        failure.stumbled = status == 500
        return failure
    if 300 <= status < 400:
        # Never followed, as that would send key and pictures to an unconfigured address.
        message = f"The model server points elsewhere (HTTP {status}). Configure the address that it points to."
    elif status == 404:
        name = f" {model}" if model else ""
        message = f"The model server does not know the model{name}, or the address is wrong. Check both."
    elif status in (400, 422) and _CONTEXT.search(detail):
        words = quotable(detail, sent)
        message = (
            "The model's context is too short for the request and its reply. Start the server with a longer one (vLLM: "
            "--max-model-len), lower trial.exhibits or trial.reply_chars, or name a model with more."
            f"{f' It says: “{words}”' if words else ''}"
        )
        return Failure(ModelRefused(message, reason="MODEL_CONTEXT_TOO_SHORT", status=status))
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
"""Maximum characters of a server's message that are passed on."""
_ECHO = 12
"""Length from which a common substring with the request counts as an echo, not a coincidence."""
# Only at word boundaries, as an apostrophe within a word is not a quotation mark.
_QUOTED = re.compile(r"""(?<!\w)'[^']*'(?!\w)|"[^"]*"|`[^`]*`|“[^”]*”|\{.*\}|\[.*\]""", re.DOTALL)
_NOT_SHOWN = re.compile(r"""\\|://|[\w+/=%-]{40}|(?<!\w)'|["`“{}[\]]""")
"""Escapes, which may hide an echo; addresses; possible encoded pictures or keys; truncated quotations."""


def quotable(detail: str, sent: Sequence[str]) -> str:
    """Returns a server's message about a rejected request; empty if it can't be shown safely."""
    # Quotations are removed. If the rest may contain an address or a part of the request, all of it is withheld:
    # untrusted text must not get into messages or logs.
    words = " ".join(_QUOTED.sub("…", detail).split())
    # Truncated first, as an echo in the part that is not shown is harmless.
    shown = words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…"
    if not sent or not shown.isprintable() or _NOT_SHOWN.search(shown) or not any(map(str.isalpha, shown)):
        return ""
    plain = shown.casefold()
    texts = [" ".join(text.split()).casefold() for text in sent if text.strip()]
    # Short texts are compared as a whole: even "no more" is an echo if that is the whole meme.
    runs = {plain[start : start + _ECHO] for start in range(max(1, len(plain) - _ECHO + 1))}
    if any(run in text for run in runs for text in texts) or any(text in plain for text in texts):
        return ""
    return shown


_CONTEXT = re.compile(
    r"context (?:length|size|window)|(?:context|prompt) (?:is )?too long|max(?:imum)?[ _]model[ _]len|"
    r"exceed_context_size|n_ctx",
    re.I,
)


def _of_status_error(error: openai.OpenAIError, model: str, sent: Sequence[str]) -> Failure:
    assert isinstance(error, openai.APIStatusError)
    answer = error.response
    return of_status(answer.status_code, answer.headers, _error_message(error), model=model, sent=sent)


def _error_message(error: openai.APIStatusError) -> str:
    body = error.body
    for key in ("error", "message", "detail"):
        if isinstance(body, Mapping) and key in body:
            body = body[key]
    return str(body)[:2000] if isinstance(body, str | Mapping) else ""


def _of_connection_error(error: openai.OpenAIError, _: str, __: Sequence[str]) -> Failure:
    # Also a transport error for the SDK, but the server has answered and must not count as gone.
    if isinstance(error.__cause__, UnreadableAnswer):
        return garbled()
    # Without a connection, the request can't have reached the server.
    unsent = httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | httpx2.ProxyError
    return unreached() if isinstance(error.__cause__, unsent) else broke_off(Retries.ONCE)


MAPPED: Mapping[type, Callable[[openai.OpenAIError, str, Sequence[str]], Failure]] = {
    openai.APIStatusError: _of_status_error,
    openai.APIConnectionError: _of_connection_error,
    openai.APIResponseValidationError: lambda *_: garbled(),
}
"""Maps the SDK's errors on chat completions, subclasses included, to failures, given model and sent texts."""
