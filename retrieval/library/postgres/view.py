"""View of a library in a database within one transaction: exact search by SQL, re-scored by us.

The database computes one inner product per row, ``[alpha * q_t ; (1 - alpha) * q_g]`` by ``[t|g]``, which is the
weighted sum of both cosines: halves have length 1, or 0 if missing, which then count 0. pgvector sums in float32 and in
its own order. So a few more rows than requested are fetched, with their vectors, and
:class:`retrieval.index.exact.FusedIndex` scores them like those of a library on disk; if rounding could place an
unfetched row before the last hit, all such rows are fetched. Hits, scores and order are bit-identical to those of a
library on disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from court.precedents import LibraryIdentity
from retrieval.index.exact import FusedIndex, Hits, merged, rounding_slack
from retrieval.library.filters import Filter
from retrieval.library.manifest import Counts, LabelledMeme, Tuning
from retrieval.library.postgres.schema import NAMED, State
from retrieval.library.storage import damaged

if TYPE_CHECKING:
    from pgvector import Vector

    from retrieval.library.postgres.connections import Connection

_SPARE = 16
"""Rows fetched in addition to those requested, so that the first pass usually covers ties at the edge."""
_BLOCK = 1024

Found: TypeAlias = "tuple[int, Vector, float]"
"""A row, its vector, and its score by the database."""


class PostgresView:
    """A :class:`~retrieval.library.ports.LibraryView` for the duration of a transaction. Raises psycopg's errors."""

    def __init__(self, connection: Connection, state: State) -> None:
        """``connection`` must be in a transaction with a snapshot of this state."""
        self._connection = connection
        self._state = state

    @property
    def identity(self) -> LibraryIdentity:
        """Identity for records."""
        return self._state.identity

    @property
    def tuning(self) -> Tuning:
        """Settings of search and vote."""
        return self._state.about.tuning

    @property
    def counts(self) -> Counts:
        """Number of memes."""
        return self._state.counts

    def rows_of(self, ids: Collection[str]) -> list[int]:
        """Returns the rows of memes by id; unknown ids are skipped."""
        query = f"SELECT row FROM {self._state.precedents} WHERE id = ANY(%s) ORDER BY row"
        return [row for (row,) in self._connection.execute(query, (storable(ids),))]

    def count(self, where: Filter) -> int:
        """Counts the memes that a filter admits."""
        condition, values = _condition(where, None)
        query = f"SELECT count(*) FROM {self._state.precedents} WHERE {condition}"
        row = self._connection.execute(query, values).fetchone()
        assert row is not None
        return int(row[0])

    def read(self, rows: Sequence[int]) -> list[LabelledMeme]:
        """Returns the memes in these rows, in this order. Raises BadLibrary if one can't be parsed."""
        query = f"SELECT row, meme FROM {self._state.precedents} WHERE row = ANY(%s)"
        # The database returns rows in any order; the caller's order is by similarity.
        found = {row: parsed(meme) for row, meme in self._connection.execute(query, (list(rows),))}
        if found.keys() != set(rows):
            raise damaged("a meme is missing whose vectors are there")
        return [found[row] for row in rows]

    def binding(self, key: str) -> list[LabelledMeme]:
        """Returns the memes with this :attr:`LabelledMeme.copy_key`, in order. Raises BadLibrary."""
        # The second condition names the index.
        query = f"SELECT meme FROM {self._state.precedents} WHERE copy_key = %s AND copy_key <> '' ORDER BY row"
        return [parsed(meme) for (meme,) in self._connection.execute(query, (key,))]

    def halves(self, rows: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns both halves of rows, as :meth:`retrieval.library.ports.LibraryView.halves`. Raises BadLibrary."""
        query = f"SELECT row, vector FROM {self._state.vectors} WHERE row = ANY(%s)"
        found = {row: vector.to_numpy() for row, vector in self._connection.execute(query, (list(rows),))}
        if found.keys() != set(rows):
            raise damaged("the vectors of a meme are missing")
        text_dim = self._state.about.encoder.text_dim
        vectors = np.stack([found[row] for row in rows])
        return vectors[:, :text_dim], vectors[:, text_dim:]

    def picture(self, id_: str) -> bytes | None:
        """Returns the stored JPEG of a meme by its id; None if there is none.

        Raises:
            BadLibrary: The picture was altered.
        """
        query = (
            f"SELECT meme, jpeg FROM {self._state.precedents} LEFT JOIN {self._state.pictures} USING (row) "
            "WHERE id = ANY(%s)"
        )
        # A left join distinguishes a lost picture, which is damage, from a meme without one.
        found = self._connection.cursor(binary=True).execute(query, (storable([id_]),)).fetchone()
        if found is None:
            return None
        stored, jpeg = parsed(found[0]).kept, found[1]
        if stored is None:
            return None
        if jpeg is None or hashlib.sha256(jpeg).hexdigest() != stored.sha256:
            raise damaged("a picture in it is not what it was when written")
        return bytes(jpeg)

    def search(
        self,
        text: NDArray[np.float32] | None,
        picture: NDArray[np.float32] | None,
        *,
        alpha: float,
        k: int,
        exclude: Collection[int] = (),
        where: Filter | None = None,
        harmful: bool | None = None,
    ) -> Hits:
        """Searches as :meth:`~retrieval.index.exact.FusedIndex.search`, within ``where`` or one label."""
        encoder = self._state.about.encoder
        # An empty index validates the request and gives empty hits.
        nothing = FusedIndex(np.zeros((0, encoder.dim), np.float32), encoder.text_dim)
        best = nothing.search(text, picture, alpha=alpha, k=k)
        # Weighted in float64 and rounded once, as in FusedIndex, which rounding_slack assumes.
        query = np.zeros(encoder.dim)
        if text is not None:
            query[: encoder.text_dim] = alpha * text.astype(np.float64)
        if picture is not None:
            query[encoder.text_dim :] = (1 - alpha) * picture.astype(np.float64)
        values: dict[str, Any] = {"query": query.astype(np.float32), "fetch": k + _SPARE}
        conditions = ["true"]
        if exclude:
            conditions.append("row <> ALL(%(out)s)")
            values["out"] = list(exclude)
        if where is not None or harmful is not None:
            condition, chosen = _condition(where, harmful)
            conditions.append(f"row IN (SELECT row FROM {self._state.precedents} WHERE {condition})")
            values |= chosen
        chosen_rows = " AND ".join(conditions)
        # pgvector's <#> is the negative inner product, so ascending order puts the best first.
        source = f"SELECT row, vector, -(vector <#> %(query)s) FROM {self._state.vectors} WHERE {chosen_rows}"

        def scored(found: Sequence[Found]) -> Hits:
            return self._scored(found, text, picture=picture, alpha=alpha, k=k)

        cursor = self._connection.cursor(binary=True)
        found = cursor.execute(f"{source} ORDER BY vector <#> %(query)s, row LIMIT %(fetch)s", values).fetchall()
        if not found:
            return best
        best = scored(found)
        slack = rounding_slack(values["query"])
        # Fewer rows than requested are all there are, and all are scored.
        if len(found) == k + _SPARE and found[-1][2] >= best.scores[k - 1] - slack:
            # An unfetched row may tie with a fetched one, or beat it after float32 rounding, so all such rows are
            # scored. As there may be very many, they are streamed in blocks.
            values["least"] = float(best.scores[k - 1] - slack)
            parts = _blocks(cursor.stream(f"{source} AND -(vector <#> %(query)s) >= %(least)s", values))
            # Starts afresh, as the hits of the first pass are among the blocks again.
            best = merged([(0, best)], 0)
            for part in parts:
                best = merged([(0, best), (0, scored(part))], k)
        return best

    def _scored(
        self,
        found: Sequence[Found],
        text: NDArray[np.float32] | None,
        picture: NDArray[np.float32] | None,
        alpha: float,
        k: int,
    ) -> Hits:
        """Returns the best of these rows, scored like those of a library on disk."""
        # Sorted by row, as the index breaks ties by position.
        ordered = sorted(found, key=lambda each: each[0])
        rows = np.array([row for row, _, _ in ordered], dtype=np.int64)
        vectors = np.stack([vector.to_numpy() for _, vector, _ in ordered])
        index = FusedIndex(np.ascontiguousarray(vectors), self._state.about.encoder.text_dim)
        hits = index.search(text, picture, alpha=alpha, k=k)
        return Hits(rows[hits.rows], hits.scores, hits.text, hits.picture)


def parsed(meme: str) -> LabelledMeme:
    """Parses a stored meme. Raises BadLibrary."""
    try:
        return LabelledMeme.model_validate_json(meme)
    except ValidationError as error:
        raise damaged("a meme in it can't be understood") from error


def storable(names: Iterable[str]) -> list[str]:
    """Returns the names that the database can store: without NUL or half of a surrogate pair."""
    return [name for name in names if "\0" not in name and not any(0xD800 <= ord(sign) < 0xE000 for sign in name)]


def _condition(where: Filter | None, harmful: bool | None) -> tuple[str, dict[str, Any]]:
    conditions = ["true"]
    values: dict[str, Any] = {}
    if harmful is not None:
        conditions.append("harmful = %(harmful)s")
        values["harmful"] = harmful
    if where is not None:
        # Only our own column names are put into the SQL; requested values are bound parameters.
        for column, names in zip(NAMED, where.names, strict=True):
            if names:
                conditions.append(f"{column} = ANY(%({column})s)")
                values[column] = storable(names)
        # Memes with an unknown time have NULL here, which matches no comparison.
        for column, sign, bound in (("since", ">=", where.since), ("until", "<", where.until)):
            if bound is not None:
                conditions.append(f"added {sign} %({column})s")
                values[column] = bound
        if where.verified:
            conditions.append("verified")
    return " AND ".join(conditions), values


def _blocks(rows: Iterable[tuple[Any, ...]]) -> Iterable[list[tuple[Any, ...]]]:
    block: list[tuple[Any, ...]] = []
    for row in rows:
        block.append(row)
        if len(block) == _BLOCK:
            yield block
            block = []
    if block:
        yield block
