"""Loads a CLIP model with its weights from open_clip, with errors that say what is wrong and what to do.

Weights are read as tensors only (safetensors, or a state dict that PyTorch reads with ``weights_only``): checkpoints
are untrusted, and a pickle can run arbitrary code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from court.errors import BadRequest, CourtError, NotLoaded, Unavailable
from retrieval.embed.clip_names import ClipSource
from retrieval.embed.encoder import Preprocessing

if TYPE_CHECKING:
    import torch

_CONFIG = "open_clip_config.json"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class LoadedClip:
    """A model in inference mode, in float32 on the CPU; ``known_as`` is the name of its tokenizer."""

    name: str
    model: torch.nn.Module
    known_as: str
    config: Mapping[str, Any]
    preprocessing: Preprocessing

    @property
    def context(self) -> int:
        """Number of tokens that the model's own text half reads."""
        return int(self.config["text_cfg"].get("context_length", 77))


def load_clip(source: ClipSource) -> LoadedClip:
    """Loads a model and its weights, which are fetched if open_clip or the hub has them and they are not cached yet.

    Raises:
        BadRequest: There is no such model, tag, repository or file; or the weights are damaged or of another model.
        NotLoaded: open_clip is not installed.
        Unavailable: The weights must be fetched, and that fails.
    """
    open_clip = _open_clip()
    if source.model == "local-dir":
        return _from_directory(open_clip, source)
    if source.model.startswith("hf-hub:"):
        return _from_hub(open_clip, source)
    if source.path is None:
        return _from_tag(open_clip, source)
    if not source.path.is_file():
        raise _no_such(f"There is no checkpoint for {source.model} at the given path.")
    preprocessing = _published(open_clip, source.model)
    return _create(open_clip, source, pretrained=str(source.path), force_preprocess_cfg=preprocessing)


