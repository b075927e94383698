"""Runs on a Ray cluster: the run's machine keeps the files, workers on the nodes judge.

Ray Data distributes the memes over a pool of actors (:class:`Judge`), each with its own court, and retries memes whose
worker or node died. The first answer for a meme counts. Nodes need not share files with this machine, which has to be a
node too: the :class:`Driver` hands out pictures here, and stores each reply of a model before it is used.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
import logging
import math
import os
import re
import subprocess
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from court.digests import digest
from court.errors import BadRequest, CourtError, NotLoaded, Unavailable
from court.events import AnyEvent, Procedure, TrialOpened
from court.meme import Picture
from court.record import TrialRecord
from court.trial import Court
from eval.datasets.items import JudgedMeme, Prediction
from eval.models.call_cache import CallCache, CallsError, SqliteCallCache
from eval.runs.controls import with_control
from eval.session.engine import LATE
from eval.solvers.calls import MemeItem
from eval.solvers.trial import TrialSolver
from serving.docket.ports import TrialReader, TrialWriter
from serving.docket.store.pictures import picture_of
from serving.settings import Settings
from serving.version import SOFTWARE
from serving.wiring import open_court

# Reasons of errors: no Ray cluster is at that address, or this machine is none of its nodes; it failed in the run.
RAY_UNREACHABLE, RAY_FAILED = "RAY_UNREACHABLE", "RAY_FAILED"
_ANSWERS_S = 10.0  # for the cluster's head to answer; ray.init itself would try for minutes
_BLOCKS = 2000  # at most: with up to that many memes, a block is one meme
_RESTARTS = 3  # of the driver, and retries of calls to it
_TRIES = 5  # after which a meme that kills its workers is given up
# Deletes a directory as soon as the process that started it closes its end of the pipe, however that process ends.
_DELETE_AT_END = 'exec 3<&0; (cat <&3 >/dev/null; rm -rf -- "$0") &'


@asynccontextmanager
async def connected(address: str, *, workers: int = 0, concurrency: int) -> AsyncIterator[Cluster]:
    """Connects to a Ray cluster for the duration of the context; only our own actors are started and stopped.

    Without ``workers`` there is one on every node with a free processor. Raises NotLoaded, BadRequest, Unavailable: Ray
    is not installed, the address is malformed, or the cluster is no use.
    """
    # Set before Ray is imported, which reads it then.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("pyarrow") is None:
        why = "Runs on a Ray cluster need Ray, which is not installed. Install it with: pip install 'memecourt[ray]'"
        raise NotLoaded(why, reason="RAY_NOT_INSTALLED")
    # Only host and port, as the head's health is checked below; Ray itself accepts other forms too.
    if not re.fullmatch(r"[A-Za-z0-9._-]+:\d{1,5}|\[[0-9A-Fa-f:]+\]:\d{1,5}", address):
        raise BadRequest(
            f"{address!r} is no address of a Ray cluster. Give that of its head as HOST:PORT, as ray start names it; "
            "the port is 6379 unless another one was named. This machine has to be a node of the cluster.",
            field="ray",
        )
    await _require_head(address)
    import ray

    ours = not ray.is_initialized()
    if ours:
        # In a thread: Ray's calls block.
        await asyncio.to_thread(_connect, address)
    try:
        # A worker takes one processor: a node without any gets no worker.
        nodes: Any = ray.nodes
        size = workers or sum(node["Alive"] and node["Resources"].get("CPU", 0) >= 1 for node in nodes())
        if not size:
            why = f"The Ray cluster at {address} has no node with a processor to lend."
            raise Unavailable(why, reason=RAY_UNREACHABLE)
        # Rounded up: together they try at least as many memes at once as requested.
        yield Cluster(size, max(1, math.ceil(concurrency / size)))
    finally:
        if ours:
            await asyncio.to_thread(ray.shutdown)


async def _require_head(address: str) -> None:
    """Raises Unavailable if the head's gRPC health service does not respond."""
    import grpc.aio
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    # Bypasses the proxy that the environment may configure.
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_ANSWERS_S)
        except grpc.aio.AioRpcError as error:
            # Other codes prove that a head is there, which may require a token. UNIMPLEMENTED is no head of Ray.
            codes = grpc.StatusCode
            if error.code() in (codes.UNAVAILABLE, codes.DEADLINE_EXCEEDED, codes.UNIMPLEMENTED):
                raise _unreachable(address) from None


