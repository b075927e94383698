"""Composition root: builds the court for the server, the command line and the benchmarks from the settings."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from court.audition import Audition
from court.backends.ocr.reader import open_reader
from court.backends.pictures.reader import GuardedPictureReader
from court.deadline import cancel_all
from court.digests import digest
from court.errors import BadRequest, Unavailable
from court.events import Procedure, VerdictReviewed
from court.policy import DEFAULT_POLICY, Policy
from court.ports import BindingFinder, EvidenceSource, PictureReader, PrecedentFinder
from court.prompts.sets import open_set
from court.settings import TrialSettings
from court.trial import Court
from retrieval.build import STARTER_MEMES, build_starter
from retrieval.embed.encoder import Encoder
from retrieval.embed.process import EncoderProcess
from retrieval.facts.endpoint import Endpoint, EndpointEvidence, ResultPaths
from retrieval.facts.pages import PageFetcher
from retrieval.facts.source import CorpusEvidence
from retrieval.library.library import Library
from retrieval.library.manifest import FORMAT, USUAL
from retrieval.library.postgres.address import Address
from retrieval.library.storage import CURRENT
from retrieval.open import choose_encoder, load_encoder_for, open_facts, open_writer, open_writer_of
from retrieval.precedents.finder import LibraryFinder, NoLibrary, follow
from retrieval.precedents.postgres_finder import PgvectorFinder
from serving.docket.open import Docket, open_docket
from serving.docket.retention import WHO
from serving.docket.review.corrections import Corrections, Overrulings, forget_precedent, keep_precedents
from serving.docket.review.projection import Rules
from serving.judging.executor import TrialExecutor
from serving.judging.near_duplicates import NearDuplicateIndex
from serving.models.connect import connect_models
from serving.rpc.health import COURT, DOCKET, DOCKET_WITHIN_S, OVERALL, PRECEDENTS, ModelProbe, ReadinessCheck
from serving.settings import EvidenceSettings, RoleName, Settings
from serving.telemetry import SILENT
from serving.version import SOFTWARE

if TYPE_CHECKING:
    from serving.console.registry import Reviewing
    from serving.telemetry.metrics import Metrics


_LARGE_LIBRARY = 10**9
"""Size in bytes from which the check of a library reports its progress."""
_LONG_S = 2.0
"""Seconds after which a warm-up step reports its progress."""

_READINESS = "readiness"
"""Name under which health checks write to the table of servers."""


@asynccontextmanager
async def open_court(
    settings: Settings,
    *,
    read_text: bool = True,
    tell: Callable[[str], None] = lambda _: None,
    follow_library: bool = False,
    encoder_apart: bool = False,
    duplicates: bool = True,
    patient: bool = False,
    may_be_blind: Collection[RoleName] = (),
    search: bool = True,
) -> AsyncIterator[TrialExecutor]:
    """Opens and warms up everything that the settings name, so that the first request is as fast as later ones.

    Args:
        tell: Called with a sentence about each slow startup step.
        follow_library: True to pick up changes of the library within a second; otherwise it stays as it was opened.
        encoder_apart: True to run the encoder in its own process, so that it does not block this interpreter.
        duplicates: True to look for near-duplicates among memes tried before.
        patient: True to wait for model servers that do not answer yet.
        search: False to open neither encoder nor library, when no trial is run and nothing is searched.

    Raises:
        BadLibrary: The library is missing, damaged or made with another encoder.
        BadRequest: The policy, the prompts or the encoder can't be used, or the settings of a model server are
            incomplete.
        DocketError: The docket can't be opened.
        NotLoaded: The configured procedure needs chat models and none are named, or a package for the encoder or the
            text reader is not installed.
        ModelRefused, Unavailable: A model server does not have the model, or does not answer; or the encoder's weights
            can't be fetched.
    """
    async with AsyncExitStack() as stack:
        policy = Policy.load(settings.policy) if settings.policy else DEFAULT_POLICY
        prompts = open_set(settings.trial.prompts)
        if isinstance(settings.docket_place, Path) and not settings.docket_place.exists():
            tell(f"Making a docket at {settings.docket_place} …")
        docket = await asyncio.to_thread(open_docket, settings)
        # Opened first and so closed last: everything closed before it may still have something to write.
        stack.push_async_callback(docket.close)
        await docket.log.sign()  # before the first trial, which could not be stored without the right key
        index = _duplicate_index(docket, settings) if duplicates else None
        if index is not None:
            stack.push_async_callback(index.close)
        pictures = GuardedPictureReader(workers=settings.picture_workers)
        stack.push_async_callback(pictures.aclose)
        text_reader = await asyncio.to_thread(open_reader, settings.reader, workers=settings.text_workers)
        if text_reader is not None:
            stack.push_async_callback(text_reader.aclose)
        reads = text_reader is not None and read_text
        warm = [part.warm for part in (text_reader if reads else None, index) if part is not None]
        finders: dict[Path | Address | None, LibraryFinder | PgvectorFinder] = {}
        encoder: Encoder | None = None
        if search:
            load = await asyncio.to_thread(choose_encoder, settings.library, settings.encoder)
            tell("Loading the encoder and the text reader …" if reads else "Loading the encoder …")
            # Concurrently: each takes seconds, and they share nothing.
            loading = asyncio.to_thread(partial(EncoderProcess, load) if encoder_apart else load)
            warming = asyncio.gather(*(begin() for begin in warm))
            encoder = (await asyncio.gather(loading, warming))[0]
            if isinstance(encoder, EncoderProcess):
                stack.callback(encoder.close)
            # The court's own library first, then each library of a namespace once.
            for address in (settings.library, *(each.library for each in settings.namespaces.values() if each.library)):
                if address not in finders:
                    # All use the court's encoder: a library built with another one is refused when opened.
                    own = settings.model_copy(update={"library": address})
                    finders[address] = await _open_followed(
                        own, encoder, pictures, tell=tell, stack=stack, following=follow_library
                    )
        else:
            await asyncio.gather(*(begin() for begin in warm))
        finder = finders.get(settings.library, NoLibrary())
        role_models = await connect_models(settings, stack, tell, patient=patient, may_be_blind=may_be_blind)
        source = None
        # Without search no trial is run, so no expert witness is needed.
        if encoder is not None and settings.trial.expert != "off":
            source = await open_evidence(settings, stack, encoder)
        court = Court(
            finder=finder,
            text_reader=text_reader,
            software=SOFTWARE,
            settings=_probing(settings),
            policy=policy,
            prompts=prompts,
            role_models=role_models,
            duplicates=index,
            evidence_source=source,
            bindings=_binding_in(finder, settings),
        )
        if settings.audition is not None:
            court = replace(court, audition=_audition(settings.audition, court, tell))
        # Checked at startup rather than with the first request: the full procedure needs models.
        court.require(settings.procedure)
        courts = {}
        for name, each in settings.namespaces.items():
            if each.policy or each.library:
                own_finder = finders.get(each.library, finder) if each.library else finder
                courts[name] = replace(
                    court,
                    policy=Policy.load(each.policy) if each.policy else policy,
                    finder=own_finder,
                    bindings=_binding_in(own_finder, settings),
                )
        # Before the first request, which would otherwise wait for it.
        if index is not None:
            await index.catch_up()
        yield TrialExecutor(
            court=court, pictures=pictures, docket=docket, near=index, courts=courts, flip_share=settings.flip_share
        )


def _probing(settings: Settings) -> TrialSettings:
    """Returns the settings of trials, which need the odds that an audition weighs."""
    as_set = settings.audition is None or "probes" in settings.trial.model_fields_set
    return settings.trial if as_set else settings.trial.model_copy(update={"probes": True})


def _audition(path: Path, court: Court, tell: Callable[[str], None]) -> Audition:
    """Reads an audition, and tells if it does not fit the court. Raises BadRequest if it can't be used."""
    audition = Audition.load(path)
    if changed := audition.bound.changed(court.bound(Procedure.FULL)):
        tell(
            f"The audition {path.name} does not count: it was of other {', '.join(changed)}. Full verdicts that no "
            "sure vote of the precedents agrees with go to a person (MODEL_NOT_AUDITIONED)."
        )
    return audition