def weights_digest(modules: Mapping[str, torch.nn.Module]) -> str:
    """SHA-256 of names, shapes, types and values of all tensors of these modules, as ``sha256:…``.

    Raises:
        BadRequest: A value is not finite, as only in damaged weights.
    """
    # The same weights have the same digest regardless of file format and device.
    import torch

    sha256 = hashlib.sha256()
    for part, module in sorted(modules.items()):
        # Sorted by name, as files of the same weights list them in different orders.
        for name, tensor in sorted(module.state_dict().items()):
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise BadRequest("The weights are not finite.", reason="ENCODER_DAMAGED", field="encoder")
            sha256.update(f"{part}.{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            sha256.update(tensor.detach().cpu().contiguous().numpy().data)
    return f"sha256:{sha256.hexdigest()}"


def _open_clip() -> Any:
    try:
        # Imported by name: open_clip has no type hints.
        return import_module("open_clip")
    except ImportError as error:
        raise NotLoaded(
            "CLIP encoders need open_clip, which is not installed. Install it with: pip install 'memecourt[clip]'",
            reason="CLIP_NOT_INSTALLED",
        ) from error


def _from_tag(open_clip: Any, source: ClipSource) -> LoadedClip:
    known = open_clip.get_pretrained_cfg(source.model, source.tag)
    if not known:
        raise _no_such(
            f"open_clip knows no weights {source.tag!r} for a model {source.model!r}. python -c 'import open_clip; "
            "print(open_clip.list_pretrained())' lists all; a checkpoint of your own is named by its path."
        )
    try:
        path = open_clip.download_pretrained(known)
    # To the caller all of them mean that nothing was fetched; the cause is chained.
    except Exception as error:  # the hub, urllib and open_clip each have their own
        raise not_fetched(source.name, error) from error
    wanted = {key: known[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in known}
    return _create(
        open_clip,
        source,
        pretrained=path,
        force_preprocess_cfg=wanted,
        # open_clip only warns if the weights were trained with another activation than the model's file says; the
        # vectors would be silently wrong.
        force_quick_gelu=bool(known.get("quick_gelu")),
    )


def _from_hub(open_clip: Any, source: ClipSource) -> LoadedClip:
    repository = source.model.removeprefix("hf-hub:")
    try:
        open_clip.factory.download_pretrained_from_hf(repository, filename=_CONFIG)
        open_clip.factory.download_pretrained_from_hf(repository)
    except Exception as error:
        raise not_fetched(source.name, error) from error
    return _create(open_clip, source)


def _from_directory(open_clip: Any, source: ClipSource) -> LoadedClip:
    directory = source.path or Path()
    if not (directory / _CONFIG).is_file() or not any(path.suffix in _WEIGHTS for path in directory.glob("*")):
        raise _no_such(f"The directory for local-dir: holds no {_CONFIG}, or no weights beside it.")
    return _create(open_clip, source)


def _create(
    open_clip: Any,
    source: ClipSource,
    *,
    pretrained: str | None = None,
    force_quick_gelu: bool = False,
    force_preprocess_cfg: Mapping[str, Any] | None = None,
) -> LoadedClip:
    known_as = f"local-dir:{source.path}" if source.model == "local-dir" else source.model
    try:
        model = open_clip.create_model(
            known_as,
            pretrained,
            precision="fp32",
            device="cpu",
            force_quick_gelu=force_quick_gelu,
            force_preprocess_cfg=force_preprocess_cfg,
            pretrained_text=False,
            require_pretrained=True,
            # A checkpoint with pickled code is refused instead of run.
            weights_only=True,
        )
        config = open_clip.get_model_config(known_as)
        preprocessing = preprocessing_of(model.visual.preprocess_cfg)
    except Exception as error:  # of torch, safetensors, the hub, timm and transformers
        # The config of a text tower from the hub is fetched even if its weights are available.
        if isinstance(error, OSError) or "huggingface" in str(error):
            raise not_fetched(source.name, error) from error
        raise BadRequest(
            f"open_clip can't load {source.name}: {_reason(error)}. Copy or fetch the weights again, name the model "
            "that they were saved from, and save a state dict, as pickled code is not run.",
            reason="ENCODER_DAMAGED",
            field="encoder",
        ) from error
    model.eval().requires_grad_(False)
    # The activation can't be seen from the tensors, so only the config brings it into the encoder's identity.
    config["quick_gelu"] = force_quick_gelu or bool(config.get("quick_gelu"))
    return LoadedClip(name=source.name, model=model, known_as=known_as, config=config, preprocessing=preprocessing)


def preprocessing_of(config: Mapping[str, Any]) -> Preprocessing:
    """Converts open_clip's description of a model's preprocessing (``model.visual.preprocess_cfg``)."""
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else size
    return Preprocessing(
        size=(height, width),
        mean=_three(config["mean"]),
        std=_three(config["std"]),
        interpolation=config["interpolation"],
        resize_mode=config["resize_mode"],
        fill_color=config["fill_color"],
    )


def _three(value: float | Iterable[float]) -> tuple[float, float, float]:
    red, green, blue = (value,) * 3 if isinstance(value, int | float) else value
    return red, green, blue


def _published(open_clip: Any, model: str) -> dict[str, Any]:
    """Returns the preprocessing of a model's published weights if they all agree; else open_clip's default."""
    # A checkpoint file does not contain it, and a SigLIP checkpoint would give nonsense with open_clip's default.
    known = [open_clip.get_pretrained_cfg(model, tag) for tag in open_clip.list_pretrained_tags_by_model(model)]
    agreed = {}
    for key in ("mean", "std", "interpolation", "resize_mode"):
        values = [one.get(key) for one in known]
        if values and values[0] is not None and all(value == values[0] for value in values):
            agreed[key] = values[0]
    return agreed


def _no_such(what: str) -> BadRequest:
    return BadRequest(what, reason="ENCODER_UNKNOWN", field="encoder")


def not_fetched(name: str, error: BaseException) -> CourtError:
    """Returns the error for a failed fetch."""
    return Unavailable(
        f"What {name} needs is not on this machine and can't be fetched: {_reason(error)}. Check the name and "
        "HF_TOKEN; or fetch it where the hub can be reached and copy the cache (HF_HOME), or name a checkpoint's path.",
        reason="ENCODER_UNREACHABLE",
    )


def _reason(error: BaseException) -> str:
    """The first line of a library's error, without the directories of paths."""
    (line, *_) = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"(?<![\w:/.])/(?:[^\s/'\"]+/)+", "", line)[:_LONGEST_REASON].rstrip(".")
