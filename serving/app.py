"""The gRPC server: startup, health reporting and graceful shutdown."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import gc
import logging
import resource
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc

from court.deadline import cancel_all
from court.errors import BadRequest, NotLoaded, Unavailable
from court.events import Procedure
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
from serving.docket.retention import keep_retention
from serving.docket.review.corrections import keep_precedents
from serving.export.notice_links import notice_links
from serving.judging.executor import TrialExecutor
from serving.judging.judge import TrialRunner
from serving.rpc.docket import DocketService
from serving.rpc.flow_control import ReceiveBudget
from serving.rpc.health import COURT, DOCKET, PRECEDENTS, SERVING, Health, run_health_checks
from serving.rpc.judge import CourtService
from serving.rpc.precedents import PrecedentsService
from serving.rpc.server import Methods, make_server
from serving.settings import Settings
from serving.telemetry import Telemetry, open_telemetry
from serving.telemetry.metrics import measure_docket, measure_sample
from serving.webhooks.attempts import Receiver
from serving.webhooks.messages import PRECEDENT_CHANGED
from serving.webhooks.sender import note_precedent_changes, send_webhooks
from serving.wiring import corrections_for, forget_by, open_court, readiness_checks, rules_of

_NOTIFY_S = 5.0
"""Seconds to notify callers whose trials were cancelled: each cancellation is stored first, and there may be many."""
_DRAIN_S = 2.0
"""Seconds at the very end for answers already being sent, and for calls other than trials."""

_MAX_OPEN_FILES = 65_536
_MALLOC_OPTIONS = {-3: 128 * 1024, -1: 128 * 1024}
"""Initial values of glibc's M_MMAP_THRESHOLD (-3) and M_TRIM_THRESHOLD (-1), in bytes."""


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
    """Serves until SIGTERM or SIGINT, then gives running trials the grace period to finish.

    Args:
        address: ``host:port``; port 0 for a free one.
        resume: True to resume interrupted trials while serving new ones.
        ended: Returns when a model server started for this court has exited on its own; the court then stops too.
        bound: Called with the address and actual port as soon as the server listens.
        ready: Called once trial requests are accepted.
        tell: Called with a sentence about each slow startup step.

    Raises:
        BadRequest: An address can't be listened on, or certificates or tokens can't be used.
        CourtError: The court can't be opened.
        Unavailable: The model server exited.
    """
    give_memory_back()
    allow_open_files()
    async with AsyncExitStack() as stack:
        host, colon, port_text = address.rpartition(":")
        if not address.startswith("unix") and not (colon and is_port(port_text)):
            # gRPC takes ports modulo 65,536 and would listen on an unexpected port.
            raise _unusable(address, "its port is no number from 0 to 65535")
        # BO-4: checked before anything listens.
        require_guarded("The server", host, settings, field="address")
        # Certificates and tokens are read before anything listens: a server that can't enforce them never serves.
        certificates = Certificates.of(settings)
        tokens = Tokens.of(settings.tokens) if settings.tokens else None
        libraries = [settings.library, *(each.library for each in settings.namespaces.values())]
        # Before any slow step, so that a missing library is reported at once.
        for library in libraries:
            await asyncio.to_thread(require_library, library)
        # Opened now so that wrong settings fail at startup, not hours later with the first checkpoint or message.
        anchor = open_witness(settings.anchor) if settings.anchor else None
        receivers = [Receiver(hook) for hook in settings.webhooks]
        telemetry = await stack.enter_async_context(open_telemetry(settings))
        metrics = telemetry.metrics
        memory = ReceiveBudget(settings.picture_memory, settings.idle)
        services = (
            CourtService(settings, telemetry, memory=memory),
            DocketService(telemetry, memory=memory),
            PrecedentsService(memory),
        )
        methods = Methods(*services, tokens=tokens, telemetry=telemetry)
        server, health = await make_server(methods, reflect=settings.reflection)
        for name in (COURT, DOCKET, PRECEDENTS):
            metrics.read("serving", lambda name=name: health.status(name) == SERVING, name)  # type: ignore[misc]
        if certificates is not None:
            metrics.read("certificate_expiry_timestamp_seconds", lambda: certificates.expires.timestamp())
        port = _listen(server, address, certificates)
        stopping = stop_signals()
        # Before the court is opened, which may take long: health checks are answered meanwhile, and an occupied port is
        # reported at once.
        await server.start()
        # Only has an effect after a failure: a normal shutdown has stopped the server by then.
        stack.push_async_callback(server.stop, 0)
        bound(address if address.startswith("unix") else f"{host}:{port}")
        if settings.http:
            keys = [signer.public_key for receiver in receivers for signer in receiver.signers if signer.public_key]
            listening = _http(methods, health, settings, keys, docket=services[1], stopping=stopping)
            tell(f"http on {await stack.enter_async_context(listening)}")
        if settings.insecure and not only_here(host):
            lifted = ", ".join(settings.insecure)
            _log.warning("others than this machine can connect, and this was not asked for: %s", lifted)
        if certificates is not None:
            _in_background(
                stack, follow_files(certificates.paths, certificates.use, CERTIFICATES, certificates.contents)
            )
        if tokens is not None:
            _in_background(stack, follow_files([tokens.path], tokens.use, TOKENS, tokens.contents))
        # Before the court is opened, which waits for its models: it must not wait for a model server that has died.
        model_server_watch = _in_background(stack, _stop_when(ended, stopping))
        opening = stack.enter_async_context(
            open_court(settings, tell=tell, follow_library=True, encoder_apart=True, patient=True)
        )
        executor = await _unless_stopping(stopping, opening)
        if executor is not None:
            if isinstance(docket_address := settings.docket_place, Path) and not stack.enter_context(
                lock_docket(docket_address)
            ):
                tell(
                    f"Another server of this machine serves the docket {docket_address} too: its trials are listed "
                    "here, and each answers its own callers."
                )
            if anchor is not None:
                metrics.anchored(0)
                _in_background(stack, keep_anchored(executor.docket.log, anchor, on_anchored=metrics.anchored))
            if settings.metrics:
                # Only when metrics are served: measuring queries the docket repeatedly.
                executor.docket.transactions.written = partial(metrics.observe, "docket_write_duration_seconds")
                _in_background(stack, measure_docket(metrics, executor.docket.reviews, executor.docket.log))
                queue, wanted = executor.docket.review_queue(rules_of(settings)), settings.trial.review_risk
                _in_background(stack, measure_sample(metrics, queue, executor.docket.trials, wanted=wanted))
            forget = forget_by(executor)
            _in_background(stack, keep_retention(executor.docket, settings, forget=forget, report=metrics.expired))
            corrections = corrections_for(executor, settings)
            if corrections is not None:
                queue = executor.docket.review_queue(rules_of(settings))
                _in_background(stack, keep_precedents(corrections, queue))
            if receivers:
                _start_webhooks(stack, executor, receivers, telemetry)
            if settings.library is None:
                tell(
                    "The precedents are drawn memes of the starter library, so each verdict asks for review: build a "
                    "library of your own and name it with --library."
                )
            if settings.console:
                tell(f"console on {await stack.enter_async_context(_console(executor, settings, tokens, services))}")
            await _serve_court(
                executor,
                settings,
                services=services,
                health=health,
                telemetry=telemetry,
                stopping=stopping,
                resume=resume,
                ready=ready,
            )
        health.end()
        await server.stop(_DRAIN_S)
        if model_server_watch.done():
            # Raised after an orderly shutdown, so that the supervisor sees a failure and restarts both processes.
            raise Unavailable("The model server ended by itself, and the court with it.", reason="MODEL_SERVER_ENDED")


