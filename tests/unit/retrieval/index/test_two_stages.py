import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.embed.encoder import unit_rows
from retrieval.index.candidates import CandidateIndex
from retrieval.index.exact import FusedIndex, ScanPolicy, merged
from tests.support.index import DIM, UNITS, half, reference

ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
SMALL = ScanPolicy(few=0, scanned_share=0, candidates=(60, 240), asked_share=1)
HALF = 24


def clustered(n, seed, *, without=False):
    random = np.random.default_rng(seed)
    halves = []
    for _ in range(2):
        centres = unit_rows(np.random.default_rng(99).normal(size=(40, HALF)))
        halves.append(unit_rows(centres[random.integers(40, size=n)] + 0.15 * random.normal(size=(n, HALF))))
    if without:
        halves[0][::4] = 0
        halves[1][1::4] = 0
    return np.ascontiguousarray(np.hstack(halves))


@functools.cache
def library(n, seed, *, without=False):
    rows = clustered(n, seed, without=without)
    return rows, CandidateIndex.build(rows, HALF)


class CountingStage:
    """A first stage that counts its queries and may be made less accurate by noise."""

    def __init__(self, stage, noise=0.0):
        self.rows, self.dim, self.text_dim = stage.rows, stage.dim, stage.text_dim
        self.asked: list[int] = []
        self._stage = stage
        self._off = noise * np.random.default_rng(5).normal(size=stage.rows).astype(np.float32)

    def candidates(self, query, n):
        self.asked.append(n)
        rows, rough = self._stage.candidates(query, self.rows)
        rough = rough + self._off[rows]
        order = np.argsort(-rough, kind="stable")[:n]
        return rows[order], rough[order]


def same_hits(found, exact):
    return all(
        np.array_equal(getattr(found, name), getattr(exact, name)) for name in ("rows", "scores", "text", "picture")
    )


@pytest.mark.parametrize("without", [False, True])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_two_stage_search_equals_a_scan_at_every_alpha(alpha, without):
    rows, built = library(4000, 1, without=without)
    queries, stage = clustered(60, 2), CountingStage(built)
    fast, exact = FusedIndex(rows, HALF, stage, SMALL), FusedIndex(rows, HALF)
    agreed = 0
    for query in queries:
        arguments = {"text": query[:HALF], "picture": query[HALF:], "alpha": alpha, "k": 3}
        agreed += same_hits(fast.search(**arguments), exact.search(**arguments))
    assert agreed == len(queries)
    assert len(stage.asked) >= len(queries), "the first stage was not used"


def test_candidates_suffice_for_most_queries():
    rows, stage = library(4000, 1)
    index = FusedIndex(rows, HALF, stage, SMALL)
    scans = []
    index._by_scan = lambda *arguments: scans.append(1) or FusedIndex._by_scan(index, *arguments)
    for query in clustered(60, 3):
        index.search(query[:HALF], query[HALF:], alpha=0.5, k=3)
    assert len(scans) <= 20


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
def test_less_accurate_first_stage_only_costs_more_candidates(noise):
    rows, built = library(4000, 1)
    stage = CountingStage(built, noise)
    fast, exact = FusedIndex(rows, HALF, stage, SMALL), FusedIndex(rows, HALF)
    for query in clustered(40, 5):
        arguments = {"text": query[:HALF], "picture": query[HALF:], "alpha": 0.4, "k": 3}
        assert same_hits(fast.search(**arguments), exact.search(**arguments))
    assert len(stage.asked) > 40, "more candidates were requested"


