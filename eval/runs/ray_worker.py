"""Worker of a Ray cluster: a court that judges memes, and the driver actor that it reports to.

Nodes need not share a file system with the run's machine. Workers receive the :class:`WorkerConfig` and the library
once, and each meme with the events known so far. The :class:`Driver` is an actor on the run's machine that serves
pictures one by one and gives access to the call cache: a reply is stored before it is used, and so survives the worker
that requested it. Records of trials are returned with the predictions.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import logging
import os
import shutil
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from court.digests import digest
from court.errors import BadRequest, CourtError, Unavailable
from court.events import AnyEvent, Procedure, TrialOpened, parse_event
from court.meme import Picture
from court.record import TrialRecord
from court.trial import Court
from eval.datasets.items import JudgedMeme
from eval.models.call_cache import CallCache, CallsError, SqliteCallCache
from eval.runs.controls import with_control
from eval.session.engine import LATE
from eval.solvers.calls import MemeItem, StoredCourt
from eval.solvers.prediction import Prediction
from eval.solvers.trial import TrialSolver
from serving.docket.errors import TrialUnknown
from serving.docket.ports import TrialReader, TrialWriter
from serving.docket.store.pictures import picture_of
from serving.judging.executor import TrialExecutor
from serving.settings import Settings
from serving.version import SOFTWARE
from serving.wiring import open_court

_TRIES = 5
"""Number of tries after which a meme that kills its workers is given up."""
_PLACE = "memecourt-ray-"
_LOCK = ".lock"


class _Sent(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class JudgeTask(_Sent):
    """A meme to be judged."""

    meme: JudgedMeme
    events: tuple[str, ...] = ()
    """Events of its last trial, as JSON, if that was interrupted."""
    frames: tuple[bytes, ...] = ()
    """Frames of its picture as stored in the docket, as PNG, if its trial was interrupted."""


class TaskResult(_Sent):
    """Result of a task."""

    meme: str
    prediction: Prediction | None = None
    """None if the worker could not judge, and no other could."""
    passing: bool = False
    """True if it failed for a temporary reason."""
    events: tuple[str, ...] = ()
    """Events added to its records, as JSON, in order."""
    frames: tuple[bytes, ...] = ()
    """Frames of its picture, as PNG, if it was decoded."""
    fault: str = ""
    """Reason why the worker could not judge, as a sentence."""
    reason: str = ""
    """The same as a reason code."""


@dataclass(frozen=True)
class WorkerConfig:
    """Configuration of a worker.

    It contains API keys: it travels as a Ray object, which is not displayed.

    Attributes:
        run: Unique id that tells workers of this run from those of others.
        settings: Settings of the court; its paths refer to the run's machine and are not used.
        policy: Content of the policy file; None for MemeCourt's own.
        dataset: Id of the data set.
        control: Control condition of :class:`eval.runs.controls.Control`; empty for none.
        server: Name of the model servers in the call cache.
        retry_failed: True to retry trials that failed for a temporary reason.
        text_only: True to judge each text without its picture.
        fence_key: Key of the call cache; None if no model is asked.
        facts: Composition of the run's court (:func:`facts_of`).
    """

    run: str
    settings: Settings
    policy: bytes | None
    procedure: Procedure
    dataset: str
    control: str
    seed: int
    server: str
    retry_failed: bool
    text_only: bool
    language: str
    fence_key: bytes | None
    facts: Mapping[str, str]


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
    if procedure is not Procedure.SUMMARY and court.role_models is not None:
        facts["prompts"] = court.prompts.digest
        facts["models"] = digest(
            {**court.role_models.models, "settings": court.role_models.settings(court.settings.reply_chars)}
        )
    return facts


class Driver:
    """An actor on the run's machine. Returns errors as values, since Ray would wrap exceptions."""

    def __init__(self, pictures: Mapping[str, str], calls: str | None) -> None:
        """Opens the call cache.

        Args:
            pictures: File of each meme's picture, by the meme's id.
            calls: Path of the call cache; None if no model is asked.
        """
        self._pictures = pictures
        self._calls = SqliteCallCache.open(Path(calls)) if calls is not None else None
        # Counted per meme over all workers: one that kills each of them would otherwise be retried forever.
        self._tries: Counter[str] = Counter()

    async def begin(self, meme: str) -> int:
        """Counts a worker's start on a meme; returns the number of starts including this one."""
        self._tries[meme] += 1
        return self._tries[meme]

    async def picture(self, meme: str) -> bytes | None:
        """The content of a meme's picture file; None if it is missing."""
        path = self._pictures.get(meme)
        try:
            return None if path is None else await asyncio.to_thread(Path(path).read_bytes)
        except FileNotFoundError:
            return None

    async def read(self, key: str) -> tuple[str | None, str]:
        """Reads a key from the call cache; returns its value, and the error if there is one."""
        assert self._calls is not None
        try:
            return await self._calls.read(key), ""
        except CourtError as error:
            return None, error.message

    async def keep(self, key: str, model: str, body: str) -> str:
        """Stores a reply durably; returns the error, or an empty string."""
        assert self._calls is not None
        try:
            await self._calls.keep(key, model, body)
        except CourtError as error:
            return error.message
        return ""


