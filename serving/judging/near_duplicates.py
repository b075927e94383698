"""Index of near-duplicates among earlier memes, built from fingerprints that all servers share in the docket.

A fingerprint is small: the perceptual hashes of the picture, the text and the digest of the pixels. All fingerprints
are held in memory; pictures are read from the docket only for the few that are compared tile by tile. Outcomes of
trials are read from the docket too, so that a review counts as soon as it is stored.

A text that was sent without a picture has a fingerprint without hashes and pixels. Its near-duplicates are other such
texts with the same letters: spaces, punctuation, case and look-alike characters make no difference.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import struct
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from court.events import NearDuplicate
from court.meme import Picture
from court.verdict import Label
from retrieval.near_duplicates.comparer import GuardedComparer, PdqIndex
from retrieval.near_duplicates.match import MISREAD_MOST, Agreement, MatchThresholds, MemeText, agreement_of
from retrieval.near_duplicates.pdq import BYTES
from retrieval.text import letters_of
from serving.docket.ports import TrialReader
from serving.docket.store.listing import TrialIndex
from serving.docket.store.log_queries import LogFollower
from serving.docket.store.requests import FingerprintStore
from serving.errors import closing
from serving.settings import Settings

_log = logging.getLogger("memecourt.near")

T = TypeVar("T")
Hashes = NDArray[np.uint8]

_FORMAT: Final = 1
"""Format of fingerprints; those of other formats are skipped, so that old servers can use the docket of newer ones."""
_THREADS: Final = 2
_PAGE: Final = 10_000
"""Fingerprints that are read at once."""
_MOST: Final = 1_000_000
"""Maximum number of fingerprints in memory; the latest are kept."""
_WEIGHED: Final = 200
"""Maximum number of memes with a similar picture whose texts are compared: same letters first, then the nearest."""
_MAX_CITED: Final = 5
"""Maximum number of harmful memes cited, and of others: so harmful ones can't be hidden behind many others."""
_MAX_OVERLAID: Final = 3
"""Maximum number of pictures compared tile by tile for citing: 0.1 s of CPU time each."""
_MAX_OVERLAID_FOR_REUSE: Final = 8
"""The same for finding a meme whose verdict can be reused."""
_PATIENCE: Final = 2.0
"""Seconds that a verdict or the shutdown waits for a fingerprint to be stored. In PostgreSQL, servers number their
fingerprints one after the other, and one of them may hang."""
_MAX_HASHED: Final = 256
"""Maximum number of pictures whose hashes are cached between the search and the verdict."""


@dataclass(frozen=True, slots=True)
class StoredFingerprint:
    """Stored fingerprint of a meme.

    Attributes:
        pixels_sha256: Digest of the pixels, under which the docket stores the frames; empty for a text without picture.
        hashes: Hashes of all representative frames, with and without borders: uint8 of shape (n, 32); empty if the
            picture has too little detail, and for a text without picture.
    """

    pixels_sha256: str
    namespace: str
    words: MemeText
    hashes: Hashes

    def to_bytes(self) -> bytes:
        """Serialises the fingerprint: format, hashes, then the values held in memory."""
        return bytes([_FORMAT, len(self.hashes)]) + self.hashes.tobytes() + self.pack()

    def pack(self) -> bytes:
        """Serialises everything except the hashes."""
        namespace, text = self.namespace.encode(), self.words.text.encode("utf-8", "surrogatepass")
        # Compression makes short texts longer. A flag says which form is stored.
        packed = zlib.compress(text)
        small = len(packed) < len(text)
        head = _HEAD.pack(
            self.words.read | small << 1,
            bytes.fromhex(self.pixels_sha256) or _NO_PICTURE,
            _fingerprint(self.words.text),
            len(namespace),
        )
        return head + namespace + (packed if small else text)


