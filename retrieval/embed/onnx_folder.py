"""A user's ONNX model in a folder: ``model.onnx`` (there or in ``onnx/``) and ``tokenizer.json``."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from court.backends.onnx import import_onnxruntime
from court.digests import sha256_of
from court.errors import BadRequest, NotLoaded

PREFIX = "onnx:"


@dataclass(frozen=True, slots=True)
class ModelKind:
    """Expected kind of model in a folder, with the words for errors.

    Attributes:
        name: Name with its article, ``an ONNX encoder``.
        field: Setting that names the folder.
        damaged: Reason code for an unusable model.
        not_installed: Reason code for a missing package.
    """

    name: str
    field: str
    damaged: str
    not_installed: str

    def unusable(self, why: str) -> BadRequest:
        """Returns the error for an unusable model."""
        return BadRequest(f"The {self.name} can't be used: {why}.", reason=self.damaged, field=self.field)


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A loaded model.

    Attributes:
        tokenizer: Its tokenizer, which neither truncates nor pads.
        session: Its session, which runs in the caller's thread.
    """

    tokenizer: Any
    session: Any
    path: Path
    folder: Path

    def digests(self, *others: Path) -> dict[str, str]:
        """SHA-256 of every file that affects the output, by name in the folder.

        Args:
            others: Further files that affect the output.
        """
        # Weights may be in separate files beside the graph (model.onnx_data).
        files = [*self.path.parent.glob(f"{self.path.name}*"), self.folder / "tokenizer.json", *others]
        return {path.relative_to(self.folder).as_posix(): sha256_of(path) for path in files}


def open_folder(folder: Path, kind: ModelKind) -> OnnxModel:
    """Loads tokenizer and model.

    Raises:
        NotLoaded: A package that runs it is not installed.
        BadRequest: The folder lacks a file, or its files are damaged.
    """
    model = next((path for path in (folder / "model.onnx", folder / "onnx" / "model.onnx") if path.is_file()), None)
    if model is None or not (folder / "tokenizer.json").is_file():
        raise BadRequest(
            f"An {kind.name} is a folder with model.onnx (or onnx/model.onnx) and tokenizer.json; {folder} "
            f"{'lacks one' if folder.is_dir() else 'is no folder'}.",
            reason=kind.damaged,
            field=kind.field,
        )
    try:
        onnxruntime, tokenizers = import_onnxruntime(), import_module("tokenizers")
    except ImportError as error:
        raise NotLoaded(
            f"An {kind.name} needs {error.name}. Install it with `pip install 'memecourt[server]'`.",
            reason=kind.not_installed,
        ) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # a pass runs in the caller's thread
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # neither raises anything narrower
        raise kind.unusable("its files are damaged, or of a kind that onnxruntime and tokenizers don't know") from error
    # The file may enable truncation and padding as used in training.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return OnnxModel(tokenizer, session, model, folder)
