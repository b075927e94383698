"""A request for a trial, the caller that waits for it with an admission slot, shared work, and an answer."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeAlias, TypeVar

from court.digests import digest, digest_of_file
from court.errors import NotLoaded
from court.events import PolicyReference, Procedure, Versions
from court.in_force import InForce
from court.meme import Picture, check_present, check_text
from court.policy import Policy
from court.record import TrialRecord
from serving.docket.store.requests import RequestName
from serving.judging.admission import Admission

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WorkCancelled(Exception):
    """The shared work was cancelled, but not by the caller that waits for it."""


class SingleFlight(Generic[T]):
    """A task shared by callers. Each joins it, starts it if necessary, and waits; it is cancelled when the last leaves.

    Attributes:
        task: Task of the work; None before a caller has started it, and again when it is done and all callers have
            left, since its exception and its callers' frames would reference each other.
    """

    def __init__(self, unneeded: Callable[[], object] = lambda: None) -> None:
        """Starts without callers.

        Args:
            unneeded: Called when the work is done, or when no caller is left to start it.
        """
        self.task: asyncio.Task[T] | None = None
        self._callers = 0
        self._is_over = False
        self._unneeded = unneeded

    @property
    def ending(self) -> bool:
        """True if the work is done or being cancelled."""
        return self._is_over or (self.task is not None and (self.task.done() or self.task.cancelling() > 0))

    def __enter__(self) -> Self:
        self._callers += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._callers -= 1
        if self._callers:
            return
        # The last caller drops the task, whose exception would keep the callers' frames alive.
        if self._is_over:
            self.task = None
        elif self.task is None:
            self._unneeded()
        # RE-5: the work, including a pending model call, is cancelled with its last caller.
        elif not self.task.done():
            self.task.cancel()

    def begin(self, work: Coroutine[Any, Any, T]) -> None:
        """Starts the work. Nothing may be awaited before the next caller has joined."""
        self.task = asyncio.ensure_future(work)
        self.task.add_done_callback(self._over)

    async def result(self) -> T:
        """Waits for the result of the work.

        A caller that is cancelled meanwhile simply leaves.

        Raises:
            WorkCancelled: The work was cancelled.
            As the work.
        """
        assert self.task is not None, "begun by one of the callers"
        # Not `await self.task`: that would propagate one caller's cancellation to the shared work.
        await asyncio.wait([self.task])
        if self.task.cancelled():
            raise WorkCancelled
        return self.task.result()

    async def over(self) -> None:
        """Waits until the work is done, however it ends."""
        if self.task is not None:
            await asyncio.wait([self.task])

    def _over(self, task: asyncio.Task[T]) -> None:
        # Retrieve the exception so that the event loop does not report it after all callers have left. For a cancelled
        # task this also drops the stored error, which references the task and would form a cycle.
        with suppress(asyncio.CancelledError):
            task.exception()
        self._is_over = True
        self._unneeded()
        if not self._callers:
            self.task = None


class LRUCache(Generic[K, V]):
    """Bounded map that evicts the least recently used entry."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Returns the value of a key, or None."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def keep(self, key: K, value: V) -> None:
        """Stores an entry, and evicts the least recently used one if full."""
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._most:
            self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        """Removes an entry."""
        self._values.pop(key, None)

    def items(self) -> list[tuple[K, V]]:
        """Returns all entries, the most recently used last."""
        return list(self._values.items())


_TO_END_S = 0.25
"""Seconds that a call may exceed its deadline so that its trial can record that it ended by it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request that has a verdict."""

    record: TrialRecord
    in_force: InForce
    picture_seconds: float
    total_seconds: float
    name: RequestName
    reused: bool
    near: bool


PictureMemory: TypeAlias = Callable[[int], None]
"""Told by how many bytes the memory of decoded pictures changes."""


def uncounted(_: int) -> None:
    """Accounts for nothing, where the memory of pictures is not limited."""


