"""``memecourt setup``: what has to be fetched once before memes can be judged here."""

from __future__ import annotations

import os

import click

from court.backends.ocr.rapidocr_models import fetch_model, find_model
from court.backends.ocr.reader import check_reader_name
from court.errors import NotLoaded
from retrieval.embed.weights import WEIGHTS, fetch_weights, find_weights
from serving.cli.common import tell


@click.command()
@click.option(
    "--reader",
    metavar="rapidocr:LANGUAGE",
    help="Also fetch the text reader's model (8 to 17 MB) for another script, such as rapidocr:cyrillic.",
)
def setup(reader: str | None) -> None:
    """Fetches the encoder's weights (91 MB) from the Hugging Face Hub, unless they are present.

    The weights are stored in MEMECOURT_HOME, else in the user's data folder, and each file is checked by its SHA-256.
    Weights in the folder that MEMECOURT_ENCODER_WEIGHTS names, or installed as a package, are used as they are.
    """
    language = None if reader is None else _language(reader)
    try:
        path = find_weights()
    except NotLoaded:
        # A folder that was named and has no weights is a mistake to report, and no reason to fetch others.
        if os.environ.get(WEIGHTS):
            raise
        tell("Fetching the encoder's weights (91 MB) …")
        path = fetch_weights()
    click.echo(f"The encoder's weights are in {path}.")
    if language is None:
        return
    try:
        model = find_model(language)
    except NotLoaded:
        tell(f"Fetching the text reader's model for {language} …")
        model = fetch_model(language)
    click.echo(f"The text reader's model for {language} is {model}. Judge and serve use it with --reader {reader}.")


def _language(reader: str) -> str:
    """Language of the reader that is asked for; other readers need nothing fetched."""
    try:
        kind, _, language = check_reader_name(reader).partition(":")
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--reader") from None
    if kind != "rapidocr" or not language:
        raise click.BadParameter(f"{reader} needs nothing fetched; rapidocr:LANGUAGE does.", param_hint="--reader")
    return language
