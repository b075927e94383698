"""Precedents that are nearly the same, compared a run at a time, against each compared with each."""

import numpy as np
import pytest

from retrieval.precedents.search import NEARLY, _ClusterCap


def unit(rows):
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths, lengths, 1)).astype(np.float32)


def drawn(rng, n):
    """Texts and pictures of a few kinds each, some of them missing."""
    halves = []
    for dim in (6, 9):
        kinds = np.concatenate([np.zeros((1, dim)), rng.normal(size=(3, dim))])
        rows = kinds[rng.integers(len(kinds), size=n)]
        halves.append(unit(rows + 0.02 * rng.normal(size=rows.shape) * rows.any(axis=1, keepdims=True)))
    return *halves, rng.random(n) < 0.5


def nearly(one, other):
    return (not one.any() and not other.any()) or float(one @ other) >= NEARLY


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_chosen_in_one_run_counts_in_the_next(seed, most):
    rng = np.random.default_rng(seed)
    texts, pictures, harmful = drawn(rng, 60)
    chosen: list[int] = []
    for row in range(60):
        alike = [
            other
            for other in chosen
            if harmful[other] == harmful[row]
            and nearly(texts[other], texts[row])
            and nearly(pictures[other], pictures[row])
        ]
        if len(alike) < most:
            chosen.append(row)
    assert 0 < len(chosen) < 60

    crowds, found = _ClusterCap(most), []
    for start, end in ((0, 25), (25, 26), (26, 60)):
        crowds.scan(texts[start:end], pictures[start:end])
        for row in range(start, end):
            if not crowds.full(row - start, bool(harmful[row])):
                crowds.join(row - start, bool(harmful[row]))
                found.append(row)
    assert found == chosen
