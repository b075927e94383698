"""Worker of a Ray cluster: a court that judges memes, and the driver that it reports to.

Nodes need not share a file system with the machine that holds the run. What a worker needs comes to it: the
:class:`WorkerConfig` and the library once, each meme with what is known of it. The :class:`Driver` is a process on the
machine of the run, which hands out pictures one by one and is the door to the store of calls: a reply is kept there
before it is used, and so outlives the worker that asked for it. The records of trials go back with the prediction.
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
from eval.runs.attempt import Attempt
from eval.runs.controls import with_control
from eval.runs.prediction import Prediction
from retrieval.library.picture_files import read_picture
from serving.docket.ports import TrialReader, TrialUnknown, TrialWriter
from serving.docket.store.pictures import picture_of
from serving.runner.executor import TrialExecutor
from serving.settings import Settings
from serving.version import SOFTWARE
from serving.wiring import open_court

_TRIES = 5
"""How often a meme is tried before what kills its workers is taken to do so for ever."""
_PLACE = "memecourt-ray-"
_LOCK = ".lock"


class _Sent(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class JudgeTask(_Sent):
    """A meme that is to be judged."""

    meme: JudgedMeme
    events: tuple[str, ...] = ()
    """Of its last trial, as JSON, if that was cut off."""
    frames: tuple[bytes, ...] = ()
    """Of its picture as the docket kept them, as PNG; likewise."""


class TaskResult(_Sent):
    """Result of a task."""

    meme: str
    prediction: Prediction | None = None
    """None where the worker could not judge, and no other could."""
    passing: bool = False
    """Whether it failed for want of something that may come back."""
    events: tuple[str, ...] = ()
    """What was added to its records, as JSON, in order."""
    frames: tuple[bytes, ...] = ()
    """Of its picture, as PNG, where it was decoded."""
    fault: str = ""
    """Why the worker could not judge, as a sentence."""
    reason: str = ""
    """The same for machines."""


@dataclass(frozen=True)
class WorkerConfig:
    """Configuration of a worker.

    It contains keys: it travels as an object of Ray and is shown to nobody.

    Attributes:
        run: Tells workers of this run from those of another; drawn anew each time.
        settings: Settings of the court; paths in it are of the run's machine, and not used.
        policy: The file of the policy; None for MemeCourt's own.
        procedure: Procedure of the trials.
        dataset: Id of the data set.
        control: Control condition of :class:`eval.runs.controls.Control`; empty for none.
        seed: Seed of the run.
        server: Name of the model servers in the store of calls.
        retry_failed: True to retry trials that failed for a passing reason.
        text_only: True to judge each text without its picture.
        language: Language that each text is told to be in.
        fence_key: Key of the store of calls; None if no model is asked.
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
    """Lists everything besides the meme that decides a verdict, by name: all workers must have the same."""
    library = court.finder.library
    facts = {
        "MemeCourt": SOFTWARE,
        "policy": court.policy.digest,
        "precedents": library.digest,
        "encoder": library.encoder,
        "settings": digest(court.settings.model_dump(mode="json")),
    }
    if procedure is not Procedure.SUMMARY and court.chairs is not None:
        facts["prompts"] = court.prompts.digest
        facts["models"] = digest({**court.chairs.models, "settings": court.chairs.settings(court.settings.reply_chars)})
    return facts


class Driver:
    """An actor on the machine of the run. Says what is wrong in its answers: errors of ours stay ours on the way."""

    def __init__(self, pictures: Mapping[str, str], calls: str | None) -> None:
        """Opens the store of calls.

        Args:
            pictures: File of each meme's picture, by the meme's id.
            calls: File of the store of calls; None where no model is asked.
        """
        self._pictures = pictures
        self._calls = SqliteCallCache.open(Path(calls)) if calls is not None else None
        # By meme, over all workers: one that kills each of them would otherwise be tried for ever.
        self._tries: Counter[str] = Counter()

    async def begin(self, meme: str) -> int:
        """Notes that a worker begins with a meme; how many have, this one included."""
        self._tries[meme] += 1
        return self._tries[meme]

    async def picture(self, meme: str) -> bytes | None:
        """The file of a meme's picture; None where there is none."""
        path = self._pictures.get(meme)
        try:
            return None if path is None else await asyncio.to_thread(read_picture, Path(path))
        except FileNotFoundError:
            return None

    async def read(self, key: str) -> tuple[str | None, str]:
        """Reads a key from the store of calls; returns its value, and the fault if there is one."""
        assert self._calls is not None
        try:
            return await self._calls.read(key), ""
        except CourtError as error:
            return None, error.message

    async def keep(self, key: str, model: str, body: str) -> str:
        """Keeps a reply; what is wrong, or nothing. It is on the disk when this is answered."""
        assert self._calls is not None
        try:
            await self._calls.keep(key, model, body)
        except CourtError as error:
            return error.message
        return ""


