import numpy as np
import pytest

from eval.perf import library, search
from eval.perf.bench import Result
from eval.perf.library import DIM, drawn
from retrieval.index.exact import FusedIndex, Hits


def hits(*scores: float) -> Hits:
    array = np.array(scores)
    return Hits(np.arange(array.size), array, array, array)


def test_recall_counts_positions_and_treats_equal_scores_as_interchangeable():
    assert search.recall(hits(0.9, 0.8, 0.7), hits(0.9, 0.8, 0.7)) == 1
    assert search.recall(hits(0.9, 0.7, 0.6), hits(0.9, 0.8, 0.6)) == pytest.approx(2 / 3)
    assert search.recall(hits(0.8, 0.7, 0.6), hits(0.9, 0.8, 0.7)) == 0


def test_compared_search_methods_find_the_same_rows():
    rows, queries = drawn(3000, seed=0), drawn(5, seed=1)
    index = FusedIndex(rows, DIM)
    for query, alpha in zip(queries, (0.0, 0.3, 0.5, 0.9, 1.0), strict=True):
        ours = search._search(index, query, alpha).rows.tolist()
        scores = alpha * (rows[:, :DIM] @ query[:DIM]) + (1 - alpha) * (rows[:, DIM:] @ query[DIM:])
        assert np.argsort(-scores)[:3].tolist() == ours
        assert search._knn(rows, query, alpha)[1][0].tolist() == ours


def test_random_rows_have_unit_length_halves_in_clusters():
    rows = drawn(20_000, seed=0)
    halves = rows.reshape(-1, 2, DIM)
    assert np.linalg.norm(halves, axis=2) == pytest.approx(1, abs=1e-5)
    nearest = np.partition(halves[:50, 0] @ halves[:, 0].T, -2, axis=1)[:, -2]
    assert 0.5 < nearest.mean() < 0.8


def test_search_benchmark_reports_every_figure_with_a_goal(monkeypatch):
    monkeypatch.setattr(search, "library", lambda **_: Result({}, {}))
    result = search.search(memes=3000, queries=2)
    assert set(result.goals) <= set(result.figures)
    assert sum(name.startswith("recall_") for name in result.goals) == 7
    # With so few memes, the candidates cover all rows, so the search equals a full scan.
    assert all(result.figures[f"recall_{alpha}"] == 1 for alpha in (0.0, 0.5, 1.0))


def test_library_benchmarks_compare_with_plain_numpy_and_file_appends(tmp_path):
    library._write(tmp_path / "library", 500)
    figures = library.answer(tmp_path / "library")
    assert figures["open_to_answer_over_numpy"] > 0 and figures["open_to_answer_s"] > 0
    assert 0 < library.memory(tmp_path / "library")["memory_over_vectors"] < 1000
    figures = library.changes(tmp_path / "library", 0.1)
    assert figures["adds_over_appends"] > 0 and figures["adds_per_s"] > 0
    # A vector of 1024 float32 and its metadata: as much is appended to the plain file each time.
    assert (tmp_path / "plain").stat().st_size > 4096
