"""Trial execution: decodes the picture, runs the trial and appends every event to the docket."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field

from court.errors import CantResume, CourtError
from court.events import AnyEvent, PrecedentsCited, TextRead, TrialOpened, VerdictGiven
from court.flips import seek_flips
from court.meme import Meme, Picture
from court.ports import EventListener, EventSink, PictureReader
from court.record import TrialRecord, TrialState
from court.second_question import QuestionBrief, rule_on_question
from court.trial import Court, TrialCase
from serving.access.callers import SANDBOX, in_force
from serving.docket.open import Docket
from serving.docket.review.projection import is_sampled
from serving.docket.store.bodies import quotes_erased
from serving.docket.store.log_queries import TransparencyLog
from serving.docket.store.pictures import picture_of
from serving.docket.store.reviews import REVIEW_KINDS
from serving.judging.near_duplicates import NearDuplicateIndex
from serving.judging.request import ANY_VERSIONS, TrialRequest

POLL_S = 0.5
"""Seconds between two queries of the docket for what other servers have stored."""


_REVIEWS = ""
"""Subscription key for reviews: no trial has this id."""


class EventFeed:
    """Notifies listeners of stored events, and wakes subscribers of a trial or of reviews.

    Events of this server are published at once. For those of other servers the docket is polled, once for all
    subscribers: a thousand of them polling separately would saturate a CPU and delay all other reads.
    """

    def __init__(self) -> None:
        self._listeners: list[EventListener] = []
        self._watching: dict[str, dict[asyncio.Event, Callable[[], bool]]] = {}
        self._following: asyncio.Task[None] | None = None
        self.closed = False

    def subscribe(self, listener: EventListener) -> None:
        """Adds a listener to every future event; listeners are called in order of subscription."""
        self._listeners.append(listener)

    async def publish(self, event: AnyEvent) -> None:
        """Publishes an event that the docket has stored."""
        for listener in self._listeners:
            await listener(event)
        self._wake(event.trial_id)

    def tell_review(self) -> None:
        """Wakes subscribers of reviews after one was stored."""
        self._wake(_REVIEWS)

    def close(self) -> None:
        """Marks the court as closing: subscriptions to trials that do not run here end."""
        self.closed = True
        self._wake_all()

    @contextmanager
    def watching(self, trial_id: str, log: TransparencyLog) -> Iterator[asyncio.Event]:
        """Yields an event that is set whenever there is more of a trial, or the call's token has changed.

        A subscriber that reads once first, and then whenever it is set, misses nothing.
        """
        # Registered before the caller's first read of the docket: events stored in between still wake it.
        woken = asyncio.Event()
        self._watching.setdefault(trial_id, {})[woken] = in_force()
        if self._following is None:
            self._following = asyncio.create_task(self._follow(log), context=Context())  # not in any call's context
        try:
            yield woken
        finally:
            del self._watching[trial_id][woken]
            if not self._watching[trial_id]:
                del self._watching[trial_id]
            if not self._watching:
                self._following.cancel()
                self._following = None

    def watching_reviews(self, log: TransparencyLog) -> AbstractContextManager[asyncio.Event]:
        """Subscribes to reviews of any trials."""
        return self.watching(_REVIEWS, log)

    async def _follow(self, log: TransparencyLog) -> None:
        known = -1
        while True:
            try:
                size, added = await log.added(known if known >= 0 else await log.size())
            except CourtError:
                self._wake_all()  # each of them then sees the error itself
            else:
                if size < known or known < 0:
                    self._wake_all()  # the docket was replaced, or read before its size was known
                for kind, trial_id in added:
                    if trial_id:
                        self._wake(trial_id)
                    if kind in REVIEW_KINDS:
                        self._wake(_REVIEWS)
                known = size
            for watching in self._watching.values():
                for woken, still in watching.items():
                    # Revoking a token ends its open streams (GR-1): wake the subscriber, which then checks its token.
                    if not still():
                        woken.set()
            await asyncio.sleep(POLL_S)

    def _wake(self, what: str) -> None:
        for woken in self._watching.get(what, ()):
            woken.set()

    def _wake_all(self) -> None:
        for what in self._watching:
            self._wake(what)


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Result of a trial."""

    record: TrialRecord
    picture_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class TrialExecutor:
    """Runs trials and stores their records.

    Attributes:
        flip_share: Share of full trials whose Judge is asked again, with pieces left out.
    """

    court: Court
    pictures: PictureReader
    docket: Docket
    near: NearDuplicateIndex | None = None
    feed: EventFeed = field(default_factory=EventFeed)
    courts: Mapping[str, Court] = field(default_factory=dict)
    flip_share: float = 0.0

    def court_of(self, namespace: str) -> Court:
        """Returns the court for content of a namespace."""
        return self.courts.get(namespace, self.court)

    def require(self, request: TrialRequest) -> None:
        """Raises NotLoaded if a request alone shows that it can't be tried now."""
        court = self.court_of(request.namespace)
        court.require(request.procedure, text_given=request.text is not None, picture_given=not request.text_alone)
        if request.pins != ANY_VERSIONS or request.policy is not None:
            request.require(court.versions(request.procedure), court.policy)

    async def run(
        self,
        request: TrialRequest,
        *,
        within_s: float | None = None,
        trial_id: str | None = None,
        picture: Picture | None = None,
        batch: bool = False,
    ) -> TrialResult:
        """Decodes the picture, runs a trial and stores its record.

        Args:
            batch: True if the request belongs to a batch, so that nobody waits for this one.

        Raises:
            BadPicture: The picture can't be tried; nothing is recorded.
            NotLoaded: The procedure, or a version that the request pins, is not available; nothing is recorded.
            Unavailable: A dependency is not available now; nothing is recorded.
            TrialAborted: The trial started and failed; its record is stored.
        """
        began = time.perf_counter()
        self.require(request)
        court = self.court_of(request.namespace)
        picture = picture or request.picture
        if picture is None and not request.text_alone:
            picture = await self.pictures.read(request.image)
        decoded = time.perf_counter()
        if picture is not None:
            # Before the trial is opened, so that any trial in the docket can be resumed with its picture after a crash.
            await self.docket.writer.keep_picture(picture)

        case = TrialCase(
            trial_id=trial_id or str(uuid.uuid4()),
            meme=Meme(picture=picture, text=request.text, language=request.language or None),
            procedure=request.procedure,
            request_id=request.request_id or str(uuid.uuid4()),
            namespace=request.namespace,
            content_id=request.content_id,
            trace_id=request.trace_id or uuid.uuid4().hex,
            # The deadline counts from the request: subtract the time that decoding took.
            within_s=None if within_s is None else within_s - (time.perf_counter() - began),
            batch=batch,
            of_trial=request.of_trial,
        )
        record = await court.run(case, self._storing(picture, request.namespace, request=request))
        ruled = record.verdict_event
        flips = self.flip_share and is_sampled(record.trial_id, self.flip_share, "memecourt flips")
        if flips and ruled is not None and ruled.ruling:
            left = None if within_s is None else within_s - (time.perf_counter() - began)
            # The verdict is recorded and stands, whatever becomes of this.
            with suppress(CourtError):
                record = await self.seek_flips(record, picture, within_s=left, batch=batch)
        return TrialResult(record, picture_seconds=decoded - began, total_seconds=time.perf_counter() - began)

    async def resume(
        self, trial_id: str, *, within_s: float | None = None, request: TrialRequest | None = None, batch: bool = False
    ) -> TrialRecord:
        """Resumes an interrupted trial.

        Args:
            batch: True if the trial belongs to a batch, so that nobody waits for this one.

        Raises:
            TrialUnknown: There is no trial of that id.
            CantResume: The trial has ended, was started with other versions than are loaded now, or quotes something
                that was erased since.
            TrialAborted: The trial failed again.
        """
        record = await self.docket.trials.record(trial_id)
        # For a decided trial, the error should say that it has ended.
        if record.state is not TrialState.DECIDED:
            _require_unerased(record)
        picture = await self.picture_of_trial(record)
        storing = self._storing(
            picture, record.opened.meme.namespace, text=record.text, request=request, opened=record.opened
        )
        court = self.court_of(record.opened.meme.namespace)
        return await court.resume(record, picture, storing, within_s=within_s, batch=batch)

    async def rule_on(
        self,
        record: TrialRecord,
        picture: Picture | None,
        brief: QuestionBrief,
        *,
        within_s: float | None = None,
        batch: bool = False,
    ) -> TrialRecord:
        """Puts a further question to the Judge of a trial, and stores the ruling or why there is none.

        Returns:
            The record with the event.

        Raises:
            CantResume: The trial quotes something that was erased since; nothing is recorded.
            CourtError: The reasons of :func:`court.second_question.rule_on_question`.
        """
        court, storing = self._afterwards(record, picture)
        ruled = await rule_on_question(court, record, picture, brief, keep=storing, within_s=within_s, batch=batch)
        return TrialRecord.of((*record.events, ruled))

    async def seek_flips(
        self, record: TrialRecord, picture: Picture | None, *, within_s: float | None = None, batch: bool = False
    ) -> TrialRecord:
        """Seeks what would have flipped the verdict of a trial, and stores it.

        Returns:
            The record with the event.

        Raises:
            CantResume: The trial quotes something that was erased since; nothing is recorded.
            CourtError: The reasons of :func:`court.flips.seek_flips`.
        """
        court, storing = self._afterwards(record, picture)
        sought = await seek_flips(court, record, picture, keep=storing, within_s=within_s, batch=batch)
        return TrialRecord.of((*record.events, sought))

    def _afterwards(self, record: TrialRecord, picture: Picture | None) -> tuple[Court, EventSink]:
        """Returns what a decided trial is asked again with: its namespace's court, and the same sink as for trials."""
        _require_unerased(record)
        namespace = record.opened.meme.namespace
        return self.court_of(namespace), self._storing(picture, namespace, text=record.text, opened=record.opened)

    async def picture_of_trial(self, record: TrialRecord) -> Picture | None:
        """Returns the decoded picture of a trial; None if its text was sent without one.

        Raises:
            CantResume: The picture is not in the docket.
        """
        if not record.opened.meme.picture_given:
            return None
        frames = await self.docket.trials.frames(record.opened.meme.pixels_sha256)
        if not frames:
            raise CantResume("The picture of that trial is not in the docket.", reason="PICTURE_MISSING")
        return picture_of(record.opened.meme, frames)

    def _storing(
        self,
        picture: Picture | None,
        namespace: str,
        *,
        text: TextRead | None = None,
        request: TrialRequest | None = None,
        opened: TrialOpened | None = None,
    ) -> EventSink:
        """Builds the trial's event sink: it checks required versions, stores events and publishes them."""

        async def store(*events: AnyEvent) -> None:
            nonlocal text, opened
            for event in events:
                # Loaded versions may change at any time: those that the trial is run with count.
                if request is not None and isinstance(event, TrialOpened):
                    request.require(event.versions, event.policy)
                    opened = event
                elif request is not None and opened is not None and isinstance(event, PrecedentsCited):
                    request.require(opened.versions, opened.policy, event.findings.library.digest)
                if isinstance(event, TextRead):
                    text = event
                if (
                    isinstance(event, VerdictGiven)
                    and self.near is not None
                    and text is not None
                    and namespace != SANDBOX
                ):
                    # Before the verdict: after a crash, a fingerprint without a verdict is ignored, but a verdict
                    # without its fingerprint would never be found.
                    await self.near.learn(
                        event.trial_id, picture, text=text.text, text_read=bool(text.reader), namespace=namespace
                    )
            await self.docket.writer.append(*events)
            if picture is not None and any(isinstance(event, TrialOpened) for event in events):
                # Stored once more: before this trial was in the docket, the picture could be erased with the last other
                # trial that used it.
                await self.docket.writer.keep_picture(picture)
            for event in events:
                # Only after the append: subscribers that this wakes must find the event in the docket.
                await self.feed.publish(event)

        return store


def _require_unerased(record: TrialRecord) -> None:
    # The placeholder of an erased text would be shown to models as if it were the text.
    if quotes_erased(record.events):
        raise CantResume(
            "A precedent or a document that the trial quotes was erased since. Ask for a new trial.",
            reason="QUOTED_ERASED",
        )
