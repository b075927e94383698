"""Vision-language models that are set up by one name: a size, the memory of GPUs that it needs, and flags for vLLM.

Weights are in bfloat16, as their makers publish them. A quantised model is another model, with another name in every
record: start it with ``--model``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from court.errors import BadRequest, NotLoaded
from serving.models.vllm import VllmSettings

_FIELDS = ("index", "uuid", "name", "memory.total", "memory.free")
_SECONDS = 30
"""For an answer: a driver that is not loaded yet takes its time."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU."""

    index: int
    name: str
    total_gib: float
    free_gib: float

    def __str__(self) -> str:
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


AUTO = "auto"
"""In place of a preset's name: the largest that fits the GPUs of this machine."""
_BYTES_PER_WEIGHT = 2
_GIB = 2**30
_BESIDE_GIB = 2.5
"""On each GPU beside weights and cache: activations of a prompt with pictures, CUDA and its graphs. Estimated."""
_USED = 0.92
"""Share of a GPU's memory that vLLM 0.32 takes for all of it, if not told otherwise (``--gpu-memory-utilization``)."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A model and how vLLM is started with it.

    Attributes:
        weights: Number of its weights, of language model and vision encoder together.
        cache_bytes: Keys and values of one token in the cache, in bytes: 2 tensors x layers x key-value heads x size
            of a head x 2.
        max_pixels: Pixels from which on a picture is made smaller: 1,280 tokens.
        min_pixels: Pixels up to which one is made larger, as its makers have it.
    """

    name: str
    model: str
    weights: int
    cache_bytes: int
    context: int
    max_pixels: int
    min_pixels: int
    flags: tuple[str, ...] = ()

    def memory_gib(self, gpus: int = 1) -> float:
        """Memory that each GPU must have for the weights and one prompt of full length, in GiB.

        More memory holds more trials at once.
        """
        shared = self.weights * _BYTES_PER_WEIGHT + self.context * self.cache_bytes
        return (shared / gpus / _GIB + _BESIDE_GIB) / _USED

    def settings(self) -> dict[str, Any]:
        """Returns what the preset sets of :class:`~serving.models.vllm.VllmSettings`."""
        names = ("model", "context", "max_pixels", "min_pixels", "flags")
        return {name: getattr(self, name) for name in names}


def _cache_bytes(layers: int, heads: int) -> int:
    # Keys and values, 128 of each for a head, of two bytes each.
    return 2 * layers * heads * 128 * 2


# Seven pictures of 1,280 tokens leave 7,424 for texts and the reply. For a longer context of a model of 32 billion
# weights a GPU of 80 GB has no memory.
_SHORT = 16_384
_LONG = 32_768


def _qwen(series: str, size: int, weights: int, cache_bytes: int) -> Preset:
    # A picture's token is a square of 28 x 28 pixels in Qwen2.5-VL and of 32 x 32 in Qwen3-VL.
    pixels, least = (28 * 28, 4) if series == "Qwen2.5" else (32 * 32, 64)
    large = size > 8
    return Preset(
        name=f"{series.lower()}-vl-{size}b",
        model=f"Qwen/{series}-VL-{size}B-Instruct",
        weights=weights,
        cache_bytes=cache_bytes,
        context=_SHORT if large else _LONG,
        max_pixels=1280 * pixels,
        min_pixels=least * pixels,
        flags=("--max-num-seqs", "32") if large else (),
    )


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        _qwen("Qwen2.5", 3, weights=3_754_622_976, cache_bytes=_cache_bytes(36, heads=2)),
        _qwen("Qwen3", 4, weights=4_437_815_808, cache_bytes=_cache_bytes(36, heads=8)),
        _qwen("Qwen2.5", 7, weights=8_292_166_656, cache_bytes=_cache_bytes(28, heads=4)),
        _qwen("Qwen3", 8, weights=8_767_123_696, cache_bytes=_cache_bytes(36, heads=8)),
        _qwen("Qwen2.5", 32, weights=33_452_718_336, cache_bytes=_cache_bytes(64, heads=8)),
        _qwen("Qwen3", 32, weights=33_357_390_064, cache_bytes=_cache_bytes(64, heads=8)),
    )
}
"""By name, the smallest first; of two of a size the newer one comes later."""


@dataclass(frozen=True, slots=True)
class FittingPreset:
    """Preset that was chosen for the GPUs of this machine."""

    preset: Preset
    gpus: tuple[Gpu, ...]
    why: str

    def settings(self) -> dict[str, Any]:
        """Returns what the choice sets of :class:`~serving.models.vllm.VllmSettings`."""
        visible = ",".join(str(gpu.index) for gpu in self.gpus)
        # Numbers as nvidia-smi counts: CUDA's own order is another where GPUs differ.
        environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible}
        return {**self.preset.settings(), "tensor_parallel": len(self.gpus), "environment": environment}


def largest_that_fits(gpus: Sequence[Gpu]) -> FittingPreset:
    """Chooses the largest preset that fits, on as few GPUs as hold it.

    A GPU that something else uses is passed over: where less is free than vLLM takes, it does not start.

    Raises:
        NotLoaded: No GPU is there, or none is large and free enough.
    """
    idle = sorted((gpu for gpu in gpus if gpu.free_gib >= _USED * gpu.total_gib), key=lambda gpu: -gpu.total_gib)
    passed_over = ""
    for preset in reversed(list(PRESETS.values())):
        for count in (1, 2, 4, 8):
            needed = preset.memory_gib(count)
            # Sorted by size: this is the smallest of those that would share it, and each gets an equal part.
            if count <= len(idle) and idle[count - 1].total_gib >= needed:
                on = " and ".join(map(str, idle[:count]))
                why = f"{preset.name} needs {needed:.1f} GiB on each of {count} GPUs, and fits {on}{passed_over}."
                return FittingPreset(preset, tuple(idle[:count]), why.replace(" on each of 1 GPUs", ""))
        passed_over = f"; {preset.name} would need {preset.memory_gib():.1f} GiB"
    smallest = next(iter(PRESETS.values()))
    found = "; ".join(f"{gpu}, {gpu.free_gib:.1f} GiB of it free" for gpu in gpus) or "none"
    raise NotLoaded(
        f"No preset fits the GPUs here ({found}): the smallest, {smallest.name}, needs {smallest.memory_gib():.1f} GiB "
        "of a GPU that nothing else uses. Free one, or name a smaller or quantised model with --model.",
        reason="GPU_TOO_SMALL",
    )


def vllm_settings(name: str, /, *, tell: Callable[[str], None] = lambda _: None, **values: Any) -> VllmSettings:
    """Returns settings of a vLLM for a preset, or for a model that none names.

    Args:
        name: Name of a preset, ``auto`` for the largest that fits this machine, a model's name on the hub, or a folder.
        **values: Further settings, which go before those of the preset; its flags stay, and those given come after.

    Raises:
        BadRequest: A setting is none.
        NotLoaded: The largest that fits was asked for, and no GPU can be seen, or none fits.
    """
    set_up: dict[str, Any] = {"model": name}
    if name == AUTO:
        chosen = largest_that_fits(list_gpus())
        tell(chosen.why)
        set_up = chosen.settings()
    elif name in PRESETS:
        set_up = PRESETS[name].settings()
    # vLLM takes the last of a flag that is given twice: those of the caller win.
    flags = (*set_up.pop("flags", ()), *values.pop("flags", ()))
    try:
        return VllmSettings.model_validate({**set_up, **values, "flags": flags})
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors(include_input=False)
        )
        raise BadRequest(f"vLLM can't be started so: {faults}.", reason="BAD_SETTINGS") from None
