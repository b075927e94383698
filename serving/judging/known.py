"""Known verdicts: finds the earlier trial whose verdict answers a request without another trial.

One rule says when a verdict is stale, whatever source it comes from: :func:`reusable` for the trial itself, and the
versions that it was run with, which must be those that a trial of the request would use now.

The key of a verdict consists of the meme's digest (:attr:`court.meme.Meme.digest`), its text (or that it must be read
off the picture), the namespace, and all versions that the trial uses. A change of any of these gives another key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from court.digests import digest
from court.errors import CourtError
from court.events import Procedure, ReviewOutcome, TextRead, VerdictReviewed, Versions
from court.evidence import text_reader_off
from court.meme import Picture
from court.record import TrialRecord, TrialState
from court.trial import Court
from court.verdict import INCOMPLETE
from serving.docket.errors import TrialUnknown
from serving.docket.ports import TrialReader
from serving.docket.store.requests import VerdictKeys
from serving.judging.decode import DecodingPool
from serving.judging.executor import TrialExecutor
from serving.judging.quarantine import Quarantine
from serving.judging.request import Caller, TrialRequest
from serving.judging.single_flight import LRUCache
from serving.settings import Settings

FRESH_S = 2.0
"""Seconds for which an entry confirmed by the docket is used without another check: a verdict that is overruled at
another server may be reused for this long."""
_MOST_RECORDS = 512
"""Maximum number of records in memory, of memes that were requested again; that of a full trial takes about 100 KiB."""


def reusable(record: TrialRecord) -> bool:
    """True if a trial's verdict can be reused for other requests.

    It must be in force, and from a complete trial.
    """
    review = record.last(VerdictReviewed)
    return (
        record.state is TrialState.DECIDED
        and whole(record)
        and not (review and review.outcome is ReviewOutcome.OVERRULED)
    )


def whole(record: TrialRecord) -> bool:
    """True if a trial was not cut short and used a single version of the library.

    If the library changed after the trial started, its verdict belongs to neither version.
    """
    verdict, cited = record.verdict, record.precedents
    return (
        verdict is not None
        and (cited is None or cited.findings.library.digest == record.opened.versions.library)
        and all(reason.reason not in INCOMPLETE for reason in verdict.review)
    )


@dataclass(slots=True)
class _AtHand:
    record: TrialRecord
    checked: float
    """Time at which the docket last confirmed this entry, by the monotonic clock in seconds."""
    checking: asyncio.Task[None] | None = None
    """Running check of the entry; None if there is none."""
    used: bool = False
    """True if the entry has answered a request since the last check."""


@dataclass(frozen=True, slots=True)
class _VersionsKey:
    library: str
    token: str


class VerdictCache:
    """Maps keys to trials, in memory and in the docket."""

    def __init__(
        self,
        keys: VerdictKeys,
        trials: TrialReader,
        court_of: Callable[[str], Court],
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._trials = trials
        self._court_of = court_of
        self._everywhere = settings.reuse == "everywhere"
        self._off = settings.reuse == "off"
        self._clock = clock
        self._versions: dict[tuple[int, Procedure], _VersionsKey] = {}
        self._at_hand: LRUCache[str, _AtHand] = LRUCache(_MOST_RECORDS)

    def key(self, request: TrialRequest, meme_digest: str) -> str:
        """Returns the key of a request with the current versions; empty if it gets a trial of its own."""
        if self._off or request.try_anew:
            return ""
        return self._key(
            token=self._now(request).token,
            namespace=request.namespace,
            meme_digest=meme_digest,
            text=request.text,
            language=request.language,
        )

    def key_of(self, record: TrialRecord) -> str:
        """Returns the key that a decided trial answers."""
        opened, text = record.opened, record.last(TextRead)
        assert text is not None, "there is no verdict without"
        token = _token(opened.versions, opened.policy.digest, opened.procedure)
        # A text read off the picture is not part of the request: the key then says that it must be read.
        own_text = text.text if opened.meme.text_given else None
        return self._key(
            token=token,
            namespace=opened.meme.namespace,
            meme_digest=opened.meme.digest,
            text=own_text,
            language=text.language,
        )

    def answers(self, record: TrialRecord, key: str) -> bool:
        """True if a trial's verdict can answer other requests with a key."""
        return reusable(record) and self.key_of(record) == key

    def answers_duplicate(self, record: TrialRecord, request: TrialRequest) -> bool:
        """True if a trial's verdict can answer a request for a near-duplicate of its meme."""
        text, opened = record.text, record.opened
        return (
            reusable(record)
            and text is not None
            and text.language == request.language
            and _token(opened.versions, opened.policy.digest, opened.procedure) == self._now(request).token
        )

    async def at_hand(self, key: str) -> TrialRecord | None:
        """Returns the trial for a key if its record is in memory and the docket confirms it, or did so recently."""
        known = self._at_hand.get(key)
        if known is None:
            return None
        known.used = True
        age = self._clock() - known.checked
        if age > FRESH_S / 2:
            # Refreshed early, so that frequent requests never wait, and once for all waiting callers.
            checking = known.checking or self._check_due()
            if age > FRESH_S:
                await asyncio.wait([checking])
                checking.result()
                # It was found to be overruled or replaced while this call waited.
                if self._at_hand.get(key) is not known:
                    return None
        return known.record

    def _check_due(self) -> asyncio.Task[None]:
        """Starts one check of all used entries that are not fresh: separate checks would delay calls."""
        now = self._clock()
        # Only entries used since their last check: memes that nobody sends any more cost the docket nothing.
        due = {
            key: known
            for key, known in self._at_hand.items()
            if known.used and known.checking is None and now - known.checked > FRESH_S / 4
        }
        checking = asyncio.create_task(self._check(due))
        checking.add_done_callback(_retrieve)
        for known in due.values():
            known.checking = checking
        return checking

    async def _check(self, due: Mapping[str, _AtHand]) -> None:
        """Checks in the docket whether trials still answer their keys. Raises Unavailable."""
        try:
            now = self._clock()
            # The age counts from before the query, to be safe.
            answering = await self._keys.get_many([*due])
            for known in due.values():
                known.checked, known.used = now, False
        finally:
            for known in due.values():
                known.checking = None
        for key, known in due.items():
            if answering.get(key) != known.record.trial_id and self._at_hand.get(key) is known:
                self._at_hand.drop(key)

    async def find(self, key: str) -> TrialRecord | None:
        """Returns the trial for a key, from memory or from the docket, or None."""
        if (record := await self.at_hand(key)) is not None:
            return record
        now = self._clock()
        trial_id = await self._keys.get(key)
        if trial_id is None:
            return None
        try:
            record = await self._trials.record(trial_id)
        except TrialUnknown:  # erased just now
            return None
        if not self.answers(record, key):
            return None  # just overruled, or the table was tampered with and names another trial
        self._at_hand.keep(key, _AtHand(record, now))
        return record

    async def learn(self, record: TrialRecord) -> None:
        """Stores the key of a decided trial. Raises Unavailable if it can't be stored now."""
        if self._off or not reusable(record):
            return
        # Not loaded into memory: most memes are never requested again, and another trial may have been first.
        await self._keys.put(self.key_of(record), record.trial_id)

    def forget(self, trial_id: str) -> None:
        """Drops a trial, so that its verdict is not reused any more."""
        for key, known in self._at_hand.items():
            # items() is a copy, so that entries can be dropped during the loop.
            if known.record.trial_id == trial_id:
                self._at_hand.drop(key)

    def _key(self, *, token: str, namespace: str, meme_digest: str, text: str | None, language: str) -> str:
        return digest([token, None if self._everywhere else namespace, meme_digest, text, language])

    def _now(self, request: TrialRequest) -> _VersionsKey:
        """Returns cached versions, built once per library: building them costs more than the rest of a cache hit."""
        court, procedure = self._court_of(request.namespace), request.procedure
        library = court.finder.library.digest
        # By object identity: most namespaces share a court, which lives as long as this cache.
        current = self._versions.get((id(court), procedure))
        if current is None or current.library != library:
            versions = court.versions(procedure)
            current = _VersionsKey(versions.library, _token(versions, court.policy.digest, procedure))
            self._versions[id(court), procedure] = current
        return current


