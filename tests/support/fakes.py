"""Fakes of a trial's ports, for tests of the trial rather than of OCR or search."""

import asyncio
from collections.abc import Iterator, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta

from court import precedents
from court.events import AnyEvent, NearDuplicate, TextLine
from court.meme import Frame, Meme, Picture, PictureFormat
from court.ports import EventListener, EventSink, Reading
from court.verdict import Label

H, N = Label.HARMFUL, Label.NOT_HARMFUL

LIBRARY = precedents.LibraryIdentity(name="test", digest="sha256:0", size=100, encoder="test encoder", with_picture=100)
VOTE = precedents.VoteSettings(k=5, tau=0.1, prior=0.5, prior_weight=0.5)
RISK = precedents.RiskCurve(
    n=99,
    points=(
        precedents.RiskPoint(rate=0.0, cutoff=0.5, risk=0.2, error=0.2),
        precedents.RiskPoint(rate=0.2, cutoff=0.4, risk=0.1, error=0.125),
        precedents.RiskPoint(rate=0.6, cutoff=0.2, risk=0.02, error=0.05),
    ),
)


def precedent(
    place: int, label: Label, text: float | None = 0.8, picture: float | None = 0.8, categories: tuple[str, ...] = ()
) -> precedents.Precedent:
    """Returns a precedent with the same similarity in both halves."""
    halves = [s for s in (text, picture) if s is not None]
    return precedents.Precedent(
        id=f"p{place}",
        label=label,
        text=f"text of p{place}",
        similarity=sum(halves) / 2,
        text_similarity=text,
        picture_similarity=picture,
        relation=precedents.Relation.SIMILAR,
        categories=categories,
    )


def findings(
    labels: Sequence[Label], *, text: float | None = 0.8, picture: float | None = 0.8, **changes: object
) -> precedents.Findings:
    """Returns the result of a search: precedents with these labels, each a little less similar than the one before."""
    found = [
        precedent(i, label, None if text is None else text - i / 100, None if picture is None else picture - i / 100)
        for i, label in enumerate(labels)
    ]
    values = {
        "library": LIBRARY,
        "search": precedents.Search(alpha_asked=0.5, alpha=0.5, has_text=True, has_picture=True, exhibits=3, tally=25),
        "floors": precedents.MinSimilarity(text=0.3, picture=0.5),
        "exhibits": tuple(found[:3]),
        "nearest_harmful": next((p for p in found if p.label is H), None),
        "nearest_benign": next((p for p in found if p.label is N), None),
        "tally": tuple(precedents.TallyEntry(id=p.id, label=p.label, similarity=p.similarity) for p in found),
        "vote_settings": VOTE,
        "risk": RISK,
    }
    return precedents.Findings(**{**values, **changes})


class FakeFinder:
    """A finder that returns a fixed result, or raises it, and records its queries."""

    library = LIBRARY

    def __init__(self, result: precedents.Findings | Exception) -> None:
        self.result = result
        self.asked: list[dict[str, object]] = []

    async def find(self, **query: object) -> precedents.Findings:
        self.asked.append(query)
        if isinstance(self.result, Exception):
            raise copy(self.result)  # a copy, as a raised exception keeps its traceback
        return self.result

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        return [None] * len(ids)


class FakeReader:
    """A text reader that returns a fixed text, or raises it, after an event if ``wait`` is given."""

    identity = "test reader"

    def __init__(self, result: str | Exception = "", wait: asyncio.Event | None = None) -> None:
        self.result = result
        self.wait = wait
        self.calls = 0
        self.asked = asyncio.Event()

    async def read(self, picture: Picture) -> Reading:
        self.calls += 1
        self.asked.set()
        if self.wait is not None:
            await self.wait.wait()
        if isinstance(self.result, Exception):
            raise copy(self.result)  # a copy, as a raised exception keeps its traceback
        box = ((0.0, 0.0), (9.0, 0.0), (9.0, 9.0), (0.0, 9.0))
        return Reading(
            tuple(TextLine(text=line, confidence=0.9, box=box, frame=0) for line in self.result.splitlines())
        )


class FakeDuplicates:
    """Finds these earlier memes or raises an error, after an event if ``wait`` is given, and records its requests."""

    def __init__(
        self, *found: NearDuplicate, error: Exception | None = None, wait: asyncio.Event | None = None
    ) -> None:
        self.found = found
        self.error = error
        self.wait = wait
        self.requests: list[tuple[str | None, str, bool, str]] = []

    async def find(
        self, picture: Picture | None, text: str, text_read: bool, namespace: str
    ) -> Sequence[NearDuplicate]:
        self.requests.append((picture and picture.pixels_sha256, text, text_read, namespace))
        if self.wait is not None:
            await self.wait.wait()
        if self.error is not None:
            raise self.error
        return self.found


class RecordingSink:
    """An event sink that records events and can fail from a given one on."""

    def __init__(self, fail_at: int | None = None, error: Exception | None = None) -> None:
        self.events: list[AnyEvent] = []
        self.fail_at = fail_at
        self.error = error or OSError("no room")

    async def __call__(self, *events: AnyEvent) -> None:
        if self.fail_at is not None and events[-1].seq >= self.fail_at:
            raise self.error
        self.events.extend(events)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


def forwarding_sink(watch: EventListener) -> EventSink:
    """Returns an event sink that stores nothing and passes each event to a listener."""

    async def tell(*events: AnyEvent) -> None:
        for event in events:
            await watch(event)

    return tell


def a_picture(pixels: str = "f" * 64) -> Picture:
    """Returns a picture without real contents."""
    return Picture(
        format=PictureFormat.PNG,
        bytes_sha256="a" * 64,
        pixels_sha256=pixels,
        width=4,
        height=3,
        frame_count=1,
        frames=(Frame(png=b"png", width=4, height=3),),
    )


def a_meme(text: str | None = "some text") -> Meme:
    """Returns a meme without a real picture."""
    return Meme(picture=a_picture(), text=text)


def ticking_clock() -> Iterator[datetime]:
    """Yields times, each a tenth of a second after the previous one."""
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    while True:
        yield at
        at += timedelta(milliseconds=100)
