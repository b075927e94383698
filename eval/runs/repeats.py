"""Repeats of a run: folders side by side, each with the next seed, about the same memes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from court.errors import BadRequest
from eval.runs.folder import CALLS

_REPEAT = re.compile(r"repeat-(\d+)")


def repeat_folder(out: Path, number: int) -> Path:
    """Names the folder of one repeat.

    Args:
        out: Folder of them all.
        number: Number of the repeat, counted from 1.
    """
    return out / f"repeat-{number}"


def repeats_in(out: Path) -> tuple[Path, ...]:
    """Finds the folders of repeats, in order; none where the folder holds something else."""
    found = {int(match[1]): path for path in out.glob("repeat-*") if (match := _REPEAT.fullmatch(path.name))}
    # By number: as words, repeat-10 comes before repeat-2.
    return tuple(found[number] for number in sorted(found))


def prepare_repeats(out: Path, what: str) -> Path:
    """Makes the folder of repeats. Returns the store of calls that they share.

    Args:
        out: The folder.
        what: Name of what is repeated, for the error.

    Raises:
        BadRequest: The folder holds something else, such as a run without repeats.
    """
    out.mkdir(parents=True, exist_ok=True)
    # Pages of reports may lie there, and the store of calls with the files that SQLite puts beside it.
    if any(
        not _REPEAT.fullmatch(path.name) and not path.name.startswith(CALLS) and path.suffix != ".html"
        for path in out.iterdir()
    ):
        if (out / "manifest.json").exists():
            raise BadRequest(
                f"{out} holds {what} without repeats. Name another folder with --out; with --calls {out / CALLS} what "
                "was asked there is not asked again.",
                reason="RUN_DIFFERS",
            )
        raise BadRequest(
            f"{out} is not empty and holds no repeats of {what}. Name a folder that is not there yet.",
            reason="OUT_NOT_EMPTY",
        )
    return out / CALLS


def require_repeats(count: int) -> None:
    """Raises BadRequest where there are fewer repeats than can be compared."""
    if count < 2:
        raise BadRequest("Repeats are compared where there are at least two.", reason="REPEATS_MISSING")


def repeat_lead(seeds: Sequence[int], *, finished: bool, of: str = "") -> list[str]:
    """Sentences before a table of repeats.

    Args:
        seeds: Seed of each repeat.
        finished: True if all repeats are.
        of: Name of what is measured, such as the target of a probe; none is named where empty.
    """
    name = f"{of}: " if of else ""
    lead = [f"{name}{len(seeds)} repeats about the same memes, seeds {', '.join(map(str, seeds))}."]
    if not finished:
        lead.append("Not finished: these figures will change.")
    return lead
