"""Downloads data sets by name from the Hugging Face hub, to be read by a card like other files."""

from pathlib import Path

from court.errors import BadRequest, Unavailable
from eval.datasets.card import DatasetCard


def download(card: DatasetCard, out: Path) -> Path:
    """Downloads the files that a card names, and the pictures; files that are already present are skipped.

    Args:
        card: Card of the data set, whose layout names the repository.
        out: Target directory; created if missing.

    Raises:
        BadRequest: The card names no repository, or the hub's client is not installed.
        Unavailable: The hub has no such repository, requires a login, or can't be reached.
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
    # A failed connection raises an error of the HTTP library, which differs between versions of the client; the
    # client's own errors derive from it.
    failures: tuple[type[BaseException], ...] = (HfHubHTTPError, *HfHubHTTPError.__bases__, OSError, ValueError)
    try:
        # Comes first: without a response, the download below would accept local files as the repository.
        commit = HfApi().repo_info(card.layout.hub, repo_type="dataset").sha
        snapshot_download(
            card.layout.hub, repo_type="dataset", revision=commit, local_dir=out, allow_patterns=_patterns(card)
        )
    except failures as error:
        raise Unavailable(
            f"{card.layout.hub} could not be had from the hub ({type(error).__name__}). Is the name right, the network "
            "there, and if its authors ask for a login, HF_TOKEN set?",
            reason="HUB_UNAVAILABLE",
        ) from None
    return out


def _patterns(card: DatasetCard) -> list[str]:
    """Patterns for the files that the card reads, in any of its folders."""
    names = [
        name for split in card.splits for language in split.languages or ("",) for name in split.files_of(language)
    ]
    names += [name for split in card.splits for name in (*split.ids, *(split.labels.files if split.labels else ()))]
    # Placeholders are only known per row: match any file with the same prefix.
    names += [f"{one.join.file.split('{')[0]}*" for one in card.expressions() if one.join]
    folders = (*card.layout.own, *card.layout.folders)
    pictures = [
        f"{pattern.split('{')[0]}*".removeprefix("/")
        for pattern in card.layout.pictures
        if pattern and "://" not in pattern
    ]
    return [f"{folder}/{name}".removeprefix("/") for folder in folders for name in (*names, *pictures)]