@dataclass(slots=True)
class AdmissionSlot:
    """Admission slot of a call, or of the trial that it started; it holds the decoded picture.

    Only admitted calls hold a decoded picture, so that memory is bounded by the running calls, however many wait.

    Attributes:
        within_s: Seconds until the deadline when the call arrived; None if there is none.
        patient: True if the caller waits however long the queue is, as a stream does: it has many requests in flight,
            and model servers process those of others first.
    """

    admission: Admission | None = None
    namespace: str = ""
    within_s: float | None = None
    patient: bool = False
    memory: PictureMemory = uncounted
    entered: AbstractAsyncContextManager[object] | None = None
    picture: Picture | None = None

    async def take(self) -> None:
        """Waits to be admitted, unless it already is."""
        if self.admission is not None and self.entered is None:
            slot = self.admission.acquire(self.namespace, within_s=self.within_s, patient=self.patient)
            await slot.__aenter__()
            # Only once admitted: a caller that is cancelled while waiting has nothing to release.
            self.entered = slot

    def require(self) -> None:
        """Raises Busy if admission would be refused, and Unavailable if the court is closing; does not wait."""
        if self.admission is not None and self.entered is None:
            self.admission.check(self.namespace, within_s=self.within_s, patient=self.patient)

    async def leave(self) -> None:
        """Releases the slot and the picture: from here on this call only waits for others' work."""
        # Cleared before anything is awaited, so that a second call can't release slot or bytes twice.
        entered, self.entered = self.entered, None
        picture, self.picture = self.picture, None
        if picture is not None:
            self.memory(-size_of(picture))
        if entered is not None:
            await entered.__aexit__(None, None, None)

    def keep(self, picture: Picture) -> None:
        """Holds a picture until the slot is released; does nothing without a slot."""
        # Without a slot, nothing would limit the number of pictures in memory.
        if self.picture is None and (self.admission is None or self.entered is not None):
            self.picture = picture
            self.memory(size_of(picture))

    def handed_on(self) -> AdmissionSlot:
        """Transfers the slot and the picture to a new object."""
        other = replace(self)
        # Bytes are not subtracted here: the new object releases them.
        self.entered = self.picture = None
        return other


@dataclass(slots=True, eq=False)
class Caller:
    """A caller that waits for an answer.

    Attributes:
        picture_seconds: Seconds that decoding pictures for it took.
    """

    slot: AdmissionSlot
    clock: asyncio.Timeout
    deadline: float | None = field(init=False)
    picture_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.deadline = self.clock.when()

    @property
    def left(self) -> float | None:
        """Seconds until the deadline; None if there is none."""
        return None if self.deadline is None else self.deadline - asyncio.get_running_loop().time()

    def ends_with_trial(self) -> None:
        """Extends the timeout a little, since the caller's own trial ends at the deadline and records why."""
        # Otherwise both would end at the same moment, and the caller would miss the recorded reason.
        if self.deadline is not None:
            self.clock.reschedule(self.deadline + _TO_END_S)


def size_of(picture: Picture) -> int:
    """Returns the size of a decoded picture in bytes."""
    return sum(len(frame.png) for frame in picture.frames)


