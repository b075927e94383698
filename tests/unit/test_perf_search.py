import numpy as np
import pytest

from eval.perf.library import library, search
from retrieval.index.exact import FusedIndex, Hits


def hits(*scores: float) -> Hits:
    array = np.array(scores)
    return Hits(np.arange(array.size), array, array, array)


def test_recall_counts_places_and_takes_rows_of_equal_score_for_each_other():
    assert search.recall(hits(0.9, 0.8, 0.7), hits(0.9, 0.8, 0.7)) == 1
    assert search.recall(hits(0.9, 0.7, 0.6), hits(0.9, 0.8, 0.6)) == pytest.approx(2 / 3)
    assert search.recall(hits(0.8, 0.7, 0.6), hits(0.9, 0.8, 0.7)) == 0


def test_the_ways_that_are_compared_find_the_same():
    rows, queries = search.drawn(3000, seed=0), search.drawn(5, seed=1)
    index = FusedIndex(rows, search.DIM)
    for query, alpha in zip(queries, (0.0, 0.3, 0.5, 0.9, 1.0), strict=True):
        ours = search._search(index, query, alpha).rows.tolist()
        assert search.paper_loop(rows, query, alpha, 3) == ours
        assert search._knn(rows, query, alpha)[1][0].tolist() == ours


def test_what_is_drawn_has_halves_of_length_one_in_clusters():
    rows = search.drawn(20_000, seed=0)
    halves = rows.reshape(-1, 2, search.DIM)
    assert np.linalg.norm(halves, axis=2) == pytest.approx(1, abs=1e-5)
    nearest = np.partition(halves[:50, 0] @ halves[:, 0].T, -2, axis=1)[:, -2]
    assert 0.5 < nearest.mean() < 0.8


def test_the_benchmark_gives_each_figure_that_it_is_held_against(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(search, "_REAL", tmp_path / "harmeme")
    result = search.search(memes=3000, queries=2)
    assert set(result.goals) <= set(result.figures)
    assert sum(name.startswith("recall_") for name in result.goals) == 7
    # Among so few all candidates are too many to ask for: what is found is what a scan finds.
    assert all(result.figures[f"recall_{alpha}"] == 1 for alpha in (0.0, 0.5, 1.0))
    assert "No annotations" in capsys.readouterr().err


def test_a_library_is_opened_and_changed_beside_what_is_plain(tmp_path):
    library._write(tmp_path / "library", 500)
    figures = library.answer(tmp_path / "library")
    assert figures["open_to_answer_over_numpy"] == figures["open_to_answer_s"] / figures["numpy_answer_s"]
    figures = library.changes(tmp_path / "library", 0.1)
    assert figures["adds_over_appends"] == figures["adds_per_s"] / figures["appends_per_s"] > 0
    # A vector of 1024 float32, and what is said of it: as much is appended to the plain file each time.
    assert 4096 < figures["append_bytes"] < 6000 and (tmp_path / "plain").stat().st_size > figures["append_bytes"]
