"""Memes tried before that are nearly the one on trial: what each looked like stands in the docket, for every server.

A look is small: the perceptual hashes of the picture, the text and the digest of the pixels. All of them are held in
memory; the pictures themselves are read from the docket for the few that are laid over each other. What a trial came to
is asked of the docket as well, so that a review counts from the moment on when it is kept.

A text that was sent alone has a look without hashes and pixels. Near to it are others that were sent alone, of the same
letters: spaces, signs, case and what is written for a letter that it looks like tell none apart.
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

from court.errors import Unavailable
from court.events import NearDuplicate, ReviewOutcome, VerdictReviewed
from court.meme import Picture
from court.record import TrialState
from court.verdict import Label
from retrieval.near_duplicates.comparer import GuardedComparer
from retrieval.near_duplicates.match import (
    MISREAD_MOST,
    Agreement,
    MatchThresholds,
    MemeText,
    agreement_of,
)
from retrieval.near_duplicates.pdq import BYTES
from retrieval.near_duplicates.pdq_index import PdqIndex
from retrieval.text import letters_of
from serving.docket.ports import FingerprintStore, TrialIndex, TrialReader, TrialUnknown
from serving.settings import Settings

_log = logging.getLogger("memecourt.near")

T = TypeVar("T")
Hashes = NDArray[np.uint8]

_FORMAT: Final = 1
"""Of a look; one of another format is passed over, so that an older server may use the docket of a newer one."""
_THREADS: Final = 2
_PAGE: Final = 10_000
"""Looks that are read at once."""
_MOST: Final = 1_000_000
"""Looks that are held; of more, the latest."""
_WEIGHED: Final = 200
"""Memes near in picture whose texts are compared, nearest first; those of the very same letters go first."""
_CITED: Final = 5
"""Memes that are cited of those found harmful, and as many of the rest: nobody hides a harmful one behind others."""
_LAID_OVER: Final = 3
"""Pictures that are compared tile by tile to say how near a meme is: a tenth of a second of one processor each."""
_TRIED: Final = 8
"""The same to find a meme whose verdict may be given again."""
_PATIENCE: Final = 2.0
"""Seconds that a verdict, or the end, waits for a look to be kept. In PostgreSQL the looks of several servers are
numbered one after the other, and one of these may hang."""
_REMEMBERED: Final = 256
"""Pictures whose hashes are kept from the question what is near to the verdict."""


@dataclass(frozen=True, slots=True)
class StoredFingerprint:
    """Stored fingerprint of a meme's picture.

    Attributes:
        pixels_sha256: Digest of its pixels, under which the docket has its frames; empty for a text alone.
        namespace: Namespace of the content.
        words: Its text.
        hashes: Hashes of all representative frames, with and without borders: uint8 of shape (n, 32); empty if the
            picture has too little to go by, and for a text alone.
    """

    pixels_sha256: str
    namespace: str
    words: MemeText
    hashes: Hashes

    def to_bytes(self) -> bytes:
        """Serialises the fingerprint: format, hashes, then the values held in memory."""
        return bytes([_FORMAT, len(self.hashes)]) + self.hashes.tobytes() + self.pack()

    def pack(self) -> bytes:
        """All but the hashes, packed."""
        namespace, text = self.namespace.encode(), self.words.text.encode("utf-8", "surrogatepass")
        # Compression makes short texts longer. A flag says which of the two is stored.
        packed = zlib.compress(text)
        small = len(packed) < len(text)
        head = _HEAD.pack(
            self.words.read | small << 1,
            bytes.fromhex(self.pixels_sha256) or _NO_PICTURE,
            _fingerprint(self.words.text),
            len(namespace),
        )
        return head + namespace + (packed if small else text)


# Flags (1: the text was read, 2: it is compressed), pixels, fingerprint, length of the namespace. The slices in _Row
# rely on this layout, which dockets contain: another one needs another _FORMAT.
_HEAD: Final = struct.Struct(">B32s8sH")
_NO_PICTURE: Final = bytes(32)
"""Stands for the digest of the pixels where a text was sent alone."""


@dataclass(frozen=True, slots=True)
class _Row:
    """In-memory row of a trial: packed, for there may be a million. Unpacked a field at a time."""

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
    """Eight bytes that texts of the same letters share."""
    return hashlib.blake2b(letters_of(text).encode("utf-8", "surrogatepass"), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The looks at one moment. A search has one shelf, whatever is added meanwhile.

    Attributes:
        index: Hashes under the numbers of rows.
        rows: Trial id, NUL, look; the place is the row's number less ``first``. Only ever appended to.
        texts: Numbers of the rows of texts alone by what texts of the same letters share, in order. Only ever appended
            to; a later shelf may have put numbers there that are not of this one.
        first: Number of the first row.
        size: Rows that belong to this shelf.
    """

    index: PdqIndex
    rows: list[bytes]
    texts: dict[bytes, list[int]]
    first: int
    size: int

    def row(self, number: int) -> _Row:
        trial_id, _, packed = self.rows[number - self.first].partition(b"\0")
        return _Row(trial_id.decode(), packed)

    def with_more(self, fingerprints: Sequence[tuple[int, str, bytes]], most: int) -> _Shelf:
        """Another shelf, with these as well, and without the oldest where they are more than a quarter too many."""
        hashes: list[Hashes] = []
        numbers: list[int] = []
        rows: list[bytes] = []
        alone: list[tuple[bytes, int]] = []
        for _, trial_id, fingerprint in fingerprints:
            if fingerprint[:1] != bytes([_FORMAT]):
                continue
            count = fingerprint[1] if len(fingerprint) > 1 else 0
            end = 2 + BYTES * count
            # The length comes from the look itself, which may be damaged: one bad row must not hide all others.
            if len(fingerprint) < end + _HEAD.size:
                _log.error("trial %s: its look is damaged and is passed over", trial_id)
                continue
            row, number = _Row(trial_id, fingerprint[end:]), self.first + self.size + len(rows)
            # A picture with too little in it has no hashes, so no search could find it: it takes no memory.
            if not count and not row.text_alone:
                continue
            if count:
                hashes.append(np.frombuffer(fingerprint[2:end], np.uint8).reshape(-1, BYTES))
                numbers += [number] * count
            else:
                alone.append((row.fingerprint, number))
            rows.append(trial_id.encode() + b"\0" + row.packed)
        if not rows:
            return self
        index = self.index.with_more(np.concatenate(hashes), numbers) if hashes else self.index
        more = replace(self, index=index, size=self.size + len(rows))
        # In place, since a copy of a million rows costs too much. Searches on an earlier shelf do not see them: the
        # numbers in its index and its size end before them.
        self.rows.extend(rows)
        for mark, number in alone:
            self.texts.setdefault(mark, []).append(number)
        # Dropping the oldest copies all that is left, so it is done for a quarter at a time.
        return more if more.size <= 1.25 * most else more._latest(most)

    def _latest(self, most: int) -> _Shelf:
        gone = self.size - most
        first = self.first + gone
        texts = {mark: [n for n in numbers if n >= first] for mark, numbers in self.texts.items()}
        left = {mark: numbers for mark, numbers in texts.items() if numbers}
        return _Shelf(self.index.without_below(first), rows=self.rows[gone:], texts=left, first=first, size=most)

    def same_letters(self, mark: bytes) -> Iterator[_Row]:
        """Rows of texts alone that share a fingerprint, the latest first."""
        numbers = self.texts.get(mark, ())
        return (self.row(n) for n in reversed(numbers) if self.first <= n < self.first + self.size)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A meme that is near in picture, before anybody asked what its trial came to."""

    trial_id: str
    pixels_sha256: str
    distance: int
    agreement: Agreement

    @property
    def same_text(self) -> bool:
        return self.agreement is not Agreement.OTHER


class NearDuplicateIndex:
    """Finds memes tried before by their looks (:class:`court.ports.DuplicateFinder`), and keeps the looks of new ones.

    Several servers with the same docket see each other's: each reads on in it before it searches. Searches run in
    threads of their own; what is done to pixels, in guarded processes.
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
        """Opens nothing yet.

        Args:
            fingerprints: Fingerprints of the pictures of trials.
            trials: Records and pictures of trials.
            index: Labels of trials.
            settings: Settings: which memes are visible (``reuse``: other namespaces' only if it is ``everywhere``), and
                whether a verdict may be reused for a near-duplicate (``reuse_near``).
            nearness: Thresholds of near and same, instead of the default.
            most: Looks that are held in memory; of more, the latest.
        """
        self._fingerprints = fingerprints
        self._trials = trials
        self._index = index
        self._everywhere = settings.reuse == "everywhere"
        self._reuses = settings.reuse_near and settings.reuse != "off"
        self._nearness = nearness or MatchThresholds()
        self._most = most
        self._shelf = _Shelf(PdqIndex(np.empty((0, BYTES), np.uint8), []), rows=[], texts={}, first=0, size=0)
        self._read_up_to = 0
        self._reading: asyncio.Task[None] | None = None
        self._begun = self._done = 0
        self._keeping: set[asyncio.Future[None]] = set()
        self._hashes: OrderedDict[str, Hashes] = OrderedDict()
        self._comparer = GuardedComparer()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="near")

    def __len__(self) -> int:
        return self._shelf.size

    async def warm(self) -> None:
        """Starts a process that compares pictures. Raises Overrun or Unavailable if it can't be started."""
        await self._comparer.warm()

    async def catch_up(self) -> None:
        """Reads the looks that have been kept since, here or elsewhere. Of callers at once, one reads for all.

        Raises:
            Unavailable: The docket can't be read now.
        """
        wanted = self._begun + 1  # a reading that began before this call may have missed what is meant
        while self._done < wanted:
            reading = self._reading
            if reading is None or reading.done():
                # Its own task: a caller who leaves takes nobody else's along, and no page is half shelved.
                self._begun += 1
                reading = self._reading = asyncio.create_task(self._read_on(self._begun))
            await asyncio.wait([reading])
            if not reading.cancelled() and (error := reading.exception()):
                raise error

    async def _read_on(self, number: int) -> None:
        while fingerprints := await self._fingerprints.fingerprints(self._read_up_to, most=_PAGE):
            self._shelf = await self._aside(lambda: self._shelf.with_more(fingerprints, self._most))
            # Only once they are shelved: what fails in between is read again.
            self._read_up_to = fingerprints[-1][0]
            if len(fingerprints) < _PAGE:
                break
        self._done = number

    async def find(
        self, picture: Picture | None, text: str, text_read: bool, namespace: str
    ) -> Sequence[NearDuplicate]:
        """Finds near-duplicates; see :meth:`court.ports.DuplicateFinder.find`.

        Cited are the nearest five of those found harmful and the nearest five of the rest, those with the same text
        before others. Pictures are laid over each other only where the texts agree, and of the nearest three; of the
        rest it is not said that they are the same picture, unless every pixel is.
        """
        found = await self._candidates(picture, MemeText(text, text_read), namespace)
        labels = await self._index.labels([each.trial_id for each in found]) if found else {}
        cited, compared = [], 0
        for each in _cited(found, labels):
            same = picture is not None and each.pixels_sha256 == picture.pixels_sha256
            if picture is not None and not same and each.same_text and compared < _LAID_OVER:
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
        self,
        picture: Picture,
        text: str,
        text_read: bool,
        namespace: str,
        *,
        usable: Callable[[str], Awaitable[bool]] | None = None,
    ) -> str | None:
        """The trial whose verdict may be given again for this meme: hash near, texts alike and no tile different.

        Args:
            picture: Picture of the meme.
            text: Text of the meme; empty if it has none.
            text_read: True if the text was read off the picture.
            namespace: Namespace of the content.
            usable: Function that tells whether the trial of an id will do, such as one run with the same versions;
                called before pictures are compared. A trial without a verdict, or whose verdict was overruled, never
                will.

        Returns:
            Its id; None where there is none, and always where the settings do not allow it.

        Raises:
            Unavailable: The docket can't be read now.
        """
        if not self._reuses:
            return None
        tried = 0
        for each in await self._candidates(picture, MemeText(text, text_read), namespace):
            if tried == _TRIED:
                break
            # DP-4: the same picture with another text never gets this verdict. The record is read each time, so that a
            # review counts at once.
            if not each.same_text or not await self._is_in_force(each.trial_id):
                continue
            if usable is not None and not await usable(each.trial_id):
                continue
            tried += 1
            if each.pixels_sha256 == picture.pixels_sha256 or await self._is_same_picture(each, picture):
                return each.trial_id
        return None

    async def learn(
        self, trial_id: str, picture: Picture | None, *, text: str, text_read: bool, namespace: str
    ) -> None:
        """Keeps what the meme of a trial looks like; of a text that was sent alone, its letters.

        To be called before its verdict is kept: a look without a verdict is passed over, and a verdict without a look
        would never be found. Where it takes long, it goes on behind the caller's back, and the log says so.

        Raises:
            Unavailable: The fingerprint can't be stored now.
        """
        pixels, upright = "", np.empty((0, BYTES), np.uint8)
        if picture is not None:
            # Only the upright position is stored: a search compares it with all eight of the picture that is new.
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
        _log.warning("trial %s: its look is not kept yet; its verdict does not wait for that", trial_id)

    async def close(self) -> None:
        """Waits until what is being read or compared is done, and lets go of the threads."""
        going_on = [*self._keeping, *([self._reading] if self._reading is not None else [])]
        if going_on:
            _, hanging = await asyncio.wait(going_on, timeout=_PATIENCE)
            for task in hanging:
                task.cancel()
        await self._comparer.aclose()
        # In a thread, for it waits until running searches are done.
        await asyncio.to_thread(self._threads.shutdown)

    async def _candidates(self, picture: Picture | None, words: MemeText, namespace: str) -> Sequence[_Candidate]:
        await self.catch_up()
        if picture is None:
            shelf = self._shelf
            return await self._aside(lambda: self._same_letters(shelf, words.text, namespace))
        hashes = await self._hashes_of(picture)
        # Taken once, before the thread begins: meanwhile the loop may put another shelf in its place.
        shelf = self._shelf
        return await self._aside(lambda: self._search(shelf, hashes, words, namespace))

    def _same_letters(self, shelf: _Shelf, text: str, namespace: str) -> list[_Candidate]:
        """Finds trials of texts alone of the same letters, the latest first; none for a text without letters."""
        letters = letters_of(text)
        if not letters:
            return []
        rows = (row for row in shelf.same_letters(_fingerprint(text)) if self._everywhere or row.namespace == namespace)
        # The fingerprint is short: two texts may share it by chance.
        same = (row for row in rows if letters_of(row.words.text) == letters)
        return [_Candidate(row.trial_id, "", 0, Agreement.SAME) for row in itertools.islice(same, _WEIGHED)]

    def _search(self, shelf: _Shelf, hashes: Hashes, words: MemeText, namespace: str) -> list[_Candidate]:
        """Finds trials with a near picture: equal texts first, then the nearest, then the latest."""
        close = shelf.index.within(hashes.reshape(-1, BYTES), self._nearness.radius)
        if not close:
            return []
        mark, rows = _fingerprint(words.text), ((bits, -number, shelf.row(number)) for number, bits in close.items())
        candidates = [found for found in rows if self._everywhere or found[2].namespace == namespace]
        # The very same letters go first: whoever floods the docket with other captions on a picture does not push the
        # match out of those that are weighed.
        candidates.sort(key=lambda found: (found[2].fingerprint != mark, *found[:2]))
        misread = self._nearness.misread
        weighed = [(_agreement(row, words, mark, misread), bits, age, row) for bits, age, row in candidates[:_WEIGHED]]
        weighed.sort(key=lambda found: (found[0] is Agreement.OTHER, *found[1:3]))
        return [_Candidate(row.trial_id, row.pixels_sha256, bits, agreement) for agreement, bits, _, row in weighed]

    async def _hashes_of(self, picture: Picture) -> Hashes:
        """Hashes all frames with and without borders, in eight positions: uint8 of shape (n, 8, 32)."""
        known = self._hashes.get(picture.pixels_sha256)
        if known is None:
            known = await self._comparer.hashes(picture)
            self._hashes[picture.pixels_sha256] = known
            if len(self._hashes) > _REMEMBERED:
                self._hashes.popitem(last=False)
        return known

    async def _is_same_picture(self, known: _Candidate, picture: Picture) -> bool:
        """True if no tile differs in any frame; False if the docket has lost the picture."""
        frames = await self._trials.frames(known.pixels_sha256)
        return bool(frames) and await self._comparer.is_same(frames, picture, self._nearness, known.agreement)

    async def _is_in_force(self, trial_id: str) -> bool:
        try:
            record = await self._trials.record(trial_id)
        except TrialUnknown:  # it was erased since its look was read
            return False
        reviews = record.all(VerdictReviewed)
        return record.state is TrialState.DECIDED and all(r.outcome is not ReviewOutcome.OVERRULED for r in reviews)

    async def _aside(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except RuntimeError as error:
            # An executor that is shut down raises a bare RuntimeError; only its text tells it from a fault of the work.
            if "shutdown" not in str(error):
                raise
            raise Unavailable("The court is closing. Ask again later.", reason="CLOSING") from None


def _retrieve_error(keeping: asyncio.Future[None]) -> None:
    """Retrieves the error of a search without waiters, so that it is not reported as lost."""
    if not keeping.cancelled() and (error := keeping.exception()):
        _log.error("a look could not be kept: %s", type(error).__qualname__)


def _cited(found: Iterable[_Candidate], labels: Mapping[str, Label]) -> Iterator[_Candidate]:
    """The first of either kind; trials without a verdict have nothing to say."""
    left = {True: _CITED, False: _CITED}
    for each in found:
        label = labels.get(each.trial_id)
        if label is not None and left[label is Label.HARMFUL]:
            left[label is Label.HARMFUL] -= 1
            yield each


def _agreement(row: _Row, new: MemeText, mark: bytes, misread: float) -> Agreement:
    known = row.words
    if row.fingerprint != mark and max(len(known.text), len(new.text)) > MISREAD_MOST:
        return Agreement.OTHER  # as it would be said of them, without taking two hundred long texts apart
    agreement = agreement_of(known, new, misread)
    if agreement is Agreement.SAME and (known.read or new.read) and not letters_of(new.text):
        return Agreement.MISREAD  # nothing was read on either, which does not say that nothing stands there
    return agreement
