import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.embed.encoder import unit_rows
from retrieval.index.exact import FusedIndex
from tests.support.index import DIM, UNITS, half, reference


@settings(max_examples=300)
@given(
    pairs=st.lists(st.tuples(half, half), min_size=1, max_size=60),
    query=st.tuples(half, half),
    alpha=st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.floats(0, 1)),
    k=st.integers(1, 80),
    excluded=st.sets(st.integers(0, 59), max_size=20),
)
def test_search_matches_the_definition(pairs, query, alpha, k, excluded):
    rows = np.array([np.concatenate([UNITS[t], UNITS[g]]) for t, g in pairs], np.float32)
    exclude = {row for row in excluded if row < len(rows)}
    expected = reference(rows, UNITS[query[0]], UNITS[query[1]], alpha, sorted(set(range(len(rows))) - exclude))[:k]

    hits = FusedIndex(rows, DIM).search(UNITS[query[0]], UNITS[query[1]], alpha=alpha, k=k, exclude=exclude)

    assert list(zip(hits.scores.tolist(), hits.rows.tolist(), strict=True)) == expected
    assert hits.scores == pytest.approx(alpha * hits.text + (1 - alpha) * hits.picture)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_search_matches_numpy_on_many_rows_with_duplicates_and_close_scores(alpha):
    random = np.random.default_rng(7)
    text, picture = (unit_rows(random.normal(size=(3000, 24))) for _ in range(2))
    text[1000:2000] = text[:1000]
    picture[500:1500] = picture[0]
    text[2000:2500] = unit_rows(text[5] + 1e-6 * random.normal(size=(500, 24)))
    text[2900:] = 0
    rows = np.ascontiguousarray(np.hstack([text, picture]))
    for row in (0, 5, 700, 2950):
        wide = rows.astype(np.float64)
        scores = alpha * (wide[:, :24] * wide[row, :24]).sum(axis=1) + (1 - alpha) * (
            wide[:, 24:] * wide[row, 24:]
        ).sum(axis=1)
        hits = FusedIndex(rows, 24).search(text[row], picture[row], alpha=alpha, k=25)
        assert hits.scores == pytest.approx(np.sort(scores)[::-1][:25], abs=1e-6)
        assert hits.scores == pytest.approx(scores[hits.rows], abs=1e-6)
        order = list(zip(-hits.scores, hits.rows, strict=True))
        assert order == sorted(order)


def test_equal_rows_keep_their_order_even_beyond_the_fetched_number():
    rows = np.tile(np.array([[0.6, 0.8, 1, 0]], np.float32), (5000, 1))
    query = np.array([1, 0], np.float32)
    hits = FusedIndex(rows, 2).search(query, query, alpha=0.5, k=7, exclude=[0, 3])
    assert hits.rows.tolist() == [1, 2, 4, 5, 6, 7, 8]


def test_search_is_restricted_to_the_named_rows():
    rows = np.eye(4, dtype=np.float32)
    index = FusedIndex(rows, 2)
    query = np.array([1, 0], np.float32)
    assert index.search(query, None, alpha=1, k=4, among=np.array([False, True, True, False])).rows.tolist() == [1, 2]
    nothing = index.search(query, None, alpha=1, k=4, among=np.zeros(4, bool))
    assert nothing.rows.size == nothing.scores.size == 0


def test_memory_mapped_rows_are_not_copied(tmp_path):
    np.save(tmp_path / "rows.npy", np.eye(6, dtype=np.float32))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    index = FusedIndex(mapped, 3)
    assert np.shares_memory(index.rows, mapped)
    assert index.search(None, np.array([0, 1, 0], np.float32), alpha=0, k=1).rows.tolist() == [4]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_query_with_non_finite_values_is_refused(bad, which):
    halves = [np.array([1, 0], np.float32), np.array([1, 0], np.float32)]
    halves[which][1] = bad
    with pytest.raises(ValueError, match="not finite"):
        FusedIndex(np.eye(4, dtype=np.float32), 2).search(*halves, alpha=0.5, k=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": -0.1, "k": 1}, "alpha"),
        ({"alpha": 1.1, "k": 1}, "alpha"),
        ({"alpha": math.nan, "k": 1}, "alpha"),
        ({"alpha": 0.5, "k": 0}, "k must"),
        ({"alpha": 0.5, "k": 1, "among": np.ones(3, bool)}, "shape"),
    ],
)
def test_invalid_search_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        FusedIndex(np.eye(4, dtype=np.float32), 2).search(np.array([1, 0], np.float32), None, **arguments)


def test_query_of_another_length_is_refused():
    with pytest.raises(ValueError, match="2 values"):
        FusedIndex(np.eye(4, dtype=np.float32), 2).search(np.ones(3, np.float32), None, alpha=1, k=1)


@pytest.mark.parametrize(
    "rows", [np.eye(4), np.eye(4, dtype=np.float32)[:, ::2], np.ones(4, np.float32), np.eye(2, dtype=np.float32)]
)
def test_rows_of_another_shape_or_type_are_refused(rows):
    with pytest.raises(ValueError):
        FusedIndex(rows, 2)