class _CallsAtDriver(CallCache):
    """The store of calls as a worker sees it."""

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
    """Events and frames of a trial in memory, for as long as one meme is judged.

    Nobody lists, claims or reviews there.
    """

    def __init__(self) -> None:
        self._events: dict[str, list[AnyEvent]] = {}
        self._frames: dict[str, list[bytes]] = {}
        self._before = 0

    async def lay(self, order: JudgeTask) -> TrialRecord | None:
        """Puts in what was known before."""
        if not order.events:
            return None
        record = TrialRecord.of(map(parse_event, order.events))
        self._events[record.trial_id] = list(record.events)
        self._before = len(record.events)
        if order.frames:
            await self.keep_picture(picture_of(record.opened.meme, order.frames))
        return record

    def added(self) -> tuple[list[AnyEvent], list[bytes]]:
        """Returns the additions since the last call: events in order, and frames of the picture that was decoded."""
        # A trial that was laid in is the first of the dict: its known events are the first of all.
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
    """A worker: a court of its own, opened once. Ray Data calls it in several threads at once, with a few memes each.

    What goes wrong with the worker itself is told like everything else (:attr:`TaskResult.fault`): as an exception, Ray
    would try it again and again, or wrap it past recognition.
    """

    def __init__(self, commission: Any, library: Any, desk: Any) -> None:
        """Opens the court.

        Args:
            commission: Reference to a :class:`WorkerConfig`.
            library: Reference to the library of precedents, packed by :func:`packed`.
            desk: Handle of the :class:`Driver`.
        """
        import ray

        logging.getLogger("httpx2").setLevel(logging.WARNING)
        self._desk = desk
        self._commission: WorkerConfig = ray.get(commission)
        self._fault: tuple[str, str] | None = None
        self._trier: Attempt | None = None
        # One loop for all threads that Ray calls from: court and store of calls are valid within one alone.
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._place: _Place | None = None
        # A daemon: it must not keep a worker alive that Ray lets go of.
        self._thread = threading.Thread(target=self._loop.run_forever, name="court", daemon=True)
        self._thread.start()
        opened: asyncio.Future[None] = asyncio.Future(loop=self._loop)
        self._holding = asyncio.run_coroutine_threadsafe(self._hold(ray.get(library), opened), self._loop)
        # Through a coroutine: a future of the loop can't be waited for from this thread.
        asyncio.run_coroutine_threadsafe(_done(opened), self._loop).result()

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Judges.

        Args:
            batch: ``order``: :class:`JudgeTask` as JSON, an object array of shape (memes,).

        Returns:
            ``told``: :class:`TaskResult` as JSON, likewise.
        """
        orders = [JudgeTask.model_validate_json(body) for body in batch["order"]]
        results = asyncio.run_coroutine_threadsafe(self._judge(orders), self._loop).result()
        # As objects: numpy would make strings of fixed width of them, each as wide as the longest.
        column = np.empty(len(results), dtype=object)
        column[:] = [one.model_dump_json() for one in results]
        return {"told": column}

    def __del__(self) -> None:
        """Closes the court: Ray Data lets go of it when nothing is left to be judged."""
        if not self._loop.is_closed() and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._holding.result(timeout=10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)
        if self._place is not None:
            self._place.close()

    async def _hold(self, library: bytes, opened: asyncio.Future[None]) -> None:
        """Holds the court open; in one task, so that it is closed in the one that opened it."""
        try:
            settings = await asyncio.to_thread(self._settle, library)
            async with open_court(settings, read_text=False, duplicates=False) as house:
                self._trier = self._trier_of(house)
                opened.set_result(None)
                await self._over.wait()
        except CourtError as error:
            self._fault = error.message, error.reason
        except Exception as error:  # told, as a sentence, to whoever waits at the other end
            self._fault = f"The court could not be opened ({type(error).__name__}: {error}).", "INTERNAL"
        finally:
            if not opened.done():
                opened.set_result(None)

    def _settle(self, library: bytes) -> Settings:
        """Puts the files in place; the settings that name them."""
        self._place = _Place(self._commission.run)
        root = self._place.root
        with tarfile.open(fileobj=io.BytesIO(library)) as tar:
            # The filter refuses members that lead out of the directory, links among them, and devices.
            tar.extractall(root / "library", filter="data")
        # Written here: the path in the settings is one of the run's machine, and nodes need not share its files.
        policy = None
        if self._commission.policy is not None:
            policy = root / "policy.toml"
            policy.write_bytes(self._commission.policy)
        changes: dict[str, Any] = {
            "home": root,
            "docket": root / "docket.sqlite",  # records are kept in memory and go back; a court has to have one
            "library": root / "library",
            "policy": policy,
            "picture_workers": 1,  # a worker has one processor
            "text_workers": 1,
        }
        return self._commission.settings.model_copy(update=changes)

    def _trier_of(self, house: TrialExecutor) -> Attempt:
        commission = self._commission
        court = with_control(house.court, commission.control, commission.seed)
        facts = facts_of(court, commission.procedure)
        # Verdicts of one run must come from one court, whichever node gave them.
        if facts != commission.facts:
            differ = ", ".join(name for name in commission.facts if facts.get(name) != commission.facts[name])
            raise BadRequest(
                f"It has not the same {differ} as the machine of the run. Install the same version of MemeCourt on all "
                "nodes, and let all of them reach the same model servers.",
                reason="WORKER_DIFFERS",
            )
        # Without patience: with Ray each meme is tried once, and the run says what is left.
        return Attempt(
            house=replace(house, court=court),
            calls=None if commission.fence_key is None else _CallsAtDriver(self._desk, commission.fence_key),
            dataset=commission.dataset,
            procedure=commission.procedure,
            seed=commission.seed,
            server=commission.server,
            retry_failed=commission.retry_failed,
            text_only=commission.text_only,
            language=commission.language,
        )

    async def _judge(self, orders: Sequence[JudgeTask]) -> list[TaskResult]:
        return list(await asyncio.gather(*map(self._judge_one, orders)))

    async def _judge_one(self, order: JudgeTask) -> TaskResult:
        if self._fault is not None:
            return TaskResult(meme=order.meme.id, fault=self._fault[0], reason=self._fault[1])
        assert self._trier is not None
        # One for each meme: several are judged at once, and what was added is recognised by its position.
        memory = _OneTrial()
        docket = replace(self._trier.house.docket, writer=memory, trials=memory)
        trier = replace(self._trier, house=replace(self._trier.house, docket=docket))

        async def picture() -> bytes | None:
            return await _answer(self._desk.picture.remote(order.meme.id))  # type: ignore[no-any-return]

        try:
            # Counted beforehand and elsewhere: a worker that is killed can't say which meme it was trying.
            if await _answer(self._desk.begin.remote(order.meme.id)) > _TRIES:
                raise Unavailable(
                    f"Workers that were trying {order.meme.id} died {_TRIES} times. Have the nodes memory enough for "
                    "so many memes at once (--concurrency, --ray-workers)?",
                    reason="WORKERS_DIE",
                )
            prediction, passing = await trier.try_meme(order.meme, await memory.lay(order), picture)
        except CourtError as error:
            return TaskResult(meme=order.meme.id, fault=error.message, reason=error.reason)
        except Exception as error:
            # Its words may be the meme's.
            message = f"A meme could not be tried: a fault of ours ({type(error).__qualname__})."
            return TaskResult(meme=order.meme.id, fault=message, reason="INTERNAL")
        events, frames = memory.added()
        return TaskResult(
            meme=order.meme.id,
            prediction=prediction,
            passing=passing,
            events=tuple(event.model_dump_json() for event in events),
            frames=tuple(frames),
        )


async def _done(future: asyncio.Future[None]) -> None:
    await future


class _Place:
    """A directory of a worker's own. It holds texts and pictures: of workers that were killed, the next one on that
    machine clears away what they left."""  # noqa: D205, D209

    def __init__(self, run: str) -> None:
        clear_away()
        while True:
            # mkdtemp: for this user alone.
            self.root = Path(tempfile.mkdtemp(prefix=f"{_PLACE}{run}-"))
            self._lock = (self.root / _LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (self.root / _LOCK).exists():
                return
            self._lock.close()  # somebody took it for left behind, before it was locked

    def close(self) -> None:
        """Removes it; again is no harm."""
        shutil.rmtree(self.root, ignore_errors=True)
        self._lock.close()


def clear_away(run: str = "", within_s: float = 0.0) -> None:
    """Removes what workers of this user left on this machine that are not alive any more.

    Args:
        run: Run whose workers are waited for while they leave.
        within_s: Longest wait in seconds.
    """
    end = time.monotonic() + within_s
    for place in Path(tempfile.gettempdir()).glob(f"{_PLACE}*"):
        while not _cleared(place) and run and place.name.startswith(f"{_PLACE}{run}-") and time.monotonic() < end:
            time.sleep(0.1)


def _cleared(place: Path) -> bool:
    """Removes a worker's directory; whether it is gone, or not ours to remove. It is not while the worker lives."""
    try:
        # The folder of temporary files is shared between users.
        if place.stat().st_uid != os.getuid():
            return True
        with (place / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # While it is locked: a worker that has just made it finds it gone, and makes another.
            shutil.rmtree(place, ignore_errors=True)
    except BlockingIOError:
        return False
    except OSError:  # just now being made or removed
        return not place.exists()
    return True


def packed(library: Path) -> bytes:
    """A library as a tar file. Without locks: nobody writes to the copy that is made of it."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for path in sorted(library.rglob("*")):
            if path.name != _LOCK and path.is_file():
                tar.add(path, str(path.relative_to(library)), recursive=False)
    return whole.getvalue()
