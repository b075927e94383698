"""Finds and fetches recognition models for further scripts for RapidOCR.

The model in RapidOCR's package reads Chinese, Japanese and languages in Latin script. Models for other scripts are
fetched once, by name, and checked. Detection is independent of the script and needs no other model.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import httpx2
from platformdirs import user_data_path

from court.backends.download import download, download_client
from court.errors import BadRequest, NotLoaded, Unavailable

SOURCE = "https://www.modelscope.cn/models/RapidAI/RapidOCR/resolve/v3.10.0/onnx"
"""Where RapidOCR's models are published. ``MEMECOURT_READER_MODELS_URL`` names a mirror with the same paths."""
MIRROR = "MEMECOURT_READER_MODELS_URL"
_MAX_BYTES = 100_000_000


class RecognitionModel(NamedTuple):
    """A model of RapidOCR 3.10."""

    path: str
    sha256: str
    reads_latin: bool

    @property
    def name(self) -> str:
        """File name without its suffix."""
        return Path(self.path).stem


# Arabic is left out: its model outputs lines in visual order, from left to right, and restoring the logical order
# would be a guess.
LANGUAGES = {
    language: RecognitionModel(f"{version}/rec/{language}_{version}_rec_mobile.onnx", sha256, language != "ka")
    for language, version, sha256 in (
        ("cyrillic", "PP-OCRv5", "90f761b4bfcce0c8c561c0cb5c887b0971d3ec01c32164bdf7374a35b0982711"),
        ("devanagari", "PP-OCRv5", "d6f0a906580e3fa6b324a318718f1f31f268b6ea8ef985f91c2012a37f52c91e"),
        ("el", "PP-OCRv5", "b4368bccd557123c702b7549fee6cd1e94b581337d1c9b65310f109131542b7f"),
        ("eslav", "PP-OCRv5", "08705d6721849b1347d26187f15a5e362c431963a2a62bfff4feac578c489aab"),
        ("ka", "PP-OCRv4", "9c1e186ea1d13cf6c853e57b42d382c3961fdd6acc2409e0d0dc44defc9f152b"),
        ("korean", "PP-OCRv5", "cd6e2ea50f6943ca7271eb8c56a877a5a90720b7047fe9c41a2e541a25773c9b"),
        ("ta", "PP-OCRv5", "a42448808b7dea87597336f12438935f40353f1949e8360acd9e06b4da21bfe1"),
        ("te", "PP-OCRv5", "a3690451b50028a09a3316a1274f7c05728151ea3f8fd392696397a7fefcbd92"),
        ("th", "PP-OCRv5", "de541dd83161c241ff426f7ecfd602a0ba77d686cf3ab9a6c255ea82fd08006e"),
    )
}
"""Languages and scripts by RapidOCR's names; all but Georgian (``ka``) know English letters too."""


def find_model(language: str) -> Path:
    """Returns the file of a language's model.

    Raises:
        BadRequest: There is no such language.
        NotLoaded: The model was not fetched yet.
    """
    path = _folder() / f"{_model(language).name}.onnx"
    if not path.is_file():
        raise NotLoaded(
            f"The text reader's model for {language} is not here: run `memecourt setup --reader rapidocr:{language}`, "
            "which fetches it.",
            reason="TEXT_READER_NOT_INSTALLED",
        )
    return path


def fetch_model(language: str) -> Path:
    """Fetches the model of a language, checks it by its SHA-256, and returns its file.

    Raises:
        BadRequest: There is no such language.
        Unavailable: The model can't be fetched or has another digest; nothing was stored.
    """
    model = _model(language)
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    url = f"{os.environ.get(MIRROR, SOURCE).rstrip('/')}/{model.path}"
    # In the same folder, so that the checked file is moved atomically: readers never see a partial or unchecked one.
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder) as partial:
        path = Path(partial) / "model.onnx"
        try:
            with download_client() as client:
                download(client, url, path, sha256=model.sha256, max_bytes=_MAX_BYTES, reason="TEXT_READER_DAMAGED")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unavailable(
                f"The text reader's model for {language} can't be fetched from {url}: the server can't be reached, or "
                f"does not have it. Try again, or name a mirror of {SOURCE} in {MIRROR}.",
                reason="TEXT_READER_UNREACHABLE",
            ) from error
        return path.replace(folder / f"{model.name}.onnx")


def _model(language: str) -> RecognitionModel:
    if language not in LANGUAGES:
        raise BadRequest(
            f'There is no model of RapidOCR for "{language}" here. There are: {", ".join(LANGUAGES)}; without a '
            "language it reads Chinese, Japanese and languages in Latin letters.",
            reason="TEXT_READER_UNKNOWN",
            field="reader",
        )
    return LANGUAGES[language]


def _folder() -> Path:
    home = os.environ.get("MEMECOURT_HOME")
    return (Path(home) if home else user_data_path("memecourt")) / "reader"
