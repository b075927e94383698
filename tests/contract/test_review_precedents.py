"""Reviews over gRPC that become precedents if the server is configured so: real docket, real library."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from court.errors import Unavailable
from memecourt.v1 import court_pb2 as wire
from retrieval.library.writer import LibraryWriter
from serving.docket.review.corrections import Corrections, Overrulings
from tests.support.docket_service import Scene, a_scene
from tests.support.libraries import ENCODER, drawn_library

OVERRULED = {"outcome": wire.REVIEW_OUTCOME_OVERRULED, "label": wire.LABEL_NOT_HARMFUL, "clause": "4"}


def play(path: Path, work: Any, overrulings: Overrulings, *, gone: bool = False) -> Any:
    async def scene() -> Any:
        writer = LibraryWriter(drawn_library(path / "library", 5, 12))

        @contextmanager
        def opened() -> Iterator[LibraryWriter]:
            if gone:
                raise Unavailable("The library is away.", reason="LIBRARY_LOCKED")
            yield writer

        async with a_scene(path / "docket.sqlite") as it:
            rulings = Corrections(opened, lambda: ENCODER, it.docket.trials, overrulings)
            it.service.open(SimpleNamespace(docket=it.docket), lambda: it.changes.append(None), rulings)  # type: ignore[arg-type]
            return await work(it, writer)

    return asyncio.run(scene())


@pytest.mark.parametrize(("overrulings", "made"), [(Overrulings.ALWAYS, True), (Overrulings.CHOSEN, False)])
def test_an_overruling_becomes_a_precedent_if_configured(tmp_path: Path, overrulings: Overrulings, made: bool) -> None:
    async def work(it: Scene, writer: LibraryWriter) -> Any:
        await it.tried("t-1", namespace="forum", text="cat dog")
        await it.reviewed("t-1", reason="Satire.", **OVERRULED)
        meme = writer.meme("trial:t-1")
        await it.reviewed("t-1", reason="No satire.")
        return meme, writer.meme("trial:t-1")

    first, later = play(tmp_path, work, overrulings)
    assert (first is not None) is made and later is None
    if made:
        assert (first.label, first.source, first.namespace, first.who) == ("NOT_HARMFUL", "trial:t-1", "forum", "bea")


def test_a_review_is_stored_even_if_the_library_is_unavailable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(it: Scene, _: LibraryWriter) -> Any:
        await it.tried("t-1", text="cat dog")
        return await it.reviewed("t-1", reason="Satire.", **OVERRULED), len(it.changes)

    summary, changes = play(tmp_path, work, Overrulings.ALWAYS, gone=True)
    assert summary.review.label == wire.LABEL_NOT_HARMFUL and changes == 1
    assert "precedent of trial=t-1 not changed reason=LIBRARY_LOCKED" in caplog.text