# Flags (1: the text was read by OCR, 2: it is compressed), pixels, fingerprint, length of the namespace. The slices in
# _Row rely on this layout, which is stored in dockets: changing it requires a new _FORMAT.
_HEAD: Final = struct.Struct(">B32s8sH")
_NO_PICTURE: Final = bytes(32)
"""Stands for the pixel digest of a text without picture."""


@dataclass(frozen=True, slots=True)
class _Row:
    """In-memory row of a trial: kept packed, since there may be a million, and unpacked field by field."""

    trial_id: str
    packed: bytes

    @property
    def fingerprint(self) -> bytes:
        return self.packed[33:41]

    @property
    def pixels_sha256(self) -> str:
        return self.packed[1:33].hex()

    @property
    def text_alone(self) -> bool:
        return self.packed[1:33] == _NO_PICTURE

    @property
    def namespace(self) -> str:
        _, _, _, length = _HEAD.unpack_from(self.packed)
        return self.packed[_HEAD.size : _HEAD.size + length].decode()

    @property
    def words(self) -> MemeText:
        flags, _, _, length = _HEAD.unpack_from(self.packed)
        text = self.packed[_HEAD.size + length :]
        text = zlib.decompress(text) if flags & 2 else text
        return MemeText(text.decode("utf-8", "surrogatepass"), bool(flags & 1))