def _binding_in(finder: PrecedentFinder, settings: Settings) -> BindingFinder | None:
    """Returns the finder of binding precedents; None if none binds."""
    return finder if settings.binding == "exact" and isinstance(finder, LibraryFinder | PgvectorFinder) else None


async def _open_followed(
    settings: Settings,
    encoder: Encoder,
    pictures: PictureReader,
    *,
    tell: Callable[[str], None],
    stack: AsyncExitStack,
    following: bool,
) -> LibraryFinder | PgvectorFinder:
    """Opens and warms up a finder, which is closed with the stack."""
    finder = await open_finder(settings, encoder, pictures, tell)
    stack.callback(finder.close)
    if isinstance(finder, LibraryFinder):
        await asyncio.to_thread(finder.warm, _warming(tell))
        if following:
            stack.push_async_callback(cancel_all, asyncio.create_task(follow(finder, tell)))
    return finder


def _check_progress(tell: Callable[[str], None]) -> Callable[[int, int], None]:
    """Reports the progress of checking a large library, which takes seconds per gigabyte and warms the page cache."""
    announced = 0

    def progress(done: int, total: int) -> None:
        nonlocal announced
        tenths = 10 * done // total
        if total >= _LARGE_LIBRARY and tenths > announced:
            announced = tenths
            tell(f"Checking the precedent library: {10 * tenths} % of {total / 1e9:.1f} GB …")

    return progress


