"""The one place that wires things together: what is served, what judges on the command line and what is measured."""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

from court.backends.picture_reader import GuardedPictureReader
from court.backends.text_reader import OcrTextReader
from court.digests import digest
from court.errors import BadRequest, CantResume, NotLoaded, Unavailable
from court.events import (
    AnyEvent,
    MemeIdentity,
    PolicyReference,
    PrecedentsCited,
    Procedure,
    TextRead,
    TrialOpened,
    VerdictGiven,
    Versions,
)
from court.meme import Frame, Meme, Picture, PictureFormat, check_text
from court.policy import DEFAULT_POLICY, Policy
from court.ports import Keeper, PictureReader, Watcher
from court.record import TrialRecord
from court.trial import Case, Court
from retrieval.encoders.apart import EncoderApart
from retrieval.encoders.choose import load_encoder_for
from retrieval.encoders.embedding import Encoder
from retrieval.library.build import STARTER_MEMES, build_starter
from retrieval.library.following import follow
from retrieval.library.library import Library
from retrieval.library.manifest import FORMAT, USUAL
from retrieval.library.storage import CURRENT
from retrieval.postgres.address import Address
from retrieval.search.finder import LibraryFinder
from retrieval.search.pgvector import PgvectorFinder
from serving.docket.sql import docket_of
from serving.docket.store import Docket
from serving.models.bench import open_bench
from serving.reception.near import NearMemes
from serving.settings import Settings

SOFTWARE = version("memecourt")
_LARGE = 10**9
"""Bytes of a library from which on it is told how far its check is."""
_LONG_S = 2.0
"""Seconds that a step of warming takes before it is told how far it is."""