class _CallsAtDriver(CallCache):
    """The call cache as accessed by a worker."""

    def __init__(self, desk: Any, fence_key: bytes) -> None:
        super().__init__(fence_key)
        self._desk = desk

    async def read(self, key: str) -> str | None:
        """See :meth:`eval.models.call_cache.CallCache.read`."""
        body, wrong = await _answer(self._desk.read.remote(key))
        if wrong:
            raise CallsError(wrong)
        return body  # type: ignore[no-any-return]

    async def keep(self, key: str, model: str, body: str) -> None:
        """See :meth:`eval.models.call_cache.CallCache.keep`."""
        wrong = await _answer(self._desk.keep.remote(key, model, body))
        if wrong:
            raise CallsError(wrong)


async def _answer(ref: Any) -> Any:
    from ray.exceptions import RayError

    try:
        return await ref
    except RayError:
        raise CallsError(
            "The process that hands out pictures and stored calls is gone from the machine of the run. Take the run up "
            "again.",
        ) from None


class _OneTrial(TrialWriter, TrialReader):
    """Events and frames of a single meme's trial, in memory.

    It supports no listing, claims or reviews.
    """

    def __init__(self) -> None:
        self._events: dict[str, list[AnyEvent]] = {}
        self._frames: dict[str, list[bytes]] = {}
        self._before = 0

    async def lay(self, order: JudgeTask) -> TrialRecord | None:
        """Loads the events and frames known before."""
        if not order.events:
            return None
        record = TrialRecord.of(map(parse_event, order.events))
        self._events[record.trial_id] = list(record.events)
        self._before = len(record.events)
        if order.frames:
            await self.keep_picture(picture_of(record.opened.meme, order.frames))
        return record

    def added(self) -> tuple[list[AnyEvent], list[bytes]]:
        """Returns the additions since the last call: events in order, and frames of the decoded picture."""
        # A loaded trial is the first in the dict, so its known events come first.
        events = [event for trial in self._events.values() for event in trial][self._before :]
        opened = next((event for event in events if isinstance(event, TrialOpened)), None)
        return events, self._frames.get(opened.meme.pixels_sha256, []) if opened else []

    @override
    async def append(self, *events: AnyEvent) -> None:
        for event in events:
            self._events.setdefault(event.trial_id, []).append(event)

    @override
    async def keep_picture(self, picture: Picture) -> None:
        self._frames[picture.pixels_sha256] = [frame.png for frame in picture.frames]

    @override
    async def record(self, trial_id: str) -> TrialRecord:
        return TrialRecord.of(await self.events(trial_id))

    @override
    async def events(self, trial_id: str, from_seq: int = 0) -> Sequence[AnyEvent]:
        if trial_id not in self._events:
            raise TrialUnknown(f"There is no trial {trial_id} here.")
        return self._events[trial_id][from_seq:]

    @override
    async def frames(self, pixels_sha256: str) -> Sequence[bytes]:
        return self._frames.get(pixels_sha256, [])


