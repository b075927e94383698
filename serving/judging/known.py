"""Known verdicts: finds the earlier trial that answers a request without another trial.

Content that a person has decided is answered by that finding: at once after a review on this server, and within two
seconds after one elsewhere. What is known stays in memory until the log, read once in a second for all, says that it
changed.

One rule says when a verdict is stale, whatever source it comes from: :func:`reusable` for the trial itself, and the
versions that it was run with, which must be those that a trial of the request would use now.

The key of a verdict consists of the meme's digest (:attr:`court.meme.Meme.digest`), its text (or that it must be read
off the picture), the namespace, and all versions that the trial uses. A change of any of these gives another key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from court.digests import digest
from court.errors import CourtError
from court.events import Procedure, ReviewOutcome, TextRead, Versions
from court.evidence import text_reader_off
from court.in_force import ContentKey, PersonFinding, content_key
from court.meme import Picture
from court.record import TrialRecord, TrialState
from court.trial import Court
from court.verdict import INCOMPLETE
from serving.access.callers import SANDBOX
from serving.docket.errors import TrialUnknown
from serving.docket.ports import TrialReader
from serving.docket.store.listing import FindingStore
from serving.docket.store.log_queries import LogFollower
from serving.docket.store.requests import VerdictKeys
from serving.judging.decode import DecodingPool, Quarantine
from serving.judging.executor import TrialExecutor
from serving.judging.request import Caller, LRUCache, TrialRequest
from serving.settings import Settings

_MOST_RECORDS = 512
"""Maximum number of records in memory, of memes that were requested again; that of a full trial takes about 100 KiB."""


def reusable(record: TrialRecord) -> bool:
    """True if a trial's verdict can be reused for other requests.

    It must be in force, and from a complete trial.
    """
    review = record.review
    return (
        record.state is TrialState.DECIDED
        and whole(record)
        # Binding precedents are looked up for each request, as they may be gone, and bind in their namespace alone.
        and not (record.verdict_event and record.verdict_event.copies)
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


FRESH_S: Final = 1.0
"""Seconds for which the log is not read again."""
_MOST_FINDINGS: Final = 10_000
"""Maximum number of findings in memory, and of content without one: about 500 bytes each."""


@dataclass(frozen=True, slots=True)
class _KnownFinding:
    found: PersonFinding | None


class Findings:
    """Findings of people by content key.

    Attributes:
        changes: Number of times that something changed: what was read before may be out of date after it.
    """

    def __init__(self, store: FindingStore) -> None:
        """Reads nothing yet."""
        self._store = store
        self._known: LRUCache[ContentKey, _KnownFinding] = LRUCache(_MOST_FINDINGS)
        self._size: int | None = None
        self._follower = LogFollower(self._read_on, fresh_s=FRESH_S)
        self._dropped: list[Callable[[str], None]] = []
        self.changes = 0

    def subscribe(self, drop: Callable[[str], None]) -> None:
        """Has a function called with the id of each trial that is reviewed, contested or erased."""
        self._dropped.append(drop)

    async def catch_up(self) -> None:
        """Takes into account what was stored up to a second ago, here or elsewhere. Raises Unavailable."""
        await self._follower.get()

    async def find(self, content: ContentKey) -> PersonFinding | None:
        """Returns what people found about content, or None.

        Raises:
            Unavailable: The docket can't be read. An old finding is not used then: it might allow content.
        """
        await self.catch_up()
        known, changes = self._known.get(content), self.changes
        if known is None:
            known = _KnownFinding(await self._store.get(content))
            # What was read may be older than a change that was noticed meanwhile.
            if changes == self.changes:
                self._known.keep(content, known)
        found = known.found
        return None if found is None or (found.until and found.until <= datetime.now(UTC)) else found

    def refresh(self) -> None:
        """Has the next call read the log, after a review on this server."""
        self._follower.forget()

    async def _read_on(self) -> None:
        changed = await self._store.changes(self._size)
        self._size = changed.size
        if not changed.trials:
            return
        self.changes += 1
        for content, known in self._known.items():
            if content in changed.contents or (known.found and known.found.trial_id in changed.trials):
                self._known.drop(content)
        for trial_id in changed.trials:
            for drop in self._dropped:
                drop(trial_id)


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
        findings: Findings,
    ) -> None:
        self._keys = keys
        self._trials = trials
        self._court_of = court_of
        self._everywhere = settings.reuse == "everywhere"
        self._off = settings.reuse == "off"
        self._versions: dict[tuple[int, Procedure], _VersionsKey] = {}
        self._at_hand: LRUCache[str, TrialRecord] = LRUCache(_MOST_RECORDS)
        self._findings = findings
        findings.subscribe(self._drop)

    def reuses(self, request: TrialRequest) -> bool:
        """True if a request may be answered without a trial of its own."""
        return not (self._off or request.try_anew or request.namespace == SANDBOX)

    def key(self, request: TrialRequest, meme_digest: str) -> str:
        """Returns the key of a request with the current versions; empty if it gets a trial of its own."""
        if not self.reuses(request):
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

    def at_hand(self, key: str) -> TrialRecord | None:
        """Returns the trial for a key if its record is in memory; the caller has caught up with the findings."""
        return self._at_hand.get(key)

    async def find(self, key: str) -> TrialRecord | None:
        """Returns the trial for a key, from memory or from the docket, or None."""
        await self._findings.catch_up()
        if (record := self.at_hand(key)) is not None:
            return record
        changes = self._findings.changes
        trial_id = await self._keys.get(key)
        if trial_id is None:
            return None
        try:
            record = await self._trials.record(trial_id)
        except TrialUnknown:  # erased just now
            return None
        if not self.answers(record, key):
            return None  # just overruled, or the table was tampered with and names another trial
        self._keep(key, record, changes)
        return record

    async def of_finding(self, found: PersonFinding) -> TrialRecord | None:
        """Returns the trial that a finding is about; None if nobody has found anything, or the trial has expired."""
        if found.label is None:
            return None
        if (record := self.at_hand(found.trial_id)) is not None:
            return record
        changes = self._findings.changes
        try:
            record = await self._trials.record(found.trial_id)
        except TrialUnknown:
            return None
        self._keep(found.trial_id, record, changes)
        return record

    async def learn(self, record: TrialRecord) -> None:
        """Stores the key of a decided trial. Raises Unavailable if it can't be stored now."""
        if self._off or record.opened.meme.namespace == SANDBOX or not reusable(record):
            return
        # Not loaded into memory: most memes are never requested again, and another trial may have been first.
        await self._keys.put(self.key_of(record), record.trial_id)

    def _keep(self, key: str, record: TrialRecord, changes: int) -> None:
        # What was read may be older than a change that was noticed meanwhile.
        if changes == self._findings.changes:
            self._at_hand.keep(key, record)

    def _drop(self, trial_id: str) -> None:
        for key, record in self._at_hand.items():
            # items() is a copy, so that entries can be dropped during the loop.
            if record.trial_id == trial_id:
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
        findings: Findings,
    ) -> None:
        self._verdicts = verdicts
        self._findings = findings
        self._executor = executor
        self._near = executor.near if settings.reuse_near else None
        self._decoders = decoders
        self._quarantine = quarantine

    async def finding(self, request: TrialRequest, digest: str) -> PersonFinding | None:
        """Returns what people found about a request's content, or None."""
        policy = self._executor.court_of(request.namespace).policy.id
        # Another policy never inherits a finding.
        if request.policy is not None and request.policy.id not in ("", policy):
            return None
        if self._executor.docket.rules.authority == "none":
            return None
        return await self._findings.find(content_key(request.namespace, policy, digest, request.text))

    async def found(self, request: TrialRequest, digest: str) -> TrialRecord | None:
        """Returns the trial of the content that a person has decided, whatever else the request asks for; or None."""
        if not self._verdicts.reuses(request):
            return None
        found = await self.finding(request, digest)
        return None if found is None else await self._verdicts.of_finding(found)

    async def at_hand(self, request: TrialRequest, digest: str) -> TrialRecord | None:
        """Returns the answer if it is in memory."""
        # A person's finding first, then a binding precedent, and only then the court's verdict.
        if (record := await self.found(request, digest)) is not None:
            return record
        key = self._verdicts.key(request, digest)
        record = self._verdicts.at_hand(key) if key else None
        if record is None or await self._binds(request, digest, record):
            return None
        return record if request.fits(record) else None

    async def key(self, request: TrialRequest, digest: str) -> str:
        """Returns the key of a request's verdict; empty if it gets a trial of its own, or a precedent may bind it."""
        key = self._verdicts.key(request, digest)
        if not key or self._executor.court_of(request.namespace).bindings is None:
            return key
        # An earlier trial has read the text that a request leaves to be read.
        known = await self._verdicts.find(key) if request.text is None else None
        return "" if await self._binds(request, digest, known) else key

    async def _binds(self, request: TrialRequest, digest: str, known: TrialRecord | None) -> bool:
        """True if a precedent binds the court on a request, or may once its text has been read."""
        text = known.text.text if request.text is None and known and known.text else request.text
        return bool(await self._executor.court_of(request.namespace).copies(digest, text, request.namespace))

    async def find(self, request: TrialRequest, caller: Caller, key: str) -> TrialRecord | None:
        """Returns the trial whose verdict answers a request that nobody has decided; None without any."""
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


def _token(versions: Versions, policy: str, procedure: Procedure) -> str:
    return digest([versions.model_dump(mode="json"), policy, procedure])
