"""Runs on a Ray cluster: the run's machine keeps the files, workers on the nodes judge.

Each worker is an actor (:class:`Judge`) with a court of its own, which tries the memes that it is sent; a meme whose
worker or node died is sent to another. Nodes need not share files with this machine, which has to be a node too:
pictures go with the memes, and each reply of a model is stored here, by an actor, before it is used.
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
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from court.errors import BadRequest, CourtError, NotLoaded, Unavailable
from court.events import AnyEvent, TrialOpened
from court.meme import Picture
from court.record import TrialRecord
from eval.datasets.items import JudgedMeme, Prediction
from eval.models.call_cache import CallCache, CallsError, SqliteCallCache
from eval.runs.controls import with_control
from eval.runs.plan import facts_of
from eval.session.engine import Tried
from eval.solvers.calls import MemeItem, Solver
from eval.solvers.trial import TrialSolver
from serving.docket.ports import TrialReader, TrialWriter
from serving.docket.store.pictures import picture_of
from serving.settings import Settings
from serving.version import SOFTWARE
from serving.wiring import open_court

# Reasons of errors: no Ray cluster is at that address, or this machine is none of its nodes; it failed in the run.
RAY_UNREACHABLE, RAY_FAILED = "RAY_UNREACHABLE", "RAY_FAILED"
_ANSWERS_S = 10.0  # for the cluster's head to answer; ray.init itself would try for minutes
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
    if importlib.util.find_spec("ray") is None:
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


@dataclass(frozen=True)
class JudgeTask:
    """A meme to be judged and its picture, with the record and the frames (PNG) of its last trial if there is one."""

    meme: JudgedMeme
    picture: bytes | None = None
    known: TrialRecord | None = None
    frames: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class TaskResult:
    """Outcome of one attempt at a meme, with the events and frames (PNG) that its trial added."""

    tried: Tried[Prediction, TrialRecord]
    events: tuple[AnyEvent, ...] = ()
    frames: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process is connected to, with ``each`` concurrent trials per worker."""

    workers: int
    each: int

    @asynccontextmanager
    async def solving(
        self, local: TrialSolver, *, calls: Path, settings: Settings, control: str
    ) -> AsyncIterator[ClusterSolver]:
        """Starts workers that judge as a solver of this process would, and stops them with the context.

        Args:
            calls: Absolute path of the call cache: an actor has its own working directory.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote: Any = ray.remote  # its type stubs lack some options
        store = solver = None
        try:
            if local.stored.calls is not None:
                here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
                # Calls may be retried after a restart: storing is idempotent. It reserves no processor.
                options = {"num_cpus": 0, "max_restarts": _TRIES, "max_task_retries": _TRIES}
                store = remote(scheduling_strategy=here, **options)(SqliteCallCache).remote(calls)
            # As a Ray object: each node fetches it once, and API keys do not appear in arguments that Ray displays.
            parts = ray.put(await asyncio.to_thread(_court_parts, local, settings, control))
            judge = remote(num_cpus=1)(Judge)
            yield (solver := ClusterSolver(local, partial(judge.remote, parts, store), self.workers, self.each))
        finally:
            # Also where the run was aborted: workers must not go on making calls.
            if solver is not None:
                solver.stop()
            if store is not None:
                ray.kill(store)


class ClusterSolver(Solver):
    """Sends each meme to a worker, and stores what its trial adds in the docket of the run."""

    def __init__(self, local: TrialSolver, start: Callable[[], Any], workers: int, each: int) -> None:
        self._local, self._start, self._each = local, start, each
        self._workers: dict[int, Any] = {}
        # Memes that each worker with an open court is trying.
        self._load: dict[int, int] = {}
        self._changed = asyncio.Event()
        self._fault: Unavailable | None = None
        self._opening = {asyncio.create_task(self._open(place)) for place in range(workers)}

    def stop(self) -> None:
        """Ends all workers, those that are opening too."""
        import ray

        # First: one that is killed while it opens would have another started in its place.
        for opening in self._opening:
            opening.cancel()
        for worker in self._workers.values():
            ray.kill(worker)

    @override
    def rebuilt(self, meme: JudgedMeme, record: TrialRecord) -> Prediction | None:
        return self._local.rebuilt(meme, record)

    @override
    async def solve(self, item: MemeItem, record: TrialRecord | None) -> Tried[Prediction, TrialRecord]:
        """Tries a meme on a worker. Raises Unavailable: A worker can't judge."""
        docket = self._local.stored.executor.docket
        frames = () if record is None else await docket.trials.frames(record.opened.meme.pixels_sha256)
        task = JudgeTask(item.meme, await item.picture(), record, tuple(frames))
        for _ in range(_TRIES):
            if (judged := await self._judged(task)) is not None:
                break
        else:
            # One that kills each of its workers would otherwise be retried forever.
            raise Unavailable(
                f"Workers that were trying {item.meme.id} died {_TRIES} times. Have the nodes memory enough for so "
                "many memes at once (--concurrency, --ray-workers)?",
                reason="WORKERS_DIE",
            )
        opened = next((event for event in judged.events if isinstance(event, TrialOpened)), None)
        # A trial without its picture could not be resumed, so the picture has to precede the events.
        if opened is not None and judged.frames:
            await docket.writer.keep_picture(picture_of(opened.meme, judged.frames))
        # Before the prediction is stored: that only repeats what the docket holds (see eval.runs.run).
        await docket.writer.append(*judged.events)
        return judged.tried

    async def _judged(self, task: JudgeTask) -> TaskResult | None:
        """Has a meme tried; None if the worker died. Raises Unavailable: A worker can't judge."""
        free: list[int] = []
        while not free:
            # Of any worker: it would be the fault of the run's machine, or of a node that has another court.
            if self._fault is not None:
                raise self._fault
            free = [place for place, load in self._load.items() if load < self._each]
            if not free:
                self._changed.clear()
                await self._changed.wait()
        place = min(free, key=self._load.__getitem__)
        worker = self._workers[place]
        self._load[place] += 1
        try:
            return await _answer(worker.judge.remote(task))  # type: ignore[no-any-return]
        except _deaths():
            # One of the memes that it was trying has another started in its place, perhaps on another node.
            if self._workers[place] is worker and self._load.pop(place, None) is not None:
                self._opening.add(asyncio.create_task(self._open(place)))
            return None
        except Exception as error:
            raise _cant_judge(error) from None
        finally:
            if self._workers[place] is worker and place in self._load:
                self._load[place] -= 1
            self._changed.set()

    async def _open(self, place: int) -> None:
        """Starts a worker, and has memes sent to it once its court is open."""
        import ray

        fault = None
        for _ in range(_TRIES):
            try:
                if place in self._workers:
                    # One that only seemed dead would go on making calls, and keep the processor of its successor.
                    ray.kill(self._workers[place])
                self._workers[place] = self._start()
                await _answer(self._workers[place].open.remote())
            except _deaths() as error:
                fault = _cant_judge(error)  # it died
            except Exception as error:
                fault = _cant_judge(error)
                break
            else:
                fault, self._load[place] = None, 0
                break
        self._fault = self._fault or fault
        self._changed.set()


def _deaths() -> tuple[type[Exception], ...]:
    """Errors of a worker that died, or of an answer that was lost with its node."""
    from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError

    return ObjectLostError, OutOfMemoryError, RayActorError


def _cant_judge(error: Exception) -> Unavailable:
    """A fault of a worker, not of a meme: it would fail all others too."""
    if isinstance(error, CourtError):
        return Unavailable(f"A worker of the Ray cluster can't judge: {error.message}", reason=error.reason)
    return Unavailable(
        f"The Ray cluster could not go on ({type(error).__name__}: {str(error)[:200]}). Is the same version of "
        "MemeCourt installed on all nodes, and have they memory enough?",
        reason=RAY_FAILED,
    )


def _court_parts(solver: TrialSolver, settings: Settings, control: str) -> tuple[Any, ...]:
    """Parts that a worker opens its court from, in the order in which :meth:`Judge._opened` takes them."""
    assert isinstance(settings.library, Path)  # a run's library is on disk
    policy = settings.policy.read_bytes() if settings.policy else None
    hollow: Any = {"executor": None, "calls": None}
    key = None if solver.stored.calls is None else solver.stored.calls.fence_key
    facts = {"MemeCourt": SOFTWARE, **facts_of(solver.stored.executor.court, solver.procedure)}
    bare = replace(solver, stored=replace(solver.stored, **hollow))
    return settings, packed(settings.library), policy, control, bare, key, facts


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


class _CallsAtDriver(CallCache):
    """The call cache as accessed by a worker."""

    def __init__(self, actor: Any, fence_key: bytes) -> None:
        super().__init__(fence_key)
        self._actor = actor

    @override
    async def read(self, key: str) -> str | None:
        return await self._of_driver(self._actor.read.remote(key))  # type: ignore[no-any-return]

    @override
    async def keep(self, key: str, model: str, body: str) -> None:
        await self._of_driver(self._actor.keep.remote(key, model, body))

    async def _of_driver(self, ref: Any) -> Any:
        from ray.exceptions import RayActorError

        try:
            return await _answer(ref)
        except RayActorError:
            why = "The process that keeps calls is gone from the machine of the run. The same command goes on."
            raise CallsError(why) from None


async def _answer(ref: Any) -> Any:
    """Awaits an actor's answer. Raises the actor's own CourtError instead of Ray's, which wraps it."""
    from ray.exceptions import RayTaskError

    try:
        return await ref
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, CourtError) else error from None


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
    """A worker with its own court, which tries several memes at once in one event loop."""

    def __init__(self, parts: Sequence[Any], calls: Any) -> None:
        """Receives what the court is opened from, and the actor that keeps the call cache."""
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        self._parts, self._calls = parts, calls
        # Closed by nobody: the process ends with the court.
        self._court = AsyncExitStack()
        self._solver: TrialSolver | None = None

    async def open(self) -> None:
        """Opens the court, unless it is open. Raises CourtError, also for faults of ours."""
        if self._solver is None:
            try:
                self._solver = await self._opened(*self._parts)
            except CourtError:
                raise
            except Exception as error:
                message = f"The court could not be opened ({type(error).__name__}: {error})."
                raise Unavailable(message, reason="INTERNAL") from error

    async def _opened(
        self,
        settings: Settings,
        library: bytes,
        policy: bytes | None,
        control: str,
        solver: TrialSolver,
        key: bytes | None,
        expected: dict[str, Any],
    ) -> TrialSolver:
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
        court = with_control(executor.court, control, solver.stored.seed)
        facts = {"MemeCourt": SOFTWARE, **facts_of(court, solver.procedure)}
        # All verdicts of a run must come from the same court, whichever node judges.
        if facts != expected:
            differ = ", ".join(name for name in expected if facts.get(name) != expected[name])
            raise BadRequest(
                f"It has not the same {differ} as the machine of the run. Install the same version of MemeCourt on all "
                "nodes, and let all of them reach the same model servers.",
                reason="WORKER_DIFFERS",
            )
        calls = None if key is None else _CallsAtDriver(self._calls, key)
        return replace(solver, stored=replace(solver.stored, executor=replace(executor, court=court), calls=calls))

    async def judge(self, task: JudgeTask) -> TaskResult:
        """Tries a meme once. Raises CourtError, also for faults of ours."""
        solver, trial = self._solver, OneTrial(task)
        assert solver is not None, "the run's machine sends memes to open courts alone"
        executor = solver.stored.executor
        executor = replace(executor, docket=replace(executor.docket, writer=trial, trials=trial))

        async def picture() -> bytes | None:
            return task.picture

        try:
            solver = replace(solver, stored=replace(solver.stored, executor=executor))
            tried = await solver.solve(MemeItem(task.meme, picture), task.known)
        except CourtError:
            raise
        except Exception as error:
            # The exception's message may quote the meme, so only its type is reported.
            message = f"A meme could not be tried: a fault of ours ({type(error).__qualname__})."
            raise Unavailable(message, reason="INTERNAL") from None
        return TaskResult(tried, events=tuple(trial.added), frames=trial.frames_added)