def _unreachable(address: str, why: str = "") -> Unavailable:
    return Unavailable(
        f"No Ray cluster can be reached at {address}{f' ({why})' if why else ''}. Is its head running there, and is "
        f"this machine one of its nodes? `ray start --address={address}` makes it one. If it wants a token, set "
        "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH as on its nodes.",
        reason=RAY_UNREACHABLE,
    )


def _connect(address: str) -> None:
    """Connects silently. Raises Unavailable."""
    import ray

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=False)
    except Exception as error:
        raise _unreachable(address, f"{type(error).__name__}: {error}"[:200]) from error
    import ray.data  # sets up its own loggers

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class JudgeTask:
    """A meme to be judged, with the record and the frames (PNG) of its last trial if that was interrupted."""

    meme: JudgedMeme
    known: TrialRecord | None = None
    frames: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class TaskResult:
    """Prediction of a meme with the events and frames (PNG) that its trial added, or the fault of its worker."""

    meme: str
    prediction: Prediction | None = None
    passing: bool = False
    events: tuple[AnyEvent, ...] = ()
    frames: tuple[bytes, ...] = ()
    fault: CourtError | None = None


def facts_of(court: Court, procedure: Procedure) -> dict[str, str]:
    """Lists everything besides the meme that decides a verdict, by name: it must be equal on all workers."""
    library = court.finder.library
    facts = {
        "MemeCourt": SOFTWARE,
        "policy": court.policy.digest,
        "precedents": library.digest,
        "encoder": library.encoder,
        "settings": digest(court.settings.model_dump(mode="json")),
    }
    if procedure is not Procedure.SUMMARY and (models := court.role_models) is not None:
        facts["prompts"] = court.prompts.digest
        facts["models"] = digest({**models.models, "settings": models.settings(court.settings.reply_chars)})
    return facts


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process is connected to, with ``each`` concurrent trials per worker."""

    workers: int
    each: int

    async def judged(
        self,
        memes: Sequence[JudgedMeme],
        *,
        solver: TrialSolver,
        known: Mapping[str, TrialRecord],
        pictures: Mapping[str, Path],
        calls: Path,
        settings: Settings,
        control: str,
    ) -> AsyncGenerator[tuple[JudgedMeme, Prediction, bool], None]:
        """Yields the outcome of each meme when it is done; its record is in the docket by then.

        An outcome is the meme, its prediction, and True if its failure may be temporary. ``known`` are records of
        interrupted trials and ``pictures`` files, by the meme's id. Raises Unavailable: A worker can't judge, or the
        cluster failed; outcomes yielded before remain valid.
        """
        import ray.data

        # By id, removed when answered: Ray retries a whole block, including memes that were answered.
        waiting, docket = {meme.id: meme for meme in memes}, solver.stored.executor.docket
        frames = {id_: tuple(await docket.trials.frames(one.opened.meme.pixels_sha256)) for id_, one in known.items()}
        tasks = [{"task": JudgeTask(meme, known.get(meme.id), frames.get(meme.id, ()))} for meme in memes]
        driver = await asyncio.to_thread(_driver, pictures, None if solver.stored.calls is None else calls)
        # As Ray objects: each node fetches them once, and API keys do not appear in arguments that Ray displays.
        parts = await asyncio.to_thread(_court_parts, solver, settings, control)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        dataset = ray.data.from_items(tasks, override_num_blocks=min(len(tasks), _BLOCKS)).map_batches(
            Judge,
            batch_size=None,  # a block: the unit that is retried when a worker dies
            fn_constructor_kwargs={"parts": list(map(ray.put, parts)), "driver": driver},
            compute=ray.data.ActorPoolStrategy(
                size=self.workers, max_concurrent_calls_per_actor=self.each, max_tasks_in_flight_per_actor=self.each
            ),
            num_cpus=1,
        )
        try:
            async for judged in received(_results(dataset), waiting, docket.writer):
                yield judged
        finally:
            if waiting:
                ray.kill(driver)  # the run was aborted: workers must not go on making calls
        if waiting:
            why = f"The Ray cluster gave no answer for {len(waiting):,} memes. Take the run up again."
            raise Unavailable(why, reason=RAY_FAILED)


def _driver(pictures: Mapping[str, Path], calls: Path | None) -> Any:
    """Starts the driver on this machine, where pictures and call cache are; it reserves no processor."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor: Any = ray.remote  # its type stubs lack some scheduling strategies
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # Calls may be retried after a restart: storing is idempotent.
    actor = actor(num_cpus=0, scheduling_strategy=here, max_restarts=_RESTARTS, max_task_retries=_RESTARTS)(Driver)
    # Absolute paths: an actor has its own working directory.
    return actor.remote({meme: path.resolve() for meme, path in pictures.items()}, calls and calls.resolve())


