"""Between the wire and the court: requests checked in form, records turned into responses."""

from __future__ import annotations

import re

from google.protobuf.duration_pb2 import Duration

from court.errors import BadRequest, NotLoaded
from court.events import Procedure, VerdictGiven
from court.policy import Policy
from court.precedents import Precedent
from memecourt.v1 import court_pb2 as wire
from serving.assembly import Ask, Hearing

_MOST = {"request_id": 128, "content.namespace": 128, "content.id": 256, "language": 35}
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_CLIENT_TOKEN_BYTES = 1024


def ask_of(request: wire.JudgeRequest, *, policy: Policy, default: Procedure, traceparent: str = "") -> Ask:
    """The ask in a request.

    Args:
        request: As it came.
        policy: The one that is loaded.
        default: The procedure where none is asked for.
        traceparent: The W3C header of that name, or empty; a malformed one is passed over, as the standard says.

    Raises:
        BadRequest: A field is malformed.
        NotLoaded: Another policy was asked for.
    """
    fields = {
        "request_id": request.request_id,
        "content.namespace": request.content.namespace,
        "content.id": request.content.id,
        "language": request.language,
    }
    for field, value in fields.items():
        if len(value) > _MOST[field]:
            raise BadRequest(
                f"{field} has {len(value):,} characters; at most {_MOST[field]} are taken.",
                reason="FIELD_TOO_LONG",
                field=field,
            )
    if request.language and not _LANGUAGE.fullmatch(request.language):
        raise BadRequest(
            'language is no BCP 47 tag. Send one such as "en" or "pt-BR", or leave it out.',
            reason="BAD_LANGUAGE",
            field="language",
        )
    if len(request.client_token) > _CLIENT_TOKEN_BYTES:
        raise BadRequest(
            f"client_token has {len(request.client_token):,} bytes; at most {_CLIENT_TOKEN_BYTES:,} are taken.",
            reason="FIELD_TOO_LONG",
            field="client_token",
        )
    _check_policy(request, policy)
    trace = _TRACEPARENT.fullmatch(traceparent)
    return Ask(
        image=request.image,
        text=request.text if request.HasField("text") else None,
        language=request.language,
        procedure=_procedure(request.procedure, default),
        request_id=request.request_id,
        namespace=request.content.namespace,
        content_id=request.content.id,
        trace_id=trace[1] if trace else "",
    )


def response_of(hearing: Hearing, *, client_token: bytes = b"") -> wire.JudgeResponse:
    """The response to a hearing that ended in a verdict."""
    record = hearing.record
    opened = record.opened
    given, text, cited = record.last(VerdictGiven), record.text, record.precedents
    assert given is not None and text is not None
    verdict, findings = given.verdict, cited.findings if cited else None
    response = wire.JudgeResponse(
        verdict_id=record.trial_id,
        request_id=opened.request_id,
        content=wire.Content(namespace=opened.meme.namespace, id=opened.meme.content_id),
        label=wire.Label.Value(f"LABEL_{verdict.label}"),
        rationale=verdict.rationale,
        precedents=[_precedent(exhibit) for exhibit in findings.exhibits] if findings else [],
        needs_human_review=verdict.needs_human_review,
        review_reasons=[
            wire.Review(reason=wire.ReviewReason.Value(f"REVIEW_REASON_{review.reason}"), detail=review.detail)
            for review in verdict.review
        ],
        text=wire.JudgedText(text=text.text, source=wire.TextSource.Value(f"TEXT_SOURCE_{text.source}")),
        procedure=wire.Procedure.Value(f"PROCEDURE_{opened.procedure}"),
        policy=wire.PolicyReference(id=opened.policy.id, version=opened.policy.version, digest=opened.policy.digest),
        versions=wire.Versions(
            software=opened.versions.software,
            settings=opened.versions.settings,
            prompts=opened.versions.prompts,
            models=opened.versions.models,
            encoder=opened.versions.encoder,
            library=wire.Library(name=findings.library.name, digest=findings.library.digest, size=findings.library.size)
            if findings
            else None,
            text_reader=opened.versions.text_reader,
        ),
        timings=wire.Timings(
            total=_duration(hearing.total_seconds),
            picture=_duration(hearing.picture_seconds),
            text=_duration(text.latency_s),
            precedents=_duration(cited.latency_s if cited else 0.0),
        ),
        trace_id=opened.trace_id,
        client_token=client_token,
        picture=wire.Picture(
            bytes_sha256=opened.meme.bytes_sha256,
            pixels_sha256=opened.meme.pixels_sha256,
            frame_count=opened.meme.frame_count,
            frames_judged=opened.meme.frames_used,
        ),
    )
    response.decided_at.FromDatetime(given.at)
    if verdict.harm_score is not None and verdict.harm_score_meaning is not None:
        response.harm_score = verdict.harm_score
        response.harm_score_meaning = wire.ScoreMeaning.Value(f"SCORE_MEANING_{verdict.harm_score_meaning}")
    if verdict.finding is not None:
        found = verdict.finding
        response.finding.CopyFrom(wire.Finding(category=found.category, clause=found.clause, target=found.target))
    if verdict.strengths is not None:
        response.strengths.harmful = wire.Strength.Value(f"STRENGTH_{verdict.strengths.harmful}")
        response.strengths.benign = wire.Strength.Value(f"STRENGTH_{verdict.strengths.benign}")
    return response


def _procedure(asked: wire.Procedure.ValueType, default: Procedure) -> Procedure:
    if asked == wire.PROCEDURE_UNSPECIFIED:
        return default
    if asked not in wire.Procedure.values():
        known = ", ".join(name for name, _ in wire.Procedure.items() if not name.endswith("UNSPECIFIED"))
        raise BadRequest(
            f"There is no procedure {asked}. Ask for one of {known}.", reason="UNKNOWN_PROCEDURE", field="procedure"
        )
    return Procedure(wire.Procedure.Name(asked).removeprefix("PROCEDURE_"))


def _check_policy(request: wire.JudgeRequest, policy: Policy) -> None:
    if not request.HasField("policy"):
        return
    asked = request.policy
    loaded = asked.id == policy.id and asked.version in ("", policy.version) and asked.digest in ("", policy.digest)
    if not loaded:
        raise NotLoaded(
            f"The policy that was asked for is not loaded; {policy.id} version {policy.version} ({policy.digest}) is. "
            "Leave the policy out to have that one applied.",
            reason="POLICY_NOT_LOADED",
            field="policy",
        )


def _precedent(precedent: Precedent) -> wire.Precedent:
    return wire.Precedent(
        id=precedent.id,
        label=wire.Label.Value(f"LABEL_{precedent.label}"),
        similarity=precedent.similarity,
        text_similarity=precedent.text_similarity,
        picture_similarity=precedent.picture_similarity,
        relation=wire.Relation.Value(f"RELATION_{precedent.relation}"),
        text=precedent.text,
        categories=precedent.categories,
        source=precedent.source,
    )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
