"""The gRPC server: listens, says whether it is well, and goes down without dropping what it holds."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import gc
import logging
import resource
import signal
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc

from court.deadline import gather_or_cancel
from court.errors import BadRequest, CourtError, NotLoaded, Unavailable
from retrieval.open import require_library
from retrieval.precedents.finder import LibraryFinder
from retrieval.precedents.postgres_finder import PgvectorFinder
from serving.access.exposure import is_port, only_here, require_guarded
from serving.access.reload import follow_files
from serving.access.tls import WHAT as CERTIFICATES
from serving.access.tls import Certificates
from serving.access.tokens import WHAT as TOKENS
from serving.access.tokens import Tokens
from serving.docket.audit.anchoring import keep_anchored, open_witness
from serving.docket.retention import keep_retention, retention_periods
from serving.rpc.docket import DocketService
from serving.rpc.flow_control import ReceiveBudget
from serving.rpc.health import COURT, DOCKET, PRECEDENTS, SERVING, Health, run_health_checks
from serving.rpc.judge import CourtService
from serving.rpc.methods import Methods
from serving.rpc.precedents import PrecedentsService
from serving.rpc.server import make_server
from serving.runner.admission import Admission
from serving.runner.executor import TrialExecutor
from serving.runner.runner import TrialRunner
from serving.runner.shadow import Shadow
from serving.settings import Settings
from serving.telemetry import Telemetry, open_telemetry
from serving.telemetry.docket_state import measure_docket, measure_sample
from serving.webhooks.attempts import Receiver
from serving.webhooks.messages import PRECEDENT_CHANGED
from serving.webhooks.precedents import note_precedent_changes
from serving.webhooks.sender import send_webhooks
from serving.wiring import corrections_for, forget_by, open_court, open_shadow, readiness_checks, rules_of

_ANSWERED_S = 5.0
"""Seconds in which the callers of trials that were ended are told so: each end is kept first, and there may be many."""
_LAST_S = 2.0
"""Seconds at the very end for answers that are on their way, and for calls that are no trials."""

_MOST_FILES = 65_536
_ALLOCATION = {-3: 128 * 1024, -1: 128 * 1024}
"""For glibc, by the option's number: M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, with the values that it begins with."""


_log = logging.getLogger("memecourt.server")

T = TypeVar("T")


