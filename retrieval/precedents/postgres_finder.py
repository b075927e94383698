"""The court's precedent finder over a PostgreSQL database with pgvector, for several replicas that share it.

Its results equal those of :class:`retrieval.precedents.finder.LibraryFinder` on the same library on disk: both use the
same search code (:mod:`retrieval.precedents.search`) on different views. Each search sees a consistent snapshot;
changes by other replicas are visible to the next search without notification.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from court.errors import BadLibrary
from court.meme import Frame
from court.precedents import Findings, LibraryIdentity, VerifiedCopy
from retrieval.embed.encoder import Encoder, EncoderIdentity
from retrieval.library.manifest import LabelledMeme, copy_key
from retrieval.library.postgres.address import Address
from retrieval.library.postgres.connections import Connections
from retrieval.library.postgres.schema import State, generations, read_state
from retrieval.library.postgres.view import PostgresView
from retrieval.library.thumbnails import frame_of
from retrieval.precedents.finder import IssuedIds, ThreadedFinder
from retrieval.precedents.search import LibraryInfo, Query, SearchRequest, search_library

if TYPE_CHECKING:
    from retrieval.library.postgres.connections import Connection

_THREADS = 4
"""Concurrent searches, each with a connection. Waiting queries are embedded in one batch; the rest is server time."""


class PgvectorFinder(ThreadedFinder):
    """Finds precedents in a database."""

    def __init__(self, address: Address, connections: Connections, encoder: Encoder, state: State) -> None:
        """Takes ownership of the connections; use :meth:`open`."""
        super().__init__(encoder, _THREADS, "pgvector")
        self.address = address
        self._connections = connections
        self._state = state
        self._lock = threading.Lock()
        self._issued = IssuedIds[State]()

    @classmethod
    async def open(cls, address: Address, encoder: Encoder) -> Self:
        """Opens the finder on the current library.

        Raises:
            BadLibrary: There is no library or no pgvector, or the library has another encoder or format.
            BadRequest: The address has a part that PostgreSQL does not know.
            NotLoaded: The driver is not installed.
            Unavailable: The server is away.
        """
        connections = Connections(address)
        try:
            state = await asyncio.to_thread(connections.reading, read_state)
            _require(encoder, state)
            return cls(address, connections, encoder, state)
        except BaseException:
            connections.close()
            raise

    @property
    def library(self) -> LibraryIdentity:
        """Identity of the library at the finder's last access; findings name the library they come from."""
        return self._state.identity

    @override
    def close(self) -> None:
        """Stops the threads once their searches have finished, and closes the connections."""
        super().close()
        self._connections.close()

    @override
    def _search(self, query: Callable[[], Query], wanted: SearchRequest) -> Callable[[], Findings]:
        def work() -> Findings:
            # Before taking a connection, so that no transaction waits for the encoder and a retry does not embed again.
            embedded = query()

            def search(connection: Connection) -> tuple[State, Findings]:
                state = read_state(connection, self._state)
                # Checked each time, as a library with another encoder may have been pushed since.
                _require(self.encoder, state)
                return state, search_library(PostgresView(connection, state), embedded, wanted)

            state, findings = self._connections.reading(search)
            # Searches end in any order: an older one must not restore the generation it began with.
            with self._lock:
                if state.generation >= self._state.generation:
                    self._state = state
            self._issued.note(state.about.lineage, state, [exhibit.id for exhibit in findings.exhibits])
            return findings

        return work

    async def copies(self, *, pixels_sha256: str, text: str | None) -> Sequence[VerifiedCopy]:
        """Finds binding copies: see :class:`court.ports.BindingFinder`."""
        key = copy_key(pixels_sha256, text)

        def read(connection: Connection) -> list[LabelledMeme]:
            return PostgresView(connection, read_state(connection, self._state)).binding(key)

        memes = await self._in_thread(lambda: self._connections.reading(read), "read")
        return [copy for meme in memes if (copy := meme.copy_of(pixels_sha256, text)) is not None]

    async def account(self) -> LibraryInfo:
        """Describes the current library.

        Raises:
            BadLibrary: The library is damaged or gone.
            Unavailable: The server is away.
        """

        def read(connection: Connection) -> LibraryInfo:
            return LibraryInfo.of(PostgresView(connection, read_state(connection)))

        return await self._in_thread(lambda: self._connections.reading(read), "read")

    async def pictures(self, ids: Sequence[str]) -> Sequence[Frame | None]:
        """Pictures of precedents: see :class:`court.ports.PrecedentFinder`.

        Raises:
            BadLibrary: A picture has changed since it was stored.
            Unavailable: They can't be read now.
        """
        # Each is read from the library in which it was found, as long as that exists: the previous one is kept. An id
        # found in both with different pictures has none.

        def read(connection: Connection) -> list[Frame | None]:
            current = read_state(connection, self._state)
            there = set(generations(connection))

            def picture(id_: str) -> Frame | None:
                where = self._issued.where(id_, current.about.lineage, current)
                found = {PostgresView(connection, each).picture(id_) for each in where if each.generation in there}
                jpeg = found.pop() if len(found) == 1 else None
                return None if jpeg is None else frame_of(jpeg)

            return [picture(id_) for id_ in ids]

        return await self._in_thread(lambda: self._connections.reading(read), "read")


def encoder_of(address: Address) -> EncoderIdentity:
    """Returns the identity of a database library's encoder. Raises as :meth:`PgvectorFinder.open`."""
    connections = Connections(address)
    try:
        return connections.reading(read_state).about.encoder
    finally:
        connections.close()


def _require(encoder: Encoder, state: State) -> None:
    if state.about.encoder != encoder.identity:
        raise BadLibrary(
            f"The precedent library was made with the encoder {state.about.encoder}, but {encoder.identity} is loaded: "
            "their similarities can't be compared. Load the former, or push a library that the latter made.",
            reason="LIBRARY_FOREIGN",
        )
