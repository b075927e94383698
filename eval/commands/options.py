"""Choices that several commands offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from eval.datasets.known import Dataset
    from eval.datasets.protocol import Protocol


def dataset_of(id_: str) -> Dataset:
    """The data set of this id. Raises click.UsageError, which names those that there are."""
    from eval.datasets.known import DATASETS

    if id_ not in DATASETS:
        raise click.UsageError(f"There is no data set {id_!r}. There are: {', '.join(DATASETS)}.")
    return DATASETS[id_]


def protocols_of(text: str | None, offered: tuple[Protocol, ...]) -> tuple[Protocol, ...]:
    """Protocols as they are given on the command line, parted by commas; all that are offered where none is.

    Raises:
        click.UsageError: One is unknown, or not offered.
    """
    from eval.datasets.protocol import Protocol

    if text is None:
        return offered
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in list(Protocol) or Protocol(name) not in offered]
    if wrong or not names:
        raise click.UsageError(
            f"There is no protocol {', '.join(wrong) or text!r} here. There are: {', '.join(offered)}."
        )
    return tuple(dict.fromkeys(Protocol(name) for name in names))
