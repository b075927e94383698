"""Conversion between the wire and the court: validates requests, and builds responses from records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import BaseModel

from court.errors import BadRequest
from court.events import Procedure
from court.in_force import InForce
from court.meme import checked_language
from court.precedents import Precedent, PrecedentLabel
from court.record import TrialRecord
from court.verdict import Label
from memecourt.v1 import court_pb2 as wire
from serving.access.callers import current
from serving.docket.store.log_queries import Receipt
from serving.judging.executor import TrialResult
from serving.judging.request import ANY_VERSIONS, RequiredPolicy, RequiredVersions, TrialRequest

if TYPE_CHECKING:
    from serving.judging.request import Answer

_MOST = {"request_id": 128, "content.namespace": 128, "content.id": 256}
_MOST_PINNED, _LONGEST_PIN = 16, 512
# The lookaheads refuse all-zero ids, which the standard declares invalid.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_CLIENT_TOKEN_BYTES = 1024
_NO_TIME = Duration()


def ask_of(
    request: wire.JudgeRequest, *, default: Procedure, traceparent: str = "", trace_id: str = ""
) -> TrialRequest:
    """Converts a request from the wire to a trial request.

    Args:
        traceparent: W3C ``traceparent`` header, or empty; a malformed one is ignored, as the standard says.
        trace_id: Id of the call's trace, 32 hex digits, if the server traces; overrides the request's.

    Raises:
        BadRequest: A field is malformed.
    """
    within(request.request_id, _MOST["request_id"], "request_id")
    within(request.content.namespace, _MOST["content.namespace"], "content.namespace")
    within(request.content.id, _MOST["content.id"], "content.id")
    if len(request.client_token) > _CLIENT_TOKEN_BYTES:
        raise BadRequest(
            f"client_token has {len(request.client_token):,} bytes; at most {_CLIENT_TOKEN_BYTES:,} are taken.",
            reason="FIELD_TOO_LONG",
            field="client_token",
        )
    trace = _TRACEPARENT.fullmatch(traceparent)
    return TrialRequest(
        image=request.image,
        # Absent and empty differ: an absent text is read off the picture, an empty one means that there is none.
        text=request.text if request.HasField("text") else None,
        language=checked_language(request.language),
        procedure=_procedure(request.procedure, default),
        request_id=request.request_id,
        namespace=request.content.namespace,
        content_id=request.content.id,
        trace_id=trace_id or (trace[1] if trace else ""),
        pins=_pins(request.pins) if request.HasField("pins") else ANY_VERSIONS,
        try_anew=request.try_anew,
        policy=_policy(request.policy) if request.HasField("policy") else None,
    )


def response_of(result: TrialResult) -> wire.JudgeResponse:
    """Builds the response for a trial that ended in a verdict."""
    record = result.record
    opened = record.opened
    response = verdict_of(record)
    if record.in_force is not None:
        response.in_force.CopyFrom(in_force_of(record.in_force))
    response.request_id = opened.request_id
    response.content.CopyFrom(_content_of(record))
    response.timings.CopyFrom(_timings(result, record))
    return response


def answer_of(answer: Answer, request: TrialRequest, *, client_token: bytes = b"") -> wire.JudgeResponse:
    """Builds the part of a response that is specific to its request.

    Merged with :func:`verdict_of` of the record, it is the complete response.
    """
    response = wire.JudgeResponse(
        request_id=answer.name.request_id,
        content=wire.Content(namespace=request.namespace, id=request.content_id),
        client_token=client_token,
        # Unlike the verdict, both change with a review.
        decision=answer.in_force.decision,
        in_force=in_force_of(answer.in_force),
        signals=[_OLDER] if answer.in_force.older_policy else [],
        # A reused verdict has no timings of steps: they belong to a trial that this request did not wait for.
        timings=_timings(answer, None if answer.reused else answer.record),
    )
    if answer.reused:
        response.reused_from.CopyFrom(wire.ReusedFrom(verdict_id=answer.record.trial_id, near=answer.near))
        # With reuse "everywhere" the trial may have been for content of another namespace, which this caller must not
        # see (GR-1).
        if current().sees(answer.record.opened.meme.namespace):
            response.reused_from.content.CopyFrom(_content_of(answer.record))
    return response


def verdict_of(record: TrialRecord) -> wire.JudgeResponse:
    """Builds the part of a response about the trial, which is the same for every request that gets its verdict."""
    opened = record.opened
    ruled, text, cited = record.verdict_event, record.text, record.precedents
    assert ruled is not None and text is not None
    verdict, findings = ruled.verdict, cited.findings if cited else None
    versions = fields_of(wire.Versions, opened.versions)
    if findings:
        versions["library"] = fields_of(wire.Library, findings.library)
    found = fields_of(wire.JudgeResponse, verdict) | {
        "verdict_id": record.trial_id,
        "decision": record.decision or "",
        "review_reasons": [fields_of(wire.Review, reason) for reason in verdict.review],
        "precedents": list(map(precedent_of, findings.exhibits)) if findings else [],
        "text": fields_of(wire.JudgedText, text),
        "procedure": f"PROCEDURE_{opened.procedure}",
        "policy": fields_of(wire.PolicyReference, opened.policy),
        "versions": versions,
        "trace_id": opened.trace_id,
        "near_duplicates": [
            fields_of(wire.NearDuplicate, duplicate) | {"verdict_id": duplicate.trial_id}
            for duplicate in (record.duplicates.duplicates if record.duplicates else ())
        ],
    }
    if opened.meme.picture_given:
        found["picture"] = fields_of(wire.Picture, opened.meme) | {"frames_judged": opened.meme.frames_used}
    response = wire.JudgeResponse(**found)
    response.decided_at.FromDatetime(ruled.at)
    return response


def in_force_of(finding: InForce) -> wire.InForce:
    """Converts the finding in force."""
    message = wire.InForce(**fields_of(wire.InForce, finding))
    if finding.at is not None:
        message.at.FromDatetime(finding.at)
    return message


_OLDER = wire.Review(
    reason=wire.REVIEW_REASON_FINDING_OLDER_THAN_POLICY,
    detail="The finding in force was made under an older version of the policy.",
)


def fields_of(message: type[Message], model: object) -> dict[str, Any]:
    """Returns the values for a message's fields that a model has under the same names, for its constructor.

    A field that the model lacks, or that is None, is left out: a score of 0 must not be read as no score.
    """
    return _fields(message.DESCRIPTOR, model)


def _fields(descriptor: Any, model: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in descriptor.fields:
        value = getattr(model, field.name, None)
        if value is None:
            continue
        if field.enum_type is not None:
            value = field.enum_type.values[0].name.removesuffix("UNSPECIFIED") + value
        elif field.message_type is not None and isinstance(value, BaseModel):
            value = _fields(field.message_type, value)
        elif field.message_type is not None and isinstance(value, tuple):
            value = [_fields(field.message_type, each) for each in value]
        elif field.message_type is not None and not isinstance(value, dict):
            continue  # of the same name, but built from something else
        found[field.name] = value
    return found


def receipt_of(receipt: Receipt) -> wire.Receipt:
    """Converts the receipt of a verdict."""
    return wire.Receipt(checkpoint=receipt.checkpoint, entry=receipt.number, header=receipt.header, proof=receipt.proof)


def _content_of(record: TrialRecord) -> wire.Content:
    meme = record.opened.meme
    return wire.Content(namespace=meme.namespace, id=meme.content_id)


def _timings(answer_or_result: TrialResult | Answer, record: TrialRecord | None) -> wire.Timings:
    """Builds the timings of a request; ``record`` is None if no trial was run for it."""
    text, cited = (record.text, record.precedents) if record else (None, None)
    return wire.Timings(
        total=duration(answer_or_result.total_seconds),
        picture=duration(answer_or_result.picture_seconds) if answer_or_result.picture_seconds else _NO_TIME,
        text=duration(text.latency_s) if text else _NO_TIME,
        precedents=duration(cited.latency_s) if cited else _NO_TIME,
    )


def _pins(pins: wire.Pins) -> RequiredVersions:
    models = {within(role, _LONGEST_PIN, "pins.models").lower(): model for role, model in pins.models.items()}
    few(tuple(models.values()), _MOST_PINNED, _LONGEST_PIN, "pins.models")
    return RequiredVersions(
        models=models,
        prompts=within(pins.prompts, _LONGEST_PIN, "pins.prompts"),
        library=within(pins.library, _LONGEST_PIN, "pins.library"),
        encoder=within(pins.encoder, _LONGEST_PIN, "pins.encoder"),
        settings=within(pins.settings, _LONGEST_PIN, "pins.settings"),
    )


def _procedure(requested: wire.Procedure.ValueType, default: Procedure) -> Procedure:
    if requested == wire.PROCEDURE_UNSPECIFIED:
        return default
    # Enums of proto3 are open: any number is accepted by the parser.
    if requested not in wire.Procedure.values():
        known = ", ".join(name for name, _ in wire.Procedure.items() if not name.endswith("UNSPECIFIED"))
        raise BadRequest(
            f"There is no procedure {requested}. Ask for one of {known}.", reason="UNKNOWN_PROCEDURE", field="procedure"
        )
    return Procedure(wire.Procedure.Name(requested).removeprefix("PROCEDURE_"))


def _policy(policy: wire.PolicyReference) -> RequiredPolicy:
    return RequiredPolicy(
        id=within(policy.id, _LONGEST_PIN, "policy.id"),
        version=within(policy.version, _LONGEST_PIN, "policy.version"),
        digest=within(policy.digest, _LONGEST_PIN, "policy.digest"),
    )


def precedent_of(precedent: Precedent) -> wire.Precedent:
    """Converts a precedent."""
    return wire.Precedent(**fields_of(wire.Precedent, precedent))


def duration(seconds: float) -> Duration:
    """Converts seconds to a Duration, rounded to the nanosecond."""
    # Rounded before splitting: otherwise a fraction could round up to a whole second, which Duration refuses.
    whole, nanos = divmod(round(seconds * 1e9), 10**9)
    return Duration(seconds=whole, nanos=nanos)


MOST_WHO = 200
MOST_WHY = 2000
_LABELS: dict[int, PrecedentLabel] = {wire.LABEL_HARMFUL: Label.HARMFUL, wire.LABEL_NOT_HARMFUL: Label.NOT_HARMFUL}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


def within(value: str, most: int, field: str) -> str:
    """Checks a text of at most ``most`` characters.

    Raises:
        BadRequest: The text is longer, or contains NUL, which not every store can hold.
    """
    if len(value) > most:
        raise BadRequest(
            f"{field} has {len(value):,} characters; at most {most:,} are taken.", reason="FIELD_TOO_LONG", field=field
        )
    if "\0" in value:
        raise BadRequest(f"{field} holds the character NUL. Leave it out.", reason="FIELD_HOLDS_NUL", field=field)
    return value


def required(value: str, most: int, field: str) -> str:
    """Checks a non-blank text of at most ``most`` characters. Raises BadRequest."""
    if not value.strip():
        raise BadRequest(f"{field} is required.", reason="FIELD_MISSING", field=field)
    return within(value, most, field)


def few(values: Sequence[str], most: int, longest: int, field: str) -> tuple[str, ...]:
    """Checks a list of at most ``most`` texts of at most ``longest`` characters each. Raises BadRequest."""
    if len(values) > most:
        raise BadRequest(
            f"{field} has {len(values):,} entries; at most {most:,} are taken.", reason="FIELD_TOO_LONG", field=field
        )
    return tuple(within(value, longest, field) for value in values)


def number(requested: int, default: int, most: int, field: str) -> int:
    """Checks a number from 1 to ``most``; 0 stands for ``default``. Raises BadRequest."""
    if not 0 <= requested <= most:
        raise BadRequest(
            f"{field} is {requested}; 1 to {most:,} are given, and {default} for 0.", reason="OUT_OF_RANGE", field=field
        )
    return requested or default


def found_to_be(label: int) -> PrecedentLabel:
    """Converts a label decided by a person: harmful or not. Raises BadRequest for any other."""
    known = _LABELS.get(label)
    if known is None:
        raise BadRequest(
            "label says what the meme is found to be: LABEL_HARMFUL or LABEL_NOT_HARMFUL.",
            reason="UNKNOWN_LABEL",
            field="label",
        )
    return known


def time_of(value: Timestamp, field: str) -> datetime:
    """Rounds a time up to the next microsecond, the resolution of stored times; the last possible one is the limit.

    Raises:
        BadRequest: The time lies outside the years 1 to 9999, or its nanoseconds outside a second.
    """
    try:
        if not 0 <= value.nanos < 10**9:
            raise ValueError
        # Rounded up: rounded down, a listing "from this time" would include earlier trials.
        second, micros = _EPOCH + timedelta(seconds=value.seconds), -(-value.nanos // 1000)
        return min(second, _LAST - timedelta(microseconds=micros)) + timedelta(microseconds=micros)
    except (ValueError, OverflowError):
        raise BadRequest(f"{field} is no time between the years 1 and 9999.", reason="BAD_TIME", field=field) from None


def signed(value: str, field: str) -> str:
    """Returns the person behind a call: the caller's own name, or the given one if the server does not authenticate.

    Raises:
        BadRequest: The name is missing where it is required, too long, or not the caller's own.
    """
    own = current().name
    # A name in a record is only meaningful if it is the token's, rather than whatever the caller writes.
    if own:
        if value not in ("", own):
            raise BadRequest(
                f"{field} is another name than the token's. Leave it out: the token says who you are.",
                reason="NOT_THE_CALLER",
                field=field,
            )
        return own
    return required(value, MOST_WHO, field)