def _warming(tell: Callable[[str], None]) -> Callable[[str, int, int], None]:
    """Reports the progress of slow steps only: a step that finishes within seconds is not mentioned."""
    began: dict[str, float] = {}
    announced: dict[str, int] = {}

    def progress(step: str, done: int, total: int) -> None:
        now = time.monotonic()
        tenths = 10 * done // total
        if now - began.setdefault(step, now) > _LONG_S and tenths > announced.get(step, 0):
            announced[step] = tenths
            tell(f"Warming the precedent library: {10 * tenths} % of {total:,} {step} …")

    return progress


async def open_finder(
    settings: Settings, encoder: Encoder, pictures: PictureReader, tell: Callable[[str], None] = lambda _: None
) -> LibraryFinder | PgvectorFinder:
    """Opens the finder for the precedent library in the settings, on disk or in a database; the caller closes it.

    Raises:
        NotLoaded: The library is in a database, and the driver is not installed.
        BadLibrary, Unavailable: As :func:`open_library`; or the database can't be reached.
    """
    if isinstance(settings.library, Address):
        return await PgvectorFinder.open(settings.library, encoder)
    return LibraryFinder(await open_library(settings, encoder, pictures, tell), encoder)


async def open_library(
    settings: Settings, encoder: Encoder, pictures: PictureReader, tell: Callable[[str], None] = lambda _: None
) -> Library:
    """Opens the library that the settings name, or else the starter library, which is built if missing.

    Raises:
        BadRequest: The library is in a database.
        BadLibrary: The library is missing, damaged or made with another encoder.
        Unavailable: Another process has been building the starter library for a minute and has not finished.
    """
    if isinstance(settings.library, Address):
        raise BadRequest("This needs a precedent library on disk: name its folder.", field="library")
    if settings.library is not None:
        progress = _check_progress(tell)
        return await asyncio.to_thread(Library.open, settings.library, encoder.identity, progress=progress)
    # Named by a digest of its inputs, so that an upgrade of MemeCourt builds a new one next to the old.
    built = {"format": FORMAT, "safeguards": USUAL.model_dump(mode="json"), "for_texts_alone": True}
    made_of = digest({"memes": STARTER_MEMES.read_text("utf-8"), "encoder": encoder.identity.digest, **built})
    path = settings.home / "libraries" / f"starter-{made_of.removeprefix('sha256:')[:12]}"
    # Retries for a minute, every half second: several processes that start together build one library.
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


