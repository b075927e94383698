"""Data sets of the Hugging Face hub by name: their files on disk, where a card reads them like any others."""

from __future__ import annotations

from pathlib import Path

from court.errors import BadRequest, Unavailable
from eval.datasets.card import DatasetCard


def download(card: DatasetCard, out: Path) -> Path:
    """Downloads the files that a card names, and the pictures; files that are there already are not fetched again.

    Args:
        card: Card of the data set, whose layout names the repository.
        out: Directory for the files; made where it is not there.

    Raises:
        BadRequest: The card names no repository, or the client of the hub is not installed.
        Unavailable: The hub did not give the files: it has none of this name, asks for a login, or is not there.
    """
    if not card.layout.hub:
        raise BadRequest(
            f"The card of {card.id} names no repository of the Hugging Face hub (layout.hub). Get the files from "
            f"{card.source_url or 'its authors'}.",
            reason="CARD_WITHOUT_HUB",
        )
    try:
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise BadRequest(
            "The Hugging Face hub is asked by huggingface_hub. Install it: pip install 'memecourt[datasets]'",
            reason="NOT_INSTALLED",
        ) from None
    # A connection that fails raises the error of the HTTP library, which is another in each version of the client; that
    # of the client itself is derived from it.
    failures: tuple[type[BaseException], ...] = (HfHubHTTPError, *HfHubHTTPError.__bases__, OSError, ValueError)
    try:
        # First: without an answer, the download below would take whatever lies in the directory for the repository.
        commit = HfApi().repo_info(card.layout.hub, repo_type="dataset", revision=card.layout.revision).sha
        snapshot_download(
            card.layout.hub,
            repo_type="dataset",
            revision=commit,
            local_dir=out,
            allow_patterns=_patterns(card),
        )
    except failures as error:
        raise Unavailable(
            f"{card.layout.hub} could not be had from the hub ({type(error).__name__}). Is the name right, the network "
            "there, and if its authors ask for a login, HF_TOKEN set?",
            reason="HUB_UNAVAILABLE",
        ) from None
    return out


def _patterns(card: DatasetCard) -> list[str]:
    """Names of the files that the card reads, in any of its folders."""
    names = [
        name for split in card.splits for language in split.languages or ("",) for name in split.files_of(language)
    ]
    names += [name for split in card.splits for name in (*split.ids, *(split.labels.files if split.labels else ()))]
    # What stands in braces is known only with a row: any file that begins so.
    names += [f"{one.join.file.split('{')[0]}*" for one in card.expressions() if one.join]
    folders = (*card.layout.own, *card.layout.folders)
    pictures = [
        f"{pattern.split('{')[0]}*".removeprefix("/")
        for pattern in card.layout.pictures
        if pattern and "://" not in pattern
    ]
    return [f"{folder}/{name}".removeprefix("/") for folder in folders for name in (*names, *pictures)]
