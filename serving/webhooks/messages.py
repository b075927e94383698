"""Builds messages from log entries: thin, so that nothing of a meme ever has to be erased at receivers.

They contain no text, picture or rationale, and no reason written by a person. Receivers fetch the trial, while it
exists.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from court.events import AnyEvent, AppealOpened, NoteLeft, TrialFailed, VerdictGiven, VerdictReviewed
from court.verdict import Label, decision
from serving.access.callers import SANDBOX
from serving.docket.log.entries import Entry, parse
from serving.docket.store.bodies import event_in
from serving.docket.store.hooks import Subject
from serving.docket.store.reviews import settled_at
from serving.settings import WebhookEvent, WebhookSettings

VERDICT_GIVEN: WebhookEvent = "memecourt.verdict.given"
REVIEW_WANTED: WebhookEvent = "memecourt.review.wanted"
REVIEW_DECIDED: WebhookEvent = "memecourt.review.decided"
TRIAL_FAILED: WebhookEvent = "memecourt.trial.failed"
RECORD_ERASED: WebhookEvent = "memecourt.record.erased"
PRECEDENT_CHANGED: WebhookEvent = "memecourt.precedent.changed"
TEST = "memecourt.hook.test"

_ERASED, _PRECEDENT = "Erased", "PrecedentChanged"
KINDS: Mapping[str, tuple[WebhookEvent, ...]] = {
    "VerdictGiven": (VERDICT_GIVEN, REVIEW_WANTED),
    "NoteLeft": (REVIEW_WANTED,),
    "AppealOpened": (REVIEW_WANTED,),
    "VerdictReviewed": (REVIEW_DECIDED,),
    "TrialFailed": (TRIAL_FAILED,),
    _ERASED: (RECORD_ERASED,),
    _PRECEDENT: (PRECEDENT_CHANGED,),
}
"""Types of messages that may be built from each kind of entry."""


@dataclass(frozen=True, slots=True)
class Message:
    """An unsigned message.

    Attributes:
        id: Id that is the same for every attempt by any server, so that receivers can deduplicate.
        entry: Number of the log entry that it reports; -1 for a test.
        not_before: Time until which the review that it reports can be withdrawn; None for other messages.
    """

    id: str
    entry: int
    event: str
    at: datetime
    data: Mapping[str, Any]
    not_before: datetime | None = None

    def body(self) -> bytes:
        """Returns the body of the request: compact JSON."""
        value = {"type": self.event, "timestamp": self.at.isoformat(), "data": self.data}
        return json.dumps(value, separators=(",", ":")).encode()


def wanted_kinds(hook: WebhookSettings) -> frozenset[str]:
    """Returns the kinds of entries that a receiver subscribes to."""
    return frozenset(kind for kind, events in KINDS.items() if set(events) & set(hook.events))


def messages_of(entry: Entry, subject: Subject | None, hook: WebhookSettings, *, docket: str) -> Sequence[Message]:
    """Builds an entry's messages for a receiver; none if it has not subscribed, or the entry was erased.

    Raises:
        ValueError: The body can't be read because somebody altered it.
    """
    if entry.kind not in KINDS or entry.body is None:
        return ()
    not_before = None
    if entry.kind == _PRECEDENT:
        if hook.namespaces is not None:
            return ()  # it may have been made from content of any namespace
        facts: Mapping[WebhookEvent, Mapping[str, Any]] = {PRECEDENT_CHANGED: _precedent(entry.body)}
    elif (
        subject is None
        or subject.namespace == SANDBOX
        or (hook.namespaces is not None and subject.namespace not in hook.namespaces)
    ):
        return ()
    elif entry.kind == _ERASED:
        facts = {RECORD_ERASED: {"verdict_id": entry.trial_id, "content": {"namespace": subject.namespace}}}
    # PR-1: messages about trials that were erased meanwhile are not sent.
    elif subject.erased:
        return ()
    else:
        about = {
            "verdict_id": entry.trial_id,
            "content": {"namespace": subject.namespace, "id": subject.content_id},
            "request_id": subject.request_id,
        }
        # The decision on the content now, which may be older or newer than the event.
        now = subject.in_force
        stands = {} if now is None else {"decision": now.decision, "in_force": now.facts()}
        reported = event_in(entry.body, {})
        if isinstance(reported, VerdictReviewed):
            if reported.seq in subject.withdrawn:
                return ()
            not_before = settled_at(reported)
        facts = {kind: {**about, **data, **stands} for kind, data in _of_event(reported).items()}
        if REVIEW_DECIDED in facts:
            # The list itself stays here: it may be long, and may be erased.
            facts[REVIEW_DECIDED] = {**facts[REVIEW_DECIDED], "changes": f"/v1/reviews/{entry.number}/changes"}
    return [
        Message(
            id=message_id(docket, entry.number, event),
            entry=entry.number,
            event=event,
            at=datetime.fromisoformat(entry.at),
            data={"entry": entry.number, **data},
            not_before=not_before,
        )
        for event, data in facts.items()
        if event in hook.events
    ]


def trial_run(at: datetime) -> Message:
    """Builds a test message without content, to check that a receiver accepts messages."""
    # Random, or a receiver would treat a second test as a duplicate.
    id_ = message_id(secrets.token_hex(16), -1, TEST)
    return Message(id=id_, entry=-1, event=TEST, at=at.astimezone(UTC), data={})


def message_id(docket: str, entry: int, event: str) -> str:
    """Returns the id of a message. It contains no dot, which separates the signed parts."""
    digest = sha256(f"{docket}\n{entry}\n{event}".encode()).digest()
    return "msg_" + base64.b32encode(digest[:20]).decode().lower()


def _of_event(event: AnyEvent) -> Mapping[WebhookEvent, Mapping[str, Any]]:
    match event:
        case VerdictGiven():
            verdict = event.verdict
            data = _found(verdict.label, needs_review=verdict.needs_human_review) | {"decision": verdict.decision}
            if not verdict.needs_human_review:
                return {VERDICT_GIVEN: data}
            # With the contract's names, which receivers know from the API.
            reasons = sorted({f"REVIEW_REASON_{review.reason}" for review in verdict.review})
            return {VERDICT_GIVEN: data, REVIEW_WANTED: {**data, "review_reasons": reasons, "second_opinion": False}}
        case NoteLeft(second_opinion=True):
            return {REVIEW_WANTED: {"decision": "review", "needs_human_review": True, "second_opinion": True}}
        case AppealOpened():
            appeal = {"second_opinion": False, "appeal": {"reference": event.reference}}
            return {REVIEW_WANTED: {"decision": "review", "needs_human_review": True, **appeal}}
        case VerdictReviewed():
            review = {"outcome": f"REVIEW_OUTCOME_{event.outcome}", "blind": event.blind}
            return {REVIEW_DECIDED: {**_found(event.label, needs_review=False), "review": review}}
        case TrialFailed():
            # A trial without a verdict never allows content: a person has to decide.
            failure = {"step": event.step, "reason": event.reason, "retryable": event.retryable}
            return {TRIAL_FAILED: {"decision": "review", "failure": failure}}
        case _:
            return {}


def _found(label: Label, *, needs_review: bool) -> dict[str, Any]:
    return {
        "label": f"LABEL_{label}",
        "decision": decision(label, needs_review=needs_review),
        "needs_human_review": needs_review,
    }


def _precedent(body: str) -> Mapping[str, Any]:
    value = parse(body)
    if not isinstance(value, dict):
        raise ValueError("this is no change of a precedent")
    return {name: value.get(name) for name in ("precedent_id", "change", "library", "number")}
