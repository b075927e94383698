"""Known memes: which earlier trial answers a meme, if any does.

A meme is known by a key: its digest (:attr:`court.meme.Meme.digest`), its text (or that it is to be read off the
picture), whose content it is, and everything that the trial is held with. Another version of any of these is another
key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from court.digests import digest
from court.events import Procedure, ReviewOutcome, TextRead, VerdictReviewed, Versions
from court.record import TrialRecord, TrialState
from court.trial import Court
from court.verdict import ReviewReason
from serving.docket.ports import TrialReader, TrialUnknown, VerdictKeys
from serving.runner.request import TrialRequest
from serving.runner.single_flight import LRUCache
from serving.settings import Settings

FRESH_S = 2.0
"""For so long what the docket said of a key is not asked again, in seconds: a verdict that is overruled at another
server is given again for so long at most."""
_MOST_RECORDS = 512
"""Verdicts at hand, of memes that were asked for again: a full trial's record takes some 100 KiB."""
_MOST_PICTURES = 8192
"""Files whose pixels are known by digest: some 300 bytes each."""


def reusable(record: TrialRecord) -> bool:
    """True if a trial's verdict may answer another request.

    It was given, and not overruled, in a trial that was whole.
    """
    review = record.last(VerdictReviewed)
    return (
        record.state is TrialState.DECIDED
        and whole(record)
        and not (review and review.outcome is ReviewOutcome.OVERRULED)
    )


_INCOMPLETE = (ReviewReason.CUT_SHORT, ReviewReason.GUARD_FAILED, ReviewReason.CLAIM_UNCHECKED)
"""Reasons for review of verdicts that could have had more to go by."""


def whole(record: TrialRecord) -> bool:
    """True if a trial reached its verdict with all the time it needed, and with one library.

    Where that was changed after the trial began, it was held with neither.
    """
    verdict, cited = record.verdict, record.precedents
    return (
        verdict is not None
        and (cited is None or cited.findings.library.digest == record.opened.versions.library)
        and all(reason.reason not in _INCOMPLETE for reason in verdict.review)
    )


@dataclass(slots=True)
class _AtHand:
    record: TrialRecord
    checked: float
    """Time at which the docket last confirmed that this record answers its key; monotonic, in seconds."""
    checking: asyncio.Task[None] | None = None
    """Running check of the same; None if none runs."""
    used: bool = False
    """True if a request was answered by it since the last check."""


@dataclass(frozen=True, slots=True)
class _VersionsKey:
    library: str
    versions: Versions
    token: str


