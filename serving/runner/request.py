"""One request on its way through the reception: what is asked, whose turn it is, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from court.digests import digest
from court.errors import NotLoaded
from court.events import PolicyReference, Procedure, Versions
from court.meme import Picture
from court.policy import Policy
from court.record import TrialRecord
from serving.docket.ports import RequestName
from serving.runner.admission import Admission

_TO_END_S = 0.25
"""What a call gets beyond its deadline for its trial to write down that it ended by it, in seconds."""


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A verdict that was given again, and what it takes to give it to a request that asks the same once more.

    Attributes:
        ask: Request without its picture.
        file: SHA-256 of the picture file.
        payload: Digest of what was asked.
        key: Key under which the meme is known.
        versions: Versions object of the time: see :meth:`serving.runner.verdict_cache.VerdictCache.versions_in_use`.
        trial_id: Id of the trial with the verdict.
    """

    ask: TrialRequest
    file: bytes
    payload: str
    key: str
    versions: object
    trial_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request that has a verdict.

    Attributes:
        record: The whole trial that the verdict is from.
        picture_seconds: Time that decoding the picture took; 0 where this call decoded none.
        total_seconds: From the ask to the answer.
        name: Name of the request: the caller's id for it, or a generated one.
        reused: True if the trial was run for another request.
        near: True if the trial was run for a near-duplicate.
        cached: Cached answer, if there was one: input of :meth:`serving.runner.runner.TrialRunner.again`.
    """

    record: TrialRecord
    picture_seconds: float
    total_seconds: float
    name: RequestName
    reused: bool
    near: bool
    cached: CachedAnswer | None = None


class PictureMemory(Protocol):
    """Accounts for the memory that decoded pictures take."""

    def change_pictures(self, by: int) -> None:
        """Decoded pictures take so many bytes more, or fewer, from now on."""
        ...


class UncountedPictures:
    """Accounts for nothing, where nothing bounds the memory of pictures."""

    def change_pictures(self, by: int) -> None:
        """See the port."""


@dataclass(slots=True)
class AdmissionSlot:
    """The place of a call, or of the trial that it began, among those that may run; it holds the decoded picture.

    Only who is admitted holds a decoded picture: as many are in memory as may run, however many wait.

    Attributes:
        admission: Admission control that the call waits at; None if it needs none.
        namespace: Namespace of the slot.
        within_s: Seconds that the caller had when it came; None where there is no deadline.
        patient: True if the caller waits however many wait, as a stream does: it has many requests on their way, and
            model servers work on those of others first.
        memory: Accounts for the bytes of the picture.
        entered: The slot, while it is taken.
        picture: Decoded, while it is held.
    """

    admission: Admission | None = None
    namespace: str = ""
    within_s: float | None = None
    patient: bool = False
    memory: PictureMemory = field(default_factory=UncountedPictures)
    entered: AbstractAsyncContextManager[object] | None = None
    picture: Picture | None = None

    async def take(self) -> None:
        """Wait to be admitted, unless it is so already."""
        if self.admission is not None and self.entered is None:
            slot = self.admission.acquire(self.namespace, within_s=self.within_s, patient=self.patient)
            await slot.__aenter__()
            # Only once admitted: a caller that is cancelled while it waits has nothing to give back.
            self.entered = slot

    def require(self) -> None:
        """Raise Busy where admission would be refused, and Unavailable where the court closes; waits for nothing."""
        if self.admission is not None and self.entered is None:
            self.admission.check(self.namespace, within_s=self.within_s, patient=self.patient)

    async def leave(self) -> None:
        """Let the next one in: what is waited for now is others' work."""
        # Cleared before anything is awaited, so that a second call gives neither slot nor bytes back again.
        entered, self.entered = self.entered, None
        picture, self.picture = self.picture, None
        if picture is not None:
            self.memory.change_pictures(-size_of(picture))
        if entered is not None:
            await entered.__aexit__(None, None, None)

    def keep(self, picture: Picture) -> None:
        """Hold a picture until the slot is left; not without one."""
        # Without a place nothing bounds how many pictures are held at once.
        if self.picture is None and (self.admission is None or self.entered is not None):
            self.picture = picture
            self.memory.change_pictures(size_of(picture))

    def handed_on(self) -> AdmissionSlot:
        """Another slot, which has what this one had from now on."""
        other = replace(self)
        # Not counted down: the bytes are the other slot's to give back.
        self.entered = self.picture = None
        return other