@pytest.mark.parametrize("share", [0.001, 0.02, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("left_out", [0, 1, 30, 500])
def test_filtered_and_excluded_rows_give_the_same_hits_as_a_scan(share, left_out):
    (rows, stage), random = library(4000, 1), np.random.default_rng(7)
    fast = FusedIndex(rows, HALF, stage, ScanPolicy(few=20, candidates=(60, 240), asked_share=1))
    exact = FusedIndex(rows, HALF)
    among = random.random(4000) < share
    for query in clustered(5, 8):
        # The most similar rows are the excluded ones.
        nearest = exact.search(query[:HALF], query[HALF:], alpha=0.5, k=max(left_out, 1)).rows[:left_out].tolist()
        arguments = {"text": query[:HALF], "picture": query[HALF:], "alpha": 0.5, "k": 25}
        found = fast.search(**arguments, exclude=nearest, among=among)
        assert same_hits(found, exact.search(**arguments, exclude=nearest, among=among))
        assert among[found.rows].all() and not set(nearest) & set(found.rows.tolist())


def test_filter_far_from_the_query_is_scanned():
    rows, stage = library(4000, 1)
    query = rows[0]
    scores = rows @ query
    among = scores < np.quantile(scores, 0.3)
    arguments = {"text": query[:HALF], "picture": query[HALF:], "alpha": 0.5, "k": 3, "among": among}
    found = FusedIndex(rows, HALF, stage, SMALL).search(**arguments)
    assert same_hits(found, FusedIndex(rows, HALF).search(**arguments)) and found.rows.size == 3


def test_clones_are_in_order_even_if_they_outnumber_the_candidates():
    rows = clustered(2000, 10)
    rows[300:1500] = rows[300]
    query = rows[300]
    hits = FusedIndex(rows, HALF, CandidateIndex.build(rows, HALF), SMALL).search(
        query[:HALF], query[HALF:], alpha=0.5, k=5, exclude=[300, 302]
    )
    assert hits.rows.tolist() == [301, 303, 304, 305, 306]


def test_empty_query_finds_the_first_rows():
    rows, stage = library(4000, 1)
    hits = FusedIndex(rows, HALF, stage, SMALL).search(None, None, alpha=0.5, k=4)
    assert hits.rows.tolist() == [0, 1, 2, 3] and not hits.scores.any()


@settings(max_examples=150)
@given(
    pairs=st.lists(st.tuples(half, half), min_size=1, max_size=60),
    query=st.tuples(half, half),
    alpha=st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.floats(0, 1)),
    k=st.integers(1, 80),
    left_out=st.sets(st.integers(0, 59), max_size=20),
    among=st.none() | st.lists(st.booleans(), min_size=60, max_size=60),
    few=st.sampled_from([0, 5, 1000]),
)
def test_hits_are_allowed_and_scored_by_the_definition_for_any_rows(pairs, query, alpha, k, left_out, among, few):
    rows = np.array([np.concatenate([UNITS[t], UNITS[g]]) for t, g in pairs], np.float32)
    exclude = {row for row in left_out if row < len(rows)}
    chosen = None if among is None else np.array(among[: len(rows)])
    allowed = [row for row in range(len(rows)) if row not in exclude and (chosen is None or chosen[row])]
    defined = reference(rows, UNITS[query[0]], UNITS[query[1]], alpha, allowed)
    plan = ScanPolicy(few=few, scanned_share=0, candidates=(24, 48), asked_share=1)

    index = FusedIndex(rows, DIM, CandidateIndex.build(rows, DIM), plan)
    hits = index.search(UNITS[query[0]], UNITS[query[1]], alpha=alpha, k=k, exclude=exclude, among=chosen)

    found = list(zip(hits.scores.tolist(), hits.rows.tolist(), strict=True))
    assert len(found) == min(k, len(allowed)) and set(found) <= set(defined)
    assert found == sorted(found, key=lambda pair: (-pair[0], pair[1]))
    if few == 1000 and chosen is not None:
        assert found == defined[:k]


def test_merged_searches_of_parts_equal_the_search_of_all():
    rows = clustered(900, 12)
    rows[500:600] = rows[100]
    for query in (rows[100], rows[7]):
        arguments = {"text": query[:HALF], "picture": query[HALF:], "alpha": 0.3, "k": 30}
        parts = [
            (first, FusedIndex(rows[first:end], HALF).search(**arguments)) for first, end in ((0, 550), (550, 900))
        ]
        assert same_hits(merged(parts, 30), FusedIndex(rows, HALF).search(**arguments))


def test_stage_of_other_rows_is_refused():
    rows, stage = library(4000, 1)
    with pytest.raises(ValueError, match="other rows"):
        FusedIndex(rows[:3999], HALF, stage)


def test_warming_reads_all_mapped_rows_and_reports_progress(tmp_path, monkeypatch):
    np.save(tmp_path / "rows.npy", clustered(1000, 14))
    monkeypatch.setattr("retrieval.index.exact._TOUCHED", 2**16)
    progress = []
    FusedIndex(np.load(tmp_path / "rows.npy", mmap_mode="r"), HALF).warm(
        lambda done, total: progress.append((done, total))
    )
    size = 1000 * 2 * HALF * 4
    assert progress == [(min(done, size), size) for done in range(2**16, size + 2**16, 2**16)]
