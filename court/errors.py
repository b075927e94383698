"""All errors that can prevent a verdict.

::

    CourtError
    ├── BadInput               the input can't be tried; the same input will fail again
    │   ├── BadPicture         the picture
    │   ├── BadText            the text
    │   └── BadRequest         any other part of the request
    ├── NotLoaded              the requested feature exists, but is not set up in this court
    ├── CantResume             a trial can't be resumed
    ├── BadLibrary             a precedent library is damaged, incompatible or missing
    ├── Unavailable            a dependency is unavailable; a later retry may succeed
    │   └── Overrun            it timed out
    ├── ModelRefused           the model server rejected a request; the same request will fail again
    ├── ReplyUnusable          a model's reply can't be used, even after asking again
    └── TrialAborted           a trial began and ended without a verdict; carries its record

No error is a verdict: none of them means "not harmful".
"""

from __future__ import annotations


class CourtError(Exception):
    """Base class of all errors that the court raises deliberately.

    Attributes:
        message: Fault and remedy, safe to show to any caller: no path, address or traceback.
        reason: Machine-readable code in UPPER_SNAKE_CASE; stable across versions.
        field: Path of the request field at fault (``image``, ``text``), or ``None``.
    """

    default_reason = "COURT_ERROR"
    default_field: str | None = None

    def __init__(self, message: str, *, reason: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.field = field or self.default_field


class BadInput(CourtError):
    """Raised for input that can't be tried; the same input will fail again."""

    default_reason = "BAD_INPUT"


class BadPicture(BadInput):
    """The picture can't be read or exceeds the limits."""

    default_reason = "BAD_PICTURE"
    default_field = "image"


class BadText(BadInput):
    """The text exceeds the limits."""

    default_reason = "BAD_TEXT"
    default_field = "text"


class BadRequest(BadInput):
    """Another part of the request is missing or malformed."""

    default_reason = "BAD_REQUEST"


class NotLoaded(CourtError):
    """Raised for a known feature, such as a procedure, that is not set up in this court."""

    default_reason = "NOT_LOADED"


class CantResume(CourtError):
    """A trial can't be resumed."""

    default_reason = "CANT_RESUME"


class BadLibrary(CourtError):
    """A precedent library is damaged, was built with another encoder, or is missing."""

    default_reason = "BAD_LIBRARY"


class Unavailable(CourtError):
    """A dependency of the court is unavailable; a later retry may succeed.

    Attributes:
        retry_after: Seconds to wait before a retry; None if a retry might repeat an action that was already performed.
    """

    default_reason = "UNAVAILABLE"
    broke_off = 0

    def __init__(
        self, message: str, *, reason: str | None = None, field: str | None = None, retry_after: float | None = 1.0
    ) -> None:
        super().__init__(message, reason=reason, field=field)
        self.retry_after = retry_after


class Overrun(Unavailable):
    """A dependency timed out."""

    default_reason = "OVERRUN"


class ModelRefused(CourtError):
    """The model server rejected a request: unknown model, prompt too long, unsupported feature."""

    default_reason = "MODEL_REFUSED"

    def __init__(self, message: str, *, reason: str | None = None, status: int = 400) -> None:
        super().__init__(message, reason=reason)
        self.status = status


class ReplyUnusable(CourtError):
    """A model's reply can't be used, even after a repair request that named the fault. Replies are never guessed at.

    Attributes:
        reason: REPLY_EMPTY, REPLY_CUT, REPLY_LOOPS, THOUGHT_CUT, REPLY_REFUSED or REPLY_MALFORMED; SYSTEM_LEAKED if the
            reply leaked the model's instructions, in which case there is no second attempt.
        replies: Replies as recorded (:class:`court.events.UnusableReplies`); None if one leaked its instructions.
    """

    default_reason = "REPLY_MALFORMED"
    replies: object = None

    def __init__(self, role: str, task: str, reason: str, what: str) -> None:
        super().__init__(f"The {str(role).lower()}'s reply ({task}) could not be used: {what}.", reason=reason)
        self.role = str(role)
        self.task = task
        self.what = what
