"""``memecourt docket hashes``: PDQ hashes of memes that people found harmful, for banks of hashes elsewhere."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np
from PIL import Image

from court.verdict import Label
from retrieval.library.postgres.address import Address
from retrieval.near_duplicates.pdq import QUALITY_FLOOR, hashes_of
from serving.cli.common import awaited, docket_in, docket_option, settings_of, tell
from serving.docket.store.listing import TrialFilter
from serving.export.tables import Selection


@click.command()
@click.option("--namespace", help="Only pictures of this namespace.")
@docket_option
@awaited
async def hashes(namespace: str | None, docket: Path | Address | None) -> None:
    """Prints a JSON line for each picture whose last review by a person found it harmful.

    Fields: verdict_id, frame, namespace, content_id, reviewed_at, pdq (64 hex digits), quality. The last line is
    {"end": true}; if it is missing, the output is incomplete. Pictures that were overruled since or erased are left
    out. Pictures with too little detail to hash are only counted, on standard error.
    """
    plain = 0
    async with docket_in(settings_of(docket=docket)) as store:
        selection = Selection(store.index, store.trials, TrialFilter(reviewed=True, namespace=namespace))
        async for record in selection.records():
            review, meme = record.review, record.opened.meme
            if review is None or review.label is not Label.HARMFUL or not meme.picture_given:
                continue
            for number, pdq, quality in _hashed(await store.trials.frames(meme.pixels_sha256)):
                found = {
                    "verdict_id": record.trial_id,
                    "frame": number,
                    "namespace": meme.namespace,
                    "content_id": meme.content_id,
                    "reviewed_at": review.at.isoformat(),
                    "pdq": pdq,
                    "quality": quality,
                }
                plain += not pdq
                if pdq:
                    click.echo(json.dumps(found))
    # On standard output as well, since a pipe does not pass on that this command failed.
    click.echo(json.dumps({"end": True}))
    if plain:
        tell(f"{plain:,} pictures have too little to go by for such a hash, and are left out.")


def _hashed(frames: Sequence[bytes]) -> Iterator[tuple[int, str, int]]:
    """Yields number, hash and quality of a trial's frames, each hash once; empty for one with too little to go by."""
    seen = set[str]()
    for number, png in enumerate(frames):
        # Ours are PNG: none of Pillow's other decoders needs to see these bytes.
        with Image.open(io.BytesIO(png), formats=("PNG",)) as opened:
            positions, quality = hashes_of(np.asarray(opened.convert("RGB")))
        pdq = positions[0].tobytes().hex() if quality >= QUALITY_FLOOR else ""
        if pdq not in seen:
            seen.add(pdq)
            yield number, pdq, quality