@dataclass(slots=True)
class Call:
    """A request on its way.

    Attributes:
        ask: Request of the call.
        name: Name of the request: the caller's id for it, or a generated one.
        file: SHA-256 of the picture file; empty where the text was sent alone.
        place: Admission slot of the call.
        began: Arrival time by the performance counter, in seconds.
        clock: Ends it at the caller's deadline.
        deadline: Deadline by the event loop's clock, in seconds; None if there is none.
        picture_seconds: Seconds that decoding its picture took.
    """

    ask: TrialRequest
    name: RequestName
    file: bytes
    place: AdmissionSlot
    began: float
    clock: asyncio.Timeout
    deadline: float | None
    picture_seconds: float = 0.0

    @property
    def payload(self) -> str:
        """Digest of what is asked."""
        return request_fingerprint(self.ask, self.file)

    @property
    def left(self) -> float | None:
        """Seconds until the deadline; None where there is none."""
        return None if self.deadline is None else self.deadline - asyncio.get_running_loop().time()

    def ends_with_trial(self) -> None:
        """The trial that this call began keeps to the deadline by itself; the call waits for it to say so."""
        # Otherwise both would end at the same moment, and the call would miss what the record says.
        if self.deadline is not None:
            self.clock.reschedule(self.deadline + _TO_END_S)


def size_of(picture: Picture) -> int:
    """Bytes that a decoded picture takes."""
    return sum(len(frame.png) for frame in picture.frames)


def request_fingerprint(ask: TrialRequest, file: bytes) -> str:
    """Digest of all that makes a request the one that it is: the same id may stand for no other.

    Args:
        ask: Request to digest.
        file: SHA-256 of its picture file; empty where there is none.
    """
    # Claims in dockets contain this digest. To add a field is to have a request that is repeated across the upgrade
    # refused as another one under the same id.
    pins, policy = ask.pins, ask.policy
    return digest(
        [
            file.hex(),
            ask.text,
            ask.language,
            ask.procedure,
            ask.content_id,
            "" if policy is None else "\n".join((policy.id, policy.version, policy.digest)),
            [dict(pins.models), pins.prompts, pins.library, pins.encoder, pins.settings],
            ask.try_anew,
        ]
    )


@dataclass(frozen=True, slots=True)
class RequiredVersions:
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


ANY_VERSIONS = RequiredVersions()


@dataclass(frozen=True, slots=True)
class RequiredPolicy:
    """The policy that a caller insists on, as a record gives it. What is empty may be anything."""

    id: str = ""
    version: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """Request for a trial, checked in form but not yet in substance.

    Attributes:
        image: The picture file; empty where the text is sent alone.
        text: Text of the meme; None to have it read off the picture.
        language: BCP 47 tag or empty.
        procedure: Procedure of the trial.
        request_id: The caller's name for the request, or empty.
        namespace: Namespace of the content.
        content_id: Caller's id of the content.
        trace_id: 32 hex digits, or empty for a new one.
        pins: Versions that it must be tried with.
        try_anew: True to try it even if the verdict of an earlier trial would serve.
        policy: The policy that it must be tried by; None for whichever is loaded.
        of_trial: Id of the trial whose meme is tried once more; empty for a trial of its own.
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

    @property
    def text_alone(self) -> bool:
        """True if a text is to be tried that no picture was sent with."""
        return not self.image

    def require(self, versions: Versions, policy: Policy | PolicyReference, library: str | None = None) -> None:
        """Raises NotLoaded if this is to be tried with something else.

        Args:
            versions: Versions that a trial is or would be run with.
            policy: Policy of the trial.
            library: Digest of the library that precedents were found in, where they were: it may have been changed
                after the trial began. That of the versions if not given.
        """
        if self.pins != ANY_VERSIONS:
            # Compared as records have them, by digests: names of models or libraries may mean something else tomorrow.
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
            for wanted, loaded in (
                (own.id, policy.id),
                (own.version, policy.version),
                (own.digest, policy.digest),
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