def _court_parts(solver: TrialSolver, settings: Settings, control: str) -> tuple[Any, ...]:
    """Parts that a worker opens its court from, in the order in which :meth:`Judge._open` takes them."""
    assert isinstance(settings.library, Path)  # a run's library is on disk
    policy = settings.policy.read_bytes() if settings.policy else None
    hollow: Any = {"executor": None, "calls": None}
    key = None if solver.stored.calls is None else solver.stored.calls.fence_key
    facts = facts_of(solver.stored.executor.court, solver.procedure)
    bare = replace(solver, stored=replace(solver.stored, **hollow))
    return settings, packed(settings.library), policy, control, bare, key, facts


async def received(
    results: AsyncIterator[TaskResult], waiting: dict[str, JudgedMeme], writer: TrialWriter
) -> AsyncGenerator[tuple[JudgedMeme, Prediction, bool], None]:
    """Yields the first outcome of each meme as :meth:`Cluster.judged`, and removes it from those waiting, by id.

    Raises Unavailable: A worker can't judge.
    """
    async for result in results:
        if result.meme not in waiting:
            continue  # a retry: the first answer counts, and its record is in the docket
        # A fault of the worker, not of the meme: it would fail all others too.
        if result.fault is not None or result.prediction is None:
            why, reason = (result.fault.message, result.fault.reason) if result.fault else ("", RAY_FAILED)
            raise Unavailable(f"A worker of the Ray cluster can't judge: {why}", reason=reason)
        opened = next((event for event in result.events if isinstance(event, TrialOpened)), None)
        # A trial without its picture could not be resumed, so the picture has to precede the events.
        if opened is not None and result.frames:
            await writer.keep_picture(picture_of(opened.meme, result.frames))
        # Before yielding: predictions only repeat what the docket holds (see eval.runs.run).
        await writer.append(*result.events)
        yield waiting.pop(result.meme), result.prediction, result.passing


async def _results(dataset: Any) -> AsyncIterator[TaskResult]:
    """Yields results one by one as they come. Raises Unavailable if Ray gives up."""
    loop = asyncio.get_running_loop()
    results: asyncio.Queue[TaskResult | BaseException | None] = asyncio.Queue()

    def put(result: TaskResult | BaseException | None) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so nobody reads any more
            loop.call_soon_threadsafe(results.put_nowait, result)

    def read() -> None:
        try:
            for batch in dataset.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
                for result in batch["result"]:
                    put(result)
            put(None)
        except BaseException as error:  # raised below
            put(error)

    # Ray's iterators block. Daemon: a thread that is blocked in Ray must not keep the process alive.
    threading.Thread(target=read, name="ray-data", daemon=True).start()
    while (result := await results.get()) is not None:
        if isinstance(result, BaseException):
            raise Unavailable(
                f"The Ray cluster could not go on ({type(result).__name__}: {str(result)[:200]}). Is the same version "
                "of MemeCourt installed on all nodes, and have they memory enough?",
                reason=RAY_FAILED,
            ) from result
        yield result


