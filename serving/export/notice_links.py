"""Links of notices: whoever holds one may read the notice on one decision, and object to that decision once.

A link is signed with the docket's key, expires, and belongs to a decision: another review or an objection ends it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from court.events import AppealOpened
from court.record import TrialRecord
from court.verdict import Label
from serving.access.callers import SANDBOX
from serving.docket.errors import TrialUnknown

if TYPE_CHECKING:
    from serving.docket.log.notes import SigningKey
    from serving.docket.open import Docket
    from serving.settings import Settings

PATH = "/notice/"
BY = "the link of a notice"
"""Who opened an appeal, in its event: the holder of a link has no account."""
# NUL stands in no signed note, so that a link's signature is good for nothing else.
_SIGNED = b"memecourt notice link\0"
_SIGNATURE_BYTES = 64
_MOST_TOKEN = 1000


@dataclass(frozen=True, slots=True)
class NoticeLink:
    """Address that opens the notice, without an account, until a day begins."""

    address: str
    until: datetime


class NoticeLinks:
    """Makes and opens links of one docket."""

    def __init__(
        self, docket: Docket, *, days: int, origin: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Prepares to make links.

        Args:
            origin: Public address of the HTTP API; links are paths if it is empty.
        """
        self._docket = docket
        self._days = days
        self._origin = origin
        self._clock = clock

    async def link_to(self, record: TrialRecord, language: str) -> NoticeLink | None:
        """Returns the link of the decision in force; None if it can't be objected to by a link (any more)."""
        if not _is_open(record):
            return None
        midnight = self._clock().replace(hour=0, minute=0, second=0, microsecond=0)
        # Whole days, so that a notice that is fetched again has the same link.
        until = midnight + timedelta(days=self._days + 1)
        payload = f"{_decision(record)} {until:%Y-%m-%d} {language} {record.trial_id}".encode()
        signature = (await self._key()).sign(_SIGNED + payload)
        token = base64.urlsafe_b64encode(payload + signature).rstrip(b"=").decode()
        return NoticeLink(f"{self._origin}{PATH}{token}", until)

    async def opened(self, token: str) -> tuple[TrialRecord, str] | None:
        """Returns the record behind a link, and the language; None if the link is not valid, or no longer."""
        if len(token) > _MOST_TOKEN:
            return None
        try:
            data = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        except (binascii.Error, UnicodeEncodeError):
            return None
        payload, signature = data[:-_SIGNATURE_BYTES], data[-_SIGNATURE_BYTES:]
        # Base64 can be written in several ways; an altered link must not open what the original does.
        if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != token:
            return None
        if not (await self._key()).verifier.verifies(_SIGNED + payload, signature):
            return None
        decision, day, language, trial_id = payload.decode().split(" ", 3)
        if self._clock() >= datetime.fromisoformat(day).replace(tzinfo=UTC):
            return None
        try:
            record = await self._docket.trials.record(trial_id)
        except TrialUnknown:  # erased
            return None
        return (record, language) if _is_open(record) and str(_decision(record)) == decision else None

    async def object_to(self, record: TrialRecord, statement: str) -> bool:
        """Opens the appeal of a link; False if another request was quicker."""
        at, reference = self._clock(), f"notice {_decision(record)}"
        event = await self._docket.reviews.open_appeal(
            record.trial_id, by=BY, statement=statement, reference=reference, at=at, by_link=True
        )
        # By its reference there is one appeal a decision: of two at once, the second gets that of the first.
        return event.at == at and event.statement == statement

    async def _key(self) -> SigningKey:
        return self._docket.signer(await self._docket.log.vkey())


def notice_links(docket: Docket, settings: Settings) -> NoticeLinks | None:
    """Returns the links that the settings ask for; None if notices have none."""
    days = settings.notice_link_days
    return None if days is None else NoticeLinks(docket, days=days, origin=settings.http_origin or "")


def _decision(record: TrialRecord) -> int:
    """Number of the event that decides: the verdict, or the last review that was not withdrawn."""
    return max(event.seq for event in (record.verdict_event, *record.reviews) if event is not None)


def _is_open(record: TrialRecord) -> bool:
    """True if the decision in force restricts the content, and no objection to it is open or was made by its link."""
    finding = record.in_force
    used = any(event.by_link and event.seq > _decision(record) for event in record.all(AppealOpened))
    restricts = finding is not None and finding.label is Label.HARMFUL and not finding.contested
    return restricts and not used and record.opened.meme.namespace != SANDBOX
