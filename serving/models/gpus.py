"""GPUs of this machine, as NVIDIA's driver lists them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from court.errors import NotLoaded

_FIELDS = ("index", "uuid", "name", "memory.total", "memory.free")
_SECONDS = 30
"""For an answer: a driver that is not loaded yet takes its time."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU.

    Attributes:
        free_gib: Memory of it that nothing uses, in GiB.
    """

    index: int
    name: str
    total_gib: float
    free_gib: float

    def __str__(self) -> str:
        """Returns its number, name and memory."""
        return f"GPU {self.index} ({self.name}, {self.total_gib:.1f} GiB)"


def list_gpus() -> tuple[Gpu, ...]:
    """Returns the GPUs that a process started here would see: those that CUDA_VISIBLE_DEVICES names, else all.

    Raises:
        NotLoaded: ``nvidia-smi`` is not there or fails, or it lists none.
    """
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
        # By both names, since CUDA_VISIBLE_DEVICES may use either.
        gpus = {
            (index, uuid): Gpu(int(index), name, int(total) / 1024, int(free) / 1024)
            for index, uuid, name, total, free in rows
        }
    except FileNotFoundError:
        raise _missing("nvidia-smi, which lists them, is not installed") from None
    except (subprocess.SubprocessError, OSError):
        raise _missing("nvidia-smi, which lists them, failed") from None
    except ValueError:
        raise _missing("what nvidia-smi says of their memory can't be read") from None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        named = [part.strip() for part in visible.split(",")]
        gpus = {
            ids: gpu
            for ids, gpu in gpus.items()
            # CUDA takes the beginning of a UUID for the whole; an empty part would be the beginning of any.
            if ids[0] in named or any(part and ids[1].startswith(part) for part in named)
        }
    if not gpus:
        raise _missing("there is none" if visible is None else "CUDA_VISIBLE_DEVICES names none that is here")
    return tuple(gpus.values())


def _missing(why: str) -> NotLoaded:
    return NotLoaded(
        f"No GPU can be seen here: {why}. Name a preset or a model in place of auto; vLLM says whether it runs.",
        reason="GPU_MISSING",
    )