@dataclass(frozen=True, slots=True)
class Pins:
    """Versions that a caller insists on, each as a record gives it. What is empty may be anything.

    Attributes:
        models: Model per role, by the role's name in lower case.
        prompts: Digest of the prompt set.
        library: Digest of the library of precedents.
        encoder: Name and digest of the encoder.
        settings: Digest of the trial's settings.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    prompts: str = ""
    library: str = ""
    encoder: str = ""
    settings: str = ""


NO_PINS = Pins()


@dataclass(frozen=True, slots=True)
class PolicyPin:
    """The policy that a caller insists on, as a record gives it. What is empty may be anything."""

    id: str = ""
    version: str = ""
    digest: str = ""


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
        pins: What it must be tried with.
        try_anew: Whether it is tried also where the verdict of an earlier trial would serve.
        policy: The policy that it must be tried by; None for whichever is loaded.
    """

    image: bytes
    text: str | None = None
    language: str = ""
    procedure: Procedure = Procedure.SUMMARY
    request_id: str = ""
    namespace: str = ""
    content_id: str = ""
    trace_id: str = ""
    pins: Pins = NO_PINS
    try_anew: bool = False
    policy: PolicyPin | None = None

    def require(self, versions: Versions, policy: Policy | PolicyReference, library: str | None = None) -> None:
        """Raises NotLoaded if this is to be tried with something else.

        Args:
            versions: What a trial is or would be held with.
            policy: What it is held by.
            library: Digest of the library that precedents were found in, where they were: it may have been changed
                after the trial began. That of the versions if not given.
        """
        if self.pins != NO_PINS:
            held = {name: getattr(versions, name) for name in ("prompts", "library", "encoder", "settings")}
            if library is not None:
                held["library"] = library
            wanted = {name: getattr(self.pins, name) for name in held}
            for role, model in self.pins.models.items():
                wanted[f"models.{role}"], held[f"models.{role}"] = model, versions.models.get(role.upper(), "")
            for name, version in wanted.items():
                if version and version != held[name]:
                    raise NotLoaded(
                        f"The {name} asked for can't be had: {held[name] or 'none'} is loaded. Leave the pin out to "
                        "have the meme tried with that.",
                        reason="PIN_NOT_LOADED",
                        field=f"pins.{name}",
                    )
        asked = self.policy
        if asked is not None and any(
            wanted not in ("", loaded)
            for wanted, loaded in (
                (asked.id, policy.id),
                (asked.version, policy.version),
                (asked.digest, policy.digest),
            )
        ):
            raise NotLoaded(
                f"The policy that was asked for is not loaded; {policy.id} version {policy.version} ({policy.digest}) "
                "is. Leave the policy out to have that one applied.",
                reason="POLICY_NOT_LOADED",
                field="policy",
            )

    def require_of(self, record: TrialRecord) -> None:
        """Raises NotLoaded if a trial was held with something else than this is to be tried with."""
        cited = record.precedents
        self.require(record.opened.versions, record.opened.policy, cited.findings.library.digest if cited else None)


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
    """A court with everything around it: asks go in, kept records come out.

    Attributes:
        court: Tries.
        pictures: Decodes.
        docket: Keeps.
        near: Learns what each meme that was tried looks like; None where nobody wants to know.
    """

    court: Court
    pictures: PictureReader
    docket: Docket
    near: NearMemes | None = None

    async def hear(
        self,
        ask: Ask,
        watch: Watcher | None = None,
        *,
        within_s: float | None = None,
        trial_id: str | None = None,
        picture: Picture | None = None,
    ) -> Hearing:
        """Decodes, tries and keeps.

        Args:
            ask: What to try.
            watch: Is told of every event after the docket has kept it.
            within_s: Seconds until the caller's deadline; None where there is none.
            trial_id: Names the trial; None for a new name.
            picture: That of the ask, where it has been decoded.

        Raises:
            BadInput: The picture or the text can't be tried; nothing is recorded.
            NotLoaded: The procedure, or what the ask is pinned to, is not available; nothing is recorded.
            Unavailable: Something needed is not there now; nothing is recorded.
            TrialAborted: The trial began and failed; its record is kept.
        """
        began = time.perf_counter()
        if ask.text is not None:
            check_text(ask.text)  # before the picture: it costs nothing
        self.court.require(ask.procedure)
        if picture is None:
            picture = await self.pictures.read(ask.image)
        decoded = time.perf_counter()
        await self.docket.keep_picture(picture)

        case = Case(
            trial_id=trial_id or str(uuid.uuid4()),
            meme=Meme(picture=picture, text=ask.text, language=ask.language or None),
            procedure=ask.procedure,
            request_id=ask.request_id or str(uuid.uuid4()),
            namespace=ask.namespace,
            content_id=ask.content_id,
            trace_id=ask.trace_id or uuid.uuid4().hex,
            within_s=None if within_s is None else within_s - (time.perf_counter() - began),
        )
        record = await self.court.hear(case, self._keeping(watch, picture, ask.namespace, ask=ask))
        return Hearing(record, picture_seconds=decoded - began, total_seconds=time.perf_counter() - began)

    async def resume(
        self, trial_id: str, watch: Watcher | None = None, *, within_s: float | None = None, ask: Ask | None = None
    ) -> TrialRecord:
        """Takes a trial up where it was cut off.

        Args:
            trial_id: Which.
            watch: Is told of every event that comes now, after the docket has kept it.
            within_s: Seconds until the caller's deadline; None where there is none.
            ask: For whom, if for anybody.

        Raises:
            TrialUnknown: There is none of that id.
            CantResume: It is over, or was begun with other versions than are loaded now.
            TrialAborted: It failed again.
        """
        record = await self.docket.record(trial_id)
        kept = await self.docket.frames(record.opened.meme.pixels_sha256)
        if not kept:
            raise CantResume("The picture of that trial is not in the docket.", reason="PICTURE_MISSING")
        picture = picture_of(record.opened.meme, kept)
        keeping = self._keeping(watch, picture, record.opened.meme.namespace, record.text, ask, record.opened)
        return await self.court.resume(record, picture, keeping, within_s=within_s)

    def _keeping(
        self,
        watch: Watcher | None,
        picture: Picture,
        namespace: str,
        text: TextRead | None = None,
        ask: Ask | None = None,
        opened: TrialOpened | None = None,
    ) -> Keeper:
        async def keep(*events: AnyEvent) -> None:
            nonlocal text, opened
            for event in events:
                # What is loaded may change at any time: what counts is what the trial is held with.
                if ask is not None and isinstance(event, TrialOpened):
                    ask.require(event.versions, event.policy)
                    opened = event
                elif ask is not None and opened is not None and isinstance(event, PrecedentsCited):
                    ask.require(opened.versions, opened.policy, event.findings.library.digest)
                if isinstance(event, TextRead):
                    text = event
                if isinstance(event, VerdictGiven) and self.near is not None and text is not None:
                    # Before the verdict: a look without one is passed over, a verdict without one would be lost in a
                    # crash.
                    await self.near.learn(event.trial_id, picture, text.text, bool(text.reader), namespace)
            await self.docket.append(*events)
            if any(isinstance(event, TrialOpened) for event in events):
                # Once more: until this trial stood in the docket, the last other one of its picture could be erased.
                await self.docket.keep_picture(picture)
            if watch is not None:
                for event in events:
                    await watch(event)

        return keep