def packed(library: Path) -> bytes:
    """A library as a tar file, without lock files: nobody writes to the copy."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for path in sorted(library.rglob("*")):
            if path.name != ".lock" and path.is_file():
                tar.add(path, str(path.relative_to(library)), recursive=False)
    return whole.getvalue()


@contextmanager
def _deleted_at_end(directory: str) -> Iterator[None]:
    """Has a directory deleted even if this process is killed before the context ends."""
    # In a session of its own, behind a shell that ends at once: nobody finds it below this process to kill it too.
    command = ["sh", "-c", _DELETE_AT_END, directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as shell:
        shell.wait()
        yield


class Driver:
    """The actor on the run's machine that hands out pictures and keeps the call cache, if models are asked."""

    def __init__(self, pictures: Mapping[str, Path], calls: Path | None) -> None:
        self._pictures = pictures  # by the meme's id
        self._calls = SqliteCallCache.open(calls) if calls is not None else None
        # Counted per meme over all workers: one that kills each of them would otherwise be retried forever.
        self._tries: Counter[str] = Counter()

    async def begin(self, meme: str) -> tuple[int, bytes | None]:
        """Counts a worker's start on a meme; returns the starts so far, and the picture unless it is missing."""
        self._tries[meme] += 1
        picture = None
        if (path := self._pictures.get(meme)) is not None:
            with suppress(FileNotFoundError):
                picture = await asyncio.to_thread(path.read_bytes)
        return self._tries[meme], picture

    async def calls(self, method: str, *arguments: str) -> Any:
        """Calls a method of the call cache."""
        return await getattr(self._calls, method)(*arguments)


class _CallsAtDriver(CallCache):
    """The call cache as accessed by a worker."""

    def __init__(self, driver: Any, fence_key: bytes) -> None:
        super().__init__(fence_key)
        self._driver = driver

    @override
    async def read(self, key: str) -> str | None:
        return await _answer(self._driver.calls.remote("read", key))  # type: ignore[no-any-return]

    @override
    async def keep(self, key: str, model: str, body: str) -> None:
        await _answer(self._driver.calls.remote("keep", key, model, body))


async def _answer(ref: Any) -> Any:
    """Awaits the driver's answer. Raises the driver's own CourtError; CallsError if the driver is gone."""
    from ray.exceptions import RayError, RayTaskError

    try:
        return await ref
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, CourtError) else error from None
    except RayError:
        why = "The process that keeps pictures and calls is gone from the machine of the run. Take the run up again."
        raise CallsError(why) from None


class OneTrial(TrialWriter, TrialReader):
    """Events and frames of a single meme's trial, in memory; it remembers which were added to those known before."""

    def __init__(self, task: JudgeTask) -> None:
        self.added: list[AnyEvent] = []
        self.frames_added: tuple[bytes, ...] = ()
        self._events = {task.known.trial_id: list(task.known.events)} if task.known else {}
        self._frames = task.frames

    @override
    async def append(self, *events: AnyEvent) -> None:
        for event in events:
            self._events.setdefault(event.trial_id, []).append(event)
        self.added += events

    @override
    async def keep_picture(self, picture: Picture) -> None:
        self._frames = self.frames_added = tuple(frame.png for frame in picture.frames)

    @override
    async def record(self, trial_id: str) -> TrialRecord:
        return TrialRecord.of(self._events[trial_id])

    @override
    async def events(self, trial_id: str, from_seq: int = 0) -> Sequence[AnyEvent]:
        return self._events[trial_id][from_seq:]

    @override
    async def frames(self, pixels_sha256: str) -> Sequence[bytes]:
        return self._frames


