import logging
from concurrent.futures import ThreadPoolExecutor

import faiss
import numpy as np
import pytest

from retrieval.embed.encoder import unit_rows
from retrieval.index.candidates import CandidateIndex, one_thread
from retrieval.index.exact import FusedIndex

DIGEST = "sha256:" + "0" * 64
TEXT_DIM, DIM = 20, 43  # neither half is a multiple of the quantiser's part size


def random_rows(n, seed=1):
    random = np.random.default_rng(seed)
    halves = (unit_rows(random.normal(size=(n, dim))) for dim in (TEXT_DIM, DIM - TEXT_DIM))
    return np.ascontiguousarray(np.hstack(list(halves)))


@pytest.fixture(scope="module")
def rows():
    return random_rows(900)


@pytest.fixture(scope="module")
def stage(rows):
    return CandidateIndex.build(rows, TEXT_DIM)


def test_approximate_scores_are_close_to_exact_and_sorted_best_first(rows, stage):
    for row in range(20):
        found, rough = stage.candidates(rows[row], 200)
        assert found[0] == row and len(set(found.tolist())) == 200
        assert (np.diff(rough) <= 0).all()
        assert np.abs(rough - rows[found] @ rows[row]).mean() < 0.15


def test_requesting_more_candidates_than_rows_returns_nearly_all(rows, stage):
    # Rows with the least possible sum are missing: FAISS can't distinguish them from an empty slot.
    found, _ = stage.candidates(rows[0], 10_000)
    assert 890 <= len(set(found.tolist())) <= 900


def test_best_rows_are_not_lost_if_weight_is_spread_evenly_over_many_parts():
    # FAISS's table sums are 16-bit and overflow here, those of the very best rows first.
    signs = np.sign(np.random.default_rng(0).normal(size=(600, 1024))).astype(np.float32) / np.sqrt(
        512, dtype=np.float32
    )
    stage = CandidateIndex.build(signs, 512)
    for alpha in (0.3, 0.5, 0.7):
        query = np.concatenate([alpha * signs[7, :512], (1 - alpha) * signs[7, 512:]])
        found, rough = stage.candidates(query, 3)
        assert found[0] == 7 and rough[0] == pytest.approx(1, abs=0.05)


def test_missing_half_scores_zero_even_if_all_others_lie_to_one_side():
    random = np.random.default_rng(2)
    text = unit_rows(1 + 0.3 * random.normal(size=(3000, 96)))
    text[::1000] = 0
    rows = np.ascontiguousarray(np.hstack([text, unit_rows(random.normal(size=(3000, 96)))]))
    query = np.concatenate([text[1], np.zeros(96, np.float32)])
    found, rough = CandidateIndex.build(rows, 96).candidates(query, 3000)
    assert np.abs(rough[found % 1000 == 0]).max(initial=0) < 0.02
    assert rough[found % 1000 != 0].min() > 0.5


@pytest.mark.parametrize("n", [2, 15, 17])
def test_index_trains_on_few_rows(n):
    rows = random_rows(n)
    found, rough = CandidateIndex.build(rows, TEXT_DIM).candidates(rows[n - 1], 5)
    assert found[0] == n - 1 and rough[0] == pytest.approx(2, abs=0.1)


def test_index_trains_on_one_row():
    rows = random_rows(1)
    index = FusedIndex(rows, TEXT_DIM, CandidateIndex.build(rows, TEXT_DIM))
    assert index.search(rows[0, :TEXT_DIM], rows[0, TEXT_DIM:], alpha=0.5, k=3).rows.tolist() == [0]


def test_empty_libraries_and_empty_halves_are_refused(rows):
    with pytest.raises(ValueError, match="no fast stage"):
        CandidateIndex.build(rows[:0], TEXT_DIM)
    with pytest.raises(ValueError, match="no fast stage"):
        CandidateIndex.build(rows, DIM)


def test_building_reports_progress(rows, monkeypatch):
    monkeypatch.setattr("retrieval.index.candidates._BLOCK", 400)
    progress = []
    CandidateIndex.build(rows, TEXT_DIM, lambda done, total: progress.append((done, total)))
    assert progress == [(0, 900), (400, 900), (800, 900), (900, 900)]


def test_concurrent_searches_match_sequential_ones(rows, stage):
    alone = [stage.candidates(row, 50) for row in rows[:40]]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda row: stage.candidates(row, 50), rows[:40]))
    for (found, rough), (found_alone, rough_alone) in zip(together, alone, strict=True):
        assert (found == found_alone).all() and (rough == rough_alone).all()


def test_one_thread_applies_to_the_calling_thread_and_is_undone():
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    try:
        with one_thread(), ThreadPoolExecutor(1) as other:
            assert faiss.omp_get_max_threads() == 1
            assert other.submit(faiss.omp_get_max_threads).result() != 1 or before == 1
        assert faiss.omp_get_max_threads() == 2
    finally:
        faiss.omp_set_num_threads(before)


@pytest.fixture
def saved(rows, tmp_path):
    CandidateIndex.load_or_build(tmp_path / "fast", rows, TEXT_DIM, DIGEST)
    return tmp_path / "fast"


def opened(path, rows, digest=DIGEST):
    """Returns the index, and True if it was built anew."""
    built: list[int] = []
    index = CandidateIndex.load_or_build(path, rows, TEXT_DIM, digest, lambda done, total: built.append(done))
    return index, bool(built)


def test_saved_index_finds_the_same_candidates(rows, stage, saved):
    again, built = opened(saved, rows)
    assert (again.rows, again.dim, again.text_dim, built) == (900, DIM, TEXT_DIM, False)
    for row in rows[:10]:
        assert all((a == b).all() for a, b in zip(again.candidates(row, 30), stage.candidates(row, 30), strict=True))
    assert [path.name for path in saved.parent.iterdir()] == ["fast"]


def test_file_with_any_flipped_bit_or_a_lost_end_is_built_anew(rows, saved):
    content = saved.read_bytes()
    for place in np.unique(np.linspace(0, len(content) - 1, 60).astype(int)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(place) % 8
        saved.write_bytes(flipped)
        assert opened(saved, rows)[1] and saved.read_bytes() == content
    for size in (0, 10, len(content) - 1):
        saved.write_bytes(content[:size])
        assert opened(saved, rows)[1] and not opened(saved, rows)[1]


def test_file_of_other_vectors_or_another_faiss_is_built_anew(rows, saved, monkeypatch):
    assert opened(saved, rows, "sha256:" + "1" * 64)[1] and opened(saved, rows)[1]
    assert opened(saved, rows[:300])[0].rows == 300 and opened(saved, rows)[1]
    monkeypatch.setattr(faiss, "__version__", "0.0.1")
    assert opened(saved, rows)[1]


def test_index_that_cannot_be_saved_is_used_and_a_warning_logged(rows, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        stage, _ = opened(tmp_path / "no such folder" / "fast", rows)
    assert "could not be kept" in caplog.text and stage.candidates(rows[5], 1)[0].tolist() == [5]
    assert str(tmp_path) not in caplog.text