def _duplicate_index(docket: Docket, settings: Settings) -> NearDuplicateIndex:
    """Builds the index that searches a docket's fingerprints."""
    return NearDuplicateIndex(
        fingerprints=docket.fingerprints, trials=docket.trials, index=docket.index, settings=settings
    )


def rules_of(settings: Settings) -> Rules:
    """Returns the rules that send a verdict to review without anybody asking for it."""
    shares = {name: each.review_share for name, each in settings.namespaces.items() if each.review_share is not None}
    return Rules(sure=settings.review_below, sampled=settings.review_share, sampled_in=shares)


def reviewing_in_court(
    executor: TrialExecutor,
    settings: Settings,
    on_reviewed: Callable[[VerdictReviewed], None],
    on_withdrawn: Callable[[], None],
) -> Reviewing:
    """Returns the review pages' dependencies for a console that is served by the court's own process."""
    # Imported lazily: the console's packages are an optional extra, and a server without a console works without them.
    from serving.console.registry import Reviewing

    return Reviewing(
        queue=executor.docket.review_queue(rules_of(settings)),
        corrections=corrections_for(executor, settings),
        duplicates=executor.near,
        blind_first=settings.blind_first,
        starter=settings.library is None,
        on_reviewed=on_reviewed,
        on_withdrawn=on_withdrawn,
    )


@asynccontextmanager
async def open_reviewing(
    docket: Docket, settings: Settings, metrics: Metrics = SILENT.metrics
) -> AsyncIterator[Reviewing]:
    """Yields them for a console in its own process; the encoder is loaded when the first precedent is made.

    Near-duplicates are searched in all namespaces here; what a visitor is shown is limited to their own.
    """
    from serving.console.registry import Reviewing

    open_set(settings.trial.prompts)  # needed to rebuild the messages of trials that used this prompt set
    corrections = None
    library = settings.library or _starter(settings)
    if library is not None:

        @cache
        def encoder() -> Encoder:
            return load_encoder_for(library, settings.encoder)

        overrulings = Overrulings(settings.overrulings)
        own = {name: partial(open_writer, each.library) for name, each in settings.namespaces.items() if each.library}
        corrections = Corrections(lambda: open_writer(library), encoder, docket.trials, overrulings, own=own)
    index = _duplicate_index(docket, settings.model_copy(update={"reuse": "everywhere"}))
    queue = docket.review_queue(rules_of(settings))
    following = asyncio.create_task(keep_precedents(corrections, queue)) if corrections else None
    try:
        yield Reviewing(
            queue=queue,
            corrections=corrections,
            duplicates=index,
            blind_first=settings.blind_first,
            starter=settings.library is None,
            on_reviewed=lambda event: metrics.count("reviews", event.outcome),
        )
    finally:
        if following is not None:
            await cancel_all(following)
        await index.close()


def _starter(settings: Settings) -> Path | Address | None:
    """Returns the starter library that was used last; None if none has been built yet."""
    made = [path.parent for path in (settings.home / "libraries").glob(f"starter-*/{CURRENT}")]
    # An upgrade builds a new one next to the old; the one written to last is in use.
    return max(made, key=lambda path: (path / CURRENT).stat().st_mtime, default=None)


def corrections_for(executor: TrialExecutor, settings: Settings) -> Corrections | None:
    """Returns the maker of precedents from overrulings; None if the court's library can't be changed."""
    finder = executor.court.finder
    if not isinstance(finder, LibraryFinder | PgvectorFinder):
        return None
    overrulings = Overrulings(settings.overrulings)
    own = {
        name: partial(open_writer_of, court.finder)
        for name, court in executor.courts.items()
        if court.finder is not finder and isinstance(court.finder, LibraryFinder | PgvectorFinder)
    }
    return Corrections(
        lambda: open_writer_of(finder), lambda: finder.encoder, executor.docket.trials, overrulings, own=own
    )


async def forget_in_library(settings: Settings, precedent_id: str, *, who: str, why: str) -> bool:
    """Deletes a precedent from all libraries that the settings name; True if any of them contained it."""
    # From all of them: a namespace may have had another library when the trial was overruled.
    addresses = {settings.library or _starter(settings), *(each.library for each in settings.namespaces.values())} - {
        None
    }
    found = False
    # As text, since paths and addresses can't be compared with each other.
    for address in sorted(addresses, key=str):
        assert address is not None
        found |= await forget_precedent(partial(open_writer, address), precedent_id, who=who, why=why)
    return found


