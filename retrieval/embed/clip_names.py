"""Names of CLIP models and their weights; imports nothing heavy.

=================================  ======================================================================
``open_clip:MODEL/TAG``            a model of open_clip with published weights, fetched once and cached
``open_clip:MODEL//path/to/file``  the same with a checkpoint: a part with a slash is a path (``MODEL/./file``)
``hf-hub:ORG/NAME``                a repository of the Hugging Face hub with an ``open_clip_config.json``
``local-dir:DIRECTORY``            such a repository as a local directory: nothing is fetched
=================================  ======================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from court.errors import BadRequest

PREFIX = "open_clip:"
HUB = "hf-hub:"
DIRECTORY = "local-dir:"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_LOCAL = "(local)"
"""Ends the name of what is found by a path: a path is no name, and has no place in a manifest or a record."""


@dataclass(frozen=True, slots=True)
class ClipSource:
    """A model and the location of its weights.

    Attributes:
        path: The checkpoint, or for ``local-dir`` the directory; None if the weights are not located by a path.
    """

    model: str
    tag: str = ""
    path: Path | None = None

    @property
    def name(self) -> str:
        """Name of the encoder, which includes the weights if that is possible without a path."""
        if self.path is not None:
            return f"{PREFIX}{self.model} {_LOCAL}"
        return f"{PREFIX}{self.model}" + (f"/{self.tag}" if self.tag else "")


def is_clip(name: str) -> bool:
    """True if the name denotes a CLIP encoder, well-formed or not."""
    return name.startswith((PREFIX, HUB, DIRECTORY))


def is_local(name: str) -> bool:
    """True if an encoder of this name was loaded from a path, which the name does not include."""
    return name.endswith(f" {_LOCAL}")


def parse_clip(name: str) -> ClipSource:
    """Parses the name of a CLIP encoder. Raises BadRequest if a part is missing or malformed."""
    named = name.removeprefix(PREFIX)
    if named.startswith(HUB):
        if not _HUB_NAME.fullmatch(named.removeprefix(HUB)):
            raise _malformed("A repository of the Hugging Face hub is hf-hub:ORG/NAME.")
        return ClipSource(named)
    if named.startswith(DIRECTORY):
        if named == DIRECTORY:
            raise _malformed("The directory is missing: local-dir:DIRECTORY.")
        return ClipSource(DIRECTORY.rstrip(":"), path=Path(named.removeprefix(DIRECTORY)).expanduser())
    model, _, weights = named.partition("/")
    if not model or not weights:
        raise _malformed(
            "A CLIP encoder is open_clip:MODEL/TAG, such as open_clip:ViT-L-14/openai, or open_clip:MODEL/ and the "
            "path of a checkpoint, with a slash in it."
        )
    if "/" in weights:
        return ClipSource(model, path=Path(weights))
    return ClipSource(model, tag=weights.lower().replace("-", "_"))  # as open_clip looks tags up


def _malformed(what: str) -> BadRequest:
    return BadRequest(what, reason="ENCODER_MALFORMED", field="encoder")