def picture_of(meme: MemeIdentity, kept: Sequence[bytes]) -> Picture:
    """The picture of a trial as it was decoded then, from the frames that the docket kept."""
    sizes = [struct.unpack(">II", png[16:24]) for png in kept]  # where a PNG says how large it is
    return Picture(
        format=PictureFormat(meme.format),
        bytes_sha256=meme.bytes_sha256,
        pixels_sha256=meme.pixels_sha256,
        width=meme.width,
        height=meme.height,
        frame_count=meme.frame_count,
        frames=tuple(
            Frame(png, width, height, index)
            for png, (width, height), index in zip(kept, sizes, meme.frames_used, strict=True)
        ),
    )


@asynccontextmanager
async def open_courthouse(
    settings: Settings,
    *,
    read_text: bool = True,
    tell: Callable[[str], None] = lambda _: None,
    follow_library: bool = False,
    encoder_apart: bool = False,
    duplicates: bool = True,
    patient: bool = False,
) -> AsyncIterator[Courthouse]:
    """Opens everything that the settings name, warm: the first ask is as quick as the next.

    Args:
        settings: What to open.
        read_text: Whether text will have to be read off pictures; if not, the reader is started only when it is needed.
        tell: Is told what takes long, in a sentence.
        follow_library: Whether changes of the library are searched a second later; else it stays as it was opened.
        encoder_apart: Whether the encoder runs in a process of its own, so that nobody waits for the interpreter beside
            it.
        duplicates: Whether memes tried before are looked for that are nearly the one on trial.
        patient: Whether model servers that do not answer are waited for.

    Raises:
        BadLibrary: The library is missing, damaged or made with another encoder.
        BadRequest: The policy or the encoder can't be used, or a model server is named by half.
        DocketError: The docket can't be opened.
        NotLoaded: The procedure that the settings ask for needs chat models, and none are named; or what runs the
            encoder is not installed.
        ModelRefused, Unavailable: A model server does not have the model, or does not answer; or the encoder's weights
            can't be fetched.
    """
    async with AsyncExitStack() as stack:
        policy = Policy.load(settings.policy) if settings.policy else DEFAULT_POLICY
        docket = await asyncio.to_thread(docket_of, settings)
        stack.push_async_callback(docket.close)
        await docket.sign()  # before the first trial: without the right key nothing could be kept of it
        near = NearMemes(docket, settings) if duplicates else None
        if near is not None:
            stack.push_async_callback(near.close)
        pictures = GuardedPictureReader(workers=settings.picture_workers)
        stack.push_async_callback(pictures.aclose)
        text_reader = OcrTextReader(workers=settings.text_workers)
        stack.push_async_callback(text_reader.aclose)
        tell("Loading the encoder and the text reader …" if read_text else "Loading the encoder …")
        load = partial(load_encoder_for, settings.library, settings.encoder)
        loading = asyncio.to_thread(partial(EncoderApart, load) if encoder_apart else load)
        encoder: Encoder = (await asyncio.gather(loading, text_reader.warm()))[0] if read_text else await loading
        if isinstance(encoder, EncoderApart):
            stack.callback(encoder.close)
        finder = await open_finder(settings, encoder, pictures, tell)
        stack.callback(finder.close)
        if isinstance(finder, LibraryFinder):
            await asyncio.to_thread(finder.warm, _warming(tell))
            if follow_library:
                following = asyncio.create_task(follow(finder, tell))
                stack.push_async_callback(_cancelled, following)
        chairs = await open_bench(settings, stack, tell, patient=patient)
        court = Court(
            finder=finder,
            text_reader=text_reader,
            software=SOFTWARE,
            settings=settings.trial,
            policy=policy,
            chairs=chairs,
            duplicates=near,
        )
        court.require(settings.procedure)
        if near is not None:
            await near.catch_up()
        yield Courthouse(court=court, pictures=pictures, docket=docket, near=near)