def _fingerprint(text: str) -> bytes:
    """Returns eight bytes that are equal for texts with the same letters."""
    return hashlib.blake2b(letters_of(text).encode("utf-8", "surrogatepass"), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The fingerprints at one moment. A search uses one snapshot, whatever is added meanwhile.

    Attributes:
        rows: Trial id, NUL, fingerprint; the position is the row's number minus ``first``. Append-only.
        texts: Row numbers of texts without picture, in order, by the fingerprint of their letters. Append-only; may
            contain numbers added by a later snapshot.
    """

    index: PdqIndex
    rows: list[bytes]
    texts: dict[bytes, list[int]]
    first: int
    size: int

    def row(self, number: int) -> _Row:
        trial_id, _, packed = self.rows[number - self.first].partition(b"\0")
        return _Row(trial_id.decode(), packed)

    def with_more(self, fingerprints: Sequence[tuple[int, str, bytes]], most: int) -> _Snapshot:
        """Returns a snapshot with more rows; drops the oldest if it exceeds the limit by more than a quarter."""
        hashes: list[Hashes] = []
        numbers: list[int] = []
        rows: list[bytes] = []
        texts: list[tuple[bytes, int]] = []
        for _, trial_id, fingerprint in fingerprints:
            if fingerprint[:1] != bytes([_FORMAT]):
                continue
            count = fingerprint[1] if len(fingerprint) > 1 else 0
            end = 2 + BYTES * count
            # The length comes from the data itself, which may be damaged: one bad row must not hide all others.
            if len(fingerprint) < end + _HEAD.size:
                _log.error("trial %s: its fingerprint is damaged and is skipped", trial_id)
                continue
            row, number = _Row(trial_id, fingerprint[end:]), self.first + self.size + len(rows)
            # A picture with too little detail has no hashes and can't be found: don't keep it in memory.
            if not count and not row.text_alone:
                continue
            if count:
                hashes.append(np.frombuffer(fingerprint[2:end], np.uint8).reshape(-1, BYTES))
                numbers += [number] * count
            else:
                texts.append((row.fingerprint, number))
            rows.append(trial_id.encode() + b"\0" + row.packed)
        if not rows:
            return self
        index = self.index.with_more(np.concatenate(hashes), numbers) if hashes else self.index
        more = replace(self, index=index, size=self.size + len(rows))
        # In place, since copying a million rows costs too much. Searches on an earlier snapshot do not see them: its
        # index and its size end before them.
        self.rows.extend(rows)
        for mark, number in texts:
            self.texts.setdefault(mark, []).append(number)
        # Dropping the oldest copies all remaining rows, so a quarter is dropped at a time.
        return more if more.size <= 1.25 * most else more._latest(most)

    def _latest(self, most: int) -> _Snapshot:
        gone = self.size - most
        first = self.first + gone
        texts = {mark: [n for n in numbers if n >= first] for mark, numbers in self.texts.items()}
        left = {mark: numbers for mark, numbers in texts.items() if numbers}
        return _Snapshot(self.index.without_below(first), rows=self.rows[gone:], texts=left, first=first, size=most)

    def same_letters(self, mark: bytes) -> Iterator[_Row]:
        """Yields rows of texts without picture that share a fingerprint, the latest first."""
        numbers = self.texts.get(mark, ())
        return (self.row(n) for n in reversed(numbers) if self.first <= n < self.first + self.size)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A meme with a similar picture, before its trial's outcome was looked up."""

    trial_id: str
    pixels_sha256: str
    distance: int
    agreement: Agreement

    @property
    def same_text(self) -> bool:
        return self.agreement is not Agreement.OTHER


class NearDuplicateIndex:
    """Finds earlier memes by fingerprint (:class:`court.ports.DuplicateFinder`), and stores those of new ones.

    Servers that share a docket see each other's memes: each reads new fingerprints before a search. Searches run in
    separate threads, and pixels are compared in sandboxed processes.
    """

    def __init__(
        self,
        *,
        fingerprints: FingerprintStore,
        trials: TrialReader,
        index: TrialIndex,
        settings: Settings,
        nearness: MatchThresholds | None = None,
        most: int = _MOST,
    ) -> None:
        """Starts empty.

        Args:
            settings: Settings: which memes are visible (``reuse``: other namespaces' only if it is ``everywhere``), and
                whether a verdict may be reused for a near-duplicate (``reuse_near``).
        """
        self._fingerprints = fingerprints
        self._trials = trials
        self._index = index
        self._everywhere = settings.reuse == "everywhere"
        self._reuses = settings.reuse_near and settings.reuse != "off"
        self._nearness = nearness or MatchThresholds()
        self._most = most
        self._view = _Snapshot(PdqIndex(np.empty((0, BYTES), np.uint8), []), rows=[], texts={}, first=0, size=0)
        self._read_up_to = 0
        self._follower = LogFollower(self._read_on)
        self._keeping: set[asyncio.Future[None]] = set()
        self._hashes: OrderedDict[str, Hashes] = OrderedDict()
        self._comparer = GuardedComparer()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="near")

    def __len__(self) -> int:
        return self._view.size

    async def warm(self) -> None:
        """Starts a process that compares pictures. Raises Overrun or Unavailable if it can't be started."""
        await self._comparer.warm()

    async def catch_up(self) -> None:
        """Reads new fingerprints, stored by any server. Raises Unavailable if the docket can't be read now."""
        await self._follower.get()

    async def _read_on(self) -> None:
        while fingerprints := await self._fingerprints.fingerprints(self._read_up_to, most=_PAGE):
            self._view = await self._aside(lambda: self._view.with_more(fingerprints, self._most))
            # Only once they are in the snapshot: after a failure the page is read again.
            self._read_up_to = fingerprints[-1][0]
            if len(fingerprints) < _PAGE:
                return

    async def find(
        self, picture: Picture | None, text: str, text_read: bool, namespace: str
    ) -> Sequence[NearDuplicate]:
        """Finds near-duplicates; see :meth:`court.ports.DuplicateFinder.find`.

        It cites the nearest five harmful memes and the nearest five others, those with the same text first. Pictures
        are compared tile by tile only for the nearest three whose texts agree; the others count as the same picture
        only if all pixels are equal.
        """
        found = await self._candidates(picture, MemeText(text, text_read), namespace)
        labels = await self._index.labels([each.trial_id for each in found]) if found else {}
        cited, compared = [], 0
        for each in _cited(found, labels):
            same = picture is not None and each.pixels_sha256 == picture.pixels_sha256
            if picture is not None and not same and each.same_text and compared < _MAX_OVERLAID:
                compared += 1
                same = await self._is_same_picture(each, picture)
            cited.append(
                NearDuplicate(
                    trial_id=each.trial_id,
                    label=labels[each.trial_id],
                    distance=each.distance,
                    same_text=each.same_text,
                    same_picture=same,
                    text_alone=picture is None,
                )
            )
        return sorted(cited, key=lambda duplicate: (duplicate.distance, not duplicate.same_text))

    async def same(
        self, picture: Picture, text: str, text_read: bool, namespace: str, usable: Callable[[str], Awaitable[bool]]
    ) -> str | None:
        """Finds a trial whose verdict can be reused for this meme: similar hash, equivalent text, no differing tile.

        Args:
            usable: Function that returns True if the verdict of a trial may be reused; called before pictures are
                compared.

        Returns:
            Id of the trial; None if there is none, or if the settings do not allow reuse.

        Raises:
            Unavailable: The docket can't be read now.
        """
        if not self._reuses:
            return None
        tried = 0
        for each in await self._candidates(picture, MemeText(text, text_read), namespace):
            if tried == _MAX_OVERLAID_FOR_REUSE:
                break
            # DP-4: the same picture with another text never gets this verdict. The record is read each time, so that a
            # review counts immediately.
            if not each.same_text or not await usable(each.trial_id):
                continue
            tried += 1
            if each.pixels_sha256 == picture.pixels_sha256 or await self._is_same_picture(each, picture):
                return each.trial_id
        return None

    async def learn(
        self, trial_id: str, picture: Picture | None, *, text: str, text_read: bool, namespace: str
    ) -> None:
        """Stores the fingerprint of a trial's meme.

        To be called before the verdict is stored: a fingerprint without a verdict is ignored, but a verdict without a
        fingerprint would never be found. If storing takes long, it continues in the background and this is logged.

        Raises:
            Unavailable: The fingerprint can't be stored now.
        """
        pixels, upright = "", np.empty((0, BYTES), np.uint8)
        if picture is not None:
            # Only the upright orientation is stored: a search compares it with all eight of the new picture.
            pixels, upright = picture.pixels_sha256, np.ascontiguousarray((await self._hashes_of(picture))[:, 0])
        stored = StoredFingerprint(pixels, namespace, MemeText(text, text_read), upright)
        keeping = asyncio.ensure_future(self._fingerprints.put_fingerprint(trial_id, stored.to_bytes()))
        self._keeping.add(keeping)
        keeping.add_done_callback(self._keeping.discard)
        await asyncio.wait([keeping], timeout=_PATIENCE)
        if keeping.done():
            keeping.result()
            return
        keeping.add_done_callback(_retrieve_error)
        _log.warning("trial %s: its fingerprint is not stored yet; its verdict does not wait for that", trial_id)

    async def close(self) -> None:
        """Waits for running reads and comparisons, and stops the threads."""
        going_on = [*self._keeping, *([self._follower.running] if self._follower.running is not None else [])]
        if going_on:
            _, hanging = await asyncio.wait(going_on, timeout=_PATIENCE)
            for task in hanging:
                task.cancel()
        await self._comparer.aclose()
        # In a thread, since it blocks until running searches are done.
        await asyncio.to_thread(self._threads.shutdown)

    async def _candidates(self, picture: Picture | None, words: MemeText, namespace: str) -> Sequence[_Candidate]:
        await self.catch_up()
        if picture is None:
            snapshot = self._view
            return await self._aside(lambda: self._same_letters(snapshot, words.text, namespace))
        hashes = await self._hashes_of(picture)
        # Read once, before the thread starts: the event loop may replace the snapshot meanwhile.
        snapshot = self._view
        return await self._aside(lambda: self._search(snapshot, hashes, words, namespace))

    def _same_letters(self, snapshot: _Snapshot, text: str, namespace: str) -> list[_Candidate]:
        """Finds trials of texts without picture that have the same letters, latest first."""
        letters = letters_of(text)
        if not letters:
            return []
        rows = (
            row for row in snapshot.same_letters(_fingerprint(text)) if self._everywhere or row.namespace == namespace
        )
        # The fingerprint is short, so that different texts may share it by chance.
        same = (row for row in rows if letters_of(row.words.text) == letters)
        return [_Candidate(row.trial_id, "", 0, Agreement.SAME) for row in itertools.islice(same, _WEIGHED)]

    def _search(self, snapshot: _Snapshot, hashes: Hashes, words: MemeText, namespace: str) -> list[_Candidate]:
        """Finds trials with a similar picture: equal texts first, then the nearest, then the latest."""
        close = snapshot.index.within(hashes.reshape(-1, BYTES), self._nearness.radius)
        if not close:
            return []
        mark, rows = _fingerprint(words.text), ((bits, -number, snapshot.row(number)) for number, bits in close.items())
        candidates = [found for found in rows if self._everywhere or found[2].namespace == namespace]
        # The same letters go first, so that flooding the docket with other captions on a picture does not push the
        # match out of the candidates.
        candidates.sort(key=lambda found: (found[2].fingerprint != mark, *found[:2]))
        misread = self._nearness.misread
        weighed = [(_agreement(row, words, mark, misread), bits, age, row) for bits, age, row in candidates[:_WEIGHED]]
        weighed.sort(key=lambda found: (found[0] is Agreement.OTHER, *found[1:3]))
        return [_Candidate(row.trial_id, row.pixels_sha256, bits, agreement) for agreement, bits, _, row in weighed]

    async def _hashes_of(self, picture: Picture) -> Hashes:
        """Hashes all frames with and without borders, in eight orientations: uint8 of shape (n, 8, 32)."""
        known = self._hashes.get(picture.pixels_sha256)
        if known is None:
            known = await self._comparer.hashes(picture)
            self._hashes[picture.pixels_sha256] = known
            if len(self._hashes) > _MAX_HASHED:
                self._hashes.popitem(last=False)
        return known

    async def _is_same_picture(self, known: _Candidate, picture: Picture) -> bool:
        """True if no tile differs in any frame; False if the docket has lost the picture."""
        frames = await self._trials.frames(known.pixels_sha256)
        return bool(frames) and await self._comparer.is_same(frames, picture, self._nearness, known.agreement)

    async def _aside(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except RuntimeError as error:
            # A shut-down executor raises a bare RuntimeError; only its message distinguishes it from an error of the
            # work.
            if "shutdown" not in str(error):
                raise
            raise closing() from None


def _retrieve_error(keeping: asyncio.Future[None]) -> None:
    """Retrieves the error of a search without waiters, so that it is not reported as lost."""
    if not keeping.cancelled() and (error := keeping.exception()):
        _log.error("a fingerprint could not be stored: %s", type(error).__qualname__)


def _cited(found: Iterable[_Candidate], labels: Mapping[str, Label]) -> Iterator[_Candidate]:
    """Yields the first few candidates of each kind; trials without a verdict are skipped."""
    left = {True: _MAX_CITED, False: _MAX_CITED}
    for each in found:
        label = labels.get(each.trial_id)
        if label is not None and left[label is Label.HARMFUL]:
            left[label is Label.HARMFUL] -= 1
            yield each


def _agreement(row: _Row, new: MemeText, mark: bytes, misread: float) -> Agreement:
    known = row.words
    if row.fingerprint != mark and max(len(known.text), len(new.text)) > MISREAD_MOST:
        return Agreement.OTHER  # the likely result, without analysing two hundred long texts
    agreement = agreement_of(known, new, misread)
    if agreement is Agreement.SAME and (known.read or new.read) and not letters_of(new.text):
        return Agreement.MISREAD  # no text was read on either, which does not mean that there is none
    return agreement