class VerdictCache:
    """Keys and their trials: at hand in memory, and in the docket."""

    def __init__(
        self,
        keys: VerdictKeys,
        trials: TrialReader,
        court_of: Callable[[str], Court],
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Knows nothing yet.

        Args:
            keys: Which trial answers which key.
            trials: Records of those trials.
            court_of: Gives the court that tries content of a namespace.
            settings: Settings: whose verdicts are reused.
            clock: Monotonic, in seconds.
        """
        self._keys = keys
        self._trials = trials
        self._court_of = court_of
        self._everywhere = settings.reuse == "everywhere"
        self._off = settings.reuse == "off"
        self._clock = clock
        self._versions: dict[tuple[int, Procedure], _VersionsKey] = {}
        self._pixels: LRUCache[bytes, str] = LRUCache(_MOST_PICTURES)
        self._at_hand: LRUCache[str, _AtHand] = LRUCache(_MOST_RECORDS)

    def versions(self, ask: TrialRequest) -> Versions:
        """Returns the versions with which a trial of a request that began now would be run."""
        return self._now(ask).versions

    def versions_in_use(self, ask: TrialRequest) -> object:
        """Returns the same object for as long as a new trial of such a request would be run with the same versions."""
        return self._now(ask)

    def pixels_of(self, file: bytes) -> str | None:
        """Digest of the pixels in a file of that digest, if it has been decoded lately."""
        return self._pixels.get(file)

    def remember_pixels(self, file: bytes, pixels_sha256: str) -> None:
        """A file was decoded."""
        self._pixels.keep(file, pixels_sha256)

    def key(self, ask: TrialRequest, meme_digest: str) -> str:
        """The key of what is asked, were it tried now."""
        return self._key(
            token=self._now(ask).token,
            namespace=ask.namespace,
            meme_digest=meme_digest,
            text=ask.text,
            language=ask.language,
        )

    def key_of(self, record: TrialRecord) -> str:
        """The key that a trial with a verdict answers."""
        opened, text = record.opened, record.last(TextRead)
        assert text is not None, "there is no verdict without"
        token = _token(opened.versions, opened.policy.digest, opened.procedure)
        # A text that was read is no part of the request: there the key says that it is to be read.
        own_text = text.text if opened.meme.text_given else None
        return self._key(
            token=token,
            namespace=opened.meme.namespace,
            meme_digest=opened.meme.digest,
            text=own_text,
            language=text.language,
        )

    def answers(self, record: TrialRecord, key: str) -> bool:
        """True if a trial's verdict may answer other requests whose meme has that key."""
        return reusable(record) and self.key_of(record) == key

    def same_versions(self, record: TrialRecord, ask: TrialRequest) -> bool:
        """True if a trial was run with what a trial of this request would be run with now, its meme aside."""
        text = record.text
        token = _token(record.opened.versions, record.opened.policy.digest, record.opened.procedure)
        return token == self._now(ask).token and text is not None and text.language == ask.language

    async def at_hand(self, key: str) -> TrialRecord | None:
        """The trial that answers a key, where its record is in memory and the docket said so lately or says so now."""
        known = self._at_hand.get(key)
        if known is None:
            return None
        known.used = True
        age = self._clock() - known.checked
        if age > FRESH_S / 2:
            # Asked in good time, so that who comes often never waits; and once for all who do.
            checking = known.checking or self._check_due()
            if age > FRESH_S:
                await asyncio.wait([checking])
                checking.result()
                # The check has found it overruled or replaced, or forget() has, while this call waited.
                if self._at_hand.get(key) is not known:
                    return None
        return known.record

    def _check_due(self) -> asyncio.Task[None]:
        """Has the docket asked about all that is asked for and not fresh: one by one would hold calls up."""
        now = self._clock()
        # Only what has been requested since: memes that nobody sends any more cost the docket nothing.
        due = {
            key: known
            for key, known in self._at_hand.items()
            if known.used and known.checking is None and now - known.checked > FRESH_S / 4
        }
        checking = asyncio.create_task(self._check(due))
        checking.add_done_callback(_run_versions)
        for known in due.values():
            known.checking = checking
        return checking

    async def _check(self, due: Mapping[str, _AtHand]) -> None:
        """Asks the docket whether trials still answer their keys. Raises Unavailable."""
        try:
            now = self._clock()
            # The age of what the docket says counts from before the question, which is the safe side.
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
        """The trial that answers a key, in memory or in the docket, or None."""
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
            return None  # overruled just now; or whoever writes to that table put another trial there
        self._at_hand.keep(key, _AtHand(record, now))
        return record

    async def learn(self, record: TrialRecord) -> None:
        """A trial came to a verdict. Raises Unavailable where that can't be kept now."""
        if self._off or not reusable(record):
            return
        # Not at hand yet: most memes are never asked for again, and another trial may have been first.
        await self._keys.put(self.key_of(record), record.trial_id)

    def forget(self, trial_id: str) -> None:
        """A trial answers nothing any more."""
        for key, known in self._at_hand.items():
            # items() is a copy, so that entries may be dropped meanwhile.
            if known.record.trial_id == trial_id:
                self._at_hand.drop(key)

    def _key(self, *, token: str, namespace: str, meme_digest: str, text: str | None, language: str) -> str:
        return digest([token, None if self._everywhere else namespace, meme_digest, text, language])

    def _now(self, ask: TrialRequest) -> _VersionsKey:
        """Versions are made once for each library: they take longer than all else about a known meme."""
        court, procedure = self._court_of(ask.namespace), ask.procedure
        library = court.finder.library.digest
        # By the object: most namespaces share a court, which lives as long as this does.
        current = self._versions.get((id(court), procedure))
        if current is None or current.library != library:
            versions = court.versions(procedure)
            current = _VersionsKey(versions.library, versions, _token(versions, court.policy.digest, procedure))
            self._versions[id(court), procedure] = current
        return current


def _run_versions(checking: asyncio.Task[None]) -> None:
    if not checking.cancelled():
        checking.exception()  # who waited for it has been told; if nobody did, the next one asks again


def _token(versions: Versions, policy: str, procedure: Procedure) -> str:
    return digest([versions.model_dump(mode="json"), policy, procedure])