class Judge:
    """A worker with its own court, opened once. Ray Data calls it from several threads, with a few memes each.

    Failures of the worker itself are returned as values (:attr:`TaskResult.fault`): Ray would retry an exception
    forever, or wrap it beyond recognition.
    """

    def __init__(self, commission: Any, library: Any, desk: Any) -> None:
        """Opens the court.

        Args:
            commission: Reference to a :class:`WorkerConfig`.
            library: Reference to the precedent library, packed by :func:`packed`.
            desk: Handle of the :class:`Driver`.
        """
        import ray

        logging.getLogger("httpx2").setLevel(logging.WARNING)
        self._desk = desk
        self._commission: WorkerConfig = ray.get(commission)
        self._fault: tuple[str, str] | None = None
        self._solver: TrialSolver | None = None
        # One event loop for all threads that Ray calls from: court and call cache are bound to a single loop.
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._place: _Place | None = None
        # Daemon: it must not keep a worker alive that Ray has released.
        self._thread = threading.Thread(target=self._loop.run_forever, name="court", daemon=True)
        self._thread.start()
        opened: asyncio.Future[None] = asyncio.Future(loop=self._loop)
        self._holding = asyncio.run_coroutine_threadsafe(self._hold(ray.get(library), opened), self._loop)
        # Through a coroutine: this thread can't wait for a future of the loop.
        asyncio.run_coroutine_threadsafe(_done(opened), self._loop).result()

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Judges a batch.

        Args:
            batch: ``order``: :class:`JudgeTask` as JSON, an object array of shape (memes,).

        Returns:
            ``told``: :class:`TaskResult` as JSON, an object array of shape (memes,).
        """
        orders = [JudgeTask.model_validate_json(body) for body in batch["order"]]
        results = asyncio.run_coroutine_threadsafe(self._judge(orders), self._loop).result()
        # Object dtype: numpy would otherwise use fixed-width strings, each as wide as the longest.
        column = np.empty(len(results), dtype=object)
        column[:] = [one.model_dump_json() for one in results]
        return {"told": column}

    def __del__(self) -> None:
        """Closes the court: Ray Data drops the worker when no memes are left."""
        if not self._loop.is_closed() and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._holding.result(timeout=10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)
        if self._place is not None:
            self._place.close()

    async def _hold(self, library: bytes, opened: asyncio.Future[None]) -> None:
        """Keeps the court open; in one task, so that the task that opened it also closes it."""
        try:
            settings = await asyncio.to_thread(self._settle, library)
            async with open_court(settings, read_text=False, duplicates=False) as executor:
                self._solver = self._solver_of(executor)
                opened.set_result(None)
                await self._over.wait()
        except CourtError as error:
            self._fault = error.message, error.reason
        except Exception as error:  # reported as a sentence to the waiting constructor
            self._fault = f"The court could not be opened ({type(error).__name__}: {error}).", "INTERNAL"
        finally:
            if not opened.done():
                opened.set_result(None)

    def _settle(self, library: bytes) -> Settings:
        """Unpacks the files; returns settings that refer to them."""
        self._place = _Place(self._commission.run)
        root = self._place.root
        with tarfile.open(fileobj=io.BytesIO(library)) as tar:
            # The filter refuses devices, and members and links that lead out of the directory.
            tar.extractall(root / "library", filter="data")
        # Written here: the path in the settings is that of the run's machine, whose files nodes need not share.
        policy = None
        if self._commission.policy is not None:
            policy = root / "policy.toml"
            policy.write_bytes(self._commission.policy)
        changes: dict[str, Any] = {
            "home": root,
            "docket": root / "docket.sqlite",  # a court requires one, though records stay in memory and are returned
            "library": root / "library",
            "policy": policy,
            "picture_workers": 1,  # a worker has one processor
            "text_workers": 1,
        }
        return self._commission.settings.model_copy(update=changes)

    def _solver_of(self, executor: TrialExecutor) -> TrialSolver:
        commission = self._commission
        court = with_control(executor.court, commission.control, commission.seed)
        facts = facts_of(court, commission.procedure)
        # All verdicts of a run must come from the same court, whichever node judges.
        if facts != commission.facts:
            differ = ", ".join(name for name in commission.facts if facts.get(name) != commission.facts[name])
            raise BadRequest(
                f"It has not the same {differ} as the machine of the run. Install the same version of MemeCourt on all "
                "nodes, and let all of them reach the same model servers.",
                reason="WORKER_DIFFERS",
            )
        # No patience: with Ray each meme is tried once, and the run reports the rest.
        return TrialSolver(
            StoredCourt(
                replace(executor, court=court),
                None if commission.fence_key is None else _CallsAtDriver(self._desk, commission.fence_key),
                commission.server,
                commission.seed,
            ),
            dataset=commission.dataset,
            procedure=commission.procedure,
            retry_failed=commission.retry_failed,
            text_only=commission.text_only,
            language=commission.language,
        )

    async def _judge(self, orders: Sequence[JudgeTask]) -> list[TaskResult]:
        return list(await asyncio.gather(*map(self._judge_one, orders)))

    async def _judge_one(self, order: JudgeTask) -> TaskResult:
        if self._fault is not None:
            return TaskResult(meme=order.meme.id, fault=self._fault[0], reason=self._fault[1])
        assert self._solver is not None
        # One per meme: several are judged at once, and additions are recognised by position.
        memory = _OneTrial()
        docket = replace(self._solver.stored.executor.docket, writer=memory, trials=memory)
        stored = replace(self._solver.stored, executor=replace(self._solver.stored.executor, docket=docket))
        solver = replace(self._solver, stored=stored)

        async def picture() -> bytes | None:
            return await _answer(self._desk.picture.remote(order.meme.id))  # type: ignore[no-any-return]

        try:
            # Counted beforehand in the driver: a killed worker can't report which meme it was trying.
            if await _answer(self._desk.begin.remote(order.meme.id)) > _TRIES:
                raise Unavailable(
                    f"Workers that were trying {order.meme.id} died {_TRIES} times. Have the nodes memory enough for "
                    "so many memes at once (--concurrency, --ray-workers)?",
                    reason="WORKERS_DIE",
                )
            tried = await solver.solve(MemeItem(order.meme, picture), await memory.lay(order))
        except CourtError as error:
            return TaskResult(meme=order.meme.id, fault=error.message, reason=error.reason)
        except Exception as error:
            # The exception's message may quote the meme, so only its type is reported.
            message = f"A meme could not be tried: a fault of ours ({type(error).__qualname__})."
            return TaskResult(meme=order.meme.id, fault=message, reason="INTERNAL")
        events, frames = memory.added()
        return TaskResult(
            meme=order.meme.id,
            prediction=tried.result,
            passing=tried.passing and tried.reason not in LATE,
            events=tuple(event.model_dump_json() for event in events),
            frames=tuple(frames),
        )


async def _done(future: asyncio.Future[None]) -> None:
    await future


class _Place:
    """A worker's private directory with texts and pictures; leftovers of killed workers are removed by the next worker
    on that machine."""  # noqa: D205, D209

    def __init__(self, run: str) -> None:
        clear_away()
        while True:
            # mkdtemp: accessible to this user only.
            self.root = Path(tempfile.mkdtemp(prefix=f"{_PLACE}{run}-"))
            self._lock = (self.root / _LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (self.root / _LOCK).exists():
                return
            self._lock.close()  # another worker removed it as a leftover before it was locked

    def close(self) -> None:
        """Removes the directory; idempotent."""
        shutil.rmtree(self.root, ignore_errors=True)
        self._lock.close()


def clear_away(run: str = "", within_s: float = 0.0) -> None:
    """Removes this user's leftovers of dead workers on this machine.

    Args:
        run: Run whose exiting workers are waited for.
        within_s: Longest wait in seconds.
    """
    end = time.monotonic() + within_s
    for place in Path(tempfile.gettempdir()).glob(f"{_PLACE}*"):
        while not _cleared(place) and run and place.name.startswith(f"{_PLACE}{run}-") and time.monotonic() < end:
            time.sleep(0.1)


def _cleared(place: Path) -> bool:
    """Removes a dead worker's directory; False while the worker lives, True if gone or another user's."""
    try:
        # The temporary directory is shared between users.
        if place.stat().st_uid != os.getuid():
            return True
        with (place / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # While holding the lock: a worker that has just created it notices its removal and creates another.
            shutil.rmtree(place, ignore_errors=True)
    except BlockingIOError:
        return False
    except OSError:  # being created or removed at this moment
        return not place.exists()
    return True


def packed(library: Path) -> bytes:
    """A library as a tar file, without lock files: nobody writes to the copy."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for path in sorted(library.rglob("*")):
            if path.name != _LOCK and path.is_file():
                tar.add(path, str(path.relative_to(library)), recursive=False)
    return whole.getvalue()
