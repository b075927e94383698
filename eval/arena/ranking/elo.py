"""Elo: ratings updated after each battle. They depend on the order, so K and order are always reported."""

from __future__ import annotations

import numpy as np

from eval.arena.ranking.battles import MIDDLE, Battles, Floats, Ints

K = 4.0
"""Points that a battle moves a rating by at most: that of Chatbot Arena (Chiang et al. 2024), which makes the order
matter little."""


def elo(table: Battles, *, k: float = K, initial: float = MIDDLE) -> Floats:
    """Computes ratings after the last battle, in the order of the table; float of shape (models,).

    Args:
        table: Battles; a weight multiplies K.
        k: Maximum points that a rating moves by in a battle of weight 1.
    """
    # A list, not an array: each battle needs the ratings after the previous one, and NumPy scalars are slow.
    rating = [initial] * len(table.models)
    columns = (table.left.tolist(), table.right.tolist(), table.score.tolist(), table.weight.tolist())
    for left, right, score, weight in zip(*columns, strict=True):
        move = k * weight * (score - 1 / (1 + 10 ** ((rating[right] - rating[left]) / 400)))
        rating[left] += move
        rating[right] -= move
    return np.array(rating)


def elo_of_orders(table: Battles, orders: Ints, *, k: float = K) -> Floats:
    """Computes ratings of several orders, or resamples, at once.

    Args:
        orders: Indices of battles in sequence; int of shape (orders, steps), −1 for none.
        k: Step size of a battle, see :func:`elo`.

    Returns:
        float of shape (orders, models).
    """
    rows = np.arange(len(orders))
    rating = np.full((len(orders), len(table.models)), MIDDLE)
    for battle in orders.T:
        left, right = table.left[battle], table.right[battle]
        # Index -1 reads the last battle; its weight of 0 changes no rating.
        weight = np.where(battle < 0, 0.0, table.weight[battle])
        chance = 1 / (1 + 10 ** ((rating[rows, right] - rating[rows, left]) / 400))
        move = k * weight * (table.score[battle] - chance)
        rating[rows, left] += move
        rating[rows, right] -= move
    return rating