def forget_by(executor: TrialExecutor) -> Callable[[str], Awaitable[bool]] | None:
    """Returns a function that deletes the precedents of expired trials; None if no library can be changed."""
    # By identity: several namespaces may share a library, and each change of it would be made twice.
    finders = {id(court.finder): court.finder for court in (executor.court, *executor.courts.values())}
    changeable = [each for each in finders.values() if isinstance(each, LibraryFinder | PgvectorFinder)]
    if not changeable:
        return None

    async def forget(name: str) -> bool:
        found = False
        for finder in changeable:
            opened = partial(open_writer_of, finder)
            found |= await forget_precedent(opened, name, who=WHO, why="The trial was erased.")
        return found

    return forget


def readiness_checks(executor: TrialExecutor, settings: Settings) -> dict[str, Sequence[ReadinessCheck]]:
    """Returns the readiness checks of each service's dependencies."""

    async def docket() -> None:
        try:
            # Not wait_for(): before Python 3.12 it swallows a cancellation that comes together with the answer.
            async with asyncio.timeout(DOCKET_WITHIN_S):
                # A real write: a docket on a full disk, or locked by another, can still be read.
                await executor.docket.heartbeats.beat(_READINESS)
        except TimeoutError:
            raise Unavailable("The docket does not answer.", reason="DOCKET_UNAVAILABLE") from None

    async def encoder() -> None:
        finder = executor.court.finder
        if isinstance(finder, LibraryFinder | PgvectorFinder) and isinstance(finder.encoder, EncoderProcess):
            # In a thread: if the process could not be started, this tries again, which takes seconds.
            await asyncio.to_thread(finder.encoder.check)

    models: list[ReadinessCheck] = []
    # A court that runs summary trials serves without its models, even while they are down.
    if executor.court.role_models is not None and settings.procedure is not Procedure.SUMMARY:
        from court.backends.chat.client import ChatCompletions

        role_models = (*executor.court.role_models.by_role.values(), *executor.court.role_models.judges)
        # By identity: a model that several roles share is probed once.
        by_id = {id(role_model.model): role_model.model for role_model in role_models}
        models = [ModelProbe(model) for model in by_id.values() if isinstance(model, ChatCompletions)]
    everything = [docket, encoder, *models]
    return {COURT: everything, OVERALL: everything, DOCKET: [docket], PRECEDENTS: [encoder]}


async def open_evidence(
    settings: Settings, stack: AsyncExitStack, encoder: Encoder | None = None
) -> EvidenceSource | None:
    """Opens the source of evidence in the settings; None if there is none.

    Args:
        encoder: The court's encoder, which a corpus may have been built with.

    Raises:
        BadLibrary: The corpus is missing, damaged or was built with another encoder.
        BadRequest: The encoder can't be used, or the key of the endpoint is not set.
        NotLoaded: The packages that search a corpus, or run the encoder, are not installed.
    """
    named = settings.expert
    if named.corpus is not None:
        corpus, name = named.corpus, named.encoder
        return CorpusEvidence(await asyncio.to_thread(lambda: open_facts(corpus, name, at_hand=encoder)))
    if named.url is None:
        return None
    paths = ResultPaths(**named.paths.model_dump())
    endpoint = Endpoint(named.url, named.shape, key=_key(named), paths=paths, query=named.query)
    source = EndpointEvidence(endpoint, PageFetcher() if named.fetch else None)
    stack.push_async_callback(source.aclose)
    return source


def _key(named: EvidenceSettings) -> str | None:
    if named.key_env is None:
        return None
    key = os.environ.get(named.key_env)
    if not key:
        raise BadRequest(
            f"The key of the search endpoint is to be in the environment variable {named.key_env}, which is not set.",
            reason="KEY_MISSING",
            field="expert.key_env",
        )
    return key
