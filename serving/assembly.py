"""The one place that wires things together: what is served, what judges on the command line and what is measured."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version

from court.backends.picture_reader import GuardedPictureReader
from court.backends.text_reader import OcrTextReader
from court.digests import digest
from court.errors import BadRequest, Unavailable
from court.events import AnyEvent, Procedure
from court.meme import Meme, check_text
from court.ports import PictureReader, Watcher
from court.record import TrialRecord
from court.trial import Case, Court
from retrieval.build import STARTER_MEMES, build_starter
from retrieval.builtin import BuiltinEncoder
from retrieval.embedding import Encoder
from retrieval.finder import LibraryFinder
from retrieval.library import Library
from retrieval.storage import CURRENT
from serving.docket.sql import SqlDocket
from serving.docket.store import Docket
from serving.settings import Settings

SOFTWARE = version("memecourt")


@dataclass(frozen=True, slots=True)
class Ask:
    """What a caller asks for, checked in form but not yet in substance.

    Attributes:
        image: The picture file.
        text: Of the meme; None to have it read off the picture.
        language: BCP 47 tag or empty.
        procedure: How to try it.
        request_id: The caller's name for the request, or empty.
        namespace: Whose content it is.
        content_id: What the caller calls it.
        trace_id: 32 hex digits, or empty for a new one.
    """

    image: bytes
    text: str | None = None
    language: str = ""
    procedure: Procedure = Procedure.SUMMARY
    request_id: str = ""
    namespace: str = ""
    content_id: str = ""
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class Hearing:
    """What came of it.

    Attributes:
        record: The whole trial.
        picture_seconds: Time that decoding the picture took; it comes before the trial.
        total_seconds: From the ask to the verdict.
    """

    record: TrialRecord
    picture_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class Courthouse:
    """A court with everything around it: asks go in, kept records come out."""

    court: Court
    pictures: PictureReader
    docket: Docket

    async def hear(self, ask: Ask, watch: Watcher | None = None) -> Hearing:
        """Decodes, tries and keeps.

        Args:
            ask: What to try.
            watch: Is told of every event after the docket has kept it.

        Raises:
            BadInput: The picture or the text can't be tried; nothing is recorded.
            NotLoaded: The procedure is not available; nothing is recorded.
            Unavailable: Something needed is not there now; nothing is recorded.
            TrialAborted: The trial began and failed; its record is kept.
        """
        began = time.perf_counter()
        if ask.text is not None:
            check_text(ask.text)  # before the picture: it costs nothing
        self.court.require(ask.procedure)
        picture = await self.pictures.read(ask.image)
        decoded = time.perf_counter()
        await self.docket.keep_picture(picture)

        async def keep(event: AnyEvent) -> None:
            await self.docket.append(event)
            if watch is not None:
                await watch(event)

        case = Case(
            trial_id=str(uuid.uuid4()),
            meme=Meme(picture=picture, text=ask.text, language=ask.language or None),
            procedure=ask.procedure,
            request_id=ask.request_id or str(uuid.uuid4()),
            namespace=ask.namespace,
            content_id=ask.content_id,
            trace_id=ask.trace_id or uuid.uuid4().hex,
        )
        record = await self.court.hear(case, keep)
        return Hearing(record, picture_seconds=decoded - began, total_seconds=time.perf_counter() - began)


@asynccontextmanager
async def open_courthouse(
    settings: Settings, *, read_text: bool = True, tell: Callable[[str], None] = lambda _: None
) -> AsyncIterator[Courthouse]:
    """Opens everything that the settings name, warm: the first ask is as quick as the next.

    Args:
        settings: What to open.
        read_text: Whether text will have to be read off pictures; if not, the reader is started only when it is needed.
        tell: Is told what takes long, in a sentence.

    Raises:
        BadLibrary: The library is missing, damaged or made with another encoder.
        DocketError: The docket can't be opened.
    """
    async with AsyncExitStack() as stack:
        docket = SqlDocket.open(settings.docket_path)
        stack.push_async_callback(docket.close)
        pictures = GuardedPictureReader(workers=settings.picture_workers)
        stack.push_async_callback(pictures.aclose)
        text_reader = OcrTextReader(workers=settings.text_workers)
        stack.push_async_callback(text_reader.aclose)
        tell("Loading the sentence encoder and the text reader …" if read_text else "Loading the sentence encoder …")
        loading = asyncio.to_thread(BuiltinEncoder)
        encoder = (await asyncio.gather(loading, text_reader.warm()))[0] if read_text else await loading
        library = await open_library(settings, encoder, pictures, tell)
        finder = LibraryFinder(library, encoder)
        stack.callback(finder.close)
        court = Court(
            finder=finder,
            text_reader=text_reader,
            software=SOFTWARE,
            settings=settings.trial,
        )
        yield Courthouse(court=court, pictures=pictures, docket=docket)


async def open_library(
    settings: Settings, encoder: Encoder, pictures: PictureReader, tell: Callable[[str], None] = lambda _: None
) -> Library:
    """The library that the settings name; without one, the starter library, which is made where it is not there yet.

    Raises:
        BadLibrary: It is missing, damaged or made with another encoder.
        Unavailable: Another process has been making the starter library for a minute and is not done.
    """
    if settings.library is not None:
        return await asyncio.to_thread(Library.open, settings.library, encoder.identity)
    # Named by what it is made of: an upgrade of ours makes a new one beside the old.
    made_of = digest({"memes": STARTER_MEMES.read_text("utf-8"), "encoder": encoder.identity.digest})
    path = settings.home / "libraries" / f"starter-{made_of.removeprefix('sha256:')[:12]}"
    for _ in range(120):
        if (path / CURRENT).exists():
            return await asyncio.to_thread(Library.open, path, encoder.identity)
        tell("Making the starter library of precedents, once …")
        try:
            return (await build_starter(path, encoder, pictures))[0]
        except (BadRequest, Unavailable) as error:
            if error.reason not in ("LIBRARY_EXISTS", "LIBRARY_LOCKED"):
                raise
            await asyncio.sleep(0.5)
    raise Unavailable("Another process is still making the starter library. Ask again in a minute.")
