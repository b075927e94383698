"""Turns bytes into a :class:`~court.meme.Picture` without decoding anything in this process.

An untrusted file is parsed, decoded and normalised by :mod:`court.backends.pictures.worker`, in a process limited to
256 MiB and 2 CPU seconds. The result is a PNG of our own, which is validated like untrusted data.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import struct
from collections.abc import Callable, Iterator

from pydantic import Field, ValidationError

from court.backends.pictures.refusals import bad_picture
from court.backends.sandbox.process import Death, Guard, GuardedWorkers, JobFailed, Reply, Untrusted, WorkerDied
from court.digests import digest_of_file
from court.errors import Unavailable
from court.meme import LIMITS, Frame, Limits, Picture, PictureFormat

logger = logging.getLogger(__name__)

MEMORY_BYTES = 256 * 1024 * 1024
"""Address space of a worker, which bounds its memory."""
CPU_S = 1.9
"""CPU seconds for one picture. The promised limit is 2 s; the kernel's timer fires a tick or two late."""

_ALLOCATION = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 1024 * 1024),
    # libvips works in threads, each of which would reserve 64 MiB of the address space.
    "MALLOC_ARENA_MAX": "1",
    "VIPS_CONCURRENCY": "1",
}
"""Settings for glibc (others ignore them): memory of a frame is kept for the next frame and picture. Returning it to
the kernel each time costs a third of a usual picture's time, as it has to be mapped and cleared again. The first value
is the maximum; a lower one makes animations with large frames 1.5 times as slow."""
_PNG_BEGINS = struct.Struct(">8sI4sIIBBBBB")


class _Sent(Untrusted):
    index: int = Field(ge=0)
    width: int = Field(ge=1)
    height: int = Field(ge=1)
    legible: bool


class _Read(Untrusted):
    format: PictureFormat = Field(strict=False)
    width: int = Field(ge=1)
    height: int = Field(ge=1)
    frame_count: int = Field(ge=1)
    frames_unlike: int = Field(ge=0)
    incomplete: bool
    shown_otherwise: bool
    pixels_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    frames: list[_Sent] = Field(min_length=1)


class _Refusal(Untrusted):
    refused: str
    figures: dict[str, int]


class GuardedPictureReader:
    """A :class:`~court.ports.PictureReader`; safe to call concurrently."""

    def __init__(
        self,
        limits: Limits = LIMITS,
        *,
        workers: int = 1,
        cpu_s: float = CPU_S,
        wall_s: float = 20.0,
        watch: Callable[[Reply], None] | None = None,
    ) -> None:
        """Starts nothing yet."""
        self._limits = limits
        guard = Guard(
            cpu_s=cpu_s,
            wall_s=wall_s,
            memory_bytes=MEMORY_BYTES,
            environment=_ALLOCATION,
            # Each frame and its larger copy, neither with more pixels than a square of outgoing_side. Four bytes per
            # pixel exceed the size of a PNG with three incompressible channels.
            max_reply_bytes=2 * limits.representative_frames * (4 * limits.outgoing_side**2 + 65536),
        )
        self._workers = GuardedWorkers(
            "court.backends.pictures.worker", guard, name="picture reader", workers=workers, watch=watch
        )

    async def read(self, data: bytes) -> Picture:
        """Decodes the picture in ``data``.

        Raises:
            BadPicture: The picture can't be read or exceeds the limits.
            Overrun: Decoding timed out; a retry may succeed.
            Unavailable: There was no process, or it was killed from outside; a retry may succeed.
        """
        if not data:
            raise bad_picture("PICTURE_EMPTY", {})
        # Rejected here, to save a process the work.
        if len(data) > self._limits.max_bytes:
            raise bad_picture("PICTURE_TOO_LARGE_BYTES", {"bytes": len(data), "limit": self._limits.max_bytes})
        # Digested here, as the recorded digest must not depend on the untrusted process.
        digest = (await digest_of_file(data)).hex()
        try:
            reply = await self._workers.run({"limits": dataclasses.asdict(self._limits)}, [data])
        except WorkerDied as died:
            if died.death is Death.CPU_SPENT:
                raise bad_picture("PICTURE_TOO_COSTLY", {}) from died
            # As when memory is short: the picture is not necessarily the cause, which BadPicture would claim.
            if died.death is Death.KILLED:
                raise Unavailable(
                    "The process that decoded the picture was killed from outside before it was done. Ask again.",
                    reason="PICTURE_READER_KILLED",
                ) from died
            raise bad_picture("PICTURE_KILLS_READER", {}) from died
        except JobFailed as failed:
            logger.warning("the picture worker failed by %s", failed.kind)
            reason = "PICTURE_TOO_COSTLY" if failed.kind == "MemoryError" else "PICTURE_KILLS_READER"
            raise bad_picture(reason, {}) from failed
        return self._checked(reply, digest)

    async def aclose(self) -> None:
        """Stops the processes."""
        await self._workers.aclose()

    def _checked(self, reply: Reply, digest: str) -> Picture:
        """Validates a reply and returns its picture.

        Raises:
            BadPicture: The reply rejects the picture, or is invalid, which only a file that compromised the worker can
                cause.
        """
        try:
            if "refused" in reply.body:
                refusal = _Refusal.model_validate(reply.body)
                raise bad_picture(refusal.refused, refusal.figures)
            read = _Read.model_validate(reply.body)
            pngs = sum(1 + sent.legible for sent in read.frames)
            if len(read.frames) > self._limits.representative_frames or pngs != len(reply.payloads):
                raise ValueError("frames")
            payloads = iter(reply.payloads)
            frames = [self._frame(sent, payloads) for sent in read.frames]
        except (ValidationError, ValueError, KeyError, struct.error) as error:
            # KeyError means an unknown reason, or missing figures.
            logger.warning("the picture reader sent a reply that is none: %s", type(error).__name__)
            raise bad_picture("PICTURE_KILLS_READER", {}) from None
        return Picture(
            format=read.format,
            bytes_sha256=digest,
            pixels_sha256=read.pixels_sha256,
            width=read.width,
            height=read.height,
            frame_count=read.frame_count,
            frames=tuple(frames),
            frames_unlike=read.frames_unlike,
            incomplete=read.incomplete,
            shown_otherwise=read.shown_otherwise,
        )

    def _frame(self, sent: _Sent, pngs: Iterator[bytes]) -> Frame:
        png = next(pngs)
        # Compares the PNG header with the claim, as a compromised worker may state one size and send another.
        if _size(png) != (sent.width, sent.height) or max(sent.width, sent.height) > self._limits.outgoing_side:
            raise ValueError("frame")
        legible = next(pngs) if sent.legible else None
        if legible is not None:
            size = _size(legible)
            # The shorter side may have been rounded up.
            if math.prod(size) > self._limits.outgoing_side**2 + max(size):
                raise ValueError("frame")
        return Frame(png=png, width=sent.width, height=sent.height, index=sent.index, legible_png=legible)


def _size(png: bytes) -> tuple[int, int]:
    """Width and height of a PNG file of ours: 8 bits of red, green and blue, not interlaced. Raises ValueError."""
    begins = _PNG_BEGINS.unpack_from(png)
    width, height = begins[3:5]
    if begins != (b"\x89PNG\r\n\x1a\n", 13, b"IHDR", width, height, 8, 2, 0, 0, 0):
        raise ValueError("frame")
    return width, height
