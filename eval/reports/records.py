"""Records of wrong verdicts from a run's docket, with scaled-down pictures."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from court.errors import BadLibrary, CourtError
from court.record import TrialRecord
from eval.runs.results import DOCKET, LIBRARY

PICTURE_SIDE = 320
"""Longest side of a meme's picture in a report, in pixels."""
PRECEDENT_SIDE = 112
"""Longest side of a precedent's picture in a report, in pixels."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records of some trials of a run."""

    records: dict[str, TrialRecord] = field(default_factory=dict)
    frames: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    """JPEG files by SHA-256 of a picture's pixels: its representative frames, in order."""
    precedents: dict[str, bytes] = field(default_factory=dict)
    missing: str = ""
    """Reason why there are no records at all; empty if there are some."""
    lost: dict[str, str] = field(default_factory=dict)

    def pictures_of(self, trial: str) -> tuple[bytes, ...]:
        """JPEG files of the frames of a trial's meme; empty if none are stored or wanted."""
        record = self.records.get(trial)
        return self.frames.get(record.opened.meme.pixels_sha256, ()) if record else ()


async def read_records(root: Path, trials: Sequence[str], *, pictures: bool) -> Records:
    """Looks trials up in a run's docket.

    A missing or damaged record doesn't stop the report, which mentions it in its place.
    """
    from serving.docket.open import Docket

    found = Records()
    try:
        # A report must not create an empty docket in a run without one.
        docket = Docket.open(root / DOCKET, create=False)
    except CourtError as error:
        why = "the run has no docket" if error.reason == "DOCKET_MISSING" else "the run's docket can't be opened"
        return Records(missing=f"There are no records: {why}.")
    try:
        for trial in trials:
            try:
                record = await docket.trials.record(trial)
            except CourtError as error:
                # A lost record must not remove the others from the report.
                found.lost[trial] = error.message
                continue
            found.records[trial] = record
            pixels = record.opened.meme.pixels_sha256
            # Several trials may share a picture.
            if pictures and pixels not in found.frames:
                small = [shrunk(png, PICTURE_SIDE) for png in await docket.trials.frames(pixels)]
                found.frames[pixels] = tuple(jpeg for jpeg in small if jpeg)
    finally:
        await docket.close()
    if pictures:
        cited = [record.precedents for record in found.records.values() if record.precedents]
        wanted = {precedent.id for event in cited for precedent in event.findings.exhibits}
        found.precedents.update(_precedents(root / LIBRARY, wanted))
    return found


def _precedents(library: Path, wanted: set[str]) -> dict[str, bytes]:
    from retrieval.library.library import Library

    if not wanted or not library.exists():
        return {}
    try:
        opened = Library.open(library, None)
        thumbnails = {meme.id: opened.picture(row) for row, meme in enumerate(opened.memes) if meme.id in wanted}
    except (BadLibrary, OSError):
        # Records contain id, text, label and similarity of every precedent: only pictures are lost.
        return {}
    small = {name: shrunk(jpeg, PRECEDENT_SIDE) for name, jpeg in thumbnails.items() if jpeg is not None}
    return {name: jpeg for name, jpeg in small.items() if jpeg}


def shrunk(picture: bytes, side: int) -> bytes | None:
    """A picture of ours as a JPEG of at most ``side`` pixels a side: the same bytes for the same picture.

    None where it can't be read: the disk may be at fault, or somebody changed it by hand.
    """
    from PIL import Image

    try:
        # Only the formats that we write: a changed file reaches no other decoder.
        with Image.open(io.BytesIO(picture), formats=["PNG", "JPEG"]) as opened:
            small = opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    small.thumbnail((side, side))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=70, optimize=True)
    return out.getvalue()