def _start_webhooks(
    stack: AsyncExitStack, executor: TrialExecutor, receivers: Sequence[Receiver], telemetry: Telemetry
) -> None:
    """Starts sending webhooks, and recording precedent changes if a receiver subscribes to them."""
    _in_background(stack, send_webhooks(executor.docket, receivers, metrics=telemetry.metrics))
    finder = executor.court.finder
    wanted = any(PRECEDENT_CHANGED in receiver.settings.events for receiver in receivers)
    if wanted and isinstance(finder, LibraryFinder | PgvectorFinder):
        _in_background(stack, note_precedent_changes(executor.docket.reviews, finder))


@contextmanager
def lock_docket(docket: Path) -> Iterator[bool]:
    """Yields True if no other server on this machine serves the docket file, and holds the lock inside the block.

    Several servers may share a docket. The operator is told, since sharing is rarely intended when servers are started
    by hand.
    """
    with docket.with_name(f"{docket.name}-serving").open("ab") as lock:
        try:
            # The kernel releases this lock even when the process is killed.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _http(
    methods: Methods,
    health: Health,
    settings: Settings,
    webhook_keys: Sequence[str],
    *,
    docket: DocketService,
    stopping: asyncio.Event,
) -> AbstractAsyncContextManager[str]:
    """Opens the HTTP API, which calls the same methods as gRPC."""
    assert settings.http is not None
    try:
        from serving.rest.app import open_api
    except ModuleNotFoundError as error:
        raise NotLoaded(
            f"The HTTP API is not installed ({error.name} is missing): pip install 'memecourt[http]'."
        ) from None
    return open_api(
        methods, health, settings, settings.http, webhook_keys=webhook_keys, docket=docket, stopping=stopping
    )


