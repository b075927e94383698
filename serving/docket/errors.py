"""Errors of the docket."""

from __future__ import annotations

from court.errors import CourtError


class DocketError(CourtError):
    """The docket is missing, damaged, or of another format; the message says what is wrong and what to do."""

    default_reason = "BAD_DOCKET"


class TrialUnknown(CourtError):
    """Raised if the docket has no trial of an id."""

    default_reason = "TRIAL_UNKNOWN"


class TrialErased(TrialUnknown):
    """The record of a trial was erased."""

    default_reason = "TRIAL_ERASED"


class NotDecided(CourtError):
    """A trial has no verdict that could be reviewed."""

    default_reason = "TRIAL_NOT_DECIDED"


class RequestConflict(CourtError):
    """The request's name was used before for a different request."""

    default_reason = "REQUEST_ID_TAKEN"
    default_field = "request_id"