async def serve(
    settings: Settings,
    address: str,
    *,
    resume: bool = False,
    ended: Callable[[], Awaitable[int]] | None = None,
    bound: Callable[[str], None] = lambda _: None,
    ready: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Serves until SIGTERM or SIGINT, then lets running trials finish within the grace.

    Args:
        settings: Settings of the server.
        address: ``host:port``; port 0 for a free one.
        resume: True to resume interrupted trials, beside the new ones.
        ended: Returns when a model server that was started for this court has ended by itself; the court then ends too.
        bound: Is told the address with its port as soon as the server listens.
        ready: Is called when asks are heard.
        tell: Is told what takes long, in a sentence.

    Raises:
        BadRequest: An address can't be listened on, or certificates or tokens can't be used.
        CourtError: The courthouse can't be opened.
        Unavailable: The model server ended.
    """
    give_memory_back()
    allow_open_files()
    async with AsyncExitStack() as stack:
        host, colon, port_text = address.rpartition(":")
        if not address.startswith("unix") and not (colon and is_port(port_text)):
            # gRPC would take ports modulo 65,536, and listen where nobody looks.
            raise _unusable(address, "its port is no number from 0 to 65535")
        # BO-4: before anything listens.
        require_guarded("The server", host, settings, field="address")
        # Certificates and tokens are read before anything listens: a server that can't enforce them never serves.
        certificates = Certificates.of(settings)
        tokens = Tokens.of(settings.tokens) if settings.tokens else None
        libraries = [settings.library, *(each.library for each in settings.namespaces.values())]
        # Before anything that takes long: a library that is missing is told at once.
        for library in (*libraries, settings.shadow.library if settings.shadow else None):
            await asyncio.to_thread(require_library, library)
        # These fail here too where their settings are wrong, and not hours later with the first checkpoint or message.
        anchor = open_witness(settings.anchor) if settings.anchor else None
        receivers = [Receiver(hook) for hook in settings.webhooks]
        telemetry = await stack.enter_async_context(open_telemetry(settings))
        memory = ReceiveBudget(settings.picture_memory, settings.idle)
        services = (
            CourtService(settings, telemetry, memory=memory),
            DocketService(telemetry, memory=memory),
            PrecedentsService(memory),
        )
        methods = Methods(*services, tokens=tokens, telemetry=telemetry)
        server, health = await make_server(methods, reflect=settings.reflection)
        telemetry.observe_serving((COURT, DOCKET, PRECEDENTS), lambda name: health.status(name) == SERVING)
        if certificates is not None:
            telemetry.observe_certificate(lambda: certificates.expires)
        port = _listen(server, address, certificates)
        stopping = stop_signals()
        # Before the court is opened, which may take long: meanwhile health answers, and a port that is taken is
        # reported at once.
        await server.start()
        # For when something fails: in the usual course the server has stopped by then.
        stack.push_async_callback(server.stop, 0)
        bound(f"{host}:{port}")
        if settings.http:
            keys = [signer.public_key for receiver in receivers for signer in receiver.signers if signer.public_key]
            tell(f"http on {await stack.enter_async_context(_http(methods, health, settings, keys))}")
        if settings.insecure and not only_here(host):
            lifted = ", ".join(settings.insecure)
            _log.warning("others than this machine can connect, and this was not asked for: %s", lifted)
        if certificates is not None:
            _beside(stack, follow_files(certificates.paths, certificates.use, CERTIFICATES, certificates.contents))
        if tokens is not None:
            _beside(stack, follow_files([tokens.path], tokens.use, TOKENS, tokens.contents))
        # Before the court is opened, which waits for its models: a server that has died would be waited for in vain.
        widowed = _beside(stack, _stop_when(ended, stopping))
        opening = stack.enter_async_context(
            open_court(settings, tell=tell, follow_library=True, encoder_apart=True, patient=True)
        )
        house = await _unless(stopping, opening)
        if house is not None:
            if isinstance(place := settings.docket_place, Path) and not stack.enter_context(lock_docket(place)):
                tell(
                    f"Another server of this machine serves the docket {place} too: its trials are listed here, and "
                    "each answers its own callers."
                )
            if anchor is not None:
                telemetry.anchored(0)
                _beside(stack, keep_anchored(house.docket.log, anchor, on_anchored=telemetry.anchored))
            if settings.metrics:
                # Only where somebody reads it: measuring asks the docket again and again.
                house.docket.transactions.written = telemetry.docket_written
                _beside(stack, measure_docket(telemetry, house.docket.reviews, house.docket.log))
                queue, wanted = house.docket.review_queue(rules_of(settings)), settings.trial.review_risk
                _beside(stack, measure_sample(telemetry, queue, house.docket.trials, wanted=wanted))
            if retention_periods(settings):
                forget = forget_by(house)
                _beside(stack, keep_retention(house.docket, settings, forget=forget, report=telemetry.expired))
            if receivers:
                _start_webhooks(stack, house, receivers, telemetry)
            if settings.console:
                tell(f"console on {await stack.enter_async_context(_console(house, settings, tokens, services[1]))}")
            await _hold_court(
                house,
                settings,
                services=services,
                health=health,
                telemetry=telemetry,
                stopping=stopping,
                resume=resume,
                ready=ready,
            )
        health.end()
        await server.stop(_LAST_S)
        if widowed.done():
            # After an orderly end, so that what supervises this process sees a failure and starts both again.
            raise Unavailable("The model server ended by itself, and the court with it.", reason="MODEL_SERVER_ENDED")


def _start_webhooks(
    stack: AsyncExitStack, house: TrialExecutor, receivers: Sequence[Receiver], telemetry: Telemetry
) -> None:
    """Sends webhooks beside the trials, and has changes of precedents put on record where somebody is told of them."""
    _beside(stack, send_webhooks(house.docket, receivers, telemetry=telemetry))
    finder = house.court.finder
    wanted = any(PRECEDENT_CHANGED in receiver.settings.events for receiver in receivers)
    if wanted and isinstance(finder, LibraryFinder | PgvectorFinder):
        _beside(stack, note_precedent_changes(house.docket.reviews, finder))


@contextmanager
def lock_docket(docket: Path) -> Iterator[bool]:
    """True if no other server of this machine holds this file of a docket; until the block is left, this one does.

    Several may serve one docket. That is told, for it is seldom meant where each was started by hand.
    """
    with docket.with_name(f"{docket.name}-serving").open("ab") as lock:
        try:
            # The system gives such a lock back also when the process is killed.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _http(
    methods: Methods, health: Health, settings: Settings, webhook_keys: Sequence[str]
) -> AbstractAsyncContextManager[str]:
    """The HTTP API beside gRPC, over the same methods."""
    assert settings.http is not None
    try:
        from serving.rest.serve import open_api
    except ModuleNotFoundError as error:
        raise NotLoaded(
            f"The HTTP API is not installed ({error.name} is missing): pip install 'memecourt[http]'."
        ) from None
    return open_api(methods, health, settings, settings.http, webhook_keys=webhook_keys)


def _console(
    house: TrialExecutor, settings: Settings, tokens: Tokens | None, docket: DocketService
) -> AbstractAsyncContextManager[str]:
    """The console beside gRPC, on the same docket and for the same tokens."""
    try:
        from serving.console.serve import open_console
        from serving.wiring import parts_beside
    except ModuleNotFoundError as error:
        raise NotLoaded(
            f"The console is not installed ({error.name} is missing): pip install 'memecourt[console]'."
        ) from None
    assert settings.console is not None
    parts = parts_beside(house, settings, docket.reviewed)
    return open_console(
        house.docket, settings, settings.console, tokens=tokens, pictures=house.court.finder, parts=parts
    )


async def _run_shadow(house: TrialExecutor, settings: Settings, admission: Admission, telemetry: Telemetry) -> None:
    """Opens the shadow and lets it try, until this is cancelled; the court neither waits for it nor ends with it."""
    try:
        async with open_shadow(house, settings, _log.info) as candidate:
            shadow = Shadow(house, admission, candidate, telemetry.shadow_tried)
            house.feed.subscribe(shadow.note)
            await gather_or_cancel(shadow.run(), shadow.follow_erasures())
    # A candidate that can't be opened is a fault of its settings, and no reason to stop the court.
    except CourtError as error:
        _log.error("the shadow does not judge: %s reason=%s", error.message, error.reason)


async def _hold_court(
    house: TrialExecutor,
    settings: Settings,
    *,
    services: tuple[CourtService, DocketService, PrecedentsService],
    health: Health,
    telemetry: Telemetry,
    stopping: asyncio.Event,
    resume: bool,
    ready: Callable[[], None],
) -> None:
    """From when asks are heard until the last of them has its answer."""
    court, docket, precedents = services
    telemetry.observe(library=lambda: house.court.finder.library.size)
    if house.court.chairs is not None:
        telemetry.prefix_cache(house.court.chairs.models, house.court.chairs.prefix_cache)
    async with AsyncExitStack() as last, AsyncExitStack() as stack:
        reception = await stack.enter_async_context(TrialRunner(house, settings, telemetry, memory=court.memory))
        court.open(house, reception)
        docket.open(house, reception.forget, corrections_for(house, settings))
        precedents.open(house, reception.decoders)
        if settings.shadow is not None:
            _beside(stack, _run_shadow(house, settings, reception.admission, telemetry))
        _beside(stack, run_health_checks(health, readiness_checks(house, settings)))
        # Ends with the reception: cancelled before, what it holds would be ended as if its caller had left.
        resuming = {_beside(last, reception.resume_cut_off())} if resume else set()
        if await _unless(stopping, health.until_serving(COURT)):
            _settle_down()
            stack.callback(gc.unfreeze)  # libraries in C complain of what is still there when the process ends
            ready()
        await stopping.wait()
        _log.info("stopping: running trials have %.0f s to finish", settings.grace)
        # First of all, so that whoever sends requests here sends them elsewhere while these are still answered.
        health.end()
        court.close()
        reception.close()
        await asyncio.gather(court.empty(settings.grace), _over(resuming, settings.grace))
    # The reception has ended what was left, and its callers are being told.
    await court.empty(_ANSWERED_S)
    court.memory.close()
    docket.close()
    precedents.close()
    await precedents.empty(_LAST_S)


def give_memory_back() -> None:
    """From now on what large things took in this process is the system's again when they are gone.

    glibc raises its thresholds by itself with what is freed: pictures would come to lie in the arenas of some forty
    threads, which keep what each of them needed at most. Other C libraries do as they do.
    """
    if setting := getattr(ctypes.CDLL(None), "mallopt", None):
        for option, size in _ALLOCATION.items():
            setting(option, size)


def allow_open_files() -> None:
    """Lets this process have as many files and connections open as its hard limit says, up to 65,536.

    The soft limit is 1,024 almost everywhere, for programs that use ``select``: as many silent connections would shut
    everybody out until they are closed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            # A system that refuses is no reason not to serve: with fewer files the server only takes fewer connections.
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _settle_down() -> None:
    """Freezes present objects, so that the garbage collector does not scan them again while callers wait."""
    # First, so that nothing that could go is frozen with the rest.
    gc.collect()
    gc.freeze()


def _beside(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Has something done until the stack is left. Where it fails, that is logged: it would be missed."""
    task = asyncio.create_task(work)

    def log(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (error := done.exception()):
            _log.error("%s ended: %s", done.get_coro().__qualname__, type(error).__qualname__)  # type: ignore[union-attr]

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    task.add_done_callback(log)
    stack.push_async_callback(end)
    return task


async def _over(tasks: Collection[asyncio.Task[None]], seconds: float) -> None:
    """Waits for them, at most so long."""
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Runs a coroutine and returns its result, or cancels it and returns None once the server is told to stop."""
    doing, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    await asyncio.wait((doing, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if doing.done():
        return doing.result()
    doing.cancel()
    # Until it has really ended: what it has opened is closed by then.
    await asyncio.wait((doing,))
    return None


async def _stop_when(ended: Callable[[], Awaitable[int]] | None, stopping: asyncio.Event) -> None:
    await (ended() if ended else asyncio.Event().wait())
    _log.error("the model server ended by itself")
    stopping.set()


def _listen(server: grpc.aio.Server, address: str, certificates: Certificates | None) -> int:
    try:
        if certificates is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, certificates.credentials())
    # gRPC says it by an error, or by 0 in place of a port.
    except RuntimeError:
        port = 0
    if not port:
        raise _unusable(address, "it is taken, or no address of this machine")
    return port


def _unusable(address: str, why: str) -> BadRequest:
    return BadRequest(
        f"Can't listen on {address}: {why}. Give host:port, port 0 for a free one.",
        reason="ADDRESS_UNUSABLE",
        field="address",
    )


def stop_signals() -> asyncio.Event:
    """Is set by SIGTERM or SIGINT from now on."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping
