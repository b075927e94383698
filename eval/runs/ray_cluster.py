"""Runs on a Ray cluster: the run's machine keeps the files, workers on the nodes judge.

The run is the same as without a cluster; only trials happen in other processes, perhaps on other machines. Ray Data
distributes the memes over a pool of actors (:class:`eval.runs.ray_worker.Judge`), each with its own court, and retries
memes whose worker died. Returned records are stored in the run's docket as a whole, then added to its predictions.
Duplicates are stored once: the first answer for a meme counts. Model calls are read from and stored in the call cache
by the :class:`eval.runs.ray_worker.Driver`, an actor on this machine: this process has to be on a node of the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import math
import os
import re
import secrets
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from court.errors import BadRequest, NotLoaded, Unavailable
from court.events import TrialOpened, parse_event
from court.record import TrialRecord
from eval.datasets.items import JudgedMeme
from eval.runs.ray_worker import Driver, Judge, JudgeTask, TaskResult, WorkerConfig, clear_away, facts_of, packed
from eval.solvers.prediction import Prediction
from eval.solvers.trial import TrialSolver
from serving.docket.ports import TrialReader, TrialWriter
from serving.docket.store.pictures import picture_of
from serving.settings import Settings

RAY_UNREACHABLE = "RAY_UNREACHABLE"
"""Reason of an error: there is no Ray cluster at that address, or this machine is not one of its nodes."""
RAY_FAILED = "RAY_FAILED"
"""Reason of an error: the cluster failed during the run."""

_ANSWERS_S = 10.0
"""Seconds for the cluster's head to answer. ray.init itself would try for minutes."""
_BLOCKS = 2000  # at most; with up to that many memes, one meme per block
_RESTARTS = 3  # of the driver actor
_OUT_S = 20.0  # for workers to exit after the last meme


@asynccontextmanager
async def connected(address: str, *, workers: int = 0, concurrency: int) -> AsyncIterator[Cluster]:
    """Connects to a Ray cluster for the duration of the context; only our own actors are started and stopped.

    Args:
        address: Address of its head, ``HOST:PORT``.
        workers: Number of workers; 0 for one on every node with a free processor.
        concurrency: Number of concurrent trials over all workers; at least one per worker.

    Raises:
        NotLoaded: Ray is not installed.
        BadRequest: The address is malformed.
        Unavailable: There is no cluster at that address, this machine is not one of its nodes, or it has no processors.
    """
    # Set before Ray is imported, which reads it then.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("pyarrow") is None:
        raise NotLoaded(
            "Runs on a Ray cluster need Ray, which is not installed. Install it with: pip install 'memecourt[ray]'",
            reason="RAY_NOT_INSTALLED",
        )
    host_port = _checked(address)
    await _answering(host_port)
    import ray

    ours = not ray.is_initialized()
    if ours:
        # In a thread: Ray's calls block.
        await asyncio.to_thread(_connect, host_port)
    try:
        # A worker takes one processor: a node without any gets no worker.
        nodes = [n for n in _nodes() if n["Alive"] and n["Resources"].get("CPU", 0) >= 1]
        if not nodes:
            raise Unavailable(
                f"The Ray cluster at {host_port} has no node with a processor to lend.", reason=RAY_UNREACHABLE
            )
        size = workers or len(nodes)
        # Rounded up: together they try at least as many memes at once as requested.
        yield Cluster(size, max(1, math.ceil(concurrency / size)))
    finally:
        if ours:
            await asyncio.to_thread(ray.shutdown)


def _checked(address: str) -> str:
    # Only host and port, as the head's health is checked below; Ray itself accepts other forms too.
    if not re.fullmatch(r"[A-Za-z0-9._-]+:\d{1,5}|\[[0-9A-Fa-f:]+\]:\d{1,5}", address):
        raise BadRequest(
            f"{address!r} is no address of a Ray cluster. Give that of its head as HOST:PORT, as ray start names it; "
            "the port is 6379 unless another one was named. This machine has to be a node of the cluster.",
            field="ray",
        )
    return address


async def _answering(address: str) -> None:
    """Checks the head's gRPC health service. Raises Unavailable if it does not respond."""
    import grpc.aio
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    # Bypasses the proxy that the environment may configure.
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_ANSWERS_S)
        except grpc.aio.AioRpcError as error:
            # Any other error also proves that a head is there, for instance one that requires a token. UNIMPLEMENTED
            # means a gRPC server without a health service, which is no Ray head.
            if error.code() in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.UNIMPLEMENTED,
            ):
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
        raise _unreachable(address, _first_line(error)) from error
    import ray.data  # sets up its own loggers

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that this process is connected to.

    Attributes:
        each: Number of concurrent trials per worker.
    """

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

        Args:
            solver: The solver as it would run locally; its docket is the run's.
            known: Records of interrupted trials, by the meme's id.
            pictures: Files of the memes' pictures, by the meme's id.
            settings: Settings of the court, with the library's directory.
            control: Control condition; empty for none.

        Yields:
            The meme, its prediction, and whether its failure may be temporary.

        Raises:
            Unavailable: A worker can't judge, or the cluster failed. Outcomes yielded before remain valid.
        """
        import ray

        # By id, removed when answered: Ray retries a whole block, including memes that were answered.
        waiting = {meme.id: meme for meme in memes}
        orders = [await _order(meme, known.get(meme.id), solver.stored.executor.docket.trials) for meme in memes]
        assert isinstance(settings.library, Path)  # a run's library is on disk
        run = secrets.token_hex(4)
        # As Ray objects: each node fetches them once, and API keys do not appear in arguments that Ray displays.
        commission = ray.put(_commission(run, solver, settings, control))
        library = ray.put(await asyncio.to_thread(packed, settings.library))
        desk = await asyncio.to_thread(_coordinator, pictures, None if solver.stored.calls is None else calls)
        pump = _Pump(self._dataset(orders, {"commission": commission, "library": library, "desk": desk}))
        try:
            async for judged in received(pump.rows(), waiting, solver.stored.executor.docket.writer):
                yield judged
        finally:
            pump.stop()
            if waiting:
                ray.kill(desk)  # the run was aborted: workers must not go on making calls
        if waiting:
            raise Unavailable(
                f"The Ray cluster gave no answer for {len(waiting):,} memes. Take the run up again.", reason=RAY_FAILED
            )
        await asyncio.to_thread(_clear_nodes, run)

    def _dataset(self, orders: Sequence[JudgeTask], options: dict[str, Any]) -> Any:
        """The memes as a data set that is judged lazily when it is read."""
        import ray.data

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        rows = [{"order": order.model_dump_json()} for order in orders]
        return ray.data.from_items(rows, override_num_blocks=min(len(rows), _BLOCKS)).map_batches(
            Judge,
            batch_size=None,  # a block: the unit that is retried when a worker dies
            fn_constructor_kwargs=options,
            compute=ray.data.ActorPoolStrategy(
                size=self.workers,
                max_concurrent_calls_per_actor=self.each,
                max_tasks_in_flight_per_actor=self.each,
                enable_true_multi_threading=True,
            ),
            num_cpus=1,
        )


def _commission(run: str, solver: TrialSolver, settings: Settings, control: str) -> WorkerConfig:
    return WorkerConfig(
        run=run,
        settings=settings,
        policy=settings.policy.read_bytes() if settings.policy else None,
        procedure=solver.procedure,
        dataset=solver.dataset,
        control=control,
        seed=solver.stored.seed,
        server=solver.stored.server,
        retry_failed=solver.retry_failed,
        text_only=solver.text_only,
        language=solver.language,
        fence_key=None if solver.stored.calls is None else solver.stored.calls.fence_key,
        facts=facts_of(solver.stored.executor.court, solver.procedure),
    )


async def _order(meme: JudgedMeme, known: TrialRecord | None, trials: TrialReader) -> JudgeTask:
    if known is None:
        return JudgeTask(meme=meme)
    return JudgeTask(
        meme=meme,
        events=tuple(event.model_dump_json() for event in known.events),
        frames=tuple(await trials.frames(known.opened.meme.pixels_sha256)),
    )


async def received(
    answers: AsyncIterator[str], waiting: dict[str, JudgedMeme], writer: TrialWriter
) -> AsyncGenerator[tuple[JudgedMeme, Prediction, bool], None]:
    """Yields the outcome of each meme once; its record is in the docket by then.

    Args:
        answers: Answers of workers, :class:`eval.runs.ray_worker.TaskResult` as JSON; several for a meme that was
            retried.
        waiting: Memes without an answer yet, by id; answered memes are removed.
        writer: Stores the trials of the run.

    Yields:
        As in :meth:`Cluster.judged`.

    Raises:
        Unavailable: A worker can't judge.
    """
    async for body in answers:
        result = TaskResult.model_validate_json(body)
        if result.meme not in waiting:
            continue  # a retry: the first answer counts, and its record is in the docket
        # A fault of the worker, not of the meme: it would fail all others too.
        if result.prediction is None:
            raise Unavailable(f"A worker of the Ray cluster can't judge: {result.fault}", reason=result.reason)
        # Before yielding: predictions only repeat what the docket holds (see eval.runs.run).
        await _keep(writer, result)
        yield waiting.pop(result.meme), result.prediction, result.passing


async def _keep(writer: TrialWriter, result: TaskResult) -> None:
    """Stores a record in the docket, the picture first."""
    events = [parse_event(event) for event in result.events]
    opened = next((event for event in events if isinstance(event, TrialOpened)), None)
    # A trial without its picture could not be resumed, so the picture has to precede the events.
    if opened is not None and result.frames:
        await writer.keep_picture(picture_of(opened.meme, result.frames))
    await writer.append(*events)


class _Pump:
    """Reads a data set in a thread, since Ray's iterators block, and passes rows to the event loop."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._loop = asyncio.get_running_loop()
        self._rows: asyncio.Queue[str | BaseException | None] = asyncio.Queue()
        self._stopped = threading.Event()
        # Daemon: if blocked in Ray, it must not keep the process alive.
        threading.Thread(target=self._read, name="ray-data", daemon=True).start()

    async def rows(self) -> AsyncIterator[str]:
        """Yields answers one by one. Raises Unavailable if Ray gives up."""
        while (row := await self._rows.get()) is not None:
            if isinstance(row, BaseException):
                raise Unavailable(
                    f"The Ray cluster could not go on ({_first_line(row)}). Is the same version of MemeCourt installed "
                    "on all nodes, and have they memory enough?",
                    reason=RAY_FAILED,
                ) from row
            yield row

    def stop(self) -> None:
        """Stops reading."""
        self._stopped.set()

    def _read(self) -> None:
        try:
            for batch in self._dataset.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
                if self._stopped.is_set():
                    return
                for row in batch["told"]:
                    self._hand_over(row)
            self._hand_over(None)
        except BaseException as error:  # passed to the consumer
            self._hand_over(error)

    def _hand_over(self, row: str | BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed, so there is no consumer any more
            # asyncio.Queue is not thread-safe: putting from this thread would not wake the consumer.
            self._loop.call_soon_threadsafe(self._rows.put_nowait, row)


def _coordinator(pictures: Mapping[str, Path], calls: Path | None) -> Any:
    """Starts the driver actor on this machine; it reserves no processor."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    made: Any = ray.remote  # its type stubs lack some scheduling strategies
    # Pinned to this node: pictures and call cache are on this machine.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # Calls may be retried after a restart: storing a reply is idempotent, the first one stays.
    actor = made(num_cpus=0, scheduling_strategy=here, max_restarts=_RESTARTS, max_task_retries=_RESTARTS)(Driver)
    # Absolute paths: an actor has its own working directory.
    return actor.remote(
        {meme: str(path.resolve()) for meme, path in pictures.items()}, None if calls is None else str(calls.resolve())
    )


def _nodes() -> list[dict[str, Any]]:
    import ray

    nodes: Any = ray.nodes
    return list(nodes())


def _clear_nodes(run: str) -> None:
    """Removes leftovers of workers on every node, waiting for those of this run that are still exiting."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # No processor: exiting workers may still hold all of them. No retries: leftovers are removed by the next worker on
    # that node.
    clear: Any = ray.remote(num_cpus=0, max_retries=0)(clear_away)
    there = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in _nodes() if node["Alive"]]
    # All are started before the first is awaited, so that nodes clean up in parallel.
    for done in [clear.options(scheduling_strategy=node).remote(run, _OUT_S) for node in there]:
        with contextlib.suppress(ray.exceptions.RayError):  # the node has just left
            # The task's own wait, plus half a minute for Ray to start it.
            ray.get(done, timeout=30 + _OUT_S)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