def _checking(tell: Callable[[str], None]) -> Callable[[int, int], None]:
    """Tells how much of a large library is read: that takes seconds a gigabyte, and warms it for the first search."""
    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        tenths = 10 * done // total
        if total >= _LARGE and tenths > told:
            told = tenths
            tell(f"Checking the precedent library: {10 * tenths} % of {total / 1e9:.1f} GB …")

    return progress


def _warming(tell: Callable[[str], None]) -> Callable[[str, int, int], None]:
    """Tells how far each step is, where it takes long: a step that is done within seconds tells nothing."""
    began: dict[str, float] = {}
    told: dict[str, int] = {}

    def progress(step: str, done: int, total: int) -> None:
        now = time.monotonic()
        tenths = 10 * done // total
        if now - began.setdefault(step, now) > _LONG_S and tenths > told.get(step, 0):
            told[step] = tenths
            tell(f"Warming the precedent library: {10 * tenths} % of {total:,} {step} …")

    return progress


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def open_finder(
    settings: Settings, encoder: Encoder, pictures: PictureReader, tell: Callable[[str], None] = lambda _: None
) -> LibraryFinder | PgvectorFinder:
    """What finds precedents in the library that the settings name, on disk or in a database; whoever has it closes it.

    Raises:
        NotLoaded: It lies in a database, and the driver is not installed.
        BadLibrary, Unavailable: As :func:`open_library`; or the database is away.
    """
    if isinstance(settings.library, Address):
        return await PgvectorFinder.open(settings.library, encoder)
    return LibraryFinder(await open_library(settings, encoder, pictures, tell), encoder)


async def open_library(
    settings: Settings, encoder: Encoder, pictures: PictureReader, tell: Callable[[str], None] = lambda _: None
) -> Library:
    """The library that the settings name; without one, the starter library, which is made where it is not there yet.

    Raises:
        BadRequest: It lies in a database.
        BadLibrary: It is missing, damaged or made with another encoder.
        Unavailable: Another process has been making the starter library for a minute and is not done.
    """
    if isinstance(settings.library, Address):
        raise BadRequest("This needs a precedent library on disk: name its folder.", field="library")
    if settings.library is not None:
        progress = _checking(tell)
        return await asyncio.to_thread(Library.open, settings.library, encoder.identity, progress=progress)
    # Named by what it is made of: an upgrade of ours makes a new one beside the old.
    built = {"format": FORMAT, "safeguards": USUAL.model_dump(mode="json")}
    made_of = digest({"memes": STARTER_MEMES.read_text("utf-8"), "encoder": encoder.identity.digest, **built})
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
