"""Conversion of records, pages and filters between the wire and the docket or the library."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypeVar

from court.errors import BadRequest
from court.events import AnyEvent, VerdictReviewed
from court.in_force import finding_of
from court.meme import checked_language
from court.record import TrialRecord, TrialState
from court.verdict import Label, decision
from memecourt.v1 import court_pb2 as wire
from retrieval.library.filters import Filter
from serving.access.callers import check_namespace, current
from serving.docket.log.entries import canonical_bytes, parse
from serving.docket.store.listing import DocketLine, TrialFilter
from serving.rpc.convert import few, fields_of, in_force_of, time_of, within

W = TypeVar("W")

Cursor: TypeAlias = tuple[datetime, str]
"""Cursor of a listing: opening time and id of the last trial on the previous page."""

_MOST_NAMES, _LONGEST_NAME = 1000, 256
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGEST_BYTES = 16
_STATES: dict[int, TrialState] = {wire.TrialState.Value(f"TRIAL_STATE_{state}"): state for state in TrialState}
_LABELS: dict[int, Label] = {wire.Label.Value(f"LABEL_{label}"): label for label in Label}


def event_of(event: AnyEvent) -> wire.TrialEvent:
    """Converts a stored event."""
    message = wire.TrialEvent(trial_id=event.trial_id, seq=event.seq, kind=event.kind, json=event.model_dump_json())
    message.at.FromDatetime(event.at)
    return message


def trial_of(record: TrialRecord) -> wire.Trial:
    """Converts a trial with all of its events."""
    return wire.Trial(summary=summary_of(line_of(record)), events=[event_of(event) for event in record.events])


def line_of(record: TrialRecord) -> DocketLine:
    """Summarises a record as a line of a listing."""
    opened, verdict, state = record.opened, record.verdict, record.state
    failed = record.failure if state is TrialState.FAILED else None
    return DocketLine(
        trial_id=record.trial_id,
        opened_at=opened.at,
        procedure=opened.procedure,
        namespace=opened.meme.namespace,
        content_id=opened.meme.content_id,
        state=state,
        label=verdict.label if verdict else None,
        needs_human_review=verdict.needs_human_review if verdict else False,
        request_id=opened.request_id,
        review=record.review,
        failure_reason=failed.reason if failed else "",
        policy=opened.policy.digest,
        precedent=record.verdict_event.precedent if record.verdict_event else "",
        found=record.found or finding_of(record.events),
        rules=record.rules,
    )


def summary_of(line: DocketLine) -> wire.TrialSummary:
    """Converts a line of a listing."""
    content = wire.Content(namespace=line.namespace, id=line.content_id)
    summary = wire.TrialSummary(**fields_of(wire.TrialSummary, line), content=content)
    summary.opened_at.FromDatetime(line.opened_at)
    if (finding := line.in_force) is not None:
        summary.in_force.CopyFrom(in_force_of(finding))
    if line.review is not None:
        summary.review.CopyFrom(review_of(line.review))
    return summary


def review_of(event: VerdictReviewed) -> wire.VerdictReview:
    """Builds the wire form of a review."""
    in_force = decision(event.label, needs_review=False)
    review = wire.VerdictReview(**fields_of(wire.VerdictReview, event), decision=in_force)
    review.at.FromDatetime(event.at)
    return review


def reviewed_of(
    record: TrialRecord, event: VerdictReviewed, entry: int, *, withdrawn: bool = False
) -> wire.ReviewedVerdict:
    """Converts a review, in an entry of the log, together with the verdict that it is about."""
    opened, verdict = record.opened, record.verdict
    return wire.ReviewedVerdict(
        trial_id=record.trial_id,
        content=wire.Content(namespace=opened.meme.namespace, id=opened.meme.content_id),
        request_id=opened.request_id,
        verdict=wire.Label.Value(f"LABEL_{verdict.label if verdict else 'UNSPECIFIED'}"),
        review=review_of(event),
        entry=entry,
        withdrawn=withdrawn,
    )


def which_of(wanted: wire.TrialFilter) -> TrialFilter:
    """Converts a trial filter, limited to what the caller may see.

    Raises:
        BadRequest: A part of the filter is malformed, or unknown to this version.
        NotAllowed: The filter names a namespace that is not the caller's.
    """
    if wanted.HasField("namespace"):
        check_namespace(within(wanted.namespace, _LONGEST_NAME, "filter.namespace"), "filter.namespace")
    return TrialFilter(
        labels=frozenset(_known(label, _LABELS, "filter.labels") for label in wanted.labels),
        states=frozenset(_known(state, _STATES, "filter.states") for state in wanted.states),
        opened_from=time_of(wanted.opened_from, "filter.opened_from") if wanted.HasField("opened_from") else None,
        opened_until=time_of(wanted.opened_until, "filter.opened_until") if wanted.HasField("opened_until") else None,
        reviewed=wanted.reviewed if wanted.HasField("reviewed") else None,
        needs_review=wanted.needs_review if wanted.HasField("needs_review") else None,
        namespace=wanted.namespace if wanted.HasField("namespace") else None,
        # Whatever the filter says, a listing is limited to what its caller may see (GR-1).
        namespaces=current().namespaces,
    )


def token_of(cursor: Cursor, which: TrialFilter) -> str:
    """Builds a page token: the cursor of the next page, with a checksum that ties it to this filter.

    The token is not secret and grants no rights: the filter and the caller's namespaces limit every page, whatever its
    token says. So the checksum needs no key, and a token works at every server of the same docket.
    """
    micros = (cursor[0] - _EPOCH) // timedelta(microseconds=1)
    return sealed([micros, cursor[1]], _list_of(which))


def cursor_of(token: str, which: TrialFilter) -> Cursor | None:
    """Parses a page token; None for the first page.

    Raises:
        BadRequest: The token is invalid, was altered, or belongs to another filter.
    """
    if not token:
        return None
    with page_tokens():
        micros, trial_id = unsealed(token, _list_of(which))
        # Anybody can compute the checksum, so the content is validated too.
        if isinstance(trial_id, str) and trial_id.isprintable():
            return _EPOCH + timedelta(microseconds=micros), trial_id
        raise ValueError


def where_of(wanted: wire.PrecedentFilter) -> Filter:
    """Converts a precedent filter, limited to what the caller may see.

    A caller that is limited to some namespaces finds their precedents, and those without a namespace, which are shared.

    Raises:
        BadRequest: A part of the filter is malformed.
        NotAllowed: The filter names a namespace that is not the caller's.
    """
    sources, splits, namespaces, policies = (
        few(names, _MOST_NAMES, _LONGEST_NAME, f"filter.{field}")
        for field, names in (
            ("sources", wanted.sources),
            ("splits", wanted.splits),
            ("namespaces", wanted.namespaces),
            ("policies", wanted.policies),
        )
    )
    tags = few(wanted.languages, _MOST_NAMES, _LONGEST_NAME, "filter.languages")
    for namespace in filter(None, namespaces):
        check_namespace(namespace, "filter.namespaces")
    own = current().namespaces
    return Filter(
        sources=sources,
        splits=splits,
        # Without a filter, the caller still gets only its own and the shared ones: an empty tuple would match all
        # (GR-1).
        namespaces=namespaces if namespaces or own is None else ("", *sorted(own - {""})),
        languages=tuple(checked_language(tag, "filter.languages") for tag in tags),
        policies=policies,
        since=time_of(wanted.since, "filter.since") if wanted.HasField("since") else None,
        until=time_of(wanted.until, "filter.until") if wanted.HasField("until") else None,
        verified=wanted.verified,
    )


def sealed(cursor: Sequence[int | str], listing: Any) -> str:
    """Builds a page token for one listing, which is described by JSON."""
    content = canonical_bytes(cursor)
    # Without padding, which would have to be escaped in URLs.
    return base64.urlsafe_b64encode(_seal(content, listing) + content).decode().rstrip("=")


def unsealed(token: str, listing: Any) -> Any:
    """Returns the cursor in a page token. Raises ValueError if it was altered, or belongs to another listing."""
    both = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    seal, content = both[:_DIGEST_BYTES], both[_DIGEST_BYTES:]
    # Re-encoding must give the same token: several tokens decode to the same bytes, and an altered one could pass.
    if seal != _seal(content, listing) or base64.urlsafe_b64encode(both).decode().rstrip("=") != token:
        raise ValueError("not a token of this listing")
    return parse(content.decode())


@contextmanager
def page_tokens() -> Iterator[None]:
    """Has an invalid page token raise BadRequest."""
    try:
        yield
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise BadRequest(
            "page_token was not given for this listing. Send next_page_token of the page before as it came, with the "
            "same filter; or leave it out, to begin anew.",
            reason="BAD_PAGE_TOKEN",
            field="page_token",
        ) from None


def _seal(content: bytes, listing: Any) -> bytes:
    return hashlib.blake2b(
        content,
        digest_size=_DIGEST_BYTES,
        key=hashlib.sha256(canonical_bytes(listing)).digest(),
        person=b"memecourt page",
    ).digest()


def _list_of(which: TrialFilter) -> Any:
    # Without the caller's namespaces: they apply to every page anyway, and may change between two pages.
    fields = {each.name: _written(getattr(which, each.name)) for each in dataclasses.fields(which)}
    del fields["namespaces"]
    return fields


def _written(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return sorted(value) if isinstance(value, frozenset) else value


def _known(value: int, known: Mapping[int, W], field: str) -> W:
    if value not in known:
        # Refused rather than ignored: otherwise the caller would take the result for complete.
        raise BadRequest(
            f"{field} holds {value}, which asks for nothing that there is.", reason="UNKNOWN_VALUE", field=field
        )
    return known[value]