@dataclass(frozen=True, slots=True)
class RequiredVersions:
    """Versions that a caller requires, in the form that records use. Empty fields match any version.

    Attributes:
        models: Model per role, by the role's name in lower case.
        encoder: Name and digest of the encoder.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    prompts: str = ""
    library: str = ""
    encoder: str = ""
    settings: str = ""


ANY_VERSIONS = RequiredVersions()


@dataclass(frozen=True, slots=True)
class RequiredPolicy:
    """Policy that a caller requires, in the form that records use. Empty fields match any policy."""

    id: str = ""
    version: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """Request for a trial.

    Attributes:
        image: Picture file; empty for a text without picture.
        try_anew: True to run a trial even if an earlier verdict could be reused.
        policy: Policy that the trial must use; None for whichever is loaded.
        of_trial: Id of the trial whose meme is rejudged; empty for a first trial.
        picture: The picture where it is decoded already; ``image`` is then empty.
        file: SHA-256 of the picture file; empty for a text without picture, and before :meth:`identified`.
        repeatable: True if the id is the caller's, so that it can repeat the request.

    Raises:
        BadInput: There is neither a picture nor a text, or the text exceeds the limits.
    """

    image: bytes
    text: str | None = None
    language: str = ""
    procedure: Procedure = Procedure.SUMMARY
    request_id: str = ""
    namespace: str = ""
    content_id: str = ""
    trace_id: str = ""
    pins: RequiredVersions = ANY_VERSIONS
    try_anew: bool = False
    policy: RequiredPolicy | None = None
    of_trial: str = ""
    picture: Picture | None = None
    file: bytes = b""
    repeatable: bool = False

    def __post_init__(self) -> None:
        if self.text is not None:
            check_text(self.text)
        check_present(self.text, picture=not self.text_alone)

    @property
    def text_alone(self) -> bool:
        """True if the request is for a text without picture."""
        return not self.image and self.picture is None

    async def identified(self) -> TrialRequest:
        """Returns the request with the digest of its file, and with an id of its own if the caller gave none."""
        return replace(
            self,
            file=b"" if self.text_alone else await digest_of_file(self.image),
            request_id=self.request_id or str(uuid.uuid4()),
            repeatable=bool(self.request_id),
        )

    @property
    def name(self) -> RequestName:
        """Name under which the request is leased."""
        return RequestName(self.namespace, self.request_id)

    @property
    def fingerprint(self) -> str:
        """Digest of everything that identifies the request: its id must not be used for another one."""
        pins, policy = self.pins, self.policy
        return digest(
            [
                self.file.hex(),
                self.text,
                self.language,
                self.procedure,
                self.content_id,
                "" if policy is None else "\n".join((policy.id, policy.version, policy.digest)),
                [dict(pins.models), pins.prompts, pins.library, pins.encoder, pins.settings],
                self.try_anew,
            ]
        )

    def require(self, versions: Versions, policy: Policy | PolicyReference, library: str | None = None) -> None:
        """Raises NotLoaded unless the given versions and policy satisfy the request.

        Args:
            versions: Versions that a trial is or would be run with.
            library: Digest of the library that was searched, which may have changed after the trial started; that of
                ``versions`` if not given.
        """
        if self.pins != ANY_VERSIONS:
            # Compared by digest, as in records: the names of models or libraries may later refer to something else.
            in_use = {name: getattr(versions, name) for name in ("prompts", "library", "encoder", "settings")}
            if library is not None:
                in_use["library"] = library
            wanted = {name: getattr(self.pins, name) for name in in_use}
            for role, model in self.pins.models.items():
                wanted[f"models.{role}"], in_use[f"models.{role}"] = model, versions.models.get(role.upper(), "")
            for name, version in wanted.items():
                if version and version != in_use[name]:
                    raise NotLoaded(
                        f"The {name} asked for can't be had: {in_use[name] or 'none'} is loaded. Leave the pin out to "
                        "have the meme tried with that.",
                        reason="PIN_NOT_LOADED",
                        field=f"pins.{name}",
                    )
        own = self.policy
        if own is not None and any(
            wanted not in ("", loaded)
            for wanted, loaded in ((own.id, policy.id), (own.version, policy.version), (own.digest, policy.digest))
        ):
            raise NotLoaded(
                f"The policy that was asked for is not loaded; {policy.id} version {policy.version} ({policy.digest}) "
                "is. Leave the policy out to have that one applied.",
                reason="POLICY_NOT_LOADED",
                field="policy",
            )

    def fits(self, record: TrialRecord) -> bool:
        """True if a trial's versions and policy satisfy the request."""
        # Most requests pin nothing, so they need no comparison.
        if self.pins == ANY_VERSIONS and self.policy is None:
            return True
        try:
            self.require_of(record)
        except NotLoaded:
            return False
        return True

    def require_of(self, record: TrialRecord) -> None:
        """Raises NotLoaded unless a trial's versions and policy satisfy the request."""
        cited = record.precedents
        self.require(record.opened.versions, record.opened.policy, cited.findings.library.digest if cited else None)