def _console(
    executor: TrialExecutor,
    settings: Settings,
    tokens: Tokens | None,
    services: tuple[CourtService, DocketService, PrecedentsService],
) -> AbstractAsyncContextManager[str]:
    """Opens the web console on the same docket and with the same tokens."""
    try:
        from serving.console.app import open_console
        from serving.console.registry import Trying
        from serving.wiring import reviewing_in_court
    except ModuleNotFoundError as error:
        raise NotLoaded(
            f"The console is not installed ({error.name} is missing): pip install 'memecourt[console]'."
        ) from None
    assert settings.console is not None
    return open_console(
        executor.docket,
        settings,
        settings.console,
        tokens=tokens,
        pictures=executor.court.finder,
        reviewing=reviewing_in_court(executor, settings, services[1].reviewed, services[1].withdrawn),
        trying=Trying(services[0].start, [one for one in Procedure if one in executor.court.procedures]),
    )


async def _serve_court(
    executor: TrialExecutor,
    settings: Settings,
    *,
    services: tuple[CourtService, DocketService, PrecedentsService],
    health: Health,
    telemetry: Telemetry,
    stopping: asyncio.Event,
    resume: bool,
    ready: Callable[[], None],
) -> None:
    """Accepts trial requests until the server is told to stop, then waits until the last one is answered."""
    court, docket, precedents = services
    telemetry.metrics.read("library_precedents", lambda: executor.court.finder.library.size)
    if (models := executor.court.role_models) is not None:
        for role, working in models.prefix_cache.items():
            telemetry.metrics.set("model_prefix_cache_working", working, role, models.models[role])
    async with AsyncExitStack() as resumption_stack, AsyncExitStack() as stack:
        runner = await stack.enter_async_context(
            TrialRunner(executor, settings, telemetry, memory=court.memory.change_pictures)
        )
        court.open(executor, runner)
        docket.open(
            executor, runner.refresh, corrections_for(executor, settings), notice_links(executor.docket, settings)
        )
        precedents.open(executor, runner.decoders)
        _in_background(stack, run_health_checks(health, readiness_checks(executor, settings)))
        # Stopped after the runner: if it were cancelled first, its trials would end as if their callers had left.
        resuming = [_in_background(resumption_stack, runner.orphans.resume())] if resume else []
        if await _unless_stopping(stopping, health.until_serving(COURT)):
            # Frozen, so that the garbage collector does not rescan existing objects while callers wait.
            gc.collect()
            gc.freeze()
            stack.callback(gc.unfreeze)  # C libraries complain about objects that are still alive at exit
            ready()
        await stopping.wait()
        _log.info("stopping: running trials have %.0f s to finish", settings.grace)
        # First, so that load balancers send new requests elsewhere while those on their way are still accepted.
        health.end()
        await asyncio.sleep(settings.drain_delay)
        court.close()
        runner.close()
        await asyncio.gather(
            court.empty(settings.grace), *(asyncio.wait([task], timeout=settings.grace) for task in resuming)
        )
    # The runner has cancelled the remaining trials, and their callers are being notified.
    await court.empty(_NOTIFY_S)
    court.memory.close()
    docket.close()
    precedents.close()
    await precedents.empty(_DRAIN_S)


def give_memory_back() -> None:
    """Makes glibc return the memory of large freed objects to the system.

    By default glibc raises its thresholds as large blocks are freed: pictures would end up in the arenas of about forty
    threads, each of which keeps its peak usage. Other C libraries are left as they are.
    """
    if setting := getattr(ctypes.CDLL(None), "mallopt", None):
        for option, size in _MALLOC_OPTIONS.items():
            setting(option, size)


def allow_open_files() -> None:
    """Raises this process's limit of open files and connections to its hard limit, at most 65,536.

    The soft limit is 1,024 almost everywhere, for programs that use ``select``: that many silent connections would lock
    out all other callers until they are closed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            # If the system refuses, serve anyway: with fewer files the server only takes fewer connections.
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _in_background(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Runs a coroutine in the background until the stack is closed; logs its failure, which nobody awaits."""
    task = asyncio.create_task(work)

    def log(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (error := done.exception()):
            _log.error("%s ended: %s", done.get_coro().__qualname__, type(error).__qualname__)  # type: ignore[union-attr]

    task.add_done_callback(log)
    stack.push_async_callback(cancel_all, task)
    return task


async def _unless_stopping(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Runs a coroutine and returns its result, or cancels it and returns None once the server is told to stop."""
    doing, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    await asyncio.wait((doing, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if doing.done():
        return doing.result()
    doing.cancel()
    # Wait until it has really ended, so that everything it opened is closed.
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
    # gRPC reports failure either by an error or by returning port 0.
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
    """Returns an event that SIGTERM or SIGINT sets."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping
