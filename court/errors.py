"""Everything that can keep a trial from its verdict.

::

    CourtError
    ├── BadInput               what was handed in can't be tried; the same again will fail again
    │   ├── BadPicture         the picture
    │   ├── BadText            the text
    │   └── BadRequest         anything else that was asked for
    ├── NotLoaded              what was asked for exists, but this court was not set up with it
    ├── CantResume             a trial can't be taken up where it was cut off
    ├── BadLibrary             a precedent library is damaged, foreign or missing
    ├── Unavailable            something the court leans on is not there now; later may do
    │   └── Overrun            it did not answer in the time it was given
    ├── ModelRefused           the model server can't take a request; the same again will fail again
    ├── ReplyUnusable          a model's reply can't be used, also when asked again
    └── TrialAborted           a trial began and ended without a verdict; carries its record

No error is ever an answer: none of them means "not harmful".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


class CourtError(Exception):
    """Base of all errors that the court raises on purpose.

    Attributes:
        message: Fault and remedy, fit to be shown to any caller: no path, address or traceback.
        reason: The same for machines, in UPPER_SNAKE_CASE; stable over versions.
        field: The part of the request it is about, as a path (``image``, ``text``), or ``None``.
    """

    default_reason = "COURT_ERROR"

    def __init__(self, message: str, *, reason: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.field = field


class BadInput(CourtError):
    """Raised for input that can't be tried; the same input will fail again."""

    default_reason = "BAD_INPUT"


class BadPicture(BadInput):
    """The picture can't be read, or is beyond the limits."""

    default_reason = "BAD_PICTURE"

    def __init__(self, message: str, *, reason: str | None = None, field: str | None = "image") -> None:
        super().__init__(message, reason=reason, field=field)


class BadText(BadInput):
    """The text is beyond the limits."""

    default_reason = "BAD_TEXT"

    def __init__(self, message: str, *, reason: str | None = None, field: str | None = "text") -> None:
        super().__init__(message, reason=reason, field=field)


class BadRequest(BadInput):
    """Some other part of what was asked for is missing or malformed."""

    default_reason = "BAD_REQUEST"


class NotLoaded(CourtError):
    """Raised for a procedure or policy that is known but that this court was not set up with."""

    default_reason = "NOT_LOADED"


class CantResume(CourtError):
    """A trial can't be taken up where it was cut off."""

    default_reason = "CANT_RESUME"


class BadLibrary(CourtError):
    """A precedent library is damaged, was made by another encoder, or is not there."""

    default_reason = "BAD_LIBRARY"


class Unavailable(CourtError):
    """Something the court leans on is not there now; asking again later may help.

    Attributes:
        retry_after: Seconds to wait before asking again; None where that might do a second time what was done.
        broke_off: Number of requests of this trial that broke off while a server worked on them, as happens when it
            dies of them.
    """

    default_reason = "UNAVAILABLE"
    broke_off = 0

    def __init__(
        self, message: str, *, reason: str | None = None, field: str | None = None, retry_after: float | None = 1.0
    ) -> None:
        super().__init__(message, reason=reason, field=field)
        self.retry_after = retry_after


class Overrun(Unavailable):
    """Something did not answer in the time it was given."""

    default_reason = "OVERRUN"


class ModelRefused(CourtError):
    """The model server can't take a request: unknown model, too long a prompt, a feature that it lacks.

    Attributes:
        status: HTTP status that it answered with.
    """

    default_reason = "MODEL_REFUSED"

    def __init__(self, message: str, *, reason: str | None = None, status: int = 400) -> None:
        super().__init__(message, reason=reason)
        self.status = status


class ReplyUnusable(CourtError):
    """A model's reply can't be used, also when it was asked again with the fault named. Never guessed at.

    Attributes:
        reason: REPLY_EMPTY, REPLY_CUT, REPLY_LOOPS, THOUGHT_CUT, REPLY_REFUSED or REPLY_MALFORMED; SYSTEM_LEAKED where
            the reply gave the model's instructions away: then it is not asked again.
        role: Role that was to speak.
        task: Task of the request.
        replies: Replies as they are recorded (:class:`court.events.UnusableReplies`); None where one gave its
            instructions away.
    """

    default_reason = "REPLY_MALFORMED"
    replies: object = None

    def __init__(self, role: str, task: str, reason: str, what: str) -> None:
        super().__init__(f"The {str(role).lower()}'s reply ({task}) could not be used: {what}.", reason=reason)
        self.role = str(role)
        self.task = task
