"""``memecourt docket hashes``: PDQ hashes of memes that people found harmful, for banks of hashes elsewhere."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from serving.cli.common import docket_in, docket_option, run, settings_of, tell

if TYPE_CHECKING:
    from retrieval.library.postgres.address import Address
    from serving.docket.open import Docket
    from serving.docket.store.listing import DocketLine

_PAGE = 100


@click.command()
@click.option("--namespace", help="Only pictures of this namespace.")
@docket_option
def hashes(namespace: str | None, docket: Path | Address | None) -> None:
    """Prints a JSON line for each picture whose last review by a person found it harmful.

    Fields: verdict_id, frame, namespace, content_id, reviewed_at, pdq (64 hex digits), quality. The last line is
    {"end": true}; if it is missing, the output is incomplete. Pictures that were overruled since or erased are left
    out. Pictures with too little detail to hash are only counted, on standard error.
    """
    settings = settings_of(docket=docket)

    async def work() -> None:
        plain = 0
        async with docket_in(settings) as open_docket:
            async for line in _found_harmful(open_docket, namespace):
                for found in await _hashed(open_docket, line):
                    if found is None:
                        plain += 1
                    else:
                        click.echo(json.dumps(found))
        # On standard output as well, since a pipe does not pass on that this command failed.
        click.echo(json.dumps({"end": True}))
        if plain:
            tell(f"{plain:,} pictures have too little to go by for such a hash, and are left out.")

    run(work())


async def _found_harmful(docket: Docket, namespace: str | None) -> AsyncIterator[DocketLine]:
    from court.verdict import Label
    from serving.docket.store.listing import TrialFilter

    which, after = TrialFilter(reviewed=True, namespace=namespace), None
    while True:
        lines = await docket.index.list(limit=_PAGE, after=after, which=which, oldest_first=True)
        for line in lines:
            if line.review is not None and line.review.label is Label.HARMFUL and not (line.erased or line.text_alone):
                yield line
        if len(lines) < _PAGE:
            return
        after = (lines[-1].opened_at, lines[-1].trial_id)


async def _hashed(docket: Docket, line: DocketLine) -> list[dict[str, Any] | None]:
    """Lines of a trial's frames, each hash once; None for one with too little to go by."""
    import numpy as np
    from PIL import Image

    from retrieval.near_duplicates.pdq import QUALITY_FLOOR, hashes_of
    from serving.docket.errors import TrialUnknown

    try:
        record = await docket.trials.record(line.trial_id)
    except TrialUnknown:  # erased since
        return []
    assert line.review is not None
    found: dict[str, dict[str, Any] | None] = {}
    for number, png in enumerate(await docket.trials.frames(record.opened.meme.pixels_sha256)):
        # Ours are PNG: none of Pillow's other decoders needs to see these bytes.
        with Image.open(io.BytesIO(png), formats=("PNG",)) as opened:
            positions, quality = hashes_of(np.asarray(opened.convert("RGB")))
        if quality < QUALITY_FLOOR:
            found.setdefault("", None)
            continue
        pdq = positions[0].tobytes().hex()
        found.setdefault(
            pdq,
            {
                "verdict_id": line.trial_id,
                "frame": number,
                "namespace": line.namespace,
                "content_id": line.content_id,
                "reviewed_at": line.review.at.isoformat(),
                "pdq": pdq,
                "quality": quality,
            },
        )
    return list(found.values())
