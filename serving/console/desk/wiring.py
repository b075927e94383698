"""What the desk's pages need of a court, or of a docket and a library without one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from court.events import VerdictReviewed
from retrieval.encoders.choose import load_encoder_for
from retrieval.encoders.embedding import Encoder
from retrieval.library.storage import CURRENT
from retrieval.library.writers import open_writer
from retrieval.postgres.address import Address
from serving.assembly import Courthouse
from serving.console.desk.parts import BLIND_FIRST, DESK, NEAR, REVIEWED, RULINGS
from serving.docket.desk import Desk
from serving.docket.desk_index import Rules
from serving.docket.rulings import Overrulings, Rulings, rulings_of
from serving.docket.sql import SqlDocket
from serving.reception.near import NearMemes
from serving.settings import Settings


def rules_of(settings: Settings) -> Rules:
    """What brings a verdict to the desk that does not ask for it itself."""
    return Rules(sure=settings.review_below, sampled=settings.review_share)


def parts_beside(
    house: Courthouse, settings: Settings, reviewed: Callable[[VerdictReviewed], None]
) -> Mapping[str, object]:
    """The parts of a console that is served beside gRPC, by the court itself.

    Args:
        house: Of the court.
        settings: Of the court.
        reviewed: Is told of each review.
    """
    parts: dict[str, object] = {BLIND_FIRST: settings.blind_first, REVIEWED: reviewed}
    if isinstance(house.docket, SqlDocket):
        parts[DESK] = Desk(house.docket, rules_of(settings))
    if house.near is not None:
        parts[NEAR] = house.near
    if (rulings := rulings_of(house, settings)) is not None:
        parts[RULINGS] = rulings
    return parts


@asynccontextmanager
async def parts_alone(docket: SqlDocket, settings: Settings) -> AsyncIterator[Mapping[str, object]]:
    """The parts of a console in a process of its own; the encoder is loaded when the first precedent is made.

    Whose memes are found to be alike is the visitor's business: each sees their own namespaces alone.
    """
    near = NearMemes(docket, settings.model_copy(update={"reuse": "everywhere"}))
    parts: dict[str, object] = {
        BLIND_FIRST: settings.blind_first,
        DESK: Desk(docket, rules_of(settings)),
        NEAR: near,
    }
    library = settings.library or _starter(settings)
    if library is not None:

        @cache
        def encoder() -> Encoder:
            return load_encoder_for(library, settings.encoder)

        overrulings = Overrulings(settings.overrulings)
        parts[RULINGS] = Rulings(lambda: open_writer(library), encoder, docket, overrulings)
    try:
        yield parts
    finally:
        await near.close()


def _starter(settings: Settings) -> Path | Address | None:
    """The starter library that was used here last; None where none has been made yet."""
    made = [path.parent for path in (settings.home / "libraries").glob(f"starter-*/{CURRENT}")]
    return max(made, key=lambda path: (path / CURRENT).stat().st_mtime, default=None)