class Judge:
    """A worker with its own court, which Ray Data calls for several blocks of memes at once in one event loop.

    Its failures are returned as values: Ray would retry an exception forever, or wrap it beyond recognition.
    """

    def __init__(self, parts: Sequence[Any], driver: Any) -> None:
        """Receives references to what the court is opened from, and the :class:`Driver`."""
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        self._parts, self._driver = parts, driver
        # Closed by nobody: the process ends with the court.
        self._court = AsyncExitStack()
        self._opening: asyncio.Future[TrialSolver] | None = None

    async def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Judges tasks, under ``task``; results are under ``result``, an object array of shape (memes,)."""
        # One for all batches, however many come while the court is being opened.
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        results = np.empty(len(batch["task"]), dtype=object)
        results[:] = await asyncio.gather(*(self._judge(task, self._opening) for task in batch["task"]))
        return {"result": results}

    async def _open(self) -> TrialSolver:
        """Opens the court. Raises CourtError, also for faults of ours."""
        try:
            solver: TrialSolver
            settings, library, policy, control, solver, key, expected = await asyncio.gather(*self._parts)
            # Nothing is read from the directory once the court is open, so that no texts stay behind.
            with tempfile.TemporaryDirectory(prefix="memecourt-ray-") as directory, _deleted_at_end(directory):
                root = Path(directory)
                with tarfile.open(fileobj=io.BytesIO(library)) as tar:
                    # The filter refuses devices, and members and links that lead out of the directory.
                    tar.extractall(root / "library", filter="data")
                if policy is not None:
                    (root / "policy.toml").write_bytes(policy)
                # A court requires a docket, but records stay in memory. A worker has one processor.
                changes: dict[str, Any] = {"home": root, "docket": root / "docket.sqlite", "library": root / "library"}
                changes |= {"picture_workers": 1, "text_workers": 1, "policy": policy and root / "policy.toml"}
                opening = open_court(settings.model_copy(update=changes), read_text=False, duplicates=False)
                executor = await self._court.enter_async_context(opening)
        except Exception as error:
            if isinstance(error, CourtError):
                raise
            message = f"The court could not be opened ({type(error).__name__}: {error})."
            raise Unavailable(message, reason="INTERNAL") from error
        court = with_control(executor.court, control, solver.stored.seed)
        facts = facts_of(court, solver.procedure)
        # All verdicts of a run must come from the same court, whichever node judges.
        if facts != expected:
            differ = ", ".join(name for name in expected if facts.get(name) != expected[name])
            raise BadRequest(
                f"It has not the same {differ} as the machine of the run. Install the same version of MemeCourt on all "
                "nodes, and let all of them reach the same model servers.",
                reason="WORKER_DIFFERS",
            )
        calls = None if key is None else _CallsAtDriver(self._driver, key)
        return replace(solver, stored=replace(solver.stored, executor=replace(executor, court=court), calls=calls))

    async def _judge(self, task: JudgeTask, opening: asyncio.Future[TrialSolver]) -> TaskResult:
        meme, trial = task.meme, OneTrial(task)
        try:
            solver = await asyncio.shield(opening)
            executor = solver.stored.executor
            executor = replace(executor, docket=replace(executor.docket, writer=trial, trials=trial))
            # Counted beforehand in the driver: a killed worker can't report which meme it was trying.
            tries, picture = await _answer(self._driver.begin.remote(meme.id))
            if tries > _TRIES:
                raise Unavailable(
                    f"Workers that were trying {meme.id} died {_TRIES} times. Have the nodes memory enough for so many "
                    "memes at once (--concurrency, --ray-workers)?",
                    reason="WORKERS_DIE",
                )

            async def read() -> bytes | None:
                return picture  # type: ignore[no-any-return]

            # Tried once, without patience: the run reports what failed for a temporary reason.
            solver = replace(solver, stored=replace(solver.stored, executor=executor))
            tried = await solver.solve(MemeItem(meme, read), task.known)
        except CourtError as error:
            return TaskResult(meme.id, fault=error)
        except Exception as error:
            # The exception's message may quote the meme, so only its type is reported.
            message = f"A meme could not be tried: a fault of ours ({type(error).__qualname__})."
            return TaskResult(meme.id, fault=Unavailable(message, reason="INTERNAL"))
        passing = tried.passing and tried.reason not in LATE
        return TaskResult(meme.id, tried.result, passing, events=tuple(trial.added), frames=trial.frames_added)
