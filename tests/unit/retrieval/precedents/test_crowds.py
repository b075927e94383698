"""The cap on near-duplicate precedents, applied in batches, against pairwise comparison."""

import numpy as np
import pytest

from retrieval.precedents.search import NEARLY, _ClusterCap


def unit(rows):
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths, lengths, 1)).astype(np.float32)


def random_rows(rng, n):
    """Text and picture vectors of a few kinds each, some of them missing."""
    halves = []
    for dim in (6, 9):
        kinds = np.concatenate([np.zeros((1, dim)), rng.normal(size=(3, dim))])
        rows = kinds[rng.integers(len(kinds), size=n)]
        halves.append(unit(rows + 0.02 * rng.normal(size=rows.shape) * rows.any(axis=1, keepdims=True)))
    return *halves, rng.random(n) < 0.5


def is_near_duplicate(one, other):
    return (not one.any() and not other.any()) or float(one @ other) >= NEARLY


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_batches_give_the_same_choice_as_pairwise_comparison(seed, most):
    rng = np.random.default_rng(seed)
    texts, pictures, harmful = random_rows(rng, 60)
    chosen: list[int] = []
    for row in range(60):
        duplicates = [
            other
            for other in chosen
            if harmful[other] == harmful[row]
            and is_near_duplicate(texts[other], texts[row])
            and is_near_duplicate(pictures[other], pictures[row])
        ]
        if len(duplicates) < most:
            chosen.append(row)
    assert 0 < len(chosen) < 60

    cap, found = _ClusterCap(most), []
    for start, end in ((0, 25), (25, 26), (26, 60)):
        cap.scan(texts[start:end], pictures[start:end])
        for row in range(start, end):
            if not cap.full(row - start, bool(harmful[row])):
                cap.join(row - start, bool(harmful[row]))
                found.append(row)
    assert found == chosen