class Known:
    """Everything that is known of a meme before its trial, whichever source it comes from."""

    def __init__(
        self,
        verdicts: VerdictCache,
        executor: TrialExecutor,
        settings: Settings,
        decoders: DecodingPool,
        quarantine: Quarantine,
    ) -> None:
        self._verdicts = verdicts
        self._executor = executor
        self._near = executor.near if settings.reuse_near else None
        self._decoders = decoders
        self._quarantine = quarantine

    async def find(self, request: TrialRequest, caller: Caller, key: str) -> TrialRecord | None:
        """Returns the trial whose verdict answers a request, from the first source that has one; None without any."""
        # In the order of their authority: a person's finding and a binding precedent belong before these two.
        return await self._verdicts.find(key) or await self._near_duplicate(request, caller)

    async def _near_duplicate(self, request: TrialRequest, caller: Caller) -> TrialRecord | None:
        if self._near is None or request.text_alone:
            return None
        await caller.slot.take()
        picture = await self._decoders.decode(request, caller)
        assert picture is not None, "not a text alone"
        found: dict[str, TrialRecord] = {}

        async def usable(trial_id: str) -> bool:
            try:
                record = found[trial_id] = await self._executor.docket.trials.record(trial_id)
            except TrialUnknown:
                return False  # it was just erased
            return self._verdicts.answers_duplicate(record, request)

        try:
            text = request.text
            if text is None:
                text = await self._read_text(picture)
                self._quarantine.text_read(request.file)
            trial_id = await self._near.same(picture, text, request.text is None, request.namespace, usable=usable)
        except CourtError as error:
            self._quarantine.failed(request.file, error.reason)
            raise
        return None if trial_id is None else found[trial_id]

    async def _read_text(self, picture: Picture) -> str:
        if (reader := self._executor.court.text_reader) is None:
            raise text_reader_off()
        return (await reader.read(picture)).text


def _retrieve(checking: asyncio.Task[None]) -> None:
    if not checking.cancelled():
        checking.exception()  # waiting callers got the error; if there were none, the next caller checks again


def _token(versions: Versions, policy: str, procedure: Procedure) -> str:
    return digest([versions.model_dump(mode="json"), policy, procedure])
